//! What do getsockopt(2) and setsockopt(2) do on Atoll's sockets? socket(7), tcp(7), ip(7).

use atoll_ipc::command::{Protocol, SocketOption};
use atoll_ipc::info::Info;
use atoll_ipc::{CONGESTION_NAMES, Command};
use atoll_sockets::client::object::{Kind, Place};
use atoll_sockets::client::options::pacing_rate as sent_rate;
use atoll_sockets::{Errno, Failure};

use crate::fast_open;
use crate::groups;
use crate::lock::STATE;
use crate::stats;
use crate::value::Value;
use crate::wait::block;

/// Sizes that Linux reports for a new socket.
const SEND_BUFFER: u32 = 87040;
const RECEIVE_BUFFER: u32 = 131_072;
/// The hop limit that Linux reports where none was set.
const HOPS: u32 = 64;
/// `net.core.somaxconn`.
const SOMAXCONN: u32 = 4096;

/// ip(7), `IP_MTU_DISCOVER`: the default (`IP_PMTUDISC_WANT`) and the largest value.
const MTU_DISCOVER: u32 = libc::IP_PMTUDISC_WANT as u32;
const MTU_DISCOVER_MAX: u32 = libc::IP_PMTUDISC_OMIT as u32;

// structure: set: an arm for each option; there is no table of them yet
/// A new value of an option.
pub fn set(object: u32, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
    let _call = stats::Call::new(stats::OPTION);
    let int = || value.first_chunk::<4>().map(|b| i32::from_ne_bytes(*b)).ok_or(Errno::EINVAL);
    let flag = || int().map(|n| n != 0);
    let number = || int().and_then(|n| u32::try_from(n).map_err(|_| Errno::EINVAL));
    if groups::is_option(level, name) {
        return groups::set(object, level, name, value);
    }
    STATE.with(|state| {
        let is_fast_open = fast_open::is_enabled(&state.client);
        let Some(socket) = state.client.socket_mut(object) else { return Err(Errno::ENOTSOCK) };
        let tcp = socket.protocol == Protocol::Tcp;
        let o = &mut socket.options;
        let mut tell: Option<(SocketOption, u32)> = None;
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => o.reuse_addr = flag()?,
            (libc::SOL_SOCKET, libc::SO_REUSEPORT) => o.reuse_port = flag()?,
            (libc::SOL_SOCKET, libc::SO_BROADCAST) => {
                o.broadcast = flag()?;
                tell = Some((SocketOption::Broadcast, o.broadcast.into()));
            }
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => {
                o.keepalive = flag()?;
                let o = *o;
                state.client.send_keep_alive(object, &o);
            }
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                let (Some(on), Some(time)) = (value.first_chunk::<4>(), value.get(4..8)) else {
                    return Err(Errno::EINVAL);
                };
                let seconds = i32::from_ne_bytes([time[0], time[1], time[2], time[3]]);
                o.linger = (i32::from_ne_bytes(*on) != 0).then_some(u32::try_from(seconds).unwrap_or(0));
                let resets = o.linger == Some(0);
                let _family = state.client.family(object);
                if let Some((stream, ..)) = state.client.stream(object) {
                    stream.set_reset_on_close(resets);
                }
            }
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => o.receive_timeout_us = time_of(value)?,
            (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => o.send_timeout_us = time_of(value)?,
            (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_RCVBUFFORCE) => {
                o.receive_buffer = number()?.clamp(1152, 3 << 20);
                tell = Some((SocketOption::ReceiveBuffer, o.receive_buffer));
            }
            (libc::SOL_SOCKET, libc::SO_SNDBUF | libc::SO_SNDBUFFORCE) => {
                o.send_buffer = number()?.clamp(2304, 1 << 20);
                tell = Some((SocketOption::SendBuffer, o.send_buffer));
            }
            (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => {
                o.receive_low = number()?;
                if let Kind::Stream(_, local) = &mut socket.kind {
                    local.receive_low = o.receive_low;
                }
            }
            // socket(7) has nothing of it; sk_setsockopt takes both sizes.
            (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE) => {
                o.pacing_rate = match value.first_chunk::<8>() {
                    Some(rate) => u64::from_ne_bytes(*rate),
                    None => pacing_rate(int()? as u32),
                };
                tell = tcp.then_some((SocketOption::MaxPacingRate, sent_rate(o.pacing_rate)));
            }
            (libc::SOL_SOCKET, libc::SO_PRIORITY) => o.priority = number()?,
            (libc::SOL_SOCKET, libc::SO_DONTROUTE) => o.dont_route = flag()?,
            // Hints that mean nothing here, and harm nobody.
            (libc::SOL_SOCKET, libc::SO_INCOMING_CPU | libc::SO_BUSY_POLL | libc::SO_MARK | libc::SO_TIMESTAMP) => {
                int()?;
            }
            (libc::SOL_SOCKET, libc::SO_OOBINLINE) => {
                o.oob_inline = flag()?;
                if let Kind::Stream(_, local) = &mut socket.kind {
                    local.urgent_inline = o.oob_inline;
                }
            }
            (libc::SOL_SOCKET, _) => return Err(Errno::ENOPROTOOPT),
            (libc::IPPROTO_TCP, _) if !tcp => return Err(Errno::ENOPROTOOPT),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => {
                let on = flag()?;
                if o.nodelay != on {
                    o.nodelay = on;
                    tell = Some((SocketOption::NoDelay, on.into()));
                }
            }
            (libc::IPPROTO_TCP, libc::TCP_CORK) => {
                o.cork = flag()?;
                tell = Some((SocketOption::Cork, o.cork.into()));
            }
            (libc::IPPROTO_TCP, libc::TCP_QUICKACK) => {
                o.quickack = flag()?;
                tell = Some((SocketOption::QuickAck, o.quickack.into()));
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => {
                o.keep_idle = within(number()?, 32767)?;
                let o = *o;
                state.client.send_keep_alive(object, &o);
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => {
                o.keep_interval = within(number()?, 32767)?;
                let o = *o;
                state.client.send_keep_alive(object, &o);
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => {
                o.keep_count = within(number()?, 127)?;
                let o = *o;
                state.client.send_keep_alive(object, &o);
            }
            (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => {
                o.user_timeout = number()?;
                tell = Some((SocketOption::UserTimeout, o.user_timeout));
            }
            (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT) => {
                o.defer_accept = number()?;
                tell = Some((SocketOption::DeferAccept, o.defer_accept));
            }
            (libc::IPPROTO_TCP, libc::TCP_FASTOPEN) => {
                let limit = number()?;
                if !matches!(socket.kind, Kind::Fresh | Kind::Bound | Kind::Listening(_)) {
                    return Err(Errno::EINVAL);
                }
                // tcp_fastopen_init: no more than the backlog's limit.
                o.fast_open = limit.min(SOMAXCONN);
                tell = Some((SocketOption::FastOpen, o.fast_open));
            }
            (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT) => {
                let on = number()?;
                if on > 1 {
                    return Err(Errno::EINVAL);
                }
                if !is_fast_open {
                    return Err(Errno::EOPNOTSUPP);
                }
                if !matches!(socket.kind, Kind::Fresh | Kind::Bound) {
                    return Err(Errno::EINVAL);
                }
                o.fast_open_connect = on != 0;
            }
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => {
                o.max_segment = number()?;
                tell = Some((SocketOption::MaxSegment, o.max_segment));
            }
            (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT) => {
                // A negative value is a large one.
                o.unsent_low = int()? as u32;
                tell = Some((SocketOption::UnsentLow, o.unsent_low));
            }
            (libc::IPPROTO_TCP, libc::TCP_LINGER2) => {
                o.linger2 = number()?;
                tell = Some((SocketOption::Linger2, o.linger2));
            }
            (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => {
                let name = value.split(|byte| *byte == 0).next().unwrap_or_default();
                let known = CONGESTION_NAMES.iter().position(|known| known.as_bytes() == name);
                o.congestion = known.and_then(|at| u8::try_from(at).ok()).ok_or(Errno::ENOENT)?;
                tell = Some((SocketOption::Congestion, o.congestion.into()));
            }
            (libc::IPPROTO_TCP, libc::TCP_SYNCNT) => {
                o.syn_count = within(number()?, 127)?;
                tell = Some((SocketOption::SynCount, o.syn_count));
            }
            (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP) => {
                number()?;
            }
            (libc::IPPROTO_TCP, _) => return Err(Errno::ENOPROTOOPT),
            (libc::IPPROTO_IP, libc::IP_TTL) => {
                o.ttl = number()?;
                tell = Some((SocketOption::TimeToLive, o.ttl));
            }
            (libc::IPPROTO_IP, libc::IP_TOS) => {
                o.tos = number()?;
                tell = Some((SocketOption::TypeOfService, o.tos));
            }
            (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER) => {
                let value = number()?;
                if value > MTU_DISCOVER_MAX {
                    return Err(Errno::EINVAL);
                }
                o.mtu_discover = Some(value);
                // TCP always discovers: its segments never are fragmented.
                tell = (!tcp).then_some((SocketOption::MtuDiscover, value));
            }
            (libc::IPPROTO_IP, libc::IP_FREEBIND | libc::IP_BIND_ADDRESS_NO_PORT | libc::IP_RECVERR) => {
                int()?;
            }
            (libc::IPPROTO_IPV6, _) if !socket.v6 => return Err(Errno::ENOPROTOOPT),
            // ipv6(7): it decides what bind(2) takes, so it comes before.
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => match socket.kind {
                Kind::Fresh => o.v6_only = flag()?,
                _ => return Err(Errno::EINVAL),
            },
            (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) => {
                let hops = int()?;
                if !(-1..=255).contains(&hops) {
                    return Err(Errno::EINVAL);
                }
                // -1 is the default of the system again, which the replica knows.
                o.hops = (hops + 1) as u32;
                tell = Some((SocketOption::UnicastHops, u32::try_from(hops).unwrap_or(HOPS)));
            }
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                let class = int()?;
                if !(-1..=255).contains(&class) {
                    return Err(Errno::EINVAL);
                }
                // RFC 3168: the congestion marks of a connection are TCP's.
                o.tclass = u32::try_from(class).unwrap_or(0) & if tcp { !3 } else { !0 };
                tell = Some((SocketOption::TrafficClass, o.tclass));
            }
            (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER) => {
                let value = number()?;
                if value > MTU_DISCOVER_MAX {
                    return Err(Errno::EINVAL);
                }
                o.mtu_discover_v6 = Some(value);
                tell = (!tcp).then_some((SocketOption::MtuDiscoverV6, value));
            }
            (libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG) => {
                // As on Linux, half a number is none.
                o.dont_fragment_v6 = int().unwrap_or(0) != 0;
                tell = (!tcp).then_some((SocketOption::DontFragmentV6, o.dont_fragment_v6.into()));
            }
            // A group that was never joined must not look joined: anycast groups, filters by source.
            (libc::IPPROTO_IPV6, 27 | 28 | 43 | 44 | 46..=48) => return Err(Errno::ENOPROTOOPT),
            (libc::IPPROTO_IPV6, _) => {}
            _ => return Err(Errno::EOPNOTSUPP),
        }
        if let Some((option, value)) = tell {
            state.client.send_option(object, option, value);
        }
        Ok(())
    })
}

/// `SO_MAX_PACING_RATE` of four octets: all bits set is no limit.
fn pacing_rate(rate: u32) -> u64 {
    if rate == u32::MAX { u64::MAX } else { rate.into() }
}

/// tcp(7): times and counts start at 1.
fn within(value: u32, most: u32) -> Result<u32, Errno> {
    if (1..=most).contains(&value) { Ok(value) } else { Err(Errno::EINVAL) }
}

// structure: get: an arm for each option; there is no table of them yet
/// The bytes of an option's value.
pub fn get(object: u32, level: i32, name: i32) -> Result<Value, Errno> {
    let _call = stats::Call::new(stats::OPTION);
    if (level, name) == (libc::IPPROTO_TCP, libc::TCP_INFO) {
        return tcp_info(object);
    }
    STATE.with(|state| {
        let int = |n: u32| Ok(Value::of(&n.to_ne_bytes()));
        let Some(socket) = state.client.socket(object) else { return Err(Errno::ENOTSOCK) };
        if groups::is_option(level, name) {
            if level == libc::IPPROTO_IPV6 && !socket.v6 {
                return Err(Errno::EOPNOTSUPP);
            }
            return groups::get(socket.multicast.as_deref(), level, name);
        }
        let (o, v6, protocol) = (socket.options, socket.v6, socket.protocol);
        let listening = matches!(socket.kind, Kind::Listening(_));
        let tcp = protocol == Protocol::Tcp;
        let or = |value: u32, default: u32| if value == 0 { default } else { value };
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ERROR) => {
                int(state.client.take_error(object).map_or(0, |errno| errno.0) as u32)
            }
            (libc::SOL_SOCKET, libc::SO_TYPE) => int(if tcp { 1 } else { 2 }),
            (libc::SOL_SOCKET, libc::SO_DOMAIN) => int((if v6 { libc::AF_INET6 } else { libc::AF_INET }) as u32),
            (libc::SOL_SOCKET, libc::SO_PROTOCOL) => int(protocol as u32),
            (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => int(listening.into()),
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => int(o.reuse_addr.into()),
            (libc::SOL_SOCKET, libc::SO_REUSEPORT) => int(o.reuse_port.into()),
            (libc::SOL_SOCKET, libc::SO_BROADCAST) => int(o.broadcast.into()),
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => int(o.keepalive.into()),
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                let pair = [u32::from(o.linger.is_some()), o.linger.unwrap_or(0)];
                Ok(Value::of(&pair.map(u32::to_ne_bytes).concat()))
            }
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => Ok(time_bytes(o.receive_timeout_us)),
            (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => Ok(time_bytes(o.send_timeout_us)),
            // socket(7): the kernel doubles the value, and getsockopt says so.
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => int(or(o.receive_buffer * 2, RECEIVE_BUFFER)),
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => int(or(o.send_buffer * 2, SEND_BUFFER)),
            (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => int(o.receive_low.max(1)),
            (libc::SOL_SOCKET, libc::SO_SNDLOWAT) => int(1),
            (libc::SOL_SOCKET, libc::SO_OOBINLINE) => int(o.oob_inline.into()),
            (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE) => {
                let rate = if o.pacing_rate == 0 { u64::MAX } else { o.pacing_rate };
                Ok(Value::of(&rate.to_ne_bytes()))
            }
            (libc::SOL_SOCKET, libc::SO_PRIORITY) => int(o.priority),
            (libc::SOL_SOCKET, libc::SO_DONTROUTE) => int(o.dont_route.into()),
            (libc::SOL_SOCKET, libc::SO_INCOMING_CPU | libc::SO_MARK | libc::SO_TIMESTAMP | libc::SO_BUSY_POLL) => {
                int(0)
            }
            (libc::IPPROTO_TCP, _) if !tcp => Err(Errno::EOPNOTSUPP),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => int(o.nodelay.into()),
            (libc::IPPROTO_TCP, libc::TCP_CORK) => int(o.cork.into()),
            (libc::IPPROTO_TCP, libc::TCP_QUICKACK) => int(o.quickack.into()),
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => int(or(o.keep_idle, 7200)),
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => int(or(o.keep_interval, 75)),
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => int(or(o.keep_count, 9)),
            (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => int(o.user_timeout),
            (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT) => int(o.defer_accept),
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => int(or(o.max_segment, 1448)),
            (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT) => int(o.unsent_low),
            (libc::IPPROTO_TCP, libc::TCP_FASTOPEN) => int(o.fast_open),
            (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT) => int(o.fast_open_connect.into()),
            (libc::IPPROTO_TCP, libc::TCP_LINGER2) => int(or(o.linger2, 60)),
            (libc::IPPROTO_TCP, libc::TCP_SYNCNT) => int(or(o.syn_count, 6)),
            (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => {
                let mut name = [0; CONGESTION_NAME_LEN];
                let known = CONGESTION_NAMES.get(usize::from(o.congestion)).unwrap_or(&"");
                name.iter_mut().zip(known.bytes()).for_each(|(to, byte)| *to = byte);
                Ok(Value::of(&name))
            }
            (libc::IPPROTO_IP, libc::IP_TTL) => int(or(o.ttl, 64)),
            (libc::IPPROTO_IP, libc::IP_TOS) => int(o.tos),
            (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER) => int(o.mtu_discover.unwrap_or(MTU_DISCOVER)),
            (libc::IPPROTO_IPV6, _) if !v6 => Err(Errno::EOPNOTSUPP),
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => int(o.v6_only.into()),
            (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) => int(o.hops.checked_sub(1).unwrap_or(HOPS)),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => int(o.tclass),
            (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER) => int(o.mtu_discover_v6.unwrap_or(MTU_DISCOVER)),
            (libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG) => int(o.dont_fragment_v6.into()),
            (libc::SOL_SOCKET | libc::IPPROTO_TCP | libc::IPPROTO_IP | libc::IPPROTO_IPV6, _) => {
                Err(Errno::ENOPROTOOPT)
            }
            _ => Err(Errno::EOPNOTSUPP),
        }
    })
}

/// Linux's `TCP_CA_NAME_MAX`.
const CONGESTION_NAME_LEN: usize = 16;

fn time_of(value: &[u8]) -> Result<u64, Errno> {
    let (Some(seconds), Some(micros)) = (value.first_chunk::<8>(), value.get(8..).and_then(<[u8]>::first_chunk::<8>))
    else {
        return Err(Errno::EINVAL);
    };
    let (seconds, micros) = (i64::from_ne_bytes(*seconds), i64::from_ne_bytes(*micros));
    if !(0..1_000_000).contains(&micros) {
        return Err(Errno::EDOM);
    }
    Ok(u64::try_from(seconds).unwrap_or(0).saturating_mul(1_000_000).saturating_add(micros as u64))
}

fn time_bytes(micros: u64) -> Value {
    Value::of(&[micros / 1_000_000, micros % 1_000_000].map(u64::to_ne_bytes).concat())
}

// structure: tcp_info: the fields of the kernel's struct, in its order
/// `struct tcp_info`, linux/tcp.h.
fn tcp_info(object: u32) -> Result<Value, Errno> {
    let asked = STATE.with(|state| match state.client.socket(object).map(|s| (&s.kind, s.protocol)) {
        Some((_, Protocol::Udp)) => Err(Errno::EOPNOTSUPP),
        Some((Kind::Stream(place, _), _)) => {
            let place = *place;
            if place.session != 0 {
                // The answer would go to the session's owner: what can be said without it.
                return Ok(None);
            }
            let token = state.client.new_token();
            let Place { replica, slot, generation, .. } = place;
            state.client.ask(replica, token, vec![Command::Info { token, slot, generation }]);
            Ok(Some((place, token)))
        }
        Some((Kind::Listening(_), _)) => Ok(None),
        _ => Ok(None),
    })?;
    let is_open = STATE.with(|state| state.client.stream(object).is_some_and(|(stream, ..)| !stream.is_closed()));
    let mut info = Info { state: if is_open { 1 } else { 7 }, ..Info::default() };
    if let Some((place, token)) = asked {
        let known = block(None, Some(atoll_base::Duration::from_secs(2)), |state| {
            let cause = state.client.answer(token).ok_or(Failure::WouldBlock)?.cause;
            let replica = state.client.sessions().get(place.session).and_then(|s| s.replicas().get(place.replica));
            let replica = replica.filter(|_| cause == atoll_ipc::Cause::None);
            Ok(replica.map(|replica| Info::load(replica.port().memory(), atoll_ipc::arena::INFO)))
        });
        STATE.with(|state| state.client.answered(token));
        if let Ok(Some(known)) = known {
            info = known;
        }
    } else if STATE.with(|state| state.client.socket(object).is_some_and(|s| matches!(s.kind, Kind::Listening(_)))) {
        info.state = 10;
    }
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
    // Times and counters that are not kept, from tcpi_busy_time to tcpi_rcv_ooopack.
    bytes.extend([0; 3 * 8 + 2 * 4 + 2 * 8 + 3 * 4]);
    for word in [info.snd_wnd, info.rcv_wnd] {
        bytes.extend((u32::try_from(word).unwrap_or(u32::MAX)).to_ne_bytes());
    }
    bytes.resize(232, 0);
    Ok(Value::of(&bytes))
}
