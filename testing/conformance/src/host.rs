//! What is tested: one replica of the stack and one program, in virtual time.
//!
//! The program's calls go through the same crates as those of `libatoll.so` (`atoll-sockets`, `atoll-ipc`); descriptors and blocking
//! are done here.

use std::collections::{BTreeMap, VecDeque};

use atoll_base::{Endpoint, Epoch, FlowKey, FourTuple, Instant, ReplicaId, SessionId, SlotId};
use atoll_ip::{ChecksumOffload, Ip};
use atoll_ipc::arena::{ArenaConfig, INFO};
use atoll_ipc::command::{CloseMode, Protocol};
use atoll_ipc::info::Info;
use atoll_ipc::page::{APP_PAGE_BYTES, AppPage, REPLICA_PAGE_BYTES, ReplicaPage};
use atoll_ipc::{Cause, Command, Event, HeapMemory, SocketOption};
use atoll_sockets::listener::{self, Claim, Offer};
use atoll_sockets::port::Port;
use atoll_sockets::stream::{Local, Stream};
use atoll_sockets::urgent::Urgent;
use atoll_sockets::{Errno, Failure};
use atoll_transport::{Config, EcnMode, FastOpenSides, FrameSink, Offload, Secrets, TextRef, Transport};

use crate::wire::{self, Segment, Sent};

/// When the clock of every script starts: long enough after 0 for timers that reach back.
pub const START: Instant = Instant::from_millis(1_000_000);
/// The port that `bind(fd, ..., ...)` binds to, and that `connect(fd, ..., ...)` connects to.
pub const PORT: u16 = 8080;
const BELL: u32 = 1;

/// What a script may set of the stack.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    /// Largest send buffer in octets.
    pub send_max: Option<u32>,
    /// Explicit congestion notification, as Linux's `tcp_ecn`.
    pub ecn: Option<u32>,
    /// Receive buffer in octets, at first and at most.
    pub receive: Option<(u32, u32)>,
    /// `net.ipv4.tcp_fastopen`.
    pub fast_open: Option<u32>,
    /// `net.ipv4.tcp_timestamps` is 0.
    pub strips_timestamps: bool,
    /// Whether scripts are held to PSH.
    pub checks_push: bool,
}

/// The key of the stack's Fast Open cookies.
const COOKIE_KEY: [u8; 16] = [8; 16];

/// The Fast Open cookie that the stack gives to the other end.
pub fn cookie_of_peer() -> Vec<u8> {
    let tuple = FourTuple { local: Endpoint::new(wire::LOCAL, 0), remote: Endpoint::new(wire::REMOTE, 0) };
    atoll_tcp::fast_open_cookie(&COOKIE_KEY, &tuple, START).bytes().to_vec()
}

/// The outcome of a call; [`Failure::WouldBlock`]: not yet.
pub type Outcome = Result<i64, Failure>;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Fresh,
    Listening,
    Stream { slot: SlotId, generation: u32, local: Local, reported: bool },
}

#[derive(Debug)]
struct Socket {
    kind: Kind,
    lease: u64,
    local: Endpoint,
    nonblocking: bool,
    options: Vec<(SocketOption, u32)>,
    /// TCP_FASTOPEN_CONNECT.
    fast_open: bool,
    /// SO_LINGER with zero time.
    aborts: bool,
    /// Octets of a blocking write that were taken already.
    written: usize,
}

#[derive(Default)]
struct Out(VecDeque<Vec<u8>>);

impl FrameSink<HeapMemory> for Out {
    /// As a device without segmentation offload sees it: cut into segments.
    fn send(&mut self, headers: &[u8], text: TextRef<'_, HeapMemory>, offload: Offload) -> bool {
        let mut bytes = vec![0; text.len()];
        text.copy_to(&mut bytes);
        let size = offload.gso_size.map_or(usize::MAX, usize::from);
        if bytes.len() <= size {
            self.0.push_back([headers, &bytes].concat());
            return true;
        }
        let total = bytes.len();
        for (n, part) in bytes.chunks(size).enumerate() {
            let is_last = n * size + part.len() == total;
            self.0.push_back([&cut(headers, n * size, part.len(), is_last)[..], part].concat());
        }
        true
    }

    fn send_internal(&mut self, _: &[u8], _: TextRef<'_, HeapMemory>, _: Offload) -> bool {
        true
    }

    fn segment_max(&self) -> u32 {
        65_000
    }
}

/// The headers of one segment of several. Checksums are not looked at.
fn cut(headers: &[u8], skip: usize, len: usize, is_last: bool) -> Vec<u8> {
    const IP: usize = 14;
    const TCP: usize = IP + 20;
    let mut headers = headers.to_vec();
    let seq = u32::from_be_bytes([headers[TCP + 4], headers[TCP + 5], headers[TCP + 6], headers[TCP + 7]]);
    headers[TCP + 4..TCP + 8].copy_from_slice(&seq.wrapping_add(skip as u32).to_be_bytes());
    if !is_last {
        // FIN and PSH are the last one's.
        headers[TCP + 13] &= !0x09;
    }
    let total = (headers.len() - IP + len) as u16;
    headers[IP + 2..IP + 4].copy_from_slice(&total.to_be_bytes());
    headers[IP + 10..IP + 12].fill(0);
    let sum = atoll_wire::checksum::sum(&headers[IP..TCP]).finish();
    headers[IP + 10..IP + 12].copy_from_slice(&sum.to_be_bytes());
    headers
}

/// The stack and the program.
pub struct Host {
    now: Instant,
    transport: Transport<HeapMemory>,
    out: Out,
    port: Port<HeapMemory>,
    sockets: BTreeMap<i32, Socket>,
    /// Descriptors as the script numbers them.
    names: BTreeMap<i32, i32>,
    offers: VecDeque<Offer>,
    verdict: Option<bool>,
    claimed: Option<Offer>,
    accepting: bool,
    replies: Vec<Event>,
    leases: u64,
    /// Segments that were sent and not yet looked at.
    pub sent: VecDeque<(Instant, Segment)>,
}

impl Host {
    /// A stack that nobody has talked to.
    pub fn new(settings: &Settings) -> Host {
        let mut config = Config::new(ReplicaId(0), 1, Epoch(1), FlowKey { k0: 1, k1: 2 });
        if let Some(most) = settings.send_max {
            config.send_limit = (config.send_limit.0.min(most), most);
        }
        match settings.ecn {
            Some(0) => config.ecn = EcnMode::Off,
            Some(1) => config.ecn = EcnMode::Request,
            Some(3) => config.ecn = EcnMode::RequestAccurate,
            _ => {}
        }
        if let Some(receive) = settings.receive {
            config.receive_capacity = receive;
        }
        if let Some(bits) = settings.fast_open {
            config.fast_open = FastOpenSides::from_bits(bits);
        }
        let mut ip_config = atoll_ip::Config::new(wire::LOCAL_MAC, wire::LOCAL, wire::PREFIX_LEN);
        ip_config.gateway = Some(wire::GATEWAY);
        let ip = Ip::new(ip_config, 7, START).expect("a valid network");
        let page = ReplicaPage(HeapMemory::new(REPLICA_PAGE_BYTES));
        let secrets = Secrets { sequence: [7; 16], fast_open: COOKIE_KEY, table: 5, ports: 9 };
        let mut transport = Transport::new(config, secrets, ip, page, START);
        let layout = ArenaConfig { slots: 1024, send_log2: 22, receive_log2: 22 }.layout();
        let arena = HeapMemory::new(layout.total);
        let page = AppPage(HeapMemory::new(APP_PAGE_BYTES));
        transport.open_session(START, SessionId(1), layout, arena.clone(), page);
        let mut host = Host {
            now: START,
            transport,
            out: Out::default(),
            port: Port::new(arena, layout),
            sockets: BTreeMap::new(),
            names: BTreeMap::new(),
            offers: VecDeque::new(),
            verdict: None,
            claimed: None,
            accepting: false,
            replies: Vec::new(),
            leases: 0,
            sent: VecDeque::new(),
        };
        host.step();
        host
    }

    /// The time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// The stack's next timer.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.transport.next_timeout()
    }

    /// Sets the clock to `to`, at most the next timer's time, and lets the stack do what there is to do then.
    pub fn advance(&mut self, to: Instant) {
        self.now = self.now.max(to);
        self.step();
    }

    /// A segment arrives.
    pub fn inject(&mut self, segment: &Segment) {
        self.inject_frame(&wire::frame(segment));
    }

    /// A frame arrives.
    pub fn inject_frame(&mut self, frame: &[u8]) {
        self.transport.handle_frame(self.now, frame, ChecksumOffload::Unknown, false);
        self.step();
    }

    /// The script calls the descriptor `live` by another number.
    pub fn name_descriptor(&mut self, name: i32, live: i32) {
        self.names.insert(name, live);
    }

    /// The descriptor that the script means; one that it has never heard of keeps its number.
    pub fn descriptor(&self, name: i32) -> i32 {
        self.names.get(&name).copied().unwrap_or(name)
    }

    /// Lets the stack do what there is to do now.
    pub fn step(&mut self) {
        loop {
            let mut any = self.transport.handle_commands(self.now, 64);
            self.transport.handle_timers(self.now);
            self.transport.flush(self.now, &mut self.out);
            self.transport.take_bells(|_, _| {});
            while let Some(frame) = self.out.0.pop_front() {
                any = true;
                match wire::read(&frame) {
                    Sent::Segment(segment) => self.sent.push_back((self.now, segment)),
                    Sent::Question(answer) => {
                        self.transport.handle_frame(self.now, &answer, ChecksumOffload::Unknown, false);
                    }
                    Sent::Other => {}
                }
            }
            while let Some(event) = self.port.next_event() {
                any = true;
                self.handle_event(event);
            }
            self.port.publish();
            if !any {
                return;
            }
        }
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::ConnectionAvailable { slot, generation, local, remote, .. } => {
                self.offers.push_back(Offer { replica: 0, slot, generation, local, remote });
            }
            Event::ClaimVerdict { confirmed, .. } => self.verdict = Some(confirmed),
            Event::AcceptorRemoved { .. } => self.accepting = false,
            Event::SlotDone { slot, generation } => {
                self.port.slot_done(slot, generation);
            }
            // Sockets are looked at whenever somebody waits for them.
            Event::Ready { .. } => {}
            reply => self.replies.push(reply),
        }
    }

    fn push(&mut self, command: &Command) {
        assert!(self.port.push(command), "the command ring is full");
        self.step();
    }

    fn lowest_free(&self) -> i32 {
        (3..).find(|fd| !self.sockets.contains_key(fd)).expect("there are numbers")
    }

    fn socket_mut(&mut self, fd: i32) -> Result<&mut Socket, Failure> {
        self.sockets.get_mut(&fd).ok_or_else(|| Errno::EBADF.into())
    }

    fn add(&mut self, kind: Kind) -> i64 {
        self.leases += 1;
        let socket = Socket {
            kind,
            lease: self.leases,
            local: Endpoint::default(),
            nonblocking: false,
            options: Vec::new(),
            fast_open: false,
            aborts: false,
            written: 0,
        };
        let fd = self.lowest_free();
        self.sockets.insert(fd, socket);
        fd.into()
    }

    /// socket(2) of a stream.
    pub fn socket(&mut self, nonblocking: bool) -> Outcome {
        let fd = self.add(Kind::Fresh);
        self.socket_mut(fd as i32)?.nonblocking = nonblocking;
        Ok(fd)
    }

    /// bind(2) to [`PORT`], or another.
    pub fn bind(&mut self, fd: i32, port: u16) -> Outcome {
        let lease = self.socket_mut(fd)?.lease;
        let local = Endpoint::new(0, port);
        let protocol = Protocol::Tcp;
        self.push(&Command::Bind {
            token: 1,
            lease,
            protocol,
            local,
            reuse_addr: true,
            reuse_port: false,
            v6_only: false,
        });
        let Some(Event::BindReply { cause, port, .. }) = self.replies.pop() else { return Err(Failure::WouldBlock) };
        check(cause)?;
        self.socket_mut(fd)?.local = Endpoint::new(0, port);
        Ok(0)
    }

    /// listen(2).
    pub fn listen(&mut self, fd: i32, backlog: u32) -> Outcome {
        let socket = self.socket_mut(fd)?;
        let (lease, local, options) = (socket.lease, socket.local, socket.options.clone());
        self.push(&Command::Listen {
            token: 2,
            lease,
            local,
            backlog,
            reuse_port: false,
            defer_accept: 0,
            v6_only: false,
        });
        let Some(Event::ListenReply { cause, .. }) = self.replies.pop() else { return Err(Failure::WouldBlock) };
        check(cause)?;
        self.socket_mut(fd)?.kind = Kind::Listening;
        for (option, value) in options {
            self.push(&Command::SetListenerOption { lease, option, value });
        }
        self.push(&Command::AcceptConnection { lease });
        self.accepting = true;
        Ok(0)
    }

    /// accept4(2).
    pub fn accept(&mut self, fd: i32, nonblocking: bool) -> Outcome {
        let socket = self.socket_mut(fd)?;
        let lease = socket.lease;
        if !matches!(socket.kind, Kind::Listening) {
            return Err(Errno::EINVAL.into());
        }
        if !self.accepting {
            self.accepting = true;
            self.push(&Command::AcceptConnection { lease });
        }
        loop {
            if let Some(offer) = self.claimed {
                match self.verdict.take() {
                    Some(true) => {
                        self.claimed = None;
                        return self.take(&offer, nonblocking);
                    }
                    Some(false) => self.claimed = None,
                    None => return Err(Failure::WouldBlock),
                }
            }
            let offer = self.offers.pop_front().ok_or(Failure::WouldBlock)?;
            let claim = listener::claim(&self.port, &offer, 0, BELL);
            if claim == Claim::Gone {
                continue;
            }
            if claim == Claim::Doubtful {
                self.claimed = Some(offer);
            }
            self.push(&Command::Claim { slot: offer.slot, generation: offer.generation });
            if claim == Claim::Held {
                return self.take(&offer, nonblocking);
            }
        }
    }

    fn take(&mut self, offer: &Offer, nonblocking: bool) -> Outcome {
        let (slot, generation) = (offer.slot, offer.generation);
        let fd = self.add(Kind::Stream { slot, generation, local: Local::default(), reported: true });
        self.socket_mut(fd as i32)?.nonblocking = nonblocking;
        Ok(fd)
    }

    /// connect(2) to [`PORT`] of the other end. Called again while it blocks.
    pub fn connect(&mut self, fd: i32) -> Outcome {
        let socket = self.socket_mut(fd)?;
        let (nonblocking, fast) = (socket.nonblocking, socket.fast_open);
        match socket.kind {
            Kind::Listening => return Err(Errno::EISCONN.into()),
            Kind::Stream { .. } => return self.connected(fd),
            Kind::Fresh => {}
        }
        self.open(fd, fast)?;
        if fast && self.waits_for_text(fd)? {
            return Ok(0);
        }
        if nonblocking { Err(Errno::EINPROGRESS.into()) } else { self.connected(fd) }
    }

    /// sendto(2) with MSG_FASTOPEN. Called again while it blocks.
    pub fn send_fast(&mut self, fd: i32, len: usize, nonblocking: bool) -> Outcome {
        if self.is_fresh(fd) {
            self.open(fd, true)?;
            if !self.waits_for_text(fd)? && nonblocking {
                return Err(Errno::EINPROGRESS.into());
            }
        }
        let written = self.write(fd, len, false)?;
        // As in the library: a call that blocks comes back when the connection is open.
        let is_connecting = self.with_stream(fd, |stream, _| Ok(stream.is_connecting()))?;
        if is_connecting && !nonblocking {
            self.socket_mut(fd)?.written = len;
            return Err(Failure::WouldBlock);
        }
        Ok(written)
    }

    /// TCP_FASTOPEN_CONNECT.
    pub fn set_fast_open_connect(&mut self, fd: i32, on: bool) -> Outcome {
        self.socket_mut(fd)?.fast_open = on;
        Ok(0)
    }

    fn waits_for_text(&mut self, fd: i32) -> Result<bool, Failure> {
        self.with_stream(fd, |stream, _| Ok(stream.waits_for_text()))
    }

    /// Begins to connect; `fast`: by Fast Open.
    fn open(&mut self, fd: i32, fast: bool) -> Result<(), Failure> {
        let socket = self.socket_mut(fd)?;
        let (lease, local, options) = (socket.lease, socket.local, socket.options.clone());
        let (slot, generation) = self.port.allocate_slot().ok_or(Errno::ENOBUFS)?;
        if let Some(view) = self.port.slot(slot) {
            view.set_holders(1);
            view.set_bell(BELL);
        }
        self.socket_mut(fd)?.kind = Kind::Stream { slot, generation, local: Local::default(), reported: false };
        let remote = Endpoint::new(wire::REMOTE, PORT);
        if fast {
            self.with_stream(fd, |stream, _| {
                stream.ask_for_fast_open();
                Ok(())
            })?;
        }
        let connect = Command::Connect { slot, generation, lease, local, remote };
        assert!(self.port.push(&connect), "the command ring is full");
        for (option, value) in options {
            assert!(
                self.port.push(&Command::SetOption { slot, generation, option, value }),
                "the command ring is full"
            );
        }
        self.step();
        Ok(())
    }

    /// Whether a connection that is opened is open.
    fn connected(&mut self, fd: i32) -> Outcome {
        let nonblocking = self.socket_mut(fd)?.nonblocking;
        let was_reported = matches!(self.socket_mut(fd)?.kind, Kind::Stream { reported: true, .. });
        let done = self.with_stream(fd, |stream, local| {
            if stream.is_closed() {
                return Err(stream.take_error(local).unwrap_or(Errno::ECONNABORTED).into());
            }
            if stream.is_connecting() {
                return Err(if nonblocking { Errno::EALREADY.into() } else { Failure::WouldBlock });
            }
            if was_reported { Err(Errno::EISCONN.into()) } else { Ok(0) }
        });
        if let (Ok(_), Kind::Stream { reported, .. }) = (&done, &mut self.socket_mut(fd)?.kind) {
            *reported = true;
        }
        done
    }

    fn with_stream<T>(
        &mut self,
        fd: i32,
        act: impl FnOnce(&Stream<'_, HeapMemory>, &mut Local) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let socket = self.sockets.get_mut(&fd).ok_or(Errno::EBADF)?;
        let Kind::Stream { slot, generation, local, .. } = &mut socket.kind else {
            return Err(Errno::ENOTCONN.into());
        };
        let stream = Stream::new(&self.port, *slot, *generation).ok_or(Errno::EBADF)?;
        act(&stream, local)
    }

    fn kick(&mut self, fd: i32) {
        if let Some(Socket { kind: Kind::Stream { slot, generation, .. }, .. }) = self.sockets.get(&fd) {
            self.push(&Command::Kick { slot: *slot, generation: *generation });
        }
    }

    /// read(2), recv(2): up to `most` octets. With `peek` they stay.
    pub fn read(&mut self, fd: i32, most: usize, peek: bool) -> Outcome {
        let (len, kick) = self.with_stream(fd, |stream, local| {
            let found = stream.readable(local);
            if local.pass.is_some() {
                return found.map(|_| (0, !peek && stream.pass(local)));
            }
            let readable = found?;
            let len = readable.len.min(most as u64);
            let mut bytes = vec![0; len as usize];
            assert!(stream.copy_out(&readable, readable.head, &mut bytes), "published octets are covered");
            Ok((len, !peek && len > 0 && stream.consume(readable.head + len)))
        })?;
        if kick {
            self.kick(fd);
        }
        Ok(len as i64)
    }

    /// recv(2) with MSG_OOB.
    pub fn read_urgent(&mut self, fd: i32, most: usize, peek: bool) -> Outcome {
        let found = self.with_stream(fd, |stream, local| stream.receive_urgent(local, peek));
        match found {
            Ok(Urgent::Octet(_)) => Ok(most.min(1) as i64),
            Ok(Urgent::End) => Ok(0),
            // It never blocks.
            Err(Failure::WouldBlock) => Err(Errno::EAGAIN.into()),
            Err(error) => Err(error),
        }
    }

    /// SIOCATMARK.
    pub fn is_at_mark(&mut self, fd: i32) -> Outcome {
        self.with_stream(fd, |stream, local| Ok(stream.is_at_mark(local).into()))
    }

    /// SO_OOBINLINE of a connection.
    pub fn set_urgent_inline(&mut self, fd: i32, inline: bool) -> Outcome {
        self.with_stream(fd, |_, local| {
            local.urgent_inline = inline;
            Ok(0)
        })
    }

    /// write(2), send(2). Called again while it blocks, with the same length. `urgent`: MSG_OOB.
    pub fn write(&mut self, fd: i32, len: usize, urgent: bool) -> Outcome {
        loop {
            let socket = self.socket_mut(fd)?;
            let (left, nonblocking) = (len - socket.written.min(len), socket.nonblocking);
            let now = if left == 0 {
                Ok(0)
            } else {
                self.with_stream(fd, |stream, local| {
                    let room = stream.writable(local, left)?;
                    stream.copy_in(&room, 0, &vec![0; room.len]);
                    if urgent {
                        stream.commit_urgent(&room, room.len);
                    } else {
                        stream.commit(&room, room.len);
                    }
                    Ok(room.len)
                })
            };
            match now {
                Ok(taken) => {
                    let written = self.socket_mut(fd)?.written + taken;
                    self.socket_mut(fd)?.written = written;
                    // As the library does: the replica hears of it when nothing more fits, or all is in.
                    if written >= len {
                        self.socket_mut(fd)?.written = 0;
                        self.kick(fd);
                        return Ok(len as i64);
                    }
                }
                Err(Failure::WouldBlock) => {
                    self.kick(fd);
                    let written = self.socket_mut(fd)?.written;
                    if nonblocking && written > 0 {
                        self.socket_mut(fd)?.written = 0;
                        return Ok(written as i64);
                    }
                    return Err(Failure::WouldBlock);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// shutdown(2).
    pub fn shutdown(&mut self, fd: i32, receive: bool, send: bool) -> Outcome {
        self.with_stream(fd, |stream, _| stream.shutdown(receive, send).map_err(Failure::from))?;
        self.kick(fd);
        Ok(0)
    }

    /// close(2).
    pub fn close(&mut self, fd: i32) -> Outcome {
        let socket = self.sockets.remove(&fd).ok_or(Errno::EBADF)?;
        let lease = socket.lease;
        match socket.kind {
            Kind::Fresh => self.push(&Command::Release { lease }),
            Kind::Listening => {
                self.accepting = false;
                self.push(&Command::StopAccepting { lease });
                self.push(&Command::Release { lease });
            }
            Kind::Stream { slot, generation, .. } => {
                let mode = if socket.aborts { CloseMode::Abort } else { CloseMode::Graceful };
                self.port.mark_closing(slot, generation);
                self.push(&Command::Close { slot, generation, mode });
            }
        }
        Ok(0)
    }

    /// An option that the replica acts on.
    pub fn set_option(&mut self, fd: i32, option: SocketOption, value: u32) -> Outcome {
        let socket = self.socket_mut(fd)?;
        socket.options.push((option, value));
        match socket.kind {
            Kind::Fresh => {}
            Kind::Listening => {
                let lease = socket.lease;
                self.push(&Command::SetListenerOption { lease, option, value });
            }
            Kind::Stream { slot, generation, .. } => {
                self.push(&Command::SetOption { slot, generation, option, value });
            }
        }
        Ok(0)
    }

    /// SO_LINGER with zero time, or without.
    pub fn set_aborts(&mut self, fd: i32, aborts: bool) -> Outcome {
        self.socket_mut(fd)?.aborts = aborts;
        Ok(0)
    }

    /// O_NONBLOCK.
    pub fn set_nonblocking(&mut self, fd: i32, nonblocking: bool) -> Outcome {
        self.socket_mut(fd)?.nonblocking = nonblocking;
        Ok(0)
    }

    /// Whether a socket has not been connected, nor listened on.
    pub fn is_fresh(&self, fd: i32) -> bool {
        self.sockets.get(&fd).is_some_and(|socket| matches!(socket.kind, Kind::Fresh))
    }

    /// O_NONBLOCK.
    pub fn is_nonblocking(&self, fd: i32) -> bool {
        self.sockets.get(&fd).is_some_and(|socket| socket.nonblocking)
    }

    /// SO_ERROR.
    pub fn take_error(&mut self, fd: i32) -> Outcome {
        if matches!(self.socket_mut(fd)?.kind, Kind::Fresh | Kind::Listening) {
            return Ok(0);
        }
        self.with_stream(fd, |stream, local| Ok(stream.take_error(local).map_or(0, |errno| errno.0.into())))
    }

    /// SIOCINQ and SIOCOUTQ.
    pub fn queued(&mut self, fd: i32, outgoing: bool) -> Outcome {
        self.with_stream(fd, |stream, local| {
            Ok(if outgoing { stream.unacknowledged() } else { stream.unread(local) } as i64)
        })
    }

    /// The bits of poll(2) that hold.
    pub fn readiness(&mut self, fd: i32) -> Result<u32, Failure> {
        if matches!(self.socket_mut(fd)?.kind, Kind::Listening) {
            return Ok(if self.offers.is_empty() { 0 } else { 1 });
        }
        self.with_stream(fd, |stream, local| Ok(stream.readiness(local)))
    }

    /// TCP_INFO of the connection that was opened or accepted last.
    pub fn info(&mut self) -> Option<Info> {
        let latest = self.sockets.values().rev().find_map(|socket| match socket.kind {
            Kind::Stream { slot, generation, .. } => Some((slot, generation)),
            _ => None,
        });
        let (slot, generation) = latest?;
        self.push(&Command::Info { token: 3, slot, generation });
        let reply = self.replies.pop()?;
        let is_known = matches!(reply, Event::InfoReply { cause: Cause::None, .. });
        is_known.then(|| Info::load(self.port.memory(), INFO))
    }
}

fn check(cause: Cause) -> Result<(), Failure> {
    Errno::of(cause).map_or(Ok(()), |errno| Err(errno.into()))
}
