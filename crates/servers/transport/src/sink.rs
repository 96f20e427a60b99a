//! How does a frame leave? Headers from the stack of the caller, text straight from the arena it was written to.

use atoll_base::ReplicaId;
use atoll_ipc::Memory;
use atoll_ipc::buffer::Pieces;

/// What the link is asked to do with a frame: checksum and segmentation, in the terms of the vnet header. A link that cannot do
/// either in hardware does it in software.
pub type Offload = atoll_wire::vnet::Header;

/// The text behind a frame's headers.
#[derive(Clone, Copy, Debug)]
pub enum TextRef<'a, M: Memory> {
    /// There is none.
    None,
    /// Bytes of this process.
    Bytes(&'a [u8]),
    /// Up to four pieces of a session's arena. Its application may be writing to them: what is read may be torn, which only
    /// hurts the application.
    Arena {
        /// The arena.
        memory: &'a M,
        /// Offset in it that the pieces count from.
        area: usize,
        /// The pieces, in order.
        pieces: Pieces,
    },
}

/// Where frames go: implemented by the link server.
pub trait FrameSink<M: Memory> {
    /// Sends a frame over the outside link. `headers`: from the Ethernet header on. `false`: the queue is full, the same frame is
    /// offered again by a later flush.
    fn send(&mut self, headers: &[u8], text: TextRef<'_, M>, offload: &Offload) -> bool;

    /// Sends a frame over the internal link. `to`: the replica that owns its flow; `None`: to be found out by classification.
    fn send_internal(&mut self, to: Option<ReplicaId>, headers: &[u8], text: TextRef<'_, M>, offload: &Offload)
    -> bool;

    /// Octets of text that one frame of the outside link may carry (segmentation offload); less than a segment: a segment.
    fn segment_max(&self) -> u32;
}

impl<M: Memory> TextRef<'_, M> {
    /// Octets of text.
    pub fn len(&self) -> usize {
        match self {
            TextRef::None => 0,
            TextRef::Bytes(bytes) => bytes.len(),
            TextRef::Arena { pieces, .. } => pieces.iter().map(|(_, len)| len).sum(),
        }
    }

    /// Whether there is no text.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the text to `out`, which is [`TextRef::len`] long.
    pub fn copy_to(&self, out: &mut [u8]) {
        match self {
            TextRef::None => {}
            TextRef::Bytes(bytes) => out.copy_from_slice(bytes),
            TextRef::Arena { memory, area, pieces } => pieces.read(*memory, *area, out),
        }
    }
}
