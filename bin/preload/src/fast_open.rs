//! Sends text with the SYN: TCP Fast Open, tcp(7), by MSG_FASTOPEN and TCP_FASTOPEN_CONNECT.
//!
//! The replica knows whether it has a cookie of the server. It answers the command to connect at once: either
//! the SYN waits for text, or it was sent with a request for a cookie, and everything is as with connect(2).

use atoll_base::{Duration, Endpoint};
use atoll_ipc::page::FAST_OPEN_CLIENT;
use atoll_sockets::client::object::{Kind, Socket};
use atoll_sockets::{Errno, Failure};

use crate::lock::STATE;
use crate::platform::Client;
use crate::wait::block;

/// The time that the replica has to answer.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns whether the stack lets programs use Fast Open as clients.
pub fn is_enabled(client: &Client) -> bool {
    client.own().is_some_and(|session| session.facts.fast_open & FAST_OPEN_CLIENT != 0)
}

/// The result of connect(2) with TCP_FASTOPEN_CONNECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// The SYN waits for text: the program sees a connection that is open (tcp(7)).
    Waits,
    /// The SYN was sent.
    Left,
    /// The socket was connected, or connecting, before.
    Before,
}

/// Connects a socket with TCP_FASTOPEN_CONNECT, as connect(2). Fails with EISCONN if its SYN waits for text.
pub fn connect(object: u32, peer: Endpoint) -> Result<Opened, Errno> {
    let (is_new, waits) = STATE.with(|state| {
        let is_new =
            matches!(state.client.socket(object), Some(Socket { kind: Kind::Fresh | Kind::Bound, .. }));
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
    if let Ok(waits) = answered {
        return Ok(waits);
    }
    // A signal came, or the replica has no processor: nobody will say whether the SYN waits, so it leaves.
    // The wait for the connection reports what else there is.
    let _ = STATE.until_turn(|state| state.client.send_syn(object));
    Ok(false)
}
