//! Does a stack start, answer, survive noise, and stop, without any application?

use std::path::Path;

use atoll_system_tests::{Impairments, Net, Stack, program, until};

on_both_stacks![echo_is_answered, noise_is_survived];

fn echo_is_answered(stack: Stack) {
    let net = Net::new(stack);
    net.pings(50, &[Net::SERVER]);
    // This is the largest payload that needs no fragments.
    net.pings(3, &["-s", "1472", "-M", "do", Net::SERVER]);
}

fn noise_is_survived(stack: Stack) {
    let net = Net::new(stack);
    let replicas = net.replicas();
    let interface = net.client_interface();
    let noise =
        net.client("/usr/bin/python3", &[&program("noise.py"), &interface, Net::SERVER, "80", "100000"]);
    let sent = noise.success(120);
    assert!(sent.contains("100000 frames sent"), "{sent}");
    // The noise includes ARP, so the client may have to resolve the address again.
    let said = until("an answer after the noise", 10, || {
        let mut ping = net.client("ping", &["-q", "-c", "5", "-i", "0.05", "-W", "1", Net::SERVER]);
        ping.end(20).success().then(|| ping.output())
    });
    assert!(said.contains("received"), "{said}");
    assert_eq!(net.replicas(), replicas, "a replica has died");
}

#[test]
fn every_number_of_replicas_comes_up_and_goes_away() {
    for count in [1, 2, 3, 8] {
        let net = Net::with(Stack::Atoll, &format!("TS{count}LS{count}CM{count}"), None);
        let replicas = net.replicas();
        assert_eq!(replicas.len(), count);
        net.pings(5, &[Net::SERVER]);
        let status = net.atoll_says("status");
        let groups: u64 = status["replicas"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|r| r["flow_groups"].as_u64())
            .sum();
        assert_eq!(groups, 4096, "every flow group belongs to one replica");
        until("all replicas know each other", 10, || {
            let status = net.atoll_says("status");
            let greeted = |replica: &serde_json::Value| replica["stats"]["siblings"] == count as u64 - 1;
            status["replicas"].as_array().expect("a list").iter().all(greeted).then_some(())
        });
        // The client asked one replica for the hardware address of the stack, and that replica passes the
        // client's own address on.
        let greetings = 2 * (count * (count - 1)) as u64;
        until("the news about the client", 10, || {
            let status = net.atoll_says("status");
            let replicas = status["replicas"].as_array().expect("a list").clone();
            let sum = |stat: &str| {
                replicas.iter().filter_map(|replica| replica["stats"][stat].as_u64()).sum::<u64>()
            };
            assert_eq!(sum("messages_bad") + sum("messages_dropped") + sum("messages_stale"), 0, "{status}");
            (sum("messages_in") >= greetings + count as u64 - 1).then_some(())
        });
        drop(net);
        for pid in replicas {
            assert!(!Path::new(&format!("/proc/{pid}")).exists(), "replica {pid} is still there");
        }
    }
}

/// A replica that goes to sleep right after its last frame publishes its counters soon, not only when it is
/// woken.
#[test]
fn what_was_counted_before_a_long_sleep_is_told() {
    let net = Net::with(Stack::Atoll, "TS1LS1CM1", None);
    let frames =
        || net.atoll_says("status")["replicas"][0]["stats"]["frames_in"].as_u64().expect("a counter");
    net.pings(1, &[Net::SERVER]);
    for count in (2..6).cycle().take(24) {
        let before = frames();
        net.pings(count, &[Net::SERVER]);
        until("the counter to move", 3, || (frames() >= before + u64::from(count)).then_some(()));
    }
}

#[test]
fn a_bad_wire_is_only_that() {
    let net = Net::impaired(Stack::Atoll, Impairments::USUAL);
    let said = net.client("ping", &["-q", "-c", "300", "-i", "0.01", "-W", "10", Net::SERVER]).success(60);
    let lost: f64 = said
        .split("% packet loss")
        .next()
        .and_then(|s| s.rsplit(' ').next())
        .and_then(|s| s.parse().ok())
        .expect("ping counts");
    // The relay drops 1 % in each direction, and frames that it corrupts are lost as well.
    assert!(lost < 8.0, "{said}");
}
