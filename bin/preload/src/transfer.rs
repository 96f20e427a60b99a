//! Octets and datagrams between a program and its sockets: recv(2), send(2) and their kin.

use std::ffi::c_void;

use atoll_base::{Duration, Endpoint};
use atoll_ipc::command::Protocol;
use atoll_sockets::{Errno, Failure};
use libc::iovec;

use crate::calls::ensure_datagrams;
use crate::fast_open::{self, MSG_FASTOPEN};
use crate::object::{Kind, Socket};
use crate::real::sys;
use crate::state::{STATE, State};
use crate::stats;
use crate::urgent;
use crate::wait::{block, count_system_call, last_errno};

/// Octets that are copied at once while the lock is held.
const AT_ONCE: usize = 256 << 10;

/// Memory of the program, as a list of parts.
pub struct Parts<'a>(pub &'a [iovec]);

impl Parts<'_> {
    /// Bytes in all parts.
    pub fn len(&self) -> usize {
        self.0.iter().fold(0usize, |sum, part| sum.saturating_add(part.iov_len))
    }

    /// The parts as slices to read from.
    fn sources(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().filter(|part| part.iov_len > 0).map(|part| {
            // SAFETY: the program promised readable memory, as to write(2).
            unsafe { std::slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len) }
        })
    }

    /// The parts as slices to write to.
    pub fn targets(&self) -> impl Iterator<Item = &mut [u8]> {
        self.0.iter().filter(|part| part.iov_len > 0).map(|part| {
            // SAFETY: the program promised writable memory, as to read(2).
            unsafe { std::slice::from_raw_parts_mut(part.iov_base.cast::<u8>(), part.iov_len) }
        })
    }
}

/// What a receiving call brought.
#[derive(Clone, Copy, Debug, Default)]
pub struct Received {
    /// Octets copied; with MSG_TRUNC, the length of the datagram.
    pub len: usize,
    /// Who sent a datagram, and whether the socket is one of AF_INET6.
    pub peer: Option<(Endpoint, bool)>,
    /// The datagram was longer.
    pub truncated: bool,
    /// It is an urgent octet.
    pub urgent: bool,
}

/// How a call that sleeps goes on.
enum Now<R> {
    Done(R),
    /// It waits, so many microseconds or (0) for ever.
    Wait(u64),
}

/// recv(2), recvfrom(2), read(2), recvmsg(2).
#[inline]
pub fn receive(object: u32, parts: &Parts<'_>, flags: i32) -> Result<Received, Errno> {
    let _call = stats::Call::new(stats::RECEIVE);
    if flags & (libc::MSG_ERRQUEUE | libc::MSG_OOB) != 0 {
        return if flags & libc::MSG_ERRQUEUE != 0 {
            Err(Errno::EAGAIN)
        } else {
            urgent::receive(object, parts, flags)
        };
    }
    let want = parts.len();
    let mut done = 0;
    let mut step = |state: &mut State| match state.socket(object).map(|socket| (&socket.kind, socket.protocol)) {
        Some((Kind::Stream(..), _)) => receive_octets(state, object, parts, want, flags, &mut done),
        Some((Kind::Datagram(_), _)) => receive_datagram(state, object, parts, flags),
        // recv(2) on a datagram socket without a port waits for what never comes.
        Some((_, Protocol::Udp)) => Err(Failure::WouldBlock),
        Some(_) => Err(Errno::ENOTCONN.into()),
        None => Err(Errno::EINVAL.into()),
    };
    // The fast path: no clock, no timeout, one lock.
    let first = STATE.with(|state| {
        let mut result = step(state);
        if matches!(result, Err(Failure::WouldBlock)) {
            state.drain();
            result = step(state);
        }
        match result {
            Ok(received) => Ok(Now::Done(received)),
            Err(Failure::Error(errno)) => Err(errno),
            Err(Failure::WouldBlock) if flags & libc::MSG_DONTWAIT != 0 || state.is_nonblocking(object) => {
                Err(Errno::EAGAIN)
            }
            Err(Failure::WouldBlock) => Ok(Now::Wait(state.socket(object).map_or(0, |s| s.options.receive_timeout_us))),
        }
    });
    let result = match first {
        Ok(Now::Done(received)) => return Ok(received),
        Ok(Now::Wait(timeout)) => block(Some(object), (timeout > 0).then(|| Duration::from_micros(timeout)), &mut step),
        Err(errno) => Err(errno),
    };
    // MSG_WAITALL: what came before the wait ended is the result.
    match result {
        Err(_) if done > 0 => Ok(Received { len: done, ..Received::default() }),
        result => result,
    }
}

// structure: receive_octets: recv(2) with MSG_PEEK, MSG_WAITALL, MSG_TRUNC and a low-water mark is one loop
#[inline]
fn receive_octets(
    state: &mut State,
    object: u32,
    parts: &Parts<'_>,
    want: usize,
    flags: i32,
    done: &mut usize,
) -> Result<Received, Failure> {
    let peek = flags & libc::MSG_PEEK != 0;
    let is_urgent = !state.signals.is_empty();
    let family = state.family(object);
    let Some((stream, local, place)) = state.stream(object) else { return Err(Errno::ENOTCONN.into()) };
    let all = |done: usize| Ok(Received { len: done, ..Received::default() });
    if want == 0 {
        return if stream.is_connecting() { Err(Failure::WouldBlock) } else { all(0) };
    }
    if stream.is_at_mark(local) {
        if *done > 0 {
            // tcp(7): no call reads beyond the mark.
            return all(*done);
        }
        if is_urgent {
            // As on Linux: the handler of SIGURG comes first, which may want the octet.
            return Err(Failure::WouldBlock);
        }
    }
    let found = stream.readable(local);
    if local.pass.is_some() {
        let kick = !peek && stream.pass(local);
        drop(family);
        if kick {
            state.kick(place);
        }
        return found.and_then(|_| all(*done));
    }
    let readable = match found {
        Err(Failure::Error(_)) if *done > 0 => {
            // It is told by the next call.
            local.error_taken = false;
            return all(*done);
        }
        result => result?,
    };
    if readable.len == 0 {
        return all(*done);
    }
    let wait_all = flags & libc::MSG_WAITALL != 0;
    let low = if peek || wait_all { 1 } else { want.min(local.receive_low.max(1) as usize) };
    if readable.len < low as u64 && !readable.is_cut && !stream.has_ended() && flags & libc::MSG_DONTWAIT == 0 {
        return Err(Failure::WouldBlock);
    }
    let take = (want - *done).min(usize::try_from(readable.len).unwrap_or(usize::MAX));
    let end = readable.head + take as u64;
    // tcp(7): with MSG_TRUNC octets are discarded instead of copied.
    let mut at = if flags & libc::MSG_TRUNC != 0 { end } else { readable.head };
    let mut skip = *done;
    for target in parts.targets() {
        let start = skip.min(target.len());
        skip -= start;
        let len = (target.len() - start).min((end - at) as usize);
        if len > 0 && !stream.copy_out(&readable, at, &mut target[start..start + len]) {
            return Err(stream.error().unwrap_or(Errno::ECONNRESET).into());
        }
        at += len as u64;
        if at == end {
            break;
        }
    }
    if peek {
        return if wait_all && take < want && !stream.has_ended() { Err(Failure::WouldBlock) } else { all(take) };
    }
    let kick = stream.consume(end);
    *done += take;
    let ended = stream.has_ended();
    drop(family);
    if kick {
        state.kick(place);
    }
    if wait_all && *done < want && !ended {
        return Err(Failure::WouldBlock);
    }
    all(*done)
}

fn receive_datagram(state: &mut State, object: u32, parts: &Parts<'_>, flags: i32) -> Result<Received, Failure> {
    let errno = crate::calls::take_error(state, object);
    if errno != 0 {
        return Err(Errno(errno).into());
    }
    let family = state.family(object);
    let Some(Socket { kind: Kind::Datagram(datagram), v6, .. }) = state.socket(object) else {
        return Err(Errno::EBADF.into());
    };
    let v6 = *v6;
    let (count, first, is_shut) = (datagram.places.len(), datagram.next, datagram.shut_receive);
    for i in 0..count {
        // Replicas take turns, so that none is starved.
        let at = (first + i) % count;
        let place = datagram.places[at];
        let Some(socket) = state.datagrams(place) else { continue };
        let Some(waiting) = socket.waiting() else { continue };
        let mut skip = 0;
        for target in parts.targets() {
            skip += socket.copy_out(&waiting, skip, target);
        }
        let truncated = skip < waiting.len;
        let peek = flags & libc::MSG_PEEK != 0;
        let kick = !peek && socket.consume(&waiting);
        drop(family);
        if kick {
            state.kick(place);
        }
        if !peek && let Some(Socket { kind: Kind::Datagram(datagram), .. }) = state.socket_mut(object) {
            datagram.next = (at + 1) % count;
        }
        let len = if flags & libc::MSG_TRUNC != 0 { waiting.len } else { skip };
        return Ok(Received { len, peer: Some((waiting.peer, v6)), truncated, urgent: false });
    }
    if is_shut { Ok(Received::default()) } else { Err(Failure::WouldBlock) }
}

/// send(2), write(2), sendmsg(2), and sendto(2) with `peer`.
#[inline]
pub fn send(object: u32, parts: &Parts<'_>, flags: i32, peer: Option<Endpoint>) -> Result<usize, Errno> {
    if flags & MSG_FASTOPEN != 0 && STATE.with(|s| s.socket(object).is_some_and(|s| s.protocol == Protocol::Tcp)) {
        return fast_open::send_to(object, parts, flags, peer);
    }
    let _call = stats::Call::new(stats::SEND);
    let want = parts.len();
    if flags & libc::MSG_OOB != 0
        && STATE.with(|state| state.socket(object).is_some_and(|s| s.protocol == Protocol::Udp))
    {
        return Err(Errno::EOPNOTSUPP);
    }
    let mut done = 0;
    let result = send_loop(object, flags, |state| match state.socket(object).map(|s| (&s.kind, s.protocol)) {
        Some((Kind::Stream(..), _)) => send_octets(state, object, parts, want, flags, &mut done),
        Some((_, Protocol::Udp)) => Err(NOT_A_STREAM.into()),
        // send(2) on a stream socket that was never connected.
        Some(_) => Err(Errno::EPIPE.into()),
        None => Err(Errno::EINVAL.into()),
    });
    match result {
        Ok(()) => Ok(done),
        Err(_) if done > 0 => Ok(done),
        Err(NOT_A_STREAM) => send_datagram(object, parts, want, flags, peer),
        Err(errno) => Err(pipe(errno, flags)),
    }
}

/// No errno, but the way out of the fast path.
const NOT_A_STREAM: Errno = Errno(-1);

#[inline]
fn send_octets(
    state: &mut State,
    object: u32,
    parts: &Parts<'_>,
    want: usize,
    flags: i32,
    done: &mut usize,
) -> Result<(), Failure> {
    let family = state.family(object);
    let Some((stream, local, place)) = state.stream(object) else { return Err(Errno::ENOTCONN.into()) };
    if want == 0 {
        return Ok(());
    }
    let (more, urgent) = (flags & libc::MSG_MORE != 0, flags & libc::MSG_OOB != 0);
    let mut filled = 0;
    while *done < want && filled < AT_ONCE {
        let room = match stream.writable(local, want - *done) {
            Ok(room) => room,
            Err(Failure::WouldBlock) => break,
            Err(failure) if *done == 0 => return Err(failure),
            Err(_) => {
                // It is told by the next call.
                local.error_taken = false;
                break;
            }
        };
        let (mut skip, mut now) = (*done, 0);
        for source in parts.sources() {
            let start = skip.min(source.len());
            skip -= start;
            let len = (source.len() - start).min(room.len - now);
            stream.copy_in(&room, now, &source[start..start + len]);
            now += len;
            if now == room.len {
                break;
            }
        }
        if urgent {
            stream.commit_urgent(&room, now)
        } else {
            stream.commit(&room, now)
        }
        filled += now;
        *done += now;
        if now == 0 {
            break;
        }
    }
    let is_over = stream.is_closed();
    let starved = std::mem::take(&mut local.starved);
    drop(family);
    if filled > 0 {
        state.note_sent(object);
    }
    if filled > 0 && !more {
        state.kick(place);
        uncork_after_more(state, object);
    } else if filled > 0 {
        kick_more(state, object, place);
    }
    if *done >= want || is_over {
        return Ok(());
    }
    if starved && state.find_memory(object) {
        return send_octets(state, object, parts, want, flags, done);
    }
    Err(Failure::WouldBlock)
}

/// MSG_MORE: as if the socket were corked until the next call without it.
fn kick_more(state: &mut State, object: u32, place: crate::object::Place) {
    use atoll_ipc::command::SocketOption;
    let is_corked = state.socket(object).is_some_and(|s| s.options.cork);
    if !is_corked {
        state.send_option(object, SocketOption::Cork, 1);
        if let Some(socket) = state.socket_mut(object) {
            socket.more = true;
        }
    }
    state.kick(place);
}

// structure: send_file: sendfile(2) and its ways around pipes and positions are one loop
/// One file range to a connection: sendfile(2). `offset` moves; `None`: the file's own position does.
pub fn send_file(object: u32, input: i32, offset: &mut Option<i64>, count: usize) -> Result<usize, Errno> {
    let _call = stats::Call::new(stats::SEND);
    if crate::table::object_at(input).is_some() {
        return Err(Errno::EINVAL);
    }
    let start = *offset;
    let mut done = 0;
    let result = send_loop(object, 0, |state| {
        loop {
            let family = state.family(object);
            let Some((stream, local, place)) = state.stream(object) else { return Err(Errno::EPIPE.into()) };
            if done >= count {
                return Ok(());
            }
            let room = match stream.writable(local, (count - done).min(AT_ONCE)) {
                Ok(room) => room,
                Err(failure) => {
                    let starved = std::mem::take(&mut local.starved);
                    drop(family);
                    if starved && state.find_memory(object) {
                        continue;
                    }
                    return Err(failure);
                }
            };
            let Some(pieces) = stream.places(&room, 0, room.len) else { return Err(Errno::EIO.into()) };
            let (memory, area) = (stream.memory(), stream.send_area());
            let mut filled = 0;
            let mut ended = false;
            for (at, len) in pieces.iter() {
                let Ok(target) = memory.range(area + at, len) else { return Err(Errno::EIO.into()) };
                count_system_call();
                let n = match start {
                    // SAFETY: `target` is `len` bytes of the send area, ours to write; the rest are numbers.
                    Some(from) => unsafe {
                        sys!(libc::SYS_pread64, input, target.cast::<c_void>(), len, from + (done + filled) as i64)
                    },
                    // SAFETY: as above.
                    None => unsafe { sys!(libc::SYS_read, input, target.cast::<c_void>(), len) },
                };
                if n < 0 {
                    if filled == 0 {
                        return Err(last_errno().into());
                    }
                    ended = true;
                    break;
                }
                filled += n as usize;
                if (n as usize) < len {
                    ended = true;
                    break;
                }
            }
            stream.commit(&room, filled);
            drop(family);
            done += filled;
            if filled > 0 {
                state.note_sent(object);
                state.kick(place);
                uncork_after_more(state, object);
            }
            if ended {
                return Ok(());
            }
        }
    });
    if let Some(offset) = offset {
        *offset += done as i64;
    }
    match result {
        Ok(()) => Ok(done),
        Err(_) if done > 0 => Ok(done),
        Err(errno) => Err(pipe(errno, 0)),
    }
}

fn send_datagram(
    object: u32,
    parts: &Parts<'_>,
    len: usize,
    flags: i32,
    peer: Option<Endpoint>,
) -> Result<usize, Errno> {
    if STATE.with(|state| matches!(state.socket(object), Some(Socket { kind: Kind::Fresh, .. }))) {
        if peer.is_none() {
            return Err(Errno::EDESTADDRREQ);
        }
        ensure_datagrams(object)?;
    }
    send_loop(object, flags, |state| {
        let errno = crate::calls::take_error(state, object);
        if errno != 0 {
            return Err(Errno(errno).into());
        }
        let Some(socket) = state.socket(object) else { return Err(Errno::EBADF.into()) };
        let (remote, broadcast, options) = (socket.remote, socket.options.broadcast, socket.options);
        let Kind::Datagram(datagram) = &socket.kind else { return Err(Errno::EBADF.into()) };
        if peer.is_none() && !datagram.connected {
            return Err(Errno::EDESTADDRREQ.into());
        }
        if datagram.shut_send {
            return Err(Errno::EPIPE.into());
        }
        if peer.is_some_and(|peer| peer.port == 0) {
            return Err(Errno::EINVAL.into());
        }
        let session = &state.sessions[0];
        let to = peer.unwrap_or(remote).addr;
        if session.is_cut_off(to) {
            return Err(Errno::ENETUNREACH.into());
        }
        let (discover, headers) = match to.is_v4() {
            true => (options.mtu_discover, HEADERS),
            false => (options.mtu_discover_v6, HEADERS_V6),
        };
        let is_whole = discover.is_some_and(|value| !FRAGMENTING.contains(&(value as i32)))
            || (options.dont_fragment_v6 && !to.is_v4());
        if is_whole && len + headers > session.mtu_for(to) && !session.is_own(to) && !to.is_loopback() {
            return Err(Errno::EMSGSIZE.into());
        }
        let place = datagram.places[datagram.sender % datagram.places.len()];
        let family = state.family(object);
        let Some(datagrams) = state.datagrams(place) else { return Err(Errno::EBADF.into()) };
        datagrams.send(peer.unwrap_or(remote), broadcast, len, parts.sources())?;
        drop(family);
        state.kick(place);
        Ok(())
    })
    .map(|()| len)
    .map_err(|errno| pipe(errno, flags))
}

/// ip(7), ipv6(7): the values of `IP_MTU_DISCOVER` and `IPV6_MTU_DISCOVER` with which datagrams larger than the link's MTU leave in fragments.
const FRAGMENTING: [i32; 3] = [libc::IP_PMTUDISC_DONT, libc::IP_PMTUDISC_WANT, libc::IP_PMTUDISC_OMIT];
/// Octets of the IPv4 and UDP headers.
const HEADERS: usize = 28;
/// Of the IPv6 and UDP headers.
const HEADERS_V6: usize = 48;

/// Repeats a sending step as the socket's mode wants it.
#[inline]
fn send_loop(object: u32, flags: i32, mut step: impl FnMut(&mut State) -> Result<(), Failure>) -> Result<(), Errno> {
    let first = STATE.with(|state| {
        let mut result = step(state);
        if matches!(result, Err(Failure::WouldBlock)) {
            state.drain();
            result = step(state);
        }
        match result {
            Ok(()) => Ok(Now::Done(())),
            Err(Failure::Error(errno)) => Err(errno),
            Err(Failure::WouldBlock) if flags & libc::MSG_DONTWAIT != 0 || state.is_nonblocking(object) => {
                Err(Errno::EAGAIN)
            }
            Err(Failure::WouldBlock) => Ok(Now::Wait(state.socket(object).map_or(0, |s| s.options.send_timeout_us))),
        }
    });
    match first? {
        Now::Done(()) => Ok(()),
        Now::Wait(timeout) => block(Some(object), (timeout > 0).then(|| Duration::from_micros(timeout)), step),
    }
}

/// Ends what [`kick_more`] began, after the octets that follow.
#[inline]
fn uncork_after_more(state: &mut State, object: u32) {
    if let Some(socket) = state.socket_mut(object)
        && socket.more
    {
        socket.more = false;
        if !socket.options.cork {
            state.send_option(object, atoll_ipc::command::SocketOption::Cork, 0);
        }
    }
}

/// EPIPE comes with SIGPIPE unless the call says otherwise. send(2).
fn pipe(errno: Errno, flags: i32) -> Errno {
    if errno == Errno::EPIPE && flags & libc::MSG_NOSIGNAL == 0 {
        // SAFETY: raises a signal in this thread, as the kernel would.
        unsafe { libc::raise(libc::SIGPIPE) };
    }
    errno
}
