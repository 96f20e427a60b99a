//! Whether libatoll.so can be loaded into a program, which is impossible if the program is linked statically,
//! or runs with more rights than its caller.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Returns why the library cannot be loaded into `program`; `None` if it can, or if nothing is known.
pub fn why_not_interposable(program: &OsStr) -> Option<&'static str> {
    let path = find(program)?;
    let file = File::open(&path).ok()?;
    let metadata = file.metadata().ok()?;
    // ld.so(8): in secure-execution mode, LD_PRELOAD with slashes is ignored.
    let is_set_uid =
        metadata.permissions().mode() & 0o4000 != 0 && metadata.uid() != rustix::process::getuid().as_raw();
    let is_set_gid =
        metadata.permissions().mode() & 0o2000 != 0 && metadata.gid() != rustix::process::getgid().as_raw();
    if is_set_uid || is_set_gid {
        return Some("is a set-user-ID or set-group-ID program, which loads no libraries of its caller");
    }
    let mut head = Vec::new();
    file.take(8192).read_to_end(&mut head).ok()?;
    (has_interpreter(&head)? == Interpreter::Absent).then_some("is linked statically")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interpreter {
    Present,
    Absent,
}

/// Returns whether the beginning of a 64-bit ELF file names a dynamic loader (PT_INTERP, elf(5)); `None` if
/// it is not such a file.
fn has_interpreter(head: &[u8]) -> Option<Interpreter> {
    const PT_INTERP: u32 = 3;
    let is_64_bit_little_endian = head.get(..6)? == b"\x7fELF\x02\x01";
    if !is_64_bit_little_endian {
        return None;
    }
    let u16_at = |at: usize| Some(u16::from_le_bytes(head.get(at..at + 2)?.try_into().ok()?));
    let offset = usize::try_from(u64::from_le_bytes(head.get(32..40)?.try_into().ok()?)).ok()?;
    let (size, count) = (usize::from(u16_at(54)?), usize::from(u16_at(56)?));
    for index in 0..count {
        let at = offset.checked_add(index.checked_mul(size)?)?;
        let kind = head.get(at..at.checked_add(4)?)?;
        if u32::from_le_bytes(kind.try_into().ok()?) == PT_INTERP {
            return Some(Interpreter::Present);
        }
    }
    Some(Interpreter::Absent)
}

/// Returns the file that execvp(3) would run.
fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_encoded_bytes().contains(&b'/') {
        return Some(Path::new(program).to_path_buf());
    }
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(program)).find(|path| {
        path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dynamic_programs_are_interposable() {
        assert_eq!(why_not_interposable(OsStr::new("sh")), None);
        assert_eq!(why_not_interposable(OsStr::new("/no/such/program")), None);
    }

    #[test]
    fn headers_are_read_without_trust() {
        assert_eq!(has_interpreter(b"#!/bin/sh\n"), None);
        let mut head = vec![0; 64];
        head[..6].copy_from_slice(b"\x7fELF\x02\x01");
        assert_eq!(has_interpreter(&head), Some(Interpreter::Absent));
        head[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        head[54..58].fill(0xff);
        assert_eq!(has_interpreter(&head), None);
        for len in 0..head.len() {
            has_interpreter(&head[..len]);
        }
    }
}
