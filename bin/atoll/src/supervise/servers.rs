//! The servers of the stack, and the messages to them. One list has a slot per server: the replicas first,
//! then those that are no replicas.
//!
//! A slot stays when its process goes; its [`ServerRecord`] has what the supervisor decides about the server.
//! All messages to servers go through here. What a socket does not take waits in its outbox. A server that is
//! down gets no messages: it gets everything it needs when it is started.

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
    /// The number of replicas, which come first.
    replicas: usize,
    epoll: Rc<Epoll>,
    /// The doorbell of each server, by number.
    bells: Vec<Rc<OwnedFd>>,
    /// When to retry sending what could not be sent because the system was short of something.
    retry_at: Option<Instant>,
    /// When replicas are next notified of sessions.
    tell_at: Instant,
}

/// A server, as the supervisor sees it.
pub struct ServerSlot {
    record: ServerRecord,
    /// The build that its process runs, or will run.
    program: Rc<Program>,
    /// The key of a replica's process among those for replicas; `None` while it has none.
    host: Option<usize>,
    /// The server's process, which may have other replicas, too; `None` while it has none, and in tests.
    child: Option<Rc<Child>>,
    /// The supervisor's end of the control socket; `None` while the server is down.
    control: Option<Channel>,
    outbox: Outbox,
    /// Sessions of which the replica was not notified: see `telling.rs`.
    untold: BTreeSet<u32>,
    /// Whether the replica is to list its sockets, and has not listed all.
    lists: bool,
}

/// The process and socket of a server that is not down.
pub struct Employment {
    /// The key of a replica's process among those for replicas.
    pub host: Option<usize>,
    /// The process; `None` in tests.
    pub child: Option<Rc<Child>>,
    /// The supervisor's end of the control socket.
    pub control: Channel,
}

/// A process that has ended.
pub struct Ended {
    /// The pid of the process.
    pub pid: Option<u32>,
    /// The status with which it ended, if known.
    pub exit: Option<Exit>,
}

impl ServerSlot {
    /// Creates the slot of a server that is down.
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

    /// Returns the server's record.
    pub fn record(&self) -> &ServerRecord {
        &self.record
    }

    /// Returns the server's record, to note what has happened.
    pub fn record_mut(&mut self) -> &mut ServerRecord {
        &mut self.record
    }

    /// Returns the build that its process runs, or will run.
    pub fn program(&self) -> &Rc<Program> {
        &self.program
    }

    /// Sets the build of the server's next process.
    pub fn set_program(&mut self, program: Rc<Program>) {
        self.program = program;
    }

    /// Returns the key of a replica's process.
    pub fn host(&self) -> Option<usize> {
        self.host
    }

    /// Returns whether the server has no process, or no connection to it.
    pub fn is_down(&self) -> bool {
        self.control.is_none()
    }

    /// Returns the pid of the server's process.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(|child| child.pid())
    }

    /// Returns the server's process, if it has one of its own.
    pub fn own_child(&self) -> Option<&Rc<Child>> {
        self.child.as_ref().filter(|_| self.host.is_none())
    }

    /// Kills the server's process. The end is noticed as that of others is.
    pub fn kill(&self) {
        if let Some(child) = &self.child {
            let _ = child.kill(Signal::KILL);
        }
    }

    /// Returns what the next supervisor needs: the control socket, and the pidfd of a process of its own.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let control = self.control.as_ref().map(AsFd::as_fd);
        control.into_iter().chain(self.own_child().map(|child| child.pidfd())).collect()
    }

    /// Returns the process and the control socket, by which its end is awaited when the stack ends.
    pub fn employment(&self) -> Option<(&Child, &Channel)> {
        Some((self.child.as_deref()?, self.control.as_ref()?))
    }

    /// Returns whether the replica is to list its sockets, and has not listed all.
    pub fn lists(&self) -> bool {
        self.lists
    }

    /// Returns whether messages to the server wait in the outbox.
    #[cfg(test)]
    pub fn has_waiting(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Returns the sessions of which the replica was not notified.
    pub fn untold(&self) -> &BTreeSet<u32> {
        &self.untold
    }

    /// Sets the sessions of which the replica is to be notified only after it serves.
    pub fn set_untold(&mut self, sessions: BTreeSet<u32>) {
        self.untold = sessions;
    }

    /// Notes that the replica is being notified of a session. Returns whether it had not been notified yet.
    pub fn hear_of(&mut self, session: u32) -> bool {
        self.untold.remove(&session)
    }

    /// Returns whether there are sessions of which the replica is to be notified now. One with a full socket
    /// must read first.
    pub fn takes_more(&self) -> bool {
        self.record.hears() && !self.untold.is_empty() && self.outbox.is_empty()
    }
}

impl Servers {
    /// Creates an empty list for the servers that have these doorbells, the first `replicas` of which are
    /// replicas.
    pub fn new(epoll: Rc<Epoll>, bells: Vec<Rc<OwnedFd>>, replicas: usize) -> Servers {
        Servers { slots: Vec::new(), replicas, epoll, bells, retry_at: None, tell_at: clock::now() }
    }

    /// Adds the next server.
    pub fn install(&mut self, slot: ServerSlot, employment: Option<Employment>) -> io::Result<()> {
        let index = self.slots.len();
        self.slots.push(slot);
        employment.map_or(Ok(()), |employment| self.employ(index, employment))
    }

    /// Gives a server a process, and watches its control socket. On an error it has none.
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

    /// Removes the process of a server. Returns whether it was to list its sockets.
    pub fn dismiss(&mut self, index: usize) -> bool {
        let Some(slot) = self.slots.get_mut(index) else { return false };
        // Processes of replicas are watched elsewhere.
        let child = slot.child.take().filter(|_| slot.host.is_none());
        let control = slot.control.take();
        (slot.host, slot.outbox, slot.untold) = (None, Outbox::default(), BTreeSet::new());
        slot.record.forget_process();
        // The guardian has the descriptors, too, so closing them would not remove them from the epoll set.
        for fd in child.iter().map(|child| (**child).as_fd()).chain(control.iter().map(AsFd::as_fd)) {
            let _ = self.epoll.delete(fd);
        }
        std::mem::take(&mut slot.lists)
    }

    /// Returns the number of servers.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns the numbers of all servers.
    pub fn numbers(&self) -> Range<usize> {
        0..self.slots.len()
    }

    /// Returns the number of replicas.
    pub fn replica_count(&self) -> usize {
        self.slots.len().min(self.replicas)
    }

    /// Returns the numbers of the replicas.
    pub fn replica_numbers(&self) -> Range<usize> {
        0..self.replica_count()
    }

    /// Returns whether this is the number of a replica.
    pub fn is_replica(&self, index: usize) -> bool {
        index < self.replicas
    }

    /// Returns all servers, by number.
    pub fn all(&self) -> &[ServerSlot] {
        &self.slots
    }

    /// Returns the replicas.
    pub fn replicas(&self) -> &[ServerSlot] {
        &self.slots[..self.replica_count()]
    }

    /// Returns the servers that are no replicas.
    pub fn others(&self) -> &[ServerSlot] {
        &self.slots[self.replica_count()..]
    }

    /// Returns the server with this number.
    pub fn get(&self, index: usize) -> Option<&ServerSlot> {
        self.slots.get(index)
    }

    /// Returns the server with this number.
    pub fn get_mut(&mut self, index: usize) -> Option<&mut ServerSlot> {
        self.slots.get_mut(index)
    }

    /// Returns the replica with this number.
    pub fn replica(&self, index: usize) -> Option<&ServerSlot> {
        self.replicas().get(index)
    }

    /// Returns whether every server has reported that it is ready.
    pub fn are_ready(&self) -> bool {
        self.slots.iter().all(|slot| slot.record.is_serving())
    }

    /// Returns the build of each server.
    pub fn programs(&self) -> Vec<Rc<Program>> {
        self.slots.iter().map(|slot| slot.program.clone()).collect()
    }

    /// Returns the incarnation of a server that is to be started, and those that all servers, by number, have
    /// then.
    pub fn next_epoch(&self, index: usize) -> (u32, Vec<u32>) {
        // Servers that have no incarnation yet are about to have their first one.
        let epochs = self.slots.iter().map(|slot| slot.record.epoch().max(FIRST_EPOCH));
        let mut epochs: Vec<u32> = epochs.collect();
        let mut own = FIRST_EPOCH;
        if let (Some(epoch), Some(slot)) = (epochs.get_mut(index), self.slots.get(index)) {
            *epoch = slot.record.epoch() + 1;
            own = *epoch;
        }
        (own, epochs)
    }

    /// Receives the next packet of a server; returns `None` if the server is down.
    pub fn receive(
        &self,
        index: usize,
        buffer: &mut [u8],
        descriptors: &mut Vec<OwnedFd>,
    ) -> Option<io::Result<usize>> {
        let control = self.slots.get(index)?.control.as_ref()?;
        Some(control.receive(buffer, descriptors))
    }

    /// Stops watching the control socket of a server until its process has ended.
    pub fn stop_listening(&self, index: usize) {
        if let Some(control) = self.slots.get(index).and_then(|slot| slot.control.as_ref()) {
            let _ = self.epoll.delete(control);
        }
    }

    /// Handles the end of a server's control socket. Returns the process if that has ended, too. A process
    /// that still runs is killed, and its end is reported later with the reason.
    pub fn broke(&self, index: usize) -> Option<Ended> {
        let slot = self.slots.get(index)?;
        let exit = slot.child.as_ref().and_then(|child| child.try_wait().ok().flatten());
        if exit.is_none() && slot.child.is_some() {
            // It still runs, at least for a moment.
            slot.kill();
            self.stop_listening(index);
            return None;
        }
        Some(Ended { pid: slot.pid(), exit })
    }

    /// Sends a message to a server and wakes it. One that is down gets everything it needs when it is
    /// started.
    pub fn send(&mut self, index: usize, request: &Request, descriptors: Vec<Rc<OwnedFd>>) -> io::Result<()> {
        self.post(index, request, descriptors)?;
        self.ring(index)
    }

    /// Sends a message to a server without waking it.
    pub fn post(&mut self, index: usize, request: &Request, descriptors: Vec<Rc<OwnedFd>>) -> io::Result<()> {
        let Some(slot) = self.slots.get_mut(index).filter(|slot| slot.control.is_some()) else {
            return Ok(());
        };
        slot.outbox.push(request.encode().to_vec(), descriptors);
        self.flush(index);
        Ok(())
    }

    /// Sends a message to every server but this one.
    pub fn tell_others(&mut self, index: usize, request: &Request) -> io::Result<()> {
        self.numbers()
            .filter(|other| *other != index)
            .try_for_each(|other| self.send(other, request, Vec::new()))
    }

    /// Wakes a server, so that it reads its control socket at once.
    pub fn ring(&self, index: usize) -> io::Result<()> {
        self.bells.get(index).map_or(Ok(()), |bell| eventfd::ring(&**bell))
    }

    /// Sends the messages that wait for a server, as far as its socket takes them. On an error its process is
    /// killed.
    pub fn flush(&mut self, index: usize) {
        let Some(slot) = self.slots.get_mut(index) else { return };
        let Some(control) = &slot.control else { return };
        if slot.outbox.flush(control).is_err() {
            // It hangs or is gone. Killing it ensures that no part of it stays alive.
            slot.kill();
            return;
        }
        let is_starved = slot.outbox.is_starved();
        let out = if slot.outbox.is_empty() || is_starved { EventFlags::empty() } else { EventFlags::OUT };
        // This fails if the server has closed its end; then there is nothing left to watch.
        let _ = self.epoll.modify(control, SERVER_CONTROL + index as u64, EventFlags::IN | out);
        if is_starved {
            self.retry_at.get_or_insert(clock::now() + RETRY_EVERY);
        }
    }

    /// Retries, if it is time, to send what could not be sent because the system was short of something.
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

    /// Returns when [`Servers::retry`] is due.
    pub fn retry_due(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Asks a replica for its sockets. Returns whether it was asked; one that reads no messages is not.
    pub fn ask_for_listing(&mut self, index: usize) -> io::Result<bool> {
        let Some(slot) = self.slots.get_mut(index).filter(|slot| slot.record.hears()) else {
            return Ok(false);
        };
        slot.lists = true;
        self.send(index, &Request::ListSockets { token: index as u32 }, Vec::new())?;
        Ok(true)
    }

    /// Notes that a replica has listed all of its sockets.
    pub fn has_listed(&mut self, index: usize) {
        if let Some(slot) = self.slots.get_mut(index) {
            slot.lists = false;
        }
    }

    /// Returns when replicas are to be notified of sessions, if there are any to notify of.
    pub fn telling_due(&self) -> Option<Instant> {
        self.replicas().iter().any(ServerSlot::takes_more).then_some(self.tell_at)
    }

    /// Notes that replicas were notified of some sessions. The time counts from now, so that others get their
    /// turn in between.
    pub fn told_some(&mut self) {
        self.tell_at = clock::now() + TELL_EVERY;
    }
}

#[cfg(test)]
impl Servers {
    /// Makes a server one that has begun to serve now, and has never died.
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

    /// Makes a server due at once, without the delay after a death.
    pub fn is_missing(&mut self, index: usize) {
        self.slots[index].record.left(clock::now());
    }
}

/// The time after which sending is retried when the system was short of something.
pub const RETRY_EVERY: Duration = Duration::from_millis(10);
/// How long a replica has for the sessions of which it is notified at once.
const TELL_EVERY: Duration = Duration::from_millis(1);
