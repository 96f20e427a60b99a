//! The server's side alone: what clients sent is recorded once and then fed to a server without clients, for tools that count
//! everything a process does (Pika's Fig. 12).

use atoll_base::Instant;

use super::{BATCH, Frames, Rig, SERVER, Side, Step, take};

/// What reaches a server, in its order. The same server under the same clock answers the same, so it fits again.
pub struct Replay {
    steps: Vec<(Step, Instant, Frames)>,
}

/// Records about `connections` short connections.
pub fn record(connections: usize) -> Replay {
    let mut rig = Rig::new();
    let mut steps = Vec::new();
    // The neighbour's address is learnt before, as it is in the replay.
    for _ in 0..connections.div_ceil(BATCH) {
        rig.short(&mut |step, now, server, frames| {
            let mut copy = Frames::default();
            copy.bytes.clone_from(&frames.bytes);
            copy.ends.clone_from(&frames.ends);
            steps.push((step, now, copy));
            take(step, now, server, frames);
        });
    }
    Replay { steps }
}

/// Feeds a new server. Returns the bytes that it answered, so that nobody can leave the work out.
pub fn replay(replay: &Replay) -> usize {
    let Some((_, began, _)) = replay.steps.first() else { return 0 };
    let mut server = Side::new(SERVER, Instant::from_millis(1000));
    server.listen();
    server.work(Instant::from_millis(1000));
    server.greet(*began);
    let mut bytes = 0;
    for (step, now, frames) in &replay.steps {
        take(*step, *now, &mut server, frames);
        bytes += server.out.bytes.len();
    }
    bytes
}

/// The steps by number, as they are written.
const STEPS: [Step; 8] =
    [Step::Syn, Step::Ack, Step::Text, Step::Accept, Step::Request, Step::Close, Step::Respond, Step::Fin];

impl Replay {
    /// As a file: of each step its number, moment, number of frames, and each frame behind its length.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (step, now, frames) in &self.steps {
            bytes.push(*step as u8);
            bytes.extend_from_slice(&now.as_nanos().to_le_bytes());
            bytes.extend_from_slice(&(frames.ends.len() as u32).to_le_bytes());
            for frame in frames.iter() {
                bytes.extend_from_slice(&(frame.len() as u32).to_le_bytes());
                bytes.extend_from_slice(frame);
            }
        }
        bytes
    }

    /// Reads such a file; `None`: it is none.
    pub fn from_bytes(mut bytes: &[u8]) -> Option<Replay> {
        let mut steps = Vec::new();
        let word = |bytes: &mut &[u8]| {
            let (first, rest) = bytes.split_first_chunk::<4>()?;
            *bytes = rest;
            usize::try_from(u32::from_le_bytes(*first)).ok()
        };
        while let Some((&number, rest)) = bytes.split_first() {
            let (nanos, rest) = rest.split_first_chunk::<8>()?;
            bytes = rest;
            let mut frames = Frames::default();
            for _ in 0..word(&mut bytes)? {
                let len = word(&mut bytes)?;
                let (frame, rest) = bytes.split_at_checked(len)?;
                frames.bytes.extend_from_slice(frame);
                frames.ends.push(frames.bytes.len());
                bytes = rest;
            }
            let now = Instant::from_nanos(u64::from_le_bytes(*nanos));
            steps.push((*STEPS.get(usize::from(number))?, now, frames));
        }
        Some(Replay { steps })
    }

    /// How many connections there are.
    pub fn connections(&self) -> usize {
        self.steps.iter().filter(|(step, ..)| *step == Step::Syn).count() * BATCH
    }
}

impl Side {
    /// Hears of the clients' hardware address, as by their question for the server's own.
    fn greet(&mut self, now: Instant) {
        let mut clients = Side::new(super::CLIENTS, now);
        clients.connect(1, SERVER);
        clients.work(now);
        self.receive(now, clients.out.iter());
    }
}
