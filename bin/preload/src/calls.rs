//! What do the calls of the socket API do on Atoll's sockets? One function each; errors are errno values.

use atoll_base::{Duration, Endpoint};
use atoll_ipc::command::Protocol;
use atoll_ipc::{Cause, Command, Memory};
use atoll_sockets::listener::{Claim, Listener, Offer, claim};
use atoll_sockets::stream::Local;
use atoll_sockets::watch::Head;
use atoll_sockets::{Errno, Failure};

use crate::real;
use crate::state::{Body, Kind, Object, Options, Place, STATE, Socket, State, set_fd};
use crate::wait::{block, is_nonblocking};

/// Deadline of a command that is answered: a replica that takes longer is not there.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// Placeholders kept for accepted connections.
const POOL_MAX: usize = 256;

/// An object for a new descriptor.
pub fn new_socket(protocol: Protocol, v6: bool, nonblocking: bool) -> Object {
    Object {
        descriptors: 1,
        nonblocking,
        watchers: Head::default(),
        body: Body::Socket(Socket {
            protocol,
            v6,
            kind: Kind::Fresh,
            lease: 0,
            local: Endpoint::default(),
            remote: Endpoint::default(),
            options: Options::default(),
            bell: 0,
            pooled: false,
            connect_reported: false,
        }),
    }
}

/// socket(2): a kernel socket that an Atoll socket may take the place of.
pub fn socket(fd: i32, protocol: Protocol, v6: bool, nonblocking: bool) {
    STATE.with(|state| {
        if state.join() {
            let object = state.objects.insert(new_socket(protocol, v6, nonblocking));
            set_fd(fd, Some(object));
        }
    });
}

/// Gives a socket back to the kernel: its placeholder becomes the socket.
pub fn to_kernel(fd: i32, object: u32) {
    STATE.with(|state| state.release(object));
    set_fd(fd, None);
}

/// Sends a command that is answered, and waits for the answer.
fn ask(replica: usize, command: impl FnOnce(u32) -> Command) -> Result<u16, Errno> {
    let token = STATE.with(|state| {
        state.next_token = state.next_token.wrapping_add(1);
        let token = state.next_token;
        state.sessions[0].push(replica, &command(token));
        token
    });
    block(None, Some(REPLY_TIMEOUT), |state| {
        let at = state.replies.iter().position(|(t, ..)| *t == token).ok_or(Failure::WouldBlock)?;
        let (_, cause, port) = state.replies.swap_remove(at);
        match Errno::of(cause) {
            None => Ok(port),
            Some(errno) => Err(errno.into()),
        }
    })
    .map_err(|errno| if errno == Errno::EAGAIN { Errno::ENETDOWN } else { errno })
}

/// bind(2) to an address of the stack.
pub fn bind(object: u32, local: Endpoint) -> Result<(), Errno> {
    let (protocol, options, replicas, lease, bound) = STATE.with(|state| {
        let lease = state.rng.next_u64() | 1;
        let replicas = state.sessions[0].replicas.len();
        let start = state.rng.below(replicas as u32) as usize;
        let socket = state.socket(object).ok_or(Errno::ENOTSOCK)?;
        let bound = !matches!(socket.kind, Kind::Fresh);
        Ok((socket.protocol, socket.options, (replicas, start), lease, bound))
    })?;
    if bound {
        return Err(Errno::EINVAL);
    }
    let authority = if local.port == 0 { replicas.1 } else { usize::from(local.port) % replicas.0 };
    let (reuse_addr, reuse_port) = (options.reuse_addr, options.reuse_port);
    let port = ask(authority, |token| Command::Bind { token, lease, protocol, local, reuse_addr, reuse_port })?;
    let local = Endpoint::new(local.addr, port);
    STATE.with(|state| {
        let socket = state.socket_mut(object).ok_or(Errno::ENOTSOCK)?;
        socket.lease = lease;
        socket.local = local;
        socket.kind = Kind::Bound;
        Ok(())
    })?;
    if protocol == Protocol::Udp { open_datagrams(object, Endpoint::default()) } else { Ok(()) }
}

/// Opens a bound datagram socket on every replica, or connects it. Waits until all have it: a datagram that is sent to it as
/// soon as bind(2) has returned finds it, whichever replica it arrives at.
pub fn open_datagrams(object: u32, remote: Endpoint) -> Result<(), Errno> {
    tell_datagrams(object, remote)?;
    let opened = block(Some(object), Some(REPLY_TIMEOUT), |state| {
        let Some(Kind::Datagram { places, .. }) = state.socket(object).map(|s| &s.kind) else {
            return Err(Errno::EBADF.into());
        };
        let all = places.iter().all(|place| state.datagrams(*place).is_some_and(|datagrams| datagrams.is_open()));
        if all { Ok(()) } else { Err(Failure::WouldBlock) }
    });
    opened.map_err(|errno| if errno == Errno::EAGAIN { Errno::ENETDOWN } else { errno })
}

fn tell_datagrams(object: u32, remote: Endpoint) -> Result<(), Errno> {
    STATE.with(|state| {
        let socket = state.socket_mut(object).ok_or(Errno::ENOTSOCK)?;
        let (local, lease, reuse_port, bell) = (socket.local, socket.lease, socket.options.reuse_port, socket.bell);
        let old = match &socket.kind {
            Kind::Datagram { places, .. } => places.clone(),
            _ => Vec::new(),
        };
        let mut places = old.clone();
        let member = state.sessions[0].member;
        for replica in 0..state.sessions[0].replicas.len() {
            let place = match old.get(replica) {
                Some(place) => *place,
                None => {
                    let to = &mut state.sessions[0].replicas[replica];
                    let (slot, generation) = to.port.allocate_slot().ok_or(Errno::ENOBUFS)?;
                    to.set_user(slot, object);
                    if let Some(lines) = to.port.slot(slot) {
                        lines.set_holders(1 << (member & 63));
                        lines.set_bell(bell);
                    }
                    Place { session: 0, replica, slot, generation }
                }
            };
            let Place { slot, generation, .. } = place;
            let command = Command::UdpOpen { slot, generation, lease, local, remote, reuse_port };
            state.sessions[0].push(replica, &command);
            if old.is_empty() {
                places.push(place);
            }
        }
        let next = state.rng.next_u32() as usize;
        let socket = state.socket_mut(object).ok_or(Errno::ENOTSOCK)?;
        socket.remote = remote;
        socket.kind = Kind::Datagram { places, connected: remote.port != 0, next };
        Ok(())
    })
}

/// Opens a datagram socket that is not bound yet, at any port.
pub fn ensure_datagrams(object: u32) -> Result<(), Errno> {
    let fresh = STATE.with(|state| state.socket(object).is_some_and(|s| matches!(s.kind, Kind::Fresh)));
    if fresh { bind(object, Endpoint::default()) } else { Ok(()) }
}

/// listen(2).
pub fn listen(object: u32, backlog: i32) -> Result<(), Errno> {
    let fresh = STATE.with(|state| match state.socket(object).map(|s| (&s.kind, s.protocol)) {
        Some((_, Protocol::Udp)) => Err(Errno::EOPNOTSUPP),
        Some((Kind::Fresh, _)) => Ok(true),
        Some((Kind::Bound | Kind::Listening(_), _)) => Ok(false),
        _ => Err(Errno::EINVAL),
    })?;
    if fresh {
        bind(object, Endpoint::default())?;
    }
    let backlog = u32::try_from(backlog).unwrap_or(4096).max(1);
    listen_again(object, backlog)?;
    STATE.with(|state| {
        let socket = state.socket_mut(object).ok_or(Errno::ENOTSOCK)?;
        match &mut socket.kind {
            Kind::Listening(listener) => listener.backlog = backlog,
            kind => {
                *kind = Kind::Listening(Box::new(Listener { backlog, ..Listener::default() }));
                let lease = socket.lease;
                state.listeners.push((lease, object));
            }
        }
        crate::options::tell_all(state, object);
        // epoll_ctl may have come before listen.
        if state.objects.get(object).is_some_and(|o| !o.watchers.is_empty()) {
            state.accept_connections(object);
        }
        Ok(())
    })
}

/// Replicates a listener to all replicas of the own session (N2), the authority of the port first: it may refuse.
pub fn listen_again(object: u32, backlog: u32) -> Result<(), Errno> {
    let (lease, local, options, replicas) = STATE.with(|state| {
        let replicas = state.sessions[0].replicas.len();
        let socket = state.socket(object).ok_or(Errno::ENOTSOCK)?;
        Ok((socket.lease, socket.local, socket.options, replicas))
    })?;
    let (reuse_port, defer_accept) = (options.reuse_port, u16::try_from(options.defer_accept).unwrap_or(u16::MAX));
    let authority = usize::from(local.port) % replicas;
    for i in 0..replicas {
        let replica = (authority + i) % replicas;
        ask(replica, |token| Command::Listen { token, lease, local, backlog, reuse_port, defer_accept })?;
    }
    Ok(())
}

/// A forked child holds an inherited listener by its own session too.
pub fn hold_again(object: u32, backlog: u32) -> Result<(), Errno> {
    let (lease, local, protocol, options, replicas) = STATE.with(|state| {
        let replicas = state.sessions[0].replicas.len();
        let socket = state.socket(object).ok_or(Errno::ENOTSOCK)?;
        Ok((socket.lease, socket.local, socket.protocol, socket.options, replicas))
    })?;
    let (reuse_addr, reuse_port) = (options.reuse_addr, options.reuse_port);
    let authority = usize::from(local.port) % replicas;
    ask(authority, |token| Command::Bind { token, lease, protocol, local, reuse_addr, reuse_port })?;
    listen_again(object, backlog)?;
    STATE.with(|state| {
        // epoll instances that already watch it, or threads that will, want its connections.
        if state.objects.get(object).is_some_and(|o| !o.watchers.is_empty()) {
            state.accept_connections(object);
        }
    });
    Ok(())
}

/// accept4(2): the descriptor of the next connection, and its peer.
pub fn accept(object: u32, nonblocking_child: bool, cloexec: bool) -> Result<(i32, Endpoint, bool), Errno> {
    let timeout = STATE.with(|state| {
        let Some(Socket { kind: Kind::Listening(_), options, .. }) = state.socket(object) else {
            return Err(Errno::EINVAL);
        };
        let timeout = (options.receive_timeout_us > 0).then(|| Duration::from_micros(options.receive_timeout_us));
        if is_nonblocking(state, object) { Ok(Some(Duration::ZERO)) } else { Ok(timeout) }
    })?;
    let step = |state: &mut State| {
        state.accept_connections(object);
        take_connection(state, object)
    };
    let offer = if timeout == Some(Duration::ZERO) {
        STATE
            .with(|state| match step(state) {
                Err(Failure::WouldBlock) => {
                    state.drain();
                    step(state)
                }
                result => result,
            })
            .map_err(|failure| match failure {
                Failure::WouldBlock => Errno::EAGAIN,
                Failure::Error(errno) => errno,
            })?
    } else {
        block(Some(object), timeout, step)?
    };
    let fd = placeholder(cloexec)?;
    STATE.with(|state| {
        let Some(listener) = state.socket(object) else { return Err(Errno::EBADF) };
        let (v6, inherited) = (listener.v6, listener.options);
        let mut child = new_socket(Protocol::Tcp, v6, nonblocking_child);
        let place =
            Place { session: 0, replica: usize::from(offer.replica), slot: offer.slot, generation: offer.generation };
        if let Body::Socket(socket) = &mut child.body {
            socket.kind = Kind::Stream(place, Local::default());
            socket.local = offer.local;
            socket.remote = offer.remote;
            socket.options = Options { linger: inherited.linger, ..inherited };
            socket.pooled = true;
            socket.connect_reported = true;
        }
        let number = state.objects.insert(child);
        state.sessions[0].replicas[place.replica].set_user(place.slot, number);
        set_fd(fd, Some(number));
        Ok((fd, offer.remote, v6))
    })
}

/// CLAIM-CONNECTION for the first offer that still stands.
fn take_connection(state: &mut State, object: u32) -> Result<Offer, Failure> {
    loop {
        let Some(Socket { kind: Kind::Listening(listener), .. }) = state.socket_mut(object) else {
            return Err(Errno::EINVAL.into());
        };
        if let Some(offer) = listener.claimed {
            match listener.verdict.take() {
                Some(true) => {
                    listener.claimed = None;
                    return Ok(offer);
                }
                Some(false) => listener.claimed = None,
                None => return Err(Failure::WouldBlock),
            }
            continue;
        }
        let Some(offer) = listener.offers.pop_front() else { return Err(Failure::WouldBlock) };
        let session = &mut state.sessions[0];
        let (member, replica) = (session.member, usize::from(offer.replica));
        let Some(from) = session.replicas.get(replica) else { continue };
        match claim(&from.port, &offer, member, 0) {
            Claim::Gone => {}
            held => {
                let (slot, generation) = (offer.slot, offer.generation);
                session.push(replica, &Command::Claim { slot, generation });
                if held == Claim::Held {
                    return Ok(offer);
                }
                if let Some(Socket { kind: Kind::Listening(listener), .. }) = state.socket_mut(object) {
                    listener.claimed = Some(offer);
                    listener.verdict = None;
                }
            }
        }
    }
}

/// A descriptor number for an accepted connection: a duplicate of a socket that is never used.
fn placeholder(cloexec: bool) -> Result<i32, Errno> {
    let pooled = STATE.with(|state| {
        if cloexec {
            // Numbers of the pool are CLOEXEC.
            state.pool.pop()
        } else {
            None
        }
    });
    if let Some(fd) = pooled {
        return Ok(fd);
    }
    let kind = libc::SOCK_STREAM | if cloexec { libc::SOCK_CLOEXEC } else { 0 };
    // SAFETY: creates a descriptor.
    let fd = unsafe { real::socket(libc::AF_INET, kind, 0) };
    if fd < 0 { Err(last_errno()) } else { Ok(fd) }
}

/// close(2) of one descriptor of an object. Returns whether the kernel's descriptor is to be closed too.
pub fn close(fd: i32, object: u32) -> bool {
    let (pooled, linger) = STATE.with(|state| {
        state.calls += 1;
        let last = state.objects.get(object).is_some_and(|o| o.descriptors == 1);
        let socket = state.socket(object);
        let pooled = last && socket.is_some_and(|s| s.pooled);
        let linger = socket.and_then(|s| s.options.linger).filter(|linger| *linger > 0 && last);
        (pooled, linger)
    });
    if let Some(seconds) = linger {
        linger_on(object, seconds);
    }
    set_fd(fd, None);
    STATE.with(|state| {
        if pooled && state.pool.len() < POOL_MAX && is_cloexec(fd) {
            state.release(object);
            state.pool.push(fd);
            return false;
        }
        state.release(object);
        true
    })
}

fn is_cloexec(fd: i32) -> bool {
    // Programs that use accept4 with SOCK_CLOEXEC never need this system call; see `accept`.
    CLOEXEC.get(fd as usize).is_some_and(|bit| bit.load(std::sync::atomic::Ordering::Relaxed))
}

/// Whether a pooled number is CLOEXEC, by number.
static CLOEXEC: [std::sync::atomic::AtomicBool; 65536] = [const { std::sync::atomic::AtomicBool::new(true) }; 65536];

/// SO_LINGER with a time: waits until the peer has acknowledged everything.
fn linger_on(object: u32, seconds: u32) {
    let _ = block(Some(object), Some(Duration::from_secs(seconds.into())), |state| match state.stream(object) {
        Some((stream, ..)) if stream.unacknowledged() > 0 && !stream.is_closed() => Err(Failure::WouldBlock),
        _ => Ok(()),
    });
}

/// connect(2) to an address that the stack reaches.
pub fn connect(object: u32, remote: Endpoint) -> Result<(), Errno> {
    enum Now {
        Wait,
        Done(Result<(), Errno>),
    }
    let udp = STATE.with(|state| state.socket(object).is_some_and(|s| s.protocol == Protocol::Udp));
    if udp {
        ensure_datagrams(object)?;
        STATE.with(|state| {
            // connect(2) chooses the address that packets to the peer leave from.
            let own = state.sessions[0].facts.addr;
            if let Some(socket) = state.socket_mut(object)
                && socket.local.addr == 0
            {
                socket.local.addr = if remote.is_loopback() { 0x7f00_0001 } else { own };
            }
        });
        return open_datagrams(object, remote);
    }
    let started = STATE.with(|state| {
        let socket = state.socket(object).ok_or(Errno::ENOTSOCK)?;
        match &socket.kind {
            Kind::Listening(_) => return Err(Errno::EISCONN),
            Kind::Datagram { .. } => return Err(Errno::EINVAL),
            Kind::Stream(..) => {
                let reported = socket.connect_reported;
                let Some((stream, local, _)) = state.stream(object) else { return Err(Errno::EBADF) };
                if stream.is_connecting() {
                    return Err(Errno::EALREADY);
                }
                if stream.is_closed() {
                    return Err(stream.take_error(local).unwrap_or(Errno::ECONNABORTED));
                }
                if reported {
                    return Err(Errno::EISCONN);
                }
                if let Some(socket) = state.socket_mut(object) {
                    socket.connect_reported = true;
                }
                return Ok(Now::Done(Ok(())));
            }
            Kind::Fresh | Kind::Bound => {}
        }
        let (local, lease, bell) = (socket.local, socket.lease, socket.bell);
        let session = &mut state.sessions[0];
        let replica = if local.port != 0 {
            let addr = if local.addr != 0 {
                local.addr
            } else if remote.is_loopback() {
                remote.addr
            } else {
                session.facts.addr
            };
            session.owner(Endpoint::new(addr, local.port), remote)
        } else {
            state.rng.below(session.replicas.len() as u32) as usize
        };
        let to = &mut session.replicas[replica];
        let (slot, generation) = to.port.allocate_slot().ok_or(Errno::ENOBUFS)?;
        to.set_user(slot, object);
        if let Some(lines) = to.port.slot(slot) {
            lines.set_holders(1 << (session.member & 63));
            lines.set_bell(bell);
        }
        session.push(replica, &Command::Connect { slot, generation, lease, local, remote });
        let place = Place { session: 0, replica, slot, generation };
        let nonblocking = is_nonblocking(state, object);
        let socket = state.socket_mut(object).ok_or(Errno::ENOTSOCK)?;
        socket.remote = remote;
        socket.kind = Kind::Stream(place, Local::default());
        crate::options::tell_all(state, object);
        if nonblocking { Err(Errno::EINPROGRESS) } else { Ok(Now::Wait) }
    })?;
    if let Now::Done(result) = started {
        return result;
    }
    let timeout = STATE.with(|state| state.socket(object).map_or(0, |s| s.options.send_timeout_us));
    let timeout = (timeout > 0).then(|| Duration::from_micros(timeout));
    let result = block(Some(object), timeout, |state| {
        let Some((stream, local, _)) = state.stream(object) else { return Err(Errno::EBADF.into()) };
        if stream.is_connecting() {
            return Err(Failure::WouldBlock);
        }
        match stream.is_closed().then(|| stream.take_error(local)).flatten() {
            Some(errno) => Err(errno.into()),
            None => Ok(()),
        }
    });
    if result.is_ok() {
        STATE.with(|state| {
            if let Some(socket) = state.socket_mut(object) {
                socket.connect_reported = true;
            }
        });
    }
    result.map_err(|errno| if errno == Errno::EAGAIN { Errno::EINPROGRESS } else { errno })
}

/// Own end of a socket.
pub fn local_of(state: &State, object: u32) -> Endpoint {
    let Some(socket) = state.socket(object) else { return Endpoint::default() };
    match &socket.kind {
        Kind::Stream(place, _) if socket.local.port == 0 || socket.local.addr == 0 => {
            let port = &state.sessions[place.session].replicas[place.replica].port;
            port.slot(place.slot).map_or(socket.local, |slot| slot.addresses().0)
        }
        _ => socket.local,
    }
}

/// getpeername(2).
pub fn peer_of(state: &mut State, object: u32) -> Result<Endpoint, Errno> {
    let Some(socket) = state.socket(object) else { return Err(Errno::ENOTSOCK) };
    let remote = socket.remote;
    match &socket.kind {
        Kind::Stream(..) => {
            let Some((stream, ..)) = state.stream(object) else { return Err(Errno::ENOTCONN) };
            if stream.is_connecting() || (stream.is_closed() && stream.error().is_some()) {
                return Err(Errno::ENOTCONN);
            }
            Ok(remote)
        }
        Kind::Datagram { connected: true, .. } => Ok(remote),
        _ => Err(Errno::ENOTCONN),
    }
}

/// shutdown(2).
pub fn shutdown(object: u32, how: i32) -> Result<(), Errno> {
    let (receive, send) = match how {
        libc::SHUT_RD => (true, false),
        libc::SHUT_WR => (false, true),
        libc::SHUT_RDWR => (true, true),
        _ => return Err(Errno::EINVAL),
    };
    STATE.with(|state| {
        match state.socket(object).map(|s| &s.kind) {
            Some(Kind::Datagram { connected: true, .. }) => return Ok(()),
            Some(Kind::Listening(_)) if receive => {
                // Linux: it listens no more, and accept fails.
                state.stop_listening(object);
                state.announce(object, 0x15);
                return Ok(());
            }
            Some(Kind::Listening(_)) => return Ok(()),
            _ => {}
        }
        let Some((stream, _, place)) = state.stream(object) else { return Err(Errno::ENOTCONN) };
        stream.shutdown(receive, send)?;
        state.kick(place);
        state.announce(object, 0x2015);
        Ok(())
    })
}

/// The last error of the C library in this thread.
pub fn last_errno() -> Errno {
    // SAFETY: a valid thread-local.
    Errno(unsafe { *libc::__errno_location() })
}

/// Whether anything of the socket is known to be wrong (`SO_ERROR`), and takes it.
pub fn take_error(state: &mut State, object: u32) -> i32 {
    if let Some((stream, local, _)) = state.stream(object) {
        return stream.take_error(local).map_or(0, |errno| errno.0);
    }
    let Some(Socket { kind: Kind::Datagram { places, .. }, .. }) = state.socket(object) else { return 0 };
    for place in places {
        let port = &state.sessions[place.session].replicas[place.replica].port;
        if let Some(slot) = port.slot(place.slot) {
            let cause = slot.error();
            if cause != Cause::None && slot.library_word(2) != u64::from(cause as u8) {
                slot.set_library_word(2, cause as u64);
                port.memory().fence();
                return Errno::of(cause).map_or(0, |errno| errno.0);
            }
        }
    }
    0
}
