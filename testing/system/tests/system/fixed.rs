//! Are static programs and those of Go served as others are?

use std::process::Command;

use atoll_system_tests::{
    Linking, Net, NoNet, Proc, Scratch, Stack, compiled_of, compiled_statically, of_go, program,
};

use crate::servers::{fetch, megabyte};

on_both_stacks![
    c_libraries,
    short_stacks,
    go,
    go_loaded,
    go_with_cgo,
    go_serves,
    go_with_cgo_serves,
    go_resolves
];

/// What `programs/fixed.c` says, its lines in order.
const FIXED: &str = "again: by its own path
child ended 5, joined 1, own 7
child: own 7, sent 32
epoll: 1
from a shell
own file: 1
signs: !!!
thread: connect 0, recv 32 from, handled 3, own 8
vector: 1
";

fn c_libraries(stack: Stack) {
    let no_net = NoNet::new();
    let source = program("fixed.c");
    let of = |compiler, options: &[&str]| atoll_system_tests::compiled_by(compiler, &source, options);
    let programs = [
        compiled_of(&source),
        compiled_statically("fixed"),
        of("cc", &["-static-pie"]),
        of("musl-gcc", &["-static"]),
    ];
    for program in programs {
        let mut program = Proc::start(&mut no_net.on(stack, &Command::new(program)), None);
        assert!(program.end(30).success(), "{}", program.report());
        let output = program.output();
        let mut lines: Vec<&str> = output.split_inclusive('\n').collect();
        lines.sort_unstable();
        assert_eq!(lines.concat(), FIXED, "{}", program.report());
        assert_eq!(program.errors(), "");
    }
}

/// What `programs/web.go` says.
const WEB: &str = "kept alive: 1000
short: 200
tls: 20
preempted: 50
timers: 2000
deadline: true
refused: true
datagram: datagram <nil> true
child of Go
<nil>
fork/exec /no/such/program: no such file or directory
signal: terminated
plain: http: Server closed
shut down: <nil> <nil>
last request: <nil>
";

fn everything_of_go(stack: Stack, web: &str) {
    let mut web = Proc::start(&mut NoNet::new().on(stack, &Command::new(web)), None);
    assert!(web.end(60).success(), "{}", web.report());
    assert_eq!((web.output().as_str(), web.errors().as_str()), (WEB, ""));
}

fn go(stack: Stack) {
    everything_of_go(stack, &of_go("web", Linking::Static));
}

fn go_loaded(stack: Stack) {
    everything_of_go(stack, &of_go("web", Linking::Loaded));
}

fn go_with_cgo(stack: Stack) {
    everything_of_go(stack, &of_go("web", Linking::Cgo));
}

/// Runs a program under strace. Returns how many of its calls were trapped, by a signal.
fn traps(program: &str, output: &str) -> usize {
    let scratch = Scratch::new();
    let traps = scratch.path().join("traps").to_string_lossy().into_owned();
    let mut strace = Command::new("strace");
    strace.args(["-f", "-q", "-e", "trace=none", "-e", "signal=SIGSYS", "-o", &traps, program]);
    let mut process = Proc::start(&mut NoNet::new().on(Stack::Atoll, &strace), None);
    assert!(process.end(90).success(), "{}", process.report());
    assert_eq!(process.output(), output);
    std::fs::read_to_string(traps).expect("strace has written it").matches("--- SIGSYS").count()
}

/// Nearly all of some 17,000 calls come without a trap.
#[test]
fn go_calls_without_traps() {
    for linking in [Linking::Static, Linking::Loaded, Linking::Cgo] {
        let count = traps(&of_go("web", linking), WEB);
        assert!((1..3000).contains(&count), "{linking:?}: {count} traps");
    }
}

/// What `programs/sites.c` says.
const SITES: &str = "threads: right\nhandlers: 1, 1\nhandlers: 2, 2\nhandlers: 3, 3\n";

fn short_stacks(stack: Stack) {
    let program = compiled_of(&program("sites.c"));
    let process = Proc::start(&mut NoNet::new().on(stack, &Command::new(program)), None);
    assert_eq!(process.success(90), SITES);
}

#[test]
fn short_stacks_need_few_traps() {
    // Four threads with one stack make 4,000 of the 44,000 calls.
    let count = traps(&compiled_of(&program("sites.c")), SITES);
    assert!((4000..5000).contains(&count), "{count} traps");
}

/// A server of files for others, which ends in order.
fn files_of_go(stack: Stack, web: &str) {
    let net = Net::new(stack);
    net.scratch.file("small", "tiny");
    net.scratch.file("big", megabyte());
    let mut server = net.serve(web, &["serve", &format!("{}:8080", Net::SERVER)]);
    net.listens(&mut server, 8080);
    assert!(fetch(&net, 8080, "/big") == megabyte(), "the megabyte arrived changed");
    let url = format!("http://{}:8080/small", Net::SERVER);
    for options in [&["-n", "200", "-c", "20"][..], &["-k", "-n", "1000", "-c", "20"]] {
        let report = net.client("ab", &[&["-q", "-s", "10"], options, &[url.as_str()]].concat()).success(60);
        assert!(report.contains("Failed requests:        0"), "{report}\n{}", server.report());
    }
    server.terminate();
    assert!(server.end(20).success(), "{}", server.report());
    assert_eq!(server.output(), "http: Server closed\n");
}

fn go_serves(stack: Stack) {
    files_of_go(stack, &of_go("web", Linking::Static));
}

fn go_with_cgo_serves(stack: Stack) {
    files_of_go(stack, &of_go("web", Linking::Cgo));
}

/// Go's own resolver asks over the stack, and so does its client.
fn go_resolves(stack: Stack) {
    let net = Net::new(stack);
    let common =
        ["--keep-in-foreground", "--no-resolv", "--no-hosts", "--user=root", "--conf-file=/dev/null"];
    let answer = ["--pid-file=", "--address=/example.test/192.0.2.7", "--log-facility=-", "--log-queries"];
    let place = ["--listen-address=198.18.0.1", "--bind-interfaces"];
    let mut server = net.client("dnsmasq", &[&common[..], &answer, &place].concat());
    server.says("started", 10);
    let web = of_go("web", Linking::Static);
    let said = net.serve(&web, &["resolve", "198.18.0.1:53", "www.example.test"]).success(30);
    assert_eq!(said, "[192.0.2.7]\n", "{}", server.report());
    net.scratch.file("page", "a page\n");
    let folder = net.scratch.path().to_string_lossy().into_owned();
    let arguments = ["-u", "-m", "http.server", "8000", "--bind", "198.18.0.1", "--directory", &folder];
    let mut files = net.client("/usr/bin/python3", &arguments);
    files.says("Serving HTTP", 10);
    assert_eq!(net.serve(&web, &["fetch", "http://198.18.0.1:8000/page"]).success(30), "a page\n");
}
