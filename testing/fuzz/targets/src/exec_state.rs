//! Does what a process has left for the next program, or sent beside a socket, decode without harm, and to a
//! state that is written again?

use atoll_sockets::client::exec_state::{ExecState, PassedSocket};
use atoll_sockets::client::object::Object;
use atoll_sockets::client::simulated::Simulated;

/// Decodes the contents of a memfd that `ATOLL_INHERIT` names, and of one that came over a unix socket.
pub fn exec_state(data: &[u8]) {
    if let Ok(state) = ExecState::decode(data) {
        let written = state.encode().expect("no longer than it was");
        assert_eq!(ExecState::decode(&written).as_ref(), Ok(&state));
        for inherited in state.sockets {
            let places = inherited.socket.places().to_vec();
            assert!(places.iter().all(|place| place.session < state.sessions.len()));
            let _: Object<Simulated> = inherited.socket.into_object(1);
        }
    }
    if let Ok(passed) = PassedSocket::decode(data) {
        assert!(passed.socket.places().iter().all(|place| place.session == 0));
        let written = passed.encode().expect("no longer than it was");
        assert_eq!(PassedSocket::decode(&written), Ok(passed));
    }
}
