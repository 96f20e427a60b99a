//! Programs of the tests. They use the client that ships ([`atoll_sockets::client`]), as programs do.

use core::cell::Cell;
use core::ops::Deref;
use std::boxed::Box;
use std::collections::BTreeMap;
use std::vec;
use std::vec::Vec;

use atoll_base::{Addr, Duration, Endpoint, Instant, SessionId, SlotId};
use atoll_ipc::arena::{ArenaConfig, ArenaLayout, INFO};
use atoll_ipc::command::Protocol;
use atoll_ipc::control::User;
use atoll_ipc::datagram::Fault;
use atoll_ipc::info::Info;
use atoll_ipc::lease::Pass;
use atoll_ipc::page::{APP_PAGE_BYTES, AppPage};
use atoll_ipc::slot::{Slot, SlotState};
use atoll_ipc::{Cause, Command, Device, HeapMemory, Ready, SocketOption};
use atoll_sockets::ancillary::{Addressed, Queued};
use atoll_sockets::client::object::{Body, Object, Set, any};
use atoll_sockets::client::options::Membership;
use atoll_sockets::client::simulated::{Opening, Simulated, joined};
use atoll_sockets::client::transfer::{Received, Receiving, Sending};
use atoll_sockets::client::{Change, Client, Lingering};
use atoll_sockets::options::Name;
use atoll_sockets::watch::EDGE;
use atoll_sockets::{Errno, Failure};

use super::kit::{ARENA, Net, Stack, addr};
use crate::{Transport, seal_pass};

/// The most rounds of answers that bind(2), listen(2) or connect(2) of a datagram socket takes.
const ANSWERS_MAX: usize = 8;
/// The level and the number of an option: ip(7).
const IPPROTO_IP: i32 = 0;
const IP_RECVERR: i32 = 11;
/// The replica of a session's sockets: stacks of the kit have one.
pub(super) const REPLICA: usize = 0;

/// A socket, by its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Socket {
    pub(crate) slot: SlotId,
    pub(crate) generation: u32,
}

/// A session as its server sees it: what both share.
pub(crate) struct Attached {
    pub(crate) id: SessionId,
    pub(crate) user: User,
    pub(crate) arena: HeapMemory,
    pub(crate) layout: ArenaLayout,
    pub(crate) page: AppPage<HeapMemory>,
}

impl Attached {
    /// Opens a session at a stack.
    pub(crate) fn new(stack: &mut Stack, id: u32, user: User, config: ArenaConfig) -> Attached {
        let layout = config.layout();
        let (id, arena) = (SessionId(id), HeapMemory::new(layout.total));
        let page = AppPage(HeapMemory::new(APP_PAGE_BYTES));
        let attached = Attached { id, user, arena, layout, page };
        attached.open_at(&mut stack.transport, Instant::ZERO);
        attached
    }

    /// Opens the session at a server.
    pub(crate) fn open_at(&self, transport: &mut Transport<HeapMemory>, now: Instant) {
        transport.open_session(now, (self.id, self.user), self.layout, self.arena.clone(), self.page.clone());
    }

    pub(crate) fn slot(&self, socket: Socket) -> Slot<'_, HeapMemory> {
        Slot::new(&self.arena, &self.layout, socket.slot).expect("a slot")
    }

    /// Returns what the server has written about a socket: its state, its error, and its flags.
    pub(crate) fn state(&self, socket: Socket) -> (SlotState, Cause, u32) {
        let slot = self.slot(socket);
        (slot.state(), slot.error(), slot.replica_flags())
    }
}

/// A program, with one session. All its sockets are in one epoll instance, edge-triggered, so that each event
/// shows once.
pub(crate) struct App {
    attached: Attached,
    pub(crate) client: Client<Simulated>,
    epoll: u32,
    pub(super) listeners: Vec<u32>,
    /// The events of each object that were not asked for yet.
    ready: BTreeMap<u32, Ready>,
}

impl Deref for App {
    type Target = Attached;

    fn deref(&self) -> &Attached {
        &self.attached
    }
}

impl App {
    pub(crate) fn attach(stack: &mut Stack, id: u32) -> App {
        App::attach_with(stack, id, ARENA)
    }

    pub(crate) fn attach_with(stack: &mut Stack, id: u32, config: ArenaConfig) -> App {
        App::attach_as(stack, id, User::privileged(0), config)
    }

    pub(crate) fn attach_as(stack: &mut Stack, id: u32, user: User, config: ArenaConfig) -> App {
        let attached = Attached::new(stack, id, user, config);
        let replica = (stack.page.0.clone(), attached.arena.clone());
        let (mut client, _) = joined(id, config, stack.facts(), attached.page.clone(), replica);
        let set = Set::new(client.new_bell(), ());
        let epoll = client.insert(Object::new(Body::Epoll(Box::new(set)), false));
        App { attached, client, epoll, listeners: Vec::new(), ready: BTreeMap::new() }
    }

    /// Returns the object that has a socket's slot.
    pub(super) fn object(&self, socket: Socket) -> u32 {
        self.client.own().expect("it has joined").replicas()[REPLICA].user(socket.slot)
    }

    /// Adds an object with a slot to the epoll instance, and returns its socket. What is ready by now counts
    /// as an event.
    pub(super) fn watched(&mut self, object: u32) -> Socket {
        let events = Ready::IN | Ready::OUT | Ready::PRI | Ready::ERR | Ready::HUP | Ready::RDHUP;
        let change = Change::Add(events.bits() | EDGE, object.into());
        self.client.control(self.epoll, object, object as i32, change).expect("it is new");
        self.collect();
        let place = self.client.socket(object).and_then(|socket| socket.places().first());
        let place = place.expect("it has a slot");
        Socket { slot: place.slot, generation: place.generation }
    }

    /// Takes the events that have come.
    pub(crate) fn poll(&mut self) {
        self.client.drain();
        self.client.poll_due();
        self.collect();
    }

    fn collect(&mut self) {
        let ready = &mut self.ready;
        self.client.collect(self.epoll, usize::MAX, |fired| {
            *ready.entry(fired.data as u32).or_default() |= Ready::from_bits_retain(fired.events);
        });
    }

    /// Returns the events for the socket since the last call.
    pub(crate) fn take_ready(&mut self, socket: Socket) -> Ready {
        self.poll();
        self.ready.remove(&self.object(socket)).unwrap_or_default()
    }

    /// Lets the stacks answer until an opening is complete.
    pub(super) fn finish(&mut self, net: &mut Net, mut opening: Opening) -> Result<(), Errno> {
        for _ in 0..ANSWERS_MAX {
            net.settle();
            self.poll();
            match opening.poll(&mut self.client) {
                Err(Failure::WouldBlock) => {}
                Err(Failure::Error(errno)) => return Err(errno),
                Ok(()) => {
                    net.settle();
                    return Ok(());
                }
            }
        }
        panic!("the server does not answer");
    }

    /// Returns a new socket.
    pub(super) fn socket(&mut self, protocol: Protocol, at: Endpoint) -> u32 {
        self.client.insert(Object::socket(protocol, !at.addr.is_v4(), true))
    }

    /// Listens and accepts.
    pub(crate) fn listen(&mut self, net: &mut Net, lease: u64, local: Endpoint, backlog: u32) {
        self.listen_only(net, lease, local, backlog);
        self.accept_again(lease);
        net.settle();
    }

    /// Listens under this lease, and does not accept yet. Programs that have inherited a listener know it by
    /// its lease.
    pub(crate) fn listen_only(&mut self, net: &mut Net, lease: u64, local: Endpoint, backlog: u32) {
        let opening = self.begin_to_listen(lease, local, backlog);
        self.complete(net, opening);
    }

    /// Asks for the port of a listener. [`App::complete`] takes the answer.
    pub(crate) fn begin_to_listen(&mut self, lease: u64, local: Endpoint, backlog: u32) -> Opening {
        self.begin_to_listen_with(&[(Name::ReuseAddr, 1)], lease, local, backlog)
    }

    /// Asks for the port of a listener that has some options.
    pub(crate) fn begin_to_listen_with(
        &mut self,
        options: &[(Name, u64)],
        lease: u64,
        local: Endpoint,
        backlog: u32,
    ) -> Opening {
        let listener = self.socket(Protocol::Tcp, local);
        let pass = Pass { lease, uid: self.user.uid, protocol: Protocol::Tcp, port: local.port };
        let socket = self.client.socket_mut(listener).expect("a socket");
        options.iter().for_each(|(name, value)| socket.options.set(*name, *value));
        socket.pass = Some((pass, 0));
        self.listeners.push(listener);
        Opening::listen_at(&mut self.client, listener, local, backlog as i32).expect("it is fresh")
    }

    /// Asks for the port of a listener that is bound to a device.
    pub(crate) fn begin_to_listen_on(
        &mut self,
        device: Device,
        lease: u64,
        local: Endpoint,
        backlog: u32,
    ) -> Opening {
        self.begin_to_listen_with(&[(Name::Device, device as u64)], lease, local, backlog)
    }

    /// Lets the stacks answer until a listener listens.
    pub(crate) fn complete(&mut self, net: &mut Net, opening: Opening) {
        self.finish(net, opening).expect("the port is free");
    }

    /// Returns the listener with this lease, if there is one.
    pub(super) fn find_listener(&self, lease: u64) -> Option<u32> {
        let has_it = |object: &u32| self.client.socket(*object).is_some_and(|socket| socket.lease == lease);
        self.listeners.iter().copied().find(has_it)
    }

    fn listener(&self, lease: u64) -> u32 {
        self.find_listener(lease).expect("it listens")
    }

    /// Registers as an acceptor, if the server does not take the program for one already.
    pub(crate) fn accept_again(&mut self, lease: u64) {
        let listener = self.listener(lease);
        self.client.accept_connections(listener);
    }

    /// Returns whether the program has registered as an acceptor and was not removed since.
    pub(crate) fn is_accepting(&mut self, lease: u64) -> bool {
        self.poll();
        self.client.listener(self.listener(lease)).is_some_and(|listener| listener.accepting != 0)
    }

    pub(crate) fn stop_accepting(&mut self, lease: u64) {
        let listener = self.listener(lease);
        self.client.stop_accepting(listener);
    }

    /// Returns how many connections are on offer.
    pub(crate) fn offers(&mut self, lease: u64) -> usize {
        self.poll();
        self.client.listener(self.listener(lease)).map_or(0, |listener| listener.offers.len())
    }

    /// Loses the offers that have come, as a program does that takes too long.
    pub(crate) fn lose_offers(&mut self, lease: u64) {
        let listener = self.listener(lease);
        self.client.listener_mut(listener).expect("it listens").offers.clear();
    }

    pub(crate) fn set_listener_option(&mut self, lease: u64, option: SocketOption, value: u32) {
        self.client.send_option(self.listener(lease), option, value);
    }

    /// Closes a listener.
    pub(crate) fn release(&mut self, lease: u64) {
        let listener = self.listener(lease);
        self.listeners.retain(|object| *object != listener);
        self.client.release(listener);
    }

    pub(crate) fn connect(&mut self, remote: Endpoint) -> Socket {
        self.connect_with(&[], remote)
    }

    /// Connects a socket that has some options.
    pub(crate) fn connect_with(&mut self, options: &[(Name, u64)], remote: Endpoint) -> Socket {
        let object = self.socket(Protocol::Tcp, remote);
        let socket = self.client.socket_mut(object).expect("a socket");
        options.iter().for_each(|(name, value)| socket.options.set(*name, *value));
        self.client.connect(object, remote).expect("there are slots");
        self.watched(object)
    }

    /// Connects from an address and port that it binds before.
    pub(crate) fn connect_from(&mut self, net: &mut Net, local: Endpoint, remote: Endpoint) -> Socket {
        let object = self.socket(Protocol::Tcp, remote);
        let opening = Opening::bind(&mut self.client, object, local).expect("it is fresh");
        self.complete(net, opening);
        self.client.connect(object, remote).expect("there are slots");
        self.watched(object)
    }

    pub(crate) fn accept(&mut self) -> Option<Socket> {
        self.poll();
        for at in 0..self.listeners.len() {
            match self.client.accept(self.listeners[at], true) {
                Ok(object) => return Some(self.watched(object)),
                Err(Failure::WouldBlock) => {}
                Err(Failure::Error(errno)) => panic!("accept: {errno:?}"),
            }
        }
        None
    }

    /// Accepts all connections that come within this number of tenths of a second. Returns how many there
    /// were.
    pub(crate) fn accept_for(&mut self, net: &mut Net, tenths: u32) -> usize {
        let mut accepted = 0;
        for _ in 0..tenths {
            net.wait(Duration::from_millis(100));
            while self.accept().is_some() {
                accepted += 1;
            }
        }
        accepted
    }

    /// Returns the peer of a connection.
    pub(crate) fn peer(&self, socket: Socket) -> Endpoint {
        self.client.socket(self.object(socket)).expect("it is open").remote
    }

    /// Writes as much as there is room for, and returns how much that was.
    pub(crate) fn write(&mut self, socket: Socket, bytes: &[u8]) -> usize {
        self.write_as(socket, bytes, Sending::default())
    }

    /// Writes, and calls the last octet urgent.
    pub(crate) fn write_urgent(&mut self, socket: Socket, bytes: &[u8]) {
        self.write_as(socket, bytes, Sending { urgent: true, ..Sending::default() });
    }

    fn write_as(&mut self, socket: Socket, bytes: &[u8], how: Sending) -> usize {
        let (object, mut done) = (self.object(socket), 0);
        let _ = self.client.send_octets(object, || core::iter::once(bytes), bytes.len(), how, &mut done);
        done
    }

    /// Reads what there is.
    pub(crate) fn read(&mut self, socket: Socket) -> Vec<u8> {
        let object = self.object(socket);
        let mut all = Vec::new();
        loop {
            let slot = self.slot(socket);
            let waiting = slot.receive_tail().wrapping_sub(slot.receive_head());
            let mut bytes = vec![0; waiting as usize];
            let (want, mut done) = (bytes.len(), 0);
            let target = &mut bytes[..];
            let target = || core::iter::once(target);
            let got = self.client.receive_octets(object, target, want, Receiving::default(), &mut done);
            let Ok(1..) = got else { return all };
            all.extend_from_slice(&bytes[..done]);
        }
    }

    pub(crate) fn shutdown(&mut self, socket: Socket) {
        let object = self.object(socket);
        self.client.shutdown(object, false, true).expect("it is connected");
    }

    pub(crate) fn close(&mut self, socket: Socket) {
        let object = self.object(socket);
        self.ready.remove(&object);
        self.client.release(object);
    }

    /// Closes a connection, and waits for the peer as `SO_LINGER` says: [`Client::is_lingering`].
    pub(crate) fn linger(&mut self, socket: Socket) -> Lingering {
        let object = self.object(socket);
        self.client.socket_mut(object).expect("a socket").options.set_linger(Some(5));
        let lingering = self.client.start_lingering(object).expect("a turn").expect("a connection");
        self.close(socket);
        lingering
    }

    /// Closes a connection by a reset.
    pub(crate) fn reset(&mut self, socket: Socket) {
        let object = self.object(socket);
        let (stream, ..) = self.client.stream(object).expect("a connection");
        stream.set_reset_on_close(true);
        self.close(socket);
    }

    /// Returns whether the server has said that it is done with a socket that was closed.
    pub(crate) fn is_done(&mut self, socket: Socket) -> bool {
        self.poll();
        let is_closed = self.slot(socket).holders() == 0;
        let session = self.client.own_mut().expect("it has joined");
        let port = session.replicas_mut()[REPLICA].port_mut();
        is_closed && !port.slot_done(socket.slot, socket.generation)
    }

    pub(crate) fn set_option(&mut self, socket: Socket, option: SocketOption, value: u32) {
        self.client.send_option(self.object(socket), option, value);
    }

    /// Leaves urgent octets of a connection in the stream: `SO_OOBINLINE`.
    pub(crate) fn keep_urgent_inline(&mut self, socket: Socket) {
        let object = self.object(socket);
        if let Some((_, local, _)) = self.client.stream(object) {
            local.urgent_inline = true;
        }
    }

    /// Forgets the events of all sockets.
    pub(crate) fn forget_ready(&mut self) {
        self.poll();
        self.ready.clear();
    }

    /// Joins a group, or leaves it.
    pub(crate) fn join(&mut self, socket: Socket, group: Addr, joins: bool) {
        let what = if joins { Membership::JoinsUnasked } else { Membership::Leaves };
        self.client.send_membership(self.object(socket), group, false, what);
    }

    /// Asks for the facts of a connection.
    pub(crate) fn info(&mut self, net: &mut Net, socket: Socket) -> Info {
        let Socket { slot, generation } = socket;
        let ask = |token| Command::Info { token, slot, generation };
        let token = self.client.ask_one(REPLICA, &[], ask).expect("it is heard");
        net.settle();
        self.poll();
        self.client.poll_answer(token).expect("there is a connection");
        self.client.answered(token);
        Info::load(&self.arena, INFO)
    }

    /// Opens a datagram socket; port 0 of `remote` means no peer. A socket that is refused is returned, too.
    pub(crate) fn open_datagrams(&mut self, net: &mut Net, local: Endpoint, remote: Endpoint) -> Socket {
        let object = self.socket(Protocol::Udp, local);
        self.client.socket_mut(object).expect("a socket").options.set(Name::ReuseAddr, 1);
        let opened = self.bind_datagrams(net, object, local);
        let socket = self.watched(object);
        if remote.port != 0 && opened.is_ok() {
            self.connect_datagrams(net, socket, remote);
        }
        socket
    }

    /// Opens a socket of ICMP, or of ICMPv6, with the identifier that is the port of `local`.
    pub(crate) fn open_icmp(&mut self, net: &mut Net, local: Endpoint) -> Result<Socket, Errno> {
        let object = self.socket(Protocol::Icmp, local);
        self.bind_datagrams(net, object, local).map(|()| self.watched(object))
    }

    /// Opens a raw socket of ICMP, or of ICMPv6, for which the supervisor has vouched.
    pub(crate) fn open_raw(&mut self, net: &mut Net, v6: bool) -> Result<Socket, Errno> {
        let lease = self.client.rng().next_u64() | 1;
        self.open_raw_with(
            net,
            v6,
            Pass { lease, uid: 0, protocol: Protocol::Raw, port: Protocol::raw_port(v6) },
        )
    }

    /// Opens a raw socket with a pass.
    pub(crate) fn open_raw_with(&mut self, net: &mut Net, v6: bool, pass: Pass) -> Result<Socket, Errno> {
        let object = self.socket(Protocol::Raw, any(v6));
        // All servers of the kit have this key.
        let seal = seal_pass(&[9; 16], &pass);
        self.client.socket_mut(object).expect("a socket").pass = Some((pass, seal));
        self.raw().push(Command::Pass { pass, seal });
        let local = self.client.start_of_raw(object).expect("a socket");
        self.bind_datagrams(net, object, local).map(|()| self.watched(object))
    }

    /// Sets a raw socket's filter: setsockopt(2) with `ICMP_FILTER` or `ICMP6_FILTER`.
    pub(crate) fn filter(&mut self, socket: Socket, option: (i32, i32), value: &[u8]) {
        let object = self.object(socket);
        self.client.set_option(object, option.0, option.1, value).expect("a raw socket has it");
    }

    fn bind_datagrams(&mut self, net: &mut Net, object: u32, local: Endpoint) -> Result<(), Errno> {
        let opening = Opening::bind(&mut self.client, object, local).expect("it is fresh");
        self.finish(net, opening)
    }

    /// Gives a datagram socket a peer.
    pub(crate) fn connect_datagrams(&mut self, net: &mut Net, socket: Socket, remote: Endpoint) {
        let object = self.object(socket);
        let opening = Opening::connect(&mut self.client, object, remote).expect("there is a way");
        self.finish(net, opening).expect("it is open");
    }

    /// Sends a datagram to `to`, or to the peer of the socket if the port of `to` is 0. A pending error is
    /// passed over.
    pub(crate) fn send(&mut self, socket: Socket, to: Endpoint, text: &[u8]) {
        let to = Addressed::to((to.port != 0).then_some(to));
        self.client.take_error(self.object(socket));
        self.send_addressed(socket, to, text).expect("there is room for it");
    }

    /// Sends a datagram with control messages.
    pub(crate) fn send_addressed(
        &mut self,
        socket: Socket,
        to: Addressed<'_>,
        text: &[u8],
    ) -> Result<(), Failure> {
        let object = self.object(socket);
        self.client.send_datagram(object, core::iter::once(text), text.len(), to, false)
    }

    /// Asks for errors as records: `IP_RECVERR`.
    pub(crate) fn keep_errors(&mut self, socket: Socket) {
        let object = self.object(socket);
        self.client.socket_mut(object).expect("a socket").options.set(Name::ReceiveErrors, 1);
        self.set_option(socket, SocketOption::Errors, 1);
    }

    /// Asks for errors no more.
    pub(crate) fn set_wish_off(&mut self, socket: Socket) {
        let object = self.object(socket);
        self.client.set_option(object, IPPROTO_IP, IP_RECVERR, &0u32.to_ne_bytes()).expect("it is an option");
    }

    /// Receives the next error, with the receiver of the packet that it is about, and what it quotes.
    pub(crate) fn receive_fault(&mut self, socket: Socket) -> Option<(Endpoint, Fault, Vec<u8>)> {
        let object = self.object(socket);
        let mut text = vec![0; 1 << 10];
        let received = self.client.receive_fault(object, core::iter::once(&mut text[..])).ok()?;
        text.truncate(received.len);
        let Queued::Fault(fault) = *received.queued? else { return None };
        Some((received.peer?.0, fault, text))
    }

    /// Receives the next datagram, with its sender.
    pub(crate) fn receive(&mut self, socket: Socket) -> Option<(Endpoint, Vec<u8>)> {
        self.receive_told(socket).map(|(received, text)| (received.peer.expect("it is a datagram").0, text))
    }

    /// Receives the next datagram, with what is known of it. A pending error is passed over.
    pub(crate) fn receive_told(&mut self, socket: Socket) -> Option<(Received, Vec<u8>)> {
        let object = self.object(socket);
        self.client.take_error(object);
        let mut text = vec![0; 1 << 16];
        let target = Cell::new(Some(&mut text[..]));
        let target = || target.take().into_iter();
        let received = self.client.receive_datagram(object, target, Receiving::default()).ok()?;
        text.truncate(received.len);
        Some((received, text))
    }
}

/// Connects a client to a server on the first stack, at port 80 of any of its addresses. Returns the server's
/// socket and the client's.
pub(crate) fn meet(net: &mut Net, server: &mut App, client: &mut App) -> (Socket, Socket) {
    server.listen(net, 77, Endpoint::new(0, 80), 16);
    let c = client.connect(Endpoint::new(addr(1), 80));
    net.settle();
    let s = server.accept().expect("offered");
    net.settle();
    (s, c)
}
