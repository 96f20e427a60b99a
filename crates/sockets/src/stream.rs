//! Receive, send, shutdown and poll on a connection: tcp(7), recv(2), send(2), shutdown(2), poll(2).
//!
//! All positions are in the slot, which the family shares; the few facts that belong to one process are in
//! [`Local`].

use core::sync::atomic::{Ordering, fence};

use atoll_ipc::arena::ArenaLayout;
use atoll_ipc::buffer::{Extents, Pieces};
use atoll_ipc::slot::{
    APP_AWAITS_ANSWER, APP_FAST_OPEN, APP_LINGERS, APP_OPTIONS_FOLLOW, APP_RESET, APP_SHUT_RECEIVE,
    APP_SHUT_SEND, REPLICA_CLOSED, REPLICA_FAST_OPEN, REPLICA_FIN, REPLICA_RESET, REPLICA_UNSENT,
    REPLICA_UNSENT_FULL, REPLICA_URGENT, Slot, SlotState,
};
use atoll_ipc::{Cause, Memory, Ready};

use crate::copies::Copies;
use crate::errno::{Errno, Failure};
use crate::port::Port;

/// Facts about a connection that one process has and the slot does not.
#[derive(Clone, Copy, Debug, Default)]
pub struct Local {
    /// Whether the error of the connection was reported to the program; it is reported once.
    pub error_taken: bool,
    /// The value of `SO_RCVLOWAT` in octets; 0 and 1 mean the same.
    pub receive_low: u32,
    /// Whether the last attempt to send found room below the send limit, but no memory.
    pub starved: bool,
    /// `SO_OOBINLINE`: whether the urgent octet is part of the stream.
    pub urgent_inline: bool,
    /// The offset up to which the last attempt to read found only octets that do not belong to the stream:
    /// see [`Stream::pass`].
    pub pass: Option<u64>,
    /// The completions of sends with MSG_ZEROCOPY.
    pub copies: Copies,
    /// Whether shutdown(2) ended sending before there was a connection: send(2) fails, and no FIN says so
    /// ([`Stream::begin`] has the exception).
    pub shut_send: bool,
    /// `SO_PEEK_OFF`: the octets behind the head at which the next MSG_PEEK begins.
    pub peek: Option<u32>,
}

impl Local {
    /// Notes that a call has peeked at `len` octets, behind which the next one begins.
    pub(crate) fn has_peeked(&mut self, len: usize) {
        self.peek = self.peek.map(|offset| peeked(offset, len));
    }

    /// Notes that a call has taken `len` octets.
    #[inline]
    pub(crate) fn has_taken(&mut self, len: usize) {
        if let Some(offset) = &mut self.peek {
            *offset = taken(*offset, len);
        }
    }
}

/// Returns an offset of `SO_PEEK_OFF` after a call has peeked at `len` octets (sk_peek_offset_fwd).
pub(crate) fn peeked(offset: u32, len: usize) -> u32 {
    offset.saturating_add(u32::try_from(len).unwrap_or(u32::MAX)).min(i32::MAX as u32)
}

/// Returns an offset of `SO_PEEK_OFF` after a call has taken `len` octets (sk_peek_offset_bwd).
pub(crate) fn taken(offset: u32, len: usize) -> u32 {
    offset.saturating_sub(u32::try_from(len).unwrap_or(u32::MAX))
}

/// A view of one connection, for the length of one call.
#[derive(Debug)]
pub struct Stream<'a, M: Memory> {
    slot: Slot<'a, M>,
    memory: &'a M,
    layout: &'a ArenaLayout,
    generation: u32,
    /// The flags that hold whatever the replica says: [`Port::over`].
    over: u32,
}

/// Octets that can be read now.
#[derive(Clone, Copy, Debug)]
pub struct Readable {
    /// The stream offset of the first octet.
    pub head: u64,
    /// The number of octets; 0 means the end of the stream.
    pub len: u64,
    /// Whether there are more octets beyond the mark, so that a call need not wait for more.
    pub is_cut: bool,
    extents: Extents,
}

/// Room that can be written now.
#[derive(Clone, Copy, Debug)]
pub struct Writable {
    /// The stream offset of the first octet.
    pub tail: u64,
    /// The number of octets that fit, at least 1.
    pub len: usize,
    extents: Extents,
    changed: bool,
}

impl<'a, M: Memory> Stream<'a, M> {
    /// Creates a view of the connection in a slot; returns `None` if the slot number is out of range.
    #[inline]
    pub fn new(port: &'a Port<M>, slot: atoll_base::SlotId, generation: u32) -> Option<Stream<'a, M>> {
        Some(Stream {
            slot: port.slot(slot)?,
            memory: port.memory(),
            layout: port.layout(),
            generation,
            over: port.over(),
        })
    }

    /// Returns the connection's slot.
    pub fn slot(&self) -> &Slot<'a, M> {
        &self.slot
    }

    /// Returns the replica's flags, and those that hold because its stack is gone.
    #[inline]
    pub(crate) fn flags(&self) -> u32 {
        self.slot.replica_flags() | self.over
    }

    /// Returns the arena's memory.
    pub fn memory(&self) -> &'a M {
        self.memory
    }

    /// Returns the offset of the arena's send area.
    pub fn send_area(&self) -> usize {
        self.layout.send_area
    }

    /// Returns whether nothing more will be received: after a FIN, a reset, the end, or a shutdown.
    pub fn has_ended(&self) -> bool {
        self.flags() & (REPLICA_FIN | REPLICA_CLOSED | REPLICA_RESET) != 0
            || self.slot.app_flags() & APP_SHUT_RECEIVE != 0
    }

    /// Returns whether the replica has not taken up this generation yet, or the handshake is under way.
    #[inline]
    pub fn is_connecting(&self) -> bool {
        if !self.is_current() {
            return self.over == 0;
        }
        self.slot.state() == SlotState::Connecting && self.flags() & REPLICA_CLOSED == 0
    }

    /// Asks for TCP Fast Open. Call before the command that opens the connection.
    fn ask_for_fast_open(&self) {
        self.slot.set_app_flags(self.slot.app_flags() | APP_FAST_OPEN | APP_AWAITS_ANSWER);
    }

    /// Holds the SYN back until [`Stream::end_options`]. Call before the command that opens the connection.
    pub fn begin_options(&self) {
        self.slot.set_app_flags(self.slot.app_flags() | APP_OPTIONS_FOLLOW);
    }

    /// Lets the SYN leave that [`Stream::begin_options`] has held back. The caller kicks the replica.
    pub fn end_options(&self) {
        self.slot.set_app_flags(self.slot.app_flags() & !APP_OPTIONS_FOLLOW);
    }

    /// Says before the command that opens the connection what holds from its beginning: whether to ask for
    /// TCP Fast Open, and what shutdown(2) has ended before.
    pub fn begin(&self, fast: bool, shut_receive: bool, shut_send: bool) {
        if fast {
            self.ask_for_fast_open();
        }
        if shut_receive {
            self.slot.set_app_flags(self.slot.app_flags() | APP_SHUT_RECEIVE);
        }
        if shut_send {
            self.shut_send_early();
        }
    }

    /// Ends sending: shutdown(2) came before the connection, which is one of a socket to itself. A FIN
    /// follows the handshake, because both SYNs cross (tcp_rcv_state_process, `TCP_SYN_RECV`); no other
    /// connection says by a FIN what was shut before it. Call before the command that opens it.
    fn shut_send_early(&self) {
        self.slot.set_app_flags(self.slot.app_flags() | APP_SHUT_SEND);
    }

    /// Returns whether a FIN follows what was written, or has followed it.
    pub(crate) fn is_shut_send(&self) -> bool {
        self.slot.app_flags() & APP_SHUT_SEND != 0
    }

    /// Returns whether a connection that connect(2) has not reported yet is still to end by
    /// [`Stream::begin`].
    pub(crate) fn is_about_to_end(&self) -> bool {
        self.is_shut_send() && !self.is_closed()
    }

    /// Sets whether the close is to be a reset (`SO_LINGER` with a time of 0), even if another process closes
    /// the slot, or the replica after the last holder has died.
    pub fn set_reset_on_close(&self, on: bool) {
        let flags = self.slot.app_flags();
        let wanted = if on { flags | APP_RESET } else { flags & !APP_RESET };
        if wanted != flags {
            self.slot.set_app_flags(wanted);
        }
    }

    /// Notes that the process waits in close(2) until the FIN is acknowledged. Call before closing the slot.
    pub fn set_lingers(&self) {
        self.slot.set_app_flags(self.slot.app_flags() | APP_LINGERS);
    }

    /// Asks the replica to say when it takes up the command to connect. The caller looks once more whether it
    /// has, and sleeps.
    pub fn set_awaits_answer(&self) {
        self.slot.set_app_flags(self.slot.app_flags() | APP_AWAITS_ANSWER);
    }

    /// Returns whether the replica has taken up the command to connect.
    pub fn is_answered(&self) -> bool {
        self.is_current()
    }

    /// Returns whether the replica has taken up this generation, and the SYN waits for data (TCP Fast Open).
    pub fn waits_for_text(&self) -> bool {
        self.is_current()
            && self.slot.replica_flags() & REPLICA_FAST_OPEN != 0
            && self.slot.state() == SlotState::Connecting
            && self.slot.send_tail() == 0
            && self.slot.app_flags() & APP_FAST_OPEN != 0
    }

    /// Returns whether the octets in `room` are those that the SYN waits for. Call before they are committed.
    #[inline]
    pub fn opens_with(&self, room: &Writable) -> bool {
        room.tail == 0 && self.waits_for_text()
    }

    /// Lets the SYN leave, although it has waited for text in vain. The caller kicks the replica.
    pub fn send_waiting_syn(&self) {
        self.slot.set_app_flags(self.slot.app_flags() & !APP_FAST_OPEN);
    }

    /// Returns whether the connection has ended.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.over != 0 || self.is_current() && self.slot.replica_flags() & REPLICA_CLOSED != 0
    }

    /// Returns whether the replica has taken up this generation of the slot.
    pub(crate) fn is_current(&self) -> bool {
        self.slot.replica_generation() == self.generation
    }

    /// Returns the error that the connection ended with, whether it was reported already or not.
    pub fn error(&self) -> Option<Errno> {
        if !self.is_closed() {
            return None;
        }
        let is_known = self.is_current();
        let has_closed = is_known && self.slot.replica_flags() & REPLICA_CLOSED != 0;
        let cause = match self.over {
            _ if has_closed => self.slot.error(),
            0 => Cause::None,
            // The stack is gone. connect(2), netdevice(7): the network is down.
            _ if !is_known || self.slot.state() == SlotState::Connecting => return Some(Errno::ENETDOWN),
            _ => Cause::ConnectionReset,
        };
        let has_ended = is_known && self.slot.replica_flags() & REPLICA_FIN != 0;
        let goes_on = self.slot.app_flags() & APP_SHUT_SEND == 0;
        match cause {
            // tcp_reset: in CLOSE-WAIT the peer refuses what is sent.
            Cause::ConnectionReset if has_ended && goes_on => Some(Errno::EPIPE),
            cause => Errno::of(cause),
        }
    }

    /// Takes the error, which is reported once (by `SO_ERROR`, or the first failing call).
    pub fn take_error(&self, local: &mut Local) -> Option<Errno> {
        if local.error_taken {
            return None;
        }
        let error = self.error()?;
        local.error_taken = true;
        Some(error)
    }

    /// Returns the bits of poll(2) that hold now.
    pub fn readiness(&self, local: &Local) -> Ready {
        if !self.is_current() && self.over == 0 {
            return Ready::empty(); // The replica has not seen the connect yet.
        }
        let flags = self.flags();
        let shut = self.slot.app_flags();
        let mut ready = if local.copies.is_waiting() { Ready::ERR } else { Ready::default() };
        let mut low = u64::from(local.receive_low.max(1));
        if flags & REPLICA_URGENT != 0 {
            if self.urgent_octet().is_some() {
                ready |= Ready::PRI;
            }
            // As on Linux, the octet at the mark alone is nothing to read.
            low += u64::from(!local.urgent_inline && self.is_at_mark(local));
            low += self.slot.mark().map_or(0, |mark| self.passed(local, mark));
        }
        if flags & REPLICA_CLOSED != 0 {
            ready |= Ready::IN | Ready::OUT | Ready::HUP | Ready::RDHUP;
            if !local.error_taken && self.error().is_some() {
                ready |= Ready::ERR;
            }
            return ready.with_normal();
        }
        if self.slot.state() == SlotState::Connecting {
            let is_shut = shut & APP_SHUT_RECEIVE != 0;
            let ended = if is_shut { Ready::IN | Ready::RDHUP } else { Ready::empty() };
            let over = if is_shut && local.shut_send { Ready::HUP } else { Ready::empty() };
            // tcp_poll: the program is to write, so that the SYN has data to carry.
            let room = if self.waits_for_text() { Ready::WRITABLE } else { Ready::empty() };
            return ready | (ended | over | room).with_normal();
        }
        if flags & REPLICA_FIN != 0 || shut & APP_SHUT_RECEIVE != 0 {
            ready |= Ready::IN | Ready::RDHUP;
            if shut & APP_SHUT_SEND != 0 || local.shut_send {
                ready |= Ready::HUP;
            }
        } else {
            let waiting = self.slot.receive_tail().wrapping_sub(self.slot.receive_head());
            if waiting >= low && waiting <= self.layout.receive_bytes as u64 {
                ready |= Ready::IN;
            }
        }
        if shut & APP_SHUT_SEND != 0 || local.shut_send {
            ready |= Ready::OUT; // send(2) will not block: it fails with EPIPE.
        } else {
            let queued = self.slot.send_tail().wrapping_sub(self.slot.acknowledged());
            let limit = u64::from(self.slot.send_limit());
            // As Linux: writable when at least a third of the buffer is free; with TCP_NOTSENT_LOWAT, when
            // little is unsent.
            let has_room = if flags & REPLICA_UNSENT != 0 {
                flags & REPLICA_UNSENT_FULL == 0 && queued < limit
            } else {
                queued.saturating_mul(3) <= limit.saturating_mul(2)
            };
            if has_room {
                ready |= Ready::OUT;
            }
        }
        ready.with_normal()
    }

    /// Returns the octets that a receiving call finds, or why there are none.
    // On the fast path a call more, and its result once more, are felt.
    #[inline(always)]
    pub fn readable(&self, local: &mut Local) -> Result<Readable, Failure> {
        self.readable_from(local, 0)
    }

    /// Returns the octets that a call finds which looks behind the first `skip` octets (`SO_PEEK_OFF`), or
    /// why there are none.
    // As `readable`.
    #[inline(always)]
    pub fn readable_from(&self, local: &mut Local, skip: u64) -> Result<Readable, Failure> {
        if !self.is_current() {
            if self.over == 0 {
                return Err(Failure::WouldBlock);
            }
            // What is in the slot is of a connection before.
            return Err(self.take_error(local).unwrap_or(Errno::ECONNRESET).into());
        }
        // The flags first: they are set after the tail that they close, so a tail read later is complete.
        let flags = self.flags();
        let head = self.slot.receive_head();
        let len = self.slot.receive_tail().wrapping_sub(head);
        // A connection that has been ended since is found void when its octets have been copied.
        let is_void = flags & REPLICA_CLOSED != 0 && self.is_void();
        if len > skip && len <= self.layout.receive_bytes as u64 && !is_void {
            let Some(readable) = self.octets_at(head.wrapping_add(skip), len - skip) else {
                return Err(Errno::ECONNRESET.into()); // The replica publishes nonsense.
            };
            // After the tail: the mark is published before a tail beyond it.
            let found = match self.slot.mark() {
                Some(mark) if mark >= head => self.up_to_mark(mark, readable, local),
                _ => Some(readable),
            };
            if let Some(readable) = found {
                return Ok(readable);
            }
        }
        let end = || Ok(Readable { head, len: 0, is_cut: false, extents: Extents::default() });
        if flags & REPLICA_FIN != 0 {
            // The peer has sent the whole stream, whatever became of the connection afterwards.
            return end();
        }
        if flags & (REPLICA_CLOSED | REPLICA_RESET) != 0 {
            // recv(2): a pending error is reported once; afterwards the stream has ended.
            return self.take_error(local).map_or_else(end, |errno| Err(errno.into()));
        }
        if self.slot.app_flags() & APP_SHUT_RECEIVE != 0 {
            return end();
        }
        Err(Failure::WouldBlock)
    }

    /// Returns `len` octets from `head` on; `None` if the replica publishes nonsense.
    // As `readable`.
    #[inline(always)]
    pub(crate) fn octets_at(&self, head: u64, len: u64) -> Option<Readable> {
        let extents = self.slot.receive_extents(self.layout)?;
        Some(Readable { head, len, is_cut: false, extents })
    }

    /// Returns whether the connection was ended for want of memory, and unread octets were lost with it.
    fn is_void(&self) -> bool {
        self.is_closed() && self.slot.error() == Cause::NoBuffers
    }

    /// Copies octets from stream offset `at` on, as many as fit `out`; they must lie within `readable`.
    /// Returns false when the replica has published rings that do not hold them, or has reused their memory.
    // As `readable`.
    #[inline(always)]
    pub fn copy_out(&self, readable: &Readable, at: u64, out: &mut [u8]) -> bool {
        if out.is_empty() {
            return true;
        }
        match readable.extents.pieces(at, out.len()) {
            Some(pieces) => {
                pieces.read(self.memory, self.layout.receive_area, out);
                // Partner: the replica marks the connection as void, commits, and only then reuses the
                // memory.
                fence(Ordering::Acquire);
                !self.is_void()
            }
            None => false,
        }
    }

    /// Publishes that everything before `to` was consumed. Returns whether the replica is to be kicked
    /// because the window was nearly closed.
    #[inline]
    pub fn consume(&self, to: u64) -> bool {
        let before = self.slot.receive_head();
        self.slot.set_receive_head(to);
        // Partner: the replica sets the mark, fences, and reads the head.
        self.memory.fence();
        let mark = self.slot.read_mark();
        before < mark && mark <= to
    }

    /// Returns why nothing can be sent any more: the pending error first, then EPIPE (send(2)).
    pub fn refusal(&self, local: &mut Local) -> Option<Errno> {
        let is_shut_early = local.shut_send && !self.is_connecting();
        let is_shut = self.slot.app_flags() & APP_SHUT_SEND != 0 || is_shut_early;
        let is_over = self.is_closed() || is_shut;
        is_over.then(|| self.take_error(local).unwrap_or(Errno::EPIPE))
    }

    /// Finds room for up to `want` octets (`want > 0`).
    pub fn writable(&self, local: &mut Local, want: usize) -> Result<Writable, Failure> {
        if !self.is_current() && self.over == 0 {
            return Err(Failure::WouldBlock); // The replica has not seen the connect yet.
        }
        if let Some(errno) = self.refusal(local) {
            return Err(errno.into());
        }
        if self.slot.state() == SlotState::Connecting && !self.waits_for_text() {
            return Err(Failure::WouldBlock);
        }
        let tail = self.slot.send_tail();
        let acknowledged = self.slot.acknowledged().min(tail);
        let limit = u64::from(self.slot.send_limit());
        let free = limit.saturating_sub(tail - acknowledged).min(want as u64);
        if free == 0 {
            return Err(Failure::WouldBlock);
        }
        let before = self.slot.send_extents(self.layout).unwrap_or_default();
        let mut extents = before;
        let size_max = (limit as usize).next_power_of_two();
        let end = extents.reserve(
            &self.layout.send_pool.state_in(self.memory),
            acknowledged,
            tail,
            tail + free,
            size_max,
        );
        let changed = extents != before;
        let len = end.saturating_sub(tail) as usize;
        if len == 0 {
            if changed {
                self.slot.set_send_extents(&extents);
            }
            local.starved = true;
            return Err(Failure::WouldBlock);
        }
        Ok(Writable { tail, len, extents, changed })
    }

    /// Returns the places of `len` octets from `tail + skip` on, as offsets in the send area of the arena.
    #[inline]
    pub fn places(&self, room: &Writable, skip: usize, len: usize) -> Option<Pieces> {
        room.extents.pieces(room.tail + skip as u64, len)
    }

    /// Copies `bytes` to `tail + skip`.
    #[inline]
    pub fn copy_in(&self, room: &Writable, skip: usize, bytes: &[u8]) {
        if let Some(pieces) = self.places(room, skip, bytes.len()) {
            pieces.write(self.memory, self.layout.send_area, bytes);
        }
    }

    /// Publishes octets as [`Stream::commit`] does, and marks the last of them as urgent (MSG_OOB).
    pub fn commit_urgent(&self, room: &Writable, len: usize) {
        if len > 0 {
            self.slot.set_send_urgent(room.tail + len as u64);
        }
        self.commit(room, len);
    }

    /// Publishes the first `len` octets of `room`.
    #[inline]
    pub fn commit(&self, room: &Writable, len: usize) {
        if room.changed {
            self.slot.set_send_extents(&room.extents);
        }
        if len > 0 {
            self.slot.set_send_tail(room.tail + len as u64);
        }
    }

    /// Gives back buffer space that the peer has acknowledged. Returns whether any was freed.
    pub fn release(&self) -> bool {
        let Some(mut extents) = self.slot.send_extents(self.layout) else { return false };
        if extents == Extents::default() {
            return false;
        }
        let tail = self.slot.send_tail();
        let acknowledged = self.slot.acknowledged().min(tail);
        let changed = extents.release(&self.layout.send_pool.state_in(self.memory), acknowledged, tail);
        if changed {
            self.slot.set_send_extents(&extents);
        }
        changed
    }

    /// Returns whether the connection owns a send buffer.
    pub fn owns_buffer(&self) -> bool {
        self.slot.send_extents(self.layout).is_some_and(|extents| extents != Extents::default())
    }

    /// Implements shutdown(2) of either direction. Fails with ENOTCONN before the connection and after its
    /// end.
    pub fn shutdown(&self, receive: bool, send: bool) -> Result<(), Errno> {
        if self.is_connecting() || self.is_closed() {
            return Err(Errno::ENOTCONN);
        }
        let mut flags = self.slot.app_flags();
        if receive {
            flags |= APP_SHUT_RECEIVE;
        }
        if send {
            flags |= APP_SHUT_SEND;
        }
        self.slot.set_app_flags(flags);
        Ok(())
    }

    /// Returns the number of octets that were received and not read.
    pub(crate) fn waiting(&self) -> u64 {
        self.slot.receive_tail().wrapping_sub(self.slot.receive_head()).min(self.layout.receive_bytes as u64)
    }

    /// Returns whether the peer has sent all that it will send.
    pub(crate) fn has_fin(&self) -> bool {
        self.is_current() && self.flags() & REPLICA_FIN != 0
    }

    /// Returns the number of octets that the peer has not acknowledged yet (`SIOCOUTQ`).
    pub fn unacknowledged(&self) -> u64 {
        self.slot.send_tail().saturating_sub(self.slot.acknowledged())
    }

    /// Returns whether the program sends nothing more, and the connection has not ended.
    pub fn is_ending(&self) -> bool {
        self.slot.app_flags() & APP_SHUT_SEND != 0 && !self.is_closed()
    }
}

#[cfg(test)]
mod tests;
