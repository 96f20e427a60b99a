//! Do connections go to those processes of a server that serve them, and to fast ones rather than slow ones?

use std::collections::BTreeMap;
use std::process::Command;

use atoll_system_tests::{Net, Proc, Stack, atoll, program, until};

use crate::recovery::connections;

on_both_stacks![workers_that_stop_or_die_cost_only_what_they_had, workers_share_what_comes];

/// Starts nginx with eight workers that serve a small file on port 80.
fn eight_workers(net: &Net) -> Proc {
    let folder = net.scratch.path().to_string_lossy().into_owned();
    net.scratch.file("small", "tiny");
    let config = net.scratch.file(
        "nginx.conf",
        format!(
            "daemon off; worker_processes 8; pid {folder}/nginx.pid; error_log stderr crit; user root;
             events {{ worker_connections 2000; }}
             http {{ access_log off; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p;
                     fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
                     server {{ listen 80 backlog=4096; root {folder}; }} }}"
        ),
    );
    net.serve("/usr/sbin/nginx", &["-p", &folder, "-c", &config])
}

/// Returns the process numbers of nginx's workers.
fn workers(server: &Proc) -> Vec<String> {
    let pid = server.pid();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children.split_whitespace().map(str::to_owned).collect()
}

fn signal(name: &str, pid: &str) {
    let status = Command::new("kill").args([&format!("-{name}"), pid]).status();
    assert!(status.is_ok_and(|status| status.success()), "kill -{name} {pid}");
}

/// Returns the scheduling policy of a process (proc_pid_stat(5), field 41).
fn policy_of(pid: u64) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, field 2, ends with the last parenthesis.
    stat.rsplit_once(") ")?.1.split(' ').nth(41 - 3)?.parse().ok()
}

/// A replica wakes up like any program for a conversation back and forth, also beside programs that compute,
/// and lets work gather where there are many.
#[test]
fn a_replica_preempts_for_few_conversations_and_not_for_many() {
    const OTHER: u32 = 0;
    const BATCH: u32 = 3;
    let net = Net::with(Stack::Atoll, "TS1LS1CM1", None);
    let mut server = eight_workers(&net);
    net.listens(&mut server, 80);
    let replica = net.replicas()[0];
    let url = format!("http://{}/small", Net::SERVER);
    for (connections, policy) in [("1", OTHER), ("64", BATCH), ("2", OTHER)] {
        let load = net.client("wrk", &["-t1", "-d", "20", "-c", connections, &url]);
        until("the policy for so many", 15, || (policy_of(replica) == Some(policy)).then_some(()));
        let said = &net.atoll_says("status")["replicas"][0]["policy"];
        assert_eq!(said.as_str(), Some(if policy == BATCH { "batch" } else { "other" }));
        load.terminate();
    }
}

/// A connection that is offered to a stopped or dead worker goes to another one. A connection that a worker
/// has claimed waits for the worker, or ends with it.
fn workers_that_stop_or_die_cost_only_what_they_had(stack: Stack) {
    const AT_ONCE: u32 = 8;
    let net = Net::new(stack);
    let mut server = eight_workers(&net);
    net.listens(&mut server, 80);
    let all = until("eight workers", 10, || Some(workers(&server)).filter(|all| all.len() == 8));
    let replicas = net.replicas();
    let url = format!("http://{}/small", Net::SERVER);
    let at_once = AT_ONCE.to_string();
    let mut load =
        net.client("ab", &["-q", "-r", "-s", "30", "-t", "4", "-n", "1000000", "-c", &at_once, &url]);
    std::thread::sleep(std::time::Duration::from_millis(500));
    signal("STOP", &all[2]);
    std::thread::sleep(std::time::Duration::from_millis(700));
    signal("KILL", &all[5]);
    std::thread::sleep(std::time::Duration::from_millis(700));
    signal("CONT", &all[2]);
    assert!(load.runs(), "it went under load: {}", load.report());
    let said = load.success(60);
    let failed: u32 = said
        .split_once("Failed requests:")
        .and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok())
        .expect("ab counts");
    // ab counts a connection several times if it broke several times.
    assert!(failed <= 3 * AT_ONCE, "{said}");
    let complete: u32 = said
        .split_once("Complete requests:")
        .and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok())
        .expect("ab counts");
    assert!(complete > 500, "{said}");
    // All workers serve again, and nginx has replaced the dead ones.
    until("eight workers again", 10, || Some(workers(&server)).filter(|all| all.len() == 8));
    let report = net.client("ab", &["-q", "-s", "20", "-n", "500", "-c", "8", &url]).success(60);
    assert!(report.contains("Failed requests:        0"), "{report}");
    assert!(server.runs(), "{}", server.report());
    assert_eq!(net.replicas(), replicas, "a replica has died");
}

/// A connection is offered to busy processes once, and not again before they accept. The output of the case
/// of `sockets.py` only shows that all connections are served in the end.
#[test]
fn who_is_busy_is_not_asked_again_and_again() {
    let net = Net::new(Stack::Atoll);
    let case = [&*program("sockets.py"), "who_is_busy_gets_no_more_connections"];
    Proc::start(net.on_stack("/usr/bin/python3").args(case), None).success(60);
    assert_eq!(connections(&net, "claims"), 114);
    let (vain, most) = (connections(&net, "claim_timeouts"), 4 * net.replicas().len() as u64);
    assert!(vain <= most, "{vain} offers were for nothing");
}

/// Makes `count` requests, none of which may fail. Returns how many connections each worker has served.
fn ask(net: &Net, count: u32) -> Vec<u32> {
    let (count_text, port) = (count.to_string(), "8080");
    let arguments = [&*program("ask_workers.py"), Net::SERVER, port, &count_text, "8"];
    let said = net.client("/usr/bin/python3", &arguments).success(120);
    let served: BTreeMap<u32, u32> = said
        .lines()
        .map(|line| {
            let (worker, served) = line.split_once(": ").unwrap_or_else(|| panic!("{said}"));
            let worker = worker.parse().unwrap_or_else(|_| panic!("{said}"));
            (worker, served.parse().unwrap_or_else(|_| panic!("{said}")))
        })
        .collect();
    assert_eq!(served.values().sum::<u32>(), count, "{said}");
    (0..8).map(|worker| served.get(&worker).copied().unwrap_or(0)).collect()
}

/// Eight workers take connections at once, and one of them takes thirty times as long for an answer. Only its
/// service time shows that, and only Atoll measures it. The kernel gives connections to the workers that it
/// wakes, which may be few.
fn workers_share_what_comes(stack: Stack) {
    let net = Net::new(stack);
    let mut server = net.serve(
        "/usr/bin/python3",
        &[&program("workers.py"), "8080", "2", "2", "2", "60", "2", "2", "2", "2"],
    );
    net.listens(&mut server, 8080);
    let served = ask(&net, 2000);
    if stack == Stack::Kernel {
        return;
    }
    assert!(served.iter().enumerate().all(|(worker, served)| *served > 10 || worker == 3), "{served:?}");
    let others = (served.iter().sum::<u32>() - served[3]) / 7;
    assert!(served[3] * 2 < others, "the slow one is spared: {served:?}");
    // The stack's counts agree with what the clients have seen.
    let sockets = net.atoll_says("ss");
    let listeners = sockets.as_array().expect("a list").iter().filter(|row| row["state"] == "LISTEN");
    let mut services: Vec<u64> = listeners
        .flat_map(|row| {
            row["acceptors"]
                .as_array()
                .cloned()
                .unwrap_or_default()
                .into_iter()
                .map(|a| (a, row["replica"].clone()))
        })
        .filter(|(acceptor, replica)| acceptor["home"] == *replica)
        .filter_map(|(acceptor, _)| acceptor["service_us"].as_u64())
        .collect();
    services.sort_unstable();
    assert_eq!(services.len(), 8, "{sockets}");
    // A sleep never ends early.
    assert!(services[0] >= 2000 && services[7] >= 60_000 && services[6] < services[7], "{services:?}");
}

/// The rules change while connections are served. Rules that make no sense are refused and change nothing.
#[test]
fn rules_change_on_a_live_stack() {
    let net = Net::new(Stack::Atoll);
    let mut server = eight_workers(&net);
    net.listens(&mut server, 80);
    assert_eq!(net.atoll_says("balance")["scheme"], "tournament");
    let url = format!("http://{}/small", Net::SERVER);
    let load = net.client("ab", &["-q", "-s", "20", "-n", "20000", "-c", "8", &url]);
    let balance = |arguments: &[&str]| {
        let mut command = Command::new(atoll());
        Proc::start(command.args(["balance", net.name()]).args(arguments), None)
    };
    for scheme in ["naive", "unfiltered", "filtered", "tournament"] {
        for estimate in ["average", "median"] {
            let said = balance(&["--scheme", scheme, "--tariff", "3", "--estimate", estimate]).success(10);
            assert!(said.contains(scheme) && said.contains(estimate), "{said}");
        }
    }
    assert!(!balance(&["--tariff", "0"]).end(10).success());
    assert!(!balance(&["--watermarks", "50,75"]).end(10).success());
    let rules = net.atoll_says("balance");
    assert_eq!(
        (rules["tariff"].as_u64(), rules["window"].as_u64(), rules["sample_us"].as_u64()),
        (Some(3), Some(128), Some(500))
    );
    let report = load.success(60);
    assert!(
        report.contains("Complete requests:      20000") && report.contains("Failed requests:        0"),
        "{report}"
    );
}
