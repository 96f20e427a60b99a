use alloc::collections::BTreeSet;
use alloc::vec;

use atoll_base::SeqNum;
use atoll_ip::{ErrorKind, Outgoing, V4Address, V6Config};
use atoll_wire::arp::{self, Operation, Packet};
use atoll_wire::ipv4::{self, Protocol};
use atoll_wire::{icmp, icmpv6, ipv6, udp};

use super::*;
use crate::Client;

const US: u32 = 0xc612_0001;
const PEER: u32 = 0xc612_0002;
const MAC_US: Mac = Mac([2, 0, 0, 0, 0, 1]);
const MAC_PEER: Mac = Mac([2, 0, 0, 0, 0, 2]);
const GROUP: Addr = Addr::v4(0xe001_0203);
const VNET: [u8; vnet::HEADER_LEN] = NO_OFFLOAD;

/// The frames that the server has sent.
#[derive(Default)]
struct Out {
    sent: Vec<Vec<u8>>,
    /// The number of frames that the link still takes; `None` means any number.
    room: Option<usize>,
    delivered: Vec<(FourTuple, u8, Vec<u8>)>,
    told: Vec<(Party, IpBody)>,
    /// The partner whose ring is full.
    deaf: Option<Party>,
}

impl Egress for Out {
    fn send(&mut self, _: &[u8; vnet::HEADER_LEN], frame: &[u8]) -> bool {
        if let Some(room) = &mut self.room {
            let Some(left) = room.checked_sub(1) else { return false };
            *room = left;
        }
        self.sent.push(frame.to_vec());
        true
    }

    fn deliver(&mut self, tuple: &FourTuple, vnet: &[u8; vnet::HEADER_LEN], frame: &[u8]) {
        self.delivered.push((*tuple, vnet[0], frame.to_vec()));
    }

    fn tell(&mut self, to: Party, message: &IpMessage) -> bool {
        if self.deaf == Some(to) {
            return false;
        }
        assert_eq!(IpMessage::decode(&message.encode()).as_ref(), Ok(message));
        self.told.push((to, message.body.clone()));
        true
    }
}

struct Bench {
    server: IpServer,
    out: Out,
    now: Instant,
}

fn bench_of(config: Config, ip: atoll_ip::Config) -> Bench {
    let now = Instant::from_millis(1000);
    let ip = Ip::new(ip, 7, now).unwrap();
    Bench { server: IpServer::new(config, ip), out: Out::default(), now }
}

fn config() -> Config {
    Config { number: 0, servers: 1, replicas: 2, epoch: Epoch(1) }
}

fn bench() -> Bench {
    bench_of(config(), atoll_ip::Config::new(MAC_US, US, 24))
}

impl Bench {
    fn round(&mut self) {
        self.server.handle_timeout(self.now);
        self.server.flush(self.now, &mut self.out);
    }

    fn hear(&mut self, frame: &[u8]) {
        self.server.handle_frame(self.now, &VNET, frame, &mut self.out);
        self.round();
    }

    fn transmit(&mut self, from: u8, frame: &[u8]) {
        self.server.transmit(self.now, from, &VNET, &mut frame.to_vec(), &mut self.out);
        self.round();
    }

    fn say(&mut self, from: Party, epoch: u32, body: IpBody) {
        self.server.handle_message(self.now, from, &IpMessage { epoch: Epoch(epoch), body });
        self.round();
    }

    fn is_arp(frame: &[u8]) -> bool {
        frame[12..14] == EtherType::ARP.0.to_be_bytes()
    }

    /// Returns what was sent except ARP: hardware destination, and first octet of the text.
    fn datagrams(&mut self) -> Vec<(Mac, u8)> {
        let frames = core::mem::take(&mut self.out.sent).into_iter().filter(|frame| !Bench::is_arp(frame));
        frames.map(|frame| (Mac(*frame.first_chunk().unwrap()), frame[42])).collect()
    }
}

/// Returns a datagram of a TS, as its half of IP writes it.
fn outgoing(src: u32, dst: u32, text: u8) -> Vec<u8> {
    let config = atoll_ip::Config { apart: true, ..atoll_ip::Config::new(MAC_US, US, 24) };
    let mut half = Ip::new(config, 1, Instant::ZERO).unwrap();
    let mut bytes = vec![0; 34 + udp::HEADER_LEN];
    let packet = Outgoing {
        dst_mac: Mac::ZERO,
        src: Addr::v4(src),
        dst: Addr::v4(dst),
        protocol: Protocol::UDP,
        payload_len: udp::HEADER_LEN + 1,
        tos: 0,
        ttl: 64,
        dont_fragment: true,
    };
    let at = half.emit_headers(&mut bytes, &packet);
    udp::emit(&udp::Header { src_port: 53, dst_port: 4000, payload_len: 1, checksum: 0 }, &mut bytes[at..]);
    bytes.push(text);
    bytes
}

/// Returns a packet of the peer.
fn incoming(protocol: Protocol, payload: &[u8], change: impl FnOnce(&mut ipv4::Header)) -> Vec<u8> {
    let mut bytes = vec![0; 34];
    let at = ethernet::emit(
        &ethernet::Header { dst: MAC_US, src: MAC_PEER, ethertype: EtherType::IPV4 },
        &mut bytes,
    );
    let payload_len = payload.len() as u16;
    let mut header =
        ipv4::Header { src: PEER, dst: US, protocol, ttl: 64, payload_len, ..ipv4::Header::default() };
    change(&mut header);
    ipv4::emit(&header, &mut bytes[at..]);
    bytes.extend_from_slice(payload);
    bytes
}

fn datagram(text: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; udp::HEADER_LEN];
    bytes.extend_from_slice(text);
    let payload_len = text.len() as u16;
    udp::emit(&udp::Header { src_port: 4000, dst_port: 53, payload_len, checksum: 0 }, &mut bytes);
    udp::seal(PEER, US, &mut bytes);
    bytes
}

fn answer() -> Vec<u8> {
    arp_of_peer(Operation::Reply)
}

/// Returns an ARP packet in which the peer asks for our station, or says where it is itself.
fn arp_of_peer(operation: Operation) -> Vec<u8> {
    let mut bytes = vec![0; 42];
    let at = ethernet::emit(
        &ethernet::Header { dst: MAC_US, src: MAC_PEER, ethertype: EtherType::ARP },
        &mut bytes,
    );
    let packet =
        Packet { operation, sender_mac: MAC_PEER, sender_addr: PEER, target_mac: MAC_US, target_addr: US };
    arp::emit(&packet, &mut bytes[at..]);
    bytes
}

/// Returns the message about a segment whose neighbour was not found.
fn nobody(local: u32, remote: u32) -> IpBody {
    IpBody::Unreachable {
        protocol: 6,
        local: Endpoint::new(local, 53),
        remote: Endpoint::new(remote, 4000),
        seq: 7,
    }
}

#[test]
fn packets_wait_for_their_neighbour_and_leave_in_order() {
    let mut bench = bench();
    (1..=3).for_each(|n| bench.transmit(0, &outgoing(US, PEER, n)));
    assert_eq!(bench.out.sent.len(), 1, "the neighbour is asked for, once");
    assert!(bench.datagrams().is_empty());
    bench.hear(&answer());
    assert_eq!(bench.datagrams(), [1, 2, 3].map(|n| (MAC_PEER, n)));
    bench.transmit(1, &outgoing(US, PEER, 4));
    assert_eq!(bench.datagrams(), [(MAC_PEER, 4)]);
}

#[test]
fn who_has_no_neighbour_is_told() {
    let mut bench = bench();
    bench.out.told.clear();
    (1..=3).for_each(|n| bench.transmit(1, &outgoing(US, PEER, n)));
    bench.round();
    bench.out.told.clear();
    for _ in 0..4 {
        bench.now += atoll_base::Duration::from_millis(1100);
        bench.round();
    }
    let lost = |dst| IpBody::Unreachable {
        protocol: 17,
        local: Endpoint::new(US, 53),
        remote: Endpoint::new(dst, 4000),
        seq: 0,
    };
    let news = (Party::Transport(1), lost(PEER));
    assert_eq!(bench.out.told, [news], "once for all three");
    assert_eq!(bench.server.counts().unresolved, 3);
    assert!(bench.datagrams().is_empty());
    // There is no gateway, so the destination is unreachable.
    bench.out.told.clear();
    bench.transmit(1, &outgoing(US, 0x0808_0808, 9));
    assert_eq!(bench.out.told, [(Party::Transport(1), lost(0x0808_0808))]);
}

#[test]
fn broadcasts_need_nobody() {
    let mut bench = bench();
    bench.transmit(0, &outgoing(US, u32::MAX, 1));
    assert_eq!(bench.datagrams(), [(Mac::BROADCAST, 1)]);
}

#[test]
fn what_has_a_station_keeps_it() {
    let mut bench = bench();
    let mut frame = outgoing(US, PEER, 1);
    frame[..6].copy_from_slice(&MAC_PEER.0);
    bench.transmit(0, &frame);
    assert_eq!(bench.datagrams(), [(MAC_PEER, 1)]);
}

#[test]
fn a_transport_server_sends_packets_from_our_addresses_only() {
    let mut bench = bench();
    let mut strange =
        vec![outgoing(PEER, PEER, 1), outgoing(0x7f00_0001, PEER, 1), answer(), outgoing(US, US, 1)];
    strange.extend((0..33).map(|len| outgoing(US, PEER, 1)[..len].to_vec()));
    let count = strange.len() as u64;
    strange.iter().for_each(|frame| bench.transmit(0, frame));
    assert_eq!(bench.server.counts().refused, count);
    assert!(bench.out.sent.is_empty());
}

#[test]
fn what_is_for_a_transport_is_checked_and_passed_on() {
    let mut bench = bench();
    let frame = incoming(Protocol::UDP, &datagram(b"hello"), |_| {});
    bench.hear(&frame);
    let tuple = FourTuple { local: Endpoint::new(US, 53), remote: Endpoint::new(PEER, 4000) };
    assert_eq!(bench.out.delivered, [(tuple, vnet::DATA_VALID, frame.clone())]);

    // A frame whose checksum is to be completed is passed on as such: the next one to pass it on completes
    // it.
    let mut partial = VNET;
    partial[0] = vnet::NEEDS_CSUM;
    bench.server.handle_frame(bench.now, &partial, &frame, &mut bench.out);
    assert_eq!(bench.out.delivered.pop().map(|(_, flags, _)| flags), Some(vnet::NEEDS_CSUM));

    bench.out.delivered.clear();
    let mut wrong = frame;
    *wrong.last_mut().unwrap() ^= 1;
    bench.hear(&wrong);
    assert!(bench.out.delivered.is_empty());
}

#[test]
fn errors_go_to_whom_they_quote() {
    let mut bench = bench();
    let mut error = vec![0; icmp::HEADER_LEN];
    error.extend_from_slice(&outgoing(US, PEER, 1)[ethernet::HEADER_LEN..]);
    icmp::emit(&icmp::Message::Unreachable { code: icmp::code::PORT, next_hop_mtu: 0 }, &mut error);
    bench.hear(&incoming(Protocol::ICMP, &error, |_| {}));
    let tuple = FourTuple { local: Endpoint::new(US, 53), remote: Endpoint::new(PEER, 4000) };
    assert_eq!(bench.out.delivered.first().map(|(tuple, ..)| *tuple), Some(tuple));
}

#[test]
fn echo_and_unknown_protocols_are_answered_here() {
    let mut bench = bench();
    let mut echo = vec![7; 64];
    icmp::emit(&icmp::Message::EchoRequest { id: 1, seq: 2 }, &mut echo);
    bench.hear(&incoming(Protocol::ICMP, &echo, |_| {}));
    bench.hear(&incoming(Protocol(99), b"what?", |_| {}));
    let kinds: Vec<u8> = bench.out.sent.iter().map(|frame| frame[34]).collect();
    assert_eq!(kinds, [0, 3], "a reply, and \"unreachable\"");
    assert!(bench.out.delivered.is_empty());
}

#[test]
fn raw_sockets_hear_what_is_answered_here_while_there_are_any() {
    let mut bench = bench();
    let mut echo = vec![7; 64];
    icmp::emit(&icmp::Message::EchoRequest { id: 1, seq: 2 }, &mut echo);
    let echo = incoming(Protocol::ICMP, &echo, |_| {});
    let say = |bench: &mut Bench, from, any, joins| {
        bench.say(Party::Transport(from), 1, IpBody::Group { group: any, joins });
    };
    let heard = |bench: &mut Bench| {
        bench.hear(&echo);
        // What comes next is no message, and nobody's.
        bench.hear(&arp_of_peer(Operation::Request));
        let heard: Vec<_> = bench.out.delivered.drain(..).map(|(tuple, _, frame)| (tuple, frame)).collect();
        let tuple = FourTuple { local: Endpoint::new(US, 0), remote: Endpoint::new(PEER, 0) };
        assert!(heard.iter().all(|it| *it == (tuple, echo.clone())));
        heard.len()
    };
    say(&mut bench, 0, Addr::ANY, true);
    assert_eq!(heard(&mut bench), 0, "these are of ICMPv6");
    say(&mut bench, 0, Addr::V4_ANY, true);
    say(&mut bench, 1, Addr::V4_ANY, true);
    assert_eq!(heard(&mut bench), 1);
    say(&mut bench, 0, Addr::V4_ANY, false);
    assert_eq!(heard(&mut bench), 1);
    // Another TS has none.
    bench.say(Party::Transport(1), 2, IpBody::Hello);
    assert_eq!(heard(&mut bench), 0);
    assert_eq!(bench.server.counts().bad, 0);
}

/// Each of several IP servers handles what neighbours say.
#[test]
fn the_first_ip_server_hands_over_what_all_hear() {
    let [us, peer] =
        [1, 2].map(|last| Addr::from_octets([0x20, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]));
    let said = |message: icmpv6::Message| {
        let mut text = [&[0; icmpv6::HEADER_LEN][..], &peer.octets()].concat();
        icmpv6::emit(peer, us, &message, &mut text);
        let mut frame = vec![0; ethernet::HEADER_LEN + ipv6::HEADER_LEN];
        let ethernet = ethernet::Header { dst: MAC_US, src: MAC_PEER, ethertype: EtherType::IPV6 };
        let at = ethernet::emit(&ethernet, &mut frame);
        let header = ipv6::Header {
            src: peer,
            dst: us,
            next_header: Protocol::ICMPV6,
            payload_len: text.len() as u16,
            hop_limit: 255,
            ..Default::default()
        };
        ipv6::emit(&header, &mut frame[at..]);
        [frame, text].concat()
    };
    let advertisement = said(icmpv6::Message::Other { kind: 136, code: 0, rest: [0; 4] });
    let question = said(icmpv6::Message::EchoRequest { id: 1, seq: 1 });
    let handed_over = [0, 1].map(|number| {
        let v6 = V6Config { address: Some((us, 64)), gateway: None, autoconf: false };
        let ip = atoll_ip::Config { v6: Some(v6), ..atoll_ip::Config::new(MAC_US, US, 24) };
        let mut bench = bench_of(Config { number, servers: 2, ..config() }, ip);
        bench.say(Party::Transport(number), 1, IpBody::Group { group: Addr::ANY, joins: true });
        [&advertisement, &question].map(|frame| {
            bench.hear(frame);
            bench.out.delivered.drain(..).count()
        })
    });
    assert_eq!(handed_over, [[1, 1], [0, 1]]);
}

#[test]
fn fragments_meet_here_and_the_whole_goes_on() {
    let mut bench = bench();
    let text = datagram(&[9; 3000]);
    for part in atoll_ip::parts(Addr::v4(US), text.len(), 0, 1500) {
        let frame = incoming(Protocol::UDP, &text[part.offset..part.offset + part.len], |header| {
            (header.id, header.more_fragments) = (5, part.more);
            header.fragment_offset = (part.offset / 8) as u16;
        });
        bench.hear(&frame);
    }
    let whole = bench.out.delivered.pop().expect("it is whole");
    assert_eq!((whole.1, &whole.2[34..]), (vnet::DATA_VALID, &text[..]));
    assert!(bench.out.delivered.is_empty());
}

#[test]
fn a_full_link_gets_everything_later_in_order() {
    let mut bench = bench();
    bench.hear(&answer());
    bench.transmit(0, &outgoing(US, PEER, 0));
    bench.hear(&answer());
    bench.datagrams();
    bench.out.room = Some(1);
    (1..=3).for_each(|n| bench.transmit(0, &outgoing(US, PEER, n)));
    assert!(bench.server.is_crowded() && bench.server.has_work());
    bench.out.room = Some(1);
    bench.round();
    assert!(bench.server.is_crowded());
    bench.out.room = None;
    bench.round();
    assert!(!bench.server.is_crowded());
    assert_eq!(bench.datagrams(), [1, 2, 3].map(|n| (MAC_PEER, n)));
}

/// Without this order, a TS that sends at a high rate would make the machine unreachable for a second at a
/// time.
#[test]
fn who_asks_for_our_station_is_answered_first_when_a_full_link_has_room() {
    let mut bench = bench();
    bench.hear(&answer());
    bench.datagrams();
    bench.out.room = Some(0);
    bench.transmit(0, &outgoing(US, PEER, 1));
    bench.hear(&arp_of_peer(Operation::Request));
    assert!(bench.out.sent.is_empty() && bench.server.has_work());
    bench.out.room = Some(1);
    bench.round();
    assert!(matches!(&bench.out.sent[..], [frame] if Bench::is_arp(frame)), "{:?}", bench.out.sent);
}

#[test]
fn transport_servers_are_told_the_network_and_every_change() {
    let mut bench = bench_of(Config { number: 1, servers: 2, replicas: 4, ..config() }, {
        let ip = atoll_ip::Config::new(MAC_US, US, 24);
        atoll_ip::Config { dhcp: true, sibling: (1, 6), ..ip }
    });
    bench.out.deaf = Some(Party::Transport(3));
    bench.round();
    let networks = |bench: &mut Bench| -> Vec<(Party, Option<u32>)> {
        let told = core::mem::take(&mut bench.out.told).into_iter();
        told.filter_map(|(to, body)| match body {
            IpBody::Network { news } => Some((to, news.network.v4.map(|own| own.addr))),
            _ => None,
        })
        .collect()
    };
    assert_eq!(networks(&mut bench), [(Party::Transport(1), None)], "it serves the first and the third");
    assert!(bench.server.has_work(), "the third has to be told");
    bench.out.deaf = None;
    bench.round();
    assert_eq!(networks(&mut bench), [(Party::Transport(3), None)]);
    assert!(!bench.server.has_work());

    // The IP server that asks for the address has sent this.
    let told = Told { v4: Some(V4Address::new(US, 24)), ..bench.server.ip().told() };
    bench.say(Party::Sibling(0), 1, IpBody::Network { news: news::encode(&told) });
    assert_eq!(networks(&mut bench), [1, 3].map(|n| (Party::Transport(n), Some(US))));
    bench.say(Party::Transport(3), 1, IpBody::Hello);
    assert_eq!(networks(&mut bench), [(Party::Transport(3), Some(US))]);
    bench.say(Party::Transport(3), 1, IpBody::Group { group: GROUP, joins: true });
    assert_eq!(networks(&mut bench), []);
}

#[test]
fn who_asks_for_the_address_tells_the_others() {
    let mut bench = bench_of(Config { servers: 3, replicas: 3, ..config() }, {
        atoll_ip::Config { dhcp: true, ..atoll_ip::Config::new(MAC_US, 0, 0) }
    });
    bench.round();
    let parties: Vec<Party> = bench.out.told.iter().map(|(party, _)| *party).collect();
    assert_eq!(parties, [Party::Transport(0), Party::Sibling(1), Party::Sibling(2)]);
}

#[test]
fn a_group_is_wanted_as_long_as_one_transport_server_wants_it() {
    let mut bench = bench();
    let change = |joins| IpBody::Group { group: GROUP, joins };
    let is_member = |bench: &Bench| bench.server.ip().is_member(Link::Outside, GROUP);
    for (from, joins, expected) in [
        (0, true, true),
        (1, true, true),
        (1, true, true),
        (0, false, true),
        (0, false, true),
        (1, false, false),
    ] {
        bench.say(Party::Transport(from), 1, change(joins));
        assert_eq!(is_member(&bench), expected);
    }
    bench.say(Party::Transport(1), 1, change(true));
    bench.say(Party::Transport(1), 2, IpBody::Hello);
    assert!(!is_member(&bench), "another TS has not asked for it");
    bench.say(Party::Transport(1), 1, change(true));
    assert!(!is_member(&bench), "the old one is gone");
    bench.say(Party::Transport(0), 1, IpBody::Group { group: Addr::v4(US), joins: true });
    bench.say(Party::Transport(0), 1, nobody(US, PEER));
    bench.say(Party::Transport(9), 1, IpBody::Hello);
    assert_eq!(bench.server.counts().bad, 4);
}

#[test]
fn news_go_to_the_other_ip_servers() {
    let mut bench = bench_of(Config { servers: 2, ..config() }, atoll_ip::Config::new(MAC_US, US, 24));
    bench.transmit(0, &outgoing(US, PEER, 1));
    bench.hear(&answer());
    bench.say(Party::Transport(0), 1, IpBody::Path { dst: Addr::v4(PEER), mtu: 1400 });
    let said: Vec<IpBody> = bench
        .out
        .told
        .iter()
        .filter(|(to, _)| *to == Party::Sibling(1))
        .map(|(_, body)| body.clone())
        .collect();
    let neighbour = IpBody::Neighbour { addr: PEER, mac: MAC_PEER.0, learned: true };
    assert_eq!(said, [neighbour.clone(), IpBody::Path { dst: Addr::v4(PEER), mtu: 1400 }]);

    let mut other =
        bench_of(Config { number: 1, servers: 2, ..config() }, atoll_ip::Config::new(MAC_US, US, 24));
    said.into_iter().for_each(|body| other.say(Party::Sibling(0), 1, body));
    other.transmit(1, &outgoing(US, PEER, 1));
    assert_eq!(other.datagrams(), [(MAC_PEER, 1)], "it need not ask");
    assert!(other.server.ip().path_mtu(other.now, Addr::v4(PEER)).is_some());
}

#[test]
fn what_gets_on_at_a_transport_spares_its_neighbour_questions_and_settles_no_contest() {
    let mut bench = bench();
    bench.transmit(0, &outgoing(US, PEER, 1));
    bench.hear(&answer());
    bench.out.sent.clear();
    for second in 2..300 {
        bench.now = Instant::from_millis(second * 1000);
        bench.say(Party::Transport(0), 1, IpBody::Progress { hop: Addr::v4(PEER) });
        bench.transmit(0, &outgoing(US, PEER, 1));
        assert!(!bench.out.sent.iter().any(|frame| Bench::is_arp(frame)), "second {second}");
        assert_eq!(bench.datagrams(), [(MAC_PEER, 1)]);
    }
    // The peer has another station, and the old one is silent, whatever a transport server says.
    let moved = Mac([2, 0, 0, 0, 0, 3]);
    let mut question = answer();
    question[..6].copy_from_slice(&[0xff; 6]);
    question[14 + 7] = 1;
    question[14 + 8..14 + 14].copy_from_slice(&moved.0);
    bench.hear(&question);
    for _ in 0..10 {
        bench.now += atoll_base::Duration::from_millis(100);
        bench.say(Party::Transport(0), 1, IpBody::Progress { hop: Addr::v4(PEER) });
    }
    bench.out.sent.clear();
    bench.transmit(0, &outgoing(US, PEER, 1));
    assert_eq!(bench.datagrams(), [(moved, 1)]);
}

#[test]
fn after_either_has_ended_both_know_again_what_counts() {
    let half_config = atoll_ip::Config { apart: true, dhcp: true, ..atoll_ip::Config::new(MAC_US, US, 24) };
    let half = || Ip::new(half_config.clone(), 3, Instant::ZERO).unwrap();
    let server_of =
        |epoch| bench_of(Config { epoch: Epoch(epoch), ..config() }, atoll_ip::Config::new(MAC_US, US, 24));
    // This runs until neither side has anything to say.
    let talk = |bench: &mut Bench, client: &mut Client, half: &mut Ip| {
        for _ in 0..4 {
            let mut said = Vec::new();
            client.send(half, |message| {
                said.push(message.clone());
                true
            });
            said.iter()
                .for_each(|message| bench.server.handle_message(bench.now, Party::Transport(0), message));
            bench.round();
            let epoch = bench.server.config.epoch;
            for (to, body) in core::mem::take(&mut bench.out.told) {
                if to == Party::Transport(0) {
                    client.handle(bench.now, half, &IpMessage { epoch, body });
                }
            }
        }
        assert!(!client.has_messages(half) && !bench.server.has_work());
    };
    let (mut bench, mut client, mut ip) = (server_of(1), Client::new(Epoch(1)), half());
    assert_eq!(ip.addr(), None);
    talk(&mut bench, &mut client, &mut ip);
    assert_eq!(ip.addr(), Some(US));
    assert!(ip.join_group(Instant::ZERO, Link::Outside, GROUP));
    talk(&mut bench, &mut client, &mut ip);
    assert!(bench.server.ip().is_member(Link::Outside, GROUP));

    bench = server_of(2);
    talk(&mut bench, &mut client, &mut ip);
    assert!(bench.server.ip().is_member(Link::Outside, GROUP), "it is told by whom who is still there");

    (client, ip) = (Client::new(Epoch(2)), half());
    talk(&mut bench, &mut client, &mut ip);
    assert_eq!((ip.addr(), bench.server.ip().is_member(Link::Outside, GROUP)), (Some(US), false));

    let late = IpMessage { epoch: Epoch(1), body: nobody(US, PEER) };
    assert_eq!(client.handle(Instant::ZERO, &mut ip, &late), None);
    assert_eq!((client.bad(), ip.route(Instant::ZERO, PEER)), (1, Route::Via { mac: Mac::ZERO }));
    let error = client.handle(Instant::ZERO, &mut ip, &IpMessage { epoch: Epoch(2), ..late });
    let tuple = FourTuple { local: Endpoint::new(US, 53), remote: Endpoint::new(PEER, 4000) };
    let expected = (ErrorKind::unanswered(true), Protocol::TCP, tuple, Some(SeqNum(7)));
    assert_eq!(error.map(|e| (e.kind, e.protocol, e.tuple, e.quoted_seq)), Some(expected));
    assert_eq!(ip.route(Instant::ZERO, PEER), Route::Unreachable);
}

#[test]
fn messages_of_strangers_are_bounded() {
    let mut bench = bench();
    let mut seen = BTreeSet::new();
    for n in 0..5000 {
        bench.server.handle_message(
            bench.now,
            Party::Transport(0),
            &IpMessage {
                epoch: Epoch(1),
                body: IpBody::Group { group: Addr::v4(0xe100_0000 + n), joins: true },
            },
        );
        seen.insert(n);
    }
    let members =
        seen.iter().filter(|n| bench.server.ip().is_member(Link::Outside, Addr::v4(0xe100_0000 + **n)));
    assert!(members.count() <= 1024 && bench.server.counts().bad > 0);
    for n in 0..5000u32 {
        bench.server.transmit(bench.now, 0, &VNET, &mut outgoing(US, 0x0800_0000 + n, 1), &mut bench.out);
    }
    assert!(bench.server.outbox.len() <= OUTBOX_MAX);
}
