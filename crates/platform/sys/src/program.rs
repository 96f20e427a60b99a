//! Whether a program file will load the library that LD_PRELOAD names, as far as that can be known before it
//! is executed.
//!
//! A file says it by its format ([`mod@format`]) and by the rights that it gives ([`Identity`]). Files may
//! change at any time, and may be anything: no call here blocks on one, and no more is read than the kernel
//! reads.

pub mod format;
pub mod image;

use std::ffi::{CStr, CString, OsStr};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, OFlags, Stat, StatVfsMountFlags};
use rustix::process::{getegid, geteuid, getgid, getuid};

use self::format::Format;

/// The reason why a program does not load the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unserved {
    /// The ELF file names no dynamic loader.
    Static,
    /// The ELF file names a loader of another C library.
    OtherLoader,
    /// The ELF file is for another processor, or for one of 32 bits.
    OtherArchitecture,
    /// The file may be executed, and not read.
    Unreadable,
    /// The effective user or group of the caller is not its real one, so the loader takes no library from it
    /// (ld.so(8), secure-execution mode).
    OtherUser,
    /// The file changes the user or group, with the same consequence.
    SetUser,
    /// The file has capabilities, with the same consequence.
    Capabilities,
}

impl Unserved {
    /// Returns whether the file gives its process rights that the caller does not have.
    pub fn gives_rights(self) -> bool {
        matches!(self, Unserved::SetUser | Unserved::Capabilities)
    }
}

impl fmt::Display for Unserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unserved::Static => "is linked statically",
            Unserved::OtherLoader => "is linked with another C library",
            Unserved::OtherArchitecture => "is for another architecture",
            Unserved::Unreadable => "cannot be read, so nobody knows whether it loads a library",
            Unserved::OtherUser => {
                "would be executed with a real user or group that is not the effective one, and then loads \
                 no libraries of its caller"
            }
            Unserved::SetUser => {
                "is a set-user-ID or set-group-ID program, which loads no libraries of its caller"
            }
            Unserved::Capabilities => "has file capabilities, and so loads no libraries of its caller",
        })
    }
}

/// The users and groups of a process that executes a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The real and the effective user.
    pub users: [u32; 2],
    /// The real and the effective group.
    pub groups: [u32; 2],
    /// Whether execve(2) gives the process no rights any more (PR_SET_NO_NEW_PRIVS).
    pub no_new_privileges: bool,
}

impl Identity {
    /// Returns the identity of the calling thread.
    pub fn own() -> Identity {
        Identity {
            users: [getuid().as_raw(), geteuid().as_raw()],
            groups: [getgid().as_raw(), getegid().as_raw()],
            no_new_privileges: rustix::thread::no_new_privs().unwrap_or(false),
        }
    }

    /// Returns why the loader would take no library from this process if a file of this mode and owner is
    /// executed; `None` if it would. `has_capabilities` says whether the file has some.
    ///
    /// This follows `bprm_fill_uid` and `cap_bprm_creds_from_file` of Linux.
    fn secures(&self, mode: u32, owner: [u32; 2], has_capabilities: bool) -> Option<Unserved> {
        let ([user, effective_user], [group, effective_group]) = (self.users, self.groups);
        let is_given = |bits: u32| !self.no_new_privileges && mode & bits == bits;
        let new_user = if is_given(0o4000) { owner[0] } else { effective_user };
        let new_group = if is_given(0o2010) { owner[1] } else { effective_group };
        match new_user == user && new_group == group {
            // Root has all capabilities anyway. With PR_SET_NO_NEW_PRIVS others do not get them, and the
            // loader takes no libraries nevertheless.
            true => (has_capabilities && user != 0).then_some(Unserved::Capabilities),
            false if new_user == effective_user && new_group == effective_group => Some(Unserved::OtherUser),
            false => Some(Unserved::SetUser),
        }
    }
}

/// The most files that one execve(2) examines, each the interpreter of the one before (`exec_binprm`).
const FILES_MAX: usize = 6;

/// The working directory.
pub const HERE: BorrowedFd<'static> = CWD;

/// The file to execute, by the arguments of execveat(2).
#[derive(Clone, Copy, Debug)]
pub struct File<'a> {
    /// The folder to which `path` is relative.
    pub directory: BorrowedFd<'a>,
    /// The path, or nothing for the file that `directory` refers to.
    pub path: &'a CStr,
    /// The flags.
    pub flags: i32,
    /// The folder in which the program begins; interpreters of scripts may be relative to it.
    pub working: BorrowedFd<'a>,
}

impl<'a> File<'a> {
    /// Returns the file that execve(2) executes for a path, in the working directory.
    pub fn at(path: &'a CStr) -> File<'a> {
        File { directory: HERE, path, flags: 0, working: HERE }
    }
}

/// What is known of a program before it is executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    /// Why it does not load the library; `None` if it does.
    pub reason: Option<Unserved>,
    /// What the kernel executes: the path of the last interpreter of a script; `None` if the file is no
    /// script.
    pub interpreter: Option<CString>,
    /// The first arguments of that, in place of the program's own first one: those that come of scripts.
    pub arguments: Vec<CString>,
}

/// Returns why a program does not load the library; `None` if it does, or if nothing is executed.
///
/// An interpreter that the kernel finds by other means than the first line of a script (binfmt_misc) is not
/// known here.
pub fn why_unserved(file: File<'_>, identity: &Identity) -> Option<Unserved> {
    judge(file, identity)?.reason
}

/// Judges a program; `None` if nothing is executed. See [`why_unserved`].
pub fn judge(file: File<'_>, identity: &Identity) -> Option<Judged> {
    let mut judged = Judged { reason: None, interpreter: None, arguments: Vec::new() };
    for _ in 0..FILES_MAX {
        let look = match &judged.interpreter {
            None => look(file, identity),
            Some(path) => {
                look(File { directory: file.working, path, flags: 0, working: file.working }, identity)
            }
        };
        match look? {
            Look::Done(reason) => return Some(Judged { reason, ..judged }),
            Look::Interpreter(next, argument) => {
                // Linux: the interpreter, its argument, and the script, whose own arguments follow.
                if judged.arguments.is_empty() {
                    judged.arguments.push(file.path.to_owned());
                }
                let before = [Some(next.clone()), argument].into_iter().flatten();
                judged.arguments.splice(0..0, before);
                judged.interpreter = Some(next);
            }
        }
    }
    None
}

/// Returns whether the library can serve static programs here: the kernel dispatches system calls to their
/// program (prctl(2), PR_SET_SYSCALL_USER_DISPATCH), and lets programs set the bases of segments
/// (FSGSBASE).
pub fn can_host() -> bool {
    // linux/prctl.h, asm/hwcap2.h.
    const PR_SET_SYSCALL_USER_DISPATCH: libc::c_int = 59;
    const PR_SYS_DISPATCH_OFF: libc::c_ulong = 0;
    const HWCAP2_FSGSBASE: usize = 1 << 1;
    let none: libc::c_ulong = 0;
    cfg!(target_arch = "x86_64")
        && rustix::param::linux_hwcap().1 & HWCAP2_FSGSBASE != 0
        // SAFETY: switches off what is off in this thread.
        && unsafe { libc::prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_OFF, none, none, none) } == 0
}

/// The judgement about one file.
enum Look {
    /// The program is served, or is not for this reason.
    Done(Option<Unserved>),
    /// The file is a script, for this program, with this argument.
    Interpreter(CString, Option<CString>),
}

/// Reads the first octets and the rights of one file. Returns `None` if the kernel would not execute it.
fn look(file: File<'_>, identity: &Identity) -> Option<Look> {
    let File { directory, path, .. } = file;
    let flags = AtFlags::from_bits_retain(file.flags.cast_unsigned());
    let opened;
    let (file, stat) = if path.is_empty() && flags.contains(AtFlags::EMPTY_PATH) {
        (Some(directory), rustix::fs::fstat(directory).ok()?)
    } else {
        // A file that is no regular one is not opened: that might wait, or do something.
        let named = rustix::fs::statat(directory, path, flags & AtFlags::SYMLINK_NOFOLLOW).ok()?;
        if FileType::from_raw_mode(named.st_mode) != FileType::RegularFile {
            return None;
        }
        opened = open(directory, path, flags);
        match &opened {
            Some(file) => (Some(file.as_fd()), rustix::fs::fstat(file).ok()?),
            None => (None, named),
        }
    };
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_mode & 0o111 == 0 {
        return None;
    }
    let format = file.and_then(|file| format::read(|at, into| rustix::io::pread(file, into, at).ok()));
    if let Some(Format::Script { interpreter, argument }) = format {
        // Linux takes no rights from a script.
        let argument = argument.and_then(|argument| CString::new(argument).ok());
        return Some(Look::Interpreter(CString::new(interpreter).ok()?, argument));
    }
    if let Some(reason) = secured_by(file, &stat, identity) {
        return Some(Look::Done(Some(reason)));
    }
    Some(Look::Done(match format {
        None => Some(Unserved::Unreadable),
        Some(Format::ForeignElf) => Some(Unserved::OtherArchitecture),
        Some(Format::Elf { loader: Some(loader) }) if !format::is_loader(&loader) => {
            Some(Unserved::OtherLoader)
        }
        // The loader itself may be called as a program: `ld-linux-x86-64.so.2 PROGRAM`.
        Some(Format::Elf { loader: None }) if !format::is_loader(path.to_bytes()) => Some(Unserved::Static),
        Some(_) => None,
    }))
}

/// Opens a file to read it. Nothing here waits for the other end of a pipe, or takes a terminal.
fn open(directory: BorrowedFd<'_>, path: &CStr, flags: AtFlags) -> Option<OwnedFd> {
    let mut how = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    how.set(OFlags::NOFOLLOW, flags.contains(AtFlags::SYMLINK_NOFOLLOW));
    rustix::fs::openat(directory, path, how, Mode::empty()).ok()
}

/// Returns why the rights of a file keep the library out, if they do.
fn secured_by(file: Option<BorrowedFd<'_>>, stat: &Stat, identity: &Identity) -> Option<Unserved> {
    let has_capabilities = identity.users[0] != 0
        && file.is_some_and(|file| {
            rustix::fs::fgetxattr(file, "security.capability", &mut [0; 64]).is_ok_and(|len| len > 0)
        });
    // The rights of files on such a file system do not count.
    let is_without = |file| {
        rustix::fs::fstatvfs(file).is_ok_and(|system| system.f_flag.contains(StatVfsMountFlags::NOSUID))
    };
    let gives = has_capabilities || stat.st_mode & 0o6000 != 0;
    match gives && file.is_some_and(is_without) {
        true => identity.secures(stat.st_mode & 0o777, [stat.st_uid, stat.st_gid], false),
        false => identity.secures(stat.st_mode, [stat.st_uid, stat.st_gid], has_capabilities),
    }
}

/// Opens the folder at `path`, which may be relative to `from`, as a folder to start from.
pub fn open_folder(from: BorrowedFd<'_>, path: &CStr) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(from, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Returns the path of the file that execvp(3) would execute for a name, in the folder `working` and with
/// `folders` as the value of PATH.
pub fn find(working: BorrowedFd<'_>, name: &CStr, folders: Option<&OsStr>) -> Option<CString> {
    if name.to_bytes().contains(&b'/') {
        return Some(name.to_owned());
    }
    // The C library's list where there is none (confstr(3), _CS_PATH).
    let folders = folders.map_or(&b"/bin:/usr/bin"[..], OsStr::as_bytes);
    folders.split(|byte| *byte == b':').find_map(|folder| {
        let slash: &[u8] = if folder.is_empty() { b"" } else { b"/" };
        let path = CString::new([folder, slash, name.to_bytes()].concat()).ok()?;
        let stat = rustix::fs::statat(working, &path, AtFlags::empty()).ok()?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let is_executable = rustix::fs::accessat(working, &path, Access::EXEC_OK, AtFlags::EACCESS).is_ok();
        (is_file && is_executable).then_some(path)
    })
}

#[cfg(test)]
mod tests;
