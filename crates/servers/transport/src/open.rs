//! Opens connections for applications, and chooses their ports.

use atoll_base::{Addr, Endpoint, FourTuple, Instant, SlotId};
use atoll_ip::{Cast, Route};
use atoll_ipc::command::Protocol;
use atoll_ipc::page::Stat;
use atoll_ipc::slot::{
    APP_AWAITS_ANSWER, APP_FAST_OPEN, APP_OPTIONS_FOLLOW, Beginning, REPLICA_CLOSED, REPLICA_FAST_OPEN,
    SlotState,
};
use atoll_ipc::{Cause, Event, Memory, Ready};
use atoll_tcp::Connection;

use crate::commands::Carried;
use crate::connections::PortChoice;
use crate::entry::{Entry, Flags, Service, Stage};
use crate::options::Inherited;
use crate::passive::Opening;
use crate::ports::{Asked, NoPort};
use crate::session::{Occupant, Place, Session};
use crate::transport::Transport;

/// The least distance of a new connection's sequence numbers from those of the connection before.
const ABOVE_LAST: u32 = 65_537;
/// The cost of examining one of our own ports, in the units of [`crate::commands::cost`]: some cache misses.
const LOOK_COST: u32 = 4;

impl<M: Memory> Transport<M> {
    // structure: connect: each check refuses with a cause of its own, in the order of Linux
    /// Carries out [`atoll_ipc::Command::Connect`]. The outcome is always reported by the slot; the command
    /// waits until the outcome is known.
    pub(crate) fn connect(&mut self, now: Instant, place: Place, asked: Asked) -> Carried {
        let Asked { lease, local, remote, range } = asked;
        let Place { session: session_index, slot, generation } = place;
        if local.port != 0 {
            // A socket may only choose a port that it has.
            let grant = self.applications.grant(session_index, &self.cm, lease, Protocol::Tcp, local);
            if grant.is_none_or(|grant| self.cm.is_overtaken(&grant)) {
                self.stats.count(Stat::BadCommands);
                self.refuse(place, local, Cause::Invalid);
                return Carried::Out;
            }
        }
        let has_room = self.applications.get(session_index).is_some_and(Session::has_room_for_socket);
        let has_room = has_room && self.connections.count() < self.config.connections_max;
        let tuple = if has_room && self.shortage.may_connect(&self.applications, session_index) {
            self.choose_tuple(now, (local, remote), range)
        } else {
            Err(Cause::NoBuffers.into())
        };
        let tuple = match tuple {
            Ok(tuple) => tuple,
            Err(NoPort::Refused(cause)) => {
                self.refuse(place, local, cause);
                return Carried::Out;
            }
            Err(NoPort::Unknown) => return Carried::Later,
        };
        let internal = matches!(self.ip.route(now, tuple.remote.addr), Route::Local);
        let inherited = Inherited::new(&self.config);
        let mut iss = atoll_tcp::initial_sequence(&self.secrets.sequence, &tuple, now);
        if let Some(above) = self.connections.replace_time_wait(&tuple)
            && !iss.after(above)
        {
            // As on Linux, the numbers begin beyond the window of the connection before.
            iss = above.plus(ABOVE_LAST + self.rng.below(1 << 16));
        }
        let ts_offset = atoll_tcp::timestamp_offset(&self.secrets.sequence, &tuple);
        let remote = tuple.remote.addr;
        let opening = Opening { config: &self.config, secrets: &self.secrets, ip: &self.ip };
        let path = opening.path(remote, internal);
        let mut connection = Connection::connect(now, iss, ts_offset, path, &inherited.settings);
        opening.limit_path(now, &mut connection, remote, internal);
        let app_flags = self.app_flags_of(session_index, slot);
        let wants_fast = app_flags & APP_FAST_OPEN != 0;
        let handshakes = &self.handshakes;
        let wanted =
            if wants_fast { handshakes.open_fast(now, &self.config, &tuple, &mut connection) } else { None };
        let name = self.connections.name(&tuple);
        let mut entry = Entry::new(connection, name, Stage::Open(Service::UNMEASURED));
        entry.inherit(&self.config, &inherited, self.ip.hop_limit());
        entry.place = Some(place);
        if internal {
            entry.flags.insert(Flags::INTERNAL);
        }
        entry.flags.set(Flags::HELD, app_flags & APP_OPTIONS_FOLLOW != 0);
        let limit = entry.send_limit;
        let index = self.connections.insert(entry);
        let Some(session) = self.applications.get_mut(session_index) else { return Carried::Out };
        if !session.occupy(slot, generation, Occupant::Connection(index)) {
            // The slot is in use, or the application may not open it.
            self.stats.count(Stat::BadCommands);
            self.connections.withdraw(index);
            return Carried::Out;
        }
        if let Some(view) = session.slot(slot) {
            let beginning = Beginning {
                state: SlotState::Connecting,
                // As on Linux, no more than the SYN holds is taken before there is a connection.
                send_limit: wanted.map_or(limit, u32::from),
                local: tuple.local,
                flags: if wanted.is_some() { REPLICA_FAST_OPEN } else { 0 },
                ..Beginning::default()
            };
            view.replica_begin(generation, &beginning);
        }
        self.answer_who_awaits(place);
        if let Some(entry) = self.connections.get_mut(index)
            && wanted.is_some()
        {
            entry.view.set_flags(REPLICA_FAST_OPEN);
            entry.flags.insert(Flags::STATE);
            entry.view.tell(Ready::OUT);
        }
        self.connections.enroll(index);
        // Text may have been written before.
        self.connections.kick(now, index, &self.config, &self.applications, &mut self.stats);
        self.connections.touch(index);
        Carried::Out
    }

    /// Wakes a thread that sleeps until the connection is taken up.
    fn answer_who_awaits(&mut self, Place { session, slot, generation }: Place) {
        let Some(session) = self.applications.get_mut(session) else { return };
        let Some(view) = session.slot(slot) else { return };
        // Partner: the application sets its flag, publishes its sleep word, fences, and looks for the answer.
        session.arena.fence();
        if view.app_flags() & APP_AWAITS_ANSWER != 0 {
            let bell = view.bell();
            let event = Event::Ready { slot, generation, ready: Ready::empty() };
            session.push(&mut self.stats, &event, Some(bell));
        }
    }

    fn app_flags_of(&self, session_index: u32, slot: SlotId) -> u32 {
        self.applications
            .get(session_index)
            .and_then(|session| session.slot(slot))
            .map_or(0, |view| view.app_flags())
    }

    /// Reports that a connection fails before it exists. Its slot still has to be closed by the application.
    fn refuse(&mut self, place: Place, local: Endpoint, cause: Cause) {
        let Place { slot, generation, .. } = place;
        let Some(session) = self.applications.get_mut(place.session) else { return };
        if session.occupant(slot, generation) != Occupant::Nobody
            || !session.layout.application_slots().contains(&slot.0)
        {
            self.stats.count(Stat::BadCommands);
            return;
        }
        let Some(view) = session.slot(slot) else { return };
        let (state, flags) = (SlotState::Open, REPLICA_CLOSED);
        view.replica_begin(
            generation,
            &Beginning { state, local, flags, error: cause, ..Beginning::default() },
        );
        let bell = view.bell();
        let ready = Ready::ERR | Ready::HUP | Ready::IN | Ready::OUT;
        session.push(&mut self.stats, &Event::Ready { slot, generation, ready }, Some(bell));
    }

    /// Chooses both ends of a new connection, which no other has, and whose incoming packets reach this
    /// replica.
    fn choose_tuple(
        &mut self,
        now: Instant,
        (local, remote): (Endpoint, Endpoint),
        range: (u16, u16),
    ) -> Result<FourTuple, NoPort> {
        // As on Linux, the unspecified address means loopback.
        let here = remote.addr.is_unspecified();
        let remote = if here { Endpoint::at(remote.addr.loopback_of_family(), remote.port) } else { remote };
        if remote.port == 0 {
            return Err(Cause::AddressNotAvailable.into());
        }
        let is_local = self.ip.is_own(remote.addr);
        let is_bound = !local.addr.is_unspecified();
        if is_bound && !self.ip.is_own(local.addr) {
            return Err(Cause::AddressNotAvailable.into());
        }
        // A socket bound to an address of one family, or to the unspecified IPv4 address, does not reach the
        // other.
        if local.addr != Addr::ANY && local.addr.is_v4() != remote.addr.is_v4() {
            return Err(Cause::Invalid.into());
        }
        if local.is_loopback() && !is_local {
            return Err(Cause::NetworkUnreachable.into());
        }
        if !is_local && self.ip.cast(remote.addr) != Some(Cast::Unicast) {
            return Err(Cause::NetworkUnreachable.into());
        }
        if !is_local && self.ip.next_hop(remote.addr).is_none() {
            return Err(Cause::NetworkUnreachable.into());
        }
        let source = if is_bound { Some(local.addr) } else { self.ip.source_for(remote.addr) };
        let addr = source.ok_or(Cause::AddressNotAvailable)?;
        let (owners, mut looks) = (&self.owners, 0);
        let chosen = if local.port != 0 {
            let tuple = FourTuple { local: Endpoint::at(addr, local.port), remote };
            let may_open = self.connections.may_open(now, &tuple, &|tuple| owners.is_ours(tuple), &mut looks);
            may_open.then_some(tuple).ok_or(NoPort::none())
        } else {
            let is_ours = |tuple: &FourTuple| owners.is_ours(tuple);
            let choice = PortChoice { range, rng: &mut self.rng, is_ours, looks: &mut looks };
            self.connections.choose_port(now, (addr, remote), choice)
        };
        self.load.charge_command(looks.saturating_mul(LOOK_COST));
        chosen
    }
}
