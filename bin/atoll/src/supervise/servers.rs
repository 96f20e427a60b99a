//! Which servers does the stack have, and what are they told? One list of slots: the replicas first, then
//! those that are no replicas.
//!
//! A slot stays when its process goes; what the supervisor decides about its server is in its
//! [`ServerRecord`]. Everything that a server is told goes through here. What its socket does not take waits
//! in its outbox, and a server that is down is told nothing: it hears all there is to hear when it is
//! started.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use atoll_base::{Duration, Instant};
use atoll_ipc::control::Request;
use atoll_supervisor::{FIRST_EPOCH, ServerRecord};
use atoll_sys::epoll::{Epoll, EventFlags};
use atoll_sys::eventfd;
use atoll_sys::process::{Child, Exit, Signal};
use atoll_sys::unix::Channel;

use super::outbox::Outbox;
use super::program::Program;
use super::tokens::{SERVER_CONTROL, SERVER_PROCESS};
use crate::clock;

/// The servers, by number.
pub struct Servers {
    slots: Vec<ServerSlot>,
    /// So many are replicas, the first ones.
    replicas: usize,
    epoll: Rc<Epoll>,
    /// Of each server, by number.
    bells: Vec<Rc<OwnedFd>>,
    /// When it is tried again to send what the system was short of something for.
    retry_at: Option<Instant>,
    /// When replicas are told of more sessions.
    tell_at: Instant,
}

/// A server, as the supervisor sees it.
pub struct ServerSlot {
    record: ServerRecord,
    /// What it is, or will be, a process of.
    program: Rc<Program>,
    /// Of a replica: the key of its process among those for replicas; `None` while it has none.
    host: Option<usize>,
    /// Its process, which may have other replicas, too; `None` while it has none, and in tests.
    child: Option<Rc<Child>>,
    /// `None` while it is down.
    control: Option<Channel>,
    outbox: Outbox,
    /// Sessions of which it has not heard: see `telling.rs`.
    untold: BTreeSet<u32>,
    /// It is to list its sockets, and has not listed all.
    lists: bool,
}

/// What a server has while it is not down.
pub struct Employment {
    /// The key of a replica's process among those for replicas.
    pub host: Option<usize>,
    /// The process; `None` in tests.
    pub child: Option<Rc<Child>>,
    /// The supervisor's end of the control socket.
    pub control: Channel,
}

/// What a server's process has been.
pub struct Ended {
    /// Its number.
    pub pid: Option<u32>,
    /// How it ended, if known.
    pub exit: Option<Exit>,
}

impl ServerSlot {
    /// One that is down.
    pub fn new(record: ServerRecord, program: Rc<Program>) -> ServerSlot {
        ServerSlot {
            record,
            program,
            host: None,
            child: None,
            control: None,
            outbox: Outbox::default(),
            untold: BTreeSet::new(),
            lists: false,
        }
    }

    /// What is decided about it.
    pub fn record(&self) -> &ServerRecord {
        &self.record
    }

    /// The same, to be told what has happened.
    pub fn record_mut(&mut self) -> &mut ServerRecord {
        &mut self.record
    }

    /// What it is, or will be, a process of.
    pub fn program(&self) -> &Rc<Program> {
        &self.program
    }

    /// From its next process on it is of this build.
    pub fn set_program(&mut self, program: Rc<Program>) {
        self.program = program;
    }

    /// The key of a replica's process.
    pub fn host(&self) -> Option<usize> {
        self.host
    }

    /// Whether it has no process, or none that speaks to us.
    pub fn is_down(&self) -> bool {
        self.control.is_none()
    }

    /// The number of its process.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(|child| child.pid())
    }

    /// Its process, if it has one of its own.
    pub fn own_child(&self) -> Option<&Rc<Child>> {
        self.child.as_ref().filter(|_| self.host.is_none())
    }

    /// Ends its process. The end is noticed as those of others are.
    pub fn kill(&self) {
        if let Some(child) = &self.child {
            let _ = child.kill(Signal::KILL);
        }
    }

    /// What the next supervisor needs: the control socket, and the pidfd of a process of its own.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let control = self.control.as_ref().map(AsFd::as_fd);
        control.into_iter().chain(self.own_child().map(|child| child.pidfd())).collect()
    }

    /// What waits for its end, when the stack ends.
    pub fn employment(&self) -> Option<(&Child, &Channel)> {
        Some((self.child.as_deref()?, self.control.as_ref()?))
    }

    /// Whether it is to list its sockets, and has not listed all.
    pub fn lists(&self) -> bool {
        self.lists
    }

    /// Whether what it is told waits here.
    #[cfg(test)]
    pub fn has_waiting(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Sessions of which it has not heard.
    pub fn untold(&self) -> &BTreeSet<u32> {
        &self.untold
    }

    /// Sessions of which it is to hear when it serves, and not before.
    pub fn set_untold(&mut self, sessions: BTreeSet<u32>) {
        self.untold = sessions;
    }

    /// It is about to hear of a session. Returns whether it had not.
    pub fn hear_of(&mut self, session: u32) -> bool {
        self.untold.remove(&session)
    }

    /// Whether there are sessions of which it is to hear now. One whose socket is full reads first.
    pub fn takes_more(&self) -> bool {
        self.record.hears() && !self.untold.is_empty() && self.outbox.is_empty()
    }
}

impl Servers {
    /// None yet of those that have these bells, the first `replicas` of which are replicas.
    pub fn new(epoll: Rc<Epoll>, bells: Vec<Rc<OwnedFd>>, replicas: usize) -> Servers {
        Servers { slots: Vec::new(), replicas, epoll, bells, retry_at: None, tell_at: clock::now() }
    }

    /// Adds the next one.
    pub fn install(&mut self, slot: ServerSlot, employment: Option<Employment>) -> io::Result<()> {
        let index = self.slots.len();
        self.slots.push(slot);
        employment.map_or(Ok(()), |employment| self.employ(index, employment))
    }

    /// A server has a process from now on, which is listened to. On an error it has none.
    pub fn employ(&mut self, index: usize, employment: Employment) -> io::Result<()> {
        let Some(slot) = self.slots.get_mut(index) else { return Ok(()) };
        let Employment { host, child, control } = employment;
        self.epoll.add(&control, SERVER_CONTROL + index as u64, EventFlags::IN)?;
        if let (Some(child), None) = (&child, host) {
            self.epoll.add(&**child, SERVER_PROCESS + index as u64, EventFlags::IN).inspect_err(|_| {
                let _ = self.epoll.delete(&control);
            })?;
        }
        (slot.host, slot.child, slot.control) = (host, child, Some(control));
        Ok(())
    }

    /// A server has no process any more. Returns whether it was to list its sockets.
    pub fn dismiss(&mut self, index: usize) -> bool {
        let Some(slot) = self.slots.get_mut(index) else { return false };
        // That of replicas is watched as such.
        let child = slot.child.take().filter(|_| slot.host.is_none());
        let control = slot.control.take();
        (slot.host, slot.outbox, slot.untold) = (None, Outbox::default(), BTreeSet::new());
        slot.record.forget_process();
        // The guardian has them, too: only so are they out of the set.
        for fd in child.iter().map(|child| (**child).as_fd()).chain(control.iter().map(AsFd::as_fd)) {
            let _ = self.epoll.delete(fd);
        }
        std::mem::take(&mut slot.lists)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// The numbers of all.
    pub fn numbers(&self) -> Range<usize> {
        0..self.slots.len()
    }

    /// How many replicas there are.
    pub fn replica_count(&self) -> usize {
        self.slots.len().min(self.replicas)
    }

    /// The numbers of the replicas.
    pub fn replica_numbers(&self) -> Range<usize> {
        0..self.replica_count()
    }

    /// Whether this is the number of a replica.
    pub fn is_replica(&self, index: usize) -> bool {
        index < self.replicas
    }

    /// All, by number.
    pub fn all(&self) -> &[ServerSlot] {
        &self.slots
    }

    /// The replicas.
    pub fn replicas(&self) -> &[ServerSlot] {
        &self.slots[..self.replica_count()]
    }

    /// The servers that are no replicas.
    pub fn others(&self) -> &[ServerSlot] {
        &self.slots[self.replica_count()..]
    }

    /// The server with this number.
    pub fn get(&self, index: usize) -> Option<&ServerSlot> {
        self.slots.get(index)
    }

    /// The server with this number.
    pub fn get_mut(&mut self, index: usize) -> Option<&mut ServerSlot> {
        self.slots.get_mut(index)
    }

    /// The replica with this number.
    pub fn replica(&self, index: usize) -> Option<&ServerSlot> {
        self.replicas().get(index)
    }

    /// Whether every server has said that it is ready.
    pub fn are_ready(&self) -> bool {
        self.slots.iter().all(|slot| slot.record.is_serving())
    }

    /// What each is of.
    pub fn programs(&self) -> Vec<Rc<Program>> {
        self.slots.iter().map(|slot| slot.program.clone()).collect()
    }

    /// The incarnation of a server that is to be started, and those of all, by number, as they are then.
    pub fn next_epoch(&self, index: usize) -> (u32, Vec<u32>) {
        // Those that have none yet are about to have their first one.
        let epochs = self.slots.iter().map(|slot| slot.record.epoch().max(FIRST_EPOCH));
        let mut epochs: Vec<u32> = epochs.collect();
        let mut own = FIRST_EPOCH;
        if let (Some(epoch), Some(slot)) = (epochs.get_mut(index), self.slots.get(index)) {
            *epoch = slot.record.epoch() + 1;
            own = *epoch;
        }
        (own, epochs)
    }

    /// The next packet of a server; `None`: it is down.
    pub fn receive(
        &self,
        index: usize,
        buffer: &mut [u8],
        descriptors: &mut Vec<OwnedFd>,
    ) -> Option<io::Result<usize>> {
        let control = self.slots.get(index)?.control.as_ref()?;
        Some(control.receive(buffer, descriptors))
    }

    /// Nothing more is to be heard of a server until its process has ended.
    pub fn stop_listening(&self, index: usize) {
        if let Some(control) = self.slots.get(index).and_then(|slot| slot.control.as_ref()) {
            let _ = self.epoll.delete(control);
        }
    }

    /// A server's control socket is closed. Returns what its process was, if that has ended, too; one that
    /// still runs is killed, and its end will be reported with the reason, which this one is only if there is
    /// no other.
    pub fn broke(&self, index: usize) -> Option<Ended> {
        let slot = self.slots.get(index)?;
        let exit = slot.child.as_ref().and_then(|child| child.try_wait().ok().flatten());
        if exit.is_none() && slot.child.is_some() {
            // It still runs, for a moment at least.
            slot.kill();
            self.stop_listening(index);
            return None;
        }
        Some(Ended { pid: slot.pid(), exit })
    }

    /// Tells a server something. One that is down hears all there is to hear when it is started.
    pub fn send(&mut self, index: usize, request: &Request, descriptors: Vec<Rc<OwnedFd>>) -> io::Result<()> {
        self.post(index, request, descriptors)?;
        self.ring(index)
    }

    /// Tells a server something without waking it.
    pub fn post(&mut self, index: usize, request: &Request, descriptors: Vec<Rc<OwnedFd>>) -> io::Result<()> {
        let Some(slot) = self.slots.get_mut(index).filter(|slot| slot.control.is_some()) else { return Ok(()) };
        slot.outbox.push(request.encode().to_vec(), descriptors);
        self.flush(index);
        Ok(())
    }

    /// Tells every server but this one something.
    pub fn tell_others(&mut self, index: usize, request: &Request) -> io::Result<()> {
        self.numbers().filter(|other| *other != index).try_for_each(|other| self.send(other, request, Vec::new()))
    }

    /// A server looks at its socket now and then; this makes that now.
    pub fn ring(&self, index: usize) -> io::Result<()> {
        self.bells.get(index).map_or(Ok(()), |bell| eventfd::ring(&**bell))
    }

    /// Sends what waits for a server, as far as its socket takes it.
    pub fn flush(&mut self, index: usize) {
        let Some(slot) = self.slots.get_mut(index) else { return };
        let Some(control) = &slot.control else { return };
        if slot.outbox.flush(control).is_err() {
            // It hangs or is gone. Ended is ended: the process is not left behind half alive.
            slot.kill();
            return;
        }
        let is_starved = slot.outbox.is_starved();
        let out = if slot.outbox.is_empty() || is_starved { EventFlags::empty() } else { EventFlags::OUT };
        // Gone from the set if the server has closed its end; then there is nothing left to watch.
        let _ = self.epoll.modify(control, SERVER_CONTROL + index as u64, EventFlags::IN | out);
        if is_starved {
            self.retry_at.get_or_insert(clock::now() + RETRY_EVERY);
        }
    }

    /// Sends what the system was short of something for, if it is time.
    pub fn retry(&mut self, now: Instant) -> io::Result<()> {
        if self.retry_at.take_if(|at| now >= *at).is_none() {
            return Ok(());
        }
        for index in self.numbers() {
            if self.slots[index].outbox.is_starved() {
                self.flush(index);
                self.ring(index)?;
            }
        }
        Ok(())
    }

    /// When [`Servers::retry`] is due.
    pub fn retry_due(&self) -> Option<Instant> {
        self.retry_at
    }

    /// A listing of sockets begins: this replica is asked for its own. Returns whether it was; one that does
    /// not hear is not.
    pub fn ask_for_listing(&mut self, index: usize) -> io::Result<bool> {
        let Some(slot) = self.slots.get_mut(index).filter(|slot| slot.record.hears()) else { return Ok(false) };
        slot.lists = true;
        self.send(index, &Request::ListSockets { token: index as u32 }, Vec::new())?;
        Ok(true)
    }

    /// A replica has listed all.
    pub fn has_listed(&mut self, index: usize) {
        if let Some(slot) = self.slots.get_mut(index) {
            slot.lists = false;
        }
    }

    /// When replicas are to be told of sessions of which they have not heard, if there are such.
    pub fn telling_due(&self) -> Option<Instant> {
        self.replicas().iter().any(ServerSlot::takes_more).then_some(self.tell_at)
    }

    /// They were told of some. Not from when it was due: others get their turn in between.
    pub fn told_some(&mut self) {
        self.tell_at = clock::now() + TELL_EVERY;
    }
}

#[cfg(test)]
impl Servers {
    /// A server is as if it had begun to serve now, and had never died.
    pub fn lives_anew(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        let past = atoll_supervisor::Past {
            epoch: slot.record.epoch(),
            crashes: 0,
            moves: 0,
            is_there: true,
            is_ready: true,
            is_leaving: false,
        };
        slot.record = ServerRecord::resume(clock::now(), past);
    }

    /// A server is due at once, which would have to be waited for.
    pub fn is_missing(&mut self, index: usize) {
        self.slots[index].record.left(clock::now());
    }
}

/// How soon what the system was short of something for is tried again.
pub const RETRY_EVERY: Duration = Duration::from_millis(10);
/// How long a replica has for the sessions of which it is told at once.
const TELL_EVERY: Duration = Duration::from_millis(1);
