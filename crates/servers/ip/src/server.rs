//! What does an IP server do with a frame from the link, and with one from a transport server (TS)?

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use atoll_base::{Addr, Endpoint, Epoch, FourTuple, Instant};
use atoll_ip::{
    Basis, ChecksumOffload, ChecksumState, Frame, Ip, Link, NeighbourUpdate, PathUpdate, Received, Route, Told,
};
use atoll_ipc::ip::{IpBody, IpMessage};
use atoll_ipc::page::REPLICAS_MAX;
use atoll_wire::ethernet::{self, EtherType};
use atoll_wire::{Mac, icmp, icmpv6, vnet};

use crate::members::Members;
use crate::news;
use crate::waiting::{Kept, Waiting};

/// Who an IP server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Its number among the IP servers.
    pub number: u8,
    /// How many of them there are.
    pub servers: u8,
    /// How many TSs there are, at least as many as IP servers.
    pub replicas: u8,
    /// Its incarnation.
    pub epoch: Epoch,
}

/// Somebody who is told something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Party {
    /// The TS with this number.
    Transport(u8),
    /// The IP server with this number.
    Sibling(u8),
}

/// Where things go: the link, the rings.
pub trait Egress {
    /// Sends a frame (from the Ethernet header on) over the link. `false`: it is full, and is offered the
    /// frame again.
    fn send(&mut self, vnet: &[u8; vnet::HEADER_LEN], frame: &[u8]) -> bool;

    /// Gives a packet that was checked, as a frame, to the TS that owns the flow. `tuple`: as its receiver
    /// sees it. What a TS does not take is kept, or lost, as by a link server.
    fn deliver(&mut self, tuple: &FourTuple, vnet: &[u8; vnet::HEADER_LEN], frame: &[u8]);

    /// Tells somebody something. `false`: his ring is full.
    fn tell(&mut self, to: Party, message: &IpMessage) -> bool;
}

/// One IP server: all of IP, for the TSs that it serves and the packets that it is given.
///
/// A round of its owner: [`IpServer::handle_frame`] for each frame of the link; [`IpServer::transmit`] for
/// each frame of a TS, as long as it is not [crowded](IpServer::is_crowded); [`IpServer::handle_message`];
/// [`IpServer::handle_timeout`]; [`IpServer::flush`].
///
/// Survives no crash. A new incarnation starts as [`Ip`] does, tells its TSs what it knows, and is told which
/// groups they want; packets that waited for a neighbour are lost, as on a wire.
#[derive(Debug)]
pub struct IpServer {
    config: Config,
    ip: Ip,
    /// For their neighbours.
    waiting: Waiting,
    /// For which generation of `ip` they were looked at.
    settled: u64,
    /// Frames that the link did not take.
    leaving: VecDeque<([u8; vnet::HEADER_LEN], Vec<u8>)>,
    /// What IP itself has to say, if the link was full.
    said: VecDeque<([u8; vnet::HEADER_LEN], Vec<u8>)>,
    members: Members,
    /// TSs, by number.
    clients: [Partner; REPLICAS_MAX],
    /// Other IP servers, by number.
    siblings: [Partner; REPLICAS_MAX],
    told: Told,
    /// Grows whenever `told` changes.
    version: u64,
    /// For which generation of `ip` it was made.
    made_for: u64,
    /// What is told once, and may get lost.
    outbox: VecDeque<(Party, IpBody)>,
    counts: Counts,
}

/// Somebody, as far as he is known.
#[derive(Clone, Copy, Debug, Default)]
struct Partner {
    /// His incarnation, once he has said something.
    epoch: Epoch,
    /// Which version of the network he was told.
    told: u64,
}

/// What an IP server counts itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages that made sense.
    pub received: u64,
    /// Messages told.
    pub sent: u64,
    /// Messages that made no sense, or came from somebody who is gone.
    pub bad: u64,
    /// Frames of TSs given up because their neighbour was not found, or too many waited for it.
    pub unresolved: u64,
    /// Frames of TSs that may not leave: no packets, or not from an address of ours.
    pub refused: u64,
}

/// What is told once and has to wait, at most.
const OUTBOX_MAX: usize = 256;
const SAID_MAX: usize = 256;
const MAC_LEN: usize = 6;
const NO_OFFLOAD: [u8; vnet::HEADER_LEN] = [0; vnet::HEADER_LEN];

impl IpServer {
    /// A server with `ip`, which is whole. Nobody has been told anything yet.
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

    /// A frame has come from the link, with its virtio-net header. Never panics, whatever the bytes are.
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

    fn receive(&mut self, now: Instant, vnet: &[u8; vnet::HEADER_LEN], frame: &[u8], egress: &mut impl Egress) {
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
                // A segment without ports is nobody's.
                let &[a, b, c, d, ..] = segment else { return };
                let (src_port, dst_port) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
                (FourTuple { local: Endpoint::at(dst, dst_port), remote: Endpoint::at(src, src_port) }, checksum)
            }
            Received::Udp { src, dst, checksum, .. } => (FourTuple { local: dst, remote: src }, checksum),
            Received::Error(error) => (error.tuple, ChecksumState::Verified),
            Received::Consumed | Received::Dropped(_) => return,
        };
        let mut vnet = *vnet;
        if checksum == ChecksumState::Verified && !header.needs_csum() {
            // What was compared once is not compared again.
            vnet[0] |= vnet::DATA_VALID;
        }
        egress.deliver(&tuple, &vnet, frame);
    }

    /// A TS sends a frame (from the Ethernet header on): its station is filled in, unless it has one, as
    /// answers to a station have.
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
            // It has become ours meanwhile.
            Some(Route::Local) => self.counts.refused += 1,
        }
    }

    /// Whether the link takes no more: no frames of TSs should be taken from their rings for now.
    pub fn is_crowded(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Takes what a TS, or another IP server, says.
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
            (Party::Sibling(_), IpBody::Network(news)) => {
                self.ip.handle_v4_address(news.network.v4.map(news::v4_address));
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

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.ip.next_timeout().is_some_and(|due| due <= now) {
            self.ip.handle_timeout(now);
        }
    }

    /// Sends and tells what there is.
    pub fn flush(&mut self, now: Instant, egress: &mut impl Egress) {
        self.settle(now, egress);
        // First what IP itself has to say: an answer to who asks for our station that gets lost costs a
        // second.
        while let Some(frame) = self.ip.poll_frame() {
            // What is more gets lost, as in a busy network.
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
            // Whom it concerns waits, and is told when its packet is given up.
        }
        self.gather_news();
        self.tell(egress);
    }

    /// When the next round is due even if nothing comes. What waits for a full link or ring is tried again by
    /// the owner: see [`IpServer::has_work`].
    pub fn next_timeout(&self) -> Option<Instant> {
        self.ip.next_timeout()
    }

    /// Whether something waits for room in a ring, or on the link.
    pub fn has_work(&self) -> bool {
        self.is_crowded() || !self.said.is_empty() || !self.outbox.is_empty() || self.untold().next().is_some()
    }

    /// All of IP.
    pub fn ip(&self) -> &Ip {
        &self.ip
    }

    /// See [`IpServer::ip`].
    pub fn ip_mut(&mut self) -> &mut Ip {
        &mut self.ip
    }

    /// What was counted so far, besides what [`Ip`] counts.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// What waited for neighbours that are known now leaves, or is given up.
    fn settle(&mut self, now: Instant, egress: &mut impl Egress) {
        let generation = self.ip.neighbour_generation();
        if core::mem::replace(&mut self.settled, generation) == generation || self.waiting.is_empty() {
            return;
        }
        let ip = &mut self.ip;
        for kept in self.waiting.take(|dst| ip.route(now, dst) != Route::Resolving) {
            let Kept { from, vnet, mut bytes, .. } = kept;
            // Its address may be gone as well.
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

    /// A packet to `dst` is lost, and its TS should not send more.
    fn give_up(&mut self, from: u8, src: Addr, dst: Addr, frame: &[u8]) {
        self.counts.unresolved += 1;
        let packet = frame.get(ethernet::HEADER_LEN..).unwrap_or_default();
        let quoted = match dst.is_v4() {
            true => icmp::quoted(packet).map(|q| (q.header.protocol.0, q.source, q.destination, q.seq)),
            false => icmpv6::quoted(packet).map(|q| (q.protocol.0, q.source, q.destination, q.seq)),
        };
        let (protocol, local, remote, seq) = quoted.unwrap_or((0, Endpoint::at(src, 0), Endpoint::at(dst, 0), None));
        let body = IpBody::Unreachable { protocol, local, remote, seq: seq.unwrap_or_default().0 };
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

    /// What the other IP servers, and the TSs, should know.
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

    /// Who has not been told the network as it is: TSs that are served here and, by the one that asks for the
    /// IPv4 address, other IP servers.
    fn untold(&self) -> impl Iterator<Item = Party> + use<> {
        let Config { number, servers, replicas, .. } = self.config;
        let (clients, siblings, version) = (self.clients, self.siblings, self.version);
        let asks = self.ip.dhcp().is_some();
        let clients = (0..replicas).filter(move |ts| {
            ts % servers.max(1) == number && clients.get(usize::from(*ts)).is_some_and(|known| known.told != version)
        });
        let siblings = (0..servers).filter(move |other| {
            asks && *other != number && siblings.get(usize::from(*other)).is_some_and(|known| known.told != version)
        });
        clients.map(Party::Transport).chain(siblings.map(Party::Sibling))
    }

    fn tell(&mut self, egress: &mut impl Egress) {
        let epoch = self.config.epoch;
        let mut message = None;
        for party in self.untold() {
            let network = || IpMessage { epoch, body: IpBody::Network(news::encode(&self.told)) };
            if !egress.tell(party, message.get_or_insert_with(network)) {
                continue;
            }
            self.counts.sent += 1;
            let (Party::Transport(number) | Party::Sibling(number)) = party;
            let partners = if matches!(party, Party::Transport(_)) { &mut self.clients } else { &mut self.siblings };
            if let Some(partner) = partners.get_mut(usize::from(number)) {
                partner.told = self.version;
            }
        }
        while let Some((to, body)) = self.outbox.pop_front() {
            // What a full ring does not take is lost; its doc says who is harmed.
            self.counts.sent += u64::from(egress.tell(to, &IpMessage { epoch, body }));
        }
    }
}

/// Source and destination of an IP packet in a frame.
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
