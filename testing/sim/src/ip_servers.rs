//! How does a machine fare whose IP is in processes of its own? Between each IP server and a replica lie
//! rings that hold few frames and messages and are read late; an IP server may end at any time, and another
//! one starts in its place that knows nothing. So may a replica, and what is in its ring waits for the next
//! one.

use std::collections::VecDeque;

use atoll_base::{Duration, Epoch, FourTuple, Instant, Rng};
use atoll_ip::{ChecksumOffload, Ip};
use atoll_ip_server::{Client, Egress, IpServer, Party};
use atoll_ipc::ip::IpMessage;
use atoll_link::{Destination, Steering};
use atoll_transport::Transport;
use atoll_wire::vnet;

use crate::mortal::{Life, Mortal};

/// Frames, and messages, that a ring holds: fewer than a burst has.
const RING_ITEMS: usize = 4;
/// Frames that are kept for a replica at most, in its ring and beside it: fewer than a crowd sends in the
/// time that nobody has it.
const KEPT_FRAMES: usize = 100;
/// Ends of IP servers of a machine at most, so that a story comes to its own.
const ENDS_MAX: u32 = 1000;

/// How many IP servers a machine has, and what becomes of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpPlan {
    /// At most as many as replicas; more are not made.
    pub count: u8,
    /// When, from the start on and again and again, one of them ends; `None`: never.
    pub ends_every: Option<Duration>,
}

/// What lies in a ring.
#[derive(Debug)]
enum Item {
    Frame(Vec<u8>),
    Message(IpMessage),
}

/// The IP servers of a machine, with the rings between them and its replicas.
pub(crate) struct IpServers {
    plan: IpPlan,
    replicas: u8,
    config: atoll_ip::Config,
    seed: u64,
    servers: Vec<Node>,
    clients: Vec<Client>,
    /// By server and replica.
    from_replicas: Vec<Vec<VecDeque<Item>>>,
    to_replicas: Vec<VecDeque<(usize, Item)>>,
    ends_at: Option<Instant>,
    /// How often one has ended.
    ended: u32,
}

struct Node {
    server: IpServer,
    epoch: u32,
    /// Frames of the link, or of the link server.
    from_link: VecDeque<Vec<u8>>,
    /// What others tell it.
    from_siblings: VecDeque<(u8, IpMessage)>,
    /// When its process is there.
    starts_at: Instant,
    wakes_at: Option<Instant>,
}

/// Where things go, as long as one of them runs.
struct Exit<'a> {
    steering: &'a Steering,
    sent: Vec<Vec<u8>>,
    /// Frames that the link still takes.
    room: usize,
    delivered: Vec<(usize, Item)>,
    to_siblings: Vec<(u8, IpMessage)>,
    messages_left: usize,
    /// Messages that the ring of each replica still takes.
    replicas_take: Vec<usize>,
}

impl Egress for Exit<'_> {
    fn send(&mut self, _: &[u8; vnet::HEADER_LEN], frame: &[u8]) -> bool {
        let has_room = self.room > 0;
        if has_room {
            self.room -= 1;
            self.sent.push(frame.to_vec());
        }
        has_room
    }

    fn deliver(&mut self, tuple: &FourTuple, vnet: &[u8; vnet::HEADER_LEN], frame: &[u8]) {
        assert_eq!(vnet[0], vnet::DATA_VALID, "what is passed on was checked");
        self.delivered.push((self.steering.owner(tuple).0.into(), Item::Frame(frame.to_vec())));
    }

    fn tell(&mut self, to: Party, message: &IpMessage) -> bool {
        let Some(left) = self.messages_left.checked_sub(1) else { return false };
        match to {
            Party::Transport(replica) => {
                let takes = &mut self.replicas_take[usize::from(replica)];
                let Some(rest) = takes.checked_sub(1) else { return false };
                *takes = rest;
                self.delivered.push((replica.into(), Item::Message(message.clone())));
            }
            Party::Sibling(number) => self.to_siblings.push((number, message.clone())),
        }
        self.messages_left = left;
        true
    }
}

impl IpServers {
    /// `config`: of the network, as a replica would have it.
    pub(crate) fn new(plan: IpPlan, replicas: u8, config: atoll_ip::Config, seed: u64, now: Instant) -> IpServers {
        let plan = IpPlan { count: plan.count.clamp(1, replicas), ..plan };
        let (count, others) = (usize::from(plan.count), usize::from(replicas));
        let mut servers = IpServers {
            plan,
            replicas,
            config,
            seed,
            servers: Vec::new(),
            clients: (0..replicas).map(|_| Client::new(Epoch(3))).collect(),
            from_replicas: (0..count).map(|_| (0..others).map(|_| VecDeque::new()).collect()).collect(),
            to_replicas: (0..others).map(|_| VecDeque::new()).collect(),
            ends_at: plan.ends_every.map(|every| now + every),
            ended: 0,
        };
        servers.servers = (0..plan.count).map(|number| servers.start(number, 1, now)).collect();
        servers
    }

    /// What the half of replica `index` is made of.
    pub(crate) fn config_of(&self, index: u8) -> atoll_ip::Config {
        let sibling = (self.plan.count + index, self.plan.count + self.replicas);
        atoll_ip::Config { apart: true, sibling, ..self.config.clone() }
    }

    fn start(&self, number: u8, epoch: u32, now: Instant) -> Node {
        let sibling = (number, self.plan.count + self.replicas);
        let config = atoll_ip::Config { sibling, ..self.config.clone() };
        let seed = self.seed + u64::from(epoch) * 100 + u64::from(number);
        let ip = Ip::new(config, seed, now).expect("a valid network");
        let config =
            atoll_ip_server::Config { number, servers: self.plan.count, replicas: self.replicas, epoch: Epoch(epoch) };
        let (from_link, from_siblings) = (VecDeque::new(), VecDeque::new());
        let server = IpServer::new(config, ip);
        Node { server, epoch, from_link, from_siblings, starts_at: now, wakes_at: Some(now) }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u8 {
        self.plan.count
    }

    /// How many frames the ring of a replica takes now.
    pub(crate) fn room(&self, replica: usize) -> usize {
        let server = replica % self.servers.len();
        let frames = self.from_replicas[server][replica].iter().filter(|item| matches!(item, Item::Frame(_)));
        RING_ITEMS - frames.count()
    }

    /// A replica puts a frame into its ring, and rings the bell.
    pub(crate) fn push(&mut self, now: Instant, rng: &mut Rng, replica: usize, frame: Vec<u8>) {
        assert!(self.room(replica) > 0, "the replica was told that there is no room");
        let server = replica % self.servers.len();
        self.from_replicas[server][replica].push_back(Item::Frame(frame));
        self.servers[server].wake(now, rng);
    }

    /// Takes what a replica has to say, as far as the ring does, and as long as `life` lasts.
    pub(crate) fn collect(
        &mut self,
        now: Instant,
        rng: &mut Rng,
        index: usize,
        replica: &mut Transport<Mortal>,
        life: &Life,
    ) {
        let server = index % self.servers.len();
        let (ring, node) = (&mut self.from_replicas[server][index], &mut self.servers[server]);
        self.clients[index].send(replica.ip_mut(), |message| {
            let has_room = messages(ring.iter()) < RING_ITEMS;
            if has_room && life.spend() {
                ring.push_back(Item::Message(message.clone()));
                node.wake(now, rng);
            }
            has_room
        });
    }

    /// A replica has a new incarnation, which finds the rings as they are.
    pub(crate) fn replica_restarted(&mut self, index: usize, epoch: Epoch) {
        self.clients[index] = Client::new(epoch);
    }

    /// A frame comes from the link.
    pub(crate) fn receive(&mut self, now: Instant, rng: &mut Rng, steering: &Steering, frame: &[u8]) {
        let count = self.servers.len();
        match steering.destination(frame, atoll_base::ReplicaId(0)) {
            Destination::One(owner) => self.servers[usize::from(owner.0) % count].hear(now, rng, frame),
            Destination::All => self.servers.iter_mut().for_each(|node| node.hear(now, rng, frame)),
        }
    }

    /// Everybody whose time has come does something. Returns the frames that leave, by server, and whether
    /// anything happened. `room`: how many frames of a server the link takes.
    pub(crate) fn run(
        &mut self,
        now: Instant,
        rng: &mut Rng,
        steering: &Steering,
        room: impl Fn(usize) -> usize,
    ) -> (Vec<(usize, Vec<u8>)>, bool) {
        let mut leaving = Vec::new();
        let mut any = self.end_one(now, rng);
        for number in 0..self.servers.len() {
            if self.servers[number].wakes_at.is_none_or(|at| at > now) {
                continue;
            }
            any = true;
            let mut exit = Exit {
                steering,
                sent: Vec::new(),
                room: room(number),
                delivered: Vec::new(),
                to_siblings: Vec::new(),
                messages_left: 1 + rng.below(RING_ITEMS as u32) as usize,
                replicas_take: self.to_replicas.iter().map(|ring| RING_ITEMS.saturating_sub(waiting(ring))).collect(),
            };
            let node = &mut self.servers[number];
            let (server, zero) = (&mut node.server, [0; vnet::HEADER_LEN]);
            while let Some(frame) = node.from_link.pop_front() {
                server.handle_frame(now, &zero, &frame, &mut exit);
            }
            while let Some((from, message)) = node.from_siblings.pop_front() {
                server.handle_message(now, Party::Sibling(from), &message);
            }
            for (replica, ring) in (0..).zip(&mut self.from_replicas[number]) {
                while !server.is_crowded() && rng.below(4) > 0 {
                    match ring.pop_front() {
                        Some(Item::Frame(mut frame)) => server.transmit(now, replica, &zero, &mut frame, &mut exit),
                        Some(Item::Message(message)) => {
                            server.handle_message(now, Party::Transport(replica), &message);
                        }
                        None => break,
                    }
                }
            }
            server.handle_timeout(now);
            server.flush(now, &mut exit);
            let is_read = self.from_replicas[number].iter().all(VecDeque::is_empty);
            // A replica that is away takes nothing for a while: as `CONTROL_EVERY` of the real one.
            let most = if is_read && exit.replicas_take.contains(&0) { 1000 } else { 20 };
            let soon =
                (!is_read || server.has_work()).then(|| now + Duration::from_micros(1 + u64::from(rng.below(most))));
            node.wakes_at = soon.into_iter().chain(server.next_timeout()).min();
            let Exit { sent, delivered, to_siblings, .. } = exit;
            leaving.extend(sent.into_iter().map(|frame| (number, frame)));
            for (to, item) in delivered {
                let ring = &mut self.to_replicas[to];
                if matches!(item, Item::Message(_)) || ring.len() < KEPT_FRAMES {
                    ring.push_back((number, item));
                }
            }
            for (to, message) in to_siblings {
                let node = &mut self.servers[usize::from(to)];
                node.from_siblings.push_back((number as u8, message));
                node.wake(now, rng);
            }
        }
        (leaving, any)
    }

    /// A replica takes some of what is in its rings. Returns how much.
    pub(crate) fn deliver(
        &mut self,
        now: Instant,
        rng: &mut Rng,
        index: usize,
        replica: &mut Transport<Mortal>,
    ) -> usize {
        let count = self.to_replicas[index].len().min(1 + rng.below(8) as usize);
        for (server, item) in self.to_replicas[index].drain(..count) {
            match item {
                Item::Frame(frame) => replica.handle_frame(now, &frame, ChecksumOffload::Valid, false),
                Item::Message(message) => {
                    assert_eq!(server, index % self.servers.len(), "a replica is told by its own server");
                    let error = self.clients[index].handle(now, replica.ip_mut(), &message);
                    if let Some(error) = error {
                        replica.handle_network_error(now, &error);
                    }
                }
            }
        }
        count
    }

    pub(crate) fn wakes_at(&self) -> Option<Instant> {
        self.servers.iter().filter_map(|node| node.wakes_at).chain(self.ends_at).min()
    }

    /// One of them ends if it is time to: what it has is lost, what lies in rings is not.
    fn end_one(&mut self, now: Instant, rng: &mut Rng) -> bool {
        let Some(every) = self.plan.ends_every.filter(|_| self.ends_at.is_some_and(|at| at <= now)) else {
            return false;
        };
        self.ended += 1;
        self.ends_at = Some(now + every).filter(|_| self.ended < ENDS_MAX);
        let number = rng.below(self.plan.count.into()) as u8;
        let old = &mut self.servers[usize::from(number)];
        let (epoch, from_link) = (old.epoch + 1, std::mem::take(&mut old.from_link));
        let from_siblings = std::mem::take(&mut old.from_siblings);
        // It takes its time to start; what is for it waits meanwhile.
        let most = [1, 1000, 20_000][rng.below(3) as usize];
        let starts_at = now + Duration::from_micros(u64::from(rng.below(most)));
        self.servers[usize::from(number)] = Node { from_link, from_siblings, ..self.start(number, epoch, starts_at) };
        true
    }
}

impl Node {
    fn wake(&mut self, now: Instant, rng: &mut Rng) {
        let at = (now + Duration::from_micros(1 + u64::from(rng.below(50)))).max(self.starts_at);
        self.wakes_at = Some(self.wakes_at.map_or(at, |other| other.min(at)));
    }

    fn hear(&mut self, now: Instant, rng: &mut Rng, frame: &[u8]) {
        self.from_link.push_back(frame.to_vec());
        self.wake(now, rng);
    }
}

/// Messages among what lies in a ring.
fn messages<'a>(items: impl Iterator<Item = &'a Item>) -> usize {
    items.filter(|item| matches!(item, Item::Message(_))).count()
}

/// The same in a ring to a replica.
fn waiting(ring: &VecDeque<(usize, Item)>) -> usize {
    messages(ring.iter().map(|(_, item)| item))
}
