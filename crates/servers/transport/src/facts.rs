//! The facts of a connection: one type, from which TCP_INFO (`struct tcp_info`) and a row of `atoll ss` are
//! made.

use atoll_base::{Endpoint, FourTuple, Instant, SessionId};
use atoll_ipc::command::Protocol;
use atoll_ipc::{Memory, info, tcp_state};
use atoll_tcp::{Algorithm, Info, Phase, State};

use crate::applications::Applications;
use crate::entry::{Entry, text_tick};
use crate::next_hop::V6_EXTRA;

/// One socket, as `atoll ss` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketFacts {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// The state number of linux/tcp_states.h; 7 (CLOSE) for a datagram socket without peer.
    pub state: u8,
    /// The octets received and not read; for a listener, the connections in the accept queue.
    pub receive_queue: u64,
    /// The octets written and not acknowledged; for a listener, the backlog.
    pub send_queue: u64,
    /// The own end; the address may be unspecified.
    pub local: Endpoint,
    /// Whether a socket at `::` is for IPv6 alone.
    pub v6_only: bool,
    /// The other end; zero if there is none.
    pub remote: Endpoint,
    /// The session of the socket; `None` if it has none yet, or any more.
    pub session: Option<SessionId>,
    /// The members of the session that hold it, a bit each; 0 if unknown.
    pub holders: u64,
    /// The congestion control of a connection.
    pub congestion: Option<Algorithm>,
    /// The `TCP_INFO` of a connection.
    pub info: Option<info::Info>,
}

impl SocketFacts {
    pub(crate) const fn new(protocol: Protocol, state: u8, local: Endpoint, remote: Endpoint) -> SocketFacts {
        let (session, congestion, info) = (None, None, None);
        SocketFacts {
            protocol,
            state,
            receive_queue: 0,
            send_queue: 0,
            local,
            v6_only: false,
            remote,
            session,
            holders: 0,
            congestion,
            info,
        }
    }
}

/// The facts of one connection at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionFacts {
    tuple: FourTuple,
    /// The facts as the TCB has them.
    tcp: Info,
    congestion: Algorithm,
    /// The session of the connection, and the members of it that hold the connection.
    session: Option<SessionId>,
    holders: u64,
    /// The octets received and not read, as far as its application has reported; the octets written and not
    /// acknowledged.
    received: u64,
    unacknowledged: u64,
    /// The milliseconds since text arrived in order.
    last_text_ms: u64,
}

impl ConnectionFacts {
    /// Takes the facts of a connection, which has the name `tuple`.
    pub(crate) fn of<M: Memory>(
        now: Instant,
        entry: &Entry,
        tuple: FourTuple,
        applications: &Applications<M>,
    ) -> ConnectionFacts {
        let connection = &entry.connection;
        let session = entry.place.and_then(|place| applications.get(place.session));
        let slot = entry.place.and_then(|place| applications.slot(place));
        let head = slot.as_ref().map_or(0, |slot| slot.receive_head()).max(connection.receive_head());
        ConnectionFacts {
            tuple,
            tcp: connection.info(now),
            congestion: connection.settings().congestion,
            session: session.map(|session| session.id),
            holders: slot.map_or(0, |slot| slot.holders()),
            received: connection.receive_nxt().saturating_sub(head),
            unacknowledged: connection.send_tail().saturating_sub(connection.send_una()),
            last_text_ms: (u64::from(text_tick(now).wrapping_sub(entry.text_at)) << 20) / 1_000_000,
        }
    }

    /// Returns the row of `atoll ss`.
    pub(crate) fn row(&self) -> SocketFacts {
        let info = self.info();
        SocketFacts {
            session: self.session,
            holders: self.holders,
            receive_queue: self.received,
            send_queue: self.unacknowledged,
            congestion: Some(self.congestion),
            info: Some(info),
            ..SocketFacts::new(Protocol::Tcp, info.state as u8, self.tuple.local, self.tuple.remote)
        }
    }

    /// Returns the MTU of the path, in octets: the TCB counts with the headers of IPv4.
    fn pmtu(&self) -> u64 {
        u64::from(self.tcp.pmtu) + if self.tuple.remote.addr.is_v4() { 0 } else { u64::from(V6_EXTRA) }
    }

    /// Returns what TCP_INFO says, in the units of `struct tcp_info`.
    pub(crate) fn info(&self) -> info::Info {
        let info = &self.tcp;
        let micros = |duration: atoll_base::Duration| duration.as_micros() as u64;
        let bit = |set: bool, bit: u64| if set { bit } else { 0 };
        let bbr = info.bbr.unwrap_or_default();
        let gain = |per_mille: u64| per_mille * 256 / 1000;
        info::Info {
            state: state_number(info.state).into(),
            ca_state: congestion_state(info),
            retransmits: info.retransmits.into(),
            probes: info.probes.into(),
            backoff: info.backoff.into(),
            options: bit(info.timestamps, 1)
                | bit(info.sack, 2)
                | bit(info.window_scaling, 4)
                | bit(info.ecn, 8)
                | bit(info.syn_text, 32),
            snd_wscale: info.snd_wscale.into(),
            rcv_wscale: info.rcv_wscale.into(),
            rto: micros(info.rto),
            ato: micros(info.ato),
            snd_mss: info.snd_mss.into(),
            rcv_mss: info.rcv_mss.into(),
            unacked: info.unacked.into(),
            sacked: info.sacked.into(),
            lost: info.lost.into(),
            retrans: info.retransmits.into(),
            pmtu: self.pmtu(),
            rtt: info.rtt_us.into(),
            rttvar: info.rttvar_us.into(),
            // The bound is TCP_INFINITE_SSTHRESH.
            snd_ssthresh: info.snd_ssthresh.min(0x7fff_ffff).into(),
            snd_cwnd: info.snd_cwnd.into(),
            advmss: info.advmss.into(),
            rcv_space: info.rcv_space.into(),
            total_retrans: info.total_retrans.into(),
            bytes_acked: info.bytes_acked,
            bytes_received: info.bytes_received,
            segs_out: info.segs_out.into(),
            segs_in: info.segs_in.into(),
            pacing_rate: info.pacing_rate.unwrap_or(u64::MAX),
            max_pacing_rate: info.pacing_rate_max.unwrap_or(u64::MAX),
            notsent_bytes: info.notsent_bytes.into(),
            min_rtt: info.min_rtt_us.into(),
            delivery_rate: info.delivery_rate,
            snd_wnd: info.snd_wnd.into(),
            rcv_wnd: info.rcv_wnd.into(),
            last_data_sent: info.last_data_sent.as_millis() as u64,
            bbr_bw: bbr.bandwidth,
            bbr_min_rtt: bbr.min_rtt_us.into(),
            bbr_pacing_gain: gain(bbr.pacing_gain),
            bbr_cwnd_gain: gain(bbr.cwnd_gain),
            last_ack_recv: info.last_received.as_millis() as u64,
            last_data_recv: self.last_text_ms,
            bytes_sent: info.bytes_sent,
            bytes_retrans: info.bytes_retrans,
            rcv_ooopack: info.out_of_order.into(),
            total_rto: info.rto_count.into(),
            total_rto_recoveries: info.rto_recoveries.into(),
            total_rto_time: info.rto_time.as_millis() as u64,
            data_segs_in: info.data_segs_in.into(),
            data_segs_out: info.data_segs_out.into(),
            delivered: info.delivered.into(),
            dsack_dups: info.twice.into(),
            reord_seen: info.reordered.into(),
        }
    }
}

/// Returns the phase of loss recovery by its number on Linux (`enum tcp_ca_state`).
const fn congestion_state(info: &Info) -> u64 {
    match info.phase {
        // TCP_CA_Disorder: something is SACKed, and nothing is known to be lost.
        Phase::Open => (info.sacked > 0) as u64,
        Phase::Recovery => 3,
        Phase::Loss => 4,
    }
}

/// Returns the number of a state.
const fn state_number(state: State) -> u8 {
    match state {
        State::Established => tcp_state::ESTABLISHED,
        State::SynSent => tcp_state::SYN_SENT,
        State::SynReceived => tcp_state::SYN_RECEIVED,
        State::FinWait1 => tcp_state::FIN_WAIT_1,
        State::FinWait2 => tcp_state::FIN_WAIT_2,
        State::TimeWait => tcp_state::TIME_WAIT,
        State::Closed => tcp_state::CLOSED,
        State::CloseWait => tcp_state::CLOSE_WAIT,
        State::LastAck => tcp_state::LAST_ACK,
        State::Closing => tcp_state::CLOSING,
    }
}
