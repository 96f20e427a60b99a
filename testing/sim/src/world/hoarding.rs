//! Checks what happens if memory runs out. A program on the client's machine opens connections, has
//! everything sent back, and reads nothing. Programs that read must make progress, the memory of buffers
//! stays bounded, and the owner of a connection that is ended gets the reason.

use atoll_base::{Duration, Instant};
use atoll_ipc::page::Stat;

use super::{World, WorldViolation};

/// The connections of a program that does not read, and how much memory there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hoard {
    /// The number of connections that the program wants.
    pub connections: u64,
    /// The most octets that all receive buffers of a replica may take.
    pub memory: u64,
}

/// The observations of the shortage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shortage {
    /// Connections that replicas have ended for want of memory.
    pub shed: u64,
    /// Connections that could not be opened (ENOBUFS) by the program that reads.
    pub refused: u64,
    /// Connections that the program that does not read has lost.
    pub lost: u64,
    /// The most octets that the receive buffers of a replica have taken.
    pub most: u64,
}

/// The octets that each of its connections sends.
const LENGTH: usize = 256 << 10;
/// How long others wait before they begin, so that there is a shortage.
const OTHERS_BEGIN: Duration = Duration::from_secs(5);
/// How long until a connection that could not be opened is tried again.
pub(super) const TRIED_AGAIN: Duration = Duration::from_millis(100);
/// The factor by which memory may be exceeded for a moment: pieces that were given back are taken again, and
/// counted at the next look.
const TIMES: u64 = 3;

impl World {
    /// Adds the program that does not read.
    pub(super) fn invite_hoarder(&mut self, hoard: Hoard) {
        let client = self.processes.last_mut().expect("the one that reads");
        client.waits_until = Some(self.now + OTHERS_BEGIN);
        self.attach(1);
        let hoarder = self.processes.last_mut().expect("just attached");
        hoarder.hoards = true;
        hoarder.wakes_at = None;
        hoarder.length = LENGTH;
        hoarder.to_open = (1000..1000 + hoard.connections).collect();
        hoarder.at_once = hoard.connections as usize;
    }

    /// Checks that buffers stay within what they may take.
    pub(super) fn look_at_memory(&mut self) -> Result<(), WorldViolation> {
        let Some(hoard) = self.story.hoard else { return Ok(()) };
        let replicas = self.machines.iter().flat_map(|machine| &machine.replicas);
        let held = replicas.map(|replica| replica.receive_buffers()).max().unwrap_or(0);
        self.shortage.most = self.shortage.most.max(held);
        if held > hoard.memory * TIMES {
            return Err(WorldViolation::Buffers { held, memory: hoard.memory });
        }
        Ok(())
    }

    /// Returns what was observed of the shortage.
    pub fn shortage(&self) -> Shortage {
        let replicas = self.machines.iter().flat_map(|machine| &machine.replicas);
        let shed = replicas.map(|replica| replica.stat(Stat::ConnectionsShed)).sum();
        let sum =
            |hoards: bool| self.processes.iter().filter(|it| it.hoards == hoards).map(|it| it.refused).sum();
        Shortage { shed, refused: sum(false), lost: sum(true), ..self.shortage }
    }
}

/// Returns the earlier of two times, of which either may never come.
pub(super) fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}
