//! The processes of a configuration, and which of them serve which.
//!
//! ```text
//!   TS4LS1CM4    server 0  TS IP LS CM        TS2CM2+LS1   server 0  TS IP CM
//!                server 1  TS IP    CM                     server 1  TS IP CM
//!                server 2  TS IP    CM                     server 2        LS
//!                server 3  TS IP    CM
//!
//!   TS2CM2+IP1LS1    server 0  TS       CM     TS2+IP2+LS1+CM2    servers 0, 1  TS
//!                    server 1  TS       CM                        servers 2, 3     IP
//!                    server 2     IP LS                           server 4            LS
//!                                                                 servers 5, 6           CM
//! ```
//! Servers with a TS come first, so that the number of a replica is its server's. Every two servers that talk
//! have rings between them.

use atoll_base::FLOW_GROUPS;

use crate::notation::{COMPONENT_MAX, Component, Notation};

/// The largest number of processes of one stack: each component in processes of its own.
pub const SERVERS_MAX: usize = Component::ALL.len() * COMPONENT_MAX as usize;

/// The processes of a stack, by server number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    processes: Vec<Process>,
}

/// The components of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Process {
    components: [bool; 4],
}

impl Process {
    /// Returns whether the process has a server of this component.
    pub fn has(self, component: Component) -> bool {
        self.components[component as usize]
    }
}

impl Notation {
    /// Returns the processes of this configuration.
    pub fn plan(self) -> Plan {
        Plan::new(self)
    }
}

impl Plan {
    /// Creates the plan of a configuration.
    pub(crate) fn new(notation: Notation) -> Plan {
        let mut processes = Vec::new();
        for kind in Component::ALL {
            let parts = Component::ALL
                .map(|component| Some(notation.part(component)).filter(|part| part.kind == kind));
            let count = parts.iter().flatten().map(|part| part.count).max().unwrap_or(0);
            let process = |number| Process {
                components: parts.map(|part| part.is_some_and(|part| number < part.count)),
            };
            processes.extend((0..count).map(process));
        }
        processes.sort_by_key(|process| !process.has(Component::Ts));
        Plan { processes }
    }

    /// Returns all processes, those with a TS first.
    pub fn processes(&self) -> &[Process] {
        &self.processes
    }

    /// Returns the servers that have this component, in order.
    pub fn servers_of(&self, component: Component) -> impl Iterator<Item = usize> + Clone {
        (0..self.processes.len()).filter(move |&server| self.processes[server].has(component))
    }

    /// Returns the server of `component` that works for the TS in server `ts`; the servers of a component are
    /// assigned in turn.
    pub fn server_for(&self, ts: usize, component: Component) -> usize {
        let servers = self.servers_of(component);
        let count = servers.clone().count();
        servers.clone().nth(ts % count.max(1)).unwrap_or(ts)
    }

    /// Returns whether two different servers exchange frames or messages.
    pub fn talk(&self, one: usize, other: usize) -> bool {
        use Component::{Cm, Ip, Ls, Ts};
        let (Some(one), Some(other)) = (self.processes.get(one), self.processes.get(other)) else {
            return false;
        };
        let alike = [Ts, Ip, Cm].into_iter().any(|component| one.has(component) && other.has(component));
        let across = [(Ts, Ip), (Ts, Cm), (Ip, Ls)];
        alike || across.into_iter().any(|(a, b)| one.has(a) && other.has(b) || one.has(b) && other.has(a))
    }

    /// Returns the servers that exchange frames or messages with this one, in order.
    pub fn partners_of(&self, server: usize) -> impl Iterator<Item = usize> {
        (0..self.processes.len()).filter(move |&other| other != server && self.talk(server, other))
    }

    /// Returns the number of the CM in `server`, if there is one.
    pub fn manager_of(&self, server: usize) -> Option<usize> {
        self.servers_of(Component::Cm).position(|other| other == server)
    }

    /// Returns the replicas for which the CM in `server` chooses acceptors.
    pub fn managed_by(&self, server: usize) -> impl Iterator<Item = usize> {
        self.servers_of(Component::Ts).filter(move |&ts| self.server_for(ts, Component::Cm) == server)
    }

    /// Returns whether some CM is in a process without a TS.
    pub fn are_managers_apart(&self) -> bool {
        self.servers_of(Component::Cm).any(|server| !self.processes[server].has(Component::Ts))
    }

    /// Returns whether some IP component is in a process without a TS.
    pub fn is_ip_apart(&self) -> bool {
        self.servers_of(Component::Ip).any(|server| !self.processes[server].has(Component::Ts))
    }

    /// Returns the number of the IP component in `server`, if there is one.
    pub fn ip_of(&self, server: usize) -> Option<usize> {
        self.servers_of(Component::Ip).position(|other| other == server)
    }

    /// Returns the replicas whose packets the IP component in `server` sends.
    pub fn ip_for(&self, server: usize) -> impl Iterator<Item = usize> {
        self.servers_of(Component::Ts).filter(move |&ts| self.server_for(ts, Component::Ip) == server)
    }

    /// Returns the server with the queue over which `server`, which has IP, sends its frames.
    pub fn link_of(&self, server: usize) -> usize {
        match (self.queue_of(server), self.ip_of(server)) {
            (None, Some(number)) => self.server_for(number, Component::Ls),
            _ => server,
        }
    }

    /// Returns the number of queues that the device needs: one for each LS.
    pub fn queues(&self) -> usize {
        self.servers_of(Component::Ls).count()
    }

    /// Returns the number of the queue that the LS in `server` has, if there is one.
    pub fn queue_of(&self, server: usize) -> Option<usize> {
        self.servers_of(Component::Ls).position(|other| other == server)
    }

    /// Returns the replicas whose frames the LS in `server` sends. Where there are more LSs than TSs, it
    /// returns the replica that the LS brings frames to.
    pub fn replicas_of(&self, server: usize) -> impl Iterator<Item = usize> {
        let (queues, queue) = (self.queues().max(1), self.queue_of(server));
        let replicas = self.servers_of(Component::Ts).count().max(1);
        (0..replicas)
            .filter(move |ts| queue.is_some_and(|queue| ts % queues == queue || queue % replicas == *ts))
    }

    /// Returns the queue of a flow group whose connections `owner` has, which is that of the owner's LS.
    /// Where there are more LSs than TSs, several work for one TS, and its groups are spread over them.
    pub fn queue_for(&self, group: usize, owner: u8) -> u8 {
        let (queues, replicas) = (self.queues().max(1), self.servers_of(Component::Ts).count().max(1));
        let owner = usize::from(owner) % replicas;
        let queue = if queues <= replicas {
            owner % queues
        } else {
            let choice = (queues - owner).div_ceil(replicas);
            owner + replicas * (group % FLOW_GROUPS / replicas % choice)
        };
        queue as u8
    }
}

#[cfg(test)]
mod tests;
