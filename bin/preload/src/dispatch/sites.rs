//! Finds system calls in the code of a program that can be led to this library without a trap, and makes the
//! code that does so. Nothing here touches the program: see [`super::rewriting`].
//!
//! ```text
//!   before                 after                  the bridge, somewhere near
//!   mov eax, 45            jmp bridge             mov eax, 45
//!   syscall                syscall                lea rcx, [back]
//!   back: cmp rax, ...     cmp rax, ...           jmp enter
//!                                                 syscall            for calls that enter does not take
//!                                                 back: jmp ...      behind the program's syscall
//! ```
//! One whole instruction is replaced by another. Whoever jumps to the `syscall` itself finds it where it was,
//! and nobody jumps into the middle of an instruction. Only where all of a known function is recognised, more
//! than one is replaced. What is not recognised is trapped as ever.

use std::ops::Range;

/// Any octet.
const ANY: i16 = -1;

/// Code around a system call.
struct Pattern {
    /// The octets, or [`ANY`].
    octets: &'static [i16],
    /// Where the `syscall` is.
    syscall: usize,
    /// What is replaced: at least [`JUMP_LEN`] octets, which begin before the `syscall`.
    replaced: Range<usize>,
}

/// `mov eax, NUMBER; syscall`: glibc, Go's runtime, and what compilers make of a call with a fixed number.
const NUMBERED: Pattern = Pattern { octets: &[0xb8, ANY, ANY, 0, 0, 0x0f, 0x05], syscall: 5, replaced: 0..5 };

/// Functions that are recognised as a whole, up to behind the `syscall`.
const KNOWN: [Pattern; 3] = [
    // Go: runtime/internal/syscall.Syscall6, later internal/runtime/syscall. Nothing jumps into it.
    Pattern {
        octets: &[
            0x49, 0x89, 0xf2, 0x48, 0x89, 0xfa, 0x48, 0x89, 0xce, 0x48, 0x89, 0xdf, 0x0f, 0x05, 0x48, 0x3d,
            0x01, 0xf0, 0xff, 0xff, 0x76,
        ],
        syscall: 12,
        replaced: 6..12,
    },
    // glibc: the beginning of read, in a process with one thread.
    Pattern {
        octets: &[
            0x80, 0x3d, ANY, ANY, ANY, ANY, 0x00, 0x74, 0x17, 0x31, 0xc0, 0x0f, 0x05, 0x48, 0x3d, 0x00, 0xf0,
            0xff, 0xff, 0x77, ANY, 0xc3,
        ],
        syscall: 11,
        replaced: 9..19,
    },
    // musl: __syscall_cp_c, for all calls that are cancellation points. One instruction is replaced.
    Pattern {
        octets: &[
            0x48, 0x89, 0xf8, 0x4d, 0x89, 0xc2, 0x48, 0x89, 0xf7, 0x4d, 0x89, 0xc8, 0x48, 0x89, 0xd6, 0x4c,
            0x8b, 0x4c, 0x24, 0x08, 0x48, 0x89, 0xca, 0x0f, 0x05, 0xc3,
        ],
        syscall: 23,
        replaced: 15..20,
    },
];

const SYSCALL: [u8; 2] = [0x0f, 0x05];
const JUMP_LEN: usize = 5;
const NOP: u8 = 0x90;

/// A system call that can be led to this library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// What is replaced, in the code.
    pub replaced: Range<usize>,
    /// Where the `syscall` is.
    syscall: usize,
}

/// Finds the sites in code. `is_led` says whether calls of a number are to be led to this library.
pub fn find(code: &[u8], is_led: impl Fn(u16) -> bool) -> Vec<Site> {
    let mut sites: Vec<Site> = Vec::new();
    let calls = code.windows(SYSCALL.len()).enumerate().filter(|(_, octets)| **octets == SYSCALL);
    for (at, _) in calls {
        let numbered = || {
            let site = site_at(code, at, &NUMBERED)?;
            if site.replaced.start.checked_sub(1).is_some_and(|before| is_prefix(code[before])) {
                return None;
            }
            let number = &code[site.replaced.start + 1..];
            is_led(u16::from_le_bytes([number[0], number[1]])).then_some(site)
        };
        let found = KNOWN.iter().find_map(|pattern| site_at(code, at, pattern)).or_else(numbered);
        let is_apart = |site: &Site| sites.last().is_none_or(|last| last.end() <= site.replaced.start);
        sites.extend(found.filter(is_apart));
    }
    sites
}

/// Returns whether an octet before `mov eax, NUMBER` may be the beginning of that instruction, which is then
/// another one: with REX.B (0x41) it is `mov r8d, NUMBER`, with REX.W a longer one, with 0x66 one of 16 bits.
/// It may also be the end of the instruction before; the call is trapped then.
fn is_prefix(octet: u8) -> bool {
    matches!(octet, 0x40..=0x4f | 0x66)
}

/// Returns the site at a `syscall`, if the code around it is as the pattern says.
fn site_at(code: &[u8], syscall: usize, pattern: &Pattern) -> Option<Site> {
    let start = syscall.checked_sub(pattern.syscall)?;
    let octets = code.get(start..start + pattern.octets.len())?;
    let fits =
        octets.iter().zip(pattern.octets).all(|(is, wanted)| *wanted == ANY || *wanted == (*is).into());
    let replaced = start + pattern.replaced.start..start + pattern.replaced.end;
    fits.then_some(Site { replaced, syscall })
}

/// The length of the code of a bridge, at most.
pub const BRIDGE_MAX: usize = 48;

impl Site {
    /// Returns where the program's code goes on.
    fn end(&self) -> usize {
        self.replaced.end.max(self.syscall + SYSCALL.len())
    }

    /// Returns the code of a bridge at the address `at`, for code that begins at the address `base`; `None`
    /// if the program is too far away. `enter` is the address of a word, with the address of what is entered.
    pub fn bridge(&self, code: &[u8], base: usize, at: usize, enter: usize) -> Option<Vec<u8>> {
        let mut bridge = code[self.replaced.start..self.syscall].to_vec();
        // lea rcx, [rip + 8]: behind the jump and the syscall.
        bridge.extend([0x48, 0x8d, 0x0d, 8, 0, 0, 0]);
        // jmp [rip + ...]
        bridge.extend([0xff, 0x25]);
        bridge.extend(distance(at + bridge.len() + 4, enter)?);
        bridge.extend(SYSCALL);
        bridge.extend(&code[self.syscall + SYSCALL.len()..self.end()]);
        bridge.push(0xe9);
        bridge.extend(distance(at + bridge.len() + 4, base + self.end())?);
        Some(bridge)
    }

    /// Returns what takes the place of the code at [`Site::replaced`]: a jump to the bridge at the address
    /// `at`. `None` if that is too far away.
    pub fn jump(&self, base: usize, at: usize) -> Option<Vec<u8>> {
        let mut jump = vec![0xe9];
        jump.extend(distance(base + self.replaced.start + JUMP_LEN, at)?);
        jump.resize(self.replaced.len(), NOP);
        Some(jump)
    }
}

/// Returns the distance from behind a jump to an address, as the jump has it.
fn distance(from: usize, to: usize) -> Option<[u8; 4]> {
    Some(i32::try_from(to as i64 - from as i64).ok()?.to_le_bytes())
}

#[cfg(test)]
mod tests;
