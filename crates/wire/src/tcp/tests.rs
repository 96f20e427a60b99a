use atoll_base::Rng;

use super::*;

fn random_segment(rng: &mut Rng) -> Segment {
    let syn = rng.below(2) == 0;
    let mut options = Options::default();
    if syn {
        options.mss = (rng.below(2) == 0).then(|| rng.next_u32() as u16);
        options.window_scale = (rng.below(2) == 0).then(|| rng.below(15) as u8);
        options.sack_permitted = rng.below(2) == 0;
    }
    options.timestamps =
        (rng.below(2) == 0).then(|| Timestamps { value: rng.next_u32(), echo: rng.next_u32() });
    if !syn {
        let blocks_max = if options.timestamps.is_some() { 3 } else { 4 };
        for _ in 0..rng.below(blocks_max + 1) {
            options.sack.push(SeqNum(rng.next_u32()), SeqNum(rng.next_u32()));
        }
    }
    Segment {
        src_port: rng.next_u32() as u16,
        dst_port: rng.next_u32() as u16,
        seq: SeqNum(rng.next_u32()),
        ack: SeqNum(rng.next_u32()),
        flags: Flags::from_bits_truncate(rng.next_u32() as u16),
        window: rng.next_u32() as u16,
        urgent: rng.next_u32() as u16,
        options,
        len: rng.below(100),
        ..Segment::default()
    }
}

fn bytes_of(segment: &Segment) -> ([u8; 200], usize) {
    let mut header = [0xee; HEADER_MAX];
    let header_len = emit(segment, &mut header);
    let mut bytes = [0; 200];
    bytes[..header_len].copy_from_slice(&header[..header_len]);
    (bytes, header_len + segment.len as usize)
}

#[test]
fn what_was_emitted_is_parsed_back() {
    let mut rng = Rng::new(1);
    for _ in 0..50_000 {
        let segment = random_segment(&mut rng);
        let (bytes, len) = bytes_of(&segment);
        let (parsed, header_len) = parse(&bytes[..len]).expect("emit writes valid headers");
        assert_eq!(parsed, segment);
        assert_eq!(header_len + parsed.len as usize, len);
    }
}

#[test]
fn no_bytes_make_the_parser_panic() {
    let mut rng = Rng::new(2);
    for _ in 0..50_000 {
        let (mut bytes, len) = bytes_of(&random_segment(&mut rng));
        for _ in 0..rng.below(8) {
            let at = rng.below(64) as usize;
            bytes[at] = rng.next_u32() as u8;
        }
        let cut = rng.below(len as u32 + 1) as usize;
        if let Ok((segment, header_len)) = parse(&bytes[..cut]) {
            assert_eq!(header_len + segment.len as usize, cut);
        }
    }
}

#[test]
fn headers_that_lie_about_their_length_are_refused() {
    let (mut bytes, _) = bytes_of(&Segment::default());
    assert_eq!(parse(&bytes[..19]), Err(ParseError::Truncated));
    bytes[12] = 4 << 4;
    assert_eq!(parse(&bytes[..20]), Err(ParseError::BadLength));
    bytes[12] = 6 << 4;
    assert_eq!(parse(&bytes[..20]), Err(ParseError::Truncated));
    assert!(parse(&bytes[..24]).is_ok());
}

#[test]
fn a_malformed_option_ends_the_options_but_not_the_segment() {
    let (mut bytes, _) = bytes_of(&Segment::default());
    bytes[12] = 8 << 4;
    bytes[20..32].copy_from_slice(&[2, 4, 5, 0xb4, 3, 0, 4, 2, 1, 1, 1, 1]);
    let (segment, _) = parse(&bytes[..32]).expect("the header itself is sound");
    assert_eq!(segment.options, Options { mss: Some(1460), ..Options::default() });
}

#[test]
fn a_window_shift_above_14_is_taken_as_14() {
    // covers: RFC 7323 §2.3
    let (mut bytes, _) = bytes_of(&Segment::default());
    bytes[12] = 6 << 4;
    bytes[20..24].copy_from_slice(&[1, 3, 3, 200]);
    let (segment, _) = parse(&bytes[..24]).expect("the header itself is sound");
    assert_eq!(segment.options.window_scale, Some(14));
}

#[test]
fn a_syn_is_laid_out_as_linux_does() {
    let options = Options {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some(Timestamps { value: 1, echo: 2 }),
        sack: SackBlocks::new(),
    };
    let mut out = [0; HEADER_MAX];
    let len = emit(&Segment { options, ..Segment::default() }, &mut out);
    assert_eq!(out[20..len], [2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 3, 3, 7]);
}

#[test]
fn a_segment_without_its_text_keeps_its_acknowledgement() {
    let segment = Segment { len: 5, flags: Flags::ACK | Flags::PSH | Flags::FIN, ..Segment::default() };
    let bare = segment.without_text();
    assert_eq!((bare.len, bare.flags), (0, Flags::ACK));
}
