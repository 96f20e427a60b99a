//! Measures how much memory the stack uses: its shared memory, as the kernel has allocated it, and the
//! private memory of its processes.
//!
//! Send buffers count, whichever process has written to them first. A bound on the stack is thereby one on
//! what programs can make it hold, whichever cgroup they are in.

use std::collections::BTreeSet;
use std::fs;

use atoll_ipc::control::MemoryLevel;
use atoll_supervisor::MemoryReport;
use atoll_sys::page_size;

use super::Supervisor;
use crate::supervise::servers::ServerSlot;

impl Supervisor {
    /// Returns the memory that the stack uses, in bytes. It asks the kernel once for each arena and process,
    /// which takes some hundred nanoseconds for an arena, and some microseconds for a process.
    pub(super) fn memory_used(&self) -> u64 {
        let servers = self.servers.others().iter().filter_map(ServerSlot::own_child);
        let children = self.hosts.children().chain(servers).map(|child| child.pid());
        // Each process counts once, although several replicas may be in it.
        let processes: BTreeSet<u32> =
            children.chain([std::process::id()]).chain(self.identity.guardian).collect();
        self.books.allocated() + self.memory.allocated() + processes.into_iter().map(private).sum::<u64>()
    }

    /// Returns the state of memory for reports, or `None` if it is not measured.
    pub(super) fn memory_report(&self) -> Option<MemoryReport> {
        let gauge = self.gauge.as_ref()?;
        let used = self.memory_used();
        let room = gauge.tightest(used)?;
        let level = match gauge.level() {
            MemoryLevel::Plenty => "plenty",
            MemoryLevel::Pressure => "pressure",
            MemoryLevel::High => "high",
        };
        Some(MemoryReport {
            level: level.into(),
            bound: room.name().into(),
            limit: room.all,
            left: room.left,
            used,
            receive_max: gauge.buffers_max(),
            stalls: gauge.stalls(),
        })
    }
}

/// Returns the private memory of a process in bytes, or 0 if the process is gone (proc_pid_statm(5)).
fn private(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let mut pages = text.split_ascii_whitespace().skip(1).map_while(|field| field.parse::<u64>().ok());
    let (resident, shared) = (pages.next().unwrap_or(0), pages.next().unwrap_or(0));
    resident.saturating_sub(shared) * page_size() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::memory::SessionMemory;
    use atoll_ipc::Memory;
    use atoll_ipc::arena::ArenaConfig;
    use atoll_ipc::control::User;
    use atoll_shm::{Access, ShmMemory};

    #[test]
    fn buffers_count_whoever_has_written_to_them() {
        let config = ArenaConfig::default();
        let session = SessionMemory::create(1, User::privileged(0), 2, config).unwrap();
        assert_eq!(session.allocated(), 0);
        for (replica, all) in [(0, 3 << 20), (1, 6 << 20)] {
            let [arena, ..] = &session.for_replica(replica)[..] else { panic!("it has an arena") };
            // This is what a program does that maps the arena it was sent.
            let arena = ShmMemory::map(arena, config.layout().total, Access::ReadWrite).unwrap();
            arena.write(1 << 20, &vec![1; 3 << 20]);
            assert_eq!(session.allocated(), all);
        }
    }

    #[test]
    fn private_memory_is_what_a_process_has_touched_for_itself() {
        let before = private(std::process::id());
        let block = std::hint::black_box(vec![1u8; 32 << 20]);
        let after = private(std::process::id());
        assert!(after >= before + (24 << 20), "{before} {after}");
        drop(block);
        assert_eq!(private(u32::MAX), 0);
    }
}
