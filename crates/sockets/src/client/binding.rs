//! How a socket gets a port and listens: bind(2), listen(2), and datagram sockets on every replica.
//!
//! The authority of a port is one replica, which grants the port; its grant is shown to the others. Each step
//! sends commands and returns; the answers come as events, and the next step takes them.

use alloc::boxed::Box;
use alloc::vec::Vec;

use atoll_base::Endpoint;
use atoll_ipc::command::Protocol;
use atoll_ipc::lease::NO_USER;
use atoll_ipc::{Command, Device};

use super::Client;
use super::object::{Datagram, Kind, Lasting, Place, Socket, any};
use super::platform::Platform;
use super::questions::Answer;
use super::session::Session;
use crate::listener::Listener;
use crate::options::Name;
use crate::{Errno, Failure};

/// The first port that needs no privilege, unless the stack says otherwise: ip(7),
/// `ip_unprivileged_port_start`.
const USUALLY_UNPRIVILEGED: u16 = 1024;
/// The backlog for a negative number (listen(2)).
const BACKLOG: u32 = 4096;

/// Returns whether the authority has to know the user that asks for a port: a low one needs a privilege,
/// unless the stack says otherwise, an identifier of ICMP may be shared with others of the user, and a raw
/// socket needs a privilege in any case.
fn is_of_user(protocol: Protocol, port: u16) -> bool {
    let end = if protocol.is_icmp() { u16::MAX } else { USUALLY_UNPRIVILEGED - 1 };
    (1..=end).contains(&port)
}

/// The state of asking for a port.
#[derive(Clone, Copy, Debug)]
pub struct Binding {
    /// The identity that the port is to have.
    pub lease: u64,
    /// The port that is asked for; 0 for any free one.
    pub port: u16,
    /// Whether the authority has to know the user of the socket at once: for a low port, or one that others
    /// may share. Otherwise the user is named only if the authority refuses with EACCES.
    pub needs_pass: bool,
    local: Endpoint,
    authority: usize,
    /// The first and the last port of which one is asked for, if the socket has a range of its own.
    within: Option<(u16, u16)>,
}

impl Binding {
    /// Turns to the next of `replicas` replicas, because the ports of the socket's range whose authority was
    /// asked are all in use. Returns `false` if the socket has no range.
    pub fn turn_to_next(&mut self, replicas: usize) -> bool {
        self.authority = (self.authority + 1) % replicas.max(1);
        self.within.is_some()
    }
}

/// The state of registering a listener. The authority of its port is asked first, because it may refuse.
#[derive(Clone, Copy, Debug)]
pub struct Registration {
    local: Endpoint,
    lease: u64,
    backlog: u32,
    /// The number of replicas that have answered.
    answered: usize,
}

impl<P: Platform> Client<P> {
    /// Returns the answer under `token`, once it has come; a refusal is an error. Fails with ENETDOWN if
    /// replicas do not listen to this process.
    pub fn poll_answer(&self, token: u32) -> Result<Answer, Failure> {
        let none = if self.own().is_some_and(Session::is_heard) {
            Failure::WouldBlock
        } else {
            Errno::ENETDOWN.into()
        };
        let answer = self.answer(token).ok_or(none)?;
        Errno::of(answer.cause).map_or(Ok(answer), |errno| Err(errno.into()))
    }

    /// Sends a command that is answered to a replica of the process's own session, after the commands in
    /// `show`. Returns the token of the answer.
    pub fn ask_one(
        &mut self,
        replica: usize,
        show: &[Command],
        command: impl FnOnce(u32) -> Command,
    ) -> Result<u32, Errno> {
        let token = self.new_token();
        self.own().filter(|session| session.is_heard()).ok_or(Errno::ENETDOWN)?;
        self.ask(replica, token, show.iter().copied().chain([command(token)]).collect());
        Ok(token)
    }

    // ---- bind(2) ----

    /// Binds a socket to an address and no port if it has asked for that (ip(7),
    /// `IP_BIND_ADDRESS_NO_PORT`): connect(2) chooses the port, of which many connections may have the same
    /// one. Returns whether that is so.
    pub fn bind_without_port(&mut self, object: u32, local: Endpoint) -> bool {
        let Some(socket) = self.socket_mut(object) else { return false };
        let is_wanted = socket.options.is_on(Name::BindWithoutPort) && !socket.protocol.is_icmp();
        if local.port != 0 || !is_wanted || !socket.has_no_port() {
            return false;
        }
        socket.local = local;
        socket.kind = Kind::Bound;
        true
    }

    /// Begins to bind a socket to an address of the stack.
    pub fn start_binding(&mut self, object: u32, local: Endpoint) -> Result<Binding, Errno> {
        let fresh = self.rng.next_u64() | 1;
        let replicas = self.own().ok_or(Errno::ENETDOWN)?.count();
        let any = self.rng.below(replicas as u32) as usize;
        let authority = if local.port == 0 { any } else { usize::from(local.port) % replicas };
        let may_bind_again = self.may_bind_again(object);
        let socket = self.socket(object).ok_or(Errno::ENOTSOCK)?;
        if !socket.has_no_port() && !may_bind_again {
            return Err(Errno::EINVAL);
        }
        if socket.options.device() == Device::Link && local.is_loopback() && !local.addr.is_v4() {
            // __inet6_bind: the device has not that address.
            return Err(Errno::EADDRNOTAVAIL);
        }
        let lease = socket.pass.map_or(fresh, |(pass, _)| pass.lease);
        // Most sockets share nothing and have high ports: no replica has to know their users.
        let needs_pass = socket.options.is_on(Name::ReusePort) || is_of_user(socket.protocol, local.port);
        let ephemeral = self.own().ok_or(Errno::ENETDOWN)?.facts.ephemeral;
        let has_range = local.port == 0 && !socket.protocol.is_icmp();
        let within = socket.options.local_ports(ephemeral).filter(|_| has_range);
        Ok(Binding { lease, port: local.port, needs_pass, local, authority, within })
    }

    /// Returns whether a socket whose connection has ended may be bound once more: as on Linux
    /// (tcp_set_state), it has no port any more, unless the program had named one.
    fn may_bind_again(&mut self, object: u32) -> bool {
        let is_without =
            |socket: &Socket| (socket.lease == 0 || socket.lasting.port_found) && !socket.lasting.bound_since;
        self.socket(object).is_some_and(is_without)
            && self.stream(object).is_some_and(|(stream, ..)| stream.is_closed())
    }

    /// Begins to bind a socket that had its port on a stack that went to that port on the next one, under its
    /// number. Fails with EINVAL if the socket does not wait for that.
    pub fn start_binding_again(&mut self, object: u32) -> Result<Binding, Errno> {
        let replicas = self.own().filter(|session| session.is_heard()).ok_or(Errno::ENETDOWN)?.count();
        let socket = self.socket(object).filter(|socket| socket.standing.waits).ok_or(Errno::EINVAL)?;
        let (lease, local) = (socket.lease, socket.local);
        let needs_pass = is_of_user(socket.protocol, local.port) || socket.options.is_on(Name::ReusePort);
        let authority = usize::from(local.port) % replicas;
        Ok(Binding { lease, port: local.port, needs_pass, local, authority, within: None })
    }

    /// Asks the authority for the port. `passes` are the supervisor's statements about the user. Returns the
    /// token of the answer.
    pub fn ask_for_port(&mut self, object: u32, binding: &Binding, passes: &[Command]) -> Result<u32, Errno> {
        let socket = self.socket(object).ok_or(Errno::ENOTSOCK)?;
        let [reuse_addr, reuse_port] =
            [Name::ReuseAddr, Name::ReusePort].map(|name| socket.options.is_on(name));
        let v6_only = socket.is_v6_only();
        let Binding { lease, local, authority, within, .. } = *binding;
        let (protocol, device) = (socket.protocol, socket.options.device());
        if let Some((first, last)) = within {
            return self.ask_one(authority, passes, |token| Command::BindWithin {
                token,
                lease,
                protocol,
                local,
                first,
                last,
                reuse_addr,
                reuse_port,
                v6_only,
                device,
            });
        }
        self.ask_one(authority, passes, |token| Command::Bind {
            token,
            lease,
            protocol,
            local,
            reuse_addr,
            reuse_port,
            v6_only,
            device,
        })
    }

    /// Notes that the authority has granted the port. A datagram socket is still to be opened
    /// ([`Client::open_datagrams`]).
    pub fn finish_binding(&mut self, object: u32, binding: &Binding, answer: &Answer) -> Result<(), Errno> {
        let socket = self.socket_mut(object).ok_or(Errno::EBADF)?;
        let before = (socket.lease, socket.local.port);
        (socket.lease, socket.voucher) = (binding.lease, answer.voucher);
        // One that has its port on the next stack again is what it was.
        if socket.standing.waits {
            return Ok(());
        }
        socket.local = Endpoint::at(binding.local.addr, answer.port);
        socket.lasting.port_found = binding.port == 0;
        match socket.kind {
            Kind::Fresh => socket.kind = Kind::Bound,
            // To the program it is still a socket whose connection has ended.
            Kind::Stream(..) => socket.lasting.bound_since = true,
            _ => {}
        }
        if before.0 != 0 && before.0 != binding.lease {
            self.release_lease(before);
        }
        Ok(())
    }

    // ---- datagram sockets ----

    /// Opens a bound datagram socket on every replica, or gives it another peer. [`Client::poll_opened`]
    /// reports when it is open.
    pub fn open_datagrams(&mut self, object: u32, remote: Endpoint) -> Result<(), Errno> {
        self.own().filter(|session| session.is_heard()).ok_or(Errno::ENETDOWN)?;
        let replicas = self.replicas();
        let socket = self.socket(object).ok_or(Errno::ENOTSOCK)?;
        let (local, lease) = (socket.local, socket.lease);
        let shown = socket.show_all(replicas);
        let (reuse_port, v6_only) = (socket.options.is_on(Name::ReusePort), socket.is_v6_only());
        let kind = socket.protocol.datagram_kind().ok_or(Errno::EOPNOTSUPP)?;
        let mut places = socket.places().to_vec();
        let is_new = places.is_empty();
        if is_new {
            for replica in 0..replicas {
                places.push(self.new_place(object, replica).ok_or(Errno::ENOBUFS)?);
            }
        }
        for Place { session, replica, slot, generation } in places.iter().copied() {
            // A replica that has the socket knows the port already, whichever process of the family has it.
            if let Some(show) = shown.get(replica).copied().flatten().filter(|_| is_new) {
                self.push(session, replica, &show);
            }
            let command =
                Command::UdpOpen { slot, generation, lease, local, remote, reuse_port, v6_only, kind };
            self.push(session, replica, &command);
        }
        let sender = self.rng.next_u32() as usize;
        let socket = self.socket_mut(object).ok_or(Errno::ENOTSOCK)?;
        socket.remote = remote;
        if is_new {
            match &mut socket.kind {
                // It had places on a stack that went.
                Kind::Datagram(datagram) => datagram.places = places,
                kind => {
                    // inet_shutdown: it fails without a peer, but what was shut stays so.
                    let Lasting { shut_receive, shut_send, .. } = socket.lasting;
                    let datagram =
                        Datagram { places, sender, shut_receive, shut_send, ..Datagram::default() };
                    *kind = Kind::Datagram(Box::new(datagram));
                }
            }
            self.send_options(object);
        }
        if let Some(Socket { kind: Kind::Datagram(datagram), .. }) = self.socket_mut(object) {
            datagram.connected = remote.port != 0;
        }
        Ok(())
    }

    /// Returns the peer with which a datagram socket is opened when it has its port; port 0 stands for none.
    pub fn peer_to_open(&self, object: u32) -> Endpoint {
        match self.socket(object) {
            Some(Socket { kind: Kind::Datagram(datagram), remote, .. }) if datagram.connected => *remote,
            _ => Endpoint::default(),
        }
    }

    /// Returns whether all replicas have a datagram socket. Until they have, other programs of this machine
    /// would not find it, and incoming datagrams would be refused.
    pub fn poll_opened(&self, object: u32) -> Result<(), Failure> {
        let places = self.socket(object).map(Socket::places).unwrap_or_default();
        if let Some(errno) = places.iter().find_map(|place| self.datagrams(*place)?.refusal()) {
            return Err(errno.into());
        }
        let is_open = |place: &Place| self.datagrams(*place).is_some_and(|one| one.is_open());
        if places.iter().all(is_open) { Ok(()) } else { Err(Failure::WouldBlock) }
    }

    /// Chooses the address that packets to the peer leave from, as connect(2) of a datagram socket does.
    pub fn choose_source(&mut self, object: u32, remote: Endpoint) -> Result<(), Errno> {
        if let Some(socket) = self.socket(object) {
            // ip4_datagram_connect
            self.check_way(socket, remote.addr)?;
        }
        let device = self.socket(object).map(|socket| socket.options.device()).unwrap_or_default();
        let own = self.own().map(|session| session.source_on(remote.addr, device)).unwrap_or_default();
        let Some(socket) = self.socket_mut(object) else { return Ok(()) };
        if socket.local.addr.is_unspecified() || socket.is_local_chosen() {
            if own.is_unspecified() {
                return Err(Errno::ENETUNREACH);
            }
            socket.local.addr = own;
            if let Kind::Datagram(datagram) = &mut socket.kind {
                datagram.local_chosen = true;
            }
        }
        Ok(())
    }

    /// Removes the local address that connect(2) chose for a datagram socket, which has no peer any more
    /// (connect(2), AF_UNSPEC).
    pub fn forget_source(&mut self, object: u32) {
        if let Some(socket) = self.socket_mut(object).filter(|socket| socket.is_local_chosen()) {
            socket.local.addr = any(socket.v6).addr;
        }
    }

    // ---- listen(2) ----

    /// Returns the address to which a socket without a port is to be bound before it listens; fails if it
    /// cannot listen. A listener that was shut down begins again, at the address that it had.
    pub fn address_to_listen(&self, object: u32) -> Result<Option<Endpoint>, Errno> {
        let socket = self.socket(object).ok_or(Errno::EINVAL)?;
        match &socket.kind {
            _ if socket.protocol != Protocol::Tcp => Err(Errno::EOPNOTSUPP),
            _ if socket.has_no_port() => Ok(Some(Endpoint::at(socket.local.addr, 0))),
            Kind::Bound | Kind::Listening(_) => Ok(None),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Begins to register a listener at all replicas (N2). A negative backlog means a very long one, and the
    /// kernel has a limit of its own: listen(2).
    pub fn start_listening(&self, object: u32, backlog: i32) -> Result<Registration, Errno> {
        self.own().ok_or(Errno::ENETDOWN)?;
        let socket = self.socket(object).ok_or(Errno::ENOTSOCK)?;
        let backlog = u32::try_from(backlog).unwrap_or(BACKLOG).min(65535);
        Ok(Registration { local: socket.local, lease: socket.lease, backlog, answered: 0 })
    }

    /// Returns whether the port's authority wants to see the user of the socket now, which was bound without
    /// SO_REUSEPORT.
    pub fn is_nobodys(&self, object: u32, registration: &Registration) -> bool {
        registration.answered == 0
            && self
                .socket(object)
                .is_some_and(|socket| socket.options.is_on(Name::ReusePort) && socket.voucher.uid == NO_USER)
    }

    /// Asks the next replica to listen. Returns the token of its answer; `None` if all have answered.
    pub fn ask_to_listen(
        &mut self,
        object: u32,
        registration: &Registration,
        passes: &[Command],
    ) -> Result<Option<u32>, Errno> {
        let Registration { local, lease, backlog, answered } = *registration;
        let replicas = self.replicas();
        if answered >= replicas {
            return Ok(None);
        }
        let replica = (usize::from(local.port) % replicas + answered) % replicas;
        let socket = self.socket(object).ok_or(Errno::EBADF)?;
        let show: Vec<Command> = if passes.is_empty() {
            socket.show(replica, replicas).into_iter().collect()
        } else {
            passes.to_vec()
        };
        let listen = socket.listen((lease, local), backlog);
        self.ask_one(replica, &show, listen).map(Some)
    }

    /// Notes that a replica listens. The authority's grant is what the other replicas want to see.
    pub fn listens_at(
        &mut self,
        object: u32,
        registration: &mut Registration,
        answer: &Answer,
    ) -> Result<(), Errno> {
        if registration.answered == 0 {
            self.socket_mut(object).ok_or(Errno::EBADF)?.voucher = answer.voucher;
        }
        registration.answered += 1;
        Ok(())
    }

    /// Completes listen(2) after all replicas have begun to listen.
    pub fn finish_listening(&mut self, object: u32, registration: &Registration) -> Result<(), Errno> {
        let backlog = registration.backlog;
        let socket = self.socket_mut(object).ok_or(Errno::EBADF)?;
        let is_again = socket.standing.waits;
        match &mut socket.kind {
            Kind::Listening(listener) => listener.backlog = backlog,
            kind => {
                *kind = Kind::Listening(Box::new(Listener { backlog, ..Listener::default() }));
                self.listeners.push((registration.lease, object));
            }
        }
        self.send_options(object);
        // epoll_ctl may have come before listen. One that listens again accepts when all is done.
        if !self.watchers(object).is_empty() && !is_again {
            self.accept_connections(object);
        }
        Ok(())
    }
}
