//! A rig in which the real code runs step by step, in one process and without devices. It has one replica's
//! transport server and connection manager with one application, which uses the client that programs load
//! ([`atoll_sockets::client`]). The clients are on a stack of their own.
//!
//! The steps of many connections are taken together, as a busy replica does, so that what a batch costs is
//! shared and reading the clock does not count.

mod measure;
mod replay;

use std::time::Duration;

use atoll_base::{Addr, Endpoint, Epoch, FlowKey, Instant, ReplicaId, SessionId};
use atoll_ip::{ChecksumOffload, Ip};
use atoll_ipc::arena::ArenaConfig;
use atoll_ipc::command::Protocol;
use atoll_ipc::control::User;
use atoll_ipc::page::{
    APP_PAGE_BYTES, AppPage, BELLS, REPLICA_PAGE_BYTES, ReplicaPage, STACK_PAGE_BYTES, StackFacts, StackPage,
};
use atoll_shm::ShmMemory;
use atoll_sockets::Failure;
use atoll_sockets::client::Client;
use atoll_sockets::client::object::{Object, any};
use atoll_sockets::client::simulated::{Moment, Opening, Simulated, joined};
use atoll_sockets::client::transfer::{Receiving, Sending};
use atoll_transport::{Config, FrameSink, Offload, Secrets, TextRef, Transport};
use atoll_wire::Mac;

pub use measure::measure;
pub use replay::{Replay, record, replay};

/// The number of connections whose steps are taken together.
pub(crate) const BATCH: usize = 16;
const PORT: u16 = 80;
const SESSION: SessionId = SessionId(1);
const ARENA: ArenaConfig = ArenaConfig { slots: 256, send_log2: 20, receive_log2: 20 };
/// The most rounds that bind(2) and listen(2) take.
const ROUNDS_TO_LISTEN: usize = 4;
const REQUEST: &[u8] =
    b"GET /4 HTTP/1.0\r\nHost: 198.18.0.2\r\nUser-Agent: ApacheBench/2.3\r\nAccept: */*\r\n\r\n";
const PAGE: &[u8] =
    b"HTTP/1.1 200 OK\r\nServer: nginx\r\nDate: Sat, 21 Nov 2026 12:00:00 GMT\r\nContent-Type: text/plain\r\n\
Content-Length: 4\r\nLast-Modified: Sat, 21 Nov 2026 12:00:00 GMT\r\nConnection: close\r\n\
ETag: \"6741-4\"\r\n\
Accept-Ranges: bytes\r\n\r\npage";

/// The frames of one flush, one behind the other.
#[derive(Default)]
pub(crate) struct Frames {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Frames {
    fn push(&mut self, headers: &[u8], text: &TextRef<'_, ShmMemory>) -> bool {
        self.bytes.extend_from_slice(headers);
        let at = self.bytes.len();
        self.bytes.resize(at + text.len(), 0);
        text.copy_to(&mut self.bytes[at..]);
        self.ends.push(self.bytes.len());
        true
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        begins.zip(&self.ends).map(|(begin, &end)| &self.bytes[begin..end])
    }

    fn append(&mut self, other: &Frames) {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(&other.bytes);
        self.ends.extend(other.ends.iter().map(|end| at + end));
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }
}

impl FrameSink<ShmMemory> for Frames {
    fn send(&mut self, headers: &[u8], text: TextRef<'_, ShmMemory>, _: Offload) -> bool {
        self.push(headers, &text)
    }

    fn send_internal(&mut self, headers: &[u8], text: TextRef<'_, ShmMemory>, _: Offload) -> bool {
        self.push(headers, &text)
    }

    fn segment_max(&self) -> u32 {
        16 << 10
    }
}

/// A stack of one replica with one application.
pub(crate) struct Side {
    transport: Transport<ShmMemory>,
    client: Client<Simulated<ShmMemory>>,
    clock: Moment,
    pub(crate) out: Frames,
    /// The listening socket, if there is one.
    listener: Option<u32>,
    /// The connections of this batch.
    open: Vec<u32>,
    scratch: Vec<u8>,
}

impl Side {
    pub(crate) fn new(host: u8, now: Instant) -> Side {
        let config = Config::new(ReplicaId(0), 1, Epoch(1), FlowKey { k0: 1, k1: 2 });
        let ip_config = atoll_ip::Config::new(mac(host), address(host), 24);
        let ip = Ip::new(ip_config, u64::from(host), now).expect("a valid network");
        let page = ReplicaPage(memory(REPLICA_PAGE_BYTES));
        page.announce(ReplicaId(0), Epoch(1));
        let secrets =
            Secrets { sequence: [host; 16], fast_open: [host; 16], leases: [1; 16], table: 5, ports: 7 };
        let mut transport = Transport::new(config, secrets, ip, page.clone(), now);
        transport.set_owners(|_| ReplicaId(0));
        let layout = ARENA.layout();
        let arena = memory(layout.total);
        let app = AppPage(memory(APP_PAGE_BYTES));
        // The replica always takes the application for asleep, so that it sends every wake-up.
        (0..BELLS as u32).for_each(|bell| app.set_sleep_word(bell, 1));
        transport.open_session(now, (SESSION, User::privileged(0)), layout, arena.clone(), app.clone());
        let stack = StackPage(memory(STACK_PAGE_BYTES));
        let facts = StackFacts {
            replicas: 1,
            addr: address(host),
            prefix_len: 24,
            mtu: 1500,
            ..StackFacts::default()
        };
        stack.write_facts(&facts);
        let (client, clock) = joined(SESSION.0, ARENA, stack, app, (page.0, arena));
        let open = Vec::with_capacity(BATCH);
        Side {
            transport,
            client,
            clock,
            out: Frames::default(),
            listener: None,
            open,
            scratch: vec![0; 4096],
        }
    }

    pub(crate) fn listen(&mut self, now: Instant) {
        let object = self.client.insert(Object::socket(Protocol::Tcp, false, true));
        let local = Endpoint { port: PORT, ..any(false) };
        let opening = Opening::bind(&mut self.client, object, local).expect("it is fresh");
        self.finish(now, opening);
        let opening = Opening::listen(&mut self.client, object, 511).expect("it is bound");
        self.finish(now, opening);
        self.client.accept_connections(object);
        self.listener = Some(object);
        self.work(now);
    }

    fn finish(&mut self, now: Instant, mut opening: Opening) {
        for _ in 0..ROUNDS_TO_LISTEN {
            self.work(now);
            self.take_events();
            match opening.poll(&mut self.client) {
                Err(Failure::WouldBlock) => {}
                result => return result.expect("the port is free"),
            }
        }
        panic!("the server does not answer");
    }

    /// Handles frames that arrive, and sends what follows from them.
    pub(crate) fn receive<'a>(&mut self, now: Instant, frames: impl Iterator<Item = &'a [u8]>) {
        for frame in frames {
            self.transport.handle_frame(now, frame, ChecksumOffload::Partial, false);
        }
        self.flush(now);
    }

    /// Carries out the application's commands.
    pub(crate) fn work(&mut self, now: Instant) {
        assert!(!self.client.has_waiting(), "the ring takes a batch");
        self.clock.set(now);
        while self.transport.handle_commands(now, 64) {}
        self.transport.handle_timers(now);
        self.flush(now);
    }

    fn flush(&mut self, now: Instant) {
        self.out.clear();
        self.transport.flush(now, &mut self.out);
        self.transport.take_bells(|_, _| {});
    }

    /// Opens connections, as clients do.
    fn connect(&mut self, count: usize, to: u8) {
        self.open.clear();
        for _ in 0..count {
            let object = self.client.insert(Object::socket(Protocol::Tcp, false, true));
            let remote = Endpoint::at(Addr::v4(address(to)), PORT);
            self.client.connect(object, remote).expect("there are slots");
            self.open.push(object);
        }
    }

    /// Handles every event.
    pub(crate) fn take_events(&mut self) {
        self.client.drain();
    }

    /// Claims the connections that are offered.
    pub(crate) fn accept(&mut self) {
        self.open.clear();
        let listener = self.listener.expect("it listens");
        loop {
            match self.client.accept(listener, true) {
                Ok(object) => self.open.push(object),
                Err(Failure::WouldBlock) => return,
                Err(Failure::Error(errno)) => panic!("accept: {errno:?}"),
            }
        }
    }

    /// Reads from each open connection, and writes `text`. Returns the number of connections that had
    /// something.
    pub(crate) fn exchange(&mut self, text: &[u8]) -> usize {
        let mut had = 0;
        for &object in &self.open {
            let (want, mut done) = (self.scratch.len(), 0);
            let scratch = &mut self.scratch[..];
            let target = || std::iter::once(scratch);
            let received = self.client.receive_octets(object, target, want, Receiving::default(), &mut done);
            had += usize::from(received.is_ok_and(|len| len > 0));
            if !text.is_empty() {
                let (source, mut done) = (|| std::iter::once(text), 0);
                let sent = self.client.send_octets(object, source, text.len(), Sending::default(), &mut done);
                assert_eq!((sent.is_ok(), done), (true, text.len()), "a buffer holds a page");
            }
        }
        had
    }

    /// Closes every open connection.
    pub(crate) fn close(&mut self) {
        for object in self.open.drain(..) {
            self.client.release(object);
        }
    }
}

/// Creates shared memory of this size.
fn memory(bytes: usize) -> ShmMemory {
    ShmMemory::create("atoll-paper", bytes).expect("a few megabytes of shared memory").1
}

fn mac(host: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, host])
}

fn address(host: u8) -> u32 {
    0xc612_0000 | u32::from(host)
}

/// The steps of a short connection at the server, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The server turns SYNs into SYN-ACKs.
    Syn,
    /// The server turns the handshakes' ACKs into CONNECTION-AVAILABLE.
    Ack,
    /// The server puts requests into receive buffers.
    Text,
    /// The application claims connections.
    Accept,
    /// The application reads a request and writes a page.
    Request,
    /// The application closes.
    Close,
    /// The server turns claims, pages and closes into segments.
    Respond,
    /// The server turns the peers' FINs into the last ACKs.
    Fin,
}

/// The server's and the clients' side.
pub(crate) struct Rig {
    pub(crate) server: Side,
    clients: Side,
    pub(crate) now: Instant,
}

const SERVER: u8 = 2;
const CLIENTS: u8 = 1;

impl Rig {
    pub(crate) fn new() -> Rig {
        let now = Instant::from_millis(1000);
        let mut rig = Rig { server: Side::new(SERVER, now), clients: Side::new(CLIENTS, now), now };
        rig.server.listen(now);
        rig
    }

    fn pass(&mut self) {
        self.now += Duration::from_micros(50);
    }

    /// Runs a batch of short connections from their SYNs to their ends. `watch` runs each step of the server;
    /// its arguments are the kind of step, the frames that come in (for steps that have any), and the step
    /// itself.
    pub(crate) fn short(&mut self, watch: &mut dyn FnMut(Step, Instant, &mut Side, &Frames)) {
        self.open();
        let syns = self.take_from_clients();
        watch(Step::Syn, self.now, &mut self.server, &syns);
        self.pass();
        self.clients.receive(self.now, self.server.out.iter());
        let acks = self.take_from_clients();
        watch(Step::Ack, self.now, &mut self.server, &acks);
        self.clients.take_events();
        self.clients.exchange(REQUEST);
        self.clients.work(self.now);
        let texts = self.take_from_clients();
        self.pass();
        watch(Step::Text, self.now, &mut self.server, &texts);
        let nothing = Frames::default();
        self.pass();
        for step in [Step::Accept, Step::Request, Step::Close, Step::Respond] {
            watch(step, self.now, &mut self.server, &nothing);
        }
        self.pass();
        for frame in self.server.out.iter() {
            self.clients.transport.handle_frame(self.now, frame, ChecksumOffload::Partial, false);
        }
        // What was received is published by a flush, whose ACK goes with the FIN.
        self.clients.flush(self.now);
        let acks = self.take_from_clients();
        self.clients.take_events();
        assert_eq!(self.clients.exchange(&[]), BATCH, "every page arrives");
        self.clients.close();
        self.clients.work(self.now);
        let mut fins = acks;
        fins.append(&self.take_from_clients());
        self.pass();
        watch(Step::Fin, self.now, &mut self.server, &fins);
        self.pass();
        self.clients.receive(self.now, self.server.out.iter());
        self.clients.work(self.now);
        self.clients.take_events();
    }

    /// Opens a batch of connections that stay.
    pub(crate) fn keep_open(&mut self) {
        self.open();
        let syns = self.take_from_clients();
        self.server.receive(self.now, syns.iter());
        self.clients.receive(self.now, self.server.out.iter());
        let acks = self.take_from_clients();
        self.server.receive(self.now, acks.iter());
        self.server.take_events();
        self.server.accept();
        self.server.work(self.now);
        self.clients.take_events();
    }

    /// Exchanges a request and a page on each connection that stays; `respond` lets the server send the
    /// pages.
    pub(crate) fn request_again<T>(
        &mut self,
        request: &[u8],
        page: &[u8],
        respond: impl FnOnce(&mut Side, Instant) -> T,
    ) -> T {
        self.clients.exchange(request);
        self.clients.work(self.now);
        self.pass();
        self.server.receive(self.now, self.clients.out.iter());
        self.server.take_events();
        assert_eq!(self.server.exchange(page), BATCH, "every request arrives");
        let result = respond(&mut self.server, self.now);
        self.pass();
        self.clients.receive(self.now, self.server.out.iter());
        self.clients.take_events();
        assert_eq!(self.clients.exchange(&[]), BATCH, "every page arrives");
        self.clients.work(self.now);
        // The clients may report what they read.
        let reports = self.take_from_clients();
        self.server.receive(self.now, reports.iter());
        result
    }

    /// Opens a batch of connections, whose SYNs are then in the clients' output. The first batch resolves the
    /// server's address before.
    fn open(&mut self) {
        self.clients.connect(BATCH, SERVER);
        self.clients.work(self.now);
        if self.clients.out.ends.len() == 1 {
            self.pass();
            self.server.receive(self.now, self.clients.out.iter());
            self.clients.receive(self.now, self.server.out.iter());
        }
        assert_eq!(self.clients.out.ends.len(), BATCH, "a SYN each");
    }

    fn take_from_clients(&mut self) -> Frames {
        std::mem::take(&mut self.clients.out)
    }
}

/// Takes one step of the server.
pub(crate) fn take(step: Step, now: Instant, server: &mut Side, frames: &Frames) {
    match step {
        Step::Syn | Step::Ack | Step::Text | Step::Fin => server.receive(now, frames.iter()),
        Step::Accept => {
            server.take_events();
            server.accept();
        }
        Step::Request => assert_eq!(server.exchange(PAGE), BATCH, "every request arrives"),
        Step::Close => server.close(),
        Step::Respond => server.work(now),
    }
}

#[cfg(test)]
mod tests;
