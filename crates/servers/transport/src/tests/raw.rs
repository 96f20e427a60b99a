//! What no program sends: forged and untimely commands, half an operation, and a look at single events.

use core::iter;
use std::vec::Vec;

use atoll_base::{Endpoint, SlotId};
use atoll_ipc::command::Protocol;
use atoll_ipc::datagram::{self, Flags, Record};
use atoll_ipc::details::DETAILS_BYTES;
use atoll_ipc::{Command, Event, HeapMemory};
use atoll_sockets::client::object::{Body, Kind, Object, Place, Socket as Connection};
use atoll_sockets::listener::{Claim, Offer, claim};
use atoll_sockets::port::Port;
use atoll_sockets::stream::Local;

use super::app::{App, REPLICA, Socket};

/// The session of a program, past its client.
pub(crate) struct RawSession<'a>(&'a mut App);

impl App {
    /// Returns the program's session, past its client.
    pub(crate) fn raw(&mut self) -> RawSession<'_> {
        RawSession(self)
    }
}

impl RawSession<'_> {
    fn port(&mut self) -> &mut Port<HeapMemory> {
        self.0.client.own_mut().expect("it has joined").replicas_mut()[REPLICA].port_mut()
    }

    /// Sends a command.
    pub(crate) fn push(&mut self, command: Command) {
        assert!(self.port().push(&command), "the command ring is full");
    }

    /// Sends a command if there is room for it, wherever the ring says that it is.
    pub(crate) fn push_anyhow(&mut self, command: Command) {
        self.port().reload();
        self.port().push(&command);
    }

    /// Takes the events that have come, which the client then does not see. Offers for its listeners it gets
    /// nevertheless.
    pub(crate) fn events(&mut self) -> Vec<Event> {
        let port = self.port();
        let mut events: Vec<Event> = iter::from_fn(|| port.next_event()).collect();
        port.publish();
        events.retain(|event| !self.hand_on(event));
        events
    }

    fn hand_on(&mut self, event: &Event) -> bool {
        let Event::ConnectionAvailable { listener, slot, generation, local, remote } = *event else {
            return false;
        };
        let Some(listener) = self.0.find_listener(listener) else { return false };
        let offer = Offer { replica: REPLICA as u8, slot, generation, local, remote };
        self.0.client.listener_mut(listener).is_some_and(|listener| listener.offer(offer))
    }

    /// Returns the slot of the oldest offer.
    pub(crate) fn offer(&mut self) -> Socket {
        self.0.poll();
        let listener = self.0.client.listener(self.0.listeners[0]).expect("it listens");
        let offer = listener.offers.front().expect("offered");
        Socket { slot: offer.slot, generation: offer.generation }
    }

    /// Claims a connection in a slot, whether it is on offer or not, and says so.
    pub(crate) fn claim(&mut self, socket: Socket) {
        let Socket { slot, generation } = self.open_slot_at(socket.slot.0, socket.generation);
        self.0.slot(socket).claim(generation);
        self.push(Command::Claim { slot, generation });
    }

    /// Takes a slot of the application's half, under a new generation, of which the client does not know.
    pub(crate) fn open_slot(&mut self) -> Socket {
        let (slot, generation) = self.port().allocate_slot().expect("there are slots");
        self.0.slot(Socket { slot, generation }).set_holders(1);
        Socket { slot, generation }
    }

    /// Opens a given slot, whatever is in it.
    pub(crate) fn open_slot_at(&mut self, slot: u32, generation: u32) -> Socket {
        let socket = Socket { slot: SlotId(slot), generation };
        let slot = self.0.slot(socket);
        slot.app_reset(generation);
        slot.set_holders(1);
        socket
    }

    /// Connects from a given address, whosever it is.
    pub(crate) fn connect(&mut self, lease: u64, local: Endpoint, remote: Endpoint) -> Socket {
        let Socket { slot, generation } = self.open_slot();
        self.push(Command::Connect { slot, generation, lease, local, remote });
        Socket { slot, generation }
    }

    /// Opens a datagram socket at a given address, whosever it is.
    pub(crate) fn open_datagrams(&mut self, lease: u64, local: Endpoint) -> Socket {
        let socket = self.open_slot();
        self.open_datagrams_in(socket, lease, local);
        socket
    }

    /// Opens a datagram socket in a slot, whatever is in it.
    pub(crate) fn open_datagrams_in(&mut self, socket: Socket, lease: u64, local: Endpoint) {
        self.open_datagrams_of(Protocol::Udp, socket, lease, local);
    }

    /// Opens a datagram socket of this protocol in a slot, whosever the lease is.
    pub(crate) fn open_datagrams_of(
        &mut self,
        protocol: Protocol,
        socket: Socket,
        lease: u64,
        local: Endpoint,
    ) {
        let (Socket { slot, generation }, remote) = (socket, Endpoint::default());
        let (reuse_port, v6_only) = (false, false);
        let kind = protocol.datagram_kind().expect("one of datagrams");
        self.push(Command::UdpOpen { slot, generation, lease, local, remote, reuse_port, v6_only, kind });
    }

    /// Asks for a TCP or UDP port under a lease.
    pub(crate) fn bind(&mut self, lease: u64, protocol: Protocol, local: Endpoint, reuse_addr: bool) {
        let (token, reuse_port, v6_only) = (lease as u32, false, false);
        self.push(Command::Bind {
            token,
            lease,
            protocol,
            local,
            reuse_addr,
            reuse_port,
            v6_only,
            device: atoll_ipc::Device::None,
        });
    }

    /// Asks to listen under a lease.
    pub(crate) fn listen(&mut self, lease: u64, local: Endpoint, backlog: u32) {
        let (token, reuse_port, defer_accept, v6_only) = (lease as u32, false, 0, false);
        self.push(Command::Listen {
            token,
            lease,
            local,
            backlog,
            reuse_port,
            defer_accept,
            v6_only,
            hops_min: [0; 2],
        });
    }

    pub(crate) fn kick(&mut self, socket: Socket) {
        self.push(Command::Kick { slot: socket.slot, generation: socket.generation });
    }

    /// Claims the oldest offer in its slot, as accept(2) begins, and sends no command. The client waits for
    /// the verdict.
    pub(crate) fn begin_to_accept(&mut self) -> Socket {
        self.0.poll();
        let at = self.0.listeners[0];
        let listener = self.0.client.listener_mut(at).expect("it listens");
        let offer = listener.offers.pop_front().expect("offered");
        (listener.claimed, listener.verdict) = (Some(offer), None);
        assert_eq!(claim(self.port(), &offer, 0, 0), Claim::Held);
        let (slot, generation) = (offer.slot, offer.generation);
        let place = Place { session: 0, replica: REPLICA, slot, generation };
        let mut socket = Connection::new(Protocol::Tcp, false);
        socket.kind = Kind::Stream(place, Local::default());
        let object = self.0.client.insert(Object::new(Body::Socket(socket), true));
        self.0.client.set_user(place, object);
        self.0.watched(object)
    }

    /// Sends the command that completes accept(2).
    pub(crate) fn tell_of_claim(&mut self, socket: Socket) {
        self.push(Command::Claim { slot: socket.slot, generation: socket.generation });
    }

    /// Takes the verdict on the claim that waits for one, if it has come. The claim waits for another then.
    pub(crate) fn take_verdict(&mut self) -> Option<bool> {
        self.0.poll();
        self.0.client.listener_mut(self.0.listeners[0]).expect("it listens").verdict.take()
    }

    /// Writes as much as there is room for, whether the server expects it or not, and sends no command.
    /// Returns how much that was.
    pub(crate) fn store(&mut self, socket: Socket, octets: &[u8]) -> usize {
        let (arena, layout, slot) = (&self.0.arena, &self.0.layout, self.0.slot(socket));
        let tail = slot.send_tail();
        // A slot that was opened again may still show what was acknowledged before.
        let acked = slot.acknowledged().min(tail);
        let room = u64::from(slot.send_limit()).saturating_sub(tail - acked).min(octets.len() as u64);
        let mut extents = slot.send_extents(layout).unwrap_or_default();
        let end = extents.reserve(&layout.send_pool.state_in(arena), acked, tail, tail + room, 1 << 20);
        let len = (end - tail) as usize;
        if len > 0 {
            let pieces = extents.pieces(tail, len).expect("reserved");
            pieces.write(arena, layout.send_area, &octets[..len]);
        }
        slot.set_send_extents(&extents);
        slot.set_send_tail(end);
        len
    }

    /// Writes a datagram, with details if there are any, and sends no command.
    pub(crate) fn store_datagram(
        &mut self,
        socket: Socket,
        peer: Endpoint,
        details: Option<[u8; DETAILS_BYTES]>,
        text: &[u8],
    ) {
        let flags = if details.is_some() { Flags::DETAILED } else { Flags::empty() };
        let head = datagram::encode(&Record { len: text.len() as u32, peer, flags });
        let mut octets = [&head[..], details.as_ref().map_or(&[], |details| &details[..]), text].concat();
        octets.resize(octets.len().next_multiple_of(8), 0);
        assert_eq!(self.store(socket, &octets), octets.len(), "there is room for it");
    }
}
