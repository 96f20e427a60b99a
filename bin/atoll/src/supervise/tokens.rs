//! What does an event of the supervisor's epoll mean? Its token says whose descriptor it is.

use atoll_supervisor::SERVERS_MAX;

/// The listener for applications.
pub const LISTENER: u64 = 0;
/// Signals.
pub const SIGNALS: u64 = 1;
/// The `atoll run` for which the stack exists.
pub const OWNER: u64 = 2;
/// The answer of a new build.
pub const SELF_CHECK: u64 = 3;
/// The socket to the guardian.
pub const GUARDIAN: u64 = 4;
/// The bell of those who wait for deaths.
pub const DYING: u64 = 5;
/// The listener for administration.
pub const ADMINISTRATION: u64 = 6;
/// And the number of a server: its control socket.
pub const SERVER_CONTROL: u64 = 16;
/// And the number of a server: its process, if it has one of its own.
pub const SERVER_PROCESS: u64 = SERVER_CONTROL + SERVERS_MAX as u64;
/// And the key of a process for replicas: the socket over which it is given some.
pub const HOST_CONTROL: u64 = SERVER_PROCESS + SERVERS_MAX as u64;
/// And the key of a process for replicas.
pub const HOST_PROCESS: u64 = HOST_CONTROL + HOSTS_MAX as u64;
/// And the slot of a process that is listened to.
pub const WORDS: u64 = HOST_PROCESS + HOSTS_MAX as u64;
/// From here on: numbers of clients.
pub const FIRST_CLIENT: u64 = 1024;
const _: () = assert!(WORDS + WORDS_MAX as u64 <= FIRST_CLIENT);
/// Most processes for replicas: as many as replicas, those of another build, and those that are ending.
pub const HOSTS_MAX: usize = 128;
/// Most processes that are listened to.
pub const WORDS_MAX: usize = HOSTS_MAX + SERVERS_MAX;
