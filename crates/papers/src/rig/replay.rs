//! Replays a recording to a server alone, for tools that count everything a process does (Pika's Fig. 12).
//! The recording has what clients sent, and what the application wrote into the memory that it shares with
//! the server.

use atoll_base::Instant;
use atoll_ipc::Memory;
use atoll_shm::ShmMemory;

use super::{BATCH, Frames, Rig, SERVER, Side, Step, take};

/// A recording of everything that reaches a server, in order. It can be replayed, because an equal server
/// under an equal clock gives equal answers.
pub struct Replay {
    /// The frames of each step. For steps of the application it has the lines that the application changed,
    /// each behind its offset.
    steps: Vec<(Step, Instant, Frames)>,
}

/// The number of bytes that are compared, and written, at a time.
const LINE: usize = 64;

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
            if is_of_application(step) {
                let before = server.arena();
                take(step, now, server, frames);
                copy = changes(&before, &server.arena());
            } else {
                take(step, now, server, frames);
            }
            steps.push((step, now, copy));
        });
    }
    Replay { steps }
}

/// Feeds a recording to a new server. Returns the number of bytes that the server sent, so that the compiler
/// cannot drop the work.
pub fn replay(replay: &Replay) -> usize {
    let Some((_, began, _)) = replay.steps.first() else { return 0 };
    let mut server = Side::new(SERVER, Instant::from_millis(1000));
    server.listen(Instant::from_millis(1000));
    server.greet(*began);
    let mut bytes = 0;
    for (step, now, frames) in &replay.steps {
        if is_of_application(*step) {
            server.write(frames);
        } else {
            take(*step, *now, &mut server, frames);
            bytes += server.out.bytes.len();
        }
    }
    bytes
}

/// Returns whether a step is the application's, which runs on another core.
fn is_of_application(step: Step) -> bool {
    matches!(step, Step::Accept | Step::Request | Step::Close)
}

fn changes(before: &[u8], after: &[u8]) -> Frames {
    let mut changes = Frames::default();
    let lines = before.chunks(LINE).zip(after.chunks(LINE)).enumerate();
    for (line, (_, after)) in lines.filter(|(_, (before, after))| before != after) {
        changes.bytes.extend_from_slice(&((line * LINE) as u32).to_le_bytes());
        changes.bytes.extend_from_slice(after);
        changes.ends.push(changes.bytes.len());
    }
    changes
}

/// The steps by their numbers in the file.
const STEPS: [Step; 8] =
    [Step::Syn, Step::Ack, Step::Text, Step::Accept, Step::Request, Step::Close, Step::Respond, Step::Fin];

impl Replay {
    /// Returns the recording as a file: of each step its number, moment, number of frames, and each frame
    /// behind its length.
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

    /// Parses a file; returns `None` if it is no recording.
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

    /// Returns the number of connections.
    pub fn connections(&self) -> usize {
        self.steps.iter().filter(|(step, ..)| *step == Step::Syn).count() * BATCH
    }
}

impl Side {
    fn memory(&self) -> &ShmMemory {
        self.client.own().expect("it has a session").replicas()[0].port().memory()
    }

    /// Returns a copy of the memory that the server shares with its application.
    fn arena(&self) -> Vec<u8> {
        let memory = self.memory();
        let mut bytes = vec![0; memory.len()];
        memory.read(0, &mut bytes);
        bytes
    }

    fn write(&mut self, changes: &Frames) {
        let memory = self.memory();
        for change in changes.iter() {
            let Some((offset, line)) = change.split_first_chunk::<4>() else { continue };
            let offset = u32::from_le_bytes(*offset) as usize;
            // The recording is a file with arbitrary contents.
            if offset.checked_add(line.len()).is_some_and(|end| end <= memory.len()) {
                memory.write(offset, line);
            }
        }
    }

    /// Teaches the server the clients' hardware address, as their question for its own address would.
    fn greet(&mut self, now: Instant) {
        let mut clients = Side::new(super::CLIENTS, now);
        clients.connect(1, SERVER);
        clients.work(now);
        self.receive(now, clients.out.iter());
    }
}
