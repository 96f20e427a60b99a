//! By which way the calls of a program reach the library: `docs/decisions/interception.md`.

/// The way by which the calls of a process reach the library. The library says it in its region of the arena,
/// and the supervisor reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Interception {
    /// The process has not said it.
    #[default]
    Unknown = 0,
    /// The C library's functions alone: this kernel cannot dispatch system calls.
    Symbols = 1,
    /// The C library's functions, and all other system calls by Syscall User Dispatch.
    Dispatch = 2,
    /// The C library's functions alone, because the process has confined itself.
    Confined = 3,
    /// The C library's functions alone, because valgrind runs the process.
    Valgrind = 4,
    /// The C library's functions alone, because the program dispatches system calls itself.
    OwnDispatch = 5,
    /// Instructions that the library has rewritten, and the C library's functions. The supervisor says it of
    /// a process that dispatches, and of which no call on a socket was trapped.
    Rewritten = 6,
}

impl Interception {
    /// Returns the way with this number; any other number is [`Interception::Unknown`].
    pub const fn from_u8(number: u8) -> Interception {
        match number {
            1 => Interception::Symbols,
            2 => Interception::Dispatch,
            3 => Interception::Confined,
            4 => Interception::Valgrind,
            5 => Interception::OwnDispatch,
            _ => Interception::Unknown,
        }
    }

    /// Returns its name in `atoll status`.
    pub const fn name(self) -> &'static str {
        match self {
            Interception::Unknown => "unknown",
            Interception::Symbols => "symbols",
            Interception::Dispatch => "dispatch",
            Interception::Confined => "confined",
            Interception::Valgrind => "valgrind",
            Interception::OwnDispatch => "own-dispatch",
            Interception::Rewritten => "rewritten",
        }
    }

    /// Describes it for people.
    pub const fn description(self) -> &'static str {
        match self {
            Interception::Unknown => "by ways that it has not said yet",
            Interception::Symbols => {
                "by the C library's functions; this kernel cannot dispatch other system calls"
            }
            Interception::Dispatch => {
                "by the C library's functions, and other system calls by Syscall User Dispatch"
            }
            Interception::Rewritten => "by rewritten instructions, and the C library's functions",
            Interception::Confined => "by the C library's functions alone, because it has confined itself",
            Interception::Valgrind => "by the C library's functions alone, because valgrind runs it",
            Interception::OwnDispatch => {
                "by the C library's functions alone, because it dispatches system calls itself"
            }
        }
    }
}
