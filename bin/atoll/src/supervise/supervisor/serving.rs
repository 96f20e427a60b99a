//! Handles the requests of clients. Applications attach to sessions and leave them; requests of the command
//! line concern the stack as a whole.
//!
//! ```text
//!   clients (applications, command line, other stacks) --requests--> books of sessions --packets--> replicas
//!                                                      <--replies--                    <--rows----
//! ```

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use atoll_ipc::arena::ArenaConfig;
use atoll_ipc::control::{MemoryLevel, Refusal, Reply, Request};
use atoll_ipc::lease::Pass;
use atoll_supervisor::{
    Admission, BalanceRules, CliRequest, ClientId, Component, Departure, Door, Incoming, Joined, ReportPart,
    classify,
};
use atoll_sys::epoll::EventFlags;
use atoll_sys::process;
use atoll_sys::unix::{Blocking, Channel, Peer};
use atoll_transport::seal_pass;

use super::Supervisor;
use crate::supervise::clients::{Client, Heard, REQUEST_MAX};
use crate::supervise::ending::{Ending, Role};
use crate::supervise::memory::SessionMemory;

impl Supervisor {
    /// Accepts connections at a door.
    pub(super) fn accept(&mut self, door: Door) -> io::Result<()> {
        for _ in 0..ACCEPTS_PER_TURN {
            let channel = match self.gate.accept(door) {
                Ok(channel) => channel,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                    // An idle client makes room. Without one, the new client sees its connection close,
                    // instead of waiting for an answer that cannot come.
                    match self.clients.oldest_stranger(|id| self.is_awaited(id)) {
                        Some(stranger) => self.close_client(stranger)?,
                        None => {
                            self.starts.release();
                            let _ = self.gate.accept(door);
                            self.starts.refill();
                        }
                    }
                    return Ok(());
                }
                // The client went away meanwhile, or the system is short of something.
                Err(_) => return Ok(()),
            };
            let Ok(peer) = channel.peer() else { continue };
            let permitted = self.gate.may_attach(peer);
            let verdict = self.clients.judge(peer, |id| self.is_awaited(id));
            if !permitted || verdict == Admission::Refuse {
                let reason = if permitted { Refusal::Resources } else { Refusal::Permission };
                let _ = channel.send(&Reply::Refused { reason }.encode(), &[]);
                continue;
            }
            if let Admission::TakeInsteadOf(stranger) = verdict {
                self.close_client(stranger)?;
            }
            if let Err(channel) = self.admit(channel, door, peer) {
                let _ = channel.send(&Reply::Refused { reason: Refusal::Resources }.encode(), &[]);
            }
        }
        Ok(())
    }

    /// Returns whether a client waits for an operation that takes time: an upgrade, or a move of replicas.
    fn is_awaited(&self, id: ClientId) -> bool {
        let of_upgrade = self.succession.as_ref().is_some_and(|upgrade| upgrade.client() == id);
        of_upgrade || self.course.exchange_for() == Some(id) || self.placement.asking().contains(&id)
    }

    /// Adds a client and watches its connection. Returns the connection if that is impossible.
    fn admit(&mut self, channel: Channel, door: Door, peer: Peer) -> Result<ClientId, Channel> {
        let id = self.clients.admit(channel, door, peer)?;
        self.note_standing(id);
        self.note_client(id);
        Ok(id)
    }

    /// Notes that the process that has this connection may begin sessions from now on.
    fn let_in(&mut self, id: ClientId) {
        if self.clients.let_in(id) {
            self.note_client(id);
        }
    }

    /// Notes whether this client is in a session now.
    fn note_standing(&mut self, id: ClientId) {
        self.clients.note_standing(id, self.books.has(id));
    }

    /// Handles a client's requests, sends what waits for it, or handles its end.
    pub(super) fn client_spoke(&mut self, id: ClientId, flags: EventFlags) -> io::Result<()> {
        if flags.contains(EventFlags::OUT) {
            self.clients.flush(id)?;
        }
        let is_gone = flags.intersects(EventFlags::HUP | EventFlags::ERR);
        let mut buffer = [0; REQUEST_MAX];
        for _ in 0..REQUESTS_PER_TURN {
            match self.clients.hear(id, is_gone, &mut buffer) {
                Heard::Nothing => return Ok(()),
                Heard::Gone => return self.close_client(id),
                Heard::Malformed => self.clients.refuse(id, Refusal::Malformed)?,
                Heard::Request { len, asks, descriptors } => {
                    let packet = &buffer[..len];
                    if self.clients.is_too_fast(id, asks, packet) {
                        return self.clients.flush(id);
                    }
                    self.handle_packet(id, asks, packet, descriptors)?;
                    self.clients.handled(id);
                }
            }
        }
        Ok(())
    }

    fn handle_packet(
        &mut self,
        id: ClientId,
        asks: Option<Peer>,
        packet: &[u8],
        descriptors: usize,
    ) -> io::Result<()> {
        let Some((door, peer)) = self.clients.begin_request(id, asks, packet) else { return Ok(()) };
        match classify(door, packet, descriptors) {
            // The process that asks now counts, and not the process that connected, unless a session was
            // begun over the connection: an admitted process remains admitted, whatever user it becomes.
            Ok(Incoming::Application(
                Request::Attach { .. } | Request::Connect | Request::ListSockets { .. },
            )) if !self.is_let_in(id) && !asks.is_some_and(|asks| self.gate.may_attach(asks)) => {
                self.clients.refuse(id, Refusal::Permission)
            }
            Ok(Incoming::Application(Request::Attach { layout_version, room_mib })) => {
                self.attach(id, layout_version, room_mib)
            }
            Ok(Incoming::Application(Request::Connect)) => self.connect(id, asks.unwrap_or(peer)),
            Ok(Incoming::Application(Request::ListSockets { .. })) => self.ask_for_listing(id),
            // The key is the right: a process that has inherited sockets continues to use them, as with the
            // kernel's.
            Ok(Incoming::Application(Request::Join { session, key })) => self.join(id, session, key),
            Ok(Incoming::Application(Request::Vouch { lease, protocol, port })) => {
                let Some(asks) = asks else { return self.clients.refuse(id, Refusal::Permission) };
                let port = if self.gate.may_bind(&asks, protocol, port) { port } else { 0 };
                let pass = Pass { lease, uid: asks.uid, protocol, port };
                let reply = Reply::Vouched { pass, seal: seal_pass(&self.memory.lease_key, &pass) };
                self.clients.reply(id, &reply, Vec::new())
            }
            Ok(Incoming::Application(Request::Leave { session })) => {
                let departure = self.books.leave(id, session);
                self.note_standing(id);
                self.announce(departure)
            }
            Ok(Incoming::Cli(_)) if !self.gate.may_administer(peer, asks) => {
                let who = asks.map_or("somebody".into(), |asks| format!("user {}", asks.uid));
                self.clients.answer(id, &ReportPart::Error(format!("{who} may not administer this stack")))
            }
            Ok(Incoming::Cli(request)) => self.handle_cli(id, &request),
            Err(reason) if packet.first() == Some(&b'{') => {
                self.clients.answer(id, &ReportPart::Error(reason.to_string()))
            }
            Ok(Incoming::Application(_)) | Err(_) => self.clients.refuse(id, Refusal::Malformed),
        }
    }

    fn is_let_in(&self, id: ClientId) -> bool {
        self.clients.get(id).is_some_and(Client::is_let_in)
    }

    /// Makes another connection for a process that cannot connect by a path. The new connection admits the
    /// processes that this one admits.
    fn connect(&mut self, id: ClientId, peer: Peer) -> io::Result<()> {
        let made = Channel::pair(Blocking::Yes).and_then(|(ours, theirs)| {
            ours.set_nonblocking()?;
            Channel::refuse_descriptors(&ours)?;
            Channel::ask_for_senders(&ours)?;
            Ok((ours, OwnedFd::from(theirs)))
        });
        let Ok((ours, theirs)) = made else { return self.clients.refuse(id, Refusal::Resources) };
        match self.clients.judge(peer, |other| other == id || self.is_awaited(other)) {
            Admission::Take => {}
            Admission::TakeInsteadOf(stranger) => self.close_client(stranger)?,
            Admission::Refuse => return self.clients.refuse(id, Refusal::Resources),
        }
        let Ok(another) = self.admit(ours, Door::Applications, peer) else {
            return self.clients.refuse(id, Refusal::Resources);
        };
        if self.is_let_in(id) {
            self.let_in(another);
        }
        self.clients.reply(id, &Reply::Connected, vec![Rc::new(theirs)])
    }

    fn attach(&mut self, id: ClientId, layout_version: u32, room_mib: u32) -> io::Result<()> {
        let is_full = self.gauge.as_ref().is_some_and(|gauge| gauge.level() == MemoryLevel::High);
        if is_full || !self.has_room() {
            return self.clients.refuse(id, Refusal::Resources);
        }
        let mut key = [0; 8];
        process::random(&mut key)?;
        let joined = match self.books.attach(id, layout_version, u64::from_ne_bytes(key)) {
            Ok(joined) => joined,
            Err(reason) => return self.clients.refuse(id, reason),
        };
        // The process that asks now need not be the one that connected.
        let Some(peer) = self.clients.get(id).map(Client::asks) else { return Ok(()) };
        let (user, config) = (self.gate.user_of(&peer), self.arena_within(room_mib));
        let memory = match SessionMemory::create(peer.pid, user, self.servers.replica_count(), config) {
            Ok(memory) => memory,
            Err(_) => {
                // No replica was notified of the session, so none has to be notified of its end.
                let _ = self.books.leave(id, joined.session);
                return self.clients.refuse(id, Refusal::Resources);
            }
        };
        let opened = memory.opened(joined.session);
        for index in self.servers.replica_numbers() {
            // The replica need not be awaited: it reads this before it can see a command in the arena's ring.
            self.servers.send(index, &opened, memory.for_replica(index))?;
        }
        self.books.opened(joined.session, memory);
        let (session, pid) = (joined.session, peer.pid);
        event!(session_opened, { session, pid }, "session {session} is that of process {pid}");
        self.note_standing(id);
        self.let_in(id);
        self.persisted.note_session(joined.session, &self.books, true);
        self.note_stack();
        self.welcome(id, joined)
    }

    /// Returns the sizes of arenas that together take no more than this number of MiB of an application's
    /// address space; 0 means any number.
    fn arena_within(&self, room_mib: u32) -> ArenaConfig {
        let arena = self.config.sessions.arena;
        match room_mib {
            0 => arena,
            room => arena.within(((room as usize) << 20) / self.servers.replica_count().max(1)),
        }
    }

    /// Returns whether there are descriptors for one more session. If not, ended sessions are given up first,
    /// the oldest before others.
    fn has_room(&mut self) -> bool {
        let shared = self.placement.most_in_one();
        while !self.starts.has_room(self.books.with_memory(), self.clients.len(), shared) {
            let Some(oldest) = self.books.give_up_oldest() else { return false };
            self.note_session(oldest);
        }
        true
    }

    fn join(&mut self, id: ClientId, session: u32, key: u64) -> io::Result<()> {
        match self.books.join(id, session, key) {
            Ok(joined) => {
                self.note_standing(id);
                self.note_session(session);
                self.welcome(id, joined)
            }
            Err(reason) => self.clients.refuse(id, reason),
        }
    }

    fn welcome(&mut self, id: ClientId, joined: Joined) -> io::Result<()> {
        let Some(memory) = self.books.open(joined.session) else { return Ok(()) };
        let reply = Reply::Joined {
            session: joined.session,
            key: joined.key,
            member: joined.member,
            replicas: self.config.replicas(),
            config: memory.config(),
        };
        let descriptors = memory.for_application(&self.memory);
        self.clients.reply(id, &reply, descriptors)
    }

    fn handle_cli(&mut self, id: ClientId, request: &CliRequest) -> io::Result<()> {
        match request {
            CliRequest::Status => self.ask_for_report(id),
            CliRequest::Ss => self.ask_for_listing(id),
            CliRequest::Balance(changes) => self.balance(id, changes),
            CliRequest::Scale { processes } => self.scale(id, *processes),
            CliRequest::Move { replicas, to } => self.relocate(id, replicas, *to),
            CliRequest::Upgrade { path } => self.begin_upgrade(id, path),
            CliRequest::Down => {
                self.course.end(Ending::Asked);
                self.note_stack();
                self.clients.answer(id, &ReportPart::Done(true))
            }
            CliRequest::JoinLink { from, layout_version } => {
                let hosted = self.link.hosted(&self.config);
                match hosted
                    .and_then(|link| link.join(&self.config, &self.memory.stack, from, *layout_version))
                {
                    Ok((packet, descriptors)) => {
                        self.clients.set_guest(id);
                        self.clients.send(id, packet, descriptors)
                    }
                    Err(reason) => self.clients.answer(id, &ReportPart::Error(reason.to_string())),
                }
            }
        }
    }

    fn balance(&mut self, id: ClientId, changes: &BalanceRules) -> io::Result<()> {
        match self.config.accept.changed(changes) {
            Ok(accept) => {
                self.config.accept = accept;
                if *changes != BalanceRules::default() {
                    self.note_stack();
                    self.spread_balance()?;
                }
                self.clients.answer(id, &ReportPart::Balance(self.config.accept.told()))?;
            }
            Err(error) => return self.clients.answer(id, &ReportPart::Error(error.to_string())),
        }
        self.clients.answer(id, &ReportPart::Done(true))
    }

    /// Sends the rules of balancing to every connection manager.
    pub(super) fn spread_balance(&mut self) -> io::Result<()> {
        let rules = self.config.accept.rules();
        let plan = self.config.notation.plan();
        for index in plan.servers_of(Component::Cm) {
            self.servers.send(index, &Request::Balance { rules }, Vec::new())?;
        }
        Ok(())
    }

    /// Notifies every replica of members and sessions that are gone, and drops the memory of closed sessions.
    pub(super) fn announce(&mut self, departures: impl IntoIterator<Item = Departure>) -> io::Result<()> {
        for departure in departures {
            let request = match departure {
                Departure::Member { session, member } => Request::MemberGone { session, member },
                Departure::Session { session } => {
                    if let Some(oldest) = self.books.end(session, self.servers.replica_count()) {
                        self.note_session(oldest);
                    }
                    event!(session_ended, { session }, "session {session} has ended");
                    Request::SessionGone { session }
                }
            };
            let (Departure::Member { session, .. } | Departure::Session { session }) = departure;
            for index in self.servers.replica_numbers() {
                self.tell_of(index, session, &request)?;
            }
            self.note_session(session);
        }
        Ok(())
    }

    /// Cuts off a session that servers have died of: no replica reads its rings any more, and it ends. Its
    /// programs live on, with sockets that fail.
    pub(super) fn cut_off(&mut self, index: usize, session: u32) -> io::Result<()> {
        let Some(pid) = self.books.open(session).map(|memory| memory.pid) else { return Ok(()) };
        let role = Role::of(&self.config.notation.plan(), index);
        event!(
            session_cut_off,
            { session, pid, role = role.kind(), index = role.number() },
            "session {session} (pid {pid}) is cut off: {role} has died again and again at work for it"
        );
        for replica in self.servers.replica_numbers() {
            self.tell_now(replica, session)?;
            self.servers.send(replica, &Request::CutOff { session }, Vec::new())?;
        }
        let members: Vec<ClientId> = self.books.members(session).map(|(_, client)| client).collect();
        for client in members {
            let departure = self.books.leave(client, session);
            self.announce(departure)?;
        }
        Ok(())
    }

    pub(super) fn close_client(&mut self, id: ClientId) -> io::Result<()> {
        match self.clients.remove(id) {
            Some(client) => self.client_closed(id, client),
            None => Ok(()),
        }
    }

    /// Handles the ends of clients whose connections broke while packets were sent to them.
    pub(super) fn close_broken(&mut self) -> io::Result<()> {
        while let Some((id, client)) = self.clients.take_broken() {
            self.client_closed(id, client)?;
        }
        Ok(())
    }

    fn client_closed(&mut self, id: ClientId, client: Client) -> io::Result<()> {
        if client.is_guest() {
            self.link.guest_left();
        }
        drop(client);
        let departures = self.books.closed(id);
        self.announce(departures)?;
        self.note_client(id);
        Ok(())
    }
}

/// The number of connections accepted at one door before other work gets its turn: clients that connect and
/// close can be faster than the supervisor accepts.
pub(super) const ACCEPTS_PER_TURN: usize = 16;
/// The number of requests that are taken from one client before the others get their turn.
const REQUESTS_PER_TURN: usize = 16;
