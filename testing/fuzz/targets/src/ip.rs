//! Checks that one replica's IP keeps its promises, whatever arrives from the wire or from another replica.

use std::collections::BTreeMap;

use atoll_base::{Addr, Duration, Instant};
use atoll_ip::{
    Basis, Cast, ChecksumOffload, Config, ErrorKind, Fragment, FragmentKey, Frame, Ip, Limits, Link,
    NeighbourUpdate, Outcome, Reassembly, Received, Route, V6Config,
};
use atoll_wire::ethernet::EtherType;
use atoll_wire::{Mac, arp, ethernet, icmp, icmpv6, ipv4, ipv6};

use crate::wire::{repair_icmp, repair_icmpv6, repair_ipv4};

/// The address of the machine under test, and the addresses around it that seeds use.
pub(crate) const US: u32 = 0xc612_0001;
pub(crate) const PEER: u32 = 0xc612_0002;
pub(crate) const GATEWAY: u32 = 0xc612_00fe;
/// The IPv6 addresses of the machine under test; the link-local one is that of [`MAC_US`].
pub(crate) const US_V6: Addr = Addr::from_octets([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
pub(crate) const PEER_V6: Addr = Addr::from_octets([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
pub(crate) const ROUTER_V6: Addr =
    Addr::from_octets([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xfe]);
pub(crate) const MAC_US: Mac = Mac([2, 0, 0, 0, 0, 1]);
pub(crate) const MAC_PEER: Mac = Mac([2, 0, 0, 0, 0, 2]);

/// Handles one frame, over both links and with every offload. The first byte says whether checksums are
/// repaired.
pub fn ip_frame(data: &[u8]) {
    let Some((mode, frame)) = data.split_first() else { return };
    let mut ip = machine();
    let frame = if mode & 1 == 1 { repaired(frame) } else { frame.to_vec() };
    for link in [Link::Outside, Link::Inside] {
        for offload in [ChecksumOffload::Unknown, ChecksumOffload::Valid, ChecksumOffload::Partial] {
            receive(&mut ip, Instant::ZERO, link, &frame, offload);
        }
        ip.unreachable(Instant::ZERO, link, &frame, icmp::code::PORT);
    }
    drain(&mut ip);
}

/// Compares the reassembly of fragments of a few packets with the obvious way to do it. Each fragment is four
/// bytes that say what and where, and its length.
///
/// ```text
///   bits 0-1 which packet, bit 2 last | offset / 8, u8 | ECN and time | length
/// ```
pub fn ip_fragments(data: &[u8]) {
    let limits = Limits { bytes_max: 1 << 18, packets_max: 3, fragments_max: 16 };
    let mut all = Reassembly::new(limits, [3, 5]);
    let mut now = Instant::ZERO;
    // For each packet and offset that is kept: the octet, and whether it is the last.
    let mut oracle: [BTreeMap<u32, u8>; 4] = Default::default();
    for (n, step) in data.chunks_exact(4).enumerate() {
        let (packet, last, offset) = (step[0] & 3, step[0] & 4 != 0, u32::from(step[1]) * 8);
        now += Duration::from_millis(u64::from(step[2] >> 2) * 100);
        while all.expire(now).is_some() {}
        let payload = vec![n as u8; usize::from(step[3])];
        let known = all.len();
        let fragment = Fragment {
            offset,
            more: !last,
            head: &[packet],
            payload: &payload,
            payload_max: 2000,
            ecn: step[2] & 3,
        };
        let outcome = all.insert(now, Key(packet), &fragment);
        all.check_invariants();
        assert!(all.len() <= known + 1 && all.bytes() <= limits.bytes_max);
        let oracle = &mut oracle[usize::from(packet)];
        if let Outcome::Kept | Outcome::Complete(_) = outcome {
            oracle.extend((offset..).zip(&payload).map(|(at, octet)| (at, *octet)));
        }
        if let Outcome::Complete(whole) = outcome {
            // Packets that were given up in between are still in the oracle, so only the newest octets can be
            // compared.
            assert_eq!(whole.bytes[0], packet);
            assert!(
                (1..whole.bytes.len() as u32).all(|at| oracle.contains_key(&(at - 1))),
                "no octet from nowhere"
            );
            assert!(whole.bytes[1 + offset as usize..].starts_with(&payload));
            oracle.clear();
        }
    }
}

/// The key of a packet. Its source is whether the number is odd.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key(u8);

impl FragmentKey for Key {
    type Source = u8;

    const TIMEOUTS: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(60)];

    fn source(&self) -> u8 {
        self.0 & 1
    }

    fn has_second_timeout(&self) -> bool {
        self.0 & 2 != 0
    }

    /// Returns hashes of which some collide.
    fn hashes(&self, _: [u64; 2]) -> [u64; 2] {
        [u64::from(self.0 >> 1), u64::from(self.0 & 1)]
    }
}

/// Runs the life of one machine: steps of an opcode, a length and that many bytes.
///
/// ```text
///   opcode: low 3 bits what, high 5 bits how | length (u16, little endian) | bytes
/// ```
pub fn ip_script(data: &[u8]) {
    let mut ip = machine();
    let mut now = Instant::ZERO;
    let mut rest = data;
    while let Some(([opcode, a, b], tail)) = rest.split_first_chunk::<3>() {
        let (what, how) = (opcode & 7, opcode >> 3);
        let len = usize::from(u16::from_le_bytes([*a, *b])).min(tail.len());
        let (bytes, tail) = tail.split_at(len);
        rest = tail;
        step(&mut ip, &mut now, what, how, bytes);
        if how & 16 != 0 {
            drain(&mut ip);
        }
    }
    drain(&mut ip);
    ip.handle_timeout(now);
    drain(&mut ip);
    // Left alone, every machine comes to rest: no question is repeated for ever.
    for _ in 0..100_000 {
        let Some(due) = ip.next_timeout() else { return };
        assert!(due > now, "a timeout that was handled is not due again");
        now = due;
        ip.handle_timeout(now);
        drain(&mut ip);
    }
    panic!("timers that never end");
}

fn step(ip: &mut Ip, now: &mut Instant, what: u8, how: u8, bytes: &[u8]) {
    let link = if how & 1 == 0 { Link::Outside } else { Link::Inside };
    let word = bytes.first_chunk::<4>().map_or(0, |word| u32::from_le_bytes(*word));
    match what {
        0 => receive(ip, *now, link, &repaired(bytes), ChecksumOffload::Unknown),
        1 => receive(ip, *now, link, bytes, ChecksumOffload::Partial),
        2 => {
            *now += core::time::Duration::from_millis(u64::from(word % 100_000));
            ip.handle_timeout(*now);
        }
        3 => {
            // Four octets are an IPv4 address, sixteen an IPv6 one.
            let dst = bytes.first_chunk().map_or(Addr::v4(word), |octets| Addr::from_octets(*octets));
            let route = ip.route(*now, dst);
            if let Route::Via { mac } = route {
                assert!(mac.is_station() || ip.cast(dst) != Some(Cast::Unicast));
            }
            if let Some(source) = ip.source_for(dst) {
                assert!(ip.is_own(source) && source.is_v4() == dst.is_v4());
            }
        }
        4 => {
            let basis = if how & 2 == 0 { Basis::Learned } else { Basis::Overheard };
            let mac = Mac(bytes.get(4..).and_then(<[u8]>::first_chunk).copied().unwrap_or_default());
            ip.handle_neighbour(*now, NeighbourUpdate { addr: word, mac, basis });
        }
        5 => ip.unreachable(*now, link, &repaired(bytes), how),
        6 => match how & 7 {
            0 => ip.announce(*now),
            1 => ip.leave_group(*now, link, word | 0xe000_0000),
            2 => ip.leave_group(*now, link, group_v6(word)),
            3 => assert!(ip.join_group(*now, link, group_v6(word))),
            _ => assert!(ip.join_group(*now, link, 0xe000_0000 | word & 0xf) || word == 0),
        },
        _ => {
            // A burst in one prefix makes the cache overflow.
            for n in 0..word % 64 {
                let _ = ip.route(*now, (US & 0xffff_ff00) | n);
            }
        }
    }
}

fn group_v6(word: u32) -> Addr {
    Addr::from_octets([0xff, (word >> 8) as u8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, word as u8 & 0xf])
}

fn machine() -> Ip {
    let v6 = V6Config { address: Some((US_V6, 64)), gateway: None, autoconf: true };
    let config = Config {
        gateway: Some(GATEWAY),
        neighbours_max: 8,
        frames_max: 16,
        v6: Some(v6),
        ..Config::new(MAC_US, US, 24)
    };
    Ip::new(config, 42, Instant::ZERO).expect("the configuration is right")
}

fn receive(ip: &mut Ip, now: Instant, link: Link, frame: &[u8], offload: ChecksumOffload) {
    let before = ip.counters().clone();
    match ip.handle_frame(now, link, frame, offload) {
        Received::Tcp { src, dst, segment, .. } => {
            assert!(is_within(segment, frame));
            assert!(ip.is_own(dst) && (link == Link::Inside || !dst.is_loopback()));
            assert_eq!(ip.is_own(src), link == Link::Inside);
        }
        Received::Udp { src, dst, cast, payload, .. } => {
            assert!(is_within(payload, frame));
            assert!(cast != Cast::Multicast || ip.is_member(link, dst.addr));
            assert!(cast != Cast::Unicast || ip.is_own(dst.addr));
            assert_eq!(ip.is_own(src.addr), link == Link::Inside);
        }
        Received::EchoReply { src, dst, message, .. } => {
            assert!(is_within(message, frame) && message.len() >= 8);
            assert!(ip.is_own(dst));
            assert_eq!(ip.is_own(src), link == Link::Inside);
        }
        Received::Error(error, _) => {
            assert!(ip.is_own(error.tuple.local.addr));
            if let ErrorKind::FragNeeded { mtu } = error.kind {
                assert!(mtu >= if error.tuple.local.addr.is_v4() { 68 } else { ipv6::MTU_MIN });
            }
        }
        Received::Consumed => {}
        Received::Dropped(reason) => assert_eq!(ip.counters().dropped(reason), before.dropped(reason) + 1),
    }
}

/// Checks that other hosts accept every frame that comes out, and that a sibling accepts every update.
fn drain(ip: &mut Ip) {
    while let Some(Frame { link, bytes }) = ip.poll_frame() {
        let (header, at) = ethernet::parse(&bytes).expect("an Ethernet header");
        assert_eq!(header.src, MAC_US);
        assert!(bytes.len() <= at + usize::from(ip.mtu()) || link == Link::Inside);
        if header.ethertype == EtherType::ARP {
            assert_eq!(link, Link::Outside);
            let (packet, _) = arp::parse(&bytes[at..]).expect("an ARP packet");
            assert_eq!((packet.sender_mac, packet.sender_addr), (MAC_US, US));
            continue;
        }
        if header.ethertype == EtherType::IPV6 {
            let (header, len) = ipv6::parse(&bytes[at..]).expect("an IPv6 packet");
            let payload = &bytes[at + len..];
            assert_eq!(payload.len(), usize::from(header.payload_len));
            let upper = ipv6::upper(&header, payload).expect("options that we know");
            if upper.fragment.is_some() {
                // It is a fragment of a long echo reply.
                continue;
            }
            icmpv6::parse(header.src, header.dst, &payload[upper.at..]).expect("an ICMPv6 message");
            continue;
        }
        let is_group = header.dst.is_group();
        let (header, len) = ipv4::parse(&bytes[at..]).expect("an IPv4 packet");
        if header.protocol == ipv4::Protocol::IGMP {
            assert!(is_group && header.ttl == 1 && header.dst >> 28 == 0xe);
            continue;
        }
        assert!(!is_group, "no ICMP to everybody");
        assert_eq!(bytes.len(), at + len + usize::from(header.payload_len));
        if header.is_fragment() {
            // It is a fragment of a long echo reply.
            continue;
        }
        icmp::parse(&bytes[at + len..]).expect("an ICMP message");
    }
    while let Some(update) = ip.poll_neighbour() {
        assert!(update.mac.is_station());
        assert!(update.addr == GATEWAY || (update.addr ^ US) >> 8 == 0);
    }
    while ip.poll_unreachable().is_some() {}
    while ip.poll_path().is_some() {}
    while let Some(whole) = ip.poll_whole() {
        let packet = &whole.bytes[ethernet::HEADER_LEN..];
        if let Ok((header, len)) = ipv6::parse(packet) {
            assert_eq!(packet.len(), len + usize::from(header.payload_len));
            // Options may still be wrong.
            let upper = ipv6::upper(&header, &packet[len..]);
            assert!(upper.is_ok_and(|upper| upper.fragment.is_none()) || upper.is_err());
        } else {
            let (header, len) = ipv4::parse(packet).expect("what is whole again is a packet");
            assert!(!header.is_fragment());
            assert_eq!(packet.len(), len + usize::from(header.payload_len));
        }
        receive(ip, Instant::ZERO, whole.link, &whole.bytes, ChecksumOffload::Unknown);
    }
}

fn is_within(part: &[u8], whole: &[u8]) -> bool {
    part.is_empty() || (whole.as_ptr_range().contains(&part.as_ptr()) && part.len() <= whole.len())
}

/// Repairs the IPv4 and ICMP checksums of `frame`, so that mutations get past them.
pub(crate) fn repaired(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let is_v6 = frame.get(12..14) == Some(&EtherType::IPV6.0.to_be_bytes());
    let Some(packet) = frame.get_mut(ethernet::HEADER_LEN..) else { return frame };
    if is_v6 {
        repair_v6(packet);
        return frame;
    }
    repair_ipv4(packet);
    let Ok((header, len)) = ipv4::parse(packet) else { return frame };
    if header.protocol == ipv4::Protocol::ICMP {
        repair_icmp(&mut packet[len..len + usize::from(header.payload_len)]);
    }
    frame
}

fn repair_v6(packet: &mut [u8]) {
    let Ok((header, at)) = ipv6::parse(packet) else { return };
    let payload = &mut packet[at..at + usize::from(header.payload_len)];
    if let Ok(upper) = ipv6::upper(&header, payload)
        && upper.protocol == ipv4::Protocol::ICMPV6
    {
        repair_icmpv6(header.src, header.dst, &mut payload[upper.at..]);
    }
}
