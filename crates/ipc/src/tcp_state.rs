//! The numbers of the states of a socket in listings, in `TCP_INFO` and in /proc/net/tcp: those of
//! linux/tcp_states.h, which libc lacks.

/// `TCP_ESTABLISHED`; also of a datagram socket with a peer.
pub const ESTABLISHED: u8 = 1;
/// `TCP_SYN_SENT`.
pub const SYN_SENT: u8 = 2;
/// `TCP_SYN_RECV`.
pub const SYN_RECEIVED: u8 = 3;
/// `TCP_FIN_WAIT1`.
pub const FIN_WAIT_1: u8 = 4;
/// `TCP_FIN_WAIT2`.
pub const FIN_WAIT_2: u8 = 5;
/// `TCP_TIME_WAIT`.
pub const TIME_WAIT: u8 = 6;
/// `TCP_CLOSE`; also of a datagram socket without a peer.
pub const CLOSED: u8 = 7;
/// `TCP_CLOSE_WAIT`.
pub const CLOSE_WAIT: u8 = 8;
/// `TCP_LAST_ACK`.
pub const LAST_ACK: u8 = 9;
/// `TCP_LISTEN`.
pub const LISTEN: u8 = 10;
/// `TCP_CLOSING`.
pub const CLOSING: u8 = 11;
