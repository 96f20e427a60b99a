//! Checks that a neighbour does not notice attacks from programs on its own stack.
//!
//! In every run no octet of the neighbour's text is lost or changed, no request is refused or stalls, and no
//! replica dies. Memory stays within bounds, and the stack serves a program that comes later. With
//! `ATOLL_SOAK` the neighbour also keeps 80 % of the rate and has at most twice the latency that it has
//! beside a fair busy program. Rates of short runs are printed, not judged.
#![forbid(unsafe_code)]

use std::process::Command;
use std::time::{Duration, Instant};

use atoll_attacks::{ATTACKS, Attack, Means, of_name};
use atoll_system_tests::{Net, Proc, Stack, alone, compiled_of, soak, until};
use serde_json::Value;

macro_rules! attacks {
    ($($test:ident $name:literal,)*) => {
        $(#[test] fn $test() { judge(of_name($name)) })*

        /// The names of the attacks that have a test.
        const TESTED: &[&str] = &[$($name),*];
    };
}

attacks! {
    scribble "scribble",
    commands "commands",
    groups "groups",
    listeners "listeners",
    connects "connects",
    options "options",
    udp_open "udp-open",
    listen "listen",
    usurper "usurper",
    openers "openers",
    attach "attach",
    sessions "sessions",
    rubbish "rubbish",
    askers "askers",
    reopen "reopen",
    hog "hog",
    reader "reader",
    bells "bells",
    udp_self "udp-self",
    udp_flood "udp-flood",
    churn "churn",
    stopped "stopped",
    ring "ring",
    forks "forks",
    admin "admin",
    thief "thief",
    segv "segv",
}

#[test]
fn every_attack_is_tested() {
    assert!(ATTACKS.iter().map(|attack| attack.name).eq(TESTED.iter().copied()), "in the order of the table");
}

/// Prints the table of attacks: `cargo test -p atoll-attacks table -- --nocapture`.
#[test]
fn table() {
    for Attack { name, does, stopped_by, .. } in ATTACKS {
        println!("{name:10} {does}; stopped by: {stopped_by}");
    }
}

const NEIGHBOURS_PORT: &str = "7000";
const ATTACKERS_PORT: &str = "7100";
/// The longest wait for anything, which is longer than a server that dies is away, even on a busy machine.
const STALL_MAX_MS: u64 = 20_000;

/// Returns how long an attack lasts.
fn attack_time() -> Duration {
    let told = std::env::var("ATTACK_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(told.unwrap_or(if soak() { 20 } else { 1 }))
}

fn judge(attack: &Attack) {
    let seen = observe(Some(attack), attack_time());
    println!("{}: {}", attack.name, seen.neighbour);
    println!("{}: the stack grew by {} MiB at most", attack.name, seen.grown_mib);
    assert_eq!(seen.spoils, Vec::<String>::new(), "it got what nobody should get");
    let said = |key: &str| seen.number(key);
    assert!(said("stall_ms") < STALL_MAX_MS, "the stream stood still");
    // A datagram may be lost while a replica is away or a queue is full; what others take is lost for good.
    let lost_max = if attack.means == Means::Signal { said("datagrams") } else { said("datagrams") / 2 };
    assert!(said("lost") <= lost_max, "{} of {} datagrams were lost", said("lost"), said("datagrams"));
    assert_eq!(said("strange"), 0, "somebody else answered");
    assert!(seen.grown_mib <= attack.memory_max, "the stack grew by {} MiB", seen.grown_mib);
    assert_eq!(seen.quarantined, 0, "connections were given up");
    if attack.means == Means::Signal {
        assert_ne!(seen.before, seen.after, "no replica has died");
    } else {
        assert_eq!(seen.before, seen.after, "a replica has died");
    }
    if soak() && attack.means != Means::Signal {
        judge_rates(attack, seen);
    }
}

/// Checks that the neighbour keeps 80 % of the rate and has at most twice the latency that it has beside a
/// fair busy program. Other load of the machine may spoil one run, so what is out of bounds is measured three
/// times, and the median counts.
fn judge_rates(attack: &Attack, first: Seen) {
    let mut pairs = vec![Comparison::of(attack, &first)];
    while pairs.len() < 3 && !pairs[0].is_within() {
        pairs.push(Comparison::of(attack, &observe(Some(attack), attack_time())));
    }
    let median = |of: fn(&Comparison) -> f64| {
        let mut all: Vec<f64> = pairs.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    let seen = Comparison {
        rate: median(|pair| pair.rate),
        median_us: median(|pair| pair.median_us),
        p99_us: median(|pair| pair.p99_us),
    };
    assert!(
        seen.is_within(),
        "the neighbour beside the attack, relative to a fair program: {seen:?} of {pairs:?}"
    );
}

/// The rate and latency of the neighbour beside an attack, relative to those beside a fair busy program.
#[derive(Debug)]
struct Comparison {
    rate: f64,
    median_us: f64,
    p99_us: f64,
}

impl Comparison {
    fn of(attack: &Attack, seen: &Seen) -> Comparison {
        let fair = observe(None, attack_time());
        println!("{}: beside a fair program: {}", attack.name, fair.neighbour);
        let ratio = |key: &str, least: u64| seen.number(key) as f64 / fair.number(key).max(least) as f64;
        // Latencies below a millisecond are the scheduler's business.
        Comparison {
            rate: ratio("kb_per_s", 1),
            median_us: ratio("median_us", 1000),
            p99_us: ratio("p99_us", 1000),
        }
    }

    fn is_within(&self) -> bool {
        self.rate >= 0.8 && self.median_us <= 2.0 && self.p99_us <= 2.0
    }
}

/// The results of a run: what became of the neighbour and of the stack.
struct Seen {
    neighbour: String,
    spoils: Vec<String>,
    grown_mib: u64,
    quarantined: u64,
    before: Vec<u64>,
    after: Vec<u64>,
}

impl Seen {
    /// Returns a number that the neighbour has reported.
    fn number(&self, key: &str) -> u64 {
        let words: Vec<&str> = self.neighbour.split_whitespace().collect();
        let at = words.iter().position(|word| *word == key);
        let number = at.and_then(|at| words.get(at + 1)).and_then(|word| word.parse().ok());
        number.unwrap_or_else(|| panic!("no {key} in {}", self.neighbour))
    }
}

/// Runs the neighbour beside an attack, or beside a fair busy program.
fn observe(attack: Option<&Attack>, time: Duration) -> Seen {
    // A long run judges rates.
    let _alone = soak().then(alone);
    let net = Net::new(Stack::Atoll);
    let neighbour = compiled_of(&source("neighbour.c"));
    let mut server = net.serve(&neighbour, &["serve", NEIGHBOURS_PORT]);
    server.says("serving", 20);
    // A short run leaves the processors to other tests that run beside it.
    let rate = if soak() { "0" } else { "5000" };
    let mut client = net.client(&neighbour, &["ask", Net::SERVER, NEIGHBOURS_PORT, rate]);
    client.says("going", 30);
    let before = net.replicas();
    let supervisor = supervisor(&net);
    let memory_before = net.replica_memory() + resident(supervisor);
    let mut attackers = start(&net, attack);
    for attacker in &mut attackers {
        attacker.says("attacking", 60);
    }
    let (end, mut most) = (Instant::now() + time, 0);
    let mut killed = false;
    while Instant::now() < end {
        assert!(client.runs(), "{}", client.report());
        let pids = before.iter().copied().chain([supervisor]);
        most = most.max(pids.map(resident).sum());
        if attack.is_some_and(|attack| attack.means == Means::Signal) && !std::mem::replace(&mut killed, true)
        {
            // The signal is sent twice: a handler for overflows of the stack lets the first one pass, because
            // it comes from outside.
            for _ in 0..2 {
                signal("SEGV", before[0]);
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let spoils = attackers
        .iter()
        .flat_map(|attacker| spoils(&attacker.output()))
        .collect::<std::collections::BTreeSet<_>>();
    for attacker in &mut attackers {
        attacker.kill();
    }
    // What the attacker leaves behind is a part of the attack, and programs that come later are served.
    std::thread::sleep(Duration::from_millis(500));
    let mut late = net.serve(&neighbour, &["serve", "7001"]);
    late.says("serving", 30);
    net.listens(&mut late, 7001);
    most = most.max(net.replica_memory() + resident(supervisor));
    client.terminate();
    let neighbour = finish(&net, client);
    assert!(server.runs(), "{}", server.report());
    let after = until("an answer to `status` with all replicas", 30, || {
        let pids = net.replicas();
        (pids.len() == before.len()).then_some(pids)
    });
    let status = net.atoll_says("status");
    let neighbour = neighbour.lines().last().unwrap_or_default().to_owned();
    Seen {
        neighbour,
        spoils: spoils.into_iter().collect(),
        grown_mib: most.saturating_sub(memory_before) / 1024,
        quarantined: sum(&status, "connections_quarantined"),
        before,
        after,
    }
}

/// Waits for the neighbour's report. If the neighbour makes no progress meanwhile, prints what the stack
/// knows of its connections.
fn finish(net: &Net, mut client: Proc) -> String {
    let end = Instant::now() + Duration::from_secs(60);
    let mut told = false;
    while client.runs() && Instant::now() < end {
        if client.output().contains("SLOW") && !std::mem::replace(&mut told, true) {
            eprintln!("{}\n{}\n{}", client.output(), net.atoll_says("ss"), net.atoll_says("status"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    client.success(0)
}

/// Starts the attackers, or the fair busy program.
fn start(net: &Net, attack: Option<&Attack>) -> Vec<Proc> {
    let Some(attack) = attack else {
        let busy = ["busy", Net::SERVER, NEIGHBOURS_PORT];
        return vec![net.client(&compiled_of(&source("neighbour.c")), &busy)];
    };
    let misbehave = || compiled_of(&source("misbehave.c"));
    match attack.means {
        Means::Raw => vec![net.serve(env!("CARGO_BIN_EXE_atoll-attacker"), &[attack.name, NEIGHBOURS_PORT])],
        Means::Sockets => vec![net.serve(&misbehave(), &[attack.name, ATTACKERS_PORT, "198.18.0.1"])],
        Means::Crowded => {
            let mut attacker = net.serve(&misbehave(), &[attack.name, ATTACKERS_PORT]);
            attacker.says("attacking", 60);
            vec![attacker, net.client(&misbehave(), &["crowd", ATTACKERS_PORT, Net::SERVER])]
        }
        Means::Intruder => {
            vec![net.serve("/usr/bin/python3", &[&source("intruder.py"), attack.name, NEIGHBOURS_PORT])]
        }
        Means::Signal => Vec::new(),
    }
}

fn source(name: &str) -> String {
    format!("{}/programs/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn spoils(output: &str) -> Vec<String> {
    output.lines().filter(|line| line.starts_with("SUCCEEDED")).map(str::to_owned).collect()
}

fn supervisor(net: &Net) -> u64 {
    net.atoll_says("status")["stack"]["pid"].as_u64().expect("a supervisor has a pid")
}

/// Returns the resident memory of a process in KiB; 0 if the process is gone.
fn resident(pid: u64) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
}

/// Returns a counter, summed over all replicas.
fn sum(status: &Value, name: &str) -> u64 {
    let replicas = status["replicas"].as_array().expect("replicas");
    replicas.iter().filter_map(|replica| replica["stats"][name].as_u64()).sum()
}

fn signal(name: &str, pid: u64) {
    let _ = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
}
