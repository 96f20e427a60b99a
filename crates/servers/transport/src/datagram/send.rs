//! How does a datagram leave? Which way, in how many packets, and to whom on this machine as well.

use atoll_base::{Addr, Endpoint, FourTuple, Instant};
use atoll_ip::{Cast, HEADERS_LEN_MAX, Ip, Link, Outgoing, Route, headers_len};
use atoll_ipc::page::Stat;
use atoll_ipc::{Cause, Memory, Ready};
use atoll_udp::{DATAGRAM_MAX_V4, Flags as RecordFlags, RECORD_LEN, padded_len};
use atoll_wire::ipv4::Protocol;
use atoll_wire::{checksum, udp};

use crate::fragment::{Cut, MtuDiscovery, Progress, send_fragments};
use crate::output::Way;
use crate::session::Occupant;
use crate::sink::{Absolute, FrameSink, Offload, TextRef};
use crate::transport::Transport;

impl<M: Memory> Transport<M> {
    // structure: send_datagrams: from the ring to the link without a copy in between
    /// Sends what a socket has to send, until it is done, its neighbour is asked for, the link is full, or its session has sent as much as it
    /// may in one flush.
    pub(super) fn send_datagrams(&mut self, now: Instant, index: u32, out: &mut impl FrameSink<M>) {
        loop {
            let Some(socket) = self.datagrams.sockets.get_mut(index) else { return };
            if socket.send_head >= socket.send_tail {
                return;
            }
            let place = socket.place.session;
            let Some(session) = self.sessions.get_mut(place as usize).and_then(Option::as_mut) else { return };
            if !session.share.is_left(self.flushes) {
                if !core::mem::replace(&mut socket.is_later, true) {
                    session.later.push_back(Occupant::Datagram(index));
                    self.put_off.insert(place);
                }
                return;
            }
            let mut head = [0; RECORD_LEN];
            let available = socket.send_tail - socket.send_head;
            let record = socket.send.pieces(socket.send_head, RECORD_LEN).and_then(|pieces| {
                pieces.read(&session.arena, session.layout.send_area, &mut head);
                atoll_udp::decode(&head, available).ok()
            });
            let text =
                record.and_then(|record| socket.send.pieces(socket.send_head + RECORD_LEN as u64, record.len as usize));
            let (Some(record), Some(pieces)) = (record, text) else {
                // Not what a library writes: the socket is lost.
                self.stats.count(Stat::BadCommands);
                self.remove_datagram(now, index);
                return;
            };
            let pieces = Absolute::new(session.layout.send_area, &pieces);
            let text = TextRef::Pieces(&session.arena, pieces.parts());
            let peer = if record.peer.port == 0 { socket.remote.unwrap_or_default() } else { record.peer };
            let route = if peer.port == 0 { Route::Unreachable } else { self.ip.route(now, peer.addr) };
            let broadcast = self.ip.cast(peer.addr) == Some(Cast::Broadcast);
            let multicast = self.ip.cast(peer.addr) == Some(Cast::Multicast);
            let wishes = *socket.multicast.of(peer.addr);
            let to_inside = multicast && wishes.inside;
            let route = if to_inside { Route::Local } else { route };
            let discovery = socket.discovery_to(peer.addr);
            let cut = match route {
                Route::Via { .. } => discovery.cut(&self.ip, now, peer.addr, record.len as usize),
                _ => Cut::Whole { dont_fragment: discovery != MtuDiscovery::Dont },
            };
            let is_torn = matches!(cut, Cut::Fragments(_));
            let cut = if is_torn && socket.whole_v6 && !peer.addr.is_v4() { Cut::TooLong } else { cut };
            let src = source(&self.ip, socket.local, peer.addr, to_inside)
                .filter(|_| !(socket.grant.v6_only && peer.addr.is_v4()));
            let way = match route {
                _ if peer.addr.is_v4() && record.len > DATAGRAM_MAX_V4 => Err(Cause::MessageTooLong),
                Route::Local => Ok((true, self.ip.mac())),
                Route::Via { .. } if broadcast && !record.flags.contains(RecordFlags::BROADCAST) => {
                    Err(Cause::AddressNotAvailable)
                }
                Route::Via { .. } if cut == Cut::TooLong => Err(Cause::MessageTooLong),
                Route::Via { mac } => Ok((false, mac)),
                Route::Resolving => {
                    self.datagrams.unresolved.push(index);
                    return;
                }
                Route::Unreachable => Err(Cause::HostUnreachable),
            };
            match way.and_then(|way| Ok((way, src.ok_or(Cause::NetworkUnreachable)?))) {
                Ok(((internal, mac), src)) => {
                    let (tos, ttl) = match peer.addr.is_v4() {
                        true => (socket.tos, socket.ttl),
                        false => (socket.class, socket.hops.unwrap_or(self.ip.hop_limit())),
                    };
                    let ttl = if multicast { wishes.ttl } else { ttl };
                    let way = Way { internal, mac, tos, ttl };
                    let tuple = FourTuple { local: Endpoint::at(src, socket.local.port), remote: peer };
                    if multicast && !internal && wishes.is_looped && !socket.has_looped {
                        // A copy for the members on this machine, whoever they are: the owner of the flow gives it to all.
                        let inside = Way { internal: true, mac: self.ip.mac(), ..way };
                        let whole = Cut::Whole { dont_fragment: true };
                        socket.has_looped = !self.ip.is_member(Link::Inside, peer.addr)
                            || send_datagram(&mut self.ip, &inside, &tuple, whole, text.again(), None, out).is_ok();
                        if !socket.has_looped {
                            self.datagrams.unresolved.push(index);
                            self.retry_at = now + crate::output::RETRY_AFTER;
                            return;
                        }
                    }
                    // ip(7), RFC 4291 §2.7: what has no hops left, or goes to a group of this machine, stays here.
                    let stays = multicast && (ttl == 0 || peer.addr.is_interface_local());
                    let sent = if stays && !internal {
                        Ok(())
                    } else {
                        send_datagram(&mut self.ip, &way, &tuple, cut, text, socket.progress, out)
                    };
                    socket.progress = match sent {
                        Ok(()) => None,
                        Err(Full(progress)) => {
                            // The link is full: the record waits where it is, or what is left of it.
                            socket.progress = progress;
                            self.datagrams.unresolved.push(index);
                            self.retry_at = now + crate::output::RETRY_AFTER;
                            return;
                        }
                    };
                    self.stats.count(Stat::DatagramsOut);
                }
                Err(cause) => {
                    self.stats.count(Stat::DatagramsDropped);
                    socket.cause = cause;
                    socket.ready |= Ready::ERR;
                }
            }
            socket.has_looped = false;
            socket.send_head += padded_len(record.len);
            if let Some(session) = self.sessions.get_mut(place as usize).and_then(Option::as_mut) {
                session.share.take(self.flushes, record.len as usize);
            }
        }
    }
}

/// Where a datagram to `peer` comes from. What is bound to any address, or to one that means many, sends from the one that suits; what is
/// bound to one that is gone, from nowhere, as on Linux. `inside`: it goes to a group on the inside link.
fn source(ip: &Ip, local: Endpoint, peer: Addr, inside: bool) -> Option<Addr> {
    let is_definite = !local.addr.is_unspecified() && ip.is_own(local.addr);
    match is_definite {
        _ if inside && Some(local.addr) != ip.addr().map(Addr::v4) => Some(peer.loopback_of_family()),
        true => Some(local.addr).filter(|addr| addr.is_v4() == peer.is_v4()),
        false if local.addr.is_v4() && !local.addr.is_unspecified() && ip.cast(local.addr) == Some(Cast::Unicast) => {
            None
        }
        false => ip.source_for(peer),
    }
}

/// The link has not taken a datagram, or only this much of it.
struct Full(Option<Progress>);

// structure: send_datagram: a datagram has as many facts
/// Writes the headers of one datagram and gives it to the link.
fn send_datagram<M: Memory>(
    ip: &mut Ip,
    way: &Way,
    tuple: &FourTuple,
    cut: Cut,
    text: TextRef<'_, M>,
    progress: Option<Progress>,
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
        let rest = send_fragments(ip, way, tuple, &packet, &text, progress, mtu, out);
        return rest.map_or(Ok(()), |progress| Err(Full(Some(progress))));
    }
    ip.emit_headers(&mut headers, &packet);
    let header = udp::Header {
        src_port: tuple.local.port,
        dst_port: tuple.remote.port,
        // At most DATAGRAM_MAX, or DATAGRAM_MAX_V4.
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
    let taken = if way.internal { out.send_internal(headers, text, offload) } else { out.send(headers, text, offload) };
    if taken { Ok(()) } else { Err(Full(None)) }
}
