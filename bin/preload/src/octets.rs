//! Chooses the path of a send or a receive. Nearly all go to [`transfer`]; urgent octets, and text with a
//! SYN, have paths of their own. See recv(2), send(2).

use atoll_base::Endpoint;
use atoll_ipc::command::Protocol;
use atoll_sockets::Errno;
use atoll_sockets::ancillary::{self, Addressed};
use atoll_sockets::client::object::Kind;

use crate::fast_open;
use crate::lock::STATE;
use crate::transfer::{self, Parts, Received};
use crate::{calls, cancellation, stats, urgent};

/// Receives octets or a datagram: recv(2), recvfrom(2), read(2), recvmsg(2).
#[inline(always)]
pub fn receive(object: u32, parts: &Parts<'_>, flags: i32) -> Result<Received, Errno> {
    // tcp(7): with MSG_TRUNC octets are taken and put nowhere.
    let check = || if flags & libc::MSG_TRUNC == 0 { parts.check() } else { Ok(()) };
    if flags & (libc::MSG_ERRQUEUE | libc::MSG_OOB) == 0 {
        return cancellation::point(|| check().and_then(|()| transfer::receive(object, parts, flags)));
    }
    cancellation::point(|| check().and_then(|()| receive_specially(object, parts, flags)))
}

#[cold]
fn receive_specially(object: u32, parts: &Parts<'_>, flags: i32) -> Result<Received, Errno> {
    let _call = stats::Call::new(stats::RECEIVE);
    if flags & libc::MSG_ERRQUEUE != 0 {
        return transfer::receive_fault(object, parts);
    }
    let protocol = STATE.with(|state| state.client.socket(object).map(|socket| socket.protocol));
    if protocol.is_some_and(Protocol::is_icmp) {
        // ping_recvmsg, raw_recvmsg
        return Err(Errno::EOPNOTSUPP);
    }
    let is_udp = protocol == Some(Protocol::Udp);
    // udp(7): datagrams have no urgent data.
    if is_udp {
        transfer::receive(object, parts, flags & !libc::MSG_OOB)
    } else {
        urgent::receive(object, parts, flags)
    }
}

/// Sends octets or a datagram: send(2), write(2), sendto(2), sendmsg(2).
#[inline(always)]
pub fn send(object: u32, parts: &Parts<'_>, flags: i32, to: Addressed<'_>) -> Result<usize, Errno> {
    cancellation::point(|| {
        parts.check()?;
        if !to.control.is_empty() && is_stream(object) {
            ancillary::check(to.control)?;
        }
        match flags & (libc::MSG_FASTOPEN | libc::MSG_ZEROCOPY) != 0 {
            true => send_specially(object, parts, flags, to),
            false => transfer::send(object, parts, flags, to),
        }
    })
}

#[cold]
fn send_specially(object: u32, parts: &Parts<'_>, flags: i32, to: Addressed<'_>) -> Result<usize, Errno> {
    let is_stream = is_stream(object);
    let sent = match flags & libc::MSG_FASTOPEN != 0 && is_stream {
        true => send_fast(object, parts, flags, to.peer),
        false => transfer::send(object, parts, flags, to),
    }?;
    if flags & libc::MSG_ZEROCOPY != 0 && (sent > 0 || !is_stream) {
        STATE.with(|state| state.client.note_copied(object));
    }
    Ok(sent)
}

#[cold]
fn is_stream(object: u32) -> bool {
    STATE.with(|state| state.client.socket(object).is_some_and(|socket| socket.protocol == Protocol::Tcp))
}

/// The state in which text with MSG_FASTOPEN finds its socket.
enum Way {
    Open,
    Connected,
    Waiting,
}

/// Sends text with MSG_FASTOPEN on a stream socket: sendto(2) and sendmsg(2), tcp(7).
fn send_fast(object: u32, parts: &Parts<'_>, flags: i32, peer: Option<Endpoint>) -> Result<usize, Errno> {
    let rest = flags & !libc::MSG_FASTOPEN;
    let way = STATE.with(|state| {
        if !fast_open::is_enabled(&state.client) {
            return Err(Errno::EOPNOTSUPP);
        }
        match state.client.socket(object).map(|socket| (&socket.kind, socket.connect_reported)) {
            Some((Kind::Fresh | Kind::Bound, _)) => Ok(Way::Open),
            Some((Kind::Stream(..), reported)) => {
                let Some((stream, ..)) = state.client.stream(object) else { return Err(Errno::EBADF) };
                match stream.is_connecting() {
                    _ if stream.waits_for_text() => Ok(Way::Waiting),
                    true => Err(Errno::EALREADY),
                    false if reported => Err(Errno::EISCONN),
                    false => Ok(Way::Connected),
                }
            }
            Some(_) => Err(Errno::EISCONN),
            None => Err(Errno::ENOTSOCK),
        }
    })?;
    let nonblocking =
        flags & libc::MSG_DONTWAIT != 0 || STATE.with(|state| state.client.is_nonblocking(object));
    if let Way::Open = way {
        let peer = peer.ok_or(Errno::EINVAL)?;
        if !fast_open::open(object, peer)? {
            // Without a cookie this is as connect(2), and then send(2).
            if nonblocking {
                return Err(Errno::EINPROGRESS);
            }
            calls::await_connection(object)?;
            return transfer::send(object, parts, rest, Addressed::default());
        }
    }
    let sent = transfer::send(object, parts, rest, Addressed::default())?;
    if !nonblocking && !matches!(way, Way::Connected) {
        // The call returns when the connection is open.
        calls::await_connection(object)?;
    }
    Ok(sent)
}
