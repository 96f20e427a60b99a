//! Static programs, executed by a program on a stack: their host is executed instead, which becomes them
//! ([`crate::host`]).
//!
//! The host is the dynamic program that `ATOLL_HOST` names. It is executed with the arguments of the static
//! program, so that they are where others look for them (ps(1)).

use std::ffi::{CStr, CString, c_char, c_int};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

use atoll_sys::program::{File, Judged};

use crate::beyond::with_room;
use crate::confinement::is_confined;
use crate::host::{self, VARIABLE};
use crate::real::sys;
use crate::settings::settings;
use crate::table::Internal;
use crate::{dispatch, shadow};

/// Arguments, or an environment: strings, and a null pointer at the end.
pub type Strings = *const *const c_char;

/// The variable by which valgrind(1) tells its tools what they are started by.
const VALGRIND: &[u8] = b"VALGRIND_LAUNCHER=";

/// What is executed: execve(2).
#[derive(Clone, Copy, Debug)]
pub struct Start {
    pub path: *const c_char,
    pub argv: Strings,
    pub envp: Strings,
}

/// A program that is executed in the place of a static one, and everything that has to stay alive until then.
pub struct Hosted {
    host: &'static CStr,
    argv: Vec<*const c_char>,
    envp: Vec<*const c_char>,
    _variable: CString,
    _judged: Judged,
    /// A descriptor that the next program gets.
    _file: Option<Internal>,
}

/// Returns whether this process may execute static programs so.
pub fn is_possible() -> bool {
    let settings = settings();
    settings.socket.is_some()
        && settings.host.is_some()
        && dispatch::is_on()
        && shadow::is_possible()
        && !is_confined()
}

impl Hosted {
    /// Prepares to execute a static program; `None` if its host cannot be reached here, or would not load
    /// this library. `is_named` says that the program has a path in the folder in which it begins.
    ///
    /// # Safety
    /// `argv` and `envp` are valid.
    pub unsafe fn prepare(
        file: File<'_>,
        is_named: bool,
        judged: Judged,
        argv: Strings,
        envp: Strings,
    ) -> Option<Hosted> {
        let host = settings().host.as_deref()?;
        // SAFETY: the caller's promise.
        let (argv, envp) = unsafe { (list(argv), list(envp)) };
        let library = library()?;
        // SAFETY: strings of an environment.
        let is_loaded = envp.iter().any(|entry| unsafe {
            let entry = CStr::from_ptr(*entry).to_bytes().strip_prefix(b"LD_PRELOAD=");
            let loads = |names: &[u8]| {
                names.split(|byte| b": ".contains(byte)).any(|name| name == library.to_bytes())
            };
            entry.is_some_and(loads)
        });
        if !is_loaded || !may(host, libc::X_OK) || !may(library, libc::R_OK) {
            return None;
        }
        // The tools of valgrind(1) are static. The program that they run loads this library itself, and they
        // check that nobody but them handles signals.
        // SAFETY: strings of an environment.
        if envp.iter().any(|entry| unsafe { CStr::from_ptr(*entry) }.to_bytes().starts_with(VALGRIND)) {
            return None;
        }
        let mut passed = None;
        let value = match &judged.interpreter {
            Some(path) => [b"=", path.to_bytes()].concat(),
            None if is_named => [b"=", file.path.to_bytes()].concat(),
            None => {
                let passed = passed.insert(to_pass_on(file)?);
                [format!("!{}=", passed.number()).as_bytes(), &path_of(file)].concat()
            }
        };
        let variable = CString::new([VARIABLE.as_bytes(), b"=", &value].concat()).ok()?;
        let own = judged.arguments.iter().map(|argument| argument.as_ptr());
        let rest = argv.iter().skip(usize::from(!judged.arguments.is_empty())).copied();
        let argv = own.chain(rest).chain([std::ptr::null()]).collect();
        // SAFETY: strings of an environment.
        let is_other = |entry: &*const c_char| unsafe {
            let rest = CStr::from_ptr(*entry).to_bytes().strip_prefix(VARIABLE.as_bytes());
            !rest.is_some_and(|rest| rest.starts_with(b"="))
        };
        let others = envp.into_iter().filter(is_other);
        let envp = others.chain([variable.as_ptr(), std::ptr::null()]).collect();
        Some(Hosted { host, argv, envp, _variable: variable, _judged: judged, _file: passed })
    }

    /// Returns what to execute.
    pub fn start(&self) -> Start {
        Start { path: self.host.as_ptr(), argv: self.argv.as_ptr(), envp: self.envp.as_ptr() }
    }
}

/// Returns the strings of a list, which may be null.
unsafe fn list(strings: Strings) -> Vec<*const c_char> {
    let mut all = Vec::new();
    if !strings.is_null() {
        // SAFETY: the caller's promise: the list ends with a null pointer.
        all.extend((0..).map(|at| unsafe { *strings.add(at) }).take_while(|string| !string.is_null()));
    }
    all
}

/// Returns the path of a program that is executed by a descriptor, as Linux has it.
fn path_of(file: File<'_>) -> Vec<u8> {
    let number = file.directory.as_raw_fd();
    match file.path.to_bytes() {
        [] if number == host::program() => b"/proc/self/exe".to_vec(),
        [] => format!("/dev/fd/{number}").into_bytes(),
        path => [format!("/dev/fd/{number}/").as_bytes(), path].concat(),
    }
}

fn may(path: &CStr, access: c_int) -> bool {
    // SAFETY: a valid path.
    unsafe { sys!(libc::SYS_faccessat, libc::AT_FDCWD, path.as_ptr(), access) == 0 }
}

/// Returns the path of this library, as the variable that loads it says it.
fn library() -> Option<&'static CStr> {
    static PATH: OnceLock<Option<CString>> = OnceLock::new();
    PATH.get_or_init(|| {
        // SAFETY: all-zero is a valid value; an address in this library.
        let info = unsafe {
            let mut info: libc::Dl_info = std::mem::zeroed();
            let found = libc::dladdr(library as *const std::ffi::c_void, &raw mut info);
            (found != 0 && !info.dli_fname.is_null()).then_some(info)?
        };
        // SAFETY: a string of the C library's.
        Some(unsafe { CStr::from_ptr(info.dli_fname) }.to_owned())
    })
    .as_deref()
}

/// Opens a program for the next one, at a number of the library's own.
fn to_pass_on(file: File<'_>) -> Option<Internal> {
    let own: CString;
    let path = if file.path.is_empty() {
        own = CString::new(format!("/proc/self/fd/{}", file.directory.as_raw_fd())).ok()?;
        &own
    } else {
        file.path
    };
    let (directory, flags) = (file.directory.as_raw_fd(), libc::O_RDONLY | libc::O_CLOEXEC);
    let opened = with_room(|room| {
        // SAFETY: a valid path.
        let fd = unsafe { sys!(libc::SYS_openat, directory, path.as_ptr(), flags, 0) } as c_int;
        // SAFETY: just opened, owned by nobody else.
        (fd >= 0).then(|| room.keep(unsafe { OwnedFd::from_raw_fd(fd) }))
    })?;
    opened.set_inheritable(true);
    Some(opened)
}
