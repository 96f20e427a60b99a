//! What does a transport server have to be told?

use atoll_base::{Duration, Epoch, FlowKey, ReplicaId};

/// Facts of one replica.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which replica this is.
    pub replica: ReplicaId,
    /// Of how many.
    pub replicas: u8,
    /// Its incarnation.
    pub epoch: Epoch,
    /// Key of the stack's flow hash.
    pub key: FlowKey,
    /// First and last port for sockets that want any.
    pub ephemeral: (u16, u16),
    /// How long an acceptor may take to claim a connection (P4).
    pub claim_timeout: Duration,
    /// Receive buffer of a new connection, in octets.
    pub receive_buffer: u32,
    /// Receive buffer up to which a connection that keeps up may grow, in octets.
    pub receive_buffer_max: u32,
    /// Send buffer of a connection, in octets.
    pub send_buffer: u32,
    /// Receive buffer of a datagram socket, in octets.
    pub datagram_buffer: u32,
    /// TIME-WAIT records kept at most; beyond it the oldest goes.
    pub time_waits_max: usize,
    /// Connections at most, in any state.
    pub connections_max: usize,
}

impl Config {
    /// The usual limits for replica `replica` of `replicas`.
    pub fn new(replica: ReplicaId, replicas: u8, epoch: Epoch, key: FlowKey) -> Config {
        Config {
            replica,
            replicas,
            epoch,
            key,
            ephemeral: (32768, 60999),
            claim_timeout: Duration::from_millis(200),
            receive_buffer: 256 << 10,
            receive_buffer_max: 4 << 20,
            send_buffer: 1 << 20,
            datagram_buffer: 208 << 10,
            time_waits_max: 65536,
            connections_max: 1 << 20,
        }
    }
}

/// Random values that outsiders must not know.
#[derive(Clone, Debug)]
pub struct Secrets {
    /// Key of initial sequence numbers and timestamp offsets (RFC 6528).
    pub sequence: [u8; 16],
    /// Seed of the flow table's hash.
    pub table: u64,
    /// Seed of port choices.
    pub ports: u64,
}
