//! Checks that a DHCP client keeps its promises, whatever servers say.

use atoll_base::{Duration, Instant, Rng};
use atoll_ip::{DhcpClient, DhcpLease, DhcpOutput};
use atoll_wire::Mac;
use atoll_wire::dhcp::{self, Header, Kind, option};

use crate::input::Input;

const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
const STATION: Mac = Mac([2, 0, 0, 0, 0, 9]);
const OURS: u32 = 0x0a00_0064;
const SERVER: u32 = 0x0a00_0001;
const MTU: u16 = 1500;

/// Checks that what is read from a message lies in it, and that a header survives being written.
pub fn wire_dhcp(data: &[u8]) {
    let Ok(message) = dhcp::parse(data) else { return };
    let mut out = [0; 2048];
    for code in 0..=u8::MAX {
        let len = message.option(code, &mut out).map(<[u8]>::len);
        assert!(len.unwrap_or(0) <= data.len());
        let mut short = [0; 3];
        assert_eq!(message.option(code, &mut short).map(<[u8]>::len), len.map(|len| len.min(3)));
        assert_eq!(message.word(code).is_some(), len.is_some_and(|len| len >= 4));
    }
    let mut again = data.to_vec();
    dhcp::emit(&message.header, &mut again);
    let options = &data[dhcp::HEADER_LEN..];
    again[dhcp::HEADER_LEN..].copy_from_slice(options);
    // `file` and `sname` are gone, so the type may be.
    if let Ok(parsed) = dhcp::parse(&again) {
        assert_eq!(parsed.header, message.header);
    }
}

/// Runs the life of one client: answers that are nearly right, noise, time, conflicts.
pub fn dhcp_client(data: &[u8]) {
    let mut input = Input::new(data);
    let mut world = World {
        client: DhcpClient::new(MAC, MTU),
        rng: Rng::new(7),
        now: Instant::from_millis(1000),
        xid: 0,
        in_use: None,
    };
    world.client.start(world.now, &mut world.rng);
    world.drain();
    while !input.is_empty() {
        world.step(&mut input);
        world.drain();
    }
    // Left alone, the client comes to rest, or asks at long intervals.
    world.client.handle_timeout(world.now, &mut world.rng);
    world.drain();
    for _ in 0..40 {
        let Some(due) = world.client.next_timeout() else { return };
        assert!(due > world.now, "a timeout that was handled is not due again");
        world.now = due;
        world.client.handle_timeout(world.now, &mut world.rng);
        assert!(world.drain() <= 1, "one question at a time");
    }
}

struct World {
    client: DhcpClient,
    rng: Rng,
    now: Instant,
    /// The transaction id of the last question.
    xid: u32,
    in_use: Option<DhcpLease>,
}

impl World {
    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 8 {
            0..=3 => {
                let bytes = self.answer(input);
                self.client.handle(self.now, STATION, &bytes, &mut self.rng);
            }
            4 => {
                let len = usize::from(input.half());
                let bytes = input.bytes(len);
                self.client.handle(self.now, STATION, bytes, &mut self.rng);
            }
            5 => {
                self.now = self.client.next_timeout().unwrap_or(self.now).max(self.now);
                self.client.handle_timeout(self.now, &mut self.rng);
            }
            6 => {
                self.now += Duration::from_millis(u64::from(input.word() % 10_000_000));
                self.client.handle_timeout(self.now, &mut self.rng);
            }
            _ => match input.byte() % 8 {
                0 => self.client.release(),
                1 => self.client.start(self.now, &mut self.rng),
                _ => self.client.handle_conflict(self.now, &mut self.rng),
            },
        }
    }

    /// Returns an answer to the last question that is mostly right.
    fn answer(&self, input: &mut Input<'_>) -> Vec<u8> {
        let mut bytes = vec![0; 1500];
        let kind = input.pick(&[Kind::Offer, Kind::Ack, Kind::Ack, Kind::Nak]);
        let what = input.byte();
        let your_addr = if what & 1 == 0 { OURS } else { input.word() };
        let xid = if what & 2 == 0 { self.xid } else { input.word() };
        let header = Header { is_reply: true, xid, your_addr, mac: MAC, ..Header::default() };
        let mut at = dhcp::emit(&header, &mut bytes);
        at = dhcp::push_option(&mut bytes, at, option::MESSAGE_TYPE, &[kind as u8]);
        for (bit, code, usual) in [
            (4, option::SERVER_IDENTIFIER, SERVER),
            (8, option::LEASE_TIME, 3600),
            (16, option::SUBNET_MASK, 0xffff_ff00),
            (32, option::RENEWAL_TIME, 1000),
            (64, option::REBINDING_TIME, 2000),
        ] {
            let value = if what & bit == 0 { usual } else { input.word() };
            at = dhcp::push_option(&mut bytes, at, code, &value.to_be_bytes());
        }
        // Any options follow, well formed or not.
        let len = usize::from(input.byte());
        let more = input.bytes(len);
        bytes[at..at + more.len()].copy_from_slice(more);
        bytes[at + more.len()] = option::END;
        bytes.truncate(at + more.len() + 1);
        bytes
    }

    /// Checks what the client wants. Returns how many messages it sends.
    fn drain(&mut self) -> usize {
        let mut sent = 0;
        while let Some(output) = self.client.poll() {
            match output {
                DhcpOutput::Send { src, message, .. } => {
                    let message = dhcp::parse(&message).expect("a message");
                    assert!(!message.header.is_reply && message.header.mac == MAC);
                    assert!(src == 0 || self.in_use.as_ref().is_some_and(|lease| lease.address.addr == src));
                    assert_eq!(message.header.client_addr, src);
                    self.xid = message.header.xid;
                    sent += 1;
                }
                DhcpOutput::Probe { addr } => assert!(addr != 0 && self.in_use.is_none()),
                DhcpOutput::Use(lease) => {
                    assert_eq!(lease.address.check(), Ok(()));
                    assert!(
                        (576..=MTU).contains(&lease.address.mtu) && lease.dns.len() <= DhcpLease::DNS_MAX
                    );
                    let times = [lease.renew_at, lease.rebind_at, lease.address.valid_until];
                    assert!(times.is_sorted() && lease.domain.len() <= DhcpLease::DOMAIN_MAX);
                    self.in_use = Some(lease);
                }
                DhcpOutput::Lost => assert!(self.in_use.take().is_some(), "nothing is lost twice"),
            }
        }
        assert_eq!(self.client.lease(), self.in_use.as_ref());
        sent
    }
}
