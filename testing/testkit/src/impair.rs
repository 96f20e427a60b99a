//! A bad network, which drops, repeats, reorders and changes frames, all as decided by a seed.

use std::collections::VecDeque;

use atoll_base::Rng;

/// The rate of each impairment, per million frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// A frame never arrives.
    pub drop: u32,
    /// A frame arrives twice.
    pub duplicate: u32,
    /// A frame arrives behind one to eight later ones.
    pub reorder: u32,
    /// One byte of a frame arrives changed.
    pub corrupt: u32,
    /// A packet is marked instead of being dropped, if its sender supports ECN (RFC 3168).
    pub mark: u32,
}

/// One direction of a bad network, as a sans-IO machine: frames go in, and come out or not.
#[derive(Debug)]
pub struct Impairer {
    rules: Rules,
    rng: Rng,
    ready: VecDeque<Vec<u8>>,
    /// Frames held back, each with the number of frames that still pass it.
    held: Vec<(u32, Vec<u8>)>,
}

impl Impairer {
    /// Creates a direction whose behaviour is decided by `seed` and the frames alone.
    pub fn new(rules: Rules, seed: u64) -> Impairer {
        Impairer { rules, rng: Rng::new(seed), ready: VecDeque::new(), held: Vec::new() }
    }

    /// Takes a frame that enters. `protected` is the number of bytes at its start that are never changed,
    /// because no checksum includes them.
    pub fn handle_frame(&mut self, mut frame: Vec<u8>, protected: usize) {
        let Rules { drop, duplicate, reorder, corrupt, .. } = self.rules;
        if self.rng.chance_per_million(drop) {
            return;
        }
        if self.rng.chance_per_million(corrupt) && frame.len() > protected {
            let at = protected + self.rng.below((frame.len() - protected) as u32) as usize;
            // Only one byte is changed: the Internet checksum detects every such change, so a frame that gets
            // through is the receiver's mistake.
            frame[at] ^= 1 + self.rng.below(255) as u8;
        }
        if self.rng.chance_per_million(duplicate) {
            self.ready.push_back(frame.clone());
        }
        if self.rng.chance_per_million(reorder) {
            self.held.push((1 + self.rng.below(8), frame));
            return;
        }
        self.ready.push_back(frame);
        for (passing, _) in &mut self.held {
            *passing -= 1;
        }
        self.ready.extend(self.held.extract_if(.., |(passing, _)| *passing == 0).map(|(_, frame)| frame));
    }

    /// Returns whether to mark the frame that enters next; the caller knows where the mark belongs.
    pub fn marks(&mut self) -> bool {
        self.rules.mark > 0 && self.rng.chance_per_million(self.rules.mark)
    }

    /// Releases the frames that are held back, so that they do not wait for a frame that never comes. Call
    /// when no frame has entered for a while.
    pub fn handle_silence(&mut self) {
        self.ready.extend(self.held.drain(..).map(|(_, frame)| frame));
    }

    /// Returns whether frames are held back.
    pub fn holds_back(&self) -> bool {
        !self.held.is_empty()
    }

    /// Returns the next frame that leaves.
    pub fn poll_frame(&mut self) -> Option<Vec<u8>> {
        self.ready.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what leaves when the numbers `0..count` enter.
    fn pass(rules: Rules, seed: u64, count: u32) -> Vec<Vec<u8>> {
        let mut impairer = Impairer::new(rules, seed);
        let mut left = Vec::new();
        for number in 0..count {
            impairer.handle_frame(number.to_be_bytes().to_vec(), 0);
            left.extend(std::iter::from_fn(|| impairer.poll_frame()));
        }
        impairer.handle_silence();
        left.extend(std::iter::from_fn(|| impairer.poll_frame()));
        left
    }

    fn numbers(count: u32) -> Vec<Vec<u8>> {
        (0..count).map(|number| number.to_be_bytes().to_vec()).collect()
    }

    #[test]
    fn without_rules_everything_passes_in_order() {
        assert_eq!(pass(Rules::default(), 1, 1000), numbers(1000));
    }

    #[test]
    fn the_same_seed_does_the_same() {
        let rules = Rules { drop: 100_000, duplicate: 100_000, reorder: 100_000, corrupt: 100_000, mark: 0 };
        assert_eq!(pass(rules, 7, 1000), pass(rules, 7, 1000));
        assert_ne!(pass(rules, 7, 1000), pass(rules, 8, 1000));
    }

    #[test]
    fn each_rule_happens_as_often_as_it_says() {
        let percent = 10_000;
        let dropped = 10_000 - pass(Rules { drop: percent, ..Rules::default() }, 1, 10_000).len();
        let doubled = pass(Rules { duplicate: percent, ..Rules::default() }, 2, 10_000).len() - 10_000;
        let changed = pass(Rules { corrupt: percent, ..Rules::default() }, 3, 10_000);
        let changed = changed.iter().zip(numbers(10_000)).filter(|(left, entered)| *left != entered).count();
        for count in [dropped, doubled, changed] {
            assert!((70..130).contains(&count), "{count} of 10,000 where 1 % was asked for");
        }
    }

    #[test]
    fn reordered_frames_all_arrive_later() {
        let mut left = pass(Rules { reorder: 10_000, ..Rules::default() }, 4, 10_000);
        assert_ne!(left, numbers(10_000));
        left.sort();
        assert_eq!(left, numbers(10_000));
    }

    #[test]
    fn protected_bytes_stay() {
        let mut impairer = Impairer::new(Rules { corrupt: 1_000_000, ..Rules::default() }, 5);
        for _ in 0..1000 {
            impairer.handle_frame(vec![0; 20], 14);
            let frame = impairer.poll_frame().expect("it is not dropped");
            assert_eq!(frame[..14], [0; 14]);
            assert_ne!(frame[14..], [0; 6]);
        }
    }
}
