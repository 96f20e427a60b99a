//! The messages, besides packets, between a transport server (TS) and an IP server in another process, and
//! between IP servers (N6). Packets travel as frames.
//!
//! Mesh records ([`crate::mesh::KIND_IP`]) carry the messages.
//!
//! ```text
//!   TS  --Hello, Group, Path, Progress-->  IP server      IP server  --Network, Unreachable-->  TS
//!   IP server  --Network, Neighbour, Path-->  IP server
//! ```
//! Every message has its sender's epoch. A receiver that meets a new epoch starts from scratch with that
//! sender: an IP server forgets the TS's groups and sends it the network, and a TS asks for its groups again.

use alloc::boxed::Box;
use alloc::vec::Vec;

use atoll_base::{Addr, Endpoint, Epoch};

use crate::event::BadMessage;
use crate::memory::{HeapMemory, Memory};
use crate::network::{NETWORK_BYTES, Network};
use crate::words::{MESSAGE_BYTES, Reader, Writer};

/// A message to or from an IP server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpMessage {
    /// The incarnation of the sender.
    pub epoch: Epoch,
    /// The content of the message.
    pub body: IpBody,
}

/// The content of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // Fields are named after what the variant's doc says of them.
pub enum IpBody {
    /// A TS has started, and wants to be told the network. Lost: impossible, because a full ring is offered
    /// the message again. Repeated: harmless.
    Hello,
    /// A TS wants packets to a group, or no more of them. Lost: impossible, as for Hello. Repeated: harmless.
    Group { group: Addr, joins: bool },
    /// The way to a destination takes packets of this size only (see `Message::Path`). Lost: echo replies may
    /// be too large.
    Path { dst: Addr, mtu: u16 },
    /// An IP server sends what it knows of the network. Lost: impossible, as for Hello; only the last one
    /// counts. An IP server takes only the IPv4 address from another one.
    Network(Box<NetworkNews>),
    /// No station takes this packet of the TS, nor others to the same destination. `protocol` is 0 if the
    /// packet has no ports, as later fragments. Lost: connections time out instead.
    Unreachable { protocol: u8, local: Endpoint, remote: Endpoint, seq: u32 },
    /// An IPv4 neighbour has this station (see `Message::Neighbour`). `learned` says that every receiver may
    /// believe it. Lost: the other IP server asks for itself.
    Neighbour { addr: u32, mac: [u8; 6], learned: bool },
    /// Packets of a TS arrive through this neighbour (RFC 4861 §7.3.1). Lost: the neighbour is asked without
    /// need.
    Progress { hop: Addr },
}

/// The network as the pages of replicas show it, and further facts that only a TS has to know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkNews {
    /// The network as programs are told it, without the routers, which are in `routers`.
    pub network: Network,
    /// The routers of IPv6, [`ROUTERS_MAX`] at most.
    pub routers: Vec<Addr>,
    /// The size of the largest IPv6 packet in octets.
    pub mtu_v6: u16,
    /// The hop limit of IPv6 packets whose socket asks for no other.
    pub hop_limit: u8,
}

/// The maximum number of routers in a message.
pub const ROUTERS_MAX: usize = 8;
/// The size of the longest message in bytes.
pub const IP_BYTES_MAX: usize = MESSAGE_BYTES + ROUTERS_MAX * ADDR_BYTES + NETWORK_BYTES;
const ADDR_BYTES: usize = 16;

impl IpMessage {
    /// Encodes the message as a payload: kind, epoch, and the fields in their order; a network is followed by
    /// its routers and the record that pages have.
    pub fn encode(&self) -> Vec<u8> {
        let head = |kind| Writer::new(kind).u32(self.epoch.0);
        let writer = match &self.body {
            IpBody::Hello => head(0),
            IpBody::Group { group, joins } => head(1).addr(*group).u8((*joins).into()),
            IpBody::Path { dst, mtu } => head(2).addr(*dst).u16(*mtu),
            IpBody::Network(news) => {
                // Cannot truncate: the number is at most ROUTERS_MAX.
                let routers = news.routers.len().min(ROUTERS_MAX);
                let mut bytes = head(3).u16(news.mtu_v6).u8(news.hop_limit).u8(routers as u8).bytes.to_vec();
                news.routers.iter().take(routers).for_each(|addr| bytes.extend_from_slice(&addr.octets()));
                let memory = HeapMemory::new(NETWORK_BYTES);
                news.network.store(&memory, 0);
                let at = bytes.len();
                bytes.resize(at + NETWORK_BYTES, 0);
                memory.read(0, &mut bytes[at..]);
                return bytes;
            }
            IpBody::Unreachable { protocol, local, remote, seq } => {
                head(4).u8(*protocol).endpoint(*local).endpoint(*remote).u32(*seq)
            }
            IpBody::Neighbour { addr, mac, learned } => head(5).u32(*addr).array(*mac).u8((*learned).into()),
            IpBody::Progress { hop } => head(6).addr(*hop),
        };
        writer.bytes.to_vec()
    }

    /// Decodes the message in a payload. Fails with [`BadMessage`] for another length or an unknown kind.
    pub fn decode(bytes: &[u8]) -> Result<IpMessage, BadMessage> {
        let (head, rest) = bytes.split_first_chunk::<MESSAGE_BYTES>().ok_or(BadMessage)?;
        let (kind, mut r) = Reader::new(head);
        let epoch = Epoch(r.u32());
        let body = match kind {
            0 => IpBody::Hello,
            1 => IpBody::Group { group: r.addr(), joins: r.u8() != 0 },
            2 => IpBody::Path { dst: r.addr(), mtu: r.u16() },
            3 => {
                let (mtu_v6, hop_limit, routers) = (r.u16(), r.u8(), usize::from(r.u8()));
                let (routers, record) = rest.split_at_checked(routers * ADDR_BYTES).ok_or(BadMessage)?;
                if routers.len() > ROUTERS_MAX * ADDR_BYTES || record.len() != NETWORK_BYTES {
                    return Err(BadMessage);
                }
                let memory = HeapMemory::new(NETWORK_BYTES);
                memory.write(0, record);
                let (addrs, _) = routers.as_chunks::<ADDR_BYTES>();
                let routers = addrs.iter().map(|octets| Addr::from_octets(*octets)).collect();
                // A record that is being written has an odd version, and no sender copies one.
                let network = Network::load(&memory, 0);
                return Ok(IpMessage {
                    epoch,
                    body: IpBody::Network(Box::new(NetworkNews { network, routers, mtu_v6, hop_limit })),
                });
            }
            4 => IpBody::Unreachable {
                protocol: r.u8(),
                local: r.endpoint(),
                remote: r.endpoint(),
                seq: r.u32(),
            },
            6 => IpBody::Progress { hop: r.addr() },
            5 => IpBody::Neighbour { addr: r.u32(), mac: r.array(), learned: r.u8() != 0 },
            _ => return Err(BadMessage),
        };
        if rest.is_empty() { Ok(IpMessage { epoch, body }) } else { Err(BadMessage) }
    }
}

const _: () = assert!(NETWORK_BYTES.is_multiple_of(8) && IP_BYTES_MAX <= crate::mesh::PAYLOAD_MAX);

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::network::{AddressFacts, V4Facts};

    fn news() -> NetworkNews {
        let own =
            AddressFacts { addr: Addr::from_octets([0x20; 16]), prefix_len: 64, ..AddressFacts::default() };
        let v4 = V4Facts { addr: 0x0a00_0001, prefix_len: 24, gateway: 0, mtu: 1400, valid_until: u64::MAX };
        let network = Network { addresses: vec![own], v4: Some(v4), ..Network::default() };
        NetworkNews { network, routers: vec![Addr::from_octets([0xfe; 16]); 3], mtu_v6: 1300, hop_limit: 77 }
    }

    #[test]
    fn every_message_survives_the_ring() {
        let dst = Addr::from_octets([0xfd; 16]);
        for body in [
            IpBody::Hello,
            IpBody::Group { group: Addr::v4(0xe000_0001), joins: true },
            IpBody::Group { group: dst, joins: false },
            IpBody::Path { dst, mtu: 1280 },
            IpBody::Network(Box::new(news())),
            IpBody::Network(Box::default()),
            IpBody::Unreachable {
                protocol: 6,
                local: Endpoint::at(dst, 1),
                remote: Endpoint::at(dst, 2),
                seq: 3,
            },
            IpBody::Progress { hop: dst },
            IpBody::Neighbour { addr: 7, mac: [1, 2, 3, 4, 5, 6], learned: true },
        ] {
            let message = IpMessage { epoch: Epoch(9), body };
            let bytes = message.encode();
            assert!(bytes.len() <= IP_BYTES_MAX);
            assert_eq!(IpMessage::decode(&bytes), Ok(message));
        }
    }

    #[test]
    fn too_many_routers_are_cut_and_other_lengths_refused() {
        let routers = vec![Addr::ANY; 300];
        let body = IpBody::Network(Box::new(NetworkNews { routers, ..news() }));
        let mut bytes = IpMessage { epoch: Epoch(1), body }.encode();
        assert_eq!(bytes.len(), IP_BYTES_MAX);
        assert!(
            matches!(IpMessage::decode(&bytes).map(|m| m.body), Ok(IpBody::Network(n)) if n.routers.len() == 8)
        );
        for len in [0, 1, MESSAGE_BYTES - 1, MESSAGE_BYTES, MESSAGE_BYTES + 16, IP_BYTES_MAX - 1] {
            assert_eq!(IpMessage::decode(&bytes[..len]), Err(BadMessage), "{len}");
        }
        bytes.push(0);
        assert_eq!(IpMessage::decode(&bytes), Err(BadMessage));
        bytes[0] = 6;
        assert_eq!(IpMessage::decode(&bytes), Err(BadMessage));
    }
}
