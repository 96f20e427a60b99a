//! The objects behind Atoll's descriptors: sockets and epoll instances.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use atoll_base::{Addr, Endpoint, SlotId};
use atoll_ipc::Command;
use atoll_ipc::command::Protocol;
use atoll_ipc::details::DETAILS_BYTES;
use atoll_ipc::lease::{Pass, Voucher};
use serde::{Deserialize, Serialize};

use super::fault_queue::Faults;
use super::groups::Multicast;
use super::platform::Platform;
use super::written::{EndpointForm, SlotForm};
use crate::datagram::Waiting;
use crate::errno::Errno;
use crate::listener::Listener;
use crate::options::{Name, Options, UNSET_CLAMP};
use crate::stamps::Stamp;
use crate::stream::Local;
use crate::watch::Head;

/// A socket or an epoll instance.
#[derive(Debug)]
pub struct Object<P: Platform> {
    /// The number of descriptors of this process that name the object.
    pub descriptors: u32,
    /// The number of calls that sleep on the object. As in the kernel, it is closed when `descriptors` and
    /// `pins` are both 0.
    pub pins: u32,
    /// Whether calls on the object do not wait.
    pub nonblocking: bool,
    /// The socket or the epoll instance.
    pub body: Body<P>,
    /// The watches of epoll instances on the object.
    pub watchers: Head,
    /// The process, thread or group that gets SIGURG.
    pub owner: Owner,
    /// The mark for which SIGURG was last sent.
    pub marked: Option<u64>,
}

/// The kind of an object. Nearly all are sockets, so sockets are not behind a pointer.
#[derive(Debug)]
// Nearly all objects are sockets, and one more allocation for each would cost an accept.
#[allow(clippy::large_enum_variant)]
pub enum Body<P: Platform> {
    /// A socket.
    Socket(Socket),
    /// An epoll instance.
    Epoll(Box<Set<P>>),
}

/// A process, a thread, or (negative) a process group that gets the signals of a socket: fcntl(2),
/// `F_SETOWN`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The number of the process, thread or group; 0 for none.
    pub id: i32,
    /// Whether the number is a thread's.
    pub is_thread: bool,
}

/// A socket.
#[derive(Debug)]
pub struct Socket {
    /// The protocol.
    pub protocol: Protocol,
    /// Whether the socket is an AF_INET6 socket, which may speak IPv4, too (RFC 3493 §3.7).
    pub v6: bool,
    /// The state by kind of socket.
    pub kind: Kind,
    /// The identity of the bound port; 0 for none.
    pub lease: u64,
    /// The grant of the port's authority, which the other replicas are shown.
    pub voucher: Voucher,
    /// The supervisor's sealed statement about the user that created the socket, if the process became
    /// another user before the socket had a port.
    pub pass: Option<(Pass, u64)>,
    /// The local address and port, as far as they are known here.
    pub local: Endpoint,
    /// The peer's address and port.
    pub remote: Endpoint,
    /// The values of the socket's options.
    pub options: Options,
    /// The socket's multicast groups, if any option of multicast was ever set.
    pub multicast: Option<Box<Multicast>>,
    /// The doorbell of the epoll instance that watches the socket.
    pub bell: u32,
    /// Whether the socket's descriptor came from the pool, and goes back there.
    pub pooled: bool,
    /// Whether connect(2) has reported success already.
    pub connect_reported: bool,
    /// What outlives a connection or a listener of the socket.
    pub lasting: Lasting,
    /// Whether the socket was passed over a unix socket: this process holds it until the receiver has it.
    pub passed: bool,
    /// Whether the last send was with MSG_MORE.
    pub more: bool,
    /// Whether the socket is among the owners of send buffers.
    pub(super) buffered: bool,
    /// The number of the last look at send buffers before something was sent.
    pub(super) sent_in: u32,
    /// A digest of an inherited connection's state at the last look.
    pub(super) seen: u64,
    /// What a stack that went has left of the socket.
    pub(super) standing: Standing,
}

/// What outlives a connection or a listener of a stream socket, as the fields of Linux's `struct sock` that
/// TCP_CLOSE leaves alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lasting {
    /// Whether shutdown(2) ended receiving before there was a connection: it holds for the next one, too.
    pub shut_receive: bool,
    /// Whether shutdown(2) ended sending before there was a connection.
    pub shut_send: bool,
    /// Whether the stack has found the port of the socket, and the program has named none: such a port is
    /// given back at the end of a connection or listener (tcp_set_state, `SOCK_BINDPORT_LOCK`).
    pub port_found: bool,
    /// Whether bind(2) has given the socket a port since its connection ended.
    pub bound_since: bool,
}

/// What calls find of a socket besides its kind: what a stack that went has left, and failures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Standing {
    /// Whether the port is to be registered again.
    pub(super) waits: bool,
    /// The error that the next call reports, once.
    pub(super) error: Option<Errno>,
    /// Why the port was not registered again the last time.
    pub(super) refusal: Option<Errno>,
    /// Whether that has been reported.
    pub(super) is_told: bool,
    /// Whether shutdown(2) came when a connection had failed and connect(2) had not said so yet (Linux's
    /// SS_DISCONNECTING): the socket connects no more, unless AF_UNSPEC disconnects it.
    pub(super) is_disconnecting: bool,
}

/// The state by kind of socket.
#[derive(Debug)]
pub enum Kind {
    /// The socket is new: its first address decides whether it belongs to the stack or to the kernel.
    Fresh,
    /// The socket is bound to a port of the stack, or to an address alone: its port is 0 then.
    Bound,
    /// The socket listens.
    Listening(Box<Listener>),
    /// The socket is a connection.
    Stream(Place, Local),
    /// The socket is a datagram socket with a port; it has one slot on each replica of one session.
    Datagram(Box<Datagram>),
}

/// A datagram socket with a port.
#[derive(Debug, Default)]
pub struct Datagram {
    /// The slots of the socket.
    pub places: Vec<Place>,
    /// Whether the socket has a peer.
    pub connected: bool,
    /// Whether connect(2), not the program, chose the local address.
    pub local_chosen: bool,
    /// The index of the place that datagrams leave from, modulo the number of places.
    pub sender: usize,
    /// The index of the place where the next look for a received datagram starts.
    pub next: usize,
    /// Whether shutdown(2) ended receiving.
    pub shut_receive: bool,
    /// Whether shutdown(2) ended sending.
    pub shut_send: bool,
    /// The first octets of a datagram that `MSG_MORE` holds back, at most 64 KiB.
    pub corked: Option<Corked>,
    /// The network errors that calls of this process have taken from the slots, and the program has not read.
    pub faults: Faults,
    /// The types of ICMP messages that a raw socket does not get, a bit for each (`ICMP_FILTER`,
    /// `ICMP6_FILTER`).
    pub filter: [u32; 8],
    /// The datagrams without octets that this process has peeked at and nobody has taken, by the index of
    /// their place and by their position there. No offset of `SO_PEEK_OFF` would pass them.
    pub peeked: BTreeSet<(usize, u64)>,
    /// When the last datagram that this process has received came.
    pub stamp: Stamp,
}

impl Datagram {
    /// Notes that this process has peeked at a datagram without octets, which is the `at`th place's.
    pub(super) fn note_peeked(&mut self, at: usize, waiting: &Waiting) {
        self.peeked.insert((at, waiting.position()));
    }

    /// Forgets what was peeked at before `position` of the `at`th place: it was taken.
    pub(super) fn forget_peeked(&mut self, at: usize, position: u64) {
        if !self.peeked.is_empty() {
            self.peeked.retain(|(place, seen)| *place != at || *seen > position);
        }
    }
}

/// The octets of a datagram that is not complete, and its receiver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Corked {
    /// The receiver that the first of the calls named.
    #[serde(with = "EndpointForm")]
    pub to: Endpoint,
    /// The octets that the calls have written.
    pub octets: Vec<u8>,
    /// The details that the first of the calls asked for, as a record has them.
    pub details: Option<[u8; DETAILS_BYTES]>,
    /// The `UDP_SEGMENT` of the first of the calls; 0 means none.
    pub segment: u16,
}

/// The place of a socket: a slot in one of this process's sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The index of the session in this process.
    pub session: usize,
    /// The index of the replica.
    pub replica: usize,
    /// The number of the slot.
    #[serde(with = "SlotForm")]
    pub slot: SlotId,
    /// The generation of the slot.
    pub generation: u32,
}

/// An epoll instance.
#[derive(Debug)]
pub struct Set<P: Platform> {
    /// The interest list.
    pub members: Head,
    /// The members that may be ready.
    pub ready: Head,
    /// The instance's own doorbell.
    pub bell: u32,
    /// The instance's own doorbell and those of the instances in it, as bits.
    pub bells: u16,
    /// Whether Atoll's epoll instances are or were among the members.
    pub has_sets: bool,
    /// The number of threads that sleep in the instance.
    pub sleepers: u32,
    /// The kernel's part of the instance.
    pub kernel: P::Kernel,
}

impl<P: Platform> Set<P> {
    /// Creates an empty instance.
    pub fn new(bell: u32, kernel: P::Kernel) -> Set<P> {
        let (members, ready) = (Head::default(), Head::default());
        Set { members, ready, bell, bells: 1 << bell, has_sets: false, sleepers: 0, kernel }
    }
}

impl<P: Platform> Object<P> {
    /// Creates an object that one descriptor names.
    pub fn new(body: Body<P>, nonblocking: bool) -> Object<P> {
        let (watchers, owner) = (Head::default(), Owner::default());
        Object { descriptors: 1, pins: 0, nonblocking, body, watchers, owner, marked: None }
    }

    /// Creates an object with a new socket.
    pub fn socket(protocol: Protocol, v6: bool, nonblocking: bool) -> Object<P> {
        Object::new(Body::Socket(Socket::new(protocol, v6)), nonblocking)
    }
}

/// Returns the unspecified address of a family, with port 0.
pub fn any(v6: bool) -> Endpoint {
    Endpoint::at(if v6 { Addr::ANY } else { Addr::V4_ANY }, 0)
}

impl Socket {
    /// Returns the value of `TCP_WINDOW_CLAMP` that a connection shows which has set none. Linux shows one to
    /// programs, some of which set it again as it is (py-amqp), and allows no 0 there.
    pub fn unset_clamp(&self) -> Option<u64> {
        let is_unset = self.options.set_value(Name::WindowClamp).is_none();
        (is_unset && matches!(self.kind, Kind::Stream(..))).then_some(UNSET_CLAMP)
    }

    /// Creates a socket without a port.
    pub fn new(protocol: Protocol, v6: bool) -> Socket {
        let mut options = Options::default();
        if protocol.is_icmp() {
            // INET_PROTOSW_REUSE: what such a socket begins with.
            options.set(Name::ReuseAddr, 1);
        }
        if protocol == Protocol::Icmp {
            // ping_init_sock
            options.set(Name::V6Only, v6.into());
        }
        Socket {
            protocol,
            v6,
            kind: Kind::Fresh,
            lease: 0,
            voucher: Voucher::default(),
            pass: None,
            local: any(v6),
            remote: Endpoint::default(),
            options,
            multicast: None,
            bell: 0,
            pooled: false,
            connect_reported: false,
            lasting: Lasting::default(),
            passed: false,
            more: false,
            buffered: false,
            sent_in: 0,
            seen: 0,
            standing: Standing::default(),
        }
    }

    /// Returns whether bind(2) may give the socket a port, as far as its kind says: it is new, or bound to an
    /// address alone (`IP_BIND_ADDRESS_NO_PORT`). An accepted connection that was dissolved is bound to no
    /// port either: no kernel socket is behind it, so it is never fresh.
    pub fn has_no_port(&self) -> bool {
        matches!(self.kind, Kind::Fresh) || matches!(self.kind, Kind::Bound) && self.lease == 0
    }

    /// Returns whether the program has bound the socket to an address alone (`IP_BIND_ADDRESS_NO_PORT`),
    /// which stays its address when a connection of it ends.
    pub fn is_bound_without_port(&self) -> bool {
        self.lease == 0 && !self.local.addr.is_unspecified() && self.options.is_on(Name::BindWithoutPort)
    }

    /// Returns whether an AF_INET6 socket does not speak IPv4: one of ICMPv6 never does.
    pub fn is_v6_only(&self) -> bool {
        self.v6 && (self.protocol.is_icmp() || self.options.is_on(Name::V6Only))
    }

    /// Returns whether the program has bound an AF_INET6 socket to an address of IPv6: as with
    /// `IPV6_V6ONLY`, it does not speak IPv4 (`__inet6_bind`).
    pub fn is_bound_to_v6(&self) -> bool {
        let is_stream = matches!(self.kind, Kind::Stream(..));
        let addr = self.local.addr;
        self.v6 && !is_stream && !self.is_local_chosen() && !addr.is_unspecified() && !addr.is_v4()
    }

    /// Returns whether the program has bound an AF_INET6 socket to an address of IPv4, so that it does not
    /// speak IPv6.
    pub fn is_bound_to_v4(&self) -> bool {
        let is_stream = matches!(self.kind, Kind::Stream(..));
        self.v6 && !is_stream && !self.is_local_chosen() && self.local.addr.is_v4()
    }

    /// Returns whether a call with MSG_OOB may send to `peer`, or to the socket's own peer. Linux refuses
    /// urgent datagrams but those of UDP over IPv6, where the flag means nothing.
    pub fn may_be_urgent(&self, peer: Option<Endpoint>) -> bool {
        let to = peer.unwrap_or(self.remote).addr;
        !self.protocol.is_datagram() || self.protocol == Protocol::Udp && self.v6 && !to.is_v4()
    }

    /// Returns whether TCP_CORK or MSG_MORE may hold octets back.
    pub fn is_corked(&self) -> bool {
        self.more || self.options.is_on(Name::Cork)
    }

    /// Returns the settings about groups, to change them.
    pub fn multicast_mut(&mut self) -> &mut Multicast {
        let v6 = self.v6;
        self.multicast.get_or_insert_with(|| Box::new(Multicast::new(v6)))
    }

    /// Returns whether errors about what the socket sends are kept for recvmsg(2) with MSG_ERRQUEUE.
    pub fn keeps_errors(&self) -> bool {
        self.options.is_on(Name::ReceiveErrors) || self.options.is_on(Name::ReceiveErrorsV6)
    }

    /// Returns whether connect(2) chose the local address of a datagram socket.
    pub fn is_local_chosen(&self) -> bool {
        matches!(&self.kind, Kind::Datagram(datagram) if datagram.local_chosen)
    }

    /// Returns the command that shows the grant to a replica other than the port's authority, before other
    /// commands; `None` if there is nothing to show.
    pub fn show(&self, replica: usize, replicas: usize) -> Option<Command> {
        let is_authority = usize::from(self.local.port) % replicas.max(1) == replica;
        self.show_again().filter(|_| !is_authority)
    }

    /// Returns the command that shows the grant to a replica that has lost it, even to the authority; `None`
    /// if the socket has no port.
    pub fn show_again(&self) -> Option<Command> {
        let Socket { lease, protocol, local, voucher, .. } = *self;
        (lease != 0).then_some(Command::Show { lease, protocol, local, voucher })
    }

    /// Returns the command that leases the port of the socket once more.
    pub fn bind_again(&self, token: u32) -> Command {
        let Socket { lease, protocol, local, .. } = *self;
        let [reuse_addr, reuse_port, v6_only] =
            [Name::ReuseAddr, Name::ReusePort, Name::V6Only].map(|name| self.options.is_on(name));
        let device = self.options.device();
        Command::Bind { token, lease, protocol, local, reuse_addr, reuse_port, v6_only, device }
    }

    /// Returns the command by which the socket listens at `local`, for which it has `lease`, to be answered
    /// under the token that is passed to it.
    pub fn listen(
        &self,
        (lease, local): (u64, Endpoint),
        backlog: u32,
    ) -> impl FnOnce(u32) -> Command + use<> {
        let [reuse_port, v6_only] = [Name::ReusePort, Name::V6Only].map(|name| self.options.is_on(name));
        let (defer_accept, hops_min) = (self.options.defer_accept_seconds(), self.options.hops_min());
        move |token| Command::Listen {
            token,
            lease,
            local,
            backlog,
            reuse_port,
            defer_accept,
            v6_only,
            hops_min,
        }
    }

    /// Returns [`Socket::show`] for each of `replicas` replicas.
    pub fn show_all(&self, replicas: usize) -> Vec<Option<Command>> {
        (0..replicas).map(|replica| self.show(replica, replicas)).collect()
    }

    /// Returns the slots of the socket.
    pub fn places(&self) -> &[Place] {
        match &self.kind {
            Kind::Stream(place, _) => core::slice::from_ref(place),
            Kind::Datagram(datagram) => &datagram.places,
            _ => &[],
        }
    }

    /// Returns the slots of the socket for writing.
    pub fn places_mut(&mut self) -> &mut [Place] {
        match &mut self.kind {
            Kind::Stream(place, _) => core::slice::from_mut(place),
            Kind::Datagram(datagram) => &mut datagram.places,
            _ => &mut [],
        }
    }
}
