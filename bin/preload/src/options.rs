//! getsockopt(2) and setsockopt(2) on Atoll's sockets. Most options are in a table
//! ([`atoll_sockets::options`]); groups, and options for which replicas are asked, are here. See socket(7),
//! tcp(7), ip(7).

use std::sync::atomic::AtomicBool;

use atoll_ipc::command::Protocol;
use atoll_ipc::info::Info;
use atoll_ipc::{CONGESTION_NAMES, Command, Device, tcp_state};
use atoll_sockets::client::multicast;
use atoll_sockets::client::object::{Kind, Place, Socket};
use atoll_sockets::options::{Name, SO_BINDTOIFINDEX, Value, interface_named};
use atoll_sockets::{Errno, Failure, tcp_info};

use crate::groups;
use crate::lock::STATE;
use crate::stats;
use crate::transfer;
use crate::wait::block;

/// linux/tcp.h.
const TCP_CC_INFO: i32 = 26;

/// Sets an option: setsockopt(2).
pub fn set(object: u32, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
    let _call = stats::Call::new(stats::OPTION);
    if multicast::is_option(level, name) {
        return groups::set(object, level, name, value);
    }
    check_device(object, (level, name), value)?;
    let result = STATE.until_turn(|state| state.client.set_option(object, level, name, value));
    if result.is_ok() && (level, name) == (libc::SOL_UDP, libc::UDP_CORK) {
        transfer::uncork(object);
    }
    if result.is_err() && (level, name) == (libc::IPPROTO_IP, libc::IP_HDRINCL) {
        static IS_TOLD: AtomicBool = AtomicBool::new(false);
        crate::complain_once(
            &IS_TOLD,
            format_args!("libatoll: the stack writes the headers of IP itself (IP_HDRINCL fails)\n"),
        );
    }
    result
}

/// Fails as Linux does for a socket that is bound to a device and is to be bound to another: that needs
/// CAP_NET_RAW (sock_bindtoindex_locked).
fn check_device(object: u32, option: (i32, i32), value: &[u8]) -> Result<(), Errno> {
    match option {
        (libc::SOL_SOCKET, libc::SO_BINDTODEVICE) => interface_named(value).map(|_| ())?,
        (libc::SOL_SOCKET, SO_BINDTOIFINDEX) if value.len() >= size_of::<i32>() => {}
        _ => return Ok(()),
    }
    let device = STATE.with(|state| state.client.socket(object).map(|socket| socket.options.device()));
    let is_bound = device.is_some_and(|device| device != Device::None);
    if is_bound && !atoll_sys::users::may_use_raw_sockets() { Err(Errno::EPERM) } else { Ok(()) }
}

/// Returns the octets of an option's value: getsockopt(2).
pub fn get(object: u32, level: i32, name: i32) -> Result<Value, Errno> {
    let _call = stats::Call::new(stats::OPTION);
    match (level, name) {
        (libc::IPPROTO_TCP, libc::TCP_INFO) => return info_value(object),
        (libc::IPPROTO_TCP, TCP_CC_INFO) => return congestion_value(object),
        // Only the replica knows what the path allows.
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => {
            if let Some(info) = connection_info(object) {
                return Ok(Value::of_int(info.snd_mss as u32));
            }
        }
        (libc::IPPROTO_IP, libc::IP_MTU) | (libc::IPPROTO_IPV6, libc::IPV6_MTU) => {
            if let Some(info) = path_info(object, level) {
                return Ok(Value::of_int(info.pmtu as u32));
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
    ask(object, |socket| match &socket.kind {
        Kind::Stream(place, _) => Some(*place),
        _ => None,
    })
}

/// Asks a replica about the path to the peer of a connection or of a datagram socket, for an option of
/// `level`. Returns `None` as [`connection_info`] does, and if there is no peer.
fn path_info(object: u32, level: i32) -> Option<Info> {
    ask(object, |socket| match &socket.kind {
        _ if level == libc::IPPROTO_IPV6 && !socket.v6 => None,
        Kind::Stream(place, _) => Some(*place),
        Kind::Datagram(datagram) if datagram.connected => datagram.places.first().copied(),
        _ => None,
    })
}

/// Asks the replica of the place that `choose` names, if the session is this process's own.
fn ask(object: u32, choose: impl FnOnce(&Socket) -> Option<Place>) -> Option<Info> {
    let (place, token) = STATE.with(|state| {
        // The answer would go to the session's owner.
        let place = state.client.socket(object).and_then(choose).filter(|place| place.session == 0)?;
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

/// Returns what is queued of a connection's octets to the peer: those that it has not acknowledged
/// (`SIOCOUTQ`), or those that were not sent (`SIOCOUTQNSD`). As on Linux, a FIN is one.
pub fn queued(object: u32, unsent: bool) -> u64 {
    let known = STATE.with(|state| {
        state.client.drain();
        let (stream, ..) = state.client.stream(object).filter(|(stream, ..)| !stream.is_connecting())?;
        Some((stream.unacknowledged(), stream.is_ending()))
    });
    let Some((unacknowledged, is_ending)) = known else { return 0 };
    if !unsent && !is_ending {
        return unacknowledged;
    }
    // Only the replica knows.
    let Some(info) = connection_info(object) else { return if unsent { 0 } else { unacknowledged } };
    let waits = [tcp_state::FIN_WAIT_1, tcp_state::CLOSING, tcp_state::LAST_ACK];
    let has_fin = waits.iter().any(|state| u64::from(*state) == info.state);
    match unsent {
        true => info.notsent_bytes + u64::from(has_fin && info.notsent_bytes > 0),
        false => unacknowledged + u64::from(has_fin),
    }
}

/// Returns the value of `TCP_CC_INFO`, of which only BBR has one, as on Linux (bbr_get_info).
fn congestion_value(object: u32) -> Result<Value, Errno> {
    let has_some = STATE.with(|state| {
        state.client.check_level(object, libc::IPPROTO_TCP)?;
        let socket = state.client.socket(object).ok_or(Errno::ENOTSOCK)?;
        Ok(CONGESTION_NAMES.get(socket.options.value(Name::Congestion) as usize) == Some(&"bbr"))
    })?;
    if !has_some {
        return Ok(Value::of(&[]));
    }
    let info = connection_info(object).unwrap_or_default();
    Ok(Value::of(&tcp_info::bbr_info(&info)))
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
