//! What does an application want? Every field is hostile until checked.

use atoll_base::{Endpoint, Instant, SessionId, SlotId};
use atoll_connmgr::{Bind, Listen};
use atoll_ip::{Cast, Link};
use atoll_ipc::arena::INFO;
use atoll_ipc::command::Protocol;
use atoll_ipc::lease::{Grant, NO_USER, Pass};
use atoll_ipc::page::Stat;
use atoll_ipc::slot::APP_SHUT_SEND;
use atoll_ipc::{Cause, Command, Event, Memory, SocketOption};

use crate::entry::{Flags, Stage};
use crate::options::Inherited;
use crate::records::Subject;
use crate::session::{Occupant, Place};
use crate::transport::Transport;

/// More than this is never in a send buffer.
const SEND_MAX: u64 = 16 << 20;

/// So many leases of a port are looked at in the time of a unit of [`cost`].
const LEASES_LOOKED_AT: u32 = 8;

/// What a command takes, with what follows from it, in the time of one that says that a slot has changed: about a tenth of a microsecond.
#[inline]
pub(crate) fn cost(command: &Command) -> u32 {
    match command {
        Command::Kick { .. } | Command::SetOption { .. } => 1,
        Command::Claim { .. } | Command::Close { .. } | Command::Info { .. } => 4,
        Command::Connect { .. } | Command::UdpOpen { .. } | Command::Group { .. } | Command::Listen { .. } => 16,
        _ => 8,
    }
}

impl<M: Memory> Transport<M> {
    /// Carries out one command of a session.
    #[inline]
    pub(crate) fn handle_command(&mut self, now: Instant, session: u32, command: Command) {
        if self.is_adopting() {
            self.adopt_for(now, session, &command);
        }
        match command {
            Command::Kick { slot, generation } => match self.occupant(session, slot, generation) {
                Occupant::Connection(index) => self.handle_kick(now, index),
                Occupant::Datagram(index) => self.kick_datagram(now, index),
                Occupant::Lost => {}
                Occupant::Nobody => self.stats.count(Stat::BadCommands),
            },
            Command::Claim { slot, generation } => self.claim(now, session, slot, generation),
            Command::Close { slot, generation, mode } => match self.occupant(session, slot, generation) {
                Occupant::Connection(index) => self.close(now, index, mode),
                Occupant::Datagram(index) => self.close_datagram(now, index),
                Occupant::Lost => self.close_lost(session, slot, generation),
                Occupant::Nobody => self.close_nothing(session, slot, generation),
            },
            Command::SetOption { slot, generation, option, value } => {
                self.set_option(now, session, slot, generation, option, value);
            }
            Command::Connect { slot, generation, lease, local, remote } => {
                self.connect(now, session, slot, generation, lease, local, remote);
            }
            Command::Info { token, slot, generation } => self.send_info(now, session, token, slot, generation),
            _ => self.handle_rare_command(now, session, command),
        }
    }

    // structure: handle_rare_command: an arm for each command
    /// Ports, listeners, acceptors, datagram sockets.
    fn handle_rare_command(&mut self, now: Instant, session: u32, command: Command) {
        let Some(id) = self.session(session).map(|session| session.id) else { return };
        match command {
            Command::Bind { token, lease, protocol, local, reuse_addr, reuse_port, v6_only } => {
                self.charge_leases(protocol, local.port);
                let Some(user) = self.user_of(session, lease, protocol, local) else { return };
                let bind = Bind { session: id, user, lease, protocol, local, reuse_addr, reuse_port, v6_only };
                let kept = self.check_kept(id, &command);
                let bound =
                    kept.and_then(|()| self.check_own(local, protocol)).and_then(|()| self.cm.handle_bind(&bind));
                let (cause, port) = match bound {
                    Ok(port) => (Cause::None, port),
                    Err(cause) => (cause, 0),
                };
                if cause == Cause::None {
                    let local = Endpoint::at(local.addr, port);
                    self.keep_owner(session, id, lease);
                    let bind = Command::Bind { token, lease, protocol, local, reuse_addr, reuse_port, v6_only };
                    self.keep_request(id, bind);
                }
                let voucher = self.voucher(self.cm.grant(id, lease).filter(|_| cause == Cause::None));
                self.reply(session, &Event::BindReply { token, cause, port, voucher });
            }
            Command::Release { lease } => {
                if let Some(Grant { protocol, local, .. }) = self.cm.grant(id, lease) {
                    self.charge_leases(protocol, local.port);
                }
                self.cm.handle_release(id, lease);
                self.drop_requests(id, Subject::Lease(lease));
            }
            Command::Listen { token, lease, local, backlog, reuse_port, defer_accept, v6_only } => {
                let shown = self.shown(session, lease);
                let uid = self.user_of(session, lease, Protocol::Tcp, local).map_or(NO_USER, |user| user.uid);
                let listen =
                    Listen { session: id, lease, local, backlog, reuse_port, defer_accept, v6_only, uid, shown };
                let kept = self.check_kept(id, &command);
                let own = kept.and_then(|()| self.check_own(local, Protocol::Tcp));
                let listens = own.and_then(|()| self.cm.handle_listen(&listen));
                let cause = listens.err().unwrap_or_default();
                if cause == Cause::None {
                    self.keep_shown(id, shown);
                    self.keep_owner(session, id, lease);
                    self.keep_request(id, command);
                } else if cause == Cause::Invalid {
                    self.stats.count(Stat::BadCommands);
                }
                // Who has the reply may connect at once, and looks at the page to see whose port it is.
                self.run_directives(now);
                let voucher = self.voucher(self.cm.grant(id, lease).filter(|_| cause == Cause::None));
                self.reply(session, &Event::ListenReply { token, cause, voucher });
            }
            Command::AcceptConnection { lease } => {
                let taken = self.cm.handle_accept(now, id, lease);
                if taken {
                    self.keep_request(id, command);
                }
                self.stats.add(Stat::BadCommands, (!taken).into());
            }
            Command::AskConnection { lease, takes } => {
                let answered = self.cm.handle_ask(now, id, lease, takes);
                if !answered {
                    self.stats.count(Stat::BadCommands);
                    self.reply(session, &Event::ConnectionsWait { listener: lease, waiting: false, answers: true });
                }
            }
            Command::StopAccepting { lease } => {
                self.cm.handle_stop_accepting(now, id, lease);
                self.drop_request(id, &Command::AcceptConnection { lease });
            }
            Command::SetListenerOption { lease, option, value } => {
                let Some(listener) = self.cm.listener_of(id, lease) else {
                    self.stats.count(Stat::BadCommands);
                    return;
                };
                // What no successor would know is not done.
                if self.may_keep(id, &command) && self.set_listener_option(listener, option, value) {
                    self.keep_request(id, command);
                } else {
                    self.stats.count(Stat::BadCommands);
                }
            }
            Command::Show { lease, protocol, local, voucher } => {
                let grant = Grant::of(lease, protocol, local, &voucher);
                let before = self.session(session).and_then(|session| session.shown);
                let taken = self.show(session, grant, &voucher);
                self.stats.add(Stat::BadCommands, (!taken).into());
                if taken {
                    // The command that it is for may find a successor. What was shown before, and led to nothing, is over.
                    if let Some(before) = before.filter(|before| before.lease != lease && !self.is_in_use(id, before)) {
                        let Grant { lease, protocol, local, .. } = before;
                        self.drop_request(id, &Command::Show { lease, protocol, local, voucher });
                    }
                    self.keep_shown(id, Some(grant));
                }
            }
            Command::Pass { pass, seal } => {
                let before = self.session(session).and_then(|session| session.pass);
                let taken = self.take_pass(session, pass, seal);
                self.stats.add(Stat::BadCommands, taken.is_none().into());
                if let Some(pass) = taken {
                    // As with what is shown of grants. Of a socket that has its port the grant says whose it is.
                    if let Some(before) = before.filter(|before| before.lease != pass.lease) {
                        self.drop_request(id, &self.pass_command(before));
                    }
                    self.keep_request(id, self.pass_command(pass));
                }
            }
            Command::UdpOpen { slot, generation, lease, local, remote, .. } => {
                let place = Place { session, slot, generation };
                let kept = self.check_kept(id, &command);
                let opened = kept.and_then(|()| self.open_datagram(now, place, lease, local, remote));
                match opened {
                    // One whose slot makes no sense is gone again.
                    Ok(()) => {
                        if let Occupant::Datagram(_) = self.occupant(session, slot, generation) {
                            self.keep_shown(id, self.shown(session, lease));
                            self.keep_request(id, command);
                        }
                    }
                    Err(cause) => self.refuse_datagram(place, cause),
                }
            }
            Command::Group { slot, generation, group, inside, joins, token } => {
                let link = if inside { Link::Inside } else { Link::Outside };
                let place = Place { session, slot, generation };
                let kept = if joins { self.check_kept(id, &command) } else { Ok(()) };
                let changed = kept.and_then(|()| self.change_membership(now, place, (link, group), joins));
                if token != 0 {
                    let cause = match changed {
                        // Done already, by a predecessor that could not say so any more.
                        Err(Cause::AddressInUse) => Cause::None,
                        _ => changed.err().unwrap_or_default(),
                    };
                    self.reply(session, &Event::GroupReply { token, cause });
                }
                match changed {
                    Ok(()) if joins => {
                        self.keep_request(id, command);
                    }
                    Err(_) if self.is_joined(place, (link, group)) => {}
                    // It was left, or could not be joined (by a successor, say).
                    _ => self.drop_request(id, &command),
                }
                self.stats.add(Stat::BadCommands, changed.is_err().into());
            }
            _ => {}
        }
        self.run_directives(now);
    }

    /// All leases of a port are looked at.
    fn charge_leases(&mut self, protocol: Protocol, port: u16) {
        // Cannot truncate: their number is bounded.
        let looks = self.cm.leases_at(protocol, port) as u32;
        self.extra_cost = self.extra_cost.saturating_add(looks / LEASES_LOOKED_AT);
    }

    /// What no successor could know of is not done. There is to be room for what the session has shown for it, too.
    fn check_kept(&self, id: SessionId, command: &Command) -> Result<(), Cause> {
        if self.may_keep(id, command) { Ok(()) } else { Err(Cause::NoBuffers) }
    }

    /// Whether a session has a port, a listener or a datagram socket by this grant.
    fn is_in_use(&self, id: SessionId, grant: &Grant) -> bool {
        let is_bound = self.cm.grant(id, grant.lease).is_some();
        is_bound
            || self.cm.listener_of(id, grant.lease).is_some()
            || self.datagrams.has_lease(grant.local.port, grant.lease)
    }

    /// What a session has shown, and what it was granted by that is in force: a successor wants to see it, too.
    fn keep_shown(&mut self, id: SessionId, shown: Option<Grant>) {
        if let Some(grant) = shown.filter(|grant| !self.cm.is_authority(grant.local.port)) {
            let Grant { lease, protocol, local, .. } = grant;
            let voucher = self.voucher(Some(grant));
            self.keep_request(id, Command::Show { lease, protocol, local, voucher });
        }
    }

    /// Of a port whose authority this is: whose it is, and that it may be low, a successor wants to see, too. The grant says what the pass has said.
    fn keep_owner(&mut self, session: u32, id: SessionId, lease: u64) {
        if let Some(grant) = self.cm.grant(id, lease).filter(|grant| !self.is_plain(session, grant)) {
            let Grant { lease, protocol, local, uid, .. } = grant;
            self.drop_request(id, &self.pass_command(Pass { lease, uid, protocol, port: 0 }));
            let voucher = self.voucher(Some(grant));
            self.keep_request(id, Command::Show { lease, protocol, local, voucher });
        }
    }

    /// Whether a socket may be bound to an address.
    fn check_own(&self, local: Endpoint, protocol: Protocol) -> Result<(), Cause> {
        let is_own = local.addr.is_unspecified() || self.ip.is_own(local.addr);
        // ip(7): datagram sockets may be bound to a group, to hear what is sent to it only.
        let is_group = protocol == Protocol::Udp && self.ip.cast(local.addr) == Some(Cast::Multicast);
        if is_own || is_group { Ok(()) } else { Err(Cause::AddressNotAvailable) }
    }

    pub(crate) fn occupant(&self, session: u32, slot: SlotId, generation: u32) -> Occupant {
        self.session(session).map_or(Occupant::Nobody, |session| session.occupant(slot, generation))
    }

    /// Answers a question of whoever waits in the application, on whatever bell.
    pub(crate) fn reply(&mut self, session: u32, event: &Event) {
        if let Some(session) = self.sessions.get_mut(session as usize).and_then(Option::as_mut) {
            session.push(&mut self.stats, event, None);
        }
    }

    /// The application closes a slot in which nothing was opened (a refused connect, say).
    fn close_nothing(&mut self, session: u32, slot: SlotId, generation: u32) {
        let Some(view) = self.session(session).and_then(|session| session.slot(slot)) else {
            self.stats.count(Stat::BadCommands);
            return;
        };
        if self.session(session).is_some_and(|session| session.is_vacant(slot)) {
            if view.replica_generation() == generation {
                view.set_state(atoll_ipc::slot::SlotState::Free);
            }
            self.reply(session, &Event::SlotDone { slot, generation });
        } else {
            self.stats.count(Stat::BadCommands);
        }
    }

    /// The application has closed a socket whose connection is lost.
    fn close_lost(&mut self, session: u32, slot: SlotId, generation: u32) {
        let Some(session) = self.sessions.get_mut(session as usize).and_then(Option::as_mut) else { return };
        session.vacate(slot, false);
        session.push(&mut self.stats, &Event::SlotDone { slot, generation }, Some(0));
    }

    /// The application's lines have changed: take what is plausible; whoever lies loses the connection.
    pub(crate) fn handle_kick(&mut self, now: Instant, index: u32) {
        let Some(entry) = self.entries.get_mut(index) else { return };
        let (Some(place), Stage::Open(_)) = (entry.place, entry.stage) else { return };
        let Some(session) = self.sessions.get(place.session as usize).and_then(Option::as_ref) else { return };
        let Some(slot) = session.slot(place.slot) else { return };
        if slot.app_generation() != place.generation {
            self.stats.count(Stat::BadCommands);
            return;
        }
        let (tail, head, flags) = (slot.send_tail(), slot.receive_head(), slot.app_flags());
        let connection = &mut entry.connection;
        let (una, known_tail) = (connection.send_una(), connection.send_tail());
        let is_plausible = tail >= known_tail
            && tail - una <= SEND_MAX
            && (connection.receive_head()..=entry.published_tail.max(connection.receive_head())).contains(&head);
        if !is_plausible {
            self.stats.count(Stat::BadCommands);
            connection.abort();
            self.touch(index);
            return;
        }
        if tail > known_tail {
            // The rings are published before the tail that needs them.
            entry.send = slot.send_extents(&session.layout).unwrap_or_default().into();
            connection.handle_send_tail(now, tail);
            // Published before the tail, too.
            connection.handle_urgent(slot.send_urgent());
            // The application may have looked at the limit before it was doubled: half of two thirds. And with two rings there may
            // be no room for a third, however little is in them.
            let queued = tail - entry.published_acked;
            if queued * 3 >= u64::from(entry.send_limit)
                || entry.send.old().is_some()
                // All that TCP_NOTSENT_LOWAT allows is there.
                || entry.unsent_low != 0 && queued >= u64::from(slot.send_limit())
            {
                entry.flags.set(Flags::WANTS_ROOM);
            }
        }
        if flags & APP_SHUT_SEND != 0 {
            connection.shutdown_send(now);
        }
        if head > connection.receive_head() {
            connection.handle_read_head(now, head);
            entry.forget_passed_marks(head);
            // A ring that was drained is kept for the next request; the sweep finds it if there is none.
            if entry.receive.old().is_some() {
                entry.release_drained(session, head);
            }
            if !session.pressure.receive {
                entry.tune(self.config.receive_capacity.1, session.layout.receive_bytes);
            }
        }
        self.touch(index);
    }

    fn set_option(
        &mut self,
        now: Instant,
        session: u32,
        slot: SlotId,
        generation: u32,
        option: SocketOption,
        value: u32,
    ) {
        let taken = match self.occupant(session, slot, generation) {
            Occupant::Connection(index) => {
                self.touch(index);
                let config = &self.config;
                self.entries.get_mut(index).is_some_and(|entry| entry.set_option(now, config, option, value))
            }
            Occupant::Datagram(index) => {
                let command = Command::SetOption { slot, generation, option, value };
                let id = self.session(session).map(|session| session.id).unwrap_or_default();
                if self.may_keep(id, &command) {
                    let taken = self.datagrams.set_option(index, option, value);
                    taken && self.keep_request(id, command)
                } else {
                    // No successor would know of it. The next call says so.
                    self.datagrams.fail(index, Cause::NoBuffers);
                    false
                }
            }
            Occupant::Lost => true,
            Occupant::Nobody => false,
        };
        if !taken {
            self.stats.count(Stat::BadCommands);
        }
    }

    /// `false`: such an option, or such a value, there is not.
    fn set_listener_option(&mut self, listener: atoll_connmgr::ListenerId, option: SocketOption, value: u32) -> bool {
        if option == SocketOption::DeferAccept {
            self.cm.set_defer_accept(listener, u16::try_from(value).unwrap_or(u16::MAX));
            return true;
        }
        let index = listener.index as usize;
        if index >= self.inherited.len() {
            self.inherited.resize(index + 1, None);
        }
        let place = &mut self.inherited[index];
        if place.is_none_or(|(id, _)| id != listener) {
            *place = Some((listener, Inherited::new(&self.config)));
        }
        place.as_mut().is_some_and(|(_, inherited)| inherited.set(&self.config, option, value))
    }

    /// The facts of a connection into the arena's info area.
    fn send_info(&mut self, now: Instant, session: u32, token: u32, slot: SlotId, generation: u32) {
        let cause = match self.occupant(session, slot, generation) {
            Occupant::Connection(index) => {
                let info = self
                    .entries
                    .get(index)
                    .map(|entry| crate::list::info(&entry.connection.info(now), entry.name.is_v4()));
                if let (Some(info), Some(session)) = (info, self.session(session)) {
                    info.store(&session.arena, INFO);
                }
                Cause::None
            }
            _ => Cause::Invalid,
        };
        self.reply(session, &Event::InfoReply { token, cause });
    }
}
