//! The setups that the processes of a stack get when they start, made from the configuration and the plan.

use atoll_supervisor::{Component, Config, Plan, Steering};

use super::identity::Identity;
use crate::setup::{
    HostSetup, IpServerSetup, LinkServerSetup, LinkSetup, LinkSide, ManagerSetup, ProcessSetup, ReplicaSetup,
    SEGMENT_MAX, ServerSetup,
};

/// The purpose of a process for replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duty {
    /// The process has this number, and the replicas that are to be in it.
    Replicas(usize),
    /// The process is a standby until another one dies, and holds this many bytes of memory ready for the
    /// replicas that it is given then.
    Standby { memory: u64 },
}

/// The inputs from which setups are made.
pub struct Setups<'a> {
    /// The configuration of the stack.
    pub config: &'a Config,
    /// The properties of the stack besides its configuration.
    pub identity: &'a Identity,
    /// The servers of the stack.
    pub plan: &'a Plan,
}

impl Setups<'_> {
    /// Returns the setup of replica `index`. `epochs` has the incarnations of all servers; `has_device` says
    /// whether there is a TAP device; `link` is the end of a shared-memory link that this stack has.
    pub fn replica(
        &self,
        index: u8,
        epochs: &[u32],
        has_device: bool,
        link: Option<LinkSide>,
    ) -> ReplicaSetup {
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

    /// Returns the setup of a process for replicas.
    pub fn host(&self, duty: Duty) -> HostSetup {
        let replicas = usize::from(self.config.replicas());
        let (number, standby) = match duty {
            Duty::Replicas(number) => (number, None),
            // A standby has a number that no other process has.
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

    /// Returns the setup of a link server.
    pub fn link_server(&self, server: usize, epochs: &[u32]) -> LinkServerSetup {
        LinkServerSetup {
            common: self.server(server, self.plan.queue_of(server), epochs),
            first_replica: self.plan.replicas_of(server).next().unwrap_or(0) as u8,
            peers: self.plan.servers_of(Component::Ip).map(|server| server as u8).collect(),
        }
    }

    /// Returns the setup of an IP server.
    pub fn ip_server(&self, server: usize, epochs: &[u32]) -> IpServerSetup {
        IpServerSetup {
            common: self.server(server, self.plan.ip_of(server), epochs),
            ip_servers: self.plan.servers_of(Component::Ip).map(|server| server as u8).collect(),
            servers: self.plan.processes().len() as u8,
            has_tap: self.plan.queue_of(server).is_some(),
            link_server: self.plan.link_of(server) as u8,
        }
    }

    /// Returns the setup of a connection manager.
    pub fn manager(&self, server: usize, epochs: &[u32]) -> ManagerSetup {
        ManagerSetup {
            common: self.server(server, self.plan.manager_of(server), epochs),
            managers: self.plan.servers_of(Component::Cm).count() as u8,
        }
    }

    /// Returns the part that is common to all servers in processes of their own. `index` is the server's
    /// number among those of its kind.
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

    /// Returns the servers with which this one shares memory.
    fn partners(&self, server: usize) -> Vec<u8> {
        // Cannot truncate: there are few servers.
        self.plan.partners_of(server).map(|other| other as u8).collect()
    }
}

fn epoch_of(epochs: &[u32], server: usize) -> u32 {
    epochs.get(server).copied().unwrap_or(1)
}

/// Returns the processor that a server is to run on, or `None` if the kernel chooses.
pub fn cpu_of(config: &Config, server: usize) -> Option<usize> {
    let cpus = &config.scheduling.cpus;
    (!cpus.is_empty()).then(|| cpus[server % cpus.len()])
}
