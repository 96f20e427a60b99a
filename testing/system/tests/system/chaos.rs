//! Does `atoll chaos` do what it says, and do programs continue meanwhile? This is a short version of `make
//! chaos`.

use std::process::Command;
use std::time::{Duration, Instant};

use atoll_system_tests::{Net, Proc, Stack, atoll, until};
use serde_json::Value;

use crate::recovery::{assert_unharmed, load_for, signal};
use crate::servers::nginx_that_listens;
use crate::survival::{Side, assert_nothing_left, finish, start};

/// Returns for how many seconds servers are killed and stopped; ATOLL_CHAOS overrides the default.
fn seconds() -> u64 {
    std::env::var("ATOLL_CHAOS").ok().and_then(|text| text.parse().ok()).unwrap_or(15)
}

fn chaos(net: &Net, arguments: &[&str]) -> Proc {
    let mut command = Command::new(atoll());
    Proc::start(command.args(["chaos", net.name(), "--json"]).args(arguments), None)
}

fn report(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Runs chaos with these `deeds` on servers under nginx (reloaded every two seconds), redis and checked
/// streams. With `--supervisor` among the deeds supervisors are killed, too, and the guardian dies as well.
fn go_on(configuration: &str, deeds: &[&str]) {
    let net = Net::with(Stack::Atoll, configuration, None);
    // Workers that quit close connections on which no request has arrived yet, on any stack. With `deferred`
    // there are no such connections.
    let mut nginx = nginx_that_listens(&net, "deferred");
    net.listens(&mut nginx, 80);
    let arguments = ["--port", "6379", "--save", "", "--protected-mode", "no", "--bind", "*", "-::*"];
    let mut redis = net.serve("redis-server", &arguments);
    net.listens(&mut redis, 6379);
    let mut echo = start(&net, Side::Inside, "streams.py", &["serve", "7000", "2"]);
    net.listens(&mut echo, 7000);
    // Reloading closes kept connections, as on any stack.
    let mut requests = load_for(&net, false, seconds() + 300);
    let mut checked: Vec<Proc> = [
        (Side::Outside, "store_check.py", &[Net::SERVER, "6379", "3"][..]),
        (Side::Outside, "streams.py", &["steady", Net::SERVER6, "7000", "4", "70000"]),
        (Side::Outside, "streams.py", &["brief", Net::SERVER, "7000", "2", "100000"]),
        (Side::Inside, "streams.py", &["steady", "127.0.0.1", "7000", "2", "1000000"]),
        (Side::Inside, "streams.py", &["brief", Net::SERVER, "7000", "2", "100000"]),
    ]
    .into_iter()
    .map(|(side, name, arguments)| start(&net, side, name, arguments))
    .collect();
    let time = format!("{}s", seconds());
    let arguments = [&["--for", &time, "--seed", "1"], deeds].concat();
    let mut chaos = chaos(&net, &arguments);
    let mut reload_at = Instant::now();
    until("the end of chaos", seconds() + 60, || {
        if Instant::now() >= reload_at {
            reload_at += Duration::from_secs(2);
            signal("HUP", nginx.pid().into());
        }
        for client in checked.iter_mut().chain([&mut requests]) {
            assert!(client.runs(), "{}", client.report());
        }
        (!chaos.runs()).then_some(())
    });
    let said = report(&chaos.success(1));
    if deeds.contains(&"--supervisor") {
        assert!(said["takeovers"].as_u64() > Some(0), "{said}");
        // Another guardian starts, and keeps what the dead one kept.
        let guardian = || net.atoll_says("status")["stack"]["guardian"].as_u64();
        let first = guardian().expect("there is one");
        signal("KILL", first);
        until("another guardian", 20, || guardian().filter(|pid| *pid != first));
        let said =
            report(&self::chaos(&net, &["--for", "3s", "--every", "500ms", "--supervisor"]).success(60));
        assert_eq!(said["missing"], Value::Array(Vec::new()), "{said}");
    }
    for said in finish(checked) {
        println!("{}", said.trim());
    }
    println!("{said:#}");
    assert_unharmed(requests);
    for server in [&mut nginx, &mut redis, &mut echo] {
        assert!(server.runs(), "{}", server.report());
    }
    let count = |key: &str| said[key].as_u64().expect("a count");
    assert!(count("kills") + count("stops") >= seconds() / 3, "{said}");
    assert!(count("recoveries") > 0 && said["recovery_max_ms"].as_f64() > Some(0.0), "{said}");
    assert!(count("connections_kept") > 0, "{said}");
    assert_eq!((count("connections_lost"), count("connections_quarantined")), (0, 0), "{said}");
    assert_eq!(said["missing"], Value::Array(Vec::new()));
    let restarts: u64 = said["restarts"].as_object().expect("a map").values().filter_map(Value::as_u64).sum();
    assert!(restarts >= count("kills"), "{said}");
    assert_nothing_left(&net);
}

#[test]
fn programs_go_on_while_servers_die() {
    go_on("TS2CM2+LS1", &[]);
}

#[test]
fn programs_go_on_while_servers_of_all_kinds_and_supervisors_die() {
    go_on("TS2+IP1+LS1+CM1", &["--supervisor"]);
}

#[test]
fn only_what_was_asked_for_is_done() {
    let net = Net::with(Stack::Atoll, "TS2LS2CM2", None);
    let said = report(&chaos(&net, &["--for", "1s", "--kill", "--every", "100ms"]).success(60));
    assert!(said["kills"].as_u64() > Some(0) && said["stops"] == 0, "{said}");
    let said = report(&chaos(&net, &["--for", "1s", "--stop", "--every", "100ms"]).success(60));
    assert!(said["stops"].as_u64() > Some(0) && said["kills"] == 0, "{said}");
    // The report comes after a signal, once the program handles signals.
    let long = chaos(&net, &["--for", "1h", "--stop"]);
    let catches = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let caught = status
            .lines()
            .find_map(|line| u64::from_str_radix(line.strip_prefix("SigCgt:")?.trim(), 16).ok());
        // SIGTERM has number 15.
        caught.is_some_and(|signals| signals & 1 << 14 != 0)
    };
    until("one that listens", 20, || catches(long.pid()).then_some(()));
    // Some parents make their children ignore SIGINT, so the test sends SIGTERM.
    signal("TERM", long.pid().into());
    let said = report(&long.success(60));
    assert_eq!(said["kills"], 0, "{said}");
    let mut nowhere = Command::new(atoll());
    nowhere.args(["chaos", "no-such-stack", "--for", "1s"]);
    assert!(!Proc::start(&mut nowhere, None).end(20).success());
}
