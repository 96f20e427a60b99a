//! Why a command failed: one line for people, which says what is missing and how to get it.

use std::any::Any;
use std::process::ExitCode;
use std::{fmt, io};

/// The reason why a command failed, for standard error.
#[derive(Debug)]
pub struct Failure {
    message: String,
    is_shortage: bool,
}

impl Failure {
    /// Creates a failure with this message, which is not a shortage.
    pub fn new(message: impl fmt::Display) -> Failure {
        Failure { message: message.to_string(), is_shortage: false }
    }

    /// Creates a failure whose cause is that the system is short of something.
    pub fn of_shortage(message: impl fmt::Display) -> Failure {
        Failure { message: message.to_string(), is_shortage: true }
    }

    /// Returns whether the system was short of something, so that another attempt may succeed later.
    pub fn is_shortage(&self) -> bool {
        self.is_shortage
    }

    /// Returns the message if the system was short of something, and `None` otherwise.
    pub fn shortage(&self) -> Option<String> {
        self.is_shortage.then(|| self.message.clone())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The exit status of a process that ends because the system is short of something (EX_TEMPFAIL, sysexits.h).
pub const EXIT_OF_SHORTAGE: i32 = 75;

/// Returns the exit status of a process that cannot continue.
pub fn exit_code(is_shortage: bool) -> ExitCode {
    if is_shortage { ExitCode::from(EXIT_OF_SHORTAGE as u8) } else { ExitCode::FAILURE }
}

/// Turns errors into failures that say what was attempted.
pub trait OrFail<T> {
    /// Turns an error into the failure `WHAT: ERROR`.
    fn or_fail(self, what: impl fmt::Display) -> Result<T, Failure>;
}

impl<T, E: fmt::Display + Any> OrFail<T> for Result<T, E> {
    fn or_fail(self, what: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|error| Failure {
            message: format!("{what}: {error}"),
            is_shortage: is_of_shortage(&error),
        })
    }
}

/// Returns whether an error says that the system is short of something that may be available again later,
/// such as descriptors, memory, processes or disk space.
pub fn is_shortage(error: &io::Error) -> bool {
    use libc::{EAGAIN, EDQUOT, EMFILE, ENFILE, ENOBUFS, ENOMEM, ENOSPC, ETOOMANYREFS};
    let passes = [EMFILE, ENFILE, ENOMEM, EAGAIN, ENOSPC, ENOBUFS, EDQUOT, ETOOMANYREFS];
    error.raw_os_error().is_some_and(|number| passes.contains(&number))
        || error.kind() == io::ErrorKind::OutOfMemory
}

fn is_of_shortage(error: &dyn Any) -> bool {
    let io = error.downcast_ref::<io::Error>().map(is_shortage);
    let errno = error.downcast_ref::<rustix::io::Errno>().map(|errno| is_shortage(&(*errno).into()));
    io.or(errno).or(error.downcast_ref::<Failure>().map(Failure::is_shortage)).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_is_known_through_every_layer() {
        for (number, passes) in
            [(libc::EMFILE, true), (libc::ENOMEM, true), (libc::EAGAIN, true), (libc::ENOENT, false)]
        {
            let error = || io::Error::from_raw_os_error(number);
            let inner: Result<(), Failure> = Err(error()).or_fail("within");
            let outer = inner.or_fail("without").unwrap_err();
            assert_eq!(outer.is_shortage(), passes, "{outer}");
            assert_eq!(is_shortage(&error()), passes);
        }
        assert!(!Failure::new("of another kind").is_shortage());
    }
}
