//! Restricts a process to a list of system calls, which the kernel enforces for good (seccomp(2),
//! `SECCOMP_SET_MODE_FILTER`).
//!
//! A call that is not on the list is not made: the process dies of SIGSYS. Before that, its handler writes
//! the number of the call to a word that other processes read ([`report_to`]). If a second such signal comes
//! while the handler runs, the kernel acts as if there were no handler (`force_sig` on a blocked signal). So
//! the handler ends the process by one more call that is not on the list. The handler cannot be replaced,
//! because lists do not allow that. Even an attacker who makes the handler do something else has not made the
//! call.

use std::collections::BTreeMap;
use std::io;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter,
};

/// The system calls that may be made, by number, each with alternative lists of conditions; without any, all
/// arguments are allowed.
#[derive(Clone, Debug, Default)]
pub struct Calls(BTreeMap<i64, Vec<Vec<Condition>>>);

/// A condition on an argument of a call; arguments are counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The low 32 bits of the argument are this number; the kernel reads only those of an `int`.
    Is(u8, u32),
    /// The bits of the argument that are set in the first number are as in the second number; all 64 bits can
    /// be tested.
    Bits(u8, u64, u64),
}

impl Calls {
    /// Creates an empty list, which allows no call.
    pub fn new() -> Calls {
        Calls::default()
    }

    /// Allows `call` with any arguments.
    pub fn allow(&mut self, call: libc::c_long) -> &mut Self {
        self.0.insert(call, Vec::new());
        self
    }

    /// Allows `call` where all `conditions` hold, besides the cases in which it is allowed already. Panics if
    /// there are no conditions.
    pub fn allow_if(&mut self, call: libc::c_long, conditions: &[Condition]) -> &mut Self {
        assert!(!conditions.is_empty(), "a case without conditions is every case");
        match self.0.get_mut(&call) {
            Some(cases) if cases.is_empty() => {}
            Some(cases) => cases.push(conditions.to_vec()),
            None => drop(self.0.insert(call, vec![conditions.to_vec()])),
        }
        self
    }

    /// Returns whether `call` may be made with these arguments.
    pub fn permits(&self, call: libc::c_long, arguments: [u64; 6]) -> bool {
        let holds = |condition: &Condition| match *condition {
            Condition::Is(at, value) => {
                arguments.get(usize::from(at)).is_some_and(|given| *given as u32 == value)
            }
            Condition::Bits(at, mask, value) => {
                arguments.get(usize::from(at)).is_some_and(|given| given & mask == value)
            }
        };
        self.0
            .get(&call)
            .is_some_and(|cases| cases.is_empty() || cases.iter().any(|case| case.iter().all(holds)))
    }

    /// Restricts the calling thread, and what it starts, to these calls for good; a process that makes
    /// another one dies of SIGSYS. Sets `no_new_privs`. Returns false if the kernel has no such filters.
    pub fn enforce(&self) -> io::Result<bool> {
        let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(io::Error::other)?;
        let program: BpfProgram =
            SeccompFilter::new(self.rules()?, SeccompAction::Trap, SeccompAction::Allow, arch)
                .and_then(BpfProgram::try_from)
                .map_err(io::Error::other)?;
        match apply_filter(&program) {
            Ok(()) => Ok(true),
            Err(seccompiler::Error::Seccomp(error) | seccompiler::Error::Prctl(error))
                if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL)) =>
            {
                Ok(false)
            }
            Err(error) => Err(io::Error::other(error)),
        }
    }

    fn rules(&self) -> io::Result<BTreeMap<i64, Vec<SeccompRule>>> {
        let rule = |case: &Vec<Condition>| {
            let conditions = case.iter().map(|condition| match *condition {
                Condition::Is(argument, value) => {
                    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value.into())
                }
                Condition::Bits(argument, mask, value) => SeccompCondition::new(
                    argument,
                    SeccompCmpArgLen::Qword,
                    SeccompCmpOp::MaskedEq(mask),
                    value,
                ),
            });
            conditions.collect::<Result<_, _>>().and_then(SeccompRule::new).map_err(io::Error::other)
        };
        let rules = |cases: &Vec<Vec<Condition>>| cases.iter().map(rule).collect::<io::Result<_>>();
        self.0.iter().map(|(&call, cases)| Ok((call, rules(cases)?))).collect()
    }
}

/// The word that the handler writes to.
static WORD: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// Makes the process write the number of the first call that is not allowed, plus one, to `word` before it
/// dies. Call this before [`Calls::enforce`].
pub fn report_to(word: &'static AtomicU32) -> io::Result<()> {
    // Relaxed: the handler runs in this thread.
    WORD.store(ptr::from_ref(word).cast_mut(), Ordering::Relaxed);
    // SAFETY: all-zero is a valid `sigaction`: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = end as extern "C" fn(_, _, _) as libc::sighandler_t;
    // SA_NODEFER is not set: while the handler runs, the signal has to be blocked.
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: `action` is valid and outlives the call; `end` does only what a signal handler may.
    match unsafe { libc::sigaction(libc::SIGSYS, &action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The beginning of a `siginfo_t` of SIGSYS on 64-bit machines (sigaction(2)).
#[repr(C)]
struct Violation {
    signo: i32,
    errno: i32,
    code: i32,
    _padding: i32,
    _address: u64,
    call: i32,
}

const _: () = assert!(size_of::<usize>() == 8 && size_of::<Violation>() <= size_of::<libc::siginfo_t>());

/// The code `SYS_SECCOMP` of asm-generic/siginfo.h: a filter caused the signal.
const BY_FILTER: i32 = 1;

/// Handles SIGSYS: writes down the call, and ends the process.
extern "C" fn end(_: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: SA_SIGINFO makes the kernel pass a valid siginfo_t, alive while the handler runs; it is larger
    // than a `Violation`, aligned alike, and any bytes are one.
    let violation = unsafe { &*info.cast::<Violation>() };
    // SAFETY: the pointer is null, or made from a reference that lives for ever.
    if let (BY_FILTER, Some(word)) = (violation.code, unsafe { WORD.load(Ordering::Relaxed).as_ref() }) {
        // Pairs with the read of a process that has reaped this one.
        word.store(violation.call.cast_unsigned().wrapping_add(1), Ordering::Release);
    }
    let nothing: *const libc::c_char = ptr::null();
    // SAFETY: the call fails with EFAULT without a filter; with one the signal comes again, and is deadly
    // now.
    unsafe { libc::syscall(libc::SYS_execve, nothing, nothing, nothing) };
    // SAFETY: this ends the process if there was no filter.
    unsafe { libc::_exit(128 + libc::SIGSYS) };
}

#[cfg(test)]
mod tests;
