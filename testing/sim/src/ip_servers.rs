//! Simulates machines whose IP runs in processes of its own. Rings lie between each IP server and each
//! replica; they hold few frames and messages and are read late. An IP server may end at any time; another
//! one that knows nothing starts in its place. A replica may end as well, and the contents of its ring wait
//! for the next one.

use std::collections::VecDeque;

use atoll_base::{Duration, Epoch, FourTuple, Instant, Rng};
use atoll_ip::{ChecksumOffload, Ip};
use atoll_ip_server::{Client, Egress, IpServer, Party};
use atoll_ipc::ip::IpMessage;
use atoll_link::{Destination, Steering};
use atoll_transport::Transport;
use atoll_wire::vnet;

use crate::mortal::{Life, Mortal};

/// The frames, and messages, that a ring holds: fewer than a burst has.
const RING_ITEMS: usize = 4;
/// The most frames that are kept for a replica, in its ring and beside it: fewer than many clients send
/// while the replica is away.
const KEPT_FRAMES: usize = 100;
/// The most ends of IP servers of a machine, so that a story comes to its end.
const ENDS_MAX: u32 = 1000;

/// How many IP servers a machine has, and how often they end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpPlan {
    /// The number of IP servers; at most as many as replicas are created.
    pub count: u8,
    /// How long, from the start on and repeatedly, until one of them ends; `None` means never.
    pub ends_every: Option<Duration>,
}

/// An item in a ring.
#[derive(Debug)]
enum Item {
    Frame(Vec<u8>),
    Message(IpMessage),
}

/// The IP servers of a machine, and the rings between them and its replicas.
pub(crate) struct IpServers {
    plan: IpPlan,
    replicas: u8,
    config: atoll_ip::Config,
    seed: u64,
    servers: Vec<Node>,
    clients: Vec<Client>,
    /// The rings to the servers, by server and replica.
    from_replicas: Vec<Vec<VecDeque<Item>>>,
    to_replicas: Vec<VecDeque<(usize, Item)>>,
    ends_at: Option<Instant>,
    /// The number of servers that have ended.
    ended: u32,
}

struct Node {
    server: IpServer,
    epoch: u32,
    /// The frames from the link, or from the link server.
    from_link: VecDeque<Vec<u8>>,
    /// The messages from other IP servers.
    from_siblings: VecDeque<(u8, IpMessage)>,
    /// When the process of the server has started.
    starts_at: Instant,
    wakes_at: Option<Instant>,
}

/// The outputs of an IP server while it runs.
struct Exit<'a> {
    steering: &'a Steering,
    sent: Vec<Vec<u8>>,
    /// The number of frames that the link still takes.
    room: usize,
    delivered: Vec<(usize, Item)>,
    to_siblings: Vec<(u8, IpMessage)>,
    messages_left: usize,
    /// The number of messages that the ring of each replica still takes.
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
    /// Creates the IP servers. `config` describes the network, as a replica would have it.
    pub(crate) fn new(
        plan: IpPlan,
        replicas: u8,
        config: atoll_ip::Config,
        seed: u64,
        now: Instant,
    ) -> IpServers {
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

    /// Returns the configuration of the part of IP in replica `index`.
    pub(crate) fn config_of(&self, index: u8) -> atoll_ip::Config {
        let sibling = (self.plan.count + index, self.plan.count + self.replicas);
        atoll_ip::Config { apart: true, sibling, ..self.config.clone() }
    }

    fn start(&self, number: u8, epoch: u32, now: Instant) -> Node {
        let sibling = (number, self.plan.count + self.replicas);
        let config = atoll_ip::Config { sibling, ..self.config.clone() };
        let seed = self.seed + u64::from(epoch) * 100 + u64::from(number);
        let ip = Ip::new(config, seed, now).expect("a valid network");
        let config = atoll_ip_server::Config {
            number,
            servers: self.plan.count,
            replicas: self.replicas,
            epoch: Epoch(epoch),
        };
        let (from_link, from_siblings) = (VecDeque::new(), VecDeque::new());
        let server = IpServer::new(config, ip);
        Node { server, epoch, from_link, from_siblings, starts_at: now, wakes_at: Some(now) }
    }

    /// Returns the number of IP servers.
    pub(crate) fn count(&self) -> u8 {
        self.plan.count
    }

    /// Returns how many frames the ring of a replica takes now.
    pub(crate) fn room(&self, replica: usize) -> usize {
        let server = replica % self.servers.len();
        let frames = self.from_replicas[server][replica].iter().filter(|item| matches!(item, Item::Frame(_)));
        RING_ITEMS - frames.count()
    }

    /// Puts a frame of a replica into its ring, and rings the doorbell of the server.
    pub(crate) fn push(&mut self, now: Instant, rng: &mut Rng, replica: usize, frame: Vec<u8>) {
        assert!(self.room(replica) > 0, "the replica was told that there is no room");
        let server = replica % self.servers.len();
        self.from_replicas[server][replica].push_back(Item::Frame(frame));
        self.servers[server].wake(now, rng);
    }

    /// Takes the messages of a replica as far as the ring has room, and as long as `life` lasts.
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

    /// Notes that a replica has a new incarnation, which finds the rings as they are.
    pub(crate) fn replica_restarted(&mut self, index: usize, epoch: Epoch) {
        self.clients[index] = Client::new(epoch);
    }

    /// Handles a frame that comes from the link.
    pub(crate) fn receive(&mut self, now: Instant, rng: &mut Rng, steering: &Steering, frame: &[u8]) {
        let count = self.servers.len();
        match steering.destination(frame, atoll_base::ReplicaId(0)) {
            Destination::One(owner) => self.servers[usize::from(owner.0) % count].hear(now, rng, frame),
            Destination::All => self.servers.iter_mut().for_each(|node| node.hear(now, rng, frame)),
        }
    }

    /// Runs every server whose time has come. Returns the frames that leave, by server, and whether anything
    /// happened. `room` is the number of frames that the link takes from a server.
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
                replicas_take: self
                    .to_replicas
                    .iter()
                    .map(|ring| RING_ITEMS.saturating_sub(waiting(ring)))
                    .collect(),
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
                        Some(Item::Frame(mut frame)) => {
                            server.transmit(now, replica, &zero, &mut frame, &mut exit)
                        }
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
            // A replica that is away takes nothing for a while; the real server retries every
            // `CONTROL_EVERY`.
            let most = if is_read && exit.replicas_take.contains(&0) { 1000 } else { 20 };
            let soon = (!is_read || server.has_work())
                .then(|| now + Duration::from_micros(1 + u64::from(rng.below(most))));
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

    /// Lets a replica take some of the items in its rings. Returns how many.
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
                        replica.handle_network_error(now, &error, &[]);
                    }
                }
            }
        }
        count
    }

    pub(crate) fn wakes_at(&self) -> Option<Instant> {
        self.servers.iter().filter_map(|node| node.wakes_at).chain(self.ends_at).min()
    }

    /// Ends one server if it is time to: its state is lost, the contents of rings are not. Returns whether it
    /// did.
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
        // The successor takes time to start; its input waits meanwhile.
        let most = [1, 1000, 20_000][rng.below(3) as usize];
        let starts_at = now + Duration::from_micros(u64::from(rng.below(most)));
        self.servers[usize::from(number)] =
            Node { from_link, from_siblings, ..self.start(number, epoch, starts_at) };
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

/// Returns the number of messages among the items of a ring.
fn messages<'a>(items: impl Iterator<Item = &'a Item>) -> usize {
    items.filter(|item| matches!(item, Item::Message(_))).count()
}

/// Returns the number of messages in a ring to a replica.
fn waiting(ring: &VecDeque<(usize, Item)>) -> usize {
    messages(ring.iter().map(|(_, item)| item))
}
