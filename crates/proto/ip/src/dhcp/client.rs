//! The state machine of a DHCP client (RFC 2131 §4.4): how a host gets its address, and how long it may keep
//! it.
//!
//! ```text
//!   Init --DISCOVER--> Selecting --offer: REQUEST--> Requesting --ACK--> Probing --nobody has it--> Bound <----------+
//!    ^  ^                                               | NAK, silence      | somebody: DECLINE        | T1: REQUEST  | ACK
//!    |  +-----------------------------------------------+-------------------+                          v              |
//!    +---- NAK, end of the lease ------- Rebinding <------ T2: REQUEST to all ------------------- Renewing ---------+
//! ```
//! Deliberately absent: INIT-REBOOT (a stack keeps nothing when it ends; a server that is restarted continues
//! with [`Client::resume`]), INFORM, authentication (RFC 3118).

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use atoll_base::{Duration, Instant, Rng};
use atoll_wire::Mac;
use atoll_wire::dhcp::{self, Header, Kind, MESSAGE_LEN_MIN, Message, option};

use super::lease::{Lease, is_server};

/// A DHCP client: asks servers for an address, renews the lease, and releases it.
///
/// The client is sans-IO: messages and times go in, [`Output`]s come out. The lease survives a crash, on the
/// replica's page. A question that was open is asked anew; servers recognise the client by its hardware
/// address.
#[derive(Debug)]
pub struct Client {
    mac: Mac,
    /// The MTU of the link, in octets.
    mtu: u16,
    state: State,
    /// The transaction identifier of the current exchange.
    xid: u32,
    /// When the client began to look for an address.
    began_at: Instant,
    /// The seconds from `began_at` to the last DISCOVER.
    secs: u16,
    /// When the current exchange began; a lease counts from there.
    asked_at: Instant,
    /// When the client acts next; [`Instant::FAR_FUTURE`] if only a message can make it act.
    due: Instant,
    /// Messages sent in this state, or probes.
    tries: u8,
    /// The lease that was offered, or that was given and is still being probed.
    next: Option<Lease>,
    /// The lease in use.
    lease: Option<Lease>,
    /// The previous address, which is asked for again.
    wanted: Option<u32>,
    /// The number of consecutive attempts that a server or another host ended.
    failures: u8,
    /// The station that the last answer came from: that of the server or of its relay.
    station: Option<Mac>,
    outputs: VecDeque<Output>,
}

/// The state of a client (RFC 2131, figure 5). `Probing` is the check between an ACK and BOUND that RFC 2131
/// §4.4.1 demands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// The client has not been started, or waits before it begins again.
    Init = 0,
    /// The client has asked which servers can give an address.
    Selecting = 1,
    /// The client has requested the address that was offered.
    Requesting = 2,
    /// The client checks whether another host has the address that it was given.
    Probing = 3,
    /// The client has an address.
    Bound = 4,
    /// The client has an address, and asks its server for more time.
    Renewing = 5,
    /// The client has an address, and asks all servers for more time.
    Rebinding = 6,
}

/// The actions that a client asks of its caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send a datagram from port 68 to port 67.
    Send {
        /// The own address, or 0 if there is none yet.
        src: u32,
        /// The address of the server, or 255.255.255.255.
        dst: u32,
        /// The payload of the datagram.
        message: Vec<u8>,
    },
    /// Ask by ARP whether a host has this address (RFC 5227 §2.1.1).
    Probe {
        /// The address to probe.
        addr: u32,
    },
    /// Use the address of this lease, which is new or was extended.
    Use(Lease),
    /// Stop using the address.
    Lost,
}

impl Client {
    /// Creates a client that does nothing until [`Client::start`]. `mtu` is that of the link, in octets.
    pub fn new(mac: Mac, mtu: u16) -> Client {
        Client {
            mac,
            mtu,
            state: State::Init,
            xid: 0,
            began_at: Instant::ZERO,
            secs: 0,
            asked_at: Instant::ZERO,
            due: Instant::FAR_FUTURE,
            tries: 0,
            next: None,
            lease: None,
            wanted: None,
            failures: 0,
            station: None,
            outputs: VecDeque::new(),
        }
    }

    /// Begins to look for an address; does nothing if the client is already started.
    ///
    /// DEVIATION: RFC 2131 §4.4.1 wants a wait of 1 to 10 seconds first; this client begins at once, like
    /// dhclient and systemd-networkd.
    pub fn start(&mut self, now: Instant, rng: &mut Rng) {
        if self.state == State::Init && self.due == Instant::FAR_FUTURE {
            self.discover(now, rng);
        }
    }

    /// Continues the lease of a predecessor if it is still valid and usable. Does nothing once the client is
    /// started.
    pub fn resume(&mut self, now: Instant, lease: &Lease) {
        let is_fine =
            lease.address.valid_until > now && lease.address.check().is_ok() && is_server(lease.server);
        if self.state != State::Init || self.due != Instant::FAR_FUTURE || !is_fine {
            return;
        }
        (self.began_at, self.asked_at) = (now, now);
        self.wanted = Some(lease.address.addr);
        self.state = State::Bound;
        self.due = lease.renew_at;
        self.lease = Some(lease.clone());
        self.outputs.push_back(Output::Use(lease.clone()));
        self.check_invariants();
    }

    /// Releases the address, if there is one, and stops the client (RFC 2131 §4.4.6).
    pub fn release(&mut self) {
        if let Some(lease) = self.lease.take() {
            let server = lease.server.to_be_bytes();
            let options: [(u8, &[u8]); 1] = [(option::SERVER_IDENTIFIER, &server)];
            self.send(Instant::ZERO, Kind::Release, lease.address.addr, lease.server, &options);
            self.outputs.push_back(Output::Lost);
        }
        (self.state, self.due, self.next) = (State::Init, Instant::FAR_FUTURE, None);
    }

    /// Returns the state of the client.
    pub const fn state(&self) -> State {
        self.state
    }

    /// Returns the lease in use.
    pub const fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    /// Returns the address that is being probed, if any.
    pub(crate) fn probed(&self) -> Option<u32> {
        self.next.as_ref().filter(|_| self.state == State::Probing).map(|lease| lease.address.addr)
    }

    /// Returns the station that the last answer came from.
    pub(crate) const fn station(&self) -> Option<Mac> {
        self.station
    }

    /// Returns when to call [`Client::handle_timeout`]; `None` if nothing is pending.
    pub fn next_timeout(&self) -> Option<Instant> {
        (self.due != Instant::FAR_FUTURE).then_some(self.due)
    }

    /// Returns the next thing that the caller is to do, if any.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Judges the payload of a datagram to port 68 that the station `from` has sent. Returns whether the
    /// message was believed.
    ///
    /// Never panics, whatever the bytes are. Nothing is authenticated: any host on the link receives
    /// broadcasts, and may answer first.
    pub fn handle(&mut self, now: Instant, from: Mac, bytes: &[u8], rng: &mut Rng) -> bool {
        let Ok(message) = dhcp::parse(bytes) else { return false };
        let Some(server) = message.word(option::SERVER_IDENTIFIER).filter(|server| is_server(*server)) else {
            return false;
        };
        if !self.is_for_us(&message) {
            return false;
        }
        let believed = match message.kind {
            Kind::Offer => self.handle_offer(now, &message, rng),
            Kind::Ack => self.handle_ack(now, &message, server, rng),
            Kind::Nak => self.handle_nak(now, server, rng),
            _ => false,
        };
        if believed {
            self.station = Some(from);
        }
        self.check_invariants();
        believed
    }

    /// Does what is due at `now`; does nothing if nothing is due.
    pub fn handle_timeout(&mut self, now: Instant, rng: &mut Rng) {
        if now < self.due {
            return;
        }
        if self.lease.as_ref().is_some_and(|lease| lease.address.valid_until <= now) {
            self.lose();
            self.discover(now, rng);
            return;
        }
        match self.state {
            State::Init => self.discover(now, rng),
            State::Selecting => self.repeat(now, rng),
            // RFC 2131 §4.4.1: after a minute without an answer the client begins again.
            State::Requesting if self.tries >= REQUESTS => self.discover(now, rng),
            State::Requesting => self.repeat(now, rng),
            State::Probing => self.probe(now, rng),
            State::Bound | State::Renewing
                if self.lease.as_ref().is_some_and(|lease| lease.rebind_at <= now) =>
            {
                self.ask_for_more(now, State::Rebinding, rng);
            }
            State::Bound => self.ask_for_more(now, State::Renewing, rng),
            State::Renewing | State::Rebinding => self.repeat(now, rng),
        }
        self.check_invariants();
    }

    /// Declines the probed address, because another station has it or wants it as well (RFC 5227 §2.1.1).
    pub fn handle_conflict(&mut self, now: Instant, rng: &mut Rng) {
        if self.state != State::Probing {
            return;
        }
        let Some(next) = self.next.take() else { return };
        let (addr, server) = (next.address.addr.to_be_bytes(), next.server.to_be_bytes());
        let options: [(u8, &[u8]); 2] =
            [(option::REQUESTED_ADDRESS, &addr), (option::SERVER_IDENTIFIER, &server)];
        self.send(now, Kind::Decline, 0, EVERYBODY, &options);
        self.wanted = None;
        self.begin_again(now, DECLINE_WAIT, rng);
    }

    /// Returns whether the message answers what this client has asked. RFC 6842 §3: a client identifier that
    /// comes back has to be ours.
    fn is_for_us(&self, message: &Message<'_>) -> bool {
        let mut identifier = [0; 32];
        let identifier = message.option(option::CLIENT_IDENTIFIER, &mut identifier);
        let Header { is_reply, xid, mac, .. } = message.header;
        is_reply
            && xid == self.xid
            && mac == self.mac
            && identifier.is_none_or(|id| id == identifier_of(self.mac))
    }

    /// Takes the first usable offer, like dhclient and systemd-networkd. Returns whether this one was taken.
    fn handle_offer(&mut self, now: Instant, message: &Message<'_>, rng: &mut Rng) -> bool {
        if self.state != State::Selecting {
            return false;
        }
        let Some(offer) = Lease::read(message, now, self.mtu, rng) else { return false };
        self.next = Some(offer);
        (self.state, self.tries, self.asked_at) = (State::Requesting, 0, now);
        self.repeat(now, rng);
        true
    }

    fn handle_ack(&mut self, now: Instant, message: &Message<'_>, server: u32, rng: &mut Rng) -> bool {
        let Some(given) = Lease::read(message, self.asked_at, self.mtu, rng) else { return false };
        if given.address.valid_until <= now {
            return false;
        }
        match (self.state, &self.next, &self.lease) {
            (State::Requesting, Some(offer), _)
                if offer.server == server && offer.address.addr == given.address.addr =>
            {
                self.begin_probing(now, given, rng);
            }
            (State::Renewing | State::Rebinding, _, Some(lease))
                if lease.address.addr == given.address.addr =>
            {
                self.bind(now, given);
            }
            (State::Renewing | State::Rebinding, _, Some(_)) => {
                self.lose();
                self.begin_probing(now, given, rng);
            }
            _ => return false,
        }
        true
    }

    fn handle_nak(&mut self, now: Instant, server: u32, rng: &mut Rng) -> bool {
        let is_ours = |lease: &Option<Lease>| lease.as_ref().is_some_and(|lease| lease.server == server);
        let counts = match self.state {
            State::Requesting => is_ours(&self.next),
            State::Renewing => is_ours(&self.lease),
            State::Rebinding => true,
            _ => false,
        };
        if !counts {
            return false;
        }
        self.lose();
        self.wanted = None;
        self.begin_again(now, NAK_WAIT, rng);
        true
    }

    /// Enters Selecting from Init.
    fn discover(&mut self, now: Instant, rng: &mut Rng) {
        self.next = None;
        self.xid = rng.next_u32();
        (self.state, self.tries, self.began_at) = (State::Selecting, 0, now);
        self.repeat(now, rng);
    }

    /// Enters Init for a while, which is longer each time, so that no other host can keep the client busy.
    fn begin_again(&mut self, now: Instant, wait: Duration, rng: &mut Rng) {
        self.next = None;
        self.state = State::Init;
        self.due = now + wait * (1 << self.failures.min(6)) + millis(rng.below(1000));
        self.failures = self.failures.saturating_add(1);
    }

    fn begin_probing(&mut self, now: Instant, given: Lease, rng: &mut Rng) {
        self.next = Some(given);
        (self.state, self.tries) = (State::Probing, 0);
        self.due = now + millis(1 + rng.below(PROBE_WAIT_MS));
    }

    /// Sends the next probe, or ends probing: the address is used then.
    fn probe(&mut self, now: Instant, rng: &mut Rng) {
        let Some(next) = &self.next else { return };
        if self.tries < PROBES {
            self.tries += 1;
            self.outputs.push_back(Output::Probe { addr: next.address.addr });
            self.due = now + PROBE_INTERVAL + millis(rng.below(PROBE_WAIT_MS));
            return;
        }
        match self.next.take() {
            Some(lease) if lease.address.valid_until > now => self.bind(now, lease),
            // The lease expired before it could begin.
            _ => self.begin_again(now, NAK_WAIT, rng),
        }
    }

    fn bind(&mut self, now: Instant, lease: Lease) {
        self.state = State::Bound;
        // The exchange, and the probes, may have taken longer than half of a short lease.
        self.due = lease.renew_at.max(now + RENEW_PAUSE);
        self.failures = 0;
        self.wanted = Some(lease.address.addr);
        self.lease = Some(lease.clone());
        self.outputs.push_back(Output::Use(lease));
    }

    /// Begins to renew or rebind the lease: T1 or T2 has come.
    fn ask_for_more(&mut self, now: Instant, state: State, rng: &mut Rng) {
        self.xid = rng.next_u32();
        (self.state, self.tries, self.asked_at) = (state, 0, now);
        self.began_at = now;
        self.repeat(now, rng);
    }

    fn lose(&mut self) {
        if self.lease.take().is_some() {
            self.outputs.push_back(Output::Lost);
        }
    }

    /// Sends the message of the current state, and schedules its repetition.
    fn repeat(&mut self, now: Instant, rng: &mut Rng) {
        // RFC 2131 §4.1: 4 seconds, doubled each time up to 64, plus or minus up to a second.
        let seconds = u64::from(4u32 << self.tries.min(4));
        self.due = now + Duration::from_millis(seconds * 1000 - 1000) + millis(rng.below(2001));
        self.tries = self.tries.saturating_add(1);
        let size = self.mtu.to_be_bytes();
        let common: [(u8, &[u8]); 2] =
            [(option::PARAMETER_LIST, &PARAMETERS), (option::MESSAGE_SIZE_MAX, &size)];
        match (self.state, &self.lease, &self.next) {
            (State::Selecting, ..) => {
                let wanted = self.wanted.unwrap_or(0).to_be_bytes();
                let options = [common[0], common[1], (option::REQUESTED_ADDRESS, &wanted[..])];
                let count = if self.wanted.is_some() { 3 } else { 2 };
                self.send(now, Kind::Discover, 0, EVERYBODY, &options[..count]);
            }
            (State::Requesting, _, Some(offer)) => {
                let (addr, server) = (offer.address.addr.to_be_bytes(), offer.server.to_be_bytes());
                let [list, size] = common;
                let chosen: [(u8, &[u8]); 2] =
                    [(option::REQUESTED_ADDRESS, &addr), (option::SERVER_IDENTIFIER, &server)];
                self.send(now, Kind::Request, 0, EVERYBODY, &[list, size, chosen[0], chosen[1]]);
            }
            (State::Renewing | State::Rebinding, Some(lease), _) => {
                let (is_renewing, addr) = (self.state == State::Renewing, lease.address.addr);
                let until = if is_renewing { lease.rebind_at } else { lease.address.valid_until };
                let dst = if is_renewing { lease.server } else { EVERYBODY };
                // RFC 2131 §4.4.5: half of what is left, but no less than a minute.
                let half = Duration::from_nanos(until.since(now).as_nanos() as u64 / 2);
                self.due = (now + half.max(RENEW_INTERVAL_MIN)).min(until);
                self.send(now, Kind::Request, addr, dst, &common);
            }
            _ => {}
        }
    }

    /// Queues a message. `own` is the address that we have, or 0.
    fn send(&mut self, now: Instant, kind: Kind, own: u32, dst: u32, options: &[(u8, &[u8])]) {
        let mut bytes = [0; MESSAGE_LEN_MIN];
        // The cast cannot truncate, because `min` limits the value.
        let elapsed = now.since(self.began_at).as_secs().min(u16::MAX.into()) as u16;
        let secs = match kind {
            Kind::Discover => {
                self.secs = elapsed;
                elapsed
            }
            // RFC 2131 §3.1 (3): an equal value makes relays that read it use the servers of the first
            // message.
            Kind::Request if self.state == State::Requesting => self.secs,
            Kind::Request => elapsed,
            // RFC 2131 table 5.
            _ => 0,
        };
        let header = Header { xid: self.xid, secs, client_addr: own, mac: self.mac, ..Header::default() };
        let mut at = dhcp::emit(&header, &mut bytes);
        at = dhcp::push_option(&mut bytes, at, option::MESSAGE_TYPE, &[kind as u8]);
        at = dhcp::push_option(&mut bytes, at, option::CLIENT_IDENTIFIER, &identifier_of(self.mac));
        for (code, data) in options {
            at = dhcp::push_option(&mut bytes, at, *code, data);
        }
        bytes[at] = option::END;
        self.outputs.push_back(Output::Send { src: own, dst, message: bytes.to_vec() });
    }

    /// Checks the invariants of the client in debug builds; panics if one is broken, which is a bug of the
    /// client.
    pub(crate) fn check_invariants(&self) {
        if cfg!(debug_assertions) {
            let has_lease = matches!(self.state, State::Bound | State::Renewing | State::Rebinding);
            assert_eq!(self.lease.is_some(), has_lease);
            assert_eq!(self.next.is_some(), matches!(self.state, State::Requesting | State::Probing));
            assert!(self.outputs.len() <= 8, "every call adds a few, and its caller takes them");
            // Only an infinite lease, or a client that was not started, waits for nothing.
            assert!(self.due != Instant::FAR_FUTURE || matches!(self.state, State::Bound | State::Init));
        }
    }
}

/// Returns the client identifier (RFC 2132 §9.14): the hardware type and the hardware address. Servers that
/// know hosts by hardware address find them by it.
fn identifier_of(mac: Mac) -> [u8; 7] {
    let Mac([a, b, c, d, e, f]) = mac;
    [1, a, b, c, d, e, f]
}

fn millis(n: u32) -> Duration {
    Duration::from_millis(n.into())
}

const EVERYBODY: u32 = u32::MAX;

/// The options that servers are asked for. RFC 3442: classless routes come before routers.
const PARAMETERS: [u8; 6] = [
    option::SUBNET_MASK,
    option::CLASSLESS_ROUTES,
    option::ROUTERS,
    option::DNS_SERVERS,
    option::DOMAIN_NAME,
    option::MTU,
];

/// The most requests for one offer: 4, 8, 16 and 32 seconds are a minute (RFC 2131 §4.1).
const REQUESTS: u8 = 4;
/// The shortest time between two requests while renewing or rebinding (RFC 2131 §4.4.5).
const RENEW_INTERVAL_MIN: Duration = Duration::from_secs(60);
/// The shortest time between two renewals, however short leases are.
const RENEW_PAUSE: Duration = Duration::from_millis(100);
/// The wait after a DECLINE: at least ten seconds (RFC 2131 §3.1 (5)).
const DECLINE_WAIT: Duration = Duration::from_secs(10);
/// The wait after a NAK. It grows each time, like that of systemd-networkd.
const NAK_WAIT: Duration = Duration::from_secs(1);
/// The number of probes (PROBE_NUM, RFC 5227 §1.1).
const PROBES: u8 = 3;
/// The time between two probes. DEVIATION: RFC 5227 §1.1 asks for 1 to 2 seconds between probes and 4 to 7 in
/// all, which a program at start would wait for. Stations on today's links answer within milliseconds;
/// NetworkManager waits for 200 ms in all.
const PROBE_INTERVAL: Duration = Duration::from_millis(200);
/// The upper bound, in milliseconds, of the random wait before the first probe and on top of each interval.
const PROBE_WAIT_MS: u32 = 200;
