//! Which connections die with a process of the stack, by the components that it holds? This is a small form
//! of `bench/faults.py`, which measures it.

use std::path::Path;
use std::process::Command;

use atoll_system_tests::atoll;

/// Runs `bench/faults.py` on a stack whose components are all apart. Returns for each kind of process how
/// many of its connections survived and existed, and the corresponding numbers for the other replica's
/// connections.
fn deaths(recovery: &str) -> Vec<(&'static str, [u32; 4])> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/faults.py");
    let mut command = Command::new("/usr/bin/python3");
    command.arg(script).args(["--kills", "2", "--connections", "20", "--recovery", recovery]);
    let kinds = ["TS", "IP", "LS", "CM"];
    for kind in kinds {
        command.arg("--case").arg(format!("TS2+IP2+LS2+CM2:{kind}"));
    }
    let output = command.env("ATOLL", atoll()).output().expect("python is there");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let of = |kind: &'static str| {
        let begins = format!("TS2+IP2+LS2+CM2:{kind} {recovery}: ");
        let line = said
            .lines()
            .find_map(|line| line.strip_prefix(&begins))
            .unwrap_or_else(|| panic!("{kind}: {said}"));
        let mut parts = line.split("; ").map(|part| {
            let (kept, rest) = part.split_once(" of ").unwrap_or_else(|| panic!("{line}"));
            [kept, rest.split(' ').next().unwrap_or("")].map(|number| number.parse().expect("a number"))
        });
        let mut next = || parts.next().unwrap_or_else(|| panic!("{line}"));
        let [[own, all_own], [others, all_others]] = [next(), next()];
        (kind, [own, all_own, others, all_others])
    };
    kinds.map(of).to_vec()
}

#[test]
fn each_component_recovers_on_its_own_and_loses_no_connection() {
    for (kind, [own, all_own, others, all_others]) in deaths("stateful") {
        assert_eq!((own, others), (all_own, all_others), "{kind}");
        assert!(
            all_own > 0 && all_others > 0 && all_own + all_others == 40,
            "{kind}: two deaths, 20 connections"
        );
    }
}

#[test]
fn without_state_only_a_transport_server_takes_connections_with_it_and_only_its_own() {
    for (kind, [own, all_own, others, all_others]) in deaths("stateless") {
        assert_eq!(own, if kind == "TS" { 0 } else { all_own }, "{kind} of {all_own}");
        assert_eq!(others, all_others, "{kind}");
        assert!(all_own > 0 && all_others > 0, "{kind}");
    }
}
