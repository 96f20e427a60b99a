//! How does a replica process start?

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use atoll_sys::process::{Child, Spawn};
use atoll_sys::unix::{Blocking, Channel};

use super::memory::StackMemory;
use crate::failure::{Failure, OrFail};
use crate::setup::ReplicaSetup;

/// What the replicas share besides memory.
pub struct Shared<'a> {
    /// The stack's memory.
    pub memory: &'a StackMemory,
    /// Queues of the TAP, by replica; empty: none.
    pub queues: &'a [OwnedFd],
    /// Descriptors of the shared-memory link, in the order of `setup.rs`; empty: none.
    pub link: &'a [Rc<OwnedFd>],
}

/// Starts the replica of `setup`, whose `descriptors` are filled in here. Returns it with the control socket's end.
pub fn start(mut setup: ReplicaSetup, shared: &Shared<'_>) -> Result<(Child, Channel), Failure> {
    let (control, theirs) = Channel::pair(Blocking::No).or_fail("making a control socket")?;
    let index = usize::from(setup.index);
    let replica = &shared.memory.replicas[index];
    let mut descriptors: Vec<BorrowedFd<'_>> = vec![
        theirs.as_fd(),
        shared.memory.stack_read.as_fd(),
        replica.page_write.as_fd(),
        replica.bell.as_fd(),
        shared.memory.mesh.as_fd(),
    ];
    if setup.has_tap {
        descriptors.push(shared.queues[index].as_fd());
    }
    descriptors.extend(shared.memory.replicas.iter().map(|replica| replica.bell.as_fd()));
    if setup.link.is_some() {
        descriptors.extend(shared.link.iter().map(|fd| fd.as_fd()));
    }
    setup.descriptors = descriptors.len();

    let starting = || format!("starting replica {index}");
    let mut spawn = Spawn::this_binary("atoll").or_fail(starting())?;
    spawn.env_clear();
    for (key, value) in std::env::vars_os() {
        // What helps to find faults; everything else is none of a replica's business.
        if let Some(key) = key.to_str().filter(|key| key.starts_with("RUST_") || key.starts_with("ATOLL_DEBUG")) {
            spawn.env(key, value).or_fail(starting())?;
        }
    }
    spawn.arg("replica").or_fail(starting())?;
    spawn.arg("--index").or_fail(starting())?;
    spawn.arg(index.to_string()).or_fail(starting())?;
    spawn.arg("--setup").or_fail(starting())?;
    spawn.arg(setup.to_json()).or_fail(starting())?;
    for fd in &descriptors {
        spawn.inherit(*fd);
    }
    let child = spawn.start().or_fail(starting())?;
    Ok((child, control))
}

/// Where a replica was last seen, and how much processor time it has used: `(processor, milliseconds)`. proc_pid_stat(5).
pub fn processor_use(pid: u32) -> Option<(u32, u64)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold blanks and parentheses.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    let ticks = number(14)? + number(15)?;
    Some((u32::try_from(number(39)?).ok()?, ticks * 1000 / rustix::param::clock_ticks_per_second()))
}

/// What a process is called; empty if it is gone.
pub fn comm(pid: u32) -> String {
    let mut name = String::new();
    if let Ok(file) = File::open(format!("/proc/{pid}/comm")) {
        use std::io::Read;
        let _ = file.take(64).read_to_string(&mut name);
    }
    name.trim_end().to_owned()
}
