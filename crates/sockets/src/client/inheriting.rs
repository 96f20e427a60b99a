//! What becomes of sockets when a process forks, executes another program, or receives a socket from another
//! process.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use atoll_base::Slab;
use atoll_ipc::Command;

use super::Client;
use super::exec_state::{ExecState, Inherited, PassedSocket, SessionState, SocketState};
use super::object::{Body, Kind, Object, Owner, Place, Socket};
use super::platform::Platform;
use super::questions::Answer;
use super::session::Session;
use crate::asking::Asking;
use crate::options::Name;
use crate::watch::Watches;

/// A socket without a slot that another process has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassedPort {
    /// This process had the socket before.
    Back(u32),
    /// The socket is new here. If it has a port, the port is to be asked for
    /// ([`Client::ask_for_passed_port`]); a listener has to listen here as well, as in a forked child
    /// ([`Client::start_listening`]).
    New(u32),
}

impl<P: Platform> Client<P> {
    /// Returns the objects that a child, or the next program, has to hold: those that have a port or a slot.
    pub fn held(&self) -> Vec<u32> {
        self.objects.indices().into_iter().filter(|object| self.is_held(*object)).collect()
    }

    /// Returns whether an object has a port or a slot. Connections of a stack that is gone have none.
    pub fn is_held(&self, object: u32) -> bool {
        self.socket(object).is_some_and(|socket| {
            socket.lease != 0 || !socket.places().is_empty() && !self.is_of_gone_stack(socket)
        })
    }

    /// Makes a member of a session a holder of a slot. The session is shared from now on: the whole family
    /// sleeps on its doorbell.
    pub fn add_holder(&mut self, place: Place, member: u8) -> bool {
        if self.share(place.session).is_none() {
            return false;
        }
        let Some(slot) = self.slot_of(place) else { return false };
        slot.add_holder(member);
        slot.set_bell(0);
        true
    }

    /// Shares a session with other processes from now on: its sockets ring the doorbell of the family.
    /// Threads that slept before look once more, because they do not listen to that doorbell yet.
    pub(super) fn share(&mut self, session: usize) -> Option<()> {
        let was_shared = core::mem::replace(&mut self.sessions.get_mut(session)?.shared, true);
        if !was_shared {
            self.ring(self.sleepers.all());
        }
        Some(())
    }

    /// Undoes [`Client::add_holder`].
    pub fn remove_holder(&self, place: Place, member: u8) {
        if let Some(slot) = self.slot_of(place) {
            slot.remove_holder(member);
        }
    }

    /// Forgets the threads of the parent after a fork: the child has one thread. Sleeping calls and due
    /// signals are forgotten, too, because owners of inherited sockets get signals from the parent. Objects
    /// that only such a call has kept open are closed by [`Client::become_child`].
    pub fn forget_threads(&mut self) {
        self.owned.clear();
        self.signals.clear();
        self.urgent_bell = 0;
        self.sleepers.clear();
        self.questions.clear();
        self.sessions.iter_mut().for_each(Session::forget_waiting);
        for object in self.objects.indices() {
            let Some(entry) = self.objects.get_mut(object) else { continue };
            entry.pins = 0;
            if let Body::Epoll(set) = &mut entry.body {
                set.sleepers = 0;
            }
        }
    }

    /// Turns the client into that of the child of a fork, and drops everything of the parent that the child
    /// does not share. `own` is the child's own session; `joined` has the child's view of the parent's
    /// sessions, with their index there. Returns the parent's sessions, whose memory the child lets go of.
    pub fn become_child(
        &mut self,
        own: (Session<P>, P::Clock, u64),
        joined: Vec<(usize, Session<P>)>,
    ) -> Vec<Session<P>> {
        let parents = core::mem::take(&mut self.sessions);
        let (session, clock, seed) = own;
        self.adopt(session, clock, seed);
        let (mut index_of, joined): (Vec<usize>, Vec<Session<P>>) = joined.into_iter().unzip();
        self.sessions.extend(joined);
        let parents = self.keep_ended(parents, &mut index_of);
        self.inherited.clear();
        // Sockets that the parent has passed on are the parent's to hold.
        self.passed.clear();
        for object in self.objects.indices() {
            self.inherit(object, &index_of);
            // Only a call of a thread that is not here kept the object open.
            if self.objects.get(object).is_some_and(|entry| entry.descriptors == 0) {
                self.close_object(object);
            }
        }
        parents
    }

    /// Keeps those of a parent's sessions that are over, for which nobody has to be asked, and adds the index
    /// that each had to `index_of`. Returns the others.
    fn keep_ended(&mut self, sessions: Vec<Session<P>>, index_of: &mut Vec<usize>) -> Vec<Session<P>> {
        let mut others = Vec::new();
        for (index, session) in sessions.into_iter().enumerate() {
            if session.is_over() {
                self.sessions.push(session);
                index_of.push(index);
            } else {
                others.push(session);
            }
        }
        others
    }

    fn inherit(&mut self, object: u32, index_of: &[usize]) {
        let Some(socket) = self.socket_mut(object) else { return };
        let mut known = true;
        for place in socket.places_mut() {
            match index_of.iter().position(|index| *index == place.session) {
                Some(at) => place.session = at + 1,
                None => known = false,
            }
        }
        let mut is_listening = false;
        if let Kind::Listening(listener) = &mut socket.kind {
            listener.offers.clear();
            (listener.claimed, listener.verdict, listener.accepting) = (None, None, 0);
            (listener.asking, listener.is_late) = (Asking::default(), false);
            is_listening = true;
        }
        let places = socket.places().to_vec();
        self.listeners_idle |= is_listening;
        let is_over = self.socket(object).is_some_and(|socket| self.is_of_gone_stack(socket));
        if known && !places.is_empty() && !is_over {
            self.inherited.push(object);
            places.iter().for_each(|place| self.set_user(*place, object));
        }
    }

    /// Returns the commands by which a next process registers the port of an object in its own session, at
    /// `replicas` replicas, and listens there if the object does: each with its replica. Commands for one
    /// replica have an order; those for several do not depend on each other. A command with a token has
    /// `token`, and is answered.
    pub fn registration(&self, object: u32, replicas: usize, token: u32) -> Vec<(usize, Command)> {
        let Some(socket) = self.socket(object).filter(|socket| socket.lease != 0) else { return Vec::new() };
        let name = (socket.lease, socket.local);
        let authority = usize::from(socket.local.port) % replicas.max(1);
        let mut commands = Vec::from([(authority, socket.bind_again(token))]);
        let Kind::Listening(listener) = &socket.kind else { return commands };
        for replica in (0..replicas).map(|i| (authority + i) % replicas) {
            commands.extend(socket.show(replica, replicas).map(|show| (replica, show)));
            commands.push((replica, socket.listen(name, listener.backlog)(token)));
        }
        commands
    }

    /// Returns the state that the next program needs to continue with `sockets`: pairs of a descriptor there
    /// and an object here. `control` and `sessions` are what it has of the stack, its own session first;
    /// `joined` has the index that each of the others has here.
    pub fn exec_state(
        &self,
        control: i32,
        sessions: Vec<SessionState>,
        joined: &[usize],
        sockets: &[(i32, u32)],
    ) -> ExecState {
        let mut by_object: BTreeMap<u32, Vec<i32>> = BTreeMap::new();
        for (descriptor, object) in sockets {
            by_object.entry(*object).or_default().push(*descriptor);
        }
        let index_there = |session| joined.iter().position(|index| *index == session).map_or(0, |at| at + 1);
        let there = |place: Place| Place { session: index_there(place.session), ..place };
        let written = |(object, descriptors)| {
            let socket = SocketState::of(self.socket(object)?, self.description(object), there);
            Some(Inherited { socket, descriptors })
        };
        ExecState { control, sessions, sockets: by_object.into_iter().filter_map(written).collect() }
    }

    /// Continues with the sockets of the program before. `own` is this program's own session, `joined` are
    /// the others of [`ExecState::sessions`]. Returns each descriptor with its object.
    pub fn take_exec_state(
        &mut self,
        own: (Session<P>, P::Clock, u64),
        joined: Vec<Session<P>>,
        sockets: Vec<Inherited>,
    ) -> Vec<(i32, u32)> {
        let (session, clock, seed) = own;
        self.adopt(session, clock, seed);
        for mut session in joined {
            session.shared = true;
            self.add_session(session);
        }
        let mut all = Vec::new();
        for Inherited { socket, descriptors } in sockets {
            let object = self.insert_inherited(socket.into_object(descriptors.len() as u32));
            all.extend(descriptors.into_iter().map(|descriptor| (descriptor, object)));
        }
        all
    }

    /// Returns the state that the receiver of a socket needs to continue with it; `None` for a socket that
    /// cannot be passed. This process holds the socket, even after closing it, until the receiver has it.
    pub fn pass(&mut self, object: u32) -> Option<PassedSocket> {
        // Without a slot there is nothing to hold: the receiver asks for the port, and listens for itself.
        if !self.socket(object)?.places().is_empty() {
            self.before_passing(object)?;
        }
        let (socket, description) = (self.socket(object)?, self.description(object));
        let session = self.sessions.get(socket.places().first().map_or(0, |place| place.session))?;
        let socket = SocketState::of(socket, description, |place| Place { session: 0, ..place });
        Some(PassedSocket { session: session.id, key: session.key, socket: socket.without_corked() })
    }

    /// Returns the index of a session by its number.
    pub fn session_of(&self, id: u32) -> Option<usize> {
        self.sessions.iter().position(|session| session.id == id && !session.is_over())
    }

    /// Takes a connection or a datagram socket that another process has sent, whose session this process has
    /// joined. Returns its object, which one more descriptor names; `None` if the place is forged.
    pub fn take_passed(&mut self, passed: PassedSocket) -> Option<u32> {
        let index = self.session_of(passed.session)?;
        let session = &self.sessions[index];
        // Without the key a sender could name any socket of the receiver's own session.
        let is_there = |place: &Place| session.has(place);
        if session.key != passed.key || !passed.socket.places().iter().all(is_there) {
            return None;
        }
        let mut socket = passed.socket;
        // The receiver asks for the port later: `ask_for_passed_port`.
        socket.move_to(index);
        let place = *socket.places().first()?;
        // A socket that has come back is this process's own again, which must not let go of it any more.
        self.passed.retain(|(held, _)| !socket.places().contains(held));
        socket.places().iter().for_each(|place| self.receive_passed(*place));
        if index == 0 {
            // The socket may have come back to its sender: this is as if it had been duplicated.
            let user = self.sessions[index].replicas()[place.replica].user(place.slot);
            if self.name_again(user).is_some() {
                return Some(user);
            }
        }
        Some(self.insert_inherited(socket.into_object(1)))
    }

    /// Takes a socket without a slot that another process has sent: a listener, one that is bound, or a new
    /// one. Returns its object, which one more descriptor names; `None` if there can be no such socket.
    pub fn take_passed_port(&mut self, passed: PassedSocket) -> Option<PassedPort> {
        let socket = passed.socket;
        if !socket.places().is_empty() || socket.is_listening() && socket.lease() == 0 {
            return None;
        }
        if let Some(user) = self.holder_of(socket.lease()) {
            // It has come back to where it was sent: as if it had been duplicated.
            return self.name_again(user).map(|()| PassedPort::Back(user));
        }
        Some(PassedPort::New(self.insert_inherited(socket.into_object(1))))
    }

    fn name_again(&mut self, object: u32) -> Option<()> {
        self.objects.get_mut(object)?.descriptors += 1;
        Some(())
    }

    /// Returns what a socket's open file description says: whether calls wait, and who gets SIGURG.
    fn description(&self, object: u32) -> (bool, Owner) {
        let owner = self.object(object).map_or(Owner::default(), |entry| entry.owner);
        (self.is_nonblocking(object), owner)
    }

    /// Has this process, which is `id`, send itself SIGURG for inherited sockets whose owner it is: it was
    /// their owner before execve(2), too. Other owners hear of urgent octets from the process that has set
    /// them, as long as that goes on. Returns whether there are such sockets.
    pub fn resume_owner(&mut self, id: i32) -> bool {
        for object in self.objects.indices() {
            if let Some(owner) = self.object(object).map(|entry| entry.owner).filter(|owner| owner.id == id) {
                self.set_owner(object, owner);
            }
        }
        !self.owned.is_empty()
    }

    /// Stores a socket that came from another process; its slots are polled.
    pub(super) fn insert_inherited(&mut self, object: Object<P>) -> u32 {
        let (mut places, mut listening_at) = (Vec::new(), None);
        if let Body::Socket(socket) = &object.body {
            places = socket.places().to_vec();
            listening_at = matches!(socket.kind, Kind::Listening(_)).then_some(socket.lease);
        }
        let number = self.objects.insert(object);
        if let Some(lease) = listening_at {
            self.listeners.push((lease, number));
        }
        if !places.is_empty() {
            self.inherited.push(number);
            places.iter().for_each(|place| self.set_user(*place, number));
        }
        number
    }

    /// Returns the object that holds a port under a lease.
    pub fn holder_of(&self, lease: u64) -> Option<u32> {
        let holds = |object: &u32| self.socket(*object).is_some_and(|socket| socket.lease == lease);
        if lease == 0 { None } else { self.objects.indices().into_iter().find(holds) }
    }

    /// Asks the authority for the port of a received socket, under the lease that its sender has. Returns the
    /// token of the answer, after which [`Client::finish_passed_port`] is called; `None` if the socket has no
    /// port, or nobody can have it.
    ///
    /// The received data may be forged by a process without a right to a port, for a process that has one. So
    /// the request is for no more than an existing lease. Low ports are refused without a lease, because the
    /// request shows no pass; the port of a listener or datagram socket has to be in use; and without the
    /// options that let several sockets have it only a holder of the lease gets it.
    pub fn ask_for_passed_port(&mut self, object: u32, lease: u64) -> Option<u32> {
        let replicas = self.replicas();
        let (socket, session) = (self.socket(object)?, self.own()?);
        let (local, protocol) = (socket.local, socket.protocol);
        let is_there = match socket.kind {
            Kind::Listening(_) => session.has_port(false, local.port),
            Kind::Datagram(_) => session.has_port(true, local.port),
            Kind::Fresh => false,
            Kind::Bound | Kind::Stream(..) => true,
        };
        if lease == 0 || !is_there {
            return None;
        }
        let (v6_only, device) = (socket.options.is_on(Name::V6Only), socket.options.device());
        let bind = |token| Command::Bind {
            token,
            lease,
            protocol,
            local,
            reuse_addr: false,
            reuse_port: false,
            v6_only,
            device,
        };
        self.ask_one(usize::from(local.port) % replicas.max(1), &[], bind).ok()
    }

    /// Notes that the authority has made this process a holder of a received socket's port.
    pub fn finish_passed_port(&mut self, object: u32, lease: u64, answer: &Answer) {
        if let Some(socket) = self.socket_mut(object) {
            (socket.lease, socket.voucher) = (lease, answer.voucher);
        }
    }

    /// Drops all sessions and everything on them, because the stack cannot be joined any more.
    pub fn drop_all(&mut self) {
        self.passed.clear();
        self.objects = Slab::new();
        self.watches = Watches::new();
        self.listeners.clear();
        self.inherited.clear();
        self.sessions.clear();
    }

    /// Drops the sessions of a parent of which this process has no socket.
    pub fn drop_sessions(&mut self) {
        let (all, mut index_of) = (core::mem::take(&mut self.sessions), Vec::new());
        self.keep_ended(all, &mut index_of);
        for object in self.objects.indices() {
            let places = self.socket_mut(object).map(Socket::places_mut).unwrap_or_default();
            for place in places {
                place.session = index_of.iter().position(|index| *index == place.session).unwrap_or(0);
            }
        }
    }
}
