//! Which sockets are there? For `atoll ss` and TCP_INFO.

use atoll_base::{Endpoint, Instant, SessionId};
use atoll_ipc::command::Protocol;
use atoll_ipc::{Memory, info};
use atoll_tcp::{Algorithm, Info, Phase, State};

use crate::transport::Transport;

/// One socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketRow {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// State.
    pub state: SocketState,
    /// Own end (address 0: any).
    pub local: Endpoint,
    /// Other end (0: none).
    pub remote: Endpoint,
    /// Whose it is; `None`: nobody's (yet, or any more).
    pub session: Option<SessionId>,
    /// Octets received and not read; listeners: connections in the accept queue.
    pub receive_queue: u64,
    /// Octets written and not acknowledged; listeners: the backlog.
    pub send_queue: u64,
    /// Facts of a connection.
    pub info: Option<Info>,
}

/// State of a socket, as `ss` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketState {
    /// A connection.
    Connection(State),
    /// A listening socket.
    Listening,
    /// A datagram socket without peer.
    Unconnected,
    /// A datagram socket with a peer.
    Connected,
}

impl<M: Memory> Transport<M> {
    /// Every socket of this replica: listeners, connections, datagram sockets. TIME-WAIT is counted only.
    pub fn list_sockets(&self, now: Instant) -> impl Iterator<Item = SocketRow> + '_ {
        let listeners = self.cm.listeners().map(|listener| SocketRow {
            protocol: Protocol::Tcp,
            state: SocketState::Listening,
            local: listener.local,
            remote: Endpoint::default(),
            session: listener.session,
            receive_queue: listener.unclaimed.into(),
            send_queue: listener.backlog.into(),
            info: None,
        });
        let connections = self.entries.iter().map(move |(_, entry)| {
            let connection = &entry.connection;
            let session = entry.place.and_then(|place| self.session(place.session));
            let head = session
                .zip(entry.place)
                .and_then(|(session, place)| session.slot(place.slot))
                .map_or(connection.receive_head(), |slot| slot.receive_head());
            SocketRow {
                protocol: Protocol::Tcp,
                state: SocketState::Connection(connection.state()),
                local: entry.tuple.local,
                remote: entry.tuple.remote,
                session: session.map(|session| session.id),
                receive_queue: connection.receive_nxt().saturating_sub(head),
                send_queue: connection.send_tail().saturating_sub(connection.send_una()),
                info: Some(connection.info(now)),
            }
        });
        listeners.chain(connections).chain(self.list_datagrams())
    }
}

/// What TCP_INFO says, in the units of `struct tcp_info`.
pub(crate) fn info(info: &Info) -> info::Info {
    let micros = |duration: atoll_base::Duration| duration.as_micros() as u64;
    let bit = |set: bool, bit: u64| if set { bit } else { 0 };
    info::Info {
        state: state_number(info.state),
        ca_state: match info.phase {
            Phase::Open => 0,
            Phase::Recovery => 3,
            Phase::Loss => 4,
        },
        retransmits: info.retransmits.into(),
        probes: info.probes.into(),
        backoff: info.backoff.into(),
        options: bit(info.timestamps, 1) | bit(info.sack, 2) | bit(info.window_scaling, 4),
        snd_wscale: info.snd_wscale.into(),
        rcv_wscale: info.rcv_wscale.into(),
        rto: micros(info.rto),
        ato: micros(info.ato),
        snd_mss: info.snd_mss.into(),
        rcv_mss: info.rcv_mss.into(),
        unacked: info.unacked.into(),
        sacked: info.sacked.into(),
        lost: info.lost.into(),
        retrans: 0,
        pmtu: info.pmtu.into(),
        rtt: info.rtt_us.into(),
        rttvar: info.rttvar_us.into(),
        snd_ssthresh: info.snd_ssthresh.into(),
        snd_cwnd: info.snd_cwnd.into(),
        advmss: info.advmss.into(),
        rcv_space: info.rcv_space.into(),
        total_retrans: info.total_retrans.into(),
        bytes_acked: info.bytes_acked,
        bytes_received: info.bytes_received,
        segs_out: info.segs_out.into(),
        segs_in: info.segs_in.into(),
    }
}

/// As in linux/tcp_states.h.
const fn state_number(state: State) -> u64 {
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

/// The name of the congestion control, as Linux has it.
impl SocketRow {
    /// `cubic` or `reno`; `None` for sockets without congestion control.
    pub fn congestion(&self) -> Option<&'static str> {
        self.info.map(|info| match info.algorithm {
            Algorithm::Cubic => "cubic",
            Algorithm::NewReno => "reno",
        })
    }
}
