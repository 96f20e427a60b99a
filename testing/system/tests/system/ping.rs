//! Do sockets of ICMP behave as the kernel's, and do ping and its kin work with them?

use std::process::Command;

use atoll_system_tests::{Net, Proc, Stack, program, usual_configuration};

on_both_stacks![
    pings_reach_hosts_and_the_own_addresses,
    ping_says_what_routers_report,
    fping_and_pings_of_others_hear_by_raw_sockets,
    raw_sockets_hear_each_question_of_others_once,
    traceroute_measures_by_the_times_of_replies_and_errors
];

/// The host behind the client, to which the client answers ARP.
const FAR: &str = "198.18.0.200";

/// Runs a shell command in the namespace of `shell`.
fn run(mut shell: Command, command: &str) {
    Proc::start(shell.args(["-c", command]), None).success(30);
}

/// Creates a network whose client routes to a host that is not there. Everybody may ping, as on a usual
/// Linux.
fn network(stack: Stack, configuration: &str) -> Net {
    let net = Net::with(stack, configuration, None);
    let interface = net.client_interface();
    run(
        net.on_client("sh"),
        &format!(
            "echo 1 >/proc/sys/net/ipv4/ip_forward; echo 0 >/proc/sys/net/ipv4/neigh/{interface}/proxy_delay;
             ip neigh add proxy {FAR} dev {interface}; ip link add far type veth peer name farther;
             ip link set far up; ip route add {FAR}/32 dev far"
        ),
    );
    if stack == Stack::Kernel {
        run(net.on_server("sh"), "echo 0 2147483647 >/proc/sys/net/ipv4/ping_group_range");
    }
    net
}

/// Runs a program on the stack, and returns what it says.
fn says(net: &Net, program: &str, arguments: &[&str]) -> String {
    net.serve(program, arguments).success(60)
}

fn pings_reach_hosts_and_the_own_addresses(stack: Stack) {
    let net = network(stack, &usual_configuration());
    let hosts = ["198.18.0.1", "198.18.0.2", "127.0.0.1", "2001:db8::1", "2001:db8::2", "::1"];
    for host in hosts {
        for options in
            [&["-c", "3", "-i", "0.01"][..], &["-c", "2", "-i", "0.01", "-s", "5000"], &["-c", "200", "-f"]]
        {
            // With a deadline ping waits until so many are answered, and fails otherwise.
            says(&net, "ping", &[&["-n", "-w", "30"][..], options, &[host]].concat());
        }
    }
    // What arrives with fewer hops is shown with them. The time of a reply is known: ping warns if not.
    let mut ping = net.serve("ping", &["-n", "-c", "1", "-t", "9", "198.18.0.2"]);
    ping.end(60);
    assert!(ping.output().contains("icmp_seq=1 ttl=64 "), "{}", ping.report());
    assert!(!ping.report().contains("SO_TIMESTAMP"), "{}", ping.report());
}

fn ping_says_what_routers_report(stack: Stack) {
    let net = network(stack, &usual_configuration());
    let mut ping = net.serve("ping", &["-n", "-c", "2", "-i", "0.01", "-W", "10", "-t", "1", FAR]);
    ping.end(30);
    let said = ping.output();
    for number in [1, 2] {
        let line = format!("From 198.18.0.1 icmp_seq={number} Time to live exceeded");
        assert!(said.contains(&line), "{}", ping.report());
    }
    assert!(said.contains("2 packets transmitted, 0 received, +2 errors, 100% packet loss"), "{said}");
}

/// These want raw sockets of ICMP: with datagram sockets fping knows no reply.
fn fping_and_pings_of_others_hear_by_raw_sockets(stack: Stack) {
    let net = network(stack, &usual_configuration());
    let (v4, v6) = (["198.18.0.1", "198.18.0.2", "127.0.0.1"], ["2001:db8::1", "2001:db8::2", "::1"]);
    for (family, hosts) in [("-4", v4), ("-6", v6)] {
        // A host that answers each of three is alive three times, not more often.
        let usual = [family, "-c", "3", "-p", "20", "-t", "20000", "-b", "2000"];
        let mut fping = net.serve("fping", &[&usual[..], &hosts].concat());
        fping.end(60);
        for host in hosts {
            let line = format!("{host} : xmt/rcv/%loss = 3/3/0%");
            let said = fping.report().split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(said.contains(&line) && !said.contains("duplicate"), "{}", fping.report());
            says(&net, "busybox", &["ping", family, "-A", "-c", "3", "-w", "30", host]);
        }
    }
    // An error comes as a message, and quotes what was sent.
    let mut fping = net.serve("fping", &["-H", "1", "-c", "1", "-t", "40000", FAR]);
    fping.says(&format!("ICMP Time Exceeded from 198.18.0.1 for ICMP Echo sent to {FAR}"), 30);
    fping.kill();
    let said = says(&net, "/usr/lib/nagios/plugins/check_icmp", &["-H", "198.18.0.1", "-n", "3", "-t", "30"]);
    assert!(said.starts_with("OK - 198.18.0.1"), "{said}");
}

/// The stack answers the questions, and a program that listens hears them.
fn raw_sockets_hear_each_question_of_others_once(stack: Stack) {
    let program = "
import select, socket, struct, sys
v4 = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
v6 = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
v4.setsockopt(255, 1, struct.pack('=I', 0xffffffff & ~(1 << 8)))
v6.setsockopt(socket.IPPROTO_ICMPV6, 1, struct.pack('=8I', *[0xffffffff & ~(n == 4) for n in range(8)]))
print('ready', flush=True)
def numbers(it, at):
    heard = [it.recvfrom(100) for _ in range(5)]
    return heard[0][1][:2], [struct.unpack('!H', octets[at + 6:at + 8])[0] for octets, _ in heard]
print(numbers(v4, 20), numbers(v6, 0), select.select([v4, v6], [], [], 0)[0])
";
    for configuration in [&*usual_configuration(), "TS2CM2+IP2LS2"] {
        let net = network(stack, configuration);
        let mut listener = net.serve("/usr/bin/python3", &["-c", program]);
        listener.says("ready", 60);
        for host in ["198.18.0.2", "2001:db8::2"] {
            // Without a deadline, with which ping asks more often if an answer takes long.
            run(net.on_client("sh"), &format!("ping -n -q -W 20 -c 5 -i 0.01 {host}"));
        }
        let said = listener.success(60);
        let expected = "(('198.18.0.1', 0), [1, 2, 3, 4, 5]) (('2001:db8::1', 0), [1, 2, 3, 4, 5]) []";
        assert_eq!(said.lines().last(), Some(expected), "{configuration}");
    }
}

/// traceroute takes the times of replies and of errors from the control message of `SO_TIMESTAMP`.
fn traceroute_measures_by_the_times_of_replies_and_errors(stack: Stack) {
    let net = network(stack, &usual_configuration());
    let cases = [
        (&["198.18.0.1"][..], "198.18.0.1"),
        (&["-I", "198.18.0.1"], "198.18.0.1"),
        (&["-m", "1", FAR], "198.18.0.1"),
        (&["2001:db8::1"], "2001:db8::1"),
        (&["-I", "::1"], "::1"),
    ];
    // Who has just got an address of IPv6 does not answer at once.
    says(&net, "ping", &["-n", "-c", "1", "-W", "10", "2001:db8::1"]);
    for (options, hop) in cases {
        // One probe at a time: the kernel at the other end sends six errors at once, and then one a second.
        let usual = ["-n", "-N", "1", "-q", "2", "-w", "20"];
        let said = says(&net, "traceroute", &[&usual[..], options].concat());
        // traceroute to ..., and for each hop: NUMBER  ADDRESS  TIME ms  TIME ms
        let words: Vec<&str> = said.lines().nth(1).unwrap_or_default().split_whitespace().collect();
        let &["1", from, first, "ms", second, "ms"] = &words[..] else { panic!("{options:?}: {said}") };
        let is_time = |time: &str| time.parse().is_ok_and(|time: f64| (0.0..20000.0).contains(&time));
        assert!(from == hop && is_time(first) && is_time(second), "{options:?}: {said}");
    }
}

/// Returns what the program about sockets of ICMP says.
fn told(stack: Stack, configuration: &str) -> Vec<String> {
    let net = network(stack, configuration);
    let pings = program("pings.py");
    says(&net, "/usr/bin/python3", &[&pings, "198.18.0.1", FAR, "2001:db8::1"])
        .lines()
        .map(str::to_owned)
        .collect()
}

#[test]
fn programs_see_what_sockets_of_icmp_do_on_the_kernel() {
    let kernel = told(Stack::Kernel, &usual_configuration());
    assert!(kernel.len() > 100, "{kernel:#?}");
    for configuration in [&*usual_configuration(), "TS2CM2+IP2LS2"] {
        let atoll = told(Stack::Atoll, configuration);
        let pairs = kernel.iter().zip(&atoll).filter(|(theirs, ours)| theirs != ours);
        let wrong: Vec<String> =
            pairs.map(|(theirs, ours)| format!("kernel {theirs}\natoll  {ours}")).collect();
        assert!(wrong.is_empty() && kernel.len() == atoll.len(), "{configuration}:\n{}", wrong.join("\n"));
    }
}
