//! Are messages and records the same octets as ever? Processes of two builds share them while one succeeds
//! the other, so a change here needs a new [`atoll_ipc::LAYOUT_VERSION`] or ledger version.
//!
//! `octets/expected` has the octets of one value of each kind, with a different value in each field: rows of
//! 32 octets with their offset, rows of zeros left out. `ATOLL_OCTETS=write cargo test -p atoll-ipc --test
//! octets` writes the file anew, for a change of a layout that is meant.

use std::fmt::Write;

use atoll_ipc::{HeapMemory, Memory};

#[path = "octets/memory.rs"]
mod memory;
#[path = "octets/messages.rs"]
mod messages;

/// The octets of all kinds, as the text that is compared.
#[derive(Default)]
struct Octets {
    text: String,
}

impl Octets {
    /// Adds the octets of a value.
    fn add(&mut self, name: &str, bytes: &[u8]) {
        writeln!(self.text, "{name}: {} octets", bytes.len()).expect("a string grows");
        for (row, part) in bytes.chunks(32).enumerate().filter(|(_, part)| part.iter().any(|b| *b != 0)) {
            write!(self.text, "  {:>6}", row * 32).expect("a string grows");
            for (at, byte) in part.iter().enumerate() {
                let gap = if at % 8 == 0 { " " } else { "" };
                write!(self.text, "{gap}{byte:02x}").expect("a string grows");
            }
            self.text.push('\n');
        }
    }

    /// Adds the octets in memory.
    fn add_memory(&mut self, name: &str, memory: &HeapMemory) {
        let mut bytes = vec![0; memory.len()];
        memory.read(0, &mut bytes);
        self.add(name, &bytes);
    }
}

#[test]
fn every_message_and_record_has_the_same_octets_as_ever() {
    let mut octets = Octets::default();
    messages::add_all(&mut octets);
    memory::add_all(&mut octets);
    if std::env::var_os("ATOLL_OCTETS").is_some_and(|what| what == "write") {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/octets/expected");
        return std::fs::write(path, octets.text).expect("the file can be written");
    }
    let expected = include_str!("octets/expected");
    let mut name = "";
    for (found, expected) in octets.text.lines().zip(expected.lines()) {
        name = if expected.starts_with(' ') { name } else { expected };
        assert_eq!(found, expected, "of {name}");
    }
    assert_eq!(octets.text.lines().count(), expected.lines().count());
}
