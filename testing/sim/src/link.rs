//! A link that loses, repeats, reorders and delays segments.

use std::collections::BTreeMap;

use atoll_base::{Duration, Instant, Rng};
use atoll_wire::tcp::Segment;

use crate::flow::Outgoing;

/// The impairments of one direction of the link. Probabilities are per million.
#[derive(Clone, Copy, Debug)]
pub struct LinkSettings {
    /// Segments lost, or corrupted, which is the same behind a checksum.
    pub loss: u32,
    /// Segments delivered twice.
    pub duplicate: u32,
    /// Segments delayed by up to ten times the latency, so that later ones overtake.
    pub reorder: u32,
    /// The one-way delay.
    pub latency: Duration,
    /// Whether the receiver's link merges what was cut (GRO), so that super-segments arrive whole.
    pub merge: bool,
    /// The most octets of text in a segment; larger ones are always lost silently, as on a path with a narrow
    /// link and no ICMP.
    pub longest: usize,
}

/// One direction of the link: segments with their text, by time of arrival.
#[derive(Debug)]
pub struct Link {
    settings: LinkSettings,
    in_flight: BTreeMap<(Instant, u64), (Segment, Vec<u8>)>,
    sent: u64,
}

impl Link {
    /// Creates an empty link.
    pub fn new(settings: LinkSettings) -> Link {
        Link { settings, in_flight: BTreeMap::new(), sent: 0 }
    }

    /// Stops the impairments: what is sent from now on arrives.
    pub fn heal(&mut self) {
        self.settings = LinkSettings { loss: 0, duplicate: 0, reorder: 0, ..self.settings };
    }

    /// Sends the segment of an end, cut as by a link with segmentation offload.
    pub fn send(&mut self, now: Instant, rng: &mut Rng, outgoing: Outgoing) {
        if self.settings.merge {
            if outgoing.text.len().min(outgoing.mss) <= self.settings.longest {
                self.send_piece(now, rng, outgoing.segment, outgoing.text);
            }
            return;
        }
        for (segment, text) in outgoing.cut() {
            self.send_piece(now, rng, segment, text);
        }
    }

    /// Returns when the next segment arrives.
    pub fn next_arrival(&self) -> Option<Instant> {
        self.in_flight.first_key_value().map(|((at, _), _)| *at)
    }

    /// Returns the next segment that has arrived by `now`, with its text.
    pub fn receive(&mut self, now: Instant) -> Option<(Segment, Vec<u8>)> {
        let first = self.in_flight.first_entry().filter(|entry| entry.key().0 <= now)?;
        Some(first.remove())
    }

    fn send_piece(&mut self, now: Instant, rng: &mut Rng, segment: Segment, text: Vec<u8>) {
        let is_too_long = text.len() > self.settings.longest && !self.settings.merge;
        if is_too_long || rng.chance_per_million(self.settings.loss) {
            return;
        }
        let copies = 1 + u32::from(rng.chance_per_million(self.settings.duplicate));
        for _ in 0..copies {
            let mut at = now + self.settings.latency;
            if rng.chance_per_million(self.settings.reorder) {
                at += self.settings.latency * rng.below(10);
            }
            self.sent += 1;
            self.in_flight.insert((at, self.sent), (segment, text.clone()));
        }
    }
}
