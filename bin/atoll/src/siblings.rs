//! Messages between the replicas of a stack, besides the frames that they pass on. Each pair has a channel
//! (P3, N8).
//!
//! A replica that starts greets the others, and they greet it when the supervisor reports that it has started
//! again. Afterwards each replica spreads what it alone has learned: the hardware address of a neighbour, the
//! MTU of a path. A message of a sibling is hostile until `Ip` finds it plausible.

use std::cell::Cell;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;

use atoll_base::{Addr, Duration, Epoch, Instant, ReplicaId};
use atoll_ip::{Basis, NeighbourUpdate, PathUpdate};
use atoll_ipc::channel::Channel;
use atoll_ipc::message::{Kind, Message, NewsBasis};
use atoll_ipc::page::Stat;
use atoll_rpc::{CallRouter, Dispatcher, Handler, Incoming, Limits, PeerId};
use atoll_shm::ShmMemory;
use atoll_sys::eventfd;
use atoll_transport::Transport;
use atoll_wire::Mac;

use crate::mesh::Mesh;

/// The most messages of each sibling that are handled before the rest of the loop gets its turn.
const BATCH: usize = 64;
/// How long a sibling may take to answer a greeting before it is not counted. A sibling answers as soon as it
/// runs.
const GREETING_TIME: Duration = Duration::from_secs(10);

/// Requests to siblings are rare, so microthreads of all kinds are kept on the heap.
type Thread = Pin<Box<dyn Future<Output = ()>>>;

/// The channels of one replica to the others of its stack.
pub struct Siblings {
    me: ReplicaId,
    own: Epoch,
    dispatcher: Dispatcher<ShmMemory, Transport<ShmMemory>, Thread>,
    /// The doorbells of the siblings, by number of the peer.
    bells: Vec<OwnedFd>,
    /// A bit for each peer that has answered the greeting.
    greeted: Rc<Cell<u64>>,
}

impl Siblings {
    /// Creates the channels of replica `me` to the others of `epochs`. `bells` are those of all replicas,
    /// `me` included. Each sibling is greeted in the first turn.
    pub fn new(mesh: &Mesh, me: ReplicaId, epochs: &[Epoch], bells: Vec<OwnedFd>, now: Instant) -> Siblings {
        let own = epochs.get(usize::from(me.0)).copied().unwrap_or_default();
        let mut dispatcher = Dispatcher::new(own, Limits::default(), now);
        dispatcher.on(Kind::Hello, Handler::Answer(answer_hello));
        dispatcher.on(Kind::Neighbour, Handler::Notice(note_neighbour));
        dispatcher.on(Kind::Path, Handler::Notice(note_path));
        let greeted = Rc::new(Cell::new(0));
        let mut siblings = Siblings { me, own, dispatcher, bells: Vec::new(), greeted };
        for (sibling, (&epoch, bell)) in (0..).zip(epochs.iter().zip(bells)) {
            if sibling == me.0 {
                continue;
            }
            // Every two replicas talk; the numbers of peers follow from that.
            let Some((memory, place)) = mesh.channel(sibling.into()) else { break };
            let channel = Channel::resume(memory, place, own, epoch);
            let peer = siblings.dispatcher.add_peer(channel, epoch);
            siblings.bells.push(bell);
            siblings.greet(peer, ReplicaId(sibling), epoch, now);
        }
        siblings
    }

    /// Notes that the process of a sibling has ended, so that requests to it are not answered.
    pub fn gone(&mut self, sibling: ReplicaId) {
        if let Some(peer) = self.peer(sibling) {
            self.dispatcher.peer_gone(peer);
            self.greeted.set(self.greeted.get() & !(1 << peer.0));
        }
    }

    /// Notes that a sibling was started again, in this epoch.
    pub fn restarted(&mut self, sibling: ReplicaId, epoch: Epoch, now: Instant) {
        self.gone(sibling);
        if let Some(peer) = self.peer(sibling) {
            self.dispatcher.peer_back(peer, epoch);
            self.greet(peer, sibling, epoch, now);
        }
    }

    /// Returns the number of a replica as a peer; `None` for this replica, and for numbers that are no
    /// replica's.
    fn peer(&self, sibling: ReplicaId) -> Option<PeerId> {
        let before = u32::from(sibling.0).checked_sub(u32::from(sibling.0 > self.me.0))?;
        (sibling != self.me && (before as usize) < self.bells.len()).then_some(PeerId(before))
    }

    /// Greets a sibling in the next turn.
    fn greet(&mut self, peer: PeerId, sibling: ReplicaId, epoch: Epoch, now: Instant) {
        let router = self.dispatcher.router().clone();
        let hello = Message::Hello { replica: self.me, epoch: self.own };
        let expected = Message::Hello { replica: sibling, epoch };
        let greeting = greet(router, peer, hello, expected, now + GREETING_TIME, self.greeted.clone());
        // There is room: greetings to earlier incarnations have ended.
        let _ = self.dispatcher.spawn(Box::pin(greeting));
    }

    /// Handles messages of siblings. Returns whether there were any.
    pub fn turn(&mut self, now: Instant, transport: &mut Transport<ShmMemory>) -> bool {
        !self.bells.is_empty() && self.dispatcher.turn(now, transport, BATCH)
    }

    /// Sends the siblings what this replica has learned about neighbours and paths since the last call.
    pub fn spread_news(&mut self, transport: &mut Transport<ShmMemory>) {
        while let Some(update) = transport.ip_mut().poll_neighbour() {
            self.tell(neighbour_message(update));
        }
        while let Some(update) = transport.ip_mut().poll_path() {
            self.tell(Message::Path { dst: update.dst, mtu: update.mtu });
        }
    }

    /// Makes sent messages visible, and rings the doorbells of sleeping siblings. Returns how many were rung.
    pub fn publish(&mut self) -> u64 {
        let bells = &self.bells;
        self.dispatcher.publish(|peer| {
            // Ringing a doorbell does not fail; a descriptor that is no doorbell wakes no process.
            let _ = eventfd::ring(&bells[peer.0 as usize]);
        })
    }

    /// Asks the siblings to ring this replica from now on.
    pub fn fall_asleep(&mut self) {
        self.dispatcher.fall_asleep();
    }

    /// Asks the siblings not to ring this replica any more.
    pub fn wake_up(&mut self) {
        self.dispatcher.wake_up();
    }

    /// Returns whether there are messages to handle.
    pub fn is_ready(&self) -> bool {
        self.dispatcher.is_ready()
    }

    /// Returns when the next turn is due even if no sibling rings.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.dispatcher.next_timeout()
    }

    /// Returns the counters of the channels.
    pub fn stats(&self) -> [(Stat, u64); 6] {
        let counts = self.dispatcher.counts();
        [
            (Stat::Siblings, self.greeted.get().count_ones().into()),
            (Stat::MessagesIn, counts.received),
            (Stat::MessagesOut, counts.sent),
            (Stat::MessagesDropped, counts.dropped + counts.refused),
            (Stat::MessagesBad, counts.bad + counts.unexpected + counts.unmatched + counts.lies),
            (Stat::MessagesStale, counts.stale),
        ]
    }

    /// Sends a message to all siblings. A message that does not fit is counted; its loss does no harm.
    fn tell(&mut self, message: Message) {
        for peer in 0..self.bells.len() as u32 {
            let _ = self.dispatcher.notify(PeerId(peer), message);
        }
    }
}

/// Greets a sibling, and counts it if it answers with the expected number and epoch.
async fn greet(
    router: CallRouter<ShmMemory>,
    peer: PeerId,
    hello: Message,
    expected: Message,
    deadline: Instant,
    greeted: Rc<Cell<u64>>,
) {
    if router.call(peer, hello, deadline).await == Ok(expected) {
        greeted.set(greeted.get() | 1 << peer.0);
    }
}

fn answer_hello(transport: &mut Transport<ShmMemory>, _: Instant, _: Incoming) -> Message {
    let (replica, epoch) = transport.identity();
    Message::Hello { replica, epoch }
}

fn note_neighbour(transport: &mut Transport<ShmMemory>, now: Instant, incoming: Incoming) {
    if let Some(update) = neighbour_update(incoming.message) {
        transport.ip_mut().handle_neighbour(now, update);
    }
}

fn note_path(transport: &mut Transport<ShmMemory>, now: Instant, incoming: Incoming) {
    if let Message::Path { dst, mtu } = incoming.message {
        transport.ip_mut().handle_path(now, PathUpdate { dst, mtu });
    }
}

fn neighbour_message(update: NeighbourUpdate) -> Message {
    let basis = match update.basis {
        Basis::Learned => NewsBasis::Learned,
        Basis::Overheard => NewsBasis::Overheard,
    };
    Message::Neighbour { addr: Addr::v4(update.addr), mac: update.mac.0, basis }
}

/// Returns the update in a message; `None` if the message is not about an IPv4 neighbour.
fn neighbour_update(message: Message) -> Option<NeighbourUpdate> {
    let Message::Neighbour { addr, mac, basis } = message else { return None };
    let basis = match basis {
        NewsBasis::Learned => Basis::Learned,
        NewsBasis::Overheard => Basis::Overheard,
    };
    Some(NeighbourUpdate { addr: addr.to_v4()?, mac: Mac(mac), basis })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_about_a_neighbour_survive_the_message() {
        for basis in [Basis::Learned, Basis::Overheard] {
            let update = NeighbourUpdate { addr: 0xc612_0001, mac: Mac([2, 1, 2, 3, 4, 5]), basis };
            assert_eq!(neighbour_update(neighbour_message(update)), Some(update));
        }
        let v6 = Message::Neighbour {
            addr: Addr::from_octets([0x20; 16]),
            mac: [2; 6],
            basis: NewsBasis::Learned,
        };
        assert_eq!(neighbour_update(v6), None);
    }
}
