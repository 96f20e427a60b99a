//! Do connections notice when servers of another build take over, and is a bad build withdrawn by itself?

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use atoll_system_tests::{Net, Proc, Stack, atoll, program};
use serde_json::Value;

use crate::recovery::{assert_unharmed, connections, load, log, signal};
use crate::servers::{fetch, megabyte, start_nginx};

/// Writes a program that acts as a build of Atoll: `script` has the arguments as `"$@"` and the real program
/// as `$ATOLL`. Returns its full name.
fn build(net: &Net, name: &str, script: &str) -> String {
    let atoll = atoll();
    let path = net.scratch.file(name, format!("#!/bin/sh\nATOLL={}\n{script}\n", atoll.display()));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    path
}

/// A build that writes only the first version of the ledger.
///
/// It does not pass the variable on, because its supervisor would hand it down to servers of the next build.
const BEFORE: &str = "export BUILD=before
[ \"$1\" = supervise ] || export ATOLL_DEBUG_LEDGER=1
exec $ATOLL \"$@\"";

fn upgrade(net: &Net, path: &str) -> Proc {
    Proc::start(Command::new(atoll()).args(["upgrade", net.name(), path]), None)
}

/// Returns all servers, as `atoll status` lists them.
fn servers(net: &Net) -> Vec<Value> {
    let status = net.atoll_says("status");
    let lists = ["replicas", "link_servers", "ip_servers", "connection_managers"];
    lists.iter().flat_map(|list| status[list].as_array().expect("a list").clone()).collect()
}

/// Checks that every server is in this incarnation and none has crashed, and waits until all ledgers have
/// this version.
fn assert_replaced(net: &Net, epoch: u64, ledger: u64) {
    for server in servers(net) {
        assert_eq!(server["epoch"].as_u64(), Some(epoch), "{server}\n{}", log(net));
        assert_eq!(server["recovery"]["crashes"].as_u64(), Some(0), "{server}\n{}", log(net));
    }
    atoll_system_tests::until("ledgers of the right version", 20, || {
        servers(net)
            .iter()
            .all(|it| it["ledger"].is_null() || it["ledger"].as_u64() == Some(ledger))
            .then_some(())
    });
    let kept = connections(net, "connections_kept");
    assert!(kept > 0 && connections(net, "connections_lost") == 0, "{}", log(net));
}

/// Starts requests over kept connections, by another program than [`load`].
fn wrk(net: &Net) -> Proc {
    net.client(
        "wrk",
        &["-t", "1", "-c", "8", "-d", "300", "--timeout", "10s", &format!("http://{}/small", Net::SERVER)],
    )
}

fn assert_wrk_unharmed(mut wrk: Proc) {
    assert!(wrk.runs(), "it went under load: {}", wrk.report());
    signal("INT", wrk.pid().into());
    wrk.end(20);
    let said = wrk.output();
    assert!(
        said.contains("Requests/sec") && !said.contains("Socket errors") && !said.contains("Non-2xx"),
        "{said}"
    );
}

/// Returns the process of the supervisor (`pid`), or of the guardian.
fn process(net: &Net, key: &str) -> u64 {
    net.atoll_says("status")["stack"][key].as_u64().expect("it is there")
}

fn there_and_back(net: Net) {
    let processes: BTreeSet<u64> = net.replicas().into_iter().collect();
    let mut server = start_nginx(&net);
    net.listens(&mut server, 80);
    let echo = program("echo.py");
    let mut echoing = net.serve("/usr/bin/python3", &[&echo, "serve", "7777"]);
    echoing.says("listening", 10);
    let mut client = net.client("/usr/bin/python3", &["-u", &echo, Net::SERVER, "7777", "3", "50"]);
    client.says("under way", 20);
    let (short, kept) = (load(&net, false), wrk(&net));

    let before = build(&net, "before", BEFORE);
    let (guardian, supervisor) = (process(&net, "guardian"), process(&net, "pid"));
    upgrade(&net, &before).success(60);
    assert_replaced(&net, 2, 1);
    assert!(guardian != process(&net, "guardian") && supervisor != process(&net, "pid"));
    for key in ["guardian", "pid"] {
        let environment =
            std::fs::read(format!("/proc/{}/environ", process(&net, key))).expect("it is there");
        assert!(String::from_utf8_lossy(&environment).contains("BUILD=before"), "{key} is of the new build");
    }
    let next: BTreeSet<u64> = net.replicas().into_iter().collect();
    assert!(next.len() == processes.len() && next.is_disjoint(&processes), "{processes:?} {next:?}");
    // The file is removed as soon as it has been read; servers that die later are nevertheless started from
    // it.
    let next = net.scratch.file("next", std::fs::read(atoll()).expect("it can be read"));
    std::fs::set_permissions(&next, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    let said = upgrade(&net, &next).success(60);
    assert!(
        said.contains("all servers are of the new build") && said.contains("supervisor and guardian are of"),
        "{said}"
    );
    std::fs::remove_file(&next).expect("it was there");
    assert_replaced(&net, 3, 2);
    for key in ["guardian", "pid"] {
        let file = std::fs::read_link(format!("/proc/{}/exe", process(&net, key))).expect("it is there");
        // The servers run a copy of the file that no process can change.
        assert!(file.to_string_lossy().starts_with("/memfd:atoll"), "{key}: {file:?}");
    }
    // The next supervisor runs that copy, too.
    signal("KILL", process(&net, "pid"));
    upgrade(&net, &before).success(60);
    assert_replaced(&net, 4, 1);

    signal("KILL", net.replicas()[0]);
    atoll_system_tests::until("replica 0 in epoch 5", 20, || {
        let replica = servers(&net)[0].clone();
        (replica["epoch"] == 5 && replica["recovery"]["state"] == "serving").then_some(())
    });
    assert!(fetch(&net, 80, "/big") == megabyte());
    client.terminate();
    let said = client.success(60);
    assert!(said.contains("53 kept"), "{said}");
    assert_eq!(echoing.errors(), "", "no connection of the server has failed");
    assert_wrk_unharmed(kept);
    assert_unharmed(short);
    assert!(server.runs(), "{}", server.report());
}

#[test]
fn another_build_takes_over_and_goes_again_and_nobody_notices() {
    there_and_back(Net::with(Stack::Atoll, "TS2LS2CM2", None));
}

#[test]
fn another_build_takes_over_replicas_that_share_processes() {
    there_and_back(Net::with_settings(Stack::Atoll, "TS4LS4CM4", "[scaling]\nstart = 2\n"));
}

#[test]
fn another_build_takes_over_where_every_component_is_apart() {
    there_and_back(Net::with(Stack::Atoll, "TS2+IP1+LS1+CM1", None));
}

#[test]
fn a_supervisor_that_does_not_take_over_leaves_the_old_one() {
    let net = Net::new(Stack::Atoll);
    let mut server = start_nginx(&net);
    net.listens(&mut server, 80);
    let load = load(&net, true);
    let servers_only = |then: &str| format!("[ \"$1\" = supervise ] || exec $ATOLL \"$@\"\n{then}");
    for (name, script, said) in [
        ("ends", servers_only("exit 7"), "has ended with status 7"),
        ("dies", servers_only("kill -ABRT $$"), "was ended by SIGABRT"),
        ("hangs", servers_only("exec sleep 600"), "was ended by SIGKILL"),
    ] {
        let bad = build(&net, name, &script);
        let guardian = process(&net, "guardian");
        let mut upgrade = upgrade(&net, &bad);
        assert!(!upgrade.end(60).success(), "{name}: {}", upgrade.report());
        assert!(
            upgrade.errors().contains("the supervisor is of the old one"),
            "{name}: {}",
            upgrade.report()
        );
        assert!(upgrade.errors().contains(said), "{name}: {}", upgrade.report());
        assert_eq!(process(&net, "guardian"), guardian, "{name}");
        assert_eq!(fetch(&net, 80, "/small"), b"tiny");
    }
    // This supervisor works as well.
    signal("KILL", net.replicas()[0]);
    atoll_system_tests::until("replica 0 to serve again", 20, || {
        let replica = servers(&net)[0].clone();
        (replica["epoch"] == 5 && replica["recovery"]["state"] == "serving").then_some(())
    });
    assert_eq!(connections(&net, "connections_lost"), 0, "{}", log(&net));
    assert_unharmed(load);
    assert!(server.runs(), "{}", server.report());
}

#[test]
fn a_build_that_is_no_good_goes_by_itself() {
    let net = Net::new(Stack::Atoll);
    let mut server = start_nginx(&net);
    net.listens(&mut server, 80);
    let load = load(&net, true);
    let checks_out = |then: &str| format!("[ \"$1\" = self-check ] && exec $ATOLL \"$@\"\n{then}");
    for (name, script, said) in [
        ("fails", "exit 1".into(), "does not say what it is"),
        ("babbles", "echo atoll 9.9".into(), "does not say what it is"),
        ("starts_nothing", checks_out("exit 1"), "ended with status 1"),
        ("hangs", checks_out("exec sleep 600"), "was ended by SIGKILL"),
        // The build dies when it has taken over, and before all servers have been replaced.
        ("crashes", checks_out("(sleep 0.3; kill -ABRT $$) &\nexec $ATOLL \"$@\""), "was ended by SIGABRT"),
        ("crashes_at_once", checks_out("(kill -ABRT $$) &\nexec $ATOLL \"$@\""), "was ended by SIGABRT"),
    ] {
        let bad = build(&net, name, &script);
        let mut upgrade = upgrade(&net, &bad);
        assert!(!upgrade.end(60).success(), "{name}: {}", upgrade.report());
        // A process that ends before it is given its replica leaves no other reason. Its status is also
        // missing if its death is noticed before the status can be read.
        let why = [said, "giving replica 0 to a process: Broken pipe", "was killed"];
        assert!(why.iter().any(|why| upgrade.errors().contains(why)), "{name}: {}", upgrade.report());
        let all = servers(&net);
        assert!(
            all.iter().all(|server| server["recovery"]["state"] == "serving" && server["ledger"] == 2),
            "{all:?}"
        );
        assert_eq!(fetch(&net, 80, "/small"), b"tiny");
    }
    // These are another program, and no program at all.
    for (path, said) in [
        ("/bin/true", "does not say what it is"),
        ("/etc/passwd", "is not a program"),
        ("/nowhere", "No such file"),
    ] {
        let mut refused = upgrade(&net, path);
        assert!(
            !refused.end(20).success() && refused.errors().contains(said),
            "{path}: {}",
            refused.report()
        );
    }
    assert_eq!(connections(&net, "connections_lost"), 0, "{}", log(&net));
    assert_unharmed(load);
    assert!(server.runs(), "{}", server.report());
}
