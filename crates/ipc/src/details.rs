//! What a datagram in a socket buffer says of its packet, besides its peer: the control messages of ip(7) and
//! ipv6(7), cmsg(3).
//!
//! ```text
//!   0                  16    17    18      19     20       24
//!   | own address      | tos | ttl | known | link | unused |
//! ```
//! Details stand between the header of a record and its payload. They are there where a socket has asked for
//! them ([`crate::SocketOption::Details`]), and where a call has given some with its datagram.

use atoll_base::Addr;

use crate::layout::BadMessage;

/// Octets of the details of a datagram.
pub const DETAILS_BYTES: usize = 24;
/// The flag of a record that has details.
pub const DETAILED: u16 = 2;

/// What is known of the packet of a datagram, or asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// In a receive buffer, the destination of the packet. In a send buffer, its source; unspecified if the
    /// call has named none.
    pub own: Addr,
    /// Type of service or traffic class; `None` in a send buffer if the socket's own counts.
    pub tos: Option<u8>,
    /// TTL or hop limit; `None` in a send buffer if the socket's own counts.
    pub ttl: Option<u8>,
    /// The link over which the packet came, or over which a datagram to a group is to leave.
    pub link: Option<Link>,
}

/// The links of a stack, as programs tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// The loopback.
    Inside,
    /// The link to the network.
    Outside,
}

const TOS: u8 = 1;
const TTL: u8 = 2;

impl Details {
    /// Encodes the details.
    pub fn encode(&self) -> [u8; DETAILS_BYTES] {
        let mut octets = [0; DETAILS_BYTES];
        let (own, rest) = octets.split_at_mut(16);
        own.copy_from_slice(&self.own.octets());
        let known = if self.tos.is_some() { TOS } else { 0 } | if self.ttl.is_some() { TTL } else { 0 };
        let link = match self.link {
            None => 0,
            Some(Link::Inside) => 1,
            Some(Link::Outside) => 2,
        };
        rest[..4].copy_from_slice(&[self.tos.unwrap_or(0), self.ttl.unwrap_or(0), known, link]);
        octets
    }

    /// Decodes details. Fails with [`BadMessage`] if a field has a value that does not exist.
    pub fn decode(octets: &[u8; DETAILS_BYTES]) -> Result<Details, BadMessage> {
        let (own, rest) = octets.split_first_chunk::<16>().ok_or(BadMessage)?;
        let [tos, ttl, known, link, 0, 0, 0, 0] = *rest else { return Err(BadMessage) };
        if known & !(TOS | TTL) != 0 {
            return Err(BadMessage);
        }
        let link = match link {
            0 => None,
            1 => Some(Link::Inside),
            2 => Some(Link::Outside),
            _ => return Err(BadMessage),
        };
        let known = |bit: u8, value: u8| (known & bit != 0).then_some(value);
        Ok(Details { own: Addr::from_octets(*own), tos: known(TOS, tos), ttl: known(TTL, ttl), link })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_survive_the_buffer() {
        let own = Addr::from_octets([0x20; 16]);
        for tos in [None, Some(0), Some(255)] {
            for ttl in [None, Some(0), Some(64)] {
                for link in [None, Some(Link::Inside), Some(Link::Outside)] {
                    let details = Details { own, tos, ttl, link };
                    assert_eq!(Details::decode(&details.encode()), Ok(details));
                }
            }
        }
    }

    #[test]
    fn values_that_do_not_exist_are_no_details() {
        for (at, value) in [(18, 4), (19, 3), (20, 1), (23, 128)] {
            let mut octets = Details::default().encode();
            octets[at] = value;
            assert_eq!(Details::decode(&octets), Err(BadMessage), "{at}");
        }
    }
}
