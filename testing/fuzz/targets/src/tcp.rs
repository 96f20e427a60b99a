//! Checks that a parsed TCP header holds only what was on the wire, and that a connection in any state
//! survives any segment.

use atoll_base::{Duration, Instant, SeqNum};
use atoll_tcp::{Connection, Path, Settings, State};
use atoll_wire::tcp::{self, Flags, HEADER_MAX, Options, SackBlocks, Segment};

/// Checks that a header parses to what is emitted again.
pub fn wire_tcp(data: &[u8]) {
    let Ok((segment, header_len)) = tcp::parse(data) else { return };
    assert!(header_len <= data.len() && segment.len as usize == data.len() - header_len);
    let mut out = [0; HEADER_MAX];
    let emitted = tcp::emit(&segment, &mut out);
    let mut again = out[..emitted].to_vec();
    again.resize(emitted + segment.len as usize, 0);
    let (parsed, _) = tcp::parse(&again).expect("what was emitted parses");
    // Options are laid out with other padding here, so the last blocks may find no room.
    let blocks =
        |segment: &Segment| segment.options.sack.iter().take(parsed.options.sack.len()).collect::<Vec<_>>();
    assert_eq!(blocks(&parsed), blocks(&segment));
    let without = |segment: Segment| Segment {
        options: Options { sack: SackBlocks::new(), ..segment.options },
        ..segment
    };
    assert_eq!(without(parsed), without(segment));
}

/// Runs a script of segments, calls and time-outs for one connection. Nothing panics, and the invariants hold
/// after each step.
///
/// The first byte chooses how the connection opens. Each step takes 12 bytes: kind, flags, window, sequence
/// and acknowledgement relative to what the connection expects, length of text, milliseconds.
pub fn tcp_script(data: &[u8]) {
    let Some((how, rest)) = data.split_first() else { return };
    let mut now = Instant::from_millis(1000);
    let (iss, peer) = (SeqNum(u32::MAX - 100), SeqNum(u32::MAX - 5000));
    let (path, settings) = (Path { mss: 1460 }, Settings::default());
    let syn = Segment {
        src_port: 1,
        dst_port: 2,
        seq: peer,
        ack: SeqNum(0),
        flags: Flags::SYN,
        window: 65535,
        urgent: 0,
        options: Options {
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            ..Options::default()
        },
        len: 0,
        ..Segment::default()
    };
    let mut connection = match how % 3 {
        0 => Connection::connect(now, iss, 7, path, &settings),
        _ => Connection::accept(now, &syn, iss, 7, path, &settings),
    };
    let mut tail = 0u64;
    while connection.poll_transmit(now, 65000).is_some() {}
    if how % 3 == 2 {
        let ack = Segment { seq: peer.plus(1), ack: iss.plus(1), flags: Flags::ACK, ..syn };
        connection.handle_segment(now, &Segment { options: Options::default(), ..ack });
    }
    for step in rest.chunks_exact(12) {
        let word = |at: usize| u16::from_le_bytes([step[at], step[at + 1]]);
        now += Duration::from_millis(u64::from(word(10) % 2000));
        match step[0] % 16 {
            0 => {
                tail += u64::from(word(2));
                connection.handle_send_tail(now, tail);
            }
            1 => connection.handle_read_head(now, connection.receive_nxt()),
            2 => connection.handle_read_head(now, u64::from(word(2)) << (step[1] % 48)),
            3 => connection.shutdown_send(now),
            4 => connection.close(now),
            5 => {
                connection.handle_timeout(now);
            }
            6 => {
                connection.handle_mtu(now, word(2), iss.plus(u32::from(word(4))));
            }
            7 => connection.set_receive_capacity(u32::from(word(2)) << (step[1] % 8)),
            8 => connection.handle_urgent(u64::from(word(2)) << (step[1] % 48)),
            9 => connection.handle_urgent(tail),
            _ => {
                let near =
                    |base: u64, at: usize| (base as u32).wrapping_add_signed(i32::from(word(at) as i16));
                let segment = Segment {
                    seq: SeqNum(near(connection.receive_nxt() + u64::from(peer.0) + 1, 4)),
                    ack: SeqNum(near(connection.send_nxt() + u64::from(iss.0) + 1, 6)),
                    flags: Flags::from_bits_retain(step[1].into()),
                    window: word(2),
                    urgent: word(8),
                    len: u32::from(word(8) % 3000),
                    options: Options::default(),
                    ..syn
                };
                connection.note_reader(connection.receive_nxt().saturating_sub(u64::from(step[0] >> 4)));
                let range = connection.text_range(&segment);
                let input = connection.handle_segment(now, &segment);
                if let Some(text) = input.text {
                    assert_eq!(Some(text), range, "the range that was announced is the one that is taken");
                    assert!(text.skip + text.len <= segment.len);
                }
            }
        }
        connection.check_invariants();
        for _ in 0..200 {
            let Some(transmit) = connection.poll_transmit(now, 65000) else { break };
            assert!(
                transmit.offset + u64::from(transmit.segment.len) <= tail,
                "only what was written is sent"
            );
        }
        connection.check_invariants();
        if connection.state() == State::Closed {
            return;
        }
    }
}
