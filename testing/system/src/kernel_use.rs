//! Did anything use the kernel's network of a namespace in which only programs on a stack run?
//!
//! The kernel counts for each namespace what its TCP/IP has sent and received, ever, and how many sockets have
//! a port now. In the namespace of a stack's programs all of that stays 0.

use std::process::Command;

/// The lines of /proc/net/snmp, and the counters in them, that any packet or connection changes.
const COUNTED: [(&str, &[&str]); 4] = [
    ("Ip:", &["InReceives", "OutRequests", "OutNoRoutes"]),
    ("Icmp:", &["InMsgs", "OutMsgs"]),
    ("Tcp:", &["ActiveOpens", "PassiveOpens", "InSegs", "OutSegs"]),
    ("Udp:", &["InDatagrams", "OutDatagrams", "NoPorts"]),
];

/// The counters of /proc/net/snmp6.
const COUNTED_V6: [&str; 3] = ["Ip6InReceives", "Ip6OutRequests", "Ip6OutNoRoutes"];

/// The lines of /proc/net/sockstat and sockstat6 whose second number is that of sockets with a port.
const SOCKETS: [&str; 6] = ["TCP:", "UDP:", "RAW:", "TCP6:", "UDP6:", "RAW6:"];

/// What the kernel's network of a namespace was used for so far: one entry for each counter that is not 0.
///
/// # Panics
/// If the namespace is not there.
pub(crate) fn kernel_use(namespace: &str) -> Vec<String> {
    let mut cat = Command::new("nsenter");
    cat.arg(format!("--net=/run/netns/{namespace}")).args(["--", "cat"]);
    cat.args(["snmp", "snmp6", "sockstat", "sockstat6"].map(|file| format!("/proc/net/{file}")));
    let output = cat.output().expect("nsenter is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    used(&String::from_utf8_lossy(&output.stdout))
}

/// The counters that are not 0, of the text of these files.
fn used(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    for pair in lines.windows(2) {
        let [names, values] = [&pair[0], &pair[1]];
        let counted =
            COUNTED.iter().find(|(line, _)| names.first() == Some(line) && values.first() == Some(line));
        let Some((line, counted)) = counted else { continue };
        for (name, value) in names.iter().zip(values).filter(|(name, _)| counted.contains(name)) {
            found.push((format!("{line} {name}"), *value));
        }
    }
    for words in &lines {
        match words[..] {
            [name, value] if COUNTED_V6.contains(&name) => found.push((name.to_owned(), value)),
            [name, "inuse", value, ..] if SOCKETS.contains(&name) => {
                found.push((format!("{name} inuse"), value));
            }
            _ => {}
        }
    }
    assert_eq!(found.len(), 21, "the kernel writes these counters otherwise: {text}");
    found.retain(|(_, value)| *value != "0");
    found.into_iter().map(|(name, value)| format!("{name} {value}")).collect()
}
