//! Sends frames: headers from the stack of the caller, and text straight from the arena in which it was
//! written.

use atoll_ipc::Memory;

/// The text behind a frame's headers.
#[derive(Clone, Copy, Debug)]
pub enum TextRef<'a, M: Memory> {
    /// There is no text.
    None,
    /// The text is in memory of this process.
    Slice(&'a [u8]),
    /// The text is in up to four pieces of a session's arena, in order: absolute offset and length. Its
    /// application may be writing to them: what is read may be torn, which only hurts the application.
    Pieces(&'a M, &'a [(usize, usize)]),
}

/// The work that is left for the link, in the terms of virtio-net. A link that cannot do it in hardware does
/// it in software.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// Whether the checksum field holds the sum of the pseudo header only.
    pub needs_checksum: bool,
    /// The offset of the transport header in the frame.
    pub csum_start: u16,
    /// The offset of the checksum field in the transport header.
    pub csum_offset: u16,
    /// The size of the segments into which the text is to be cut (TCP only).
    pub gso_size: Option<u16>,
}

/// The output for frames, which the link server implements.
pub trait FrameSink<M: Memory> {
    /// Sends a frame over the outside link; `headers` starts at the Ethernet header. Returns `false` if the
    /// queue is full; the frame is offered again by a later flush then.
    fn send(&mut self, headers: &[u8], text: TextRef<'_, M>, offload: Offload) -> bool;

    /// Sends a frame to the replica of this stack that owns its flow. Returns `false` if the queue is full.
    fn send_internal(&mut self, headers: &[u8], text: TextRef<'_, M>, offload: Offload) -> bool;

    /// Returns how many octets of text one frame of the outside link may carry (segmentation offload). If
    /// that is less than a segment, a frame carries one segment.
    fn segment_max(&self) -> u32;
}

impl<M: Memory> TextRef<'_, M> {
    /// Returns the number of octets of text.
    pub fn len(&self) -> usize {
        match self {
            TextRef::None => 0,
            TextRef::Slice(bytes) => bytes.len(),
            TextRef::Pieces(_, pieces) => pieces.iter().map(|(_, len)| len).sum(),
        }
    }

    /// Returns whether there is no text.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the same text, for another frame.
    pub(crate) fn again(&self) -> TextRef<'_, M> {
        match self {
            TextRef::None => TextRef::None,
            TextRef::Slice(bytes) => TextRef::Slice(bytes),
            TextRef::Pieces(memory, pieces) => TextRef::Pieces(memory, pieces),
        }
    }

    /// Copies the text to `out`, which is [`TextRef::len`] long.
    pub fn copy_to(&self, mut out: &mut [u8]) {
        match self {
            TextRef::None => {}
            TextRef::Slice(bytes) => out.copy_from_slice(bytes),
            TextRef::Pieces(memory, pieces) => {
                for &(at, len) in *pieces {
                    let (now, later) = out.split_at_mut(len);
                    memory.read(at, now);
                    out = later;
                }
            }
        }
    }
}

/// The pieces of a buffer for [`TextRef::Pieces`]: their offsets count from the start of the arena.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Absolute {
    parts: [(usize, usize); 4],
    len: usize,
}

impl Absolute {
    #[inline]
    pub(crate) fn new(area: usize, pieces: &atoll_ipc::buffer::Pieces) -> Absolute {
        let mut absolute = Absolute::default();
        for (part, (at, len)) in absolute.parts.iter_mut().zip(pieces.iter()) {
            *part = (area + at, len);
            absolute.len += 1;
        }
        absolute
    }

    #[inline]
    pub(crate) fn parts(&self) -> &[(usize, usize)] {
        &self.parts[..self.len]
    }
}
