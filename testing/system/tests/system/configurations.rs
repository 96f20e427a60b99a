//! Does a stack serve programs equally, whichever processes its components are in (P2)?

use std::process::Command;

use atoll_system_tests::{Net, Proc, Stack, atoll};
use serde_json::{Value, json};

use crate::servers::{fetch, megabyte, start_nginx};
use crate::{fragments, v6};

#[test]
fn one_link_server_for_two_replicas() {
    serves("TS2CM2+LS1", &[&[0, 1]]);
}

#[test]
fn a_link_server_for_each_replica() {
    serves("TS2CM2+LS2", &[&[0], &[1]]);
}

#[test]
fn more_link_servers_than_replicas() {
    serves("TS2CM2+LS3", &[&[0], &[1], &[0]]);
}

#[test]
fn one_replica_has_the_link_for_four() {
    serves("TS4LS1CM4", &[]);
}

#[test]
fn link_servers_inside_and_apart() {
    // Only the second link server has a process of its own.
    serves("TS1LS2CM1", &[&[0]]);
}

#[test]
fn one_replica_chooses_for_two() {
    serves("TS2LS2CM1", &[]);
}

#[test]
fn two_replicas_choose_for_four() {
    serves("TS4LS4CM2", &[]);
}

#[test]
fn a_connection_manager_apart() {
    serves("TS2LS2+CM1", &[]);
}

#[test]
fn every_component_apart() {
    serves("TS2+LS2+CM2", &[&[0], &[1]]);
}

#[test]
fn one_ip_server_with_the_link_for_two_replicas() {
    serves_with_ip("TS2CM2+IP1LS1", &[], &[&[0, 1]]);
}

#[test]
fn one_ip_server_with_the_link_for_four_replicas() {
    serves_with_ip("TS4CM4+IP1LS1", &[], &[&[0, 1, 2, 3]]);
}

#[test]
fn an_ip_server_with_a_link_for_each_replica() {
    serves_with_ip("TS2CM2+IP2LS2", &[], &[&[0], &[1]]);
}

#[test]
fn of_two_ip_servers_one_has_the_link() {
    serves_with_ip("TS2CM2+IP2LS1", &[], &[&[0], &[1]]);
}

#[test]
fn more_link_servers_than_ip_servers() {
    serves_with_ip("TS2CM2+IP1LS2", &[&[1]], &[&[0, 1]]);
}

#[test]
fn every_component_of_one_replica_apart() {
    serves_with_ip("TS1+IP1+LS1+CM1", &[&[0]], &[&[0]]);
}

#[test]
fn every_component_of_two_replicas_apart() {
    serves_with_ip("TS2+IP2+LS1+CM2", &[&[0, 1]], &[&[0], &[1]]);
}

/// P4 and P5 hold where connection managers are apart: no connection waits for a stopped worker.
#[test]
fn a_worker_that_stops_is_passed_over_by_a_connection_manager_apart() {
    for configuration in ["TS2LS2CM1", "TS2+LS2+CM2"] {
        let net = Net::with(Stack::Atoll, configuration, None);
        let mut server = start_nginx(&net);
        net.listens(&mut server, 80);
        let url = format!("http://{}/small", Net::SERVER);
        net.client("ab", &["-q", "-s", "10", "-n", "200", "-c", "10", &url]).success(60);
        let workers = workers_of(&server);
        assert_eq!(workers.len(), 2, "nginx has two workers");
        signal("STOP", workers[0]);
        let ab = net.client("ab", &["-q", "-s", "10", "-n", "1000", "-c", "10", &url]);
        let report = ab.success(60);
        signal("CONT", workers[0]);
        assert!(report.contains("Failed requests:        0"), "{report}");
        assert!(report.contains("Complete requests:      1000"), "{report}");
        // The worker is not replaced when it continues.
        net.client("ab", &["-q", "-s", "10", "-n", "1000", "-c", "10", &url]).success(60);
        let timeouts: u64 = net.atoll_says("status")["replicas"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|replica| replica["stats"]["claim_timeouts"].as_u64().expect("it is counted"))
            .sum();
        assert!(timeouts > 0, "{configuration}: the worker that stood still was asked");
    }
}

/// Tests a configuration. `link_servers` lists the replicas that each link server in a process of its own
/// serves.
fn serves(configuration: &str, link_servers: &[&[u64]]) {
    serves_with_ip(configuration, link_servers, &[]);
}

/// Tests a configuration as [`serves`] does. `ip_servers` lists the replicas that each IP server serves.
fn serves_with_ip(configuration: &str, link_servers: &[&[u64]], ip_servers: &[&[u64]]) {
    let net = Net::with(Stack::Atoll, configuration, None);
    let status = net.atoll_says("status");
    assert_eq!(status["stack"]["configuration"], configuration);
    let listed = status["link_servers"].as_array().expect("status lists them").clone();
    assert_eq!(listed.iter().map(|server| server["serves"].clone()).collect::<Value>(), json!(link_servers));
    let (replicas, pids) = (net.replicas(), pids(&listed));
    let with_ip = status["ip_servers"].as_array().expect("status lists them").clone();
    assert_eq!(with_ip.iter().map(|server| server["serves"].clone()).collect::<Value>(), json!(ip_servers));
    let managers = status["connection_managers"].as_array().expect("status lists them").clone();
    let apart: u64 = configuration.split_once("+CM").map_or(0, |(_, count)| count.parse().expect("a number"));
    assert_eq!(
        managers.iter().map(|server| server["index"].clone()).collect::<Value>(),
        (0..apart).collect::<Value>()
    );

    files_in_short_and_long_connections(&net);
    the_stack_as_client(&net);
    over_ipv6(&net);
    for (family, host) in [("-4", Net::SERVER), ("-6", Net::SERVER6)] {
        for size in ["56", "20000"] {
            net.pings(8, &[family, "-s", size, host]);
        }
    }
    // These datagrams travel in fragments.
    for reverse in [false, true] {
        fragments::assert_arrived(&fragments::datagrams(&net, Net::SERVER, reverse));
    }
    fragments::assert_arrived(&fragments::datagrams(&net, Net::SERVER6, false));

    let status = net.atoll_says("status");
    let listed = status["link_servers"].as_array().expect("a list").clone();
    assert_eq!((net.replicas(), self::pids(&listed)), (replicas, pids), "a server has died");
    for server in &listed {
        assert!(server["stats"]["frames_in"].as_u64() > Some(100), "{server}");
        assert_eq!(server["stats"]["forward_drops"], 0, "{server}");
    }
    let served = status["ip_servers"].as_array().expect("a list").clone();
    assert_eq!(self::pids(&served), self::pids(&with_ip), "an IP server has died");
    for server in &served {
        let stat =
            |name: &str| server["stats"][name].as_u64().unwrap_or_else(|| panic!("no {name}: {server}"));
        assert!(stat("frames_in") > 100 && stat("frames_out") > 100 && stat("messages_out") > 0, "{server}");
        // Every packet that waited for its neighbour's address has left.
        for nothing in ["messages_bad", "refused", "unresolved", "forward_drops"] {
            assert_eq!(stat(nothing), 0, "{nothing}: {server}");
        }
    }
    let whole: u64 =
        served.iter().map(|server| server["stats"]["reassembled"].as_u64().expect("a counter")).sum();
    assert!(whole > 150 || served.is_empty(), "packets become whole where IP is: {status}");
    let served = status["connection_managers"].as_array().expect("a list").clone();
    assert_eq!(self::pids(&served), self::pids(&managers), "a connection manager has died");
    for server in &served {
        assert!(server["stats"]["messages_out"].as_u64() > Some(100), "{server}");
        assert_eq!(server["stats"]["messages_bad"], 0, "{server}");
    }
    let served_inside = ip_servers.is_empty();
    for replica in status["replicas"].as_array().expect("a list") {
        assert!(replica["stats"]["reassembled"] == 0 || served_inside, "{replica}");
        assert!(replica["stats"]["frames_out"].as_u64() > Some(100), "{replica}");
        assert!(
            replica["stats"]["passive_opens"].as_u64() > Some(0),
            "every replica has its share: {replica}"
        );
        times_add_up(replica, configuration);
    }
}

/// Checks that the stack reports the times of Pika's tables 4 and 5 for each replica, and that they add up.
fn times_add_up(replica: &Value, configuration: &str) {
    let times = &replica["handshakes"];
    let time = |name: &str| times[name].as_f64().unwrap_or_else(|| panic!("no {name}: {replica}"));
    assert!(times["timed"].as_u64() > Some(0), "{replica}");
    assert!(time("t_cm_us") > 0.0 && time("t_tcp_us") > 0.0, "{times}");
    assert!(time("t_total_us") >= time("t_accept_us"), "{times}");
    // Frames wait in a ring only where the link server is another process.
    let is_apart = ["+LS", "+IP"].iter().any(|part| configuration.contains(part))
        || replica["index"] != 0 && configuration.contains("LS1");
    assert!(time("t_msg_us") > 0.0 || !is_apart, "{times}");
}

fn pids(servers: &[Value]) -> Vec<u64> {
    servers.iter().map(|server| server["pid"].as_u64().expect("a server has a pid")).collect()
}

fn files_in_short_and_long_connections(net: &Net) {
    let mut server = start_nginx(net);
    net.listens(&mut server, 80);
    assert_eq!(fetch(net, 80, "/small"), b"tiny");
    assert!(fetch(net, 80, "/big") == megabyte());
    // The file is larger than all rings and buffers together.
    let large = net.scratch.path().join("large");
    std::fs::write(&large, megabyte().repeat(64)).expect("there is room");
    assert!(fetch(net, 80, "/large") == std::fs::read(&large).expect("just written"));
    let url = format!("http://{}/small", Net::SERVER);
    for (kept, count) in [(&["-q"][..], "1000"), (&["-q", "-k"][..], "5000")] {
        let arguments = [kept, &["-s", "10", "-n", count, "-c", "20", &url]].concat();
        let report = net.client("ab", &arguments).success(60);
        assert!(report.contains("Failed requests:        0"), "{report}\n{}", server.report());
        assert!(report.contains(&format!("Complete requests:      {count}")), "{report}");
    }
}

/// Tests connections that programs on the stack open, and the octets that arrive on them.
fn the_stack_as_client(net: &Net) {
    let folder = net.scratch.path().to_string_lossy().into_owned();
    let serve = ["-u", "-m", "http.server", "8000", "--bind", "198.18.0.1", "--directory", &folder];
    let mut server = net.client("/usr/bin/python3", &serve);
    server.says("Serving HTTP", 10);
    let url = "http://198.18.0.1:8000/large";
    net.serve("curl", &["-sS", "--max-time", "60", "-o", "got", url]).success(65);
    let read = |name: &str| std::fs::read(net.scratch.path().join(name)).expect("it was written");
    assert!(read("got") == read("large"), "what came in is changed");
}

fn over_ipv6(net: &Net) {
    let folder = net.scratch.path().to_string_lossy().into_owned();
    let serve = ["-u", "-m", "http.server", "8000", "--bind", "::", "--directory", &folder];
    let mut server = net.serve("/usr/bin/python3", &serve);
    server.says("Serving HTTP", 10);
    for host in [Net::SERVER, &format!("[{}]", Net::SERVER6)] {
        for _ in 0..5 {
            assert!(v6::fetch(net, &format!("http://{host}:8000/big")) == megabyte(), "{host}");
        }
    }
}

/// Returns the workers of an nginx: the children of its master.
fn workers_of(server: &Proc) -> Vec<u64> {
    let pid = server.pid();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("it runs");
    children.split_ascii_whitespace().map(|pid| pid.parse().expect("a number")).collect()
}

fn signal(name: &str, pid: u64) {
    let sent = Command::new("kill").args(["-s", name, &pid.to_string()]).status();
    assert!(sent.is_ok_and(|status| status.success()));
}

#[test]
fn a_configuration_that_cannot_work_says_why() {
    for (arguments, reason) in [
        (&["--configuration", "TS2LS0CM2"][..], "cannot do without link servers"),
        (&["--configuration", "TS2LS2CM3"], "more of them than of these have nothing to do"),
        (
            &["--configuration", "TS8+LS8CM1"],
            "this version runs connection managers in the processes of transport servers or in processes of \
             their own",
        ),
        (
            &["--configuration", "TS4CM4IP1LS1"],
            "this version runs IP in the process of every transport server",
        ),
        (
            &["--configuration", "TS2LS2CM2+IP2"],
            "from the process of a transport server to that of its IP server and back",
        ),
        (&["--configuration", "TS2CM2+IP3LS3"], "more of them than of these have nothing to do"),
        (&["--configuration", "TS2CM2+IP1LS1", "--link", "none"], "without a link"),
        (&["--configuration", "TS2CM2+IP2LS2", "--peer", "other"], "TS2LS2CM2"),
        (&["--configuration", "TS2CM2+LS1", "--link", "none"], "without a link"),
        (&["--configuration", "TS2CM2+LS1", "--peer", "other"], "TS2LS2CM2"),
        (&["--configuration", "2"], "such as TS2CM2+LS1"),
    ] {
        let mut up = Command::new(atoll());
        up.args(["up", "--daemon", "--name", "never"]).args(arguments);
        let mut up = Proc::start(&mut up, None);
        assert_eq!(up.end(20).code(), Some(1), "{arguments:?}");
        assert!(up.errors().contains(reason), "{arguments:?}: {}", up.errors());
    }
}
