//! What happens to sockets when a process forks? pthread_atfork(3).
//!
//! Before the fork, if connections are open, the parent makes the child's connection to the supervisor and a membership in
//! each of its sessions, and marks the child as a holder of every socket: whatever the parent closes afterwards stays open for
//! the child. The child adopts them, gets a session of its own for new sockets, and registers inherited listeners with it.

use std::cell::UnsafeCell;

use atoll_ipc::control::Request;

use crate::session::{Session, connect};
use crate::state::{Body, Kind, Place, STATE, State, set_fd};

/// What the parent prepares for its child.
struct Prepared {
    channel: atoll_sys::unix::Channel,
    /// Members of the parent's sessions, in their order.
    members: Vec<Session>,
}

struct Slot(UnsafeCell<Option<Prepared>>);
// SAFETY: written and read between `prepare` and `parent` or `child`, while the state's lock is held.
unsafe impl Sync for Slot {}
static PREPARED: Slot = Slot(UnsafeCell::new(None));

/// Registers the handlers. Once, from the constructor.
pub fn install() {
    // SAFETY: three functions of the right type.
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
}

extern "C" fn prepare() {
    STATE.acquire();
    // SAFETY: the lock is held.
    let (prepared, state) = unsafe { (&mut *PREPARED.0.get(), STATE.held()) };
    let open = |state: &State| {
        state.objects.indices().into_iter().any(|object| {
            state.socket(object).is_some_and(|s| matches!(s.kind, Kind::Stream(..) | Kind::Datagram { .. }))
        })
    };
    if state.sessions.is_empty() || !open(state) {
        return;
    }
    let Some(path) = std::env::var_os("ATOLL_SOCKET") else { return };
    let Some(channel) = connect(std::path::Path::new(&path)) else { return };
    let members: Vec<Session> = state
        .sessions
        .iter()
        .map_while(|s| Session::join(&channel, &Request::Join { session: s.id, key: s.key }))
        .collect();
    if members.len() != state.sessions.len() {
        return;
    }
    for object in state.objects.indices() {
        for Place { session, replica, slot, .. } in places(state, object) {
            let port = &state.sessions[session].replicas[replica].port;
            if let Some(slot) = port.slot(slot) {
                slot.add_holder(members[session].member);
            }
        }
    }
    *prepared = Some(Prepared { channel, members });
}

extern "C" fn parent() {
    // SAFETY: the lock is held since `prepare`.
    let (prepared, state) = unsafe { (&mut *PREPARED.0.get(), STATE.held()) };
    if let Some(Prepared { channel, .. }) = prepared.take() {
        // The child's: as long as it is open anywhere, the child counts as alive.
        crate::session::disconnect(Some(channel));
        for session in &mut state.sessions {
            session.shared = true;
        }
    }
    STATE.release();
}

extern "C" fn child() {
    // SAFETY: the lock was taken in `prepare` by the thread that forked, the only one here.
    let (prepared, state) = unsafe { (&mut *PREPARED.0.get(), STATE.held()) };
    let prepared = prepared.take();
    let inherited = std::mem::take(&mut state.sessions);
    let joined = !inherited.is_empty();
    state.sleepers.clear();
    state.bell_users = Default::default();
    state.replies.clear();
    state.calls = 0;
    state.system_calls = 0;
    for fd in std::mem::take(&mut state.pool) {
        // Numbers of the pool are the program's again.
        // SAFETY: placeholders that nothing uses.
        unsafe { libc::syscall(libc::SYS_close, fd) };
    }
    // The parent's connection to the supervisor stands for the parent: it must not be held open here.
    crate::session::disconnect(state.channel.take());
    if !joined {
        STATE.reset_in_child();
        return;
    }
    let attached = match prepared {
        Some(Prepared { channel, members }) => {
            let own = Session::attach(&channel);
            state.channel = Some(channel);
            own.map(|own| (own, members))
        }
        None => {
            std::env::var_os("ATOLL_SOCKET").and_then(|path| connect(std::path::Path::new(&path))).and_then(|channel| {
                let own = Session::attach(&channel);
                state.channel = Some(channel);
                own.map(|own| (own, Vec::new()))
            })
        }
    };
    let Some((own, members)) = attached else {
        state.refused = true;
        drop_all(state);
        STATE.reset_in_child();
        return;
    };
    state.sessions.push(own);
    let kept = !members.is_empty();
    for (mut session, old) in members.into_iter().zip(&inherited) {
        session.shared = true;
        for (replica, before) in session.replicas.iter_mut().zip(&old.replicas) {
            replica.adopt_users(before);
        }
        state.sessions.push(session);
    }
    // Mappings of the inherited sessions stay as long as the parent's memory is ours: unmapped here.
    drop(inherited);
    let mut listeners = Vec::new();
    for object in state.objects.indices() {
        let Some(entry) = state.objects.get_mut(object) else { continue };
        match &mut entry.body {
            Body::Epoll(set) => {
                set.bell %= 16;
            }
            Body::Socket(socket) => match &mut socket.kind {
                Kind::Stream(place, _) if kept => place.session += 1,
                Kind::Datagram { places, .. } if kept => places.iter_mut().for_each(|place| place.session += 1),
                Kind::Listening(listener) => {
                    listener.offers.clear();
                    listener.claimed = None;
                    listener.accepting = 0;
                    listeners.push((object, listener.backlog));
                }
                _ => {}
            },
        }
    }
    let epolls: Vec<(i32, u32)> = state
        .objects
        .indices()
        .into_iter()
        .filter_map(|object| match &state.objects.get(object)?.body {
            Body::Epoll(set) => Some((set.fd, set.bell)),
            Body::Socket(_) => None,
        })
        .collect();
    for (fd, bell) in epolls {
        crate::wait::add_bells(state, fd, bell);
    }
    STATE.reset_in_child();
    for (object, backlog) in listeners {
        // The lease is ours as well, and so is the listener; both may fail only if the stack is going down.
        let _ = crate::calls::hold_again(object, backlog);
    }
}

/// The stack cannot be joined again: inherited sockets are gone.
fn drop_all(state: &mut State) {
    for (fd, _) in crate::state::objects_between(0, u32::MAX) {
        set_fd(fd, None);
    }
    for object in state.objects.indices() {
        state.objects.remove(object);
    }
}

fn places(state: &State, object: u32) -> Vec<Place> {
    match state.socket(object).map(|s| &s.kind) {
        Some(Kind::Stream(place, _)) => vec![*place],
        Some(Kind::Datagram { places, .. }) => places.clone(),
        _ => Vec::new(),
    }
}
