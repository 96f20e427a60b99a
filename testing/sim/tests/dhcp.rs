//! Hosts and a DHCP server on a link that loses, repeats and delays frames. No two hosts share an address,
//! and no host keeps one for longer than its lease. Every host gets an address in the end, and loses it when
//! the server is gone.
//!
//! `ATOLL_SEED=n` replays one seed; `ATOLL_SEEDS=n` changes how many are tried.

use std::collections::BTreeMap;

use atoll_base::{Addr, Duration, Instant, Rng};
use atoll_ip::{ChecksumOffload, Config, Ip, Link, Received};
use atoll_sim::seeds;
use atoll_wire::arp::{self, Operation, Packet};
use atoll_wire::dhcp::{self, Header, Kind, option};
use atoll_wire::ethernet::{self, EtherType};
use atoll_wire::ipv4::{self, Protocol};
use atoll_wire::{Mac, udp};

const SERVER: u32 = 0x0a00_0001;
const SERVER_MAC: Mac = Mac([2, 0, 0, 0, 0, 0xff]);
const POOL: u32 = 0x0a00_0010;
const HOSTS: u8 = 5;

/// A server with as many addresses as there are hosts.
struct Server {
    is_up: bool,
    seconds: u32,
    /// The host that has each address, or was offered it, and until when.
    leases: BTreeMap<u32, (Mac, Instant)>,
}

struct Lan {
    rng: Rng,
    now: Instant,
    hosts: Vec<Ip>,
    /// The hosts that have had an address. Where many frames are lost and leases are short, some host is
    /// always without.
    had: Vec<bool>,
    server: Server,
    /// Frames on their way, by when they arrive.
    wire: BTreeMap<(Instant, u64), Vec<u8>>,
    sent: u64,
    loss_per_million: u32,
}

impl Lan {
    fn new(seed: u64) -> Lan {
        let mut rng = Rng::new(seed);
        let host = |n: u8| {
            let config = Config { dhcp: true, ..Config::new(Mac([2, 0, 0, 0, 0, n]), 0, 0) };
            Ip::new(config, seed * 100 + u64::from(n), Instant::ZERO).expect("the configuration is right")
        };
        let seconds = 10 + rng.below(500);
        let loss_per_million = rng.below(600_000);
        let mut lan = Lan {
            rng,
            now: Instant::ZERO,
            hosts: (1..=HOSTS).map(host).collect(),
            had: vec![false; HOSTS.into()],
            server: Server { is_up: true, seconds, leases: BTreeMap::new() },
            wire: BTreeMap::new(),
            sent: 0,
            loss_per_million,
        };
        for host in &mut lan.hosts {
            host.announce(Instant::ZERO);
        }
        lan.collect();
        lan
    }

    /// Puts the frames that hosts have to send on the wire.
    fn collect(&mut self) {
        for at in 0..self.hosts.len() {
            while let Some(frame) = self.hosts[at].poll_frame() {
                self.send(frame.bytes);
            }
        }
    }

    fn send(&mut self, frame: Vec<u8>) {
        let copies = if self.rng.chance_per_million(100_000) { 2 } else { 1 };
        for _ in 0..copies {
            if self.rng.chance_per_million(self.loss_per_million) {
                continue;
            }
            let arrives = self.now + Duration::from_micros(u64::from(self.rng.below(50_000)));
            self.sent += 1;
            self.wire.insert((arrives, self.sent), frame.clone());
        }
    }

    /// Runs until `end`, or until `is_done`. Returns whether `is_done` ended it.
    fn run(&mut self, end: Instant, is_done: impl Fn(&Lan) -> bool) -> bool {
        while !is_done(self) {
            let arrival = self.wire.first_key_value().map(|((at, _), _)| *at);
            let due = self.hosts.iter().filter_map(Ip::next_timeout).min();
            let Some(next) = arrival.into_iter().chain(due).min().filter(|next| *next < end) else {
                self.now = end;
                return false;
            };
            self.now = self.now.max(next);
            if arrival == Some(next) {
                let (_, frame) = self.wire.pop_first().expect("it was there");
                self.deliver(&frame);
            }
            for host in &mut self.hosts {
                host.handle_timeout(self.now);
            }
            self.collect();
            self.check();
        }
        true
    }

    /// Delivers a frame as a bridge does: to the host that it is addressed to, or to all but the sender.
    fn deliver(&mut self, frame: &[u8]) {
        let (header, _) = ethernet::parse(frame).expect("hosts send frames");
        for host in &mut self.hosts {
            let is_for = header.dst == host.mac() || header.dst.is_group();
            if is_for && header.src != host.mac() {
                let received = host.handle_frame(self.now, Link::Outside, frame, ChecksumOffload::Unknown);
                // What others ask of all servers has no socket here.
                assert!(!matches!(received, Received::Tcp { .. } | Received::Error(..)));
            }
        }
        if header.dst == SERVER_MAC || header.dst.is_group() {
            self.serve(frame);
        }
    }

    fn serve(&mut self, frame: &[u8]) {
        let (header, at) = ethernet::parse(frame).expect("hosts send frames");
        if header.ethertype == EtherType::ARP {
            let (question, _) = arp::parse(&frame[at..]).expect("hosts send ARP packets");
            if question.operation == Operation::Request && question.target_addr == SERVER && self.server.is_up
            {
                self.send(arp_reply(&question));
            }
            return;
        }
        let (header, len) = ipv4::parse(&frame[at..]).expect("hosts send packets");
        let datagram = &frame[at + len..];
        let (ports, head) = udp::parse(datagram).expect("hosts send datagrams");
        assert!(ports.dst_port == 67 && udp::verify(header.src, header.dst, datagram));
        let message = dhcp::parse(&datagram[head..]).expect("hosts send messages");
        if let Some(answer) = self.server.answer(self.now, &message, header.dst) {
            self.send(answer);
        }
    }

    fn check(&mut self) {
        let mut seen = Vec::new();
        for (host, had) in self.hosts.iter().zip(&mut self.had) {
            let Some(own) = host.v4_address() else { continue };
            *had = true;
            assert!(!seen.contains(&own.addr), "two hosts have {:08x}", own.addr);
            seen.push(own.addr);
            let (mac, until) = self.server.leases[&own.addr];
            assert!(
                mac == host.mac() && own.valid_until <= until && self.now < own.valid_until,
                "{own:?} at {:?}",
                self.now
            );
        }
    }

    fn has_addresses(&self) -> bool {
        self.hosts.iter().any(|host| host.addr().is_some())
    }

    /// Runs until every host has had an address.
    fn serve_all(&mut self) {
        self.had.fill(false);
        let day = Duration::from_secs(24 * 3600);
        assert!(
            self.run(self.now + day, |lan| lan.had.iter().all(|had| *had)),
            "not everybody has had an address"
        );
    }
}

impl Server {
    fn answer(&mut self, now: Instant, asked: &dhcp::Message<'_>, dst: u32) -> Option<Vec<u8>> {
        let mac = asked.header.mac;
        if !self.is_up {
            return None;
        }
        let chosen = asked.word(option::SERVER_IDENTIFIER);
        let (kind, addr) = match asked.kind {
            Kind::Discover => (Kind::Offer, self.free(now, mac, asked.word(option::REQUESTED_ADDRESS))?),
            Kind::Request => {
                let wanted = asked.word(option::REQUESTED_ADDRESS).unwrap_or(asked.header.client_addr);
                assert!(chosen.is_none_or(|server| server == SERVER) && (dst == SERVER || dst == u32::MAX));
                match self.leases.get(&wanted) {
                    Some((holder, _)) if *holder == mac => (Kind::Ack, wanted),
                    _ => (Kind::Nak, 0),
                }
            }
            Kind::Release | Kind::Decline => {
                panic!("{:?}: nobody ends, and nobody has another's address", asked.kind)
            }
            _ => return None,
        };
        if addr != 0 {
            // What was offered is kept for a while. Leases never get shorter.
            let seconds = if kind == Kind::Ack { self.seconds } else { 60 };
            let until = now + Duration::from_secs(seconds.into());
            let lease = self.leases.entry(addr).or_insert((mac, until));
            *lease = (mac, if lease.0 == mac { lease.1.max(until) } else { until });
        }
        Some(self.frame(kind, &asked.header, addr))
    }

    fn free(&self, now: Instant, mac: Mac, wanted: Option<u32>) -> Option<u32> {
        let is_free =
            |addr: &u32| self.leases.get(addr).is_none_or(|(holder, until)| *holder == mac || *until <= now);
        let known = self.leases.iter().find(|(_, (holder, _))| *holder == mac).map(|(addr, _)| *addr);
        let pool = POOL..POOL + u32::from(HOSTS);
        wanted
            .filter(|addr| pool.contains(addr))
            .or(known)
            .filter(is_free)
            .or_else(|| pool.clone().find(is_free))
    }

    fn frame(&self, kind: Kind, asked: &Header, addr: u32) -> Vec<u8> {
        let mut text = vec![0; 400];
        let mut at = dhcp::emit(&Header { is_reply: true, your_addr: addr, ..*asked }, &mut text);
        at = dhcp::push_option(&mut text, at, option::MESSAGE_TYPE, &[kind as u8]);
        for (code, value) in [
            (option::SERVER_IDENTIFIER, SERVER),
            (option::LEASE_TIME, self.seconds),
            (option::SUBNET_MASK, 0xffff_ff00),
        ] {
            at = dhcp::push_option(&mut text, at, code, &value.to_be_bytes());
        }
        text[at] = option::END;
        let dst = if addr == 0 { u32::MAX } else { addr };
        let to = if addr == 0 { Mac::BROADCAST } else { asked.mac };
        let mut bytes = vec![0; ethernet::HEADER_LEN + ipv4::HEADER_LEN + udp::HEADER_LEN];
        let at = ethernet::emit(
            &ethernet::Header { dst: to, src: SERVER_MAC, ethertype: EtherType::IPV4 },
            &mut bytes,
        );
        let payload_len = (udp::HEADER_LEN + text.len()) as u16;
        let header = ipv4::Header {
            src: SERVER,
            dst,
            protocol: Protocol::UDP,
            payload_len,
            ttl: 64,
            ..ipv4::Header::default()
        };
        let len = ipv4::emit(&header, &mut bytes[at..]);
        let ports = udp::Header { src_port: 67, dst_port: 68, payload_len: text.len() as u16, checksum: 0 };
        udp::emit(&ports, &mut bytes[at + len..]);
        bytes.extend(text);
        udp::seal(SERVER, dst, &mut bytes[at + len..]);
        bytes
    }
}

fn arp_reply(question: &Packet) -> Vec<u8> {
    let mut bytes = vec![0; ethernet::HEADER_LEN + arp::PACKET_LEN];
    let header = ethernet::Header { dst: question.sender_mac, src: SERVER_MAC, ethertype: EtherType::ARP };
    let at = ethernet::emit(&header, &mut bytes);
    let reply = Packet {
        operation: Operation::Reply,
        sender_mac: SERVER_MAC,
        sender_addr: SERVER,
        target_mac: question.sender_mac,
        target_addr: question.sender_addr,
    };
    arp::emit(&reply, &mut bytes[at..]);
    bytes
}

/// Returns what all of it came to, so that two runs can be compared.
fn story(seed: u64) -> (u64, Vec<Option<u32>>) {
    let mut lan = Lan::new(seed);
    let hour = Duration::from_secs(3600);
    lan.serve_all();
    lan.run(lan.now + hour, |_| false);
    lan.server.is_up = false;
    let leases = Duration::from_secs(lan.server.seconds.into());
    // What it said last is still on the wire for a moment, and probing takes a moment, too.
    lan.run(lan.now + leases + Duration::from_secs(5), |lan| !lan.has_addresses());
    assert!(!lan.has_addresses(), "leases have ended");
    for host in &mut lan.hosts {
        assert_eq!(host.source_for(Addr::v4(SERVER)), None);
    }
    lan.run(lan.now + hour, |_| false);
    let before = lan.sent;
    lan.run(lan.now + hour, |_| false);
    // Each host sends a request a minute, perhaps twice: it does not flood the link for a server that is not
    // there.
    assert!(lan.sent - before < 2 * 65 * u64::from(HOSTS), "{} frames in an hour", lan.sent - before);
    lan.server.is_up = true;
    lan.serve_all();
    (lan.sent, lan.hosts.iter().map(Ip::addr).collect())
}

#[test]
fn addresses_are_given_kept_lost_and_given_again() {
    for seed in seeds(100) {
        if std::panic::catch_unwind(|| story(seed)).is_err() {
            panic!("ATOLL_SEED={seed}: see above");
        }
    }
}

#[test]
fn the_same_seed_is_the_same_story() {
    for seed in seeds(3) {
        assert_eq!(story(seed), story(seed), "ATOLL_SEED={seed}");
    }
}
