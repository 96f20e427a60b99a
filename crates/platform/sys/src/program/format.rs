//! The format of a program file, as far as it says whether a dynamic loader runs (elf(5), execve(2)).

/// The format of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Format {
    /// An ELF file for this processor, with the path of the loader that it names (PT_INTERP).
    Elf {
        /// The path, without the zero that ends it.
        loader: Option<Vec<u8>>,
    },
    /// An ELF file for another processor, or for one of 32 bits.
    ForeignElf,
    /// A script that begins with `#!` and the path of another program.
    Script {
        /// The path, which may be relative to the working directory.
        interpreter: Vec<u8>,
        /// What follows the path in its line: one argument, with its blanks.
        argument: Option<Vec<u8>>,
    },
    /// Something that the kernel does not execute by itself.
    Other,
}

/// The octets that the kernel reads of a file before it decides (`BINPRM_BUF_SIZE`).
pub(super) const HEAD: usize = 256;
/// The most octets of program headers that the kernel takes (`load_elf_phdrs`).
pub(super) const TABLE_MAX: usize = 65_536;
/// The size of a program header (`Elf64_Phdr`).
pub(super) const ENTRY: usize = 56;
/// The longest path of a loader, with its zero (`PATH_MAX`).
const PATH_MAX: u64 = 4096;

const PT_INTERP: u32 = 3;
const ET_EXEC: u16 = 2;
const ET_DYN: u16 = 3;

#[cfg(target_arch = "x86_64")]
pub(super) const MACHINE: (u16, &[u8]) = (62, b"ld-linux-x86-64.so.2");
#[cfg(target_arch = "aarch64")]
pub(super) const MACHINE: (u16, &[u8]) = (183, b"ld-linux-aarch64.so.1");

/// Returns whether a path is that of the loader which this library's own C library has.
pub fn is_loader(path: &[u8]) -> bool {
    path.rsplit(|byte| *byte == b'/').next() == Some(MACHINE.1)
}

/// Returns the format of a file. `read` reads octets at an offset and returns how many there were, fewer at
/// the end of the file, or `None` if it fails; so does this function then.
pub fn read(mut read: impl FnMut(u64, &mut [u8]) -> Option<usize>) -> Option<Format> {
    let mut head = [0; HEAD];
    let filled = fill(&mut read, 0, &mut head)?;
    let head = head.get(..filled)?;
    if head.starts_with(b"#!") {
        return Some(script(head, filled == HEAD));
    }
    if !head.starts_with(b"\x7fELF") {
        return Some(Format::Other);
    }
    if !head.starts_with(b"\x7fELF\x02\x01") || u16_at(head, 18) != Some(MACHINE.0) {
        return Some(Format::ForeignElf);
    }
    match u16_at(head, 16) {
        Some(ET_EXEC | ET_DYN) => elf(&mut read, head),
        _ => Some(Format::Other),
    }
}

/// Reads the program headers of an ELF file of this processor with the beginning `head`.
fn elf(read: &mut impl FnMut(u64, &mut [u8]) -> Option<usize>, head: &[u8]) -> Option<Format> {
    let (Some(at), Some(size), Some(count)) = (u64_at(head, 32), u16_at(head, 54), u16_at(head, 56)) else {
        return Some(Format::Other);
    };
    let len = usize::from(count) * ENTRY;
    if usize::from(size) != ENTRY || len == 0 || len > TABLE_MAX {
        return Some(Format::Other);
    }
    let mut table = vec![0; len];
    if fill(read, at, &mut table)? < len {
        return Some(Format::Other);
    }
    let entry = table.chunks_exact(ENTRY).find(|entry| u32_at(entry, 0) == Some(PT_INTERP));
    let Some(entry) = entry else { return Some(Format::Elf { loader: None }) };
    let (Some(at), Some(len @ 2..=PATH_MAX)) = (u64_at(entry, 8), u64_at(entry, 32)) else {
        return Some(Format::Other);
    };
    let mut path = vec![0; usize::try_from(len).ok()?];
    if fill(read, at, &mut path)? < path.len() || path.last() != Some(&0) {
        return Some(Format::Other);
    }
    path.truncate(path.iter().position(|byte| *byte == 0)?);
    Some(Format::Elf { loader: Some(path) })
}

/// Reads the first line of a script, as `load_script` of Linux does. `is_cut` says that the file may continue
/// behind `head`.
fn script(head: &[u8], is_cut: bool) -> Format {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let rest = head.get(2..).unwrap_or_default();
    let end = rest.iter().position(|byte| *byte == b'\n');
    let line = end.and_then(|end| rest.get(..end)).unwrap_or(rest);
    let start = line.iter().position(|byte| !is_blank(byte)).unwrap_or(line.len());
    let line = line.get(start..).unwrap_or_default();
    let path_ends = line.iter().position(|byte| is_blank(byte) || *byte == 0);
    // A path that is cut off would be another path.
    if path_ends.is_none() && end.is_none() && is_cut {
        return Format::Other;
    }
    let (path, rest) = line.split_at(path_ends.unwrap_or(line.len()));
    let rest = rest.split(|byte| *byte == 0).next().unwrap_or_default();
    let argument = rest.iter().position(|byte| !is_blank(byte)).and_then(|start| {
        let end = rest.iter().rposition(|byte| !is_blank(byte))?;
        rest.get(start..=end).map(<[u8]>::to_vec)
    });
    match path {
        [] => Format::Other,
        path => Format::Script { interpreter: path.to_vec(), argument },
    }
}

/// Reads until `into` is full or the file ends. Returns how many octets there are.
pub(super) fn fill(
    read: &mut impl FnMut(u64, &mut [u8]) -> Option<usize>,
    at: u64,
    into: &mut [u8],
) -> Option<usize> {
    let mut filled = 0;
    while let Some(rest) = into.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        // An offset that no file has is behind the end of each.
        let Some(place) = at.checked_add(filled as u64).filter(|at| i64::try_from(*at).is_ok()) else {
            break;
        };
        match read(place, rest)? {
            0 => break,
            n => filled += n.min(rest.len()),
        }
    }
    Some(filled)
}

pub(super) fn u16_at(octets: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*octets.get(at..)?.first_chunk()?))
}

pub(super) fn u32_at(octets: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*octets.get(at..)?.first_chunk()?))
}

pub(super) fn u64_at(octets: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*octets.get(at..)?.first_chunk()?))
}
