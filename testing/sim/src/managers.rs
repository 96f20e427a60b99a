//! Simulates machines whose connection managers (CM) choose for several replicas, or are processes of their
//! own. Rings that hold few messages and are read late lie between them and the replicas. What a ring does
//! not take has to be kept, and answers come when much has happened. Either side may be away, and returns as
//! a new incarnation.

use std::collections::{BTreeMap, VecDeque};

use atoll_base::{Duration, Epoch, Instant, ReplicaId, Rng};
use atoll_connmgr::{Manager, ManagerConfig, Reach};
use atoll_ipc::balance::Balance;
use atoll_ipc::manager::ManagerMessage;
use atoll_transport::{Config, Transport};

use crate::mortal::{Life, Mortal};

/// The messages that a ring holds: fewer than many connections cause.
const RING_MESSAGES: usize = 4;

/// How many CMs a machine has, and whether they run in processes of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManagerPlan {
    /// The number of CMs; at most as many as replicas are created.
    pub count: u8,
    /// Whether the CMs run in processes of their own instead of in replicas.
    pub apart: bool,
    /// Whether CMs in processes of their own die now and then.
    pub die: bool,
}

/// A sender and receiver of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Node {
    Replica(u8),
    Manager(u8),
}

/// The CMs of a machine, and the rings between them and its replicas.
pub(crate) struct Managers {
    plan: ManagerPlan,
    apart: Vec<Manager>,
    /// The incarnations of the CMs, by number.
    epochs: Vec<Epoch>,
    /// The new CMs that the supervisor announces: when, to which replica, and the CM's incarnation.
    news: Vec<(Instant, usize, Epoch)>,
    rules: Option<Balance>,
    rings: BTreeMap<(Node, Node), VecDeque<ManagerMessage>>,
    wakes_at: Option<Instant>,
}

impl Managers {
    pub(crate) fn new(plan: ManagerPlan, replicas: u8, seed: u64) -> Managers {
        let plan = ManagerPlan { count: plan.count.clamp(1, replicas), ..plan };
        let config = |number| ManagerConfig { number, managers: plan.count, epoch: Epoch(3), own: None };
        let manager = |number| Manager::new(config(number), seed + u64::from(number));
        let apart = (0..plan.count).filter(|_| plan.apart).map(manager).collect();
        let epochs = vec![Epoch(3); plan.count.into()];
        Managers {
            plan,
            apart,
            epochs,
            news: Vec::new(),
            rules: None,
            rings: BTreeMap::new(),
            wakes_at: None,
        }
    }

    /// Returns `config` with what a replica has to know of the CMs.
    pub(crate) fn configure(&self, config: Config) -> Config {
        Config { managers: self.plan.count, managers_apart: self.plan.apart, ..config }
    }

    pub(crate) fn set_balance(&mut self, rules: Balance) {
        self.rules = Some(rules);
        self.apart.iter_mut().for_each(|manager| manager.set_balance(rules));
    }

    /// Returns the incarnation of the CM that serves a replica, for the replica's start; `None` if the
    /// replica contains its CM.
    pub(crate) fn epoch_for(&self, index: u8) -> Option<Epoch> {
        let number = index % self.plan.count;
        (self.plan.apart || number != index).then(|| self.epochs[usize::from(number)])
    }

    /// Notes that a replica has a new incarnation; the contents of rings stay. A CM inside the replica is new
    /// as well.
    pub(crate) fn replica_restarted(
        &mut self,
        now: Instant,
        rng: &mut Rng,
        index: usize,
        epoch: Epoch,
        replicas: usize,
    ) {
        // Messages that the previous incarnation has not read are lost with its socket.
        self.news.retain(|(_, to, _)| *to != index);
        if !self.plan.apart && index < self.epochs.len() {
            self.spread(now, rng, index, epoch, replicas);
        }
    }

    /// Announces that a CM lives in this epoch to the replicas that it serves; each learns it when it reads
    /// its control socket.
    fn spread(&mut self, now: Instant, rng: &mut Rng, number: usize, epoch: Epoch, replicas: usize) {
        self.epochs[number] = epoch;
        for index in
            (number..replicas).step_by(self.epochs.len()).filter(|index| self.plan.apart || *index != number)
        {
            let at = now + Duration::from_micros(u64::from(rng.below(1000)));
            // A socket keeps the order of messages.
            let last = self.news.iter().filter(|(_, to, _)| *to == index).map(|(at, ..)| *at).max();
            self.news.push((last.map_or(at, |last| last.max(at)), index, epoch));
        }
    }

    /// Kills one of the CMs. Its successor knows nothing; the contents of rings stay.
    fn restart_one(&mut self, now: Instant, rng: &mut Rng, replicas: usize) {
        let number = rng.below(u32::from(self.plan.count)) as u8;
        let epoch = Epoch(self.epochs[usize::from(number)].0 + 1);
        let config = ManagerConfig { number, managers: self.plan.count, epoch, own: None };
        let mut manager = Manager::new(config, rng.next_u64());
        if let Some(rules) = self.rules {
            manager.set_balance(rules);
        }
        self.apart[usize::from(number)] = manager;
        self.spread(now, rng, number.into(), epoch, replicas);
    }

    /// Takes the messages of a replica as far as the rings have room, and as long as `life` lasts. `there` is
    /// as for [`Managers::run`].
    pub(crate) fn collect(
        &mut self,
        now: Instant,
        rng: &mut Rng,
        replica: &mut Transport<Mortal>,
        life: &Life,
        there: &[bool],
    ) {
        let (ReplicaId(index), _) = replica.identity();
        let number = index % self.plan.count;
        let manager = if self.plan.apart { Node::Manager(number) } else { Node::Replica(number) };
        replica.send_messages(now, |to, message| {
            let to = to.map_or(manager, |replica| Node::Replica(replica.0));
            life.spend() && put(&mut self.rings, (Node::Replica(index), to), message)
        });
        self.look_again(now, rng, there);
    }

    /// Delivers some of the messages that are under way. Returns whether there were any. `there` says which
    /// replicas serve; others read nothing. `loss` is the loss of messages between CMs, per million.
    pub(crate) fn run(
        &mut self,
        now: Instant,
        rng: &mut Rng,
        replicas: &mut [Transport<Mortal>],
        there: &[bool],
        loss: u32,
    ) -> bool {
        let mut any = false;
        for (_, index, epoch) in self.news.extract_if(.., |(at, index, _)| *at <= now && there[*index]) {
            replicas[index].handle_manager_restarted(now, epoch);
            any = true;
        }
        if self.wakes_at.is_none_or(|at| at > now) {
            return any;
        }
        self.wakes_at = None;
        if self.plan.die && self.plan.apart && rng.below(20) == 0 {
            self.restart_one(now, rng, replicas.len());
        }
        for ((from, to), ring) in self.rings.iter_mut().filter(|((_, to), _)| is_there(*to, there)) {
            let count = ring.len().min(1 + rng.below(RING_MESSAGES as u32) as usize);
            let sender = match *from {
                Node::Replica(replica) | Node::Manager(replica) => ReplicaId(replica),
            };
            for message in ring.drain(..count) {
                match *to {
                    Node::Replica(replica) => {
                        replicas[usize::from(replica)].handle_message(now, sender, &message);
                    }
                    Node::Manager(number) => self.apart[usize::from(number)].handle(now, sender, &message),
                }
            }
        }
        let mut said = Vec::new();
        for (number, manager) in (0..).zip(&mut self.apart) {
            manager.send(now, |to, message| {
                put(&mut self.rings, (Node::Manager(number), Node::Replica(to.0)), message)
            });
            let reach = Reach { awake: u64::MAX, takes: u64::MAX };
            said.extend(std::iter::from_fn(|| manager.poll_peer(now, reach, true)));
        }
        said.retain(|_| !rng.chance_per_million(loss));
        for output in said {
            for (number, manager) in (0..).zip(&mut self.apart) {
                if output.to >> number & 1 == 1 {
                    manager.handle_peer(now, &output.message);
                }
            }
        }
        self.look_again(now, rng, there);
        true
    }

    pub(crate) fn wakes_at(&self, there: &[bool]) -> Option<Instant> {
        let news = self.news.iter().filter(|(_, index, _)| there[*index]).map(|(at, ..)| *at);
        news.chain(self.wakes_at).min()
    }

    fn look_again(&mut self, now: Instant, rng: &mut Rng, there: &[bool]) {
        let is_read = self.rings.iter().all(|((_, to), ring)| ring.is_empty() || !is_there(*to, there));
        if (!is_read || self.apart.iter().any(Manager::has_output)) && self.wakes_at.is_none() {
            // Sometimes that is later than an answer may take. Messages for a replica that is away are
            // offered to its ring as often as by the real CM.
            let most = if rng.below(50) == 0 { 400_000 } else { [50, 1000][usize::from(is_read)] };
            self.wakes_at = Some(now + Duration::from_micros(1 + u64::from(rng.below(most))));
        }
    }
}

/// Returns whether the node reads its ring.
fn is_there(node: Node, there: &[bool]) -> bool {
    match node {
        Node::Replica(index) => there[usize::from(index)],
        Node::Manager(_) => true,
    }
}

fn put(
    rings: &mut BTreeMap<(Node, Node), VecDeque<ManagerMessage>>,
    way: (Node, Node),
    message: &ManagerMessage,
) -> bool {
    let ring = rings.entry(way).or_default();
    let has_room = ring.len() < RING_MESSAGES;
    if has_room {
        ring.push_back(*message);
    }
    has_room
}
