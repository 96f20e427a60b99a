//! The supervisor process of a stack, from its start to its end.

mod awaiting;
mod books;
mod build_file;
mod clients;
mod course;
mod device;
mod doors;
mod dying;
mod ending;
mod gate;
mod gauge;
mod health;
mod hosts;
mod identity;
mod join;
mod launch;
mod memory;
mod outbox;
mod owner;
mod pairs;
mod persisted;
mod program;
mod reserve;
mod server_user;
mod servers;
mod setups;
mod socket_entries;
mod spawn;
mod starts;
mod succession;
mod supervisor;
mod tokens;
mod users;
mod words;

use std::os::fd::OwnedFd;
use std::rc::Rc;

use atoll_base::{Addr, Duration, FLOW_GROUPS, FlowGroup, FlowKey, ReplicaId};
use atoll_ipc::page::{StackFacts, StackPage, V6Facts};
use atoll_shm::ShmMemory;
use atoll_supervisor::{
    Config, Handshake, LinkType, Mac, Paths, Plan, READY_TIME, Rights, StackName, Steering,
};
use atoll_sys::Calibration;
use atoll_sys::process;
use atoll_sys::signal::{Signal, Signals};
use atoll_sys::unix::Channel;
use atoll_tap::Offloads;

use self::device::TapDevice;
use self::doors::Doors;
use self::identity::Identity;
use self::join::Link;
use self::join::{HostedLink, JoinedLink};
use self::launch::Launcher;
use self::memory::StackMemory;
use self::persisted::PersistedState;
use self::supervisor::{Found, Foundation, Supervisor};
use crate::clock;
use crate::failure::{Failure, OrFail, is_shortage};
use crate::log;
use crate::notes::{self, Notes};
use crate::privileges;
use crate::runtime::{self, NameLock};
use crate::setup::LinkSide;

pub use self::device::MakeDevice;
pub use self::doors::ROOT_ONLY;
pub use self::ending::{Ending, HowEnded, signal_name};
pub use self::owner::SESSIONS_REMAIN;
pub use self::persisted::StackNote;
pub use self::spawn::comm;

/// A stack whose replicas are ready.
pub struct Running {
    server: Supervisor,
    name: NameLock,
}

/// The guardian of a supervisor.
pub struct Guardian {
    /// The pid of the guardian.
    pub pid: u32,
    /// The channel for notes.
    pub channel: Channel,
    /// The job that the guardian was given, for the next guardian.
    pub job: String,
}

/// Continues the stack of a supervisor that has died, from the notes that the guardian has kept. `config` is
/// the configuration with which that supervisor started.
pub fn take_over(mut config: Config, guardian: Guardian) -> Result<Running, Failure> {
    process::raise_nofile_limit(DESCRIPTORS_WANTED).or_fail("raising the limit of open descriptors")?;
    let signals = Signals::catch(&[Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT])
        .or_fail("catching signals")?;
    let began = clock::now();
    let notes = hear(&guardian.channel).or_fail("listening to the guardian")?;
    let mut found = Found::read(notes, &mut config)?;
    let lock = found.lock.try_clone().or_fail("taking over the name")?;
    let name = NameLock::resume(&runtime::directory(), &config.name, lock)?;
    let identity = found.stack.identity(std::process::id(), guardian.pid, name.paths().socket.clone());
    let queues = std::mem::take(&mut found.queues);
    let device = identity.device.clone().map(|name| TapDevice {
        name,
        queues,
        offloads: Offloads { tso: identity.offload, uso: false },
        is_steered: identity.steering == Steering::Bpf,
    });
    let launcher = Launcher { device, link: Vec::new(), link_side: None };
    let persisted = PersistedState::new(guardian, found.lock.try_clone().or_fail("taking over the name")?);
    let mut server = found.resume(config, identity, Box::new(launcher), Some(signals), persisted)?;
    server.watch_memory().or_fail("telling servers of the memory")?;
    let (pid, ms) = (std::process::id(), log::millis(clock::now().since(began)));
    event!(supervisor_took_over, { pid, ms }, "supervisor {pid} has taken over within {ms:.1} ms");
    Ok(Running { server, name })
}

/// Receives everything that the last supervisor has noted.
fn hear(channel: &Channel) -> std::io::Result<Notes> {
    let mut notes = Notes::new();
    loop {
        let mut descriptors = Vec::new();
        let note = match notes::receive(channel, &mut descriptors) {
            Ok(Some(note)) => note,
            Ok(None) => return Err(std::io::Error::other("it is gone")),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                notes::wait_for(channel, rustix::event::PollFlags::IN);
                continue;
            }
            Err(error) => return Err(error),
        };
        if notes::take_note(&mut notes, note, descriptors).is_some() {
            return Ok(notes);
        }
    }
}

/// Starts a stack and waits until it is ready. On failure nothing is left behind. `guardian` keeps what the
/// next supervisor needs if this one dies.
pub fn start(config: Config, guardian: Option<Guardian>) -> Result<Running, Failure> {
    process::raise_nofile_limit(DESCRIPTORS_WANTED).or_fail("raising the limit of open descriptors")?;
    let rights = doors::rights(&config)?;
    let servers = server_user::choose(config.servers.user.as_deref())?;
    users::check(&config.ports)?;
    let directory = runtime::prepare_directory()?;
    doors::check_reach(&rights, &directory)?;
    let name = NameLock::take(&directory, &config.name)?;
    let signals = Signals::catch(&[Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT])
        .or_fail("catching signals")?;
    let (doors, joined) = open_doors(&config, &rights, name.paths())?;

    let plan = config.notation.plan();
    let shared = SharedMemory::make(&config, &plan, joined).or_fail("making the stack's memory")?;
    let (key, mac) = secrets(&config)?;
    let device = open_device(&config, &plan, key)?;
    privileges::leave_network().or_fail("giving up the privilege to change links")?;
    if let Some(host_page) = &shared.host_page {
        check_neighbour(&config, mac, host_page)?;
    }
    let SharedMemory { memory, link, for_replicas, side, .. } = shared;
    write_stack_page(&memory, &config, key, mac);

    let identity = Identity {
        uid: rustix::process::geteuid().as_raw(),
        pid: std::process::id(),
        guardian: guardian.as_ref().map(|guardian| guardian.pid),
        takeovers: 0,
        socket: name.paths().socket.clone(),
        started: clock::now(),
        mac,
        device: device.as_ref().map(|device| device.name.clone()),
        offload: match &device {
            Some(device) => device.offloads.tso,
            None => config.link.offload && config.link.kind == LinkType::Shm,
        },
        steering: match &device {
            Some(device) if device.is_steered => Steering::Bpf,
            _ => Steering::Software,
        },
        servers,
    };
    let (launcher, signals) =
        (Box::new(Launcher { device, link: for_replicas, link_side: side }), Some(signals));
    let mut server =
        Supervisor::new(Foundation { config, identity, memory, launcher, doors, rights, link, signals })?;
    server.watch_memory().or_fail("telling servers of the memory")?;
    let mut server = wait_until_ready(server)?;
    if let Some(guardian) = guardian {
        let lock = name.lock().try_clone_to_owned().or_fail("keeping the name")?;
        server.leave_to(PersistedState::new(guardian, lock));
    }
    Ok(Running { server, name })
}

/// The memory of a stack that starts, and of its link to another one.
struct SharedMemory {
    memory: StackMemory,
    link: Link,
    /// The descriptors of the link that replicas inherit.
    for_replicas: Vec<Rc<OwnedFd>>,
    /// The end of the link that this stack has.
    side: Option<LinkSide>,
    /// The page of the stack that hosts the link.
    host_page: Option<StackPage<ShmMemory>>,
}

impl SharedMemory {
    /// Makes the memory; `joined` is the link that this stack has joined, if it is a guest.
    fn make(config: &Config, plan: &Plan, joined: Option<JoinedLink>) -> std::io::Result<SharedMemory> {
        let replicas = usize::from(config.replicas());
        let Some(JoinedLink { host, stack_page, bells, host_page, for_replicas }) = joined else {
            let bells = memory::bells(replicas)?;
            let mut memory = StackMemory::create(bells.clone(), None)?;
            memory.add_plan(plan)?;
            let is_host = config.link.kind == LinkType::Shm;
            let hosted =
                is_host.then(|| HostedLink::create(&bells, memory.stack_read.clone())).transpose()?;
            let for_replicas = hosted.as_ref().map(HostedLink::for_replicas).unwrap_or_default();
            let (link, side) = (Link::new(hosted, None), is_host.then_some(LinkSide::Host));
            return Ok(SharedMemory { memory, link, for_replicas, side, host_page: None });
        };
        let mut memory = StackMemory::create(bells[..replicas].to_vec(), Some(stack_page))?;
        memory.add_plan(plan)?;
        let (link, side) = (Link::new(None, Some(host)), Some(LinkSide::Guest));
        Ok(SharedMemory { memory, link, for_replicas, side, host_page: Some(host_page) })
    }
}

/// Makes the device, if the stack has one.
fn open_device(config: &Config, plan: &Plan, key: FlowKey) -> Result<Option<TapDevice>, Failure> {
    match config.link.kind {
        LinkType::Tap => {
            let table = queue_table(plan, &steering_table(config.replicas()));
            TapDevice::open(&config.link, plan.queues(), key, &table, steering_of(config, plan)).map(Some)
        }
        LinkType::Shm | LinkType::None => Ok(None),
    }
}

impl Running {
    /// Makes the stack end with the program of the `atoll run` at the other end of `channel`.
    pub fn set_owner(&mut self, channel: Channel) -> Result<(), Failure> {
        self.server.set_owner(channel).or_fail("watching over the program")
    }

    /// Serves until something ends the stack, and ends it. `report` is called with the reason while the stack
    /// still has its name, and thereby its log.
    pub fn serve<T>(mut self, report: impl FnOnce(Result<Ending, Failure>) -> T) -> T {
        let mut shortages = 0u64;
        let ended = loop {
            match self.server.turn(None) {
                Ok(None) => {}
                Ok(Some(ending)) => break Ok(ending),
                // A shortage passes, and unfinished work is retried in the next turn.
                Err(error) if is_shortage(&error) => {
                    if shortages.is_multiple_of(SHORTAGES_PER_LINE) {
                        event!(
                            supervisor_short,
                            { error = error.to_string(), errno = log::errno(&error) },
                            "the supervisor: {error}; it goes on"
                        );
                    }
                    shortages += 1;
                    std::thread::sleep(SHORTAGE_PAUSE);
                }
                Err(error) => break Err(error).or_fail("the supervisor cannot go on"),
            }
        };
        if let Ok(Ending::MadeWay) = ended {
            // Everything remains unchanged for the next supervisor.
            let reported = report(ended);
            std::mem::forget(self);
            return reported;
        }
        self.server.stop();
        self.server.bye();
        let reported = report(ended);
        // Connections close last: a client that waits for that finds device and name free.
        let Running { mut server, name } = self;
        server.drop_launcher();
        drop(name);
        drop(server);
        reported
    }

    /// Gives up the privileges that the supervisor of a running stack does not need. `visible` has its
    /// meaning from [`privileges::confine_supervisor`].
    pub fn confine(&self, visible: bool) -> Result<(), Failure> {
        let own_user = self.server.identity().servers.is_some();
        privileges::confine_supervisor(visible, own_user).or_fail("giving up privileges")
    }

    /// Returns the pid of a process that stays in the stack's namespaces as long as the stack is up.
    pub fn namespace_holder(&self) -> u32 {
        self.server.identity().guardian.unwrap_or_else(std::process::id)
    }

    /// Reports that the stack is ready for programs.
    pub fn report_ready(&self) {
        event!(stack_ready, "the stack is ready");
    }

    /// Returns a few lines for people about where the stack is.
    pub fn describe(&self) -> String {
        self.server.describe()
    }
}

/// Opens the stack's sockets. Where the stack has a shared-memory link and the other stack is up, joins the
/// link as its guest.
fn open_doors(
    config: &Config,
    rights: &Rights,
    paths: &Paths,
) -> Result<(Doors, Option<JoinedLink>), Failure> {
    let what = format!("listening on {}", paths.socket.display());
    let Some(peer) = config.link.peer.as_ref().filter(|_| config.link.kind == LinkType::Shm) else {
        return Ok((Doors::open(paths, rights).or_fail(what)?, None));
    };
    // The lock orders two stacks that start at once: the second one finds the socket of the first.
    let _lock = runtime::lock_links(&runtime::directory())?;
    let joined = join::ask(&runtime::paths(peer).admin, &config.name)?;
    Ok((Doors::open(paths, rights).or_fail(what)?, joined))
}

/// Returns the key of the flow hash and the hardware address.
fn secrets(config: &Config) -> Result<(FlowKey, Mac), Failure> {
    let mut bytes = [0; 14];
    process::random(&mut bytes).or_fail("drawing random numbers")?;
    let [a, b, c, d, e, f, g, h, mac @ ..] = bytes;
    let key = FlowKey { k0: u32::from_ne_bytes([a, b, c, d]), k1: u32::from_ne_bytes([e, f, g, h]) };
    Ok((key, config.link.mac.unwrap_or(Mac::local(mac))))
}

/// Returns the steering table of a new stack, which assigns flow groups to the replicas in turn.
fn steering_table(replicas: u8) -> Box<[u8; FLOW_GROUPS]> {
    let mut table = Box::new([0; FLOW_GROUPS]);
    for (group, owner) in table.iter_mut().enumerate() {
        *owner = (group % usize::from(replicas)) as u8;
    }
    table
}

/// Returns the queue of each flow group: that of the link server that works for the group's owner.
fn queue_table(plan: &Plan, owners: &[u8; FLOW_GROUPS]) -> Box<[u8; FLOW_GROUPS]> {
    let mut table = Box::new([0; FLOW_GROUPS]);
    for (group, (queue, owner)) in table.iter_mut().zip(owners).enumerate() {
        *queue = plan.queue_for(group, *owner);
    }
    table
}

/// Returns the component that steers. With a single queue for several replicas the kernel has nothing to
/// choose.
fn steering_of(config: &Config, plan: &Plan) -> Steering {
    match config.steering {
        Steering::Auto if plan.queues() == 1 && config.replicas() > 1 => Steering::Software,
        wanted => wanted,
    }
}

/// Checks that the two ends of a link have different addresses.
fn check_neighbour(config: &Config, mac: Mac, host: &StackPage<ShmMemory>) -> Result<(), Failure> {
    let Some(facts) = host.facts() else {
        return Err(Failure::new("the other stack ended while this one started"));
    };
    let Some(own) = config.link.address else { return Ok(()) };
    if facts.addr == u32::from(own.address) {
        return Err(Failure::new(format!(
            "link.address: {} is the other stack's address too; give this one another (--address)",
            own.address
        )));
    }
    if facts.mac == mac.0 {
        return Err(Failure::new(format!("link.mac: {mac} is the other stack's hardware address too")));
    }
    if !own.contains(facts.addr.into()) && config.link.gateway.is_none() {
        return Err(Failure::new(format!(
            "link.address: {own} and the other stack's {} are not in one network, so they cannot reach each \
             other",
            std::net::Ipv4Addr::from(facts.addr)
        )));
    }
    Ok(())
}

/// Writes the facts of the stack that its programs and servers need, and those of the stack on the link.
fn write_stack_page(memory: &StackMemory, config: &Config, key: FlowKey, mac: Mac) {
    let Calibration { tsc0, ns0, mult } = Calibration::measure();
    let link = &config.link;
    let facts = StackFacts {
        replicas: config.replicas(),
        addr: link.address.map_or(0, |own| own.address.into()),
        prefix_len: link.address.map_or(0, |own| own.prefix),
        gateway: link.gateway.map_or(0, u32::from),
        mtu: link.mtu,
        mac: mac.0,
        key,
        calibration: [tsc0, ns0, mult, 0],
        ephemeral: config.ports.ephemeral,
        spin_us: config.wait.spin_us,
        claim_timeout_us: config.accept.claim_timeout_us,
        naive_accept: config.accept.handshake == Handshake::Naive,
        ecn: config.tcp.ecn as u8,
        v6: link.v6.map(|v6| V6Facts {
            address: v6.address.map(|own| (own.address.into(), own.prefix)),
            gateway: v6.gateway.map(Addr::from),
            autoconf: v6.autoconf,
        }),
        fast_open: config.tcp.fast_open.bits(),
    };
    for page in [&memory.stack].into_iter().chain(&memory.on_link) {
        for (group, owner) in (0..).zip(steering_table(config.replicas()).iter()) {
            page.set_owner(FlowGroup(group), ReplicaId(*owner));
        }
        page.write_facts(&facts);
    }
}

fn wait_until_ready(mut server: Supervisor) -> Result<Supervisor, Failure> {
    let deadline = clock::now() + READY_TIME;
    let failed = loop {
        if server.all_ready() {
            break None;
        }
        let left = deadline.since(clock::now());
        if left.is_zero() {
            let seconds = READY_TIME.as_secs();
            break Some(Failure::new(format!("the servers were not ready within {seconds} seconds")));
        }
        if let Err(failure) = turn(&mut server, left) {
            break Some(failure);
        }
    };
    match failed.map_or_else(|| wait_for_address(&mut server), Err) {
        Ok(()) => Ok(server),
        Err(failure) => {
            server.stop();
            Err(failure)
        }
    }
}

/// Waits some time for a DHCP server, so that the programs that are started next have an address. The stack
/// is up even without an address.
fn wait_for_address(server: &mut Supervisor) -> Result<(), Failure> {
    let deadline = clock::now() + Duration::from_secs(server.dhcp_wait_s().into());
    while server.waits_for_address() && clock::now() < deadline {
        turn(server, ADDRESS_LOOK)?;
    }
    Ok(())
}

/// Runs one turn of a stack that is starting; an end of the stack is an error.
fn turn(server: &mut Supervisor, wait: Duration) -> Result<(), Failure> {
    match server.turn(Some(u32::try_from(wait.as_millis()).unwrap_or(u32::MAX - 1) + 1)) {
        Ok(None) => Ok(()),
        Ok(Some(ending)) => Err(Failure::new(format!("the stack did not start: {ending}"))),
        Err(error) => Err(Failure::new(format!("the stack did not start: {error}"))),
    }
}

/// Returns the name under which `atoll run` makes a stack for process `pid` alone.
pub fn private_name(pid: u32) -> StackName {
    format!("run-{pid}").parse().expect("letters and digits are a name")
}

/// The limit on descriptors that is asked for: a session takes 17, and two more per replica.
pub const DESCRIPTORS_WANTED: u64 = 1 << 20;
/// How long the supervisor waits when the system is short of something, and in how many of these times it
/// reports that once.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(10);
const SHORTAGES_PER_LINE: u64 = 1000;
/// The time between two checks whether there is an address.
const ADDRESS_LOOK: Duration = Duration::from_millis(20);
