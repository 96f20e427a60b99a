//! Sets up links, addresses, routes and neighbours by rtnetlink(7), with blocking calls.
//!
//! A [`Netlink`] belongs to the network namespace that the thread was in when it was opened. It is for the
//! control plane only: it allocates, and waits for the kernel's answer.

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// A hardware address.
pub type Mac = [u8; 6];

/// The properties of a link that [`Netlink::link`] returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The number of the link in its namespace.
    pub index: u32,
    /// The name of the link.
    pub name: String,
    /// Whether the link is switched on.
    pub up: bool,
    /// Largest packet in bytes, without the Ethernet header.
    pub mtu: u32,
    /// The hardware address, if the link is an Ethernet link.
    pub mac: Option<Mac>,
    /// The number of packets that the transmit queue holds.
    pub queue_len: u32,
}

/// A connection to the kernel's routing tables.
pub struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl Netlink {
    /// Opens the tables of the calling thread's namespace. Changing them needs CAP_NET_ADMIN there.
    pub fn open() -> io::Result<Netlink> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Netlink { socket, sequence: 0 })
    }

    /// Returns the properties of the link called `name`; fails with ENODEV if there is none.
    pub fn link(&mut self, name: &str) -> io::Result<Link> {
        let mut query = LinkMessage::default();
        query.attributes.push(LinkAttribute::IfName(name.to_owned()));
        let answers = self.request(RouteNetlinkMessage::GetLink(query), 0)?;
        let found = answers.into_iter().find_map(|answer| match answer {
            RouteNetlinkMessage::NewLink(link) => Some(link),
            _ => None,
        });
        let found = found.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?;
        let mut link = Link {
            index: found.header.index,
            name: name.to_owned(),
            up: found.header.flags.contains(LinkFlags::Up),
            mtu: 0,
            mac: None,
            queue_len: 0,
        };
        for attribute in found.attributes {
            match attribute {
                LinkAttribute::Mtu(mtu) => link.mtu = mtu,
                LinkAttribute::Address(bytes) => link.mac = bytes.try_into().ok(),
                LinkAttribute::TxQueueLen(len) => link.queue_len = len,
                _ => {}
            }
        }
        Ok(link)
    }

    /// Switches on the link with number `index`.
    pub fn set_up(&mut self, index: u32) -> io::Result<()> {
        let mut link = link_message(index);
        link.header.flags = LinkFlags::Up;
        link.header.change_mask = LinkFlags::Up;
        self.change(RouteNetlinkMessage::SetLink(link))
    }

    /// Switches off the link with number `index`.
    pub fn set_down(&mut self, index: u32) -> io::Result<()> {
        let mut link = link_message(index);
        link.header.change_mask = LinkFlags::Up;
        self.change(RouteNetlinkMessage::SetLink(link))
    }

    /// Sets the largest packet of a link, in bytes without the Ethernet header.
    pub fn set_mtu(&mut self, index: u32, mtu: u32) -> io::Result<()> {
        self.set_attribute(index, LinkAttribute::Mtu(mtu))
    }

    /// Sets the hardware address of the kernel's end of a link.
    pub fn set_mac(&mut self, index: u32, mac: Mac) -> io::Result<()> {
        self.set_attribute(index, LinkAttribute::Address(mac.to_vec()))
    }

    /// Sets how many packets the transmit queue of a link holds; on TAP, how many wait for user space before
    /// packets are dropped.
    pub fn set_queue_len(&mut self, index: u32, packets: u32) -> io::Result<()> {
        self.set_attribute(index, LinkAttribute::TxQueueLen(packets))
    }

    /// Removes a link, such as a veth or TAP device.
    pub fn delete_link(&mut self, index: u32) -> io::Result<()> {
        self.change(RouteNetlinkMessage::DelLink(link_message(index)))
    }

    /// Gives a link an address, and thereby a route to its network of `prefix` bits. Repeating the call
    /// changes nothing. There is no duplicate address detection for IPv6, because the link has only one other
    /// end.
    pub fn add_address(&mut self, index: u32, address: impl Into<IpAddr>, prefix: u8) -> io::Result<()> {
        let address = address.into();
        let mut message = AddressMessage::default();
        message.header.family = match address {
            IpAddr::V4(_) => AddressFamily::Inet,
            IpAddr::V6(_) => AddressFamily::Inet6,
        };
        if address.is_ipv6() {
            message.header.flags = AddressHeaderFlags::Nodad;
        }
        message.header.prefix_len = prefix;
        message.header.index = index;
        message.attributes.push(AddressAttribute::Local(address));
        message.attributes.push(AddressAttribute::Address(address));
        self.create(RouteNetlinkMessage::NewAddress(message))
    }

    /// Routes `network`/`prefix` over a link, through `gateway` if one is given. Replaces an existing route
    /// to that network.
    pub fn add_route(
        &mut self,
        index: u32,
        network: Ipv4Addr,
        prefix: u8,
        gateway: Option<Ipv4Addr>,
    ) -> io::Result<()> {
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet;
        message.header.destination_prefix_length = prefix;
        message.header.table = RouteHeader::RT_TABLE_MAIN;
        message.header.protocol = RouteProtocol::Static;
        message.header.scope = if gateway.is_some() { RouteScope::Universe } else { RouteScope::Link };
        message.header.kind = RouteType::Unicast;
        message.attributes.push(RouteAttribute::Destination(RouteAddress::Inet(network)));
        message.attributes.push(RouteAttribute::Oif(index));
        message
            .attributes
            .extend(gateway.map(|gateway| RouteAttribute::Gateway(RouteAddress::Inet(gateway))));
        self.create(RouteNetlinkMessage::NewRoute(message))
    }

    /// Sets the hardware address of `address` permanently, so that the kernel does not ask by ARP.
    pub fn add_neighbour(&mut self, index: u32, address: Ipv4Addr, mac: Mac) -> io::Result<()> {
        let mut message = neighbour_message(index, address);
        message.header.state = NeighbourState::Permanent;
        message.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.to_vec()));
        self.create(RouteNetlinkMessage::NewNeighbour(message))
    }

    fn set_attribute(&mut self, index: u32, attribute: LinkAttribute) -> io::Result<()> {
        let mut link = link_message(index);
        link.attributes.push(attribute);
        self.change(RouteNetlinkMessage::SetLink(link))
    }

    fn create(&mut self, message: RouteNetlinkMessage) -> io::Result<()> {
        self.request(message, NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE).map(drop)
    }

    fn change(&mut self, message: RouteNetlinkMessage) -> io::Result<()> {
        self.request(message, NLM_F_ACK).map(drop)
    }

    /// Sends one request and waits for its acknowledgement, or for its one answer. The kernel answers at
    /// once, so the wait has no deadline.
    fn request(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut packet = NetlinkMessage::new(header, NetlinkPayload::from(message));
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        loop {
            let (bytes, _) = self.socket.recv_from_full()?;
            let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&bytes)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            if answer.header.sequence_number != self.sequence {
                continue; // This is the rest of an earlier request that failed half-way.
            }
            match answer.payload {
                NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
                NetlinkPayload::InnerMessage(message) => return Ok(vec![message]),
                _ => return Ok(Vec::new()),
            }
        }
    }
}

fn link_message(index: u32) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message
}

fn neighbour_message(index: u32, address: Ipv4Addr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.ifindex = index;
    message.attributes.push(NeighbourAttribute::Destination(NeighbourAddress::Inet(address)));
    message
}

#[cfg(test)]
mod tests;
