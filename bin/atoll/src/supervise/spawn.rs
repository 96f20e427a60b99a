//! Starts the processes of servers.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use atoll_supervisor::{Component, Plan, Running};
use atoll_sys::process::Child;
use atoll_sys::unix::{Blocking, Channel};

use super::memory::StackMemory;
use super::program::Program;
use crate::failure::{Failure, OrFail};
use crate::setup::{HostSetup, IpServerSetup, LinkServerSetup, ManagerSetup, OwnSetup, ReplicaSetup, Setup};

/// The resources that servers share besides their own memory.
pub struct Shared<'a> {
    /// The servers of the stack.
    pub plan: &'a Plan,
    /// The stack's memory.
    pub memory: &'a StackMemory,
    /// Queues of the TAP device, by link server; empty if there is none.
    pub queues: &'a [OwnedFd],
    /// Descriptors of the shared-memory link, in the order of `setup.rs`; empty if there is none.
    pub link: &'a [Rc<OwnedFd>],
}

/// Starts a process of `program` for replicas, which has none yet. The `descriptors` of `setup` are filled in
/// here. Returns the process, and the end of the socket over which it is given replicas.
pub fn start_host(
    mut setup: HostSetup,
    program: &Program,
    page: BorrowedFd<'_>,
    memory: &StackMemory,
) -> Result<(Child, Channel), Failure> {
    let (control, theirs) = control_socket()?;
    let descriptors = [theirs.as_fd(), memory.stack_read.as_fd(), page];
    setup.process.descriptors = descriptors.len();
    // A successor or standby makes memory for all its connections at once: 2 MiB at a time, not 4 KiB
    // (mallopt(3), hugetlb).
    let variable = (memory.has_past() || setup.standby.is_some())
        .then_some(("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"));
    let child = start_process("replicas", &setup, program, variable, descriptors.into_iter())?;
    Ok((child, control))
}

/// Gives the replica of `setup` to the process at the other end of `host`. Returns the supervisor's end of
/// the control socket.
pub fn place_replica(setup: &ReplicaSetup, host: &Channel, shared: &Shared<'_>) -> Result<Channel, Failure> {
    let index = setup.index;
    let ledger = shared
        .memory
        .ledgers
        .get(usize::from(index))
        .ok_or_else(|| Failure::new("a replica without a ledger"))?;
    let (control, theirs) = control_socket()?;
    let mut more = common(index.into(), &theirs, shared)?;
    more.push(ledger.as_fd());
    if setup.has_tap {
        more.push(queue_of(index.into(), shared)?);
    }
    more.extend(shared.memory.servers().iter().map(|server| server.bell.as_fd()));
    more.extend(shared.memory.replicas().iter().map(|replica| replica.bell.as_fd()));
    if setup.link.is_some() {
        more.extend(shared.link.iter().map(|fd| fd.as_fd()));
    }
    host.send(setup.to_json().as_bytes(), &more).or_fail(format!("giving replica {index} to a process"))?;
    Ok(control)
}

/// Starts the link server of `setup`, whose `descriptors` are filled in here. Returns the process, and the
/// supervisor's end of the control socket.
pub fn start_link_server(
    setup: LinkServerSetup,
    program: &Program,
    shared: &Shared<'_>,
) -> Result<(Child, Channel), Failure> {
    let mut more = vec![queue_of(setup.common.server.into(), shared)?];
    let peers = setup.peers.iter().filter_map(|peer| shared.memory.servers().get(usize::from(*peer)));
    more.extend(peers.map(|server| server.bell.as_fd()));
    start(setup, &more, program, shared)
}

/// Starts the IP server of `setup`, whose `descriptors` are filled in here. Returns the process, and the
/// supervisor's end of the control socket.
pub fn start_ip_server(
    setup: IpServerSetup,
    program: &Program,
    shared: &Shared<'_>,
) -> Result<(Child, Channel), Failure> {
    let mut more = Vec::new();
    if setup.has_tap {
        more.push(queue_of(setup.common.server.into(), shared)?);
    }
    more.extend(shared.memory.servers().iter().map(|server| server.bell.as_fd()));
    start(setup, &more, program, shared)
}

/// Starts the connection manager of `setup`, whose `descriptors` are filled in here. Returns the process, and
/// the supervisor's end of the control socket.
pub fn start_manager(
    setup: ManagerSetup,
    program: &Program,
    shared: &Shared<'_>,
) -> Result<(Child, Channel), Failure> {
    let managers =
        shared.plan.servers_of(Component::Cm).filter_map(|server| shared.memory.servers().get(server));
    let more: Vec<_> = managers.chain(shared.memory.replicas()).map(|server| server.bell.as_fd()).collect();
    start(setup, &more, program, shared)
}

fn queue_of<'a>(server: usize, shared: &Shared<'a>) -> Result<BorrowedFd<'a>, Failure> {
    let queue = shared.plan.queue_of(server).and_then(|queue| shared.queues.get(queue));
    queue.map(AsFd::as_fd).ok_or_else(|| Failure::new("a link server without a queue"))
}

/// Starts a server in a process of its own. It inherits `more` after the descriptors that all servers
/// inherit.
fn start<S: OwnSetup>(
    mut setup: S,
    more: &[BorrowedFd<'_>],
    program: &Program,
    shared: &Shared<'_>,
) -> Result<(Child, Channel), Failure> {
    let (control, theirs) = control_socket()?;
    let common = common(setup.server().server.into(), &theirs, shared)?;
    setup.server_mut().process.descriptors = common.len() + more.len();
    let child = start_process(S::COMMAND, &setup, program, None, common.iter().chain(more).copied())?;
    Ok((child, control))
}

/// Makes a control socket. Returns the supervisor's end, which refuses descriptors, and the other one.
fn control_socket() -> Result<(Channel, Channel), Failure> {
    let (control, theirs) = Channel::pair(Blocking::No).or_fail("making a control socket")?;
    Channel::refuse_descriptors(&control).or_fail("making a control socket")?;
    Ok((control, theirs))
}

/// Returns the descriptors that every server gets: its end of the control socket, and its memory.
fn common<'a>(
    server: usize,
    theirs: &'a Channel,
    shared: &Shared<'a>,
) -> Result<Vec<BorrowedFd<'a>>, Failure> {
    let own = shared.memory.servers().get(server).ok_or_else(|| Failure::new("a server without memory"))?;
    let mut all = vec![
        theirs.as_fd(),
        shared.memory.stack_read.as_fd(),
        own.page_write.as_fd(),
        own.bell.as_fd(),
        shared.memory.pairs.secrets(),
    ];
    for other in shared.plan.partners_of(server) {
        let pair = shared.memory.pairs.between(server, other);
        all.push(pair.ok_or_else(|| Failure::new("two servers without memory"))?);
    }
    Ok(all)
}

/// Starts a process with `variable` in its environment.
fn start_process<'a>(
    role: &str,
    setup: &impl Setup,
    program: &Program,
    variable: Option<(&str, &str)>,
    descriptors: impl Iterator<Item = BorrowedFd<'a>>,
) -> Result<Child, Failure> {
    let index = setup.process().index;
    let starting = || format!("starting {role} {index}");
    let mut spawn = program.spawn().or_fail(starting())?;
    spawn.env_clear();
    for (key, value) in std::env::vars_os() {
        // Servers get only the variables that help to find faults.
        if let Some(key) =
            key.to_str().filter(|key| key.starts_with("RUST_") || key.starts_with("ATOLL_DEBUG"))
        {
            spawn.env(key, value).or_fail(starting())?;
        }
    }
    if let Some((key, value)) = variable {
        spawn.env(key, value).or_fail(starting())?;
    }
    for argument in [role, "--index", &index.to_string(), "--setup", &setup.to_json()] {
        spawn.arg(argument).or_fail(starting())?;
    }
    for fd in descriptors {
        spawn.inherit(fd);
    }
    let child = spawn.capture_errors().start().or_fail(starting())?;
    // It has inherited the supervisor's score, which protects the supervisor when memory runs out; a server
    // can be started again.
    crate::privileges::set_oom_score(child.pid());
    Ok(child)
}

/// How a process uses processors.
#[derive(Debug, Default)]
pub struct ProcessorUse {
    /// The processor that it was last seen on.
    pub cpu: Option<u32>,
    /// The milliseconds of processor time that it has used.
    pub ms: Option<u64>,
    /// Its scheduling policy, as chrt(1) names it, in small letters and without SCHED_.
    pub policy: Option<String>,
}

/// Returns how a process uses processors; nothing if it is gone.
pub fn processor_use(pid: u32) -> ProcessorUse {
    let Some(line) = stat_line(pid) else { return ProcessorUse::default() };
    let Some(stat) = Stat::parse(&line) else { return ProcessorUse::default() };
    ProcessorUse { cpu: stat.processor(), ms: stat.used_ms(), policy: stat.policy().map(str::to_owned) }
}

/// Returns the processor that a process was last seen on, and its state (proc_pid_stat(5)).
pub fn look(pid: u32) -> Option<(u32, Running)> {
    let line = stat_line(pid)?;
    let stat = Stat::parse(&line)?;
    let state = stat.0.first()?.chars().next()?;
    Some((stat.processor()?, Running { state, used_ms: stat.used_ms()? }))
}

/// Returns the kernel's status line of a process, or `None` if the process is gone (proc_pid_stat(5)).
pub fn stat_line(pid: u32) -> Option<String> {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()
}

/// The fields of a line of proc_pid_stat(5), from the third on.
pub struct Stat<'a>(Vec<&'a str>);

impl Stat<'_> {
    pub fn parse(line: &str) -> Option<Stat<'_>> {
        // The name in parentheses may contain blanks and parentheses.
        Some(Stat(line.rsplit_once(')')?.1.split_ascii_whitespace().collect()))
    }

    /// Returns a numeric field by its number in the manual.
    pub fn number(&self, field: usize) -> Option<u64> {
        self.0.get(field - 3)?.parse().ok()
    }

    /// Returns the processor that the process was last seen on.
    fn processor(&self) -> Option<u32> {
        u32::try_from(self.number(39)?).ok()
    }

    /// Returns the milliseconds of processor time that the process has used.
    fn used_ms(&self) -> Option<u64> {
        let ticks = self.number(14)? + self.number(15)?;
        Some(ticks * 1000 / rustix::param::clock_ticks_per_second())
    }

    /// Returns the name of the process's scheduling policy (sched(7)).
    fn policy(&self) -> Option<&'static str> {
        match i32::try_from(self.number(41)?).ok()? {
            libc::SCHED_OTHER => Some("other"),
            libc::SCHED_FIFO => Some("fifo"),
            libc::SCHED_RR => Some("rr"),
            libc::SCHED_BATCH => Some("batch"),
            libc::SCHED_IDLE => Some("idle"),
            libc::SCHED_DEADLINE => Some("deadline"),
            _ => None,
        }
    }
}

/// Returns the name of a process, or an empty text if the process is gone. Processes choose their names, so
/// control characters are replaced by `?`.
pub fn comm(pid: u32) -> String {
    let mut name = String::new();
    if let Ok(file) = File::open(format!("/proc/{pid}/comm")) {
        use std::io::Read;
        let _ = file.take(64).read_to_string(&mut name);
    }
    name.trim_end().replace(char::is_control, "?")
}

#[cfg(test)]
mod tests {
    use atoll_ipc::Memory;
    use atoll_ipc::page::LEASE_KEY;
    use atoll_shm::{Access, ShmMemory};
    use atoll_sys::eventfd;

    use super::*;
    use crate::link::{Received, Rings};
    use crate::mesh::{Mesh, SECRETS_BYTES};
    use crate::supervise::memory;

    /// Returns the memory of a stack of these servers.
    fn memory_of(plan: &Plan) -> StackMemory {
        let replicas = plan.servers_of(Component::Ts).count();
        let mut memory = StackMemory::create(memory::bells(replicas).unwrap(), None).unwrap();
        memory.add_plan(plan).unwrap();
        memory
    }

    /// Overwrites everything that a process with these descriptors can write. Returns the number of memories
    /// that were written.
    fn scribble(descriptors: &[BorrowedFd<'_>]) -> usize {
        let mut count = 0;
        for fd in descriptors {
            let Ok(len) = rustix::fs::fstat(fd).map(|file| file.st_size as usize) else { continue };
            let Ok(memory) = ShmMemory::map_page(fd, len, Access::ReadWrite) else { continue };
            for at in (0..len).step_by(1 << 16) {
                memory.write(at, &vec![0xa5; (1 << 16).min(len - at)]);
            }
            count += 1;
        }
        count
    }

    /// Returns the rings of `server` to and from `other`, as that process maps them.
    fn rings(plan: &Plan, memory: &StackMemory, server: usize, other: usize) -> Rings {
        let peers: Vec<u8> = plan.partners_of(server).map(|peer| peer as u8).collect();
        let own =
            |peer: &u8| memory.pairs.between(server, (*peer).into()).unwrap().try_clone_to_owned().unwrap();
        let mesh = Mesh::map(server, &peers, peers.iter().map(own).collect()).unwrap();
        Rings::resume(mesh.ways([other]), vec![eventfd::create().unwrap()])
    }

    /// A compromised server controls its own messages, but none between two others.
    #[test]
    fn who_scribbles_over_all_that_it_has_harms_no_message_between_two_others() {
        for configuration in ["TS3LS3CM3", "TS2CM2+LS1", "TS2+IP2+LS1+CM1", "TS2LS2+CM1"] {
            let plan = configuration.parse::<atoll_supervisor::Notation>().unwrap().plan();
            let memory = memory_of(&plan);
            let shared = Shared { plan: &plan, memory: &memory, queues: &[], link: &[] };
            let count = plan.processes().len();
            let keys = ShmMemory::map(memory.pairs.secrets(), SECRETS_BYTES, Access::ReadOnly).unwrap();
            let key = || [keys.load64(LEASE_KEY), keys.load64(LEASE_KEY + 8)];
            let as_made = key();
            assert_ne!(as_made, [0; 2]);
            for attacker in 0..count {
                let others = (0..count).filter(|server| *server != attacker);
                let talks = |one: usize| plan.partners_of(one).filter(move |other| *other != attacker);
                let mut under_way = Vec::new();
                for (one, other) in others.flat_map(|one| talks(one).map(move |other| (one, other))) {
                    let mut to = rings(&plan, &memory, one, other);
                    assert!(to.send(0, 7, &[one as u8, other as u8, 42]));
                    to.publish();
                    under_way.push((one, other));
                }
                let (_control, theirs) = control_socket().unwrap();
                let written = scribble(&common(attacker, &theirs, &shared).unwrap());
                assert_eq!(
                    written,
                    1 + plan.partners_of(attacker).count(),
                    "its page, and what it shares with each"
                );
                for (one, other) in under_way {
                    let mut buffer = [0; 64];
                    let mut from = rings(&plan, &memory, other, one);
                    let said = from.receive(0, &mut buffer);
                    from.publish();
                    let what = format!("{configuration}: server {attacker} between {one} and {other}");
                    assert_eq!(said, Some(Received { peer: 0, kind: 7, len: 3 }), "{what}");
                    assert_eq!(buffer[..3], [one as u8, other as u8, 42], "{what}");
                }
                assert_eq!(key(), as_made, "{configuration}: server {attacker} has changed the keys");
                // It has only broken its own memory; the next server finds that clean.
                for other in plan.partners_of(attacker) {
                    let pair = memory.pairs.between(attacker, other).unwrap();
                    let whole = ShmMemory::map(pair, crate::mesh::PAIR_BYTES, Access::ReadWrite).unwrap();
                    whole.mapping().punch_hole(0..crate::mesh::PAIR_BYTES).unwrap();
                }
            }
        }
    }

    #[test]
    fn a_name_does_nothing_to_a_terminal() {
        let name = std::thread::spawn(|| {
            atoll_sys::sched::set_name("a\x1b[2J\nb").unwrap();
            // The name is of this thread, whose id works like a pid there.
            comm(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned())
        });
        assert_eq!(name.join().unwrap(), "a?[2J?b");
    }
}
