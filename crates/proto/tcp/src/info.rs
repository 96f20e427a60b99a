//! A snapshot of a connection for administrators: the contents of Linux's `struct tcp_info`.

use atoll_base::{Duration, Instant};

use crate::congestion::BbrInfo;
use crate::connection::{Connection, text_offset};
use crate::recovery::Phase;
use crate::settings::Algorithm;
use crate::state::State;

// structure: Info: a field for each fact that tcp_info and ss show
/// A snapshot of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// The state of the connection.
    pub state: State,
    /// The phase of loss recovery.
    pub phase: Phase,
    /// The congestion control algorithm.
    pub algorithm: Algorithm,
    /// The number of time-outs in a row.
    pub retransmits: u8,
    /// The number of unanswered probes (window or keep-alive) in a row.
    pub probes: u8,
    /// The number of times that the time-out was doubled.
    pub backoff: u8,
    /// Whether timestamps are in use.
    pub timestamps: bool,
    /// Whether SACK is in use.
    pub sack: bool,
    /// Whether explicit congestion notification is in use.
    pub ecn: bool,
    /// Whether window scaling is in use.
    pub window_scaling: bool,
    /// Whether a SYN brought text that was taken (RFC 7413).
    pub syn_text: bool,
    /// The shift of the windows that the peer sends.
    pub snd_wscale: u8,
    /// The shift of the windows that we send.
    pub rcv_wscale: u8,
    /// The retransmission time-out.
    pub rto: Duration,
    /// The time-out for delayed ACKs.
    pub ato: Duration,
    /// The largest segment to send, in octets.
    pub snd_mss: u16,
    /// The largest segment that was received, in octets.
    pub rcv_mss: u16,
    /// The MSS that we advertised, in octets.
    pub advmss: u16,
    /// The path MTU, in octets.
    pub pmtu: u16,
    /// The number of segments in flight.
    pub unacked: u32,
    /// The number of segments selectively acknowledged.
    pub sacked: u32,
    /// The number of segments taken as lost, until they are known to have arrived.
    pub lost: u32,
    /// The smoothed round-trip time in microseconds.
    pub rtt_us: u32,
    /// The variance of the round-trip time in microseconds.
    pub rttvar_us: u32,
    /// The smallest round-trip time in microseconds; 0 before the first measurement.
    pub min_rtt_us: u32,
    /// The slow-start threshold in segments; `u32::MAX` if it is not known yet.
    pub snd_ssthresh: u32,
    /// The congestion window in segments.
    pub snd_cwnd: u32,
    /// The peer's window in octets.
    pub snd_wnd: u32,
    /// Our window in octets.
    pub rcv_wnd: u32,
    /// The size of the receive buffer in octets.
    pub rcv_space: u32,
    /// The number of segments sent again in all.
    pub total_retrans: u32,
    /// Octets of text that the peer has acknowledged.
    pub bytes_acked: u64,
    /// Octets of text received in order.
    pub bytes_received: u64,
    /// Octets of text that are written and were never sent.
    pub notsent_bytes: u32,
    /// The number of segments received.
    pub segs_in: u32,
    /// The number of segments sent.
    pub segs_out: u32,
    /// The number of segments with text that were received, also in vain.
    pub data_segs_in: u32,
    /// The number of segments with text that were sent, those that were sent again included.
    pub data_segs_out: u32,
    /// The number of segments that have arrived, SYN and FIN included. It is exact while nothing is in
    /// flight.
    pub delivered: u32,
    /// The delivery rate in octets per second: one window per round-trip time; 0 before the first
    /// measurement.
    pub delivery_rate: u64,
    /// The pace in octets per second; `None` if segments leave as fast as the windows allow.
    pub pacing_rate: Option<u64>,
    /// What BBR knows of the path, if it is at work.
    pub bbr: Option<BbrInfo>,
    /// The limit that the application has set on the pace, in octets per second (SO_MAX_PACING_RATE).
    pub pacing_rate_max: Option<u64>,
    /// Octets of text that were sent, those that were sent again included.
    pub bytes_sent: u64,
    /// Octets of text that were sent again.
    pub bytes_retrans: u64,
    /// The number of segments that came out of order.
    pub out_of_order: u32,
    /// The number of segments that the peer has received twice, as far as it has told (RFC 2883).
    pub twice: u32,
    /// The number of acknowledgements that have shown that segments were reordered on their way.
    pub reordered: u32,
    /// The number of retransmission time-outs.
    pub rto_count: u16,
    /// The number of series of such time-outs without an acknowledgement in between.
    pub rto_recoveries: u16,
    /// The time that all these series have taken.
    pub rto_time: Duration,
    /// The time since text was sent last.
    pub last_data_sent: Duration,
    /// The time since the last segment of the peer arrived.
    pub last_received: Duration,
}

impl Connection {
    /// Returns a snapshot for TCP_INFO and `atoll ss`.
    pub fn info(&self, now: Instant) -> Info {
        let (snd, rcv, recovery, rtt) = (&self.snd, &self.rcv, &self.recovery, &self.recovery.rtt);
        let mss = u64::from(snd.mss.max(1));
        let segments = |octets: i64| u32::try_from(text_offset(octets).div_ceil(mss)).unwrap_or(u32::MAX);
        let octets = |from: i64, to: i64| u32::try_from((to - from).max(0)).unwrap_or(u32::MAX);
        let resent = recovery.flight.as_ref().map_or(0, |flight| flight.retransmitted());
        let ssthresh = self.congestion.ssthresh;
        let window = u64::from(self.congestion.cwnd).min(u64::from(octets(snd.una, snd.edge)));
        let losses = self.rare.as_ref().map(|rare| rare.losses).unwrap_or_default();
        Info {
            state: self.state(),
            phase: recovery.phase,
            algorithm: self.congestion.algorithm,
            retransmits: recovery.retries,
            probes: self.keep_probes,
            backoff: rtt.backoff,
            timestamps: self.options.timestamps,
            sack: self.options.sack,
            ecn: self.ecn.is_agreed(),
            window_scaling: self.options.window_scaling,
            syn_text: self.has_fast_text(),
            snd_wscale: self.options.snd_scale,
            rcv_wscale: self.options.rcv_scale,
            rto: rtt.rto(),
            ato: self.ack_delay(),
            snd_mss: snd.mss,
            rcv_mss: rcv.segment_max,
            advmss: rcv.mss,
            pmtu: snd.mss_path.saturating_add(40),
            unacked: segments(snd.flight()),
            sacked: segments(recovery.sacked(snd)),
            lost: segments(recovery.lost() + resent),
            rtt_us: rtt.srtt_us,
            rttvar_us: rtt.rttvar_us,
            min_rtt_us: if rtt.min_us == u32::MAX { 0 } else { rtt.min_us },
            snd_ssthresh: if ssthresh == u32::MAX { ssthresh } else { segments(ssthresh.into()) },
            snd_cwnd: segments(self.congestion.cwnd.into()),
            snd_wnd: octets(snd.una, snd.edge),
            rcv_wnd: octets(rcv.nxt, rcv.edge),
            rcv_space: rcv.capacity,
            total_retrans: recovery.retransmits,
            bytes_acked: self.send_una(),
            bytes_received: text_offset(rcv.text_end()),
            notsent_bytes: octets(snd.nxt, snd.tail),
            segs_in: self.segments_in,
            segs_out: self.segments_out,
            data_segs_in: self.texts_in,
            data_segs_out: self.texts_out,
            delivered: self.delivered(segments(snd.flight()), segments(recovery.sacked(snd))),
            delivery_rate: (window * 1_000_000).checked_div(rtt.srtt_us.into()).unwrap_or(0),
            pacing_rate: self.pacing_rate(),
            bbr: self.congestion.bbr_info(),
            pacing_rate_max: self.pacing_rate_max().map(core::num::NonZeroU64::get),
            bytes_sent: self.send_nxt().saturating_add(losses.resent),
            bytes_retrans: losses.resent,
            out_of_order: losses.out_of_order,
            twice: losses.twice,
            reordered: losses.reordered,
            rto_count: losses.timeouts,
            rto_recoveries: losses.series,
            rto_time: losses.time_until(now),
            last_data_sent: now.since(self.sent_at),
            last_received: now.since(self.heard_at),
        }
    }

    /// Returns how many segments have arrived at the peer: what has left, less what was sent again or is in
    /// flight, and more what was selectively acknowledged. After the death of a replica the count begins
    /// anew.
    fn delivered(&self, in_flight: u32, sacked: u32) -> u32 {
        let syn = u32::from(self.snd.una >= 0);
        let fin = u32::from(self.snd.fin && self.snd.una > self.snd.tail);
        let gone = self.texts_out.saturating_sub(self.recovery.retransmits).saturating_sub(in_flight);
        gone.saturating_add(sacked).saturating_add(syn + fin)
    }
}
