//! Waits for the replicas' answers when a socket joins a multicast group. All else is in the client
//! ([`atoll_sockets::client::multicast`]).

use atoll_sockets::Errno;
use atoll_sockets::client::multicast::Joining;

use crate::calls::answer;
use crate::lock::STATE;

/// Sets an option about groups, as setsockopt(2).
pub fn set(object: u32, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
    match STATE.with(|state| state.client.set_group_option(object, level, name, value))? {
        Some(joining) => finish(object, &joining),
        None => Ok(()),
    }
}

/// Waits for the answers. If a replica has no room, the socket is in the group nowhere.
fn finish(object: u32, joining: &Joining) -> Result<(), Errno> {
    let mut refused = None;
    for token in joining.tokens() {
        match answer(*token) {
            // A replica that takes longer carries it out when it is there again.
            Ok(_) | Err(Errno::ENETDOWN) => {}
            Err(errno) => refused = Some(errno),
        }
    }
    let Some(errno) = refused else { return Ok(()) };
    STATE.with(|state| state.client.join_refused(object, joining));
    Err(errno)
}
