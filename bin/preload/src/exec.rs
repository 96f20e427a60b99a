//! Passes sockets on to a program that takes the place of this one (execve(2)), or is spawned
//! (posix_spawn(3)).
//!
//! A program image leaves nothing but descriptors. So what the next process needs to know
//! ([`atoll_sockets::client::exec_state`]) is written to a memfd whose number is in the environment variable
//! `ATOLL_INHERIT`; the constructor of the next image's library reads it. A `!` behind the number says that
//! the next image may not be able to connect by itself ([`is_away`]); `+` and two numbers are the limits of
//! its address space as the program has set them ([`crate::space`]).

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::Ordering;

use atoll_sockets::client::exec_state::{BadState, ExecState, INHERITED_MAX, SessionState};

use crate::beyond::{with_own_limit, with_room};
use crate::child_state::{self, ChildState, NextProcess, Preparation};
use crate::control::{Control, Joined};
use crate::hang_up;
use crate::lock::{self, STATE};
use crate::real::{last_errno, set_errno, sys};
use crate::settings::settings;
use crate::space;
use crate::state::{SHUT_IN, State, is_away, note_user, own};
use crate::supervisor::{Connections, SUPERVISOR};
use crate::table::{self, Internal};
use crate::urgent;

const VARIABLE: &[u8] = b"ATOLL_INHERIT=";

/// An environment for the next program, and everything that has to stay alive until that runs.
pub struct NextProgram {
    _variable: CString,
    environment: Vec<*const c_char>,
    child_state: ChildState,
    memory: Internal,
    /// The numbers whose kernel descriptors are set to close on exec again if this program goes on.
    opened: Vec<c_int>,
}

impl NextProgram {
    /// Prepares for a program that gets the sockets that `sockets` returns, each with its descriptor number
    /// there and its object here. Returns `None` if there is nothing to pass on, or if that fails.
    ///
    /// # Safety
    /// `environment` is a valid environment.
    pub unsafe fn prepare(
        sockets: impl Fn() -> Vec<(c_int, u32)>,
        environment: *const *const c_char,
    ) -> Option<NextProgram> {
        hang_up::before_child();
        space::loosen();
        let (child_state, memory, opened) = SUPERVISOR.with(|connections| {
            let mut given = Vec::new();
            let preparation = Preparation::prepare(connections, NextProcess::Program, |state| {
                given = sockets();
                let mut objects: Vec<u32> = given.iter().map(|(_, object)| *object).collect();
                objects.retain(|object| state.client.socket(*object).is_some());
                objects.sort_unstable();
                objects.dedup();
                objects
            });
            // SAFETY: the lock is held since the preparation.
            let state = unsafe { STATE.0.held() };
            let written = preparation.child_state.and_then(|child_state| write(state, child_state, &given));
            STATE.0.release();
            written
        })?;
        memory.set_inheritable(true);
        child_state.control.descriptor().set_inheritable(true);
        for session in child_state.sessions() {
            session.descriptors().for_each(|fd| fd.set_inheritable(true));
        }
        let mark = if is_away() { "!" } else { "" };
        let value = format!("{}{mark}{}", memory.number(), space::to_text());
        let variable = CString::new([VARIABLE, value.as_bytes()].concat()).ok()?;
        // SAFETY: the caller's promise.
        let mut all = unsafe { without_variable(environment) };
        all.extend(missing(&all));
        all.push(variable.as_ptr());
        all.push(std::ptr::null());
        Some(NextProgram { _variable: variable, environment: all, child_state, memory, opened })
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
        child_state::refit_limit();
    }

    /// Drops what only this process needed, because the program runs beside it.
    pub fn given(self) {
        close_again(&self.opened);
        drop(self.child_state);
        child_state::refit_limit();
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
            true => SUPERVISOR.with(|connections| connections.take_kept().or_else(|| connections.for_next())),
            false => None,
        };
        if connection.is_none() && settings().socket.is_none() {
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
            SUPERVISOR.with(|connections| connections.keep(Some(connection)));
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
    let inherited = Control::inherited(Internal::inherited(fd));
    SUPERVISOR.with(|connections| connections.keep(Some(inherited)));
    SHUT_IN.store(true, Ordering::Relaxed);
}

/// The variable with the number of a connection; see [`Guidance`].
const CONNECTION: &str = "ATOLL_CONNECTION";

/// Writes down what the next program has to know, and lets it have the descriptors `given`, each with its
/// object. Returns also the memory that it is in, and the descriptors that do not close on exec now; `None`
/// if that fails.
fn write(
    state: &State,
    child_state: ChildState,
    given: &[(c_int, u32)],
) -> Option<(ChildState, Internal, Vec<c_int>)> {
    let Some(memory) = write_down(state, &child_state, given) else {
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

// ---- what is written down, and where ----

/// Writes down what the program that `child_state` is prepared for needs. Returns `None` if that fails.
fn write_down(state: &State, child_state: &ChildState, sockets: &[(c_int, u32)]) -> Option<Internal> {
    let session = |joined: &Joined| SessionState {
        reply: joined.session.reply,
        descriptors: joined.descriptors().map(Internal::number).collect(),
    };
    let sessions = child_state.sessions().map(session).collect();
    let joined: Vec<usize> = child_state.joined.iter().map(|(index, _)| *index).collect();
    let control = child_state.control.descriptor().number();
    match state.client.exec_state(control, sessions, &joined, sockets).encode() {
        Ok(octets) => to_memfd(&octets),
        Err(error) => {
            crate::complain(format_args!(
                "libatoll: the next program cannot have this program's sockets: {error}\n"
            ));
            None
        }
    }
}

/// Writes octets to a memfd, whose number is high. Returns `None` if that fails.
pub fn to_memfd(octets: &[u8]) -> Option<Internal> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    let memory = with_room(|room| {
        // SAFETY: a valid name.
        let fd = unsafe { sys!(libc::SYS_memfd_create, c"atoll-inheritance".as_ptr(), flags) } as c_int;
        // SAFETY: just created, owned by nobody else.
        (fd >= 0).then(|| room.keep(unsafe { OwnedFd::from_raw_fd(fd) }))
    })?;
    let number = memory.number();
    // SAFETY: the octets are valid; the descriptor is ours.
    let written = unsafe { sys!(libc::SYS_write, number, octets.as_ptr().cast::<c_void>(), octets.len()) };
    (written == octets.len() as i64).then_some(memory)
}

/// Returns the octets in a memfd, or their beginning if they are more than `most`; `None` if the descriptor
/// is not one of this library's memfds.
pub fn from_memfd(fd: c_int, most: usize) -> Option<Vec<u8>> {
    // SAFETY: numbers only.
    if unsafe { sys!(libc::SYS_fcntl, fd, libc::F_GET_SEALS) } < 0 {
        return None;
    }
    let mut octets = vec![0; most.min(FIRST_READ)];
    let mut filled = 0;
    loop {
        let rest = octets.get_mut(filled..).unwrap_or_default();
        // SAFETY: the target is as long as that.
        let n = unsafe {
            sys!(libc::SYS_pread64, fd, rest.as_mut_ptr().cast::<c_void>(), rest.len(), filled as i64)
        };
        filled += usize::try_from(n).ok()?;
        if n == 0 || filled == most {
            break;
        }
        if filled == octets.len() {
            octets.resize(most.min(filled * 2), 0);
        }
    }
    octets.truncate(filled);
    Some(octets)
}

/// The octets that are first read of a memfd: as many as a few sockets take.
const FIRST_READ: usize = 4096;

/// Takes the sockets that the program before this one has left. Returns whether there were any. It is called
/// by the constructor.
pub fn restore() -> bool {
    take_connection();
    let Some(value) = std::env::var_os("ATOLL_INHERIT") else { return false };
    // SAFETY: the constructor runs before the program's threads. Our children are not to find it.
    unsafe { libc::unsetenv(c"ATOLL_INHERIT".as_ptr()) };
    let Some(value) = value.to_str() else { return false };
    let (value, limits) = value.split_once('+').unwrap_or((value, ""));
    space::take_text(limits);
    let (number, is_away) = value.strip_suffix('!').map_or((value, false), |number| (number, true));
    let Ok(fd) = number.parse::<c_int>() else { return false };
    let octets = from_memfd(fd, INHERITED_MAX + 1);
    table::close(fd);
    let read = octets.ok_or(BadState::Foreign).and_then(|octets| ExecState::decode(&octets));
    let taken = read.and_then(|exec_state| {
        SUPERVISOR.with(|connections| STATE.0.with(|state| take(connections, state, exec_state)))
    });
    if let Err(error) = taken {
        crate::complain(format_args!(
            "libatoll: the sockets of the program before this one are lost: {error}\n"
        ));
        return false;
    }
    if is_away {
        SHUT_IN.store(true, Ordering::Relaxed);
    }
    note_user();
    child_state::refit_limit();
    urgent::resume();
    true
}

/// Goes on with what the program before this one has left. Fails if a session cannot be mapped.
fn take(connections: &mut Connections, state: &mut State, exec_state: ExecState) -> Result<(), BadState> {
    let ExecState { control, sessions, sockets } = exec_state;
    let control = Control::inherited(Internal::inherited(control));
    let mut sessions = sessions.into_iter().map(|SessionState { reply, descriptors }| {
        let fds: Vec<Internal> = descriptors.into_iter().map(Internal::inherited).collect();
        let joined = Joined::new(&reply, fds.into_iter(), false);
        joined.map(|joined| joined.session).map_err(|_| BadState::Session)
    });
    let first = sessions.next().ok_or(BadState::Session)??;
    let joined = sessions.collect::<Result<Vec<_>, BadState>>()?;
    hang_up::watch(control.descriptor().number());
    connections.own = Some(control);
    let (session, clock, seed) = own(first);
    for (fd, object) in state.client.take_exec_state((session, clock, seed), joined, sockets) {
        table::set_object(fd, object, false);
    }
    Ok(())
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
    let next = match table::any_objects() {
        // SAFETY: the caller's promise.
        true => unsafe { NextProgram::prepare(survivors, environment) },
        false => None,
    };
    // Only waited for: the child of a vfork(2) would take the lock with it, in the memory of its parent.
    with_own_limit(|| ());
    if let Some(next) = next {
        return restoring_errno(exec(next.environment()), || next.take_back());
    }
    let limits = space::without_arenas();
    // SAFETY: the caller's promise.
    match unsafe { Guidance::prepare(environment, std::process::id().to_string()) } {
        Some(guidance) => restoring_errno(exec(guidance.environment()), || {
            guidance.take_back();
            space::with_arenas_again(limits);
        }),
        None => restoring_errno(exec(environment), || space::with_arenas_again(limits)),
    }
}

/// Runs `clean_up` after a call that has failed, and keeps the call's errno.
fn restoring_errno(result: c_int, clean_up: impl FnOnce()) -> c_int {
    let errno = last_errno();
    clean_up();
    set_errno(errno);
    result
}
