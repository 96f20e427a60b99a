//! How does a program send text with its SYN? TCP Fast Open, tcp(7): MSG_FASTOPEN, TCP_FASTOPEN_CONNECT.
//!
//! The replica knows whether it has a cookie of the server. It answers the command to connect at once: either the SYN waits for text, or
//! it has left, with the wish for a cookie, and everything is as with connect(2).

use atoll_base::{Duration, Endpoint};
use atoll_ipc::page::FAST_OPEN_CLIENT;
use atoll_sockets::{Errno, Failure};

use crate::calls;
use crate::object::{Kind, Socket};
use crate::state::{STATE, State};
use crate::transfer::{Parts, send};
use crate::wait::block;

/// `MSG_FASTOPEN`, linux/socket.h.
pub const MSG_FASTOPEN: i32 = 0x2000_0000;
/// Deadline of the replica's answer.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether programs of this stack may.
pub fn is_enabled(state: &State) -> bool {
    state.sessions.first().is_some_and(|session| session.facts.fast_open & FAST_OPEN_CLIENT != 0)
}

/// sendto(2) and sendmsg(2) with MSG_FASTOPEN on a stream socket.
pub fn send_to(object: u32, parts: &Parts<'_>, flags: i32, peer: Option<Endpoint>) -> Result<usize, Errno> {
    let rest = flags & !MSG_FASTOPEN;
    enum Way {
        Open,
        Connected,
        Waiting,
    }
    let way = STATE.with(|state| {
        if !is_enabled(state) {
            return Err(Errno::EOPNOTSUPP);
        }
        match state.socket(object).map(|socket| (&socket.kind, socket.connect_reported)) {
            Some((Kind::Fresh | Kind::Bound, _)) => Ok(Way::Open),
            Some((Kind::Stream(..), reported)) => {
                let Some((stream, ..)) = state.stream(object) else { return Err(Errno::EBADF) };
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
    let nonblocking = flags & libc::MSG_DONTWAIT != 0 || STATE.with(|state| state.is_nonblocking(object));
    if let Way::Open = way {
        let peer = peer.ok_or(Errno::EINVAL)?;
        if !open(object, peer)? {
            // No cookie: as connect(2), and then send(2).
            if nonblocking {
                return Err(Errno::EINPROGRESS);
            }
            calls::await_connection(object)?;
            return send(object, parts, rest, None);
        }
    }
    let sent = send(object, parts, rest, None)?;
    if !nonblocking && !matches!(way, Way::Connected) {
        // It comes back when the connection is open.
        calls::await_connection(object)?;
    }
    Ok(sent)
}

/// What became of connect(2) with TCP_FASTOPEN_CONNECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// The SYN waits for text: as far as the program knows the connection is there. tcp(7).
    Waits,
    /// The SYN has left.
    Left,
    /// There was one before.
    Before,
}

/// connect(2) of a socket with TCP_FASTOPEN_CONNECT.
pub fn connect(object: u32, peer: Endpoint) -> Result<Opened, Errno> {
    let (is_new, waits) = STATE.with(|state| {
        let is_new = matches!(state.socket(object), Some(Socket { kind: Kind::Fresh | Kind::Bound, .. }));
        (is_new, state.stream(object).is_some_and(|(stream, ..)| stream.waits_for_text()))
    });
    if !is_new {
        return if waits { Err(Errno::EISCONN) } else { Ok(Opened::Before) };
    }
    if !open(object, peer)? {
        return Ok(Opened::Left);
    }
    STATE.with(|state| {
        if let Some(socket) = state.socket_mut(object) {
            socket.connect_reported = true;
        }
    });
    Ok(Opened::Waits)
}

/// Begins to connect. Returns whether the SYN waits for text.
fn open(object: u32, peer: Endpoint) -> Result<bool, Errno> {
    STATE.with(|state| calls::start_connecting(state, object, peer, true))?;
    let answered = block(Some(object), Some(REPLY_TIMEOUT), |state| {
        let Some((stream, ..)) = state.stream(object) else { return Err(Errno::EBADF.into()) };
        if stream.is_answered() { Ok(stream.waits_for_text()) } else { Err(Failure::WouldBlock) }
    });
    // Interrupted, or no replica: what comes of it is seen by whoever waits for the connection.
    Ok(answered.unwrap_or(false))
}
