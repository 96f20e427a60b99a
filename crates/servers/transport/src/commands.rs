//! Carries out the commands of applications. Every field is hostile until checked.

use atoll_base::{Endpoint, Instant, SlotId};
use atoll_ipc::arena::INFO;
use atoll_ipc::info::Info;
use atoll_ipc::lease::Grant;
use atoll_ipc::page::Stat;
use atoll_ipc::{Cause, Command, Event, Memory, Ready, SocketOption, tcp_state};

use crate::facts::ConnectionFacts;
use crate::ports::{Asked, within};
use crate::session::{Occupant, Place};
use crate::transport::Transport;

/// Returns the time that a command takes, with its consequences, in units of the time of a kick: about a
/// tenth of a microsecond.
#[inline]
pub(crate) fn cost(command: &Command) -> u32 {
    match command {
        Command::Kick { .. } | Command::SetOption { .. } => 1,
        Command::Claim { .. } | Command::Close { .. } | Command::Info { .. } => 4,
        Command::Connect { .. }
        | Command::ConnectWithin { .. }
        | Command::UdpOpen { .. }
        | Command::Group { .. }
        | Command::Listen { .. } => 16,
        _ => 8,
    }
}

/// The result of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carried {
    /// The command was carried out, or refused.
    Out,
    /// The command could not be carried out yet: it is the next one in the next round.
    Later,
}

impl<M: Memory> Transport<M> {
    /// Carries out one command of a session.
    #[inline]
    pub(crate) fn handle_command(&mut self, now: Instant, session: u32, command: Command) -> Carried {
        match command {
            Command::Kick { slot, generation } => match self.applications.occupant(session, slot, generation)
            {
                Occupant::Connection(index) => {
                    self.connections.kick(now, index, &self.config, &self.applications, &mut self.stats)
                }
                Occupant::Datagram(index) => self.kick_datagram(now, index),
                Occupant::Lost => {}
                Occupant::Nobody => self.stats.count(Stat::BadCommands),
            },
            Command::Claim { slot, generation } => self.claim(now, session, slot, generation),
            Command::Close { slot, generation, mode } => {
                match self.applications.occupant(session, slot, generation) {
                    Occupant::Connection(index) => self.close(now, index, mode),
                    Occupant::Datagram(index) => self.close_datagram(now, index),
                    Occupant::Lost => self.close_lost(session, slot, generation),
                    Occupant::Nobody => self.close_nothing(session, slot, generation),
                }
            }
            Command::SetOption { slot, generation, option, value } => {
                self.set_option(now, session, slot, generation, option, value);
            }
            Command::Connect { slot, generation, lease, local, remote } => {
                let place = Place { session, slot, generation };
                let range = self.config.ephemeral;
                return self.connect(now, place, Asked { lease, local, remote, range });
            }
            Command::ConnectWithin { slot, generation, local, remote, first, last } => {
                let place = Place { session, slot, generation };
                let range = within(self.config.ephemeral, (first, last));
                let local = Endpoint { port: 0, ..local };
                return self.connect(now, place, Asked { lease: 0, local, remote, range });
            }
            Command::Info { token, slot, generation } => {
                self.send_info(now, session, token, slot, generation)
            }
            _ => self.handle_standing(now, session, command),
        }
        Carried::Out
    }

    /// Closes a slot in which nothing was opened, for example because connect was refused.
    fn close_nothing(&mut self, session: u32, slot: SlotId, generation: u32) {
        let Some(view) = self.applications.get(session).and_then(|session| session.slot(slot)) else {
            self.stats.count(Stat::BadCommands);
            return;
        };
        if self.applications.get(session).is_some_and(|session| session.was_offered(slot, generation)) {
            // The offer was taken back before its session declined it.
        } else if self.applications.get(session).is_some_and(|session| session.is_vacant(slot)) {
            if view.replica_generation() == generation {
                view.set_state(atoll_ipc::slot::SlotState::Free);
            }
            self.applications.reply(&mut self.stats, session, &Event::SlotDone { slot, generation });
        } else {
            self.stats.count(Stat::BadCommands);
        }
    }

    /// Closes a socket whose connection is lost.
    fn close_lost(&mut self, session: u32, slot: SlotId, generation: u32) {
        let Some(session) = self.applications.get_mut(session) else { return };
        session.vacate(slot, false);
        session.push(&mut self.stats, &Event::SlotDone { slot, generation }, Some(0));
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
        let taken = match self.applications.occupant(session, slot, generation) {
            Occupant::Connection(index) => {
                self.connections.touch(index);
                let config = &self.config;
                self.connections
                    .get_mut(index)
                    .is_some_and(|entry| entry.set_option(now, config, option, value))
            }
            Occupant::Datagram(index) => {
                let command = Command::SetOption { slot, generation, option, value };
                let id = self.applications.get(session).map(|session| session.id).unwrap_or_default();
                if self.durability.may_keep(&self.applications, id, &command) {
                    let taken = self.datagrams.set_option(index, option, value);
                    if option == SocketOption::Device
                        && let Some(Grant { lease, device, .. }) =
                            self.datagrams.get(index).map(|it| *it.grant())
                    {
                        // Only the authority of the port has the lease.
                        self.cm.set_device(lease, device);
                    }
                    taken && self.durability.keep_request(&self.applications, id, command)
                } else {
                    // A successor would not know of the option. The next call reports the error.
                    self.datagrams.fail(index, Cause::NoBuffers, Ready::default());
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

    /// Writes the facts of a connection into the arena's info area.
    fn send_info(&mut self, now: Instant, session: u32, token: u32, slot: SlotId, generation: u32) {
        let cause = match self.applications.occupant(session, slot, generation) {
            Occupant::Connection(index) => {
                if let (Some(entry), Some(session)) =
                    (self.connections.get(index), self.applications.get(session))
                {
                    let tuple = self.connections.tuple(&entry.name);
                    let facts = ConnectionFacts::of(now, entry, tuple, &self.applications);
                    let mut info = facts.info();
                    if info.state == u64::from(tcp_state::TIME_WAIT) {
                        // tcp_time_wait: the socket of the program is closed then, and another remembers.
                        info.state = tcp_state::CLOSED.into();
                    }
                    info.store(&session.arena, INFO);
                }
                Cause::None
            }
            Occupant::Datagram(index) => self.store_path(now, session, index),
            _ => Cause::Invalid,
        };
        self.applications.reply(&mut self.stats, session, &Event::InfoReply { token, cause });
    }

    /// Stores the MTU of the path to the peer of a datagram socket, which is all that is asked of one:
    /// `IP_MTU`, `IPV6_MTU`.
    fn store_path(&self, now: Instant, session: u32, index: u32) -> Cause {
        let peer = self.datagrams.get(index).and_then(|socket| socket.remote());
        let (Some(peer), Some(session)) = (peer, self.applications.get(session)) else {
            return Cause::Invalid;
        };
        let path = self.ip.path_mtu(now, peer.addr);
        let mtu = path.map_or(self.ip.mtu_for(peer.addr), |path| path.mtu);
        Info { pmtu: mtu.into(), ..Info::default() }.store(&session.arena, INFO);
        Cause::None
    }
}
