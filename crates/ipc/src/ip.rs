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
use alloc::vec;
use alloc::vec::Vec;

use atoll_base::{Addr, Endpoint, Epoch};

use crate::layout::{BadMessage, Field, MESSAGE_BYTES, messages, part, put, record};
use crate::network::{NETWORK_BYTES, Network};

/// A message to or from an IP server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpMessage {
    /// The incarnation of the sender.
    pub epoch: Epoch,
    /// The content of the message.
    pub body: IpBody,
}

messages! {
    /// The content of a message.
    #[derive(Clone, Debug, PartialEq, Eq)]
    #[allow(missing_docs)] // Fields are named after what the variant's doc says of them.
    pub enum IpBody after Head {
        /// A TS has started, and asks for the network. Lost: impossible, because a full ring is offered the
        /// message again. Repeated: harmless.
        Hello = 0,
        /// A TS wants packets to a group, or no more of them. The unspecified address of a family stands for
        /// the messages of its ICMP that the IP server handles itself: raw sockets hear them. Lost:
        /// impossible, as for Hello. Repeated: harmless.
        Group = 1 { group: Addr, joins: bool },
        /// The way to a destination takes packets of this size only (see `Message::Path`). Lost: echo replies
        /// may be too large.
        Path = 2 { dst: Addr, mtu: u16 },
        /// An IP server sends what it knows of the network. Lost: impossible, as for Hello; only the last one
        /// counts. An IP server takes only the IPv4 address from another one.
        Network = 3 { news: Box<NetworkNews> },
        /// No station takes this packet of the TS, nor others to the same destination. `protocol` is 0 if the
        /// packet has no ports, as later fragments. An echo request has its identifier as own port, and its
        /// number as `seq`. Lost: connections time out instead.
        Unreachable = 4 { protocol: u8, local: Endpoint, remote: Endpoint, seq: u32 },
        /// An IPv4 neighbour has this station (see `Message::Neighbour`). `learned` says that every receiver
        /// may believe it. Lost: the other IP server asks for itself.
        Neighbour = 5 { addr: u32, mac: [u8; 6], learned: bool },
        /// Packets of a TS arrive through this neighbour (RFC 4861 §7.3.1). Lost: the neighbour is asked
        /// without need.
        Progress = 6 { hop: Addr },
    }
}

/// The network as the pages of replicas show it, and further facts that only a TS has to know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkNews {
    /// The network as programs see it, without the routers, which are in `routers`.
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

record! {
    /// The part of a message before its fields.
    struct Head {
        kind: u8,
        epoch: Epoch,
    }
}

record! {
    /// The part of the news that is in the message itself. Behind it follow the routers, whose number it has,
    /// and the record that pages have.
    pub(crate) struct News {
        mtu_v6: u16,
        hop_limit: u8,
        routers: u8,
    }
}

impl Field for Box<NetworkNews> {
    type Octets = <News as Field>::Octets;

    fn write(&self) -> Self::Octets {
        let NetworkNews { mtu_v6, hop_limit, ref routers, .. } = **self;
        // Cannot truncate: the number is at most ROUTERS_MAX.
        News { mtu_v6, hop_limit, routers: routers.len().min(ROUTERS_MAX) as u8 }.write()
    }

    /// Returns news with as many routers as follow, of which nothing is known yet.
    fn read(octets: &Self::Octets) -> Result<Box<NetworkNews>, BadMessage> {
        let News { mtu_v6, hop_limit, routers } = News::read(octets)?;
        let routers = vec![Addr::ANY; routers.into()];
        Ok(Box::new(NetworkNews { network: Network::default(), routers, mtu_v6, hop_limit }))
    }
}

impl IpMessage {
    /// Encodes the message as a payload: kind, epoch, and the fields in their order; a network is followed by
    /// its routers and the record that pages have.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = [0; MESSAGE_BYTES];
        put(&mut bytes, 0, &Head { kind: 0, epoch: self.epoch }.write());
        self.body.write(&mut bytes);
        let mut bytes = bytes.to_vec();
        if let IpBody::Network { news } = &self.body {
            bytes.extend(news.routers.iter().take(ROUTERS_MAX).flat_map(|addr| addr.octets()));
            bytes.extend(news.network.octets());
        }
        bytes
    }

    /// Decodes the message in a payload. Fails with [`BadMessage`] for another length or an unknown kind.
    pub fn decode(bytes: &[u8]) -> Result<IpMessage, BadMessage> {
        let (fixed, mut rest) = bytes.split_first_chunk::<MESSAGE_BYTES>().ok_or(BadMessage)?;
        let Head { epoch, .. } = Head::read(part(fixed, 0)?)?;
        let mut body = IpBody::read(fixed)?;
        if let IpBody::Network { news } = &mut body {
            if news.routers.len() > ROUTERS_MAX {
                return Err(BadMessage);
            }
            for router in &mut news.routers {
                let (octets, others) = rest.split_first_chunk().ok_or(BadMessage)?;
                (*router, rest) = (Addr::from_octets(*octets), others);
            }
            let (record, others) = rest.split_first_chunk().ok_or(BadMessage)?;
            (news.network, rest) = (Network::of(record)?, others);
        }
        if rest.is_empty() { Ok(IpMessage { epoch, body }) } else { Err(BadMessage) }
    }
}

const _: () = assert!(IP_BYTES_MAX <= crate::mesh::PAYLOAD_MAX);

#[cfg(test)]
mod tests {
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
            IpBody::Network { news: Box::new(news()) },
            IpBody::Network { news: Box::default() },
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
        let body = IpBody::Network { news: Box::new(NetworkNews { routers, ..news() }) };
        let mut bytes = IpMessage { epoch: Epoch(1), body }.encode();
        assert_eq!(bytes.len(), IP_BYTES_MAX);
        let decoded = IpMessage::decode(&bytes).map(|message| message.body);
        assert!(matches!(decoded, Ok(IpBody::Network { news }) if news.routers.len() == 8));
        for len in [0, 1, MESSAGE_BYTES - 1, MESSAGE_BYTES, MESSAGE_BYTES + 16, IP_BYTES_MAX - 1] {
            assert_eq!(IpMessage::decode(&bytes[..len]), Err(BadMessage), "{len}");
        }
        bytes.push(0);
        assert_eq!(IpMessage::decode(&bytes), Err(BadMessage));
        bytes[0] = 6;
        assert_eq!(IpMessage::decode(&bytes), Err(BadMessage));
    }
}
