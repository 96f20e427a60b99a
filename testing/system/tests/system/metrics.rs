//! Do metrics show a monitoring system what a stack does?

use std::process::Command;

use atoll_system_tests::{Net, Proc, Stack, atoll};

use crate::recovery::signal;
use crate::servers::{fetch, start_nginx};

/// Returns what curl gets from `url`, with the status in front.
fn get(url: &str) -> String {
    let mut curl = Command::new("curl");
    curl.args([
        "-sS",
        "--max-time",
        "20",
        "--retry",
        "20",
        "--retry-connrefused",
        "--retry-delay",
        "1",
        "-w",
        "%{http_code} %{content_type}",
    ]);
    Proc::start(curl.arg(url), None).success(60)
}

/// Returns the value of the sample that starts with this name and these labels.
fn value(text: &str, sample: &str) -> Option<f64> {
    text.lines().find(|line| line.starts_with(sample))?.rsplit_once(' ')?.1.parse().ok()
}

#[test]
fn curl_gets_what_a_stack_counts_also_over_deaths() {
    let net = Net::with(Stack::Atoll, "TS1+LS1+CM1", None);
    let mut server = start_nginx(&net);
    net.listens(&mut server, 80);
    // The port is free, and stays so for as long as the test needs.
    let port =
        std::net::TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port").port();
    let mut command = Command::new(atoll());
    let mut metrics =
        Proc::start(command.args(["metrics", net.name(), "--listen", &format!("127.0.0.1:{port}")]), None);
    let url = format!("http://127.0.0.1:{port}/metrics");

    assert_eq!(fetch(&net, 80, "/small"), b"tiny");
    let replica = |name: &str| format!("{name}{{stack=\"{}\",kind=\"replica\",index=\"0\"}}", net.name());
    // Counters are published now and then.
    let before = atoll_system_tests::until("segments that are counted", 20, || {
        Some(get(&url)).filter(|text| value(text, &replica("atoll_segments_in_total")) > Some(0.0))
    });
    assert!(
        before.ends_with("# EOF\n200 application/openmetrics-text; version=1.0.0; charset=utf-8"),
        "{before}"
    );
    for kind in ["replica", "link server", "connection manager"] {
        let serves = format!("atoll_server_serving{{stack=\"{}\",kind=\"{kind}\"", net.name());
        assert_eq!(value(&before, &serves), Some(1.0), "{before}");
    }

    signal("KILL", net.replicas()[0]);
    atoll_system_tests::until("the replica to serve again", 20, || {
        let replica = net.atoll_says("status")["replicas"][0].clone();
        (replica["epoch"] == 2 && replica["recovery"]["state"] == "serving").then_some(())
    });
    let after = get(&url);
    assert_eq!(value(&after, &replica("atoll_server_crashes_total")), Some(1.0), "{after}");
    assert!(after.contains("phase=\"ready\""), "{after}");
    // Counters do not start again from 0.
    let segments = replica("atoll_segments_in_total");
    assert!(value(&after, &segments) >= value(&before, &segments), "{after}");

    assert!(get(&format!("http://127.0.0.1:{port}/")).ends_with("404 text/plain; charset=utf-8"));
    // Without a stack the exporter still answers, and says so.
    drop(server);
    let mut down = Command::new(atoll());
    Proc::start(down.args(["down", net.name()]), None).success(20);
    let mut curl = Command::new("curl");
    let gone =
        Proc::start(curl.args(["-sS", "--max-time", "20", "-w", "%{http_code}", &url]), None).success(30);
    assert!(gone.contains("no stack") && gone.ends_with("503"), "{gone}");
    assert!(metrics.runs(), "{}", metrics.report());
}
