//! One step of send(2) and recv(2). Each step copies what is there or fits, and reports whether the call
//! would wait.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::num::NonZeroU16;

use atoll_base::{Addr, Endpoint};
use atoll_ipc::command::Protocol;
use atoll_ipc::command::SocketOption;
use atoll_ipc::datagram::{DATAGRAM_MAX, ECHO_HEADER};
use atoll_ipc::details::TimeOfDay;
use atoll_ipc::{Details, Device};

use super::Client;
use super::connecting::NO_PORT;
use super::multicast::is_group;
use super::object::{Corked, Datagram, Kind, Place, Socket};
use super::platform::Platform;
use crate::ancillary::{self, Addressed, Ancillary, Queued, Told, Written};
use crate::datagram::{Datagrams, Outgoing, Waiting};
use crate::options::{Name, Options};
use crate::stream::{Readable, Stream, Writable, peeked, taken};
use crate::{Errno, Failure};

/// The number of octets that are copied before the replica is notified: it sends them while the rest is
/// copied.
pub const AT_ONCE: usize = 256 << 10;

/// The result of a call that receives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// The number of octets copied; with MSG_TRUNC, the length of the datagram.
    pub len: usize,
    /// The sender of a datagram, and whether the socket is one of AF_INET6.
    pub peer: Option<(Endpoint, bool)>,
    /// Whether the datagram was longer than the room for it.
    pub truncated: bool,
    /// Whether the octet is an urgent one.
    pub urgent: bool,
    /// What is known of the packet of a datagram, if the socket has asked for that.
    pub details: Option<Details>,
    /// The octets of each of several datagrams (`UDP_GRO`).
    pub segment: Option<u16>,
    /// What was received from the error queue instead of a datagram (`MSG_ERRQUEUE`).
    // In a box, because it is large and rare, and each call that receives returns this.
    pub queued: Option<Box<Queued>>,
}

/// The flags of recv(2).
#[derive(Clone, Copy, Debug, Default)]
pub struct Receiving {
    /// The flag `MSG_PEEK`.
    pub peek: bool,
    /// The flag `MSG_WAITALL`.
    pub wait_all: bool,
    /// The flag `MSG_TRUNC`.
    pub truncate: bool,
    /// The flag `MSG_DONTWAIT`.
    pub dont_wait: bool,
}

/// The flags of send(2).
#[derive(Clone, Copy, Debug, Default)]
pub struct Sending {
    /// The flag `MSG_MORE`.
    pub more: bool,
    /// The flag `MSG_OOB`.
    pub urgent: bool,
}

/// What takes the first octets that a call sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// They follow others, or the handshake.
    Segment,
    /// A SYN that has waited for them (TCP Fast Open): the connection is under way from now on.
    Syn,
}

/// What a call of a datagram socket receives next.
struct Next {
    /// The index of its place.
    at: usize,
    /// The datagram, or the error.
    waiting: Waiting,
    /// The octet with which the call begins.
    from: usize,
}

/// ip(7), ipv6(7): the values of `IP_MTU_DISCOVER` and `IPV6_MTU_DISCOVER` with which datagrams larger than
/// the link's MTU leave in fragments: `IP_PMTUDISC_DONT`, `IP_PMTUDISC_WANT`, `IP_PMTUDISC_OMIT`.
const FRAGMENTING: [u32; 3] = [0, 1, 5];
/// Octets of the IPv4 and UDP headers.
const HEADERS: usize = 28;
/// Octets of the IPv6 and UDP headers.
const HEADERS_V6: usize = 48;
/// The MTU of the loopback, as on Linux.
const LOOPBACK_MTU: usize = 65536;
/// The types of echo requests: RFC 792, RFC 4443 §4.1.
const ECHO_REQUEST: u8 = 8;
const ECHO_REQUEST_V6: u8 = 128;
/// Linux's `UDP_MAX_SEGMENTS`.
const SEGMENTS_MAX: usize = 128;

impl<P: Platform> Client<P> {
    /// Copies received octets of a stream to `targets`, which have room for `want` octets, of which the call
    /// has filled `done` already, and returns how many the call has received in all. With
    /// [`Receiving::wait_all`], `done` grows although the call would wait.
    // structure: receive_octets: the steps of tcp_recvmsg, whose order counts, in one function on the fast path
    // As `Stream::readable`.
    #[inline(always)]
    pub fn receive_octets<'b, I: Iterator<Item = &'b mut [u8]>>(
        &mut self,
        object: u32,
        targets: impl FnOnce() -> I,
        want: usize,
        how: Receiving,
        done: &mut usize,
    ) -> Result<usize, Failure> {
        let is_urgent = self.has_signals();
        let turn = self.turn(object)?;
        let Some((stream, local, place)) = self.stream(object) else { return Err(Errno::ENOTCONN.into()) };
        if want == 0 {
            return if stream.is_connecting() { Err(Failure::WouldBlock) } else { Ok(0) };
        }
        let skip = if how.peek { local.peek.unwrap_or(0).into() } else { 0 };
        if stream.is_mark_behind(local, skip) {
            if *done > 0 {
                // tcp(7): no call reads beyond the mark.
                return Ok(*done);
            }
            if is_urgent {
                // As on Linux: the handler of SIGURG comes first, which may want the octet.
                return Err(Failure::WouldBlock);
            }
        }
        let found = stream.readable_from(local, skip);
        if local.pass.is_some() {
            let kick = !how.peek && stream.pass(local);
            local.pass = None;
            drop(turn);
            if kick {
                self.kick(place);
            }
            return found.map(|_| *done);
        }
        let readable = match found {
            Err(Failure::Error(_)) if *done > 0 => {
                // The next call reports it.
                local.error_taken = false;
                return Ok(*done);
            }
            result => result?,
        };
        if readable.len == 0 {
            return Ok(*done);
        }
        let low = if how.peek || how.wait_all { 1 } else { want.min(local.receive_low.max(1) as usize) };
        if readable.len < low as u64 && !readable.is_cut && !stream.has_ended() && !how.dont_wait {
            return Err(Failure::WouldBlock);
        }
        let take = (want - *done).min(usize::try_from(readable.len).unwrap_or(usize::MAX));
        let end = readable.head + take as u64;
        // tcp(7): with MSG_TRUNC octets are discarded instead of copied.
        if !how.truncate && !copy_out::<P>(&stream, &readable, end, *done, targets())? {
            return Err(stream.error().unwrap_or(Errno::ECONNRESET).into());
        }
        if how.peek {
            if how.wait_all && take < want && !stream.has_ended() && !how.dont_wait {
                return Err(Failure::WouldBlock);
            }
            local.has_peeked(take);
            return Ok(take);
        }
        let kick = stream.consume(end);
        local.has_taken(take);
        *done += take;
        let goes_on = how.wait_all && *done < want && !stream.has_ended();
        drop(turn);
        if kick {
            self.kick(place);
        }
        if goes_on {
            return Err(Failure::WouldBlock);
        }
        Ok(*done)
    }

    /// Copies the next datagram to `targets`; with `UDP_GRO`, also those of its size that follow it.
    pub fn receive_datagram<'b, I: Iterator<Item = &'b mut [u8]>>(
        &mut self,
        object: u32,
        targets: impl Fn() -> I,
        how: Receiving,
    ) -> Result<Received, Failure> {
        if let Some(errno) = self.take_error(object) {
            return Err(errno.into());
        }
        let turn = self.turn(object)?;
        let Some(Socket { kind: Kind::Datagram(datagram), v6, options, .. }) = self.socket(object) else {
            return Err(Errno::EBADF.into());
        };
        let (v6, merges) = (*v6, options.is_on(Name::Merge));
        let is_shut = datagram.shut_receive;
        if let Some(Next { at, waiting, from }) = self.next_datagram(datagram, how, options.peek_offset()) {
            let place = datagram.places[at];
            let Some(socket) = self.datagrams(place) else { return Err(Errno::EBADF.into()) };
            if waiting.fault.is_some() {
                drop(turn);
                self.take_faults_at(object, place)?;
                // It is the next thing that the call would have received.
                return self.receive_datagram(object, targets, how);
            }
            let copied = copy_datagram::<P>(&socket, &waiting, from, 0, targets());
            let mut done = copied.unwrap_or(0);
            let truncated = done < waiting.len - from;
            let (mut last, mut segment) = (waiting, None);
            if merges && !truncated && copied.is_ok() {
                let room = targets().map(|target| target.len()).sum::<usize>().min(DATAGRAM_MAX as usize);
                while let Some(next) = socket.waiting_behind(&last).filter(|_| last.len == waiting.len)
                    && next.can_follow(&waiting)
                    && done + next.len <= room
                    && let Ok(copied) = copy_datagram::<P>(&socket, &next, 0, done, targets())
                {
                    done += copied;
                    last = next;
                    segment = u16::try_from(waiting.len).ok();
                }
            }
            let kick = !how.peek && socket.consume(&waiting, &last);
            drop(turn);
            if kick {
                self.kick(place);
            }
            let len = match how.truncate {
                true if truncated => waiting.len,
                true => from + done,
                false => done,
            };
            self.note_received(object, (at, &waiting, &last), how.peek, copied.ok().map(|_| len));
            // udp_recvmsg: such a datagram is lost.
            copied?;
            // udp_recvmsg: a part of a datagram that fills the room counts as cut off.
            let is_full = from > 0 && targets().map(|target| target.len()).sum::<usize>() == done;
            let truncated = truncated || is_full;
            let peer = Some((waiting.peer, v6));
            let details = waiting.details.map(|details| self.with_all_dropped(object, at, details));
            return Ok(Received { len, peer, truncated, urgent: false, details, segment, queued: None });
        }
        // As on Linux, nothing more will come for a call that waits; a call that does not wait gets EAGAIN as
        // ever.
        let waits = !how.dont_wait && !self.is_nonblocking(object);
        if is_shut && waits { Ok(Received::default()) } else { Err(Failure::WouldBlock) }
    }

    /// Notes that a call has received, or peeked at, the datagrams from `first` to `last` of a place. It
    /// returns `len`, or fails.
    fn note_received(
        &mut self,
        object: u32,
        (at, first, last): (usize, &Waiting, &Waiting),
        is_peek: bool,
        len: Option<usize>,
    ) {
        let Some(Socket { kind: Kind::Datagram(datagram), options, .. }) = self.socket_mut(object) else {
            return;
        };
        if !is_peek {
            datagram.next = (at + 1) % datagram.places.len().max(1);
            datagram.forget_peeked(at, last.position());
        } else if first.len == 0 {
            datagram.note_peeked(at, first);
        }
        let came = first.details.and_then(|details| details.came);
        datagram.stamp = datagram.stamp.after(options.value(Name::Times), came);
        if let (Some(offset), Some(len)) = (options.peek_offset(), len) {
            options.set_peek_offset(if is_peek { peeked(offset, len) } else { taken(offset, len) });
        }
    }

    /// Returns what the next call of a datagram socket receives. With MSG_PEEK and an `offset` it passes so
    /// many octets (Linux's `__skb_try_recv_from_queue`).
    fn next_datagram(&self, datagram: &Datagram, how: Receiving, offset: Option<u32>) -> Option<Next> {
        let count = datagram.places.len();
        // Replicas take turns, so that none is starved.
        let mut order = (0..count).map(|i| (datagram.next + i) % count);
        match offset.filter(|_| how.peek) {
            None => order.find_map(|at| {
                let waiting = self.datagrams(datagram.places[at])?.waiting()?;
                Some(Next { at, waiting, from: 0 })
            }),
            Some(offset) => self.datagram_behind(datagram, offset as usize),
        }
    }

    /// Returns the details of a datagram that has come by the `at`th place, with what all replicas have
    /// dropped, if the socket asks for that (`SO_RXQ_OVFL`): the record counts those of its own replica.
    fn with_all_dropped(&self, object: u32, at: usize, details: Details) -> Details {
        let Some(socket) = self.socket(object).filter(|socket| socket.options.is_on(Name::Drops)) else {
            return details;
        };
        let others = socket.places().iter().enumerate().filter(|(other, _)| *other != at);
        let of_others = others.filter_map(|(_, place)| Some(self.slot_of(*place)?.dropped()));
        Details { dropped: of_others.fold(details.dropped, u32::wrapping_add), ..details }
    }

    /// Returns the datagram that has the octet behind `left` others, in the order in which calls take them.
    #[cold]
    fn datagram_behind(&self, datagram: &Datagram, mut left: usize) -> Option<Next> {
        let count = datagram.places.len();
        let waiting = |place: &Place| self.datagrams(*place).and_then(|socket| socket.waiting());
        let mut heads: Vec<Option<Waiting>> = datagram.places.iter().map(waiting).collect();
        if let Some(at) = heads.iter().position(|head| head.is_some_and(|head| head.fault.is_some())) {
            return Some(Next { at, waiting: heads[at]?, from: 0 });
        }
        let mut at = datagram.next % count.max(1);
        loop {
            at = (0..count).map(|i| (at + i) % count).find(|at| heads[*at].is_some())?;
            let head = heads[at]?;
            let is_passed = left > 0 || datagram.peeked.contains(&(at, head.position()));
            // An error is no datagram.
            if head.fault.is_none() && (left < head.len || !is_passed) {
                return Some(Next { at, waiting: head, from: left });
            }
            left -= if head.fault.is_some() { 0 } else { head.len };
            heads[at] = self.datagrams(datagram.places[at])?.waiting_behind(&head);
            at = (at + 1) % count;
        }
    }

    /// Writes the control messages of what was received, as the options of the socket ask for them.
    pub fn write_control(&self, object: u32, received: &Received, out: &mut [u8]) -> Written {
        let Some(socket) = self.socket(object) else { return Written::default() };
        let told = Told {
            options: &socket.options,
            v6: socket.v6,
            port: socket.local.port,
            own_v4: self.own().and_then(|session| session.v4()).map(|own| own.addr),
            details: received.details,
            came: socket.options.is_on(Name::Times).then(|| self.came(received)).flatten(),
            segment: received.segment,
            queued: received.queued.as_deref().copied(),
            left: self.left(socket).filter(|_| received.queued.is_none() && !received.urgent),
        };
        ancillary::write(&told, out)
    }

    /// Returns the octets that a connection still has, if it tells (`TCP_INQ`). As on Linux, the FIN of the
    /// peer is one, so that the program goes on to read.
    fn left(&self, socket: &Socket) -> Option<u32> {
        let Kind::Stream(place, _) = &socket.kind else { return None };
        let stream = self.stream_at(*place).filter(|_| socket.options.is_on(Name::ReceiveInq))?;
        let waiting = stream.waiting() + u64::from(stream.has_fin());
        Some(u32::try_from(waiting).unwrap_or(u32::MAX))
    }

    /// Returns when something came: as on Linux, now, if it came before the socket has asked.
    fn came(&self, received: &Received) -> Option<TimeOfDay> {
        let noted = match received.queued.as_deref() {
            Some(Queued::Fault(fault)) => fault.came(),
            Some(Queued::Copied(_) | Queued::TooLong(_)) => None,
            None => received.details.and_then(|details| details.came),
        };
        noted.or_else(|| self.time_of_day())
    }

    /// Copies what fits of the `want` octets of `sources` to a stream, behind the `done` octets that the call
    /// has sent already. Returns Ok when the call has nothing more to do.
    #[inline]
    pub fn send_octets<'b, I: Iterator<Item = &'b [u8]>>(
        &mut self,
        object: u32,
        sources: impl Fn() -> I,
        want: usize,
        how: Sending,
        done: &mut usize,
    ) -> Result<Carrier, Failure> {
        let mut carrier = Carrier::Segment;
        loop {
            let turn = self.turn(object)?;
            let Some((stream, local, place)) = self.stream(object) else {
                return Err(Errno::ENOTCONN.into());
            };
            if want == 0 {
                return stream.refusal(local).map_or(Ok(carrier), |errno| Err(errno.into()));
            }
            let (mut filled, mut is_nowhere) = (0, false);
            while *done < want && filled < AT_ONCE {
                let room = match stream.writable(local, want - *done) {
                    Ok(room) => room,
                    Err(Failure::WouldBlock) => break,
                    Err(failure) if *done == 0 => return Err(failure),
                    Err(_) => {
                        // The next call reports it.
                        local.error_taken = false;
                        break;
                    }
                };
                let copied = copy_in::<P>(&stream, &room, *done, sources());
                is_nowhere = copied.is_none();
                let now = copied.unwrap_or(0);
                if now > 0 && stream.opens_with(&room) {
                    carrier = Carrier::Syn;
                }
                if how.urgent {
                    stream.commit_urgent(&room, now)
                } else {
                    stream.commit(&room, now)
                }
                filled += now;
                *done += now;
                if now == 0 {
                    break;
                }
            }
            let is_over = stream.is_closed();
            let starved = core::mem::take(&mut local.starved);
            drop(turn);
            if carrier == Carrier::Syn {
                self.note_under_way(object);
            }
            self.after_sending(object, place, filled, how.more);
            if is_nowhere && *done == 0 {
                return Err(Errno::EFAULT.into());
            }
            if *done >= want || is_over || is_nowhere {
                return Ok(carrier);
            }
            // Octets that did not fit this round may fit the next one: a call that sleeps beside free room
            // would not be woken.
            if filled < AT_ONCE && !(starved && self.find_memory(object)) {
                return Err(Failure::WouldBlock);
            }
        }
    }

    /// Notifies the replica of octets that were put on a stream, and ends an earlier call's MSG_MORE unless
    /// `more`.
    #[inline]
    pub fn after_sending(&mut self, object: u32, place: Place, filled: usize, more: bool) {
        if filled == 0 {
            return;
        }
        self.note_sent(object);
        if more {
            self.cork_for_more(object);
        }
        self.kick(place);
        if !more {
            self.uncork_after_more(object);
        }
    }

    /// Corks the socket for MSG_MORE, until the next call without it.
    fn cork_for_more(&mut self, object: u32) {
        if self.socket(object).is_some_and(|socket| socket.options.is_on(Name::Cork)) {
            return;
        }
        self.send_option(object, SocketOption::Cork, 1);
        if let Some(socket) = self.socket_mut(object) {
            socket.more = true;
        }
    }

    /// Ends what [`Client::cork_for_more`] began, after the octets that follow.
    #[inline]
    fn uncork_after_more(&mut self, object: u32) {
        if let Some(socket) = self.socket_mut(object)
            && socket.more
        {
            socket.more = false;
            if !socket.options.is_on(Name::Cork) {
                self.send_option(object, SocketOption::Cork, 0);
            }
        }
    }

    /// Sends `len` octets to the receiver that `to` names, or to the peer of the socket: one datagram, or
    /// several with `UDP_SEGMENT`. With `more` the next call continues what this one has begun, with its
    /// receiver and control messages (`MSG_MORE`).
    pub fn send_datagram<'b>(
        &mut self,
        object: u32,
        sources: impl Iterator<Item = &'b [u8]>,
        len: usize,
        to: Addressed<'_>,
        more: bool,
    ) -> Result<(), Failure> {
        let result = self.send_or_keep(object, sources, len, to, more);
        if result == Err(Errno::EMSGSIZE.into()) {
            self.note_too_long(object, to, len);
        }
        result
    }

    fn send_or_keep<'b>(
        &mut self,
        object: u32,
        sources: impl Iterator<Item = &'b [u8]>,
        len: usize,
        to: Addressed<'_>,
        more: bool,
    ) -> Result<(), Failure> {
        let Some(socket) = self.socket(object) else { return Err(Errno::EBADF.into()) };
        let Kind::Datagram(datagram) = &socket.kind else { return Err(Errno::EBADF.into()) };
        if datagram.corked.is_none() && to.peer.is_none() && !datagram.connected {
            return Err(Errno::EDESTADDRREQ.into());
        }
        let is_icmp = socket.protocol.is_icmp();
        if to.peer.is_some_and(|peer| peer.port == 0) && !is_icmp {
            return Err(Errno::EINVAL.into());
        }
        // ping_v4_sendmsg: each call sends one message.
        let more = (more || socket.options.is_on(Name::CorkUdp)) && socket.protocol != Protocol::Icmp;
        let outgoing = match &datagram.corked {
            Some(corked) => outgoing_of(corked, socket),
            None => self.outgoing(socket, to)?,
        };
        let len = len + datagram.corked.as_ref().map_or(0, |corked| corked.octets.len());
        if len > outgoing.len_max() && datagram.corked.is_none() {
            return Err(Errno::EMSGSIZE.into());
        }
        if datagram.corked.is_none() && to.peer.is_some() {
            self.check_way(socket, outgoing.to.addr)?;
        }
        // sock_alloc_send_pskb: an error that waits is told by a call with which nothing else is wrong.
        if let Some(errno) = self.take_error(object) {
            return Err(errno.into());
        }
        let Some(socket) = self.socket(object) else { return Err(Errno::EBADF.into()) };
        let Kind::Datagram(datagram) = &socket.kind else { return Err(Errno::EBADF.into()) };
        // raw_sendmsg does not look.
        if datagram.shut_send && socket.protocol != Protocol::Raw {
            return Err(Errno::EPIPE.into());
        }
        let corked = datagram.corked.as_ref();
        if !more && corked.is_none() {
            return self.send_one(object, &outgoing, sources, len);
        }
        let mut octets = corked.map_or_else(Vec::new, |corked| corked.octets.clone());
        let result = if len > outgoing.len_max() {
            Err(Errno::EMSGSIZE.into())
        } else {
            sources.for_each(|source| octets.extend_from_slice(source));
            if more { Ok(()) } else { self.send_one(object, &outgoing, core::iter::once(&octets[..]), len) }
        };
        if let Some(Socket { kind: Kind::Datagram(datagram), .. }) = self.socket_mut(object) {
            let Outgoing { to, details, segment, .. } = outgoing;
            let details = details.map(|details| details.encode());
            let segment = segment.map_or(0, NonZeroU16::get);
            match &result {
                Err(Failure::WouldBlock) => {}
                // As on Linux, a datagram that has failed is dropped as a whole.
                _ => {
                    datagram.corked =
                        (more && result.is_ok()).then_some(Corked { to, octets, details, segment });
                }
            }
        }
        result
    }

    /// Sends what a call has written, or several have with `MSG_MORE`. A message of ICMP is judged first:
    /// see [`check_message`].
    fn send_one<'b>(
        &mut self,
        object: u32,
        outgoing: &Outgoing,
        sources: impl Iterator<Item = &'b [u8]>,
        len: usize,
    ) -> Result<(), Failure> {
        if !outgoing.message {
            return self.send_whole(object, outgoing, sources, len);
        }
        if len > outgoing.len_max() {
            return Err(Errno::EMSGSIZE.into());
        }
        let mut message = Vec::with_capacity(len);
        sources.for_each(|source| message.extend_from_slice(source));
        let is_raw = self.socket(object).is_some_and(|socket| socket.protocol == Protocol::Raw);
        check_message(&message, is_raw, outgoing.to.addr.is_v4())?;
        self.send_whole(object, outgoing, core::iter::once(&message[..]), len)
    }

    /// Returns where and how a call sends what it has, from its control messages and the socket's options.
    fn outgoing(&self, socket: &Socket, addressed: Addressed<'_>) -> Result<Outgoing, Errno> {
        let mut to = addressed.peer.unwrap_or(socket.remote);
        let message = socket.protocol.is_icmp();
        if message {
            // A receiver has a port, or the socket's peer is meant.
            to.port = NO_PORT;
        }
        let asked = match addressed.control {
            [] => Ancillary::default(),
            control => ancillary::parse(control, to.addr)?,
        };
        if let Some(own) = asked.details.map(|details| details.own).filter(|own| !own.is_unspecified()) {
            // ip_route_output_key_hash_rcu and ip6_datagram_send_ctl: nobody sends from another's address.
            let is_own =
                own.is_v4() == to.addr.is_v4() && self.own().is_some_and(|session| session.is_own(own));
            if !is_own {
                return Err(if to.addr.is_v4() { Errno::ENETUNREACH } else { Errno::EINVAL });
            }
        }
        let details = with_hops(&socket.options, to.addr, asked.details);
        let segment = asked.segment.unwrap_or(socket.options.value(Name::Segment) as u16);
        let segment = NonZeroU16::new(segment).filter(|_| !message);
        let broadcast = socket.options.is_on(Name::Broadcast);
        Ok(Outgoing { to, broadcast, details, segment, message })
    }

    fn send_whole<'b>(
        &mut self,
        object: u32,
        outgoing: &Outgoing,
        sources: impl Iterator<Item = &'b [u8]>,
        len: usize,
    ) -> Result<(), Failure> {
        let Some(socket) = self.socket(object) else { return Err(Errno::EBADF.into()) };
        let Kind::Datagram(datagram) = &socket.kind else { return Err(Errno::EBADF.into()) };
        if len > outgoing.len_max() {
            return Err(Errno::EMSGSIZE.into());
        }
        // Without a place, or with one in a session that is over, the socket waits for a stack that went.
        let sender = datagram.sender % datagram.places.len().max(1);
        let is_there = |place: &&Place| self.sessions.get(place.session).is_some_and(|it| !it.is_over());
        let place = *datagram.places.get(sender).filter(is_there).ok_or(Errno::ENETDOWN)?;
        if let Some(segment) = outgoing.segment.map(|segment| usize::from(segment.get())) {
            self.check_segments(socket, outgoing.to.addr, segment, len)?;
        }
        let header = if outgoing.message { ECHO_HEADER as usize } else { 0 };
        let one = outgoing.segment.map_or(len - len.min(header), |segment| len.min(segment.get().into()));
        self.check_route(socket, one, outgoing.to)?;
        let turn = self.turn(object)?;
        let Some(datagrams) = self.datagrams(place) else { return Err(Errno::EBADF.into()) };
        datagrams.send(outgoing, len, sources)?;
        drop(turn);
        self.kick(place);
        Ok(())
    }

    /// Checks the sizes of a call that sends several datagrams (Linux's `udp_send_skb`).
    fn check_segments(&self, socket: &Socket, to: Addr, segment: usize, len: usize) -> Result<(), Errno> {
        let session = self.own().ok_or(Errno::ENETDOWN)?;
        let is_inside = session.is_own(to) || to.is_loopback();
        let path = if is_inside { LOOPBACK_MTU } else { session.mtu_for(to) };
        let mtu = packet_max(socket, to, path);
        let headers = if to.is_v4() { HEADERS } else { HEADERS_V6 };
        if headers + segment.min(len) > mtu {
            return Err(Errno::EMSGSIZE);
        }
        if len > segment * SEGMENTS_MAX { Err(Errno::EINVAL) } else { Ok(()) }
    }

    /// Checks that there is a way for a datagram to one host, and that the socket may take it: udp_sendmsg,
    /// ip_route_output_key_hash_rcu. A peer was checked by connect(2).
    pub(super) fn check_way(&self, socket: &Socket, to: Addr) -> Result<(), Errno> {
        let session = self.own().ok_or(Errno::ENETDOWN)?;
        self.check_device(socket, to)?;
        if socket.options.device() == Device::Loopback && !session.is_broadcast(to) {
            return Ok(());
        }
        if to.is_loopback() || to.is_unspecified() || session.is_own(to) || to.is_v6_multicast() {
            return Ok(());
        }
        if session.is_broadcast(to) {
            return if socket.options.is_on(Name::Broadcast) { Ok(()) } else { Err(Errno::EACCES) };
        }
        if to.to_v4().is_some_and(is_group) {
            return Ok(());
        }
        if !session.reaches(to) {
            return Err(Errno::ENETUNREACH);
        }
        // __mkroute_output: nothing leaves from there.
        if to.is_v4() && socket.local.is_loopback() && socket.local.addr.is_v4() {
            return Err(Errno::EINVAL);
        }
        Ok(())
    }

    /// Fails if a socket that is bound to a device has no way to `to` there. Over IPv6 that is so where
    /// another device leads to it (ip6_route_output). Over IPv4 Linux sends all the same, and what it sends
    /// is lost, but nothing leaves over the link from an address of the loopback (`__mkroute_output`).
    pub(super) fn check_device(&self, socket: &Socket, to: Addr) -> Result<(), Errno> {
        let to = if to.is_unspecified() { to.loopback_of_family() } else { to };
        match socket.options.device() {
            Device::None => Ok(()),
            Device::Loopback if to.is_v4() || to.is_loopback() || to.is_v6_multicast() => Ok(()),
            Device::Loopback => Err(Errno::ENETUNREACH),
            Device::Link if !to.is_loopback() => Ok(()),
            Device::Link if !to.is_v4() => Err(Errno::ENETUNREACH),
            Device::Link if socket.local.is_loopback() => Err(Errno::EINVAL),
            Device::Link => Ok(()),
        }
    }

    /// Returns the octets of the largest packet of a socket to `to`, as `ee_info` tells it.
    pub(super) fn packet_max_to(&self, socket: &Socket, to: Addr) -> u32 {
        let Some(session) = self.own() else { return 0 };
        let is_inside = session.is_own(to) || to.is_loopback();
        let path = if is_inside { LOOPBACK_MTU } else { session.mtu_for(to) };
        let max = packet_max(socket, to, path);
        // Cannot truncate: it is at most the size of a packet. That of IPv4 has 16 bits.
        if to.is_v4() { max.min(u16::MAX.into()) as u32 } else { max as u32 }
    }

    /// Returns whether a datagram of `len` octets can leave the stack, as far as this process knows.
    fn check_route(&self, socket: &Socket, len: usize, to: Endpoint) -> Result<(), Errno> {
        let session = self.own().ok_or(Errno::ENETDOWN)?;
        let options = &socket.options;
        if session.is_cut_off(to.addr) {
            return Err(Errno::ENETUNREACH);
        }
        let (discover, headers) = match to.addr.is_v4() {
            true => (Name::MtuDiscover, HEADERS),
            false => (Name::MtuDiscoverV6, HEADERS_V6),
        };
        let is_whole =
            options.set_value(discover).is_some_and(|value| !FRAGMENTING.contains(&(value as u32)))
                || (options.is_on(Name::DontFragmentV6) && !to.addr.is_v4());
        let is_inside = session.is_own(to.addr) || to.addr.is_loopback();
        let path = if is_inside { usize::MAX } else { session.mtu_for(to.addr) };
        if is_whole && len + headers > packet_max(socket, to.addr, path) {
            return Err(Errno::EMSGSIZE);
        }
        Ok(())
    }
}

/// Checks that a socket may send a message of ICMP. A datagram socket sends echo requests alone, and fails
/// with EINVAL for anything else (ping_common_sendmsg); the replica writes identifier and checksum. A raw
/// socket fails with EPERM for what only the stack says, and for what is too short as on Linux
/// (raw_probe_proto_opt, rawv6_push_pending_frames).
fn check_message(message: &[u8], is_raw: bool, is_v4: bool) -> Result<(), Errno> {
    if !is_raw {
        let echo = [if is_v4 { ECHO_REQUEST } else { ECHO_REQUEST_V6 }, 0];
        let is_request = message.len() >= ECHO_HEADER as usize && message[..2] == echo;
        return if is_request { Ok(()) } else { Err(Errno::EINVAL) };
    }
    let [kind, _] = *message.first_chunk().ok_or(Errno::EFAULT)?;
    match is_v4 {
        true => Ok(()),
        false if message.len() < 4 => Err(Errno::EINVAL),
        false if Protocol::is_of_link(kind) => Err(Errno::EPERM),
        false => Ok(()),
    }
}

/// Returns what a datagram to one host says of its packet, with the TTL that the socket has now: the replica
/// may send it when the program has set another one already, as traceroute does.
fn with_hops(options: &Options, to: Addr, asked: Option<Details>) -> Option<Details> {
    let is_group = to.is_v6_multicast() || to.to_v4().is_some_and(is_group);
    let name = if to.is_v4() { Name::TimeToLive } else { Name::Hops };
    let ttl = options.set_value(name).and_then(|ttl| u8::try_from(ttl).ok()).filter(|_| !is_group);
    match asked {
        Some(details) if details.ttl.is_some() => asked,
        _ if ttl.is_none() => asked,
        _ => Some(Details { ttl, ..asked.unwrap_or_default() }),
    }
}

/// Returns where and how a datagram leaves that `MSG_MORE` has held back.
fn outgoing_of(corked: &Corked, socket: &Socket) -> Outgoing {
    Outgoing {
        to: corked.to,
        broadcast: socket.options.is_on(Name::Broadcast),
        details: corked.details.as_ref().and_then(|details| Details::decode(details).ok()),
        segment: NonZeroU16::new(corked.segment),
        message: socket.protocol.is_icmp(),
    }
}

/// Returns the size in octets of the largest packet to `to` over a path that takes `path` octets.
fn packet_max(socket: &Socket, to: Addr, path: usize) -> usize {
    match socket.options.value(Name::MtuV6) as usize {
        size if size > 0 && !to.is_v4() => path.min(size),
        _ => path,
    }
}

/// Copies a datagram from its octet `from` on to `targets`, behind their first `before` octets. Returns how
/// much of it fitted; fails with EFAULT if the program has no memory there.
fn copy_datagram<'b, P: Platform>(
    socket: &Datagrams<'_, P::Memory>,
    waiting: &Waiting,
    from: usize,
    mut before: usize,
    targets: impl Iterator<Item = &'b mut [u8]>,
) -> Result<usize, Errno> {
    let mut done = 0;
    for target in targets {
        let start = before.min(target.len());
        before -= start;
        let len = (target.len() - start).min(waiting.len - from - done);
        let room = &mut target[start..start + len];
        if len > 0 && !P::can_write(room) {
            return Err(Errno::EFAULT);
        }
        done += socket.copy_out(waiting, from + done, room);
        if done == waiting.len - from {
            break;
        }
    }
    Ok(done)
}

/// Copies octets of `sources`, behind the first `skip` of them, to the room of a stream. Returns how many;
/// `None` if some are nowhere. As on Linux, nothing of such a piece is sent; what was reserved for it is
/// kept.
#[inline]
fn copy_in<'b, P: Platform>(
    stream: &Stream<'_, P::Memory>,
    room: &Writable,
    mut skip: usize,
    sources: impl Iterator<Item = &'b [u8]>,
) -> Option<usize> {
    let mut now = 0;
    for source in sources {
        let start = skip.min(source.len());
        skip -= start;
        let len = (source.len() - start).min(room.len - now);
        let octets = &source[start..start + len];
        if len > 0 && !P::can_read(octets) {
            return None;
        }
        stream.copy_in(room, now, octets);
        now += len;
        if now == room.len {
            break;
        }
    }
    Some(now)
}

/// Copies the octets of a stream up to `end` to `targets`, behind the first `skip` octets of these. Returns
/// false if the replica has taken them away; fails with EFAULT if the program has no memory there.
// As `Stream::readable`.
#[inline(always)]
fn copy_out<'b, P: Platform>(
    stream: &Stream<'_, P::Memory>,
    readable: &Readable,
    end: u64,
    mut skip: usize,
    targets: impl Iterator<Item = &'b mut [u8]>,
) -> Result<bool, Errno> {
    let mut at = readable.head;
    for target in targets {
        let start = skip.min(target.len());
        skip -= start;
        let len = (target.len() - start).min((end - at) as usize);
        let room = &mut target[start..start + len];
        if len > 0 && !P::can_write(room) {
            return Err(Errno::EFAULT);
        }
        if len > 0 && !stream.copy_out(readable, at, room) {
            return Ok(false);
        }
        at += len as u64;
        if at == end {
            break;
        }
    }
    Ok(true)
}
