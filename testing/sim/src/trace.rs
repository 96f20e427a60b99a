//! The last segments of an exchange, to find the reason of a failure.

use std::collections::VecDeque;

use atoll_base::Instant;
use atoll_wire::tcp::{Flags, Segment};

/// The last segments of an exchange, as text.
#[derive(Debug, Default)]
pub struct Trace(VecDeque<(Instant, usize, &'static str, Segment)>);

impl Trace {
    /// Notes a segment that leaves or reaches an end. `from` is 0 for the client's, 1 for the server's; `how`
    /// is a remark.
    pub fn note(&mut self, now: Instant, from: usize, how: &'static str, segment: &Segment) {
        if self.0.len() == LINES_MAX {
            self.0.pop_front();
        }
        self.0.push_back((now, from, how, *segment));
    }

    /// Returns the last lines.
    pub fn last(&self) -> Vec<String> {
        self.0.iter().map(line).collect()
    }
}

fn line((at, from, how, segment): &(Instant, usize, &'static str, Segment)) -> String {
    let ms = at.as_nanos() as f64 / 1e6;
    let Segment { seq, ack, flags, window, len, options, .. } = segment;
    let names =
        [("S", Flags::SYN), ("F", Flags::FIN), ("R", Flags::RST), ("P", Flags::PSH), (".", Flags::ACK)];
    let flags: String =
        names.iter().filter(|(_, flag)| flags.contains(*flag)).map(|(name, _)| *name).collect();
    let sack: Vec<_> = options.sack.iter().collect();
    let arrow = ["> ", "< "][from % 2];
    format!("{ms:14.3} {arrow} {how}[{flags}] {seq}+{len} ack {ack} win {window} {sack:?}")
}

const LINES_MAX: usize = 60;
