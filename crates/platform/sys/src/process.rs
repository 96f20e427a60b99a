//! Starts, watches and confines processes (posix_spawn(3), pidfd_open(2), prctl(2)).

use std::ffi::{CString, OsStr, c_long};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, FdFlags, fcntl_dupfd_cloexec, fcntl_getfd, fcntl_setfd};
use rustix::pipe::{PipeFlags, pipe_with};
pub use rustix::process::Signal;
use rustix::process::{self as sys, Pid, PidfdFlags, Resource, Rlimit, WaitId, WaitIdOptions};
pub use rustix::thread::UnshareFlags;

use crate::instruction::call;

/// The number of the first descriptor that [`Spawn::inherit`] passes on.
pub const FIRST_INHERITED: RawFd = 3;

/// A process about to be started.
///
/// It gets descriptors 0, 1 and 2 of this process, the ones passed to [`Spawn::inherit`], and no others. It
/// is spawned, not forked: the parent's page tables are not copied, however many arenas it has mapped.
#[derive(Debug)]
pub struct Spawn<'fd> {
    program: CString,
    args: Vec<CString>,
    env: Vec<CString>,
    inherited: Vec<BorrowedFd<'fd>>,
    /// The program, if a descriptor names it.
    file: Option<BorrowedFd<'fd>>,
    /// Whether the standard error of the new process is a pipe that this process reads.
    captures_errors: bool,
}

impl<'fd> Spawn<'fd> {
    /// Prepares a process of this binary, even if its file has been replaced meanwhile; `name` becomes
    /// `argv[0]`. Fails with `InvalidInput` if `name` has a NUL byte.
    pub fn this_binary(name: impl AsRef<OsStr>) -> io::Result<Spawn<'fd>> {
        Spawn::program(Path::new("/proc/self/exe"), name)
    }

    /// Prepares a process of the binary at `path`, with `name` as its `argv[0]` and the environment of this
    /// process. Fails with `InvalidInput` if any of them has a NUL byte.
    pub fn program(path: &Path, name: impl AsRef<OsStr>) -> io::Result<Spawn<'fd>> {
        let mut env = Vec::new();
        for (key, value) in std::env::vars_os() {
            env.push(c_string(&[key.as_bytes(), b"=", value.as_bytes()])?);
        }
        let program = c_string(&[path.as_os_str().as_bytes()])?;
        let args = vec![c_string(&[name.as_ref().as_bytes()])?];
        Ok(Spawn { program, args, env, inherited: Vec::new(), file: None, captures_errors: false })
    }

    /// Prepares a process of the program in `file` (O_PATH suffices), whatever became of its name; `name`
    /// becomes `argv[0]`. The new process has the descriptor open, behind those that are passed on, because
    /// the interpreter of a script reads it.
    pub fn file(file: BorrowedFd<'fd>, name: impl AsRef<OsStr>) -> io::Result<Spawn<'fd>> {
        Ok(Spawn { file: Some(file), ..Spawn::program(Path::new(""), name)? })
    }

    /// Appends an argument. Fails with `InvalidInput` if it has a NUL byte.
    pub fn arg(&mut self, arg: impl AsRef<OsStr>) -> io::Result<&mut Self> {
        self.args.push(c_string(&[arg.as_ref().as_bytes()])?);
        Ok(self)
    }

    /// Clears the environment, so that only later [`Spawn::env`] calls count.
    pub fn env_clear(&mut self) -> &mut Self {
        self.env.clear();
        self
    }

    /// Sets an environment variable of the new process. Fails with `InvalidInput` if key or value has a NUL
    /// byte.
    pub fn env(&mut self, key: &str, value: impl AsRef<OsStr>) -> io::Result<&mut Self> {
        let prefix = c_string(&[key.as_bytes(), b"="])?.into_bytes();
        self.env.retain(|entry| !entry.as_bytes().starts_with(&prefix));
        self.env.push(c_string(&[&prefix, value.as_ref().as_bytes()])?);
        Ok(self)
    }

    /// Passes `fd` on. Returns its number in the new process: 3, 4, 5 and so on, in the order of the calls.
    pub fn inherit(&mut self, fd: BorrowedFd<'fd>) -> RawFd {
        self.inherited.push(fd);
        FIRST_INHERITED + self.inherited.len() as RawFd - 1
    }

    /// Makes the standard error of the new process a pipe, whose other end is [`Child::take_errors`]. Neither
    /// end waits for the other: a write that does not fit into the pipe fails with EAGAIN (pipe(7)).
    pub fn capture_errors(&mut self) -> &mut Self {
        self.captures_errors = true;
        self
    }

    /// Returns how many descriptors are passed on, which the new process gives to [`take_inherited`].
    pub fn inherited(&self) -> usize {
        self.inherited.len()
    }

    /// Starts the process. Fails as execve(2) does if the program cannot be run.
    pub fn start(&self) -> io::Result<Child> {
        let all = || self.inherited.iter().chain(&self.file);
        let end = FIRST_INHERITED + all().count() as RawFd;
        // Move the descriptors out of the way first: otherwise placing one could overwrite another that is
        // still to be placed.
        let mut sources: Vec<OwnedFd> =
            all().map(|fd| fcntl_dupfd_cloexec(fd, end)).collect::<Result<_, Errno>>()?;
        let of_file = self.file.map(|_| CString::new(format!("/proc/self/fd/{}", end - 1))).transpose()?;
        let program = of_file.as_ref().unwrap_or(&self.program);
        let mut actions = FileActions::new()?;
        let pipe =
            self.captures_errors.then(|| pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC)).transpose()?;
        let (errors, their_errors) = pipe.unzip();
        if let Some(theirs) = &their_errors {
            // The pipe must not have a number below `end`, where descriptors are placed.
            let theirs = fcntl_dupfd_cloexec(theirs, end)?;
            actions.place(theirs.as_raw_fd(), libc::STDERR_FILENO)?;
            sources.push(theirs);
        }
        for (target, source) in (FIRST_INHERITED..end).zip(&sources) {
            actions.place(source.as_raw_fd(), target)?;
        }
        actions.close_from(end)?;

        let mut argv: Vec<*mut libc::c_char> = self.args.iter().map(|s| s.as_ptr().cast_mut()).collect();
        argv.push(ptr::null_mut());
        let mut envp: Vec<*mut libc::c_char> = self.env.iter().map(|s| s.as_ptr().cast_mut()).collect();
        envp.push(ptr::null_mut());
        let mut pid = 0;
        // SAFETY: `program` and all elements of `argv` and `envp` are NUL-terminated strings that outlive the
        // call; both arrays end with a null pointer; `actions` is initialised; no attributes are given.
        // posix_spawn writes to none.
        let error = unsafe {
            libc::posix_spawn(
                &mut pid,
                program.as_ptr(),
                &actions.0,
                ptr::null(),
                argv.as_ptr(),
                envp.as_ptr(),
            )
        };
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        let id = Pid::from_raw(pid).expect("posix_spawn gives a positive pid");
        // No other thread or process reaps this child, so its pid cannot have been reused yet.
        match sys::pidfd_open(id, PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Child { pid: pid.cast_unsigned(), pidfd, is_foster: false, errors }),
            Err(error) => {
                // Without a pidfd the process could not be watched.
                let _ = sys::kill_process(id, sys::Signal::KILL);
                let _ = sys::waitpid(Some(id), sys::WaitOptions::empty());
                Err(error.into())
            }
        }
    }
}

/// A process that this one, or one whose place it has taken, started. Dropping the value neither kills nor
/// reaps the process.
#[derive(Debug)]
pub struct Child {
    pid: u32,
    pidfd: OwnedFd,
    /// Whether another process started this one, and reaps it.
    is_foster: bool,
    /// The read end of the pipe to which its standard error leads.
    errors: Option<OwnedFd>,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The process ended by exit(3), with this status.
    Code(i32),
    /// The process was ended by this signal.
    Signal(i32),
    /// The process was ended by a signal that is not known yet: mostly SIGKILL, and none that is its own
    /// fault.
    Killed,
    /// The status is unknown, because another process has reaped it.
    Unknown,
}

impl Child {
    /// Returns a process that another process started, given its number and its pidfd.
    pub fn foster(pid: u32, pidfd: OwnedFd) -> Child {
        Child { pid, pidfd, is_foster: true, errors: None }
    }

    /// Returns the pidfd, which is readable when the process has ended.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Takes the pipe to which the standard error of the process leads, if [`Spawn::capture_errors`] was
    /// called; later calls return `None`. Reading the pipe does not wait.
    pub fn take_errors(&mut self) -> Option<OwnedFd> {
        self.errors.take()
    }

    /// Returns the process number. After the process was reaped, the number may belong to another one.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns how the process ended, or `None` while it runs, and reaps it. Fails with ECHILD if it was
    /// reaped before (waitid(2)).
    pub fn try_wait(&self) -> io::Result<Option<Exit>> {
        if self.is_foster {
            return Ok(self.has_ended(Some(0))?.then_some(Exit::Unknown));
        }
        reap(&self.pidfd, WaitIdOptions::EXITED | WaitIdOptions::NOHANG)
    }

    /// Waits until the process ends, without a deadline (poll the pidfd if you need one), reaps it, and
    /// returns how it ended (waitid(2)).
    pub fn wait(&self) -> io::Result<Exit> {
        loop {
            if self.is_foster {
                if self.has_ended(None)? {
                    return Ok(Exit::Unknown);
                }
                continue;
            }
            if let Some(exit) = reap(&self.pidfd, WaitIdOptions::EXITED)? {
                return Ok(exit);
            }
        }
    }

    /// Returns whether the pidfd becomes readable within `millis` milliseconds; `None` waits for ever.
    fn has_ended(&self, millis: Option<i64>) -> io::Result<bool> {
        let time =
            millis.map(|millis| Timespec { tv_sec: millis / 1000, tv_nsec: millis % 1000 * 1_000_000 });
        match poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], time.as_ref()) {
            Ok(count) => Ok(count > 0),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends a signal to the process; fails with ESRCH once it has been reaped (pidfd_send_signal(2)).
    pub fn kill(&self, signal: Signal) -> io::Result<()> {
        Ok(sys::pidfd_send_signal(&self.pidfd, signal)?)
    }
}

impl AsFd for Child {
    /// Returns the pidfd, which is readable when the process has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

/// Returns a descriptor of the process `pid`, which is readable when the process has ended (pidfd_open(2)).
pub fn pidfd_open(pid: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    Ok(sys::pidfd_open(pid, PidfdFlags::empty())?)
}

/// Sends a signal to the process of a pidfd; fails with ESRCH once the process has been reaped
/// (pidfd_send_signal(2)).
pub fn send_signal(pidfd: &OwnedFd, signal: Signal) -> io::Result<()> {
    Ok(sys::pidfd_send_signal(pidfd, signal)?)
}

/// Takes ownership of the `count` descriptors that the parent passed with [`Spawn::inherit`], and marks them
/// CLOEXEC.
///
/// Fails with EBADF if one of them is not open, and with `AlreadyExists` on a second call in one process,
/// because then two owners would close the same number.
pub fn take_inherited(count: usize) -> io::Result<Vec<OwnedFd>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    // Relaxed: this flag publishes nothing else.
    if TAKEN.swap(true, Ordering::Relaxed) {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "the inherited descriptors were taken before",
        ));
    }
    let end = i32::try_from(count).ok().and_then(|n| n.checked_add(FIRST_INHERITED)).ok_or(Errno::BADF)?;
    for number in FIRST_INHERITED..end {
        // SAFETY: the number is borrowed only to ask the kernel whether it is open; EBADF says that it is
        // not.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        fcntl_setfd(fd, fcntl_getfd(fd)? | FdFlags::CLOEXEC)?;
    }
    // SAFETY: all are open (checked above), were opened by the parent for this purpose, and are taken only
    // once.
    Ok((FIRST_INHERITED..end).map(|number| unsafe { OwnedFd::from_raw_fd(number) }).collect())
}

/// Makes the kernel kill this process (SIGKILL) when its parent thread ends (PR_SET_PDEATHSIG(2const)).
///
/// `parent` is the pid that the parent passed along. If another process is the parent by now, that one ended
/// before this call could take effect, and the error is ESRCH: the caller should exit.
pub fn die_with_parent(parent: u32) -> io::Result<()> {
    sys::set_parent_process_death_signal(Some(Signal::KILL))?;
    if sys::getppid().map(|pid| pid.as_raw_nonzero().get().cast_unsigned()) != Some(parent) {
        return Err(Errno::SRCH.into());
    }
    Ok(())
}

/// Cancels [`die_with_parent`].
pub fn outlive_parent() -> io::Result<()> {
    Ok(sys::set_parent_process_death_signal(None)?)
}

/// Prevents this process and its descendants from gaining privileges by execve(2)
/// (PR_SET_NO_NEW_PRIVS(2const)).
pub fn set_no_new_privs() -> io::Result<()> {
    Ok(rustix::thread::set_no_new_privs(true)?)
}

/// Raises the limit of open descriptors to `wanted`, or as far as this process may (setrlimit(2),
/// RLIMIT_NOFILE). Returns the new limit.
pub fn raise_nofile_limit(wanted: u64) -> io::Result<u64> {
    raise_limit(Resource::Nofile, Some(wanted))?;
    Ok(sys::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
}

/// Returns how many descriptors this process may have open (getrlimit(2), RLIMIT_NOFILE).
pub fn nofile_limit() -> u64 {
    sys::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Allows any amount of locked memory (root), or as much as the hard limit does (setrlimit(2),
/// RLIMIT_MEMLOCK).
pub fn raise_memlock_limit() -> io::Result<()> {
    raise_limit(Resource::Memlock, None)
}

/// Fills `bytes` with random bytes of the kernel (getrandom(2)).
pub fn random(bytes: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        let rest = &mut bytes[filled..];
        // SAFETY: the kernel writes to no more than the rest.
        match unsafe { call(libc::SYS_getrandom, [rest.as_mut_ptr() as c_long, rest.len() as c_long, 0]) } {
            Ok(count) => filled += usize::try_from(count).unwrap_or(0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns the effective user of this process (geteuid(2)).
pub fn effective_user() -> u32 {
    sys::geteuid().as_raw()
}

/// Returns whether the user namespace of this process has more than one user, which one made by
/// `become_root_in_user_namespace` has not (user_namespaces(7)).
pub fn has_other_users() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.lines().filter_map(|line| line.split_ascii_whitespace().nth(2)?.parse::<u64>().ok()).sum::<u64>() > 1
}

/// Moves the calling thread into new namespaces (unshare(2)).
///
/// [`UnshareFlags::NEWUSER`] works only in a process with one thread. [`UnshareFlags::FILES`] fails with
/// `InvalidInput`: a thread with a descriptor table of its own would break Rust's ownership of descriptors.
pub fn unshare(flags: UnshareFlags) -> io::Result<()> {
    if flags.contains(UnshareFlags::FILES) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "threads must share their descriptors"));
    }
    // SAFETY: the one unsafe flag, CLONE_FILES, was refused above.
    unsafe { rustix::thread::unshare_unsafe(flags)? };
    Ok(())
}

/// Moves this single-threaded process into a new user namespace in which it is root, so that it may make the
/// other namespaces (user_namespaces(7)). Outside the namespace its user does not change.
pub fn become_root_in_user_namespace() -> io::Result<()> {
    let (uid, gid) = (sys::geteuid().as_raw(), sys::getegid().as_raw());
    unshare(UnshareFlags::NEWUSER)?;
    // A gid map needs setgroups to be denied first, unless the writer has CAP_SETGID outside the namespace.
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
    std::fs::write("/proc/self/gid_map", format!("0 {gid} 1"))
}

fn raise_limit(resource: Resource, wanted: Option<u64>) -> io::Result<()> {
    let Rlimit { current, maximum } = sys::getrlimit(resource);
    // `None` means unlimited, and so is larger than any number.
    let larger = |a: Option<u64>, b: Option<u64>| a.zip(b).map(|(a, b)| a.max(b));
    let smaller = |a: Option<u64>, b: Option<u64>| a.zip(b).map(|(a, b)| a.min(b)).or(a).or(b);
    let goal = larger(current, wanted);
    if sys::setrlimit(resource, Rlimit { current: goal, maximum: larger(maximum, goal) }).is_ok() {
        return Ok(());
    }
    Ok(sys::setrlimit(resource, Rlimit { current: smaller(goal, maximum), maximum })?)
}

fn reap(pidfd: &OwnedFd, options: WaitIdOptions) -> io::Result<Option<Exit>> {
    match sys::waitid(WaitId::PidFd(pidfd.as_fd()), options) {
        Ok(status) => Ok(status.and_then(|status| {
            let code = status.exit_status().map(Exit::Code);
            code.or_else(|| status.terminating_signal().map(Exit::Signal))
        })),
        Err(Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn c_string(parts: &[&[u8]]) -> io::Result<CString> {
    CString::new(parts.concat()).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
}

/// A list of file actions (posix_spawn_file_actions_init(3)).
struct FileActions(libc::posix_spawn_file_actions_t);

impl FileActions {
    fn new() -> io::Result<FileActions> {
        let mut actions = MaybeUninit::uninit();
        // SAFETY: init accepts uninitialised memory.
        spawn_result(unsafe { libc::posix_spawn_file_actions_init(actions.as_mut_ptr()) })?;
        // SAFETY: the call above, which succeeded, has initialised it.
        Ok(FileActions(unsafe { actions.assume_init() }))
    }

    /// Makes this process's `source` the child's `target`, without CLOEXEC.
    fn place(&mut self, source: RawFd, target: RawFd) -> io::Result<()> {
        // SAFETY: `self.0` is initialised; the numbers are checked by the kernel in the child.
        spawn_result(unsafe { libc::posix_spawn_file_actions_adddup2(&mut self.0, source, target) })
    }

    /// Makes the child close all descriptors from number `first` on.
    fn close_from(&mut self, first: RawFd) -> io::Result<()> {
        // SAFETY: `self.0` is initialised.
        spawn_result(unsafe { libc::posix_spawn_file_actions_addclosefrom_np(&mut self.0, first) })
    }
}

impl Drop for FileActions {
    fn drop(&mut self) {
        // SAFETY: `self.0` is initialised, and destroyed only here.
        unsafe { libc::posix_spawn_file_actions_destroy(&mut self.0) };
    }
}

/// Turns the result of a posix_spawn function into an error, because these functions return it instead of
/// setting errno.
fn spawn_result(error: libc::c_int) -> io::Result<()> {
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

#[cfg(test)]
mod tests;
