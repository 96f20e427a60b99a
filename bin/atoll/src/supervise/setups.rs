//! What is each process told when it starts? What the configuration and the plan say of it.

use atoll_supervisor::{Component, Config, Plan, Steering};

use super::identity::Identity;
use crate::setup::{
    HostSetup, IpServerSetup, LinkServerSetup, LinkSetup, LinkSide, ManagerSetup, ProcessSetup, ReplicaSetup,
    SEGMENT_MAX, ServerSetup,
};

/// What a process for replicas is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duty {
    /// It is the one with this number, and has those replicas that are to be there, or is about to.
    Replicas(usize),
    /// It waits until another one dies, and has so many octets of its memory ready for what it is given then.
    Standby { memory: u64 },
}

/// What setups are made of.
pub struct Setups<'a> {
    /// The configuration of the stack.
    pub config: &'a Config,
    /// What the stack is besides.
    pub identity: &'a Identity,
    /// Its servers.
    pub plan: &'a Plan,
}

impl Setups<'_> {
    /// What replica `index` is told. `epochs`: the incarnations of all servers; `has_device`: there is a TAP;
    /// `link`: which end of a shared-memory link this stack is.
    pub fn replica(&self, index: u8, epochs: &[u32], has_device: bool, link: Option<LinkSide>) -> ReplicaSetup {
        let (config, plan, identity) = (self.config, self.plan, self.identity);
        let server = usize::from(index);
        let has_tap = has_device && plan.queue_of(server).is_some();
        let ip_server = Some(plan.server_for(server, Component::Ip)).filter(|_| plan.is_ip_apart());
        let served_by = ip_server.unwrap_or(plan.server_for(server, Component::Ls)) as u8;
        let manager = plan.server_for(server, Component::Cm);
        ReplicaSetup {
            index,
            replicas: config.replicas(),
            servers: plan.processes().len() as u8,
            epoch: epoch_of(epochs, server),
            pairs: self.partners(server),
            epochs: epochs.iter().copied().take(config.replicas().into()).collect(),
            managers: plan.servers_of(Component::Cm).count() as u8,
            manager: (manager != server).then_some(manager as u8),
            manager_epoch: epoch_of(epochs, manager),
            managers_apart: plan.are_managers_apart(),
            ip_server: ip_server.map(|server| server as u8),
            ip_servers: if ip_server.is_some() { plan.servers_of(Component::Ip).count() as u8 } else { 0 },
            has_tap,
            link_server: (has_device && !has_tap).then_some(served_by),
            segment_max: if identity.offload { SEGMENT_MAX } else { 0 },
            software_steering: identity.steering == Steering::Software,
            link: link.map(|side| LinkSetup { side }),
            recovery: config.recovery.mode,
        }
    }

    /// What a process for replicas is told.
    pub fn host(&self, duty: Duty) -> HostSetup {
        let replicas = usize::from(self.config.replicas());
        let (number, standby) = match duty {
            Duty::Replicas(number) => (number, None),
            // One that no other has.
            Duty::Standby { memory } => (replicas, Some(memory)),
        };
        let cpu = if standby.is_some() { None } else { cpu_of(self.config, number) };
        HostSetup {
            process: self.process(number as u8, cpu),
            standby,
            has_tap: self.identity.device.is_some()
                && (0..replicas).any(|replica| self.plan.queue_of(replica).is_some()),
        }
    }

    /// What a link server is told.
    pub fn link_server(&self, server: usize, epochs: &[u32]) -> LinkServerSetup {
        LinkServerSetup {
            common: self.server(server, self.plan.queue_of(server), epochs),
            first_replica: self.plan.replicas_of(server).next().unwrap_or(0) as u8,
            peers: self.plan.servers_of(Component::Ip).map(|server| server as u8).collect(),
        }
    }

    /// What an IP server is told.
    pub fn ip_server(&self, server: usize, epochs: &[u32]) -> IpServerSetup {
        IpServerSetup {
            common: self.server(server, self.plan.ip_of(server), epochs),
            ip_servers: self.plan.servers_of(Component::Ip).map(|server| server as u8).collect(),
            servers: self.plan.processes().len() as u8,
            has_tap: self.plan.queue_of(server).is_some(),
            link_server: self.plan.link_of(server) as u8,
        }
    }

    /// What a connection manager is told.
    pub fn manager(&self, server: usize, epochs: &[u32]) -> ManagerSetup {
        ManagerSetup {
            common: self.server(server, self.plan.manager_of(server), epochs),
            managers: self.plan.servers_of(Component::Cm).count() as u8,
        }
    }

    /// What every server in a process of its own is told. `index`: its number among those of its kind.
    fn server(&self, server: usize, index: Option<usize>, epochs: &[u32]) -> ServerSetup {
        ServerSetup {
            process: self.process(index.unwrap_or(0) as u8, cpu_of(self.config, server)),
            // Cannot truncate: there are few servers.
            server: server as u8,
            pairs: self.partners(server),
            epoch: epoch_of(epochs, server),
        }
    }

    fn process(&self, index: u8, cpu: Option<usize>) -> ProcessSetup {
        ProcessSetup {
            stack: self.config.name.to_string(),
            supervisor: self.identity.pid,
            user: self.identity.servers,
            guarded: self.identity.guardian.is_some(),
            descriptors: 0, // Counted when they are gathered.
            index,
            cpu,
            batch_scheduling: self.config.scheduling.batch,
        }
    }

    /// The servers with which this one shares memory.
    fn partners(&self, server: usize) -> Vec<u8> {
        // Cannot truncate: there are few servers.
        self.plan.partners_of(server).map(|other| other as u8).collect()
    }
}

fn epoch_of(epochs: &[u32], server: usize) -> u32 {
    epochs.get(server).copied().unwrap_or(1)
}

/// The processor that a server is to run on.
pub fn cpu_of(config: &Config, server: usize) -> Option<usize> {
    let cpus = &config.scheduling.cpus;
    (!cpus.is_empty()).then(|| cpus[server % cpus.len()])
}
