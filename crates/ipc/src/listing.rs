//! The sockets of a stack, as its supervisor lists them for a program: what /proc/net/tcp and its like show.
//!
//! The answer to [`crate::control::Request::ListSockets`] is a sequence of packets. Each begins with
//! [`crate::control::Reply::Listed`], and entries follow.

use alloc::vec::Vec;

use atoll_base::Endpoint;
use zerocopy::IntoBytes;

use crate::command::Protocol;
use crate::control::Reply;
use crate::layout::{Field, MESSAGE_BYTES, part, record};
use crate::tcp_state::LISTEN;

record! {
    /// A socket of the stack.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SocketEntry {
        /// The own end; the address may be unspecified.
        pub local: Endpoint,
        /// The other end; zero if there is none.
        pub remote: Endpoint,
        /// TCP, UDP or ICMP.
        pub protocol: Protocol,
        /// The number of the state ([`crate::tcp_state`]).
        pub state: u8,
        /// The replica that lists the socket. Listeners and datagram sockets are listed by each.
        pub replica: u8; 1 unused,
        /// The session of the socket; 0 if it has none any more.
        pub session: u32,
        /// The user of the session.
        pub uid: u32,
        /// The octets received and not read; for a listener, the connections that wait to be accepted.
        pub receive_queue: u32,
        /// The octets written and not acknowledged; 0 for a listener.
        pub send_queue: u32,
    }
}

/// The size of an entry in octets.
const ENTRY_BYTES: usize = size_of::<<SocketEntry as Field>::Octets>();
/// The size of the head of a packet in octets: a [`Reply::Listed`].
pub const HEAD_BYTES: usize = MESSAGE_BYTES;
/// The most entries of a packet, which is then of less than 32 KiB.
pub const ENTRIES_MAX: usize = 256;
/// The size of the longest packet in octets.
pub const PACKET_BYTES: usize = MESSAGE_BYTES + ENTRIES_MAX * ENTRY_BYTES;

impl SocketEntry {
    /// Returns whether this is a socket of UDP.
    pub fn is_udp(&self) -> bool {
        self.protocol == Protocol::Udp
    }

    /// Returns whether each replica lists the socket.
    fn is_everywhere(&self) -> bool {
        self.protocol.is_datagram() || self.state == LISTEN
    }
}

/// Returns a packet with these entries, at most [`ENTRIES_MAX`]; the one without any ends the listing.
pub fn encode(entries: &[SocketEntry]) -> Vec<u8> {
    let mut packet = Vec::from(Reply::Listed { is_last: entries.is_empty() }.encode());
    for entry in entries.iter().take(ENTRIES_MAX) {
        packet.extend(entry.write().as_bytes());
    }
    packet
}

/// Returns the entries that follow the head of a packet; those that are malformed are left out.
pub fn decode(packet: &[u8]) -> impl Iterator<Item = SocketEntry> {
    let entries = packet.get(MESSAGE_BYTES..).unwrap_or_default().chunks_exact(ENTRY_BYTES);
    entries.filter_map(|octets| SocketEntry::read(part(octets, 0).ok()?).ok())
}

/// Keeps one entry of each socket that every replica lists: that of the first replica that does. Its queue
/// becomes the sum of all.
pub fn merge(entries: &mut Vec<SocketEntry>) {
    let key = |entry: &SocketEntry| {
        let end = |end: Endpoint| (end.addr.to_u64s(), end.port);
        (entry.protocol, entry.state, end(entry.local), end(entry.remote), entry.session)
    };
    let (everywhere, mut merged): (Vec<_>, Vec<_>) = entries.drain(..).partition(SocketEntry::is_everywhere);
    let mut kept = alloc::collections::BTreeMap::<_, (u8, usize)>::new();
    for entry in everywhere {
        match kept.get(&key(&entry)) {
            Some((replica, at)) if *replica != entry.replica => {
                if let Some(first) = merged.get_mut(*at) {
                    first.receive_queue = first.receive_queue.saturating_add(entry.receive_queue);
                }
            }
            // Several sockets of a session may share a port: the first replica lists all of them.
            found => {
                if found.is_none() {
                    kept.insert(key(&entry), (entry.replica, merged.len()));
                }
                merged.push(entry);
            }
        }
    }
    *entries = merged;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(protocol: Protocol, state: u8, replica: u8, receive_queue: u32) -> SocketEntry {
        let (local, remote) = (Endpoint::new(7, 80), Endpoint::new(9, 1234));
        let (session, uid, send_queue) = (3, 1000, 5);
        SocketEntry { local, remote, protocol, state, replica, session, uid, receive_queue, send_queue }
    }

    #[test]
    fn entries_survive_the_packet_and_noise_is_left_out() {
        let entries: Vec<_> = (0..300).map(|n| entry(Protocol::Udp, 7, 1, n)).collect();
        let packet = encode(&entries);
        assert_eq!(packet.len(), PACKET_BYTES);
        assert!(decode(&packet).eq(entries.iter().copied().take(ENTRIES_MAX)));
        assert_eq!(decode(&encode(&[])).count(), 0);
        let noise = [0xee; PACKET_BYTES - 7];
        assert_eq!(decode(&noise).count(), 0, "there is no such protocol");
        assert_eq!(decode(&noise[..9]).count(), 0);
    }

    #[test]
    fn a_listener_of_all_replicas_is_one_and_connections_stay() {
        let mut entries = Vec::from([
            entry(Protocol::Tcp, LISTEN, 1, 2),
            entry(Protocol::Tcp, 1, 0, 0),
            entry(Protocol::Tcp, LISTEN, 0, 3),
            entry(Protocol::Udp, 7, 1, 1),
            entry(Protocol::Udp, 7, 1, 1),
            entry(Protocol::Udp, 7, 0, 0),
            entry(Protocol::Udp, 7, 0, 0),
        ]);
        merge(&mut entries);
        let listeners: Vec<_> = entries.iter().filter(|entry| entry.state == LISTEN).collect();
        assert_eq!((listeners.len(), listeners[0].receive_queue), (1, 5));
        assert_eq!(entries.iter().filter(|entry| entry.is_udp()).count(), 2, "two sockets share a port");
        assert_eq!(entries.len(), 4);
    }
}
