//! Programs that load no library (static, set-user-ID ...), executed by a program on a stack. Static ones are
//! served nevertheless where that is possible ([`crate::hosting`]).
//!
//! What was put on a stack does not get to the kernel's network unless that was asked for, and neither do
//! its children. `atoll run` sees to it by a filter that everything below it has ([`atoll_sys::internet`]).
//! What is left to do when such a program is executed:
//!
//! - It inherits the stack's sockets as what the kernel knows of them: sockets without a connection, which it
//!   could connect or bind on the kernel's network. Unix sockets take their places.
//! - Where there is no filter, because something else than `atoll run` has loaded the library, it gets one. A
//!   thread without CAP_SYS_ADMIN pays for that with `no_new_privs`, which takes away the rights of a
//!   set-user-ID program: such a program is not executed then.
//! - A set-user-ID program below a filter that was paid for so runs without its rights, and a line says why.

use std::ffi::{CStr, CString, c_char, c_int, c_ulong};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Barrier;
use std::sync::atomic::AtomicBool;

use atoll_sockets::Errno;
use atoll_sys::program::{self, File, Identity, Unserved};
use libc::{posix_spawn_file_actions_t, sigset_t, sock_fprog};

use crate::hosting::{self, Hosted, Start, Strings};
use crate::real::{self, last_errno, set_errno, sys};
use crate::settings::settings;
use crate::spawn_actions::{self, Change};
use crate::table;

/// A program as the program on the stack names it. Its pointers may be invalid.
#[derive(Clone, Copy)]
pub struct Program {
    /// The folder of a path, or `AT_FDCWD`.
    pub directory: c_int,
    /// The path, or the name to be looked for in PATH.
    pub path: *const c_char,
    /// The flags of execveat(2).
    pub flags: c_int,
    /// Whether PATH is searched: execvp(3).
    pub in_path: bool,
    /// What is done in the child first, or null: posix_spawn(3).
    pub actions: *const posix_spawn_file_actions_t,
}

impl Program {
    /// Returns the program at a path, as execve(2) has it.
    pub fn at(path: *const c_char) -> Program {
        let actions = std::ptr::null();
        Program { directory: libc::AT_FDCWD, path, flags: 0, in_path: false, actions }
    }

    /// Returns the program of a name, as execvp(3) has it.
    pub fn named(path: *const c_char) -> Program {
        Program { in_path: true, ..Program::at(path) }
    }

    /// Returns the program, started after `actions`.
    pub fn after(self, actions: *const posix_spawn_file_actions_t) -> Program {
        Program { actions, ..self }
    }

    /// Calls `look` with the file that is executed. Returns `None` if there is none.
    fn with_file<R>(&self, look: impl FnOnce(File<'_>) -> Option<R>) -> Option<R> {
        // SAFETY: the kernel checks the pointer.
        let looked = unsafe { sys!(libc::SYS_faccessat, libc::AT_FDCWD, self.path, libc::F_OK) };
        if self.path.is_null() || looked < 0 && last_errno() == Errno::EFAULT {
            return None;
        }
        // SAFETY: a string that the kernel could read.
        let path = unsafe { CStr::from_ptr(self.path) };
        let changed;
        let working = match self.working() {
            Some(folder) => {
                changed = folder;
                changed.as_fd()
            }
            None => program::HERE,
        };
        let found: CString;
        let path = if self.in_path {
            let folders = std::env::var_os("PATH");
            found = program::find(working, path, folders.as_deref())?;
            &found
        } else {
            path
        };
        let directory = match self.directory {
            libc::AT_FDCWD => working,
            fd if fd < 0 => return None,
            // SAFETY: the program's number, for the length of this call; the kernel checks it.
            fd => unsafe { BorrowedFd::borrow_raw(fd) },
        };
        look(File { directory, path, flags: self.flags, working })
    }

    /// Returns why the program loads no library; `None` if it does, or if it cannot be executed.
    fn why_unserved(&self, identity: &Identity) -> Option<Unserved> {
        self.with_file(|file| program::why_unserved(file, identity))
    }

    /// Returns the program in whose place this one is executed, if that is possible.
    ///
    /// # Safety
    /// `argv` and `envp` are valid.
    unsafe fn hosted(&self, argv: Strings, envp: Strings) -> Option<Hosted> {
        let errno = last_errno();
        let is_named = self.directory == libc::AT_FDCWD;
        let hosted = self.with_file(|file| {
            let judged = program::judge(file, &Identity::own())?;
            if judged.reason != Some(Unserved::Static) {
                return None;
            }
            // SAFETY: the caller's promise.
            unsafe { Hosted::prepare(file, is_named, judged, argv, envp) }
        });
        restore(hosted, errno)
    }

    /// Returns the path or name, for people.
    fn display(&self) -> String {
        // SAFETY: it has been read as a string before.
        unsafe { CStr::from_ptr(self.path) }.to_string_lossy().escape_debug().to_string()
    }

    /// Returns the folder that the actions of posix_spawn(3) go to; `None` if they stay.
    fn working(&self) -> Option<OwnedFd> {
        let mut folder: Option<OwnedFd> = None;
        // SAFETY: null or initialised by the C library.
        for change in unsafe { spawn_actions::folders(self.actions) } {
            let next = match change {
                Change::To(path) => {
                    program::open_folder(folder.as_ref().map_or(program::HERE, OwnedFd::as_fd), path).ok()
                }
                Change::ToOpen(fd) if fd >= 0 => {
                    // SAFETY: the program's number, for the length of this call; the kernel checks it.
                    unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().ok()
                }
                Change::ToOpen(_) => None,
            };
            folder = next.or(folder);
        }
        folder
    }
}

/// Executes a program with the environment `envp`: `exec` does it. A static one is executed in the place of
/// its host. Another program that loads no library gets no sockets of the kernel's network, or is not
/// executed.
///
/// A thread whose `exec` fails then has the filter, which the library's own sockets pass.
///
/// # Safety
/// `argv` and `envp` are valid.
pub unsafe fn exec(program: Program, argv: Strings, envp: Strings, exec: impl FnOnce() -> c_int) -> c_int {
    if hosting::is_possible()
        // SAFETY: the caller's promise.
        && let Some(hosted) = unsafe { program.hosted(argv, envp) }
    {
        let start = hosted.start();
        // SAFETY: valid strings.
        return unsafe { real::execve(start.path, start.argv, start.envp) };
    }
    let Some(reason) = why_apart(program) else { return exec() };
    match keep_off(program, reason) {
        Ok(()) => {
            replace_placeholders();
            exec()
        }
        Err(errno) => restore(-1, errno),
    }
}

/// Starts a program: `spawn` does it, and returns the number of an error. `makes` says whether it also makes
/// a descriptor. See [`exec`].
///
/// # Safety
/// The strings of `start` are valid.
pub unsafe fn spawn(
    program: Program,
    makes: Makes,
    start: Start,
    spawn: impl FnOnce(Start) -> c_int,
) -> c_int {
    if hosting::is_possible()
        // SAFETY: the caller's promise.
        && let Some(hosted) = unsafe { program.hosted(start.argv, start.envp) }
    {
        return spawn(hosted.start());
    }
    match why_apart(program) {
        None => spawn(start),
        Some(reason) => apart(program, reason, makes, || spawn(start)).unwrap_or_else(|errno| errno.0),
    }
}

/// Runs `/bin/sh` as `run` does: system(3), popen(3). `failed` is the result if it is not run, beside an
/// errno. See [`exec`].
pub fn shell<T>(failed: T, makes: Makes, run: impl FnOnce() -> T) -> T {
    let program = Program::at(c"/bin/sh".as_ptr());
    match why_apart(program) {
        None => run(),
        Some(reason) => {
            let ran = apart(program, reason, makes, || (run(), last_errno()));
            let (result, errno) = ran.unwrap_or_else(|errno| (failed, errno));
            restore(result, errno)
        }
    }
}

/// What a call that starts a program makes besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Makes {
    /// Nothing else.
    Process,
    /// A descriptor of the caller, too.
    Descriptor,
}

fn restore<T>(result: T, errno: Errno) -> T {
    set_errno(errno);
    result
}

/// Returns why a program has to be kept apart from the kernel's network; `None` if it needs not.
fn why_apart(program: Program) -> Option<Unserved> {
    let settings = settings();
    if settings.socket.is_none() || settings.kernel_network.has_rest() {
        return None;
    }
    let errno = last_errno();
    let identity = Identity::own();
    let reason = program.why_unserved(&identity);
    let may_lose = reason.is_none_or(Unserved::gives_rights);
    if may_lose && identity.no_new_privileges && is_kept_off() {
        let with_rights = Identity { no_new_privileges: false, ..identity };
        tell_of_lost_rights(program, program.why_unserved(&with_rights));
    }
    restore(reason, errno)
}

/// Says once that a program runs without the rights that its file gives, if it gives any.
fn tell_of_lost_rights(program: Program, reason: Option<Unserved>) {
    static IS_TOLD: AtomicBool = AtomicBool::new(false);
    if let Some(reason) = reason.filter(|reason| reason.gives_rights()) {
        crate::complain_once(
            &IS_TOLD,
            format_args!(
                "libatoll: {} {}: on a stack of an ordinary user it runs without the rights that it would \
                 get (atoll run --kernel-network lets it have them)\n",
                program.display(),
                match reason {
                    Unserved::Capabilities => "has file capabilities",
                    _ => "is a set-user-ID or set-group-ID program",
                }
            ),
        );
    }
}

/// Returns whether this thread has the filter, or another that answers so. Without one, the kernel says that
/// there is no such type of socket.
fn is_kept_off() -> bool {
    const NO_TYPE: c_int = 15;
    // SAFETY: numbers only.
    let fd = unsafe { sys!(libc::SYS_socket, libc::AF_INET, NO_TYPE, 0, 0, 0, 0) };
    fd < 0 && last_errno() == Errno::EACCES
}

/// Calls `run` in a thread that has the filter: what that starts has it, too, and this process has not.
fn apart<T>(program: Program, reason: Unserved, makes: Makes, run: impl FnOnce() -> T) -> Result<T, Errno> {
    let begins = Barrier::new(2);
    let given = Given((program, run));
    let job = || {
        let (program, run) = given.take();
        begins.wait();
        let kept = keep_off(program, reason);
        // The thread's own table of descriptors.
        // SAFETY: numbers only.
        if makes == Makes::Process && unsafe { sys!(libc::SYS_unshare, libc::CLONE_FILES) } == 0 {
            replace_placeholders();
        }
        Given(kept.map(|()| run()))
    };
    std::thread::scope(|scope| {
        // The thread, and what it starts, has this thread's mask of signals.
        let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, job);
        let thread = thread.map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EAGAIN)))?;
        // A handler would take the child away from system(3), which blocks the signal in its own thread only.
        let quiet = Quiet::begin();
        begins.wait();
        let ended = thread.join();
        quiet.end();
        ended.map_or(Err(Errno(libc::EAGAIN)), Given::take)
    })
}

/// Puts unix sockets in the places of the kernel's sockets behind those of the stack, in this thread's table
/// of descriptors: the program that inherits these could connect or bind the kernel's.
fn replace_placeholders() {
    let mut made: Vec<(u32, c_int)> = Vec::new();
    for (fd, object) in table::objects_between(0, u32::MAX).collect::<Vec<_>>() {
        let (mut domain, mut len): (c_int, u32) = (0, 4);
        let option = (libc::SOL_SOCKET, libc::SO_DOMAIN);
        // SAFETY: the pointers are valid.
        unsafe { sys!(libc::SYS_getsockopt, fd, option.0, option.1, &raw mut domain, &raw mut len) };
        if ![libc::AF_INET, libc::AF_INET6].contains(&domain) {
            continue;
        }
        // Duplicates stay duplicates.
        let known = made.iter().find(|(of, _)| *of == object).map(|(_, socket)| *socket);
        let socket = known.unwrap_or_else(|| {
            let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
            // SAFETY: numbers only.
            let socket = unsafe { sys!(libc::SYS_socket, libc::AF_UNIX, kind, 0) } as c_int;
            made.push((object, socket));
            socket
        });
        // SAFETY: numbers only.
        unsafe {
            let closes = sys!(libc::SYS_fcntl, fd, libc::F_GETFD) & i64::from(libc::FD_CLOEXEC) != 0;
            sys!(libc::SYS_dup3, socket, fd, if closes { libc::O_CLOEXEC } else { 0 });
        }
    }
    // What these numbers are in the library's table is the business of another thread.
    made.into_iter().for_each(|(_, socket)| table::close(socket));
}

/// Pointers of a caller who waits for the thread that gets them.
struct Given<T>(T);

// SAFETY: the thread that gives it does nothing until the one that takes it has ended.
unsafe impl<T> Send for Given<T> {}

impl<T> Given<T> {
    fn take(self) -> T {
        self.0
    }
}

/// SIGCHLD is blocked in this thread, and it is not cancelled.
struct Quiet {
    mask: sigset_t,
    cancel_state: c_int,
}

impl Quiet {
    fn begin() -> Quiet {
        // SAFETY: all-zero is a valid value of these; the pointers are valid.
        unsafe {
            let (mut mask, mut children): (sigset_t, sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
            let mut cancel_state = 0;
            libc::sigaddset(&raw mut children, libc::SIGCHLD);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const children, &raw mut mask);
            pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut cancel_state);
            Quiet { mask, cancel_state }
        }
    }

    fn end(self) {
        // SAFETY: the pointers are valid.
        unsafe {
            pthread_setcancelstate(self.cancel_state, std::ptr::null_mut());
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.mask, std::ptr::null_mut());
        }
    }
}

// pthread.h.
const PTHREAD_CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// The size of the stack of a thread that starts a program.
const STACK: usize = 256 << 10;

/// Installs the filter in this thread, for good, unless it has one. Fails if the program would lose rights by
/// it, or if the kernel has no filters.
fn keep_off(program: Program, reason: Unserved) -> Result<(), Errno> {
    if is_kept_off() {
        return Ok(());
    }
    let error = match install() {
        Ok(()) => return Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::EACCES) && !reason.gives_rights() => {
            // The C library's function would be this library's.
            // SAFETY: numbers only.
            unsafe { sys!(libc::SYS_prctl, libc::PR_SET_NO_NEW_PRIVS, 1 as c_ulong, 0, 0, 0) };
            match install() {
                Ok(()) => return Ok(()),
                Err(error) => error,
            }
        }
        Err(error) => error,
    };
    static IS_TOLD: AtomicBool = AtomicBool::new(false);
    let why = match reason.gives_rights() {
        true => String::from("what would keep it off the kernel's network would take its rights away"),
        false => format!("nothing keeps it off the kernel's network: {error}"),
    };
    crate::complain_once(
        &IS_TOLD,
        format_args!(
            "libatoll: {} {reason}, so it is not executed: {why} (atoll run --kernel-network lets it run)\n",
            program.display()
        ),
    );
    Err(Errno::EACCES)
}

/// Installs the filter in this thread, without giving up any rights.
fn install() -> io::Result<()> {
    let mut filter = atoll_sys::internet::filter();
    let program = sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // The C library's function would be this library's, which takes the filter for one of the program's.
    // SAFETY: the program is valid, and the kernel copies it.
    match unsafe { sys!(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) } {
        0 => Ok(()),
        _ => Err(io::Error::from_raw_os_error(last_errno().0)),
    }
}
