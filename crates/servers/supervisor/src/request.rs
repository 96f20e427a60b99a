//! Turns a client's packet, as bytes and a number of descriptors, into a request, or refuses it.

use atoll_ipc::control::Request;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::config::BalanceRules;
use crate::rights::Door;

/// A request of the command line to a supervisor, as a JSON object: `{"cmd":"status"}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cmd", rename_all = "snake_case")]
pub enum CliRequest {
    /// Asks for everything that `atoll status` shows. The answer is a sequence of [`crate::ReportPart`]s,
    /// `Done` last.
    Status,
    /// Asks for the sockets of all replicas. The answer is a sequence of packets with `rows`, then
    /// `ReportPart::Done`.
    Ss,
    /// Changes some, or none, of the rules by which connections are given to acceptors (P5). The answer is
    /// `ReportPart::Balance` with the rules that hold now, then `ReportPart::Done`.
    Balance(BalanceRules),
    /// Replaces all servers by those of another build. The answer is a sequence of `ReportPart::Progress`,
    /// then `ReportPart::Done`, or `ReportPart::Error` if the old build is back.
    Upgrade {
        /// The absolute path of the build's executable.
        path: String,
    },
    /// Sets the number of processes for the replicas, or lets it follow the load. The answer, once that many
    /// exist, is `ReportPart::Scaling`, then `ReportPart::Done`.
    Scale {
        /// The number of processes; if absent, it follows the load.
        processes: Option<u8>,
    },
    /// Moves these replicas to this process for replicas. The answer, once they are there, is that of
    /// `Scale`.
    Move {
        /// The numbers of the replicas.
        replicas: Vec<u8>,
        /// The number of the process.
        to: u8,
    },
    /// Ends the stack. The answer is `ReportPart::Done`; the connection closes when the stack is gone.
    Down,
    /// Joins this stack and another one, whose supervisor asks, by a shared-memory link. The connection stays
    /// open while the other stack lives. The answer is `{"joined":{...}}` with the link's descriptors.
    JoinLink {
        /// The stack that asks.
        from: String,
        /// The `LAYOUT_VERSION` of the stack that asks.
        layout_version: u32,
    },
}

/// A packet that was understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Incoming {
    /// The request of an application.
    Application(Request),
    /// The request of the command line or of another stack.
    Cli(CliRequest),
}

/// Why a packet is refused; the text is for the client that sent it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RequestError {
    /// The JSON object is no request of the command line; the text says what is wrong with it.
    #[error("not a request: {0}")]
    Json(String),
    /// The packet is no request of an application.
    #[error("not a request")]
    Undecodable,
    /// This number of descriptors came with a request that takes none.
    #[error("{0} descriptors came with a request that takes none")]
    Descriptors(usize),
    /// A request of an application came through the socket for administration.
    #[error("not a request: applications have a socket of their own")]
    ApplicationAtAdministration,
    /// A request of the command line came through the socket for applications.
    #[error(
        "not over this connection, which is for applications: administration has a socket of its own \
         (NAME.admin)"
    )]
    CliAtApplications,
    /// Only supervisors make this request, to replicas.
    #[error("a request that only supervisors make")]
    OfSupervisors,
}

/// Decodes a client's packet.
///
/// `door` is the socket that the client's connection came through, and `descriptors` the number of
/// descriptors that came with the packet. No request of a client carries any.
pub fn classify(door: Door, bytes: &[u8], descriptors: usize) -> Result<Incoming, RequestError> {
    let none_came = || match descriptors {
        0 => Ok(()),
        count => Err(RequestError::Descriptors(count)),
    };
    match (door, bytes.first() == Some(&b'{')) {
        (Door::Administration, true) => {
            let request =
                serde_json::from_slice(bytes).map_err(|error| RequestError::Json(error.to_string()))?;
            none_came()?;
            Ok(Incoming::Cli(request))
        }
        (Door::Administration, false) => Err(RequestError::ApplicationAtAdministration),
        (Door::Applications, true) => Err(RequestError::CliAtApplications),
        (Door::Applications, false) => {
            none_came()?;
            match Request::decode(bytes) {
                Ok(
                    request @ (Request::Attach { .. }
                    | Request::Join { .. }
                    | Request::Leave { .. }
                    | Request::Connect
                    | Request::ListSockets { .. }
                    | Request::Vouch { .. }),
                ) => Ok(Incoming::Application(request)),
                Ok(_) => Err(RequestError::OfSupervisors),
                Err(_) => Err(RequestError::Undecodable),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use atoll_base::Rng;

    use super::*;

    #[test]
    fn requests_of_applications_and_of_the_command_line_are_told_apart() {
        let attach = Request::Attach { layout_version: 1, room_mib: 0 };
        assert_eq!(classify(Door::Applications, &attach.encode(), 0), Ok(Incoming::Application(attach)));
        assert_eq!(
            classify(Door::Administration, br#"{"cmd":"status"}"#, 0),
            Ok(Incoming::Cli(CliRequest::Status))
        );
        assert_eq!(
            classify(Door::Administration, br#"{"cmd":"balance"}"#, 0),
            Ok(Incoming::Cli(CliRequest::Balance(BalanceRules::default())))
        );
        let rules = BalanceRules { tariff: Some(3), watermarks: Some([100, 50]), ..BalanceRules::default() };
        let text = serde_json::to_string(&CliRequest::Balance(rules.clone())).unwrap();
        assert_eq!(text, r#"{"cmd":"balance","tariff":3,"watermarks":[100,50]}"#);
        assert_eq!(
            classify(Door::Administration, text.as_bytes(), 0),
            Ok(Incoming::Cli(CliRequest::Balance(rules)))
        );
        for (text, processes) in [
            (&br#"{"cmd":"scale","processes":4}"#[..], Some(4)),
            (br#"{"cmd":"scale","processes":null}"#, None),
        ] {
            assert_eq!(
                classify(Door::Administration, text, 0),
                Ok(Incoming::Cli(CliRequest::Scale { processes }))
            );
        }
        let join = CliRequest::JoinLink { from: "a".into(), layout_version: 1 };
        assert_eq!(
            classify(Door::Administration, serde_json::to_string(&join).unwrap().as_bytes(), 0),
            Ok(Incoming::Cli(join))
        );
    }

    #[test]
    fn what_clients_may_not_say_is_refused() {
        for request in [Request::Stop, Request::SessionGone { session: 1 }] {
            assert_eq!(classify(Door::Applications, &request.encode(), 0), Err(RequestError::OfSupervisors));
        }
        let attach = Request::Attach { layout_version: 1, room_mib: 0 }.encode();
        assert_eq!(classify(Door::Applications, &attach, 1), Err(RequestError::Descriptors(1)));
        let upgrade = br#"{"cmd":"upgrade","path":"atoll"}"#;
        assert!(
            classify(Door::Administration, upgrade, 0).is_ok()
                && classify(Door::Administration, upgrade, 1).is_err()
        );
        let moving = CliRequest::Move { replicas: vec![1, 3], to: 0 };
        assert_eq!(
            classify(Door::Administration, br#"{"cmd":"move","replicas":[1,3],"to":0}"#, 0),
            Ok(Incoming::Cli(moving))
        );
        for bytes in [
            &b""[..],
            b"{",
            b"{}",
            b"{\"cmd\":\"steal\"}",
            b"{\"cmd\":\"scale\",\"processes\":-1}",
            b"{\"cmd\":\"move\",\"replicas\":[256],\"to\":0}",
            b"{\"cmd\":\"balance\",\"tarif\":2}",
            &[1; 55],
            &[1; 57],
        ] {
            for door in [Door::Applications, Door::Administration] {
                assert!(classify(door, bytes, 0).is_err(), "{bytes:?}");
            }
        }
    }

    /// A connection keeps its purpose, whichever process has inherited it.
    #[test]
    fn applications_and_administration_share_no_connection() {
        for request in [
            CliRequest::Status,
            CliRequest::Ss,
            CliRequest::Down,
            CliRequest::Upgrade { path: "/bin/sh".into() },
            CliRequest::Scale { processes: Some(1) },
            CliRequest::JoinLink { from: "a".into(), layout_version: 1 },
        ] {
            let text = serde_json::to_vec(&request).unwrap();
            assert_eq!(classify(Door::Administration, &text, 0), Ok(Incoming::Cli(request)));
            assert_eq!(classify(Door::Applications, &text, 0), Err(RequestError::CliAtApplications));
        }
        for request in [
            Request::Attach { layout_version: 1, room_mib: 0 },
            Request::Join { session: 1, key: 2 },
            Request::Leave { session: 1 },
            Request::Connect,
        ] {
            assert_eq!(
                classify(Door::Applications, &request.encode(), 0),
                Ok(Incoming::Application(request))
            );
            assert_eq!(
                classify(Door::Administration, &request.encode(), 0),
                Err(RequestError::ApplicationAtAdministration)
            );
        }
    }

    #[test]
    fn noise_is_never_understood_as_a_command() {
        let mut rng = Rng::new(9);
        for _ in 0..20_000 {
            let len = rng.below(100) as usize;
            let mut bytes: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
            if let (Some(first), 0) = (bytes.first_mut(), rng.below(3)) {
                *first = b'{';
            }
            for door in [Door::Applications, Door::Administration] {
                if let Ok(Incoming::Cli(request)) = classify(door, &bytes, rng.below(2) as usize) {
                    panic!("{bytes:?} became {request:?}");
                }
            }
        }
    }
}
