//! getsockopt(2) and setsockopt(2) on Atoll's sockets. Most options are in a table
//! ([`atoll_sockets::options`]); groups, and options for which replicas are asked, are here. See socket(7),
//! tcp(7), ip(7).

use std::sync::atomic::AtomicBool;

use atoll_ipc::command::Protocol;
use atoll_ipc::info::Info;
use atoll_ipc::{Command, tcp_state};
use atoll_sockets::client::multicast;
use atoll_sockets::client::object::{Kind, Place};
use atoll_sockets::options::Value;
use atoll_sockets::{Errno, Failure, tcp_info};

use crate::groups;
use crate::lock::STATE;
use crate::stats;
use crate::wait::block;

/// Sets an option: setsockopt(2).
pub fn set(object: u32, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
    let _call = stats::Call::new(stats::OPTION);
    if multicast::is_option(level, name) {
        return groups::set(object, level, name, value);
    }
    let result = STATE.until_turn(|state| state.client.set_option(object, level, name, value));
    if result.is_err() && (level, name) == (libc::IPPROTO_IP, libc::IP_HDRINCL) {
        static IS_TOLD: AtomicBool = AtomicBool::new(false);
        crate::complain_once(
            &IS_TOLD,
            format_args!("libatoll: the stack writes the headers of IP itself (IP_HDRINCL fails)\n"),
        );
    }
    result
}

/// Returns the octets of an option's value: getsockopt(2).
pub fn get(object: u32, level: i32, name: i32) -> Result<Value, Errno> {
    let _call = stats::Call::new(stats::OPTION);
    match (level, name) {
        (libc::IPPROTO_TCP, libc::TCP_INFO) => return info_value(object),
        // Only the replica knows what the path allows.
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => {
            if let Some(info) = connection_info(object) {
                return Ok(Value::of_int(info.snd_mss as u32));
            }
        }
        (libc::SOL_SOCKET, libc::SO_ERROR) => {
            return STATE.with(|state| {
                state.client.socket(object).ok_or(Errno::ENOTSOCK)?;
                Ok(Value::of_int(state.client.take_error(object).map_or(0, |errno| errno.0) as u32))
            });
        }
        _ => {}
    }
    STATE.with(|state| match multicast::is_option(level, name) {
        true => state.client.group_option(object, level, name),
        false => state.client.option(object, level, name),
    })
}

/// Asks the replica about a connection. Returns `None` if the object is no connection, if its session is
/// another process's, or if the replica does not answer.
fn connection_info(object: u32) -> Option<Info> {
    let (place, token) = STATE.with(|state| {
        let socket = state.client.socket(object)?;
        // The answer would go to the session's owner.
        let Kind::Stream(place, _) = &socket.kind else { return None };
        let place = Some(*place).filter(|place| place.session == 0)?;
        let token = state.client.new_token();
        let Place { replica, slot, generation, .. } = place;
        state.client.ask(replica, token, vec![Command::Info { token, slot, generation }]);
        Some((place, token))
    })?;
    let known = block(None, Some(atoll_base::Duration::from_secs(2)), |state| {
        let cause = state.client.answer(token).ok_or(Failure::WouldBlock)?.cause;
        let replica =
            state.client.sessions().get(place.session).and_then(|s| s.replicas().get(place.replica));
        let replica = replica.filter(|_| cause == atoll_ipc::Cause::None);
        Ok(replica.map(|replica| Info::load(replica.port().memory(), atoll_ipc::arena::INFO)))
    });
    STATE.with(|state| state.client.answered(token));
    known.ok().flatten()
}

/// Returns the value of `TCP_INFO`.
fn info_value(object: u32) -> Result<Value, Errno> {
    let state = STATE.with(|state| match state.client.socket(object).map(|s| (&s.kind, s.protocol)) {
        Some((_, Protocol::Icmp | Protocol::Raw | Protocol::Udp)) => Err(Errno::EOPNOTSUPP),
        Some((Kind::Listening(_), _)) => Ok(tcp_state::LISTEN),
        _ => Ok(match state.client.stream(object) {
            Some((stream, ..)) if !stream.is_closed() => tcp_state::ESTABLISHED,
            _ => tcp_state::CLOSED,
        }),
    })?;
    // Without an answer only the state is known.
    let info = connection_info(object).unwrap_or(Info { state: state.into(), ..Info::default() });
    Ok(Value::of(&tcp_info::tcp_info(&info)))
}
