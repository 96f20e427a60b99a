//! The connection between this process and the supervisor, which stands for the process and lets it join a
//! stack. [`crate::supervisor`] says when it may be used.

use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, OwnedFd};

use atoll_base::Duration;
use atoll_ipc::LAYOUT_VERSION;
use atoll_ipc::command::Protocol;
use atoll_ipc::control::{Refusal, Reply, Request, set_token, token};
use atoll_ipc::lease::Pass;
use atoll_ipc::listing::{self, HEAD_BYTES, PACKET_BYTES, SocketEntry};
use atoll_ipc::page::{
    APP_PAGE_BYTES, AppPage, BELLS, REPLICA_PAGE_BYTES, ReplicaPage, STACK_PAGE_BYTES, StackPage,
};
use atoll_shm::{Access, ShmMemory};
use atoll_sockets::Errno;
use atoll_sockets::client::session::{Shared, SharedReplica};
use atoll_sys::unix::Channel;

use crate::beyond::with_room;
use crate::platform::Session;
use crate::settings::settings;
use crate::space;
use crate::table::Internal;

/// The time that the supervisor has to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Who writes to a memory of a session.
#[derive(Clone, Copy)]
enum Written {
    /// Only the supervisor or a replica writes to it.
    ByStack,
    /// Other processes of the session write to it, too: the memory has to be sealed.
    ByFamily,
}

/// A session that the supervisor has made this process a member of.
#[derive(Debug)]
pub struct Joined {
    /// The session.
    pub session: Session,
    /// The descriptors of its pages and arenas, if they are to be passed on over exec.
    kept: Vec<Internal>,
}

/// A list of sockets, as far as it has come.
#[derive(Debug)]
pub struct SocketList {
    /// The sockets.
    pub entries: Vec<SocketEntry>,
    /// Whether these are all.
    pub is_whole: bool,
}

/// The reason why a process has no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The supervisor has refused it.
    Refused(Refusal),
    /// The supervisor cannot be reached, or does not answer: the errno of a system call.
    Unreachable(i32),
}

impl Reason {
    /// Returns the errno with which socket(2) fails if it must not fall back on the kernel.
    pub fn errno(self) -> Errno {
        match self {
            Reason::Refused(Refusal::Permission) | Reason::Unreachable(libc::EACCES) => Errno(libc::EACCES),
            Reason::Refused(Refusal::Sessions) => Errno(libc::ENFILE),
            Reason::Refused(Refusal::Resources) => Errno::ENOBUFS,
            Reason::Unreachable(libc::ENOMEM) => Errno(libc::ENOMEM),
            _ => Errno::ENETDOWN,
        }
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Reason::Refused(Refusal::Permission) | Reason::Unreachable(libc::EACCES) => {
                let uid = atoll_sys::process::effective_user();
                write!(f, "user {uid} may not use it (start it with --allow-user {uid})")
            }
            Reason::Refused(refusal) => write!(f, "{refusal}"),
            Reason::Unreachable(libc::ENOENT | libc::ECONNREFUSED) => {
                f.write_str("it is not up, or cannot be seen from here")
            }
            Reason::Unreachable(libc::ENOMEM) => {
                f.write_str("there is no memory or address space for its session (ulimit -v)")
            }
            Reason::Unreachable(libc::EAGAIN) => f.write_str("it does not answer"),
            Reason::Unreachable(errno) => write!(f, "{}", std::io::Error::from_raw_os_error(*errno)),
        }
    }
}

impl From<std::io::Error> for Reason {
    fn from(error: std::io::Error) -> Reason {
        Reason::Unreachable(error.raw_os_error().unwrap_or(libc::EPROTO))
    }
}

/// Returns the request for a session of a process's own, with arenas that fit its address space.
pub fn attach() -> Request {
    Request::Attach { layout_version: LAYOUT_VERSION, room_mib: space::room_mib() }
}

/// A connection to the supervisor.
#[derive(Debug)]
pub struct Control(Internal);

impl Control {
    /// Connects to the supervisor that `ATOLL_SOCKET` names.
    pub fn connect() -> Result<Control, Reason> {
        let path = settings().socket.as_deref().ok_or(Reason::Unreachable(libc::ENOENT))?;
        let control = Control(with_room(|room| {
            let channel = Channel::unconnected()?;
            std::io::Result::Ok(room.keep(channel.into()))
        })?);
        control.channel().reach_own(path, ANSWER_TIMEOUT)?;
        Ok(control)
    }

    /// Returns a connection that was inherited over exec.
    pub fn inherited(fd: Internal) -> Control {
        Control(fd)
    }

    /// Forgets a connection that another process has: see [`Internal::disown`].
    pub fn disown(self) {
        self.0.disown();
    }

    /// Returns the descriptor of the connection.
    pub fn descriptor(&self) -> &Internal {
        &self.0
    }

    /// Creates a session of this process's own.
    pub fn attach(&self) -> Result<Session, Reason> {
        Ok(self.ask(&attach(), false)?.session)
    }

    /// Joins a session that exists.
    pub fn join(&self, session: u32, key: u64) -> Result<Session, Reason> {
        let mut joined = self.ask(&Request::Join { session, key }, false)?.session;
        joined.shared = true;
        Ok(joined)
    }

    /// Returns another connection to the same supervisor, for a process that cannot see its socket's path.
    pub fn another(&self) -> Result<Control, Reason> {
        match self.exchange(&Request::Connect)? {
            (Reply::Connected, mut fds) => {
                let fd = fds.next().ok_or(Reason::Unreachable(libc::EPROTO))?;
                let another = Control(fd);
                let _ = another.channel().set_timeouts(ANSWER_TIMEOUT);
                Ok(another)
            }
            _ => Err(Reason::Unreachable(libc::EPROTO)),
        }
    }

    /// Returns the supervisor's pass, with its seal, about the user of the calling thread, even if that
    /// differs from the process's.
    pub fn vouch(&self, lease: u64, protocol: Protocol, port: u16) -> Result<(Pass, u64), Reason> {
        match self.exchange(&Request::Vouch { lease, protocol, port })? {
            (Reply::Vouched { pass, seal }, _) => Ok((pass, seal)),
            _ => Err(Reason::Unreachable(libc::EPROTO)),
        }
    }

    /// Asks for the sockets of the whole stack, and returns the first part of the list. Listeners and
    /// datagram sockets are listed once for each replica.
    pub fn ask_for_sockets(&self) -> Result<SocketList, Reason> {
        self.channel().send_as_effective(&Request::ListSockets { token: 0 }.encode())?;
        let mut list = SocketList { entries: Vec::new(), is_whole: false };
        self.more_sockets(&mut list)?;
        Ok(list)
    }

    /// Receives the next part of a list.
    pub fn more_sockets(&self, list: &mut SocketList) -> Result<(), Reason> {
        let (mut packet, mut fds) = (vec![0; PACKET_BYTES], Vec::new());
        let len = self.channel().receive_within(ANSWER_TIMEOUT, &mut packet, &mut fds)?;
        let packet = packet.get(..len).unwrap_or_default();
        match packet.get(..HEAD_BYTES).map(Reply::decode) {
            Some(Ok(Reply::Listed { is_last })) => {
                list.entries.extend(listing::decode(packet));
                list.is_whole = is_last;
                Ok(())
            }
            Some(Ok(Reply::Refused { reason })) => Err(Reason::Refused(reason)),
            _ => Err(Reason::Unreachable(libc::EPROTO)),
        }
    }

    /// Asks for a new session, or membership in one. `keep` keeps the descriptors, to pass them on over exec.
    pub fn ask(&self, request: &Request, keep: bool) -> Result<Joined, Reason> {
        let (reply, fds) = self.exchange(request)?;
        Joined::new(&reply, fds, keep)
    }

    fn channel(&self) -> ManuallyDrop<Channel> {
        // SAFETY: the descriptor is open, and stays ours.
        ManuallyDrop::new(Channel::from(unsafe { OwnedFd::from_raw_fd(self.0.number()) }))
    }

    /// Sends a request. Returns the reply and its descriptors, or the refusal as an error.
    fn exchange(&self, request: &Request) -> Result<(Reply, impl Iterator<Item = Internal> + use<>), Reason> {
        let channel = self.channel();
        let mut number = [0; 8];
        let _ = atoll_sys::process::random(&mut number);
        let number = u64::from_ne_bytes(number) | 1;
        let mut packet = request.encode();
        set_token(&mut packet, number);
        // If this fails, the supervisor may have refused before it read anything, and closed the connection.
        let sent = channel.send_as_effective(&packet);
        loop {
            let mut packet = [0; 256];
            let mut received = receive(&channel, &mut packet);
            if matches!(&received, Err(error) if error.raw_os_error() == Some(libc::ECONNRESET)) {
                // A supervisor that refuses the connection has not read the request; its refusal comes behind
                // this error.
                received = receive(&channel, &mut packet);
            }
            let (len, fds) = match received {
                Ok((0, _)) => {
                    return Err(sent.err().map_or(Reason::Unreachable(libc::ECONNRESET), Reason::from));
                }
                Ok((len, fds)) => (len.min(packet.len()), fds),
                Err(error) => return Err(error.into()),
            };
            // A supervisor that has taken over may answer an earlier request a second time.
            if ![0, number].contains(&token(&packet[..len])) {
                continue;
            }
            return match Reply::decode(&packet[..len]) {
                Ok(Reply::Refused { reason }) => Err(Reason::Refused(reason)),
                Ok(reply) => Ok((reply, fds.into_iter())),
                Err(_) => Err(Reason::Unreachable(libc::EPROTO)),
            };
        }
    }
}

/// Receives a reply, and its descriptors as the library's own. The limit of descriptors is raised only when
/// the reply is there.
fn receive(channel: &Channel, packet: &mut [u8]) -> std::io::Result<(usize, Vec<Internal>)> {
    channel.wait_to_receive(ANSWER_TIMEOUT)?;
    with_room(|room| {
        let mut fds = Vec::new();
        let len = channel.receive_within(ANSWER_TIMEOUT, packet, &mut fds)?;
        Ok((len, room.keep_all(fds)))
    })
}

impl Joined {
    /// Maps the session that a reply describes, from its descriptors in the order of [`Reply::Joined`].
    /// `keep` keeps the descriptors for later. Fails with EPROTO if they are not what the reply says, and
    /// with ENOMEM if there is no address space for them.
    pub fn new(reply: &Reply, mut fds: impl Iterator<Item = Internal>, keep: bool) -> Result<Joined, Reason> {
        const BROKEN: Reason = Reason::Unreachable(libc::EPROTO);
        let Reply::Joined { replicas: count, config, .. } = *reply else { return Err(BROKEN) };
        let mut kept = Vec::new();
        let mut map = |fd: Option<Internal>, what: Written, len, access| {
            let fd = fd.ok_or(BROKEN)?;
            let memory = match what {
                Written::ByStack => ShmMemory::map_page(&fd, len, access),
                Written::ByFamily => ShmMemory::map(&fd, len, access),
            };
            if keep {
                kept.push(fd);
            }
            memory.map_err(|error| match error.raw_os_error() {
                Some(libc::ENOMEM) => Reason::Unreachable(libc::ENOMEM),
                _ => BROKEN,
            })
        };
        let stack = StackPage(map(fds.next(), Written::ByStack, STACK_PAGE_BYTES, Access::ReadOnly)?);
        let app_page = AppPage(map(fds.next(), Written::ByFamily, APP_PAGE_BYTES, Access::ReadWrite)?);
        let bells: Vec<Internal> = fds.by_ref().take(BELLS).collect();
        let mut replicas = Vec::new();
        for _ in 0..count {
            let page = map(fds.next(), Written::ByStack, REPLICA_PAGE_BYTES, Access::ReadOnly)?;
            let arena = map(fds.next(), Written::ByFamily, config.layout().total, Access::ReadWrite)?;
            let bell = fds.next().ok_or(BROKEN)?;
            replicas.push(SharedReplica { page: ReplicaPage(page), arena, bell });
        }
        let session = Session::new(reply, Shared { stack, app_page, bells, replicas }).ok_or(BROKEN)?;
        Ok(Joined { session, kept })
    }

    /// Returns all descriptors in the order of [`Reply::Joined`], if they were kept.
    pub fn descriptors(&self) -> impl Iterator<Item = &Internal> {
        let pages = self.kept.get(2..).unwrap_or_default().chunks(2);
        let of_replicas = pages.zip(self.session.replicas());
        let of_replicas = of_replicas.flat_map(|(kept, replica)| kept.iter().chain([replica.bell()]));
        self.kept.iter().take(2).chain(self.session.bells()).chain(of_replicas)
    }
}
