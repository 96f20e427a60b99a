//! What is in flight, when it left, and what has become of it (RFC 8985 §5.2, RFC 2018 §5).

use alloc::collections::VecDeque;

use atoll_base::Instant;

use super::rack::Rack;
use super::rate::Counters;
use crate::snd::MSS_DEFAULT;

/// A range of text that left at one moment and has one fate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    /// The first stream offset of the range; `end` is the first one after it.
    pub(crate) start: i64,
    pub(crate) end: i64,
    /// When the range left, the last time.
    pub(crate) sent_at: Instant,
    /// The sender's counts of delivered text at the moment when the range left.
    pub(crate) counters: Counters,
    pub(crate) fate: Fate,
    /// Whether the range has left more than once: it is not known then which copy an acknowledgement means.
    pub(crate) retransmitted: bool,
}

impl Sent {
    /// Creates the record of `[start, end)`, which was sent once at `sent_at`.
    pub(crate) const fn once(start: i64, end: i64, sent_at: Instant, counters: Counters) -> Sent {
        Sent { start, end, sent_at, counters, fate: Fate::Outstanding, retransmitted: false }
    }
}

/// The state of a range by the peer's answers, or its silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Nothing is known yet.
    Outstanding,
    /// The range has arrived, but something before it has not.
    Sacked,
    /// The range counts as lost, and has not been sent again since.
    Lost,
}

/// Everything between `una` and `nxt`, in order and without gaps. Neighbours that are SACKed are one record;
/// what leaves at one moment is one record, until the peer acknowledges its parts separately.
///
/// ```text
///   una                                                       nxt
///    | Lost |   Sacked   | Outstanding, retransmitted | Sacked | Outstanding |
/// ```
#[derive(Debug)]
pub(crate) struct Flight {
    records: VecDeque<Sent>,
    /// The number of octets SACKed.
    pub(crate) sacked: i64,
    /// The number of octets lost and not sent again.
    pub(crate) lost: i64,
    /// The right edge of the highest text SACKed (RFC 8985's RACK.fack).
    pub(crate) fack: i64,
    pub(crate) rack: Rack,
    /// The counters that the next segment will remember.
    pub(crate) counters: Counters,
    /// The record that was found to be lost last, until it is asked for.
    pub(crate) lost_news: Option<Sent>,
    /// The count of delivered octets from which the application is no longer the limit (C.app_limited).
    app_limited_until: i64,
    /// The end of what a predecessor has sent; it is not known when that left.
    pub(crate) guessed_until: i64,
}

impl Flight {
    /// Creates the record of `[una, nxt)`, which left at `sent_at`, with nothing in flight before.
    pub(crate) fn new(una: i64, nxt: i64, sent_at: Instant) -> Flight {
        let counters = Counters::new(una, sent_at);
        let mut flight = Flight {
            records: VecDeque::new(),
            sacked: 0,
            lost: 0,
            fack: una,
            rack: Rack::new(),
            counters,
            lost_news: None,
            app_limited_until: i64::MIN,
            guessed_until: i64::MIN,
        };
        flight.send(una, nxt, sent_at, 0);
        flight
    }

    /// Notes that new text `[from, to)` leaves; `pipe` is the number of octets in the network before.
    pub(crate) fn send(&mut self, from: i64, to: i64, now: Instant, pipe: i64) {
        if from >= to {
            return;
        }
        let counters = self.counters.snapshot(pipe + (to - from));
        if let Some(last) = self.records.back_mut()
            && last.end == from
            && last.sent_at == now
            && last.fate == Fate::Outstanding
            && !last.retransmitted
            && last.counters.app_limited == counters.app_limited
        {
            last.end = to;
            return;
        }
        self.records.push_back(Sent::once(from, to, now, counters));
    }

    /// Notes that the application has less to send than the network would take. That holds until what is sent
    /// now has been delivered.
    pub(crate) fn limit_by_application(&mut self, pipe: i64) {
        self.counters.app_limited = true;
        self.app_limited_until = self.counters.delivered + pipe;
    }

    /// Counts a delivery after which `una` is the first offset not acknowledged; `newest`, if given, is the
    /// delivered record that left last.
    pub(crate) fn count_delivered(&mut self, now: Instant, una: i64, newest: Option<&Sent>) {
        self.counters.delivered = una + self.sacked;
        self.counters.delivered_at = now;
        if let Some(newest) = newest {
            self.counters.first_sent_at = newest.sent_at;
        }
        if self.counters.delivered > self.app_limited_until {
            self.counters.app_limited = false;
        }
    }

    /// Removes everything below `una`, which is acknowledged. `news` sees the records that had not been
    /// SACKed before.
    pub(crate) fn acknowledge(&mut self, una: i64, mut news: impl FnMut(&Sent)) {
        while let Some(front) = self.records.front_mut() {
            if front.start >= una {
                break;
            }
            let gone = Sent { end: front.end.min(una), ..*front };
            if front.end <= una {
                self.records.pop_front();
            } else {
                front.start = una;
            }
            self.uncount(&gone);
            if gone.fate != Fate::Sacked {
                news(&gone);
            }
        }
    }

    /// Marks `[left, right)`, which the peer reports (RFC 2018 §4). `news` sees the records that are new.
    /// Returns the octets newly SACKed.
    pub(crate) fn sack(&mut self, left: i64, right: i64, mut news: impl FnMut(&Sent)) -> i64 {
        let mut fresh = 0;
        let mut at = self.index_of(left);
        while let Some(&record) = self.records.get(at) {
            if record.start >= right {
                break;
            }
            if record.fate == Fate::Sacked {
                at += 1;
                continue;
            }
            if record.start < left {
                // The part from `left` on becomes the next record; without room for it, its fate stays
                // unknown.
                self.split_for_peer(at, left);
                at += 1;
                continue;
            }
            if record.end > right && !self.split_for_peer(at, right) {
                break;
            }
            let Some(taken) = self.records.get(at).copied() else { break };
            self.uncount(&taken);
            news(&taken);
            fresh += taken.end - taken.start;
            self.fack = self.fack.max(taken.end);
            at = self.set_sacked(at) + 1;
        }
        fresh
    }

    /// Calls `judge` for each record that is outstanding, from the left, until it returns `Stop`.
    pub(crate) fn judge_outstanding(&mut self, mut judge: impl FnMut(&Sent) -> Judgement) {
        for record in &mut self.records {
            if record.fate != Fate::Outstanding {
                continue;
            }
            match judge(record) {
                Judgement::Lost => {
                    record.fate = Fate::Lost;
                    self.lost += record.end - record.start;
                    self.lost_news = Some(*record);
                    self.counters.lost = self.counters.lost.wrapping_add((record.end - record.start) as u32);
                }
                Judgement::Keep => {}
                Judgement::Stop => break,
            }
        }
    }

    /// Marks `[from, to)` as lost, as far as it is outstanding.
    pub(crate) fn mark_lost(&mut self, from: i64, to: i64) {
        self.cut(from, to);
        self.judge_outstanding(|record| {
            if record.start >= to {
                Judgement::Stop
            } else if record.start >= from {
                Judgement::Lost
            } else {
                Judgement::Keep
            }
        });
    }

    /// Makes all lost records outstanding again.
    pub(crate) fn unmark_lost(&mut self) {
        for record in self.records.iter_mut().filter(|record| record.fate == Fate::Lost) {
            record.fate = Fate::Outstanding;
        }
        self.lost = 0;
    }

    /// Notes that everything in flight was sent by a predecessor. What is lost until now says nothing about
    /// the network, so congestion control does not react to it. The times of sending are guesses, so they
    /// measure no round trip.
    pub(crate) fn is_of_predecessor(&mut self, nxt: i64) {
        self.counters.lost = 0;
        self.lost_news = None;
        self.guessed_until = nxt;
    }

    /// Discards all SACKs, because they are not believed any more (RFC 2018 §8).
    pub(crate) fn forget_sacks(&mut self) {
        for record in self.records.iter_mut().filter(|record| record.fate == Fate::Sacked) {
            record.fate = Fate::Outstanding;
            // Joined records do not remember which of them were sent twice.
            record.retransmitted = true;
        }
        self.sacked = 0;
        self.fack = self.records.front().map_or(self.fack, |front| front.start);
    }

    /// Returns the first range that is lost and to be sent again, `[from, to)`.
    pub(crate) fn first_lost(&self) -> Option<(i64, i64)> {
        if self.lost == 0 {
            return None;
        }
        let at = self.records.iter().position(|record| record.fate == Fate::Lost)?;
        let stretch = self.records.iter().skip(at).take_while(|record| record.fate == Fate::Lost);
        Some((self.records.get(at)?.start, stretch.last()?.end))
    }

    /// Returns the octets that were sent again and of which nothing is known since.
    pub(crate) fn retransmitted(&self) -> i64 {
        let again = |record: &&Sent| record.fate == Fate::Outstanding && record.retransmitted;
        self.records.iter().filter(again).map(|record| record.end - record.start).sum()
    }

    /// Returns the first record.
    pub(crate) fn first(&self) -> Option<&Sent> {
        self.records.front()
    }

    /// Notes that `[from, to)` leaves again.
    pub(crate) fn resend(&mut self, from: i64, to: i64, now: Instant, pipe: i64) {
        self.cut(from, to);
        let counters = self.counters.snapshot(pipe + (to - from));
        let mut at = self.index_of(from);
        while let Some(record) = self.records.get_mut(at).filter(|record| record.start < to) {
            if record.fate == Fate::Lost {
                self.lost -= record.end - record.start;
                record.fate = Fate::Outstanding;
            }
            record.sent_at = now;
            record.counters = counters;
            record.retransmitted = true;
            at += 1;
        }
    }

    /// Returns the index of the record that holds `offset`, or of the first one after it.
    fn index_of(&self, offset: i64) -> usize {
        self.records.partition_point(|record| record.end <= offset)
    }

    /// Makes `from` and `to` edges of records.
    fn cut(&mut self, from: i64, to: i64) {
        for edge in [from, to] {
            let at = self.index_of(edge);
            if self.records.get(at).is_some_and(|record| record.start < edge && record.fate != Fate::Sacked) {
                self.split(at, edge);
            }
        }
    }

    /// Splits a record like [`Flight::split`], on behalf of the peer. The peer has no reason to cut what is
    /// in flight into more pieces than the segments that it consists of, so a peer that reports octets one by
    /// one (CVE-2019-11478) gets no further.
    fn split_for_peer(&mut self, at: usize, edge: i64) -> bool {
        let octets = self.records.back().map_or(0, |back| back.end)
            - self.records.front().map_or(0, |front| front.start);
        let pieces = usize::try_from(octets / i64::from(MSS_DEFAULT)).unwrap_or(0) + PIECES_MIN;
        self.records.len() < pieces && self.split(at, edge)
    }

    /// Cuts the record at `at` in two. Returns false, and changes nothing, if there are too many records.
    fn split(&mut self, at: usize, edge: i64) -> bool {
        if self.records.len() >= RECORDS_MAX {
            return false;
        }
        let Some(record) = self.records.get_mut(at) else { return false };
        let right = Sent { start: edge, ..*record };
        record.end = edge;
        self.records.insert(at + 1, right);
        true
    }

    /// Joins the record at `at`, which has been SACKed just now, with its neighbours. Returns its new index.
    fn set_sacked(&mut self, mut at: usize) -> usize {
        let Some(record) = self.records.get_mut(at) else { return at };
        record.fate = Fate::Sacked;
        self.sacked += record.end - record.start;
        let (start, mut end) = (record.start, record.end);
        if let Some(next) = self.records.get(at + 1).filter(|next| next.fate == Fate::Sacked) {
            end = next.end;
            self.records.remove(at + 1);
        }
        if let Some(before) = at.checked_sub(1).and_then(|before| self.records.get_mut(before))
            && before.fate == Fate::Sacked
        {
            before.end = end;
            self.records.remove(at);
            at -= 1;
        } else if let Some(record) = self.records.get_mut(at) {
            (record.start, record.end) = (start, end);
        }
        at
    }

    /// Returns the octets of heap in use.
    pub(crate) fn heap_bytes(&self) -> usize {
        size_of::<Flight>() + self.records.capacity() * size_of::<Sent>()
    }

    fn uncount(&mut self, record: &Sent) {
        match record.fate {
            Fate::Outstanding => {}
            Fate::Sacked => self.sacked -= record.end - record.start,
            Fate::Lost => self.lost -= record.end - record.start,
        }
    }

    pub(crate) fn check_invariants(&self, una: i64, nxt: i64) {
        let octets = |fate| -> i64 {
            self.records
                .iter()
                .filter(|record| record.fate == fate)
                .map(|record| record.end - record.start)
                .sum()
        };
        assert_eq!(self.sacked, octets(Fate::Sacked), "{self:?}");
        assert_eq!(self.lost, octets(Fate::Lost), "{self:?}");
        assert_eq!(self.records.front().map(|front| front.start), Some(una), "{self:?}");
        assert_eq!(self.records.back().map(|back| back.end), Some(nxt), "{self:?}");
        assert!(self.records.iter().all(|record| record.start < record.end), "{self:?}");
        assert!(self.records.iter().is_sorted_by(|a, b| a.end == b.start), "{self:?}");
    }
}

/// The decision about a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    Keep,
    Lost,
    /// Keep this record and all after it.
    Stop,
}

/// The most records. A peer that cuts what is in flight into more pieces is not followed any further: its
/// blocks may still cover whole records.
const RECORDS_MAX: usize = 8192;
/// The number of pieces into which small segments, and few of them, may be cut in any case.
const PIECES_MIN: usize = 64;

#[cfg(test)]
mod tests;
