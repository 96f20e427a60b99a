//! The options that describe a stack: a configuration file, and options that override its keys.

use std::path::PathBuf;

use atoll_supervisor::{Config, ConfigFile, LinkType, LogFormat, LogLevel, RecoveryMode, Steering};
use thiserror::Error;

use crate::failure::{Failure, OrFail};

// structure: StackOptions: a field for each option of the command
/// The description of a stack on the command line.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "The stack (each overrides its key in the file; see `atoll config`)")]
pub struct StackOptions {
    /// The configuration file, in TOML.
    #[arg(long, short = 'c', value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The number of replicas: 1 to 8.
    #[arg(long, short = 'r', value_name = "N")]
    pub replicas: Option<u8>,
    /// The servers in Pika's notation, such as TS2LS2CM2 or TS2CM2+LS1 (docs/cli.md).
    #[arg(long, value_name = "SERVERS", conflicts_with = "replicas")]
    pub configuration: Option<String>,
    /// What joins the stack to the world: tap, shm or none.
    #[arg(long, value_name = "TYPE", value_parser = link_type)]
    pub link: Option<LinkType>,
    /// The stack's own address, such as 198.18.0.2/24, or "dhcp".
    #[arg(long, value_name = "ADDRESS/PREFIX")]
    pub address: Option<String>,
    /// How long to wait for a DHCP server, in seconds; then the stack goes on asking.
    #[arg(long, value_name = "SECONDS")]
    pub dhcp_wait: Option<u32>,
    /// The address for the kernel's end of the TAP device, or "none".
    #[arg(long, value_name = "ADDRESS/PREFIX")]
    pub peer_address: Option<String>,
    /// The router to other networks.
    #[arg(long, value_name = "ADDRESS")]
    pub gateway: Option<String>,
    /// Do without IPv6 on the link.
    #[arg(long)]
    pub no_ipv6: bool,
    /// The stack's own IPv6 address, such as 2001:db8::2/64.
    #[arg(long, value_name = "ADDRESS/PREFIX")]
    pub address6: Option<String>,
    /// An IPv6 address for the kernel's end of the TAP device.
    #[arg(long, value_name = "ADDRESS/PREFIX")]
    pub peer_address6: Option<String>,
    /// The router to other IPv6 networks.
    #[arg(long, value_name = "ADDRESS")]
    pub gateway6: Option<String>,
    /// Take no IPv6 addresses and routes from router advertisements.
    #[arg(long)]
    pub no_autoconf: bool,
    /// The network namespace in which the TAP device is made.
    #[arg(long, value_name = "NAME")]
    pub netns: Option<String>,
    /// The name of the TAP device.
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// Largest packet in bytes.
    #[arg(long, value_name = "BYTES")]
    pub mtu: Option<u16>,
    /// The stack's own hardware address.
    #[arg(long, value_name = "MAC")]
    pub mac: Option<String>,
    /// Do not leave segmentation to the kernel.
    #[arg(long)]
    pub no_offload: bool,
    /// The stack at the other end of a shared-memory link; implies --link shm.
    #[arg(long, value_name = "STACK")]
    pub peer: Option<String>,
    /// How incoming frames are sorted by replica: auto, bpf or software.
    #[arg(long, value_name = "BY", value_parser = steering)]
    pub steering: Option<Steering>,
    /// How long to look for work before sleeping, in microseconds.
    #[arg(long, value_name = "MICROSECONDS")]
    pub spin_us: Option<u32>,
    /// The processors of the replicas and, after them, of link servers in processes of their own, such as
    /// 0,1.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub cpus: Option<Vec<usize>>,
    /// What becomes of connections when a replica dies: stateful (they go on) or stateless (they are reset).
    #[arg(long, value_name = "MODE", value_parser = recovery)]
    pub recovery: Option<RecoveryMode>,
    /// The number of processes for the replicas at the start: 1 to the number of replicas.
    #[arg(long, value_name = "N")]
    pub processes: Option<u8>,
    /// How much memory the stack may take, such as 512M.
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<String>,
    /// A user whose programs may use the stack, too, by name or number; may be given again.
    #[arg(long, value_name = "USER")]
    pub allow_user: Vec<String>,
    /// A group whose members' programs may use the stack, too, by name or number; may be given again.
    #[arg(long, value_name = "GROUP")]
    pub allow_group: Vec<String>,
    /// The user that the servers of a stack of root run as, by name or number, or "root".
    #[arg(long, value_name = "USER")]
    pub servers_user: Option<String>,
    /// The form of the log: text, json or journal.
    #[arg(long, value_name = "FORMAT", value_parser = log_format)]
    pub log_format: Option<LogFormat>,
    /// The least grave events that are logged: error, warn, info or debug.
    #[arg(long, value_name = "LEVEL", value_parser = log_level)]
    pub log_level: Option<LogLevel>,
}

impl StackOptions {
    /// Returns the configuration of the file, or the defaults, with the options applied. Fails if the file
    /// cannot be read or parsed.
    pub fn load(&self) -> Result<ConfigFile, Failure> {
        let mut file = match &self.config {
            Some(path) => {
                let text = std::fs::read_to_string(path).or_fail(path.display())?;
                ConfigFile::parse(&text).or_fail(path.display())?
            }
            None => ConfigFile::default(),
        };
        if let Some(n) = self.replicas {
            (file.replicas, file.configuration) = (Some(n), None);
        }
        if let Some(text) = &self.configuration {
            (file.replicas, file.configuration) = (None, Some(text.clone()));
        }
        let link = &mut file.link;
        if self.peer.is_some() {
            link.kind = LinkType::Shm;
        }
        set(&mut link.kind, &self.link);
        set(&mut link.address, &self.address);
        set(&mut link.dhcp_wait_s, &self.dhcp_wait);
        set(&mut link.peer_address, &self.peer_address);
        set(&mut link.device, &self.device);
        set(&mut link.mtu, &self.mtu);
        set_option(&mut link.gateway, &self.gateway);
        set_option(&mut link.address6, &self.address6);
        set_option(&mut link.peer_address6, &self.peer_address6);
        set_option(&mut link.gateway6, &self.gateway6);
        link.ipv6 &= !self.no_ipv6;
        link.autoconf &= !self.no_autoconf;
        set_option(&mut link.netns, &self.netns);
        set_option(&mut link.mac, &self.mac);
        set_option(&mut link.peer, &self.peer);
        link.offload &= !self.no_offload;
        set(&mut file.steering.by, &self.steering);
        set(&mut file.wait.spin_us, &self.spin_us);
        set(&mut file.scheduling.cpus, &self.cpus);
        set(&mut file.recovery.mode, &self.recovery);
        set_option(&mut file.scaling.start, &self.processes);
        set_option(&mut file.memory.limit, &self.memory);
        file.users.allow.extend_from_slice(&self.allow_user);
        file.users.groups.extend_from_slice(&self.allow_group);
        set_option(&mut file.servers.user, &self.servers_user);
        set(&mut file.log.format, &self.log_format);
        set(&mut file.log.level, &self.log_level);
        Ok(file)
    }

    /// Checks what [`StackOptions::load`] returned; the error names the file, if there is one.
    pub fn validate(&self, file: &ConfigFile) -> Result<Config, Failure> {
        file.validate().map_err(|error| match &self.config {
            Some(path) => Failure::new(format!("{}: {error}", path.display())),
            None => Failure::new(error),
        })
    }

    /// Returns whether any option was given.
    pub fn any(&self) -> bool {
        let StackOptions {
            config,
            replicas,
            configuration,
            link,
            address,
            dhcp_wait,
            peer_address,
            gateway,
            no_ipv6,
            address6,
            peer_address6,
            gateway6,
            no_autoconf,
            netns,
            device,
            mtu,
            mac,
            no_offload,
            peer,
            steering,
            spin_us,
            cpus,
            recovery,
            processes,
            memory,
            allow_user,
            allow_group,
            servers_user,
            log_format,
            log_level,
        } = self;
        let texts = [
            configuration,
            address,
            peer_address,
            gateway,
            address6,
            peer_address6,
            gateway6,
            netns,
            device,
            mac,
            peer,
            servers_user,
            memory,
        ];
        config.is_some()
            || replicas.is_some()
            || link.is_some()
            || mtu.is_some()
            || dhcp_wait.is_some()
            || *no_offload
            || *no_ipv6
            || *no_autoconf
            || steering.is_some()
            || spin_us.is_some()
            || cpus.is_some()
            || recovery.is_some()
            || processes.is_some()
            || log_format.is_some()
            || log_level.is_some()
            || !allow_user.is_empty()
            || !allow_group.is_empty()
            || texts.iter().any(|text| text.is_some())
    }
}

fn set<T: Clone>(field: &mut T, flag: &Option<T>) {
    if let Some(value) = flag {
        field.clone_from(value);
    }
}

fn set_option<T: Clone>(field: &mut Option<T>, flag: &Option<T>) {
    if flag.is_some() {
        field.clone_from(flag);
    }
}

/// Why the value of an option is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ValueError {
    /// The value is not a kind of link.
    #[error("a link is tap, shm or none")]
    Link,
    /// The value does not name what sorts frames.
    #[error("frames are sorted by auto, bpf or software")]
    Steering,
    /// The value is not a mode of recovery.
    #[error("recovery is stateful or stateless")]
    Recovery,
    /// The value is not a form of the log.
    #[error("the log is text, json or journal")]
    LogFormat,
    /// The value is not a level.
    #[error("levels are error, warn, info and debug")]
    LogLevel,
    /// The value is not a scheme of choosing.
    #[error("a scheme is naive, unfiltered, filtered or tournament")]
    Scheme,
    /// The value is not a way to estimate.
    #[error("an estimate is median or average")]
    Estimate,
    /// The value is not a pair of watermarks.
    #[error("watermarks are two percentages, such as 100,75")]
    Watermarks,
    /// The value is neither a number of processes nor "auto".
    #[error("give a number of processes, or \"auto\"")]
    Processes,
}

fn link_type(text: &str) -> Result<LinkType, ValueError> {
    match text {
        "tap" => Ok(LinkType::Tap),
        "shm" => Ok(LinkType::Shm),
        "none" => Ok(LinkType::None),
        _ => Err(ValueError::Link),
    }
}

fn steering(text: &str) -> Result<Steering, ValueError> {
    match text {
        "auto" => Ok(Steering::Auto),
        "bpf" => Ok(Steering::Bpf),
        "software" => Ok(Steering::Software),
        _ => Err(ValueError::Steering),
    }
}

fn recovery(text: &str) -> Result<RecoveryMode, ValueError> {
    match text {
        "stateful" => Ok(RecoveryMode::Stateful),
        "stateless" => Ok(RecoveryMode::Stateless),
        _ => Err(ValueError::Recovery),
    }
}

fn log_format(text: &str) -> Result<LogFormat, ValueError> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        "journal" => Ok(LogFormat::Journal),
        _ => Err(ValueError::LogFormat),
    }
}

fn log_level(text: &str) -> Result<LogLevel, ValueError> {
    match text {
        "error" => Ok(LogLevel::Error),
        "warn" => Ok(LogLevel::Warn),
        "info" => Ok(LogLevel::Info),
        "debug" => Ok(LogLevel::Debug),
        _ => Err(ValueError::LogLevel),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_override_the_file() {
        let options = StackOptions {
            replicas: Some(3),
            address: Some("10.0.0.2/24".into()),
            peer: Some("other".into()),
            no_offload: true,
            log_format: Some(LogFormat::Json),
            log_level: Some(LogLevel::Warn),
            ..StackOptions::default()
        };
        assert!(options.any() && !StackOptions::default().any());
        let config = options.validate(&options.load().unwrap()).unwrap();
        assert_eq!((config.replicas(), config.link.kind, config.link.offload), (3, LinkType::Shm, false));
        assert_eq!(config.link.address.map(|own| own.to_string()).as_deref(), Some("10.0.0.2/24"));
        assert_eq!((config.log.format, config.log.level), (LogFormat::Json, LogLevel::Warn));
    }
}
