//! Carries out requests that stay in force: ports, listeners, acceptors, datagram sockets, groups, and the
//! rights to them.
//!
//! Each of these is kept as a request when it is granted, and dropped when it is undone. A request is not
//! carried out if no successor could know of it.

use atoll_base::{Endpoint, Instant, SessionId};
use atoll_connmgr::{Bind, ConnMgr, Listen};
use atoll_ip::{Cast, Ip, Link};
use atoll_ipc::command::Protocol;
use atoll_ipc::lease::{Grant, NO_USER, Pass};
use atoll_ipc::page::Stat;
use atoll_ipc::{Cause, Command, Device, Event, Memory, SocketOption};

use crate::datagrams::Datagrams;
use crate::durability::Subject;
use crate::lease::{pass_command, voucher};
use crate::load::Load;
use crate::session::{Occupant, Place};
use crate::transport::Transport;

/// The number of leases of a port that are examined in the time of a unit of [`crate::commands::cost`].
const LEASES_LOOKED_AT: u32 = 8;

impl<M: Memory> Transport<M> {
    /// Carries out a command about what stays in force.
    pub(crate) fn handle_standing(&mut self, now: Instant, session: u32, command: Command) {
        let Some(id) = self.applications.get(session).map(|session| session.id) else { return };
        let who = (session, id);
        match command {
            Command::Bind { .. } => self.bind(who, command),
            Command::BindWithin { .. } => self.bind_within(who, command),
            Command::Release { .. } => self.release(id, command),
            Command::Listen { .. } => self.listen(now, who, command),
            Command::AcceptConnection { .. } => self.accept_connections(now, id, command),
            Command::AskConnection { .. } => self.ask_connection(now, who, command),
            Command::StopAccepting { .. } => self.stop_accepting(now, id, command),
            Command::SetListenerOption { .. } => self.set_listener_option(id, command),
            Command::Show { .. } => self.show(who, command),
            Command::Pass { .. } => self.take_pass(who, command),
            Command::UdpOpen { .. } => self.open_udp(now, who, command),
            Command::Group { .. } => self.change_group(now, who, command),
            _ => {}
        }
        self.run_directives(now);
    }

    /// Leases a port to a socket.
    fn bind(&mut self, (session, id): (u32, SessionId), command: Command) {
        let Command::Bind { token, lease, protocol, local, reuse_addr, reuse_port, v6_only, device } =
            command
        else {
            return;
        };
        charge_leases(&self.cm, &mut self.load, protocol, local.port);
        let Some(user) = self.applications.user_of(session, lease, protocol, local) else { return };
        let bind =
            Bind { session: id, user, lease, protocol, local, reuse_addr, reuse_port, v6_only, device };
        let kept = self.check_kept(id, &command);
        let bound = kept
            .and_then(|()| check_own(&self.ip, local, protocol))
            .and_then(|()| self.cm.handle_bind(&bind));
        let (cause, port) = match bound {
            Ok(port) => (Cause::None, port),
            Err(cause) => (cause, 0),
        };
        if cause == Cause::None {
            let local = Endpoint::at(local.addr, port);
            self.keep_owner(session, id, lease);
            let bind =
                Command::Bind { token, lease, protocol, local, reuse_addr, reuse_port, v6_only, device };
            self.durability.keep_request(&self.applications, id, bind);
        }
        let voucher = voucher(&self.secrets, self.cm.grant(id, lease).filter(|_| cause == Cause::None));
        self.applications.reply(&mut self.stats, session, &Event::BindReply { token, cause, port, voucher });
    }

    /// Leases one of some ports to a socket.
    fn bind_within(&mut self, who: (u32, SessionId), command: Command) {
        let Command::BindWithin { token, lease, protocol, mut local, reuse_addr, .. } = command else {
            return;
        };
        let Command::BindWithin { first, last, reuse_port, v6_only, device, .. } = command else { return };
        let Some(port) = self.cm.port_within(protocol, lease, (first, last)) else {
            let (cause, voucher) = (Cause::AddressInUse, voucher(&self.secrets, None));
            let reply = Event::BindReply { token, cause, port: 0, voucher };
            return self.applications.reply(&mut self.stats, who.0, &reply);
        };
        local.port = port;
        let bind = Command::Bind { token, lease, protocol, local, reuse_addr, reuse_port, v6_only, device };
        self.bind(who, bind);
    }

    /// Ends a socket's lease of a port.
    fn release(&mut self, id: SessionId, command: Command) {
        let Command::Release { lease } = command else { return };
        if let Some(Grant { protocol, local, .. }) = self.cm.grant(id, lease) {
            charge_leases(&self.cm, &mut self.load, protocol, local.port);
        }
        self.cm.handle_release(id, lease);
        self.durability.drop_requests(id, Subject::Lease(lease));
    }

    /// Makes a socket listen.
    fn listen(&mut self, now: Instant, (session, id): (u32, SessionId), command: Command) {
        let Command::Listen { token, lease, local, backlog, reuse_port, defer_accept, v6_only, hops_min } =
            command
        else {
            return;
        };
        let shown = self.applications.shown(session, lease);
        let uid =
            self.applications.user_of(session, lease, Protocol::Tcp, local).map_or(NO_USER, |user| user.uid);
        let listen =
            Listen { session: id, lease, local, backlog, reuse_port, defer_accept, v6_only, uid, shown };
        let kept = self.check_kept(id, &command);
        let own = kept.and_then(|()| check_own(&self.ip, local, Protocol::Tcp));
        let listens = own.and_then(|()| self.cm.handle_listen(&listen));
        let cause = listens.err().unwrap_or_default();
        if cause == Cause::None {
            self.limit_hops(id, lease, hops_min);
            self.keep_shown(id, shown);
            self.keep_owner(session, id, lease);
            self.durability.keep_request(&self.applications, id, command);
        } else if cause == Cause::Invalid {
            self.stats.count(Stat::BadCommands);
        }
        // A program that has the reply may connect at once, and reads the page to see whose port it is.
        self.run_directives(now);
        let voucher = voucher(&self.secrets, self.cm.grant(id, lease).filter(|_| cause == Cause::None));
        self.applications.reply(&mut self.stats, session, &Event::ListenReply { token, cause, voucher });
    }

    /// Gives a listener the least TTL and the least hop limit of segments with which it begins.
    pub(crate) fn limit_hops(&mut self, id: SessionId, lease: u64, hops_min: [u8; 2]) {
        let Some(listener) = self.cm.listener_of(id, lease) else { return };
        for (option, hops) in [SocketOption::MinTtl, SocketOption::MinHopCount].into_iter().zip(hops_min) {
            if hops != 0 {
                self.handshakes.set_option(&self.config, listener, option, hops.into());
            }
        }
    }

    /// Registers an acceptor.
    fn accept_connections(&mut self, now: Instant, id: SessionId, command: Command) {
        let Command::AcceptConnection { lease } = command else { return };
        let taken = self.cm.handle_accept(now, id, lease);
        if taken {
            self.durability.keep_request(&self.applications, id, command);
        }
        self.stats.add(Stat::BadCommands, (!taken).into());
    }

    /// Handles an acceptor's question for a connection (P4).
    fn ask_connection(&mut self, now: Instant, (session, id): (u32, SessionId), command: Command) {
        let Command::AskConnection { lease, takes } = command else { return };
        let answered = self.cm.handle_ask(now, id, lease, takes);
        if !answered {
            // A CM in another process is not asked; the session is not to blame.
            self.stats.add(Stat::BadCommands, (!self.cm.is_manager_apart()).into());
            let event = Event::ConnectionsWait { listener: lease, waiting: false, answers: true };
            self.applications.reply(&mut self.stats, session, &event);
        }
    }

    /// Deregisters an acceptor.
    fn stop_accepting(&mut self, now: Instant, id: SessionId, command: Command) {
        let Command::StopAccepting { lease } = command else { return };
        self.cm.handle_stop_accepting(now, id, lease);
        self.durability.drop_request(id, &Command::AcceptConnection { lease });
    }

    /// Sets an option that a listener hands on.
    fn set_listener_option(&mut self, id: SessionId, command: Command) {
        let Command::SetListenerOption { lease, option, value } = command else { return };
        if matches!(option, SocketOption::Device | SocketOption::ReuseAddr) {
            let is_set = self.set_option_of_port(id, command);
            return self.stats.add(Stat::BadCommands, (!is_set).into());
        }
        let Some(listener) = self.cm.listener_of(id, lease) else {
            self.stats.count(Stat::BadCommands);
            return;
        };
        // It is not set if no successor would know of it.
        let may_keep = self.durability.may_keep(&self.applications, id, &command);
        let is_set = may_keep
            && match option {
                SocketOption::DeferAccept => {
                    self.cm.set_defer_accept(listener, u16::try_from(value).unwrap_or(u16::MAX));
                    true
                }
                _ => self.handshakes.set_option(&self.config, listener, option, value),
            };
        if is_set {
            self.durability.keep_request(&self.applications, id, command);
        } else {
            self.stats.count(Stat::BadCommands);
        }
    }

    /// Sets an option of a socket that has its port, which decides who may have the port beside it: the
    /// device, unless the socket listens, and `SO_REUSEADDR`. Returns `false` if that cannot be.
    fn set_option_of_port(&mut self, id: SessionId, command: Command) -> bool {
        let Command::SetListenerOption { lease, option, value } = command else { return false };
        // It is not set if no successor would know of it.
        let may_keep =
            self.cm.grant(id, lease).is_some() && self.durability.may_keep(&self.applications, id, &command);
        let is_set = may_keep
            && match option {
                SocketOption::ReuseAddr => self.cm.set_reuse_addr(lease, value != 0),
                _ if self.cm.listener_of(id, lease).is_some() => false,
                _ => Device::of_value(value).is_some_and(|device| self.cm.set_device(lease, device)),
            };
        is_set && self.durability.keep_request(&self.applications, id, command)
    }

    /// Notes what the authority of a port has granted, which a session shows.
    fn show(&mut self, (session, id): (u32, SessionId), command: Command) {
        let Command::Show { lease, protocol, local, voucher } = command else { return };
        let grant = Grant::of(lease, protocol, local, &voucher);
        let before = self.applications.get(session).and_then(|session| session.rights.last_shown());
        let shower = self.applications.get_mut(session);
        let taken = shower.is_some_and(|session| session.rights.show(&self.secrets, grant, &voucher));
        self.stats.add(Stat::BadCommands, (!taken).into());
        if taken {
            // The command that it is for may be carried out by a successor. What was shown before, and led to
            // nothing, is dropped.
            if let Some(before) = before
                .filter(|before| before.lease != lease && !is_in_use(&self.cm, &self.datagrams, id, before))
            {
                let Grant { lease, protocol, local, .. } = before;
                self.durability.drop_request(id, &Command::Show { lease, protocol, local, voucher });
            }
            self.keep_shown(id, Some(grant));
        }
    }

    /// Notes a pass of the supervisor that a session shows.
    fn take_pass(&mut self, (session, id): (u32, SessionId), command: Command) {
        let Command::Pass { pass, seal } = command else { return };
        let before = self.applications.get(session).and_then(|session| session.rights.last_pass());
        let shower = self.applications.get_mut(session);
        let taken = shower.and_then(|session| session.rights.take_pass(&self.secrets, pass, seal));
        self.stats.add(Stat::BadCommands, taken.is_none().into());
        if let Some(pass) = taken {
            // This is as with grants that are shown. The owner of a socket that has its port is in the grant.
            if let Some(before) = before.filter(|before| before.lease != pass.lease) {
                self.durability.drop_request(id, &pass_command(&self.secrets, before));
            }
            self.durability.keep_request(&self.applications, id, pass_command(&self.secrets, pass));
        }
    }

    /// Opens a datagram socket, or changes its ends.
    fn open_udp(&mut self, now: Instant, (session, id): (u32, SessionId), command: Command) {
        let Command::UdpOpen { slot, generation, lease, local, remote, kind, .. } = command else { return };
        let protocol = kind.protocol();
        let place = Place { session, slot, generation };
        let kept = self.check_kept(id, &command);
        let opened = kept.and_then(|()| self.open_datagram(now, place, (protocol, lease), local, remote));
        match opened {
            // A socket whose slot is invalid is gone again.
            Ok(()) => {
                if let Occupant::Datagram(_) = self.applications.occupant(session, slot, generation) {
                    self.keep_shown(id, self.applications.shown(session, lease));
                    self.durability.keep_request(&self.applications, id, command);
                }
            }
            Err(cause) => self.refuse_datagram(place, cause),
        }
    }

    /// Lets a datagram socket join a group, or leave it.
    fn change_group(&mut self, now: Instant, (session, id): (u32, SessionId), command: Command) {
        let Command::Group { slot, generation, group, inside, joins, token } = command else { return };
        let link = if inside { Link::Inside } else { Link::Outside };
        let place = Place { session, slot, generation };
        let kept = if joins { self.check_kept(id, &command) } else { Ok(()) };
        let changed = kept.and_then(|()| self.change_membership(now, place, (link, group), joins));
        if token != 0 {
            let cause = match changed {
                // A predecessor has done this already, but could not reply any more.
                Err(Cause::AddressInUse) => Cause::None,
                _ => changed.err().unwrap_or_default(),
            };
            self.applications.reply(&mut self.stats, session, &Event::GroupReply { token, cause });
        }
        match changed {
            Ok(()) if joins => {
                self.durability.keep_request(&self.applications, id, command);
            }
            Err(_) if self.is_joined(place, (link, group)) => {}
            // The group was left, or could not be joined, for example by a successor.
            _ => self.durability.drop_request(id, &command),
        }
        self.stats.add(Stat::BadCommands, changed.is_err().into());
    }

    /// Checks that a command can be kept for a successor, with what the session has shown for it. Fails with
    /// NoBuffers if there is no room.
    fn check_kept(&self, id: SessionId, command: &Command) -> Result<(), Cause> {
        if self.durability.may_keep(&self.applications, id, command) { Ok(()) } else { Err(Cause::NoBuffers) }
    }

    /// Keeps a grant that a session has shown, and by which something is in force: a successor needs it, too.
    fn keep_shown(&mut self, id: SessionId, shown: Option<Grant>) {
        if let Some(grant) = shown.filter(|grant| !self.cm.is_authority(grant.local.port)) {
            let Grant { lease, protocol, local, .. } = grant;
            let voucher = voucher(&self.secrets, Some(grant));
            self.durability.keep_request(
                &self.applications,
                id,
                Command::Show { lease, protocol, local, voucher },
            );
        }
    }

    /// Keeps the owner of a port whose authority this replica is, and that it may be low, for a successor.
    /// The grant contains what the pass has said.
    fn keep_owner(&mut self, session: u32, id: SessionId, lease: u64) {
        let is_plain =
            |grant: &Grant| self.applications.get(session).is_some_and(|it| it.rights.is_plain(grant));
        if let Some(grant) = self.cm.grant(id, lease).filter(|grant| !is_plain(grant)) {
            let Grant { lease, protocol, local, uid, .. } = grant;
            self.durability
                .drop_request(id, &pass_command(&self.secrets, Pass { lease, uid, protocol, port: 0 }));
            let voucher = voucher(&self.secrets, Some(grant));
            self.durability.keep_request(
                &self.applications,
                id,
                Command::Show { lease, protocol, local, voucher },
            );
        }
    }
}

/// Charges a command for the examination of all leases of a port.
fn charge_leases(cm: &ConnMgr, load: &mut Load, protocol: Protocol, port: u16) {
    // Cannot truncate: their number is bounded.
    let looks = cm.leases_at(protocol, port) as u32;
    load.charge_command(looks / LEASES_LOOKED_AT);
}

/// Returns whether a session has a port, a listener or a datagram socket by this grant.
fn is_in_use(cm: &ConnMgr, datagrams: &Datagrams, id: SessionId, grant: &Grant) -> bool {
    let is_bound = cm.grant(id, grant.lease).is_some();
    is_bound || cm.listener_of(id, grant.lease).is_some() || datagrams.has_lease(grant)
}

/// Checks that a socket may be bound to an address.
fn check_own(ip: &Ip, local: Endpoint, protocol: Protocol) -> Result<(), Cause> {
    let is_own = local.addr.is_unspecified() || ip.is_own(local.addr);
    // ip(7): datagram sockets may be bound to a group, to receive only what is sent to it.
    let is_group = protocol == Protocol::Udp && ip.cast(local.addr) == Some(Cast::Multicast);
    if is_own || is_group { Ok(()) } else { Err(Cause::AddressNotAvailable) }
}
