//! The state of one socket that application and replica share, in four cache lines, each written by one side.
//!
//! ```text
//!   line 0  application   generation, flags, send tail, receive head, bell, claim, holders
//!   line 1  application   extents of the send buffer, end of urgent octets or of errors that were taken
//!   line 2  replica       generation, state and own port, acknowledged, receive tail, flags and error,
//!                         own address
//!   line 3  replica       extents of the receive buffer, the mark of urgent octets or a number of datagrams
//! ```
//! All positions are absolute stream offsets, so publishing one again is harmless (design 5). For a datagram
//! socket the streams consist of records ([`crate::datagram`]).

use core::mem::offset_of;

use atoll_base::{Addr, Endpoint, SlotId};
use zerocopy::TryFromBytes;

use crate::arena::{ArenaLayout, SLOT_BYTES};
use crate::buffer::{EXTENTS_BYTES, Extents};
use crate::event::Cause;
use crate::layout::words;
use crate::memory::Memory;
use crate::pool::UNIT_BYTES;

/// Application flag: no more octets will be written (FIN after the send tail).
pub const APP_SHUT_SEND: u32 = 1;
/// Application flag: received octets are no longer wanted (`shutdown(SHUT_RD)`).
pub const APP_SHUT_RECEIVE: u32 = 2;
/// Application flag: the connection's SYN may wait for data (TCP Fast Open). It is set before the connection
/// is opened, and cleared to let the SYN leave without data.
pub const APP_FAST_OPEN: u32 = 4;
/// Application flag: the close is to be a reset (`SO_LINGER` with a time of 0), whichever process closes the
/// slot, and also if the last holder dies.
pub const APP_RESET: u32 = 8;
/// Application flag: a process waits in close(2) until the peer has acknowledged everything (`SO_LINGER`
/// with a time). The slot is given back only when the FIN is acknowledged, too.
pub const APP_LINGERS: u32 = 16;
/// Application flag: a thread may sleep until the replica has taken up the command to connect, which the
/// replica then says by an event. Other connects need none: a thread that waits for the connection itself
/// would be woken twice.
pub const APP_AWAITS_ANSWER: u32 = 32;
/// Application flag: options follow the command to connect that count for the SYN, which waits for them. It
/// is set before the connection is opened, and cleared behind the options.
pub const APP_OPTIONS_FOLLOW: u32 = 64;

/// Replica flag: the peer's FIN is in order; the stream ends at the receive tail.
pub const REPLICA_FIN: u32 = 1;
/// Replica flag: the connection has ended; nothing will be sent or received any more. The error says why,
/// unless the end was orderly.
pub const REPLICA_CLOSED: u32 = 2;
/// Replica flag: octets beyond the receive tail were lost with a reset (reads give the error after the tail).
pub const REPLICA_RESET: u32 = 4;

/// Replica flag: there has been an urgent octet, whose offset [`Slot::mark`] returns.
pub const REPLICA_URGENT: u32 = 8;
/// Replica flag: `TCP_NOTSENT_LOWAT` is set and the send limit respects it, so a third of the limit need not
/// be free.
pub const REPLICA_UNSENT: u32 = 32;
/// Replica flag: at least half of the octets that `TCP_NOTSENT_LOWAT` allows are unsent: poll(2) reports no
/// room.
pub const REPLICA_UNSENT_FULL: u32 = 64;
/// Replica flag: the SYN waits for data, or has carried some (TCP Fast Open).
pub const REPLICA_FAST_OPEN: u32 = 16;

/// An error of a datagram socket, as its replica publishes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorMark {
    /// Why the next call fails.
    pub cause: Cause,
    /// The number of the error, which tells it from the one before: 1 to 255, in turn. 0 says that the
    /// replica does not count: it is of an earlier build, or has reported none.
    pub number: u8,
}

/// State of a slot as its replica publishes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, TryFromBytes)]
#[repr(u32)]
pub enum SlotState {
    /// The slot is not in use.
    #[default]
    Free = 0,
    /// An established connection is offered to this acceptor, and not claimed yet.
    Offered = 1,
    /// The connection is in SYN-SENT.
    Connecting = 2,
    /// Octets may flow (any synchronised state), or the datagram socket is open.
    Open = 3,
    /// The application has closed the slot, and the replica still has work to do.
    Closing = 4,
}

/// What a replica says of a socket when it takes it up: see [`Slot::replica_begin`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beginning {
    /// The state of the slot.
    pub state: SlotState,
    /// The octets that the application should keep in the send buffer at most.
    pub send_limit: u32,
    /// The socket's own address and port.
    pub local: Endpoint,
    /// The `REPLICA_*` flags.
    pub flags: u32,
    /// Why the socket could not be opened; [`Cause::None`] if it could.
    pub error: Cause,
}

impl SlotState {
    /// Returns the state with this number; unknown numbers read as [`SlotState::Free`].
    pub fn from_u32(n: u32) -> SlotState {
        SlotState::try_read_from_bytes(&n.to_ne_bytes()).unwrap_or(SlotState::Free)
    }
}

words! {
    /// The words of a slot.
    struct Words {
        // Line 0, application.
        app_generation: u32,
        app_flags: u32,
        send_tail: u64,
        receive_head: u64,
        bell: u32,
        claimed: u32,
        holders: u64,
        library: [u64; 3],
        // Line 1, application.
        send_extents: [u8; EXTENTS_BYTES],
        send_urgent: u64,
        // Line 2, replica.
        generation: u32,
        state_and_port: u32,
        acknowledged: u64,
        receive_tail: u64,
        flags_and_error: u32,
        passed: u32,
        revoked: u32,
        send_limit: u32,
        read_mark: u64,
        local_addr: Addr,
        // Line 3, replica.
        receive_extents: [u8; EXTENTS_BYTES],
        mark: u64,
    }
}

const A_GENERATION: usize = offset_of!(Words, app_generation);
const A_FLAGS: usize = offset_of!(Words, app_flags);
const A_SEND_TAIL: usize = offset_of!(Words, send_tail);
const A_RECEIVE_HEAD: usize = offset_of!(Words, receive_head);
const A_BELL: usize = offset_of!(Words, bell);
const A_CLAIMED: usize = offset_of!(Words, claimed);
const A_HOLDERS: usize = offset_of!(Words, holders);
const A_LIBRARY: usize = offset_of!(Words, library);
const A_EXTENTS: usize = offset_of!(Words, send_extents);
const A_URGENT: usize = offset_of!(Words, send_urgent);
const R_GENERATION: usize = offset_of!(Words, generation);
const R_STATE: usize = offset_of!(Words, state_and_port);
const R_ACKNOWLEDGED: usize = offset_of!(Words, acknowledged);
const R_RECEIVE_TAIL: usize = offset_of!(Words, receive_tail);
const R_FLAGS: usize = offset_of!(Words, flags_and_error);
const R_PASSED: usize = offset_of!(Words, passed);
const R_REVOKED: usize = offset_of!(Words, revoked);
const R_SEND_LIMIT: usize = offset_of!(Words, send_limit);
const R_READ_MARK: usize = offset_of!(Words, read_mark);
const R_LOCAL_ADDR: usize = offset_of!(Words, local_addr);
const R_EXTENTS: usize = offset_of!(Words, receive_extents);
const R_MARK: usize = offset_of!(Words, mark);
const _: () = assert!(size_of::<Words>() == SLOT_BYTES && R_GENERATION == SLOT_BYTES / 2);
/// The state shares its word with the local port, and the flags share theirs with the error. Only the replica
/// writes these words.
const STATE_BITS: u32 = 0xffff;
const PORT_SHIFT: u32 = 16;
const FLAG_BITS: u32 = 0x00ff_ffff;
const ERROR_SHIFT: u32 = 24;
/// Where in the same word the number of a datagram socket's error is.
const NUMBER_SHIFT: u32 = 16;
/// The library's word that holds the offset of the urgent octet that the program has taken out of the stream,
/// plus one.
const TAKEN_WORD: usize = 2;
/// The bit of `R_PASSED` that says that 7 bits of a count less one and 24 bits of an offset are valid; else
/// the word is 0.
const PASSED_AT: u32 = 1 << 31;
const PASSED_MAX: u32 = 127;
const COUNT_SHIFT: u32 = 24;
const OFFSET_BITS: u32 = (1 << COUNT_SHIFT) - 1;

/// A view of one slot of one arena. Plain offsets: cheap to make, holds no state.
#[derive(Clone, Copy, Debug)]
pub struct Slot<'m, M: Memory> {
    memory: &'m M,
    at: usize,
}

impl<'m, M: Memory> Slot<'m, M> {
    /// Creates a view of the slot; returns `None` if the number is out of range.
    pub fn new(memory: &'m M, layout: &ArenaLayout, slot: SlotId) -> Option<Slot<'m, M>> {
        layout.slot(slot).map(|at| Slot { memory, at })
    }

    /// Prefetches the slot.
    #[inline]
    pub fn prefetch(&self) {
        self.memory.prefetch(self.at, SLOT_BYTES);
    }

    // ---- what the application writes ----

    /// Returns the generation that the application uses.
    pub fn app_generation(&self) -> u32 {
        self.memory.load32(self.at + A_GENERATION)
    }

    /// Prepares the application's lines for a new generation: an empty stream and no flags.
    pub fn app_reset(&self, generation: u32) {
        let m = self.memory;
        m.store32(self.at + A_FLAGS, 0);
        m.store64(self.at + A_SEND_TAIL, 0);
        m.store64(self.at + A_RECEIVE_HEAD, 0);
        m.store64(self.at + A_URGENT, 0);
        self.set_library_word(TAKEN_WORD, 0);
        m.store32(self.at + A_CLAIMED, 0);
        Extents::default().store(m, self.at + A_EXTENTS);
        m.store32_release(self.at + A_GENERATION, generation);
    }

    /// Returns the `APP_*` flags.
    pub fn app_flags(&self) -> u32 {
        self.memory.load32_acquire(self.at + A_FLAGS)
    }

    /// Sets the `APP_*` flags.
    pub fn set_app_flags(&self, flags: u32) {
        self.memory.store32_release(self.at + A_FLAGS, flags);
    }

    /// Returns the send tail: octets before this offset are in the send buffer.
    pub fn send_tail(&self) -> u64 {
        self.memory.load64_acquire(self.at + A_SEND_TAIL)
    }

    /// Publishes octets to send after they were written.
    pub fn set_send_tail(&self, tail: u64) {
        self.memory.store64_release(self.at + A_SEND_TAIL, tail);
    }

    /// Returns the end of urgent octets: those before this offset are urgent (MSG_OOB); 0 if none ever were.
    pub fn send_urgent(&self) -> u64 {
        self.memory.load64(self.at + A_URGENT)
    }

    /// Marks octets before `end` as urgent. Call before the tail that contains them is published.
    pub fn set_send_urgent(&self, end: u64) {
        self.memory.store64(self.at + A_URGENT, end);
    }

    /// Returns the position in the stream of a datagram socket before which no error waits that no process of
    /// the family has taken; 0 in a new slot. The errors before it are still in the buffer, between datagrams
    /// that wait. The library alone uses it, where a connection has the end of its urgent octets.
    pub fn errors_seen(&self) -> u64 {
        self.memory.load64(self.at + A_URGENT)
    }

    /// Sets the position that [`Slot::errors_seen`] returns. The caller holds the family's lock.
    pub fn set_errors_seen(&self, position: u64) {
        self.memory.store64(self.at + A_URGENT, position);
    }

    /// Returns the offset of the urgent octet that the program has taken out of the stream last
    /// (`recv(MSG_OOB)`).
    pub fn taken(&self) -> Option<u64> {
        self.library_word(TAKEN_WORD).checked_sub(1)
    }

    /// Stores that the program has taken the urgent octet at `offset`.
    pub fn set_taken(&self, offset: u64) {
        self.set_library_word(TAKEN_WORD, offset.wrapping_add(1));
    }

    /// Returns the receive head: the application has consumed octets before this offset.
    pub fn receive_head(&self) -> u64 {
        self.memory.load64_acquire(self.at + A_RECEIVE_HEAD)
    }

    /// Publishes that the application has consumed octets before `head`.
    pub fn set_receive_head(&self, head: u64) {
        self.memory.store64_release(self.at + A_RECEIVE_HEAD, head);
    }

    /// Returns the doorbell of the application's page to ring for this socket.
    pub fn bell(&self) -> u32 {
        self.memory.load32(self.at + A_BELL)
    }

    /// Sets the doorbell of the application's page to ring for this socket.
    pub fn set_bell(&self, bell: u32) {
        self.memory.store32(self.at + A_BELL, bell);
    }

    /// Returns the generation of the offer that the application has claimed.
    pub fn claimed(&self) -> u32 {
        self.memory.load32_acquire(self.at + A_CLAIMED)
    }

    /// Claims the offer `generation`. Returns whether the claim certainly holds. If not, the replica may have
    /// revoked the offer: wait for [`crate::Event::ClaimVerdict`].
    ///
    /// Both sides store their own word, fence, and load the other's (Dekker): at least one sees the other. If
    /// the application sees no revocation, the replica will see the claim and must honour it. A claim may
    /// come so late that the slot was offered again, and that offer revoked, too: then the word names the
    /// later offer, and the replica's generation has moved on.
    pub fn claim(&self, generation: u32) -> bool {
        self.memory.store32(self.at + A_CLAIMED, generation);
        self.memory.fence();
        // Partner: the release in `revoke`; a process that sees the revocation of a later offer sees that
        // offer.
        self.memory.load32_acquire(self.at + R_REVOKED) != generation
            && self.replica_generation() == generation
    }

    /// Revokes the offer `generation`: the replica's part of [`Slot::claim`]. Returns whether the revocation
    /// certainly holds. If not, the application has claimed: the replica must honour the claim and send a
    /// verdict.
    pub fn revoke(&self, generation: u32) -> bool {
        self.memory.store32_release(self.at + R_REVOKED, generation);
        self.memory.fence();
        self.memory.load32(self.at + A_CLAIMED) != generation
    }

    /// Returns the processes of the session's family that hold the socket open, one bit each.
    pub fn holders(&self) -> u64 {
        self.memory.load64(self.at + A_HOLDERS)
    }

    /// Sets the holders of a new socket.
    pub fn set_holders(&self, holders: u64) {
        self.memory.store64(self.at + A_HOLDERS, holders);
    }

    /// Adds a holder; returns the mask before the call.
    pub fn add_holder(&self, member: u8) -> u64 {
        self.memory.fetch_or64(self.at + A_HOLDERS, 1 << (member & 63))
    }

    /// Removes a holder; returns the mask after the call.
    pub fn remove_holder(&self, member: u8) -> u64 {
        self.remove_holders(1 << (member & 63))
    }

    /// Removes holders, one bit each; returns the mask after the call.
    pub fn remove_holders(&self, members: u64) -> u64 {
        self.memory.fetch_and64(self.at + A_HOLDERS, !members) & !members
    }

    /// Returns a word of the library's own (24 bytes at `word * 8`, words 0..3), which replicas ignore.
    pub fn library_word(&self, word: usize) -> u64 {
        self.memory.load64(self.at + A_LIBRARY + (word % 3) * 8)
    }

    /// Sets a word of the library's own.
    pub fn set_library_word(&self, word: usize, value: u64) {
        self.memory.store64(self.at + A_LIBRARY + (word % 3) * 8, value);
    }

    /// Adds bits to a word of the library's own; returns the word before the call.
    pub fn add_to_library_word(&self, word: usize, bits: u64) -> u64 {
        self.memory.fetch_or64(self.at + A_LIBRARY + (word % 3) * 8, bits)
    }

    /// Returns the rings of the send buffer, as the application published them; `None` if they are not valid.
    pub fn send_extents(&self, layout: &ArenaLayout) -> Option<Extents> {
        Extents::load(self.memory, self.at + A_EXTENTS, layout.send_pool.units)
    }

    /// Publishes the rings of the send buffer, before the tail that needs them.
    pub fn set_send_extents(&self, extents: &Extents) {
        extents.store(self.memory, self.at + A_EXTENTS);
    }

    // ---- what the replica writes ----

    /// Returns the generation that the replica uses.
    pub fn replica_generation(&self) -> u32 {
        self.memory.load32_acquire(self.at + R_GENERATION)
    }

    /// Begins a new generation, as [`Slot::replica_begin`], with a state and a limit and nothing else.
    pub fn replica_reset(&self, generation: u32, state: SlotState, send_limit: u32) {
        self.replica_begin(generation, &Beginning { state, send_limit, ..Beginning::default() });
    }

    /// Begins a new generation in the replica's lines. An application looks at them from the moment at which
    /// it finds its generation there, so this comes last, and all that it may ask then is there.
    pub fn replica_begin(&self, generation: u32, beginning: &Beginning) {
        let m = self.memory;
        m.store64(self.at + R_ACKNOWLEDGED, 0);
        m.store64(self.at + R_RECEIVE_TAIL, 0);
        m.store32(self.at + R_FLAGS, beginning.flags & FLAG_BITS | (beginning.error as u32) << ERROR_SHIFT);
        m.store32(self.at + R_SEND_LIMIT, beginning.send_limit);
        m.store64(self.at + R_READ_MARK, u64::MAX);
        m.store64(self.at + R_MARK, 0);
        m.store32(self.at + R_PASSED, 0);
        Extents::default().store(m, self.at + R_EXTENTS);
        self.replace(R_STATE, !STATE_BITS, beginning.state as u32);
        self.set_local(beginning.local);
        m.store32_release(self.at + R_GENERATION, generation);
    }

    /// Returns the state of the slot.
    pub fn state(&self) -> SlotState {
        SlotState::from_u32(self.memory.load32_acquire(self.at + R_STATE) & STATE_BITS)
    }

    /// Sets the state of the slot.
    pub fn set_state(&self, state: SlotState) {
        self.replace(R_STATE, !STATE_BITS, state as u32);
    }

    /// Returns the offset before which the peer has acknowledged octets (datagrams: before which they were
    /// sent); their memory is free.
    pub fn acknowledged(&self) -> u64 {
        self.memory.load64_acquire(self.at + R_ACKNOWLEDGED)
    }

    /// Publishes that octets before `offset` were acknowledged.
    pub fn set_acknowledged(&self, offset: u64) {
        self.memory.store64_release(self.at + R_ACKNOWLEDGED, offset);
    }

    /// Returns the receive tail: octets before this offset can be read.
    pub fn receive_tail(&self) -> u64 {
        self.memory.load64_acquire(self.at + R_RECEIVE_TAIL)
    }

    /// Publishes received octets after they were written.
    pub fn set_receive_tail(&self, tail: u64) {
        self.memory.store64_release(self.at + R_RECEIVE_TAIL, tail);
    }

    /// Returns the `REPLICA_*` flags.
    pub fn replica_flags(&self) -> u32 {
        self.memory.load32_acquire(self.at + R_FLAGS) & FLAG_BITS
    }

    /// Sets the `REPLICA_*` flags. Call after the error that explains them was set.
    pub fn set_replica_flags(&self, flags: u32) {
        self.replace(R_FLAGS, !FLAG_BITS, flags & FLAG_BITS);
    }

    /// Returns why the connection ended.
    pub fn error(&self) -> Cause {
        Cause::from_u8((self.memory.load32(self.at + R_FLAGS) >> ERROR_SHIFT) as u8)
    }

    /// Sets why the connection ended.
    pub fn set_error(&self, cause: Cause) {
        self.replace(R_FLAGS, FLAG_BITS, (cause as u32) << ERROR_SHIFT);
    }

    /// Publishes the flags of a connection, why it ended, and its state if that is given. A program that sees
    /// that the connection is not connecting any more sees whether it has failed, and why: the flags and the
    /// error are one word, and come before the state.
    pub fn set_outcome(&self, flags: u32, error: Cause, state: Option<SlotState>) {
        self.memory.store32_release(self.at + R_FLAGS, flags & FLAG_BITS | (error as u32) << ERROR_SHIFT);
        if let Some(state) = state {
            self.set_state(state);
        }
    }

    /// Returns the last error of a datagram socket, and its number.
    pub fn error_mark(&self) -> ErrorMark {
        let word = self.memory.load32_acquire(self.at + R_FLAGS);
        ErrorMark { cause: Cause::from_u8((word >> ERROR_SHIFT) as u8), number: (word >> NUMBER_SHIFT) as u8 }
    }

    /// Sets the last error of a datagram socket, and its number: such a socket has none of the flags that are
    /// in its place.
    pub fn set_error_mark(&self, mark: ErrorMark) {
        let word = (mark.cause as u32) << ERROR_SHIFT | u32::from(mark.number) << NUMBER_SHIFT;
        self.replace(R_FLAGS, (1 << NUMBER_SHIFT) - 1, word);
    }

    /// Returns the number of octets that the application should keep in the send buffer at most.
    pub fn send_limit(&self) -> u32 {
        self.memory.load32(self.at + R_SEND_LIMIT)
    }

    /// Sets the number of octets that the application should keep in the send buffer at most.
    pub fn set_send_limit(&self, limit: u32) {
        self.memory.store32(self.at + R_SEND_LIMIT, limit);
    }

    /// Returns the read mark: the application kicks the slot as soon as it has read up to this offset (the
    /// window is nearly closed); `u64::MAX` for never.
    pub fn read_mark(&self) -> u64 {
        self.memory.load64(self.at + R_READ_MARK)
    }

    /// Sets the read mark. The replica reads the receive head again afterwards, with a [`Memory::fence`]
    /// between.
    pub fn set_read_mark(&self, mark: u64) {
        self.memory.store64(self.at + R_READ_MARK, mark);
    }

    /// Returns the offset of the octet that the peer called urgent last.
    #[inline]
    pub fn mark(&self) -> Option<u64> {
        self.memory.load64_acquire(self.at + R_MARK).checked_sub(1)
    }

    /// Returns the number of datagrams that the replica has dropped for want of room, if the slot is a
    /// datagram socket's, which has no mark.
    pub fn dropped(&self) -> u32 {
        self.memory.load64_acquire(self.at + R_MARK) as u32
    }

    /// Publishes the number of datagrams that were dropped for want of room.
    pub fn set_dropped(&self, count: u32) {
        self.memory.store64_release(self.at + R_MARK, count.into());
    }

    /// Returns the number of marks from `head` on for which the stream has no octets any more, because the
    /// reader stood there when the mark moved on.
    pub fn passed_marks(&self, head: u64) -> u64 {
        let word = self.memory.load32(self.at + R_PASSED);
        // The offset is unambiguous: the replica clears the word long before the reader has gone 16 MiB
        // further.
        if word & PASSED_AT != 0 && u64::from(word & OFFSET_BITS) == head & u64::from(OFFSET_BITS) {
            u64::from(word >> COUNT_SHIFT & PASSED_MAX) + 1
        } else {
            0
        }
    }

    /// Publishes the mark, before a tail beyond it. `passed` has the offset and number of octets for
    /// [`Slot::passed_marks`].
    pub fn set_mark(&self, mark: u64, passed: Option<(u64, u8)>) {
        let word = passed.map_or(0, |(from, count)| {
            let count = u32::from(count).saturating_sub(1).min(PASSED_MAX);
            PASSED_AT | count << COUNT_SHIFT | from as u32 & OFFSET_BITS
        });
        self.memory.store32(self.at + R_PASSED, word);
        self.memory.store64_release(self.at + R_MARK, mark.wrapping_add(1));
    }

    /// Stores `bits` in a word of the replica's, and keeps the bits in `kept`.
    fn replace(&self, word: usize, kept: u32, bits: u32) {
        let before = self.memory.load32(self.at + word);
        self.memory.store32_release(self.at + word, before & kept | bits);
    }

    /// Returns the local address and port, as the replica has chosen them where the application left them
    /// open. The peer's are not stored: the application named them, or learned them with the offer.
    pub fn local(&self) -> Endpoint {
        let mut octets = [0; 16];
        self.memory.read(self.at + R_LOCAL_ADDR, &mut octets);
        Endpoint::at(Addr::from_octets(octets), (self.memory.load32(self.at + R_STATE) >> PORT_SHIFT) as u16)
    }

    /// Sets the local address and port. Call before the generation that they belong to is published.
    pub fn set_local(&self, local: Endpoint) {
        self.memory.write(self.at + R_LOCAL_ADDR, &local.addr.octets());
        self.replace(R_STATE, STATE_BITS, u32::from(local.port) << PORT_SHIFT);
    }

    /// Returns the rings of the receive buffer, as the replica published them; `None` if they are not valid.
    #[inline]
    pub fn receive_extents(&self, layout: &ArenaLayout) -> Option<Extents> {
        let units = (layout.receive_bytes / UNIT_BYTES) as u32;
        Extents::load(self.memory, self.at + R_EXTENTS, units)
    }

    /// Publishes the rings of the receive buffer, before the tail that needs them.
    pub fn set_receive_extents(&self, extents: &Extents) {
        extents.store(self.memory, self.at + R_EXTENTS);
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::*;
    use crate::arena::ArenaConfig;
    use crate::memory::HeapMemory;
    use crate::memory::mortal::Mortal;

    fn arena() -> (HeapMemory, ArenaLayout) {
        let layout = ArenaConfig { slots: 16, send_log2: 16, receive_log2: 16 }.layout();
        (HeapMemory::new(layout.total), layout)
    }

    #[test]
    fn the_two_sides_do_not_touch_each_others_lines() {
        let (memory, layout) = arena();
        let slot = Slot::new(&memory, &layout, SlotId(3)).expect("in range");
        slot.app_reset(5);
        slot.set_send_tail(100);
        slot.set_library_word(2, 77);
        slot.replica_reset(5, SlotState::Open, 4096);
        slot.set_receive_tail(200);
        slot.set_local(Endpoint::new(1, 2));
        assert_eq!((slot.app_generation(), slot.send_tail(), slot.library_word(2)), (5, 100, 77));
        assert_eq!((slot.replica_generation(), slot.receive_tail(), slot.send_limit()), (5, 200, 4096));
        assert_eq!(slot.local(), Endpoint::new(1, 2));
        assert_eq!(slot.read_mark(), u64::MAX);
    }

    #[test]
    fn who_sees_the_generation_sees_what_it_begins_with() {
        let beginning = Beginning {
            state: SlotState::Connecting,
            send_limit: 7,
            local: Endpoint::new(0x0102_0304, 5),
            flags: REPLICA_FAST_OPEN | REPLICA_CLOSED,
            error: Cause::ConnectionRefused,
        };
        let began = (1..).find(|stores| {
            let (memory, layout) = arena();
            let before = Slot::new(&memory, &layout, SlotId(0)).expect("in range");
            before.replica_reset(4, SlotState::Closing, 9);
            let left = Cell::new(*stores);
            let mortal = Mortal { memory: memory.clone(), left: &left };
            Slot::new(&mortal, &layout, SlotId(0)).expect("in range").replica_begin(5, &beginning);
            if before.replica_generation() == 4 {
                return false;
            }
            let (state, send_limit, local) = (before.state(), before.send_limit(), before.local());
            let (flags, error) = (before.replica_flags(), before.error());
            assert_eq!(Beginning { state, send_limit, local, flags, error }, beginning);
            true
        });
        assert!(began.is_some_and(|stores| stores > 5));
    }

    #[test]
    fn who_sees_a_connection_that_is_not_connecting_sees_that_it_has_failed() {
        for stores in 0..4 {
            let (memory, layout) = arena();
            let seen = Slot::new(&memory, &layout, SlotId(0)).expect("in range");
            seen.replica_reset(4, SlotState::Connecting, 9);
            let left = Cell::new(stores);
            let mortal = Mortal { memory: memory.clone(), left: &left };
            let slot = Slot::new(&mortal, &layout, SlotId(0)).expect("in range");
            slot.set_outcome(REPLICA_CLOSED, Cause::ConnectionRefused, Some(SlotState::Open));
            let is_closed =
                seen.replica_flags() == REPLICA_CLOSED && seen.error() == Cause::ConnectionRefused;
            let is_connecting = seen.state() == SlotState::Connecting;
            assert!(is_closed || is_connecting && seen.replica_flags() == 0 && seen.error() == Cause::None);
            assert_eq!(is_connecting, stores < 2);
        }
    }

    #[test]
    fn a_claim_before_a_revocation_wins_and_after_it_waits() {
        let (memory, layout) = arena();
        let slot = Slot::new(&memory, &layout, SlotId(0)).expect("in range");
        slot.replica_reset(4, SlotState::Offered, 0);
        assert!(slot.claim(4));
        assert!(!slot.revoke(4));
        slot.replica_reset(5, SlotState::Offered, 0);
        assert!(slot.revoke(5));
        assert!(!slot.claim(5));
    }

    #[test]
    fn marks_are_told_with_those_before() {
        let (memory, layout) = arena();
        let slot = Slot::new(&memory, &layout, SlotId(0)).expect("in range");
        slot.replica_reset(1, SlotState::Open, 1);
        assert_eq!((slot.mark(), slot.passed_marks(0)), (None, 0));
        let at = (7 << 32) + 0x00ff_fff0;
        slot.set_mark(at + 9, Some((at, 3)));
        assert_eq!((slot.mark(), slot.passed_marks(at), slot.passed_marks(at + 1)), (Some(at + 9), 3, 0));
        slot.set_mark(0, Some((0, 255)));
        assert_eq!((slot.mark(), slot.passed_marks(0)), (Some(0), 128));
        slot.set_mark(5, None);
        assert_eq!(slot.passed_marks(0), 0);
        slot.set_taken(0);
        assert_eq!(slot.taken(), Some(0));
        slot.app_reset(2);
        assert_eq!((slot.taken(), slot.send_urgent()), (None, 0));
    }

    #[test]
    fn the_last_holder_is_seen_leaving() {
        let (memory, layout) = arena();
        let slot = Slot::new(&memory, &layout, SlotId(0)).expect("in range");
        slot.set_holders(1);
        slot.add_holder(5);
        assert_eq!(slot.remove_holder(0), 1 << 5);
        assert_eq!(slot.remove_holder(5), 0);
    }
}
