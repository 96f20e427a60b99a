//! How does a program send text with its SYN? TCP Fast Open, tcp(7): MSG_FASTOPEN, TCP_FASTOPEN_CONNECT.
//!
//! The replica knows whether it has a cookie of the server. It answers the command to connect at once: either
//! the SYN waits for text, or it has left, with the wish for a cookie, and everything is as with connect(2).

use atoll_base::{Duration, Endpoint};
use atoll_ipc::page::FAST_OPEN_CLIENT;
use atoll_sockets::client::object::{Kind, Socket};
use atoll_sockets::{Errno, Failure};

use crate::lock::STATE;
use crate::platform::Client;
use crate::wait::block;

/// `MSG_FASTOPEN`, linux/socket.h.
pub const MSG_FASTOPEN: i32 = 0x2000_0000;
/// Deadline of the replica's answer.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether programs of this stack may.
pub fn is_enabled(client: &Client) -> bool {
    client.own().is_some_and(|session| session.facts.fast_open & FAST_OPEN_CLIENT != 0)
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
        let is_new = matches!(state.client.socket(object), Some(Socket { kind: Kind::Fresh | Kind::Bound, .. }));
        (is_new, state.client.stream(object).is_some_and(|(stream, ..)| stream.waits_for_text()))
    });
    if !is_new {
        return if waits { Err(Errno::EISCONN) } else { Ok(Opened::Before) };
    }
    if !open(object, peer)? {
        return Ok(Opened::Left);
    }
    STATE.with(|state| {
        state.client.report_connected(object);
    });
    Ok(Opened::Waits)
}

/// Begins to connect. Returns whether the SYN waits for text.
pub fn open(object: u32, peer: Endpoint) -> Result<bool, Errno> {
    STATE.with(|state| state.client.start_connecting(object, peer, true))?;
    let answered = block(Some(object), Some(REPLY_TIMEOUT), |state| {
        let Some((stream, ..)) = state.client.stream(object) else { return Err(Errno::EBADF.into()) };
        if stream.is_answered() { Ok(stream.waits_for_text()) } else { Err(Failure::WouldBlock) }
    });
    // Interrupted, or no replica: what comes of it is seen by whoever waits for the connection.
    Ok(answered.unwrap_or(false))
}
