//! Receive and send on a datagram socket: udp(7), recv(2), send(2).
//!
//! A datagram socket has one slot in each replica's arena. Datagrams leave through one of the slots, and
//! arrive in any.

use alloc::vec;
use alloc::vec::Vec;
use core::num::NonZeroU16;

use atoll_base::{Endpoint, SlotId};
use atoll_ipc::buffer::Extents;
use atoll_ipc::datagram::{
    DATAGRAM_MAX, DATAGRAM_MAX_V4, ECHO_HEADER, FAULT_BYTES, Fault, Flags, QUOTED_TEXT_MAX, RECORD_ALIGN,
    RECORD_LEN, Record, decode, encode,
};
use atoll_ipc::details::DETAILS_BYTES;
use atoll_ipc::slot::{ErrorMark, SlotState};
use atoll_ipc::{Cause, Details, Memory};

use crate::errno::{Errno, Failure};
use crate::port::Port;

/// The library word of a slot that holds the error that was taken last, as [`told`] writes it.
const TOLD: usize = 2;

/// The most records that one call looks at for errors, so that a hostile replica cannot hold it for ever:
/// more than there are datagrams in a receive buffer of the usual size. The next call looks at those behind.
const LOOK_MAX: usize = 8192;

/// Returns the word of an error that was taken.
fn told(mark: ErrorMark) -> u64 {
    u64::from(mark.number) << 8 | u64::from(mark.cause as u8)
}

/// A datagram at the head of a receive buffer.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    /// The sender of the datagram.
    pub peer: Endpoint,
    /// The length of the payload in octets.
    pub len: usize,
    /// What is known of its packet, if the socket had asked for that when it came.
    pub details: Option<Details>,
    /// The network error that the record is about, if it is no datagram; the peer is the receiver then.
    pub fault: Option<Fault>,
    /// The place of the payload, and of the next datagram.
    payload: u64,
    next: u64,
    head: u64,
    extents: Extents,
}

impl Waiting {
    /// Returns the position of its record in its slot's stream of records.
    pub const fn position(&self) -> u64 {
        self.head
    }

    /// Returns whether a call that receives several datagrams takes this one after `first` (`UDP_GRO`).
    pub fn can_follow(&self, first: &Waiting) -> bool {
        first.len > 0
            && (self.fault, first.fault) == (None, None)
            && (1..=first.len).contains(&self.len)
            && self.peer == first.peer
            && self.details.map(without_time) == first.details.map(without_time)
    }
}

/// How far the records of a slot were looked at for errors.
#[derive(Clone, Copy, Debug)]
struct Look {
    /// The position of the next record.
    at: u64,
    /// Whether that is known to be an error.
    is_error: bool,
}

/// Returns the details of a packet but for the time and the number of those that were dropped, by which
/// several datagrams may differ that one call receives: it tells those of the first.
fn without_time(details: Details) -> Details {
    Details { came: None, dropped: 0, ..details }
}

/// A network error that was taken out of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenError {
    /// The receiver of the packet that the error is about.
    pub to: Endpoint,
    /// The error.
    pub fault: Fault,
    /// What it quotes of the packet behind the first octets of its transport header.
    pub quoted: Vec<u8>,
}

/// A view of one slot of a datagram socket, for the length of one call.
#[derive(Debug)]
pub struct Datagrams<'a, M: Memory> {
    port: &'a Port<M>,
    slot: SlotId,
    generation: u32,
}

impl<'a, M: Memory> Datagrams<'a, M> {
    /// Creates a view of the socket's slot on one replica.
    pub fn new(port: &'a Port<M>, slot: SlotId, generation: u32) -> Datagrams<'a, M> {
        Datagrams { port, slot, generation }
    }

    /// Returns whether the replica has opened the socket.
    pub fn is_open(&self) -> bool {
        self.port.slot(self.slot).is_some_and(|slot| {
            slot.replica_generation() == self.generation && slot.state() == SlotState::Open
        })
    }

    /// Returns why the replica has not opened the socket; `None` if it has, or has not answered yet.
    pub fn refusal(&self) -> Option<Errno> {
        let slot = self.port.slot(self.slot)?;
        let is_refused = slot.replica_generation() == self.generation && slot.state() == SlotState::Closing;
        if is_refused { Errno::of(slot.error()) } else { None }
    }

    /// Returns whether a datagram or an error waits, without reading its record.
    pub fn has_waiting(&self) -> bool {
        let Some(slot) = self.port.slot(self.slot) else { return false };
        slot.replica_generation() == self.generation && slot.receive_tail() != slot.receive_head()
    }

    /// Returns the datagram or the error at the head; `None` when none waits. A buffer with invalid content
    /// is skipped to its end: its writer is broken, and the datagrams are lost, as datagrams may be.
    pub fn waiting(&self) -> Option<Waiting> {
        let slot = self.port.slot(self.slot)?;
        if slot.replica_generation() != self.generation {
            return None;
        }
        let (head, tail) = (slot.receive_head(), slot.receive_tail());
        if head == tail {
            return None;
        }
        let record = self.record_at(head, tail);
        if record.is_none() {
            slot.set_receive_head(tail);
        }
        record
    }

    /// Returns the first datagram that waits, with or without errors before it.
    pub fn first_datagram(&self) -> Option<Waiting> {
        let mut first = self.waiting()?;
        for _ in 0..LOOK_MAX {
            if first.fault.is_none() {
                return Some(first);
            }
            first = self.waiting_behind(&first)?;
        }
        None
    }

    /// Returns whether an error waits that no process of the family has taken, before or behind datagrams. It
    /// remembers how far it has looked. The caller holds the family's lock.
    pub fn has_fault(&self) -> bool {
        self.look_for_errors(0, |_| {}).is_some_and(|found| found.is_error)
    }

    /// Takes up to `most` errors that no process of the family has taken, before and behind datagrams, and
    /// passes them to `taken`. Those at the head leave the buffer, and others when the datagrams before them
    /// have been read. Returns whether the replica is to be kicked. The caller holds the family's lock.
    pub fn take_faults(&self, most: usize, mut taken: impl FnMut(TakenError)) -> bool {
        let Some(first) = self.waiting() else { return false };
        let take = |waiting: &Waiting| {
            if let Some(fault) = waiting.fault {
                taken(TakenError { to: waiting.peer, fault, quoted: self.quoted(waiting) });
            }
        };
        let Some(found) = self.look_for_errors(most, take) else { return false };
        let mut last = None;
        let mut next = Some(first);
        for _ in 0..LOOK_MAX {
            match next.filter(|next| next.fault.is_some() && next.head < found.at) {
                Some(passed) => next = self.waiting_behind(last.insert(passed)),
                None => break,
            }
        }
        last.is_some_and(|last| self.consume(&first, &last))
    }

    /// Lets all errors in the buffer count as taken. The caller holds the family's lock.
    pub fn forget_faults(&self) {
        if let Some(slot) = self.port.slot(self.slot).filter(|_| self.has_waiting()) {
            slot.set_errors_seen(slot.receive_tail());
        }
    }

    /// Looks at the records behind those that were looked at before, passes up to `most` errors to `take`,
    /// and stops at the next one.
    fn look_for_errors(&self, most: usize, mut take: impl FnMut(&Waiting)) -> Option<Look> {
        let slot = self.port.slot(self.slot).filter(|_| self.has_waiting())?;
        let (head, tail, seen) = (slot.receive_head(), slot.receive_tail(), slot.errors_seen());
        let mut left = most;
        let mut look = Look { at: if (head..=tail).contains(&seen) { seen } else { head }, is_error: false };
        for _ in 0..LOOK_MAX {
            let Some(record) = (look.at != tail).then(|| self.record_at(look.at, tail)).flatten() else {
                break;
            };
            if record.fault.is_some() {
                look.is_error = left == 0;
                if look.is_error {
                    break;
                }
                left -= 1;
                take(&record);
            }
            look.at = record.next;
        }
        if look.at != seen {
            slot.set_errors_seen(look.at);
        }
        Some(look)
    }

    /// Returns the datagram or the error behind another one; `None` when none waits there.
    pub fn waiting_behind(&self, waiting: &Waiting) -> Option<Waiting> {
        let tail = self.port.slot(self.slot)?.receive_tail();
        if waiting.next == tail { None } else { self.record_at(waiting.next, tail) }
    }

    fn record_at(&self, head: u64, tail: u64) -> Option<Waiting> {
        let slot = self.port.slot(self.slot)?;
        let available = tail.wrapping_sub(head);
        let extents = slot.receive_extents(self.port.layout())?;
        if available > self.port.layout().receive_bytes as u64 {
            return None;
        }
        let (memory, area) = (self.port.memory(), self.port.layout().receive_area);
        let mut bytes = [0; RECORD_LEN];
        extents.pieces(head, RECORD_LEN)?.read(memory, area, &mut bytes);
        let record = decode(&bytes, available).ok()?;
        let mut details = None;
        if record.flags.contains(Flags::DETAILED) {
            let mut bytes = [0; DETAILS_BYTES];
            extents.pieces(head + RECORD_LEN as u64, DETAILS_BYTES)?.read(memory, area, &mut bytes);
            details = Some(Details::decode(&bytes).ok()?);
        }
        let (payload, next) = (head + record.payload_at() as u64, head + record.padded_len());
        let Record { len, peer, .. } = record;
        let mut fault = None;
        if record.flags.contains(Flags::ERROR) {
            let mut bytes = [0; FAULT_BYTES];
            let is_whole = (FAULT_BYTES..=FAULT_BYTES + QUOTED_TEXT_MAX).contains(&(len as usize));
            let at = extents.pieces(payload, FAULT_BYTES).filter(|_| is_whole)?;
            at.read(memory, area, &mut bytes);
            fault = Some(Fault::decode(&bytes).ok()?);
        }
        Some(Waiting { peer, len: len as usize, details, fault, payload, next, head, extents })
    }

    /// Copies payload from octet `skip` of the datagram on, as much as fits `out`; returns the number of
    /// octets.
    pub fn copy_out(&self, waiting: &Waiting, skip: usize, out: &mut [u8]) -> usize {
        let n = out.len().min(waiting.len.saturating_sub(skip));
        let at = waiting.payload + skip as u64;
        match waiting.extents.pieces(at, n) {
            Some(pieces) => pieces.read(self.port.memory(), self.port.layout().receive_area, &mut out[..n]),
            None => out[..n].fill(0),
        }
        n
    }

    /// Returns what an error quotes of the packet behind the first octets of its transport header; empty if
    /// this is a datagram.
    pub fn quoted(&self, waiting: &Waiting) -> Vec<u8> {
        let len = if waiting.fault.is_some() { waiting.len.saturating_sub(FAULT_BYTES) } else { 0 };
        let mut octets = vec![0; len];
        self.copy_out(waiting, FAULT_BYTES, &mut octets);
        octets
    }

    /// Removes the datagrams from `first` to `last`, which were read from the buffer. Returns whether the
    /// replica is to be kicked.
    pub fn consume(&self, first: &Waiting, last: &Waiting) -> bool {
        let Some(slot) = self.port.slot(self.slot) else { return false };
        let to = last.next;
        slot.set_receive_head(to);
        self.port.memory().fence();
        let mark = slot.read_mark();
        first.head < mark && mark <= to
    }

    /// Takes the pending error (from an ICMP message, for example): each is reported once.
    pub fn take_error(&self) -> Option<Errno> {
        let mark = self.pending()?;
        self.port.slot(self.slot)?.set_library_word(TOLD, told(mark));
        Errno::of(mark.cause)
    }

    /// Notes the event of an error. A replica of an earlier build does not number its errors: the one that it
    /// has reported is pending, even if it equals the last one.
    pub fn error_arrived(&self) {
        if let Some(slot) = self.port.slot(self.slot)
            && slot.error_mark().number == 0
        {
            slot.set_library_word(TOLD, 0);
        }
    }

    /// Returns whether an error is pending.
    pub fn has_error(&self) -> bool {
        self.pending().is_some()
    }

    /// Returns the error that is pending.
    fn pending(&self) -> Option<ErrorMark> {
        let slot = self.port.slot(self.slot).filter(|slot| slot.replica_generation() == self.generation)?;
        let mark = slot.error_mark();
        (mark.cause != Cause::None && slot.library_word(TOLD) != told(mark)).then_some(mark)
    }

    /// Returns whether at most half of the send limit is queued, as poll(2) reports it.
    pub fn is_writable(&self) -> bool {
        let Some(slot) = self.port.slot(self.slot) else { return false };
        if slot.replica_generation() != self.generation {
            return true; // Nothing was sent yet.
        }
        let queued = slot.send_tail().wrapping_sub(slot.acknowledged());
        queued.saturating_mul(2) <= u64::from(slot.send_limit())
    }

    /// Appends `len` octets of `parts` to the send buffer: one datagram, or one for each segment. Fails with
    /// EMSGSIZE if there are too many, and would block without room for all.
    pub fn send<'b>(
        &self,
        to: &Outgoing,
        len: usize,
        parts: impl Iterator<Item = &'b [u8]>,
    ) -> Result<(), Failure> {
        if len > to.len_max() {
            return Err(Errno::EMSGSIZE.into());
        }
        let Some(slot) = self.port.slot(self.slot) else { return Err(Errno::EIO.into()) };
        if slot.replica_generation() != self.generation {
            return Err(Failure::WouldBlock);
        }
        let layout = self.port.layout();
        let memory = self.port.memory();
        let tail = slot.send_tail();
        let acknowledged = slot.acknowledged().min(tail);
        let end = tail + to.padded(len);
        // As on Linux, the text of one call always fits into an empty buffer.
        let limit = u64::from(slot.send_limit()).max(to.padded(DATAGRAM_MAX as usize));
        if end - acknowledged > limit {
            return Err(Failure::WouldBlock);
        }
        let mut extents = slot.send_extents(layout).unwrap_or_default();
        let size_max = (limit as usize).next_power_of_two();
        let room = extents.reserve(&layout.send_pool.state_in(memory), acknowledged, tail, end, size_max);
        slot.set_send_extents(&extents);
        if room < end {
            return Err(Failure::WouldBlock);
        }
        let write = |at: u64, octets: &[u8]| {
            if let Some(pieces) = extents.pieces(at, octets.len()) {
                pieces.write(memory, layout.send_area, octets);
            }
        };
        let mut left = len;
        let mut at = tail;
        let mut parts = parts.filter(|part| !part.is_empty());
        let mut part: &[u8] = &[];
        loop {
            let mut wanted = left.min(to.segment_len().unwrap_or(left));
            left -= wanted;
            let (head, head_len) = to.head(wanted);
            write(at, &head[..head_len]);
            at += head_len as u64;
            while wanted > 0 {
                if part.is_empty() {
                    part = parts.next().unwrap_or_default();
                }
                let (now, later) = part.split_at(part.len().min(wanted));
                if now.is_empty() {
                    break;
                }
                write(at, now);
                at += now.len() as u64;
                wanted -= now.len();
                part = later;
            }
            at = at.next_multiple_of(RECORD_ALIGN);
            if left == 0 || wanted > 0 {
                break;
            }
        }
        slot.set_send_tail(end);
        Ok(())
    }
}

/// Where and how a call sends its octets.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing {
    /// The receiver.
    pub to: Endpoint,
    /// Whether it may be a broadcast address (`SO_BROADCAST`).
    pub broadcast: bool,
    /// What the call asks for by control messages.
    pub details: Option<Details>,
    /// The octets of each datagram but the last one (`UDP_SEGMENT`); `None` if there is one datagram.
    pub segment: Option<NonZeroU16>,
    /// Whether the text is a message of ICMP, which contains its header.
    pub message: bool,
}

impl Outgoing {
    /// Returns the most octets of one call.
    pub fn len_max(&self) -> usize {
        let header = if self.message { ECHO_HEADER } else { 0 };
        // Cannot truncate: both are below 2^16. A record is never longer than a datagram of UDP over IPv6.
        (if self.to.addr.is_v4() { DATAGRAM_MAX_V4 + header } else { DATAGRAM_MAX }) as usize
    }

    /// Returns the record of one datagram with `len` octets of text, at most [`DATAGRAM_MAX`].
    fn record(&self, len: usize) -> Record {
        let mut flags = Flags::empty();
        flags.set(Flags::BROADCAST, self.broadcast);
        flags.set(Flags::DETAILED, self.details.is_some());
        // Cannot truncate: it is the length of a datagram.
        Record { len: len as u32, peer: self.to, flags }
    }

    fn segment_len(&self) -> Option<usize> {
        self.segment.map(|segment| segment.get().into())
    }

    /// Returns the octets of the send buffer that `len` octets of text take.
    fn padded(&self, len: usize) -> u64 {
        let one = |len: usize| self.record(len).padded_len();
        match self.segment_len() {
            Some(segment) if len > segment => {
                let rest = len % segment;
                (len / segment) as u64 * one(segment) + if rest > 0 { one(rest) } else { 0 }
            }
            _ => one(len),
        }
    }

    /// Returns what stands before `len` octets of text, and its length.
    fn head(&self, len: usize) -> ([u8; RECORD_LEN + DETAILS_BYTES], usize) {
        let record = self.record(len);
        let mut octets = [0; RECORD_LEN + DETAILS_BYTES];
        let (head, details) = octets.split_at_mut(RECORD_LEN);
        head.copy_from_slice(&encode(&record));
        details.copy_from_slice(&self.details.unwrap_or_default().encode());
        (octets, record.payload_at())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_base::Addr;
    use atoll_ipc::HeapMemory;
    use atoll_ipc::arena::ArenaConfig;

    #[test]
    fn a_datagram_keeps_its_boundaries_and_its_peer() {
        let layout = ArenaConfig { slots: 16, send_log2: 18, receive_log2: 18 }.layout();
        let mut port = Port::new(HeapMemory::new(layout.total), layout);
        let (slot, generation) = port.allocate_slot().expect("free");
        port.slot(slot).expect("in range").replica_reset(generation, SlotState::Open, 65536);
        let peer = Endpoint::at(Addr::from_octets([0x20; 16]), 6);
        let socket = Datagrams::new(&port, slot, generation);
        let parts: [&[u8]; 2] = [b"ab", b"cde"];
        let to = Outgoing { to: peer, broadcast: false, details: None, segment: None, message: false };
        let details = Details { own: peer.addr, tos: Some(2), ..Details::default() };
        let segmented = Outgoing { details: Some(details), segment: NonZeroU16::new(2), ..to };
        assert_eq!(socket.send(&to, 5, parts.into_iter()), Ok(()));
        assert_eq!(socket.send(&to, 0, [].into_iter()), Ok(()));
        assert_eq!(socket.send(&segmented, 5, parts.into_iter()), Ok(()));
        assert_eq!(socket.send(&to, to.len_max() + 1, [].into_iter()), Err(Errno::EMSGSIZE.into()));

        // The replica plays the send buffer back as a receive buffer.
        let view = port.slot(slot).expect("in range");
        let sent = view.send_extents(port.layout()).expect("valid");
        let len = view.send_tail() as usize;
        let mut bytes = alloc::vec![0; len];
        sent.pieces(0, len).expect("written").read(port.memory(), port.layout().send_area, &mut bytes);
        let extents =
            Extents { current: Some(atoll_ipc::buffer::Extent { base: 0, unit: 0, log2: 12 }), old: None };
        extents.pieces(0, len).expect("fits").write(port.memory(), port.layout().receive_area, &bytes);
        view.set_receive_extents(&extents);
        view.set_receive_tail(len as u64);

        let waiting = socket.waiting().expect("first");
        let mut out = [0; 16];
        assert_eq!((waiting.len, waiting.peer, socket.copy_out(&waiting, 0, &mut out)), (5, peer, 5));
        assert_eq!(&out[..5], b"abcde");
        assert_eq!(waiting.details, None);
        socket.consume(&waiting, &waiting);
        let waiting = socket.waiting().expect("second");
        assert_eq!(waiting.len, 0);
        socket.consume(&waiting, &waiting);
        let mut last = socket.waiting().expect("the first segment");
        let mut seen = alloc::vec::Vec::new();
        loop {
            let n = socket.copy_out(&last, 0, &mut out);
            seen.push((out[..n].to_vec(), last.details));
            match socket.waiting_behind(&last) {
                Some(next) => last = next,
                None => break,
            }
        }
        assert_eq!(seen, [&b"ab"[..], b"cd", b"e"].map(|text| (text.to_vec(), Some(details))));
        socket.consume(&last, &last);
        assert!(socket.waiting().is_none());
    }

    /// A slot whose replica does what a test says, without padding at the ends of its buffer.
    struct Inbox {
        port: Port<HeapMemory>,
        slot: SlotId,
        generation: u32,
    }

    impl Inbox {
        fn new() -> Inbox {
            let layout = ArenaConfig { slots: 16, send_log2: 16, receive_log2: 19 }.layout();
            let mut port = Port::new(HeapMemory::new(layout.total), layout);
            let (slot, generation) = port.allocate_slot().expect("free");
            let inbox = Inbox { port, slot, generation };
            inbox.slot().replica_reset(generation, SlotState::Open, 1 << 18);
            let current = Some(atoll_ipc::buffer::Extent { base: 0, unit: 0, log2: 19 });
            inbox.slot().set_receive_extents(&Extents { current, old: None });
            inbox
        }

        fn slot(&self) -> atoll_ipc::slot::Slot<'_, HeapMemory> {
            self.port.slot(self.slot).expect("in range")
        }

        fn socket(&self) -> Datagrams<'_, HeapMemory> {
            Datagrams::new(&self.port, self.slot, self.generation)
        }

        fn push(&self, flags: Flags, payload: &[u8]) {
            let at = self.slot().receive_tail();
            let record = Record { len: payload.len() as u32, peer: Endpoint::new(1, 2), flags };
            let octets = [&encode(&record)[..], payload].concat();
            let extents = self.slot().receive_extents(self.port.layout()).expect("valid");
            let pieces = extents.pieces(at, octets.len()).expect("there is room");
            pieces.write(self.port.memory(), self.port.layout().receive_area, &octets);
            self.slot().set_receive_tail(at + record.padded_len());
        }

        fn fault(&self, info: u32) {
            let fault = Fault {
                reporter: Addr::ANY,
                info,
                kind: 3,
                code: 3,
                quoted: atoll_ipc::datagram::Quotation([0; 8]),
                came: 0,
            };
            self.push(Flags::ERROR, &fault.encode());
        }

        /// Takes up to `most` errors, and returns their numbers.
        fn take(&self, most: usize) -> Vec<u32> {
            let mut all = Vec::new();
            self.socket().take_faults(most, |taken| all.push(taken.fault.info));
            all
        }
    }

    #[test]
    fn an_error_is_taken_once_by_all_that_share_the_slot() {
        let inbox = Inbox::new();
        inbox.push(Flags::empty(), b"one");
        inbox.fault(1);
        inbox.push(Flags::empty(), b"two");
        assert!(inbox.socket().has_fault() && inbox.socket().has_fault());
        inbox.fault(2);
        inbox.fault(3);
        assert_eq!((inbox.take(2), inbox.socket().has_fault()), ([1, 2].into(), true));
        assert_eq!((inbox.take(2), inbox.take(2)), ([3].into(), [].into()));
        assert!(!inbox.socket().has_fault());
        // They stay until the datagrams before them were read, and are not in the way of those.
        let socket = inbox.socket();
        for len in [3, 3] {
            let first = socket.first_datagram().expect("it waits");
            assert_eq!(first.len, len);
            let head = socket.waiting().expect("it waits");
            assert!(head.fault.is_none(), "those at the head are gone");
            socket.consume(&head, &head);
            assert_eq!(inbox.take(2), []);
        }
        assert!(!socket.has_waiting());
        inbox.fault(4);
        assert_eq!((socket.first_datagram().is_none(), inbox.take(2)), (true, [4].into()));
        assert!(!socket.has_waiting());
    }

    #[test]
    fn one_call_looks_past_a_limited_number_of_datagrams_and_the_next_goes_on() {
        let inbox = Inbox::new();
        for _ in 0..LOOK_MAX + 5 {
            inbox.push(Flags::empty(), b"");
        }
        inbox.fault(1);
        assert!(!inbox.socket().has_fault(), "it has not come so far");
        let seen = inbox.slot().errors_seen();
        assert_eq!(seen, (LOOK_MAX * RECORD_LEN) as u64);
        assert!(inbox.socket().has_fault());
        assert_eq!(inbox.take(9), [1]);
    }

    #[test]
    fn a_position_that_cannot_be_is_not_believed() {
        let inbox = Inbox::new();
        inbox.push(Flags::empty(), b"one");
        inbox.fault(1);
        let tail = inbox.slot().receive_tail();
        for position in [tail + 1, tail + 8, u64::MAX, u64::MAX - 7] {
            inbox.slot().set_errors_seen(position);
            assert!(inbox.socket().has_fault(), "{position}");
        }
        // One in the midst of a record, or in octets that are none, ends the search and no more.
        for position in 1..tail {
            inbox.slot().set_errors_seen(position);
            inbox.socket().has_fault();
            inbox.take(9);
            assert_eq!(inbox.socket().first_datagram().map(|first| first.len), Some(3));
        }
        let extents = inbox.slot().receive_extents(inbox.port.layout()).expect("valid");
        let garbage = extents.pieces(tail, 40).expect("there is room");
        garbage.write(inbox.port.memory(), inbox.port.layout().receive_area, &[0xff; 40]);
        inbox.slot().set_receive_tail(tail + 40);
        inbox.slot().set_errors_seen(0);
        assert_eq!(
            (inbox.take(9), inbox.take(9), inbox.socket().has_fault()),
            ([1].into(), [].into(), false)
        );
    }
}
