//! Programs under service managers: runit, s6, daemontools, supervisord, tini and dumb-init.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use atoll_system_tests::{Net, Proc, Stack, until};

use super::{installed, path};
use crate::servers::{fetch, megabyte};

soak_on_both_stacks![runit, s6, daemontools, supervisord, small_inits];

const SERVER: [&str; 5] = ["/usr/bin/python3", "-u", "-m", "http.server", "8000"];

/// Makes a folder of services with one, a web server, and returns its full name.
fn services(net: &Net) -> String {
    net.scratch.file("big", megabyte());
    let folder = net.scratch.path().join("services/web");
    fs::create_dir_all(&folder).expect("the scratch folder is ours");
    let run = format!("#!/bin/sh\ncd {}\nexec {}\n", net.scratch.path().display(), SERVER.join(" "));
    let run = net.scratch.file("services/web/run", run);
    fs::set_permissions(run, Permissions::from_mode(0o755)).expect("the file is ours");
    path(net, "services")
}

/// Lets a manager keep the web server, and kills that: the manager starts the next one on the same port.
fn keeps(stack: Stack, manager: &str) {
    let net = Net::new(stack);
    let services = services(&net);
    let mut manager = net.serve(&installed(manager), &[&services]);
    let pid = manager.pid();
    // The manager's child keeps the service, whose process is a child of that.
    let of_server = || child_of(child_of(pid)?);
    let first = until("the server", 20, of_server);
    net.listens(&mut manager, 8000);
    assert!(fetch(&net, 8000, "/big") == megabyte(), "the megabyte arrived changed");
    Proc::start(Command::new("kill").args(["-9", &first.to_string()]), None).success(10);
    until("the next server", 20, || of_server().filter(|next| *next != first));
    net.listens(&mut manager, 8000);
    assert!(fetch(&net, 8000, "/big") == megabyte(), "the megabyte arrived changed");
    assert!(!manager.errors().contains("libatoll"), "{}", manager.report());
}

/// The first child of a process.
fn child_of(pid: u32) -> Option<u32> {
    let found = Command::new("pgrep").args(["-P", &pid.to_string()]).output().expect("pgrep is installed");
    String::from_utf8_lossy(&found.stdout).lines().next()?.parse().ok()
}

fn runit(stack: Stack) {
    keeps(stack, "runsvdir");
}

fn s6(stack: Stack) {
    keeps(stack, "s6-svscan");
}

fn daemontools(stack: Stack) {
    keeps(stack, "svscan");
}

/// supervisord itself listens for its servers, which find the socket as their standard input, and starts two
/// that share it.
fn supervisord(stack: Stack) {
    let net = Net::new(stack);
    let server = "import os, socket
listener = socket.socket(fileno=0)
while True:
    peer, _ = listener.accept()
    peer.sendall(b'%d\\n' % os.getpid()); peer.close()";
    let server = net.scratch.file("server.py", server);
    let settings = format!(
        "[supervisord]\nnodaemon=true\nlogfile=/dev/null\npidfile={}\n[fcgi-program:one]\n\
         socket=tcp://0.0.0.0:8000\ncommand=/usr/bin/python3 {server}\nnumprocs=2\n\
         process_name=%(process_num)d\n",
        path(&net, "pid")
    );
    let settings = net.scratch.file("supervisord.conf", settings);
    let mut manager = net.serve(&installed("supervisord"), &["-c", &settings]);
    net.listens(&mut manager, 8000);
    let ask = || net.client("nc.openbsd", &["-d", "-w", "10", Net::SERVER, "8000"]).success(20);
    let first: u32 = ask().trim().parse().expect("the number of a process");
    Proc::start(Command::new("kill").args(["-9", &first.to_string()]), None).success(10);
    for _ in 0..20 {
        let next = ask();
        assert_ne!(next.trim().parse(), Ok(first), "{}", manager.report());
    }
    assert!(!manager.errors().contains("libatoll"), "{}", manager.report());
}

/// Inits of containers pass signals on, and the server ends by them.
fn small_inits(stack: Stack) {
    for (init, end) in [("tini", "--"), ("dumb-init", "--")] {
        let net = Net::new(stack);
        net.scratch.file("big", megabyte());
        let mut server = net.serve(&installed(init), &[&[end], &SERVER[..]].concat());
        net.listens(&mut server, 8000);
        assert!(fetch(&net, 8000, "/big") == megabyte(), "the megabyte arrived changed");
        Proc::start(Command::new("kill").arg(server.pid().to_string()), None).success(10);
        assert!(!server.end(10).success(), "the signal ends it: {}", server.report());
    }
}
