//! Sends datagrams: over which link, in how many packets, and to which members on this machine as well.

use alloc::vec::Vec;

use super::{echo, fault, raw};
use atoll_base::{Addr, Endpoint, FourTuple, Instant};
use atoll_ip::{Cast, HEADERS_LEN_MAX, Ip, Link, Outgoing, Route, headers_len};
use atoll_ipc::command::Protocol;
use atoll_ipc::datagram::{DATAGRAM_MAX_V4, ECHO_HEADER, Flags as RecordFlags, Record};
use atoll_ipc::page::Stat;
use atoll_ipc::{Cause, Details, Device, Memory, Ready, details};
use atoll_wire::ipv4::Protocol as WireProtocol;
use atoll_wire::{checksum, udp};

use crate::datagrams::Datagram;
use crate::egress::{is_astray, station_inside};
use crate::fragment::{Cut, MtuDiscovery, Progress, sealed, send_fragments};
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
    /// The datagram is not sent: it would leave over the device that the socket is bound to, and nobody hears
    /// it there.
    Lose,
}

/// How a datagram is sent.
struct Leaving {
    way: Way,
    protocol: Protocol,
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
            let mut unanswered = None;
            match plan(&mut self.ip, now, socket, &record, &details) {
                Plan::Leave(leaving) => {
                    match send_first(&mut self.ip, socket, &leaving, text, out) {
                        Ok(()) => self.stats.count(Stat::DatagramsOut),
                        Err(Unsent::Full) => {
                            // The record, or what is left of it, waits where it is.
                            self.datagrams.wait(index);
                            self.egress.retry_later(now);
                            return true;
                        }
                        Err(Unsent::Invalid) => {
                            self.stats.count(Stat::BadCommands);
                            socket.fail(Cause::Invalid, Ready::default());
                        }
                    }
                }
                Plan::Wait => {
                    self.datagrams.wait(index);
                    return true;
                }
                Plan::Lose => self.stats.count(Stat::DatagramsDropped),
                Plan::Refuse(cause) => {
                    self.stats.count(Stat::DatagramsDropped);
                    let peer = peer_of(socket, &record);
                    if cause != Cause::HostUnreachable {
                        socket.fail(cause, Ready::default());
                    } else if socket.options().wants_errors(peer.addr)
                        && let Some(own) = source(&self.ip, details.own, socket.local(), peer.addr, false)
                    {
                        // Others do not hear of it: the error is a soft one.
                        let fault = fault::unanswered(own, head_of(socket, peer, &text));
                        unanswered = Some((fault, quoted_of(socket.protocol(), &text), peer));
                    }
                }
            }
            socket.pop(&record);
            if let Some((fault, quoted, peer)) = unanswered {
                self.report_fault(index, (fault, &quoted), peer);
            }
            if let Some(session) = self.applications.get_mut(place) {
                session.share.take(flush, record.len as usize);
            }
        }
    }
}

/// Decides what is done with a datagram.
fn plan(ip: &mut Ip, now: Instant, socket: &Datagram, record: &Record, details: &Details) -> Plan {
    let peer = if record.peer.port == 0 { socket.remote().unwrap_or_default() } else { record.peer };
    let protocol = socket.protocol();
    // What an ICMP socket sends begins with a header that is as long as that of UDP.
    let header = if protocol.is_icmp() { ECHO_HEADER } else { 0 };
    let len = match record.len.checked_sub(header) {
        // A raw socket may send less than a header.
        None if protocol == Protocol::Raw => 0,
        None => return Plan::Refuse(Cause::Invalid),
        Some(len) => len,
    };
    if !raw::speaks(socket, peer.addr) {
        return Plan::Refuse(Cause::Invalid);
    }
    let options = socket.options();
    let device = socket.grant().device;
    let multicast = ip.cast(peer.addr) == Some(Cast::Multicast);
    if !multicast && is_astray(ip, device, peer.addr) {
        return Plan::Lose;
    }
    let route = if peer.port == 0 { Route::Unreachable } else { ip.route(now, peer.addr) };
    let broadcast = ip.cast(peer.addr) == Some(Cast::Broadcast);
    let wishes = options.multicast().of(peer.addr);
    // udp_sendmsg: the interface of IP_MULTICAST_IF counts for a socket that is bound to none.
    let is_wished = if device == Device::None { wishes.inside } else { device == Device::Loopback };
    let is_inside = details.link.map_or(is_wished, |link| link == details::Link::Inside);
    let to_inside = multicast && is_inside;
    let route = if to_inside { Route::Local } else { route };
    let discovery = options.discovery_to(peer.addr);
    let most = options.packet_max_to(peer.addr);
    let cut = match route {
        Route::Via { .. } => discovery.cut(ip, now, peer.addr, len as usize, most),
        _ => Cut::Whole { dont_fragment: discovery != MtuDiscovery::Dont },
    };
    let is_torn = matches!(cut, Cut::Fragments(_));
    let cut = if is_torn && options.is_whole_to(peer.addr) { Cut::TooLong } else { cut };
    let way = match route {
        _ if peer.addr.is_v4() && len > DATAGRAM_MAX_V4 => Err(Cause::MessageTooLong),
        Route::Local => Ok((true, station_inside(ip, device))),
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
        protocol,
        tuple: FourTuple { local: Endpoint::at(src, socket.local().port), remote: port_of(protocol, peer) },
        cut,
        is_looped: multicast && !internal && wishes.is_looped,
        // ip(7), RFC 4291 §2.7: a datagram without hops, or to a group of this machine, stays here.
        stays: multicast && !internal && (ttl == 0 || peer.addr.is_interface_local()),
    })
}

/// Returns the receiver of a datagram, as errors about it name it.
fn peer_of(socket: &Datagram, record: &Record) -> Endpoint {
    let peer = if record.peer.port == 0 { socket.remote().unwrap_or_default() } else { record.peer };
    port_of(socket.protocol(), peer)
}

/// Returns a peer as it is on the wire: that of an ICMP socket has no port, and the application writes some
/// number for it.
const fn port_of(protocol: Protocol, peer: Endpoint) -> Endpoint {
    match protocol {
        Protocol::Icmp | Protocol::Raw => Endpoint::at(peer.addr, 0),
        Protocol::Tcp | Protocol::Udp => peer,
    }
}

/// Returns the first octets of the transport header of a datagram that was not sent.
fn head_of<M: Memory>(socket: &Datagram, peer: Endpoint, text: &TextRef<'_, M>) -> [u8; 8] {
    let local = socket.local();
    let tuple = FourTuple { local, remote: peer };
    if let Some(message) = message(socket.protocol(), &tuple, text) {
        return message.and_then(|it| it.first_chunk().copied()).unwrap_or_default();
    }
    let ([a, b], [c, d]) = (local.port.to_be_bytes(), peer.port.to_be_bytes());
    [a, b, c, d, 0, 0, 0, 0]
}

/// Returns what an error of this host quotes of a datagram that was not sent, behind the octets of
/// [`head_of`].
fn quoted_of<M: Memory>(protocol: Protocol, text: &TextRef<'_, M>) -> Vec<u8> {
    let mut octets = alloc::vec![0; text.len()];
    text.copy_to(&mut octets);
    let header = if protocol == Protocol::Udp { 0 } else { octets.len().min(ECHO_HEADER as usize) };
    octets.drain(..header);
    octets.truncate(QUOTED_OWN);
    octets
}

/// The octets of a datagram that an error of this host quotes: those of a message of 576 octets, behind the
/// headers of IP, ICMP, IP and UDP (RFC 1812 §4.3.2.3).
const QUOTED_OWN: usize = 520;

/// Returns the message of ICMP that leaves for what an application has written: `Some(None)` if it may not
/// leave, `None` if the socket is one of UDP.
fn message<M: Memory>(
    protocol: Protocol,
    tuple: &FourTuple,
    text: &TextRef<'_, M>,
) -> Option<Option<Vec<u8>>> {
    match protocol {
        Protocol::Icmp => Some(echo::request(tuple, text)),
        Protocol::Raw => Some(raw::message(tuple, text)),
        Protocol::Tcp | Protocol::Udp => None,
    }
}

/// Sends the first datagram of a socket.
fn send_first<M: Memory>(
    ip: &mut Ip,
    socket: &mut Datagram,
    leaving: &Leaving,
    text: TextRef<'_, M>,
    out: &mut impl FrameSink<M>,
) -> Result<(), Unsent> {
    let Leaving { way, protocol, tuple, cut, .. } = leaving;
    let ends = (*protocol, tuple);
    if leaving.is_looped && !socket.has_looped() {
        // This copy is for the members on this machine: the owner of the flow gives it to all.
        let inside = Way { internal: true, mac: ip.mac(), ..*way };
        let whole = Cut::Whole { dont_fragment: true };
        if ip.is_member(Link::Inside, tuple.remote.addr) {
            send_datagram(ip, &inside, ends, whole, text.again(), &mut None, out)?;
        }
        socket.set_looped();
    }
    if leaving.stays {
        return Ok(());
    }
    let mut progress = socket.progress();
    let sent = send_datagram(ip, way, ends, *cut, text, &mut progress, out);
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

/// Why a datagram was not sent.
enum Unsent {
    /// The link has not taken it, or only a part of it.
    Full,
    /// It is no echo request, or nothing that a raw socket may send.
    Invalid,
}

// structure: send_datagram: a datagram has as many facts
/// Writes the headers of one datagram and gives it to the link. `progress` is how much of it the link has
/// taken.
fn send_datagram<M: Memory>(
    ip: &mut Ip,
    way: &Way,
    (protocol, tuple): (Protocol, &FourTuple),
    cut: Cut,
    text: TextRef<'_, M>,
    progress: &mut Option<Progress>,
    out: &mut impl FrameSink<M>,
) -> Result<(), Unsent> {
    let message = match message(protocol, tuple, &text) {
        Some(message) => Some(message.ok_or(Unsent::Invalid)?),
        None => None,
    };
    let packet = Outgoing {
        dst_mac: way.mac,
        src: tuple.local.addr,
        dst: tuple.remote.addr,
        protocol: if message.is_some() { echo::protocol(tuple) } else { WireProtocol::UDP },
        payload_len: message.as_ref().map_or(udp::HEADER_LEN + text.len(), Vec::len),
        tos: way.tos,
        ttl: way.ttl,
        dont_fragment: cut == Cut::Whole { dont_fragment: true },
    };
    if let Cut::Fragments(mtu) = cut {
        let datagram = message.unwrap_or_else(|| sealed(tuple, &text));
        *progress = send_fragments(ip, way, &packet, &datagram, *progress, mtu, out);
        return if progress.is_some() { Err(Unsent::Full) } else { Ok(()) };
    }
    let mut headers = [0u8; HEADERS_LEN_MAX + udp::HEADER_LEN];
    let start = headers_len(tuple.remote.addr);
    ip.emit_headers(&mut headers, &packet);
    let taken = match message {
        // A network card completes the checksums of TCP and UDP; that of ICMP is made here.
        Some(message) => give(way, &headers[..start], TextRef::Slice(&message), Offload::default(), out),
        None => {
            let sum =
                checksum::pseudo_header_of(packet.src, packet.dst, packet.protocol.0, packet.payload_len);
            let header = udp::Header {
                src_port: tuple.local.port,
                dst_port: tuple.remote.port,
                // It is at most DATAGRAM_MAX, or DATAGRAM_MAX_V4.
                payload_len: text.len() as u16,
                checksum: sum.fold(),
            };
            udp::emit(&header, &mut headers[start..]);
            let offload = Offload {
                needs_checksum: true,
                csum_start: start as u16,
                csum_offset: udp::CHECKSUM_AT as u16,
                gso_size: None,
            };
            give(way, &headers[..start + udp::HEADER_LEN], text, offload, out)
        }
    };
    if taken {
        return Ok(());
    }
    *progress = None;
    Err(Unsent::Full)
}

/// Gives a frame to the link that `way` names. Returns `false` if it does not take it.
fn give<M: Memory>(
    way: &Way,
    headers: &[u8],
    text: TextRef<'_, M>,
    offload: Offload,
    out: &mut impl FrameSink<M>,
) -> bool {
    if way.internal { out.send_internal(headers, text, offload) } else { out.send(headers, text, offload) }
}
