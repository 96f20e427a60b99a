//! A process for replicas. It starts without any, gets one or several from the supervisor, and ends with the
//! last one.
//!
//! ```text
//!   one replica in each process   replicas do the most at a time, and each dies alone
//!   several in one process        they use less of the machine; if one dies, all die, and come back together
//! ```
//!
//! A replica that leaves continues in another process, with everything in its ledger (`docs/ledger.md`). No
//! process outside the stack notices.

use std::io;
use std::os::fd::OwnedFd;
use std::process::ExitCode;

use atoll_base::Duration;
use atoll_ipc::page::{REPLICA_PAGE_BYTES, ReplicaPage, STACK_PAGE_BYTES, StackPage};
use atoll_shm::{Access, ShmMemory};
use atoll_sys::{ending, heap, process, unix};

use crate::log;
use crate::privileges::Kind;
use crate::replica::Replica;
use crate::server::{self, Inherited, Intake, Process, ProcessConfig};
use crate::setup::{HostSetup, ReplicaSetup};

/// How late a timer may fire: as late as the kernel's own TCP timers at HZ=250.
const TIMER_SLACK: Duration = Duration::from_millis(4);

/// Runs replicas until the last one has left or was stopped. Returns the exit status of the process.
pub fn main(setup: &HostSetup) -> ExitCode {
    server::report(&format!("process {} of replicas", setup.process.index), serve(setup))
}

fn serve(setup: &HostSetup) -> io::Result<()> {
    let inherited: [OwnedFd; 3] = process::take_inherited(setup.process.descriptors)?
        .try_into()
        .map_err(|_| io::Error::other("the supervisor passed other descriptors than three"))?;
    let [control, stack, page] = inherited;
    let stack = StackPage(ShmMemory::map(stack, STACK_PAGE_BYTES, Access::ReadOnly)?);
    let facts = stack.facts().ok_or_else(|| io::Error::other("the stack page is of another version"))?;
    let page = ReplicaPage(ShmMemory::map(page, REPLICA_PAGE_BYTES, Access::ReadWrite)?);
    // A standby does not know its index yet, and cannot rename itself later.
    let name = setup
        .standby
        .map_or_else(|| format!("atoll-replica{}", setup.process.index), |_| "atoll-replicas".into());
    let config =
        ProcessConfig::of(&name, Kind::Replica { queue: setup.has_tap }, TIMER_SLACK, &setup.process);
    if let Some(bytes) = setup.standby {
        // Do this while there is time, and while the process may still read its own mappings.
        heap::hold(usize::try_from(bytes).unwrap_or(usize::MAX));
        if let Err(error) = heap::populate() {
            event!(
                pages_not_resident,
                { error = error.to_string(), errno = log::errno(&error) },
                "pages of the program come when they are needed: {error}"
            );
        }
    }
    tell_of_the_end(&page)?;
    let intake = Intake { control: unix::Channel::from(control), take };
    Process::settle(server::clock_of(&facts), &config, &page, intake)?.serve()
}

/// Arranges that the supervisor learns when this process ends, and whether by a fault of its own, before the
/// kernel has released its resources.
fn tell_of_the_end(page: &ReplicaPage<ShmMemory>) -> io::Result<()> {
    // The mapping lives as long as the process, and so may the handler's and the kernel's references to it.
    let memory: &'static ShmMemory = Box::leak(Box::new(page.0.clone()));
    let word = |at| memory.atomic32(at).ok_or_else(|| io::Error::other("the own page cannot be written"));
    ending::report_faults_to(word(ReplicaPage::<ShmMemory>::FAULT_AT)?)?;
    if let Err(error) = ending::mark_at_end(word(ReplicaPage::<ShmMemory>::END_AT)?) {
        event!(
            end_not_marked,
            { error = error.to_string(), errno = log::errno(&error) },
            "the end of this process is noticed a little later: {error}"
        );
    }
    Ok(())
}

/// Starts the replica that the supervisor describes in a packet.
fn take(packet: &[u8], descriptors: Vec<OwnedFd>) -> io::Result<Replica> {
    let setup = ReplicaSetup::from_json(packet).map_err(io::Error::other)?;
    let start = || Replica::start(&setup, Inherited::of(descriptors, setup.index, &setup.pairs)?);
    start().map_err(|error| io::Error::new(error.kind(), format!("replica {}: {error}", setup.index)))
}
