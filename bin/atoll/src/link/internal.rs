//! The link from a stack to itself, for its own address and loopback addresses.

use std::collections::VecDeque;

use atoll_ipc::Memory;

use super::rings::{Outgoing, Rings};

/// The most frames that wait for this replica itself. Beyond it the link is full, as a NIC's queue would be.
const OWN_FRAMES_MAX: usize = 1024;
/// The number of buffers kept for reuse.
const SPARE_MAX: usize = 64;

/// One frame: virtio-net header, padding, then the frame from the Ethernet header on.
pub type Packet = Vec<u8>;

/// The internal link of one replica.
pub struct InternalLink {
    me: usize,
    /// The rings to and from every server of the stack. This server's own ring stays empty, because its own
    /// frames go through `own`.
    pub rings: Rings,
    own: VecDeque<Packet>,
    spare: Vec<Packet>,
}

impl InternalLink {
    /// Creates the link of replica `me`.
    pub fn new(me: usize, rings: Rings) -> InternalLink {
        InternalLink { me, rings, own: VecDeque::new(), spare: Vec::new() }
    }

    /// Sends a frame to the replica that owns its flow. Returns whether it was taken.
    pub fn send(&mut self, owner: usize, frame: &Outgoing<'_>) -> bool {
        if owner != self.me {
            return self.rings.send_frame(owner, frame);
        }
        if self.own.len() >= OWN_FRAMES_MAX {
            self.rings.dropped += 1;
            return false;
        }
        let mut packet = self.spare.pop().unwrap_or_default();
        packet.clear();
        packet.extend_from_slice(&frame.prefix);
        packet.extend_from_slice(frame.headers);
        packet.extend_from_slice(frame.slice);
        if let Some((arena, parts)) = frame.pieces {
            for &(from, len) in parts {
                let at = packet.len();
                packet.resize(at + len, 0);
                arena.read(from, &mut packet[at..]);
            }
        }
        self.own.push_back(packet);
        true
    }

    /// Takes the next of the frames that this replica sent to itself. Give it back with
    /// [`InternalLink::recycle`].
    pub fn take_own(&mut self) -> Option<Packet> {
        self.own.pop_front()
    }

    /// Returns the number of frames to this replica itself that wait.
    pub fn own_waiting(&self) -> usize {
        self.own.len()
    }

    /// Keeps a packet's memory for another packet.
    pub fn recycle(&mut self, packet: Packet) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(packet);
        }
    }
}
