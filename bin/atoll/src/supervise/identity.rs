//! What is a stack, besides its configuration?

use std::path::PathBuf;

use atoll_base::Instant;
use atoll_supervisor::{Mac, Steering};

use crate::setup::ServerUser;

/// What does not change while the stack is up, besides its configuration.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The user whose processes may attach.
    pub uid: u32,
    /// The supervisor's process.
    pub pid: u32,
    /// The process that keeps what the next supervisor needs, if there is one.
    pub guardian: Option<u32>,
    /// How many supervisors the stack has had before this one.
    pub takeovers: u32,
    /// The socket for applications.
    pub socket: PathBuf,
    /// When the stack started.
    pub started: Instant,
    /// Own hardware address.
    pub mac: Mac,
    /// Name of the TAP device.
    pub device: Option<String>,
    /// Whether the link segments.
    pub offload: bool,
    /// Who steers.
    pub steering: Steering,
    /// The user that servers run as; `None`: the supervisor's.
    pub servers: Option<ServerUser>,
}
