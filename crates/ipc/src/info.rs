//! The facts of one connection for `TCP_INFO`, in the arena's info area.

use crate::memory::Memory;

/// The size of the record in bytes.
pub const INFO_BYTES: usize = INFO_WORDS * 8;
const INFO_WORDS: usize = 36;

// structure: Info: a field for each fact that tcp_info and ss show
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
}

impl Info {
    fn words(&self) -> [u64; INFO_WORDS] {
        [
            self.state,
            self.ca_state,
            self.retransmits,
            self.probes,
            self.backoff,
            self.options,
            self.snd_wscale,
            self.rcv_wscale,
            self.rto,
            self.ato,
            self.snd_mss,
            self.rcv_mss,
            self.unacked,
            self.sacked,
            self.lost,
            self.retrans,
            self.pmtu,
            self.rtt,
            self.rttvar,
            self.snd_ssthresh,
            self.snd_cwnd,
            self.advmss,
            self.rcv_space,
            self.total_retrans,
            self.bytes_acked,
            self.bytes_received,
            self.segs_out,
            self.segs_in,
            self.pacing_rate,
            self.max_pacing_rate,
            self.notsent_bytes,
            self.min_rtt,
            self.delivery_rate,
            self.snd_wnd,
            self.rcv_wnd,
            self.last_data_sent,
        ]
    }

    /// Writes the record at `at`.
    pub fn store<M: Memory>(&self, memory: &M, at: usize) {
        for (i, word) in self.words().into_iter().enumerate() {
            memory.store64(at + i * 8, word);
        }
    }

    /// Reads the record at `at`.
    pub fn load<M: Memory>(memory: &M, at: usize) -> Info {
        let w: [u64; INFO_WORDS] = core::array::from_fn(|i| memory.load64(at + i * 8));
        Info {
            state: w[0],
            ca_state: w[1],
            retransmits: w[2],
            probes: w[3],
            backoff: w[4],
            options: w[5],
            snd_wscale: w[6],
            rcv_wscale: w[7],
            rto: w[8],
            ato: w[9],
            snd_mss: w[10],
            rcv_mss: w[11],
            unacked: w[12],
            sacked: w[13],
            lost: w[14],
            retrans: w[15],
            pmtu: w[16],
            rtt: w[17],
            rttvar: w[18],
            snd_ssthresh: w[19],
            snd_cwnd: w[20],
            advmss: w[21],
            rcv_space: w[22],
            total_retrans: w[23],
            bytes_acked: w[24],
            bytes_received: w[25],
            segs_out: w[26],
            segs_in: w[27],
            pacing_rate: w[28],
            max_pacing_rate: w[29],
            notsent_bytes: w[30],
            min_rtt: w[31],
            delivery_rate: w[32],
            snd_wnd: w[33],
            rcv_wnd: w[34],
            last_data_sent: w[35],
        }
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
