//! The times of datagrams, as programs ask for them and read them: socket(7), `SO_TIMESTAMP`.
//!
//! Linux has four options for one setting, of which the one that was set last counts: microseconds or
//! nanoseconds, each in a form for systems whose time has 32 bits ("old") and in one of 64 bits. On a 64-bit
//! system these differ only by the type of the control message.

use atoll_ipc::details::TimeOfDay;
use libc::SOL_SOCKET;

/// The forms of a time, as [`crate::options::Options`] holds them; 0 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `SO_TIMESTAMP`: a `struct timeval`.
    Micros = 1,
    /// `SO_TIMESTAMPNS`: a `struct timespec`.
    Nanos = 2,
    /// `SO_TIMESTAMP_NEW`: a `struct __kernel_sock_timeval`.
    MicrosNew = 3,
    /// `SO_TIMESTAMPNS_NEW`: a `struct __kernel_timespec`.
    NanosNew = 4,
}

/// What a socket's options hold if no option asks for a form, and the program asks for times all the same: by
/// ioctl(2), or by an option that it has switched off since (SOCK_TIMESTAMP).
pub const NO_FORM: u64 = 5;

/// When the last datagram that a socket has received came: ioctl(2), `SIOCGSTAMP` (Linux's `sk_stamp`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stamp {
    /// No datagram was received, or the options have asked for control messages.
    #[default]
    Never,
    /// A datagram was received, and it is not known when it came.
    Unknown,
    /// A datagram came then.
    At(TimeOfDay),
}

impl Stamp {
    /// Returns the stamp after a datagram was received, where the options hold `times`
    /// (sock_recv_cmsgs).
    pub fn after(self, times: u64, came: Option<TimeOfDay>) -> Stamp {
        match self {
            _ if Form::held(times).is_some() => self,
            Stamp::Never | Stamp::Unknown | Stamp::At(_) if times != 0 => {
                came.map_or(Stamp::Unknown, Stamp::At)
            }
            Stamp::Never => Stamp::Unknown,
            stamp => stamp,
        }
    }
}

/// linux/asm-generic/socket.h.
const TIMESTAMP: i32 = 29;
const TIMESTAMPNS: i32 = 35;
const TIMESTAMP_NEW: i32 = 63;
const TIMESTAMPNS_NEW: i32 = 64;

const FORMS: [Form; 4] = [Form::Micros, Form::Nanos, Form::MicrosNew, Form::NanosNew];

impl Form {
    /// Returns the form that an option of setsockopt(2) asks for; `None` if it is no option about times.
    pub fn of(level: i32, number: i32) -> Option<Form> {
        FORMS.into_iter().find(|form| (level, number) == (SOL_SOCKET, form.number()))
    }

    /// Returns the form that a socket's options hold.
    pub fn held(value: u64) -> Option<Form> {
        FORMS.into_iter().find(|form| *form as u64 == value)
    }

    /// Returns the number of the option, which is the type of the control message, too.
    pub const fn number(self) -> i32 {
        match self {
            Form::Micros => TIMESTAMP,
            Form::Nanos => TIMESTAMPNS,
            Form::MicrosNew => TIMESTAMP_NEW,
            Form::NanosNew => TIMESTAMPNS_NEW,
        }
    }

    /// Returns whether getsockopt(2) says that this option is on where `held` is: as on Linux,
    /// `SO_TIMESTAMP_NEW` is on with `SO_TIMESTAMPNS_NEW`.
    pub fn is_on(self, held: Option<Form>) -> bool {
        held == Some(self) || (self, held) == (Form::MicrosNew, Some(Form::NanosNew))
    }

    /// Returns what the control message says of a moment: seconds, and what the form counts below.
    pub fn encode(self, moment: TimeOfDay) -> [u8; 16] {
        let (seconds, nanos) = (moment.as_nanos() / 1_000_000_000, moment.as_nanos() % 1_000_000_000);
        let below = match self {
            Form::Micros | Form::MicrosNew => nanos / 1000,
            Form::Nanos | Form::NanosNew => nanos,
        };
        let mut octets = [0; 16];
        octets[..8].copy_from_slice(&seconds.to_ne_bytes());
        octets[8..].copy_from_slice(&below.to_ne_bytes());
        octets
    }
}

const _: () = assert!(TIMESTAMP == libc::SO_TIMESTAMP && TIMESTAMPNS == libc::SO_TIMESTAMPNS);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_written_in_each_form() {
        let moment = TimeOfDay::from_nanos(1_700_000_000_123_456_789).expect("it is not 0");
        let below = |form: Form| {
            let octets = form.encode(moment);
            assert_eq!(octets[..8], 1_700_000_000u64.to_ne_bytes());
            u64::from_ne_bytes(*octets.last_chunk().expect("16 octets"))
        };
        assert_eq!(FORMS.map(below), [123_456, 123_456_789, 123_456, 123_456_789]);
    }

    #[test]
    fn a_stamp_is_that_of_the_last_datagram_unless_control_messages_tell_it() {
        let came = TimeOfDay::from_nanos(7);
        let at = Stamp::At(came.expect("it is not 0"));
        assert_eq!(Stamp::Never.after(0, None), Stamp::Unknown);
        assert_eq!(at.after(0, None), at);
        assert_eq!(Stamp::Never.after(NO_FORM, came), at);
        assert_eq!(at.after(NO_FORM, None), Stamp::Unknown);
        assert_eq!(Stamp::Never.after(Form::Nanos as u64, came), Stamp::Never);
        assert_eq!(Form::held(NO_FORM), None);
    }

    #[test]
    fn each_option_is_a_form_and_says_whether_it_is_on() {
        for (form, number) in FORMS.into_iter().zip([29, 35, 63, 64]) {
            assert_eq!(Form::of(SOL_SOCKET, number), Some(form));
            assert_eq!(Form::held(form as u64), Some(form));
        }
        assert_eq!((Form::of(0, 29), Form::of(SOL_SOCKET, 37), Form::held(0)), (None, None, None));
        let shown = |held| FORMS.map(|form| form.is_on(held));
        assert_eq!(shown(None), [false; 4]);
        assert_eq!(shown(Some(Form::Nanos)), [false, true, false, false]);
        assert_eq!(shown(Some(Form::NanosNew)), [false, false, true, true]);
    }
}
