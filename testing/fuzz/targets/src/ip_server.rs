//! Checks that an IP server keeps its promises, whatever comes from the link, from transport servers (TS),
//! and from other IP servers. Checks it of a TS's half of IP, too, whatever its IP server sends.

use atoll_base::{Addr, Duration, Epoch, FourTuple, Instant};
use atoll_ip::{ChecksumOffload, Config, Ip, Link, Received, Route, V6Config};
use atoll_ip_server::{Client, Egress, IpServer, Party};
use atoll_ipc::ip::IpMessage;
use atoll_wire::ethernet::EtherType;
use atoll_wire::{Mac, ethernet, vnet};

use crate::ip::{GATEWAY, MAC_US, US, US_V6, repaired};

/// Decodes a message to or from an IP server.
pub fn ipc_ip(data: &[u8]) {
    if let Ok(message) = IpMessage::decode(data) {
        assert_eq!(IpMessage::decode(&message.encode()).as_ref(), Ok(&message));
        let mut half = ip(true);
        let _ = Client::new(Epoch(1)).handle(Instant::ZERO, &mut half, &message);
        assert!(half.v6_addresses().len() <= 16 && half.hop_limit() > 0);
    }
}

/// Runs the life of an IP server and of a half: steps of an opcode, a length and that many bytes, as in
/// `ip_script`.
pub fn ip_server(data: &[u8]) {
    let config = atoll_ip_server::Config { number: 0, servers: 2, replicas: 4, epoch: Epoch(2) };
    let mut bench = Bench {
        server: IpServer::new(config, ip(false)),
        half: ip(true),
        client: Client::new(Epoch(2)),
        out: Out { room: 64 },
        now: Instant::from_millis(1000),
    };
    let mut rest = data;
    while let Some(([opcode, a, b], tail)) = rest.split_first_chunk::<3>() {
        let (bytes, tail) = tail.split_at(usize::from(u16::from_le_bytes([*a, *b])).min(tail.len()));
        rest = tail;
        bench.step(opcode & 7, opcode >> 3, bytes);
    }
    // When there is room for everything, everything leaves.
    bench.out.room = usize::MAX;
    bench.flush();
    assert!(!bench.server.is_crowded() && !bench.server.has_work());
}

struct Bench {
    server: IpServer,
    half: Ip,
    client: Client,
    out: Out,
    now: Instant,
}

struct Out {
    /// The number of frames and messages that are still taken.
    room: usize,
}

impl Out {
    fn take_room(&mut self) -> bool {
        let has_room = self.room > 0;
        self.room = self.room.saturating_sub(1);
        has_room
    }
}

impl Egress for Out {
    fn send(&mut self, _: &[u8; vnet::HEADER_LEN], frame: &[u8]) -> bool {
        let (header, _) = ethernet::parse(frame).expect("frames leave with a header");
        assert!(header.src == MAC_US && header.dst != Mac::ZERO, "and with stations");
        self.take_room()
    }

    fn deliver(&mut self, tuple: &FourTuple, vnet: &[u8; vnet::HEADER_LEN], frame: &[u8]) {
        assert!(vnet[0] & (vnet::NEEDS_CSUM | vnet::DATA_VALID) != 0, "what is passed on was checked");
        // The half of the flow's owner comes to the same conclusion.
        let mut half = ip(true);
        for word in [0xe000_0000u32, 0xe000_0001, 0xe000_0005, 0xe000_0009] {
            half.join_group(Instant::ZERO, Link::Outside, word);
        }
        let offload =
            if vnet[0] & vnet::NEEDS_CSUM != 0 { ChecksumOffload::Partial } else { ChecksumOffload::Valid };
        let is_group = tuple.local.addr.to_v4().is_none_or(|addr| addr >> 28 == 0xe);
        match half.handle_frame(Instant::ZERO, Link::Outside, frame, offload) {
            Received::Tcp { src, dst, .. } => assert_eq!((dst, src), (tuple.local.addr, tuple.remote.addr)),
            Received::Udp { src, dst, .. } => assert_eq!((dst, src), (tuple.local, tuple.remote)),
            Received::EchoReply { src, dst, id, .. } => {
                assert_eq!((dst, id, src), (tuple.local.addr, tuple.local.port, tuple.remote.addr));
            }
            Received::Error(error, _) => assert_eq!(error.tuple, *tuple),
            // The half has not received everything that the server knows.
            other => assert!(is_group, "{other:?}"),
        }
    }

    fn tell(&mut self, _: Party, message: &IpMessage) -> bool {
        assert_eq!(IpMessage::decode(&message.encode()).as_ref(), Ok(message));
        self.take_room()
    }
}

impl Bench {
    fn step(&mut self, what: u8, how: u8, bytes: &[u8]) {
        let mut vnet = [0; vnet::HEADER_LEN];
        let word = bytes.first_chunk::<4>().map_or(0, |word| u32::from_le_bytes(*word));
        match what {
            0 => self.server.handle_frame(self.now, &vnet, &repaired(bytes), &mut self.out),
            1 => {
                vnet[0] = how & 3;
                self.server.handle_frame(self.now, &vnet, bytes, &mut self.out);
            }
            2 => {
                self.now += Duration::from_millis(u64::from(word % 100_000));
                self.server.handle_timeout(self.now);
                self.half.handle_timeout(self.now);
            }
            // A caller that keeps to the rules asks first.
            3 if !self.server.is_crowded() => {
                let mut frame = bytes.to_vec();
                if how & 1 == 1 {
                    addressed(&mut frame, how & 2 == 2);
                }
                self.server.transmit(self.now, how >> 2 & 3, &vnet, &mut frame, &mut self.out);
            }
            4 => {
                let party =
                    if how & 1 == 1 { Party::Sibling(how >> 1 & 3) } else { Party::Transport(how >> 1) };
                if let Ok(message) = IpMessage::decode(bytes) {
                    self.server.handle_message(self.now, party, &message);
                }
            }
            5 => {
                if let Ok(message) = IpMessage::decode(bytes)
                    && let Some(error) = self.client.handle(self.now, &mut self.half, &message)
                {
                    assert!(error.quoted_seq.is_some() == (error.protocol.0 == 6));
                }
                let dst = bytes
                    .get(5..)
                    .and_then(<[u8]>::first_chunk)
                    .map_or(Addr::v4(word), |o| Addr::from_octets(*o));
                if let Route::Via { mac } = self.half.route(self.now, dst) {
                    assert_eq!(mac, Mac::ZERO);
                }
                assert!(self.half.poll_frame().is_none(), "a half says nothing of itself");
            }
            6 => {
                self.out.room = usize::from(how) * 4;
                self.flush();
            }
            _ => {
                let group = Addr::v4(0xe000_0000 | word & 0xff);
                match how & 3 {
                    0 => self.half.leave_group(self.now, Link::Outside, group),
                    1 => self.half.learn_path_mtu(self.now, Addr::v4(word), 1400),
                    _ => drop(self.half.join_group(self.now, Link::Outside, group)),
                }
            }
        }
    }

    fn flush(&mut self) {
        let (server, now, out) = (&mut self.server, self.now, &mut self.out);
        self.client.send(&mut self.half, |message| {
            let taken = out.take_room();
            if taken {
                server.handle_message(now, Party::Transport(0), message);
            }
            taken
        });
        assert!(!self.client.has_messages(&self.half) || self.out.room == 0);
        self.server.flush(self.now, &mut self.out);
        self.server.flush(self.now, &mut self.out);
        while self.half.poll_path().is_some() {}
    }
}

/// Changes `frame` to one from our address, without a hardware destination.
fn addressed(frame: &mut Vec<u8>, is_v6: bool) {
    frame.resize(frame.len().max(ethernet::HEADER_LEN + 40), 0);
    frame[..12].fill(0);
    if is_v6 {
        frame[12..14].copy_from_slice(&EtherType::IPV6.0.to_be_bytes());
        frame[22..38].copy_from_slice(&US_V6.octets());
    } else {
        frame[12..14].copy_from_slice(&EtherType::IPV4.0.to_be_bytes());
        frame[26..30].copy_from_slice(&US.to_be_bytes());
    }
}

fn ip(apart: bool) -> Ip {
    let v6 = V6Config { address: Some((US_V6, 64)), gateway: None, autoconf: true };
    let config = Config {
        gateway: Some(GATEWAY),
        neighbours_max: 8,
        frames_max: 16,
        v6: Some(v6),
        apart,
        ..Config::new(MAC_US, US, 24)
    };
    Ip::new(config, 42, Instant::ZERO).expect("the configuration is right")
}
