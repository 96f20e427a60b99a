//! Asks the supervisor without holding up the other threads of the program.
//!
//! A supervisor that is stopped, or is being replaced, answers late or never, while its replicas go on
//! serving. So a thread never waits for it while it holds the lock of the state ([`crate::lock`]):
//!
//! ```text
//!   the state's lock    what the question says
//!   SUPERVISOR          the question, and at most five seconds for each answer; who asks next waits here
//!   the state's lock    the answer is compared with what has become of the state meanwhile
//! ```
//! One question is under way at a time, so no thread reads the answer to another one's. Where both locks are
//! held, [`SUPERVISOR`] was taken first, and the state's for a moment: past [`crate::lock::StateLock::with`],
//! which may wait for replicas and run signal handlers.
//!
//! What may change while a question is under way:
//! * The socket that it is about is closed: the call has pinned it, as the kernel keeps a file open during a
//!   call, so its number names no other socket before the call ends.
//! * Another thread forks: it waits for [`SUPERVISOR`], and holds it until the child exists
//!   ([`crate::process`]). So the child has no copy of a connection that its parent was just given, which
//!   would keep alive what that stands for, and finds no answer to a question of its parent.
//! * Another thread executes a program: nothing of this process is left, and the program has a connection of
//!   its own.

use atoll_ipc::control::Refusal;
use atoll_sockets::Errno;
use atoll_sockets::client::object::Kind;
use std::sync::atomic::Ordering;

use crate::control::{Control, Reason};
use crate::futex_lock::FutexLock;
use crate::hang_up;
use crate::lock::STATE;
use crate::platform::Session;
use crate::settings::settings;
use crate::state::{SHUT_IN, State, is_away, note_user, own};
use crate::under_way::{Pinned, Ticket};

/// The connections of this process to the supervisor, behind the lock that a thread holds while it asks.
pub static SUPERVISOR: FutexLock<Connections> =
    FutexLock::new(Connections { own: None, kept: None, kept_by: 0 });

/// The connections of a process to the supervisor.
pub struct Connections {
    /// The connection that stands for this process, once it has joined a stack.
    pub own: Option<Control>,
    /// A connection that stands for no process yet, for a time when the socket's path is not visible any
    /// more.
    kept: Option<Control>,
    /// The process that has it. A child of vfork(2) keeps one in the memory of its parent, which has no such
    /// descriptor.
    kept_by: u32,
}

impl Connections {
    /// Keeps a connection for the time when the socket's path is not visible any more.
    pub fn keep(&mut self, connection: Option<Control>) {
        (self.kept, self.kept_by) = (connection, std::process::id());
    }

    /// Returns the connection that this process keeps.
    pub fn kept(&self) -> Option<&Control> {
        self.kept.as_ref().filter(|_| self.kept_by == std::process::id())
    }

    /// Takes the connection that this process keeps.
    pub fn take_kept(&mut self) -> Option<Control> {
        self.forget_others();
        self.kept.take()
    }

    /// Forgets a connection that a child has left here.
    pub fn forget_others(&mut self) {
        if self.kept_by != std::process::id()
            && let Some(kept) = self.kept.take()
        {
            kept.disown();
        }
    }

    /// Opens a connection for another process, and asks over it what `question` does: by the socket's path
    /// or, if that is not visible, or is not for this user, by a connection that exists.
    pub fn another<R>(
        &self,
        question: impl Fn(&Control) -> Result<R, Reason>,
    ) -> Result<(Control, R), Reason> {
        let asked = |control: Control| question(&control).map(|answer| (control, answer));
        let reason = match Control::connect().map(asked) {
            // A process that was let in stays in when it becomes another user, and so do its heirs.
            Ok(Err(reason @ Reason::Refused(Refusal::Permission))) | Err(reason) => reason,
            Ok(answer) => return answer,
        };
        match self.own.as_ref().or(self.kept()) {
            Some(control) => control.another().and_then(asked),
            None => Err(reason),
        }
    }

    /// Returns a connection for a child or the next program if that cannot connect by itself; `None` if it
    /// can, or if no connection can be made.
    pub fn for_next(&self) -> Option<Control> {
        if !is_away() {
            return None;
        }
        self.kept().or(self.own.as_ref())?.another().ok()
    }

    /// Connects to the stack that `ATOLL_SOCKET` names, and creates a session there.
    pub fn attach(&mut self) -> Result<Session, Reason> {
        if settings().socket.is_none() {
            return Err(Reason::Unreachable(libc::ENOENT));
        }
        let attach = |control: Control| Ok((control.attach()?, control));
        // This comes first: what is forgotten must not have the number of a descriptor that is made here.
        let kept = self.take_kept();
        let joined = Control::connect().and_then(attach);
        let (session, control) = match (joined, kept) {
            (Ok(joined), _) => joined,
            (Err(_), Some(kept)) => attach(kept)?,
            (Err(reason), None) => return Err(reason),
        };
        hang_up::watch(control.descriptor().number());
        self.own = Some(control);
        note_user();
        Ok(session)
    }
}

/// Asks the supervisor over the connection that stands for this process. Fails with ENETDOWN if this process
/// has not joined a stack. The caller holds no lock.
pub fn ask<R>(question: impl FnOnce(&Control) -> Result<R, Reason>) -> Result<R, Errno> {
    SUPERVISOR
        .with(|connections| connections.own.as_ref().map(question))
        .ok_or(Errno::ENETDOWN)?
        .map_err(Reason::errno)
}

/// Joins the stack that `ATOLL_SOCKET` names, once. Returns whether there is one. The caller holds no lock.
pub fn join() -> bool {
    hang_up::before_use();
    if let Some(has_joined) = STATE.with(|state| state.has_joined()) {
        return has_joined;
    }
    SUPERVISOR.with(|connections| {
        // Another thread may have joined while this one waited for the lock.
        if let Some(has_joined) = STATE.0.with(|state| state.has_joined()) {
            return has_joined;
        }
        let reason = match connections.attach().map(own) {
            Ok((session, clock, seed)) => {
                STATE.0.with(|state| state.client.adopt(session, clock, seed));
                return true;
            }
            Err(reason) => reason,
        };
        STATE.0.with(|state| state.refused = Some(reason));
        if let Some(path) = settings().socket.as_deref() {
            let instead = match settings().kernel_network.has_rest() {
                true => "it uses the kernel's sockets",
                false => "its sockets fail (atoll run --kernel-network would let it use the kernel's)",
            };
            let path = path.display();
            crate::complain(format_args!(
                "libatoll: this program cannot join the stack at {path}: {reason}; {instead}\n"
            ));
        }
        false
    })
}

/// Runs `f` with the state, and whether the socket `object` is still undecided between kernel and stack. Then
/// the process joins its stack first, unless it has, or was refused. The caller holds no lock.
pub fn with_choice<R>(object: u32, f: impl FnOnce(&mut State, bool) -> R) -> R {
    hang_up::before_use();
    let is_undecided =
        |state: &State| state.client.socket(object).is_some_and(|socket| matches!(socket.kind, Kind::Fresh));
    let mut ticket = Ticket::outer(&object);
    let mut f = Some(f);
    let mut first = |state: &mut State| {
        let undecided = is_undecided(state);
        if undecided && state.has_joined().is_none() {
            state.begin_call(&mut ticket, || Pinned::One(Some(object)));
            return None;
        }
        f.take().map(|f| f(state, undecided))
    };
    if let Some(result) = STATE.with(&mut first) {
        return result;
    }
    join();
    STATE.with(|state| {
        state.end_call(ticket);
        let undecided = is_undecided(state);
        f.take().expect("it was not run")(state, undecided)
    })
}

/// Prepares for a change of this process's user: the supervisor certifies who has made the sockets that have
/// no port yet. The caller holds no lock.
pub fn before_user_changes() {
    let lacks_pass = |state: &State, object: u32| {
        let socket = state.client.socket(object)?;
        (matches!(socket.kind, Kind::Fresh) && socket.pass.is_none()).then_some(socket.protocol)
    };
    let objects = STATE.with(|state| {
        let indices = state.client.indices().into_iter();
        let objects: Vec<_> = indices
            .filter_map(|object| {
                Some((object, lacks_pass(state, object)?, state.client.rng().next_u64() | 1))
            })
            .collect();
        objects
    });
    if objects.is_empty() {
        return;
    }
    SUPERVISOR.with(|connections| {
        for (object, protocol, lease) in objects {
            match connections.own.as_ref().map(|control| control.vouch(lease, protocol, 0)) {
                Some(Ok(pass)) => STATE.0.with(|state| {
                    // A socket that has its number by now was made by the same user.
                    if lacks_pass(state, object) == Some(protocol)
                        && let Some(socket) = state.client.socket_mut(object)
                    {
                        socket.pass = Some(pass);
                    }
                }),
                Some(Err(Reason::Refused(_))) => {}
                // The supervisor is gone, or does not answer: they belong to the user that binds them.
                Some(Err(Reason::Unreachable(_))) | None => break,
            }
        }
    });
}

/// Connects while the socket is visible, because the process is about to change its view. The caller holds no
/// lock.
pub fn keep_connection() {
    if STATE.with(|state| state.has_joined().is_some()) {
        return;
    }
    SUPERVISOR.with(|connections| {
        if connections.kept().is_none() && STATE.0.with(|state| state.has_joined().is_none()) {
            connections.forget_others();
            connections.keep(Control::connect().ok());
            SHUT_IN.store(connections.kept().is_some(), Ordering::Relaxed);
        }
    });
}
