//! Sends datagrams: over which link, in how many packets, and to which members on this machine as well.

use atoll_base::{Addr, Endpoint, FourTuple, Instant};
use atoll_ip::{Cast, HEADERS_LEN_MAX, Ip, Link, Outgoing, Route, headers_len};
use atoll_ipc::datagram::{DATAGRAM_MAX_V4, Flags as RecordFlags, Record};
use atoll_ipc::page::Stat;
use atoll_ipc::{Cause, Details, Memory, Ready, details};
use atoll_wire::ipv4::Protocol;
use atoll_wire::{checksum, udp};

use crate::datagrams::Datagram;
use crate::fragment::{Cut, MtuDiscovery, Progress, send_fragments};
use crate::next_hop::Way;
use crate::session::Occupant;
use crate::sink::{Absolute, FrameSink, Offload, TextRef};
use crate::transport::Transport;

/// The decision about the first datagram of a socket.
enum Plan {
    Leave(Leaving),
    /// The datagram waits, because the neighbour is being resolved.
    Wait,
    /// The datagram is not sent, and the next call on the socket reports the cause.
    Refuse(Cause),
}

/// How a datagram is sent.
struct Leaving {
    way: Way,
    tuple: FourTuple,
    cut: Cut,
    /// Whether members on this machine get it as well.
    is_looped: bool,
    /// Whether only those get it.
    stays: bool,
}

impl<M: Memory> Transport<M> {
    /// Sends what a socket has to send, until it is done, its neighbour is being resolved, the link is full,
    /// or its session has sent as much as it may in one flush. The text goes from the ring to the link
    /// without a copy. Returns `false` if the socket is to be removed, because what it has written is no
    /// datagram.
    #[must_use]
    pub(super) fn send_datagrams(&mut self, now: Instant, index: u32, out: &mut impl FrameSink<M>) -> bool {
        let flush = self.applications.flush();
        loop {
            let Some(socket) = self.datagrams.get_mut(index).filter(|socket| socket.unsent() > 0) else {
                return true;
            };
            let place = socket.place().session;
            let Some(session) = self.applications.get(place) else { return true };
            if !session.share.is_left(flush) {
                if socket.wait_for_share() {
                    self.applications.put_off(place, Occupant::Datagram(index));
                }
                return true;
            }
            let Some((record, details, pieces)) = socket.first(session) else {
                self.stats.count(Stat::BadCommands);
                return false;
            };
            let pieces = Absolute::new(session.layout.send_area, &pieces);
            let text = TextRef::Pieces(&session.arena, pieces.parts());
            match plan(&mut self.ip, now, socket, &record, &details) {
                Plan::Leave(leaving) => {
                    if let Err(Full) = send_first(&mut self.ip, socket, &leaving, text, out) {
                        // The record, or what is left of it, waits where it is.
                        self.datagrams.wait(index);
                        self.egress.retry_later(now);
                        return true;
                    }
                    self.stats.count(Stat::DatagramsOut);
                }
                Plan::Wait => {
                    self.datagrams.wait(index);
                    return true;
                }
                Plan::Refuse(cause) => {
                    self.stats.count(Stat::DatagramsDropped);
                    socket.fail(cause, Ready::default());
                }
            }
            socket.pop(&record);
            if let Some(session) = self.applications.get_mut(place) {
                session.share.take(flush, record.len as usize);
            }
        }
    }
}

/// Decides what is done with a datagram.
fn plan(ip: &mut Ip, now: Instant, socket: &Datagram, record: &Record, details: &Details) -> Plan {
    let peer = if record.peer.port == 0 { socket.remote().unwrap_or_default() } else { record.peer };
    let options = socket.options();
    let route = if peer.port == 0 { Route::Unreachable } else { ip.route(now, peer.addr) };
    let broadcast = ip.cast(peer.addr) == Some(Cast::Broadcast);
    let multicast = ip.cast(peer.addr) == Some(Cast::Multicast);
    let wishes = options.multicast().of(peer.addr);
    let is_inside = details.link.map_or(wishes.inside, |link| link == details::Link::Inside);
    let to_inside = multicast && is_inside;
    let route = if to_inside { Route::Local } else { route };
    let discovery = options.discovery_to(peer.addr);
    let most = options.packet_max_to(peer.addr);
    let cut = match route {
        Route::Via { .. } => discovery.cut(ip, now, peer.addr, record.len as usize, most),
        _ => Cut::Whole { dont_fragment: discovery != MtuDiscovery::Dont },
    };
    let is_torn = matches!(cut, Cut::Fragments(_));
    let cut = if is_torn && options.is_whole_to(peer.addr) { Cut::TooLong } else { cut };
    let way = match route {
        _ if peer.addr.is_v4() && record.len > DATAGRAM_MAX_V4 => Err(Cause::MessageTooLong),
        Route::Local => Ok((true, ip.mac())),
        Route::Via { .. } if broadcast && !record.flags.contains(RecordFlags::BROADCAST) => {
            Err(Cause::AddressNotAvailable)
        }
        Route::Via { .. } if cut == Cut::TooLong => Err(Cause::MessageTooLong),
        Route::Via { mac } => Ok((false, mac)),
        Route::Resolving => return Plan::Wait,
        Route::Unreachable => Err(Cause::HostUnreachable),
    };
    let src = source(ip, details.own, socket.local(), peer.addr, to_inside)
        .filter(|_| !(socket.grant().v6_only && peer.addr.is_v4()));
    let (internal, mac, src) = match (way, src) {
        (Ok((internal, mac)), Some(src)) => (internal, mac, src),
        (Ok(_), None) => return Plan::Refuse(Cause::NetworkUnreachable),
        (Err(cause), _) => return Plan::Refuse(cause),
    };
    let (tos, ttl) = options.marks_to(peer.addr, ip.hop_limit());
    let ttl = details.ttl.unwrap_or(if multicast { wishes.ttl } else { ttl });
    let tos = details.tos.unwrap_or(tos);
    Plan::Leave(Leaving {
        way: Way { internal, mac, tos, ttl },
        tuple: FourTuple { local: Endpoint::at(src, socket.local().port), remote: peer },
        cut,
        is_looped: multicast && !internal && wishes.is_looped,
        // ip(7), RFC 4291 §2.7: a datagram without hops, or to a group of this machine, stays here.
        stays: multicast && !internal && (ttl == 0 || peer.addr.is_interface_local()),
    })
}

/// Sends the first datagram of a socket.
fn send_first<M: Memory>(
    ip: &mut Ip,
    socket: &mut Datagram,
    leaving: &Leaving,
    text: TextRef<'_, M>,
    out: &mut impl FrameSink<M>,
) -> Result<(), Full> {
    let Leaving { way, tuple, cut, .. } = leaving;
    if leaving.is_looped && !socket.has_looped() {
        // This copy is for the members on this machine: the owner of the flow gives it to all.
        let inside = Way { internal: true, mac: ip.mac(), ..*way };
        let whole = Cut::Whole { dont_fragment: true };
        if ip.is_member(Link::Inside, tuple.remote.addr) {
            send_datagram(ip, &inside, tuple, whole, text.again(), &mut None, out)?;
        }
        socket.set_looped();
    }
    if leaving.stays {
        return Ok(());
    }
    let mut progress = socket.progress();
    let sent = send_datagram(ip, way, tuple, *cut, text, &mut progress, out);
    socket.set_progress(progress.filter(|_| sent.is_err()));
    sent
}

/// Returns the source address of a datagram to `peer`. A socket bound to the unspecified address, or to a
/// group or broadcast address, uses a suitable one; a socket bound to an address that is gone has none, as on
/// Linux. `named` is the address that the call has asked for, if it is not unspecified; `inside` says that
/// the datagram is for a group on the inside link.
fn source(ip: &Ip, named: Addr, local: Endpoint, peer: Addr, inside: bool) -> Option<Addr> {
    if !named.is_unspecified() {
        return Some(named).filter(|addr| ip.is_own(*addr) && addr.is_v4() == peer.is_v4());
    }
    let is_definite = !local.addr.is_unspecified() && ip.is_own(local.addr);
    match is_definite {
        _ if inside && Some(local.addr) != ip.addr().map(Addr::v4) => Some(peer.loopback_of_family()),
        true => Some(local.addr).filter(|addr| addr.is_v4() == peer.is_v4()),
        false
            if local.addr.is_v4()
                && !local.addr.is_unspecified()
                && ip.cast(local.addr) == Some(Cast::Unicast) =>
        {
            None
        }
        false => ip.source_for(peer),
    }
}

/// The link has not taken a datagram, or only a part of it.
struct Full;

// structure: send_datagram: a datagram has as many facts
/// Writes the headers of one datagram and gives it to the link. `progress` is how much of it the link has
/// taken.
fn send_datagram<M: Memory>(
    ip: &mut Ip,
    way: &Way,
    tuple: &FourTuple,
    cut: Cut,
    text: TextRef<'_, M>,
    progress: &mut Option<Progress>,
    out: &mut impl FrameSink<M>,
) -> Result<(), Full> {
    let mut headers = [0u8; HEADERS_LEN_MAX + udp::HEADER_LEN];
    let start = headers_len(tuple.remote.addr);
    let len = udp::HEADER_LEN + text.len();
    let packet = Outgoing {
        dst_mac: way.mac,
        src: tuple.local.addr,
        dst: tuple.remote.addr,
        protocol: Protocol::UDP,
        payload_len: len,
        tos: way.tos,
        ttl: way.ttl,
        dont_fragment: cut == Cut::Whole { dont_fragment: true },
    };
    if let Cut::Fragments(mtu) = cut {
        *progress = send_fragments(ip, way, tuple, &packet, &text, *progress, mtu, out);
        return if progress.is_some() { Err(Full) } else { Ok(()) };
    }
    ip.emit_headers(&mut headers, &packet);
    let header = udp::Header {
        src_port: tuple.local.port,
        dst_port: tuple.remote.port,
        // It is at most DATAGRAM_MAX, or DATAGRAM_MAX_V4.
        payload_len: text.len() as u16,
        checksum: checksum::pseudo_header_of(packet.src, packet.dst, Protocol::UDP.0, len).fold(),
    };
    udp::emit(&header, &mut headers[start..]);
    let offload = Offload {
        needs_checksum: true,
        csum_start: start as u16,
        csum_offset: udp::CHECKSUM_AT as u16,
        gso_size: None,
    };
    let headers = &headers[..start + udp::HEADER_LEN];
    let taken = if way.internal {
        out.send_internal(headers, text, offload)
    } else {
        out.send(headers, text, offload)
    };
    if !taken {
        *progress = None;
        return Err(Full);
    }
    Ok(())
}
