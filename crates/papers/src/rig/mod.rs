//! What does the real code take, step by step? One replica's transport server and connection manager with one application, and clients
//! on a stack of their own, in one process and without devices.
//!
//! The steps of many connections are taken together, as a busy replica does, so that what a batch costs is shared and reading the clock
//! does not count.

mod measure;
mod replay;

use std::time::Duration;

use atoll_base::{Addr, Endpoint, Epoch, FlowKey, Instant, ReplicaId, SessionId, SlotId};
use atoll_ip::{ChecksumOffload, Ip};
use atoll_ipc::arena::ArenaConfig;
use atoll_ipc::command::{CloseMode, Protocol};
use atoll_ipc::control::User;
use atoll_ipc::page::{APP_PAGE_BYTES, AppPage, REPLICA_PAGE_BYTES, ReplicaPage};
use atoll_ipc::{Command, Event};
use atoll_shm::ShmMemory;
use atoll_sockets::listener::{self, Claim, Offer};
use atoll_sockets::port::Port;
use atoll_sockets::stream::{Local, Stream};
use atoll_transport::{Config, FrameSink, Offload, Secrets, TextRef, Transport};
use atoll_wire::Mac;

pub use measure::measure;
pub use replay::{Replay, record, replay};

/// Connections whose steps are taken together.
pub(crate) const BATCH: usize = 16;
const PORT: u16 = 80;
const LEASE: u64 = 77;
const SESSION: SessionId = SessionId(1);
const BELL: u32 = 1;
const REQUEST: &[u8] = b"GET /4 HTTP/1.0\r\nHost: 198.18.0.2\r\nUser-Agent: ApacheBench/2.3\r\nAccept: */*\r\n\r\n";
const PAGE: &[u8] =
    b"HTTP/1.1 200 OK\r\nServer: nginx\r\nDate: Sat, 21 Nov 2026 12:00:00 GMT\r\nContent-Type: text/plain\r\n\
Content-Length: 4\r\nLast-Modified: Sat, 21 Nov 2026 12:00:00 GMT\r\nConnection: close\r\nETag: \"6741-4\"\r\n\
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
    port: Port<ShmMemory>,
    pub(crate) out: Frames,
    offers: Vec<Offer>,
    open: Vec<(SlotId, u32, Local)>,
    scratch: Vec<u8>,
}

impl Side {
    pub(crate) fn new(host: u8, now: Instant) -> Side {
        let config = Config::new(ReplicaId(0), 1, Epoch(1), FlowKey { k0: 1, k1: 2 });
        let ip_config = atoll_ip::Config::new(mac(host), address(host), 24);
        let ip = Ip::new(ip_config, u64::from(host), now).expect("a valid network");
        let page = ReplicaPage(memory(REPLICA_PAGE_BYTES));
        let secrets = Secrets { sequence: [host; 16], fast_open: [host; 16], leases: [1; 16], table: 5, ports: 7 };
        let mut transport = Transport::new(config, secrets, ip, page, now);
        transport.set_owners(|_| ReplicaId(0));
        let layout = ArenaConfig { slots: 256, send_log2: 20, receive_log2: 20 }.layout();
        let arena = memory(layout.total);
        let app = AppPage(memory(APP_PAGE_BYTES));
        // It sleeps all the time, as far as the replica knows: every wake-up is taken note of.
        app.set_sleep_word(BELL, 1);
        transport.open_session(now, (SESSION, User::privileged(0)), layout, arena.clone(), app);
        let port = Port::new(arena, layout);
        let open = Vec::with_capacity(BATCH);
        Side { transport, port, out: Frames::default(), offers: Vec::new(), open, scratch: vec![0; 4096] }
    }

    pub(crate) fn listen(&mut self) {
        let local = Endpoint::at(Addr::V4_ANY, PORT);
        let (reuse_addr, reuse_port, v6_only) = (true, false, false);
        let protocol = Protocol::Tcp;
        self.push(&Command::Bind { token: 1, lease: LEASE, protocol, local, reuse_addr, reuse_port, v6_only });
        self.push(&Command::Listen {
            token: 2,
            lease: LEASE,
            local,
            backlog: 511,
            reuse_port,
            defer_accept: 0,
            v6_only,
        });
        self.push(&Command::AcceptConnection { lease: LEASE });
    }

    fn push(&mut self, command: &Command) {
        assert!(self.port.push(command), "the ring takes a batch");
    }

    /// Frames arrive, and what they lead to leaves.
    pub(crate) fn receive<'a>(&mut self, now: Instant, frames: impl Iterator<Item = &'a [u8]>) {
        for frame in frames {
            self.transport.handle_frame(now, frame, ChecksumOffload::Partial, false);
        }
        self.flush(now);
    }

    /// The application's commands are carried out.
    pub(crate) fn work(&mut self, now: Instant) {
        while self.transport.handle_commands(now, 64) {}
        self.transport.handle_timers(now);
        self.flush(now);
    }

    fn flush(&mut self, now: Instant) {
        self.out.clear();
        self.transport.flush(now, &mut self.out);
        self.transport.take_bells(|_, _| {});
    }

    /// Clients: opens connections.
    fn connect(&mut self, count: usize, to: u8) {
        self.open.clear();
        for _ in 0..count {
            let (slot, generation) = self.port.allocate_slot().expect("there are slots");
            let view = self.port.slot(slot).expect("it was allocated");
            view.set_holders(1);
            view.set_bell(BELL);
            let remote = Endpoint::at(Addr::v4(address(to)), PORT);
            self.push(&Command::Connect { slot, generation, lease: 0, local: Endpoint::default(), remote });
            self.open.push((slot, generation, Local::default()));
        }
    }

    /// Takes note of every event.
    pub(crate) fn take_events(&mut self) {
        while let Some(event) = self.port.next_event() {
            match event {
                Event::ConnectionAvailable { slot, generation, local, remote, .. } => {
                    self.offers.push(Offer { replica: 0, slot, generation, local, remote });
                }
                Event::SlotDone { slot, generation } => {
                    self.port.slot_done(slot, generation);
                }
                Event::ClaimVerdict { .. }
                | Event::AcceptorRemoved { .. }
                | Event::ConnectionsWait { .. }
                | Event::Ready { .. }
                | Event::BindReply { .. }
                | Event::ListenReply { .. }
                | Event::InfoReply { .. }
                | Event::GroupReply { .. } => {}
            }
        }
        self.port.publish();
    }

    /// Claims what is offered.
    pub(crate) fn accept(&mut self) {
        self.open.clear();
        for offer in std::mem::take(&mut self.offers) {
            assert_eq!(listener::claim(&self.port, &offer, 0, BELL), Claim::Held, "nobody revokes");
            self.push(&Command::Claim { slot: offer.slot, generation: offer.generation });
            self.open.push((offer.slot, offer.generation, Local::default()));
        }
    }

    /// Reads what there is of each open connection and writes `text`. Returns how many had something.
    pub(crate) fn exchange(&mut self, text: &[u8]) -> usize {
        let mut had = 0;
        for (slot, generation, local) in &mut self.open {
            let stream = Stream::new(&self.port, *slot, *generation).expect("a slot");
            if let Ok(readable) = stream.readable(local)
                && readable.len > 0
            {
                let len = (readable.len as usize).min(self.scratch.len());
                assert!(stream.copy_out(&readable, readable.head, &mut self.scratch[..len]), "it is covered");
                stream.consume(readable.head + len as u64);
                had += 1;
            }
            if !text.is_empty() {
                let room = stream.writable(local, text.len()).unwrap_or_else(|_| panic!("a buffer is empty"));
                assert_eq!(room.len, text.len(), "a buffer holds a page");
                stream.copy_in(&room, 0, text);
                stream.commit(&room, room.len);
                let (slot, generation) = (*slot, *generation);
                assert!(self.port.push(&Command::Kick { slot, generation }), "the ring takes a batch");
            }
        }
        had
    }

    /// Closes every open connection.
    pub(crate) fn close(&mut self) {
        for (slot, generation, _) in std::mem::take(&mut self.open) {
            self.port.mark_closing(slot, generation);
            self.push(&Command::Close { slot, generation, mode: CloseMode::Graceful });
        }
    }
}

/// Memory as processes share it.
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
    /// SYNs to SYN-ACKs.
    Syn,
    /// The handshakes' ACKs to CONNECTION-AVAILABLE.
    Ack,
    /// Requests into receive buffers.
    Text,
    /// The application claims.
    Accept,
    /// It reads a request and writes a page.
    Request,
    /// It closes.
    Close,
    /// Claims, pages and closes to segments.
    Respond,
    /// The peers' FINs to the last ACKs.
    Fin,
}

/// Both sides.
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
        rig.server.listen();
        rig.server.work(now);
        rig
    }

    fn pass(&mut self) {
        self.now += Duration::from_micros(50);
    }

    /// A batch of short connections from their SYNs to their ends. `watch` runs each step of the server: what it is, which frames come
    /// in (for steps that have any), and the step itself.
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

    /// A request and a page on each connection that stays; `respond` lets the server send the pages.
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
        // What reports reading, if there is any.
        let reports = self.take_from_clients();
        self.server.receive(self.now, reports.iter());
        result
    }

    /// SYNs of a batch, and before the first ones the question for the server's address.
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
