//! Checks that the format of any file is found, in few short reads.

use atoll_sys::program::format::{self, Format};

/// Reads the format of a file with these octets, which comes in pieces of as many octets as the first says.
pub fn program_format(data: &[u8]) {
    let Some((first, file)) = data.split_first() else { return };
    let (piece, mut octets) = (usize::from(*first) + 1, 0);
    let format = format::read(|at, into| {
        let rest = usize::try_from(at).ok().and_then(|at| file.get(at..)).unwrap_or_default();
        let n = rest.len().min(into.len()).min(piece);
        into[..n].copy_from_slice(&rest[..n]);
        octets += n;
        Some(n)
    });
    assert!(octets <= 256 + 65_536 + 4096, "{octets}");
    match format.expect("no read fails") {
        Format::Script { interpreter, argument } => {
            let is_blank = |byte: Option<&u8>| matches!(byte, None | Some(b' ' | b'\t'));
            let is_sound = |text: &Vec<u8>| !is_blank(text.first()) && !is_blank(text.last());
            assert!(argument.as_ref().is_none_or(is_sound), "{argument:?}");
            assert!(!interpreter.is_empty() && interpreter.len() < 255);
            assert!(interpreter.iter().all(|byte| !b" \t\n\0".contains(byte)), "{interpreter:?}");
        }
        Format::Elf { loader: Some(loader) } => {
            assert!(loader.len() < 4096 && !loader.contains(&0), "{loader:?}");
        }
        Format::Elf { loader: None } | Format::ForeignElf | Format::Other => {}
    }
}
