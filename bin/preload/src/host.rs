//! A static program in the place of another one: `ATOLL_PROGRAM` names it.
//!
//! A static program loads no library. So a dynamic one is executed instead ([`crate::hosting`]), whose own
//! code never runs: this library's constructor maps the static program, makes its stack as execve(2) would,
//! and goes on in it, as a guest ([`crate::shadow`]). All of its system calls are dispatched
//! ([`crate::dispatch`]).
//!
//! ```text
//!   the program's fixed addresses, or some that are free        its break behind them
//!   ...
//!   the host, the C library, this library                       where the kernel puts them
//!   the stack                                                   the program's: the arguments, environment
//!                                                               and vector of the host, changed
//! ```
//! What the program is not shown as it would be: /proc/PID/exe is the host's for others.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_long};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

use atoll_sys::program::image::{Image, PAGE, Segment};

use crate::beyond::with_room;
use crate::dispatch::rewriting::{Code, rewrite};
use crate::futex_lock::FutexLock;
use crate::instruction::direct;
use crate::real::sys;
use crate::shadow::{self, Registers};
use crate::table::Internal;
use crate::{dispatch, handlers};

/// The variable that names the program: `=PATH`, or `!NUMBER=PATH` with the number of a descriptor.
pub const VARIABLE: &str = "ATOLL_PROGRAM";

/// The status with which a process ends that executes nothing, as in a shell.
const CANNOT_RUN: c_int = 126;

/// The program of this process.
struct Program {
    file: Internal,
    /// `/proc/self/fd/NUMBER`.
    path: CString,
}

static PROGRAM: OnceLock<Program> = OnceLock::new();

/// Goes on in the program that `ATOLL_PROGRAM` names; returns if none is named. Called by the constructor,
/// with its arguments, when everything else is done.
///
/// # Safety
/// `arguments` is where the kernel has put them: behind their number, and before the environment.
pub unsafe fn run(arguments: *const *const c_char) {
    let Some(value) = std::env::var_os(VARIABLE) else { return };
    // SAFETY: the caller's promise.
    let error = unsafe { execute(&value, arguments) };
    let value = value.to_string_lossy();
    let name = value.split_once('=').map_or("", |(_, path)| path).escape_debug();
    crate::complain(format_args!("libatoll: {name} cannot be executed: {error}\n"));
    // SAFETY: ends the process.
    unsafe { libc::_exit(CANNOT_RUN) };
}

/// Executes a program. Returns only if that fails.
unsafe fn execute(value: &OsStr, arguments: *const *const c_char) -> io::Error {
    let (file, path) = match open(value) {
        Ok(opened) => opened,
        Err(error) => return error,
    };
    let refused = |why: &str| io::Error::other(why.to_owned());
    if !dispatch::is_on() || !shadow::is_possible() {
        return refused("this kernel dispatches no system calls, or this processor has no FSGSBASE");
    }
    let file = with_room(|room| room.keep(file));
    let read = |at, into: &mut [u8]| read_at(file.number(), at, into);
    let Some(image) = Image::read(read) else { return refused("it is no static program") };
    let base = match map(&image, file.number()) {
        Ok(base) => base,
        Err(error) => return error,
    };
    if let Err(error) = prepare(&image, base) {
        return error;
    }
    name_thread(path.to_bytes());
    let at = CString::new(format!("/proc/self/fd/{}", file.number())).unwrap_or_default();
    let _ = PROGRAM.set(Program { file, path: at });
    shadow::note_hosted();
    // SAFETY: the caller's promise.
    let (vector, sp) = unsafe { stack(&image, base, arguments, &path) };
    std::mem::forget(path);
    let registers = Registers { rip: base + image.entry as usize, rsp: sp, ..Registers::ZERO };
    // SAFETY: words are octets.
    let octets =
        unsafe { std::slice::from_raw_parts(vector.as_ptr().cast::<u8>(), size_of_val(vector.as_slice())) };
    // SAFETY: nothing below the arguments is needed any more: the constructor does not return.
    let errno = unsafe { dispatch::guests::enter_first(registers, octets) };
    io::Error::from_raw_os_error(errno)
}

/// Opens what the variable names. Returns also the path, as the program is to be shown it.
fn open(value: &OsStr) -> io::Result<(OwnedFd, CString)> {
    let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
    let value = value.as_bytes();
    let at = value.iter().position(|byte| *byte == b'=').ok_or_else(invalid)?;
    let (number, path) = (value.get(..at).unwrap_or_default(), value.get(at + 1..).unwrap_or_default());
    let path = CString::new(path)?;
    if let Some(number) = number.strip_prefix(b"!") {
        let number: Option<c_int> = std::str::from_utf8(number).ok().and_then(|text| text.parse().ok());
        let number = number.ok_or_else(invalid)?;
        // SAFETY: asks only whether there is such a descriptor.
        if unsafe { sys!(libc::SYS_fcntl, number, libc::F_GETFD) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the program before this one has made it for this.
        let file = unsafe { OwnedFd::from_raw_fd(number) };
        return Ok((file, path));
    }
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: a valid path.
    let fd = unsafe { sys!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0) } as c_int;
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, owned by nobody else.
    Ok((unsafe { OwnedFd::from_raw_fd(fd) }, path))
}

fn read_at(file: c_int, at: u64, into: &mut [u8]) -> Option<usize> {
    // SAFETY: the target is as long as that.
    let n = unsafe { sys!(libc::SYS_pread64, file, into.as_mut_ptr(), into.len(), at as i64) };
    usize::try_from(n).ok()
}

/// Gives the thread the name that execve(2) gives it.
fn name_thread(path: &[u8]) {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    if let Ok(name) = CString::new(name) {
        // SAFETY: a valid string; the kernel takes 15 octets of it.
        unsafe { sys!(libc::SYS_prctl, libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0) };
    }
}

// ---- memory ----

fn mmap(at: usize, len: usize, access: c_int, flags: c_int, file: c_int, offset: u64) -> io::Result<usize> {
    let words = [at as c_long, len as c_long, access.into(), flags.into(), file.into(), offset as c_long];
    // SAFETY: the callers map where nothing is, or what they have mapped themselves.
    let mapped = unsafe { direct(libc::SYS_mmap, words) };
    match usize::try_from(mapped) {
        Ok(address) => Ok(address),
        Err(_) => Err(io::Error::from_raw_os_error(-mapped as i32)),
    }
}

const PRIVATE: c_int = libc::MAP_PRIVATE;
const EMPTY: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// Maps the program. Returns what its addresses are relative to.
fn map(image: &Image, file: c_int) -> io::Result<usize> {
    let range = image.range();
    let len = (range.end - range.start) as usize;
    let reserve = |at: usize| {
        let flags = EMPTY | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        let mapped = mmap(at, len, libc::PROT_NONE, flags, -1, 0)?;
        // A kernel that does not know the flag takes the address for a hint.
        if mapped == at { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EEXIST)) }
    };
    let base = if image.is_movable {
        // Low, with room for a break behind it, and somewhere else each time.
        let align = image.align as usize;
        let place = || (MOVABLE + (random() as usize % MOVABLE)) / align * align;
        let at = (0..8).map(|_| place()).find(|at| reserve(*at + range.start as usize).is_ok());
        at.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?
    } else {
        reserve(range.start as usize)?;
        0
    };
    for segment in &image.segments {
        map_segment(segment, base, file)?;
    }
    let len_of_file = file_len(file);
    let is_code = |segment: &&Segment| {
        let access = &segment.access;
        let end = segment.offset.checked_add(segment.file_len);
        access.execute && access.read && !access.write && end.is_some_and(|end| end <= len_of_file)
    };
    let code = image.segments.iter().filter(is_code).map(|segment| Code {
        base: base + segment.address as usize,
        len: segment.file_len as usize,
        protection: protection(segment),
    });
    // SAFETY: mapped just now, from a file that is long enough.
    unsafe { rewrite(&code.collect::<Vec<_>>(), base + range.start as usize) };
    Ok(base)
}

/// Returns the length of a file; 0 if that is unknown.
fn file_len(file: c_int) -> u64 {
    // SAFETY: all-zero is a valid value, and the kernel fills it.
    unsafe {
        let mut about: libc::stat = std::mem::zeroed();
        sys!(libc::SYS_fstat, file, &raw mut about);
        u64::try_from(about.st_size).unwrap_or(0)
    }
}

/// The lowest address of programs that may be anywhere, and how many there are to choose from.
const MOVABLE: usize = 1 << 44;

/// Maps one segment, over what is reserved.
fn map_segment(segment: &Segment, base: usize, file: c_int) -> io::Result<()> {
    let page = PAGE as usize;
    let access = protection(segment);
    let first = base + segment.address as usize;
    let before = first % page;
    let (begins, ends) = (first - before, (first + segment.len as usize).next_multiple_of(page));
    let mut mapped = begins;
    if segment.file_len > 0 {
        let file_ends = first + segment.file_len as usize;
        mapped = file_ends.next_multiple_of(page);
        let flags = PRIVATE | libc::MAP_FIXED;
        mmap(begins, mapped - begins, access, flags, file, segment.offset - before as u64)?;
        // Linux leaves the rest of the last page of a segment that is not written to as it is in the file.
        if segment.access.write && segment.len > segment.file_len {
            // SAFETY: mapped just now, to be written to.
            unsafe { (file_ends as *mut u8).write_bytes(0, mapped - file_ends) };
        }
    }
    if ends > mapped {
        mmap(mapped, ends - mapped, access, EMPTY | libc::MAP_FIXED, -1, 0)?;
    }
    Ok(())
}

fn protection(segment: &Segment) -> c_int {
    let bit = |may: bool, bit: c_int| if may { bit } else { 0 };
    bit(segment.access.read, libc::PROT_READ)
        | bit(segment.access.write, libc::PROT_WRITE)
        | bit(segment.access.execute, libc::PROT_EXEC)
}

/// The break of the program: where it begins, and where it is.
pub struct Break {
    first: usize,
    now: usize,
}

/// The break. It is held over fork.
pub static BREAK: FutexLock<Break> = FutexLock::new(Break { first: 0, now: 0 });

/// Sets the break: brk(2). The C library of the host uses the kernel's.
pub fn set_break(wanted: usize) -> c_long {
    let page = PAGE as usize;
    BREAK.with(|at| {
        if wanted < at.first || wanted > 1 << 47 {
            return at.now as c_long;
        }
        let (old, new) = (at.now.next_multiple_of(page), wanted.next_multiple_of(page));
        let is_done = if new > old {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let mapped = mmap(old, new - old, access, EMPTY | libc::MAP_FIXED_NOREPLACE, -1, 0);
            mapped.is_ok_and(|mapped| mapped == old)
        } else {
            // SAFETY: what the program gives back.
            new == old || unsafe { direct(libc::SYS_munmap, [new as _, (old - new) as _, 0, 0, 0, 0]) } == 0
        };
        if is_done {
            at.now = wanted;
        }
        at.now as c_long
    })
}

/// Prepares what the program finds besides its image.
fn prepare(image: &Image, base: usize) -> io::Result<()> {
    let page = PAGE as usize;
    // Linux: some of 32 MiB behind the program.
    let first = base + image.range().end as usize + random() as usize % (32 << 20) / page * page;
    BREAK.with(|at| *at = Break { first, now: first });
    if image.executable_stack {
        let here = (&raw const page as usize) / page * page;
        let access = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC | libc::PROT_GROWSDOWN;
        // SAFETY: this thread's stack.
        let result = unsafe { direct(libc::SYS_mprotect, [here as _, page as _, access.into(), 0, 0, 0]) };
        if result < 0 {
            return Err(io::Error::from_raw_os_error(-result as i32));
        }
    }
    // At the first thread the C library sets handlers for signals of its own.
    let thread = std::thread::Builder::new().stack_size(64 << 10).spawn(|| {})?;
    let _ = thread.join();
    handlers::release_reserved();
    Ok(())
}

fn random() -> u64 {
    let mut word = 0u64;
    // SAFETY: room for a word.
    unsafe { sys!(libc::SYS_getrandom, &raw mut word, size_of::<u64>(), 0) };
    word
}

// ---- the stack ----

/// Returns the words with which the program's stack begins, and where that is: just below those that the
/// kernel has put there for the host, of which they are made.
unsafe fn stack(
    image: &Image,
    base: usize,
    arguments: *const *const c_char,
    path: &CStr,
) -> (Vec<usize>, usize) {
    // SAFETY: the kernel's words: the number of arguments comes first.
    let first = unsafe { arguments.cast::<usize>().sub(1) };
    // SAFETY: as above.
    let count = unsafe { first.read() };
    let mut words = vec![count];
    // SAFETY: as above, for each word up to the null behind the environment.
    let word = |at: usize| unsafe { first.add(at).read() };
    words.extend((1..=count + 1).map(word));
    let mut at = count + 2;
    while word(at) != 0 {
        // SAFETY: strings of the environment.
        let entry = unsafe { CStr::from_ptr(word(at) as *const c_char) }.to_bytes();
        let is_ours = entry.strip_prefix(VARIABLE.as_bytes()).is_some_and(|rest| rest.starts_with(b"="));
        if !is_ours {
            words.push(word(at));
        }
        at += 1;
    }
    words.push(0);
    // What was taken out of the environment has left nulls at its end; no entry of the vector is 0 but the
    // last.
    while word(at) == 0 {
        at += 1;
    }
    let randomness = Box::leak(Box::new([random(), random()]));
    while word(at) != 0 {
        let value = match word(at) as u64 {
            libc::AT_PHDR if image.headers == 0 => 0,
            libc::AT_PHDR => base + image.headers as usize,
            libc::AT_PHNUM => image.header_count.into(),
            libc::AT_ENTRY => base + image.entry as usize,
            libc::AT_BASE => 0,
            libc::AT_EXECFN => path.as_ptr() as usize,
            libc::AT_RANDOM => randomness.as_ptr() as usize,
            _ => word(at + 1),
        };
        words.extend([word(at), value]);
        at += 2;
    }
    words.extend([0, 0]);
    let sp = (first as usize - size_of_val(words.as_slice())) & !15;
    (words, sp)
}

// ---- what the program sees of its file ----

/// Returns the number of the program's file.
pub fn program() -> c_int {
    PROGRAM.get().map_or(-1, |program| program.file.number())
}

/// Returns a path by which the program's file can be opened.
pub fn path_of_program() -> &'static CStr {
    PROGRAM.get().map_or(c"/proc/self/exe", |program| &program.path)
}

/// Returns whether a path is that of this process's program: `/proc/self/exe` and its kin.
///
/// # Safety
/// It is null or text that ends with a zero.
pub unsafe fn is_own_program(path: *const c_char) -> bool {
    if path.is_null() {
        return false;
    }
    // SAFETY: the caller's promise.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    let whose = path.strip_prefix(b"/proc/").and_then(|rest| rest.strip_suffix(b"/exe"));
    whose.is_some_and(|whose| {
        matches!(whose, b"self" | b"thread-self") || whose == std::process::id().to_string().as_bytes()
    })
}
