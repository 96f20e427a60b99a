//! The keys of the TOML file, and their defaults.

use std::collections::BTreeMap;

use atoll_ipc::balance::Balance;
use serde::{Deserialize, Serialize};

use super::{
    Config, ConfigError, EcnMode, Estimate, FastOpen, Handshake, LinkType, LogFormat, LogLevel, RecoveryMode,
    Scheme, Steering,
};

/// The configuration in the form of the file; flags of the command line set its fields before
/// [`Config::validate`] checks them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConfigFile {
    /// The name of the stack: see [`Config::name`].
    pub name: String,
    /// The servers of the stack in Pika's notation: see [`Notation`](crate::Notation).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configuration: Option<String>,
    /// The number n of replicas, as a short form of the configuration `TSnLSnCMn`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u8>,
    /// The link of the stack: see [`super::Link`].
    pub link: LinkFile,
    /// Steering of incoming frames: see [`Steering`].
    pub steering: SteeringFile,
    /// How long servers and programs spin before they sleep.
    pub wait: WaitFile,
    /// How connections find acceptors.
    pub accept: AcceptFile,
    /// Settings of TCP connections.
    pub tcp: TcpFile,
    /// The ports that the stack hands out: see [`super::Ports`].
    pub ports: PortsFile,
    /// The sizes of sessions: see [`super::SessionSizes`].
    pub sessions: SessionsFile,
    /// How much memory the stack may take.
    pub memory: MemoryFile,
    /// Where and how replicas run.
    pub scheduling: SchedulingFile,
    /// What happens when a server dies.
    pub recovery: RecoveryFile,
    /// The number of processes that host the replicas.
    pub scaling: ScalingFile,
    /// The users that the stack serves besides its own user and root.
    pub users: UsersFile,
    /// Settings that apply to every server.
    pub servers: ServersFile,
    /// What the log looks like.
    pub log: LogFile,
}

/// The section `[link]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs)] // Named after the fields of `Link`, which documents them.
pub struct LinkFile {
    #[serde(rename = "type")]
    pub kind: LinkType,
    pub device: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
    /// An address with prefix, or `dhcp`.
    pub address: String,
    pub dhcp_wait_s: u32,
    /// An address with prefix, or `none`.
    pub peer_address: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
    pub ipv6: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address6: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_address6: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway6: Option<String>,
    pub autoconf: bool,
    pub mtu: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    pub offload: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
}

/// The section `[steering]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SteeringFile {
    /// The component that sorts incoming frames.
    pub by: Steering,
}

/// The section `[wait]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WaitFile {
    /// How long, in microseconds, replicas and the library look for work before they sleep.
    pub spin_us: u32,
}

/// The section `[accept]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AcceptFile {
    /// How applications and stack agree on which process accepts a connection.
    pub handshake: Handshake,
    /// How long, in microseconds, an acceptor may take to claim a connection offered to it (P4).
    pub claim_timeout_us: u32,
    /// How an acceptor is chosen (P5).
    pub scheme: Scheme,
    /// By how much an acceptor that another replica offers counts as slower than it is.
    pub tariff: u16,
    /// How service times are estimated.
    pub estimate: Estimate,
    /// The number of connections in an estimate; `None` means what P5 uses with the estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<u16>,
    /// Microseconds between two estimates; `None` means what P5 uses with the estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample_us: Option<u32>,
    /// Microseconds between two offers.
    pub offer_us: u32,
    /// The watermarks in percent: see [`atoll_ipc::balance::Balance::high`] and `low`.
    pub watermarks: [u16; 2],
}

/// The section `[tcp]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TcpFile {
    /// Explicit congestion notification: see [`EcnMode`].
    pub ecn: EcnMode,
    /// The sockets that use TCP Fast Open.
    pub fast_open: FastOpen,
}

/// The section `[ports]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PortsFile {
    /// The first and the last ephemeral port.
    pub ephemeral: [u16; 2],
    /// The first port that needs no privilege: see [`super::Ports`].
    pub unprivileged_start: u16,
    /// Ports below `unprivileged_start`, and ranges of them, by user.
    pub users: BTreeMap<String, Vec<String>>,
}

/// The section `[sessions]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SessionsFile {
    /// The largest number of sessions.
    pub max: u32,
    /// The number of sockets that one session may have per replica.
    pub sockets: u32,
    /// The most bytes of send buffers of one session and replica, as a power of two.
    pub send_log2: u8,
    /// The most bytes of receive buffers of one session and replica, as a power of two.
    pub receive_log2: u8,
}

/// The section `[memory]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MemoryFile {
    /// The most bytes of memory, with K, M, G or T; if absent, what the cgroup or the machine has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
}

/// The section `[users]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UsersFile {
    /// Names or numbers of users.
    pub allow: Vec<String>,
    /// Names or numbers of groups.
    pub groups: Vec<String>,
}

/// The section `[servers]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServersFile {
    /// Name or number of the user that the servers of a stack of root run as. `None` means `atoll`, if there
    /// is such a user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// The section `[scheduling]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SchedulingFile {
    /// The processors of the servers, replicas first: server n runs on the element n modulo the length. If
    /// the list is empty, the kernel chooses.
    pub cpus: Vec<usize>,
    /// Whether replicas are SCHED_BATCH.
    pub batch: bool,
}

/// The section `[recovery]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RecoveryFile {
    /// What becomes of connections: see [`RecoveryMode`].
    pub mode: RecoveryMode,
    /// How long, in milliseconds, a server may give no sign of life before it counts as dead; 0 means for
    /// ever. Stopped servers count as dead sooner, unless this is 0.
    pub hang_ms: u32,
    /// Whether the stack keeps a standby process for the replicas.
    pub standby: bool,
}

/// The section `[scaling]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScalingFile {
    /// The number of processes for the replicas at the start; `None` means one for each, or with `auto` the
    /// fewest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<u8>,
    /// Whether the number of processes follows the load.
    pub auto: bool,
    /// The fewest processes with `auto`; `None` means one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<u8>,
    /// The most processes with `auto`; `None` means one for each replica.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<u8>,
}

/// The section `[log]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogFile {
    /// The form of the log.
    pub format: LogFormat,
    /// The least grave events that are logged.
    pub level: LogLevel,
}

impl ConfigFile {
    /// Parses TOML.
    pub fn parse(text: &str) -> Result<ConfigFile, ConfigError> {
        toml::from_str(text).map_err(|error| ConfigError::Syntax(error.to_string()))
    }

    /// Returns the text of `atoll config`: these values, each with a comment.
    pub fn to_commented_toml(&self) -> String {
        super::template::commented(self)
    }

    /// Checks the file, and returns the configuration that it describes.
    pub fn validate(&self) -> Result<Config, ConfigError> {
        Config::validate(self)
    }
}

impl Default for ConfigFile {
    fn default() -> ConfigFile {
        ConfigFile {
            name: "default".into(),
            configuration: None,
            replicas: None,
            link: LinkFile::default(),
            steering: SteeringFile::default(),
            wait: WaitFile::default(),
            accept: AcceptFile::default(),
            tcp: TcpFile::default(),
            ports: PortsFile::default(),
            sessions: SessionsFile::default(),
            memory: MemoryFile::default(),
            scheduling: SchedulingFile::default(),
            recovery: RecoveryFile::default(),
            scaling: ScalingFile::default(),
            users: UsersFile::default(),
            servers: ServersFile::default(),
            log: LogFile::default(),
        }
    }
}

impl Default for LinkFile {
    fn default() -> LinkFile {
        LinkFile {
            kind: LinkType::Tap,
            device: "atoll%d".into(),
            netns: None,
            // RFC 2544 sets 198.18.0.0/15 apart for measurements, so it rarely collides with a real network.
            address: "198.18.0.2/24".into(),
            dhcp_wait_s: 20,
            peer_address: "198.18.0.1/24".into(),
            gateway: None,
            ipv6: true,
            address6: None,
            peer_address6: None,
            gateway6: None,
            autoconf: true,
            mtu: 1500,
            mac: None,
            offload: true,
            peer: None,
        }
    }
}

impl Default for WaitFile {
    fn default() -> WaitFile {
        WaitFile { spin_us: 100 }
    }
}

impl Default for AcceptFile {
    fn default() -> AcceptFile {
        let Balance { tariff, offer_us, high, low, .. } = Balance::new();
        AcceptFile {
            handshake: Handshake::default(),
            claim_timeout_us: 100_000,
            scheme: Scheme::default(),
            tariff,
            estimate: Estimate::default(),
            window: None,
            sample_us: None,
            offer_us,
            watermarks: [high, low],
        }
    }
}

impl Default for PortsFile {
    fn default() -> PortsFile {
        PortsFile { ephemeral: [32_768, 60_999], unprivileged_start: 1024, users: BTreeMap::new() }
    }
}

impl Default for SessionsFile {
    fn default() -> SessionsFile {
        let arena = atoll_ipc::arena::ArenaConfig::default();
        SessionsFile {
            max: 1024,
            sockets: arena.slots,
            send_log2: arena.send_log2,
            receive_log2: arena.receive_log2,
        }
    }
}

impl Default for RecoveryFile {
    fn default() -> RecoveryFile {
        RecoveryFile { mode: RecoveryMode::default(), hang_ms: 2000, standby: true }
    }
}

impl Default for SchedulingFile {
    fn default() -> SchedulingFile {
        SchedulingFile { cpus: Vec::new(), batch: true }
    }
}
