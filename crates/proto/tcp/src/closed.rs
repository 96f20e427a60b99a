//! How a segment that belongs to no connection is answered (RFC 9293 §3.10.7.1).

use atoll_base::SeqNum;
use atoll_wire::tcp::{Flags, Segment};

/// Returns the RST that answers `segment`, with the ports swapped; `None` for a RST, which is never answered.
pub fn answer_for_closed(segment: &Segment) -> Option<Segment> {
    if segment.has(Flags::RST) {
        return None;
    }
    let (seq, ack, flags) = if segment.has(Flags::ACK) {
        (segment.ack, SeqNum(0), Flags::RST)
    } else {
        (SeqNum(0), segment.seq.plus(segment.sequence_len()), Flags::RST | Flags::ACK)
    };
    Some(Segment {
        src_port: segment.dst_port,
        dst_port: segment.src_port,
        seq,
        ack,
        flags,
        ..Segment::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_without_connection_is_answered_by_a_reset() {
        // covers: RFC 9293 §3.10.7.1
        let base = Segment {
            src_port: 1,
            dst_port: 2,
            seq: SeqNum(100),
            ack: SeqNum(500),
            len: 10,
            ..Segment::default()
        };
        let cases = [
            (Flags::ACK, Some((Flags::RST, 500, 0))),
            (Flags::SYN | Flags::ACK, Some((Flags::RST, 500, 0))),
            (Flags::SYN, Some((Flags::RST | Flags::ACK, 0, 111))),
            (Flags::FIN, Some((Flags::RST | Flags::ACK, 0, 111))),
            (Flags::RST, None),
            (Flags::RST | Flags::ACK, None),
        ];
        for (flags, expected) in cases {
            let answer = answer_for_closed(&Segment { flags, ..base });
            assert_eq!(
                answer.map(|answer| (answer.flags, answer.seq.0, answer.ack.0)),
                expected,
                "{flags:?}"
            );
            assert!(answer.is_none_or(|answer| (answer.src_port, answer.dst_port) == (2, 1)));
        }
    }
}
