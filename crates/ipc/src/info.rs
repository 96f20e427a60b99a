//! The facts of one connection for `TCP_INFO`, in the arena's info area.

use crate::layout::{Field, load, record, store};
use crate::memory::Memory;

/// The size of the record in bytes.
pub const INFO_BYTES: usize = size_of::<<Info as Field>::Octets>();

record! {
    /// The fields of `struct tcp_info` (linux/tcp.h) that this stack knows, in the units used there (times in
    /// microseconds unless the name says otherwise).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[allow(missing_docs)] // The names are those of struct tcp_info; tcp(7) documents them.
    pub struct Info {
        /// State number as in linux/tcp_states.h (1 ESTABLISHED ... 11 CLOSING).
        pub state: u64,
        pub ca_state: u64,
        pub retransmits: u64,
        pub probes: u64,
        pub backoff: u64,
        /// The option bits, `TCPI_OPT_*`.
        pub options: u64,
        pub snd_wscale: u64,
        pub rcv_wscale: u64,
        pub rto: u64,
        pub ato: u64,
        pub snd_mss: u64,
        pub rcv_mss: u64,
        pub unacked: u64,
        pub sacked: u64,
        pub lost: u64,
        pub retrans: u64,
        pub pmtu: u64,
        pub rtt: u64,
        pub rttvar: u64,
        pub snd_ssthresh: u64,
        pub snd_cwnd: u64,
        pub advmss: u64,
        pub rcv_space: u64,
        pub total_retrans: u64,
        pub bytes_acked: u64,
        pub bytes_received: u64,
        pub segs_out: u64,
        pub segs_in: u64,
        /// The pacing rate in octets per second; `u64::MAX` for no limit.
        pub pacing_rate: u64,
        /// The maximum pacing rate in octets per second; `u64::MAX` for no limit.
        pub max_pacing_rate: u64,
        pub notsent_bytes: u64,
        pub min_rtt: u64,
        pub delivery_rate: u64,
        pub snd_wnd: u64,
        pub rcv_wnd: u64,
        /// The time since data was last sent, in milliseconds.
        pub last_data_sent: u64,
        /// The fields of `struct tcp_bbr_info` (linux/inet_diag.h): octets per second, microseconds, and
        /// gains in 256ths. All are 0 unless BBR is at work.
        pub bbr_bw: u64,
        pub bbr_min_rtt: u64,
        pub bbr_pacing_gain: u64,
        pub bbr_cwnd_gain: u64,
        /// The time since a segment of the peer arrived, in milliseconds.
        pub last_ack_recv: u64,
        pub bytes_sent: u64,
        pub bytes_retrans: u64,
        pub rcv_ooopack: u64,
        pub total_rto: u64,
        pub total_rto_recoveries: u64,
        /// The time of recoveries after time-outs, in milliseconds.
        pub total_rto_time: u64,
        pub data_segs_in: u64,
        pub data_segs_out: u64,
        pub delivered: u64,
        pub dsack_dups: u64,
        pub reord_seen: u64,
        /// The time since data arrived in order, in milliseconds.
        pub last_data_recv: u64,
    }
}

impl Info {
    /// Writes the record at `at`.
    pub fn store<M: Memory>(&self, memory: &M, at: usize) {
        store(memory, at, self);
    }

    /// Reads the record at `at`.
    pub fn load<M: Memory>(memory: &M, at: usize) -> Info {
        // Cannot fail: a number may have any value.
        load(memory, at).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::HeapMemory;

    #[test]
    fn the_record_survives_the_arena() {
        let memory = HeapMemory::new(INFO_BYTES);
        let info = Info { state: 1, rtt: 77, segs_in: 9, snd_cwnd: 10, last_data_sent: 5, ..Info::default() };
        info.store(&memory, 0);
        assert_eq!(Info::load(&memory, 0), info);
    }
}
