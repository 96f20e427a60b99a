//! Which sockets are there? For `atoll ss` and TCP_INFO.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use atoll_base::{Endpoint, Instant, SessionId};
use atoll_ipc::command::Protocol;
use atoll_ipc::{Memory, info};
use atoll_tcp::{Algorithm, Info, Phase, State};

use crate::datagram::Datagram;
use crate::entry::Entry;
use crate::flows::Name;
use crate::transport::Transport;

/// One socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketFacts {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// State number as in linux/tcp_states.h; 7 (CLOSE) for a datagram socket without peer.
    pub state: u8,
    /// Octets received and not read; for a listener, connections in the accept queue.
    pub receive_queue: u64,
    /// Octets written and not acknowledged; for a listener, the backlog.
    pub send_queue: u64,
    /// Own end; the address may be any.
    pub local: Endpoint,
    /// At `::`: of IPv6 alone.
    pub v6_only: bool,
    /// Other end; zero if there is none.
    pub remote: Endpoint,
    /// Whose it is; `None`: nobody's (yet, or any more).
    pub session: Option<SessionId>,
    /// Members of the session that hold it, a bit each; 0: unknown.
    pub holders: u64,
    /// Congestion control of a connection.
    pub congestion: Option<Algorithm>,
    /// `TCP_INFO` of a connection.
    pub info: Option<info::Info>,
}

impl SocketFacts {
    const fn new(protocol: Protocol, state: u8, local: Endpoint, remote: Endpoint) -> SocketFacts {
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

/// How far a listing has got. Sockets that come and go between two slices may be missing, or be there twice, as in /proc/net/tcp.
#[derive(Debug, Default)]
pub struct Listing {
    part: Part,
    /// The next place in it.
    at: usize,
    /// Connections in TIME-WAIT that were told of: some are queued twice.
    told: BTreeSet<Name>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Part {
    #[default]
    Listeners,
    Connections,
    TimeWaits,
    Datagrams,
    Over,
}

impl Part {
    const fn next(self) -> Part {
        match self {
            Part::Listeners => Part::Connections,
            Part::Connections => Part::TimeWaits,
            Part::TimeWaits => Part::Datagrams,
            Part::Datagrams | Part::Over => Part::Over,
        }
    }
}

impl Listing {
    /// Whether everything was listed.
    pub fn is_over(&self) -> bool {
        self.part == Part::Over
    }
}

impl<M: Memory> Transport<M> {
    /// Every socket of this replica, listeners first. What the application has read is as of its last report. After [`Transport::adopt_rest`]:
    /// connections of a predecessor that do not go on yet are not among them.
    pub fn sockets(&self, now: Instant) -> impl Iterator<Item = SocketFacts> + '_ {
        let mut listing = Listing::default();
        core::iter::from_fn(move || (!listing.is_over()).then(|| self.list(now, &mut listing, usize::MAX))).flatten()
    }

    /// The next of them, at most so many, and all of one kind; none if there are no more of that kind. A listing that waits costs nothing.
    pub fn list(&self, now: Instant, listing: &mut Listing, count: usize) -> Vec<SocketFacts> {
        let mut facts = Vec::new();
        let (from, mut next) = (listing.at, listing.at);
        match listing.part {
            Part::Listeners => facts.extend(self.listener_facts().skip(from).take(count).inspect(|_| next += 1)),
            Part::Connections => facts.extend(self.entries.iter_from(from as u32).take(count).map(|(index, entry)| {
                next = index as usize + 1;
                self.connection_facts(now, entry)
            })),
            Part::TimeWaits => {
                for (name, is_there) in self.time_waits.queued_from(from).take(count) {
                    next += 1;
                    if is_there && listing.told.insert(*name) {
                        let tuple = self.locals.tuple(name);
                        facts.push(SocketFacts::new(Protocol::Tcp, TIME_WAIT, tuple.local, tuple.remote));
                    }
                }
            }
            Part::Datagrams => {
                facts.extend(self.datagrams.iter_from(from as u32).take(count).map(|(index, socket)| {
                    next = index as usize + 1;
                    self.datagram_facts(socket)
                }))
            }
            Part::Over => {}
        }
        // Of these some may be passed over, but not all without getting on.
        if next == from {
            (listing.part, listing.at) = (listing.part.next(), 0);
            listing.told.clear();
        } else {
            listing.at = next;
        }
        facts
    }

    fn listener_facts(&self) -> impl Iterator<Item = SocketFacts> + '_ {
        self.cm.listeners().map(|listener| SocketFacts {
            session: listener.session,
            receive_queue: listener.unclaimed.into(),
            send_queue: listener.backlog.into(),
            v6_only: listener.v6_only,
            ..SocketFacts::new(Protocol::Tcp, LISTEN, listener.local, Endpoint::default())
        })
    }

    fn datagram_facts(&self, socket: &Datagram) -> SocketFacts {
        SocketFacts {
            session: self.session(socket.session()).map(|session| session.id),
            receive_queue: socket.received(),
            send_queue: socket.unsent(),
            v6_only: socket.v6_only(),
            ..SocketFacts::new(
                Protocol::Udp,
                if socket.remote().is_some() { ESTABLISHED } else { CLOSE },
                socket.local(),
                socket.remote().unwrap_or_default(),
            )
        }
    }

    /// Octets of heap that all connections hold beside themselves. Walks all of them: for tests.
    pub fn heap_bytes(&self) -> usize {
        self.entries.iter().map(|(_, entry)| entry.connection.heap_bytes() + entry.parked_len()).sum()
    }

    fn connection_facts(&self, now: Instant, entry: &Entry) -> SocketFacts {
        let connection = &entry.connection;
        let session = entry.place.and_then(|place| self.session(place.session));
        let slot = session.zip(entry.place).and_then(|(session, place)| session.slot(place.slot));
        let head = slot.as_ref().map_or(0, |slot| slot.receive_head()).max(connection.receive_head());
        let info = info(&connection.info(now), entry.name.is_v4());
        let tuple = self.locals.tuple(&entry.name);
        SocketFacts {
            session: session.map(|session| session.id),
            holders: slot.map_or(0, |slot| slot.holders()),
            receive_queue: connection.receive_nxt().saturating_sub(head),
            send_queue: connection.send_tail().saturating_sub(connection.send_una()),
            congestion: Some(connection.settings().congestion),
            info: Some(info),
            ..SocketFacts::new(Protocol::Tcp, info.state as u8, tuple.local, tuple.remote)
        }
    }
}

const ESTABLISHED: u8 = 1;
const TIME_WAIT: u8 = 6;
const CLOSE: u8 = 7;
const LISTEN: u8 = 10;

/// What TCP_INFO says, in the units of `struct tcp_info`. The TCB counts with the headers of IPv4.
pub(crate) fn info(info: &Info, is_v4: bool) -> info::Info {
    let pmtu = u64::from(info.pmtu) + if is_v4 { 0 } else { u64::from(crate::accept::V6_EXTRA) };
    let micros = |duration: atoll_base::Duration| duration.as_micros() as u64;
    let bit = |set: bool, bit: u64| if set { bit } else { 0 };
    info::Info {
        state: state_number(info.state),
        ca_state: match info.phase {
            // TCP_CA_Disorder: something is SACKed, and nothing is known to be lost.
            Phase::Open => u64::from(info.sacked > 0),
            Phase::Recovery => 3,
            Phase::Loss => 4,
        },
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
        pmtu,
        rtt: info.rtt_us.into(),
        rttvar: info.rttvar_us.into(),
        // TCP_INFINITE_SSTHRESH.
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
