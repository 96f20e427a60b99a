//! Every script in `scripts/` passes; and scripts that say something else do not.

use std::fs;
use std::path::Path;

use atoll_conformance::{run, run_with};

fn script(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn every_script_passes() {
    every_script("");
}

#[test]
fn every_script_passes_where_ip_is_apart() {
    every_script("--ip_apart=1");
}

fn every_script(options: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts");
    let entries = fs::read_dir(folder).expect("the folder is there");
    let mut names: Vec<_> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.retain(|name| name.ends_with(".pkt"));
    names.sort();
    assert!(names.len() > 30, "{names:?}");
    let failures: Vec<String> = names
        .iter()
        .filter_map(|name| Some(format!("{name}: {}", run_with(options, &script(name)).err()?)))
        .collect();
    assert!(failures.is_empty(), "{} of {} scripts:\n{}", failures.len(), names.len(), failures.join("\n\n"));
}

/// Runs a script with `from` replaced by `to`. Returns the line and the message of its failure, and whether
/// the runner lacks support.
fn with(name: &str, from: &str, to: &str) -> (usize, String, bool) {
    let text = script(name);
    assert!(text.contains(from), "{name} has no {from}");
    let report = run(&text.replacen(from, to, 1)).expect_err("the script says something else now");
    (report.line, report.what, report.unsupported)
}

#[test]
fn every_difference_is_seen() {
    let cases = [
        // Sequence number, length, acknowledgement, control bits, options, window.
        ("+0 > . 1:1001(1000) ack 1", "+0 > . 2:1002(1000) ack 1", "the sequence number"),
        ("+0 > . 1:1001(1000) ack 1", "+0 > . 1:2001(2000) ack 1", "the length"),
        ("+0 > . 1:1001(1000) ack 1", "+0 > . 1:1001(1000) ack 2", "the acknowledgement number"),
        ("+0 > . 1:1001(1000) ack 1", "+0 > F. 1:1001(1000) ack 1", "control bits"),
        ("+0 > P. 1:10001(10000) ack 1", "+0 > . 1:10001(10000) ack 1", "control bits"),
        ("+0 > . 1:1001(1000) ack 1", "+0 > . 1:1001(1000) ack 1 <nop,nop,sack 1:2>", "an option"),
        ("+0 > . 1:1001(1000) ack 1", "+0 > . 1:1001(1000) ack 1 win 1", "the window"),
        ("+0 > . 1:1001(1000) ack 1", "+0 > [ce] . 1:1001(1000) ack 1", "ECN"),
        // Time: too late, too early, never.
        ("+0 > . 1:1001(1000) ack 1", "+.1~+.2 > . 1:1001(1000) ack 1", "sent at"),
        ("+.1 < . 1:1(0) ack 10001 win 320", "+.1 > . 1001:2001(1000) ack 1", "nothing was sent by"),
        ("<sack 1001:4001,nop,nop>", "<sack 1001:3001,nop,nop>", "nothing was sent by"),
        // What calls return, and what is asserted.
        ("write(4, ..., 10000) = 10000", "write(4, ..., 10000) = 9999", "write has returned 10000, not 9999"),
        ("write(4, ..., 10000) = 10000", "read(4, ..., 10000) = 0", "read blocks"),
        ("tcpi_snd_cwnd == 7", "tcpi_snd_cwnd == 8", "tcpi_snd_cwnd is 7"),
    ];
    for (from, to, wanted) in cases {
        let (_, what, unsupported) = with("fast_retransmit_sack.pkt", from, to);
        assert!(what.contains(wanted) && !unsupported, "{to}: {what}");
    }
    let (line, what, _) = with("open_active.pkt", "0...0.1 connect", "0...0.2 connect");
    assert!(line > 2 && what.contains("too early"), "{line}: {what}");
    let (_, what, _) = with("open_active.pkt", "0...0.1 connect", "0...0.05 connect");
    assert!(what.contains("has not returned"), "{what}");
}

#[test]
fn a_report_shows_the_exchange_and_the_line() {
    let text = script("fast_retransmit_sack.pkt")
        .replace("ack 10001 win 320", "ack 10001 win 320\n   +0 > . 7:7(0) ack 1");
    let report = run(&text).expect_err("nothing is sent");
    let shown = report.to_string();
    assert!(shown.contains("0.300000 < . 1:1(0) ack 10001 win 320"), "{shown}");
    assert!(shown.contains("0.200000 > . 1:1001(1000) ack 1"), "{shown}");
    assert_eq!(text.lines().nth(report.line - 1), Some("   +0 > . 7:7(0) ack 1"), "{shown}");
}

#[test]
fn what_is_not_supported_never_passes() {
    let strange = [
        "0 socket(..., SOCK_RAW, IPPROTO_UDP) = 3",
        "0 pipe([3, 4]) = 0",
        "`sysctl -q net.ipv4.tcp_frto=0`\n0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3",
        "`rm -rf /`\n0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3",
        "--ip_version=ipv5\n0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3",
        "--mtu=68\n0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3",
        "0 < icmp time_exceeded ttl [1:1461(1460)]",
        "0 < icmp echo_request id 7",
        "0 < S 0:0(0) win 100 <mss 1000,md5 1234>",
        "0 < gre: S 0:0(0) win 100",
        "0 < ipv4 1.2.3.4 > 5.6.7.8: udp (10)",
        "0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3\n0 setsockopt(3, SOL_TCP, TCP_MD5SIG, [1], 4) = 0",
        "0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3\n+0 `tc qdisc del dev tun0 root`",
    ];
    for text in strange {
        let report = run(text).expect_err("it is not supported");
        assert!(report.unsupported, "{text}: {report}");
    }
}

#[test]
fn nonsense_is_refused_with_its_line() {
    let nonsense = [
        "0",
        "0 <",
        "0 < S",
        "0 < S 0:5(4)",
        "x socket() = 3",
        "0 socket(",
        "0 socket() =",
        "0 %{ assert",
        "`",
        "+",
        "0 < S 0:0(0) <mss>",
    ];
    for text in nonsense {
        let report = run(&format!("// a comment\n{text}\n")).expect_err("it is nonsense");
        assert!((2..=3).contains(&report.line), "{text}: {report}");
    }
    // Whatever the text is, there is an answer.
    let whole = script("keep_alive.pkt");
    for end in (0..whole.len()).filter(|end| whole.is_char_boundary(*end)) {
        let _ = run(&whole[..end]);
    }
}
