//! The retry queue of a server with a device, which serves transport servers in other processes: it sends
//! their frames over the device, and gives them the frames for them. Frames that a receiver does not take are
//! kept in order, and do not delay frames of others.

use std::collections::VecDeque;

use atoll_base::Instant;
use atoll_ipc::mesh::FRAME_PREFIX;
use atoll_sys::Gather;
use atoll_tap::{Queue, SendOutcome};
use atoll_wire::vnet;

use super::rings::{Outgoing, Rings, forwarded_prefix};

/// Octets of frames that are kept for one server whose ring is full. Further frames are lost, as in a full
/// queue of a NIC.
const KEPT_MAX: usize = 4 << 20;

/// Frames on their way between a device and the servers that have none, by server.
#[derive(Debug, Default)]
pub struct RetryQueue {
    servers: Vec<Kept>,
    /// The number of frames that are kept.
    kept: usize,
    /// The number of frames of other servers that the device has taken.
    pub frames_out: u64,
    /// The octets of those frames, from the Ethernet header on.
    pub bytes_out: u64,
    /// The number of times that the device took no frame.
    pub failures: u64,
    /// The number of frames lost because their receiver took none.
    pub dropped: u64,
}

/// The frames that are kept from, and for, one server.
#[derive(Debug, Default)]
struct Kept {
    /// The frame that the device did not take, as it came out of the ring. Until the device takes it, nothing
    /// more is taken from that ring.
    outbound: Option<Vec<u8>>,
    /// Frames from outside that the server's ring did not take.
    inbound: VecDeque<Vec<u8>>,
    /// The octets of `inbound` frames, without their prefixes.
    inbound_len: usize,
}

impl RetryQueue {
    /// Creates an empty queue for servers with numbers below `servers`.
    pub fn new(servers: usize) -> RetryQueue {
        RetryQueue { servers: (0..servers).map(|_| Kept::default()).collect(), ..RetryQueue::default() }
    }

    /// Sends a frame of server `from` over the device. `record` is the frame as it came out of the ring,
    /// prefix first.
    pub fn send(&mut self, queue: &mut Queue, rings: &mut Rings, from: usize, record: &[u8]) {
        if !self.put_record(queue, record)
            && let Some(kept) = self.servers.get_mut(from)
        {
            kept.outbound = Some(record.to_vec());
            self.kept += 1;
            rings.hold_up(from, true);
        }
    }

    /// Gives a frame from outside to the server that owns it. `now` is when the frame came.
    pub fn forward(
        &mut self,
        now: Instant,
        rings: &mut Rings,
        owner: usize,
        vnet: &[u8; vnet::HEADER_LEN],
        frame: &[u8],
    ) {
        self.pass_on(rings, owner, forwarded_prefix(now, vnet), frame);
    }

    /// Gives a frame that has been passed on before to the server that owns it. `prefix` says when the frame
    /// came.
    pub fn pass_on(&mut self, rings: &mut Rings, owner: usize, prefix: [u8; FRAME_PREFIX], frame: &[u8]) {
        let Some(kept) = self.servers.get_mut(owner) else { return };
        if kept.inbound.is_empty() && rings.send_frame(owner, &forwarded(prefix, frame)) {
            return;
        }
        if kept.inbound_len + frame.len() > KEPT_MAX {
            self.dropped += 1;
            return;
        }
        self.kept += 1;
        kept.inbound_len += frame.len();
        kept.inbound.push_back([&prefix, frame].concat());
    }

    /// Tries again what was not taken. `queue` is the device, if there is one.
    pub fn retry(&mut self, mut queue: Option<&mut Queue>, rings: &mut Rings) {
        if self.kept == 0 {
            return;
        }
        for server in 0..self.servers.len() {
            if let (Some(record), Some(queue)) = (self.servers[server].outbound.take(), queue.as_deref_mut())
            {
                if self.put_record(queue, &record) {
                    self.kept -= 1;
                    rings.hold_up(server, false);
                } else {
                    self.servers[server].outbound = Some(record);
                }
            }
            let kept = &mut self.servers[server];
            while let Some(record) = kept.inbound.front() {
                let Some((&prefix, frame)) = record.split_first_chunk() else { break };
                if !rings.send_frame(server, &forwarded(prefix, frame)) {
                    break;
                }
                kept.inbound_len -= frame.len();
                kept.inbound.pop_front();
                self.kept -= 1;
            }
        }
    }

    /// Returns whether any frame is kept, so that [`RetryQueue::retry`] is due soon.
    pub fn keeps(&self) -> bool {
        self.kept > 0
    }

    fn put_record(&mut self, queue: &mut Queue, record: &[u8]) -> bool {
        match (record.first_chunk(), record.get(FRAME_PREFIX..)) {
            (Some(vnet), Some(frame)) => self.put(queue, vnet, frame),
            _ => true,
        }
    }

    /// Sends a frame over the device. Returns whether the device has taken it, or lost it.
    pub fn put(&mut self, queue: &mut Queue, vnet: &[u8; vnet::HEADER_LEN], frame: &[u8]) -> bool {
        let mut gather = Gather::new();
        let fits = gather.push_slice(vnet).is_ok() && gather.push_slice(frame).is_ok();
        if fits && matches!(queue.send(&gather), Ok(SendOutcome::NoRoom)) {
            self.failures += 1;
            return false;
        }
        // What the kernel refuses now it would refuse again, so the frame counts as lost on the wire.
        self.frames_out += 1;
        self.bytes_out += frame.len() as u64;
        true
    }
}

fn forwarded(prefix: [u8; FRAME_PREFIX], frame: &[u8]) -> Outgoing<'_> {
    Outgoing { prefix, headers: frame, slice: &[], pieces: None }
}

#[cfg(test)]
mod tests;
