//! Checks that options of every kind and length leave a connection that works, and that a cookie comes back
//! unchanged.

use atoll_base::{Endpoint, FourTuple, Instant, SeqNum};
use atoll_tcp::{
    Connection, Path, Settings, State, check_syn_cookie, simplify_for_cookie, stamp_cookie, syn_cookie,
};
use atoll_wire::tcp::{self, Flags, Options, Segment, Timestamps};

use crate::features::mark;
use crate::input::Input;

const ISS: SeqNum = SeqNum(u32::MAX - 100);
const IRS: SeqNum = SeqNum(77);
const SECRET: [u8; 16] = [3; 16];

/// Puts up to 40 octets of options on a SYN, on the SYN-ACK and on a segment of an open connection. The first
/// byte says how many are on the SYN.
pub fn tcp_options(data: &[u8]) {
    let mut input = Input::new(data);
    let first_len = usize::from(input.byte()) % 41;
    let (first, second) = (input.bytes(first_len), input.bytes(40));
    let (path, settings) = (Path { mss: 1460 }, Settings { nodelay: true, ..Settings::default() });
    let now = Instant::from_millis(1000);
    let syn = with_options(Flags::SYN, first, 0, IRS, SeqNum(0));
    let mut passive = Connection::accept(now, &syn, ISS, 7, path, &settings);
    let mut active = Connection::connect(now, ISS, 7, path, &settings);
    for connection in [&mut passive, &mut active] {
        while connection.poll_transmit(now, 1460).is_some() {}
    }
    active.handle_segment(now, &with_options(Flags::SYN | Flags::ACK, first, 0, IRS, ISS.plus(1)));
    assert_eq!(active.state(), State::Established, "no options keep a connection from opening");
    for connection in [&mut passive, &mut active] {
        connection.handle_segment(now, &with_options(Flags::ACK, second, 5, IRS.plus(1), ISS.plus(1)));
        connection.check_invariants();
        assert!((36..=1460).contains(&connection.mss()), "{}", connection.mss());
        let info = connection.info(now);
        assert!(info.snd_wscale <= 14 && info.snd_wnd <= 65_535 << 14);
        let options =
            u64::from(info.sack) << 2 | u64::from(info.timestamps) << 1 | u64::from(info.window_scaling);
        let digits = u64::from(u16::BITS - connection.mss().leading_zeros());
        mark(50, options << 24 | u64::from(info.snd_wscale) << 16 | digits << 8 | connection.state() as u64);
        connection.handle_send_tail(now, 5000);
        for count in 0.. {
            let Some(transmit) = connection.poll_transmit(now, 1460) else { break };
            let mut out = [0; tcp::HEADER_MAX];
            let len = tcp::emit(&transmit.segment, &mut out);
            assert!(len.is_multiple_of(4) && tcp::parse(&out[..len]).is_ok());
            assert!(count < 300, "polling never ends");
        }
    }
}

/// Checks that a cookie for a SYN with any options brings back what a cookie can say, and that a changed
/// cookie brings nothing back.
pub fn tcp_cookie(data: &[u8]) {
    let mut input = Input::new(data);
    let now = Instant::from_millis(u64::from(input.word()));
    let peer = input.word();
    let (local, remote) = (Endpoint::new(1, 80), Endpoint::new(peer, input.half()));
    let tuple = FourTuple { local, remote };
    let seq = SeqNum(input.word());
    let len = usize::from(input.byte()) % 41;
    let syn = simplify_for_cookie(&with_options(Flags::SYN, input.bytes(len), 0, seq, SeqNum(0)));
    let cookie = syn_cookie(&SECRET, &tuple, &syn, now);
    let stamp = Timestamps { value: now.as_millis() as u32, echo: 0 };
    let mut syn_ack = Segment {
        options: Options { timestamps: syn.options.timestamps.map(|_| stamp), ..Options::default() },
        ..Segment::default()
    };
    stamp_cookie(&mut syn_ack, &syn);
    let echo = syn_ack.options.timestamps.map(|timestamps| timestamps.value);
    let timestamps = echo.map(|echo| Timestamps { value: input.word(), echo });
    let answer = Segment {
        seq: seq.plus(1),
        ack: cookie.plus(1),
        flags: Flags::ACK,
        options: Options { timestamps, ..Options::default() },
        ..Segment::default()
    };
    let found = check_syn_cookie(&SECRET, &tuple, &answer, now).expect("a cookie is good at once");
    assert_eq!(found.seq, seq);
    assert_eq!(found.options.mss, syn.options.mss);
    assert_eq!(
        (found.options.sack_permitted, found.options.window_scale),
        (syn.options.sack_permitted, syn.options.window_scale)
    );
    mark(
        51,
        u64::from(found.options.mss.unwrap_or(0)) << 8 | u64::from(found.options.window_scale.unwrap_or(99)),
    );
    // A changed cookie is a guess, which is right once in 2^27.
    let guess = Segment { ack: SeqNum(answer.ack.0 ^ (input.word() & 0x7ff_ffff).max(1)), ..answer };
    assert!(check_syn_cookie(&SECRET, &tuple, &guess, now).is_none(), "a guess that was right");
    let other = FourTuple { remote: Endpoint::new(peer ^ 1, remote.port), ..tuple };
    assert!(check_syn_cookie(&SECRET, &other, &answer, now).is_none(), "another peer's cookie");
}

fn with_options(flags: Flags, options: &[u8], len: u32, seq: SeqNum, ack: SeqNum) -> Segment {
    let mut bytes = [0; tcp::HEADER_MAX];
    let bare = Segment { src_port: 1, dst_port: 2, seq, ack, flags, window: 60_000, ..Segment::default() };
    tcp::emit(&bare, &mut bytes);
    let options = &options[..options.len().min(40)];
    bytes[20..20 + options.len()].copy_from_slice(options);
    let header_len = (20 + options.len()).next_multiple_of(4);
    bytes[12] = ((header_len / 4) as u8) << 4;
    let (mut segment, _) = tcp::parse(&bytes[..header_len]).expect("the fixed part is right");
    segment.len = len;
    segment
}
