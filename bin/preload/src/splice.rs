//! splice(2) between pipes of the program and sockets of the stack, and sendfile(2).
//!
//! As in the kernel, the pipe comes first: a call waits until that has octets or room, and only then looks
//! at the socket. Octets leave the pipe when there is room for them in the socket's buffer, and they leave
//! that when the pipe has taken them, so none is lost when the other side fails.

use std::ffi::{c_int, c_uint};

use atoll_ipc::command::Protocol;
use atoll_ipc::datagram::DATAGRAM_MAX;
use atoll_sockets::ancillary::Addressed;
use atoll_sockets::client::object::Kind;
use atoll_sockets::client::transfer::{AT_ONCE, Receiving};
use atoll_sockets::options::Name;
use atoll_sockets::{Errno, Failure};
use libc::{iovec, off_t};

use crate::lock::STATE;
use crate::pipes::{Between, Pipe};
use crate::real::{count_system_call, last_errno, sys};
use crate::state::State;
use crate::table::{Fd, lookup};
use crate::transfer::{self, Filled, Parts, in_steps, receive_unconnected};
use crate::{reach, stats};

/// The flags of splice(2).
const FLAGS: c_uint =
    libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;

/// The most octets that are copied to a pipe at once.
const PIECE: usize = 64 << 10;

/// This is no errno: the pipe, which was ready, is not any more, because it has other users.
const PIPE_WAITS: Errno = Errno(-3);

/// Runs splice(2) where a descriptor is not the kernel's.
///
/// # Safety
/// Any octets are an offset.
pub unsafe fn splice(
    (from, at): (c_int, *const off_t),
    (to, to_at): (c_int, *const off_t),
    len: usize,
    flags: c_uint,
) -> Result<usize, Errno> {
    if len == 0 {
        return Ok(0);
    }
    if flags & !FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the caller's promise.
    let no_offset = |at: *const off_t| match at.is_null() || unsafe { reach::get(at) }.is_ok() {
        true if at.is_null() => Ok(()),
        true => Err(Errno::EINVAL),
        false => Err(Errno::EFAULT),
    };
    let dont_wait = flags & libc::SPLICE_F_NONBLOCK != 0;
    match (lookup(from), lookup(to)) {
        (Fd::Object(socket), Fd::Kernel) => {
            let pipe = Pipe::at(to, libc::O_WRONLY, !to_at.is_null())?;
            no_offset(at)?;
            receive(socket, &pipe, len, dont_wait)
        }
        (Fd::Kernel, Fd::Object(socket)) => {
            let pipe = Pipe::at(from, libc::O_RDONLY, !at.is_null())?;
            no_offset(to_at)?;
            send(socket, &pipe, len, (dont_wait, flags & libc::SPLICE_F_MORE != 0))
        }
        (Fd::Hidden, _) | (_, Fd::Hidden) => Err(Errno::EBADF),
        // One has to be a pipe.
        _ => Err(Errno::EINVAL),
    }
}

/// Runs sendfile(2) where a descriptor is not the kernel's, and moves `offset`.
pub fn send_file(out: c_int, input: c_int, offset: &mut Option<off_t>, count: usize) -> Result<usize, Errno> {
    match (lookup(out), lookup(input)) {
        (Fd::Hidden, _) | (_, Fd::Hidden) => Err(Errno::EBADF),
        // A socket has no offset, and is no file but where the octets go to a pipe.
        (_, Fd::Object(_)) if offset.is_some() => Err(Errno::ESPIPE),
        (Fd::Object(_), Fd::Object(_)) => Err(Errno::EINVAL),
        (Fd::Kernel, Fd::Object(_)) if count == 0 => Ok(0),
        (Fd::Kernel, Fd::Object(socket)) => {
            receive(socket, &Pipe::at(out, libc::O_WRONLY, false)?, count, false)
        }
        (Fd::Object(socket), _) => {
            let start = start_of(input, *offset, count)?;
            let sent = send_range(socket, input, start, count);
            let end = start + sent.unwrap_or(0) as off_t;
            match offset {
                Some(offset) => *offset = end,
                None if end == start => {}
                // SAFETY: numbers only. The position is the file's own.
                None => _ = unsafe { sys!(libc::SYS_lseek, input, end, libc::SEEK_SET) },
            }
            sent
        }
        (Fd::Kernel, Fd::Kernel) => Err(Errno::EINVAL),
    }
}

/// Returns where sendfile(2) starts to read. Fails as the kernel does for what is no file.
fn start_of(input: c_int, offset: Option<off_t>, count: usize) -> Result<off_t, Errno> {
    count_system_call();
    // SAFETY: numbers only.
    let position = unsafe { sys!(libc::SYS_lseek, input, 0, libc::SEEK_CUR) };
    if position < 0 {
        return Err(match last_errno() {
            Errno::ESPIPE if offset.is_none() => Errno::EINVAL,
            errno => errno,
        });
    }
    let start = offset.unwrap_or(position);
    let ends = off_t::try_from(count).is_ok_and(|count| start.checked_add(count).is_some());
    // rw_verify_area
    if start < 0 || !ends { Err(Errno::EINVAL) } else { Ok(start) }
}

/// Sends octets of a file: they are read straight into the send buffer of a connection.
fn send_range(socket: u32, input: c_int, start: off_t, count: usize) -> Result<usize, Errno> {
    let read = |target: *mut u8, len: usize, skip: usize| {
        count_system_call();
        // SAFETY: `target` has room for `len` octets; the rest are numbers.
        let read = unsafe { sys!(libc::SYS_pread64, input, target, len, start + skip as off_t) };
        usize::try_from(read).map_err(|_| match last_errno() {
            Errno(libc::EISDIR) => Errno::EINVAL,
            errno => errno,
        })
    };
    if is_datagram(socket)? {
        // One octet more than fits makes the call fail as it would with all of them.
        let mut octets = vec![0; count.min(DATAGRAM_MAX as usize + 1)];
        let len = read(octets.as_mut_ptr(), octets.len(), 0)?;
        return if len == 0 { Ok(0) } else { send_datagram(socket, &mut octets[..len], false) };
    }
    let result = transfer::send_from(socket, count, false, |target, len, skip| {
        let read = read(target, len, skip)?;
        Ok(Filled { len: read, is_last: read < len })
    });
    match result {
        // Nothing is nothing to send.
        Err(_) if count == 0 || read([0].as_mut_ptr(), 1, 0) == Ok(0) => Ok(0),
        result => result.map_err(|errno| transfer::pipe(errno, 0)),
    }
}

/// Fails with EINVAL for what is no socket.
fn is_datagram(socket: u32) -> Result<bool, Errno> {
    let protocol = STATE.with(|state| state.client.socket(socket).map(|socket| socket.protocol));
    protocol.map(Protocol::is_datagram).ok_or(Errno::EINVAL)
}

/// Moves octets of a socket to a pipe, at most `len`.
fn receive(socket: u32, pipe: &Pipe, len: usize, dont_wait: bool) -> Result<usize, Errno> {
    let _call = stats::Call::new(stats::RECEIVE);
    let dont_wait = dont_wait || !pipe.blocks;
    loop {
        match pipe.wait(libc::POLLOUT, dont_wait)? {
            0 => return Err(Errno::EAGAIN),
            // Nobody reads from the pipe.
            found if found & libc::POLLERR != 0 => return Err(transfer::pipe(Errno::EPIPE, 0)),
            _ => {}
        }
        match receive_to(socket, pipe, len) {
            Err(PIPE_WAITS) if dont_wait => return Err(Errno::EAGAIN),
            Err(PIPE_WAITS) => {}
            result => return result,
        }
    }
}

/// Does what [`receive`] does with a pipe that has room. Fails with [`PIPE_WAITS`] if others have filled it.
fn receive_to(socket: u32, pipe: &Pipe, len: usize) -> Result<usize, Errno> {
    let between = pipe.between()?;
    let mut room = vec![0; len.min(PIECE)];
    let put = |octets: &[u8]| pipe.put(between.as_ref(), octets).map_err(of_pipe);
    in_steps(socket, false, Name::ReceiveTimeout, |state| {
        match state.client.socket(socket).map(|socket| (&socket.kind, socket.protocol)) {
            Some((Kind::Stream(..), _)) => receive_octets(state, socket, (&mut room, len), put),
            Some((Kind::Datagram(_), _)) => {
                // As in the kernel, what the pipe has no room for is cut off.
                let part = [iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() }];
                let parts = Parts(&part);
                let targets = || parts.targets();
                let received = state.client.receive_datagram(socket, targets, Receiving::default())?;
                Ok(put(&room[..received.len])?)
            }
            Some((_, Protocol::Icmp | Protocol::Raw | Protocol::Udp)) => Err(Failure::WouldBlock),
            Some(_) => receive_unconnected(state, socket),
            None => Err(Errno::EINVAL.into()),
        }
    })
}

/// Moves octets of a connection through `room` to a pipe, until one of both has no more.
fn receive_octets(
    state: &mut State,
    socket: u32,
    (room, len): (&mut [u8], usize),
    put: impl Fn(&[u8]) -> Result<usize, Errno>,
) -> Result<usize, Failure> {
    let (mut done, most) = (0, len.min(AT_ONCE));
    while done < most {
        let now = room.len().min(most - done);
        match state.client.splice_octets(socket, &mut room[..now], done == 0, &put) {
            Err(failure) if done == 0 => return Err(failure),
            Err(_) => break,
            Ok(taken) => {
                done += taken;
                if taken < now {
                    break;
                }
            }
        }
    }
    Ok(done)
}

/// Moves octets of a pipe to a socket, at most `len`. `more` is MSG_MORE.
fn send(socket: u32, pipe: &Pipe, len: usize, (dont_wait, more): (bool, bool)) -> Result<usize, Errno> {
    let dont_wait = dont_wait || !pipe.blocks;
    loop {
        match pipe.wait(libc::POLLIN, dont_wait)? {
            0 => return Err(Errno::EAGAIN),
            // Nobody writes to the pipe.
            found if found & libc::POLLIN == 0 => return Ok(0),
            _ => {}
        }
        let between = pipe.between()?;
        let result = match is_datagram(socket)? {
            true => send_peeked(socket, pipe, (between.as_ref(), len), more),
            false => transfer::send_from(socket, len, more, |target, len, _| {
                let len = pipe.take(between.as_ref(), target, len).map_err(of_pipe)?;
                Ok(Filled { len, is_last: len == 0 })
            }),
        };
        match result {
            Err(PIPE_WAITS) if dont_wait => return Err(Errno::EAGAIN),
            Err(PIPE_WAITS) => {}
            result => return result.map_err(|errno| transfer::pipe(errno, 0)),
        }
    }
}

/// Sends what is in a pipe as one datagram. It leaves the pipe when it is sent.
fn send_peeked(
    socket: u32,
    pipe: &Pipe,
    (between, len): (Option<&Between>, usize),
    more: bool,
) -> Result<usize, Errno> {
    let mut octets = pipe.peek(len).map_err(of_pipe)?;
    let sent = send_datagram(socket, &mut octets, more)?;
    let mut taken = 0;
    while taken < sent
        && let Ok(now @ 1..) = pipe.take(between, octets.as_mut_ptr(), sent - taken)
    {
        taken += now;
    }
    Ok(sent)
}

fn send_datagram(socket: u32, octets: &mut [u8], more: bool) -> Result<usize, Errno> {
    let part = [iovec { iov_base: octets.as_mut_ptr().cast(), iov_len: octets.len() }];
    let flags = if more { libc::MSG_MORE } else { 0 };
    transfer::send(socket, &Parts(&part), flags, Addressed::default())
}

/// Tells EAGAIN of a pipe from that of a socket.
fn of_pipe(errno: Errno) -> Errno {
    if errno == Errno::EAGAIN { PIPE_WAITS } else { errno }
}
