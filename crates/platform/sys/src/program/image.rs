//! What of a program file is mapped, and where: the segments of an ELF file that needs no loader (elf(5)).
//!
//! This follows `load_elf_binary` of Linux for files without PT_INTERP.

use super::format::{ENTRY, HEAD, MACHINE, TABLE_MAX, fill, u16_at, u32_at, u64_at};

/// The size of a page, of which mappings consist.
pub const PAGE: u64 = 4096;
/// The end of the addresses that programs have (`TASK_SIZE_MAX`, with 47 bits).
const ADDRESSES: u64 = 1 << 47;

const ET_EXEC: u16 = 2;
const ET_DYN: u16 = 3;
const PT_LOAD: u32 = 1;
const PT_INTERP: u32 = 3;
const PT_PHDR: u32 = 6;
const PT_GNU_STACK: u32 = 0x6474_e551;
const EXECUTABLE: u32 = 1;
const WRITABLE: u32 = 2;
const READABLE: u32 = 4;

/// A program as it is to be in memory. Addresses are relative to where it is put, which is 0 unless it may be
/// put anywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Whether the program may be put anywhere (ET_DYN).
    pub is_movable: bool,
    /// What to map, in ascending order, without overlap.
    pub segments: Vec<Segment>,
    /// Where the program begins.
    pub entry: u64,
    /// Where the program headers are in memory; 0 if they are in no segment.
    pub headers: u64,
    /// The number of program headers.
    pub header_count: u16,
    /// The alignment of the whole, at least a page.
    pub align: u64,
    /// Whether the stack is to be executable.
    pub executable_stack: bool,
}

/// A part of a program in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The first address, and the first octet of the file there.
    pub address: u64,
    /// The offset in the file.
    pub offset: u64,
    /// How many octets of it come from the file.
    pub file_len: u64,
    /// How many there are; those that are not in the file are zero.
    pub len: u64,
    /// What the program may do there.
    pub access: Access,
}

/// What a program may do in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Whether it may read.
    pub read: bool,
    /// Whether it may write.
    pub write: bool,
    /// Whether it may execute.
    pub execute: bool,
}

impl Image {
    /// Reads the image of a static program of this processor. `read` is as in [`super::format::read`].
    /// Returns `None` if the file is none, or one that Linux would not execute.
    pub fn read(mut read: impl FnMut(u64, &mut [u8]) -> Option<usize>) -> Option<Image> {
        let mut head = [0; HEAD];
        let filled = fill(&mut read, 0, &mut head)?;
        let head = head.get(..filled)?;
        let kind = u16_at(head, 16).filter(|kind| [ET_EXEC, ET_DYN].contains(kind))?;
        if !head.starts_with(b"\x7fELF\x02\x01") || u16_at(head, 18)? != MACHINE.0 {
            return None;
        }
        let (entry, at) = (u64_at(head, 24)?, u64_at(head, 32)?);
        let count = u16_at(head, 56)?;
        let len = usize::from(count) * ENTRY;
        if usize::from(u16_at(head, 54)?) != ENTRY || len == 0 || len > TABLE_MAX {
            return None;
        }
        let mut table = vec![0; len];
        if fill(&mut read, at, &mut table)? < len {
            return None;
        }
        let mut image = Image {
            is_movable: kind == ET_DYN,
            segments: Vec::new(),
            entry,
            headers: 0,
            header_count: count,
            align: PAGE,
            executable_stack: false,
        };
        for header in table.chunks_exact(ENTRY) {
            image.take(header, at)?;
        }
        image.is_sound().then_some(image)
    }

    /// Takes a program header. The table of them is at `table` in the file.
    fn take(&mut self, header: &[u8], table: u64) -> Option<()> {
        let flags = u32_at(header, 4)?;
        let word = |at| u64_at(header, at);
        let (offset, address, file_len, len, align) = (word(8)?, word(16)?, word(32)?, word(40)?, word(48)?);
        match u32_at(header, 0)? {
            PT_LOAD if len > 0 => {
                let is = |bit| flags & bit != 0;
                let access = Access { read: is(READABLE), write: is(WRITABLE), execute: is(EXECUTABLE) };
                if self.headers == 0 && offset <= table && table - offset < file_len {
                    self.headers = address.checked_add(table - offset)?;
                }
                if align.is_power_of_two() {
                    self.align = self.align.max(align);
                }
                self.segments.push(Segment { address, offset, file_len, len, access });
            }
            PT_PHDR => self.headers = address,
            PT_GNU_STACK => self.executable_stack = flags & EXECUTABLE != 0,
            PT_INTERP => return None,
            _ => {}
        }
        Some(())
    }

    /// Returns whether the segments are such as can be mapped.
    fn is_sound(&self) -> bool {
        let mut end = 0;
        self.align <= 1 << 30
            && !self.segments.is_empty()
            && self.segments.iter().all(|segment| {
                let begins = segment.address / PAGE * PAGE;
                let is_sound = segment.address.checked_add(segment.len).is_some_and(|end| end <= ADDRESSES)
                    && segment.file_len <= segment.len
                    && i64::try_from(segment.offset.saturating_add(segment.file_len)).is_ok()
                    && segment.offset % PAGE == segment.address % PAGE
                    && begins >= end;
                end = segment
                    .address
                    .saturating_add(segment.len)
                    .checked_next_multiple_of(PAGE)
                    .unwrap_or(u64::MAX);
                is_sound
            })
    }

    /// Returns the first address and the end of all segments, in whole pages.
    pub fn range(&self) -> std::ops::Range<u64> {
        let first = self.segments.first().map_or(0, |segment| segment.address / PAGE * PAGE);
        let last = self.segments.last().map_or(0, |segment| segment.address + segment.len);
        first..last.next_multiple_of(PAGE)
    }
}

#[cfg(test)]
mod tests;
