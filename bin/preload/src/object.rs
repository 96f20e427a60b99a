//! What is behind a descriptor of Atoll's? A socket or an epoll instance.

use atoll_base::{Addr, Endpoint, SlotId};
use atoll_ipc::Command;
use atoll_ipc::command::Protocol;
use atoll_ipc::lease::{Pass, Voucher};
use atoll_sockets::listener::Listener;
use atoll_sockets::stream::Local;
use atoll_sockets::watch::Head;

use crate::groups::Multicast;
use crate::table::Internal;
use crate::urgent::Owner;
use crate::wait::Waiter;

/// A socket or an epoll instance.
#[derive(Debug)]
pub struct Object {
    /// Descriptors of this process that name it.
    pub descriptors: u32,
    /// Calls that sleep on it: it is closed when both are 0, as the kernel does.
    pub pins: u32,
    pub nonblocking: bool,
    pub body: Body,
    /// Watches of epoll instances on it.
    pub watchers: Head,
    /// Who gets SIGURG, and the mark that it was sent for last.
    pub owner: Owner,
    pub told: Option<u64>,
}

/// Nearly all are sockets, so these are not the ones behind a pointer.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // Nearly all objects are sockets, and one more allocation for each would cost an accept.
pub enum Body {
    Socket(Socket),
    Epoll(Box<Set>),
}

/// A socket.
#[derive(Debug)]
pub struct Socket {
    pub protocol: Protocol,
    /// An AF_INET6 socket, which may speak IPv4, too (RFC 3493 §3.7).
    pub v6: bool,
    pub kind: Kind,
    /// Identity of the bound port, 0 for none.
    pub lease: u64,
    /// What its authority has granted with that, for other replicas.
    pub voucher: Voucher,
    /// What the supervisor has said of who made it, if that one has given up his user before it had a port, with the seal.
    pub pass: Option<(Pass, u64)>,
    pub local: Endpoint,
    pub remote: Endpoint,
    pub options: Options,
    /// Its groups, if it was ever asked for any.
    pub multicast: Option<Box<Multicast>>,
    /// Bell of the epoll instance that watches it.
    pub bell: u32,
    /// Its number came from the pool, and goes back there.
    pub pooled: bool,
    /// connect(2) has reported success already.
    pub connect_reported: bool,
    /// shutdown(2) came before a connection.
    pub shut_early: bool,
    /// It was passed over a unix socket: whoever gets it must have got it before this process lets go of it.
    pub passed: bool,
    /// The last send was with MSG_MORE.
    pub more: bool,
    /// It is among the owners of send buffers, and was sent on since this look at them: see [`crate::buffers`].
    pub buffered: bool,
    pub sent_in: u32,
    /// What was seen of an inherited connection at the last look.
    pub seen: u64,
}

/// What a socket has become.
#[derive(Debug)]
pub enum Kind {
    /// Nothing yet: the kernel's placeholder answers for it.
    Fresh,
    /// Bound to a port of the stack.
    Bound,
    Listening(Box<Listener>),
    Stream(Place, Local),
    /// One slot on each replica of one session.
    Datagram(Box<Datagram>),
}

/// A datagram socket.
#[derive(Debug, Default)]
pub struct Datagram {
    pub places: Vec<Place>,
    pub connected: bool,
    /// connect(2) has chosen the own address, not the program.
    pub local_chosen: bool,
    /// Where its datagrams leave.
    pub sender: usize,
    /// Where the next look for a received one starts.
    pub next: usize,
    pub shut_receive: bool,
    pub shut_send: bool,
}

/// Where a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of the session in this process.
    pub session: usize,
    pub replica: usize,
    pub slot: SlotId,
    pub generation: u32,
}

// structure: Options: a field for each option of a socket
/// Options that live here; the numbers are those of the socket API.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Options {
    pub nodelay: bool,
    pub cork: bool,
    pub quickack: bool,
    pub keepalive: bool,
    pub reuse_addr: bool,
    pub reuse_port: bool,
    pub broadcast: bool,
    pub v6_only: bool,
    /// Index into `CONGESTION_NAMES`.
    pub congestion: u8,
    pub oob_inline: bool,
    pub dont_route: bool,
    pub packet_info: bool,
    pub fast_open_connect: bool,
    pub linger: Option<u32>,
    pub keep_idle: u32,
    pub keep_interval: u32,
    pub keep_count: u32,
    pub user_timeout: u32,
    pub receive_buffer: u32,
    pub send_buffer: u32,
    pub receive_low: u32,
    pub defer_accept: u32,
    pub max_segment: u32,
    /// `TCP_NOTSENT_LOWAT`; 0: not set.
    pub unsent_low: u32,
    /// `SO_MAX_PACING_RATE`; 0: not set.
    pub pacing_rate: u64,
    pub ttl: u32,
    pub tos: u32,
    /// One more than `IPV6_UNICAST_HOPS`; 0: not set.
    pub hops: u32,
    pub tclass: u32,
    pub linger2: u32,
    pub syn_count: u32,
    pub priority: u32,
    /// `IP_MTU_DISCOVER`, if it was set.
    pub mtu_discover: Option<u32>,
    /// `IPV6_MTU_DISCOVER`, if it was set, and `IPV6_DONTFRAG`.
    pub mtu_discover_v6: Option<u32>,
    pub dont_fragment_v6: bool,
    pub fast_open: u32,
    pub receive_timeout_us: u64,
    pub send_timeout_us: u64,
}

impl Options {
    /// What the options mean to one connection.
    pub fn local(&self) -> Local {
        Local { receive_low: self.receive_low, urgent_inline: self.oob_inline, ..Local::default() }
    }
}

/// An epoll instance.
#[derive(Debug)]
pub struct Set {
    /// The kernel's instance behind it, with the kernel's descriptors.
    pub fd: i32,
    pub members: Head,
    pub ready: Head,
    /// Where its `epoll_wait` sleeps: on the bells and on the kernel's instance.
    pub waiter: Option<Waiter>,
    pub bell: u32,
    /// Its own bell and those of the instances in it.
    pub bells: u16,
    /// Whether instances of ours are or were among its members.
    pub has_sets: bool,
    /// Whether the kernel's instance may have members.
    pub has_kernel: bool,
    /// When the kernel's descriptors were looked at, in nanoseconds, and calls since.
    pub kernel_looked: u64,
    pub calls_since: u32,
    /// Threads that sleep in it.
    pub sleepers: u32,
    /// Threads that sleep in the kernel's instance, because there was nothing else.
    pub kernel_sleepers: u32,
    /// What wakes those when there is.
    pub interrupt: Option<Internal>,
}

impl Object {
    /// An object that one descriptor names.
    pub fn new(body: Body, nonblocking: bool) -> Object {
        Object {
            descriptors: 1,
            pins: 0,
            nonblocking,
            body,
            watchers: Head::default(),
            owner: Owner::default(),
            told: None,
        }
    }

    /// A socket that is nothing yet.
    pub fn socket(protocol: Protocol, v6: bool, nonblocking: bool) -> Object {
        Object::new(
            Body::Socket(Socket {
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
            }),
            nonblocking,
        )
    }
}

/// Any address of a family, any port.
pub fn any(v6: bool) -> Endpoint {
    Endpoint::at(if v6 { Addr::ANY } else { Addr::V4_ANY }, 0)
}

impl Socket {
    /// Whether the address of a datagram socket is connect(2)'s choice.
    pub fn is_local_chosen(&self) -> bool {
        matches!(&self.kind, Kind::Datagram(datagram) if datagram.local_chosen)
    }

    /// What a replica that is not the authority of its port wants to see first.
    pub fn show(&self, replica: usize, replicas: usize) -> Option<Command> {
        let is_authority = usize::from(self.local.port) % replicas.max(1) == replica;
        self.show_again().filter(|_| !is_authority)
    }

    /// What every replica wants to see that has forgotten what was granted: its authority, too.
    pub fn show_again(&self) -> Option<Command> {
        let Socket { lease, protocol, local, voucher, .. } = *self;
        (lease != 0).then_some(Command::Show { lease, protocol, local, voucher })
    }

    /// The same for each replica.
    pub fn show_all(&self, replicas: usize) -> Vec<Option<Command>> {
        (0..replicas).map(|replica| self.show(replica, replicas)).collect()
    }

    /// Where it has slots.
    pub fn places(&self) -> &[Place] {
        match &self.kind {
            Kind::Stream(place, _) => std::slice::from_ref(place),
            Kind::Datagram(datagram) => &datagram.places,
            _ => &[],
        }
    }

    /// Where it has slots.
    pub fn places_mut(&mut self) -> &mut [Place] {
        match &mut self.kind {
            Kind::Stream(place, _) => std::slice::from_mut(place),
            Kind::Datagram(datagram) => &mut datagram.places,
            _ => &mut [],
        }
    }
}
