//! What a server leaves to the next one, and what may have become of it.

use atoll_base::Epoch;
use atoll_ipc::ledger::{
    BEYOND_MAX, ConnectionRecord, Ledger, LedgerConfig, Phase, Progress, written_version,
};
use atoll_ipc::page::REPLICA_PAGE_BYTES;
use atoll_transport::Recovery;

use super::memory::SparseMemory;
use super::{Machine, scribble, server};
use crate::features::mark;
use crate::input::Input;

const LEDGER: LedgerConfig = LedgerConfig { connections: 32, requests: 32, text_units: 32 };

/// The memory that outlives a server.
pub(super) struct Legacy {
    page: SparseMemory,
    ledger: SparseMemory,
    epoch: Epoch,
}

impl Machine {
    /// Creates the memory of a machine whose server may die.
    pub(super) fn mortal() -> Machine {
        let legacy = Legacy {
            page: SparseMemory::new(REPLICA_PAGE_BYTES),
            ledger: SparseMemory::new(LEDGER.bytes()),
            epoch: Epoch(3),
        };
        let mut machine = Machine::at(legacy.page.clone(), false);
        machine.legacy = Some(legacy);
        for process in &mut machine.processes {
            process.doubt();
        }
        machine.succeed(Epoch(3), false, Recovery::Stateful);
        machine
    }

    /// Lets the server die, changes its ledger, and starts the next server.
    pub(super) fn die(&mut self, input: &mut Input<'_>) {
        let Some(Legacy { ledger, epoch, .. }) = &mut self.legacy else { return };
        if input.byte().is_multiple_of(4) {
            self.transport.convert_ledger(1 + u32::from(input.byte()) % 2);
        }
        for _ in 0..input.byte() % 4 {
            match input.byte() % 4 {
                0 => {}
                // Any word is stored anywhere: the tables are behind the journal.
                1 => scribble(ledger, input.word() as usize, input.long()),
                2 => scribble(ledger, usize::from(input.byte()) * 4, input.byte().into()),
                // A record changes as only a writer can change it: the check fits, and the fields make no
                // sense.
                _ => pervert(ledger, *epoch, input),
            }
        }
        let recovery = if input.byte() < 16 { Recovery::Stateless } else { Recovery::Stateful };
        let (epoch, blamed) = (Epoch(epoch.0.wrapping_add(1)), input.flip());
        self.succeed(epoch, blamed, recovery);
    }

    fn succeed(&mut self, epoch: Epoch, blamed: bool, recovery: Recovery) {
        let Some(legacy) = &mut self.legacy else { return };
        legacy.epoch = epoch;
        // Half of the successors are of an older build, if they find nothing newer.
        let is_old = epoch.0.is_multiple_of(2) && written_version(&legacy.ledger) == Some(1);
        let newest = if is_old { 1 } else { u32::MAX };
        let ledger = Ledger::open_as(legacy.ledger.clone(), LEDGER, epoch, newest).unwrap_or_else(|why| {
            // The supervisor gives up a stack whose servers cannot start. Here it makes a new ledger, and all
            // is lost.
            mark(16, written_version(&legacy.ledger).map_or(0, |version| 1 + u64::from(version.min(3))));
            legacy.ledger = SparseMemory::new(LEDGER.bytes());
            Ledger::open(legacy.ledger.clone(), LEDGER, epoch)
                .unwrap_or_else(|_| panic!("zeros are a ledger: {why:?}"))
        });
        let mut next = server(self.now, legacy.page.clone(), epoch);
        next.set_ledger(ledger);
        for process in &mut self.processes {
            process.meet(&mut next, self.now);
        }
        let adoption = next.adopt(self.now, recovery, blamed);
        mark(
            16,
            16 | adoption.why.map_or(0, |why| 1 + why as u64) << 6 | u64::from(adoption.kept.min(3)) << 4,
        );
        self.transport = next;
    }
}

/// Changes fields of a record.
fn pervert(memory: &SparseMemory, epoch: Epoch, input: &mut Input<'_>) {
    let Ok(mut ledger) = Ledger::open(memory.clone(), LEDGER, epoch) else { return };
    let all: Vec<(u32, ConnectionRecord)> =
        ledger.connections().filter_map(|(place, found)| Some((place, found.ok()?))).collect();
    if all.is_empty() {
        return;
    }
    let (place, mut record) = all[usize::from(input.byte()) % all.len()];
    for _ in 0..1 + input.byte() % 3 {
        let near = |value: i64, input: &mut Input<'_>| match input.byte() % 4 {
            0 => input.long() as i64,
            _ => value.wrapping_add(input.distance().into()),
        };
        match input.byte() % 16 {
            0 => record.progress = Progress { acked: near(record.progress.acked, input), ..record.progress },
            1 => {
                record.progress =
                    Progress { received: near(record.progress.received, input), ..record.progress }
            }
            2 => record.progress = Progress { edge: near(record.progress.edge, input), ..record.progress },
            3 => record.send_tail = near(record.send_tail, input),
            4 => record.receive_fin = input.flip().then(|| near(record.progress.received, input)),
            5 => record.state = input.byte() % 16,
            6 => {
                let phases = [Phase::Unclaimed, Phase::Offered, Phase::Open, Phase::Ended, Phase::Closing];
                record.phase = input.pick(&phases);
            }
            7 => record.place = None,
            8 => {
                if let Some((_, slot, generation)) = &mut record.place {
                    slot.0 = slot.0.wrapping_add_signed(input.distance());
                    *generation = generation.wrapping_add(u32::from(input.byte() % 3));
                }
            }
            9 => {
                if let Some(ring) = &mut record.receive.current {
                    ring.base = ring.base.wrapping_add_signed(input.distance().into());
                    ring.unit = ring.unit.wrapping_add_signed(input.distance());
                    ring.log2 = ring.log2.wrapping_add(input.byte() % 3);
                }
            }
            10 => record.receive.old = record.receive.current,
            11 => record.flags ^= 1 << (input.byte() % 32),
            12 => (record.text, record.text_len) = (input.byte().into(), input.half().into()),
            13 => record.receive_capacity = if input.flip() { input.word() } else { input.half().into() },
            14 => {
                for range in record.beyond.iter_mut().take(BEYOND_MAX) {
                    let from = near(record.progress.received, input);
                    *range = (from, from.wrapping_add(input.half().into()));
                }
            }
            _ => {
                (record.mss_path, record.mss_peer, record.mss_receive) =
                    (input.half(), input.half(), input.half())
            }
        }
    }
    let place = if input.byte() < 8 { place + 1 } else { place };
    ledger.stage_connection(place, Some(&record));
    ledger.commit();
}
