//! The state of one datagram socket. Its records are in the arena, so a crash loses only this.

use atoll_base::{Addr, Endpoint, FourTuple, Instant, SessionId};
use atoll_ip::{Cast, Ip, TTL};
use atoll_ipc::buffer::{Extents, Pieces};
use atoll_ipc::command::Protocol;
use atoll_ipc::datagram::{
    self, DATAGRAM_MAX, ErrorWishes, Fault, Flags as RecordFlags, QUOTED_TEXT_MAX, RECORD_LEN, RECORD_MAX,
    Record,
};
use atoll_ipc::details::DETAILS_BYTES;
use atoll_ipc::lease::Grant;
use atoll_ipc::slot::{ErrorMark, Slot};
use atoll_ipc::{Cause, Details, Device, Event, Memory, Ready, SocketOption};

use super::groups::Multicast;
use super::{Arrived, Name};
use crate::applications::Applications;
use crate::fragment::{MtuDiscovery, Progress};
use crate::session::{Place, Session};
use crate::stats::Stats;

/// One datagram socket.
#[derive(Debug)]
pub(crate) struct Datagram {
    place: Place,
    /// The grant by which it has its port.
    grant: Grant,
    local: Endpoint,
    remote: Option<Endpoint>,
    inbox: Inbox,
    outbox: Outbox,
    options: Options,
    /// The datagrams that were dropped for want of room.
    dropped: u32,
    /// The facts that the next event reports to the application, and the error with it.
    ready: Ready,
    cause: Cause,
    /// The number of the error that was reported last, which tells it from the one before; 0 for none.
    errors: u8,
    /// Whether it is on the list for the next flush.
    is_dirty: bool,
    /// Whether it waits for its session's share of a later flush.
    is_later: bool,
    /// Whether the application has closed it, with something left to send.
    is_closing: bool,
}

/// The datagrams that wait for the application.
#[derive(Debug)]
struct Inbox {
    rings: Extents,
    head: u64,
    tail: u64,
    published_tail: u64,
    /// The octets that may wait.
    capacity: u32,
}

/// The datagrams that wait for the link.
#[derive(Debug)]
struct Outbox {
    rings: Extents,
    head: u64,
    tail: u64,
    published_head: u64,
    /// The head that was published when the tail was last taken. The application, which has written more
    /// since, may have judged by it how much room there is.
    judged_head: u64,
    /// The octets that may wait.
    limit: u32,
    /// Whether the application may be waiting for room.
    wants_room: bool,
    /// The progress of the first datagram, if the link took a part of it.
    progress: Option<Progress>,
    /// Whether the first datagram was looped back to members on this machine.
    has_looped: bool,
}

/// The options that the application has set.
#[derive(Debug)]
pub(crate) struct Options {
    ttl: u8,
    tos: u8,
    /// The value of `IPV6_UNICAST_HOPS`, if set.
    hops: Option<u8>,
    /// The value of `IPV6_TCLASS`.
    class: u8,
    /// The values of `IP_MTU_DISCOVER` and `IPV6_MTU_DISCOVER`.
    discovery: MtuDiscovery,
    discovery_v6: MtuDiscovery,
    /// The value of `IPV6_DONTFRAG`.
    whole_v6: bool,
    /// Whether the application wants the details of what it receives.
    details: bool,
    /// Whether the application wants to know when something came.
    times: bool,
    /// Whether the application wants to know how many datagrams were dropped.
    drops: bool,
    /// For which families the application wants network errors as records.
    errors: ErrorWishes,
    /// The value of `IPV6_MTU`, if set.
    mtu_v6: Option<u16>,
    /// The types of ICMP messages that a raw socket does not get, a bit for each.
    filter: [u32; 8],
    multicast: Multicast,
}

/// The result of reading the application's lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kicked {
    /// The values were taken.
    Taken,
    /// The values are about a socket before this one.
    Stale,
    /// The values cannot be true.
    Implausible,
}

/// The most octets that are ever in a send buffer.
const SEND_MAX: u64 = 16 << 20;
/// The most octets that are ever in a receive buffer.
const AREA_MAX: u64 = 16 << 20;
/// The smallest and the largest buffer that can be set, in octets.
const BUFFER: (u32, u32) = (4096, 4 << 20);
/// No call takes more octets of the send buffer: the longest datagram, or as much in segments, with records.
const CALL_MAX: u32 = 96 << 10;

/// The least value of `IPV6_MTU` (RFC 8200 §5), in octets.
const IPV6_MTU_MIN: u32 = 1280;

impl Options {
    const fn new(local: Addr) -> Options {
        Options {
            ttl: TTL,
            tos: 0,
            hops: None,
            class: 0,
            discovery: MtuDiscovery::Want,
            discovery_v6: MtuDiscovery::Want,
            whole_v6: false,
            details: false,
            times: false,
            drops: false,
            errors: ErrorWishes::empty(),
            mtu_v6: None,
            filter: [0; 8],
            // inet6_create: a socket of AF_INET6 begins without IP_MULTICAST_ALL.
            multicast: Multicast::new(local.is_v4()),
        }
    }

    /// Returns the settings about groups.
    pub(crate) const fn multicast(&self) -> &Multicast {
        &self.multicast
    }

    /// Returns whether the application wants network errors about what it sends to `peer` as records.
    pub(crate) const fn wants_errors(&self, peer: Addr) -> bool {
        self.errors.contains(if peer.is_v4() { ErrorWishes::V4 } else { ErrorWishes::V6 })
    }

    /// Returns whether the application wants to know when something came.
    pub(crate) const fn wants_times(&self) -> bool {
        self.times
    }

    /// Returns whether a raw socket gets ICMP messages of this type.
    pub(crate) fn takes(&self, kind: u8) -> bool {
        let [word, bit] = [usize::from(kind / 32), usize::from(kind % 32)];
        self.filter[word] & 1 << bit == 0
    }

    /// Returns whether and where datagrams to `peer` are fragmented.
    pub(crate) const fn discovery_to(&self, peer: Addr) -> MtuDiscovery {
        if peer.is_v4() { self.discovery } else { self.discovery_v6 }
    }

    /// Returns whether a datagram to `peer` that would be fragmented is refused, whatever else was set.
    pub(crate) const fn is_whole_to(&self, peer: Addr) -> bool {
        self.whole_v6 && !peer.is_v4()
    }

    /// Returns the size in octets of the largest packet to `peer` that the application wants.
    pub(crate) const fn packet_max_to(&self, peer: Addr) -> u16 {
        match self.mtu_v6 {
            Some(mtu) if !peer.is_v4() => mtu,
            _ => u16::MAX,
        }
    }

    /// Returns type of service and TTL of packets to `peer`. `hop_limit` is that of IPv6, if none was set.
    pub(crate) fn marks_to(&self, peer: Addr, hop_limit: u8) -> (u8, u8) {
        if peer.is_v4() { (self.tos, self.ttl) } else { (self.class, self.hops.unwrap_or(hop_limit)) }
    }
}

impl Datagram {
    /// Creates a socket that has not received or sent anything.
    pub(crate) fn new(
        place: Place,
        grant: Grant,
        local: Endpoint,
        remote: Option<Endpoint>,
        capacity: u32,
    ) -> Datagram {
        let rings = Extents::default();
        Datagram {
            place,
            grant,
            local,
            remote,
            inbox: Inbox { rings, head: 0, tail: 0, published_tail: 0, capacity },
            outbox: Outbox {
                rings,
                head: 0,
                tail: 0,
                published_head: 0,
                judged_head: 0,
                limit: capacity,
                wants_room: false,
                progress: None,
                has_looped: false,
            },
            options: Options::new(local.addr),
            dropped: 0,
            ready: Ready::OUT,
            cause: Cause::None,
            errors: 0,
            is_dirty: false,
            is_later: false,
            is_closing: false,
        }
    }

    /// Continues with what a predecessor had received, and was to send, by the slot: only the socket's own
    /// application can falsify that.
    pub(crate) fn resume<M: Memory>(self, view: &Slot<'_, M>, session: &Session<M>) -> Datagram {
        let (head, tail, sent) = (view.receive_head(), view.receive_tail(), view.acknowledged());
        let is_plausible = head <= tail && tail - head <= AREA_MAX;
        let receive = view.receive_extents(&session.layout).filter(|_| is_plausible).unwrap_or_default();
        let send = view.send_extents(&session.layout).unwrap_or_default();
        Datagram {
            inbox: Inbox {
                rings: receive,
                head: if is_plausible { head } else { tail },
                tail,
                published_tail: tail,
                ..self.inbox
            },
            outbox: Outbox {
                rings: send,
                head: sent,
                tail: sent,
                published_head: sent,
                judged_head: sent,
                ..self.outbox
            },
            ready: Ready::IN | Ready::OUT,
            errors: view.error_mark().number,
            dropped: view.dropped(),
            ..self
        }
    }

    // ---- its names ----

    /// Returns the place of its slot.
    pub(crate) const fn place(&self) -> Place {
        self.place
    }

    /// Returns the grant by which it has its port.
    pub(crate) const fn grant(&self) -> &Grant {
        &self.grant
    }

    pub(crate) const fn local(&self) -> Endpoint {
        self.local
    }

    pub(crate) const fn remote(&self) -> Option<Endpoint> {
        self.remote
    }

    /// Gives it other ends. It must be in no table.
    pub(super) const fn rename(&mut self, local: Endpoint, remote: Option<Endpoint>) {
        (self.local, self.remote) = (local, remote);
    }

    pub(crate) fn v6_only(&self) -> bool {
        self.grant.v6_only && self.local.addr == Addr::ANY
    }

    /// Returns the protocol.
    pub(crate) const fn protocol(&self) -> Protocol {
        self.grant.protocol
    }

    /// Returns the name by which datagrams find it.
    pub(crate) const fn name(&self) -> Name {
        (self.grant.protocol, self.local.port)
    }

    /// Returns its tuple if it is one of UDP; `None` if its own address or its peer is not definite.
    pub(super) fn tuple(&self) -> Option<FourTuple> {
        let remote = self.remote.filter(|_| self.protocol() == Protocol::Udp)?;
        (!self.local.addr.is_unspecified()).then_some(FourTuple { local: self.local, remote })
    }

    /// Returns how well the socket fits what has come over `device`, 0 meaning not at all (Linux's
    /// `compute_score`). Of two that fit alike, the one that is bound to the device comes first.
    pub(crate) fn score(&self, tuple: &FourTuple, device: Device) -> u32 {
        let own = self.grant.device;
        if !own.takes(device) {
            return 0;
        }
        let score = 2 * self.score_by_names(tuple);
        if score > 0 { score + u32::from(own != Device::None) } else { 0 }
    }

    fn score_by_names(&self, tuple: &FourTuple) -> u32 {
        let is_v4 = tuple.local.addr.is_v4();
        let by_addr = match self.local.addr {
            addr if addr == tuple.local.addr => 3,
            Addr::V4_ANY if is_v4 => 2,
            // A socket of ICMP is one of ICMPv4 or of ICMPv6.
            Addr::ANY if !(is_v4 && (self.grant.v6_only || self.protocol().is_icmp())) => 1,
            _ => return 0,
        };
        match self.remote {
            // ping_lookup: whoever replies is heard, also by a socket with a peer.
            _ if self.protocol() == Protocol::Icmp => by_addr,
            None => by_addr,
            Some(remote) if self.protocol() == Protocol::Raw => {
                if remote.addr == tuple.remote.addr {
                    by_addr
                } else {
                    0
                }
            }
            Some(remote) if remote == tuple.remote => by_addr + 4,
            Some(_) => 0,
        }
    }

    // ---- options ----

    /// Returns the options that the application has set.
    pub(crate) const fn options(&self) -> &Options {
        &self.options
    }

    /// Returns the groups that it is in, mutably.
    pub(super) const fn multicast_mut(&mut self) -> &mut Multicast {
        &mut self.options.multicast
    }

    /// Sets an option, as `Entry::set_option`.
    pub(super) fn set_option(&mut self, option: SocketOption, value: u32) -> bool {
        let options = &mut self.options;
        match option {
            SocketOption::TimeToLive if (1..=255).contains(&value) => options.ttl = value as u8,
            SocketOption::TypeOfService => options.tos = value as u8,
            SocketOption::UnicastHops => options.hops = u8::try_from(value).ok(),
            SocketOption::TrafficClass => options.class = value as u8,
            SocketOption::ReceiveBuffer => self.inbox.capacity = value.clamp(BUFFER.0, BUFFER.1),
            SocketOption::SendBuffer => self.outbox.limit = value.clamp(BUFFER.0, BUFFER.1),
            SocketOption::MtuDiscover => match MtuDiscovery::from_value(value) {
                Some(discovery) => options.discovery = discovery,
                None => return false,
            },
            SocketOption::MtuDiscoverV6 => match MtuDiscovery::from_value(value) {
                Some(discovery) => options.discovery_v6 = discovery,
                None => return false,
            },
            SocketOption::Device => match Device::of_value(value) {
                // The sockets at the port are compared by their grants.
                Some(device) => self.grant.device = device,
                None => return false,
            },
            SocketOption::DontFragmentV6 => options.whole_v6 = value != 0,
            SocketOption::Details => options.details = value != 0,
            SocketOption::Times => options.times = value != 0,
            SocketOption::Drops => options.drops = value != 0,
            SocketOption::Errors => options.errors = ErrorWishes::from_value(value),
            SocketOption::MtuV6 if value == 0 => options.mtu_v6 = None,
            SocketOption::MtuV6 if value >= IPV6_MTU_MIN => {
                options.mtu_v6 = Some(u16::try_from(value).unwrap_or(u16::MAX));
            }
            _ => match SocketOption::FILTERS.iter().position(|one| *one == option) {
                Some(word) => options.filter[word] = value,
                None => return options.multicast.set_option(option, value),
            },
        }
        true
    }

    // ---- what comes in ----

    /// Returns the octets that wait for the application.
    pub(crate) const fn received(&self) -> u64 {
        self.inbox.tail - self.inbox.head
    }

    /// Stores a datagram, whole or not at all. Returns `false` if there is no room for it.
    pub(super) fn put<M: Memory>(&mut self, session: &Session<M>, arrived: &Arrived<'_>) -> bool {
        let &Arrived { tuple, cast, payload, ref details, .. } = arrived;
        let mut flags = RecordFlags::empty();
        flags.set(RecordFlags::BROADCAST, cast == Cast::Broadcast);
        let Options { details: is_detailed, times, drops, .. } = self.options;
        flags.set(RecordFlags::DETAILED, is_detailed || times || drops);
        let Some(len) = u32::try_from(payload.len()).ok().filter(|len| *len <= RECORD_MAX) else {
            return false;
        };
        let Some(slot) = session.slot(self.place.slot) else { return false };
        let record = Record { len, peer: tuple.remote, flags };
        let details = &Details { dropped: if drops { self.dropped } else { 0 }, ..*details };
        let is_stored = self.inbox.put(session, &slot, self.place.generation, (&record, details), payload);
        match is_stored {
            Some(()) => self.ready |= Ready::IN,
            None => {
                self.dropped = self.dropped.wrapping_add(1);
                slot.set_dropped(self.dropped);
            }
        }
        is_stored.is_some()
    }

    /// Stores a network error about what was sent to `peer`, with what it quotes of it, if its library
    /// reads that. Returns `false` if there is no room for it.
    pub(super) fn put_fault<M: Memory>(
        &mut self,
        session: &Session<M>,
        (fault, text): (&Fault, &[u8]),
        peer: Endpoint,
    ) -> bool {
        let Some(slot) = session.slot(self.place.slot) else { return false };
        let wants_text = self.options.errors.contains(ErrorWishes::TEXT);
        let text = if wants_text { &text[..text.len().min(QUOTED_TEXT_MAX)] } else { &[] };
        let payload = [&fault.encode()[..], text].concat();
        // Cannot truncate: both are short.
        let record = Record { len: payload.len() as u32, peer, flags: RecordFlags::ERROR };
        let head = (&record, &Details::default());
        let is_stored = self.inbox.put(session, &slot, self.place.generation, head, &payload).is_some();
        if is_stored {
            // The application sees by the record which error it is (sock_def_error_report).
            self.ready |= Ready::ERR;
        }
        is_stored
    }

    /// Returns the blocks of the receive area that it holds: first unit and log2 of the size.
    pub(super) fn blocks(&self) -> impl Iterator<Item = (u32, u8)> {
        let rings = [self.inbox.rings.current, self.inbox.rings.old];
        rings.into_iter().flatten().map(|ring| (ring.unit, ring.log2))
    }

    // ---- what goes out ----

    /// Returns the octets that wait for the link.
    pub(crate) const fn unsent(&self) -> u64 {
        self.outbox.tail - self.outbox.head
    }

    /// Returns the first datagram that waits for the link, what its call has asked for, and where its text
    /// is; `None` if it is not what a library writes.
    pub(crate) fn first<M: Memory>(&self, session: &Session<M>) -> Option<(Record, Details, Pieces)> {
        let Outbox { rings, head, tail, .. } = &self.outbox;
        let area = session.layout.send_area;
        let mut bytes = [0; RECORD_LEN];
        rings.pieces(*head, RECORD_LEN)?.read(&session.arena, area, &mut bytes);
        // No socket sends as much as one may receive.
        let record = datagram::decode(&bytes, tail - head).ok().filter(|it| it.len <= DATAGRAM_MAX)?;
        let mut details = Details::default();
        if record.flags.contains(RecordFlags::DETAILED) {
            let mut bytes = [0; DETAILS_BYTES];
            rings.pieces(head + RECORD_LEN as u64, DETAILS_BYTES)?.read(&session.arena, area, &mut bytes);
            details = Details::decode(&bytes).ok()?;
        }
        let text = rings.pieces(head + record.payload_at() as u64, record.len as usize)?;
        Some((record, details, text))
    }

    /// Returns the progress of the first datagram.
    pub(crate) const fn progress(&self) -> Option<Progress> {
        self.outbox.progress
    }

    /// Sets the progress of the first datagram.
    pub(crate) const fn set_progress(&mut self, progress: Option<Progress>) {
        self.outbox.progress = progress;
    }

    /// Returns whether the first datagram was looped back to members on this machine.
    pub(crate) const fn has_looped(&self) -> bool {
        self.outbox.has_looped
    }

    /// Notes that the first datagram was looped back to members on this machine.
    pub(crate) const fn set_looped(&mut self) {
        self.outbox.has_looped = true;
    }

    /// Removes the first datagram, which was sent or refused.
    pub(crate) fn pop(&mut self, record: &Record) {
        self.outbox.head += record.padded_len();
        self.outbox.has_looped = false;
    }

    /// Lets it wait for its session's share of a later flush. Returns `false` if it does already.
    pub(crate) const fn wait_for_share(&mut self) -> bool {
        !core::mem::replace(&mut self.is_later, true)
    }

    /// Ends its wait for its session's share. Returns `false` if it did not wait.
    pub(super) const fn take_up(&mut self) -> bool {
        core::mem::replace(&mut self.is_later, false)
    }

    // ---- what the application sees, and says ----

    /// Takes the plausible changes of the application's lines.
    pub(super) fn kick<M: Memory>(&mut self, session: &Session<M>, slot: &Slot<'_, M>) -> Kicked {
        if slot.app_generation() != self.place.generation {
            return Kicked::Stale;
        }
        let (tail, outbox) = (slot.send_tail(), &mut self.outbox);
        if tail < outbox.tail || tail - outbox.head > SEND_MAX {
            return Kicked::Implausible;
        }
        if tail > outbox.tail {
            outbox.rings = slot.send_extents(&session.layout).unwrap_or_default();
            outbox.tail = tail;
            outbox.wants_room |= tail - outbox.judged_head > outbox.free_below();
            outbox.judged_head = outbox.published_head;
        }
        let inbox = &mut self.inbox;
        inbox.take_head(slot);
        if inbox.rings.release(session.memory(), inbox.head, inbox.tail) {
            slot.set_receive_extents(&inbox.rings);
        }
        Kicked::Taken
    }

    /// Makes the next call on the socket fail. `ready` is what the socket is ready for besides.
    pub(crate) fn fail(&mut self, cause: Cause, ready: Ready) {
        self.cause = cause;
        self.ready |= ready | Ready::ERR;
    }

    /// Closes it for the application: it is removed when what was written before has been sent.
    pub(super) const fn close(&mut self) {
        self.is_closing = true;
    }

    /// Returns whether the application has closed it.
    pub(crate) const fn is_closing(&self) -> bool {
        self.is_closing
    }

    /// Puts it on the list for the next flush. Returns `false` if it is there already.
    pub(super) const fn mark_dirty(&mut self) -> bool {
        !core::mem::replace(&mut self.is_dirty, true)
    }

    /// Notes that it is not on the list any more.
    pub(super) const fn clear_dirty(&mut self) {
        self.is_dirty = false;
    }

    /// Updates the slot. Returns what an event is to report to the application.
    pub(crate) fn publish<M: Memory>(&mut self, slot: &Slot<'_, M>) -> Ready {
        self.inbox.publish(slot);
        self.ready |= self.outbox.publish(slot);
        if self.ready.contains(Ready::ERR) {
            self.errors = self.errors.checked_add(1).unwrap_or(1);
            let cause = core::mem::take(&mut self.cause);
            slot.set_error_mark(ErrorMark { cause, number: self.errors });
        }
        core::mem::take(&mut self.ready)
    }

    /// Frees what the socket held, when no datagram finds it any more, and notifies its application. Returns
    /// the session.
    pub(crate) fn give_back<M: Memory>(
        mut self,
        (now, ip): (Instant, &mut Ip),
        applications: &mut Applications<M>,
        stats: &mut Stats,
    ) -> Option<SessionId> {
        let left = self.options.multicast.leave_all(now, ip);
        let session = applications.get_mut(self.place.session)?;
        self.inbox.rings.release_all(session.memory());
        session.vacate(self.place.slot, false);
        session.groups = session.groups.saturating_sub(left);
        let event = Event::SlotDone { slot: self.place.slot, generation: self.place.generation };
        session.push(stats, &event, Some(0));
        Some(session.id)
    }
}

impl Inbox {
    fn put<M: Memory>(
        &mut self,
        session: &Session<M>,
        slot: &Slot<'_, M>,
        generation: u32,
        (record, details): (&Record, &Details),
        payload: &[u8],
    ) -> Option<()> {
        let end = self.tail + record.padded_len();
        if slot.app_generation() == generation {
            self.take_head(slot);
        }
        self.make_room(session, slot, end)?;
        let area = session.layout.receive_area;
        self.rings.pieces(self.tail, RECORD_LEN)?.write(&session.arena, area, &datagram::encode(record));
        if record.flags.contains(RecordFlags::DETAILED) {
            let at = self.tail + RECORD_LEN as u64;
            self.rings.pieces(at, DETAILS_BYTES)?.write(&session.arena, area, &details.encode());
        }
        let at = self.tail + record.payload_at() as u64;
        self.rings.pieces(at, payload.len())?.write(&session.arena, area, payload);
        self.tail = end;
        Some(())
    }

    /// Takes the application's reading position, if it is plausible.
    fn take_head<M: Memory>(&mut self, slot: &Slot<'_, M>) {
        let head = slot.receive_head();
        if (self.head..=self.published_tail).contains(&head) {
            self.head = head;
        }
    }

    /// Makes room up to `end`. Returns `None` if there is none.
    fn make_room<M: Memory>(&mut self, session: &Session<M>, slot: &Slot<'_, M>, end: u64) -> Option<()> {
        // As on Linux, one datagram always fits into an empty buffer.
        if end - self.head > u64::from(self.capacity) && self.tail > self.head {
            return None;
        }
        let before = self.rings;
        let size_max = (self.capacity.max(RECORD_MAX + 64) as usize).next_power_of_two();
        self.rings.release(session.memory(), self.head, self.tail);
        // As for connections, the second ring takes the whole capacity, because there is no third.
        let end_wanted = match self.rings.current {
            None => end,
            Some(current) => {
                let room = current.base.max(self.head) + current.size() as u64;
                if end <= room { end } else { end.max(self.tail + u64::from(self.capacity)) }
            }
        };
        let room = self.rings.reserve(session.memory(), self.head, self.tail, end_wanted, size_max);
        if self.rings != before {
            slot.set_receive_extents(&self.rings);
        }
        (room >= end).then_some(())
    }

    fn publish<M: Memory>(&mut self, slot: &Slot<'_, M>) {
        if self.tail != self.published_tail {
            self.published_tail = self.tail;
            slot.set_receive_tail(self.tail);
        }
    }
}

impl Outbox {
    /// Returns how many octets may wait without any call or poll(2) of the application waiting for room: half
    /// of the limit (`DatagramSocket::is_writable` of the library), and no more than leaves room for the
    /// longest call.
    fn free_below(&self) -> u64 {
        u64::from((self.limit / 2).min(self.limit.saturating_sub(CALL_MAX)))
    }

    /// Publishes how much was sent. Returns OUT if the application may be waiting for room that there is now.
    fn publish<M: Memory>(&mut self, slot: &Slot<'_, M>) -> Ready {
        if slot.send_limit() != self.limit {
            slot.set_send_limit(self.limit);
        }
        if self.head != self.published_head {
            self.published_head = self.head;
            slot.set_acknowledged(self.head);
            let waiting = self.tail - self.head;
            if self.wants_room && waiting * 2 <= u64::from(self.limit) {
                // A long call may need more room than poll(2) asks for.
                self.wants_room = waiting > self.free_below();
                return Ready::OUT;
            }
        }
        Ready::default()
    }
}
