//! Does a program that looks only once find the connections that wait, however busy the replicas are?

use std::time::Duration;

use atoll_system_tests::{Net, Stack, program};

use crate::full_ring::Stopped;
use crate::recovery::signal;

fn finds_what_waits(how: &str) {
    // A replica that stands still is left alone.
    let net = Net::with_settings(Stack::Atoll, "TS2LS2CM2", "[recovery]\nhang_ms = 0\n");
    let mut late = net.serve("/usr/bin/python3", &[&program("late.py"), how]);
    late.says("waits", 20);
    for number in 0..3 {
        let stopped = Stopped::new(net.replicas());
        signal("USR1", late.pid().into());
        std::thread::sleep(Duration::from_millis(200));
        drop(stopped);
        late.says(&format!("accepted {number}"), 10);
    }
}

#[test]
fn accept_finds_what_waits_while_replicas_have_no_processor() {
    finds_what_waits("accept");
}

#[test]
fn poll_finds_what_waits_while_replicas_have_no_processor() {
    finds_what_waits("poll");
}

#[test]
fn epoll_wait_finds_what_waits_while_replicas_have_no_processor() {
    finds_what_waits("epoll");
}
