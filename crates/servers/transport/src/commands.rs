//! What does an application want? Every field is hostile until checked.

use atoll_base::{Endpoint, Instant, SessionId, SlotId};
use atoll_connmgr::{Bind, Listen};
use atoll_ip::{Cast, Link};
use atoll_ipc::arena::INFO;
use atoll_ipc::command::Protocol;
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
            Command::Connect { slot, generation, local, remote, .. } => {
                self.connect(now, session, slot, generation, local, remote);
            }
            Command::Info { token, slot, generation } => self.send_info(now, session, token, slot, generation),
            _ => self.handle_rare_command(now, session, command),
        }
    }

    /// Ports, listeners, acceptors, datagram sockets.
    fn handle_rare_command(&mut self, now: Instant, session: u32, command: Command) {
        let Some(id) = self.session(session).map(|session| session.id) else { return };
        match command {
            Command::Bind { token, lease, protocol, local, reuse_addr, reuse_port, v6_only } => {
                let bind = Bind { session: id, lease, protocol, local, reuse_addr, reuse_port, v6_only };
                let bound = self.check_own(local, protocol).and_then(|()| self.cm.handle_bind(&bind));
                let (cause, port) = match bound {
                    Ok(port) => (Cause::None, port),
                    Err(cause) => (cause, 0),
                };
                if cause == Cause::None {
                    let local = Endpoint::at(local.addr, port);
                    let bind = Command::Bind { token, lease, protocol, local, reuse_addr, reuse_port, v6_only };
                    self.keep_request(id, bind);
                }
                self.reply(session, &Event::BindReply { token, cause, port });
            }
            Command::Release { lease } => {
                self.cm.handle_release(id, lease);
                self.drop_requests(id, Some(Subject::Lease(lease)));
            }
            Command::Listen { token, lease, local, backlog, reuse_port, defer_accept, v6_only } => {
                let listen = Listen { session: id, lease, local, backlog, reuse_port, defer_accept, v6_only };
                let listens = self.check_own(local, Protocol::Tcp).and_then(|()| self.cm.handle_listen(&listen));
                let cause = listens.err().unwrap_or_default();
                if cause == Cause::None {
                    self.keep_request(id, command);
                }
                // Who has the reply may connect at once, and looks at the page to see whose port it is.
                self.run_directives(now);
                self.reply(session, &Event::ListenReply { token, cause });
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
                self.drop_acceptor_request(id, lease);
            }
            Command::SetListenerOption { lease, option, value } => {
                let Some(listener) = self.cm.listener_of(id, lease) else {
                    self.stats.count(Stat::BadCommands);
                    return;
                };
                self.set_listener_option(listener, option, value);
                self.keep_request(id, command);
            }
            Command::UdpOpen { slot, generation, local, remote, reuse_port, v6_only, .. } => {
                let place = Place { session, slot, generation };
                self.open_datagram(now, place, local, remote, reuse_port, v6_only);
                self.keep_request_of_datagram(id, place, command);
            }
            Command::Group { slot, generation, group, inside, joins } => {
                let link = if inside { Link::Inside } else { Link::Outside };
                self.change_membership(now, session, slot, generation, (link, group), joins);
                self.keep_request_of_datagram(id, Place { session, slot, generation }, command);
            }
            _ => {}
        }
        self.run_directives(now);
    }

    /// What was asked for a datagram socket stays in force as long as it is open.
    fn keep_request_of_datagram(&mut self, id: SessionId, place: Place, command: Command) {
        if let Occupant::Datagram(_) = self.occupant(place.session, place.slot, place.generation) {
            self.keep_request(id, command);
        }
    }

    /// Work on the connection in a slot begins.
    #[inline]
    pub(crate) fn mark_slot(&self, session: u32, slot: SlotId, generation: u32) {
        if let Occupant::Connection(index) = self.occupant(session, slot, generation) {
            self.mark(Some(index));
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
                if let Some(id) = self.session(session).map(|session| session.id) {
                    self.keep_request(id, Command::SetOption { slot, generation, option, value });
                }
                self.datagrams.set_option(index, option, value)
            }
            Occupant::Lost => true,
            Occupant::Nobody => false,
        };
        if !taken {
            self.stats.count(Stat::BadCommands);
        }
    }

    fn set_listener_option(&mut self, listener: atoll_connmgr::ListenerId, option: SocketOption, value: u32) {
        if option == SocketOption::DeferAccept {
            self.cm.set_defer_accept(listener, u16::try_from(value).unwrap_or(u16::MAX));
            return;
        }
        let index = listener.index as usize;
        if index >= self.inherited.len() {
            self.inherited.resize(index + 1, None);
        }
        let place = &mut self.inherited[index];
        if place.is_none_or(|(id, _)| id != listener) {
            *place = Some((listener, Inherited::new(&self.config)));
        }
        if let Some((_, inherited)) = place
            && !inherited.set(&self.config, option, value)
        {
            self.stats.count(Stat::BadCommands);
        }
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
