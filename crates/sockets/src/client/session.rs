//! A session, which a process shares with the replicas of a stack: pages, rings and doorbells.

use alloc::vec::Vec;
use core::fmt;

use atoll_base::{Addr, Endpoint, FourTuple, Instant, SlotId};
use atoll_ipc::arena::library;
use atoll_ipc::command::CloseMode;
use atoll_ipc::control::Reply;
use atoll_ipc::network::{Network, V4Facts};
use atoll_ipc::page::{AppPage, BELLS, ReplicaPage, StackFacts, StackPage, Stat};
use atoll_ipc::{Command, Device, Memory};

use super::object::Place;
use super::platform::{Before, Bell, Platform};
use crate::outbox::{Outbox, Sent};
use crate::port::Port;
use crate::view::{Counters, View};

/// The user of a slot that no object of this process uses.
pub const NOBODY: u32 = u32::MAX;

/// A session: this process's own, or one whose sockets the process inherited.
pub struct Session<P: Platform> {
    /// The supervisor's number for the session.
    pub id: u32,
    /// The proof that a process may join the session.
    pub key: u64,
    /// The number of this process among the holders of a slot, 0 to 63.
    pub member: u8,
    /// The supervisor's answer, for a program that takes this one's place by execve(2).
    pub reply: Reply,
    /// The facts on the stack's page.
    pub facts: StackFacts,
    /// Whether other processes use the same arenas: their state is then changed under the family's lock.
    pub shared: bool,
    stack: StackPage<P::Memory>,
    app_page: AppPage<P::Memory>,
    bells: Vec<P::Bell>,
    replicas: Vec<Replica<P>>,
    /// Whether commands wait in an outbox.
    waits: bool,
    /// Whether a command was sent that had to wait, so that the sending thread is to be slowed down.
    owes: bool,
    /// The number of slots that sockets still have here, if the stack is gone and the session over with it.
    over: Option<usize>,
}

/// The parts of a session.
pub struct Shared<P: Platform> {
    /// The page that the supervisor writes.
    pub stack: StackPage<P::Memory>,
    /// The page of this session's sleep words.
    pub app_page: AppPage<P::Memory>,
    /// The doorbells of the session's own processes: [`BELLS`] of them.
    pub bells: Vec<P::Bell>,
    /// The parts that each replica shares.
    pub replicas: Vec<SharedReplica<P>>,
}

/// The parts that one replica shares with a session.
pub struct SharedReplica<P: Platform> {
    /// The page that the replica writes.
    pub page: ReplicaPage<P::Memory>,
    /// The arena of the session at this replica.
    pub arena: P::Memory,
    /// The replica's doorbell.
    pub bell: P::Bell,
}

/// The state of a session at one replica.
pub struct Replica<P: Platform> {
    port: Port<P::Memory>,
    outbox: Outbox,
    postponed: Postponed,
    page: ReplicaPage<P::Memory>,
    bell: P::Bell,
    rung: u32,
    overflow_seen: u32,
    epoch_seen: u32,
    /// The objects by slot: the application's half, then the replica's half.
    users: [Vec<u32>; 2],
}

/// What waits for this process's turn in the arena, because another process of the family had it.
#[derive(Debug, Default)]
struct Postponed {
    /// Slots that this process has closed, each with its generation: at most as many as it had open.
    closed: Vec<(SlotId, u32)>,
    /// Whether there may be slots that the replica is done with: see [`Port::sweep`].
    sweep: bool,
}

impl Postponed {
    fn is_empty(&self) -> bool {
        self.closed.is_empty() && !self.sweep
    }
}

/// The changes of a replica that a check has found besides its events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// Nothing has happened.
    None,
    /// Events did not fit the ring.
    EventsLost,
    /// The replica is a new incarnation, which knows nothing of ports and listeners.
    Successor,
}

impl<P: Platform> Session<P> {
    /// Creates the session that `reply` describes; returns `None` if the reply describes none or something is
    /// missing.
    pub fn new(reply: &Reply, shared: Shared<P>) -> Option<Session<P>> {
        let Reply::Joined { session, key, member, replicas: count, config } = *reply else { return None };
        let Shared { stack, app_page, bells, replicas } = shared;
        let facts = stack.facts()?;
        let is_whole = bells.len() == BELLS && !replicas.is_empty() && replicas.len() == usize::from(count);
        let layout = config.layout();
        is_whole.then(|| Session {
            id: session,
            key,
            member,
            reply: *reply,
            facts,
            shared: false,
            stack,
            app_page,
            bells,
            replicas: replicas
                .into_iter()
                .map(|SharedReplica { page, arena, bell }| Replica::new(page, Port::new(arena, layout), bell))
                .collect(),
            waits: false,
            owes: false,
            over: None,
        })
    }

    /// Returns the replicas, in order.
    #[inline]
    pub fn replicas(&self) -> &[Replica<P>] {
        &self.replicas
    }

    /// Returns the replicas for writing, in order.
    #[inline]
    pub fn replicas_mut(&mut self) -> &mut [Replica<P>] {
        &mut self.replicas
    }

    /// Returns the number of replicas.
    #[inline]
    pub fn count(&self) -> usize {
        self.replicas.len()
    }

    /// Returns how many bytes of address space the arenas take.
    pub fn arena_bytes(&self) -> usize {
        let Reply::Joined { config, .. } = self.reply else { return 0 };
        self.count() * config.layout().total
    }

    /// Returns the doorbells of the session's own processes.
    pub fn bells(&self) -> &[P::Bell] {
        &self.bells
    }

    /// Takes the doorbells out of a session that is about to be dropped, so that they can be closed together.
    pub fn take_bells(&mut self) -> Vec<P::Bell> {
        core::mem::take(&mut self.bells)
    }

    /// Sends a command. If the ring has no room, the command waits in the outbox, and the calling thread is
    /// to be slowed down ([`Session::take_owed`]).
    #[inline]
    pub fn push(&mut self, replica: usize, command: &Command) {
        let shared = self.shared;
        let Some(to) = self.replicas.get_mut(replica).filter(|_| self.over.is_none()) else { return };
        if to.push(shared, command) != Sent::All {
            self.waits = true;
            self.owes |= !to.outbox.has_stalled();
        }
    }

    /// Sends waiting commands as far as there is room. Returns whether some still wait for a replica that is
    /// worth waiting for: one that has taken something within [`crate::outbox::PATIENCE`].
    pub fn send_waiting(&mut self, now: Instant) -> bool {
        let (shared, member, mut waits, mut hopes) = (self.shared, self.member, false, false);
        for replica in self.replicas.iter_mut().filter(|replica| replica.has_waiting()) {
            let sent = replica.send_waiting(shared, member, now);
            waits |= sent != Sent::All;
            hopes |= sent != Sent::All && !replica.outbox.has_stalled();
        }
        self.waits = waits;
        hopes
    }

    /// Returns whether commands wait for room, or what is to be done waits for this process's turn.
    #[inline]
    pub fn has_waiting(&self) -> bool {
        self.waits
    }

    /// Returns what the next [`Session::take_owed`] returns.
    #[inline]
    pub(super) fn owes(&self) -> bool {
        self.owes
    }

    /// Returns whether a command was sent since the last call that has to wait.
    #[inline]
    pub fn take_owed(&mut self) -> bool {
        core::mem::take(&mut self.owes)
    }

    /// Drops all commands that wait, because another process sends them.
    pub fn forget_waiting(&mut self) {
        for replica in &mut self.replicas {
            (replica.outbox, replica.postponed) = (Outbox::new(), Postponed::default());
        }
        (self.waits, self.owes) = (false, false);
    }

    /// Notes that the stack is gone: nobody hears commands any more, and the connections end. What was
    /// received stays readable by `sockets` slots. The session counts as shared, because children may have it
    /// from now on without asking anybody.
    pub(super) fn end(&mut self, sockets: usize) {
        (self.over, self.shared) = (Some(sockets), true);
        self.forget_waiting();
        self.replicas.iter_mut().for_each(|replica| replica.port.set_gone());
    }

    /// Returns whether the stack of this session is gone.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.over.is_some()
    }

    /// Notes that a socket gives its slot up. Returns whether nobody needs the session any more, which is
    /// over.
    pub(super) fn leave(&mut self) -> bool {
        let Some(left) = &mut self.over else { return false };
        *left = left.saturating_sub(1);
        *left == 0
    }

    /// Returns whether the session is over and no socket has a slot there.
    pub(super) fn is_left(&self) -> bool {
        self.over == Some(0)
    }

    /// Announces that a thread sleeps on a doorbell. Rings from before this call do not count for it.
    pub fn set_asleep(&self, bell: u32) {
        self.app_page.set_asleep(bell);
    }

    /// Announces that no thread of this process sleeps on a doorbell any more. Does nothing in a shared
    /// session, where other members may sleep on it.
    pub fn set_awake(&self, bell: u32) {
        if !self.shared {
            self.app_page.set_awake(bell);
        }
    }

    /// Executes a full barrier between the words of this process and those of the replicas.
    pub fn fence(&self) {
        self.app_page.0.fence();
    }

    /// Wakes threads of the session's own processes.
    pub fn ring(&self, bell: u32) {
        self.bells[bell as usize % BELLS].ring();
    }

    /// Returns whether the stack has a socket at a port, for addresses that both stack and kernel have.
    pub fn has_port(&self, udp: bool, port: u16) -> bool {
        self.replicas.iter().any(|replica| replica.page.has_port(udp, port))
    }

    /// Returns whether the address belongs to the stack.
    pub fn is_own(&self, addr: Addr) -> bool {
        match addr.to_v4() {
            Some(v4) => addr.is_loopback() || self.v4().is_some_and(|own| own.addr == v4),
            None => addr == Addr::LOOPBACK || self.network().is_own(addr),
        }
    }

    /// Returns the IPv4 address that the stack has now, if it has one.
    pub fn v4(&self) -> Option<V4Facts> {
        self.replicas[0].page.v4()
    }

    /// Returns the addresses that the stack has now.
    pub fn network(&self) -> Network {
        self.replicas[0].page.network()
    }

    /// Returns what programs see of the stack's network at `now` of its clock.
    pub fn view(&self, now: Instant) -> View {
        let sum = |stat| self.replicas.iter().map(|replica| replica.page.stat(stat)).sum();
        let counters = Counters {
            bytes_in: sum(Stat::BytesIn),
            frames_in: sum(Stat::FramesIn),
            dropped_in: sum(Stat::FramesDropped),
            bytes_out: sum(Stat::BytesOut),
            frames_out: sum(Stat::FramesOut),
            dropped_out: sum(Stat::SendFailures),
        };
        View::of(&self.facts, &self.network(), counters, now)
    }

    /// Returns the address that packets to `dst` leave from; unspecified if there is none.
    pub fn source_for(&self, dst: Addr) -> Addr {
        match dst.is_v4() {
            _ if dst.is_loopback() => dst.loopback_of_family(),
            true => self.v4().map_or(Addr::V4_ANY, |own| Addr::v4(own.addr)),
            false => self.network().source_for(dst).unwrap_or_default(),
        }
    }

    /// Returns the address that packets to `dst` leave from if the socket is bound to `device`. On the link
    /// that is none of the loopback (ip_route_output_key_hash).
    pub fn source_on(&self, dst: Addr, device: Device) -> Addr {
        match dst.is_v4() && dst.is_loopback() && device == Device::Link {
            true => self.v4().map_or(Addr::V4_ANY, |own| Addr::v4(own.addr)),
            false => self.source_for(dst),
        }
    }

    /// Returns whether the stack has a way to `addr`: on its link, or by a gateway.
    ///
    /// A stack that has no IPv4 address yet, or lost it, claims to reach every IPv4 address. So its programs
    /// get ENETUNREACH, and do not end up in the kernel's network because a DHCP server is slow.
    pub fn reaches(&self, addr: Addr) -> bool {
        match addr.to_v4() {
            Some(v4) => self.v4().is_none_or(|own| own.reaches(v4)),
            None => self.network().reaches(addr),
        }
    }

    /// Returns whether `addr` is a broadcast address of the link, or that of every link.
    pub fn is_broadcast(&self, addr: Addr) -> bool {
        let Some(v4) = addr.to_v4() else { return false };
        v4 == u32::MAX || self.v4().is_some_and(|own| own.is_broadcast(v4))
    }

    /// Returns whether a datagram to `addr` has no address to leave from, because there is no IPv4 address
    /// yet, or no more. Groups can be reached inside the stack.
    pub fn is_cut_off(&self, addr: Addr) -> bool {
        // A configured address stays.
        self.facts.addr == 0
            && addr.to_v4().is_some_and(|v4| v4 >> 28 != 0xe)
            && !addr.is_loopback()
            && self.v4().is_none()
    }

    /// Returns the size of the largest packet of the family of `addr` on the link, in octets.
    pub fn mtu_for(&self, addr: Addr) -> usize {
        let v4 = if addr.is_v4() { self.v4() } else { None };
        v4.map_or(self.facts.mtu, |own| own.mtu).into()
    }

    /// Returns the index of the replica that owns a connection's addresses and ports.
    pub fn owner(&self, local: Endpoint, remote: Endpoint) -> usize {
        let tuple = FourTuple { local, remote };
        usize::from(self.stack.owner_of(self.facts.key, &tuple).0).min(self.replicas.len() - 1)
    }

    /// Returns whether replicas listen to the session. They stop once servers have died of it, or with their
    /// stack.
    pub fn is_heard(&self) -> bool {
        self.over.is_none() && !self.replicas.iter().any(|replica| replica.port.is_cut_off())
    }

    /// Returns whether any replica has sent something.
    #[inline]
    pub fn has_event(&self) -> bool {
        self.replicas.iter().any(|replica| replica.port.has_event())
    }

    /// Takes a slot for an object that this process opens at a replica. Returns `None` if all are in use.
    pub(super) fn allocate(&mut self, replica: usize, object: u32, bell: u32) -> Option<(SlotId, u32)> {
        let (member, shared) = (self.member, self.shared);
        let to = self.replicas.get_mut(replica)?;
        // Only the session's owner takes free slots. A slot becomes free in a turn in the arena, so no other
        // process is in the midst of closing it.
        let (slot, generation) = to.port.allocate_slot()?;
        to.set_user(slot, object);
        if let Some(lines) = to.port.slot(slot) {
            lines.set_holders(1 << (member & 63));
            lines.set_bell(if shared { 0 } else { bell });
        }
        Some((slot, generation))
    }

    /// Returns whether the session has a place: its replica, and its slot there.
    pub fn has(&self, place: &Place) -> bool {
        let replica = self.replicas.get(place.replica);
        replica.is_some_and(|replica| replica.port.layout().slot(place.slot).is_some())
    }

    /// Ends this process's use of a slot, now or in its next turn. Returns whether the process was the last
    /// holder, which has to notify the replica now.
    pub(super) fn close_slot(&mut self, place: Place) -> bool {
        let (member, shared) = (self.member, self.shared);
        let Some(replica) = self.replicas.get_mut(place.replica) else { return false };
        replica.set_user(place.slot, NOBODY);
        // In between, the replica may close a slot without holders, and the owner then give it to another
        // object.
        let Some(_turn) = replica.turn(shared) else {
            replica.postponed.closed.push((place.slot, place.generation));
            self.waits = true;
            return false;
        };
        replica.port.close_slot(place.slot, place.generation, member)
    }

    /// Notes that a replica is done with a slot of this process's own session.
    pub(super) fn slot_done(&mut self, replica: usize, slot: SlotId, generation: u32) {
        let shared = self.shared;
        let Some(replica) = self.replicas.get_mut(replica) else { return };
        let Some(_turn) = replica.turn(shared) else {
            // The slots show it, too, and a hostile replica can say it without end.
            (replica.postponed.sweep, self.waits) = (true, true);
            return;
        };
        replica.port.slot_done(slot, generation);
    }

    /// Finishes the closed slots that a replica is done with: events of it were lost.
    pub(super) fn sweep(&mut self, replica: usize) {
        let shared = self.shared;
        let Some(replica) = self.replicas.get_mut(replica) else { return };
        let Some(_turn) = replica.turn(shared) else {
            (replica.postponed.sweep, self.waits) = (true, true);
            return;
        };
        replica.port.sweep();
    }
}

impl<P: Platform> Replica<P> {
    fn new(page: ReplicaPage<P::Memory>, port: Port<P::Memory>, bell: P::Bell) -> Replica<P> {
        let (overflow_seen, epoch_seen) = (port.overflow(), page.epoch().0);
        let users = [Vec::new(), Vec::new()];
        let (outbox, postponed) = (Outbox::new(), Postponed::default());
        Replica { port, outbox, postponed, page, bell, rung: 0, overflow_seen, epoch_seen, users }
    }

    /// Returns the session's port at the replica: commands, events and slots.
    #[inline]
    pub fn port(&self) -> &Port<P::Memory> {
        &self.port
    }

    /// Returns the session's port at the replica for writing.
    #[inline]
    pub fn port_mut(&mut self) -> &mut Port<P::Memory> {
        &mut self.port
    }

    /// Returns the replica's doorbell.
    pub fn bell(&self) -> &P::Bell {
        &self.bell
    }

    /// Returns whether events were lost, or the replica is a new incarnation, since the last call.
    #[inline]
    pub(super) fn take_news(&mut self) -> News {
        let (overflow, epoch) = (self.port.overflow(), self.page.epoch().0);
        let news = match (epoch != self.epoch_seen, overflow != self.overflow_seen) {
            (true, _) => News::Successor,
            (false, true) => News::EventsLost,
            (false, false) => return News::None,
        };
        (self.overflow_seen, self.epoch_seen) = (overflow, epoch);
        news
    }

    /// Puts a command on the ring, and rings the replica's doorbell. If there is no room, or another process
    /// has its turn, the command waits in the outbox.
    #[inline]
    fn push(&mut self, shared: bool, command: &Command) -> Sent {
        let Some(turn) = self.turn(shared) else {
            self.outbox.keep(command);
            return Sent::Nothing;
        };
        if shared {
            self.port.reload();
        }
        let sent = self.outbox.send(&mut self.port, command);
        drop(turn);
        self.ring();
        sent
    }

    fn has_waiting(&self) -> bool {
        !self.outbox.is_empty() || !self.postponed.is_empty()
    }

    /// Does what waits for this process's turn, and sends commands that wait for room.
    fn send_waiting(&mut self, shared: bool, member: u8, now: Instant) -> Sent {
        let Some(turn) = self.turn(shared) else {
            self.outbox.wait(now);
            return Sent::Nothing;
        };
        if shared {
            self.port.reload();
        }
        let Postponed { closed, sweep } = core::mem::take(&mut self.postponed);
        for (slot, generation) in closed {
            if self.port.close_slot(slot, generation, member) {
                self.outbox.keep(&Command::Close { slot, generation, mode: CloseMode::Graceful });
            }
        }
        if sweep {
            self.port.sweep();
        }
        let sent = self.outbox.send_waiting(&mut self.port, now);
        drop(turn);
        self.ring();
        sent
    }

    /// Rings the replica's doorbell if it sleeps and was not rung yet for this sleep.
    #[inline]
    fn ring(&mut self) {
        // Partner: the replica's fence between its sleep word and its last check of the ring.
        self.port.memory().fence();
        let word = self.page.sleep_word();
        if word & 1 == 1 && word != self.rung {
            self.rung = word;
            self.bell.ring();
        }
    }

    /// Returns the object that uses a slot, or [`NOBODY`].
    #[inline]
    pub fn user(&self, slot: SlotId) -> u32 {
        let (half, index) = self.place(slot);
        self.users[half].get(index).copied().unwrap_or(NOBODY)
    }

    /// Records which object uses a slot.
    pub fn set_user(&mut self, slot: SlotId, object: u32) {
        if self.port.layout().slot(slot).is_none() {
            return;
        }
        let (half, index) = self.place(slot);
        let users = &mut self.users[half];
        if index >= users.len() {
            users.resize(index + 1, NOBODY);
        }
        users[index] = object;
    }

    fn place(&self, slot: SlotId) -> (usize, usize) {
        let first = self.port.layout().replica_slots().start;
        if slot.0 < first { (0, slot.0 as usize) } else { (1, (slot.0 - first) as usize) }
    }

    /// Begins a turn of this process in the arena, which ends when the value is dropped. If other processes
    /// use the arena too (`shared`), it takes the family's lock, and repairs what its last holder left
    /// unfinished if it died. Returns `None` if another process has its turn, which may be stopped in it.
    #[inline]
    pub(super) fn turn(&self, shared: bool) -> Option<Turn<P>> {
        if !shared {
            return Some(Turn(None));
        }
        let (lock, before) = P::lock_family(self.port.memory(), self.port.layout().library + library::LOCK)?;
        if before == Before::Died {
            self.port.repair();
        }
        Some(Turn(Some(lock)))
    }
}

/// A turn of this process in an arena: with the family's lock, if other processes use the arena too.
pub struct Turn<P: Platform>(#[allow(dead_code)] Option<P::FamilyLock>);

impl<P: Platform> Turn<P> {
    /// Returns a turn in no arena, for an object without one.
    pub(super) const fn of_nobody() -> Turn<P> {
        Turn(None)
    }
}

impl<P: Platform> fmt::Debug for Turn<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn").finish_non_exhaustive()
    }
}

impl<P: Platform> fmt::Debug for Session<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("id", &self.id).field("member", &self.member).finish_non_exhaustive()
    }
}

impl<P: Platform> fmt::Debug for Replica<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replica").field("epoch_seen", &self.epoch_seen).finish_non_exhaustive()
    }
}
