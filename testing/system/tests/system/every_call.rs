//! Every call and every option, with good and bad arguments, on sockets of each kind and state: programs see
//! what the kernel shows them, but for what `docs/calls.md` says. What it says must be so: a row that is not
//! needed fails the test.

use std::collections::{BTreeMap, BTreeSet};

use atoll_system_tests::{Net, Stack, compiled};

const PAGE: &str = include_str!("../../../../docs/calls.md");

/// The addresses at the client's end of a listener that leaves SYNs without an answer: its queue is full.
const SILENT: [&str; 2] = ["198.18.0.1", "2001:db8::1"];
const PORT: &str = "4999";
const FULL_LISTENER: &str = "
import socket, time
listener = socket.create_server(('', 4999), family=socket.AF_INET6, dualstack_ipv6=True, backlog=0)
waiting = []
for at in range(3):
    one = socket.socket()
    one.setblocking(False)
    one.connect_ex(('127.0.0.1', 4999))
    waiting.append(one)
time.sleep(0.3)
print('full', flush=True)
time.sleep(600)
";

/// A row of the page about a difference.
#[derive(Debug)]
struct Row {
    /// The call, or level and number of the option, in which `*` stands for anything.
    call: String,
    /// The states of sockets in which it is so, in the same form.
    states: Vec<String>,
    /// Whether every call fails with an error, since the option is refused.
    is_refused: bool,
}

impl Row {
    fn is_about(&self, state: &str, call: &str, answers: &str) -> bool {
        let is_error = |answer: &str| answer.starts_with('E') || answer == ";";
        matches(&self.call, call)
            && self.states.iter().any(|pattern| matches(pattern, state))
            && (!self.is_refused || answers.split(' ').all(is_error))
    }
}

/// Returns whether `text` is what `pattern` says, in which `*` stands for anything.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((head, tail)) = pattern.split_once('*') else { return pattern == text };
    let Some(rest) = text.strip_prefix(head) else { return false };
    (0..=rest.len()).any(|at| rest.is_char_boundary(at) && matches(tail, &rest[at..]))
}

/// Returns the options whose answers differ: rows `| name | number | here | why |` below a heading with the
/// number of their level.
fn options() -> Vec<Row> {
    let mut level = "";
    let mut rows = Vec::new();
    for line in PAGE.lines() {
        if let Some((_, rest)) = line.split_once("(level ") {
            level = rest.trim_end_matches(')');
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if let [_, _, number, here @ ("refused" | "differs"), ..] = cells[..]
            && !level.is_empty()
        {
            let call = format!("{level} {number}");
            rows.push(Row { call, states: vec!["*".into()], is_refused: here == "refused" });
        }
    }
    rows
}

/// Returns the calls whose answers differ: rows "| `call` | states | differs: why |".
fn calls() -> Vec<Row> {
    let row = |line: &str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, call, states, why, _] = cells[..] else { return None };
        why.starts_with("differs: ").then(|| Row {
            call: call.trim_matches('`').replace("\\*", "*"),
            states: states.split(", ").map(|state| state.replace("all", "*")).collect(),
            is_refused: false,
        })
    };
    PAGE.lines().filter_map(row).collect()
}

/// Returns what the program prints of each state and call.
fn lines(stack: Stack, what: &str) -> BTreeMap<String, String> {
    let net = Net::new(stack);
    let mut silent = net.client("python3", &["-c", FULL_LISTENER]);
    silent.says("full", 20);
    let arguments = [Net::SERVER, Net::SERVER6, SILENT[0], SILENT[1], PORT, what];
    let said = net.serve(&compiled("every_call"), &arguments).success(300);
    if let Some(folder) = std::env::var_os("ATOLL_CALLS_TO") {
        let path = std::path::Path::new(&folder).join(format!("{what}-{stack:?}"));
        std::fs::write(path, &said).expect("the folder is writable");
    }
    let line = |line: &str| {
        let (name, answers) = line.split_once(": ")?;
        Some((name.to_owned(), answers.to_owned()))
    };
    said.lines().map(|text| line(text).unwrap_or_else(|| panic!("not STATE|CALL: ANSWERS: {text}"))).collect()
}

/// Compares both stacks. Each difference must be in a row, and each row must be about one.
fn compare(what: &str, least: usize, rows: &[Row]) {
    let [kernel, atoll] = [Stack::Kernel, Stack::Atoll].map(|stack| lines(stack, what));
    assert!(kernel.len() > least && kernel.keys().eq(atoll.keys()), "{} and {}", kernel.len(), atoll.len());
    let (mut wrong, mut needed) = (Vec::new(), BTreeSet::<usize>::new());
    for (name, ours) in atoll.iter().filter(|(name, ours)| kernel[*name] != **ours) {
        let (state, call) = name.split_once('|').expect("STATE|CALL");
        let found = rows.iter().enumerate().filter(|(_, row)| row.is_about(state, call, ours));
        let found: Vec<usize> = found.map(|(at, _)| at).collect();
        needed.extend(found.iter().copied());
        if found.is_empty() {
            wrong.push(format!("{name}\n   kernel: {}\n    Atoll: {ours}", kernel[name]));
        }
    }
    let idle: Vec<_> = rows.iter().enumerate().filter(|(at, _)| !needed.contains(at)).collect();
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), kernel.len(), wrong.join("\n"));
    assert!(idle.is_empty(), "rows of docs/calls.md that are not so: {idle:#?}");
}

#[test]
fn every_option_is_what_it_is_on_the_kernel() {
    compare("options", 5000, &options());
}

#[test]
fn every_call_says_what_it_says_on_the_kernel() {
    compare("calls", 5000, &calls());
}

#[test]
fn patterns_say_what_they_are_about() {
    assert!(matches("send(*, 0x1)", "send(s, octets, 1, 0x1)") && matches("*", "") && matches("a", "a"));
    assert!(!matches("send(*, 0x1)", "send(s, octets, 1, 0x10)") && !matches("a", "ab"));
}
