//! Which keys does the TOML file have, and what are their defaults?

use std::collections::BTreeMap;

use atoll_ipc::balance::Balance;
use serde::{Deserialize, Serialize};

use super::{Config, ConfigError, EcnMode, Estimate, FastOpen, Handshake, LinkType, RecoveryMode, Scheme, Steering};

/// The file as it is written; flags of the command line set its fields before [`Config::validate`] judges
/// them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConfigFile {
    /// See [`Config::name`].
    pub name: String,
    /// Pika's notation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configuration: Option<String>,
    /// The same as a number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u8>,
    /// See [`super::Link`].
    pub link: LinkFile,
    /// See [`Steering`].
    pub steering: SteeringFile,
    /// How long who spins.
    pub wait: WaitFile,
    /// How connections find acceptors.
    pub accept: AcceptFile,
    /// What connections may do.
    pub tcp: TcpFile,
    /// See [`super::Ports`].
    pub ports: PortsFile,
    /// See [`super::SessionSizes`].
    pub sessions: SessionsFile,
    /// How much memory the stack may take.
    pub memory: MemoryFile,
    /// Where and how replicas run.
    pub scheduling: SchedulingFile,
    /// What happens when a server dies.
    pub recovery: RecoveryFile,
    /// In how many processes replicas are.
    pub scaling: ScalingFile,
    /// Whom the stack is for besides its own user and root.
    pub users: UsersFile,
    /// What all servers are.
    pub servers: ServersFile,
}

/// `[link]`
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

/// `[steering]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SteeringFile {
    /// Who sorts incoming frames.
    pub by: Steering,
}

/// `[wait]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WaitFile {
    /// How long, in microseconds, replicas and the library look for work before they sleep.
    pub spin_us: u32,
}

/// `[accept]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AcceptFile {
    /// How applications and stack agree on who has a connection.
    pub handshake: Handshake,
    /// How long, in microseconds, an acceptor may take to claim a connection offered to it (P4).
    pub claim_timeout_us: u32,
    /// How to choose among acceptors (P5).
    pub scheme: Scheme,
    /// By how much an acceptor that another replica offers counts as slower than it is.
    pub tariff: u16,
    /// How service times are estimated.
    pub estimate: Estimate,
    /// Connections that an estimate is made of; `None`: what P5 uses with the estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<u16>,
    /// Microseconds between two estimates; `None`: what P5 uses with the estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample_us: Option<u32>,
    /// Microseconds between two offers.
    pub offer_us: u32,
    /// Percent: see [`atoll_ipc::balance::Balance::high`] and `low`.
    pub watermarks: [u16; 2],
}

/// `[tcp]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TcpFile {
    /// See [`EcnMode`].
    pub ecn: EcnMode,
    /// Who does TCP Fast Open.
    pub fast_open: FastOpen,
}

/// `[ports]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PortsFile {
    /// First and last.
    pub ephemeral: [u16; 2],
    /// See [`super::Ports`].
    pub unprivileged_start: u16,
    /// Ports below that, and ranges of them, by user.
    pub users: BTreeMap<String, Vec<String>>,
}

/// `[sessions]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SessionsFile {
    /// How many sessions there may be.
    pub max: u32,
    /// How many sockets one session may have per replica.
    pub sockets: u32,
    /// Most bytes of send buffers of one session and replica, as a power of two.
    pub send_log2: u8,
    /// Most bytes of receive buffers of one session and replica, as a power of two.
    pub receive_log2: u8,
}

/// `[memory]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MemoryFile {
    /// Bytes, with K, M, G or T; absent: what the cgroup, or the machine, has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
}

/// `[users]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UsersFile {
    /// Names or numbers of users.
    pub allow: Vec<String>,
    /// Names or numbers of groups.
    pub groups: Vec<String>,
}

/// `[servers]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServersFile {
    /// Name or number of the user that they run as, where the stack is root's. `None`: `atoll`, if there is
    /// such a user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// `[scheduling]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SchedulingFile {
    /// The processors of the servers, replicas first: server n runs on number n modulo the length. Empty:
    /// wherever the kernel likes.
    pub cpus: Vec<usize>,
    /// Whether replicas are SCHED_BATCH.
    pub batch: bool,
}

/// `[recovery]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RecoveryFile {
    /// See [`RecoveryMode`].
    pub mode: RecoveryMode,
    /// How long, in milliseconds, a server may give no sign of life before it counts as dead; one that is
    /// stopped does soon. 0: as long as it likes.
    pub hang_ms: u32,
    /// Whether a process stands by for the replicas.
    pub standby: bool,
}

/// `[scaling]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScalingFile {
    /// In how many processes the replicas are at the start; `None`: one for each, or with `auto` the fewest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<u8>,
    /// Whether the number follows from how busy they are.
    pub auto: bool,
    /// How few there may be then; `None`: one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<u8>,
    /// How many there may be then; `None`: one for each replica.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<u8>,
}

impl ConfigFile {
    /// Reads TOML.
    pub fn parse(text: &str) -> Result<ConfigFile, ConfigError> {
        toml::from_str(text).map_err(|error| ConfigError::Syntax(error.to_string()))
    }

    /// The text of `atoll config`: these values, each with a comment.
    pub fn to_commented_toml(&self) -> String {
        super::template::commented(self)
    }

    /// Checks the file.
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
        SessionsFile { max: 1024, sockets: arena.slots, send_log2: arena.send_log2, receive_log2: arena.receive_log2 }
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
