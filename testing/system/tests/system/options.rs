//! Every socket option with usual and odd values, on sockets of each kind and state: programs see what the
//! kernel shows them, except for options that are refused or listed here.

use std::collections::BTreeMap;
use std::process::Command;

use atoll_system_tests::{NoNet, Proc, Stack, program};

/// The options that Atoll refuses with any value, as a kernel without the feature does (limits.md).
const REFUSED: &[&str] = &[
    "IPV6_ADDR_PREFERENCES",
    "IPV6_AUTOFLOWLABEL",
    "IPV6_FLOWINFO_SEND",
    "IPV6_FREEBIND",
    "IPV6_HOPLIMIT",
    "IPV6_RECVRTHDR",
    "IP_FREEBIND",
    "IP_HDRINCL",
    "IP_OPTIONS",
    "IP_RECVOPTS",
    "IP_TRANSPARENT",
    "SO_BUSY_POLL",
    "SO_MARK",
    "SO_NO_CHECK",
    "SO_PASSCRED",
    "SO_TIMESTAMPING",
    "SO_TXTIME",
    "TCP_MD5SIG",
    "TCP_TX_DELAY",
    "UDP_NO_CHECK6_TX",
];

/// The options that Atoll refuses on connections, where nothing says when octets came (limits.md).
const REFUSED_ON_TCP: &[&str] = &["SO_TIMESTAMP", "SO_TIMESTAMPNS", "SO_TIMESTAMPNS_NEW", "SO_TIMESTAMP_NEW"];

/// The MTU of the path: that of the loopback is the stack's own. The kernel does not know one when an option
/// has made it forget the route.
const MTUS: &[&str] = &["IPV6_MTU", "IP_MTU"];

/// The options that act, but for which getsockopt(2) sometimes returns another value than on Linux.
const DIFFERENT: &[(&str, &str)] = &[
    ("SO_SNDBUF", "the sizes are the stack's"),
    ("SO_RCVBUF", "the sizes are the stack's"),
    ("SO_RCVLOWAT", "no more than the buffer, whose size is the stack's"),
    ("SO_LINGER", "Linux counts the time in jiffies, of which so many seconds are too many"),
    ("SO_INCOMING_CPU", "it can be asked, not set, and nobody knows the processor"),
    ("TCP_MAXSEG", "the MTU of the stack's loopback is its own"),
    ("TCP_CONGESTION", "the default is the machine's"),
    ("TCP_WINDOW_CLAMP", "one that was not set is shown as a fixed number"),
    ("IPV6_V6ONLY", "bind(2) to an address of IPv6 does not set it"),
];

/// Returns the program's output for each option and socket.
fn lines(no_net: &NoNet, stack: Stack) -> BTreeMap<String, Vec<String>> {
    let mut command = Command::new(program("options.py"));
    command.args(["127.0.0.1", "::1"]);
    let said = Proc::start(&mut no_net.on(stack, &command), None).success(60);
    let line = |line: &str| {
        let (name, answers) = line.split_once(": ")?;
        Some((name.to_owned(), answers.split(", ").map(str::to_owned).collect()))
    };
    said.lines().map(|text| line(text).expect("NAME: ANSWER, ...")).collect()
}

#[test]
fn programs_see_what_the_kernel_shows_them() {
    let no_net = NoNet::new();
    let [kernel, atoll] = [Stack::Kernel, Stack::Atoll].map(|stack| lines(&no_net, stack));
    assert!(kernel.len() > 1000 && kernel.keys().eq(atoll.keys()), "{} and {}", kernel.len(), atoll.len());
    let mut wrong = Vec::new();
    for (socket, answers) in &atoll {
        let option = socket.rsplit(' ').next().expect("its name is last");
        let is_error = |answer: &String| answer.rsplit(' ').next().is_some_and(|word| word.starts_with('E'));
        let is_so = match option {
            _ if REFUSED.contains(&option) => answers.iter().all(is_error),
            _ if socket.starts_with("tcp") && REFUSED_ON_TCP.contains(&option) => {
                answers.iter().all(is_error)
            }
            _ if MTUS.contains(&option) => answers.iter().zip(&kernel[socket]).all(|(ours, theirs)| {
                let is_known = !is_error(ours) && (!is_error(theirs) || theirs.ends_with(" ENOTCONN"));
                ours == theirs || is_known
            }),
            _ if DIFFERENT.iter().any(|(name, _)| *name == option) => {
                let pairs = answers.iter().zip(&kernel[socket]);
                option == "SO_INCOMING_CPU"
                    || pairs.filter(|(ours, theirs)| is_error(ours) != is_error(theirs)).count() == 0
            }
            _ => *answers == kernel[socket],
        };
        if !is_so {
            let pairs = answers.iter().zip(&kernel[socket]).filter(|(ours, theirs)| ours != theirs).take(3);
            wrong.push(format!("{socket}: {:?}", pairs.collect::<Vec<_>>()));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {}, as (Atoll, kernel):\n{}",
        wrong.len(),
        atoll.len(),
        wrong.join("\n")
    );
}
