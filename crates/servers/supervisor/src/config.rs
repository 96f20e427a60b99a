//! The checked configuration of a stack: from the TOML file and the flags to values that are valid.
//!
//! ```text
//!   TOML --parse--> ConfigFile --flags set fields--> ConfigFile --validate--> Config
//! ```

mod balance;
mod file;
mod template;

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use atoll_ipc::arena::ArenaConfig;
use atoll_ipc::balance::Balance as Rules;
use atoll_ipc::control::USER_PORTS_MAX;
use atoll_ipc::page::{FAST_OPEN_CLIENT, FAST_OPEN_SERVER, REPLICAS_MAX};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::address::{AddressError, Cidr, Cidr6, Mac};
use crate::names::{NameError, StackName};
use crate::notation::{Component, Notation, NotationError};
use crate::plan::Process;

use file::{PortsFile, ScalingFile};

pub use balance::{BalanceRules, Estimate, Scheme};
pub use file::{
    AcceptFile as Accept, ConfigFile, LinkFile, LogFile as Log, RecoveryFile as Recovery,
    SchedulingFile as Scheduling, ServersFile as Servers, TcpFile as Tcp, UsersFile as Users,
    WaitFile as Wait,
};

/// A configuration that was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The stack's name.
    pub name: StackName,
    /// The stack's servers.
    pub notation: Notation,
    /// The link that joins the stack to a network.
    pub link: Link,
    /// The component that sorts incoming frames by flow group.
    pub steering: Steering,
    /// The time for which servers and programs spin before they sleep.
    pub wait: Wait,
    /// The way in which connections find acceptors.
    pub accept: Accept,
    /// Settings of TCP connections.
    pub tcp: Tcp,
    /// The ports that the stack hands out.
    pub ports: Ports,
    /// The sizes of sessions, and their number.
    pub sessions: SessionSizes,
    /// The most bytes of memory that the stack may take; `None` means as many as its cgroup and the machine
    /// have.
    pub memory_limit: Option<u64>,
    /// The processors and scheduling of replicas.
    pub scheduling: Scheduling,
    /// The reaction to the death of a server.
    pub recovery: Recovery,
    /// The number of processes that host the replicas.
    pub scaling: Scaling,
    /// The users, by name, that the stack serves besides its own user and root.
    pub users: Users,
    /// Settings that apply to every server.
    pub servers: Servers,
    /// The form and level of the log.
    pub log: Log,
}

/// The link and the addresses on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The kind of the link.
    pub kind: LinkType,
    /// The name of the TAP device; `%d` in it becomes the first free number.
    pub device: String,
    /// The network namespace in which the device is made; `None` means the supervisor's own.
    pub netns: Option<String>,
    /// The stack's own address; `None` means that a DHCP server assigns it.
    pub address: Option<Cidr>,
    /// How many seconds `atoll up` waits for a DHCP server.
    pub dhcp_wait_s: u32,
    /// The address for the kernel's end of the device, if that end is to be set up.
    pub peer_address: Option<Cidr>,
    /// The IPv4 default gateway.
    pub gateway: Option<Ipv4Addr>,
    /// IPv6 on the link; `None` means that the stack uses IPv6 only internally.
    pub v6: Option<LinkV6>,
    /// The MTU: the size of the largest packet, in bytes.
    pub mtu: u16,
    /// The stack's own hardware address; `None` means a random one.
    pub mac: Option<Mac>,
    /// Whether segmentation is left to the kernel.
    pub offload: bool,
    /// The stack at the other end of a shared-memory link.
    pub peer: Option<StackName>,
}

/// The IPv6 settings of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkV6 {
    /// The stack's own address, besides its link-local one.
    pub address: Option<Cidr6>,
    /// The address for the kernel's end of the device.
    pub peer_address: Option<Cidr6>,
    /// The IPv6 default gateway, which is preferred to those that router advertisements name.
    pub gateway: Option<Ipv6Addr>,
    /// Whether addresses and routes are taken from router advertisements.
    pub autoconf: bool,
}

/// The kind of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkType {
    /// A multi-queue TAP device of the kernel.
    #[default]
    Tap,
    /// Shared memory with another stack.
    Shm,
    /// No link: programs on the stack reach only each other.
    None,
}

impl fmt::Display for LinkType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LinkType::Tap => "tap",
            LinkType::Shm => "shm",
            LinkType::None => "none",
        })
    }
}

/// The component that sorts incoming frames by flow group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Steering {
    /// A BPF program in the kernel where that is permitted, otherwise the replicas.
    #[default]
    Auto,
    /// A BPF program in the kernel; without permission for it the stack does not start.
    Bpf,
    /// The replicas, which pass frames on to each other.
    Software,
}

/// The form of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Lines for people: `atoll: ` or `atoll[PID]: `, and a sentence.
    #[default]
    Text,
    /// A JSON object per line.
    Json,
    /// Entries with fields in systemd's journal; without a journal the stack does not start.
    Journal,
}

/// The least grave events that are logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// The process ends.
    Error,
    /// Somebody may want to do something about it.
    Warn,
    /// A process or the stack as a whole has changed.
    #[default]
    Info,
    /// Something small has changed, such as a session.
    Debug,
}

/// The fate of the connections of a replica that dies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecoveryMode {
    /// The replica's successor continues them.
    #[default]
    Stateful,
    /// Connections are reset (N); listeners stay.
    Stateless,
}

/// The end that may start explicit congestion notification (RFC 3168, RFC 9768). The numbers are those of
/// Linux's `tcp_ecn`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EcnMode {
    /// ECN is off.
    Off = 0,
    /// Both this stack and the peer may start it.
    Request = 1,
    /// Only the peer may start it.
    #[default]
    Accept = 2,
    /// Both may start it, and SYNs of this stack ask for accurate ECN (RFC 9768).
    Accurate = 3,
}

/// The sockets that use TCP Fast Open (RFC 7413).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FastOpen {
    /// No socket uses it.
    None,
    /// Sockets that request it when they connect.
    #[default]
    Client,
    /// Listeners with TCP_FASTOPEN.
    Server,
    /// Connecting sockets that request it, and listeners with TCP_FASTOPEN.
    Both,
}

impl FastOpen {
    /// Returns the bits that the stack page shows for this setting.
    pub const fn bits(self) -> u32 {
        match self {
            FastOpen::None => 0,
            FastOpen::Client => FAST_OPEN_CLIENT,
            FastOpen::Server => FAST_OPEN_SERVER,
            FastOpen::Both => FAST_OPEN_CLIENT | FAST_OPEN_SERVER,
        }
    }
}

/// The number of processes that host the replicas; each number is from 1 to the number of replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scaling {
    /// The number of processes at the start.
    pub start: u8,
    /// Whether the number of processes follows the load.
    pub auto: bool,
    /// The smallest number of processes that automatic scaling chooses.
    pub min: u8,
    /// The largest number of processes that automatic scaling chooses.
    pub max: u8,
}

/// The way in which applications and stack agree on the process that accepts a connection (P4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Handshake {
    /// The stack offers connections to processes that have announced that they would accept one.
    #[default]
    Speculative,
    /// Applications ask for each connection by a message, which is answered: the baseline of P4.
    Naive,
}

/// The ports that the stack hands out, and the users that may ask for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ports {
    /// First and last port for connections that do not choose one.
    pub ephemeral: (u16, u16),
    /// The first port that needs no privilege, as Linux's `net.ipv4.ip_unprivileged_port_start`. The user
    /// that runs the stack has the privilege.
    pub unprivileged_start: u16,
    /// Ranges of ports below `unprivileged_start` that a user may bind, by the user's name or number. Each
    /// range is its first and last port; (0, 0) is an empty one.
    pub users: Vec<(String, [(u16, u16); USER_PORTS_MAX])>,
}

/// The sizes of sessions, and their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionSizes {
    /// The number of processes with sockets of their own that may be attached.
    pub max: u32,
    /// The sizes of an arena.
    pub arena: ArenaConfig,
}

impl Config {
    /// Checks `file`, and returns the configuration that it describes, or the first error found.
    pub fn validate(file: &ConfigFile) -> Result<Config, ConfigError> {
        let name = file.name.parse().map_err(ConfigError::Name)?;
        let notation = notation(file)?;
        let link = link(&file.link)?;
        if link.kind == LinkType::Shm && link.peer.as_ref() == Some(&name) {
            return Err(ConfigError::PeerIsSelf);
        }
        check_link_servers(notation, link.kind)?;
        let ports = ports(&file.ports)?;
        // The range holds at least 256 ports, so that each replica finds one that steers to it.
        if ports.ephemeral.0 == 0 || ports.ephemeral.1.saturating_sub(ports.ephemeral.0) < 255 {
            return Err(ConfigError::Ports);
        }
        let sizes = &file.sessions;
        let arena = ArenaConfig {
            slots: sizes.sockets,
            send_log2: sizes.send_log2,
            receive_log2: sizes.receive_log2,
        };
        if !arena.is_valid() {
            return Err(ConfigError::SessionSizes);
        }
        if !(1..=SESSIONS_MAX).contains(&sizes.max) {
            return Err(ConfigError::Sessions(sizes.max));
        }
        if file.wait.spin_us > SPIN_US_MAX {
            return Err(ConfigError::Spin(file.wait.spin_us));
        }
        if file.accept.claim_timeout_us == 0 {
            return Err(ConfigError::ClaimTimeout);
        }
        file.accept.check()?;
        let hang_ms = file.recovery.hang_ms;
        if hang_ms != 0 && !(HANG_MS_MIN..=HANG_MS_MAX).contains(&hang_ms) {
            return Err(ConfigError::Hang(hang_ms));
        }
        if file.accept.handshake == Handshake::Naive && !has_own_managers(notation) {
            return Err(ConfigError::NaiveAccept(notation));
        }
        Ok(Config {
            name,
            notation,
            link,
            steering: file.steering.by,
            wait: file.wait.clone(),
            accept: file.accept.clone(),
            tcp: file.tcp.clone(),
            ports,
            sessions: SessionSizes { max: sizes.max, arena },
            memory_limit: file.memory.limit.as_deref().map(memory_limit).transpose()?,
            scheduling: file.scheduling.clone(),
            recovery: file.recovery.clone(),
            scaling: scaling(&file.scaling, notation.replicas())?,
            users: file.users.clone(),
            servers: file.servers.clone(),
            log: file.log.clone(),
        })
    }

    /// Returns the number of replicas of the stack.
    pub fn replicas(&self) -> u8 {
        self.notation.replicas()
    }
}

/// Parses a number of bytes such as `512M`.
fn memory_limit(text: &str) -> Result<u64, ConfigError> {
    let units = [("K", 10), ("M", 20), ("G", 30), ("T", 40)];
    let unit = units.iter().find_map(|(unit, log2)| Some((text.strip_suffix(unit)?, 1u64 << log2)));
    let (number, unit) = unit.unwrap_or((text, 1));
    let number = number.parse::<u64>().ok().filter(|_| number.bytes().all(|byte| byte.is_ascii_digit()));
    match number.and_then(|number| number.checked_mul(unit)) {
        None => Err(ConfigError::MemoryText(text.into())),
        Some(limit) if limit < MEMORY_MIN => Err(ConfigError::MemoryMin(text.into())),
        Some(limit) => Ok(limit),
    }
}

fn ports(file: &PortsFile) -> Result<Ports, ConfigError> {
    let mut users = Vec::new();
    for (user, texts) in &file.users {
        let bad = || ConfigError::UserPorts(user.clone());
        let mut ranges = [(0, 0); USER_PORTS_MAX];
        if texts.len() > USER_PORTS_MAX {
            return Err(bad());
        }
        for (text, range) in texts.iter().zip(&mut ranges) {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            let (Ok(first), Ok(last)) = (first.parse::<u16>(), last.parse::<u16>()) else {
                return Err(bad());
            };
            if first == 0 || first > last {
                return Err(bad());
            }
            *range = (first, last);
        }
        users.push((user.clone(), ranges));
    }
    let ephemeral = (file.ephemeral[0], file.ephemeral[1]);
    Ok(Ports { ephemeral, unprivileged_start: file.unprivileged_start, users })
}

fn notation(file: &ConfigFile) -> Result<Notation, ConfigError> {
    let by_number = match file.replicas {
        Some(n) => Some(Notation::symmetric(n).ok_or(ConfigError::Notation(NotationError::Replicas(n)))?),
        None => None,
    };
    let by_text: Option<Notation> = match &file.configuration {
        Some(text) => Some(text.parse().map_err(ConfigError::Notation)?),
        None => None,
    };
    match (by_number, by_text) {
        (Some(a), Some(b)) if a != b => Err(ConfigError::TwoNumbers(a.replicas(), b)),
        (Some(notation), _) | (None, Some(notation)) => Ok(notation),
        (None, None) => Ok(Notation::symmetric(1).expect("one replica is allowed")),
    }
}

fn scaling(file: &ScalingFile, replicas: u8) -> Result<Scaling, ConfigError> {
    let ScalingFile { start, auto, min, max } = *file;
    for (key, given) in [("start", start), ("min", min), ("max", max)] {
        if let Some(n) = given.filter(|n| !(1..=replicas).contains(n)) {
            return Err(ConfigError::Scaling(key, n, replicas));
        }
    }
    let (min, max) = (min.unwrap_or(1), max.unwrap_or(replicas));
    let start = start.unwrap_or(if auto { min } else { replicas });
    if min > max || auto && !(min..=max).contains(&start) {
        return Err(ConfigError::ScalingLimits(min, max));
    }
    Ok(Scaling { start, auto, min, max })
}

/// Returns whether every transport server has a connection manager in its process.
fn has_own_managers(notation: Notation) -> bool {
    let plan = notation.plan();
    plan.processes()
        .iter()
        .filter(|process| process.has(Component::Ts))
        .all(|process| process.has(Component::Cm))
}

/// Checks that link servers apart from transport servers, or fewer of them, are used only with a device.
fn check_link_servers(notation: Notation, link: LinkType) -> Result<(), ConfigError> {
    let plan = notation.plan();
    let is_apart = |process: &Process| process.has(Component::Ls) && !process.has(Component::Ts);
    let is_symmetric = Notation::symmetric(notation.replicas()) == Some(notation);
    match link {
        LinkType::Shm if !is_symmetric => Err(ConfigError::LinkServersOfShm(notation)),
        LinkType::None if plan.processes().iter().any(is_apart) => {
            Err(ConfigError::IdleLinkServers(notation))
        }
        _ => Ok(()),
    }
}

fn link(file: &LinkFile) -> Result<Link, ConfigError> {
    let address: Option<Cidr> = match file.address.as_str() {
        BY_DHCP => None,
        text => Some(text.parse().map_err(|error| ConfigError::Address("address", error))?),
    };
    if address.is_none() && (file.kind != LinkType::Tap || file.gateway.is_some()) {
        return Err(ConfigError::Dhcp);
    }
    let peer_address = match (file.kind, file.peer_address.as_str()) {
        (LinkType::Shm | LinkType::None, _) | (_, "none") => None,
        (LinkType::Tap, text) => {
            Some(text.parse::<Cidr>().map_err(|error| ConfigError::Address("peer_address", error))?)
        }
    };
    if peer_address.is_some_and(|peer| address.is_some_and(|own| peer.address == own.address)) {
        return Err(ConfigError::SameAddress);
    }
    let gateway = match &file.gateway {
        Some(text) => Some(text.parse().map_err(|_| ConfigError::Address("gateway", AddressError::NotIpv4))?),
        None => None,
    };
    let is_neighbour = |gateway| address.is_none_or(|own| own.contains(gateway) && gateway != own.address);
    if gateway.is_some_and(|gateway| !is_neighbour(gateway)) {
        return Err(ConfigError::Gateway);
    }
    let v6 = link_v6(file)?;
    let mac = match &file.mac {
        Some(text) => Some(text.parse().map_err(|error| ConfigError::Address("mac", error))?),
        None => None,
    };
    if !(MTU_MIN..=MTU_MAX).contains(&file.mtu) {
        return Err(ConfigError::Mtu(file.mtu));
    }
    let device_ok = |byte: u8| byte.is_ascii_graphic() && byte != b'/';
    if file.device.is_empty() || file.device.len() > DEVICE_LEN_MAX || !file.device.bytes().all(device_ok) {
        return Err(ConfigError::Device);
    }
    let peer = match &file.peer {
        Some(text) => Some(text.parse().map_err(ConfigError::Name)?),
        None if file.kind == LinkType::Shm => return Err(ConfigError::NoPeer),
        None => None,
    };
    Ok(Link {
        kind: file.kind,
        device: file.device.clone(),
        netns: file.netns.clone(),
        address,
        dhcp_wait_s: file.dhcp_wait_s,
        peer_address,
        gateway,
        v6,
        mtu: file.mtu,
        mac,
        offload: file.offload,
        peer,
    })
}

/// The value of `link.address` that asks for DHCP.
const BY_DHCP: &str = "dhcp";

fn link_v6(file: &LinkFile) -> Result<Option<LinkV6>, ConfigError> {
    let cidr = |key, text: &Option<String>| {
        let parsed = text.as_ref().map(|text| text.parse::<Cidr6>()).transpose();
        parsed.map_err(|error| ConfigError::Address(key, error))
    };
    let address = cidr("address6", &file.address6)?;
    let peer_address = cidr("peer_address6", &file.peer_address6)?;
    let gateway = file.gateway6.as_ref().map(|text| text.parse::<Ipv6Addr>()).transpose();
    let gateway = gateway.map_err(|_| ConfigError::Address("gateway6", AddressError::NotIpv6))?;
    if address.is_some() && address.map(|own| own.address) == peer_address.map(|peer| peer.address) {
        return Err(ConfigError::SameAddress);
    }
    let is_neighbour = |gateway: Ipv6Addr| {
        gateway.is_unicast_link_local()
            || address.is_some_and(|own| own.contains(gateway) && own.address != gateway)
    };
    if gateway.is_some_and(|gateway| !is_neighbour(gateway)) {
        return Err(ConfigError::Gateway6);
    }
    let is_wanted = address.is_some() || gateway.is_some();
    if is_wanted && (!file.ipv6 || file.mtu < MTU_MIN_V6) {
        return Err(ConfigError::NoIpv6);
    }
    // As on Linux, a link whose MTU is too small for IPv6 does without it.
    let is_on = file.ipv6 && file.mtu >= MTU_MIN_V6 && file.kind != LinkType::None;
    Ok(is_on.then_some(LinkV6 {
        address,
        peer_address: peer_address.filter(|_| file.kind == LinkType::Tap),
        gateway,
        autoconf: file.autoconf,
    }))
}

/// The fault of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// The file is not TOML, or has unknown keys or values of the wrong kind; the text says where.
    #[error("{}", .0.trim_end())]
    Syntax(String),
    /// The name of this stack or of its peer is not valid.
    #[error("name: {0}")]
    Name(NameError),
    /// The configuration of servers is not valid.
    #[error("configuration: {0}")]
    Notation(NotationError),
    /// `replicas` and `configuration` contradict each other.
    #[error("replicas = {0} and configuration = \"{1}\" disagree: give one of them")]
    TwoNumbers(u8, Notation),
    /// A shared-memory link needs a link server in every transport server's process, which this configuration
    /// does not have.
    #[error(
        "configuration: {0} with link.type = \"shm\": the rings of a shared-memory link lead from transport \
         server to transport server, so each needs a link server of its own, as in TS{n}LS{n}CM{n}",
        n = .0.replicas()
    )]
    LinkServersOfShm(Notation),
    /// There are link servers in processes of their own, but no link.
    #[error(
        "configuration: {0} with link.type = \"none\": without a link its link servers have nothing to do; \
         write TS{n}LS{n}CM{n}",
        n = .0.replicas()
    )]
    IdleLinkServers(Notation),
    /// The address at this key is not valid.
    #[error("link.{0}: {1}")]
    Address(&'static str, AddressError),
    /// The kernel's end of the link has the stack's address.
    #[error(
        "link.peer_address: the kernel's end of the link needs an address other than the stack's own \
         (link.address)"
    )]
    SameAddress,
    /// The IPv4 gateway is not a neighbour.
    #[error("link.gateway: not another host in the network of link.address, so it cannot be reached")]
    Gateway,
    /// The IPv6 gateway is not a neighbour.
    #[error(
        "link.gateway6: neither a link-local address nor another host in the network of link.address6, so it \
         cannot be reached"
    )]
    Gateway6,
    /// The address is to come from DHCP on a link that is no TAP device, or a gateway is configured besides.
    #[error(
        "link.address: a DHCP server gives the address of a link of type \"tap\" only, and with it the \
         gateway \
         (no link.gateway)"
    )]
    Dhcp,
    /// There is an IPv6 address or gateway, but IPv6 is off or the MTU is too small for it.
    #[error(
        "link.address6, link.gateway6: with link.ipv6 = false or an MTU below {MTU_MIN_V6} there is no IPv6"
    )]
    NoIpv6,
    /// The MTU is out of range.
    #[error("link.mtu: {0} is not from {MTU_MIN} to {MTU_MAX}")]
    Mtu(u16),
    /// The name of the device is not valid.
    #[error("link.device: the name of a device is 1 to {DEVICE_LEN_MAX} bytes without blanks and `/`")]
    Device,
    /// A shared-memory link does not name the stack at its other end.
    #[error("link.peer: a link of type \"shm\" needs the name of the stack at its other end")]
    NoPeer,
    /// A shared-memory link names its own stack as the other end.
    #[error(
        "link.peer: programs on one stack reach each other without a link (link.type = \"none\"); name \
         another \
         stack"
    )]
    PeerIsSelf,
    /// The range of ephemeral ports is too small.
    #[error("ports.ephemeral: give the first and the last port, at least 256 in all, such as [32768, 60999]")]
    Ports,
    /// The ports of this user are not valid.
    #[error(
        "ports.users: give \"{}\" up to {USER_PORTS_MAX} ports or ranges, such as [\"80\", \"8000-8010\"]",
        .0.escape_debug()
    )]
    UserPorts(String),
    /// The sizes of an arena are not valid.
    #[error(
        "sessions: sockets is a power of two from 16 to 4194304, send_log2 and receive_log2 are from 16 to 32"
    )]
    SessionSizes,
    /// The largest number of sessions is out of range.
    #[error("sessions.max: {0} is not from 1 to {SESSIONS_MAX}")]
    Sessions(u32),
    /// The text is not a size of memory.
    #[error(
        "memory.limit: \"{}\" is no size: give bytes, or a number with K, M or G, such as \"512M\"",
        .0.escape_debug()
    )]
    MemoryText(String),
    /// The size of memory is too small for a stack.
    #[error(
        "memory.limit: {0} is less than {least}M, which servers and a few connections need: give more, or \
         leave \
         it out, and the cgroup's limit counts, or the machine's memory",
        least = MEMORY_MIN >> 20
    )]
    MemoryMin(String),
    /// The time to spin, in microseconds, is too long.
    #[error("wait.spin_us: {0} is more than {SPIN_US_MAX} (one second)")]
    Spin(u32),
    /// The time to claim a connection is 0.
    #[error("accept.claim_timeout_us: must be more than 0")]
    ClaimTimeout,
    /// With the naive handshake some transport server has no connection manager in its process.
    #[error(
        "accept.handshake: \"naive\" needs a connection manager in each transport server, which {0} has not"
    )]
    NaiveAccept(Notation),
    /// The rules of balancing are not valid.
    #[error(
        "accept: give a tariff from 1 to {}, a window from 1 to {}, sample_us and offer_us from 1 to {}, and \
         watermarks of which the first is no less than the second, such as [100, 75]",
        Rules::TARIFF_MAX,
        Rules::WINDOW_MAX,
        Rules::PERIOD_MAX
    )]
    Balance,
    /// The time without a sign of life, in milliseconds, is out of range.
    #[error("recovery.hang_ms: {0} is neither 0 (for ever) nor from {HANG_MS_MIN} to {HANG_MS_MAX}")]
    Hang(u32),
    /// The number of processes at this key of `scaling` is not from 1 to the number of replicas: the key, the
    /// number, and the replicas.
    #[error(
        "scaling.{0}: {2} replicas can be in 1 to {2} processes, not in {1}; more processes need more \
         replicas \
         (configuration)"
    )]
    Scaling(&'static str, u8, u8),
    /// `scaling.min` and `scaling.max`, which do not fit each other or `scaling.start`.
    #[error("scaling: min is {0} and max is {1}: give min <= max and, with auto, a start between them")]
    ScalingLimits(u8, u8),
}

/// The least MTU in bytes: every host accepts packets of 576 bytes (RFC 791).
const MTU_MIN: u16 = 576;
/// The least MTU for IPv6 in bytes (RFC 8200 §5).
const MTU_MIN_V6: u16 = 1280;
/// The largest MTU in bytes: the TUN driver allows 65535 with the Ethernet header.
const MTU_MAX: u16 = 65_521;
const DEVICE_LEN_MAX: usize = 15;
const SESSIONS_MAX: u32 = 65_536;
/// The least memory of a stack, in bytes.
const MEMORY_MIN: u64 = 64 << 20;
const SPIN_US_MAX: u32 = 1_000_000;
/// The least time in milliseconds after which a server may count as hanging: a few times the time between two
/// signs of life of a working server.
const HANG_MS_MIN: u32 = 400;
const HANG_MS_MAX: u32 = 3_600_000;
const _: () = assert!(REPLICAS_MAX <= 255);

#[cfg(test)]
mod tests;
