//! What does `atoll ss` want to know?

use atoll_base::{Endpoint, Instant, SessionId};
use atoll_ipc::Memory;
use atoll_ipc::command::Protocol;
use atoll_ipc::info::Info;
use atoll_tcp::Algorithm;

use crate::connections::Entry;
use crate::transport::Transport;

/// One socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketFacts {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// State number as in linux/tcp_states.h; 7 (CLOSE) for an unconnected datagram socket.
    pub state: u8,
    /// Octets to be read; for a listener, connections that wait.
    pub receive_queue: u64,
    /// Octets sent or to be sent and not acknowledged; for a listener, the backlog.
    pub send_queue: u64,
    /// Own end.
    pub local: Endpoint,
    /// The other end; zero if there is none.
    pub remote: Endpoint,
    /// Whose it is.
    pub session: Option<SessionId>,
    /// Members of the session that hold it, a bit each; 0: unknown.
    pub holders: u64,
    /// Congestion control of a connection.
    pub congestion: Option<Algorithm>,
    /// `TCP_INFO` of a connection.
    pub info: Option<Info>,
}

impl<M: Memory> Transport<M> {
    /// All sockets, listeners first.
    pub fn sockets(&self, now: Instant) -> impl Iterator<Item = SocketFacts> + '_ {
        let listeners = self.listeners.iter().map(|(_, listener)| SocketFacts {
            protocol: Protocol::Tcp,
            state: 10,
            receive_queue: u64::from(listener.queue_len()),
            send_queue: u64::from(listener.backlog),
            local: listener.local,
            remote: Endpoint::default(),
            session: listener.holder(),
            holders: 0,
            congestion: None,
            info: None,
        });
        let connections = self.connections.iter().map(move |(_, entry)| {
            let session = self.sessions.get(entry.session as usize).filter(|_| entry.stage.has_slot());
            let info = tcp_info(entry, now);
            let connection = &entry.connection;
            SocketFacts {
                protocol: Protocol::Tcp,
                state: info.state as u8,
                receive_queue: connection.receive_nxt().saturating_sub(connection.receive_head()),
                send_queue: connection.send_tail().saturating_sub(connection.send_una()),
                local: entry.tuple.local,
                remote: entry.tuple.remote,
                session: session.map(|session| session.id),
                holders: session.and_then(|s| s.slot(entry.slot)).map_or(0, |slot| slot.holders()),
                congestion: Some(connection.settings().congestion),
                info: Some(info),
            }
        });
        let time_waits = self.time_waits.iter().map(|(tuple, _)| SocketFacts {
            protocol: Protocol::Tcp,
            state: 6,
            receive_queue: 0,
            send_queue: 0,
            local: tuple.local,
            remote: tuple.remote,
            session: None,
            holders: 0,
            congestion: None,
            info: None,
        });
        let datagrams = self.datagrams.iter().map(|(_, socket)| SocketFacts {
            protocol: Protocol::Udp,
            state: if socket.remote.port == 0 { 7 } else { 1 },
            receive_queue: socket.queued(),
            send_queue: 0,
            local: socket.local,
            remote: socket.remote,
            session: self.sessions.get(socket.session as usize).map(|session| session.id),
            holders: 0,
            congestion: None,
            info: None,
        });
        listeners.chain(connections).chain(time_waits).chain(datagrams)
    }
}

/// `struct tcp_info` of a connection.
pub(crate) fn tcp_info(entry: &Entry, now: Instant) -> Info {
    let i = entry.connection.info(now);
    let micros = |d: atoll_base::Duration| d.as_micros() as u64;
    Info {
        state: linux_state(i.state),
        ca_state: match i.phase {
            atoll_tcp::Phase::Open => 0,
            atoll_tcp::Phase::Recovery => 3,
            _ => 4,
        },
        retransmits: i.retransmits.into(),
        probes: i.probes.into(),
        backoff: i.backoff.into(),
        options: u64::from(i.timestamps) | u64::from(i.sack) << 1 | u64::from(i.window_scaling) << 2,
        snd_wscale: i.snd_wscale.into(),
        rcv_wscale: i.rcv_wscale.into(),
        rto: micros(i.rto),
        ato: micros(i.ato),
        snd_mss: i.snd_mss.into(),
        rcv_mss: i.rcv_mss.into(),
        unacked: i.unacked.into(),
        sacked: i.sacked.into(),
        lost: i.lost.into(),
        retrans: u64::from(i.retransmits),
        pmtu: i.pmtu.into(),
        rtt: i.rtt_us.into(),
        rttvar: i.rttvar_us.into(),
        snd_ssthresh: i.snd_ssthresh.into(),
        snd_cwnd: i.snd_cwnd.into(),
        advmss: i.advmss.into(),
        rcv_space: i.rcv_space.into(),
        total_retrans: i.total_retrans.into(),
        bytes_acked: i.bytes_acked,
        bytes_received: i.bytes_received,
        segs_out: i.segs_out.into(),
        segs_in: i.segs_in.into(),
    }
}

/// Numbers of linux/tcp_states.h.
fn linux_state(state: atoll_tcp::State) -> u64 {
    use atoll_tcp::State;
    match state {
        State::Established => 1,
        State::SynSent => 2,
        State::SynReceived => 3,
        State::FinWait1 => 4,
        State::FinWait2 => 5,
        State::TimeWait => 6,
        State::Closed => 7,
        State::CloseWait => 8,
        State::LastAck => 9,
        State::Closing => 11,
    }
}
