//! Does the stack do what a script says?

use std::collections::BTreeMap;
use std::fmt;

use atoll_base::{Duration, Endpoint, Instant};
use atoll_sockets::{Errno, Failure};

use crate::calls::{self, Prepared};
use crate::code;
use crate::host::{Host, PORT, START, Settings};
use crate::parse::{self, parse};
use crate::script::{Action, Call, Event, Icmp, Micros, Packet, Script, TcpOption, Time, Value};
use crate::wire::{self, Segment};

/// How much earlier or later than its time something may happen: packetdrill's default.
const TOLERANCE: Micros = 4000;
/// Ports of the other end, a new one for each connection.
const REMOTE_PORT: u16 = 40_000;
const PSH: u8 = 0x08;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// Why a script did not pass.
#[derive(Clone, Debug)]
pub struct Report {
    /// Line of the script.
    pub line: usize,
    /// What is wrong.
    pub what: String,
    /// The script asks for something that this runner does not have: says nothing about the stack.
    pub unsupported: bool,
    /// The exchange so far, as a script has it.
    pub exchange: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.exchange {
            writeln!(f, "    {line}")?;
        }
        let kind = if self.unsupported { "not supported: " } else { "" };
        write!(f, "line {}: {kind}{}", self.line, self.what)
    }
}

/// Runs a script.
///
/// # Errors
/// If the stack does something else, or the script cannot be run.
pub fn run(text: &str) -> Result<(), Box<Report>> {
    let early = |trouble: parse::Trouble| {
        let parse::Trouble { line, what, unsupported } = trouble;
        Box::new(Report { line, what, unsupported, exchange: Vec::new() })
    };
    let script = parse(text).map_err(early)?;
    let (settings, tolerance) = configure(&script).map_err(early)?;
    let mut runner = Runner {
        host: Host::new(&settings),
        tolerance,
        base: 0,
        flow: Flow::new(0),
        flows: 0,
        timestamps: BTreeMap::new(),
        // Where PSH lies depends on how a stack keeps what was written: scripts of others are not held to it.
        compared: if settings.checks_push { 0xff } else { !PSH },
        strips_timestamps: settings.strips_timestamps,
        blocked: None,
        exchange: Vec::new(),
    };
    for event in &script.events {
        if let Err(Wrong { what, unsupported }) = runner.event(event) {
            let exchange = std::mem::take(&mut runner.exchange);
            return Err(Box::new(Report { line: event.line, what, unsupported, exchange }));
        }
    }
    let Some(Blocked { line, .. }) = runner.blocked else { return Ok(()) };
    runner.await_return().map_err(|Wrong { what, unsupported }| {
        let exchange = std::mem::take(&mut runner.exchange);
        Box::new(Report { line, what, unsupported, exchange })
    })
}

/// What the options and the first command of a script ask for.
fn configure(script: &Script) -> Result<(Settings, Micros), parse::Trouble> {
    let mut settings = Settings::default();
    let mut tolerance = TOLERANCE;
    for (line, name, value) in &script.options {
        let trouble = |what: String| parse::Trouble { line: *line, what, unsupported: true };
        match (name.as_str(), value.as_str()) {
            ("push", "checked") => settings.checks_push = true,
            ("tolerance_usecs", value) => {
                tolerance = value.parse().map_err(|_| trouble(format!("--{name}={value}")))?;
            }
            // What it is anyway, or what changes nothing here.
            ("ip_version", "ipv4")
            | ("mtu", "1500")
            | ("tcp_ts_tick_usecs", "1000")
            | ("mss" | "verbose" | "wire_protocol", _) => {}
            _ => return Err(trouble(format!("the option --{name}={value}"))),
        }
    }
    if let Some((line, command)) = &script.setup {
        for words in command.replace("\\\n", " ").lines() {
            configure_by(words, &mut settings).map_err(|what| parse::Trouble {
                line: *line,
                what,
                unsupported: true,
            })?;
        }
    }
    Ok((settings, tolerance))
}

/// What one line of the first command sets: `sysctl`, or one of the scripts that come with packetdrill.
fn configure_by(command: &str, settings: &mut Settings) -> Result<(), String> {
    let mut words = command.split_whitespace();
    let Some(program) = words.next() else { return Ok(()) };
    if program.ends_with("/defaults.sh") {
        // What it sets: a receive buffer that grows to 15 MiB.
        settings.receive = Some((540_000, 15_728_640));
        settings.fast_open = Some(3);
        return words.next().map_or(Ok(()), |more| Err(format!("`{more}` behind {program}")));
    }
    if program != "sysctl" && !program.ends_with("/set_sysctls.py") {
        return Err(format!("the command `{program}`"));
    }
    let assignments = command.split_whitespace().skip(1).filter(|word| !matches!(*word, "-q" | "-w"));
    // `a="1 2 3"` is one word to a shell.
    let text = assignments.collect::<Vec<_>>().join(" ").replace("/proc/sys/", "").replace('/', ".");
    for assignment in split_assignments(&text) {
        let (key, value) = assignment.split_once('=').ok_or_else(|| format!("`{assignment}`"))?;
        let value = value.trim_matches(['"', '\'']);
        let numbers: Vec<u32> = value.split_whitespace().filter_map(|number| number.parse().ok()).collect();
        match (key, numbers.as_slice()) {
            ("net.ipv4.tcp_rmem", &[_, first, most]) => settings.receive = Some((first, most)),
            ("net.ipv4.tcp_ecn", &[mode]) if mode <= 3 => settings.ecn = Some(mode),
            ("net.ipv4.tcp_timestamps", [0]) => settings.strips_timestamps = true,
            ("net.ipv4.tcp_fastopen", &[bits]) => settings.fast_open = Some(bits),
            ("net.ipv4.tcp_wmem", &[_, _, most]) => settings.send_max = Some(most),
            ("net.ipv4.tcp_sack" | "net.ipv4.tcp_timestamps" | "net.ipv4.tcp_window_scaling", [1])
            | ("net.ipv4.tcp_no_metrics_save" | "net.ipv4.tcp_moderate_rcvbuf", [1])
            | ("net.ipv4.tcp_min_tso_segs", _) => {}
            ("net.ipv4.tcp_congestion_control", _) if value == "cubic" => {}
            _ => return Err(format!("{key}={value}")),
        }
    }
    Ok(())
}

/// Splits at blanks that stand outside quotation marks.
fn split_assignments(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut is_quoted = false;
    for c in text.chars() {
        is_quoted ^= c == '"';
        match parts.last_mut() {
            Some(last) if is_quoted || c != ' ' => last.push(c),
            _ => parts.push(String::new()),
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}

struct Wrong {
    what: String,
    unsupported: bool,
}

impl Wrong {
    fn new(what: impl Into<String>) -> Wrong {
        Wrong { what: what.into(), unsupported: false }
    }
}

/// One connection, and how its numbers and the script's belong together. The other end's are the same.
struct Flow {
    local: Option<Endpoint>,
    remote: Endpoint,
    /// Our initial sequence number on the wire, and in the script.
    iss: (u32, u32),
    /// The other end's, which is the same in both.
    irs: u32,
    /// That of a SYN of the other end's which we have not answered yet.
    offered: Option<u32>,
    /// Our SYN is not answered yet.
    is_opening: bool,
}

impl Flow {
    /// What the script's numbers of ours miss to those on the wire.
    fn offset(&self, is_syn: bool) -> u32 {
        let (live, script) = self.iss;
        if is_syn { live.wrapping_sub(script) } else { live }
    }

    fn new(number: u16) -> Flow {
        Flow {
            local: None,
            remote: Endpoint::new(wire::REMOTE, REMOTE_PORT + number),
            iss: (0, 0),
            irs: 0,
            offered: None,
            is_opening: false,
        }
    }
}

/// A call that has not returned.
struct Blocked {
    line: usize,
    call: Call,
    prepared: Prepared,
    ends: Instant,
}

struct Runner {
    host: Host,
    tolerance: Micros,
    /// The time of the event before.
    base: Micros,
    flow: Flow,
    flows: u16,
    /// Our clocks: as the script has them, and as they were.
    timestamps: BTreeMap<u32, u32>,
    /// Control bits that have to be the same.
    compared: u8,
    /// The stack has no switch for timestamps: where a script wants none, the way takes them from its SYNs.
    strips_timestamps: bool,
    blocked: Option<Blocked>,
    exchange: Vec<String>,
}

fn instant(at: Micros) -> Instant {
    START + Duration::from_micros(u64::try_from(at).unwrap_or(0))
}

fn micros(at: Instant) -> Micros {
    at.since(START).as_micros() as Micros
}

fn seconds(at: Micros) -> String {
    format!("{}.{:06}", at / 1_000_000, at % 1_000_000)
}

impl Runner {
    fn event(&mut self, event: &Event) -> Result<(), Wrong> {
        let now = micros(self.host.now());
        let (from, to) = match event.time {
            Time::At(at) => (at, at),
            Time::After(after) => (self.base + after, self.base + after),
            Time::Any => (now, Micros::MAX / 2),
            Time::Between(from, to, false) => (from, to),
            Time::Between(from, to, true) => (self.base + from, self.base + to),
        };
        let relative = matches!(event.time, Time::After(_));
        let base = self.base;
        if let Action::Expect(packet) = &event.action {
            let at = self.expect(packet, from, to)?;
            let is_exact = matches!(event.time, Time::At(_) | Time::After(_));
            self.base = if is_exact { from } else { at };
            return Ok(());
        }
        if event.time == Time::Any {
            return Err(Wrong { what: "`*` but with a segment that is sent".to_owned(), unsupported: true });
        }
        self.run_until(instant(from), |_| false)?;
        self.base = from;
        match &event.action {
            Action::Inject(packet) => self.inject(packet),
            Action::InjectIcmp(message) => self.inject_icmp(message),
            Action::Call(call) => {
                let ends = call.ends.map(|ends| instant(if relative { base + ends } else { ends }));
                self.call(event.line, call, ends)?;
            }
            Action::Code(text) => {
                let info = self.host.info().ok_or_else(|| Wrong::new("there is no connection to ask about"))?;
                code::run(text, &info).map_err(|trouble| match trouble {
                    code::Trouble::Failed(what) => Wrong::new(what),
                    code::Trouble::Unsupported(what) => Wrong { what, unsupported: true },
                })?;
            }
            // What undoes the first command.
            Action::Command(text) if text.contains("sysctl_restore") => {}
            Action::Command(text) => {
                return Err(Wrong { what: format!("the command `{}`", text.trim()), unsupported: true });
            }
            Action::Expect(_) => {}
        }
        self.retry()
    }

    /// Lets time pass until `to`, or until it `is_enough`.
    fn run_until(&mut self, to: Instant, is_enough: impl Fn(&Runner) -> bool) -> Result<(), Wrong> {
        loop {
            self.retry()?;
            let now = self.host.now();
            if is_enough(self) || now >= to {
                self.host.step();
                return self.retry();
            }
            // A timer that is due stays so until the clock has moved.
            let next = self.host.next_timeout().map_or(to, |next| next.max(now + Duration::from_micros(1)).min(to));
            self.host.advance(next);
        }
    }

    /// Lets time pass until the call that blocks has returned.
    fn await_return(&mut self) -> Result<(), Wrong> {
        let Some(blocked) = &self.blocked else { return Ok(()) };
        // By then it has returned, or it is too late.
        let last = blocked.ends + self.tolerance() + Duration::from_micros(1);
        self.run_until(last, |runner| runner.blocked.is_none())
    }

    /// How much earlier or later than its time something may happen.
    fn tolerance(&self) -> Duration {
        Duration::from_micros(self.tolerance as u64)
    }

    /// Calls that block once more.
    fn retry(&mut self) -> Result<(), Wrong> {
        let Some(blocked) = self.blocked.take() else { return Ok(()) };
        let outcome = calls::attempt(&mut self.host, &blocked.prepared);
        let (now, tolerance) = (self.host.now(), self.tolerance());
        if outcome == Err(Failure::WouldBlock) {
            if now > blocked.ends + tolerance {
                let what = format!("{} of line {} has not returned", blocked.call.name, blocked.line);
                return Err(Wrong::new(what));
            }
            self.blocked = Some(blocked);
            return Ok(());
        }
        if now + tolerance < blocked.ends {
            let what = format!(
                "{} of line {} has returned at {}: too early",
                blocked.call.name,
                blocked.line,
                seconds(micros(now))
            );
            return Err(Wrong::new(what));
        }
        self.judge(&blocked.call, outcome)
    }

    fn call(&mut self, line: usize, call: &Call, ends: Option<Instant>) -> Result<(), Wrong> {
        // One thread makes the calls.
        self.await_return()?;
        let prepared = calls::prepare(&self.host, call).map_err(|what| Wrong { what, unsupported: true })?;
        self.exchange.push(format!("{} {}(...)", seconds(micros(self.host.now())), call.name));
        let opens = match prepared {
            Prepared::Listen(..) => true,
            Prepared::Connect(fd, _) | Prepared::SendFast(fd, ..) => self.host.is_fresh(fd),
            _ => false,
        };
        if opens {
            self.flows += 1;
            self.flow = Flow::new(self.flows);
            if call.name != "listen" {
                self.flow.remote = Endpoint::new(wire::REMOTE, PORT);
            }
        }
        let outcome = calls::attempt(&mut self.host, &prepared);
        match (outcome, ends) {
            (Err(Failure::WouldBlock), Some(ends)) => {
                self.blocked = Some(Blocked { line, call: call.clone(), prepared, ends });
                Ok(())
            }
            (outcome, Some(ends)) if ends > self.host.now() + self.tolerance() => {
                Err(Wrong::new(format!("{} has returned at once: {}", call.name, shown(outcome))))
            }
            (Err(Failure::WouldBlock), None) if !prepared.is_nonblocking() => {
                Err(Wrong::new(format!("{} blocks", call.name)))
            }
            (Err(Failure::WouldBlock), None) => self.judge(call, Err(Errno::EAGAIN.into())),
            (outcome, _) => self.judge(call, outcome),
        }
    }

    /// Whether a call has returned what the script says.
    fn judge(&mut self, call: &Call, outcome: Result<i64, Failure>) -> Result<(), Wrong> {
        if let (Ok(live), Value::Number(name @ 0..), true) =
            (outcome, &call.result, calls::gives_descriptor(&call.name))
        {
            self.host.name_descriptor(*name as i32, live as i32);
        }
        let is_right = match (&outcome, &call.result, &call.errno) {
            (Ok(_), Value::Whatever, _) => true,
            // Descriptors have the numbers that the script gives them.
            (Ok(_), Value::Number(0..), None) if calls::gives_descriptor(&call.name) => true,
            (Ok(value), expected, None) => calls::number(expected) == Some(*value),
            (Err(Failure::Error(errno)), Value::Number(-1), Some(name)) => {
                // EWOULDBLOCK is EAGAIN.
                calls::errno(name).is_some_and(|expected| expected == *errno)
            }
            _ => false,
        };
        if is_right {
            return Ok(());
        }
        let expected = match (&call.result, &call.errno) {
            (Value::Number(value), Some(errno)) => format!("{value} {errno}"),
            (Value::Number(value), None) => value.to_string(),
            (other, _) => format!("{other:?}"),
        };
        Err(Wrong::new(format!("{} has returned {}, not {expected}", call.name, shown(outcome))))
    }

    fn inject(&mut self, packet: &Packet) {
        let mut live = packet.clone();
        let is_syn = packet.flags & SYN != 0;
        if is_syn {
            self.flow.offered = Some(packet.seq);
            if std::mem::take(&mut self.flow.is_opening) {
                self.flow.irs = packet.seq;
            }
        } else {
            live.seq = packet.seq.wrapping_add(self.flow.irs);
        }
        let offset = self.flow.offset(is_syn);
        live.ack = live.ack.map(|ack| ack.wrapping_add(offset));
        for option in live.options.iter_mut().flatten() {
            match option {
                TcpOption::Sack(blocks) => {
                    for (left, right) in blocks {
                        *left = left.wrapping_add(offset);
                        *right = right.wrapping_add(offset);
                    }
                }
                TcpOption::Timestamps { echo, .. } => *echo = self.timestamps.get(echo).copied().unwrap_or(*echo),
                _ => {}
            }
        }
        self.log('<', self.host.now(), packet);
        let local = self.flow.local.unwrap_or(Endpoint::new(wire::LOCAL, PORT));
        self.host.inject(&Segment { from: self.flow.remote, to: local, packet: live });
    }

    /// A message about a segment of ours, whose numbers are those after the handshake.
    fn inject_icmp(&mut self, message: &Icmp) {
        let offset = self.flow.offset(false);
        let local = self.flow.local.unwrap_or(Endpoint::new(wire::LOCAL, PORT));
        self.exchange.push(format!("{} < icmp", seconds(micros(self.host.now()))));
        self.host.inject_frame(&wire::icmp_frame(message, local, self.flow.remote, message.seq.wrapping_add(offset)));
    }

    fn log(&mut self, direction: char, at: Instant, packet: &Packet) {
        self.exchange.push(format!("{} {direction} {}", seconds(micros(at)), wire::describe(packet)));
    }

    /// Waits for a segment, and compares. Returns when it was sent.
    fn expect(&mut self, expected: &Packet, from: Micros, to: Micros) -> Result<Micros, Wrong> {
        let last = instant(to.saturating_add(self.tolerance).min(micros(self.host.now()) + 3_600_000_000));
        if self.host.sent.is_empty() {
            self.run_until(last.max(self.host.now()), |runner| !runner.host.sent.is_empty())?;
        }
        let script = wire::describe(expected);
        let Some((at, segment)) = self.take_sent(expected.len) else {
            return Err(Wrong::new(format!(
                "nothing was sent by {}; the script has\n      {script}",
                seconds(micros(last))
            )));
        };
        let seen = self.in_script_numbers(segment, expected);
        self.log('>', at, &seen);
        let sent = micros(at);
        if let Some(what) = difference(expected, &seen, self.compared) {
            let text = format!("{what} differs; the script has\n      {script}\n    the stack has sent\n      ");
            return Err(Wrong::new(text + &wire::describe(&seen)));
        }
        if sent < from - self.tolerance || sent > to.saturating_add(self.tolerance) {
            let due = if from == to { seconds(from) } else { format!("{} to {}", seconds(from), seconds(to)) };
            return Err(Wrong::new(format!("sent at {}, but due at {due}: {script}", seconds(sent))));
        }
        Ok(sent)
    }

    /// The next segment that was sent, joined with those that continue it as far as `len`: how text is cut into what leaves at one
    /// time is the link's business.
    fn take_sent(&mut self, len: u32) -> Option<(Instant, Segment)> {
        let (at, mut segment) = self.host.sent.pop_front()?;
        while segment.packet.len < len {
            let next_seq = segment.packet.seq.wrapping_add(segment.packet.len);
            let Some((_, next)) = self.host.sent.front() else { break };
            let continues = next.packet.seq == next_seq && next.packet.len > 0 && next.packet.ack == segment.packet.ack;
            if !continues || segment.packet.len + next.packet.len > len {
                break;
            }
            segment.packet.len += next.packet.len;
            segment.packet.flags |= next.packet.flags;
            self.host.sent.pop_front();
        }
        Some((at, segment))
    }

    fn in_script_numbers(&mut self, segment: Segment, expected: &Packet) -> Packet {
        let mut packet = segment.packet;
        self.flow.local = Some(segment.from);
        let is_syn = packet.flags & SYN != 0;
        if is_syn && expected.flags & SYN != 0 {
            self.flow.iss = (packet.seq, expected.seq);
            match self.flow.offered {
                Some(irs) if packet.flags & ACK != 0 => self.flow.irs = irs,
                _ => self.flow.is_opening = true,
            }
        }
        if self.strips_timestamps && is_syn {
            strip_timestamps(packet.options.get_or_insert_default());
        }
        packet.seq = packet.seq.wrapping_sub(self.flow.offset(is_syn));
        if !is_syn {
            // After the SYNs the numbers of both ends count from them.
            let irs = self.flow.irs;
            packet.ack = packet.ack.map(|ack| ack.wrapping_sub(irs));
            for option in packet.options.iter_mut().flatten() {
                if let TcpOption::Sack(blocks) = option {
                    for (left, right) in blocks {
                        *left = left.wrapping_sub(irs);
                        *right = right.wrapping_sub(irs);
                    }
                }
            }
        }
        let theirs = expected.options.iter().flatten().find_map(|option| match option {
            TcpOption::Timestamps { value, .. } => Some(*value),
            _ => None,
        });
        for option in packet.options.iter_mut().flatten() {
            if let (TcpOption::Timestamps { value, .. }, Some(theirs)) = (option, theirs) {
                self.timestamps.insert(theirs, *value);
                *value = theirs;
            }
        }
        packet
    }
}

/// A SYN's options without timestamps, as Linux lays them out then.
fn strip_timestamps(options: &mut Vec<TcpOption>) {
    let Some(at) = options.iter().position(|option| matches!(option, TcpOption::Timestamps { .. })) else { return };
    options.remove(at);
    if let Some(sack) = options.iter().position(|option| *option == TcpOption::SackOk) {
        options.splice(sack..sack, [TcpOption::Nop, TcpOption::Nop]);
    }
}

fn shown(outcome: Result<i64, Failure>) -> String {
    match outcome {
        Ok(value) => value.to_string(),
        Err(Failure::Error(errno)) => format!("-1 {}", calls::errno_name(errno)),
        Err(Failure::WouldBlock) => "-1 EAGAIN".to_owned(),
    }
}

/// In what two segments differ that should be the same.
fn difference(expected: &Packet, seen: &Packet, flags: u8) -> Option<&'static str> {
    let differs = [
        ("ECN", expected.ecn.is_some() && expected.ecn != seen.ecn),
        ("control bits", (expected.flags ^ seen.flags) & flags != 0),
        ("the sequence number", expected.seq != seen.seq),
        ("the length", expected.len != seen.len),
        ("the acknowledgement number", expected.ack.is_some() && expected.ack != seen.ack),
        ("the window", expected.window.is_some() && expected.window != seen.window),
        ("the urgent pointer", expected.urgent.is_some() && expected.urgent != seen.urgent),
        ("an option", expected.options.is_some() && expected.options != seen.options),
    ];
    differs.into_iter().find_map(|(what, differs)| differs.then_some(what))
}
