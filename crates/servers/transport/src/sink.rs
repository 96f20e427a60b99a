//! Where do frames go? The transport hands out headers as bytes and text by its place; devices belong to others.

use atoll_ipc::Memory;

/// Text of a frame.
#[derive(Debug)]
pub enum TextRef<'a, M: Memory> {
    /// There is none.
    None,
    /// Text in private memory.
    Slice(&'a [u8]),
    /// Text in an arena: pieces in order, each as absolute offset and length.
    Pieces(&'a M, &'a [(usize, usize)]),
}

impl<M: Memory> TextRef<'_, M> {
    /// Length in octets.
    pub fn len(&self) -> usize {
        match self {
            TextRef::None => 0,
            TextRef::Slice(bytes) => bytes.len(),
            TextRef::Pieces(_, parts) => parts.iter().map(|(_, len)| len).sum(),
        }
    }

    /// Whether there is no text.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What is left for the device to do (virtio-net's words).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// The checksum field holds the sum of the pseudo header only.
    pub needs_checksum: bool,
    /// Offset of the transport header in the frame.
    pub csum_start: u16,
    /// Offset of the checksum field in the transport header.
    pub csum_offset: u16,
    /// The text is to be cut into segments of this size (TCP only).
    pub gso_size: Option<u16>,
}

/// Takes frames.
pub trait FrameSink<M: Memory> {
    /// Sends a frame to the outside link. Returns false, and takes nothing, if the link has no room now.
    fn send(&mut self, headers: &[u8], text: TextRef<'_, M>, offload: Offload) -> bool;
    /// Sends a frame to the replica of this stack that owns its flow. Same answer.
    fn send_internal(&mut self, headers: &[u8], text: TextRef<'_, M>, offload: Offload) -> bool;
    /// Largest text that the outside link cuts into segments by itself; 0 if it cuts none.
    fn segment_max(&self) -> u32;
}
