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

impl Replay {
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
