//! How does a machine fare whose IP is in processes of its own? Between each IP server and a replica lie rings that hold few frames and
//! messages and are read late; an IP server may end at any time, and another one starts in its place that knows nothing.

use std::collections::VecDeque;

use atoll_base::{Duration, Epoch, FourTuple, Instant, Rng};
use atoll_ip::{ChecksumOffload, Ip};
use atoll_ip_server::{Client, Exits, IpServer, Party};
use atoll_ipc::ip::IpMessage;
use atoll_link::{Destination, Steering};
use atoll_transport::Transport;
use atoll_wire::vnet;

use crate::mortal::Mortal;

/// Frames, and messages, that a ring holds: fewer than a burst has.
const RING_ITEMS: usize = 4;

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
}

struct Node {
    server: IpServer,
    epoch: u32,
    /// Frames of the link, or of the link server.
    from_link: VecDeque<Vec<u8>>,
    /// What others tell it.
    from_siblings: VecDeque<(u8, IpMessage)>,
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
}

impl Exits for Exit<'_> {
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
        self.messages_left = left;
        match to {
            Party::Transport(replica) => self.delivered.push((replica.into(), Item::Message(message.clone()))),
            Party::Sibling(number) => self.to_siblings.push((number, message.clone())),
        }
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
        Node { server: IpServer::new(config, ip), epoch, from_link, from_siblings, wakes_at: Some(now) }
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

    /// Takes what a replica has to say, as far as the ring does.
    pub(crate) fn collect(&mut self, now: Instant, rng: &mut Rng, index: usize, replica: &mut Transport<Mortal>) {
        let server = index % self.servers.len();
        let (ring, node) = (&mut self.from_replicas[server][index], &mut self.servers[server]);
        self.clients[index].send(replica.ip_mut(), |message| {
            let has_room = ring.iter().filter(|item| matches!(item, Item::Message(_))).count() < RING_ITEMS;
            if has_room {
                ring.push_back(Item::Message(message.clone()));
                node.wake(now, rng);
            }
            has_room
        });
    }

    /// A frame comes from the link.
    pub(crate) fn receive(&mut self, now: Instant, rng: &mut Rng, steering: &Steering, frame: &[u8]) {
        let count = self.servers.len();
        match steering.destination(frame, atoll_base::ReplicaId(0)) {
            Destination::One(owner) => self.servers[usize::from(owner.0) % count].hear(now, rng, frame),
            Destination::All => self.servers.iter_mut().for_each(|node| node.hear(now, rng, frame)),
        }
    }

    /// Everybody whose time has come does something. Returns the frames that leave, by server, and whether anything happened. `room`: how many
    /// frames of a server the link takes.
    pub(crate) fn run(
        &mut self,
        now: Instant,
        rng: &mut Rng,
        replicas: &mut [Transport<Mortal>],
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
            let is_idle = self.from_replicas[number].iter().all(VecDeque::is_empty) && !server.has_work();
            let soon = (!is_idle).then(|| now + Duration::from_micros(1 + u64::from(rng.below(20))));
            node.wakes_at = soon.into_iter().chain(server.next_timeout()).min();
            let Exit { sent, delivered, to_siblings, .. } = exit;
            leaving.extend(sent.into_iter().map(|frame| (number, frame)));
            delivered.into_iter().for_each(|(to, item)| self.to_replicas[to].push_back((number, item)));
            for (to, message) in to_siblings {
                let node = &mut self.servers[usize::from(to)];
                node.from_siblings.push_back((number as u8, message));
                node.wake(now, rng);
            }
        }
        for (index, replica) in replicas.iter_mut().enumerate() {
            let count = self.to_replicas[index].len().min(1 + rng.below(8) as usize);
            for (server, item) in self.to_replicas[index].drain(..count) {
                any = true;
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
        }
        (leaving, any)
    }

    pub(crate) fn wakes_at(&self) -> Option<Instant> {
        self.servers.iter().filter_map(|node| node.wakes_at).chain(self.ends_at).min()
    }

    /// One of them ends if it is time to: what it has is lost, what lies in rings is not.
    fn end_one(&mut self, now: Instant, rng: &mut Rng) -> bool {
        let Some(every) = self.plan.ends_every.filter(|_| self.ends_at.is_some_and(|at| at <= now)) else {
            return false;
        };
        self.ends_at = Some(now + every);
        let number = rng.below(self.plan.count.into()) as u8;
        let old = &mut self.servers[usize::from(number)];
        let (epoch, from_link) = (old.epoch + 1, std::mem::take(&mut old.from_link));
        let from_siblings = std::mem::take(&mut old.from_siblings);
        self.servers[usize::from(number)] = Node { from_link, from_siblings, ..self.start(number, epoch, now) };
        true
    }
}

impl Node {
    fn wake(&mut self, now: Instant, rng: &mut Rng) {
        let at = now + Duration::from_micros(1 + u64::from(rng.below(50)));
        self.wakes_at = Some(self.wakes_at.map_or(at, |other| other.min(at)));
    }

    fn hear(&mut self, now: Instant, rng: &mut Rng, frame: &[u8]) {
        self.from_link.push_back(frame.to_vec());
        self.wake(now, rng);
    }
}
