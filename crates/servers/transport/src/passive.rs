//! The start values of a new connection: segment sizes of its path, and numbers that no attacker can guess.

use atoll_base::{Addr, FourTuple, Instant, SeqNum};
use atoll_ip::Ip;
use atoll_ipc::Device;
use atoll_tcp::{Connection, Path, Settings};
use atoll_wire::tcp::Segment;

use crate::config::{Config, Secrets};
use crate::next_hop::V6_EXTRA;

/// The unchanging inputs for opening a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opening<'a> {
    pub(crate) config: &'a Config,
    pub(crate) secrets: &'a Secrets,
    pub(crate) ip: &'a Ip,
}

/// A segment with its ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival<'a> {
    pub(crate) tuple: FourTuple,
    pub(crate) segment: &'a Segment,
    pub(crate) text: &'a [u8],
    /// The TTL or hop limit with which it came.
    pub(crate) hops: u8,
    /// Whether it came over the stack's link to itself.
    pub(crate) internal: bool,
    /// The device over which it counts as having come.
    pub(crate) device: Device,
}

impl Opening<'_> {
    /// Returns the connection that a SYN opens, which is in no table yet.
    pub(crate) fn open_passively(
        &self,
        now: Instant,
        tuple: &FourTuple,
        syn: &Segment,
        iss: SeqNum,
        internal: bool,
        settings: &Settings,
    ) -> Connection {
        let ts_offset = atoll_tcp::timestamp_offset(&self.secrets.sequence, tuple);
        let remote = tuple.remote.addr;
        let mut connection =
            Connection::accept(now, syn, iss, ts_offset, self.path(remote, internal), settings);
        self.limit_path(now, &mut connection, remote, internal);
        connection
    }

    /// Returns the segment sizes on the path to a peer, before its own SYN and path-MTU discovery reduce
    /// them.
    pub(crate) fn path(&self, remote: Addr, internal: bool) -> Path {
        let headers = 40 + if remote.is_v4() { 0 } else { V6_EXTRA };
        let mss =
            if internal { self.config.internal_mss } else { self.ip.mtu_for(remote).saturating_sub(headers) };
        Path { mss }
    }

    /// Gives a new connection what is known of its path. The size that is offered to the peer remains what
    /// the link takes, because the way back may be another.
    pub(crate) fn limit_path(&self, now: Instant, connection: &mut Connection, remote: Addr, internal: bool) {
        if let Some(path) = self.ip.path_mtu(now, remote).filter(|_| !internal) {
            // The TCB counts with the headers of IPv4.
            connection.limit_path(path.mtu - if remote.is_v4() { 0 } else { V6_EXTRA });
        }
    }
}
