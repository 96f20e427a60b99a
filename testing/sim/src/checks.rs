//! The checks that have to hold at every step of every simulated run.
//!
//! The stream's octets are checked where they are read (`Host::act`), the connection's own invariants after
//! every call.

use atoll_base::{Instant, SeqNum};
use atoll_tcp::{Connection, State};
use atoll_wire::tcp::{Flags, Segment};

use crate::host::Host;
use crate::violation::Violation;

/// The announcements that one end has made and received, by which its segments are checked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watch {
    /// The right edge of the window that the end announced last.
    announced: Option<SeqNum>,
    /// The rightmost edge that has reached the end: it may send up to there.
    allowed: Option<SeqNum>,
    /// The largest edge that the connection has had, as a stream offset.
    edge: u64,
}

impl Watch {
    /// Checks a segment that leaves the end whose connection is `connection`.
    pub fn sends(
        &mut self,
        now: Instant,
        connection: &Connection,
        segment: &Segment,
    ) -> Result<(), Violation> {
        // The text of a SYN follows the SYN in sequence space.
        let end = segment.seq.plus(segment.len + u32::from(segment.flags.contains(Flags::SYN)));
        // RFC 7413: text goes along with a SYN, and answers one, before any window was announced.
        let is_early = segment.flags.contains(Flags::SYN) || connection.is_open_early();
        let is_allowed = self.allowed.is_some_and(|allowed| end.distance_from(allowed) <= 0);
        if segment.len > 0 && is_early && !is_allowed {
            // The text may have to be sent again.
            self.allowed = Some(end);
        } else if segment.len > 0 && !is_allowed {
            return Err(Violation::BeyondWindow { end, allowed: self.allowed });
        }
        if !segment.flags.contains(Flags::ACK) || segment.flags.contains(Flags::RST) {
            return Ok(());
        }
        // The window of a SYN is never scaled: one that is repeated after a server has answered early has no
        // room for the true window.
        if segment.flags.contains(Flags::SYN) && self.announced.is_some() {
            return Ok(());
        }
        let scale = if segment.flags.contains(Flags::SYN) { 0 } else { connection.info(now).rcv_wscale };
        let edge = right_edge(segment, scale);
        if let Some(before) = self.announced {
            // RFC 7323 §2.4: what rounding to the scale takes from the field does not count.
            let lost = before.distance_from(edge);
            // A window that does not fit the field of a SYN, which is never scaled, does not count either.
            let is_cut = segment.flags.contains(Flags::SYN) && segment.window == u16::MAX;
            if lost >= 1 << scale && !is_cut {
                return Err(Violation::WindowShrinks { lost, scale });
            }
            if lost > 0 {
                return Ok(());
            }
        }
        self.announced = Some(edge);
        Ok(())
    }

    /// Notes a segment that reaches the end whose peer's windows are shifted by `scale`.
    pub fn receives(&mut self, segment: &Segment, scale: u8) {
        if !segment.flags.contains(Flags::ACK) && !segment.flags.contains(Flags::SYN) {
            return;
        }
        let is_syn = segment.flags.contains(Flags::SYN);
        let edge = match (is_syn, segment.flags.contains(Flags::ACK)) {
            // A SYN's window begins after our own SYN, which its sender may not know; the acknowledgement
            // that follows announces the edge.
            (true, false) => return,
            (true, true) => right_edge(segment, 0),
            _ => right_edge(segment, scale),
        };
        if self.allowed.is_none_or(|allowed| edge.distance_from(allowed) > 0) {
            self.allowed = Some(edge);
        }
    }

    /// Checks an end at which nothing more happens at this moment.
    pub fn rests(&mut self, host: &Host) -> Result<(), Violation> {
        let Some(connection) = &host.connection else { return Ok(()) };
        let state = connection.state();
        let ended = matches!(state, State::Closed | State::TimeWait);
        let owes =
            connection.send_tail() > connection.send_una() || (host.has_closed() && !connection.fin_acked());
        if owes && !ended && connection.next_timeout().is_none() {
            return Err(Violation::Stalled(state));
        }
        let flight = connection.send_nxt() - connection.send_una();
        if flight > host.send_buffer() + 1 {
            return Err(Violation::InFlight { flight, buffer: host.send_buffer() });
        }
        let edge = connection.receive_edge();
        if edge < self.edge && !ended {
            return Err(Violation::EdgeGoesBack { from: self.edge, to: edge });
        }
        self.edge = edge;
        let room = u64::from(connection.settings().receive_capacity);
        let head = connection.receive_head();
        if edge - head > room {
            return Err(Violation::BeyondBuffer { edge, room, head });
        }
        Ok(())
    }
}

fn right_edge(segment: &Segment, scale: u8) -> SeqNum {
    segment.ack.plus(u32::from(segment.window) << scale)
}
