//! Passes sockets on to a program that takes the place of this one (execve(2)), or is spawned
//! (posix_spawn(3)).
//!
//! A program image leaves nothing but descriptors. So what the next process needs to know
//! ([`crate::child_state`]) is written to a memfd whose number is in the environment variable
//! `ATOLL_INHERIT`; the constructor of the next image's library reads it.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::Ordering;

use atoll_base::{Addr, Endpoint, SlotId};
use atoll_ipc::command::Protocol;
use atoll_ipc::control::Reply;
use atoll_ipc::lease::Voucher;
use atoll_sockets::client::groups::{Multicast, MulticastV6};
use atoll_sockets::client::object::{Body, Datagram, Kind, Place, Socket};
use atoll_sockets::listener::Listener;
use atoll_sockets::options::Options;
use atoll_sockets::stream::Local;

use crate::child_state::{ChildState, NextProcess, Preparation};
use crate::control::{Control, Joined};
use crate::lock::{self, STATE};
use crate::platform::Object;
use crate::real::last_errno;
use crate::real::sys;
use crate::settings::settings;
use crate::state::{SHUT_IN, State, is_away, own};
use crate::supervisor::{Connections, SUPERVISOR};
use crate::table::{self, Internal};

const VARIABLE: &[u8] = b"ATOLL_INHERIT=";
const MAGIC: u64 = u64::from_le_bytes(*b"atollin2");

/// An environment for the next program, and everything that has to stay alive until that runs.
pub struct ExecState {
    _variable: CString,
    environment: Vec<*const c_char>,
    child_state: ChildState,
    memory: Internal,
    /// The numbers whose kernel descriptors are set to close on exec again if this program goes on.
    opened: Vec<c_int>,
}

impl ExecState {
    /// Prepares for a program that gets the sockets that `sockets` returns, each with its descriptor number
    /// there and its object here. Returns `None` if there is nothing to pass on, or if that fails.
    ///
    /// # Safety
    /// `environment` is a valid environment.
    pub unsafe fn prepare(
        sockets: impl Fn() -> Vec<(c_int, u32)>,
        environment: *const *const c_char,
    ) -> Option<ExecState> {
        let (child_state, memory, opened) = SUPERVISOR.with(|connections| {
            let (mut given, mut objects) = (Vec::new(), Vec::new());
            let preparation = Preparation::prepare(connections, NextProcess::Program, |state| {
                given = sockets();
                objects = given.iter().map(|(_, object)| *object).collect();
                objects.retain(|object| state.client.is_held(*object));
                objects.sort_unstable();
                objects.dedup();
                objects.clone()
            });
            // SAFETY: the lock is held since the preparation.
            let state = unsafe { STATE.0.held() };
            let written =
                preparation.child_state.and_then(|child_state| write(state, child_state, &objects, &given));
            STATE.0.release();
            written
        })?;
        memory.set_inheritable(true);
        child_state.control.descriptor().set_inheritable(true);
        for session in
            std::iter::once(&child_state.own).chain(child_state.joined.iter().map(|(_, session)| session))
        {
            session.descriptors().for_each(|fd| fd.set_inheritable(true));
        }
        let variable = CString::new([VARIABLE, memory.number().to_string().as_bytes()].concat()).ok()?;
        // SAFETY: the caller's promise.
        let mut all = unsafe { without_variable(environment) };
        all.extend(missing(&all));
        all.push(variable.as_ptr());
        all.push(std::ptr::null());
        Some(ExecState { _variable: variable, environment: all, child_state, memory, opened })
    }

    /// Returns the environment of the next program.
    pub fn environment(&self) -> *const *const c_char {
        self.environment.as_ptr()
    }

    /// Restores the state from before `prepare`, because the program does not run.
    pub fn take_back(self) {
        STATE.with(|state| self.child_state.disown(state));
        close_again(&self.opened);
        drop(self.memory);
    }

    /// Drops what only this process needed, because the program runs beside it.
    pub fn given(self) {
        close_again(&self.opened);
    }
}

fn close_again(opened: &[c_int]) {
    for fd in opened {
        let is_pooled = STATE.with(|state| {
            table::object_at(*fd).and_then(|o| state.client.socket(o)).is_some_and(|s| s.pooled)
        });
        if is_pooled || table::closes_on_exec(*fd) {
            table::set_kernel_cloexec(*fd, true);
        }
    }
}

/// Returns the entries of an environment, except an inheritance that is not meant for the next program.
unsafe fn without_variable(environment: *const *const c_char) -> Vec<*const c_char> {
    let mut all = Vec::new();
    let mut at = environment;
    // SAFETY: a list of strings that ends with a null pointer, as execve(2) wants it.
    while !at.is_null() && unsafe { !(*at).is_null() } {
        // SAFETY: as above.
        let entry = unsafe { *at };
        // SAFETY: as above.
        let name = unsafe { CStr::from_ptr(entry) }.to_bytes();
        if !name.starts_with(VARIABLE) && !name.starts_with(CONNECTION.as_bytes()) {
            all.push(entry);
        }
        // SAFETY: the end is not reached.
        at = unsafe { at.add(1) };
    }
    all
}

/// Returns the entries that an environment lacks for the library to be loaded and to find its stack: nginx
/// executes a new version of itself with hardly any environment.
fn missing(environment: &[*const c_char]) -> Vec<*const c_char> {
    let name_of = |entry: &'static CStr| {
        entry.to_bytes().split_inclusive(|byte| *byte == b'=').next().unwrap_or_default()
    };
    let ours = settings().environment.iter().map(CString::as_c_str);
    let is_there = |name: &[u8]| {
        // SAFETY: entries of an environment are strings.
        environment.iter().any(|at| unsafe { CStr::from_ptr(*at) }.to_bytes().starts_with(name))
    };
    ours.filter(|entry| !is_there(name_of(entry))).map(CStr::as_ptr).collect()
}

/// An environment and a connection for a program that inherits no sockets, but could not join the stack by
/// itself.
///
/// The connection stands for one process, so the variable names it: `NUMBER:PID`, or `NUMBER:-PID` for any
/// child of that process. A program without this library hands both on to its children, which must not all
/// use the connection as theirs.
pub struct Guidance {
    _variable: Option<CString>,
    environment: Vec<*const c_char>,
    connection: Option<Control>,
}

impl Guidance {
    /// Prepares for the program of process `whose`. Returns `None` if that needs nothing.
    ///
    /// # Safety
    /// `environment` is a valid environment.
    pub unsafe fn prepare(environment: *const *const c_char, whose: String) -> Option<Guidance> {
        let connection = match is_away() {
            // The kept connection is not given away: the stack may not grant this process another one.
            true if whose.starts_with('-') => SUPERVISOR.with(|connections| connections.for_next()),
            true => SUPERVISOR.with(|connections| connections.kept.take().or_else(|| connections.for_next())),
            false => None,
        };
        if connection.is_none() && !settings().follow {
            return None;
        }
        // SAFETY: the caller's promise.
        let mut all = unsafe { without_variable(environment) };
        all.extend(missing(&all));
        let variable = connection.as_ref().and_then(|connection| {
            connection.descriptor().set_inheritable(true);
            CString::new(format!("{CONNECTION}={}:{whose}", connection.descriptor().number())).ok()
        });
        all.extend(variable.as_ref().map(|variable| variable.as_ptr()));
        all.push(std::ptr::null());
        Some(Guidance { _variable: variable, environment: all, connection })
    }

    /// Keeps the connection, because the program does not run and this one goes on.
    pub fn take_back(self) {
        if let Some(connection) = self.connection {
            connection.descriptor().set_inheritable(false);
            SUPERVISOR.with(|connections| connections.kept = Some(connection));
        }
    }

    /// Returns the environment of the program.
    pub fn environment(&self) -> *const *const c_char {
        self.environment.as_ptr()
    }
}

/// Takes the connection that the program before this one, or the parent, has left for this process.
fn take_connection() {
    let Some(value) = std::env::var_os(CONNECTION) else { return };
    let name = CString::new(CONNECTION).unwrap_or_default();
    // SAFETY: the constructor runs before the program's threads.
    unsafe { libc::unsetenv(name.as_ptr()) };
    let Some((fd, whose)) = value.to_str().and_then(|value| value.split_once(':')) else { return };
    let (Ok(fd), Ok(whose)) = (fd.parse::<c_int>(), whose.parse::<i64>()) else { return };
    // SAFETY: only asks for the number.
    let parent = unsafe { libc::getppid() };
    let is_ours =
        if whose < 0 { i64::from(parent) == -whose } else { i64::from(std::process::id()) == whose };
    // SAFETY: asks only what it is; nothing else in this process has been told of it.
    if !is_ours || fd < 0 || !atoll_sys::unix::is_channel(unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) })
    {
        return;
    }
    SUPERVISOR.with(|connections| connections.kept = Some(Control::inherited(Internal::inherited(fd))));
    SHUT_IN.store(true, Ordering::Relaxed);
}

/// The variable with the number of a connection; see [`Guidance`].
const CONNECTION: &str = "ATOLL_CONNECTION";

/// Writes down what the next program has to know of `objects`, and lets it have the descriptors `given`.
/// Returns also the memory that it is in, and the descriptors that do not close on exec now; `None` if that
/// fails.
fn write(
    state: &State,
    child_state: ChildState,
    objects: &[u32],
    given: &[(c_int, u32)],
) -> Option<(ChildState, Internal, Vec<c_int>)> {
    let words = write_words(state, &child_state, objects, given);
    let Some(memory) = to_memfd(&words) else {
        child_state.disown(state);
        return None;
    };
    let mut opened = Vec::new();
    for (fd, _) in given {
        if table::object_at(*fd).is_some() {
            table::set_kernel_cloexec(*fd, false);
            opened.push(*fd);
        }
    }
    Some((child_state, memory, opened))
}

/// Returns the sockets that stay open over exec. The kernel's flag of each descriptor is brought in line, so
/// that the kernel closes the others.
pub fn survivors() -> Vec<(c_int, u32)> {
    let all: Vec<(c_int, u32)> = table::objects_between(0, u32::MAX).collect();
    for (fd, _) in &all {
        table::set_kernel_cloexec(*fd, table::closes_on_exec(*fd));
    }
    all.into_iter().filter(|(fd, _)| !table::closes_on_exec(*fd)).collect()
}

// ---- what is written down: words of 64 bits ----

fn write_words(
    state: &State,
    child_state: &ChildState,
    objects: &[u32],
    sockets: &[(c_int, u32)],
) -> Vec<u64> {
    let sessions: Vec<&Joined> =
        std::iter::once(&child_state.own).chain(child_state.joined.iter().map(|(_, s)| s)).collect();
    let mut words = vec![MAGIC, child_state.control.descriptor().number() as u64, sessions.len() as u64];
    for session in sessions {
        write_reply(&mut words, &session.session.reply);
        let fds: Vec<u64> = session.descriptors().map(|fd| fd.number() as u64).collect();
        words.push(fds.len() as u64);
        words.extend(fds);
    }
    words.push(objects.len() as u64);
    for object in objects {
        if let Some(Object { body: Body::Socket(socket), nonblocking, .. }) = state.client.object(*object) {
            let index = |place: &Place| child_state.index_of(place.session).unwrap_or(0);
            write_socket(&mut words, socket, *nonblocking, index);
        }
        let fds: Vec<u64> = sockets.iter().filter(|(_, o)| o == object).map(|(fd, _)| *fd as u64).collect();
        words.push(fds.len() as u64);
        words.extend(fds);
    }
    words
}

fn write_reply(words: &mut Vec<u64>, reply: &Reply) {
    let bytes = reply.encode();
    words.extend(
        bytes
            .chunks_exact(8)
            .map(|chunk| chunk.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))),
    );
}

pub fn write_socket(
    words: &mut Vec<u64>,
    socket: &Socket,
    nonblocking: bool,
    index: impl Fn(&Place) -> usize,
) {
    let (kind, extra) = match &socket.kind {
        Kind::Fresh => (0, 0),
        Kind::Bound => (1, 0),
        Kind::Listening(listener) => (2, u64::from(listener.backlog)),
        Kind::Stream(_, local) => (3, u64::from(local.error_taken)),
        Kind::Datagram(datagram) => {
            (4, u64::from(datagram.connected) | (datagram.sender as u64 & 0xffff) << 8)
        }
    };
    let flags = u64::from(socket.v6) | u64::from(nonblocking) << 1 | u64::from(socket.connect_reported) << 2;
    words.extend([kind, extra, socket.protocol as u64, flags, socket.lease]);
    let Voucher { uid, flags, granted, seal } = socket.voucher;
    words.extend([u64::from(uid) << 8 | u64::from(flags), granted, seal]);
    words.extend(endpoint(socket.local));
    words.extend(endpoint(socket.remote));
    socket.options.write(words);
    words.push(socket.places().len() as u64);
    for place in socket.places() {
        words.extend([
            index(place) as u64,
            place.replica as u64,
            u64::from(place.slot.0),
            u64::from(place.generation),
        ]);
    }
    let multicast = socket.multicast.as_deref().cloned().unwrap_or_default();
    let Multicast { joined, all, is_looped, ttl, interface, v6 } = &multicast;
    words.push(
        u64::from(*all) | u64::from(*is_looped) << 1 | u64::from(*ttl) << 8 | u64::from(*interface) << 32,
    );
    let flags = u64::from(v6.all) | u64::from(v6.is_looped) << 1;
    words.push(flags | u64::from(v6.hops) << 8 | u64::from(v6.interface) << 32);
    words.push(joined.len() as u64 * 3);
    words.extend(joined.iter().flat_map(|(group, inside)| endpoint(Endpoint::at(*group, (*inside).into()))));
}

fn endpoint(endpoint: Endpoint) -> [u64; 3] {
    let [high, low] = endpoint.addr.to_u64s();
    [high, low, endpoint.port.into()]
}

fn endpoint_of([high, low, port]: [u64; 3]) -> Endpoint {
    let mut octets = [0; 16];
    octets[..8].copy_from_slice(&high.to_ne_bytes());
    octets[8..].copy_from_slice(&low.to_ne_bytes());
    Endpoint::at(Addr::from_octets(octets), port as u16)
}

/// A reader of words, in order.
pub struct Words<'a>(pub &'a [u64]);

impl<'a> Words<'a> {
    fn next(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn take(&mut self, count: usize) -> Option<&'a [u64]> {
        let (now, later) = self.0.split_at_checked(count)?;
        self.0 = later;
        Some(now)
    }

    /// Returns a list: a count, followed by as many words.
    fn list(&mut self) -> Option<&'a [u64]> {
        let count = usize::try_from(self.next()?).ok()?;
        self.take(count)
    }

    fn reply(&mut self) -> Option<Reply> {
        let bytes: Vec<u8> = self.take(7)?.iter().flat_map(|word| word.to_le_bytes()).collect();
        Reply::decode(&bytes).ok()
    }

    /// Returns a socket as [`write_socket`] wrote it; `None` if the words are invalid.
    pub fn socket(&mut self) -> Option<Object> {
        let [kind, extra, protocol, flags, lease] = *self.take(5)? else { return None };
        let [who, granted, seal] = *self.take(3)? else { return None };
        let [a, b, c, d, e, f] = *self.take(6)? else { return None };
        let options = Options::read(|count| self.take(count))?;
        let count = usize::try_from(self.next()?).ok()?;
        let mut places = Vec::new();
        for _ in 0..count {
            let [session, replica, slot, generation] = *self.take(4)? else { return None };
            let (slot, generation) = (SlotId(slot as u32), generation as u32);
            places.push(Place { session: session as usize, replica: replica as usize, slot, generation });
        }
        let (multicast, v6) = (self.next()?, self.next()?);
        let joined = self.list()?.chunks_exact(3).map(|words| endpoint_of([words[0], words[1], words[2]]));
        let multicast = Multicast {
            all: multicast & 1 != 0,
            is_looped: multicast & 2 != 0,
            ttl: (multicast >> 8) as u8,
            interface: (multicast >> 32) as u32,
            v6: MulticastV6 {
                all: v6 & 1 != 0,
                is_looped: v6 & 2 != 0,
                hops: (v6 >> 8) as u8,
                interface: (v6 >> 32) as u32,
            },
            joined: joined.map(|group| (group.addr, group.port != 0)).collect(),
        };
        let protocol = Protocol::from_u8(protocol as u8)?;
        let mut object = Object::socket(protocol, flags & 1 != 0, flags & 2 != 0);
        let Body::Socket(socket) = &mut object.body else { return None };
        socket.connect_reported = flags & 4 != 0;
        socket.lease = lease;
        socket.voucher = Voucher { uid: (who >> 8) as u32, flags: who as u8, granted, seal };
        socket.local = endpoint_of([a, b, c]);
        socket.remote = endpoint_of([d, e, f]);
        socket.options = options;
        socket.multicast = (multicast != Multicast::default()).then(|| Box::new(multicast));
        socket.kind = match kind {
            1 => Kind::Bound,
            2 => Kind::Listening(Box::new(Listener { backlog: extra as u32, ..Listener::default() })),
            3 => {
                let local = Local { error_taken: extra != 0, ..socket.options.local() };
                Kind::Stream(*places.first()?, local)
            }
            4 if !places.is_empty() => Kind::Datagram(Box::new(Datagram {
                places,
                connected: extra & 1 != 0,
                sender: (extra >> 8) as usize,
                ..Datagram::default()
            })),
            _ => Kind::Fresh,
        };
        Some(object)
    }
}

/// Writes words to a memfd, whose number is high. Returns `None` if that fails.
pub fn to_memfd(words: &[u64]) -> Option<Internal> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: a valid name.
    let fd = unsafe { sys!(libc::SYS_memfd_create, c"atoll-inheritance".as_ptr(), flags) } as c_int;
    if fd < 0 {
        return None;
    }
    // SAFETY: the bytes are valid; the descriptor is ours.
    let written = unsafe { sys!(libc::SYS_write, fd, bytes.as_ptr().cast::<c_void>(), bytes.len()) };
    // SAFETY: just created, owned by nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    (written == bytes.len() as i64).then(|| Internal::new(fd))
}

/// Returns the words in a memfd; `None` if the descriptor is not one of this library's memfds.
pub fn from_memfd(fd: c_int) -> Option<Vec<u64>> {
    // SAFETY: numbers only.
    if unsafe { sys!(libc::SYS_fcntl, fd, libc::F_GET_SEALS) } < 0 {
        return None;
    }
    let mut words = vec![0u64; 512];
    let mut filled = 0usize;
    loop {
        let room = words.len() * 8 - filled;
        // SAFETY: the room is behind what was filled.
        let target = unsafe { words.as_mut_ptr().cast::<u8>().add(filled) };
        // SAFETY: `target` has room for as many bytes.
        let n = unsafe { sys!(libc::SYS_pread64, fd, target.cast::<c_void>(), room, filled as i64) };
        match usize::try_from(n) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(_) => return None,
        }
        if filled == words.len() * 8 {
            if words.len() >= 1 << 20 {
                return None;
            }
            words.resize(words.len() * 2, 0);
        }
    }
    words.truncate(filled / 8);
    Some(words)
}

/// Takes the sockets that the program before this one has left. Returns whether there were any. It is called
/// by the constructor.
pub fn restore() -> bool {
    take_connection();
    let Some(value) = std::env::var_os("ATOLL_INHERIT") else { return false };
    // SAFETY: the constructor runs before the program's threads. Our children are not to find it.
    unsafe { libc::unsetenv(c"ATOLL_INHERIT".as_ptr()) };
    let Some(fd) = value.to_str().and_then(|value| value.parse::<c_int>().ok()) else { return false };
    let words = from_memfd(fd);
    table::close(fd);
    let Some(words) = words.filter(|words| words.first() == Some(&MAGIC)) else {
        crate::complain(format_args!(
            "libatoll: the sockets of the program before this one are lost: it had another build of this library\n"
        ));
        return false;
    };
    let read = SUPERVISOR
        .with(|connections| STATE.0.with(|state| read_words(connections, state, &mut Words(&words[1..]))));
    if read.is_none() {
        crate::complain(format_args!(
            "libatoll: the sockets of the program before this one are lost ({:?})\n",
            last_errno()
        ));
    }
    true
}

fn read_words(connections: &mut Connections, state: &mut State, words: &mut Words<'_>) -> Option<()> {
    let control = Control::inherited(Internal::inherited(words.next()? as c_int));
    let count = words.next()?;
    let mut sessions = Vec::new();
    for index in 0..count {
        let reply = words.reply()?;
        let fds = words.list()?.iter().map(|fd| Internal::inherited(*fd as c_int));
        let mut session = Joined::new(&reply, fds.collect::<Vec<_>>().into_iter(), false)?.session;
        session.shared = index > 0;
        sessions.push(session);
    }
    let mut sessions = sessions.into_iter();
    connections.own = Some(control);
    let (session, clock, seed) = own(sessions.next()?);
    state.client.adopt(session, clock, seed);
    for session in sessions {
        state.client.add_session(session);
    }
    for _ in 0..words.next()? {
        let object = words.socket()?;
        let fds = words.list()?;
        adopt_socket(state, object, fds.iter().map(|fd| *fd as c_int));
    }
    Some(())
}

/// Makes a socket that came from another process an object of this process, under its descriptors.
pub fn adopt_socket(state: &mut State, mut object: Object, fds: impl ExactSizeIterator<Item = c_int>) {
    object.descriptors = fds.len() as u32;
    let number = state.client.insert_inherited(object);
    for fd in fds {
        table::set_object(fd, number, false);
    }
}

/// Runs `exec` with an environment that passes the surviving sockets on. It returns only if `exec` fails.
///
/// # Safety
/// `environment` is a valid environment.
pub unsafe fn with_sockets(
    environment: *const *const c_char,
    exec: impl FnOnce(*const *const c_char) -> c_int,
) -> c_int {
    if !lock::settle() {
        // The waiting commands would never be sent. execve(2): "Resource temporarily unavailable".
        // SAFETY: a valid thread-local.
        unsafe { *libc::__errno_location() = libc::EAGAIN };
        return -1;
    }
    let exec_state = match table::any_objects() {
        // SAFETY: the caller's promise.
        true => unsafe { ExecState::prepare(survivors, environment) },
        false => None,
    };
    if let Some(exec_state) = exec_state {
        return restoring_errno(exec(exec_state.environment()), || exec_state.take_back());
    }
    // SAFETY: the caller's promise.
    match unsafe { Guidance::prepare(environment, std::process::id().to_string()) } {
        Some(guidance) => restoring_errno(exec(guidance.environment()), || guidance.take_back()),
        None => exec(environment),
    }
}

/// Runs `clean_up` after a call that has failed, and keeps the call's errno.
fn restoring_errno(result: c_int, clean_up: impl FnOnce()) -> c_int {
    let errno = last_errno();
    clean_up();
    // SAFETY: a valid thread-local.
    unsafe { *libc::__errno_location() = errno.0 };
    result
}
