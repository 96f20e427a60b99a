//! What happens when an application asks for something? Every field is hostile.

use atoll_base::{Endpoint, Instant, SessionId, SlotId};
use atoll_connmgr::{BindRequest, ListenRequest};
use atoll_ipc::arena::INFO;
use atoll_ipc::command::{CloseMode, Command, SocketOption};
use atoll_ipc::slot::{APP_SHUT_SEND, REPLICA_CLOSED, SlotState};
use atoll_ipc::{Cause, Event, Memory, Ready};
use atoll_tcp::{Connection, KeepAlive, State};

use crate::connections::Stage;
use crate::frames::{apply_to_settings, new_entry};
use crate::list::tcp_info;
use crate::session::Target;
use crate::transport::Transport;

/// Most octets that an application may have in a send buffer.
const SEND_MAX: u64 = 16 << 20;

impl<M: Memory> Transport<M> {
    /// Takes up to `budget` commands from each session. Returns whether there were any.
    pub fn handle_commands(&mut self, now: Instant, budget: u32) -> bool {
        let mut any = false;
        for index in 0..self.sessions.capacity() as u32 {
            let mut taken = 0;
            while taken < budget {
                let Some(session) = self.sessions.get_mut(index as usize) else { break };
                if session.gone {
                    break;
                }
                let Some((_, payload)) = session.commands.pop(&session.arena) else { break };
                taken += 1;
                let id = session.id;
                match Command::decode(&payload) {
                    Ok(command) => self.handle_command(now, index, id, command),
                    Err(_) => self.stats.bad_commands += 1,
                }
            }
            if taken > 0 {
                any = true;
                self.stats.commands += u64::from(taken);
                if let Some(session) = self.sessions.get_mut(index as usize) {
                    session.commands.publish(&session.arena);
                }
            }
        }
        any
    }

    fn handle_command(&mut self, now: Instant, index: u32, session: SessionId, command: Command) {
        match command {
            Command::Kick { slot, generation } => match self.target(index, slot, generation) {
                Target::Connection(id) => self.kick(now, id),
                Target::Datagrams(id) => self.touch_datagrams(id),
                Target::Nobody => self.stats.bad_commands += 1,
            },
            Command::Claim { slot, generation } => match self.target(index, slot, generation) {
                Target::Connection(id) => self.claim(id),
                _ => self.stats.bad_commands += 1,
            },
            Command::Close { slot, generation, mode } => {
                let target = self.target(index, slot, generation);
                if target == Target::Nobody {
                    self.stats.bad_commands += 1;
                } else {
                    self.close_target(now, target, mode);
                }
            }
            Command::Bind { token, lease, protocol, local, reuse_addr, reuse_port } => {
                let request = BindRequest { lease, protocol, local, reuse_addr, reuse_port };
                let result = if self.is_own(local.addr) {
                    self.leases.bind(session, request)
                } else {
                    Err(Cause::AddressNotAvailable)
                };
                let (cause, port) = match result {
                    Ok(port) => (Cause::None, port),
                    Err(cause) => (cause, 0),
                };
                self.tell(index, &Event::BindReply { token, cause, port });
            }
            Command::Release { lease } => {
                self.leases.release(session, lease);
                self.release_listener(session, lease);
            }
            Command::Listen { token, lease, local, backlog, defer_accept, .. } => {
                let result =
                    if self.is_own(local.addr) { self.leases.listen(lease) } else { Err(Cause::AddressNotAvailable) };
                if result.is_ok() {
                    self.listeners.listen(session, ListenRequest { lease, local, backlog, defer_accept });
                    self.page.set_port(false, local.port, true);
                }
                let cause = result.err().unwrap_or_default();
                self.tell(index, &Event::ListenReply { token, cause });
            }
            Command::AcceptConnection { lease } => {
                for id in self.listeners.accept_connection(session, lease) {
                    self.settle(now, id, atoll_connmgr::Established::Offer(session));
                }
            }
            Command::StopAccepting { lease } => self.listeners.stop_accepting(session, lease),
            Command::Connect { slot, generation, local, remote, .. } => {
                self.connect(now, index, slot, generation, local, remote);
            }
            Command::UdpOpen { slot, generation, local, remote, reuse_port, .. } => {
                self.open_datagrams(index, slot, generation, local, remote, reuse_port);
            }
            Command::SetOption { slot, generation, option, value } => match self.target(index, slot, generation) {
                Target::Connection(id) => self.set_option(now, id, option, value),
                Target::Datagrams(id) => self.set_datagram_option(id, option, value),
                Target::Nobody => self.stats.bad_commands += 1,
            },
            Command::SetListenerOption { lease, option, value } => {
                self.listeners.set_option(session, lease, option, value);
            }
            Command::Info { token, slot, generation } => {
                let mut cause = Cause::Invalid;
                if let Target::Connection(id) = self.target(index, slot, generation)
                    && let (Some(entry), Some(session)) =
                        (self.connections.get(id as usize), self.sessions.get(index as usize))
                {
                    tcp_info(entry, now).store(&session.arena, INFO);
                    cause = Cause::None;
                }
                self.tell(index, &Event::InfoReply { token, cause });
            }
        }
    }

    /// The application's side of the slot changed.
    fn kick(&mut self, now: Instant, id: u32) {
        let Some(entry) = self.connections.get_mut(id as usize) else { return };
        let Some(session) = self.sessions.get_mut(entry.session as usize) else { return };
        let Some(slot) = session.slot(entry.slot) else { return };
        let (tail, head, flags) = (slot.send_tail(), slot.receive_head(), slot.app_flags());
        let connection = &mut entry.connection;
        if tail < connection.send_tail() || tail - connection.send_una() > SEND_MAX {
            // Only a broken or hostile application takes octets back, or keeps more than it may.
            self.stats.bad_commands += 1;
            return self.abort(id);
        }
        connection.handle_send_tail(now, tail);
        connection.handle_read_head(now, head);
        if flags & APP_SHUT_SEND != 0 {
            connection.shutdown_send(now);
        }
        let (head, high) = (connection.receive_head(), connection.receive_max());
        if entry.receive.release(&session.pool, &session.pool_memory, head, high)
            && let Some(slot) = session.slot(entry.slot)
        {
            slot.set_receive_extents(&entry.receive);
        }
        entry.room_told = false;
        self.touch(id);
    }

    /// Closes whatever uses a slot.
    pub(crate) fn close_target(&mut self, now: Instant, target: Target, mode: CloseMode) {
        match target {
            Target::Connection(id) => self.close_connection(now, id, mode),
            Target::Datagrams(id) => self.close_datagrams(id),
            Target::Nobody => {}
        }
    }

    fn close_connection(&mut self, now: Instant, id: u32, mode: CloseMode) {
        self.claim(id);
        self.kick(now, id);
        let Some(entry) = self.connections.get_mut(id as usize) else { return };
        if entry.stage != Stage::Open {
            return;
        }
        let connection = &mut entry.connection;
        let unread = connection.receive_nxt() > connection.receive_head();
        if mode == CloseMode::Abort || unread {
            // RFC 2525 §2.17: closing with unread octets is told to the peer by a RST, as Linux does.
            connection.abort();
        } else {
            connection.close(now);
        }
        entry.stage = Stage::Closing;
        if let Some(session) = self.sessions.get(entry.session as usize)
            && let Some(slot) = session.slot(entry.slot)
        {
            slot.set_state(SlotState::Closing);
        }
        self.touch(id);
    }

    /// The process that was offered this connection is gone: the offer goes to somebody else.
    pub(crate) fn withdraw_offer(&mut self, now: Instant, id: u32) {
        let Some(entry) = self.connections.get_mut(id as usize) else { return };
        let Some(session) = self.sessions.get_mut(entry.session as usize) else { return };
        if session.slot(entry.slot).is_some_and(|slot| !slot.revoke(entry.generation)) {
            // Claimed in its last moment: it dies with the process.
            return self.close_connection(now, id, CloseMode::Graceful);
        }
        let lease = entry.lease;
        let len = entry.connection.receive_max() as usize;
        let mut octets = alloc::vec![0; len];
        if let Some(pieces) = entry.receive.pieces(0, len) {
            pieces.read(&session.arena, session.layout.receive_area, &mut octets);
        }
        entry.early = (len > 0).then(|| octets.into());
        let id_of_session = session.id;
        self.leave_slot(id);
        if let Some(entry) = self.connections.get_mut(id as usize) {
            entry.stage = Stage::Waiting;
        }
        let verdict = self.listeners.handle_claim_timeout(lease, id_of_session, id);
        self.settle(now, id, verdict);
    }

    fn connect(&mut self, now: Instant, index: u32, slot: SlotId, generation: u32, local: Endpoint, remote: Endpoint) {
        let Some(session) = self.sessions.get_mut(index as usize) else { return };
        if !session.may_open(slot) || remote.port == 0 || generation == 0 {
            self.stats.bad_commands += 1;
            return;
        }
        let send_limit = self.config.send_buffer;
        if let Some(lines) = session.slot(slot) {
            lines.replica_reset(generation, SlotState::Connecting, send_limit);
        }
        let own = self.ip.addr();
        let addr = match (local.addr, remote.is_loopback()) {
            (0, true) => remote.addr,
            (0, false) => own,
            (addr, _) => addr,
        };
        let internal = remote.is_loopback() || remote.addr == own;
        let tuple = if self.is_own(addr) && self.connections.len() < self.config.connections_max {
            self.choose_tuple(Endpoint::new(addr, local.port), remote).ok_or(Cause::AddressNotAvailable)
        } else {
            Err(Cause::AddressNotAvailable)
        };
        match tuple {
            Err(cause) => self.fail_slot(index, slot, generation, cause),
            Ok(tuple) => {
                let iss = atoll_tcp::initial_sequence(&self.secrets.sequence, &tuple, now);
                let offset = atoll_tcp::timestamp_offset(&self.secrets.sequence, &tuple);
                let settings = self.settings();
                let connection = Connection::connect(now, iss, offset, self.path(internal), &settings);
                let mut entry = new_entry(connection, tuple, Stage::Open);
                (entry.session, entry.slot, entry.generation) = (index, slot, generation);
                let id = self.insert(entry);
                self.stats.active_opens += 1;
                if let Some(session) = self.sessions.get_mut(index as usize) {
                    session.set_target(slot, generation, Target::Connection(id));
                    if let Some(lines) = session.slot(slot) {
                        lines.set_addresses(tuple.local, tuple.remote);
                    }
                }
            }
        }
    }

    /// Nothing could be opened in the slot. It stays in the application's hands until closed, as a target of nobody; the library
    /// closes it without an answer.
    pub(crate) fn fail_slot(&mut self, index: u32, slot: SlotId, generation: u32, cause: Cause) {
        let Some(session) = self.sessions.get_mut(index as usize) else { return };
        let mut bell = None;
        if let Some(lines) = session.slot(slot) {
            lines.set_error(cause);
            lines.set_state(SlotState::Free);
            lines.set_replica_flags(REPLICA_CLOSED);
            bell = Some(lines.bell());
        }
        let ready = Ready::ERR | Ready::HUP | Ready::IN | Ready::OUT | Ready::RDHUP;
        session.tell(&Event::Ready { slot, generation, ready }, bell);
        session.tell(&Event::SlotDone { slot, generation }, bell);
        self.stats.events += 2;
    }

    fn set_option(&mut self, now: Instant, id: u32, option: SocketOption, value: u32) {
        let Some(entry) = self.connections.get_mut(id as usize) else { return };
        let connection = &mut entry.connection;
        match option {
            SocketOption::NoDelay => connection.set_nodelay(value != 0),
            SocketOption::Cork => connection.set_cork(value != 0),
            SocketOption::QuickAck => connection.set_quick_ack(value != 0),
            SocketOption::ReceiveBuffer => {
                connection.set_receive_capacity(value.clamp(2304, self.config.receive_buffer_max));
            }
            SocketOption::SendBuffer => {
                if let Some(session) = self.sessions.get(entry.session as usize)
                    && let Some(slot) = session.slot(entry.slot)
                {
                    slot.set_send_limit(value.clamp(4608, self.config.send_buffer));
                }
            }
            SocketOption::TimeToLive => entry.ttl = u8::try_from(value).unwrap_or(entry.ttl).max(1),
            SocketOption::TypeOfService => entry.tos = u8::try_from(value).unwrap_or(entry.tos) & !3,
            SocketOption::KeepAlive
            | SocketOption::KeepIdle
            | SocketOption::KeepInterval
            | SocketOption::KeepCount
            | SocketOption::UserTimeout
            | SocketOption::Congestion
            | SocketOption::Linger2
            | SocketOption::MaxSegment => {
                let mut settings = connection.settings();
                apply_to_settings(&mut settings, option, value);
                let keep: Option<KeepAlive> = settings.keep_alive;
                connection.set_keep_alive(now, keep);
                connection.set_user_timeout(settings.user_timeout);
                connection.set_congestion(settings.congestion);
                connection.set_linger2(settings.linger2);
            }
            SocketOption::DeferAccept | SocketOption::Broadcast => {}
        }
        self.touch(id);
    }

    /// Ends a listener for a session; waiting connections are reset when nobody holds it any more.
    pub(crate) fn release_listener(&mut self, session: SessionId, lease: u64) {
        let (orphans, free_port) = self.listeners.release(session, lease);
        for id in orphans {
            self.abort(id);
        }
        if let Some(port) = free_port {
            self.page.set_port(false, port, false);
        }
        if self.listeners.get(lease).is_none() {
            // Handshakes of a listener that is gone come to nothing (Linux: RST).
            let half_open: alloc::vec::Vec<u32> = self
                .connections
                .iter()
                .filter(|(_, entry)| entry.lease == lease && matches!(entry.stage, Stage::Handshake | Stage::Deferred))
                .map(|(id, _)| id as u32)
                .collect();
            for id in half_open {
                if self.connections.get(id as usize).is_some_and(|e| e.connection.state() != State::Closed) {
                    self.abort(id);
                }
            }
        }
    }

    pub(crate) fn target(&self, index: u32, slot: SlotId, generation: u32) -> Target {
        self.sessions.get(index as usize).map_or(Target::Nobody, |session| session.target(slot, generation))
    }

    /// Tells a session something that is not about one slot.
    pub(crate) fn tell(&mut self, index: u32, event: &Event) {
        if let Some(session) = self.sessions.get_mut(index as usize) {
            self.stats.events += 1;
            if !session.tell(event, None) {
                self.stats.event_overflows += 1;
            }
        }
    }

    /// Whether a socket may be bound to the address: own, any, or loopback.
    pub(crate) fn is_own(&self, addr: u32) -> bool {
        addr == 0 || addr == self.ip.addr() || addr >> 24 == 127
    }
}
