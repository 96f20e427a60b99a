//! Sends the segments of a connection, as many as its link and its session's share allow.

use core::num::NonZeroU8;

use atoll_base::Instant;
use atoll_ip::Route;
use atoll_ipc::ledger::Work;
use atoll_ipc::page::Stat;
use atoll_ipc::{Cause, Device, Memory};
use atoll_tcp::{State, Transmit};
use atoll_wire::{ipv4, tcp};

use crate::egress::{Full, LINKS, Stalled, link_of, route, send_segment};
use crate::entry::Flags;
use crate::session::Occupant;
use crate::sink::{Absolute, FrameSink, TextRef};
use crate::transport::Transport;

/// The result of a connection's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// Everything that was due was sent.
    Done,
    /// The link is full: the turn is continued in a later flush.
    Blocked,
    /// The session has sent as much as it may in one flush: the turn is continued in the next.
    Later,
    /// The neighbour is being resolved.
    Unresolved,
}

/// The most text that one frame of the internal link carries, in octets: a packet has 65535.
const INTERNAL_SEGMENT_MAX: u32 = (ipv4::PAYLOAD_MAX - tcp::HEADER_MAX) as u32;

impl<M: Memory> Transport<M> {
    /// Sends what a connection has to send, and brings its slot up to date.
    pub(crate) fn flush_connection(
        &mut self,
        now: Instant,
        index: u32,
        out: &mut impl FrameSink<M>,
        full: &mut Full,
    ) {
        let Some(entry) = self.connections.get_mut(index) else { return };
        entry.flags.remove(Flags::DIRTY);
        self.durability.mark(Work::Output(index));
        match self.transmit(now, index, out, full) {
            Turn::Done => {}
            Turn::Blocked => self.egress.block(now, index),
            Turn::Later => self.put_off(index),
            Turn::Unresolved => {
                if let Some(entry) = self.connections.get_mut(index) {
                    self.egress.wait_for_neighbour(index, entry);
                }
            }
        }
        self.settle(now, index);
    }

    /// Puts the connection off to a later flush, because its session has had its share of this one.
    fn put_off(&mut self, index: u32) {
        let Some(entry) =
            self.connections.get_mut(index).filter(|entry| !entry.flags.intersects(Flags::LATER))
        else {
            return;
        };
        let Some(place) = entry.place else { return };
        if self.applications.put_off(place.session, Occupant::Connection(index)) {
            entry.flags.insert(Flags::LATER);
        }
    }

    /// Sends everything that the TCB wants sent now.
    fn transmit(&mut self, now: Instant, index: u32, out: &mut impl FrameSink<M>, full: &mut Full) -> Turn {
        let Some((entry, locals)) = self.connections.get_mut_with_locals(index) else { return Turn::Done };
        if entry.flags.intersects(Flags::HELD) {
            return Turn::Done;
        }
        let reachable = match route(&mut self.ip, locals, now, entry) {
            Route::Local | Route::Via { .. } => true,
            Route::Resolving => return Turn::Unresolved,
            // It is lost on the loopback, and nothing says so.
            Route::Unreachable if entry.device == Device::Loopback => false,
            Route::Unreachable => {
                if entry.connection.state() == State::SynSent {
                    entry.cause = Cause::HostUnreachable;
                    entry.connection.abort();
                } else if let Some(reason) = NonZeroU8::new(Cause::HostUnreachable as u8) {
                    entry.connection.note_network_error(reason);
                }
                // A segment that is sent now is lost, as if the network had dropped it.
                false
            }
        };
        let internal = entry.flags.intersects(Flags::INTERNAL);
        let link = link_of(&self.owners, internal, &locals.tuple(&entry.name));
        let flush = self.applications.flush();
        if full.is_full(link) {
            return Turn::Blocked;
        }
        let len_max =
            if internal { INTERNAL_SEGMENT_MAX } else { out.segment_max().min(INTERNAL_SEGMENT_MAX) };
        loop {
            let Some(entry) = self.connections.get_mut(index) else { return Turn::Done };
            let session = entry.place.and_then(|place| self.applications.get_mut(place.session));
            if let Some(session) = &session
                && !session.share.is_left(flush)
            {
                return Turn::Later;
            }
            let Some(transmit) = entry.connection.poll_transmit(now, len_max) else { return Turn::Done };
            if let Some(session) = session {
                session.share.take(flush, transmit.segment.len as usize);
            }
            if reachable && !self.send(index, &transmit, out) {
                full.set(link);
                if let Some(entry) = self.connections.get(index) {
                    self.egress.stall(link, Stalled { index, name: entry.name, transmit });
                }
                return Turn::Blocked;
            }
        }
    }

    /// Sends one segment of a connection. Returns `false` if the link is full.
    fn send(&mut self, index: u32, transmit: &Transmit, out: &mut impl FrameSink<M>) -> bool {
        let Some((entry, locals)) = self.connections.get_mut_with_locals(index) else { return true };
        let len = transmit.segment.len as usize;
        let pieces;
        let text = if len == 0 {
            TextRef::None
        } else {
            let session = entry.place.and_then(|place| self.applications.get(place.session));
            match (session, entry.send.pieces(transmit.offset, len)) {
                (Some(session), Some(found)) => {
                    pieces = Absolute::new(session.layout.send_area, &found);
                    TextRef::Pieces(&session.arena, pieces.parts())
                }
                _ => {
                    // The application has published text without a place for it.
                    self.stats.count(Stat::BadCommands);
                    entry.connection.abort();
                    return true;
                }
            }
        };
        let way = entry.next_hop.way(entry.flags.intersects(Flags::INTERNAL));
        let mss = entry.connection.segment_size(transmit);
        let is_syn = transmit.segment.has(tcp::Flags::SYN);
        let option = if is_syn { entry.connection.fast_open_option(transmit.retransmit) } else { None };
        let tuple = locals.tuple(&entry.name);
        let sent =
            send_segment(&mut self.ip, &way, &tuple, &transmit.segment, option.as_ref(), mss, text, out);
        if sent {
            self.stats.count(Stat::SegmentsOut);
            self.stats.add(Stat::Retransmits, transmit.retransmit.into());
        }
        sent
    }

    /// Lets everything try again that found its link full last time.
    pub(crate) fn retry_full_links(&mut self, now: Instant, out: &mut impl FrameSink<M>, full: &mut Full) {
        for link in 0..LINKS {
            if !self.retry(link, out) {
                full.set(link);
                self.egress.retry_later(now);
            }
        }
        self.egress.unblock(&mut self.connections);
        self.datagrams.touch_unresolved();
    }

    /// Offers the frame that the link did not take last time once more. Returns `false` if the link is still
    /// full.
    fn retry(&mut self, link: usize, out: &mut impl FrameSink<M>) -> bool {
        let Some(stalled) = self.egress.stalled(link) else { return true };
        let entry = self.connections.get_mut(stalled.index).filter(|entry| entry.name == stalled.name);
        let is_due = entry.map(|entry| entry.connection.is_still_due(&stalled.transmit));
        if is_due == Some(true) && !self.send(stalled.index, &stalled.transmit, out) {
            return false;
        }
        if is_due == Some(false) {
            self.connections.touch(stalled.index);
        }
        self.egress.end_stall(link);
        true
    }
}
