//! Octets and datagrams between a program and its sockets: recv(2), send(2) and their kin.

use std::ffi::c_void;

use atoll_base::{Duration, Endpoint};
use atoll_ipc::command::Protocol;
use atoll_sockets::{Errno, Failure};
use libc::iovec;

use crate::calls::ensure_datagrams;
use crate::real;
use crate::state::{Kind, STATE, State};
use crate::wait::{block, is_nonblocking};

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
    fn targets(&self) -> impl Iterator<Item = &mut [u8]> {
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
    /// Who sent a datagram.
    pub peer: Option<Endpoint>,
    /// The datagram was longer.
    pub truncated: bool,
}

/// recv(2), recvfrom(2), read(2), recvmsg(2).
pub fn receive(object: u32, parts: &Parts<'_>, flags: i32) -> Result<Received, Errno> {
    if flags & libc::MSG_ERRQUEUE != 0 {
        return Err(Errno::EAGAIN);
    }
    if flags & libc::MSG_OOB != 0 {
        return Err(Errno::EINVAL);
    }
    let want = parts.len();
    let mut done = 0;
    let mut step = |state: &mut State| {
        let Some(socket) = state.socket(object) else { return Err(Errno::EBADF.into()) };
        match &socket.kind {
            Kind::Stream(..) => receive_octets(state, object, parts, want, flags, &mut done),
            Kind::Datagram { .. } => receive_datagram(state, object, parts, flags),
            _ => Err(Errno::ENOTCONN.into()),
        }
    };
    // The fast path: no clock, no timeout, one lock.
    let first = STATE.with(|state| {
        state.calls += 1;
        match step(state) {
            Err(Failure::WouldBlock) => {
                state.drain();
                match step(state) {
                    Err(Failure::WouldBlock) => {
                        let nonblocking = flags & libc::MSG_DONTWAIT != 0 || is_nonblocking(state, object);
                        let timeout = state.socket(object).map_or(0, |s| s.options.receive_timeout_us);
                        if nonblocking { Err(Some(Errno::EAGAIN)) } else { Ok(Err(timeout)) }
                    }
                    Err(Failure::Error(errno)) => Err(Some(errno)),
                    Ok(received) => Ok(Ok(received)),
                }
            }
            Err(Failure::Error(errno)) => Err(Some(errno)),
            Ok(received) => Ok(Ok(received)),
        }
    });
    let result = match first {
        Ok(Ok(received)) => return Ok(received),
        Err(Some(errno)) => Err(errno),
        Err(None) => Err(Errno::EIO),
        Ok(Err(timeout)) => {
            let timeout = (timeout > 0).then(|| Duration::from_micros(timeout));
            block(Some(object), timeout, &mut step)
        }
    };
    // MSG_WAITALL: what came before the wait ended is the result.
    match result {
        Err(_) if done > 0 => Ok(Received { len: done, ..Received::default() }),
        result => result,
    }
}

fn receive_octets(
    state: &mut State,
    object: u32,
    parts: &Parts<'_>,
    want: usize,
    flags: i32,
    done: &mut usize,
) -> Result<Received, Failure> {
    let peek = flags & libc::MSG_PEEK != 0;
    let guard = state.guard(object);
    let Some((stream, local, place)) = state.stream(object) else { return Err(Errno::ENOTCONN.into()) };
    if stream.is_connecting() {
        return Err(Failure::WouldBlock);
    }
    if want == 0 {
        return Ok(Received::default());
    }
    let readable = stream.readable(local)?;
    let take = (want - *done).min(usize::try_from(readable.len).unwrap_or(usize::MAX));
    let mut at = readable.head;
    let end = readable.head + take as u64;
    let mut skip = *done;
    if flags & libc::MSG_TRUNC != 0 {
        // tcp(7): octets are discarded instead of copied.
        at = end;
    }
    for target in parts.targets() {
        let start = skip.min(target.len());
        skip -= start;
        let len = (target.len() - start).min((end - at) as usize);
        if len > 0 && !stream.copy_out(&readable, at, &mut target[start..start + len]) {
            return Err(Errno::ECONNRESET.into());
        }
        at += len as u64;
    }
    let kick = !peek && take > 0 && stream.consume(end);
    drop(guard);
    if kick {
        state.kick(place);
    }
    if !peek {
        *done += take;
    }
    if flags & libc::MSG_WAITALL != 0 && readable.len > 0 && !peek && *done < want {
        return Err(Failure::WouldBlock);
    }
    let len = if peek { take } else { *done };
    Ok(Received { len, ..Received::default() })
}

fn receive_datagram(state: &mut State, object: u32, parts: &Parts<'_>, flags: i32) -> Result<Received, Failure> {
    let errno = crate::calls::take_error(state, object);
    if errno != 0 {
        return Err(Errno(errno).into());
    }
    let Some(Kind::Datagram { places, .. }) = state.socket(object).map(|s| &s.kind) else {
        return Err(Errno::EBADF.into());
    };
    for place in places.clone() {
        let Some(socket) = state.datagrams(place) else { continue };
        let Some(waiting) = socket.waiting() else { continue };
        let mut skip = 0;
        for target in parts.targets() {
            let n = socket.copy_out(&waiting, skip, target);
            skip += n;
        }
        let truncated = skip < waiting.len;
        let kick = flags & libc::MSG_PEEK == 0 && socket.consume(&waiting);
        if kick {
            state.kick(place);
        }
        let len = if flags & libc::MSG_TRUNC != 0 { waiting.len } else { skip };
        return Ok(Received { len, peer: Some(waiting.peer), truncated });
    }
    Err(Failure::WouldBlock)
}

/// send(2), write(2), sendmsg(2), and sendto(2) with `peer`.
pub fn send(object: u32, parts: &Parts<'_>, flags: i32, peer: Option<Endpoint>) -> Result<usize, Errno> {
    let want = parts.len();
    let udp = STATE.with(|state| {
        state.calls += 1;
        match state.socket(object).map(|s| &s.kind) {
            Some(Kind::Stream(..)) => Ok(false),
            Some(Kind::Datagram { .. }) => Ok(true),
            Some(Kind::Fresh) if peer.is_some() => Ok(true),
            Some(Kind::Fresh | Kind::Bound) if state.socket(object).is_some_and(|s| s.protocol == Protocol::Udp) => {
                Err(Errno::EDESTADDRREQ)
            }
            // send(2) on a stream socket that was never connected.
            _ => Err(Errno::EPIPE),
        }
    });
    match udp {
        Ok(true) => {
            ensure_datagrams(object)?;
            return send_datagram(object, parts, want, flags, peer);
        }
        Ok(false) => {}
        Err(errno) => return Err(pipe(errno, flags)),
    }
    let mut done = 0;
    let result = send_loop(object, flags, |state| {
        let guard = state.guard(object);
        let Some((stream, local, place)) = state.stream(object) else { return Err(Errno::ENOTCONN.into()) };
        if want == 0 {
            return Ok(());
        }
        let room = stream.writable(local, want - done)?;
        let mut skip = done;
        let mut filled = 0;
        for source in parts.sources() {
            let start = skip.min(source.len());
            skip -= start;
            let len = (source.len() - start).min(room.len - filled);
            stream.copy_in(&room, filled, &source[start..start + len]);
            filled += len;
        }
        stream.commit(&room, filled);
        drop(guard);
        done += filled;
        state.kick(place);
        if done < want { Err(Failure::WouldBlock) } else { Ok(()) }
    });
    match result {
        Ok(()) => Ok(done),
        Err(_) if done > 0 => Ok(done),
        Err(errno) => Err(pipe(errno, flags)),
    }
}

/// One file range to a connection: sendfile(2). `offset` moves; `None`: the file's own position does.
pub fn send_file(object: u32, input: i32, offset: &mut Option<i64>, count: usize) -> Result<usize, Errno> {
    let mut done = 0;
    let mut ended = false;
    let result = send_loop(object, 0, |state| {
        state.calls += 1;
        while done < count && !ended {
            let Some((stream, local, place)) = state.stream(object) else { return Err(Errno::ENOTCONN.into()) };
            let room = stream.writable(local, (count - done).min(256 << 10))?;
            let Some(pieces) = stream.places(&room, 0, room.len) else { return Err(Errno::EIO.into()) };
            let mut filled = 0;
            let (memory, area) = arena(state, place);
            for (at, len) in pieces.iter() {
                let Ok(target) = memory.range(area + at, len) else { return Err(Errno::EIO.into()) };
                let n = match *offset {
                    // SAFETY: `target` is `len` bytes of the send area, ours to write.
                    Some(from) => unsafe { libc::pread(input, target.cast(), len, from + (done + filled) as i64) },
                    // SAFETY: as above.
                    None => unsafe { real::read(input, target.cast::<c_void>(), len) },
                };
                if n < 0 {
                    return Err(crate::calls::last_errno().into());
                }
                filled += n as usize;
                if (n as usize) < len {
                    ended = true;
                    break;
                }
            }
            state.system_calls += 1;
            let Some((stream, ..)) = state.stream(object) else { return Err(Errno::ENOTCONN.into()) };
            stream.commit(&room, filled);
            done += filled;
            if filled > 0 {
                state.kick(place);
            }
        }
        Ok(())
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

fn arena(state: &State, place: crate::state::Place) -> (atoll_shm::ShmMemory, usize) {
    let port = &state.sessions[place.session].replicas[place.replica].port;
    (port.memory().clone(), port.layout().send_area)
}

fn send_datagram(
    object: u32,
    parts: &Parts<'_>,
    len: usize,
    flags: i32,
    peer: Option<Endpoint>,
) -> Result<usize, Errno> {
    send_loop(object, flags, |state| {
        let errno = crate::calls::take_error(state, object);
        if errno != 0 {
            return Err(Errno(errno).into());
        }
        let Some(socket) = state.socket_mut(object) else { return Err(Errno::EBADF.into()) };
        let (remote, broadcast) = (socket.remote, socket.options.broadcast);
        let Kind::Datagram { places, connected, next } = &mut socket.kind else { return Err(Errno::EBADF.into()) };
        if peer.is_none() && !*connected {
            return Err(Errno::EDESTADDRREQ.into());
        }
        let place = places[*next % places.len()];
        let Some(datagrams) = state.datagrams(place) else { return Err(Errno::EBADF.into()) };
        datagrams.send(peer.unwrap_or(remote), broadcast, len, parts.sources())?;
        state.kick(place);
        Ok(())
    })
    .map(|()| len)
}

/// Repeats a sending step as the socket's mode wants it.
fn send_loop(object: u32, flags: i32, mut step: impl FnMut(&mut State) -> Result<(), Failure>) -> Result<(), Errno> {
    let first = STATE.with(|state| {
        let mut result = step(state);
        if matches!(result, Err(Failure::WouldBlock)) {
            state.drain();
            result = step(state);
        }
        let nonblocking = flags & libc::MSG_DONTWAIT != 0 || is_nonblocking(state, object);
        (result, nonblocking, state.socket(object).map_or(0, |s| s.options.send_timeout_us))
    });
    match first {
        (Ok(()), ..) => Ok(()),
        (Err(Failure::Error(errno)), ..) => Err(errno),
        (Err(Failure::WouldBlock), true, _) => Err(Errno::EAGAIN),
        (Err(Failure::WouldBlock), false, timeout) => {
            block(Some(object), (timeout > 0).then(|| Duration::from_micros(timeout)), step)
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
