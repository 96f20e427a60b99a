//! The stack's outgoing frames, as a device without segmentation offload sees them.

use std::collections::VecDeque;

use atoll_ipc::HeapMemory;
use atoll_transport::{FrameSink, Offload, TextRef};

use crate::wire;

#[derive(Default)]
pub(super) struct Out(pub(super) VecDeque<Vec<u8>>);

impl FrameSink<HeapMemory> for Out {
    /// Sends a frame as seen by a device without segmentation offload: cut into segments.
    fn send(&mut self, headers: &[u8], text: TextRef<'_, HeapMemory>, offload: Offload) -> bool {
        let mut bytes = vec![0; text.len()];
        text.copy_to(&mut bytes);
        let size = offload.gso_size.map_or(usize::MAX, usize::from);
        if bytes.len() <= size {
            self.0.push_back([headers, &bytes].concat());
            return true;
        }
        let total = bytes.len();
        for (n, part) in bytes.chunks(size).enumerate() {
            let is_last = n * size + part.len() == total;
            self.0.push_back([&wire::cut(headers, n * size, part.len(), is_last)[..], part].concat());
        }
        true
    }

    fn send_internal(&mut self, _: &[u8], _: TextRef<'_, HeapMemory>, _: Offload) -> bool {
        true
    }

    fn segment_max(&self) -> u32 {
        65_000
    }
}
