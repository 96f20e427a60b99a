//! What is behind a descriptor of Atoll's? A socket or an epoll instance.

use alloc::boxed::Box;
use alloc::vec::Vec;

use atoll_base::{Addr, Endpoint, SlotId};
use atoll_ipc::Command;
use atoll_ipc::command::Protocol;
use atoll_ipc::lease::{Pass, Voucher};

use super::groups::Multicast;
use super::platform::Platform;
use crate::listener::Listener;
use crate::options::Options;
use crate::stream::Local;
use crate::watch::Head;

/// A socket or an epoll instance.
#[derive(Debug)]
pub struct Object<P: Platform> {
    /// Descriptors of this process that name it.
    pub descriptors: u32,
    /// Calls that sleep on it: it is closed when both are 0, as the kernel does.
    pub pins: u32,
    /// Whether calls on it do not wait.
    pub nonblocking: bool,
    /// Which of the two it is.
    pub body: Body<P>,
    /// Watches of epoll instances on it.
    pub watchers: Head,
    /// Whom SIGURG goes to.
    pub owner: Owner,
    /// The mark that SIGURG was last sent for.
    pub marked: Option<u64>,
}

/// A socket or an epoll instance. Nearly all are sockets, so these are not the ones behind a pointer.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // Nearly all objects are sockets, and one more allocation for each would cost an accept.
pub enum Body<P: Platform> {
    /// A socket.
    Socket(Socket),
    /// An epoll instance.
    Epoll(Box<Set<P>>),
}

/// A process, a thread, or (negative) a process group that gets the signals of a socket. fcntl(2),
/// `F_SETOWN`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Its number; 0 for nobody.
    pub id: i32,
    /// Whether the number is a thread's.
    pub is_thread: bool,
}

/// A socket.
#[derive(Debug)]
pub struct Socket {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Whether it is an AF_INET6 socket, which may speak IPv4, too (RFC 3493 §3.7).
    pub v6: bool,
    /// What it has become.
    pub kind: Kind,
    /// Identity of the bound port, 0 for none.
    pub lease: u64,
    /// What the port's authority has granted, for other replicas.
    pub voucher: Voucher,
    /// What the supervisor has said of the user that made it, with the seal, if the process has become
    /// another user before the socket had a port.
    pub pass: Option<(Pass, u64)>,
    /// The address and port of this end, as far as they are known here.
    pub local: Endpoint,
    /// The peer's address and port.
    pub remote: Endpoint,
    /// Values of its options.
    pub options: Options,
    /// Its groups, if it was ever asked for any.
    pub multicast: Option<Box<Multicast>>,
    /// Doorbell of the epoll instance that watches it.
    pub bell: u32,
    /// Whether its number came from the pool, and goes back there.
    pub pooled: bool,
    /// Whether connect(2) has reported success already.
    pub connect_reported: bool,
    /// Whether shutdown(2) came before a connection.
    pub shut_early: bool,
    /// Whether it was passed over a unix socket: this process keeps it until the receiver has it.
    pub passed: bool,
    /// Whether the last send was with MSG_MORE.
    pub more: bool,
    /// Whether it is among the owners of send buffers.
    pub(super) buffered: bool,
    /// The last look at send buffers before something was sent.
    pub(super) sent_in: u32,
    /// What was seen of an inherited connection at the last look.
    pub(super) seen: u64,
}

/// What a socket has become.
#[derive(Debug)]
pub enum Kind {
    /// Nothing yet: stack or kernel, that is decided by its first address.
    Fresh,
    /// Bound to a port of the stack.
    Bound,
    /// It listens.
    Listening(Box<Listener>),
    /// A connection.
    Stream(Place, Local),
    /// A datagram socket with a port: one slot on each replica of one session.
    Datagram(Box<Datagram>),
}

/// A datagram socket with a port.
#[derive(Debug, Default)]
pub struct Datagram {
    /// Its slots.
    pub places: Vec<Place>,
    /// Whether it has a peer.
    pub connected: bool,
    /// Whether connect(2) has chosen the own address, not the program.
    pub local_chosen: bool,
    /// Index of the place that its datagrams leave from, modulo their number.
    pub sender: usize,
    /// Index of the place where the next look for a received datagram starts.
    pub next: usize,
    /// Whether shutdown(2) ended receiving.
    pub shut_receive: bool,
    /// Whether shutdown(2) ended sending.
    pub shut_send: bool,
    /// What `MSG_MORE` holds back: the first octets of a datagram, at most 64 KiB.
    pub corked: Option<Corked>,
}

/// The octets of a datagram that is not complete, and whom it goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corked {
    /// As the first of the calls has said.
    pub to: Endpoint,
    /// What they have written.
    pub octets: Vec<u8>,
}

/// A slot in one of this process's sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of the session in this process.
    pub session: usize,
    /// Index of the replica.
    pub replica: usize,
    /// The slot.
    pub slot: SlotId,
    /// Its generation.
    pub generation: u32,
}

/// An epoll instance.
#[derive(Debug)]
pub struct Set<P: Platform> {
    /// Its interest list.
    pub members: Head,
    /// Members that may be ready.
    pub ready: Head,
    /// Its doorbell.
    pub bell: u32,
    /// Its own doorbell and those of the instances in it, as bits.
    pub bells: u16,
    /// Whether instances of ours are or were among its members.
    pub has_sets: bool,
    /// Threads that sleep in it.
    pub sleepers: u32,
    /// What it has besides Atoll's objects.
    pub kernel: P::Kernel,
}

impl<P: Platform> Set<P> {
    /// An empty instance.
    pub fn new(bell: u32, kernel: P::Kernel) -> Set<P> {
        let (members, ready) = (Head::default(), Head::default());
        Set { members, ready, bell, bells: 1 << bell, has_sets: false, sleepers: 0, kernel }
    }
}

impl<P: Platform> Object<P> {
    /// An object that one descriptor names.
    pub fn new(body: Body<P>, nonblocking: bool) -> Object<P> {
        let (watchers, owner) = (Head::default(), Owner::default());
        Object { descriptors: 1, pins: 0, nonblocking, body, watchers, owner, marked: None }
    }

    /// A socket that is nothing yet.
    pub fn socket(protocol: Protocol, v6: bool, nonblocking: bool) -> Object<P> {
        Object::new(Body::Socket(Socket::new(protocol, v6)), nonblocking)
    }
}

/// Any address of a family, any port.
pub fn any(v6: bool) -> Endpoint {
    Endpoint::at(if v6 { Addr::ANY } else { Addr::V4_ANY }, 0)
}

impl Socket {
    /// A socket that is nothing yet.
    pub fn new(protocol: Protocol, v6: bool) -> Socket {
        Socket {
            protocol,
            v6,
            kind: Kind::Fresh,
            lease: 0,
            voucher: Voucher::default(),
            pass: None,
            local: any(v6),
            remote: Endpoint::default(),
            options: Options::default(),
            multicast: None,
            bell: 0,
            pooled: false,
            connect_reported: false,
            shut_early: false,
            passed: false,
            more: false,
            buffered: false,
            sent_in: 0,
            seen: 0,
        }
    }

    /// Whether the address of a datagram socket is connect(2)'s choice.
    pub fn is_local_chosen(&self) -> bool {
        matches!(&self.kind, Kind::Datagram(datagram) if datagram.local_chosen)
    }

    /// The command that a replica other than the authority of the port wants to see first.
    pub fn show(&self, replica: usize, replicas: usize) -> Option<Command> {
        let is_authority = usize::from(self.local.port) % replicas.max(1) == replica;
        self.show_again().filter(|_| !is_authority)
    }

    /// The command that a replica wants to see that has forgotten what was granted, even if it is the
    /// authority.
    pub fn show_again(&self) -> Option<Command> {
        let Socket { lease, protocol, local, voucher, .. } = *self;
        (lease != 0).then_some(Command::Show { lease, protocol, local, voucher })
    }

    /// [`Socket::show`] for each of `replicas` replicas.
    pub fn show_all(&self, replicas: usize) -> Vec<Option<Command>> {
        (0..replicas).map(|replica| self.show(replica, replicas)).collect()
    }

    /// Where it has slots.
    pub fn places(&self) -> &[Place] {
        match &self.kind {
            Kind::Stream(place, _) => core::slice::from_ref(place),
            Kind::Datagram(datagram) => &datagram.places,
            _ => &[],
        }
    }

    /// Where it has slots.
    pub fn places_mut(&mut self) -> &mut [Place] {
        match &mut self.kind {
            Kind::Stream(place, _) => core::slice::from_mut(place),
            Kind::Datagram(datagram) => &mut datagram.places,
            _ => &mut [],
        }
    }
}
