//! Supervisor: what a stack is configured to be, what it is called, and who is attached to it. No system calls here.
//!
//! The supervisor process itself (descriptors, processes, devices) is `bin/atoll`, which asks this crate what to do.
#![forbid(unsafe_code)]

mod address;
mod build;
mod config;
mod names;
mod notation;
mod plan;
mod report;
mod request;
mod rights;
mod scaling;
mod sessions;

pub use address::{AddressError, Cidr, Cidr6, Mac};
pub use build::{Build, LedgerVersions, SelfCheck};
pub use config::{
    Accept, BalanceRules, Config, ConfigError, ConfigFile, EcnMode, Estimate, Handshake, Link, LinkFile, LinkType,
    LinkV6, Ports, Recovery, RecoveryMode, Scaling, Scheduling, Scheme, Servers, SessionSizes, Steering, Tcp, Users,
    Wait,
};
pub use names::{Paths, StackName, runtime_directory};
pub use notation::{COMPONENT_MAX, Component, Notation, NotationError};
pub use plan::{Plan, Process, SERVERS_MAX};
pub use report::{
    AddressReport, BuildReport, ConfinementReport, DhcpReport, FileSystem, HandshakeReport, LinkReport, MemoryReport,
    Rates, RecoveryReport, RecoveryTimes, ReplicaReport, ReportPart, RunAs, ScalingReport, ServerReport, ServerState,
    ServerView, SessionReport, StackReport, StatusReport,
};
pub use request::{CliRequest, Incoming, classify};
pub use rights::{Asker, Door, Rights};
pub use scaling::{Scaler, host_of};
pub use sessions::{ClientId, Departure, Joined, MEMBERS_MAX, MEMBERSHIPS_MAX, Sessions, Standing};
