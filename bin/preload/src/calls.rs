//! How do sockets come into being, listen, connect, and go? One function for each call; errors are errno values.

use std::cmp::Reverse;

use atoll_base::{Duration, Endpoint};
use atoll_ipc::Command;
use atoll_ipc::command::Protocol;
use atoll_ipc::lease::{NO_USER, Voucher};
use atoll_sockets::listener::{Claim, Listener, Offer, claim};
use atoll_sockets::stream::Stream;
use atoll_sockets::{Errno, Failure};

use crate::fast_open::Opened;
use crate::object::{Body, Datagram, Kind, Object, Options, Place, Socket, any};
use crate::session::{Reason, Session};
use crate::settings::settings;
use crate::state::{Answer, STATE, State};
use crate::stats;
use crate::table::{self, Internal};
use crate::wait::{block, count_system_call};
use crate::{asking, epoll, fast_open, options, real};

/// Deadline of a command that is answered: a replica that takes longer is not there.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// Most numbers kept for accepted connections.
const SPARE_MAX: usize = 256;

/// socket(2): a kernel socket that an Atoll socket may take the place of. Fails only where the program must run on Atoll.
pub fn socket(fd: i32, protocol: Protocol, v6: bool, nonblocking: bool, close_on_exec: bool) -> Result<(), Errno> {
    STATE.with(|state| {
        if state.join() {
            let object = state.objects.insert(Object::socket(protocol, v6, nonblocking));
            if !table::set_object(fd, object, close_on_exec) {
                state.objects.remove(object);
            }
            Ok(())
        } else if settings().required {
            Err(state.refused.map_or(Errno::ENETDOWN, Reason::errno))
        } else {
            Ok(())
        }
    })
}

/// Gives a socket back to the kernel: its placeholder, which has had all options, becomes the socket.
pub fn to_kernel(object: u32) {
    STATE.with(|state| {
        epoll::move_to_kernel(state, object);
        for (fd, at) in table::objects_between(0, u32::MAX).collect::<Vec<_>>() {
            if at == object {
                table::set_kernel(fd);
                state.release(object);
            }
        }
    });
}

/// Sends a command that is answered to a replica of the own session, behind what is to be shown first, and waits for the answer.
fn ask(replica: usize, show: &[Command], command: impl FnOnce(u32) -> Command) -> Result<(u16, Voucher), Errno> {
    let token = STATE.with(|state| {
        let token = state.new_token();
        state.sessions.first().filter(|session| session.is_heard()).ok_or(Errno::ENETDOWN)?;
        state.ask(replica, token, show.iter().copied().chain([command(token)]).collect());
        Ok(token)
    })?;
    answer(token)
}

/// Waits for the answer to what [`State::ask`] has sent.
pub fn answer(token: u32) -> Result<(u16, Voucher), Errno> {
    let answer = wait_for_answer(token);
    STATE.with(|state| state.answered(token));
    answer
}

fn wait_for_answer(token: u32) -> Result<(u16, Voucher), Errno> {
    loop {
        let answer = block(None, Some(REPLY_TIMEOUT), |state| {
            let is_heard = state.sessions.first().is_some_and(Session::is_heard);
            let none = if is_heard { Failure::WouldBlock } else { Errno::ENETDOWN.into() };
            let Answer { cause, port, voucher } = state.answer(token).ok_or(none)?;
            Errno::of(cause).map_or(Ok((port, voucher)), |errno| Err(errno.into()))
        });
        match answer {
            Err(Errno::EINTR) => {}
            // The deadline has passed: nobody there keeps the ports of the stack.
            Err(Errno::EAGAIN) => return Err(Errno::ENETDOWN),
            answer => return answer,
        }
    }
}

/// What the authority of a port wants to see of whoever asks for it: who has made the socket, if that was another user, and who asks now.
fn passes(object: u32, lease: u64, port: u16) -> Result<Vec<Command>, Errno> {
    STATE.with(|state| {
        let socket = state.socket(object).ok_or(Errno::EBADF)?;
        let control = state.control.as_ref().ok_or(Errno::ENETDOWN)?;
        let now = control.vouch(lease, socket.protocol, port).map_err(Reason::errno)?;
        Ok(socket.pass.into_iter().chain([now]).map(|(pass, seal)| Command::Pass { pass, seal }).collect())
    })
}

/// Ports below that need a privilege, unless the stack says otherwise.
const USUALLY_UNPRIVILEGED: u16 = 1024;

/// bind(2) to an address of the stack.
pub fn bind(object: u32, local: Endpoint) -> Result<(), Errno> {
    let (protocol, options, authority, lease) = STATE.with(|state| {
        let fresh = state.rng.next_u64() | 1;
        let replicas = state.sessions.first().ok_or(Errno::ENETDOWN)?.replicas.len();
        let any = state.rng.below(replicas as u32) as usize;
        let authority = if local.port == 0 { any } else { usize::from(local.port) % replicas };
        let socket = state.socket(object).ok_or(Errno::ENOTSOCK)?;
        if !matches!(socket.kind, Kind::Fresh) {
            return Err(Errno::EINVAL);
        }
        let lease = socket.pass.map_or(fresh, |(pass, _)| pass.lease);
        Ok((socket.protocol, socket.options, authority, lease))
    })?;
    let Options { reuse_addr, reuse_port, v6_only, .. } = options;
    let bind = |token| Command::Bind { token, lease, protocol, local, reuse_addr, reuse_port, v6_only };
    // Most sockets share nothing, and have high ports: whose they are nobody has to know.
    let matters = reuse_port || (1..USUALLY_UNPRIVILEGED).contains(&local.port);
    let shown = if matters { passes(object, lease, local.port)? } else { Vec::new() };
    let bound = match ask(authority, &shown, bind) {
        Err(Errno::EACCES) if !matters => ask(authority, &passes(object, lease, local.port)?, bind),
        bound => bound,
    };
    let (port, voucher) = bound?;
    STATE.with(|state| {
        let socket = state.socket_mut(object).ok_or(Errno::EBADF)?;
        (socket.lease, socket.voucher) = (lease, voucher);
        socket.local = Endpoint::at(local.addr, port);
        socket.kind = Kind::Bound;
        Ok(())
    })?;
    if protocol == Protocol::Udp { open_datagrams(object, Endpoint::default()) } else { Ok(()) }
}

/// Opens a bound datagram socket on every replica, or gives it another peer.
fn open_datagrams(object: u32, remote: Endpoint) -> Result<(), Errno> {
    STATE.with(|state| {
        state.sessions.first().filter(|session| session.is_heard()).ok_or(Errno::ENETDOWN)?;
        let socket = state.socket(object).ok_or(Errno::ENOTSOCK)?;
        let (local, lease) = (socket.local, socket.lease);
        let shown = socket.show_all(state.sessions[0].replicas.len());
        let Options { reuse_port, v6_only, .. } = socket.options;
        let mut places = socket.places().to_vec();
        let is_new = places.is_empty();
        if is_new {
            for replica in 0..state.sessions[0].replicas.len() {
                places.push(state.new_place(object, replica).ok_or(Errno::ENOBUFS)?);
            }
        }
        for Place { session, replica, slot, generation } in places.iter().copied() {
            // Whoever of a family has the port, the replica knows the socket by it already.
            if let Some(show) = shown.get(replica).copied().flatten().filter(|_| is_new) {
                state.sessions[session].push(replica, &show);
            }
            let command = Command::UdpOpen { slot, generation, lease, local, remote, reuse_port, v6_only };
            state.sessions[session].push(replica, &command);
        }
        let sender = state.rng.next_u32() as usize;
        let socket = state.socket_mut(object).ok_or(Errno::ENOTSOCK)?;
        socket.remote = remote;
        if is_new {
            socket.kind = Kind::Datagram(Box::new(Datagram { places, sender, ..Datagram::default() }));
            options::tell_all(state, object);
        }
        if let Some(Socket { kind: Kind::Datagram(datagram), .. }) = state.socket_mut(object) {
            datagram.connected = remote.port != 0;
        }
        Ok(())
    })?;
    // Until all replicas have it, others of this machine would not find it, and what comes in would be refused.
    let opened = block(Some(object), Some(REPLY_TIMEOUT), |state| {
        let places = state.socket(object).map(Socket::places).unwrap_or_default();
        let is_open = |place: &Place| state.datagrams(*place).is_some_and(|one| one.is_open());
        if let Some(errno) = places.iter().find_map(|place| state.datagrams(*place)?.refusal()) {
            return Err(errno.into());
        }
        if places.iter().all(is_open) { Ok(()) } else { Err(Failure::WouldBlock) }
    });
    match opened {
        Err(Errno::EAGAIN) => Err(Errno::ENOBUFS),
        Err(errno) if errno != Errno::EINTR => Err(errno),
        _ => Ok(()),
    }
}

/// Opens a datagram socket that is not bound yet, at any port.
pub fn ensure_datagrams(object: u32) -> Result<(), Errno> {
    let fresh = STATE.with(|state| match state.socket(object) {
        Some(Socket { kind: Kind::Fresh, v6, .. }) => Some(any(*v6)),
        _ => None,
    });
    fresh.map_or(Ok(()), |any| bind(object, any))
}

/// Tells all replicas of a listener what its options are now, and waits until they know.
pub fn listen_again(object: u32) -> Result<(), Errno> {
    match STATE.with(|state| state.listener_mut(object).map(|listener| listener.backlog)) {
        Some(backlog) => listen(object, backlog as i32),
        None => Ok(()),
    }
}

/// listen(2).
pub fn listen(object: u32, backlog: i32) -> Result<(), Errno> {
    let fresh = STATE.with(|state| match state.socket(object).map(|s| (&s.kind, s.protocol, s.v6)) {
        Some((_, Protocol::Udp, _)) => Err(Errno::EOPNOTSUPP),
        Some((Kind::Fresh, _, v6)) => Ok(Some(any(v6))),
        Some((Kind::Bound | Kind::Listening(_), ..)) => Ok(None),
        _ => Err(Errno::EINVAL),
    })?;
    if let Some(any) = fresh {
        bind(object, any)?;
    }
    let (lease, local, options, replicas) = STATE.with(|state| {
        let replicas = state.sessions.first().ok_or(Errno::ENETDOWN)?.replicas.len();
        let socket = state.socket(object).ok_or(Errno::ENOTSOCK)?;
        Ok((socket.lease, socket.local, socket.options, replicas))
    })?;
    // listen(2): the kernel takes negative numbers for very large ones, and has a limit of its own.
    let backlog = u32::try_from(backlog).unwrap_or(4096).clamp(1, 65535);
    let (reuse_port, v6_only) = (options.reuse_port, options.v6_only);
    let defer_accept = u16::try_from(options.defer_accept).unwrap_or(u16::MAX);
    // Replicates it to all replicas (N2), the authority of the port first: it may refuse.
    let authority = usize::from(local.port) % replicas;
    for i in 0..replicas {
        let replica = (authority + i) % replicas;
        let (mut show, is_nobodys) = STATE.with(|state| {
            let socket = state.socket(object).ok_or(Errno::EBADF)?;
            Ok((Vec::from_iter(socket.show(replica, replicas)), socket.voucher.uid == NO_USER))
        })?;
        if i == 0 && reuse_port && is_nobodys {
            // It was bound without that option.
            show = passes(object, lease, 0)?;
        }
        let listen = |token| Command::Listen { token, lease, local, backlog, reuse_port, defer_accept, v6_only };
        let (_, voucher) = ask(replica, &show, listen)?;
        if i == 0 {
            STATE.with(|state| {
                state.socket_mut(object).ok_or(Errno::EBADF)?.voucher = voucher;
                Ok(())
            })?;
        }
    }
    STATE.with(|state| {
        let socket = state.socket_mut(object).ok_or(Errno::EBADF)?;
        match &mut socket.kind {
            Kind::Listening(listener) => listener.backlog = backlog,
            kind => {
                *kind = Kind::Listening(Box::new(Listener { backlog, ..Listener::default() }));
                state.listeners.push((lease, object));
            }
        }
        options::tell_all(state, object);
        // epoll_ctl may have come before listen.
        if !state.watchers(object).is_empty() {
            state.accept_connections(object);
        }
        Ok(())
    })
}

/// A connection that was accepted.
#[derive(Clone, Copy, Debug)]
pub struct Accepted {
    pub fd: i32,
    pub remote: Endpoint,
    pub v6: bool,
}

/// accept4(2).
pub fn accept(fd: i32, object: u32, nonblocking: bool, close_on_exec: bool) -> Result<Accepted, Errno> {
    let _call = stats::Call::new(stats::ACCEPT);
    if asking::is_on() {
        return accept_by_asking(fd, object, nonblocking, close_on_exec);
    }
    let step = |state: &mut State| {
        state.accept_connections(object);
        accept_one(state, fd, object, nonblocking, close_on_exec)
    };
    let first = STATE.with(|state| {
        check_listening(state, object)?;
        let mut result = step(state);
        if matches!(result, Err(Failure::WouldBlock)) {
            state.drain();
            result = step(state);
        }
        match result {
            Ok(accepted) => Ok(Ok(accepted)),
            Err(Failure::Error(errno)) => Err(errno),
            Err(Failure::WouldBlock) if state.is_nonblocking(object) => Err(Errno::EAGAIN),
            Err(Failure::WouldBlock) => Ok(Err(state.socket(object).map_or(0, |s| s.options.receive_timeout_us))),
        }
    })?;
    match first {
        Ok(accepted) => Ok(accepted),
        Err(timeout) => block(Some(object), (timeout > 0).then(|| Duration::from_micros(timeout)), step),
    }
}

/// The naive accept (P4): asks for a connection and waits for the answer. Every call does.
fn accept_by_asking(fd: i32, object: u32, nonblocking: bool, close_on_exec: bool) -> Result<Accepted, Errno> {
    let mut tried = 0;
    let (waits, timeout) = STATE.with(|state| {
        check_listening(state, object)?;
        let timeout = state.socket(object).map_or(0, |socket| socket.options.receive_timeout_us);
        Ok((!state.is_nonblocking(object), (timeout > 0).then(|| Duration::from_micros(timeout))))
    })?;
    let mut step = |state: &mut State| match accept_one(state, fd, object, nonblocking, close_on_exec) {
        Err(Failure::WouldBlock) => {
            asking::take(state, object, &mut tried)?;
            if !waits {
                return Err(Errno::EAGAIN.into());
            }
            asking::before_sleep(state, object);
            Err(Failure::WouldBlock)
        }
        result => result,
    };
    match STATE.with(|state| step(state)) {
        Ok(accepted) => return Ok(accepted),
        Err(Failure::Error(errno)) => return Err(errno),
        Err(Failure::WouldBlock) => {}
    }
    if waits {
        return block(Some(object), timeout, step);
    }
    loop {
        match block(Some(object), Some(REPLY_TIMEOUT), &mut step) {
            // accept(2) of a socket that does not block is not interrupted.
            Err(Errno::EINTR) => {}
            result => {
                asking::give_up_unanswered(object);
                return result;
            }
        }
    }
}

fn check_listening(state: &State, object: u32) -> Result<(), Errno> {
    match state.socket(object) {
        Some(Socket { kind: Kind::Listening(_), .. }) => Ok(()),
        Some(Socket { protocol: Protocol::Udp, .. }) => Err(Errno::EOPNOTSUPP),
        Some(_) => Err(Errno::EINVAL),
        None => Err(Errno::ENOTSOCK),
    }
}

fn accept_one(
    state: &mut State,
    listener: i32,
    object: u32,
    nonblocking: bool,
    close_on_exec: bool,
) -> Result<Accepted, Failure> {
    if state.listener_mut(object).is_none_or(|listener| listener.is_shut) {
        return Err(Errno::EINVAL.into());
    }
    if state.spare.is_empty() {
        // Before anything is claimed: without a number the connection stays where it is.
        refill(state, listener)?;
    }
    let offer = take_connection(state, object)?;
    let (Some(Reverse(fd)), Some(parent)) = (state.spare.pop(), state.socket(object)) else {
        return Err(Errno::EMFILE.into());
    };
    let (v6, inherited, defer_bell) = (parent.v6, parent.options, 0);
    let place =
        Place { session: 0, replica: usize::from(offer.replica), slot: offer.slot, generation: offer.generation };
    let mut child = Object::socket(Protocol::Tcp, v6, nonblocking);
    if let Body::Socket(socket) = &mut child.body {
        socket.kind = Kind::Stream(place, inherited.local());
        socket.local = offer.local;
        socket.remote = offer.remote;
        socket.options = inherited;
        socket.pooled = true;
        socket.connect_reported = true;
        socket.bell = defer_bell;
    }
    let number = state.objects.insert(child);
    state.set_user(place, number);
    table::set_object(fd, number, close_on_exec);
    if inherited.linger == Some(0)
        && let Some((stream, ..)) = state.stream(number)
    {
        stream.set_reset_on_close(true);
    }
    Ok(Accepted { fd, remote: offer.remote, v6 })
}

/// CLAIM-CONNECTION for the first offer that still stands.
fn take_connection(state: &mut State, object: u32) -> Result<Offer, Failure> {
    loop {
        let Some(listener) = state.listener_mut(object) else { return Err(Errno::EINVAL.into()) };
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
        let Some(session) = state.sessions.first_mut() else { return Err(Errno::ENETDOWN.into()) };
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
                if let Some(listener) = state.listener_mut(object) {
                    listener.claimed = Some(offer);
                    listener.verdict = None;
                }
            }
        }
    }
}

/// Takes some numbers for accepted connections: duplicates of a socket that is never used, so that fstat(2) says socket.
fn refill(state: &mut State, listener: i32) -> Result<(), Errno> {
    if state.placeholder.is_none() {
        let fd = table::duplicate(listener, 3);
        if fd < 0 {
            return Err(crate::wait::last_errno());
        }
        // SAFETY: just created, owned by nobody else.
        state.placeholder = Some(Internal::new(unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) }));
    }
    let Some(placeholder) = state.placeholder.as_ref().map(Internal::number) else { return Err(Errno::EMFILE) };
    for _ in 0..state.spare_batch {
        count_system_call();
        let fd = table::duplicate(placeholder, 3);
        if fd < 0 {
            break;
        }
        if (fd as usize) < table::FDS_MAX {
            table::set_spare(fd);
            state.spare.push(Reverse(fd));
        } else {
            table::close(fd);
        }
    }
    state.spare_batch = (state.spare_batch * 2).min(64);
    if state.spare.is_empty() { Err(crate::wait::last_errno()) } else { Ok(()) }
}

/// close(2) of one descriptor of an object. Returns whether the kernel's descriptor is to be closed too.
pub fn close(fd: i32, object: u32) -> bool {
    let _call = stats::Call::new(stats::CLOSE);
    let linger = STATE.with(|state| {
        let entry = state.objects.get(object)?;
        let is_last = entry.descriptors == 1;
        let linger = state.socket(object).and_then(|s| s.options.linger).filter(|linger| *linger > 0 && is_last);
        if linger.is_none() {
            return Some(Err(close_now(state, fd, object)));
        }
        linger.map(Ok)
    });
    match linger {
        None => true,
        Some(Err(close_kernel)) => close_kernel,
        Some(Ok(seconds)) => {
            linger_on(object, seconds);
            STATE.with(|state| close_now(state, fd, object))
        }
    }
}

fn close_now(state: &mut State, fd: i32, object: u32) -> bool {
    let is_last = state.objects.get(object).is_some_and(|entry| entry.descriptors == 1);
    let pooled = is_last && state.socket(object).is_some_and(|s| s.pooled) && state.spare.len() < SPARE_MAX;
    if pooled {
        table::set_spare(fd);
        state.spare.push(Reverse(fd));
    } else {
        table::set_kernel(fd);
        count_system_call();
    }
    state.release(object);
    !pooled
}

/// SO_LINGER with a time: waits until the peer has acknowledged everything, FIN included.
fn linger_on(object: u32, seconds: u32) {
    STATE.with(|state| {
        if state.is_nonblocking(object) {
            return;
        }
        let family = state.family(object);
        let Some((stream, _, place)) = state.stream(object) else { return };
        let _ = stream.shutdown(false, true);
        drop(family);
        state.kick(place);
    });
    let _ = block(Some(object), Some(Duration::from_secs(seconds.into())), |state| {
        if state.is_nonblocking(object) {
            return Ok(());
        }
        match state.stream(object) {
            Some((stream, ..)) if stream.unacknowledged() > 0 && !stream.is_closed() => Err(Failure::WouldBlock),
            _ => Ok(()),
        }
    });
}

/// connect(2) to an address that the stack reaches.
pub fn connect(object: u32, remote: Endpoint) -> Result<(), Errno> {
    let _call = stats::Call::new(stats::CONNECT);
    let is_udp = STATE.with(|state| state.socket(object).is_some_and(|s| s.protocol == Protocol::Udp));
    if is_udp { connect_datagrams(object, remote) } else { connect_stream(object, remote) }
}

fn connect_datagrams(object: u32, remote: Endpoint) -> Result<(), Errno> {
    ensure_datagrams(object)?;
    STATE.with(|state| {
        // connect(2) chooses the address that packets to the peer leave from.
        let own = state.sessions.first().map(|session| session.source_for(remote.addr)).unwrap_or_default();
        if let Some(socket) = state.socket_mut(object)
            && (socket.local.addr.is_unspecified() || socket.is_local_chosen())
        {
            if own.is_unspecified() {
                return Err(Errno::ENETUNREACH);
            }
            socket.local.addr = own;
            if let Kind::Datagram(datagram) = &mut socket.kind {
                datagram.local_chosen = true;
            }
        }
        Ok(())
    })?;
    open_datagrams(object, remote)
}

/// connect(2) with AF_UNSPEC: a datagram socket has no peer any more.
pub fn disconnect(object: u32) -> Result<(), Errno> {
    match STATE.with(|state| state.socket(object).map(|s| matches!(s.kind, Kind::Datagram(_)))) {
        Some(true) => {
            STATE.with(|state| {
                if let Some(socket) = state.socket_mut(object).filter(|socket| socket.is_local_chosen()) {
                    socket.local.addr = any(socket.v6).addr;
                }
            });
            open_datagrams(object, Endpoint::default())
        }
        _ => Ok(()),
    }
}

fn connect_stream(object: u32, remote: Endpoint) -> Result<(), Errno> {
    let is_fast = STATE.with(|state| state.socket(object).is_some_and(|socket| socket.options.fast_open_connect));
    let opened = if is_fast { fast_open::connect(object, remote)? } else { Opened::Before };
    match opened {
        Opened::Waits => return Ok(()),
        Opened::Left if STATE.with(|state| state.is_nonblocking(object)) => return Err(Errno::EINPROGRESS),
        _ => {}
    }
    let wait = STATE.with(|state| {
        let socket = state.socket(object).ok_or(Errno::ENOTSOCK)?;
        match &socket.kind {
            Kind::Listening(_) => return Err(Errno::EISCONN),
            Kind::Stream(..) => {
                let was_reported = socket.connect_reported;
                let is_blocking = !state.is_nonblocking(object);
                let Some((stream, local, _)) = state.stream(object) else { return Err(Errno::EBADF) };
                if stream.is_connecting() {
                    return if is_blocking { Ok(true) } else { Err(Errno::EALREADY) };
                }
                if stream.is_closed() && !was_reported {
                    let errno = stream.take_error(local).unwrap_or(Errno::ECONNABORTED);
                    start_over(state, object);
                    return Err(errno);
                }
                if was_reported {
                    return Err(Errno::EISCONN);
                }
            }
            _ => {
                start_connecting(state, object, remote, false)?;
                return if state.is_nonblocking(object) { Err(Errno::EINPROGRESS) } else { Ok(true) };
            }
        }
        if let Some(socket) = state.socket_mut(object) {
            socket.connect_reported = true;
        }
        Ok(false)
    })?;
    if !wait {
        return Ok(());
    }
    await_connection(object)
}

/// Waits until a connection that is being opened is open.
pub fn await_connection(object: u32) -> Result<(), Errno> {
    let timeout = STATE.with(|state| state.socket(object).map_or(0, |s| s.options.send_timeout_us));
    let timeout = (timeout > 0).then(|| Duration::from_micros(timeout));
    let result = block(Some(object), timeout, |state| {
        let Some((stream, local, _)) = state.stream(object) else { return Err(Errno::EBADF.into()) };
        if stream.is_connecting() {
            return Err(Failure::WouldBlock);
        }
        if let Some(errno) = stream.is_closed().then(|| stream.take_error(local)).flatten() {
            start_over(state, object);
            return Err(errno.into());
        }
        if let Some(socket) = state.socket_mut(object) {
            socket.connect_reported = true;
        }
        Ok(())
    });
    // connect(2), socket(7): the time of SO_SNDTIMEO has passed.
    result.map_err(|errno| if errno == Errno::EAGAIN { Errno::EINPROGRESS } else { errno })
}

/// Tells a replica to open the connection; `fast`: the SYN may wait for text.
pub fn start_connecting(state: &mut State, object: u32, remote: Endpoint, fast: bool) -> Result<(), Errno> {
    let socket = state.socket(object).ok_or(Errno::ENOTSOCK)?;
    let (local, lease) = (socket.local, socket.lease);
    let session = state.sessions.first().filter(|session| session.is_heard()).ok_or(Errno::ENETDOWN)?;
    let replicas = session.replicas.len();
    let (local, replica) = if local.port != 0 {
        // The replica is decided by the address, so the address is decided here.
        let addr = if local.addr.is_unspecified() { session.source_for(remote.addr) } else { local.addr };
        let local = Endpoint::at(addr, local.port);
        (local, session.owner(local, remote))
    } else {
        (local, state.rng.below(replicas as u32) as usize)
    };
    let show = state.socket(object).and_then(|socket| socket.show(replica, replicas));
    let place = state.new_place(object, replica).ok_or(Errno::ENOBUFS)?;
    let (slot, generation) = (place.slot, place.generation);
    let linger = state.socket(object).and_then(|socket| socket.options.linger);
    if let Some(stream) = Stream::new(&state.sessions[0].replicas[replica].port, slot, generation) {
        stream.set_reset_on_close(linger == Some(0));
        if fast {
            stream.ask_for_fast_open();
        }
    }
    if let Some(show) = show {
        state.sessions[0].push(replica, &show);
    }
    state.sessions[0].push(replica, &Command::Connect { slot, generation, lease, local, remote });
    let socket = state.socket_mut(object).ok_or(Errno::ENOTSOCK)?;
    socket.remote = remote;
    socket.connect_reported = false;
    socket.kind = Kind::Stream(place, socket.options.local());
    options::tell_all(state, object);
    Ok(())
}

/// A connection was refused: as on Linux, the socket may try again.
fn start_over(state: &mut State, object: u32) {
    let Some(socket) = state.socket_mut(object) else { return };
    let kind = if socket.lease == 0 { Kind::Fresh } else { Kind::Bound };
    if let Kind::Stream(place, _) = std::mem::replace(&mut socket.kind, kind) {
        state.close_place(place);
    }
}

/// Own end of a socket.
pub fn local_of(state: &State, object: u32) -> Endpoint {
    let Some(socket) = state.socket(object) else { return Endpoint::default() };
    match &socket.kind {
        Kind::Stream(place, _) if socket.local.port == 0 || socket.local.addr.is_unspecified() => {
            let Some(slot) = state.slot_of(*place) else { return socket.local };
            // Before the replica has chosen, what was bound.
            if slot.replica_generation() == place.generation { slot.local() } else { socket.local }
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
        Kind::Datagram(datagram) if datagram.connected => Ok(remote),
        _ => Err(Errno::ENOTCONN),
    }
}

/// shutdown(2).
pub fn shutdown(object: u32, how: i32) -> Result<(), Errno> {
    let _call = stats::Call::new(stats::OTHER);
    let (receive, send) = match how {
        libc::SHUT_RD => (true, false),
        libc::SHUT_WR => (false, true),
        libc::SHUT_RDWR => (true, true),
        _ => return Err(Errno::EINVAL),
    };
    STATE.with(|state| {
        let Some(socket) = state.socket_mut(object) else { return Err(Errno::ENOTSOCK) };
        match &mut socket.kind {
            Kind::Datagram(datagram) => {
                if !datagram.connected {
                    return Err(Errno::ENOTCONN);
                }
                datagram.shut_receive |= receive;
                datagram.shut_send |= send;
                state.announce(object, 0x2015);
                return Ok(());
            }
            Kind::Listening(listener) => {
                if receive {
                    // As on Linux: it listens no more, and accept fails.
                    listener.is_shut = true;
                    state.stop_listening(object);
                    state.announce(object, 0x2015);
                }
                return Ok(());
            }
            _ => {}
        }
        let family = state.family(object);
        let Some((stream, _, place)) = state.stream(object) else {
            // inet_shutdown: it fails, but what was shut stays so.
            if let Some(socket) = state.socket_mut(object) {
                socket.shut_early |= receive;
            }
            return Err(Errno::ENOTCONN);
        };
        stream.shutdown(receive, send)?;
        drop(family);
        state.kick(place);
        state.announce(object, 0x2015);
        Ok(())
    })
}

/// The error of a socket that is not told yet (`SO_ERROR`); 0 for none.
pub fn take_error(state: &mut State, object: u32) -> i32 {
    let error = if let Some((stream, local, _)) = state.stream(object) {
        stream.take_error(local)
    } else {
        let places = state.socket(object).map(Socket::places).unwrap_or_default();
        places.iter().find_map(|place| state.datagrams(*place)?.take_error())
    };
    error.map_or(0, |errno| errno.0)
}

/// socket(2) for the kernel.
pub fn kernel_socket(domain: i32, kind: i32, protocol: i32) -> i32 {
    // SAFETY: numbers only.
    unsafe { real::socket(domain, kind, protocol) }
}
