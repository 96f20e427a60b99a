//! Calls that create, bind, connect, listen, accept and close sockets, one function for each. Errors are
//! errno values.

use atoll_base::{Duration, Endpoint};
use atoll_ipc::Command;
use atoll_ipc::command::Protocol;
use atoll_sockets::client::object::Kind;
use atoll_sockets::client::{Answer, Binding, Connecting, Lingering};
use atoll_sockets::options::{Name, patience};
use atoll_sockets::{Errno, Failure};

use crate::control::Reason;
use crate::fast_open::{self, Opened};
use crate::hang_up;
use crate::lock::STATE;
use crate::platform::Object;
use crate::real::count_system_call;
use crate::settings::settings;
use crate::state::{State, asks, put_number};
use crate::table::reserved;
use crate::under_way::{Pinned, Ticket};
use crate::wait::{OFFERED_AGAIN, block, block_at_point, block_with_number};
use crate::{asking, cancellation, epoll, stats, supervisor, table};

/// The time that a replica has to answer a command; one that takes longer counts as gone.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// Puts an Atoll socket in the place of the kernel socket `fd`, if the stack can be joined: socket(2). Fails
/// if it cannot, unless the kernel's network serves the rest.
pub fn socket(
    fd: i32,
    protocol: Protocol,
    v6: bool,
    nonblocking: bool,
    close_on_exec: bool,
) -> Result<(), Errno> {
    let has_joined = supervisor::join();
    STATE.with(|state| {
        if has_joined {
            let object = state.client.insert(Object::socket(protocol, v6, nonblocking));
            if table::set_object(fd, object, close_on_exec) {
                return Ok(());
            }
            state.client.remove(object);
            if settings().kernel_network.has_rest() { Ok(()) } else { Err(Errno::EMFILE) }
        } else if settings().socket.is_none() || settings().kernel_network.has_rest() {
            Ok(())
        } else {
            Err(state.refused.map_or(Errno::ENETDOWN, Reason::errno))
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
                state.client.release(object);
            }
        }
    });
}

/// Waits for the answer to the command with this token of the client's.
pub fn answer(token: u32) -> Result<Answer, Errno> {
    let answer = wait_for_answer(token);
    STATE.with(|state| state.client.answered(token));
    answer
}

fn wait_for_answer(token: u32) -> Result<Answer, Errno> {
    loop {
        match block(None, Some(REPLY_TIMEOUT), |state| state.client.poll_answer(token)) {
            Err(Errno::EINTR) => {}
            // The deadline has passed: there is no replica that keeps the ports of the stack.
            Err(Errno::EAGAIN) => return Err(Errno::ENETDOWN),
            answer => return answer,
        }
    }
}

/// Returns the passes that the authority of a port needs about the user that asks for it: the one that has
/// made the socket, if that was another, and the one that asks now.
fn passes(object: u32, lease: u64, port: u16) -> Result<Vec<Command>, Errno> {
    let (protocol, made_by) = STATE.with(|state| {
        let socket = state.client.socket(object).ok_or(Errno::EBADF)?;
        Ok((socket.protocol, socket.pass))
    })?;
    let now = supervisor::ask(|control| control.vouch(lease, protocol, port))?;
    Ok(made_by.into_iter().chain([now]).map(|(pass, seal)| Command::Pass { pass, seal }).collect())
}

/// Runs a call that waits for answers about a socket. If another thread closes the socket meanwhile, it is
/// closed when the call ends, as on Linux: its number then names no other socket, to which the answers would
/// be applied.
fn pinned<R>(object: u32, call: impl FnOnce() -> R) -> R {
    let mut ticket = Ticket::outer(&object);
    STATE.with(|state| state.begin_call(&mut ticket, || Pinned::One(Some(object))));
    let result = call();
    STATE.with(|state| state.end_call(ticket));
    result
}

/// Binds a socket to an address of the stack: bind(2).
pub fn bind(object: u32, local: Endpoint) -> Result<(), Errno> {
    let is_open_raw = STATE.with(|state| {
        let socket = state.client.socket(object);
        socket.is_some_and(|it| it.protocol == Protocol::Raw && !matches!(it.kind, Kind::Fresh))
    });
    if is_open_raw {
        return pinned(object, || {
            STATE.with(|state| state.client.rename_raw(object, local))?;
            open_datagrams(object, Endpoint::default())
        });
    }
    pinned(object, || bind_pinned(object, local))
}

/// Binds a socket to an address that the program has named: bind(2).
pub fn bind_by_name(object: u32, local: Endpoint) -> Result<(), Errno> {
    if STATE.with(|state| state.client.bind_without_port(object, local)) {
        return Ok(());
    }
    bind(object, local)
}

/// Binds a socket that had its port on a stack that went to that port on the next one, and has it listen if
/// it did.
pub fn register_again(object: u32) -> Result<(), Errno> {
    pinned(object, || register_again_pinned(object))
}

fn register_again_pinned(object: u32) -> Result<(), Errno> {
    let binding = STATE.with(|state| state.client.start_binding_again(object))?;
    // Another process of the family may have the port already; then it needs no pass.
    let shown = if binding.needs_pass {
        passes(object, binding.lease, binding.port).unwrap_or_default()
    } else {
        vec![]
    };
    let ask =
        |shown: &[Command]| answer(STATE.with(|state| state.client.ask_for_port(object, &binding, shown))?);
    let bound = match ask(&shown) {
        Err(Errno::EACCES) if shown.is_empty() => ask(&passes(object, binding.lease, binding.port)?),
        bound => bound,
    }?;
    let (backlog, protocol, peer) = STATE.with(|state| {
        state.client.finish_binding(object, &binding, &bound)?;
        let protocol = state.client.socket(object).ok_or(Errno::EBADF)?.protocol;
        let backlog = state.client.listener(object).map(|listener| listener.backlog);
        Ok((backlog, protocol, state.client.peer_to_open(object)))
    })?;
    match backlog {
        Some(backlog) => listen_pinned(object, backlog as i32),
        None if protocol.is_datagram() => open_datagrams(object, peer),
        None => Ok(()),
    }
}

fn bind_pinned(object: u32, local: Endpoint) -> Result<(), Errno> {
    let (mut binding, replicas) = STATE.with(|state| {
        Ok::<_, Errno>((state.client.start_binding(object, local)?, state.client.replicas()))
    })?;
    let ask = |binding: &Binding| {
        let ask = |passes: &[Command]| {
            answer(STATE.with(|state| state.client.ask_for_port(object, binding, passes))?)
        };
        let passes = || passes(object, binding.lease, binding.port);
        let shown = if binding.needs_pass { passes()? } else { Vec::new() };
        match ask(&shown) {
            Err(Errno::EACCES) if !binding.needs_pass => ask(&passes()?),
            bound => bound,
        }
    };
    let mut bound = ask(&binding);
    for _ in 1..replicas {
        if !matches!(bound, Err(Errno::EADDRINUSE)) || !binding.turn_to_next(replicas) {
            break;
        }
        bound = ask(&binding);
    }
    let bound = bound?;
    let protocol = STATE.with(|state| {
        state.client.finish_binding(object, &binding, &bound)?;
        state.client.socket(object).map(|socket| socket.protocol).ok_or(Errno::EBADF)
    })?;
    if protocol.is_datagram() { open_datagrams(object, Endpoint::default()) } else { Ok(()) }
}

/// Opens a bound datagram socket on every replica, or gives it another peer.
fn open_datagrams(object: u32, remote: Endpoint) -> Result<(), Errno> {
    STATE.with(|state| state.client.open_datagrams(object, remote))?;
    match block(Some(object), Some(REPLY_TIMEOUT), |state| state.client.poll_opened(object)) {
        Err(Errno::EAGAIN) => Err(Errno::ENOBUFS),
        Err(errno) if errno != Errno::EINTR => Err(errno),
        _ => Ok(()),
    }
}

/// Opens a datagram socket that is not bound yet, at any port.
pub fn ensure_datagrams(object: u32) -> Result<(), Errno> {
    let unbound = STATE.with(|state| {
        let socket = state.client.socket(object)?;
        // That of a new socket is the unspecified address.
        socket.has_no_port().then_some(socket.local)
    });
    let bound = unbound.map_or(Ok(()), |local| bind(object, local));
    // inet_autobind
    bound.map_err(|errno| if errno == Errno::EADDRINUSE { Errno::EAGAIN } else { errno })
}

/// Tells all replicas of a listener what its options are now, and waits until they know.
pub fn listen_again(object: u32) -> Result<(), Errno> {
    match STATE.with(|state| state.client.listener_mut(object).map(|listener| listener.backlog)) {
        Some(backlog) => listen(object, backlog as i32),
        None => Ok(()),
    }
}

/// Makes a socket listen: listen(2).
pub fn listen(object: u32, backlog: i32) -> Result<(), Errno> {
    pinned(object, || listen_pinned(object, backlog))
}

fn listen_pinned(object: u32, backlog: i32) -> Result<(), Errno> {
    if let Some(any) = STATE.with(|state| state.client.address_to_listen(object))? {
        bind(object, any)?;
    }
    let (mut registration, lease) = STATE.with(|state| {
        let registration = state.client.start_listening(object, backlog)?;
        Ok((registration, state.client.socket(object).map_or(0, |socket| socket.lease)))
    })?;
    loop {
        let is_nobodys = STATE.with(|state| state.client.is_nobodys(object, &registration));
        let shown = if is_nobodys { passes(object, lease, 0)? } else { Vec::new() };
        let token = STATE.with(|state| state.client.ask_to_listen(object, &registration, &shown))?;
        let Some(token) = token else { break };
        let listens = answer(token)?;
        STATE.with(|state| state.client.listens_at(object, &mut registration, &listens))?;
    }
    STATE.with(|state| state.client.finish_listening(object, &registration))
}

/// A connection that was accepted.
#[derive(Clone, Copy, Debug)]
pub struct Accepted {
    pub fd: i32,
    pub remote: Endpoint,
    pub v6: bool,
}

/// Accepts a connection: accept4(2).
pub fn accept(fd: i32, object: u32, nonblocking: bool, close_on_exec: bool) -> Result<Accepted, Errno> {
    cancellation::point(|| accept_any(fd, object, nonblocking, close_on_exec))
}

fn accept_any(fd: i32, object: u32, nonblocking: bool, close_on_exec: bool) -> Result<Accepted, Errno> {
    let _call = stats::Call::new(stats::ACCEPT);
    if asks() {
        return accept_by_asking(fd, object, nonblocking, close_on_exec);
    }
    let kind = Wanted { listener: fd, object, nonblocking, close_on_exec };
    let step = |state: &mut State, number: Option<i32>| {
        state.client.accept_connections(object);
        accept_one(state, kind, number)
    };
    let first = STATE.with(|state| {
        state.client.check_listening(object)?;
        let is_late = state.client.may_accept(object) | state.client.accept_connections(object);
        let mut result = step(state, None);
        if matches!(result, Err(Failure::WouldBlock)) {
            state.client.drain();
            result = step(state, None);
        }
        match result {
            Ok(accepted) => Ok(Ok(accepted)),
            Err(Failure::Error(errno)) => Err(errno),
            Err(Failure::WouldBlock) if state.client.is_nonblocking(object) => {
                if is_late {
                    Ok(Err((Some(OFFERED_AGAIN), true)))
                } else {
                    Err(Errno::EAGAIN)
                }
            }
            Err(Failure::WouldBlock) => {
                let time = state.client.socket(object).map_or(0, |s| s.options.value(Name::ReceiveTimeout));
                Ok(Err((patience(time), false)))
            }
        }
    });
    let (timeout, is_brief) = match first.inspect_err(|_| hang_up::after_nothing())? {
        Ok(accepted) => return Ok(accepted),
        Err(timeout) => timeout,
    };
    match block_with_number((fd, object), timeout, step) {
        // accept(2) of a socket that does not block is not interrupted.
        Err(Errno::EINTR | Errno::EAGAIN) if is_brief => {
            asking::hear_offers();
            STATE.with(|state| {
                state.client.drain();
                step(state, None).map_err(Failure::errno)
            })
        }
        result => result,
    }
}

/// Accepts a connection in the naive way (P4): every call asks for one and waits for the answer.
fn accept_by_asking(fd: i32, object: u32, nonblocking: bool, close_on_exec: bool) -> Result<Accepted, Errno> {
    let mut tried = 0;
    let (waits, timeout) = STATE.with(|state| {
        state.client.check_listening(object)?;
        let timeout =
            state.client.socket(object).map_or(0, |socket| socket.options.value(Name::ReceiveTimeout));
        Ok((!state.client.is_nonblocking(object), patience(timeout)))
    })?;
    let kind = Wanted { listener: fd, object, nonblocking, close_on_exec };
    let mut step = |state: &mut State| match accept_one(state, kind, None) {
        Err(Failure::WouldBlock) => {
            state.client.ask_for_connection(object, &mut tried)?;
            if !waits {
                return Err(Errno::EAGAIN.into());
            }
            state.client.ask_before_sleep(object);
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
        return block_at_point(object, timeout, step);
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

/// What accept(2) is to make.
#[derive(Clone, Copy)]
struct Wanted {
    /// The descriptor of the listener, and its object.
    listener: i32,
    object: u32,
    nonblocking: bool,
    close_on_exec: bool,
}

/// Takes a connection, if there is one, under `number` or, without, under the lowest number that is free.
fn accept_one(state: &mut State, wanted: Wanted, number: Option<i32>) -> Result<Accepted, Failure> {
    let Wanted { listener, object, nonblocking, close_on_exec } = wanted;
    state.client.check_listening(object)?;
    if !state.client.may_accept(object) {
        return Err(Failure::WouldBlock);
    }
    // This comes before anything is claimed: without a number the connection stays where it is.
    let fd = number.map_or_else(|| state.take_number(listener), Ok)?;
    let accepted = match state.client.accept(object, nonblocking) {
        Ok(accepted) => accepted,
        Err(failure) => {
            if number.is_none() {
                put_number(fd);
            }
            return Err(failure);
        }
    };
    table::set_object(fd, accepted, close_on_exec);
    let Some(socket) = state.client.socket(accepted) else { return Err(Errno::EBADF.into()) };
    Ok(Accepted { fd, remote: socket.remote, v6: socket.v6 })
}

/// What is left of close(2) when a descriptor is closed.
#[must_use]
#[derive(Debug)]
pub struct Closed {
    /// Whether the kernel's descriptor is to be closed, too.
    pub is_in_kernel: bool,
    lingering: Option<Lingering>,
}

impl Closed {
    /// Waits as `SO_LINGER` says. The number has to be free before that, as on Linux.
    pub fn linger(self) {
        self.lingering.into_iter().for_each(linger);
    }
}

/// Closes one descriptor of an object: close(2).
pub fn close(fd: i32, object: u32) -> Closed {
    let _call = stats::Call::new(stats::CLOSE);
    let closed = STATE.with(|state| {
        // A call that was left by siglongjmp(3) would keep the socket open.
        state.end_left_calls(std::ptr::from_ref(&fd) as usize);
        (!state.client.lingers(object)).then(|| close_now(state, fd, object))
    });
    match closed {
        Some(is_in_kernel) => Closed { is_in_kernel, lingering: None },
        None => {
            let lingering = start_lingering(object);
            Closed { is_in_kernel: STATE.with(|state| close_now(state, fd, object)), lingering }
        }
    }
}

/// Prepares a socket for being closed. Returns what [`linger`] then waits for.
pub fn start_lingering(object: u32) -> Option<Lingering> {
    STATE.until_turn(|state| state.client.start_lingering(object)).ok().flatten()
}

/// Waits until the peer has acknowledged everything, FIN included, for as long as `SO_LINGER` says. As on
/// Linux, a signal ends the wait, and close(2) returns 0 in any case.
pub fn linger(lingering: Lingering) {
    let _ = block(None, Some(lingering.time), |state| match state.client.is_lingering(&lingering) {
        true => Err(Failure::WouldBlock),
        false => Ok(()),
    });
}

fn close_now(state: &mut State, fd: i32, object: u32) -> bool {
    let is_last = state.client.object(object).is_some_and(|entry| entry.descriptors == 1);
    let is_pooled = is_last && state.client.socket(object).is_some_and(|socket| socket.pooled);
    let is_kept = is_pooled && reserved::put(fd);
    if !is_kept {
        table::set_kernel(fd);
        count_system_call();
    }
    state.client.release(object);
    !is_kept
}

/// Connects a socket to an address that the stack reaches: connect(2).
pub fn connect(object: u32, remote: Endpoint) -> Result<(), Errno> {
    cancellation::point(|| {
        let _call = stats::Call::new(stats::CONNECT);
        let is_udp =
            STATE.with(|state| state.client.socket(object).is_some_and(|s| s.protocol.is_datagram()));
        if is_udp { connect_datagrams(object, remote) } else { connect_stream(object, remote) }
    })
}

fn connect_datagrams(object: u32, remote: Endpoint) -> Result<(), Errno> {
    ensure_datagrams(object)?;
    let remote = STATE.with(|state| {
        state.client.choose_source(object, remote)?;
        Ok(state.client.peer_to_connect(object, remote))
    })?;
    open_datagrams(object, remote)
}

/// connect(2) with AF_UNSPEC: a datagram socket has no peer any more, a connection is reset.
pub fn disconnect(object: u32) -> Result<(), Errno> {
    let (named, is_datagram) = STATE.until_turn(|state| {
        let named = state.client.disconnect(object)?;
        let is_datagram = state.client.socket(object).is_some_and(|s| matches!(s.kind, Kind::Datagram(_)));
        state.client.forget_source(object);
        Ok((named, is_datagram))
    })?;
    bind_again(object, named);
    if is_datagram { open_datagrams(object, Endpoint::default()) } else { Ok(()) }
}

/// Binds a socket that was a listener to the port that the program had named, as on Linux, where the socket
/// keeps it (`SOCK_BINDPORT_LOCK`). If another socket is there by now, the socket has no port.
fn bind_again(object: u32, named: Option<Endpoint>) {
    if let Some(local) = named {
        let _ = bind(object, local);
    }
}

fn connect_stream(object: u32, remote: Endpoint) -> Result<(), Errno> {
    let is_fast = STATE.with(|state| {
        state.client.socket(object).is_some_and(|socket| socket.options.is_on(Name::FastOpenConnect))
    });
    let opened = if is_fast { fast_open::connect(object, remote)? } else { Opened::Before };
    let nonblocking = STATE.with(|state| {
        let time = state.client.socket(object).map_or(0, |s| s.options.value(Name::SendTimeout));
        state.client.is_nonblocking(object) || patience(time) == Some(Duration::ZERO)
    });
    match opened {
        Opened::Waits => return Ok(()),
        Opened::Left if nonblocking => return Err(Errno::EINPROGRESS),
        _ => {}
    }
    match STATE.with(|state| state.client.connect(object, remote))? {
        Connecting::Open => Ok(()),
        Connecting::Begun if nonblocking => Err(Errno::EINPROGRESS),
        Connecting::GoesOn if nonblocking => Err(Errno::EALREADY),
        Connecting::Begun | Connecting::GoesOn => await_connection(object),
    }
}

/// Waits until a connection that is being opened is open.
pub fn await_connection(object: u32) -> Result<(), Errno> {
    let timeout =
        STATE.with(|state| state.client.socket(object).map_or(0, |s| s.options.value(Name::SendTimeout)));
    let timeout = patience(timeout);
    let result = block_at_point(object, timeout, |state| state.client.poll_connected(object));
    // connect(2), socket(7): the time of SO_SNDTIMEO has passed.
    result.map_err(|errno| if errno == Errno::EAGAIN { Errno::EINPROGRESS } else { errno })
}

/// Waits until a replica has chosen the port of a connection that was begun without waiting: on Linux it has
/// one when connect(2) returns.
pub fn await_name(object: u32) {
    let is_named = |state: &State| state.client.local_of(object).port != 0;
    let waits = STATE.with(|state| match state.client.socket(object).map(|socket| &socket.kind) {
        Some(Kind::Stream(..)) => !is_named(state),
        _ => false,
    });
    if waits {
        let _ = STATE.until_turn(|state| state.client.await_answer(object));
        let _ = block(Some(object), Some(REPLY_TIMEOUT), |state| {
            let is_known = state
                .client
                .stream(object)
                .is_none_or(|(stream, ..)| stream.is_answered() || stream.is_closed());
            if is_known { Ok(()) } else { Err(Failure::WouldBlock) }
        });
    }
}

/// Shuts down one or both directions of a connection: shutdown(2).
pub fn shutdown(object: u32, how: i32) -> Result<(), Errno> {
    let _call = stats::Call::new(stats::OTHER);
    let (receive, send) = match how {
        libc::SHUT_RD => (true, false),
        libc::SHUT_WR => (false, true),
        libc::SHUT_RDWR => (true, true),
        _ => return Err(Errno::EINVAL),
    };
    let named = STATE.until_turn(|state| state.client.shutdown(object, receive, send))?;
    bind_again(object, named);
    Ok(())
}
