//! Moves octets and datagrams between a program and its sockets: recv(2), send(2) and similar calls.

use atoll_base::Duration;
use atoll_ipc::command::Protocol;
use atoll_ipc::datagram::{DATAGRAM_MAX, ECHO_HEADER, QUOTED_TEXT_MAX};
use atoll_sockets::ancillary::Addressed;
use atoll_sockets::client::transfer::{AT_ONCE, Carrier, Receiving, Sending};
use atoll_sockets::{Errno, Failure};

use atoll_sockets::client::object::{Kind, Socket};
pub use atoll_sockets::client::transfer::Received;
use atoll_sockets::options::{Name, patience};
use libc::iovec;

use crate::calls::{await_connection, ensure_datagrams};
use crate::hang_up;
use crate::lock::STATE;
use crate::reach;
use crate::state::State;
use crate::stats;
use crate::wait::{block, block_at_point};

/// Memory of the program, as a list of parts.
pub struct Parts<'a>(pub &'a [iovec]);

impl Parts<'_> {
    /// Returns the bytes in all parts.
    pub fn len(&self) -> usize {
        self.0.iter().fold(0usize, |sum, part| sum.saturating_add(part.iov_len))
    }

    /// Fails with EFAULT where a part is none of a program's memory, and with EINVAL where one is longer than
    /// memory can be.
    /// Other pointers that lead nowhere are found when octets are to be copied ([`crate::reach`]).
    #[inline]
    pub fn check(&self) -> Result<(), Errno> {
        for part in self.0 {
            if part.iov_len > isize::MAX as usize {
                return Err(Errno::EINVAL);
            }
            // import_iovec
            if part.iov_base.is_null() && part.iov_len > 0 || reach::is_beyond(part.iov_base, part.iov_len) {
                return Err(Errno::EFAULT);
            }
        }
        Ok(())
    }

    /// The parts as slices to read from.
    fn sources(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().filter(|part| part.iov_len > 0).map(|part| {
            // SAFETY: the program promised readable memory, as to write(2).
            unsafe { std::slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len) }
        })
    }

    /// Returns the parts as slices to write to.
    pub fn targets(&self) -> impl Iterator<Item = &mut [u8]> {
        self.0.iter().filter(|part| part.iov_len > 0).map(|part| {
            // SAFETY: the program promised writable memory, as to read(2).
            unsafe { std::slice::from_raw_parts_mut(part.iov_base.cast::<u8>(), part.iov_len) }
        })
    }
}

/// How a call goes on after its first step.
enum Now<R> {
    Done(R),
    /// The call waits for so many microseconds; 0 means for ever.
    Wait(u64),
}

/// Says what a stream socket without a connection receives.
#[cold]
pub fn receive_unconnected(state: &mut State, object: u32) -> Result<usize, Failure> {
    if let Some(errno) = state.client.take_error(object) {
        return Err(errno.into());
    }
    match state.client.socket(object) {
        Some(Socket { kind: Kind::Listening(_), .. }) => Err(Errno::ENOTCONN.into()),
        // tcp_recvmsg_locked: what was shut down is at its end.
        Some(socket) if socket.lasting.shut_receive => Ok(0),
        _ => Err(Errno::ENOTCONN.into()),
    }
}

/// Receives octets or a datagram: recv(2), recvfrom(2), read(2), recvmsg(2).
// It is a part of one caller: on the fast path a call more, and its result once more, are felt.
#[inline(always)]
pub fn receive(object: u32, parts: &Parts<'_>, flags: i32) -> Result<Received, Errno> {
    let _call = stats::Call::new(stats::RECEIVE);
    let want = parts.len();
    let how = Receiving {
        peek: flags & libc::MSG_PEEK != 0,
        wait_all: flags & libc::MSG_WAITALL != 0,
        truncate: flags & libc::MSG_TRUNC != 0,
        dont_wait: flags & libc::MSG_DONTWAIT != 0,
    };
    let mut done = 0;
    // What is known of a datagram goes round the results of this call, in which it would be copied each time.
    let mut about = Received::default();
    let mut step =
        |state: &mut State| match state.client.socket(object).map(|socket| (&socket.kind, socket.protocol)) {
            Some((Kind::Stream(..), _)) => {
                state.client.receive_octets(object, || parts.targets(), want, how, &mut done)
            }
            Some((Kind::Datagram(_), _)) => {
                about = state.client.receive_datagram(object, || parts.targets(), how)?;
                Ok(about.len)
            }
            // recv(2) on a datagram socket without a port waits for what never comes.
            Some((_, Protocol::Icmp | Protocol::Raw | Protocol::Udp)) => Err(Failure::WouldBlock),
            Some(_) => receive_unconnected(state, object),
            None => Err(Errno::EINVAL.into()),
        };
    // This is the fast path: no clock, no timeout, one lock.
    let first = STATE.in_turn(|state| {
        let mut result = step(state);
        // Octets are there as soon as they are shown in the slot; what else there may be comes by an event.
        if matches!(result, Err(Failure::WouldBlock)) && state.client.drain() {
            result = step(state);
        }
        match result {
            Ok(len) => Ok(Now::Done(len)),
            Err(Failure::WouldBlock)
                if flags & libc::MSG_DONTWAIT == 0 && !state.client.is_nonblocking(object) =>
            {
                let options = state.client.socket(object).map(|socket| &socket.options);
                Ok(Now::Wait(options.map_or(0, |options| options.value(Name::ReceiveTimeout))))
            }
            Err(failure) => Err(failure),
        }
    });
    let result = match first {
        Ok(Now::Done(len)) => return Ok(Received { len, ..about }),
        Ok(Now::Wait(timeout)) => block_at_point(object, patience(timeout), &mut step),
        Err(failure) => {
            hang_up::after_nothing();
            Err(failure.errno())
        }
    };
    // MSG_WAITALL: what came before the wait ended is the result.
    let result = match result {
        Err(_) if how.peek && how.wait_all => {
            let how = Receiving { dont_wait: true, ..how };
            let there = STATE
                .with(|state| state.client.receive_octets(object, || parts.targets(), want, how, &mut 0));
            there.or(result)
        }
        Err(_) if done > 0 => Ok(done),
        result => result,
    };
    result.map(|len| Received { len, ..about })
}

/// No error quotes more octets of a datagram: the header of an echo request, and what follows.
const QUOTED_MAX: usize = ECHO_HEADER as usize + QUOTED_TEXT_MAX;

/// Receives a network error about something that was sent: recvmsg(2) with MSG_ERRQUEUE, which never waits.
pub fn receive_fault(object: u32, parts: &Parts<'_>) -> Result<Received, Errno> {
    let room = |part: &mut [u8]| reach::can_write(part.as_mut_ptr(), part.len().min(QUOTED_MAX));
    if !parts.targets().all(room) {
        return Err(Errno::EFAULT);
    }
    STATE.with(|state| {
        let mut result = state.client.receive_fault(object, parts.targets());
        if matches!(result, Err(Failure::WouldBlock)) && state.client.drain() {
            result = state.client.receive_fault(object, parts.targets());
        }
        result.map_err(Failure::errno)
    })
}

/// Sends octets or a datagram: send(2), write(2), sendto(2), sendmsg(2).
// As `receive`.
#[inline(always)]
pub fn send(object: u32, parts: &Parts<'_>, flags: i32, to: Addressed<'_>) -> Result<usize, Errno> {
    let _call = stats::Call::new(stats::SEND);
    let want = parts.len();
    if flags & libc::MSG_OOB != 0
        && STATE.with(|state| state.client.socket(object).is_some_and(|s| !s.may_be_urgent(to.peer)))
    {
        return Err(Errno::EOPNOTSUPP);
    }
    let how = Sending { more: flags & libc::MSG_MORE != 0, urgent: flags & libc::MSG_OOB != 0 };
    let (mut done, mut opens) = (0, false);
    let result =
        send_loop(object, flags, |state| match state.client.socket(object).map(|s| (&s.kind, s.protocol)) {
            Some((Kind::Stream(..), _)) => {
                let carrier = state.client.send_octets(object, || parts.sources(), want, how, &mut done)?;
                opens |= carrier == Carrier::Syn;
                Ok(())
            }
            Some((_, Protocol::Icmp | Protocol::Raw | Protocol::Udp)) => Err(NOT_A_STREAM.into()),
            // send(2) fails so on a stream socket that was never connected.
            Some(_) => Err(state.client.take_error(object).unwrap_or(Errno::EPIPE).into()),
            None => Err(Errno::EINVAL.into()),
        });
    match result {
        Ok(()) if want == 0 => send_nothing(object, flags),
        Ok(()) if opens => await_opening(object, flags).map(|()| done),
        Ok(()) => Ok(done),
        Err(_) if done > 0 => Ok(done),
        Err(NOT_A_STREAM) => send_datagram(object, parts, want, flags, to),
        Err(errno) => Err(pipe(errno, flags)),
    }
}

/// Sends no octets: a SYN that waits for text leaves without (tcp_sendmsg_fastopen).
#[cold]
fn send_nothing(object: u32, flags: i32) -> Result<usize, Errno> {
    if !STATE.until_turn(|state| state.client.send_waiting_syn(object))? {
        return Ok(0);
    }
    if flags & libc::MSG_DONTWAIT != 0 || STATE.with(|state| state.client.is_nonblocking(object)) {
        return Err(Errno::EINPROGRESS);
    }
    await_connection(object).map(|()| 0)
}

/// Waits for a connection whose SYN has taken the first octets of a call, if the call waits
/// (tcp_sendmsg_fastopen).
#[cold]
fn await_opening(object: u32, flags: i32) -> Result<(), Errno> {
    let waits = flags & libc::MSG_DONTWAIT == 0 && !STATE.with(|state| state.client.is_nonblocking(object));
    if waits { await_connection(object) } else { Ok(()) }
}

/// The time that the datagram of an uncorked socket waits for room.
const UNCORK_TIMEOUT: Duration = Duration::from_secs(2);

/// This is no errno, but leads out of the fast path.
const NOT_A_STREAM: Errno = Errno(-1);

/// What a source has written into a send buffer.
pub struct Filled {
    /// The number of octets.
    pub len: usize,
    /// Whether nothing more comes.
    pub is_last: bool,
}

/// Sends up to `count` octets to a connection that `source` writes straight into the send buffer: it gets
/// room for so many octets, and how many it has written in this call before. If it fails, it has taken
/// nothing from where it reads, and the call fails so unless octets were sent before. `more` is MSG_MORE.
pub fn send_from(
    object: u32,
    count: usize,
    more: bool,
    mut source: impl FnMut(*mut u8, usize, usize) -> Result<Filled, Errno>,
) -> Result<usize, Errno> {
    let _call = stats::Call::new(stats::SEND);
    let mut done = 0;
    let result = in_steps(object, false, Name::SendTimeout, |state| {
        while done < count {
            let turn = state.client.turn(object)?;
            let Some((stream, local, place)) = state.client.stream(object) else {
                return Err(state.client.take_error(object).unwrap_or(Errno::EPIPE).into());
            };
            let room = match stream.writable(local, (count - done).min(AT_ONCE)) {
                Ok(room) => room,
                Err(Failure::WouldBlock) => {
                    let starved = std::mem::take(&mut local.starved);
                    drop(turn);
                    if starved && state.client.find_memory(object) {
                        continue;
                    }
                    return Err(Failure::WouldBlock);
                }
                Err(failure) => {
                    // If octets were sent, the next call reports it.
                    local.error_taken &= done == 0;
                    return Err(failure);
                }
            };
            let Some(pieces) = stream.places(&room, 0, room.len) else { return Err(Errno::EIO.into()) };
            let (mut filled, mut end) = (0, None);
            for (at, len) in pieces.iter() {
                let target = stream.memory().range(stream.send_area() + at, len);
                let now =
                    target.map_err(|_| Errno::EIO).and_then(|target| source(target, len, done + filled));
                end = now
                    .as_ref()
                    .map_or_else(|errno| Some(Err((*errno).into())), |now| now.is_last.then_some(Ok(())));
                let now = now.map_or(0, |now| now.len.min(len));
                filled += now;
                if end.is_some() || now < len {
                    break;
                }
            }
            let opens = filled > 0 && stream.opens_with(&room);
            stream.commit(&room, filled);
            drop(turn);
            if opens {
                state.client.note_under_way(object);
            }
            done += filled;
            state.client.after_sending(object, place, filled, more);
            if let Some(end) = end {
                return end;
            }
        }
        Ok(())
    });
    match result {
        Err(errno) if done == 0 => Err(errno),
        _ => Ok(done),
    }
}

fn send_datagram(
    object: u32,
    parts: &Parts<'_>,
    len: usize,
    flags: i32,
    to: Addressed<'_>,
) -> Result<usize, Errno> {
    if STATE.with(|state| state.client.socket(object).is_some_and(Socket::has_no_port)) {
        if to.peer.is_none() {
            return Err(Errno::EDESTADDRREQ);
        }
        ensure_datagrams(object)?;
    }
    let is_there = |part: &[u8]| reach::can_read(part.as_ptr(), part.len());
    if len <= DATAGRAM_MAX as usize && !parts.sources().all(is_there) {
        return Err(Errno::EFAULT);
    }
    let more = flags & libc::MSG_MORE != 0;
    let step = |state: &mut State| state.client.send_datagram(object, parts.sources(), len, to, more);
    send_loop(object, flags, step).map(|()| len).map_err(|errno| pipe(errno, flags))
}

/// Sends the datagram that `UDP_CORK` has held back, if it does no longer. As on Linux, the call does not
/// fail; if the stack takes nothing for two seconds, the datagram is lost.
pub fn uncork(object: u32) {
    let flush = |state: &mut State| {
        let Some(Socket { kind: Kind::Datagram(datagram), options, .. }) = state.client.socket(object) else {
            return Ok(());
        };
        if datagram.corked.is_none() || options.is_on(Name::CorkUdp) {
            return Ok(());
        }
        state.client.send_datagram(object, std::iter::empty(), 0, Addressed::default(), false)
    };
    let _ = block(Some(object), Some(UNCORK_TIMEOUT), flush);
}

/// Repeats a sending step as long as the socket's mode wants it.
#[inline]
fn send_loop(
    object: u32,
    flags: i32,
    step: impl FnMut(&mut State) -> Result<(), Failure>,
) -> Result<(), Errno> {
    in_steps(object, flags & libc::MSG_DONTWAIT != 0, Name::SendTimeout, step)
}

/// Repeats a step until it does not block any more, or only once if the call or the socket does not wait.
/// `timeout` is the option that says how long it waits.
#[inline]
pub fn in_steps<R>(
    object: u32,
    dont_wait: bool,
    timeout: Name,
    mut step: impl FnMut(&mut State) -> Result<R, Failure>,
) -> Result<R, Errno> {
    let first = STATE.in_turn(|state| {
        let mut result = step(state);
        if matches!(result, Err(Failure::WouldBlock)) {
            state.client.drain();
            result = step(state);
        }
        match result {
            Ok(result) => Ok(Now::Done(result)),
            Err(Failure::WouldBlock) if !dont_wait && !state.client.is_nonblocking(object) => {
                let options = state.client.socket(object).map(|socket| &socket.options);
                Ok(Now::Wait(options.map_or(0, |options| options.value(timeout))))
            }
            Err(failure) => Err(failure),
        }
    });
    match first {
        Ok(Now::Done(result)) => Ok(result),
        Ok(Now::Wait(timeout)) => block_at_point(object, patience(timeout), step),
        Err(failure) => {
            hang_up::after_nothing();
            Err(failure.errno())
        }
    }
}

/// Raises SIGPIPE with EPIPE, unless the call says otherwise: send(2). Returns the errno.
pub fn pipe(errno: Errno, flags: i32) -> Errno {
    if errno == Errno::EPIPE && flags & libc::MSG_NOSIGNAL == 0 {
        // SAFETY: raises a signal in this thread, as the kernel would.
        unsafe { libc::raise(libc::SIGPIPE) };
    }
    errno
}
