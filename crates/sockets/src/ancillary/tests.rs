use alloc::vec;
use alloc::vec::Vec;

use super::*;

const V4: Addr = Addr::v4(0xc612_0001);
const V6: Addr = Addr::from_octets([0x20; 16]);

/// Returns a control message, padded as programs pad it.
fn message(level: i32, kind: i32, data: &[u8]) -> Vec<u8> {
    let mut octets = (HEADER + data.len()).to_ne_bytes().to_vec();
    octets.extend(level.to_ne_bytes());
    octets.extend(kind.to_ne_bytes());
    octets.extend(data);
    octets.resize(octets.len().next_multiple_of(WORD), 0);
    octets
}

fn int(level: i32, kind: i32, value: i32) -> Vec<u8> {
    message(level, kind, &value.to_ne_bytes())
}

#[test]
fn several_messages_are_one_wish() {
    let control = [
        int(IPPROTO_IP, libc::IP_TOS, 1),
        message(IPPROTO_IP, libc::IP_PKTINFO, &[1, 0, 0, 0, 198, 18, 0, 2, 0, 0, 0, 0]),
        int(IPPROTO_IP, libc::IP_TTL, 3),
        message(SOL_UDP, UDP_SEGMENT, &1200u16.to_ne_bytes()),
    ]
    .concat();
    let details = Details {
        own: Addr::v4(0xc612_0002),
        tos: Some(1),
        ttl: Some(3),
        link: Some(Link::Inside),
        came: None,
        dropped: 0,
    };
    assert_eq!(parse(&control, V4), Ok(Ancillary { details: Some(details), segment: Some(1200) }));
}

#[test]
fn the_family_of_the_receiver_decides_which_level_counts() {
    let control = [int(IPPROTO_IP, libc::IP_TOS, 1), int(IPPROTO_IPV6, libc::IPV6_TCLASS, 2)].concat();
    let tos = |to| parse(&control, to).expect("good").details.and_then(|details| details.tos);
    assert_eq!((tos(V4), tos(V6)), (Some(1), Some(2)));
    let mut info = V4.octets().to_vec();
    info.extend([0; 4]);
    let mapped = message(IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
    assert_eq!(parse(&mapped, V4).expect("good").details.map(|details| details.own), Some(V4));
}

#[test]
fn lengths_that_cannot_be_are_refused() {
    for len in [0usize, 15, 21, 4096, usize::MAX - 3, usize::MAX] {
        let mut control = int(IPPROTO_IP, libc::IP_TOS, 1);
        control.truncate(20);
        control[..8].copy_from_slice(&len.to_ne_bytes());
        assert_eq!(parse(&control, V4), Err(Errno::EINVAL), "{len}");
        assert_eq!(check(&control), Err(Errno::EINVAL), "{len}");
    }
    // As on Linux, what is too short for a header is nothing.
    assert_eq!(parse(&[1; 15], V4), Ok(Ancillary::default()));
}

#[test]
fn any_octets_are_parsed_without_panic() {
    let mut rng = atoll_base::Rng::new(5);
    for _ in 0..100_000 {
        let mut control = vec![0u8; (rng.next_u32() % 80) as usize];
        control.fill_with(|| (rng.next_u32() % 70) as u8);
        for at in (0..control.len()).step_by(24) {
            if let Some(len) = control.get_mut(at..at + 8) {
                len.copy_from_slice(&(16 + u64::from(rng.next_u32() % 24)).to_ne_bytes());
            }
        }
        let _ = (parse(&control, V4), parse(&control, V6), check(&control));
    }
}

#[test]
fn messages_that_do_not_fit_are_cut_off() {
    let mut options = Options::default();
    options.set(Name::PacketInfo, 1);
    options.set(Name::ReceiveTos, 1);
    let details =
        Details { own: V4, tos: Some(5), ttl: Some(64), link: Some(Link::Outside), came: None, dropped: 0 };
    let told = Told {
        options: &options,
        v6: false,
        port: 7,
        own_v4: Some(0xc612_0001),
        details: Some(details),
        came: None,
        segment: None,
        queued: None,
        left: None,
    };
    for (room, len, truncated) in
        [(100, 56, false), (49, 49, false), (48, 48, true), (32, 32, true), (20, 20, true), (8, 0, true)]
    {
        let mut out = vec![0xee; room + 8];
        assert_eq!(write(&told, &mut out[..room]), Written { len, truncated }, "{room}");
        assert_eq!(out[room..], [0xee; 8]);
    }
}

#[test]
fn a_group_is_answered_from_the_stack_s_address() {
    let options = Options::default();
    let details = |link| Details { own: V4, link: Some(link), ..Details::default() };
    let (details_of_none, came, segment, queued, left) = (None, None, None, None, None);
    let (v6, port, own_v4) = (false, 7, Some(5));
    let told =
        Told { options: &options, v6, port, own_v4, details: details_of_none, came, segment, queued, left };
    assert_eq!(told.answers_from(0xef01_0203, &details(Link::Outside)), 5);
    assert_eq!(told.answers_from(0xef01_0203, &details(Link::Inside)), 0x7f00_0001);
    assert_eq!(told.answers_from(0x7f00_0005, &details(Link::Inside)), 0x7f00_0005);
}

#[test]
fn an_error_is_written_as_linux_does() {
    let options = Options::default();
    let quoted = atoll_ipc::datagram::Quotation([8, 0, 0, 0, 0, 7, 0, 1]);
    let reporter = Addr::v4(0xc612_0001);
    let fault = Fault { reporter, info: 1300, kind: 3, code: 4, quoted, came: 0 };
    let (port, own_v4, details, came, segment) = (0, None, None, None, None);
    let told = |v6, fault| {
        let (queued, left) = (Some(Queued::Fault(fault)), None);
        Told { options: &options, v6, port, own_v4, details, came, segment, queued, left }
    };
    let mut out = [0; 80];
    let written = write(&told(false, fault), &mut out);
    assert_eq!(written, Written { len: 48, truncated: false });
    let head = [&48u64.to_ne_bytes()[..], &[0; 4], &libc::IP_RECVERR.to_ne_bytes()].concat();
    assert_eq!(out[..16], head);
    // struct sock_extended_err, and struct sockaddr_in behind it.
    assert_eq!(out[16..32], [libc::EMSGSIZE as u8, 0, 0, 0, 2, 3, 4, 0, 20, 5, 0, 0, 0, 0, 0, 0]);
    assert_eq!(out[32..48], [2, 0, 0, 0, 0xc6, 18, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    let reporter = Addr::from_octets([0x20; 16]);
    let fault = Fault { reporter, info: 0, kind: 1, code: 4, quoted, came: 0 };
    let mut out = [0; 80];
    assert_eq!(write(&told(true, fault), &mut out).len, 64);
    assert_eq!(out[16..24], [libc::ECONNREFUSED as u8, 0, 0, 0, 3, 1, 4, 0]);
    assert_eq!((out[32], &out[40..56]), (10, &[0x20; 16][..]));
}

#[test]
fn a_time_is_the_first_message_and_only_where_it_is_asked_for() {
    let came = TimeOfDay::from_nanos(3_000_002_001);
    let details = Some(Details { own: V4, ttl: Some(9), came, ..Details::default() });
    let mut options = Options::default();
    options.set(Name::ReceiveTtl, 1);
    let written = |options: &Options| {
        let told = Told {
            options,
            v6: false,
            port: 7,
            own_v4: None,
            details,
            came,
            segment: None,
            queued: None,
            left: None,
        };
        let mut out = vec![0; 100];
        let len = write(&told, &mut out).len;
        out.truncate(len);
        out
    };
    let ttl = int(IPPROTO_IP, libc::IP_TTL, 9);
    assert_eq!(written(&options), ttl);
    options.set(Name::Times, Form::Nanos as u64);
    let time = [3u64.to_ne_bytes(), 2_001u64.to_ne_bytes()].concat();
    assert_eq!(written(&options), [message(SOL_SOCKET, libc::SO_TIMESTAMPNS, &time), ttl].concat());
}

#[test]
fn a_completion_has_the_range_of_its_sends_and_no_address() {
    let options = Options::default();
    let (port, own_v4, details, came, segment, left) = (0, None, None, None, None, Some(9));
    let queued = Some(Queued::Copied(Completion { first: 3, last: 0x0102_0304 }));
    for (v6, len, kind) in [(false, 48, libc::IP_RECVERR), (true, 60, libc::IPV6_RECVERR)] {
        let told = Told { options: &options, v6, port, own_v4, details, came, segment, queued, left: None };
        let mut out = [0xee; 80];
        assert_eq!(write(&told, &mut out).len, usize::next_multiple_of(len, 8));
        assert_eq!(out[..8], len.to_ne_bytes());
        assert_eq!(out[12..16], kind.to_ne_bytes());
        assert_eq!(out[16..32], [0, 0, 0, 0, 5, 0, 1, 0, 3, 0, 0, 0, 4, 3, 2, 1]);
        assert!(out[32..len].iter().all(|octet| *octet == 0));
    }
    let told =
        Told { options: &options, v6: false, port, own_v4, details, came, segment, queued: None, left };
    let mut out = [0; 24];
    assert_eq!(write(&told, &mut out), Written { len: 24, truncated: false });
    assert_eq!(out[8..20], [6, 0, 0, 0, 36, 0, 0, 0, 9, 0, 0, 0]);
}
