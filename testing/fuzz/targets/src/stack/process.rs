//! A simulated application. It uses the client that ships ([`atoll_sockets::client`]) as programs do; now and
//! then it sends a command that fits nothing, and a hostile one also writes where it should not.

use std::collections::{BTreeMap, VecDeque};
use std::mem;

use atoll_base::{Addr, Endpoint, Instant, SessionId, SlotId};
use atoll_ipc::arena::{ArenaConfig, COMMANDS};
use atoll_ipc::command::{CloseMode, DatagramKind, Protocol};
use atoll_ipc::control::User;
use atoll_ipc::lease::Pass;
use atoll_ipc::page::{APP_PAGE_BYTES, AppPage, STACK_PAGE_BYTES, StackFacts, StackPage};
use atoll_ipc::ring::{Producer, ring_bytes};
use atoll_ipc::{Command, Device, SocketOption};
use atoll_sockets::ancillary::Addressed;
use atoll_sockets::client::Client;
use atoll_sockets::client::object::{Object, any};
use atoll_sockets::client::simulated::{Moment, Opening, Simulated, joined};
use atoll_sockets::client::transfer::{Receiving, Sending};
use atoll_sockets::options::Name;
use atoll_sockets::{Errno, Failure};
use atoll_transport::Transport;

use super::memory::SparseMemory;
use super::scribble;
use crate::features::mark;
use crate::input::Input;
use crate::ip::{PEER, US};

/// The port at which the application listens.
pub(crate) const PORT: u16 = 80;
/// The port to which the application connects.
pub(crate) const REMOTE_PORT: u16 = 2000;
/// The port at which datagrams arrive.
pub(crate) const DATAGRAM_PORT: u16 = 90;
const LEASE: u64 = 77;
/// The sizes of an arena, so small that memory runs out.
const ARENA: ArenaConfig = ArenaConfig { slots: 32, send_log2: 16, receive_log2: 16 };
/// The most datagram sockets that are open at one time.
const DATAGRAM_SOCKETS: usize = 3;

pub(crate) struct Process {
    pub(crate) id: SessionId,
    client: Client<Simulated<SparseMemory>>,
    clock: Moment,
    listener: u32,
    setup: Setup,
    /// The connections, by slot.
    sockets: BTreeMap<u32, u32>,
    datagrams: VecDeque<DatagramSocket>,
    hostile: bool,
    /// Whether the server may show what is not so, because its ledger was changed.
    doubts: bool,
    /// The memory that a hostile application writes to, past the client.
    arena: SparseMemory,
    commands: Producer,
    page: AppPage<SparseMemory>,
}

/// The progress of the listener.
enum Setup {
    Opening(Opening),
    Done,
    /// The port was refused.
    Failed,
}

/// A datagram socket.
struct DatagramSocket {
    object: u32,
    /// The opening that follows once the port is granted, and whether the socket then gets a peer; `None`
    /// when it is open.
    opening: Option<(Opening, bool)>,
}

impl Process {
    /// Creates a process with a session at a server whose page is `replica`.
    pub(crate) fn attach(
        transport: &mut Transport<SparseMemory>,
        replica: &SparseMemory,
        id: SessionId,
        hostile: bool,
    ) -> Process {
        let layout = ARENA.layout();
        let arena = SparseMemory::new(layout.total);
        let page = AppPage(SparseMemory::new(APP_PAGE_BYTES));
        transport.open_session(
            Instant::ZERO,
            (id, User::privileged(id.0)),
            layout,
            arena.clone(),
            page.clone(),
        );
        let stack = StackPage(SparseMemory::new(STACK_PAGE_BYTES));
        stack.write_facts(&StackFacts {
            replicas: 1,
            addr: US,
            prefix_len: 24,
            mtu: 1500,
            ..StackFacts::default()
        });
        let (mut client, clock) = joined(id.0, ARENA, stack, page.clone(), (replica.clone(), arena.clone()));
        let listener = client.insert(Object::socket(Protocol::Tcp, false, true));
        Process {
            id,
            client,
            clock,
            listener,
            setup: Setup::Failed,
            sockets: BTreeMap::new(),
            datagrams: VecDeque::new(),
            hostile,
            doubts: false,
            commands: Producer::resume(&arena, layout.commands, COMMANDS),
            arena,
            page,
        }
    }

    /// Notes that from now on the server may show what is not so, because its ledger was changed.
    pub(crate) fn doubt(&mut self) {
        self.doubts = true;
    }

    /// Handles that another server takes over.
    pub(crate) fn meet(&self, transport: &mut Transport<SparseMemory>, now: Instant) {
        transport.open_session(
            now,
            (self.id, User::privileged(self.id.0)),
            ARENA.layout(),
            self.arena.clone(),
            self.page.clone(),
        );
    }

    /// Calls bind(2), and listen(2) when the port is granted.
    pub(crate) fn listen(&mut self) {
        let (object, lease) = (self.listener, LEASE + u64::from(self.id.0));
        self.share_port(object);
        let socket = self.client.socket_mut(object).expect("a socket");
        // Commands of any kind name it by this number.
        socket.pass = Some((Pass { lease, uid: self.id.0, protocol: Protocol::Tcp, port: PORT }, 0));
        let local = Endpoint { port: PORT, ..any(false) };
        let opening = Opening::listen_at(&mut self.client, object, local, 1);
        self.setup = Setup::Opening(opening.expect("the server listens"));
    }

    /// Returns whether the server has said that the socket listens; `None` if not yet.
    pub(crate) fn is_listening(&self) -> Option<bool> {
        match self.setup {
            Setup::Opening(_) => None,
            Setup::Done => Some(true),
            Setup::Failed => Some(false),
        }
    }

    /// Sets SO_REUSEADDR and SO_REUSEPORT.
    fn share_port(&mut self, object: u32) {
        if let Some(socket) = self.client.socket_mut(object) {
            for name in [Name::ReuseAddr, Name::ReusePort] {
                socket.options.set(name, 1);
            }
        }
    }

    /// Takes the events that have come, and continues with what waits for them.
    pub(crate) fn poll(&mut self, now: Instant) {
        self.clock.set(now);
        self.client.drain();
        self.client.poll_due();
        self.set_up();
        self.open_datagrams();
        // The process behaves as one with a thread that sleeps in accept(2).
        self.client.accept_connections(self.listener);
    }

    /// Takes the next step towards listening.
    fn set_up(&mut self) {
        let client = &mut self.client;
        self.setup = match mem::replace(&mut self.setup, Setup::Failed) {
            Setup::Opening(mut opening) => match opening.poll(client) {
                Ok(()) => Setup::Done,
                Err(Failure::WouldBlock) => Setup::Opening(opening),
                Err(Failure::Error(_)) => Setup::Failed,
            },
            done => done,
        };
    }

    pub(crate) fn act(&mut self, now: Instant, input: &mut Input<'_>) {
        self.clock.set(now);
        if self.hostile && input.byte().is_multiple_of(2) {
            self.misbehave(input);
            return;
        }
        match input.byte() % 16 {
            0 | 1 => self.accept(),
            2 => self.connect(input),
            3 => {
                let command = self.any_command(input);
                self.client.push(0, 0, &command);
            }
            4 => self.open_datagram(input),
            _ => self.use_socket(input),
        }
    }

    fn accept(&mut self) {
        if let Ok(object) = self.client.accept(self.listener, true) {
            self.keep(object);
        }
    }

    fn connect(&mut self, input: &mut Input<'_>) {
        let remote =
            if input.byte() < 40 { Endpoint::new(US, PORT) } else { Endpoint::new(PEER, REMOTE_PORT) };
        let object = self.client.insert(Object::socket(Protocol::Tcp, false, true));
        match self.client.connect(object, remote) {
            Ok(_) => self.keep(object),
            Err(_) => self.client.release(object),
        }
    }

    /// Takes up a connection, which is used from now on.
    fn keep(&mut self, object: u32) {
        let Some(place) = self.client.socket(object).and_then(|socket| socket.places().first()) else {
            return;
        };
        // A process that scribbles is offered slots that it uses already.
        if let Some(former) = self.sockets.insert(place.slot.0, object) {
            assert!(self.hostile || self.doubts, "a slot has two connections");
            self.client.release(former);
        }
    }

    fn open_datagram(&mut self, input: &mut Input<'_>) {
        let has_peer = input.flip();
        let object = self.client.insert(Object::socket(Protocol::Udp, false, true));
        self.share_port(object);
        let local = Endpoint { port: DATAGRAM_PORT, ..any(false) };
        let opening = Opening::bind(&mut self.client, object, local).ok().map(|opening| (opening, has_peer));
        self.datagrams.push_back(DatagramSocket { object, opening });
        if self.datagrams.len() > DATAGRAM_SOCKETS
            && let Some(first) = self.datagrams.pop_front()
        {
            self.client.release(first.object);
        }
    }

    /// Sends from the datagram sockets that have got their ports.
    fn open_datagrams(&mut self) {
        let peer = Endpoint::new(PEER, DATAGRAM_PORT);
        for DatagramSocket { object, opening: waiting } in &mut self.datagrams {
            let Some((mut opening, has_peer)) = waiting.take() else { continue };
            match opening.poll(&mut self.client) {
                Err(Failure::WouldBlock) => *waiting = Some((opening, has_peer)),
                Err(Failure::Error(_)) => {}
                Ok(()) if has_peer => {
                    *waiting = Opening::connect(&mut self.client, *object, peer)
                        .ok()
                        .map(|opening| (opening, false));
                }
                Ok(()) => {
                    let text = [7; 8];
                    let sent = self.client.send_datagram(
                        *object,
                        [&text[..]].into_iter(),
                        text.len(),
                        Addressed::to(Some(peer)),
                        false,
                    );
                    // There may be no memory, or a pending error.
                    mark(19, u64::from(sent.is_ok()));
                }
            }
        }
    }

    fn use_socket(&mut self, input: &mut Input<'_>) {
        if self.sockets.is_empty() {
            return;
        }
        let which = usize::from(input.byte()) % self.sockets.len();
        let Some((&slot, &object)) = self.sockets.iter().nth(which) else { return };
        let Some((stream, local, place)) = self.client.stream(object) else { return };
        match input.byte() % 8 {
            0 | 1 => {
                if stream.readable(local).is_ok() {
                    self.read(object, 1 + usize::from(input.half()));
                }
            }
            2..=4 => {
                let text = vec![7; 1 + usize::from(input.half())];
                let (source, mut done) = (|| std::iter::once(&text[..]), 0);
                let _ = self.client.send_octets(object, source, text.len(), Sending::default(), &mut done);
            }
            5 => {
                let _ = self.client.shutdown(object, input.flip(), input.flip());
                if self.client.stream(object).is_none() {
                    // It was not open yet, and will not be: it has no slot any more.
                    self.client.release(object);
                    self.sockets.remove(&slot);
                    return;
                }
            }
            6 => {
                if input.flip() {
                    stream.set_reset_on_close(true);
                    if self.hostile {
                        // The real library does not do this any more.
                        let (slot, generation, mode) = (place.slot, place.generation, CloseMode::Abort);
                        self.client.push(0, 0, &Command::Close { slot, generation, mode });
                    }
                }
                self.client.release(object);
                self.sockets.remove(&slot);
                return;
            }
            _ => {
                stream.release();
            }
        }
        self.client.kick(place);
    }

    /// Reads from a connection that has an event.
    fn read(&mut self, object: u32, want: usize) {
        let (mut bytes, mut done) = (vec![0; want], 0);
        let target = &mut bytes[..];
        let read = self.client.receive_octets(
            object,
            || std::iter::once(target),
            want,
            Receiving::default(),
            &mut done,
        );
        let is_covered = !matches!(read, Err(Failure::Error(Errno::ECONNRESET)));
        assert!(is_covered || self.hostile || self.doubts, "published octets are covered");
    }

    /// Writes words where they hurt, sends invalid commands, and stores false positions.
    fn misbehave(&mut self, input: &mut Input<'_>) {
        let layout = ARENA.layout();
        let value = if input.flip() { input.long() } else { input.half().into() };
        let (slot, offset) = (usize::from(input.byte()) % 32, usize::from(input.byte()));
        match input.byte() % 8 {
            0..=2 => scribble(&self.arena, layout.slots + slot * 256 + offset, value),
            3 => scribble(&self.arena, layout.commands + input.word() as usize % ring_bytes(COMMANDS), value),
            4 => scribble(&self.arena, layout.commands + offset, value),
            5 => scribble(&self.arena, input.word() as usize, value),
            6 => scribble(&self.page.0, input.half().into(), value),
            _ => {
                let mut bytes = [0; 56];
                let some = input.bytes(56);
                bytes[..some.len()].copy_from_slice(some);
                self.commands.reload(&self.arena);
                self.commands.push(&self.arena, 1, &bytes);
            }
        }
    }

    fn any_command(&self, input: &mut Input<'_>) -> Command {
        let (slot, generation) = (SlotId(u32::from(input.byte()) % 34), input.byte().into());
        let lease = LEASE + u64::from(input.byte() % 4);
        let ends = [
            Endpoint::new(US, PORT),
            Endpoint::new(0, 0),
            Endpoint::new(0x7f00_0001, PORT),
            Endpoint::new(0, 90),
            Endpoint::new(PEER, REMOTE_PORT),
            Endpoint::new(u32::MAX, 53),
            Endpoint::at(Addr::ANY, PORT),
            Endpoint::at(Addr::LOOPBACK, PORT),
        ];
        let (local, remote) = (input.pick(&ends), input.pick(&ends));
        let (token, backlog) = (input.byte().into(), input.byte().into());
        let (reuse_addr, reuse_port) = (input.flip(), input.flip());
        let value = if input.flip() { input.word() } else { input.byte().into() };
        let v6_only = value & 1 != 0;
        let option = SocketOption::from_u8(1 + input.byte() % 19).unwrap_or(SocketOption::NoDelay);
        let option = if value % 23 == 22 { SocketOption::Device } else { option };
        match input.byte() % 13 {
            0 => {
                let protocol = input.pick(&[Protocol::Tcp, Protocol::Udp, Protocol::Icmp, Protocol::Raw]);
                Command::Bind {
                    token,
                    lease,
                    protocol,
                    local,
                    reuse_addr,
                    reuse_port,
                    v6_only,
                    device: Device::of_value(value % 3).unwrap_or_default(),
                }
            }
            1 => Command::Release { lease },
            2 => Command::Listen {
                token,
                lease,
                local,
                backlog,
                reuse_port,
                v6_only,
                defer_accept: input.byte().into(),
                hops_min: [0, backlog as u8 % 3],
            },
            3 => Command::AcceptConnection { lease },
            4 => Command::StopAccepting { lease },
            5 => Command::Claim { slot, generation },
            6 => Command::Connect { slot, generation, lease, local, remote },
            7 => Command::UdpOpen {
                slot,
                generation,
                lease,
                local,
                remote,
                reuse_port,
                v6_only,
                kind: DatagramKind::from_u8(input.byte() % 3).unwrap_or_default(),
            },
            8 => Command::Kick { slot, generation },
            9 => Command::SetOption { slot, generation, option, value },
            10 => Command::SetListenerOption { lease, option, value },
            11 => Command::AskConnection { lease, takes: reuse_addr },
            _ => Command::Info { token, slot, generation },
        }
    }
}
