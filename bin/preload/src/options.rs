//! getsockopt(2) and setsockopt(2) on Atoll's sockets. Most options are in a table
//! ([`atoll_sockets::options`]); groups, and options for which replicas are asked, are here. See socket(7),
//! tcp(7), ip(7).

use atoll_ipc::Command;
use atoll_ipc::command::Protocol;
use atoll_ipc::info::Info;
use atoll_sockets::client::multicast;
use atoll_sockets::client::object::{Kind, Place};
use atoll_sockets::options::Value;
use atoll_sockets::{Errno, Failure};

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
    STATE.with(|state| state.client.set_option(object, level, name, value))
}

/// Returns the octets of an option's value: getsockopt(2).
pub fn get(object: u32, level: i32, name: i32) -> Result<Value, Errno> {
    let _call = stats::Call::new(stats::OPTION);
    match (level, name) {
        (libc::IPPROTO_TCP, libc::TCP_INFO) => return tcp_info(object),
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

/// These are states of Linux's net/tcp_states.h.
const ESTABLISHED: u64 = 1;
const CLOSE: u64 = 7;
const LISTEN: u64 = 10;

/// Returns `struct tcp_info` of linux/tcp.h.
fn tcp_info(object: u32) -> Result<Value, Errno> {
    let state = STATE.with(|state| match state.client.socket(object).map(|s| (&s.kind, s.protocol)) {
        Some((_, Protocol::Udp)) => Err(Errno::EOPNOTSUPP),
        Some((Kind::Listening(_), _)) => Ok(LISTEN),
        _ => Ok(match state.client.stream(object) {
            Some((stream, ..)) if !stream.is_closed() => ESTABLISHED,
            _ => CLOSE,
        }),
    })?;
    // Without an answer only the state is known.
    let info = connection_info(object).unwrap_or(Info { state, ..Info::default() });
    let mut bytes = Vec::with_capacity(232);
    bytes.extend([
        info.state as u8,
        info.ca_state as u8,
        info.retransmits as u8,
        info.probes as u8,
        info.backoff as u8,
        info.options as u8,
        (info.snd_wscale as u8 & 15) | (info.rcv_wscale as u8) << 4,
        0,
    ]);
    for word in [
        info.rto,
        info.ato,
        info.snd_mss,
        info.rcv_mss,
        info.unacked,
        info.sacked,
        info.lost,
        info.retrans,
        0,
        0,
        0,
        0,
        0,
        info.pmtu,
        0,
        info.rtt,
        info.rttvar,
        info.snd_ssthresh,
        info.snd_cwnd,
        info.advmss,
        3,
        0,
        info.rcv_space,
        info.total_retrans,
    ] {
        bytes.extend((u32::try_from(word).unwrap_or(u32::MAX)).to_ne_bytes());
    }
    for word in [info.pacing_rate, info.max_pacing_rate, info.bytes_acked, info.bytes_received] {
        bytes.extend(word.to_ne_bytes());
    }
    for word in [info.segs_out, info.segs_in, info.notsent_bytes, info.min_rtt] {
        bytes.extend((u32::try_from(word).unwrap_or(u32::MAX)).to_ne_bytes());
    }
    // tcpi_data_segs_in and tcpi_data_segs_out are not counted.
    bytes.extend([0; 8]);
    bytes.extend(info.delivery_rate.to_ne_bytes());
    // These times and counters are not kept, from tcpi_busy_time to tcpi_rcv_ooopack.
    bytes.extend([0; 3 * 8 + 2 * 4 + 2 * 8 + 3 * 4]);
    for word in [info.snd_wnd, info.rcv_wnd] {
        bytes.extend((u32::try_from(word).unwrap_or(u32::MAX)).to_ne_bytes());
    }
    bytes.resize(232, 0);
    Ok(Value::of(&bytes))
}
