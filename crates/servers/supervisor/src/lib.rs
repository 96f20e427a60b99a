//! The decisions of a stack's supervisor: its configuration, its names, the sessions that are attached to it,
//! and the lives of its servers. This crate makes no system calls and reads no clock.
//!
//! ```text
//!   lives of servers    ServerRecord; Life: when is a dead one started again? Watchdog: does one hang?
//!                       Stops: is one stopped? Standby: which process succeeds it?
//!   their places        Placement: which replica moves? Scaler: how many processes? Upgrade: which build?
//!   requests            Rights: who may ask? Crowds and Budget: is there room? Pace: how often?
//!                       Questions: when is a request answered?
//!   memory              Room and Shortness: how much is left?
//!   the end             Drain: has everything been sent?
//!   the log             Said: what does a server report?
//! ```
//!
//! The supervisor process itself (descriptors, processes, devices) is `bin/atoll`, which asks this crate what
//! to do, and does it.
#![forbid(unsafe_code)]

mod address;
mod build;
mod config;
mod crowds;
mod drain;
mod life;
mod lingering;
mod names;
mod notation;
mod pace;
mod placement;
mod plan;
mod questions;
mod record;
mod report;
mod request;
mod rights;
mod room;
mod said;
mod scaling;
mod sessions;
mod standby;
mod stops;
mod upgrade;
mod watchdog;

pub use address::{AddressError, Cidr, Cidr6, Mac};
pub use build::{Build, LedgerVersions, Misfit, SelfCheck};
pub use config::{
    Accept, BalanceRules, Config, ConfigError, ConfigFile, EcnMode, Estimate, Handshake, Link, LinkFile,
    LinkType, LinkV6, Log, LogFormat, LogLevel, Ports, Recovery, RecoveryMode, Scaling, Scheduling, Scheme,
    Servers, SessionSizes, Steering, Tcp, Users, Wait,
};
pub use crowds::{Admission, Budget, Crowds};
pub use drain::{Activity, Drain, DrainStep};
pub use life::{Life, READY_TIME, Recovery as LifeRecovery, VAIN_STARTS_MAX};
pub use lingering::{LINGERING_MAX, Lingering};
pub use names::{NameError, Paths, StackName, runtime_directory};
pub use notation::{COMPONENT_MAX, Component, Notation, NotationError};
pub use pace::{ATTACH_COST, JOIN_COST, Pace};
pub use placement::{
    Busy, Change, GivenUp, Placement, PlacementError, PlacementStep, Stand, Target, count as count_processes,
};
pub use plan::{Plan, Process, SERVERS_MAX};
pub use questions::{Answer, Questions};
pub use record::{FIRST_EPOCH, Fault, Past, ServerRecord};
pub use report::{
    AddressReport, BuildReport, ConfinementReport, DhcpReport, FileSystem, HandshakeReport, LinkReport,
    MemoryReport, Rates, RecoveryReport, RecoveryTimes, ReplicaReport, ReportPart, RunAs, ScalingReport,
    ServerReport, ServerState, ServerView, SessionReport, StackReport, StatusReport,
};
pub use request::{CliRequest, Incoming, RequestError, classify};
pub use rights::{Asker, Caller, Door, Rights};
pub use room::{Room, RoomOf, Shortness, Stalls};
pub use said::{SAID_FIELDS_MAX, SAID_MAX, Said, SaidValue};
pub use scaling::{Scaler, host_of};
pub use sessions::{ClientId, Departure, Joined, MEMBERS_MAX, MEMBERSHIPS_MAX, Sessions, Standing};
pub use standby::{Action as StandbyAction, Standby, There, is_enough, memory_for};
pub use stops::Stops;
pub use upgrade::{Side, Step as UpgradeStep, Upgrade};
pub use watchdog::{Judgement, Running, Signs, Watch, Watchdog};
