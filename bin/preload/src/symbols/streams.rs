//! fdopen(3), and stdin, stdout and stderr. stdio reads and writes inside the C library, so a stream on a
//! socket of ours gets its own functions.

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{FILE, size_t, ssize_t};

use super::{descriptors, octets};
use crate::lock::STATE;
use crate::streams::STREAMS;
use crate::{real, table};

/// The `cookie_io_functions_t` of stdio.h.
#[repr(C)]
struct Functions {
    read: Option<unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t>,
    write: Option<unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t>,
    seek: Option<unsafe extern "C" fn(*mut c_void, *mut i64, c_int) -> c_int>,
    close: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
}

unsafe extern "C" {
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
}

static ANY: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn read(cookie: *mut c_void, buf: *mut c_char, len: size_t) -> ssize_t {
    // SAFETY: memory of the C library.
    unsafe { octets::read(cookie as usize as c_int, buf.cast(), len) }
}

unsafe extern "C" fn write(cookie: *mut c_void, buf: *const c_char, len: size_t) -> ssize_t {
    // SAFETY: memory of the C library. fopencookie(3): 0, not -1, says that it failed.
    unsafe { octets::write(cookie as usize as c_int, buf.cast(), len) }.max(0)
}

unsafe extern "C" fn close(cookie: *mut c_void) -> c_int {
    let fd = cookie as usize as c_int;
    STREAMS.with(|streams| streams.retain(|(_, of)| *of != fd));
    // SAFETY: the stream's descriptor.
    unsafe { descriptors::close(fd) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    let is_socket =
        table::object_at(fd).is_some_and(|object| STATE.with(|state| state.client.socket(object).is_some()));
    if !is_socket {
        // SAFETY: passed on.
        return unsafe { real::fdopen(fd, mode) };
    }
    // SAFETY: the program's mode.
    unsafe { open(fd, mode) }
}

/// Opens a stream with functions of ours.
unsafe fn open(fd: c_int, mode: *const c_char) -> *mut FILE {
    let functions = Functions { read: Some(read), write: Some(write), seek: None, close: Some(close) };
    // SAFETY: the caller's mode; the cookie is a number.
    let stream = unsafe { fopencookie(fd as usize as *mut c_void, mode, functions) };
    if !stream.is_null() {
        STREAMS.with(|streams| streams.push((stream as usize, fd)));
        ANY.store(true, Ordering::Relaxed);
    }
    stream
}

/// Replaces the standard stream of number 0, 1 or 2, which has become a socket, by one of ours. In the GNU C
/// library the three are variables ("Standard Streams" in its manual). The new stream follows the number,
/// whatever that becomes later.
pub fn replace_standard(fd: c_int) {
    let (variable, mode) = match fd {
        0 => (&raw mut stdin, c"r"),
        1 => (&raw mut stdout, c"w"),
        2 => (&raw mut stderr, c"w"),
        _ => return,
    };
    if STREAMS.with(|streams| streams.iter().any(|(_, of)| *of == fd)) {
        return;
    }
    // SAFETY: variables and functions of the C library; stdio has no lock on the variables themselves, so a
    // program that changes descriptors 0 to 2 while other threads print has a race of its own.
    unsafe {
        let stream = open(fd, mode.as_ptr());
        if stream.is_null() {
            return;
        }
        if fd == 2 {
            libc::setvbuf(stream, std::ptr::null_mut(), libc::_IONBF, 0);
        }
        *variable = stream;
    }
}

/// dprintf(3) and vdprintf(3), with the fortified names: the C library writes inside them. What it would have
/// written is made first, and written then.
#[cfg(target_arch = "x86_64")]
mod formatted {
    use std::ffi::{c_char, c_int, c_void};

    use libc::size_t;

    use super::super::octets;
    use crate::{real, table};

    unsafe extern "C" {
        fn vasprintf(text: *mut *mut c_char, format: *const c_char, values: *mut c_void) -> c_int;
        fn __vasprintf_chk(
            text: *mut *mut c_char,
            flag: c_int,
            format: *const c_char,
            values: *mut c_void,
        ) -> c_int;
    }

    /// Writes a text that was made, of `len` octets or an error, and frees it. Returns what dprintf(3) does.
    unsafe fn write(fd: c_int, text: *mut c_char, len: c_int) -> c_int {
        let Ok(whole) = size_t::try_from(len) else { return -1 };
        let mut done = 0;
        while done < whole {
            // SAFETY: the text is as long as vasprintf(3) has said.
            let written = unsafe { octets::write(fd, text.add(done).cast(), whole - done) };
            match size_t::try_from(written) {
                Ok(written @ 1..) => done += written,
                // _IO_new_file_write ends at the first failure.
                _ => break,
            }
        }
        // SAFETY: vasprintf(3) has allocated it. free(3) keeps errno.
        unsafe { libc::free(text.cast()) };
        if done == whole { len } else { -1 }
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn vdprintf(fd: c_int, format: *const c_char, values: *mut c_void) -> c_int {
        if table::object_at(fd).is_none() {
            // SAFETY: passed on.
            return unsafe { real::vdprintf(fd, format, values) };
        }
        let mut text = std::ptr::null_mut();
        // SAFETY: the program's format and values.
        let len = unsafe { vasprintf(&mut text, format, values) };
        // SAFETY: both are from there.
        unsafe { write(fd, text, len) }
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn __vdprintf_chk(
        fd: c_int,
        flag: c_int,
        format: *const c_char,
        values: *mut c_void,
    ) -> c_int {
        if table::object_at(fd).is_none() {
            // SAFETY: passed on.
            return unsafe { real::__vdprintf_chk(fd, flag, format, values) };
        }
        let mut text = std::ptr::null_mut();
        // SAFETY: the program's format and values.
        let len = unsafe { __vasprintf_chk(&mut text, flag, format, values) };
        // SAFETY: both are from there.
        unsafe { write(fd, text, len) }
    }

    /// Makes a variadic function of one that takes a `va_list` (System V ABI, AMD64 supplement, "Variable
    /// Argument Lists"): the registers with arguments are saved where the list says. `$named` octets of the
    /// general registers have the arguments with names, and `$list` is the register of the one behind them.
    macro_rules! variadic {
        ($name:ident($($arg:ident: $ty:ty),*), $target:path, $named:literal, $list:literal) => {
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            pub unsafe extern "C" fn $name($($arg: $ty),*) -> c_int {
                core::arch::naked_asm!(
                    "sub rsp, 216",
                    "mov [rsp + 48], rdx",
                    "mov [rsp + 56], rcx",
                    "mov [rsp + 64], r8",
                    "mov [rsp + 72], r9",
                    "test al, al", // no vector register has an argument
                    "je 2f",
                    "movaps [rsp + 80], xmm0",
                    "movaps [rsp + 96], xmm1",
                    "movaps [rsp + 112], xmm2",
                    "movaps [rsp + 128], xmm3",
                    "movaps [rsp + 144], xmm4",
                    "movaps [rsp + 160], xmm5",
                    "movaps [rsp + 176], xmm6",
                    "movaps [rsp + 192], xmm7",
                    "2:",
                    concat!("mov dword ptr [rsp], ", $named),
                    "mov dword ptr [rsp + 4], 48",
                    "lea rax, [rsp + 224]", // what the caller has put on the stack, behind the return address
                    "mov [rsp + 8], rax",
                    "lea rax, [rsp + 32]",
                    "mov [rsp + 16], rax",
                    concat!("mov ", $list, ", rsp"),
                    "call {target}",
                    "add rsp, 216",
                    "ret",
                    target = sym $target,
                )
            }
        };
    }

    variadic!(dprintf(fd: c_int, format: *const c_char), vdprintf, "16", "rdx");
    variadic!(__dprintf_chk(fd: c_int, flag: c_int, format: *const c_char), __vdprintf_chk, "24", "rcx");
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fileno(stream: *mut FILE) -> c_int {
    if ANY.load(Ordering::Relaxed) {
        let known =
            STREAMS.with(|streams| streams.iter().find(|(s, _)| *s == stream as usize).map(|(_, fd)| *fd));
        if let Some(fd) = known {
            return fd;
        }
    }
    // SAFETY: passed on.
    unsafe { real::fileno(stream) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fileno_unlocked(stream: *mut FILE) -> c_int {
    // SAFETY: passed on.
    unsafe { fileno(stream) }
}
