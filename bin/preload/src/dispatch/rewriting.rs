//! Leads system calls of static programs, and of those of Go, here without a trap: the [`super::sites`] in
//! their code are rewritten when it is mapped, before its first instruction.
//!
//! ```text
//!   jmp bridge ---> bridge ---> enter   a call of the kernel's        ---> stubs::pass_on
//!                                       a call of the library's       ---> stubs::carry_out_of_guest, or
//!                                                                          carry_out in the C library's threads
//!                                       anything else, and any doubt  ---> the syscall in the bridge: a trap
//! ```
//! [`enter`] decides as the handler of SIGSYS does ([`super::trap`]), about a few frequent calls. It takes
//! nothing of the program's for that but `rcx` and `r11`, which a `syscall` changes anyway, and what is below
//! the red zone of its stack.

use std::ffi::{c_int, c_long, c_void};
use std::io;
use std::ops::Range;

use atoll_sys::program::image;
use libc::dl_phdr_info;

use super::sites::{self, BRIDGE_MAX, Site};
use super::stubs;
use super::trap::FREQUENT;
use crate::instruction::direct;
use crate::netlink_end;
use crate::shadow::{
    self, ALL_LEN, LIBRARY_FS, PROGRAM_FS, SHADOWS, SHADOWS_LEN, SIGNALS_END, SIGNALS_LEN, STACK, STACK_LEN,
};
use crate::table::{FDS, FDS_MAX};

/// What [`enter`] does with a call.
const TRAP: u8 = 0;
const PASS: u8 = 1;
/// The call is the library's if the descriptor that it begins with is not the kernel's.
const DESCRIPTOR: u8 = 2;
const CARRY: u8 = 3;

/// The calls that are passed on to the kernel.
const PASSED: [c_long; 9] = [
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_tgkill,
    libc::SYS_madvise,
];

/// The calls that are the library's, depending on their descriptor.
const OF_DESCRIPTORS: [c_long; 5] =
    [libc::SYS_read, libc::SYS_write, libc::SYS_readv, libc::SYS_writev, libc::SYS_close];

const NUMBERS: usize = 512;

/// What is done with the call of each number.
static WAYS: [u8; NUMBERS] = ways();

const fn ways() -> [u8; NUMBERS] {
    let mut ways = [TRAP; NUMBERS];
    let lists: [(&[c_long], u8); 3] = [(&PASSED, PASS), (&OF_DESCRIPTORS, DESCRIPTOR), (&FREQUENT, CARRY)];
    let mut list = 0;
    while list < lists.len() {
        let mut at = 0;
        while at < lists[list].0.len() {
            ways[lists[list].0[at] as usize] = lists[list].1;
            at += 1;
        }
        list += 1;
    }
    ways
}

const PAGE: usize = image::PAGE as usize;

/// The octets that [`enter`] uses of the program's stack: the red zone, and three words.
const USED: usize = 128 + 24;

// structure: enter: instructions, one a line, that are read from the first to the last
/// Is entered from a bridge, with the program's registers as they would be at its `syscall`, but for `rcx`:
/// the address behind the `syscall` in the bridge. Between the change of the FS base and the stub a handler
/// of the program returns to the library's, as it does in the stub.
#[unsafe(naked)]
unsafe extern "C" fn enter() {
    core::arch::naked_asm!(
        "lea rsp, [rsp - 128]",
        "pushfq",
        "push rdx",
        "push rcx",
        "cmp rax, {numbers}",
        "jae 9f",
        "lea r11, [rip + {ways}]",
        "movzx r11d, byte ptr [r11 + rax]",
        "cmp r11d, {pass}",
        "jb 9f",
        "je 8f",
        "cmp r11d, {carry}",
        "je 2f",
        "cmp byte ptr [rip + {netlink}], 0",
        "jne 9f",
        "mov r11d, edi",
        "cmp r11d, {fds}",
        "jae 8f",
        "lea rdx, [rip + {table}]",
        "cmp dword ptr [rdx + r11 * 4], 0",
        "je 8f",
        "2: rdgsbase rdx", // a thread without a shadow is trapped
        "lea r11, [rip + {shadows}]",
        "mov rcx, rdx",
        "sub rcx, r11",
        "cmp rcx, {all_len}",
        "jae 9f",
        "mov r11, [rdx + {stack}]", // a handler that has interrupted a call stays on its stack
        "sub r11, rsp",
        "sub r11, {used}",
        "cmp r11, {stack_len}",
        "jbe 9f",
        "mov r11, [rdx + {signals_end}]", // one on a stack for signals, too
        "sub r11, rsp",
        "sub r11, {used}",
        "cmp r11, [rdx + {signals_len}]",
        "jbe 9f",
        "cmp rcx, {shadows_len}",
        "rdfsbase rcx",
        "jae 7f",
        "cmp rcx, [rdx + {library_fs}]",
        "je 9f",
        "mov [rdx + {program_fs}], rcx",
        "mov r11, [rdx + {stack}]",
        "mov rcx, [rdx + {library_fs}]",
        "wrfsbase rcx",
        "pop rcx",
        "pop rdx",
        "popfq",
        "lea rsp, [rsp + 128]",
        "jmp {carry_out_of_guest}",
        "7: cmp rcx, [rdx + {library_fs}]", // a thread of the C library's, unless it has a copy of another's
        "jne 9f",
        "mov r11, [rdx + {stack}]",
        "pop rcx",
        "pop rdx",
        "popfq",
        "lea rsp, [rsp + 128]",
        "jmp {carry_out}",
        "8: pop rcx",
        "pop rdx",
        "popfq",
        "lea rsp, [rsp + 128]",
        "jmp {pass_on}",
        "9: pop rcx",
        "pop rdx",
        "popfq",
        "lea rsp, [rsp + 128]",
        "lea rcx, [rcx - 2]",
        "jmp rcx",
        numbers = const NUMBERS,
        ways = sym WAYS,
        pass = const PASS,
        carry = const CARRY,
        netlink = sym netlink_end::ANY,
        fds = const FDS_MAX,
        table = sym FDS,
        shadows = sym SHADOWS,
        shadows_len = const SHADOWS_LEN,
        all_len = const ALL_LEN,
        stack = const STACK,
        stack_len = const STACK_LEN,
        signals_end = const SIGNALS_END,
        signals_len = const SIGNALS_LEN,
        used = const USED,
        library_fs = const LIBRARY_FS,
        program_fs = const PROGRAM_FS,
        carry_out_of_guest = sym stubs::carry_out_of_guest,
        carry_out = sym stubs::carry_out,
        pass_on = sym stubs::pass_on,
    )
}

/// Code of a program that was just mapped.
pub struct Code {
    /// The address.
    pub base: usize,
    /// The number of octets that are there, of the file and in memory.
    pub len: usize,
    /// The protection that the program wants: mprotect(2).
    pub protection: c_int,
}

/// Rewrites the sites in the code of a program of which nothing has run yet. The bridges are mapped below
/// `below`, the lowest address of the program. What cannot be rewritten is trapped.
///
/// # Safety
/// The code is mapped, and nobody executes it, or changes it, meanwhile.
pub unsafe fn rewrite(code: &[Code], below: usize) {
    let is_led = |number: u16| WAYS.get(usize::from(number)).is_some_and(|way| *way != TRAP);
    // SAFETY: the caller's promise.
    let octets = |code: &Code| unsafe { std::slice::from_raw_parts(code.base as *const u8, code.len) };
    let sites: Vec<Vec<Site>> = code.iter().map(|code| sites::find(octets(code), is_led)).collect();
    let count = sites.iter().map(Vec::len).sum::<usize>();
    if count == 0 {
        return;
    }
    let Ok(mut bridges) = Bridges::map(count, below) else { return };
    for (code, sites) in code.iter().zip(&sites).filter(|(_, sites)| !sites.is_empty()) {
        let pages = code.base / PAGE * PAGE..(code.base + code.len).next_multiple_of(PAGE);
        if !protect(&pages, libc::PROT_READ | libc::PROT_WRITE) {
            continue;
        }
        for site in sites {
            let at = bridges.next;
            let bridge = site.bridge(octets(code), code.base, at, bridges.first);
            if let (Some(bridge), Some(jump)) = (bridge, site.jump(code.base, at)) {
                bridges.write(&bridge);
                let to = (code.base + site.replaced.start) as *mut u8;
                // SAFETY: the site lies in the code, which may be written to now.
                unsafe { std::ptr::copy_nonoverlapping(jump.as_ptr(), to, jump.len()) };
            }
        }
        protect(&pages, code.protection);
    }
    protect(&(bridges.first..bridges.end), libc::PROT_READ | libc::PROT_EXEC);
    shadow::allow_own();
}

/// Rewrites the sites of the program that the C library has loaded, if it is one of Go's: others make their
/// calls by the C library's functions, and looking for sites would cost each of their starts. Called by the
/// constructor.
///
/// # Safety
/// Nothing of the program has run, or runs meanwhile.
pub unsafe fn rewrite_loaded() {
    if !super::is_on() || !shadow::is_possible() {
        return;
    }
    let mut found = Loaded { notes: Vec::new(), readable: Vec::new(), code: Vec::new() };
    // SAFETY: the function is called before this returns, with the data that it expects.
    unsafe { libc::dl_iterate_phdr(Some(note_loaded), (&raw mut found).cast()) };
    let is_of_go = |notes: &Range<usize>| {
        let is_around = |all: &&Range<usize>| all.start <= notes.start && notes.end <= all.end;
        found.readable.iter().any(|all| is_around(&all)) && {
            // SAFETY: mapped, to be read, by the C library.
            has_note_of_go(unsafe { std::slice::from_raw_parts(notes.start as *const u8, notes.len()) })
        }
    };
    let first = found.readable.iter().map(|segment| segment.start).min();
    if let Some(first) = first.filter(|_| found.notes.iter().any(is_of_go)) {
        // SAFETY: the caller's promise.
        unsafe { rewrite(&found.code, first) };
    }
}

/// The program that the C library has loaded.
struct Loaded {
    /// The addresses of its notes, of what may be read, and its code.
    notes: Vec<Range<usize>>,
    readable: Vec<Range<usize>>,
    code: Vec<Code>,
}

/// Notes the first object, which is the program.
unsafe extern "C" fn note_loaded(info: *mut dl_phdr_info, _size: usize, found: *mut c_void) -> c_int {
    // SAFETY: the C library's description of an object, and what `rewrite_loaded` has given.
    let (info, found) = unsafe { (&*info, &mut *found.cast::<Loaded>()) };
    // SAFETY: as many headers as the object has.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    for header in headers {
        let base = (info.dlpi_addr + header.p_vaddr) as usize;
        let octets = base..base + header.p_filesz as usize;
        match header.p_type {
            libc::PT_NOTE => found.notes.push(octets),
            libc::PT_LOAD if header.p_flags & libc::PF_R != 0 => {
                if header.p_flags == libc::PF_R | libc::PF_X {
                    let protection = libc::PROT_READ | libc::PROT_EXEC;
                    found.code.push(Code { base, len: octets.len(), protection });
                }
                found.readable.push(octets);
            }
            _ => {}
        }
    }
    1
}

/// Returns whether the one that Go's linker writes is among some notes (elf(5)): each has the lengths of its
/// name and of what it describes, its kind, and both.
fn has_note_of_go(mut notes: &[u8]) -> bool {
    const KIND: u32 = 4;
    let padded = |len: u32| (len as usize).next_multiple_of(4);
    while let Some((head, rest)) = notes.split_first_chunk::<12>() {
        let word = |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        if word(8) == KIND && word(0) == 4 && rest.starts_with(b"Go\0\0") {
            return true;
        }
        notes = rest.get(padded(word(0)) + padded(word(4))..).unwrap_or_default();
    }
    false
}

fn protect(pages: &Range<usize>, protection: c_int) -> bool {
    let words = [pages.start as c_long, pages.len() as c_long, protection.into(), 0, 0, 0];
    // SAFETY: pages of a program that does not run yet, or of ours.
    unsafe { direct(libc::SYS_mprotect, words) == 0 }
}

/// Memory for bridges. It begins with the address of [`enter`].
struct Bridges {
    first: usize,
    next: usize,
    end: usize,
}

impl Bridges {
    fn map(count: usize, below: usize) -> io::Result<Bridges> {
        let len = (size_of::<usize>() + count * BRIDGE_MAX).next_multiple_of(PAGE);
        let at = (below / PAGE * PAGE).checked_sub(len).ok_or(io::ErrorKind::OutOfMemory)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let words = [at as c_long, len as c_long, access.into(), kind.into(), -1, 0];
        // SAFETY: new memory, where nothing is.
        let first = unsafe { direct(libc::SYS_mmap, words) };
        let first = usize::try_from(first).map_err(|_| io::Error::from_raw_os_error(-first as i32))?;
        let mut bridges = Bridges { first, next: first, end: first + len };
        bridges.write(&(enter as *const () as usize).to_ne_bytes());
        Ok(bridges)
    }

    fn write(&mut self, octets: &[u8]) {
        if octets.len() <= self.end - self.next {
            // SAFETY: there is room.
            unsafe { std::ptr::copy_nonoverlapping(octets.as_ptr(), self.next as *mut u8, octets.len()) };
            self.next += octets.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::trap::always_concerns_us;
    use super::*;

    fn note(name: &[u8], kind: u32, text: &[u8]) -> Vec<u8> {
        let mut note: Vec<u8> =
            [name.len() as u32, text.len() as u32, kind].iter().flat_map(|word| word.to_ne_bytes()).collect();
        for part in [name, text] {
            note.extend(part);
            note.resize(note.len().next_multiple_of(4), 0);
        }
        note
    }

    #[test]
    fn the_note_of_go_is_found_among_others_and_in_whatever_octets() {
        let others =
            [note(b"GNU\0", 3, b"12345"), note(b"GNU\0", 1, b""), note(b"Go\0\0", 1, b"no")].concat();
        let go = note(b"Go\0\0", 4, b"its number");
        assert!(has_note_of_go(&go) && has_note_of_go(&[&others[..], &go].concat()));
        assert!(!has_note_of_go(&others) && !has_note_of_go(&[]));
        for cut in 0..others.len() + 16 {
            assert!(!has_note_of_go(&[&others[..], &go].concat()[..cut.min(others.len() + 15)]), "{cut}");
        }
        assert!(!has_note_of_go(&[0xff; 100]));
    }

    #[test]
    fn what_is_carried_out_without_a_trap_is_what_a_trap_carries_out() {
        for number in FREQUENT {
            assert!(always_concerns_us(number), "{number}");
        }
        for number in PASSED {
            assert!(!always_concerns_us(number) && !OF_DESCRIPTORS.contains(&number), "{number}");
            assert!(!super::super::guests::concerns_us(number), "{number}");
        }
        for number in [libc::SYS_clone, libc::SYS_clone3, libc::SYS_rt_sigreturn, libc::SYS_execve] {
            assert_eq!(WAYS[number as usize], TRAP, "{number}");
        }
    }
}
