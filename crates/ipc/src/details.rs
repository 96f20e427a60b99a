//! What a datagram in a socket buffer says of its packet, besides its peer: the control messages of ip(7) and
//! ipv6(7), cmsg(3).
//!
//! Details stand between the header of a record and its payload. They are there where a socket has asked for
//! them ([`crate::SocketOption::Details`]), and where a call has given some with its datagram.

use core::num::NonZeroU64;

use atoll_base::Addr;

use bitflags::bitflags;
use zerocopy::TryFromBytes;

use crate::layout::{BadMessage, Field, numbered, part, put, record};

record! {
    /// The octets of details.
    struct Written {
        own: Addr,
        tos: u8,
        ttl: u8,
        known: u8,
        link: u8,
        dropped: u32,
        came: u64,
    }
}

bitflags! {
    /// The fields that have a value.
    #[derive(Clone, Copy, PartialEq, Eq)]
    struct Known: u8 {
        const TOS = 1;
        const TTL = 2;
    }
}

/// The length of details in octets.
pub const DETAILS_BYTES: usize = size_of::<<Written as Field>::Octets>();

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
    /// When the packet came, in a receive buffer, if the socket has asked for that
    /// ([`crate::SocketOption::Times`]).
    pub came: Option<TimeOfDay>,
    /// The datagrams that the replica had dropped for want of room when this one came, in a receive buffer,
    /// if the socket has asked for that ([`crate::SocketOption::Drops`]).
    pub dropped: u32,
}

/// A moment on the clock of the day (CLOCK_REALTIME, clock_gettime(2)), in nanoseconds since 1970. The moment
/// 0 does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeOfDay(NonZeroU64);

impl TimeOfDay {
    /// Returns the moment so many nanoseconds after the start of 1970; `None` for 0.
    pub fn from_nanos(nanos: u64) -> Option<TimeOfDay> {
        NonZeroU64::new(nanos).map(TimeOfDay)
    }

    /// Returns the nanoseconds since the start of 1970.
    pub const fn as_nanos(self) -> u64 {
        self.0.get()
    }
}

/// Returns a moment that may be unknown as it is written: 0 stands for none.
fn nanos_of(moment: Option<TimeOfDay>) -> u64 {
    moment.map_or(0, TimeOfDay::as_nanos)
}

/// The links of a stack, as programs tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes)]
#[repr(u8)]
pub enum Link {
    /// The loopback.
    Inside = 1,
    /// The link to the network.
    Outside = 2,
}

numbered!(Link);

impl Details {
    /// Encodes the details.
    pub fn encode(&self) -> [u8; DETAILS_BYTES] {
        let mut known = Known::empty();
        known.set(Known::TOS, self.tos.is_some());
        known.set(Known::TTL, self.ttl.is_some());
        let written = Written {
            own: self.own,
            tos: self.tos.unwrap_or(0),
            ttl: self.ttl.unwrap_or(0),
            known: known.bits(),
            link: self.link.map_or(0, |link| link as u8),
            dropped: self.dropped,
            came: nanos_of(self.came),
        };
        let mut octets = [0; DETAILS_BYTES];
        put(&mut octets, 0, &written.write());
        octets
    }

    /// Decodes details. Fails with [`BadMessage`] if a field has a value that does not exist.
    pub fn decode(octets: &[u8; DETAILS_BYTES]) -> Result<Details, BadMessage> {
        let written = Written::read(part(octets, 0)?)?;
        let known = Known::from_bits(written.known).ok_or(BadMessage)?;
        let link = match written.link {
            0 => None,
            n => Some(Link::from_u8(n).ok_or(BadMessage)?),
        };
        let (tos, ttl) = (known.contains(Known::TOS), known.contains(Known::TTL));
        Ok(Details {
            own: written.own,
            tos: tos.then_some(written.tos),
            ttl: ttl.then_some(written.ttl),
            link,
            came: TimeOfDay::from_nanos(written.came),
            dropped: written.dropped,
        })
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
                    for came in [None, TimeOfDay::from_nanos(1)] {
                        let details = Details { own, tos, ttl, link, came, dropped: 7 };
                        assert_eq!(Details::decode(&details.encode()), Ok(details));
                    }
                }
            }
        }
    }

    #[test]
    fn details_have_these_octets() {
        let own = Addr::from_octets(core::array::from_fn(|at| 0x10 + at as u8));
        let came = TimeOfDay::from_nanos(0x0807_0605_0403_0201);
        let details = Details {
            own,
            tos: Some(5),
            ttl: Some(6),
            link: Some(Link::Outside),
            came,
            dropped: 0x0d0c_0b0a,
        };
        let octets = [
            0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e, 0x1f,
            5, 6, 3, 2, 10, 11, 12, 13, 1, 2, 3, 4, 5, 6, 7, 8,
        ];
        assert_eq!(details.encode(), octets);
    }

    #[test]
    fn values_that_do_not_exist_are_no_details() {
        for (at, value) in [(18, 4), (19, 3)] {
            let mut octets = Details::default().encode();
            octets[at] = value;
            assert_eq!(Details::decode(&octets), Err(BadMessage), "{at}");
        }
    }
}
