//! Tests of the client alone, and as a part of a replica.

mod glue;

use std::vec::Vec;

use atoll_base::{Duration, Instant, Rng};
use atoll_wire::Mac;
use atoll_wire::dhcp::{self, Header, Kind, Message, option};

use super::{Client, Lease, Output, State};
use crate::config::V4Address;

const US: Mac = Mac([2, 0, 0, 0, 0, 1]);
const STATION: Mac = Mac([2, 0, 0, 0, 0, 9]);
const SERVER: u32 = 0x0a00_0001;
const OTHER: u32 = 0x0a00_0002;
const OURS: u32 = 0x0a00_0064;
const EVERYBODY: u32 = u32::MAX;

/// The answer of a server; `None` leaves an option out.
#[derive(Clone)]
struct Answer {
    kind: Kind,
    header: Header,
    server: Option<u32>,
    seconds: Option<u32>,
    mask: Option<u32>,
    more: Vec<(u8, Vec<u8>)>,
}

impl Answer {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = std::vec![0; 1500];
        let mut at = dhcp::emit(&self.header, &mut bytes);
        at = dhcp::push_option(&mut bytes, at, option::MESSAGE_TYPE, &[self.kind as u8]);
        for (code, value) in [
            (option::SERVER_IDENTIFIER, self.server),
            (option::LEASE_TIME, self.seconds),
            (option::SUBNET_MASK, self.mask),
        ] {
            if let Some(value) = value {
                at = dhcp::push_option(&mut bytes, at, code, &value.to_be_bytes());
            }
        }
        for (code, data) in &self.more {
            at = dhcp::push_option(&mut bytes, at, *code, data);
        }
        bytes[at] = option::END;
        bytes.truncate(at + 1);
        bytes
    }

    fn with(&self, change: impl FnOnce(&mut Answer)) -> Answer {
        let mut other = self.clone();
        change(&mut other);
        other
    }
}

/// The faults of an answer, by name.
struct Fault(&'static str, fn(&mut Answer));

struct Host {
    client: Client,
    rng: Rng,
    now: Instant,
}

impl Host {
    fn new(seed: u64) -> Host {
        let mut host =
            Host { client: Client::new(US, 1500), rng: Rng::new(seed), now: Instant::from_millis(5000) };
        host.client.start(host.now, &mut host.rng);
        host
    }

    /// Creates a client that has the address for `seconds`.
    fn bound(seconds: u32) -> Host {
        let mut host = Host::new(1);
        let asked = host.sent();
        host.hear(&asked.answer(Kind::Offer));
        let asked = host.sent();
        host.hear(&asked.answer(Kind::Ack).with(|answer| answer.seconds = Some(seconds)));
        while host.client.state() == State::Probing {
            host.wait();
            while host.client.poll().is_some() {}
        }
        assert_eq!(host.client.state(), State::Bound);
        host
    }

    fn hear(&mut self, answer: &Answer) -> bool {
        self.client.handle(self.now, STATION, &answer.bytes(), &mut self.rng)
    }

    /// Advances to the time at which the client has something to do, and lets it act.
    fn wait(&mut self) -> Duration {
        let due = self.client.next_timeout().expect("something is due");
        let waited = due.since(self.now);
        self.now = self.now.max(due);
        self.client.handle_timeout(self.now, &mut self.rng);
        waited
    }

    /// Returns the message that is sent next.
    fn sent(&mut self) -> Sent {
        match self.client.poll() {
            Some(Output::Send { src, dst, message }) => Sent { src, dst, bytes: message },
            other => panic!("{other:?} is no message"),
        }
    }

    fn silent(&mut self) {
        assert_eq!(self.client.poll(), None);
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Sent {
    src: u32,
    dst: u32,
    bytes: Vec<u8>,
}

impl Sent {
    fn message(&self) -> Message<'_> {
        dhcp::parse(&self.bytes).expect("a message")
    }

    fn kind(&self) -> (Kind, u32, u32) {
        (self.message().kind, self.src, self.dst)
    }

    /// Returns a right answer; tests change what they are about.
    fn answer(&self, kind: Kind) -> Answer {
        let asked = self.message().header;
        Answer {
            kind,
            header: Header {
                is_reply: true,
                xid: asked.xid,
                your_addr: OURS,
                mac: asked.mac,
                ..Header::default()
            },
            server: Some(SERVER),
            seconds: Some(1000),
            mask: Some(0xffff_ff00),
            more: Vec::new(),
        }
    }
}

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[test]
fn an_address_is_asked_for_found_free_and_used() {
    let mut host = Host::new(7);
    let discover = host.sent();
    assert_eq!(discover.kind(), (Kind::Discover, 0, EVERYBODY));
    assert_eq!(discover.message().word(option::REQUESTED_ADDRESS), None);
    assert_eq!(discover.message().octets(option::CLIENT_IDENTIFIER), Some([1, 2, 0, 0, 0, 0, 1]));
    assert!(host.hear(&discover.answer(Kind::Offer)));
    let request = host.sent();
    assert_eq!(request.kind(), (Kind::Request, 0, EVERYBODY));
    let word = |code| request.message().word(code);
    assert_eq!(word(option::REQUESTED_ADDRESS), Some(OURS));
    assert_eq!(word(option::SERVER_IDENTIFIER), Some(SERVER));
    assert_eq!(request.message().header.xid, discover.message().header.xid);
    let asked_at = host.now;
    host.now += Duration::from_millis(300);
    let router = (option::ROUTERS, 0x0a00_00feu32.to_be_bytes().to_vec());
    assert!(host.hear(&request.answer(Kind::Ack).with(|answer| answer.more.push(router))));
    for _ in 0..3 {
        host.silent();
        assert!(host.client.lease().is_none());
        host.wait();
        assert_eq!(host.client.poll(), Some(Output::Probe { addr: OURS }));
    }
    host.wait();
    let Some(Output::Use(lease)) = host.client.poll() else { panic!("the address is free") };
    let valid_until = asked_at + seconds(1000);
    let address =
        V4Address { gateway: Some(0x0a00_00fe), mtu: 1500, valid_until, ..V4Address::new(OURS, 24) };
    assert_eq!((lease.address, lease.server), (address, SERVER));
    // T1 is a half of the lease, or somewhat less; T2 is seven eighths (RFC 2131 §4.4.5).
    assert!((seconds(468)..=seconds(500)).contains(&lease.renew_at.since(asked_at)));
    assert_eq!(lease.rebind_at, asked_at + seconds(875));
    assert_eq!((host.client.state(), host.client.lease()), (State::Bound, Some(&lease)));
    host.silent();
}

#[test]
fn a_question_is_repeated_at_longer_and_longer_intervals() {
    let mut host = Host::new(2);
    let xid = host.sent().message().header.xid;
    let mut intervals = Vec::new();
    for mean in [4, 8, 16, 32, 64, 64] {
        let waited = host.wait();
        assert!((seconds(mean - 1)..=seconds(mean + 1)).contains(&waited), "{mean}: {waited:?}");
        intervals.push(waited);
        let again = host.sent();
        assert_eq!((again.kind(), again.message().header.xid), ((Kind::Discover, 0, EVERYBODY), xid));
    }
    assert_ne!(intervals[4], intervals[5], "they are randomised");
    assert!(host.client.lease().is_none());
}

#[test]
fn a_request_has_the_seconds_of_the_question_that_was_answered() {
    // covers: RFC 2131 §3.1 (3), so that relays pass both on to the same servers; table 5: 0 when an address is declined.
    let mut host = Host::new(2);
    assert_eq!(host.sent().message().header.secs, 0);
    host.wait();
    let discover = host.sent();
    let secs = discover.message().header.secs;
    assert!((3..=5).contains(&secs));
    host.now += seconds(2);
    host.hear(&discover.answer(Kind::Offer));
    host.sent();
    host.wait();
    let request = host.sent();
    assert_eq!((request.kind().0, request.message().header.secs), (Kind::Request, secs));
    host.hear(&request.answer(Kind::Ack));
    host.wait();
    assert_eq!(host.client.poll(), Some(Output::Probe { addr: OURS }));
    host.client.handle_conflict(host.now, &mut host.rng);
    let decline = host.sent();
    assert_eq!((decline.kind().0, decline.message().header.secs), (Kind::Decline, 0));
}

#[test]
fn messages_have_the_fields_and_options_of_table_5() {
    // covers: RFC 2131 §4.3.6 (table 4), §4.4.1 (table 5)
    let check = |sent: &Sent, kind, (src, dst): (u32, u32), requested, server, wants: bool| {
        let message = sent.message();
        assert_eq!((sent.kind(), message.header.client_addr), ((kind, src, dst), src));
        let header =
            Header { mac: US, xid: message.header.xid, secs: message.header.secs, ..Header::default() };
        assert_eq!(message.header, Header { client_addr: src, ..header }, "no flags, no other addresses");
        let words = [option::REQUESTED_ADDRESS, option::SERVER_IDENTIFIER, option::LEASE_TIME];
        assert_eq!(words.map(|code| message.word(code)), [requested, server, None], "{kind:?}");
        assert_eq!(message.octets(option::CLIENT_IDENTIFIER), Some([1, 2, 0, 0, 0, 0, 1]));
        let list = message.octets(option::PARAMETER_LIST);
        assert_eq!(list, wants.then_some([1, 121, 3, 6, 15, 26]), "{kind:?}");
        assert_eq!(
            message.octets(option::MESSAGE_SIZE_MAX),
            wants.then_some(1500u16.to_be_bytes()),
            "{kind:?}"
        );
    };
    let mut host = Host::new(3);
    let discover = host.sent();
    check(&discover, Kind::Discover, (0, EVERYBODY), None, None, true);
    host.hear(&discover.answer(Kind::Offer));
    let request = host.sent();
    check(&request, Kind::Request, (0, EVERYBODY), Some(OURS), Some(SERVER), true);
    assert_eq!(request.message().header.xid, discover.message().header.xid);
    host.hear(&request.answer(Kind::Ack));
    host.wait();
    assert_eq!(host.client.poll(), Some(Output::Probe { addr: OURS }));
    host.client.handle_conflict(host.now, &mut host.rng);
    check(&host.sent(), Kind::Decline, (0, EVERYBODY), Some(OURS), Some(SERVER), false);
    let mut host = Host::bound(1000);
    while host.client.state() != State::Rebinding {
        host.wait();
        let dst = if host.client.state() == State::Rebinding { EVERYBODY } else { SERVER };
        check(&host.sent(), Kind::Request, (OURS, dst), None, None, true);
    }
    host.client.release();
    let release = host.sent();
    check(&release, Kind::Release, (OURS, SERVER), None, Some(SERVER), false);
    assert_eq!(release.message().header.secs, 0);
}

#[test]
fn a_server_that_falls_silent_is_given_up_after_a_minute() {
    let mut host = Host::new(3);
    let discover = host.sent();
    host.hear(&discover.answer(Kind::Offer));
    let began_at = host.now;
    for _ in 0..3 {
        assert_eq!(host.sent().kind().0, Kind::Request);
        host.wait();
    }
    assert_eq!(host.sent().kind().0, Kind::Request);
    host.wait();
    let again = host.sent();
    assert_eq!(again.kind().0, Kind::Discover);
    assert_ne!(again.message().header.xid, discover.message().header.xid);
    assert!((seconds(56)..=seconds(64)).contains(&host.now.since(began_at)));
    // A late answer is ignored.
    assert!(!host.hear(&discover.answer(Kind::Ack)) && !host.hear(&discover.answer(Kind::Offer)));
}

#[test]
fn a_lease_is_renewed_by_its_server() {
    let mut host = Host::bound(1000);
    host.wait();
    assert_eq!(host.client.state(), State::Renewing);
    let request = host.sent();
    assert_eq!(request.kind(), (Kind::Request, OURS, SERVER));
    assert_eq!(request.message().header.client_addr, OURS);
    // RFC 2131, table 5: neither option is sent in RENEWING.
    for code in [option::REQUESTED_ADDRESS, option::SERVER_IDENTIFIER] {
        assert_eq!(request.message().word(code), None);
    }
    let asked_at = host.now;
    assert!(host.hear(&request.answer(Kind::Ack)));
    let Some(Output::Use(lease)) = host.client.poll() else { panic!("it was renewed") };
    assert_eq!(lease.address.valid_until, asked_at + seconds(1000));
    assert_eq!(host.client.state(), State::Bound);
    host.silent();
}

#[test]
fn what_is_not_renewed_is_asked_of_all_and_then_lost() {
    let mut host = Host::bound(1000);
    let lease = host.client.lease().unwrap().clone();
    host.wait();
    let mut kinds = Vec::new();
    while host.client.lease().is_some() {
        let sent = host.sent();
        assert_eq!((sent.message().kind, sent.src), (Kind::Request, OURS));
        kinds.push((host.client.state(), sent.dst));
        assert!(
            host.wait() >= seconds(59)
                || host.now == lease.rebind_at
                || host.now == lease.address.valid_until
        );
    }
    let renewing = kinds.iter().filter(|kind| **kind == (State::Renewing, SERVER)).count();
    let rebinding = kinds.iter().filter(|kind| **kind == (State::Rebinding, EVERYBODY)).count();
    assert!(renewing >= 3 && rebinding >= 2 && renewing + rebinding == kinds.len(), "{kinds:?}");
    assert_eq!(host.now, lease.address.valid_until);
    assert_eq!(host.client.poll(), Some(Output::Lost));
    let discover = host.sent();
    assert_eq!(discover.kind(), (Kind::Discover, 0, EVERYBODY));
    assert_eq!(discover.message().word(option::REQUESTED_ADDRESS), Some(OURS), "it is asked for again");
}

#[test]
fn who_wakes_up_late_asks_all_at_once() {
    let mut host = Host::bound(1000);
    host.now = host.client.lease().unwrap().rebind_at;
    host.client.handle_timeout(host.now, &mut host.rng);
    assert_eq!(host.sent().kind(), (Kind::Request, OURS, EVERYBODY));
    let mut host = Host::bound(1000);
    host.now = host.client.lease().unwrap().address.valid_until;
    host.client.handle_timeout(host.now, &mut host.rng);
    assert_eq!(host.client.poll(), Some(Output::Lost));
}

#[test]
fn an_answer_that_comes_too_late_gives_nothing() {
    let mut host = Host::bound(1000);
    host.wait();
    let request = host.sent();
    host.now += seconds(200);
    assert!(!host.hear(&request.answer(Kind::Ack).with(|answer| answer.seconds = Some(200))));
    assert!(host.hear(&request.answer(Kind::Ack).with(|answer| answer.seconds = Some(201))));
    assert!(
        host.client.next_timeout() > Some(host.now),
        "T1 has passed, but what was done just now is not due"
    );
}

#[test]
fn any_server_may_answer_who_asks_all() {
    let mut host = Host::bound(1000);
    while host.client.state() != State::Rebinding {
        host.wait();
    }
    let request = core::iter::from_fn(|| host.client.poll()).last();
    let Some(Output::Send { src, dst, message }) = request else { panic!("everybody was asked") };
    let request = Sent { src, dst, bytes: message };
    assert!(host.hear(&request.answer(Kind::Ack).with(|answer| answer.server = Some(OTHER))));
    assert_eq!(host.client.lease().map(|lease| lease.server), Some(OTHER));
}

#[test]
fn another_address_takes_the_place_of_the_old_one_when_it_was_found_free() {
    let mut host = Host::bound(1000);
    host.wait();
    let request = host.sent();
    assert!(host.hear(&request.answer(Kind::Ack).with(|answer| answer.header.your_addr = OURS + 1)));
    assert_eq!(host.client.poll(), Some(Output::Lost));
    assert_eq!((host.client.state(), host.client.probed()), (State::Probing, Some(OURS + 1)));
}

#[test]
fn a_nak_ends_what_it_is_about_and_nothing_else() {
    let mut host = Host::new(4);
    let discover = host.sent();
    assert!(!host.hear(&discover.answer(Kind::Nak)), "nothing was asked for");
    host.hear(&discover.answer(Kind::Offer));
    let request = host.sent();
    assert!(!host.hear(&request.answer(Kind::Nak).with(|answer| answer.server = Some(OTHER))));
    assert!(host.hear(&request.answer(Kind::Nak)));
    assert_eq!(host.client.state(), State::Init);

    let mut host = Host::bound(1000);
    host.wait();
    let request = host.sent();
    assert!(!host.hear(&request.answer(Kind::Nak).with(|answer| answer.server = Some(OTHER))));
    assert!(host.hear(&request.answer(Kind::Nak)));
    assert_eq!(host.client.poll(), Some(Output::Lost));
    host.wait();
    assert_eq!(host.sent().message().word(option::REQUESTED_ADDRESS), None, "that one was refused");
}

#[test]
fn who_is_driven_round_in_circles_gets_slower() {
    let mut host = Host::new(5);
    let mut waits = Vec::new();
    for _ in 0..9 {
        let discover = host.sent();
        host.hear(&discover.answer(Kind::Offer));
        let request = host.sent();
        host.hear(&request.answer(Kind::Nak));
        waits.push(host.wait().as_secs());
    }
    for (wait, least) in waits.iter().zip([1, 2, 4, 8, 16, 32, 64, 64, 64]) {
        assert!((least..=least + 1).contains(wait), "{waits:?}");
    }
}

#[test]
fn an_address_that_somebody_has_is_declined() {
    let mut host = Host::new(6);
    let discover = host.sent();
    host.hear(&discover.answer(Kind::Offer));
    let request = host.sent();
    host.hear(&request.answer(Kind::Ack));
    host.wait();
    assert_eq!(host.client.poll(), Some(Output::Probe { addr: OURS }));
    host.client.handle_conflict(host.now, &mut host.rng);
    let decline = host.sent();
    assert_eq!(decline.kind(), (Kind::Decline, 0, EVERYBODY));
    assert_eq!(decline.message().word(option::REQUESTED_ADDRESS), Some(OURS));
    assert_eq!(decline.message().word(option::SERVER_IDENTIFIER), Some(SERVER));
    // RFC 2131 §3.1 (5).
    assert!(host.wait() >= seconds(10));
    assert_eq!(host.sent().kind().0, Kind::Discover);
    // Earlier and later there is nothing to decline.
    let mut host = Host::new(6);
    let discover = host.sent();
    host.hear(&discover.answer(Kind::Offer));
    host.client.handle_conflict(host.now, &mut host.rng);
    let request = host.sent();
    assert!(host.hear(&request.answer(Kind::Ack)));
    let mut host = Host::bound(1000);
    host.client.handle_conflict(host.now, &mut host.rng);
    assert_eq!(host.client.state(), State::Bound);
}

#[test]
fn an_address_is_given_back() {
    let mut host = Host::bound(1000);
    host.client.release();
    let release = host.sent();
    assert_eq!(release.kind(), (Kind::Release, OURS, SERVER));
    assert_eq!(release.message().header.client_addr, OURS);
    assert_eq!(release.message().word(option::SERVER_IDENTIFIER), Some(SERVER));
    assert_eq!((host.client.poll(), host.client.poll()), (Some(Output::Lost), None));
    assert_eq!((host.client.lease(), host.client.next_timeout()), (None, None));
    let mut host = Host::new(1);
    host.sent();
    host.client.release();
    host.silent();
}

#[test]
fn only_answers_to_our_own_question_count() {
    let mut host = Host::new(8);
    let discover = host.sent();
    let good = discover.answer(Kind::Offer);
    let faults = [
        Fault("another question", |answer| answer.header.xid ^= 1),
        Fault("another station", |answer| answer.header.mac = STATION),
        Fault("no reply", |answer| answer.header.is_reply = false),
        Fault("a question", |answer| answer.kind = Kind::Discover),
        Fault("an early acknowledgement", |answer| answer.kind = Kind::Ack),
        Fault("no server", |answer| answer.server = None),
        Fault("a group as server", |answer| answer.server = Some(0xe000_0001)),
        Fault("a lease of no time", |answer| answer.seconds = Some(0)),
        Fault("a lease without time", |answer| answer.seconds = None),
        Fault("a mask with holes", |answer| answer.mask = Some(0xff00_ff00)),
        Fault("a mask of nothing", |answer| answer.mask = Some(0)),
        Fault("no address", |answer| answer.header.your_addr = 0),
        Fault("a loopback address", |answer| answer.header.your_addr = 0x7f00_0001),
        Fault("the network's address", |answer| answer.header.your_addr = OURS & 0xffff_ff00),
        Fault("the broadcast address", |answer| answer.header.your_addr = OURS | 0xff),
        Fault("somebody's identifier", |answer| {
            answer.more.push((option::CLIENT_IDENTIFIER, std::vec![1, 2, 3]))
        }),
    ];
    for Fault(what, change) in faults {
        assert!(!host.hear(&good.with(change)), "{what}");
        assert_eq!(host.client.state(), State::Selecting, "{what}");
    }
    let identifier = (option::CLIENT_IDENTIFIER, std::vec![1, 2, 0, 0, 0, 0, 1]);
    assert!(host.hear(&good.with(|answer| answer.more.push(identifier))));
    let request = host.sent();
    let good = request.answer(Kind::Ack);
    let faults = [
        Fault("another server", |answer| answer.server = Some(OTHER)),
        Fault("another address", |answer| answer.header.your_addr = OURS + 1),
        Fault("a second offer", |answer| answer.kind = Kind::Offer),
    ];
    for Fault(what, change) in faults {
        assert!(!host.hear(&good.with(change)), "{what}");
        assert_eq!(host.client.state(), State::Requesting, "{what}");
    }
    assert!(host.hear(&good));
}

/// Reads the lease of an acknowledgement with options.
fn lease(options: &[(u8, &[u8])]) -> Lease {
    let mut host = Host::new(9);
    let discover = host.sent();
    let answer = discover.answer(Kind::Ack).with(|answer| {
        answer.more = options.iter().map(|(code, data)| (*code, data.to_vec())).collect();
    });
    let bytes = answer.bytes();
    let message = dhcp::parse(&bytes).unwrap();
    Lease::read(&message, Instant::ZERO, 1500, &mut host.rng).expect("a host can live by it")
}

#[test]
fn routers_are_believed_as_the_standards_want_it() {
    let router = (option::ROUTERS, &[10, 0, 0, 254, 10, 0, 0, 253][..]);
    fn gateway(options: &[(u8, &[u8])]) -> Option<u32> {
        lease(options).address.gateway
    }
    assert_eq!(gateway(&[]), None);
    assert_eq!(gateway(&[router]), Some(0x0a00_00fe));
    // RFC 3442: 10.17.0.0/16 goes by 10.0.0.9, and everything else by 10.0.0.7; the option is in two pieces.
    let (first, second) = (&[16, 10, 17, 10, 0, 0, 9, 0, 10][..], &[0, 0, 7][..]);
    let routes = [(option::CLASSLESS_ROUTES, first), router, (option::CLASSLESS_ROUTES, second)];
    assert_eq!(gateway(&routes), Some(0x0a00_0007));
    // Without a default route there is no gateway, whatever the other option says.
    assert_eq!(gateway(&[router, (option::CLASSLESS_ROUTES, &[16, 10, 17, 10, 0, 0, 9])]), None);
    assert_eq!(gateway(&[router, (option::CLASSLESS_ROUTES, &[0, 10, 0])]), None);
    // An impossible gateway counts as none.
    for nonsense in [OURS, 0, 0x0a00_00ff, 0xe000_0001, 0x7f00_0001] {
        assert_eq!(gateway(&[(option::ROUTERS, &u32::to_be_bytes(nonsense))]), None, "{nonsense:08x}");
    }
}

#[test]
fn other_options_are_taken_within_bounds() {
    let mtu = |bytes: &[u8]| lease(&[(option::MTU, bytes)]).address.mtu;
    assert_eq!([&[5, 0][..], &[2, 63], &[255, 255], &[5]].map(mtu), [1280, 1500, 1500, 1500]);
    let dns: Vec<u8> = (0..50).flat_map(|n| [10, 0, 0, n]).chain([1, 2]).collect();
    assert_eq!(
        lease(&[(option::DNS_SERVERS, &dns)]).dns,
        [0x0a00_0000, 0x0a00_0001, 0x0a00_0002, 0x0a00_0003]
    );
    let domain = |name: &[u8]| lease(&[(option::DOMAIN_NAME, name)]).domain;
    assert_eq!(domain(b"example.org\0"), "example.org");
    assert_eq!([&b"a b"[..], b"x;rm -rf", b"\x1b[2J", &[b'a'; 254]].map(domain), [""; 4]);
}

#[test]
fn times_are_the_servers_where_they_make_sense() {
    let times = |renew: u32, rebind: u32| {
        let lease = lease(&[
            (option::RENEWAL_TIME, &renew.to_be_bytes()),
            (option::REBINDING_TIME, &rebind.to_be_bytes()),
        ]);
        [lease.renew_at, lease.rebind_at].map(|at| at.since(Instant::ZERO).as_secs_f64().round() as u32)
    };
    let [renew, rebind] = times(100, 200);
    assert!((93..=100).contains(&renew) && rebind == 200);
    for (renew, rebind) in [(0, 200), (200, 100), (100, 1000), (2000, 3000)] {
        let [renew, rebind] = times(renew, rebind);
        assert!((468..=500).contains(&renew) && rebind == 875);
    }
}

#[test]
fn a_lease_for_ever_is_never_renewed() {
    let host = Host::bound(u32::MAX);
    assert_eq!(host.client.next_timeout(), None);
    assert_eq!(host.client.lease().map(|lease| lease.address.valid_until), Some(Instant::FAR_FUTURE));
    // A second less than for ever is more than a century.
    assert!(Host::bound(u32::MAX - 1).client.next_timeout().is_some());
}

#[test]
fn a_mask_that_is_missing_is_that_of_the_class() {
    for (addr, len) in [(OURS, 8), (0xac10_0001, 16), (0xc0a8_0001, 24)] {
        let mut host = Host::new(1);
        let discover = host.sent();
        let answer = discover.answer(Kind::Offer).with(|answer| {
            (answer.mask, answer.header.your_addr) = (None, addr);
        });
        assert!(host.hear(&answer));
        let request = host.sent();
        assert!(host.hear(&request.answer(Kind::Ack).with(|answer| {
            (answer.mask, answer.header.your_addr) = (None, addr);
        })));
        while host.client.lease().is_none() {
            host.wait();
        }
        assert_eq!(host.client.lease().map(|lease| lease.address.prefix_len), Some(len));
    }
}

#[test]
fn noise_never_panics() {
    for seed in 0..300 {
        let mut host = Host::new(seed);
        let mut rng = Rng::new(seed);
        let mut last = None;
        for _ in 0..200 {
            while let Some(output) = host.client.poll() {
                if let Output::Send { src, dst, message } = output {
                    last = Some(Sent { src, dst, bytes: message });
                }
            }
            let kinds = [Kind::Offer, Kind::Ack, Kind::Nak];
            let asked = last.as_ref().expect("something was asked");
            let mut bytes = asked.answer(kinds[rng.below(3) as usize]).bytes();
            for _ in 0..rng.below(3) {
                let at = rng.below(bytes.len() as u32) as usize;
                bytes[at] = rng.next_u32() as u8;
            }
            match rng.below(6) {
                0 => _ = host.wait(),
                1 => host.client.handle_conflict(host.now, &mut host.rng),
                _ => _ = host.client.handle(host.now, STATION, &bytes, &mut host.rng),
            }
            if host.client.next_timeout().is_none() {
                break;
            }
        }
    }
}

#[test]
fn a_successor_goes_on_with_the_lease() {
    let mut before = Host::bound(1000);
    let lease = before.client.lease().expect("it is bound").clone();
    let now = before.now + Duration::from_secs(100);
    let resumed = Lease::resumed(now, lease.address, lease.server, lease.dns.clone(), lease.domain.clone());
    assert!(
        now < resumed.renew_at
            && resumed.renew_at < resumed.rebind_at
            && resumed.rebind_at < lease.address.valid_until
    );
    let mut next = Host { client: Client::new(US, 1500), rng: Rng::new(2), now };
    next.client.resume(now, &resumed);
    next.client.start(now, &mut next.rng);
    assert_eq!(next.client.poll(), Some(Output::Use(resumed.clone())));
    assert_eq!((next.client.poll(), next.client.state()), (None, State::Bound));
    // The lease is renewed in time.
    next.wait();
    assert_eq!((next.client.state(), next.now), (State::Renewing, resumed.renew_at));
    let asked = next.sent();
    assert!(next.hear(&asked.answer(Kind::Ack)));
    assert_eq!(next.client.state(), State::Bound);
    // An infinite lease is not renewed; one that has ended, or makes no sense, is asked for anew.
    let forever = V4Address { valid_until: Instant::FAR_FUTURE, ..lease.address };
    assert_eq!(Lease::resumed(now, forever, SERVER, Vec::new(), "".into()).renew_at, Instant::FAR_FUTURE);
    let late = lease.address.valid_until;
    let nonsense = V4Address { addr: u32::MAX, ..lease.address };
    for (at, lease) in [
        (late, lease.clone()),
        (now, Lease { server: 0, ..lease.clone() }),
        (now, Lease { address: nonsense, ..lease }),
    ] {
        let mut next = Host { client: Client::new(US, 1500), rng: Rng::new(2), now: at };
        next.client.resume(at, &lease);
        next.client.start(at, &mut next.rng);
        assert_eq!(next.client.state(), State::Selecting);
    }
    before.client.release();
}
