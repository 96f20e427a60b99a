//! Do programs see the network that they are on? Queries for interfaces, addresses, routes and sockets show
//! the stack's, and the results are usable. On the kernel, a namespace with an equal network gives equal
//! answers.

use atoll_system_tests::{Net, Proc, Stack, program};

on_both_stacks![
    getifaddrs,
    names,
    ioctls,
    netlink,
    files,
    sockets,
    iproute_shows_the_network,
    ifconfig_and_route_show_the_network,
    node_serves_at_the_address_it_finds
];

/// Returns the output of a case of `programs/network.py`.
fn told(stack: Stack, case: &str) -> String {
    let net = Net::new(stack);
    net.serve("/usr/bin/python3", &[&program("network.py"), case]).success(30)
}

fn getifaddrs(stack: Stack) {
    let expected = "eth0 10043 198.18.0.2 255.255.255.0 False\n\
                    eth0 10043 2001:db8::2 ffff:ffff:ffff:ffff:: False\n\
                    eth0 10043 link of 6 octets - True\n\
                    lo 10049 127.0.0.1 255.0.0.0 False\n\
                    lo 10049 ::1 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff False\n\
                    lo 10049 link of 6 octets - True\n";
    assert_eq!(told(stack, "getifaddrs"), expected);
}

fn names(stack: Stack) {
    assert_eq!(told(stack, "names"), "lo True True\neth0 True True\nno interface with this name\nENXIO\n");
}

fn ioctls(stack: Stack) {
    let lists = "[('lo', '127.0.0.1'), ('eth0', '198.18.0.2')]\nTrue\n";
    let v4 = "lo 0x49 127.0.0.1 255.0.0.0 772 True\n\
              eth0 0x43 198.18.0.2 255.255.255.0 1 True\n\
              nix ENODEV ENODEV ENODEV ENODEV ENODEV\n";
    let others = "lo 0x49 ENOTTY ENOTTY 772 True\n\
                  eth0 0x43 ENOTTY ENOTTY 1 True\n\
                  nix ENODEV ENOTTY ENOTTY ENODEV ENODEV\n";
    assert_eq!(told(stack, "ioctls"), format!("{v4}{lists}{others}{lists}{others}{lists}ENOTTY\n"));
}

fn netlink(stack: Stack) {
    let expected = "[16, 3, 0]\nTrue 0\nTrue\nTrue\nnothing yet\nTrue\nTrue 0 (0, 0)\n[3, 16]\n\
                    [2] -19\n[3, 20]\n[2] 0\nTrue 1\n";
    assert_eq!(told(stack, "netlink"), expected);
}

fn files(stack: Stack) {
    let told = told(stack, "files");
    assert_eq!(told.lines().filter(|line| line.ends_with("True")).count(), 6, "{told}");
    let length = |line: usize| told.lines().nth(line).and_then(|line| line.split(' ').rev().nth(1));
    assert_eq!([length(0), length(2), length(4)], [Some("150"), Some("128"), Some("128")], "{told}");
    assert!(told.ends_with("['eth0']\n"), "{told}");
}

fn sockets(stack: Stack) {
    let expected = "tcp ['020012C6:1F90', '00000000:0000', '0A', '00000000:00000000', '0']\n\
                    tcp ['020012C6:1F90', '020012C6:PORT', '01', '00000000:00000005', '0']\n\
                    tcp ['020012C6:PORT', '020012C6:1F90', '01', '00000000:00000000', '0']\n\
                    tcp6 ['00000000000000000000000000000000:1F91', '00000000000000000000000000000000:0000', \
                    '0A', '00000000:00000000', '0']\n\
                    udp ['00000000:14E9', '00000000:0000', '07', '00000000:00000000', '0']\n\
                    [('tcp', '198.18.0.2:8080'), ('tcp6', ':::8081'), ('udp', '0.0.0.0:5353')]\n\
                    [('tcp', '*:8081'), ('tcp', '198.18.0.2:8080'), ('udp', '0.0.0.0:5353')]\n";
    assert_eq!(told(stack, "sockets"), expected);
}

fn run(net: &Net, command: &str) -> Proc {
    let mut words = command.split(' ');
    let first = words.next().expect("a program");
    net.serve(first, &words.collect::<Vec<_>>())
}

fn iproute_shows_the_network(stack: Stack) {
    let net = Net::new(stack);
    for (command, line) in [
        ("ip -o addr show dev lo", "inet 127.0.0.1/8 scope host lo"),
        ("ip -o addr", "inet 198.18.0.2/24"),
        ("ip -o -6 addr show dev eth0", "inet6 2001:db8::2/64 scope global"),
        ("ip -o link show eth0", "<BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500"),
        ("ip route", "198.18.0.0/24 dev eth0 proto kernel scope link src 198.18.0.2"),
        ("ip -6 route", "2001:db8::/64 dev eth0"),
        ("ip route get 198.18.0.1", "198.18.0.1 dev eth0 src 198.18.0.2"),
        ("ip route get 198.18.0.2", "local 198.18.0.2 dev"),
    ] {
        let output = run(&net, command).success(20);
        assert!(output.contains(line), "{command}: {output}");
    }
    let mut missing = run(&net, "ip link show nix");
    assert!(!missing.end(20).success() && missing.errors().contains("does not exist"));
    if stack == Stack::Atoll {
        assert_eq!(run(&net, "ip -o link").success(20).lines().count(), 2, "there is nothing else");
        for change in [
            "ip link set eth0 mtu 1400",
            "ip addr add 198.18.0.3/24 dev eth0",
            "ip route add 1.2.3.4 dev eth0",
        ] {
            let mut change = run(&net, change);
            assert!(!change.end(20).success() && change.errors().contains("Operation not permitted"));
        }
        let mut monitor = run(&net, "ip monitor");
        assert!(!monitor.end(20).success(), "events that never come are not promised");
    }
}

fn ifconfig_and_route_show_the_network(stack: Stack) {
    let net = Net::new(stack);
    let output = run(&net, "ifconfig").success(20);
    for text in
        ["inet 198.18.0.2  netmask 255.255.255.0", "inet6 2001:db8::2  prefixlen 64", "inet 127.0.0.1"]
    {
        assert!(output.contains(text), "{output}");
    }
    let output = run(&net, "route -n").success(20);
    let route = "198.18.0.0 0.0.0.0 255.255.255.0 U 0 0 0 eth0";
    let has_route = |line: &str| line.split_whitespace().eq(route.split(' '));
    assert!(output.lines().any(has_route), "{output}");
}

/// A server that listens only on the addresses of its interfaces is reached from the other end.
fn node_serves_at_the_address_it_finds(stack: Stack) {
    let net = Net::new(stack);
    let script = "const own = require('os').networkInterfaces().eth0.find(a => a.family === 'IPv4');\n\
                  const server = require('http').createServer((_, answer) => answer.end(own.cidr));\n\
                  server.listen(8080, own.address);";
    let mut server = net.serve("node", &["-e", script]);
    net.listens(&mut server, 8080);
    let answer = net.client("curl", &["-sS", "--max-time", "20", "http://198.18.0.2:8080/"]).success(25);
    assert_eq!(answer, "198.18.0.2/24");
}
