//! What follows when the stack is gone with all of its processes ([`crate::hang_up`]), and when one of its
//! name is up again (`docs/decisions/gone.md`). What becomes of sockets is decided by the client:
//! [`atoll_sockets::client::Client::stack_gone`].
//!
//! ```text
//!   Fine --hang-up--> HungUp --confirmed--> Gone --joined again--> Fine, or Partly: some sockets wait on
//! ```
//! A thread that waits for something tries to join again from time to time, if sockets wait for that. A call
//! that needs the stack tries at once.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use atoll_base::{Duration, Endpoint};
use atoll_ipc::command::Protocol;
use atoll_sockets::Errno;
use atoll_sockets::client::Losses;

use crate::calls;
use crate::confinement::is_confined;
use crate::control::Reason;
use crate::hang_up::{self, Demand, Status};
use crate::lock::STATE;
use crate::settings::settings;
use crate::signals::{hold_signals, release_signals};
use crate::state::own;
use crate::supervisor::SUPERVISOR;

/// The time after which the next attempt to join again comes, in nanoseconds.
static PAUSE: AtomicU64 = AtomicU64::new(0);
/// Whether a line has said that the stack is gone.
static IS_TOLD: AtomicBool = AtomicBool::new(false);
/// The errno of the last refusal that a line has told.
static REFUSAL: AtomicI32 = AtomicI32::new(0);

/// The shortest and the longest time between two attempts to join again.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// The time between two attempts to register what was refused.
const PAUSE_REFUSED: Duration = Duration::from_secs(1);

/// Goes on after the end of the stack: ends what this process had there, and joins the next one. The caller
/// holds no lock.
pub fn mend(demand: Demand) {
    // A handler that runs meanwhile could leave by siglongjmp(3).
    let held = hold_signals();
    if hang_up::status() == Status::HungUp {
        end_if_hung_up();
    }
    let is_wanted = match hang_up::status() {
        Status::Gone => demand == Demand::Now || hang_up::waits(),
        Status::Partly => true,
        Status::Fine | Status::HungUp => false,
    };
    let is_due = demand == Demand::Now && hang_up::status() == Status::Gone || hang_up::is_due();
    if is_wanted && is_due && !is_confined() && hang_up::begin_joining() {
        if join_again() {
            register_again();
        }
        hang_up::end_joining();
    }
    release_signals(held);
}

/// Ends what this process had on the stack, if the connection to the supervisor has hung up.
fn end_if_hung_up() {
    let losses = SUPERVISOR.with(|connections| {
        // Another thread may have ended it meanwhile, and has no connection then.
        if hang_up::status() != Status::HungUp {
            return None;
        }
        if !connections.own.as_ref().is_some_and(|own| hang_up::is_hung_up(own.descriptor().number())) {
            let waits = STATE.0.with(|state| !state.client.waiting_for_stack().is_empty());
            hang_up::set_status(if waits { Status::Partly } else { Status::Fine });
            return None;
        }
        let losses = STATE.0.with(|state| state.client.stack_gone());
        hang_up::watch_nothing();
        connections.own = None;
        hang_up::set_waits(losses.waiting > 0);
        PAUSE.store(PAUSE_MIN.as_nanos() as u64, Ordering::Relaxed);
        hang_up::put_off(Duration::ZERO);
        hang_up::set_status(Status::Gone);
        Some(losses)
    });
    if let Some(losses) = losses.filter(|losses| *losses != Losses::default()) {
        let and = match losses.waiting {
            0 => String::new(),
            _ if is_confined() => ", and listens on no port any more: it has confined itself".to_owned(),
            _ => ", and its sockets with a port wait until a stack of the name is up again".to_owned(),
        };
        IS_TOLD.store(true, Ordering::Relaxed);
        tell(format_args!("is gone: connections of this program are reset{and}"));
    }
}

/// Joins a stack of the name, if one is up. Returns whether the process has joined one.
fn join_again() -> bool {
    if hang_up::status() == Status::Partly {
        hang_up::put_off(PAUSE_REFUSED);
        return true;
    }
    let joined = SUPERVISOR.with(|connections| {
        let (session, clock, seed) = own(connections.attach()?);
        STATE.0.with(|state| state.client.stack_is_back(session, clock, seed));
        Ok(())
    });
    let pause = Duration::from_nanos(PAUSE.load(Ordering::Relaxed));
    PAUSE.store((pause + pause).min(PAUSE_MAX).as_nanos() as u64, Ordering::Relaxed);
    hang_up::put_off(pause);
    match joined {
        Ok(()) => true,
        Err(reason) => {
            tell_refusal(reason);
            false
        }
    }
}

/// Registers what waits for the stack, and says what came of it.
fn register_again() {
    let waiting = STATE.with(|state| state.client.waiting_for_stack());
    let mut registered = 0;
    for object in waiting {
        let result = calls::register_again(object);
        registered += usize::from(result.is_ok());
        let refused = STATE.with(|state| {
            let name = state.client.socket(object).map(|socket| (socket.protocol, socket.local));
            name.filter(|_| state.client.registered_again(object, result))
        });
        if let (Some((protocol, local)), Err(errno)) = (refused, result) {
            tell_unregistered(protocol, local, errno);
        }
    }
    let waits = STATE.with(|state| !state.client.waiting_for_stack().is_empty());
    hang_up::set_waits(waits);
    // Otherwise it has gone once more meanwhile, which other threads note under the same lock.
    SUPERVISOR.with(|_| {
        if matches!(hang_up::status(), Status::Fine | Status::Partly) {
            hang_up::set_status(if waits { Status::Partly } else { Status::Fine });
        }
    });
    hang_up::put_off(PAUSE_REFUSED);
    if IS_TOLD.swap(false, Ordering::Relaxed) {
        REFUSAL.store(0, Ordering::Relaxed);
        tell(format_args!("is up again, and this program has joined it; sockets registered: {registered}"));
    }
}

/// Says why the process cannot join again, unless that is only that there is no stack.
fn tell_refusal(reason: Reason) {
    let is_away = matches!(reason, Reason::Unreachable(libc::ENOENT | libc::ECONNREFUSED | libc::ECONNRESET));
    let errno = reason.errno().0;
    if !is_away && REFUSAL.swap(errno, Ordering::Relaxed) != errno {
        tell(format_args!("cannot be joined again by this program: {reason}"));
    }
}

fn tell_unregistered(protocol: Protocol, local: Endpoint, errno: Errno) {
    let why = match errno.0 {
        libc::EACCES => {
            "the port needs the privilege of the user who bound it, whose process has to ask first"
        }
        libc::EADDRINUSE => "another socket has the port",
        libc::EADDRNOTAVAIL => "the stack does not have the address",
        _ => "",
    };
    let why =
        if why.is_empty() { std::io::Error::from_raw_os_error(errno.0).to_string() } else { why.into() };
    let protocol = protocol.name().to_uppercase();
    let (addr, port) = (local.addr, local.port);
    tell(format_args!("is up again, but {protocol} port {port} of {addr} cannot be registered: {why}"));
}

fn tell(what: std::fmt::Arguments<'_>) {
    if let Some(path) = settings().socket.as_deref() {
        crate::complain(format_args!("libatoll: the stack at {} {what}\n", path.display()));
    }
}
