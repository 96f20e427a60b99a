//! The rows of `atoll ss`: what a replica reports about one socket to the supervisor, and that to the command
//! line.
//!
//! A listing is a sequence of packets `{"rows":[...]}` that ends with `{}`. The supervisor passes them on
//! without reading them.

use serde::{Deserialize, Serialize};

/// One socket. The JSON leaves out fields that a socket of this kind or state does not have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SocketRow {
    /// `tcp` or `udp`.
    pub proto: String,
    /// State, as `ss` writes it: `LISTEN`, `ESTAB`, `SYN-SENT`, `SYN-RECV`, `FIN-WAIT-1`, `FIN-WAIT-2`,
    /// `TIME-WAIT`, `CLOSE-WAIT`, `LAST-ACK`, `CLOSING`, `UNCONN`.
    pub state: String,
    /// Bytes that wait for the program; of a listener, connections that wait to be accepted.
    pub recv_q: u64,
    /// Bytes that the peer has not acknowledged; of a listener, its backlog.
    pub send_q: u64,
    /// Local address and port, as `198.18.0.2:80` or `[2001:db8::2]:80`; `0.0.0.0`, `[::]` or (both) `*` for
    /// any address, `*` for any port.
    pub local: String,
    /// Remote address and port, written as the local ones are.
    pub peer: String,
    /// The replica that has the socket; a listener is listed by every replica.
    pub replica: u8,
    /// The session that the socket belongs to; 0 for a connection that outlives its session and finishes by
    /// itself.
    pub session: u32,
    /// Members of the session that hold the socket: a bit per member number, 0 if unknown.
    #[serde(skip_serializing_if = "is_zero")]
    pub holders: u64,
    /// The facts that `ss -i` shows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub info: Option<TcpRow>,
    /// The running timer: `on`, `keepalive`, `timewait` or `persist`; the milliseconds left; the number of
    /// retransmissions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timer: Option<(String, u64, u32)>,
    /// The acceptors of a listener's connections, as this replica knows them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub acceptors: Vec<AcceptorRow>,
}

/// One acceptor as one replica knows it (P5).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AcceptorRow {
    /// The session of the acceptor.
    pub session: u32,
    /// The lease of the acceptor's socket.
    pub lease: u64,
    /// The replica that estimates the acceptor's service time, and offers the acceptor to the others.
    pub home: u8,
    /// Whether the acceptor wants connections.
    pub accepting: bool,
    /// Service time in microseconds: at the home replica over all connections of the acceptor, elsewhere over
    /// those that came from there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_us: Option<u64>,
    /// The number of connections in that estimate.
    pub samples: usize,
    /// Connections given to the acceptor by this replica since it first registered.
    pub given: u64,
    /// Connections given by this replica and not claimed yet.
    pub unclaimed: u32,
    /// Connections claimed and not closed; at the home replica, those of all replicas.
    pub open: u32,
}

// structure: TcpRow: a field for each column
/// The facts of a TCP connection, named as `ss -i` names them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TcpRow {
    /// Options agreed on, as `ss` writes them: `ts`, `sack`, `ecn`.
    pub options: Vec<String>,
    /// The congestion control: `cubic`, `reno`, `bbr`.
    pub congestion: String,
    /// Window scales of the peer and of this end, as shift counts, if agreed on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wscale: Option<(u8, u8)>,
    /// Retransmission timeout in milliseconds.
    pub rto_ms: f64,
    /// Smoothed round-trip time in microseconds; 0 if not measured yet.
    pub rtt_us: u64,
    /// Variation of the round-trip time in microseconds.
    pub rttvar_us: u64,
    /// Delayed-ACK timeout in milliseconds.
    pub ato_ms: f64,
    /// Sending MSS in bytes.
    pub mss: u32,
    /// Path MTU in bytes.
    pub pmtu: u32,
    /// Receiving MSS in bytes.
    pub rcvmss: u32,
    /// Advertised MSS in bytes.
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
    /// Segments in flight that were retransmitted and not acknowledged.
    pub retrans: u32,
    /// Retransmissions since the connection began.
    pub retrans_total: u32,
    /// Segments considered lost.
    pub lost: u32,
    /// Segments selectively acknowledged.
    pub sacked: u32,
    /// Receive window that this end wants to offer, in bytes.
    pub rcv_space: u64,
}

impl SocketRow {
    /// Returns the row's size, in plain rows: an acceptor has some 150 bytes.
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
    /// The rows of some sockets.
    pub rows: Vec<SocketRow>,
}

/// The packet that ends a listing.
pub const END: &[u8] = b"{}";

/// The most acceptors listed for a listener, so that a row fits a packet.
pub const ACCEPTORS_MAX: usize = 1000;

/// Rows per packet: about 600 bytes each, so that a packet is far below the 200 KiB that a socket takes.
pub const ROWS_PER_PACKET: usize = 64;

/// Returns the packets of a listing, made one by one, [`END`] last.
///
/// A replica whose control socket is full keeps the iterator, and continues when the socket is writable
/// again.
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
        let acceptor = AcceptorRow {
            lease: u64::MAX,
            service_us: Some(u64::MAX),
            given: u64::MAX,
            ..Default::default()
        };
        let row = |acceptors: usize| SocketRow {
            acceptors: vec![acceptor.clone(); acceptors],
            ..SocketRow::default()
        };
        let rows = [ACCEPTORS_MAX, 0, 200, 200, 0, ACCEPTORS_MAX].map(row);
        let packets: Vec<Vec<u8>> = packets(rows.clone()).collect();
        assert!(
            packets.iter().all(|packet| packet.len() < 200_000),
            "{:?}",
            packets.iter().map(Vec::len).max()
        );
        let listed = packets.iter().filter_map(|packet| serde_json::from_slice::<RowsPacket>(packet).ok());
        assert_eq!(listed.flat_map(|packet| packet.rows).collect::<Vec<_>>(), rows);
    }
}
