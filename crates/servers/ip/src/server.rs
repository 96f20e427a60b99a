//! The IP server: handles frames from the link, and those from transport servers (TS).

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use atoll_base::{Addr, Endpoint, Epoch, FourTuple, Instant};
use atoll_ip::{
    Basis, ChecksumOffload, ChecksumState, Frame, Ip, Link, NeighbourUpdate, PathUpdate, Received, Route,
    Told,
};
use atoll_ipc::ip::{IpBody, IpMessage};
use atoll_ipc::page::REPLICAS_MAX;
use atoll_wire::ethernet::{self, EtherType};
use atoll_wire::ipv4::Protocol;
use atoll_wire::{Mac, icmp, icmpv6, vnet};

use crate::members::Members;
use crate::news;
use crate::waiting::{Kept, Waiting};

/// The configuration of an IP server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The number of this server among the IP servers.
    pub number: u8,
    /// The number of IP servers.
    pub servers: u8,
    /// The number of TSs, at least that of IP servers.
    pub replicas: u8,
    /// The incarnation of this server.
    pub epoch: Epoch,
}

/// The receiver or sender of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Party {
    /// The TS with this number.
    Transport(u8),
    /// The IP server with this number.
    Sibling(u8),
}

/// The outputs of an IP server: the link and the rings.
pub trait Egress {
    /// Sends a frame, which starts at the Ethernet header, over the link. Returns `false` if the link is
    /// full; the frame is offered again later then.
    fn send(&mut self, vnet: &[u8; vnet::HEADER_LEN], frame: &[u8]) -> bool;

    /// Gives a checked packet, as a frame, to the TS that owns the flow. `tuple` is as the packet's receiver
    /// sees it. A frame that a TS does not take is kept or lost, as by a link server.
    fn deliver(&mut self, tuple: &FourTuple, vnet: &[u8; vnet::HEADER_LEN], frame: &[u8]);

    /// Sends a message. Returns `false` if the ring is full.
    fn tell(&mut self, to: Party, message: &IpMessage) -> bool;
}

/// An IP server: all of IP, for the TSs that it serves and the packets that it is given.
///
/// In each round its owner calls [`IpServer::handle_frame`] for each frame of the link;
/// [`IpServer::transmit`] for each frame of a TS, as long as the server is not
/// [crowded](IpServer::is_crowded); [`IpServer::handle_message`]; [`IpServer::handle_timeout`]; and
/// [`IpServer::flush`].
///
/// Its state does not survive a crash. A new incarnation starts as [`Ip`] does, sends its TSs what it knows,
/// and receives the groups that they want. Packets that waited for a neighbour are lost, as on a wire.
#[derive(Debug)]
pub struct IpServer {
    config: Config,
    ip: Ip,
    /// The frames that wait until their neighbour's station is known.
    waiting: Waiting,
    /// The neighbour generation of `ip` for which `waiting` was last examined.
    settled: u64,
    /// Frames that the link did not take.
    leaving: VecDeque<([u8; vnet::HEADER_LEN], Vec<u8>)>,
    /// Frames of IP itself that the link has not taken yet.
    said: VecDeque<([u8; vnet::HEADER_LEN], Vec<u8>)>,
    members: Members,
    /// The TSs, by number.
    clients: [Partner; REPLICAS_MAX],
    /// The other IP servers, by number.
    siblings: [Partner; REPLICAS_MAX],
    told: Told,
    /// The version of `told`, which grows with every change.
    version: u64,
    /// The neighbour generation of `ip` for which `told` was made.
    made_for: u64,
    /// Messages that are sent once, and may get lost.
    outbox: VecDeque<(Party, IpBody)>,
    counts: Counts,
}

/// The state of the exchange with a TS or another IP server.
#[derive(Clone, Copy, Debug, Default)]
struct Partner {
    /// The partner's incarnation, once it has sent something.
    epoch: Epoch,
    /// The version of the network that was last sent to it.
    told: u64,
}

/// The counters of an IP server besides those of [`Ip`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages received from known incarnations.
    pub received: u64,
    /// Messages sent.
    pub sent: u64,
    /// Messages that were invalid, or came from an ended incarnation.
    pub bad: u64,
    /// Frames of TSs given up because their neighbour was not found, or too many waited for it.
    pub unresolved: u64,
    /// Frames of TSs that may not leave: they contain no packet, or one that is not from an address of ours.
    pub refused: u64,
}

/// The most messages that wait to be sent once.
const OUTBOX_MAX: usize = 256;
const SAID_MAX: usize = 256;
const MAC_LEN: usize = 6;
const NO_OFFLOAD: [u8; vnet::HEADER_LEN] = [0; vnet::HEADER_LEN];

impl IpServer {
    /// Creates a server with `ip`, which is whole. Nothing has been sent to TSs and other IP servers yet.
    pub fn new(config: Config, ip: Ip) -> IpServer {
        IpServer {
            waiting: Waiting::default(),
            settled: ip.neighbour_generation(),
            leaving: VecDeque::new(),
            said: VecDeque::new(),
            members: Members::default(),
            clients: Default::default(),
            siblings: Default::default(),
            told: ip.told(),
            version: 1,
            made_for: ip.neighbour_generation(),
            outbox: VecDeque::new(),
            counts: Counts::default(),
            config,
            ip,
        }
    }

    /// Handles a frame of the link, with its virtio-net header. Never panics, whatever the bytes are.
    pub fn handle_frame(
        &mut self,
        now: Instant,
        vnet: &[u8; vnet::HEADER_LEN],
        frame: &[u8],
        egress: &mut impl Egress,
    ) {
        self.receive(now, vnet, frame, egress);
        while let Some(Frame { bytes, .. }) = self.ip.poll_whole() {
            self.receive(now, &NO_OFFLOAD, &bytes, egress);
        }
        self.settle(now, egress);
    }

    fn receive(
        &mut self,
        now: Instant,
        vnet: &[u8; vnet::HEADER_LEN],
        frame: &[u8],
        egress: &mut impl Egress,
    ) {
        let Ok((header, _)) = vnet::parse(vnet) else { return };
        let offload = if header.needs_csum() {
            ChecksumOffload::Partial
        } else if header.data_valid() {
            ChecksumOffload::Valid
        } else {
            ChecksumOffload::Unknown
        };
        let (tuple, checksum) = match self.ip.handle_frame(now, Link::Outside, frame, offload) {
            Received::Tcp { src, dst, segment, checksum, .. } => {
                // A segment without ports belongs to no flow.
                let &[a, b, c, d, ..] = segment else { return };
                let (src_port, dst_port) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
                (
                    FourTuple { local: Endpoint::at(dst, dst_port), remote: Endpoint::at(src, src_port) },
                    checksum,
                )
            }
            Received::Udp { src, dst, checksum, .. } => (FourTuple { local: dst, remote: src }, checksum),
            // Every TS has every socket of ICMP.
            Received::EchoReply { src, dst, id, .. } => {
                let (local, remote) = (Endpoint::at(dst, id), Endpoint::at(src, 0));
                (FourTuple { local, remote }, ChecksumState::Verified)
            }
            Received::Error(error, _) => (error.tuple, ChecksumState::Verified),
            Received::Consumed | Received::Dropped(_) => {
                let Some(tuple) = self.overheard() else { return };
                (tuple, ChecksumState::Verified)
            }
        };
        let mut vnet = *vnet;
        if checksum == ChecksumState::Verified && !header.needs_csum() {
            // A checksum that was verified once need not be verified again.
            vnet[0] |= vnet::DATA_VALID;
        }
        egress.deliver(&tuple, &vnet, frame);
    }

    /// Returns the tuple under which the frame that was just handled goes to a TS for its raw sockets, since
    /// every TS has all of these. Returns `None` if the frame holds no message of ICMP, or nobody listens.
    /// What every IP server hears the first one hands over.
    fn overheard(&mut self) -> Option<FourTuple> {
        let message = self.ip.take_message()?;
        let is_ours = self.config.number == 0 || !message.is_for_all();
        let (local, remote) = (Endpoint::at(message.dst, 0), Endpoint::at(message.src, 0));
        (is_ours && self.members.want_messages(message.dst)).then_some(FourTuple { local, remote })
    }

    /// Sends a frame of TS `from`, which starts at the Ethernet header. The destination station is filled in,
    /// unless there is one, as in an answer to a station.
    pub fn transmit(
        &mut self,
        now: Instant,
        from: u8,
        vnet: &[u8; vnet::HEADER_LEN],
        frame: &mut [u8],
        egress: &mut impl Egress,
    ) {
        let Some((src, dst)) = addresses(frame) else {
            self.counts.refused += 1;
            return;
        };
        if !self.ip.is_own(src) || src.is_loopback() {
            self.counts.refused += 1;
            return;
        }
        let has_station = frame.get(..MAC_LEN).is_some_and(|mac| mac != Mac::ZERO.0);
        let route = if has_station { None } else { Some(self.ip.route(now, dst)) };
        match route {
            None => self.send(vnet, frame, egress),
            Some(Route::Via { mac }) => {
                self.address(frame, mac);
                self.send(vnet, frame, egress);
            }
            Some(Route::Resolving) => {
                let hop = self.ip.next_hop(dst).unwrap_or(dst);
                let kept = Kept { from, dst, vnet: *vnet, bytes: frame.to_vec() };
                self.counts.unresolved += self.waiting.keep(hop, kept);
            }
            Some(Route::Unreachable) => self.give_up(from, src, dst, frame),
            // The address has become ours meanwhile.
            Some(Route::Local) => self.counts.refused += 1,
        }
    }

    /// Returns whether the link takes no more, so that no frames should be taken from the rings of TSs.
    pub fn is_crowded(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Handles a message of a TS or of another IP server.
    pub fn handle_message(&mut self, now: Instant, from: Party, message: &IpMessage) {
        let partner = match from {
            Party::Transport(number) => self.clients.get_mut(usize::from(number)),
            Party::Sibling(number) => self.siblings.get_mut(usize::from(number)),
        };
        let Some(partner) = partner.filter(|partner| message.epoch.0 >= partner.epoch.0) else {
            self.counts.bad += 1;
            return;
        };
        let is_new = core::mem::replace(&mut partner.epoch, message.epoch) != message.epoch;
        if is_new {
            partner.told = 0;
        }
        self.counts.received += 1;
        match (from, &message.body) {
            (Party::Transport(number), body) => {
                if is_new {
                    self.members.forget(now, &mut self.ip, number);
                }
                match body {
                    IpBody::Hello => self.clients[usize::from(number)].told = 0,
                    IpBody::Group { group, joins } => {
                        if !self.members.change(now, &mut self.ip, number, *group, *joins) {
                            self.counts.bad += 1;
                        }
                    }
                    IpBody::Path { dst, mtu } => self.ip.learn_path_mtu(now, *dst, *mtu),
                    IpBody::Progress { hop } => self.ip.handle_progress(now, *hop),
                    _ => self.counts.bad += 1,
                }
            }
            (Party::Sibling(_), IpBody::Network { news }) => {
                self.ip.handle_v4_address(news.network.v4.map(crate::facts::v4_address));
            }
            (Party::Sibling(_), IpBody::Neighbour { addr, mac, learned }) => {
                let basis = if *learned { Basis::Learned } else { Basis::Overheard };
                self.ip.handle_neighbour(now, NeighbourUpdate { addr: *addr, mac: Mac(*mac), basis });
            }
            (Party::Sibling(_), IpBody::Path { dst, mtu }) => {
                self.ip.handle_path(now, PathUpdate { dst: *dst, mtu: *mtu });
            }
            (Party::Sibling(_), _) => self.counts.bad += 1,
        }
    }

    /// Runs the timers of IP that are due.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.ip.next_timeout().is_some_and(|due| due <= now) {
            self.ip.handle_timeout(now);
        }
    }

    /// Sends all waiting frames and messages.
    pub fn flush(&mut self, now: Instant, egress: &mut impl Egress) {
        self.settle(now, egress);
        // The frames of IP itself come first: a lost answer to a neighbour that asks for our station costs it
        // a second.
        while let Some(frame) = self.ip.poll_frame() {
            // The frames beyond this limit are lost, as in a busy network.
            if frame.link == Link::Outside && self.said.len() < SAID_MAX {
                self.said.push_back((NO_OFFLOAD, frame.bytes));
            }
        }
        for queue in [&mut self.said, &mut self.leaving] {
            while let Some((vnet, frame)) = queue.front() {
                if !egress.send(vnet, frame) {
                    break;
                }
                queue.pop_front();
            }
        }
        while self.ip.poll_unreachable().is_some() {
            // The TS concerned is notified when its waiting packet is given up.
        }
        self.gather_news();
        self.tell(egress);
    }

    /// Returns when the next round is due even if nothing arrives. The owner repeats the round for what waits
    /// for a full link or ring: see [`IpServer::has_work`].
    pub fn next_timeout(&self) -> Option<Instant> {
        self.ip.next_timeout()
    }

    /// Returns whether something waits for room in a ring, or on the link.
    pub fn has_work(&self) -> bool {
        self.is_crowded()
            || !self.said.is_empty()
            || !self.outbox.is_empty()
            || self.untold().next().is_some()
    }

    /// Returns all of IP.
    pub fn ip(&self) -> &Ip {
        &self.ip
    }

    /// Returns all of IP, for changes.
    pub fn ip_mut(&mut self) -> &mut Ip {
        &mut self.ip
    }

    /// Returns the counters so far, besides those of [`Ip`].
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Sends or gives up the frames that waited for neighbours about which IP has decided.
    fn settle(&mut self, now: Instant, egress: &mut impl Egress) {
        let generation = self.ip.neighbour_generation();
        if core::mem::replace(&mut self.settled, generation) == generation || self.waiting.is_empty() {
            return;
        }
        let ip = &mut self.ip;
        for kept in self.waiting.take(|dst| ip.route(now, dst) != Route::Resolving) {
            let Kept { from, vnet, mut bytes, .. } = kept;
            // The frame's own address may be gone as well.
            self.transmit(now, from, &vnet, &mut bytes, egress);
        }
    }

    fn address(&self, frame: &mut [u8], dst: Mac) {
        if let Some(stations) = frame.first_chunk_mut::<{ 2 * MAC_LEN }>() {
            stations[..MAC_LEN].copy_from_slice(&dst.0);
            stations[MAC_LEN..].copy_from_slice(&self.ip.mac().0);
        }
    }

    /// Sends a frame, behind those that wait for the link.
    fn send(&mut self, vnet: &[u8; vnet::HEADER_LEN], frame: &[u8], egress: &mut impl Egress) {
        if !self.leaving.is_empty() || !egress.send(vnet, frame) {
            self.leaving.push_back((*vnet, frame.to_vec()));
        }
    }

    /// Counts a packet to `dst` as lost, and notifies its TS, so that it stops sending.
    fn give_up(&mut self, from: u8, src: Addr, dst: Addr, frame: &[u8]) {
        self.counts.unresolved += 1;
        let packet = frame.get(ethernet::HEADER_LEN..).unwrap_or_default();
        let quoted = match dst.is_v4() {
            true => icmp::quoted(packet).map(|q| (q.header.protocol.0, q.source, q.destination, q.head)),
            false => icmpv6::quoted(packet).map(|q| (q.protocol.0, q.source, q.destination, q.head)),
        };
        let (protocol, local, remote, [.., e, f, g, h]) =
            quoted.unwrap_or((0, Endpoint::at(src, 0), Endpoint::at(dst, 0), Default::default()));
        let seq = match Protocol(protocol) {
            Protocol::TCP => u32::from_be_bytes([e, f, g, h]),
            Protocol::ICMP | Protocol::ICMPV6 => u16::from_be_bytes([g, h]).into(),
            _ => 0,
        };
        let body = IpBody::Unreachable { protocol, local, remote, seq };
        let news = (Party::Transport(from), body);
        if self.outbox.back() != Some(&news) {
            self.put(news);
        }
    }

    fn put(&mut self, news: (Party, IpBody)) {
        if self.outbox.len() < OUTBOX_MAX {
            self.outbox.push_back(news);
        }
    }

    /// Collects the news for the other IP servers and the TSs.
    fn gather_news(&mut self) {
        while let Some(NeighbourUpdate { addr, mac, basis }) = self.ip.poll_neighbour() {
            let learned = basis == Basis::Learned;
            self.spread(&IpBody::Neighbour { addr, mac: mac.0, learned });
        }
        while let Some(PathUpdate { dst, mtu }) = self.ip.poll_path() {
            self.spread(&IpBody::Path { dst, mtu });
        }
        let generation = self.ip.neighbour_generation();
        if core::mem::replace(&mut self.made_for, generation) != generation {
            let told = self.ip.told();
            if told != self.told {
                self.told = told;
                self.version += 1;
            }
        }
    }

    fn spread(&mut self, body: &IpBody) {
        let Config { number, servers, .. } = self.config;
        for sibling in (0..servers).filter(|other| *other != number) {
            self.put((Party::Sibling(sibling), body.clone()));
        }
    }

    /// Returns the partners that have not received the present state of the network: TSs that are served here
    /// and, if this server asks for the IPv4 address, other IP servers.
    fn untold(&self) -> impl Iterator<Item = Party> + use<> {
        let Config { number, servers, replicas, .. } = self.config;
        let (clients, siblings, version) = (self.clients, self.siblings, self.version);
        let asks = self.ip.dhcp().is_some();
        let clients = (0..replicas).filter(move |ts| {
            ts % servers.max(1) == number
                && clients.get(usize::from(*ts)).is_some_and(|known| known.told != version)
        });
        let siblings = (0..servers).filter(move |other| {
            asks && *other != number
                && siblings.get(usize::from(*other)).is_some_and(|known| known.told != version)
        });
        clients.map(Party::Transport).chain(siblings.map(Party::Sibling))
    }

    fn tell(&mut self, egress: &mut impl Egress) {
        let epoch = self.config.epoch;
        let mut message = None;
        for party in self.untold() {
            let network = || IpMessage { epoch, body: IpBody::Network { news: news::encode(&self.told) } };
            if !egress.tell(party, message.get_or_insert_with(network)) {
                continue;
            }
            self.counts.sent += 1;
            let (Party::Transport(number) | Party::Sibling(number)) = party;
            let partners =
                if matches!(party, Party::Transport(_)) { &mut self.clients } else { &mut self.siblings };
            if let Some(partner) = partners.get_mut(usize::from(number)) {
                partner.told = self.version;
            }
        }
        while let Some((to, body)) = self.outbox.pop_front() {
            // A message that a full ring does not take is lost; the doc of the message says what that costs.
            self.counts.sent += u64::from(egress.tell(to, &IpMessage { epoch, body }));
        }
    }
}

/// Returns source and destination of an IP packet in a frame.
fn addresses(frame: &[u8]) -> Option<(Addr, Addr)> {
    let (header, at) = ethernet::parse(frame).ok()?;
    let packet = frame.get(at..)?;
    match header.ethertype {
        EtherType::IPV4 => {
            let word = |at: usize| Some(Addr::v4(u32::from_be_bytes(*packet.get(at..)?.first_chunk()?)));
            Some((word(12)?, word(16)?))
        }
        EtherType::IPV6 => {
            let addr = |at: usize| Some(Addr::from_octets(*packet.get(at..)?.first_chunk()?));
            Some((addr(8)?, addr(24)?))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
