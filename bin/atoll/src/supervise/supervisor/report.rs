//! Reports the state of the stack: see `docs/cli.md`, "JSON".

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use atoll_base::{FLOW_GROUPS, FlowGroup};
use atoll_ipc::network::{AddressFacts, AddressState, DhcpFacts, Network, V4Facts};
use atoll_ipc::page::{ReplicaPage, Stat};
use atoll_shm::ShmMemory;
use atoll_supervisor::{
    AddressReport, ConfinementReport, DhcpReport, HandshakeReport, LinkReport, LinkType, ReplicaReport,
    ReportPart, ServerReport, SessionReport, StackReport, StatusReport,
};
use atoll_sys::{Clock, process};

use super::Supervisor;
use crate::clock;
use crate::supervise::spawn;

/// The counters of a link server.
const LINK_SERVER_STATS: &[Stat] = &[
    Stat::FramesIn,
    Stat::BytesIn,
    Stat::FramesOut,
    Stat::BytesOut,
    Stat::FramesForwarded,
    Stat::ForwardDrops,
    Stat::SendFailures,
    Stat::BellsRung,
    Stat::Sleeps,
    Stat::Rounds,
    Stat::BusyNanos,
];

/// The counters of an IP server.
const IP_SERVER_STATS: &[Stat] = &[
    Stat::FramesIn,
    Stat::BytesIn,
    Stat::FramesOut,
    Stat::BytesOut,
    Stat::FramesForwarded,
    Stat::ForwardDrops,
    Stat::SendFailures,
    Stat::FramesDropped,
    Stat::FragmentsIn,
    Stat::FragmentsOut,
    Stat::Reassembled,
    Stat::ReassemblyTimeouts,
    Stat::ReassemblyEvictions,
    Stat::FragmentsMalformed,
    Stat::FragmentsTiny,
    Stat::FragmentsOverlapping,
    Stat::FragmentsDuplicate,
    Stat::DhcpIgnored,
    Stat::ArpConflicts,
    Stat::Unresolved,
    Stat::Refused,
    Stat::MessagesIn,
    Stat::MessagesOut,
    Stat::MessagesBad,
    Stat::BellsRung,
    Stat::Sleeps,
    Stat::Rounds,
    Stat::BusyNanos,
];

/// The counters of a connection manager.
const MANAGER_STATS: &[Stat] = &[
    Stat::PeerOffersOut,
    Stat::PeerOffersIn,
    Stat::PeerOffersTaken,
    Stat::PeerMessagesDropped,
    Stat::ServiceReportsOut,
    Stat::ServiceReportsIn,
    Stat::MessagesIn,
    Stat::MessagesOut,
    Stat::MessagesBad,
    Stat::BellsRung,
    Stat::Sleeps,
    Stat::Rounds,
    Stat::BusyNanos,
];

impl Supervisor {
    /// Returns the answer to `atoll status`, in parts.
    pub(super) fn report(&self) -> Vec<ReportPart> {
        let mut parts = vec![ReportPart::Stack(Box::new(self.stack_report()))];
        parts.extend(
            self.servers
                .replica_numbers()
                .map(|index| ReportPart::Replica(Box::new(self.replica_report(index)))),
        );
        let servers = self.servers.replica_count()..self.servers.len();
        parts.extend(
            servers
                .clone()
                .filter_map(|server| self.link_server_report(server))
                .map(|r| ReportPart::LinkServer(r.into())),
        );
        parts.extend(
            servers
                .clone()
                .filter_map(|server| self.ip_server_report(server))
                .map(|r| ReportPart::IpServer(r.into())),
        );
        parts.extend(
            servers.filter_map(|server| self.manager_report(server)).map(|r| ReportPart::Manager(r.into())),
        );
        parts.extend(self.books.ids().filter_map(|id| self.session_report(id)).map(ReportPart::Session));
        parts
    }

    /// Returns the whole report, for `atoll run --stats`.
    pub(super) fn final_report(&self) -> Option<StatusReport> {
        StatusReport::assemble(self.report())
    }

    fn stack_report(&self) -> StackReport {
        let (config, identity) = (&self.config, &self.identity);
        let calls = self.books.library_calls();
        let link = &config.link;
        let (v4, dhcp) = self.v4();
        let is_tap = link.kind == LinkType::Tap;
        StackReport {
            name: config.name.to_string(),
            pid: identity.pid,
            guardian: identity.guardian,
            memory: self.memory_report(),
            standby: self.standby_pid(),
            takeovers: identity.takeovers,
            configuration: config.notation.to_string(),
            version: env!("CARGO_PKG_VERSION").into(),
            uptime_s: clock::now().since(identity.started).as_secs_f64(),
            socket: identity.socket.display().to_string(),
            link: LinkReport {
                kind: link.kind,
                device: identity.device.clone(),
                netns: link.netns.clone().filter(|_| is_tap),
                address: v4.map(|own| own.addr.into()),
                prefix: v4.map(|own| own.prefix_len),
                dhcp,
                peer_address: link.peer_address.map(|peer| peer.to_string()),
                gateway: v4.map(|own| own.gateway).filter(|gateway| *gateway != 0).map(Ipv4Addr::from),
                addresses6: self.addresses6(),
                gateway6: link.v6.and_then(|v6| v6.gateway),
                mac: identity.mac.to_string(),
                mtu: v4.map_or(link.mtu, |own| own.mtu),
                offload: identity.offload,
                steering: identity.steering,
                peer: link.peer.as_ref().map(ToString::to_string),
                peer_present: self.link.is_peer_present(),
            },
            scaling: self.scaling_report(),
            sessions_opened: self.books.opened_ever(),
            library_calls: calls.calls,
            library_calls_with_syscall: calls.with_system_call,
            confinement: ConfinementReport::of(
                self.confined_pages().map(|page| page.layers()),
                identity.uid == 0 && process::has_other_users(),
            ),
        }
    }

    /// Returns the page of each process, which shows how the process is confined.
    fn confined_pages(&self) -> impl Iterator<Item = &ReplicaPage<ShmMemory>> {
        self.hosts.pages().chain(self.memory.others().iter().map(|server| &server.page))
    }

    /// Returns the IPv4 address that the first replica reports, and where it comes from.
    fn v4(&self) -> (Option<V4Facts>, Option<DhcpReport>) {
        let Some(replica) = self.memory.replicas().first() else { return (None, None) };
        let Network { v4, dhcp, .. } = replica.page.network();
        let now = Clock::kernel().now().as_nanos();
        let until = v4.map(|own| own.valid_until).filter(|until| *until != u64::MAX);
        let report = |dhcp: DhcpFacts| DhcpReport {
            state: dhcp.state.name().into(),
            server: v4.map(|_| dhcp.server.into()),
            valid_s: until.map(|until| until.saturating_sub(now) / 1_000_000_000),
            dns: dhcp.dns.into_iter().map(Ipv4Addr::from).collect(),
            domain: Some(dhcp.domain).filter(|domain| !domain.is_empty()),
        };
        (v4, dhcp.map(report))
    }

    /// Returns the IPv6 addresses that the first replica reports; all replicas have the same.
    fn addresses6(&self) -> Vec<AddressReport> {
        let Some(replica) = self.memory.replicas().first() else { return Vec::new() };
        let now = Clock::kernel().now().as_nanos();
        let left = |until: u64| (until != u64::MAX).then(|| until.saturating_sub(now) / 1_000_000_000);
        let report = |own: &AddressFacts| {
            let state = match own.state {
                AddressState::Tentative => Some("tentative"),
                AddressState::Preferred => None,
                AddressState::Deprecated => Some("deprecated"),
                AddressState::Duplicate => Some("dadfailed"),
            };
            let flags = own.dynamic.then_some("dynamic").into_iter().chain(state).map(str::to_owned);
            AddressReport {
                address: own.addr.octets().into(),
                prefix: own.prefix_len,
                scope: if own.addr.is_link_local() { "link" } else { "global" }.into(),
                flags: flags.collect(),
                valid_s: left(own.valid_until),
                preferred_s: left(own.preferred_until),
            }
        };
        replica.page.network().addresses.iter().map(report).collect()
    }

    fn replica_report(&self, index: usize) -> ReplicaReport {
        let (replica, memory) = (&self.servers.replicas()[index], &self.memory.replicas()[index]);
        let pid = replica.pid().unwrap_or(0);
        let use_ = spawn::processor_use(pid);
        let owned = |group: &u16| usize::from(self.memory.stack.owner(FlowGroup(*group)).0) == index;
        let stats: BTreeMap<String, u64> =
            Stat::ALL.iter().map(|&stat| (stat.name().to_owned(), memory.page.stat(stat))).collect();
        ReplicaReport {
            index: index as u8,
            process: self.process_of(index) as u8,
            pid,
            epoch: replica.record().epoch(),
            build: replica.program().report(),
            recovery: replica.record().life().report(),
            cpu: use_.cpu,
            cpu_ms: use_.ms,
            policy: use_.policy,
            ledger: self.memory.ledger_version(index),
            flow_groups: (0..FLOW_GROUPS as u16).filter(owned).count() as u32,
            handshakes: HandshakeReport::of(&stats),
            stats,
            rates: None,
        }
    }

    fn link_server_report(&self, server: usize) -> Option<ServerReport> {
        let plan = self.config.notation.plan();
        let queue = plan.queue_of(server).filter(|_| plan.ip_of(server).is_none())?;
        self.server_report(server, queue, plan.replicas_of(server), LINK_SERVER_STATS)
    }

    fn ip_server_report(&self, server: usize) -> Option<ServerReport> {
        let plan = self.config.notation.plan();
        let report = self.server_report(server, plan.ip_of(server)?, plan.ip_for(server), IP_SERVER_STATS)?;
        Some(ServerReport { queue: plan.queue_of(server).map(|queue| queue as u8), ..report })
    }

    fn manager_report(&self, server: usize) -> Option<ServerReport> {
        let plan = self.config.notation.plan();
        self.server_report(server, plan.manager_of(server)?, plan.managed_by(server), MANAGER_STATS)
    }

    /// Returns the report of a server, or `None` if it is a replica. `server` is its number among all,
    /// `index` that among those of its kind; `serves` has the replicas that it works for.
    fn server_report(
        &self,
        server: usize,
        index: usize,
        serves: impl Iterator<Item = usize>,
        counted: &[Stat],
    ) -> Option<ServerReport> {
        if self.servers.is_replica(server) {
            return None;
        }
        let (process, memory) = (self.servers.get(server)?, self.memory.servers().get(server)?);
        let pid = process.pid().unwrap_or(0);
        let use_ = spawn::processor_use(pid);
        Some(ServerReport {
            index: index as u8,
            pid,
            epoch: process.record().epoch(),
            build: process.program().report(),
            recovery: process.record().life().report(),
            cpu: use_.cpu,
            cpu_ms: use_.ms,
            policy: use_.policy,
            queue: None,
            serves: serves.map(|ts| ts as u8).collect(),
            stats: counted.iter().map(|&stat| (stat.name().to_owned(), memory.page.stat(stat))).collect(),
            rates: None,
        })
    }

    fn session_report(&self, id: u32) -> Option<SessionReport> {
        let memory = self.books.open(id)?;
        let (calls, ways) = (memory.library_calls(), memory.ways());
        let members =
            self.books.members(id).filter_map(|(_, client)| Some(self.clients.get(client)?.peer().pid));
        Some(SessionReport {
            id,
            pid: memory.pid,
            comm: spawn::comm(memory.pid),
            members: members.collect(),
            calls: calls.calls,
            calls_with_syscall: calls.with_system_call,
            calls_by_instruction: ways.by_instruction,
            calls_by_trap: ways.by_trap,
            interception: ways.interception.name().to_owned(),
        })
    }
}
