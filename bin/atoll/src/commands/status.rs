//! `atoll status`: shows what the replicas and the sessions of a stack are doing.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use atoll_ipc::page::Stat;
use atoll_supervisor::{
    BuildReport, ConfinementReport, FileSystem, LinkType, MemoryReport, Rates, RecoveryReport, ReplicaReport,
    RunAs, ServerReport, ServerState, ServerView, StackName, StatusReport, Steering,
};

use crate::client::SupervisorClient;
use crate::failure::{Failure, OrFail};

/// Show a stack: its link, its replicas with what they count, and the programs on it.
#[derive(clap::Args)]
pub struct Status {
    /// The stack.
    #[arg(default_value = "default")]
    name: StackName,
    /// Print JSON, with all counters (docs/cli.md).
    #[arg(long, short = 'j')]
    json: bool,
    /// Show all counters that are not zero.
    #[arg(long, short = 'v', conflicts_with = "json")]
    verbose: bool,
    /// The time over which rates are measured, in milliseconds; 0 shows no rates.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 200)]
    interval: u64,
}

impl Status {
    /// Runs the command. Returns its exit status.
    pub fn run(&self) -> Result<ExitCode, Failure> {
        let supervisor = SupervisorClient::connect(&self.name)?;
        let mut report = supervisor.status()?;
        if self.interval > 0 {
            let before = report;
            let start = Instant::now();
            thread::sleep(Duration::from_millis(self.interval));
            report = supervisor.status()?;
            add_rates(&before, &mut report, start.elapsed());
        }
        if self.json {
            println!("{}", serde_json::to_string_pretty(&report).or_fail("writing JSON")?);
        } else {
            print!("{}", super::harmless(&text(&report, self.verbose)));
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn add_rates(before: &StatusReport, after: &mut StatusReport, time: Duration) {
    let seconds = time.as_secs_f64().max(1e-6);
    for (old, new) in before.replicas.iter().zip(&mut after.replicas) {
        new.rates = Some(rates(&old.stats, &new.stats, seconds));
    }
    let others = [
        (&before.link_servers, &mut after.link_servers),
        (&before.ip_servers, &mut after.ip_servers),
        (&before.connection_managers, &mut after.connection_managers),
    ];
    for (old, new) in others.into_iter().flat_map(|(before, after)| before.iter().zip(after)) {
        new.rates = Some(rates(&old.stats, &new.stats, seconds));
    }
}

fn rates(old: &BTreeMap<String, u64>, new: &BTreeMap<String, u64>, seconds: f64) -> Rates {
    // A counter may go back: what a server counted in its last moments dies with it.
    let per_second = |name: &str| counter(new, name).saturating_sub(counter(old, name)) as f64 / seconds;
    Rates {
        frames_in: per_second("frames_in"),
        frames_out: per_second("frames_out"),
        bits_in: per_second("bytes_in") * 8.0,
        bits_out: per_second("bytes_out") * 8.0,
        connections: per_second("passive_opens") + per_second("active_opens"),
        busy: (per_second("busy_nanos") / 1e9).min(1.0),
    }
}

fn counter(stats: &BTreeMap<String, u64>, name: &str) -> u64 {
    stats.get(name).copied().unwrap_or(0)
}

// structure: text: a paragraph for each section of the page
fn text(report: &StatusReport, verbose: bool) -> String {
    let stack = &report.stack;
    let mut out = format!(
        "stack {}  {}  pid {}{}{}  up {}  atoll {}\n",
        stack.name,
        stack.configuration,
        stack.pid,
        stack.guardian.map(|pid| format!("  guardian {pid}")).unwrap_or_default(),
        stack.standby.map(|pid| format!("  standby {pid}")).unwrap_or_default(),
        duration(stack.uptime_s),
        stack.version
    );
    out += &link(report);
    out += &confinement(&stack.confinement);
    out += &stack.memory.as_ref().map(memory).unwrap_or_default();
    out += &format!(
        "calls {}  without system call {}  sessions opened {}\n",
        stack.library_calls,
        share(stack.library_calls, stack.library_calls_with_syscall),
        stack.sessions_opened
    );
    out += &processes(report);
    let mut replicas = vec![row(REPLICA_COLUMNS)];
    replicas.extend(report.replicas.iter().map(replica_row));
    out += "\n";
    out += &table(&replicas);
    if !report.link_servers.is_empty() {
        let mut rows = vec![row(LINK_SERVER_COLUMNS)];
        rows.extend(report.link_servers.iter().map(link_server_row));
        out += "\n";
        out += &table(&rows);
    }
    if !report.ip_servers.is_empty() {
        let mut rows = vec![row(IP_SERVER_COLUMNS)];
        rows.extend(report.ip_servers.iter().map(ip_server_row));
        out += "\n";
        out += &table(&rows);
    }
    if !report.connection_managers.is_empty() {
        let mut rows = vec![row(MANAGER_COLUMNS)];
        rows.extend(report.connection_managers.iter().map(manager_row));
        out += "\n";
        out += &table(&rows);
    }
    out += &recoveries(report);
    if verbose {
        out += &handshakes(report);
        let replicas = report.replicas.iter().map(|replica| ("replica", replica.index, &replica.stats));
        let link_servers =
            report.link_servers.iter().map(|server| ("link server", server.index, &server.stats));
        let ip_servers = report.ip_servers.iter().map(|server| ("IP server", server.index, &server.stats));
        let managers = report
            .connection_managers
            .iter()
            .map(|server| ("connection manager", server.index, &server.stats));
        for (role, index, stats) in replicas.chain(link_servers).chain(ip_servers).chain(managers) {
            out += &format!("\n{role} {index}\n");
            for (name, value) in stats.iter().filter(|(_, value)| **value != 0) {
                out += &format!("  {name:<20} {value}\n");
            }
        }
    }
    out += "\n";
    if report.sessions.is_empty() {
        return out + "no sessions\n";
    }
    let head =
        ["SESSION", "PID", "COMMAND", "PROCESSES", "INTERCEPTION", "CALLS", "BY-TRAP", "WITHOUT-SYSCALL"];
    let mut sessions = vec![row(head)];
    sessions.extend(report.sessions.iter().map(|session| {
        let members: Vec<String> = session.members.iter().map(u32::to_string).collect();
        vec![
            session.id.to_string(),
            session.pid.to_string(),
            if session.comm.is_empty() { "(ended)".into() } else { session.comm.clone() },
            members.join(","),
            session.interception.clone(),
            session.calls.to_string(),
            session.calls_by_trap.to_string(),
            share(session.calls, session.calls_with_syscall),
        ]
    }));
    out + &table(&sessions)
}

fn link(report: &StatusReport) -> String {
    let link = &report.stack.link;
    let address = match (link.address, link.prefix) {
        (Some(address), Some(prefix)) => format!("{address}/{prefix}"),
        _ => "no address".into(),
    };
    let mut out = format!("link  {}  {address}  {}  mtu {}", link.kind, link.mac, link.mtu);
    if let Some(device) = &link.device {
        out += &format!("  device {device}");
    }
    for (key, value) in [("netns", &link.netns), ("peer", &link.peer_address)] {
        if let Some(value) = value {
            out += &format!("  {key} {value}");
        }
    }
    if let Some(gateway) = link.gateway {
        out += &format!("  gateway {gateway}");
    }
    if let Some(gateway) = link.gateway6 {
        out += &format!("  gateway6 {gateway}");
    }
    if let Some(peer) = &link.peer {
        out +=
            &format!("  to stack {peer} ({})", if link.peer_present == Some(true) { "up" } else { "down" });
    }
    if link.kind == LinkType::Tap {
        let steering = if link.steering == Steering::Bpf { "by bpf" } else { "in software" };
        out += &format!("  offload {}  steering {steering}", if link.offload { "on" } else { "off" });
    }
    out.push('\n');
    if let Some(dhcp) = &link.dhcp {
        out += &format!("      dhcp {}", dhcp.state);
        let names: Vec<String> = dhcp.dns.iter().map(ToString::to_string).collect();
        let valid =
            dhcp.server.map(|_| dhcp.valid_s.map_or("forever".to_owned(), |left| format!("{left}sec")));
        for (key, value) in [
            ("server", dhcp.server.map(|server| server.to_string())),
            ("valid_lft", valid),
            ("dns", Some(names.join(",")).filter(|names| !names.is_empty())),
            ("domain", dhcp.domain.clone()),
        ] {
            if let Some(value) = value {
                out += &format!("  {key} {value}");
            }
        }
        out.push('\n');
    }
    for own in &link.addresses6 {
        out += &format!("      inet6 {}/{} scope {}", own.address, own.prefix, own.scope);
        own.flags.iter().for_each(|flag| out += &format!(" {flag}"));
        let seconds = |left: Option<u64>| left.map_or("forever".to_owned(), |left| format!("{left}sec"));
        out += &format!("  valid_lft {} preferred_lft {}\n", seconds(own.valid_s), seconds(own.preferred_s));
    }
    out
}

/// Returns which replicas share a process; empty if each has its own, and that is how it stays.
fn processes(report: &StatusReport) -> String {
    let scaling = &report.stack.scaling;
    if usize::from(scaling.processes) == report.replicas.len()
        && scaling.wanted == scaling.processes
        && !scaling.auto
    {
        return String::new();
    }
    let mut hosted: BTreeMap<u8, (u32, Vec<String>)> = BTreeMap::new();
    for replica in &report.replicas {
        let (pid, replicas) = hosted.entry(replica.process).or_default();
        *pid = replica.pid;
        replicas.push(replica.index.to_string());
    }
    let all: Vec<String> =
        hosted.values().map(|(pid, replicas)| format!("{} in {pid}", replicas.join(","))).collect();
    format!("{}  replicas {}\n", super::scale::text(scaling), all.join("  "))
}

/// Returns the line about memory; the level is in capitals if memory is short.
fn memory(report: &MemoryReport) -> String {
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let level = match report.level.as_str() {
        "plenty" => "memory".into(),
        level => format!("MEMORY: {level}  "),
    };
    let stalls = if report.stalls { "  processes wait for memory" } else { "" };
    let (used, left, limit) = (mib(report.used), mib(report.left), mib(report.limit));
    format!("{level} {used}  left {left} of {limit} ({}){stalls}\n", report.bound)
}

/// Returns what the servers have given up; what the kernel does not let them give up is in capitals.
fn confinement(servers: &ConfinementReport) -> String {
    let capabilities = if servers.capabilities { "no capabilities" } else { "WITH CAPABILITIES" };
    let files = match servers.file_system {
        FileSystem::Landlock => "no files (landlock)",
        FileSystem::EmptyRoot => "no files (an empty root: the kernel has no landlock)",
        FileSystem::Open => "WITH FILES (the kernel has no landlock, and allows no empty root)",
    };
    let calls = if servers.seccomp {
        "few system calls (seccomp)"
    } else {
        "ALL SYSTEM CALLS (the kernel has no seccomp)"
    };
    let user = match servers.user {
        RunAs::Own => "  a user of their own",
        RunAs::Root => "  AS ROOT WITHOUT CAPABILITIES (there is no user for them: servers.user)",
        RunAs::Stack => "",
    };
    format!("servers  {capabilities}  {files}  {calls}{user}\n")
}

const REPLICA_COLUMNS: [&str; 15] = [
    "REPLICA",
    "PID",
    "BUILD",
    "EPOCH",
    "CPU",
    "POLICY",
    "BUSY",
    "GROUPS",
    "CONNS",
    "CONN/S",
    "FRAMES-IN/S",
    "FRAMES-OUT/S",
    "IN",
    "OUT",
    "RETRANS",
];

fn replica_row(replica: &ReplicaReport) -> Vec<String> {
    let rates = replica.rates.unwrap_or_default();
    let rate = |value: f64| if replica.rates.is_some() { quantity(value) } else { "-".into() };
    let bits = |value: f64| if replica.rates.is_some() { quantity(value) + "b/s" } else { "-".into() };
    vec![
        replica.index.to_string(),
        replica.pid.to_string(),
        build(&replica.build),
        replica.epoch.to_string(),
        replica.cpu.map_or("-".into(), |cpu| cpu.to_string()),
        replica.policy.clone().unwrap_or("-".into()),
        if replica.rates.is_some() { format!("{:.0}%", rates.busy * 100.0) } else { "-".into() },
        replica.flow_groups.to_string(),
        counter(&replica.stats, "connections").to_string(),
        rate(rates.connections),
        rate(rates.frames_in),
        rate(rates.frames_out),
        bits(rates.bits_in),
        bits(rates.bits_out),
        counter(&replica.stats, "retransmits").to_string(),
    ]
}

/// Returns where the time of incoming connections was spent, in microseconds; empty if none was timed.
fn handshakes(report: &StatusReport) -> String {
    let mut rows = vec![row(["REPLICA", "TIMED", "T-CM", "T-TCP", "T-MSG", "T-ACCEPT", "T-TOTAL"])];
    rows.extend(report.replicas.iter().filter_map(|replica| {
        let times = replica.handshakes?;
        let all = [times.t_cm_us, times.t_tcp_us, times.t_msg_us, times.t_accept_us, times.t_total_us];
        let head = [replica.index.to_string(), times.timed.to_string()];
        Some(head.into_iter().chain(all.map(|us| format!("{us:.2}us"))).collect())
    }));
    if rows.len() > 1 { format!("\n{}", table(&rows)) } else { String::new() }
}

const LINK_SERVER_COLUMNS: [&str; 13] = [
    "LINK-SERVER",
    "PID",
    "BUILD",
    "EPOCH",
    "CPU",
    "POLICY",
    "BUSY",
    "SERVES",
    "FRAMES-IN/S",
    "FRAMES-OUT/S",
    "IN",
    "OUT",
    "DROPS",
];

fn link_server_row(server: &ServerReport) -> Vec<String> {
    let mut cells = process_cells(server);
    cells.push(serves(server));
    cells.extend(traffic_cells(server));
    cells.push(counter(&server.stats, "forward_drops").to_string());
    cells
}

const IP_SERVER_COLUMNS: [&str; 14] = [
    "IP-SERVER",
    "PID",
    "BUILD",
    "EPOCH",
    "CPU",
    "POLICY",
    "BUSY",
    "QUEUE",
    "SERVES",
    "FRAMES-IN/S",
    "FRAMES-OUT/S",
    "IN",
    "OUT",
    "UNRESOLVED",
];

fn ip_server_row(server: &ServerReport) -> Vec<String> {
    let mut cells = process_cells(server);
    cells.extend([server.queue.map_or("-".into(), |queue| queue.to_string()), serves(server)]);
    cells.extend(traffic_cells(server));
    cells.push(counter(&server.stats, "unresolved").to_string());
    cells
}

const MANAGER_COLUMNS: [&str; 10] = [
    "CONNECTION-MANAGER",
    "PID",
    "BUILD",
    "EPOCH",
    "CPU",
    "POLICY",
    "BUSY",
    "SERVES",
    "MESSAGES-IN",
    "MESSAGES-OUT",
];

fn manager_row(server: &ServerReport) -> Vec<String> {
    let mut cells = process_cells(server);
    let messages = |name| counter(&server.stats, name).to_string();
    cells.extend([serves(server), messages("messages_in"), messages("messages_out")]);
    cells
}

/// Returns the cells from INDEX to BUSY, with which each row of a server begins.
fn process_cells(server: &ServerReport) -> Vec<String> {
    vec![
        server.index.to_string(),
        server.pid.to_string(),
        build(&server.build),
        server.epoch.to_string(),
        server.cpu.map_or("-".into(), |cpu| cpu.to_string()),
        server.policy.clone().unwrap_or("-".into()),
        server.rates.map_or("-".into(), |rates| format!("{:.0}%", rates.busy * 100.0)),
    ]
}

/// Returns the numbers of those whom the server serves, as `0,2`.
fn serves(server: &ServerReport) -> String {
    let serves: Vec<String> = server.serves.iter().map(u8::to_string).collect();
    if serves.is_empty() { "-".into() } else { serves.join(",") }
}

/// Returns the cells from FRAMES-IN/S to OUT.
fn traffic_cells(server: &ServerReport) -> [String; 4] {
    let cell = |text: fn(&Rates) -> String| server.rates.as_ref().map_or("-".into(), text);
    [
        cell(|rates| quantity(rates.frames_in)),
        cell(|rates| quantity(rates.frames_out)),
        cell(|rates| quantity(rates.bits_in) + "b/s"),
        cell(|rates| quantity(rates.bits_out) + "b/s"),
    ]
}

/// Formats a build as `0.1.0-4d85aa9f`.
fn build(build: &BuildReport) -> String {
    let id = build.id.as_deref().map_or("unknown", |id| id.get(..8).unwrap_or(id));
    format!("{}-{id}", build.version)
}

/// Returns the servers that have died, have moved to another process, or are not running.
fn recoveries(report: &StatusReport) -> String {
    let mut rows = vec![row(RECOVERY_COLUMNS)];
    for ServerView { kind, index, recovery, stats, .. } in report.servers() {
        if *recovery == RecoveryReport::default() {
            continue;
        }
        let state = match recovery.state {
            ServerState::Serving => "serving",
            ServerState::Starting | ServerState::Down => "restarting",
        };
        let times = recovery.last.unwrap_or_default();
        let time =
            |micros: u64| recovery.last.map_or("-".into(), |_| format!("{:.1}ms", micros as f64 / 1000.0));
        let connections = |stat: Stat| stats.get(stat.name()).map_or("-".into(), u64::to_string);
        let [kept, lost, quarantined] =
            [Stat::ConnectionsKept, Stat::ConnectionsLost, Stat::ConnectionsQuarantined].map(connections);
        rows.push(vec![
            format!("{kind} {index}"),
            state.into(),
            recovery.crashes.to_string(),
            recovery.moves.to_string(),
            time(times.start_us),
            time(times.ready_us),
            kept,
            lost,
            quarantined,
        ]);
    }
    let mut text = if rows.len() > 1 { format!("\n{}", table(&rows)) } else { String::new() };
    for ServerView { kind, index, recovery, .. } in report.servers() {
        if let Some(lacks) = &recovery.lacks {
            text += &format!("{kind} {index} waits until this has passed: {lacks}\n");
        }
    }
    text
}

const RECOVERY_COLUMNS: [&str; 9] =
    ["RESTARTED", "STATE", "CRASHES", "MOVED", "STARTED-IN", "READY-IN", "KEPT", "LOST", "QUARANTINED"];

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

/// Formats rows as left-aligned columns.
fn table(rows: &[Vec<String>]) -> String {
    super::table::lines(rows, 2, &[]).into_iter().map(|line| line + "\n").collect()
}

/// Formats a number as `12.3k`.
fn quantity(value: f64) -> String {
    match value {
        v if v >= 1e9 => format!("{:.1}G", v / 1e9),
        v if v >= 1e6 => format!("{:.1}M", v / 1e6),
        v if v >= 1e4 => format!("{:.1}k", v / 1e3),
        v => format!("{v:.0}"),
    }
}

fn share(calls: u64, with_system_call: u64) -> String {
    if calls == 0 {
        return "-".into();
    }
    format!("{:.2}%", 100.0 * calls.saturating_sub(with_system_call) as f64 / calls as f64)
}

/// Formats a time as `3d04h`, `2h05m`, `1m07s` or `4s`.
fn duration(seconds: f64) -> String {
    let s = seconds as u64;
    match s {
        0..60 => format!("{s}s"),
        60..3600 => format!("{}m{:02}s", s / 60, s % 60),
        3600..86_400 => format!("{}h{:02}m", s / 3600, s / 60 % 60),
        _ => format!("{}d{:02}h", s / 86_400, s / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        assert_eq!(
            [0.0, 9999.0, 12_345.0, 3.21e6, 9.87e9].map(quantity),
            ["0", "9999", "12.3k", "3.2M", "9.9G"]
        );
        assert_eq!([4.9, 67.0, 7500.0, 273_600.0].map(duration), ["4s", "1m07s", "2h05m", "3d04h"]);
        assert_eq!(share(0, 0), "-");
        assert_eq!(share(200, 1), "99.50%");
    }
}
