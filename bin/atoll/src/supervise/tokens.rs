//! The tokens of the supervisor's epoll, which say whose descriptor an event belongs to.

use atoll_supervisor::SERVERS_MAX;

/// The listener for applications.
pub const LISTENER: u64 = 0;
/// The descriptor for signals.
pub const SIGNALS: u64 = 1;
/// The `atoll run` for which the stack exists.
pub const OWNER: u64 = 2;
/// The answer of a new build.
pub const SELF_CHECK: u64 = 3;
/// The socket to the guardian.
pub const GUARDIAN: u64 = 4;
/// The doorbell of the threads that wait for deaths.
pub const DYING: u64 = 5;
/// The listener for administration.
pub const ADMINISTRATION: u64 = 6;
/// The control socket of server n has the token SERVER_CONTROL + n.
pub const SERVER_CONTROL: u64 = 16;
/// The process of server n, if it has one of its own, has the token SERVER_PROCESS + n.
pub const SERVER_PROCESS: u64 = SERVER_CONTROL + SERVERS_MAX as u64;
/// The socket over which a process is given replicas has the token HOST_CONTROL + its key.
pub const HOST_CONTROL: u64 = SERVER_PROCESS + SERVERS_MAX as u64;
/// A process for replicas has the token HOST_PROCESS + its key.
pub const HOST_PROCESS: u64 = HOST_CONTROL + HOSTS_MAX as u64;
/// The pipe of a process that is listened to has the token WORDS + its slot.
pub const WORDS: u64 = HOST_PROCESS + HOSTS_MAX as u64;
/// Tokens from here on are numbers of clients.
pub const FIRST_CLIENT: u64 = 1024;
const _: () = assert!(WORDS + WORDS_MAX as u64 <= FIRST_CLIENT);
/// The largest number of processes for replicas: as many as replicas, those of another build, and those that
/// are ending.
pub const HOSTS_MAX: usize = 128;
/// The largest number of processes that are listened to.
pub const WORDS_MAX: usize = HOSTS_MAX + SERVERS_MAX;
