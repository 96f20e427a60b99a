//! Name resolution: the C library's own queries go over the stack.

use atoll_system_tests::{Net, Proc, Scratch, Stack, compiled, program};

on_both_stacks![functions, threads, handlers, jumps, sigsys, curl_finds_its_server, getent_finds_names];

/// A network with a name server at the client's end, and a file for /etc/resolv.conf with its address.
struct Names {
    net: Net,
    server: Proc,
    scratch: Scratch,
}

impl Names {
    fn new(stack: Stack) -> Names {
        let net = Net::new(stack);
        let mut server = net.client("/usr/bin/python3", &[&program("dns.py"), "198.18.0.1", "53"]);
        server.says("answering", 10);
        let scratch = Scratch::new();
        scratch.file("resolv.conf", "nameserver 198.18.0.1\noptions timeout:1\n");
        Names { net, server, scratch }
    }

    /// Runs a program with that resolv.conf, and with hosts(5) before names of the network.
    fn run(&self, words: &[&str]) -> Proc {
        let file = self.scratch.path().join("resolv.conf");
        let script = format!("mount --bind {} /etc/resolv.conf && exec \"$@\"", file.display());
        self.net.serve("unshare", &[&["-m", "sh", "-c", &script, "sh"], words].concat())
    }

    fn told(&self, case: &str) -> String {
        self.run(&[&compiled("names"), case]).success(60)
    }
}

fn functions(stack: Stack) {
    let names = Names::new(stack);
    let expected = "here.test: 198.18.0.1 198.18.0.77 2001:db8::1\n\
                    nothing.test: Name or service not known\n\
                    127.0.0.1: 127.0.0.1\n\
                    gethostbyname 198.18.0.1\n\
                    gethostbyname2_r 2001:db8::1\n\
                    gethostbyaddr here.test\n\
                    getnameinfo here.test\n\
                    res_query 59\n\
                    large.test 300\n";
    let mut process = names.run(&[&compiled("names"), "functions"]);
    assert!(process.end(60).success(), "{}", process.report());
    // IPv6 addresses are listed first if there is a route to them.
    let told = process.output().replace(
        "2001:db8::1 198.18.0.1 198.18.0.77\nnothing",
        "198.18.0.1 198.18.0.77 2001:db8::1\nnothing",
    );
    assert_eq!((told.as_str(), process.errors().as_str()), (expected, ""));
    assert!(names.server.output().contains("tcp large.test"), "{}", names.server.output());
}

fn threads(stack: Stack) {
    assert_eq!(Names::new(stack).told("threads"), "8 threads, 0 failed\n");
}

fn handlers(stack: Stack) {
    assert_eq!(Names::new(stack).told("handlers"), "200 look-ups, signals among them\n");
}

fn jumps(stack: Stack) {
    let told = Names::new(stack).told("jumps");
    assert!(told.starts_with("left 3\nhere.test: ") && told.contains("198.18.0.77"), "{told}");
}

fn sigsys(stack: Stack) {
    let names = Names::new(stack);
    let mut process = names.run(&[&compiled("names"), "sigsys"]);
    let status = process.end(30);
    assert!(!status.success(), "a SIGSYS without a handler is deadly: {}", process.report());
    let told: Vec<String> = process.output().lines().map(str::to_owned).collect();
    assert!(told[0].contains("198.18.0.1") && told[2] == told[0], "{told:?}");
    assert_eq!(told[1], "SIGSYS stays blocked");
    assert_eq!(told[3..], ["handled 2, the same"], "{told:?}");
}

fn curl_finds_its_server(stack: Stack) {
    let names = Names::new(stack);
    let serve = ["-u", "-m", "http.server", "8000", "--bind", "198.18.0.1"];
    let mut server = Proc::start(names.net.on_client("/usr/bin/python3").args(serve), None);
    server.says("Serving", 10);
    let fetch = ["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "-4", "http://here.test:8000/"];
    assert_eq!(names.run(&fetch).success(30), "200");
    // The first query gets no answer.
    let fetch = ["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "-4", "http://slow.test:8000/"];
    assert_eq!(names.run(&fetch).success(30), "200");
}

fn getent_finds_names(stack: Stack) {
    let names = Names::new(stack);
    let told = names.run(&["getent", "ahostsv4", "here.test"]).success(30);
    let addresses = told.lines().filter_map(|line| line.split_whitespace().next());
    let mut addresses: Vec<&str> = addresses.collect();
    addresses.dedup();
    addresses.sort_unstable();
    assert_eq!(addresses, ["198.18.0.1", "198.18.0.77"], "{told}");
    let mut nothing = names.run(&["getent", "hosts", "nothing.test"]);
    assert_eq!(nothing.end(30).code(), Some(2));
}

/// If no server answers on the stack, the look-up fails. The host's name server is not asked, and a line says
/// what to do.
#[test]
fn a_server_that_the_stack_does_not_reach_is_not_asked() {
    let mut names = Names::new(Stack::Atoll);
    names.scratch.file("resolv.conf", "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n");
    let mut kernels = Proc::start(
        names.net.on_server("/usr/bin/python3").args([&program("dns.py"), "127.0.0.1", "53"]),
        None,
    );
    kernels.says("answering", 10);
    let ask = "import socket
try: print(socket.getaddrinfo('here.test', 80)[0][4][0])
except socket.gaierror as error: print(error.errno)";
    let mut process = names.run(&["/usr/bin/python3", "-c", ask]);
    process.end(30);
    assert_eq!(process.output(), "-3\n", "{}", process.report());
    assert!(process.errors().contains("--kernel-network=ADDRESS:53"), "{}", process.report());
    assert_eq!(kernels.output(), "answering\n");
    // With `--kernel-network` the host's name server is asked.
    let mut run = names.net.on_server(&atoll_system_tests::atoll().to_string_lossy());
    run.args(["run", "--name", names.net.name(), "--kernel-network=127.0.0.1:53", "--"]);
    let file = names.scratch.path().join("resolv.conf");
    let script = format!("mount --bind {} /etc/resolv.conf && exec \"$@\"", file.display());
    run.args(["unshare", "-m", "sh", "-c", &script, "sh", "/usr/bin/python3", "-c", ask]);
    let told = Proc::start(&mut run, None).success(30);
    assert!(told.starts_with("198.18.0.") || told.starts_with("2001:db8::1"), "{told}");
    names.server.kill();
}
