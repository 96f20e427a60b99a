//! Keeps programs that do not load the library away from the kernel's network: a filter (seccomp(2)) that a
//! program on a stack and everything that it starts have for good.
//!
//! Static and set-user-ID programs, and system calls that a program makes by instructions of its own, do not
//! pass through the library. The filter makes their socket(2) fail with EACCES for the families that reach
//! other machines. The library makes such sockets with [`WORDS`] as the last two of six arguments, of which
//! the kernel reads only the first three. This keeps off what reaches for the host's network unawares; it is
//! no defence against a program that knows the words.
//!
//! io_uring makes sockets past every filter, so `io_uring_setup` fails with ENOSYS, as on a kernel without
//! it.

use std::io;

use libc::{c_ulong, sock_filter, sock_fprog};

/// The last two arguments of the library's own socket(2).
pub const WORDS: [u32; 2] = [0x6174_6f6c, 0x6c5f_6f6b];

/// The families of sockets that reach other machines: AF_SMC is TCP by another name (smc(7)).
const FAMILIES: [u32; 3] = [libc::AF_INET as u32, libc::AF_INET6 as u32, 43];

// linux/audit.h.
#[cfg(target_arch = "x86_64")]
const NATIVE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const NATIVE: u32 = 0xc000_00b7;
const INTEL_32: u32 = 0x4000_0003;

/// The bit of a system call's number that says x32, an ABI of its own on x86-64.
const X32: u32 = 0x4000_0000;

// asm/unistd_32.h; socketcall(2) has the number of the call as its first argument, and the others in memory.
const SOCKETCALL_OF_I386: u32 = 102;
const SOCKET_OF_I386: u32 = 359;
const SYS_SOCKET: u32 = 1;

/// Offsets in struct seccomp_data (linux/seccomp.h).
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const fn argument(at: u32) -> u32 {
    // The low half of a little-endian word.
    16 + 8 * at
}

/// One step of the filter, with names in place of distances.
#[derive(Clone, Copy)]
enum Step {
    Load(u32),
    /// Goes to the label if what is loaded is this number.
    If(u32, Label),
    /// Goes to the label if what is loaded is another number.
    Unless(u32, Label),
    /// Goes to the label if any of these bits are set.
    IfBits(u32, Label),
    Here(Label),
    Return(u32),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Label {
    Native,
    I386,
    Family,
    Words,
    Allow,
    Refuse,
    Unknown,
}

/// Returns the filter, whose jumps only go forward.
fn steps() -> Vec<Step> {
    use Label::*;
    use Step::*;
    let mut steps = vec![Load(ARCHITECTURE), If(NATIVE, Native), If(INTEL_32, I386)];
    // Programs of another architecture are not expected, and keep their calls.
    steps.extend([Return(libc::SECCOMP_RET_ALLOW), Here(I386), Load(NUMBER)]);
    steps.extend([If(libc::SYS_io_uring_setup as u32, Unknown), If(SOCKET_OF_I386, Family)]);
    // What socketcall(2) is asked for cannot be read: all its sockets are refused.
    steps.extend([Unless(SOCKETCALL_OF_I386, Allow), Load(argument(0)), If(SYS_SOCKET, Refuse)]);
    steps.extend([Return(libc::SECCOMP_RET_ALLOW), Here(Native), Load(NUMBER)]);
    if cfg!(target_arch = "x86_64") {
        steps.push(IfBits(X32, Unknown));
    }
    steps.extend([If(libc::SYS_io_uring_setup as u32, Unknown), Unless(libc::SYS_socket as u32, Allow)]);
    steps.extend([Here(Family), Load(argument(0))]);
    steps.extend(FAMILIES.map(|family| If(family, Words)));
    steps.extend([Return(libc::SECCOMP_RET_ALLOW), Here(Words), Load(argument(4)), Unless(WORDS[0], Refuse)]);
    steps.extend([Load(argument(5)), Unless(WORDS[1], Refuse)]);
    steps.extend([Here(Allow), Return(libc::SECCOMP_RET_ALLOW)]);
    steps.extend([Here(Refuse), Return(libc::SECCOMP_RET_ERRNO | libc::EACCES as u32)]);
    steps.extend([Here(Unknown), Return(libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32)]);
    steps
}

/// Returns the steps as the kernel wants them.
fn assemble(steps: &[Step]) -> Vec<sock_filter> {
    // linux/bpf_common.h.
    const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const JUMP_BITS: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let is_code = |step: &&Step| !matches!(step, Step::Here(_));
    // The number of instructions between the step at `from` and the label.
    let distance = |from: usize, label: Label| {
        let behind = steps[from + 1..].iter();
        let between = behind.take_while(|step| !matches!(step, Step::Here(here) if *here == label));
        between.filter(is_code).count() as u8
    };
    let instruction = |(at, step): (usize, &Step)| {
        let (code, k, jt, jf) = match *step {
            Step::Load(offset) => (LOAD_WORD, offset, 0, 0),
            Step::If(number, label) => (JUMP_EQUAL, number, distance(at, label), 0),
            Step::Unless(number, label) => (JUMP_EQUAL, number, 0, distance(at, label)),
            Step::IfBits(bits, label) => (JUMP_BITS, bits, distance(at, label), 0),
            Step::Return(verdict) => (RETURN, verdict, 0, 0),
            Step::Here(_) => return None,
        };
        Some(sock_filter { code, jt, jf, k })
    };
    steps.iter().enumerate().filter_map(instruction).collect()
}

/// Returns the filter, for a process that installs it by itself (seccomp(2)).
pub fn filter() -> Vec<sock_filter> {
    assemble(&steps())
}

/// Refuses sockets that reach other machines to this thread, and to what it starts, for good, unless they are
/// made with [`WORDS`]. Sets `no_new_privs` if the thread lacks CAP_SYS_ADMIN: set-user-ID programs do
/// not change their user then. Returns false if the kernel has no such filters.
pub fn refuse_sockets() -> io::Result<bool> {
    let mut filter = filter();
    let program = sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    let install = || {
        // SAFETY: the program is valid, and the kernel copies it.
        let result =
            unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
        if result == 0 { Ok(true) } else { Err(io::Error::last_os_error()) }
    };
    let installed = match install() {
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => {
            // SAFETY: numbers only.
            if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1 as c_ulong, 0, 0, 0) } < 0 {
                return Err(io::Error::last_os_error());
            }
            install()
        }
        result => result,
    };
    match installed {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL)) => Ok(false),
        result => result,
    }
}

/// Makes a command [refuse sockets](refuse_sockets) before its program begins. Where the kernel has no
/// filters it does not.
pub fn refuse_sockets_of(command: &mut std::process::Command) {
    use std::os::unix::process::CommandExt;
    // SAFETY: between fork and exec, makes system calls and allocates; the process that forks has one thread.
    unsafe { command.pre_exec(|| refuse_sockets().map(drop)) };
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// Returns the verdict of the filter on a call, by interpreting the few instructions that the filter
    /// uses.
    fn verdict(architecture: u32, number: u32, arguments: [u64; 6]) -> u32 {
        let mut data = vec![number, architecture, 0, 0];
        data.extend(arguments.iter().flat_map(|word| [*word as u32, (word >> 32) as u32]));
        let (program, mut at, mut loaded) = (assemble(&steps()), 0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            let holds = match code & 0xf7 {
                0x15 => loaded == k,
                0x45 => loaded & k != 0,
                0x06 => return k,
                0x20 => {
                    loaded = data[k as usize / 4];
                    at += 1;
                    continue;
                }
                other => panic!("instruction {other:#x}"),
            };
            at += 1 + usize::from(if holds { jt } else { jf });
        }
    }

    const ALLOWED: u32 = libc::SECCOMP_RET_ALLOW;
    const REFUSED: u32 = libc::SECCOMP_RET_ERRNO | libc::EACCES as u32;
    const UNKNOWN: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;

    #[test]
    fn sockets_that_reach_other_machines_need_the_words() {
        let [first, second] = WORDS.map(u64::from);
        let socket = libc::SYS_socket as u32;
        for family in [libc::AF_INET, libc::AF_INET6, 43] {
            let family = family as u64;
            assert_eq!(verdict(NATIVE, socket, [family, 1, 0, 0, first, second]), ALLOWED);
            // The kernel reads only the low half of a family.
            for family in [family, family | 1 << 32] {
                assert_eq!(verdict(NATIVE, socket, [family, 1, 0, 0, 0, 0]), REFUSED);
                assert_eq!(verdict(NATIVE, socket, [family, 1, 0, 0, first, 0]), REFUSED);
                assert_eq!(verdict(NATIVE, socket, [family, 1, 0, 0, 0, second]), REFUSED);
                assert_eq!(verdict(INTEL_32, SOCKET_OF_I386, [family, 1, 0, 0, 0, 0]), REFUSED);
            }
        }
        for family in [libc::AF_UNIX, libc::AF_NETLINK, libc::AF_PACKET] {
            assert_eq!(verdict(NATIVE, socket, [family as u64, 1, 0, 0, 0, 0]), ALLOWED);
            assert_eq!(verdict(INTEL_32, SOCKET_OF_I386, [family as u64, 1, 0, 0, 0, 0]), ALLOWED);
        }
        assert_eq!(verdict(INTEL_32, SOCKETCALL_OF_I386, [1, 0, 0, 0, 0, 0]), REFUSED);
        assert_eq!(verdict(INTEL_32, SOCKETCALL_OF_I386, [2, 0, 0, 0, 0, 0]), ALLOWED);
    }

    #[test]
    fn other_calls_are_none_of_its_business() {
        for number in [libc::SYS_read, libc::SYS_connect, libc::SYS_execve, libc::SYS_socketpair] {
            assert_eq!(verdict(NATIVE, number as u32, [2; 6]), ALLOWED);
        }
        // read(2) of i386 has the number of another call.
        assert_eq!(verdict(INTEL_32, 3, [2; 6]), ALLOWED);
        assert_eq!(verdict(0x1234, libc::SYS_socket as u32, [2; 6]), ALLOWED);
        assert_eq!(verdict(NATIVE, libc::SYS_io_uring_setup as u32, [0; 6]), UNKNOWN);
        assert_eq!(verdict(INTEL_32, libc::SYS_io_uring_setup as u32, [0; 6]), UNKNOWN);
        if cfg!(target_arch = "x86_64") {
            assert_eq!(verdict(NATIVE, X32 | libc::SYS_socket as u32, [2; 6]), UNKNOWN);
        }
    }

    /// A program that is started under the filter keeps it, and so do its children.
    #[test]
    fn the_kernel_enforces_it_over_exec() {
        let tries = "import errno, socket, subprocess, sys
def attempt(*family):
    try: socket.socket(*family); return 'works'
    except OSError as error: return errno.errorcode[error.errno]
print(attempt(socket.AF_INET), attempt(socket.AF_INET6), attempt(socket.AF_UNIX), flush=True)
if len(sys.argv) == 1: subprocess.run([sys.executable, '-c', sys.orig_argv[-1], 'again'])";
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", tries]).stdout(Stdio::piped());
        refuse_sockets_of(&mut command);
        let output = command.output().unwrap();
        let expected = "EACCES EACCES works\n";
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{expected}{expected}"));
    }
}
