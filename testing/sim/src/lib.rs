//! Deterministic simulation: two TCP endpoints ([`Pair`]) or whole stacks with their applications ([`World`])
//! over a link that loses, repeats, reorders and delays; many connections over shared lines with rates and
//! queues ([`Network`]).
//!
//! The checks that have to hold at every step, whatever the network does, are in `checks`.
//!
//! One seed decides everything: a failing seed prints itself and replays exactly.
#![forbid(unsafe_code)]

mod adversary;
mod checks;
mod flow;
mod host;
mod ip_servers;
mod link;
mod link_server;
mod managers;
mod middlebox;
mod mortal;
mod network;
mod pair;
mod random_network;
mod stranger;
mod trace;
mod violation;
mod world;

pub use flow::{Flow, FlowSettings, Outgoing};
pub use host::{Host, Plan};
pub use ip_servers::IpPlan;
pub use link::{Link, LinkSettings};
pub use managers::ManagerPlan;
pub use middlebox::Middlebox;
pub use mortal::{Life, Mortal, POISON};
pub use network::{Network, NetworkSettings, RoutedFlow};
pub use pair::{Failure, Pair, Report, Scenario};
pub use violation::Violation;
pub use world::{
    Appetite, Going, Hoard, Poison, ScaledBy, ScalingPlan, Shortage, Story, Told, Workforce, World,
    WorldViolation,
};

/// Returns the seeds to try: `usual` many, unless `ATOLL_SEED=n` names one to replay or `ATOLL_SEEDS=n`
/// another number.
pub fn seeds(usual: u64) -> core::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    match number("ATOLL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("ATOLL_SEEDS").unwrap_or(usual),
    }
}
