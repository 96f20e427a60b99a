//! Checks that messages between processes decode without harm, and to what encodes to equal octets.

use atoll_ipc::control::{Reply, Request};
use atoll_ipc::ring::MESSAGE_BYTES;
use atoll_ipc::{Command, Event};

/// Decodes a command of an application.
pub fn ipc_command(data: &[u8]) {
    let Some(bytes) = data.first_chunk::<MESSAGE_BYTES>() else { return };
    if let Ok(command) = Command::decode(bytes) {
        assert_eq!(Command::decode(&command.encode()), Ok(command));
    }
}

/// Decodes an event of a replica.
pub fn ipc_event(data: &[u8]) {
    let Some(bytes) = data.first_chunk::<MESSAGE_BYTES>() else { return };
    if let Ok(event) = Event::decode(bytes) {
        assert_eq!(Event::decode(&event.encode()), Ok(event));
    }
}

/// Decodes a packet on the supervisor's socket, of either direction.
pub fn ipc_control(data: &[u8]) {
    if let Ok(request) = Request::decode(data) {
        assert_eq!(Request::decode(&request.encode()), Ok(request));
    }
    if let Ok(reply) = Reply::decode(data) {
        assert_eq!(Reply::decode(&reply.encode()), Ok(reply));
    }
}
