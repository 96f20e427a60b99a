//! The properties of a stack besides its configuration.

use std::path::PathBuf;

use atoll_base::Instant;
use atoll_supervisor::{Mac, Steering};

use crate::setup::ServerUser;

/// The properties that do not change while the stack is up, besides its configuration.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The user whose processes may attach.
    pub uid: u32,
    /// The supervisor's pid.
    pub pid: u32,
    /// The pid of the guardian, which keeps what the next supervisor needs, if there is one.
    pub guardian: Option<u32>,
    /// The number of supervisors that the stack has had before this one.
    pub takeovers: u32,
    /// The socket for applications.
    pub socket: PathBuf,
    /// When the stack started.
    pub started: Instant,
    /// The stack's own hardware address.
    pub mac: Mac,
    /// The name of the TAP device.
    pub device: Option<String>,
    /// Whether the link segments.
    pub offload: bool,
    /// The component that steers incoming frames.
    pub steering: Steering,
    /// The user that servers run as; `None` means the supervisor's.
    pub servers: Option<ServerUser>,
}
