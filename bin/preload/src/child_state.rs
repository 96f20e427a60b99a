//! Prepares what a process leaves to its child, or to the program that takes its place.
//!
//! Before fork(2) or execve(2) the process prepares everything for the next one, while it still holds the
//! sockets itself: a connection to the supervisor that will stand for the next process; a session of the next
//! process's own, in which all bound ports and listeners are registered; and membership in each session that
//! has open connections, as a holder of each. So nothing can end in between, whatever the process closes
//! afterwards.

use std::sync::atomic::{AtomicBool, Ordering};

use atoll_base::Duration;
use atoll_ipc::control::Request;
use atoll_ipc::{Cause, Command, Event, LAYOUT_VERSION};
use atoll_sockets::client::object::{Kind, Place};
use atoll_sockets::options::Name;

use crate::control::{CONTROL, Control, Joined, Reason};
use crate::state::{State, own};

/// The time that a replica has to register a listener of the next process.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Writes once to standard error why sockets cannot be inherited: the process may have changed to a user
/// without access.
fn say_why(reason: Reason) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        crate::complain(format_args!(
            "libatoll: children and the next program cannot have this program's sockets, nor the stack: {reason}\n"
        ));
    }
}

/// What is prepared for the next process.
#[derive(Debug)]
pub struct ChildState {
    pub control: Control,
    /// The next process's own session.
    pub own: Joined,
    /// The sessions that the next process joins: the index of each here, and the next process's view of it.
    pub joined: Vec<(usize, Joined)>,
    /// The slots that the next process holds.
    places: Vec<Place>,
}

impl ChildState {
    /// Prepares for a next process that gets `objects`. `keep` says that it gets them over exec, and so needs
    /// the descriptors. Returns `None` if the supervisor refuses or cannot be reached.
    pub fn prepare(state: &mut State, objects: &[u32], keep: bool) -> Option<ChildState> {
        let joined = state.connect_another().and_then(|control| {
            let own = control.ask(&Request::Attach { layout_version: LAYOUT_VERSION }, keep)?;
            Ok(ChildState { control, own, joined: Vec::new(), places: Vec::new() })
        });
        let mut child_state = match joined {
            Ok(child_state) => child_state,
            Err(reason) => {
                say_why(reason);
                return None;
            }
        };
        for object in objects {
            let places =
                state.client.socket(*object).map(|socket| socket.places().to_vec()).unwrap_or_default();
            for place in places {
                if !child_state.hold(state, place, keep) {
                    child_state.disown(state);
                    return None;
                }
            }
            child_state.register(state, *object);
        }
        Some(child_state)
    }

    /// Makes the next process a holder of a slot. Returns whether that succeeded.
    fn hold(&mut self, state: &mut State, place: Place, keep: bool) -> bool {
        let Some(session) = state.client.sessions().get(place.session) else { return false };
        let member = match self.joined.iter().find(|(index, _)| *index == place.session) {
            Some((_, joined)) => joined.session.member,
            None => {
                let request = Request::Join { session: session.id, key: session.key };
                let Ok(mut joined) = self.control.ask(&request, keep) else { return false };
                joined.session.shared = true;
                let member = joined.session.member;
                self.joined.push((place.session, joined));
                member
            }
        };
        if !state.client.add_holder(place, member) {
            return false;
        }
        self.places.push(place);
        true
    }

    /// Registers a bound port, and a listener, in the next process's own session.
    fn register(&mut self, state: &mut State, object: u32) {
        let token = state.client.new_token();
        let Some(socket) = state.client.socket(object).filter(|socket| socket.lease != 0) else { return };
        let (lease, local, protocol) = (socket.lease, socket.local, socket.protocol);
        let [reuse_addr, reuse_port, v6_only] =
            [Name::ReuseAddr, Name::ReusePort, Name::V6Only].map(|name| socket.options.is_on(name));
        let defer_accept = socket.options.defer_accept_seconds();
        let replicas = self.own.session.count();
        let authority = usize::from(local.port) % replicas;
        let shown = socket.show_all(replicas);
        let bind = Command::Bind { token, lease, protocol, local, reuse_addr, reuse_port, v6_only };
        self.ask(state, authority, token, &bind);
        if let Kind::Listening(listener) = &socket.kind {
            let backlog = listener.backlog;
            for i in 0..replicas {
                let listen =
                    Command::Listen { token, lease, local, backlog, reuse_port, defer_accept, v6_only };
                let replica = (authority + i) % replicas;
                shown[replica].iter().for_each(|show| self.own.session.push(replica, show));
                self.ask(state, replica, token, &listen);
            }
        }
    }

    /// Sends a command from the next process's session, and waits for the answer there. Returns whether the
    /// command succeeded.
    fn ask(&mut self, state: &State, replica: usize, token: u32, command: &Command) -> bool {
        self.own.session.push(replica, command);
        let deadline = state.now() + ANSWER_TIMEOUT;
        loop {
            let port = self.own.session.replicas_mut()[replica].port_mut();
            while let Some(event) = port.next_event() {
                port.publish();
                match event {
                    Event::BindReply { token: of, cause, .. }
                    | Event::ListenReply { token: of, cause, .. }
                        if of == token =>
                    {
                        return cause == Cause::None;
                    }
                    _ => {}
                }
            }
            if state.now() >= deadline {
                return false;
            }
            // The ring may have been full.
            self.own.session.send_waiting(state.now());
            atoll_sys::sched::yield_now();
        }
    }

    /// Removes the next process as a holder, because there will be none.
    pub fn disown(self, state: &State) {
        for place in &self.places {
            let joined = self.joined.iter().find(|(index, _)| *index == place.session);
            if let Some((_, joined)) = joined {
                state.client.remove_holder(*place, joined.session.member);
            }
        }
    }

    /// Returns the index, in the next process's list of sessions, of a session of this process.
    pub fn index_of(&self, session: usize) -> Option<usize> {
        self.joined.iter().position(|(index, _)| *index == session).map(|at| at + 1)
    }

    /// Makes the child of a fork the prepared process: everything of the parent that it does not share is
    /// dropped.
    pub fn take_over(self, state: &mut State) {
        CONTROL.with(|own| *own = Some(self.control));
        let joined = self.joined.into_iter().map(|(index, joined)| (index, joined.session)).collect();
        // Arenas and doorbells of the parent are unmapped and closed here; the child has its own views of
        // them.
        drop(state.client.become_child(own(self.own.session), joined));
    }
}
