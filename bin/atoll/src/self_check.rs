//! `atoll self-check`: reports which build this is, and whether it runs on this machine. A supervisor asks
//! before servers of the build take over.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::process::ExitCode;

use atoll_ipc::ledger::{LEDGER_BYTES, LEDGER_OLDEST, LEDGER_VERSION, Ledger, LedgerConfig};
use atoll_ipc::page::{REPLICA_PAGE_BYTES, STACK_PAGE_BYTES};
use atoll_ipc::{LAYOUT_VERSION, Memory};
use atoll_shm::{Access, ShmMemory};
use atoll_supervisor::{Build, LedgerVersions};
use atoll_sys::epoll::{self, Epoll};
use atoll_sys::timer::LazyTimer;
use atoll_sys::unix::Channel;
use atoll_sys::{Clock, create_memfd, eventfd, process};

use crate::failure::{Failure, OrFail};
use crate::mesh::PAIR_BYTES;
use crate::setup::SETUP_VERSION;

pub use atoll_supervisor::SelfCheck;

/// Show which build this is, and whether it runs on this machine.
///
/// `atoll upgrade` asks this of a build before servers of it take over.
#[derive(clap::Args)]
pub struct Command {
    /// Print JSON (docs/cli.md).
    #[arg(long, short = 'j')]
    json: bool,
    /// Send it over the socket at descriptor 3 instead.
    #[arg(long, hide = true)]
    channel: bool,
}

impl Command {
    /// Runs the command. Returns its exit status: a failure if the build does not run on this machine.
    pub fn run(&self) -> Result<ExitCode, Failure> {
        let check = SelfCheck { build: own(), fault: try_out().err().map(|error| error.to_string()) };
        let what = "telling the result";
        if self.channel {
            let channel = process::take_inherited(1).or_fail(what)?.into_iter().next();
            let text = serde_json::to_vec(&check).or_fail(what)?;
            channel.map_or(Ok(()), |channel| Channel::from(channel).send(&text, &[])).or_fail(what)?;
        } else if self.json {
            println!("{}", serde_json::to_string_pretty(&check).or_fail(what)?);
        } else {
            let Build { layout, servers, ledger, .. } = &check.build;
            println!(
                "atoll {}: layout {layout}, servers {servers}, ledger {} to {}: {}",
                check.build.name(),
                ledger.oldest,
                ledger.newest,
                check.fault.as_deref().unwrap_or("runs on this machine")
            );
        }
        Ok(if check.fault.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Returns the description of this build.
pub fn own() -> Build {
    let memory = [
        ("the stack page", STACK_PAGE_BYTES),
        ("a server's page", REPLICA_PAGE_BYTES),
        ("the memory of two servers", PAIR_BYTES),
        ("a ledger", LEDGER_BYTES),
    ];
    Build {
        version: env!("CARGO_PKG_VERSION").into(),
        id: File::open("/proc/self/exe").ok().and_then(|file| build_id(&file)),
        layout: LAYOUT_VERSION,
        servers: SETUP_VERSION,
        memory: memory
            .iter()
            .map(|(name, bytes)| ((*name).to_owned(), *bytes as u64))
            .collect::<BTreeMap<_, _>>(),
        ledger: LedgerVersions { oldest: LEDGER_OLDEST, newest: newest_ledger() },
    }
}

/// Returns the newest version of the ledger that this process knows. `ATOLL_DEBUG_LEDGER` makes it know only
/// up to that version, as an older build would.
pub fn newest_ledger() -> u32 {
    let said = std::env::var("ATOLL_DEBUG_LEDGER").ok().and_then(|text| text.parse().ok());
    said.unwrap_or(LEDGER_VERSION).clamp(LEDGER_OLDEST, LEDGER_VERSION)
}

/// Does once what servers do all the time; the error says what does not work on this machine.
fn try_out() -> io::Result<()> {
    let config = LedgerConfig { connections: 1, requests: 1, text_units: 1 };
    let memory =
        ShmMemory::map(&create_memfd("atoll-check", config.bytes())?, config.bytes(), Access::ReadWrite)?;
    let ledger = Ledger::open_as(memory.clone(), config, atoll_base::Epoch(1), newest_ledger());
    let mut ledger = ledger.map_err(|error| io::Error::other(format!("a ledger: {error:?}")))?;
    ledger.commit();
    memory.fence();
    let (bell, epoll) = (eventfd::create()?, Epoll::new()?);
    epoll.add(&bell, 1, eventfd::WATCHED)?;
    eventfd::ring(&bell)?;
    if epoll.wait(&mut [epoll::EMPTY; 1], Some(1000))? != 1 {
        return Err(io::Error::other("a bell was rung, and nobody woke up"));
    }
    let now = Clock::kernel().now();
    LazyTimer::new(atoll_base::Duration::from_millis(1))?.wake_at(now, now)?;
    drop(process::pidfd_open(std::process::id())?);
    Ok(())
}

/// Returns the build id (NT_GNU_BUILD_ID, elf(5)) of a 64-bit ELF file; `None` if there is none.
fn build_id(file: &File) -> Option<String> {
    const PT_NOTE: u32 = 4;
    let mut head = vec![0; 4096];
    let len = file.read_at(&mut head, 0).ok()?;
    head.truncate(len);
    if head.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let word = |at: usize| Some(u64::from_le_bytes(*head.get(at..)?.first_chunk()?));
    let half = |at: usize| Some(usize::from(u16::from_le_bytes(*head.get(at..)?.first_chunk()?)));
    let (first, size, count) = (usize::try_from(word(32)?).ok()?, half(54)?, half(56)?);
    (0..count).find_map(|index| {
        let at = first.checked_add(index.checked_mul(size)?)?;
        let kind = u32::from_le_bytes(*head.get(at..)?.first_chunk()?);
        if kind != PT_NOTE {
            return None;
        }
        let (offset, len) = (word(at + 8)?, word(at + 32)?);
        let mut notes = vec![0; usize::try_from(len).ok()?.min(4096)];
        file.read_exact_at(&mut notes, offset).ok()?;
        build_id_note(&notes)
    })
}

/// Returns the build id among notes: `[name length u32][contents' length u32][type u32][name][contents]`,
/// where name and contents are padded to four octets.
fn build_id_note(mut notes: &[u8]) -> Option<String> {
    const NT_GNU_BUILD_ID: u32 = 3;
    loop {
        let word = |at: usize| Some(u32::from_le_bytes(*notes.get(at..)?.first_chunk()?));
        let (name_len, len, kind) = (word(0)? as usize, word(4)? as usize, word(8)?);
        let name = notes.get(12..12usize.checked_add(name_len)?)?;
        let at = 12 + name_len.checked_next_multiple_of(4)?;
        let contents = notes.get(at..at.checked_add(len)?)?;
        if kind == NT_GNU_BUILD_ID && name == b"GNU\0" {
            return Some(contents.iter().map(|byte| format!("{byte:02x}")).collect());
        }
        notes = notes.get(at + len.checked_next_multiple_of(4)?..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_build_runs_here_and_fits_itself() {
        try_out().unwrap();
        assert_eq!(own().fits(&own()), Ok(()));
    }

    #[test]
    fn the_build_id_is_found_among_notes_and_nothing_else_is() {
        let note = |kind: u32, name: &[u8], contents: &[u8]| {
            let mut note = Vec::new();
            for word in [name.len() as u32, contents.len() as u32, kind] {
                note.extend(word.to_le_bytes());
            }
            for part in [name, contents] {
                note.extend(part);
                note.resize(note.len().next_multiple_of(4), 0);
            }
            note
        };
        let notes =
            [note(1, b"GNU\0", &[1; 16]), note(3, b"Go\0", &[2; 5]), note(3, b"GNU\0", &[0xab, 0x01])]
                .concat();
        assert_eq!(build_id_note(&notes).as_deref(), Some("ab01"));
        for len in 0..notes.len() {
            assert_eq!(build_id_note(&notes[..len]).filter(|_| len < notes.len() - 3), None, "{len}");
        }
        for at in 0..notes.len() {
            let mut bad = notes.clone();
            bad[at] = 0xff;
            let _ = build_id_note(&bad);
        }
        assert_eq!(build_id(&File::open("/dev/null").unwrap()), None);
    }
}
