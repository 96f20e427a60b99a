//! How does a stack come up, and go down? The supervisor process from its first to its last step.

mod device;
mod join;
mod memory;
mod outbox;
mod owner;
mod report;
mod server;
mod spawn;

use std::fs::Permissions;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use atoll_base::{Addr, FLOW_GROUPS, FlowGroup, FlowKey, ReplicaId};
use atoll_ipc::page::{StackFacts, StackPage, V6Facts};
use atoll_shm::ShmMemory;
use atoll_supervisor::{Config, LinkType, Mac, Paths, StackName, Steering};
use atoll_sys::Calibration;
use atoll_sys::process::{self, Exit};
use atoll_sys::signal::{Signal, Signals};
use atoll_sys::unix::{Blocking, Channel, Listener};

use self::device::TapDevice;
use self::join::{HostedLink, JoinedLink};
use self::memory::StackMemory;
use self::report::Identity;
use self::server::Server;
use self::spawn::Shared;
use crate::failure::{Failure, OrFail};
use crate::runtime::{self, NameLock};
use crate::setup::{LinkSetup, LinkSide, ReplicaSetup, SEGMENT_MAX};

pub use self::owner::SESSIONS_REMAIN;
pub use self::server::Ending;
pub use self::spawn::comm;

/// A stack whose replicas are ready.
pub struct Running {
    server: Server,
    name: NameLock,
    device: Option<TapDevice>,
}

/// Starts a stack and waits until it is ready. On failure nothing is left behind.
pub fn start(config: Config) -> Result<Running, Failure> {
    process::raise_nofile_limit(DESCRIPTORS_WANTED).or_fail("raising the limit of open descriptors")?;
    let name = NameLock::take(&runtime::prepare_directory()?, &config.name)?;
    let signals =
        Signals::catch(&[Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT]).or_fail("catching signals")?;
    let (listener, joined) = open_doors(&config, name.paths())?;

    let replicas = usize::from(config.replicas());
    let making = "making the stack's memory";
    let (bells, stack_page, joined) = match joined {
        Some(JoinedLink { host, stack_page, bells, host_page, for_replicas }) => {
            (bells[..replicas].to_vec(), Some(stack_page), Some((host, host_page, for_replicas)))
        }
        None => (memory::bells(replicas).or_fail(making)?, None, None),
    };
    let memory = StackMemory::create(bells.clone(), stack_page).or_fail(making)?;
    let hosted = match (config.link.kind, &joined) {
        (LinkType::Shm, None) => Some(HostedLink::create(&bells, memory.stack_read.clone()).or_fail(making)?),
        _ => None,
    };

    let (key, mac) = secrets(&config)?;
    let device = match config.link.kind {
        LinkType::Tap => {
            let table = steering_table(config.replicas());
            Some(TapDevice::open(&config.link, replicas, key, &table, config.steering)?)
        }
        LinkType::Shm | LinkType::None => None,
    };
    if let Some((_, host_page, _)) = &joined {
        check_neighbour(&config, mac, host_page)?;
    }
    write_stack_page(&memory.stack, &config, key, mac);

    let offload = match &device {
        Some(device) => device.offloads.tso,
        None => config.link.offload && config.link.kind == LinkType::Shm,
    };
    let identity = Identity {
        uid: rustix::process::geteuid().as_raw(),
        pid: std::process::id(),
        socket: name.paths().socket.clone(),
        started: Instant::now(),
        mac,
        device: device.as_ref().map(|device| device.name.clone()),
        offload,
        steering: match &device {
            Some(device) if device.steering.is_some() => Steering::Bpf,
            _ => Steering::Software,
        },
    };
    let link_side = joined.as_ref().map(|_| LinkSide::Guest).or(hosted.as_ref().map(|_| LinkSide::Host));
    let link: Vec<Rc<OwnedFd>> = match (&joined, &hosted) {
        (Some((_, _, for_replicas)), _) => for_replicas.clone(),
        (None, Some(hosted)) => hosted.for_replicas(),
        (None, None) => Vec::new(),
    };
    let queues: &[OwnedFd] = device.as_ref().map_or(&[], |device| &device.queues);
    let shared = Shared { memory: &memory, queues, link: &link };
    let mut started = Vec::new();
    for index in 0..config.replicas() {
        let setup = replica_setup(&config, &identity, index, device.is_some(), link_side);
        let (child, control) = spawn::start(setup, &shared)?;
        started.push((Some(child), control));
    }

    let mut server =
        Server::new(config, identity, memory, started, listener, Some(signals)).or_fail("starting the supervisor")?;
    server.spread_balance().or_fail("starting the replicas")?;
    server.link = hosted;
    server.link_host = joined.map(|(host, _, _)| host);
    wait_until_ready(server).map(|server| Running { server, name, device })
}

impl Running {
    /// Makes the stack end with the program of the `atoll run` at the other end of `channel`.
    pub fn set_owner(&mut self, channel: Channel) -> Result<(), Failure> {
        self.server.set_owner(channel).or_fail("watching over the program")
    }

    /// Serves until something ends the stack, and ends it.
    pub fn serve(mut self) -> Result<Ending, Failure> {
        let ended = loop {
            match self.server.turn(None) {
                Ok(None) => {}
                Ok(Some(ending)) => break Ok(ending),
                Err(error) => break Err(error).or_fail("the supervisor cannot go on"),
            }
        };
        self.server.stop();
        // Connections close last: whoever waits for that finds device and name free.
        let Running { server, name, device } = self;
        drop(device);
        drop(name);
        drop(server);
        ended
    }

    /// A few lines about where the stack is, for people.
    pub fn describe(&self) -> String {
        self.server.describe()
    }
}

/// Opens the control socket, and finds out which end of a shared-memory link this stack is.
fn open_doors(config: &Config, paths: &Paths) -> Result<(Listener, Option<JoinedLink>), Failure> {
    let bind = || {
        let listener = Listener::bind(&paths.socket, BACKLOG, Blocking::No)?;
        std::fs::set_permissions(&paths.socket, Permissions::from_mode(0o600))?;
        Ok::<_, std::io::Error>(listener)
    };
    let what = format!("listening on {}", paths.socket.display());
    let Some(peer) = config.link.peer.as_ref().filter(|_| config.link.kind == LinkType::Shm) else {
        return Ok((bind().or_fail(what)?, None));
    };
    // Under the lock, so that of two stacks that start at once the second one finds the first one's socket.
    let _lock = runtime::lock_links(&runtime::directory())?;
    let joined = join::ask(&runtime::paths(peer).socket, &config.name)?;
    Ok((bind().or_fail(what)?, joined))
}

/// The key of the flow hash and the hardware address.
fn secrets(config: &Config) -> Result<(FlowKey, Mac), Failure> {
    let mut bytes = [0; 14];
    process::random(&mut bytes).or_fail("drawing random numbers")?;
    let [a, b, c, d, e, f, g, h, mac @ ..] = bytes;
    let key = FlowKey { k0: u32::from_ne_bytes([a, b, c, d]), k1: u32::from_ne_bytes([e, f, g, h]) };
    Ok((key, config.link.mac.unwrap_or(Mac::local(mac))))
}

/// The steering table at the start: flow groups go round the replicas.
fn steering_table(replicas: u8) -> Box<[u8; FLOW_GROUPS]> {
    let mut table = Box::new([0; FLOW_GROUPS]);
    for (group, owner) in table.iter_mut().enumerate() {
        *owner = (group % usize::from(replicas)) as u8;
    }
    table
}

/// Two ends of a link need different addresses.
fn check_neighbour(config: &Config, mac: Mac, host: &StackPage<ShmMemory>) -> Result<(), Failure> {
    let Some(facts) = host.facts() else { return Err(Failure::new("the other stack ended while this one started")) };
    let own = config.link.address;
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
            "link.address: {own} and the other stack's {} are not in one network, so they cannot reach each other",
            std::net::Ipv4Addr::from(facts.addr)
        )));
    }
    Ok(())
}

fn write_stack_page(page: &StackPage<ShmMemory>, config: &Config, key: FlowKey, mac: Mac) {
    let Calibration { tsc0, ns0, mult } = Calibration::measure();
    for (group, owner) in (0..).zip(steering_table(config.replicas()).iter()) {
        page.set_owner(FlowGroup(group), ReplicaId(*owner));
    }
    let link = &config.link;
    page.write_facts(&StackFacts {
        replicas: config.replicas(),
        addr: link.address.address.into(),
        prefix_len: link.address.prefix,
        gateway: link.gateway.map_or(0, u32::from),
        mtu: link.mtu,
        mac: mac.0,
        key,
        calibration: [tsc0, ns0, mult, 0],
        ephemeral: config.ports.ephemeral,
        spin_us: config.wait.spin_us,
        claim_timeout_us: config.accept.claim_timeout_us,
        ecn: config.tcp.ecn as u8,
        v6: link.v6.map(|v6| V6Facts {
            address: v6.address.map(|own| (own.address.into(), own.prefix)),
            gateway: v6.gateway.map(Addr::from),
            autoconf: v6.autoconf,
        }),
        fast_open: config.tcp.fast_open.bits(),
    });
}

fn replica_setup(
    config: &Config,
    identity: &Identity,
    index: u8,
    has_tap: bool,
    link: Option<LinkSide>,
) -> ReplicaSetup {
    let cpus = &config.scheduling.cpus;
    ReplicaSetup {
        stack: config.name.to_string(),
        supervisor: identity.pid,
        descriptors: 0, // Counted when they are gathered.
        index,
        replicas: config.replicas(),
        epoch: 1,
        has_tap,
        segment_max: if identity.offload { SEGMENT_MAX } else { 0 },
        software_steering: identity.steering == Steering::Software,
        link: link.map(|side| LinkSetup { side }),
        cpu: (!cpus.is_empty()).then(|| cpus[usize::from(index) % cpus.len()]),
        batch_scheduling: config.scheduling.batch,
    }
}

fn wait_until_ready(mut server: Server) -> Result<Server, Failure> {
    let deadline = Instant::now() + READY_TIME;
    let failure = loop {
        if server.all_ready() {
            return Ok(server);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break Failure::new(format!("the replicas were not ready within {} seconds", READY_TIME.as_secs()));
        }
        match server.turn(Some(left.as_millis() as u32 + 1)) {
            Ok(None) => {}
            Ok(Some(ending)) => break Failure::new(format!("the stack did not start: {ending}")),
            Err(error) => break Failure::new(format!("the stack did not start: {error}")),
        }
    };
    server.stop();
    Err(failure)
}

impl std::fmt::Display for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Ending::Signal(signal) => write!(f, "ended by {}", signal_name(*signal)),
            Ending::Asked => f.write_str("ended by `atoll down`"),
            Ending::ProgramEnded => f.write_str("ended with its program"),
            Ending::ReplicaGone { index, pid, exit } => {
                write!(f, "replica {index}")?;
                if let Some(pid) = pid {
                    write!(f, " (pid {pid})")?;
                }
                match exit {
                    Some(Exit::Signal(signal)) => write!(f, " was ended by {}", signal_name(*signal)),
                    Some(Exit::Code(code)) => write!(f, " ended with status {code}"),
                    None => f.write_str(" is gone"),
                }
            }
        }
    }
}

/// `SIGSEGV`, or the number of a signal without a usual name.
pub fn signal_name(signal: i32) -> String {
    let name = match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT (a bug: see the message above)",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL (by someone, or because memory ran out: see dmesg)",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGTERM => "SIGTERM",
        libc::SIGSYS => "SIGSYS",
        other => return format!("signal {other}"),
    };
    name.into()
}

/// The name under which `atoll run` makes a stack for process `pid` alone.
pub fn private_name(pid: u32) -> StackName {
    format!("run-{pid}").parse().expect("letters and digits are a name")
}

/// Sessions take 17 descriptors each and one more per replica.
const DESCRIPTORS_WANTED: u64 = 1 << 20;
/// Connections that wait for the supervisor.
const BACKLOG: u32 = 1024;
/// How long replicas may take to start.
const READY_TIME: Duration = Duration::from_secs(10);
