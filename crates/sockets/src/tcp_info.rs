//! Which octets does `TCP_INFO` give? Those of `struct tcp_info` (linux/tcp.h), whose fields are where libc's
//! definition has them.

use core::mem::offset_of;

use atoll_ipc::info::Info;
use libc::tcp_info;

/// Where kernels have the last field that libc knows.
const RTO_TIME: usize = offset_of!(tcp_info, tcpi_total_rto_time);
/// The size of the struct in octets as kernels have it from 6.18 on. The stack has nothing to say in the last
/// nine fields (`tcpi_received_ce` to `tcpi_accecn_opt_seen`), which are about Accurate ECN.
pub const TCP_INFO_BYTES: usize = RTO_TIME + size_of::<u32>() + 7 * size_of::<u32>() + 2 * size_of::<u16>();

/// The value of `tcpi_reordering` where nothing was measured: that of the sysctl `tcp_reordering`.
const REORDERING: u64 = 3;

// structure: tcp_info: a line for each field of the struct
/// Returns the struct with what the stack knows of a connection. All other fields are 0: what they count is
/// not counted.
pub fn tcp_info(info: &Info) -> [u8; TCP_INFO_BYTES] {
    let mut octets = [0; TCP_INFO_BYTES];
    for (at, value) in [
        (offset_of!(tcp_info, tcpi_state), info.state),
        (offset_of!(tcp_info, tcpi_ca_state), info.ca_state),
        (offset_of!(tcp_info, tcpi_retransmits), info.retransmits),
        (offset_of!(tcp_info, tcpi_probes), info.probes),
        (offset_of!(tcp_info, tcpi_backoff), info.backoff),
        (offset_of!(tcp_info, tcpi_options), info.options),
        (offset_of!(tcp_info, tcpi_snd_rcv_wscale), info.snd_wscale & 15 | info.rcv_wscale << 4),
    ] {
        octets[at] = value as u8;
    }
    for (at, value) in [
        (offset_of!(tcp_info, tcpi_rto), info.rto),
        (offset_of!(tcp_info, tcpi_ato), info.ato),
        (offset_of!(tcp_info, tcpi_snd_mss), info.snd_mss),
        (offset_of!(tcp_info, tcpi_rcv_mss), info.rcv_mss),
        (offset_of!(tcp_info, tcpi_unacked), info.unacked),
        (offset_of!(tcp_info, tcpi_sacked), info.sacked),
        (offset_of!(tcp_info, tcpi_lost), info.lost),
        (offset_of!(tcp_info, tcpi_retrans), info.retrans),
        (offset_of!(tcp_info, tcpi_last_data_sent), info.last_data_sent),
        (offset_of!(tcp_info, tcpi_last_data_recv), info.last_data_recv),
        (offset_of!(tcp_info, tcpi_last_ack_recv), info.last_ack_recv),
        (offset_of!(tcp_info, tcpi_pmtu), info.pmtu),
        (offset_of!(tcp_info, tcpi_rtt), info.rtt),
        (offset_of!(tcp_info, tcpi_rttvar), info.rttvar),
        // What the window is bounded by: here it may always be as large as the buffer.
        (offset_of!(tcp_info, tcpi_rcv_ssthresh), info.rcv_space),
        (offset_of!(tcp_info, tcpi_snd_ssthresh), info.snd_ssthresh),
        (offset_of!(tcp_info, tcpi_snd_cwnd), info.snd_cwnd),
        (offset_of!(tcp_info, tcpi_advmss), info.advmss),
        (offset_of!(tcp_info, tcpi_reordering), REORDERING),
        (offset_of!(tcp_info, tcpi_rcv_space), info.rcv_space),
        (offset_of!(tcp_info, tcpi_total_retrans), info.total_retrans),
        (offset_of!(tcp_info, tcpi_segs_out), info.segs_out),
        (offset_of!(tcp_info, tcpi_segs_in), info.segs_in),
        (offset_of!(tcp_info, tcpi_data_segs_in), info.data_segs_in),
        (offset_of!(tcp_info, tcpi_data_segs_out), info.data_segs_out),
        (offset_of!(tcp_info, tcpi_delivered), info.delivered),
        (offset_of!(tcp_info, tcpi_notsent_bytes), info.notsent_bytes),
        (offset_of!(tcp_info, tcpi_min_rtt), info.min_rtt),
        (offset_of!(tcp_info, tcpi_dsack_dups), info.dsack_dups),
        (offset_of!(tcp_info, tcpi_reord_seen), info.reord_seen),
        (offset_of!(tcp_info, tcpi_snd_wnd), info.snd_wnd),
        (offset_of!(tcp_info, tcpi_rcv_ooopack), info.rcv_ooopack),
        (offset_of!(tcp_info, tcpi_rcv_wnd), info.rcv_wnd),
        (RTO_TIME, info.total_rto_time),
    ] {
        let word = u32::try_from(value).unwrap_or(u32::MAX);
        octets[at..at + size_of::<u32>()].copy_from_slice(&word.to_ne_bytes());
    }
    for (at, value) in [
        (offset_of!(tcp_info, tcpi_pacing_rate), info.pacing_rate),
        (offset_of!(tcp_info, tcpi_max_pacing_rate), info.max_pacing_rate),
        (offset_of!(tcp_info, tcpi_bytes_acked), info.bytes_acked),
        (offset_of!(tcp_info, tcpi_bytes_received), info.bytes_received),
        (offset_of!(tcp_info, tcpi_delivery_rate), info.delivery_rate),
        (offset_of!(tcp_info, tcpi_bytes_sent), info.bytes_sent),
        (offset_of!(tcp_info, tcpi_bytes_retrans), info.bytes_retrans),
    ] {
        octets[at..at + size_of::<u64>()].copy_from_slice(&value.to_ne_bytes());
    }
    for (at, value) in [
        (offset_of!(tcp_info, tcpi_total_rto), info.total_rto),
        (offset_of!(tcp_info, tcpi_total_rto_recoveries), info.total_rto_recoveries),
    ] {
        let word = u16::try_from(value).unwrap_or(u16::MAX);
        octets[at..at + size_of::<u16>()].copy_from_slice(&word.to_ne_bytes());
    }
    octets
}

/// Returns the octets of `TCP_CC_INFO`: `struct tcp_bbr_info` (linux/inet_diag.h).
pub fn bbr_info(info: &Info) -> [u8; 20] {
    let words = [
        info.bbr_bw as u32,
        (info.bbr_bw >> 32) as u32,
        info.bbr_min_rtt as u32,
        info.bbr_pacing_gain as u32,
        info.bbr_cwnd_gain as u32,
    ];
    let mut octets = [0; 20];
    for (to, word) in octets.as_chunks_mut().0.iter_mut().zip(words) {
        *to = word.to_ne_bytes();
    }
    octets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bbr_says_its_bandwidth_in_two_halves() {
        let info = Info {
            bbr_bw: 0x0000_0002_0000_0001,
            bbr_min_rtt: 3,
            bbr_pacing_gain: 4,
            bbr_cwnd_gain: 5,
            ..Info::default()
        };
        assert_eq!(bbr_info(&info), [1u32, 2, 3, 4, 5].map(u32::to_ne_bytes).concat()[..]);
    }

    #[test]
    fn fields_are_where_linux_has_them() {
        let info = Info {
            state: 1,
            options: 7,
            snd_wscale: 0x17,
            rcv_wscale: 8,
            rto: 0x0403_0201,
            ato: u64::MAX,
            pmtu: 1500,
            total_retrans: 9,
            bytes_received: 0x0807_0605_0403_0201,
            delivery_rate: 10,
            rcv_wnd: 11,
            last_data_sent: 12,
            total_rto: 13,
            total_rto_recoveries: 14,
            total_rto_time: 15,
            rcv_space: 16,
            data_segs_in: 17,
            data_segs_out: 18,
            delivered: 19,
            dsack_dups: 20,
            reord_seen: 21,
            last_data_recv: 22,
            ..Info::default()
        };
        let octets = tcp_info(&info);
        assert_eq!((octets.len(), &octets[240..244]), (280, &[13, 0, 14, 0][..]));
        assert_eq!(octets[244..], [&[15][..], &[0; 35]].concat());
        let word = |at: usize| octets[at..].first_chunk().map(|octets| u32::from_ne_bytes(*octets));
        let long = |at: usize| octets[at..].first_chunk().map(|octets| u64::from_ne_bytes(*octets));
        assert_eq!(octets[..12], [1, 0, 0, 0, 0, 7, 0x87, 0, 1, 2, 3, 4]);
        assert_eq!([word(12), word(60), word(100)], [Some(u32::MAX), Some(1500), Some(9)]);
        assert_eq!([long(128), long(160)], [Some(0x0807_0605_0403_0201), Some(10)]);
        assert_eq!([word(152), word(156), word(192)], [17, 18, 19].map(Some));
        assert_eq!([word(64), word(216), word(220), word(52)], [16, 20, 21, 22].map(Some));
        assert_eq!([word(44), word(88), word(228), word(232)], [Some(12), Some(3), Some(0), Some(11)]);
    }
}
