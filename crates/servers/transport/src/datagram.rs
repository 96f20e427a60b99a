//! Moves datagrams from the wire to sockets and back: RFC 768, udp(7).

use atoll_base::{Addr, Endpoint, FourTuple, Instant};
use atoll_connmgr::covers;
use atoll_ip::{Cast, ErrorKind, Ip, Link, NetworkError};
use atoll_ipc::command::Protocol;
use atoll_ipc::datagram::Fault;
use atoll_ipc::details::TimeOfDay;
use atoll_ipc::lease::Grant;
use atoll_ipc::ledger::Work;
use atoll_ipc::page::{ReplicaPage, Stat};
use atoll_ipc::slot::{Beginning, REPLICA_CLOSED, Slot, SlotState};
use atoll_ipc::{Cause, Device, Event, Memory, Ready};
use atoll_wire::ipv4::Protocol as WireProtocol;

use crate::datagrams::{Arrived, Datagram, Name};
use crate::durability::Subject;
use crate::session::{Occupant, Place, Session};
use crate::sink::FrameSink;
use crate::transport::Transport;

mod echo;
mod fault;
mod raw;
mod send;

use fault::{cause_of, fault_of};

/// The most datagram sockets of one session at one port: each gets a copy of a datagram for all, and is
/// examined for a datagram for one.
const AT_PORT_MAX: usize = 256;
/// The number of sockets at a port that are examined in the time of a unit of [`crate::commands::cost`].
const LOOKS: usize = 2;
/// What commands may cost that are carried out before a datagram is stored ([`crate::commands::cost`]).
const CATCH_UP: u32 = 64;
/// The cost of giving a datagram to one more socket.
const COPY_COST: usize = 4;

/// Returns the device over which an error counts as having come: that about a packet which has not left the
/// stack has come over the loopback (udp_err).
fn device_of_error(ip: &Ip, error: &NetworkError) -> Device {
    if ip.is_own(error.tuple.remote.addr) { Device::Loopback } else { Device::Link }
}

impl<M: Memory> Transport<M> {
    /// Carries out [`atoll_ipc::Command::UdpOpen`]. Succeeds if a socket of that name is in the slot
    /// afterwards.
    pub(crate) fn open_datagram(
        &mut self,
        now: Instant,
        place: Place,
        (protocol, lease): (Protocol, u64),
        local: Endpoint,
        remote: Endpoint,
    ) -> Result<(), Cause> {
        let Place { session: session_index, slot, generation } = place;
        let name = (protocol, local.port);
        let remote = (remote.port != 0).then_some(remote);
        let is_own = local.addr.is_unspecified() || self.ip.is_own(local.addr) || self.is_many(local);
        let is_leased = |grant: &Grant| {
            let is_meant = grant.lease == lease && grant.protocol == protocol;
            local.port != 0 && is_meant && covers(grant, local)
        };
        if let Occupant::Datagram(index) = self.applications.occupant(session_index, slot, generation) {
            // This is connect() to another peer, or bind() to an address. The socket stays the same,
            // whichever process of the family has the port.
            let socket = self.datagrams.get(index).filter(|socket| !socket.is_closing());
            if !socket.is_some_and(|socket| is_own && is_leased(socket.grant())) {
                return Err(Cause::Invalid);
            }
            self.rename_datagram(now, index, local, remote);
            return Ok(());
        }
        let session = self.applications.get(session_index).ok_or(Cause::Invalid)?;
        if !session.is_vacant(slot) || !session.layout.application_slots().contains(&slot.0) {
            return Err(Cause::Invalid);
        }
        let has_room = self.datagrams.len() < self.config.datagram_sockets_max
            && self.datagrams.count_at_port(name, session_index) < AT_PORT_MAX
            && session.has_room_for_socket()
            && session.datagram_sockets() < self.config.quota.datagram_sockets;
        let grant =
            self.applications.grant(session_index, &self.cm, lease, protocol, local).filter(is_leased);
        let rivals = grant.and_then(|grant| Some((grant, self.datagrams.rivals(&grant)?)));
        let (grant, rivals) = rivals.ok_or(Cause::Invalid)?;
        if !is_own {
            return Err(Cause::AddressNotAvailable);
        }
        if !has_room {
            return Err(Cause::NoBuffers);
        }
        // All sockets at the port were examined twice.
        self.load.charge_command((2 * self.datagrams.at_port(name).len() / LOOKS) as u32);
        // The rivals have left the port at its authority, and what they say here is still under way, or never
        // comes.
        rivals.into_iter().for_each(|rival| self.close_datagram(now, rival));
        let session = self.applications.get_mut(session_index).ok_or(Cause::Invalid)?;
        let capacity = self.config.datagram_capacity;
        let socket = Datagram::new(place, grant, local, remote, capacity);
        let index = self.datagrams.insert(socket);
        if !session.occupy(slot, generation, Occupant::Datagram(index)) {
            self.datagrams.withdraw(index);
            return Err(Cause::Invalid);
        }
        self.datagrams.index(index);
        // A program that sees the socket open may send to it at once, and reads the page to see whose port it
        // is.
        show_port((&self.page, &mut self.ip), name, true);
        if let Some(view) = session.slot(slot) {
            let (state, send_limit) = (SlotState::Open, capacity);
            view.replica_begin(generation, &Beginning { state, send_limit, local, ..Beginning::default() });
        }
        self.kick_datagram(now, index);
        self.datagrams.touch(index);
        Ok(())
    }

    /// Reports by the slot, which the application still has to close, why a datagram socket was not opened.
    pub(crate) fn refuse_datagram(&mut self, place: Place, cause: Cause) {
        self.stats.count(Stat::BadCommands);
        let Place { slot, generation, .. } = place;
        let Some(session) = self.applications.get_mut(place.session) else { return };
        if !session.layout.application_slots().contains(&slot.0) || !session.is_vacant(slot) {
            return;
        }
        let Some(view) = session.slot(slot) else { return };
        let (state, flags) = (SlotState::Closing, REPLICA_CLOSED);
        view.replica_begin(generation, &Beginning { state, flags, error: cause, ..Beginning::default() });
        let (bell, ready) = (view.bell(), Ready::ERR | Ready::HUP | Ready::IN | Ready::OUT);
        session.push(&mut self.stats, &Event::Ready { slot, generation, ready }, Some(bell));
    }

    /// Continues a datagram socket of a predecessor. What it has received, and is to send, is in the arena;
    /// the slot says where, which only its own application can falsify. The slot is not changed, because its
    /// application may be reading it.
    pub(crate) fn reopen_datagram(
        &mut self,
        now: Instant,
        place: Place,
        grant: Grant,
        local: Endpoint,
        remote: Endpoint,
    ) {
        let Some(session) = self.applications.get(place.session) else { return };
        let Some(view) = session.slot(place.slot) else { return };
        if view.replica_generation() != place.generation || view.state() == SlotState::Free {
            return;
        }
        let remote = (remote.port != 0).then_some(remote);
        let capacity = self.config.datagram_capacity;
        let socket = Datagram::new(place, grant, local, remote, capacity).resume(&view, session);
        let index = self.datagrams.insert(socket);
        let Some(session) = self.applications.get_mut(place.session) else { return };
        if !session.occupy_again(place.slot, place.generation, Occupant::Datagram(index)) {
            self.datagrams.withdraw(index);
            return;
        }
        self.datagrams.index(index);
        show_port((&self.page, &mut self.ip), (grant.protocol, local.port), true);
        self.kick_datagram(now, index);
        self.datagrams.touch(index);
    }

    fn rename_datagram(&mut self, now: Instant, index: u32, local: Endpoint, remote: Option<Endpoint>) {
        let Some(socket) = self.datagrams.get(index) else { return };
        let (place, protocol) = (socket.place(), socket.protocol());
        show_port((&self.page, &mut self.ip), (protocol, local.port), true);
        if let Some(old) = self.datagrams.rename(index, local, remote) {
            show_port((&self.page, &mut self.ip), (protocol, old), false);
        }
        if let Some(view) = self.applications.slot(place) {
            view.set_local(local);
        }
        self.kick_datagram(now, index);
    }

    fn is_many(&self, local: Endpoint) -> bool {
        matches!(self.ip.cast(local.addr), Some(Cast::Broadcast | Cast::Multicast))
    }

    /// Closes a socket, because its application has closed it, or has ended: nothing more comes in, and what
    /// it wrote before is sent by the next flush.
    pub(crate) fn close_datagram(&mut self, now: Instant, index: u32) {
        self.kick_datagram(now, index);
        let Some(name) = self.datagrams.get(index).map(Datagram::name) else { return };
        if self.datagrams.close(index) {
            show_port((&self.page, &mut self.ip), name, false);
        }
    }

    /// Removes a socket.
    pub(crate) fn remove_datagram(&mut self, now: Instant, index: u32) {
        let Some(name) = self.datagrams.get(index).map(Datagram::name) else { return };
        if self.datagrams.unindex(index) {
            show_port((&self.page, &mut self.ip), name, false);
        }
        let Some(socket) = self.datagrams.withdraw(index) else { return };
        let (slot, grant) = (socket.place().slot, *socket.grant());
        let released = socket.give_back((now, &mut self.ip), &mut self.applications, &mut self.stats);
        let Some(id) = released else { return };
        self.durability.drop_requests(id, Subject::Slot(slot));
        if !self.cm.is_authority(grant.local.port) {
            // What was shown for it is dropped, too.
            self.durability.drop_requests(id, Subject::Lease(grant.lease));
        }
    }

    /// Handles a datagram for us, for all, or for a group. Returns `false` if no socket has the port.
    pub(crate) fn handle_datagram(&mut self, now: Instant, arrived: &mut Arrived<'_>) -> bool {
        let (tuple, device, cast) = (arrived.tuple, arrived.device, arrived.cast);
        let looks = self.datagrams.at_port((arrived.protocol, tuple.local.port)).len() / LOOKS;
        self.load.charge_frame(looks as u32);
        if cast != Cast::Unicast {
            let mut all = self.datagrams.find_all(&tuple, device, cast);
            if all.iter().fold(false, |any, index| self.catch_up(now, *index) | any) {
                all = self.datagrams.find_all(&tuple, device, cast);
            }
            if all.is_empty() {
                self.stats.count(Stat::DatagramsDropped);
            }
            self.load.charge_frame((all.len() * COPY_COST) as u32);
            for index in all {
                self.store_datagram(index, arrived);
            }
            return true;
        }
        let Some(index) = self.find_for(now, arrived.protocol, &tuple, device) else {
            self.stats.count(Stat::DatagramsDropped);
            return false;
        };
        self.store_datagram(index, arrived);
        true
    }

    /// Returns the socket for a datagram or an error that has arrived.
    fn find_for(
        &mut self,
        now: Instant,
        protocol: Protocol,
        tuple: &FourTuple,
        device: Device,
    ) -> Option<u32> {
        let found = self.datagrams.find(protocol, tuple, device)?;
        if self.catch_up(now, found) { self.datagrams.find(protocol, tuple, device) } else { Some(found) }
    }

    /// Carries out what the application of a socket has asked for before something came for the socket, so
    /// that an option which it has set before a question is in force for the answer. The question may have
    /// left by another replica, while this one slept. Returns whether there was anything; the socket may be
    /// gone then.
    fn catch_up(&mut self, now: Instant, index: u32) -> bool {
        let Some(place) = self.datagrams.get(index).map(Datagram::place) else { return false };
        let has_command = |session: &Session<M>| !session.pace.is_waiting() && session.has_command();
        if !self.applications.get(place.session).is_some_and(has_command) {
            return false;
        }
        let before = self.durability.work();
        let spent = self.handle_commands_of(now, place.session, CATCH_UP);
        self.durability.mark(before);
        self.load.charge_frame(spent);
        spent > 0
    }

    /// Stores a datagram for this socket; the work is charged to its session. All sockets that get a copy are
    /// told of one time.
    fn store_datagram(&mut self, index: u32, arrived: &mut Arrived<'_>) {
        if arrived.details.came.is_none() && self.wants_times(index) {
            arrived.details.came = self.calendar.read();
        }
        let place = self.datagrams.get(index).map(Datagram::place);
        let Some(id) = place.and_then(|place| self.applications.get(place.session)).map(|session| session.id)
        else {
            return;
        };
        let before = self.durability.work();
        self.durability.mark(Work::Datagrams(id));
        self.datagrams.put(index, (&self.applications, &mut self.stats), arrived);
        self.durability.mark(before);
    }

    fn wants_times(&self, index: u32) -> bool {
        self.datagrams.get(index).is_some_and(|socket| socket.options().wants_times())
    }

    /// Reads the positions that the application has changed.
    pub(crate) fn kick_datagram(&mut self, now: Instant, index: u32) {
        if !self.datagrams.kick(index, &self.applications, &mut self.stats) {
            self.remove_datagram(now, index);
        }
    }

    /// Carries out [`atoll_ipc::Command::Group`]. Only [`Cause::NoBuffers`] reports what the application
    /// could not know before.
    pub(crate) fn change_membership(
        &mut self,
        now: Instant,
        place: Place,
        group: (Link, Addr),
        joins: bool,
    ) -> Result<(), Cause> {
        let session = self.applications.get_mut(place.session).ok_or(Cause::Invalid)?;
        let Occupant::Datagram(index) = session.occupant(place.slot, place.generation) else {
            return Err(Cause::Invalid);
        };
        let session = (session, self.config.quota.groups);
        self.datagrams.change_membership(now, index, session, &mut self.ip, (group, joins))
    }

    /// Returns whether the socket is in the group.
    pub(crate) fn is_joined(&self, place: Place, group: (Link, Addr)) -> bool {
        match self.applications.occupant(place.session, place.slot, place.generation) {
            Occupant::Datagram(index) => self.datagrams.is_joined(index, group),
            _ => false,
        }
    }

    /// Handles an ICMP error: a socket that asks for errors gets it, and with a hard one the next call on a
    /// connected socket fails (udp(7)).
    pub(crate) fn network_error_of_datagram(&mut self, now: Instant, error: &NetworkError, text: &[u8]) {
        let protocol = match error.protocol {
            WireProtocol::UDP => Protocol::Udp,
            _ => {
                self.network_error_of_raw(now, error);
                Protocol::Icmp
            }
        };
        let Some(index) = self.find_for(now, protocol, &error.tuple, device_of_error(&self.ip, error)) else {
            return;
        };
        let Some(socket) = self.datagrams.get(index) else { return };
        let peer = error.tuple.remote;
        let discovery = socket.options().discovery_to(peer.addr);
        if let ErrorKind::FragNeeded { mtu } = error.kind
            && discovery.believes_paths()
        {
            // Nothing proves that the socket has sent the quoted datagram; a forged error makes datagrams
            // leave in fragments of 552 octets, or 1280 with IPv6.
            self.ip.learn_path_mtu(now, peer.addr, mtu);
        }
        let Some(meaning) = cause_of(error, protocol, discovery) else { return };
        if socket.options().wants_errors(peer.addr) {
            self.report_fault(index, (fault_of(error), text), peer);
            return;
        }
        let is_about_peer = match protocol {
            // ping_err: any error, if there is a peer.
            Protocol::Icmp => socket.remote().is_some(),
            _ => socket.remote() == Some(peer),
        };
        if is_about_peer && meaning.is_hard {
            self.datagrams.fail(index, meaning.cause, Ready::IN | Ready::OUT);
        }
    }

    /// Gives a socket that has asked for them a network error about what it has sent to `peer`, with what is
    /// known of the lost packet behind the first octets of its transport header. The work is charged to the
    /// session of the socket.
    pub(super) fn report_fault(&mut self, index: u32, (mut fault, text): (Fault, &[u8]), peer: Endpoint) {
        if self.wants_times(index) {
            fault.came = self.calendar.read().map_or(0, TimeOfDay::as_nanos);
        }
        let Some(place) = self.datagrams.get(index).map(Datagram::place) else { return };
        let Some(id) = self.applications.get(place.session).map(|session| session.id) else { return };
        let before = self.durability.work();
        self.durability.mark(Work::Datagrams(id));
        self.datagrams.put_fault(index, &self.applications, (&fault, text), peer);
        self.durability.mark(before);
    }

    /// Sends and publishes for every socket that needs it.
    pub(crate) fn flush_datagrams(&mut self, now: Instant, out: &mut impl FrameSink<M>) {
        let mut dirty = self.datagrams.take_dirty();
        for index in dirty.drain(..) {
            let Some(place) = self.datagrams.begin_turn(index) else { continue };
            if let Some(session) = self.applications.get(place.session) {
                self.durability.mark(Work::Datagrams(session.id));
            }
            if !self.send_datagrams(now, index, out) {
                self.remove_datagram(now, index);
                continue;
            }
            let Some(socket) = self.datagrams.get_mut(index) else { continue };
            if socket.is_closing() {
                if socket.unsent() == 0 {
                    self.remove_datagram(now, index);
                }
                continue;
            }
            if let Some(session) = self.applications.get_mut(place.session)
                && let Some(slot) = Slot::new(&session.arena, &session.layout, place.slot)
            {
                let ready = socket.publish(&slot);
                let bell = slot.bell();
                if !ready.is_empty() {
                    let event = Event::Ready { slot: place.slot, generation: place.generation, ready };
                    session.push(&mut self.stats, &event, Some(bell));
                }
            }
        }
        self.datagrams.put_back_dirty(dirty);
        self.durability.mark(Work::Nothing);
    }
}

/// Publishes whether a port of UDP is taken, and tells IP whether there are raw sockets. Nobody looks for the
/// identifiers of ICMP.
fn show_port<M: Memory>((page, ip): (&ReplicaPage<M>, &mut Ip), (protocol, port): Name, taken: bool) {
    match protocol {
        Protocol::Udp => page.set_port(true, port, taken),
        Protocol::Raw => ip.want_messages(port == Protocol::raw_port(true), taken),
        Protocol::Icmp | Protocol::Tcp => {}
    }
}
