//! What does a replica tell about one socket? The rows of `atoll ss`, from replica to supervisor to command
//! line.
//!
//! A listing is a sequence of packets `{"rows":[...]}` and ends with `{}`. The supervisor passes them on
//! unread.

use serde::{Deserialize, Serialize};

/// One socket. Fields that a socket of this kind or state does not have are left out of the JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SocketRow {
    /// `tcp` or `udp`.
    pub proto: String,
    /// As `ss` writes it: `LISTEN`, `ESTAB`, `SYN-SENT`, `SYN-RECV`, `FIN-WAIT-1`, `FIN-WAIT-2`, `TIME-WAIT`,
    /// `CLOSE-WAIT`, `LAST-ACK`, `CLOSING`, `UNCONN`.
    pub state: String,
    /// Bytes that wait for the program; of a listener, connections that wait to be accepted.
    pub recv_q: u64,
    /// Bytes that the peer has not acknowledged; of a listener, its backlog.
    pub send_q: u64,
    /// Own end, as `198.18.0.2:80` or `[2001:db8::2]:80`; `0.0.0.0`, `[::]` or (both) `*` for any address,
    /// `*` for any port.
    pub local: String,
    /// The other end.
    pub peer: String,
    /// The replica that has it; a listener is listed by every replica.
    pub replica: u8,
    /// The session that it belongs to; 0: none any more (a connection that finishes by itself).
    pub session: u32,
    /// Members of the session that hold it: a bit per member number, 0 if unknown.
    #[serde(skip_serializing_if = "is_zero")]
    pub holders: u64,
    /// What `ss -i` shows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub info: Option<TcpRow>,
    /// The timer that runs: `on`, `keepalive`, `timewait` or `persist`, with milliseconds left and
    /// retransmissions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timer: Option<(String, u64, u32)>,
    /// Of a listener: who accepts its connections, as this replica knows them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub acceptors: Vec<AcceptorRow>,
}

/// One acceptor as one replica knows it (P5).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AcceptorRow {
    /// Its session.
    pub session: u32,
    /// Its socket.
    pub lease: u64,
    /// The replica that estimates its service time and offers it to the others.
    pub home: u8,
    /// Whether it wants connections.
    pub accepting: bool,
    /// Service time in microseconds: at its home of all its connections, elsewhere of those that came from
    /// there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_us: Option<u64>,
    /// Connections that this is made of.
    pub samples: usize,
    /// Connections given to it by this replica since it registered first.
    pub given: u64,
    /// Of those, not claimed yet.
    pub unclaimed: u32,
    /// Connections claimed and not closed: at its home of all replicas.
    pub open: u32,
}

// structure: TcpRow: a field for each column
/// The facts of a TCP connection, in the words of `ss -i`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TcpRow {
    /// Options agreed on, as ss writes them: `ts`, `sack`, `ecn`.
    pub options: Vec<String>,
    /// The congestion control: `cubic`, `reno`, `bbr`.
    pub congestion: String,
    /// Window scales of the peer and of this end, if agreed on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wscale: Option<(u8, u8)>,
    /// Retransmission timeout in milliseconds.
    pub rto_ms: f64,
    /// Smoothed round-trip time in microseconds; 0: not measured yet.
    pub rtt_us: u64,
    /// Its variation.
    pub rttvar_us: u64,
    /// Delayed-ACK timeout in milliseconds.
    pub ato_ms: f64,
    /// Sending MSS.
    pub mss: u32,
    /// Path MTU.
    pub pmtu: u32,
    /// Receiving MSS.
    pub rcvmss: u32,
    /// Advertised MSS.
    pub advmss: u32,
    /// Congestion window in segments.
    pub cwnd: u32,
    /// Slow-start threshold in segments, once there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ssthresh: Option<u32>,
    /// Bytes sent, retransmissions included.
    pub bytes_sent: u64,
    /// Bytes sent again.
    pub bytes_retrans: u64,
    /// Bytes acknowledged by the peer.
    pub bytes_acked: u64,
    /// Bytes received in order.
    pub bytes_received: u64,
    /// Segments sent.
    pub segs_out: u64,
    /// Segments received.
    pub segs_in: u64,
    /// Segments in flight.
    pub unacked: u32,
    /// Of those, retransmitted and not acknowledged.
    pub retrans: u32,
    /// Retransmissions since the start.
    pub retrans_total: u32,
    /// Segments taken as lost.
    pub lost: u32,
    /// Segments selectively acknowledged.
    pub sacked: u32,
    /// Receive window that this end wants to offer, in bytes.
    pub rcv_space: u64,
}

impl SocketRow {
    /// How many plain rows it is as long as: an acceptor has some 150 bytes.
    const fn size(&self) -> usize {
        1 + self.acceptors.len() / 4
    }
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// A packet of a listing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RowsPacket {
    /// Some sockets.
    pub rows: Vec<SocketRow>,
}

/// The packet that ends a listing.
pub const END: &[u8] = b"{}";

/// Acceptors of a listener that are listed at most, so that a row fits a packet.
pub const ACCEPTORS_MAX: usize = 1000;

/// Rows per packet: about 600 bytes each, so that a packet is far below the 200 KiB that a socket takes.
pub const ROWS_PER_PACKET: usize = 64;

/// The packets of a listing, made one by one, [`END`] last.
///
/// For the replica, whose control socket may be full: keep the iterator and go on when it is writable again.
pub fn packets(rows: impl IntoIterator<Item = SocketRow>) -> impl Iterator<Item = Vec<u8>> {
    let mut rows = rows.into_iter().peekable();
    let mut ended = false;
    std::iter::from_fn(move || {
        if ended {
            return None;
        }
        let mut size = 0;
        let rows: Vec<SocketRow> = std::iter::from_fn(|| {
            let row = rows.next_if(|row| size == 0 || size + row.size() <= ROWS_PER_PACKET)?;
            size += row.size();
            Some(row)
        })
        .collect();
        if rows.is_empty() {
            ended = true;
            return Some(END.to_vec());
        }
        Some(serde_json::to_vec(&RowsPacket { rows }).expect("plain data has a JSON form"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_is_cut_into_packets_and_ends() {
        let row = |n: u64| SocketRow {
            proto: "tcp".into(),
            recv_q: n,
            info: Some(TcpRow { rtt_us: u64::MAX, options: vec!["ts".into(); 3], ..TcpRow::default() }),
            ..SocketRow::default()
        };
        let packets: Vec<Vec<u8>> = packets((0..130).map(row)).collect();
        assert_eq!(packets.len(), 4);
        assert_eq!(packets[3], END);
        let mut n = 0;
        for packet in &packets[..3] {
            assert!(packet.len() < 100_000);
            for row in serde_json::from_slice::<RowsPacket>(packet).unwrap().rows {
                assert_eq!(row.recv_q, n);
                n += 1;
            }
        }
        assert_eq!(n, 130);
    }

    #[test]
    fn listeners_with_many_acceptors_fit_packets() {
        let acceptor =
            AcceptorRow { lease: u64::MAX, service_us: Some(u64::MAX), given: u64::MAX, ..Default::default() };
        let row = |acceptors: usize| SocketRow { acceptors: vec![acceptor.clone(); acceptors], ..SocketRow::default() };
        let rows = [ACCEPTORS_MAX, 0, 200, 200, 0, ACCEPTORS_MAX].map(row);
        let packets: Vec<Vec<u8>> = packets(rows.clone()).collect();
        assert!(packets.iter().all(|packet| packet.len() < 200_000), "{:?}", packets.iter().map(Vec::len).max());
        let listed = packets.iter().filter_map(|packet| serde_json::from_slice::<RowsPacket>(packet).ok());
        assert_eq!(listed.flat_map(|packet| packet.rows).collect::<Vec<_>>(), rows);
    }
}
