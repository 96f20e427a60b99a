//! Runs scripts, and checks that the stack does what they say.

use std::fmt;

use atoll_base::{Duration, Endpoint, Instant};
use atoll_sockets::{Errno, Failure};

use crate::calls::{self, Prepared, shown};
use crate::code;
use crate::compare::difference;
use crate::configure::{Asked, Way, configure, is_idle};
use crate::flow::{Flows, SYN};
use crate::host::{Host, START};
use crate::parse::{self, parse};
use crate::script::{Action, Call, Echoed, Event, Icmp, Message, Micros, Packet, TcpOption, Time, Value};
use crate::wire::{self, About, Family, Sent};

const PSH: u16 = 0x08;
/// The end of a script's clock, in microseconds.
const LASTS_MAX: Micros = 366 * 86_400 * 1_000_000;

/// Why a script did not pass.
#[derive(Clone, Debug)]
pub struct Report {
    /// The line of the script.
    pub line: usize,
    /// The difference or fault.
    pub what: String,
    /// Whether the script needs something that this runner does not support, which says nothing about the
    /// stack.
    pub unsupported: bool,
    /// The exchange so far, in the notation of scripts.
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
/// Fails if the stack does something else, or the script cannot be run.
pub fn run(text: &str) -> Result<(), Box<Report>> {
    run_with("", text)
}

/// Runs a script as if it began with `options` (`--name=value`, on one line).
///
/// # Errors
/// Fails as [`run`] does.
pub fn run_with(options: &str, text: &str) -> Result<(), Box<Report>> {
    let text = &format!("{options} {text}");
    let early = |trouble: parse::Trouble| {
        let parse::Trouble { line, what, unsupported } = trouble;
        Box::new(Report { line, what, unsupported, exchange: Vec::new() })
    };
    let script = parse(text).map_err(early)?;
    let Asked { settings, way, tolerance, checks_push, strict_segments } =
        configure(&script).map_err(early)?;
    let mut runner = Runner {
        host: Host::new(&settings),
        family: settings.family,
        tolerance,
        base: 0,
        segments: Flows::new(settings.family),
        datagrams: Flows::new(settings.family),
        // Where PSH is set depends on how a stack keeps what was written, so it is not compared in others'
        // scripts.
        compared: if checks_push { !0 } else { !PSH },
        way,
        strict_segments,
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

struct Wrong {
    what: String,
    unsupported: bool,
}

impl Wrong {
    fn new(what: impl Into<String>) -> Wrong {
        Wrong { what: what.into(), unsupported: false }
    }
}

/// A call that has not returned.
struct Blocked {
    line: usize,
    call: Call,
    prepared: Prepared,
    /// When the call returns according to the script.
    ends: Instant,
    /// When the time-out of the call expires.
    gives_up: Option<Instant>,
}

struct Runner {
    host: Host,
    family: Family,
    tolerance: Micros,
    /// The time of the previous event.
    base: Micros,
    segments: Flows,
    datagrams: Flows,
    /// The control bits that are compared.
    compared: u16,
    way: Way,
    strict_segments: bool,
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
        if from > LASTS_MAX {
            return Err(Wrong { what: "more than a year".to_owned(), unsupported: true });
        }
        let relative = matches!(event.time, Time::After(_));
        let base = self.base;
        if let Action::Expect(message) = &event.action {
            let at = self.expect(message, from, to)?;
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
            Action::Inject(message) => self.inject(message),
            Action::Call(call) => {
                let ends = call.ends.map(|ends| instant(if relative { base + ends } else { ends }));
                self.call(event.line, call, ends)?;
            }
            Action::Code(text) => {
                let info =
                    self.host.info().ok_or_else(|| Wrong::new("there is no connection to ask about"))?;
                code::run(text, &info).map_err(|trouble| match trouble {
                    code::Trouble::Failed(what) => Wrong::new(what),
                    code::Trouble::Unsupported(what) => Wrong { what, unsupported: true },
                })?;
            }
            Action::Command(text) if is_idle(text) => {}
            Action::Command(text) => {
                return Err(Wrong { what: format!("the command `{}`", text.trim()), unsupported: true });
            }
            Action::Expect(_) => {}
        }
        self.retry()
    }

    /// Runs the stack until `to`, or until `is_enough` holds.
    fn run_until(&mut self, to: Instant, is_enough: impl Fn(&Runner) -> bool) -> Result<(), Wrong> {
        loop {
            self.retry()?;
            let now = self.host.now();
            if is_enough(self) || now >= to {
                self.host.step();
                return self.retry();
            }
            // A timer that is due stays due until the clock has advanced.
            let next =
                self.host.next_timeout().map_or(to, |next| next.max(now + Duration::from_micros(1)).min(to));
            let gives_up = self.blocked.as_ref().and_then(|blocked| blocked.gives_up).unwrap_or(to);
            self.host.advance(next.min(gives_up.max(now + Duration::from_micros(1))));
        }
    }

    /// Runs the stack until the blocked call has returned.
    fn await_return(&mut self) -> Result<(), Wrong> {
        let Some(blocked) = &self.blocked else { return Ok(()) };
        // By then the call has returned, or is too late.
        let last = blocked.ends + self.tolerance() + Duration::from_micros(1);
        self.run_until(last, |runner| runner.blocked.is_none())
    }

    /// Returns how much earlier or later than its time an event may happen.
    fn tolerance(&self) -> Duration {
        Duration::from_micros(self.tolerance as u64)
    }

    /// Tries the blocked call again.
    fn retry(&mut self) -> Result<(), Wrong> {
        let Some(blocked) = self.blocked.take() else { return Ok(()) };
        let gives_up = blocked.gives_up.is_some_and(|at| at <= self.host.now());
        let outcome = calls::attempt(&mut self.host, &blocked.prepared, gives_up);
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
        // There is one thread for all calls.
        self.await_return()?;
        let prepared = calls::prepare(&self.host, call)
            .map_err(|what| Wrong { what: what.to_string(), unsupported: true })?;
        self.exchange.push(format!("{} {}(...)", seconds(micros(self.host.now())), call.name));
        self.note_opening(call, &prepared);
        let now = self.host.now();
        let gives_up = prepared.timeout().map(|millis| now + Duration::from_millis(millis));
        let outcome = calls::attempt(&mut self.host, &prepared, gives_up == Some(now));
        match (outcome, ends) {
            (Err(Failure::WouldBlock), Some(ends)) => {
                self.blocked = Some(Blocked { line, call: call.clone(), prepared, ends, gives_up });
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

    /// Begins a new flow if what follows a call may belong to another connection.
    fn note_opening(&mut self, call: &Call, prepared: &Prepared) {
        match *prepared {
            Prepared::Listen(..) => self.segments.open(None),
            Prepared::Connect(fd, _, remote) if self.host.is_datagram(fd) => {
                self.datagrams.open(Some(remote))
            }
            Prepared::SendTo(_, _, Some(to), _) if self.datagrams.current().remote != to => {
                self.datagrams.open(Some(to))
            }
            Prepared::Connect(fd, _, remote) | Prepared::SendFast(fd, _, _, remote)
                if self.host.is_fresh(fd) =>
            {
                self.segments.open((call.name != "listen").then_some(remote));
            }
            _ => {}
        }
    }

    /// Checks that a call has returned what the script says.
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
                // EWOULDBLOCK equals EAGAIN.
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

    fn inject(&mut self, message: &Message) {
        self.log('<', self.host.now(), message);
        let (sent, about) = match message {
            Message::Tcp(packet) => (self.segment_to_wire(packet), None),
            Message::Udp(datagram) => {
                let local = self.datagrams.default_local();
                let flow = self.datagrams.of_injected(datagram.ports, true);
                let sent = Sent {
                    from: flow.remote,
                    to: *flow.local.get_or_insert(local),
                    message: message.clone(),
                };
                (sent, None)
            }
            Message::Icmp(icmp) => self.icmp_to_wire(icmp),
        };
        self.host.inject(&wire::frame(&sent, about.as_ref()));
    }

    fn segment_to_wire(&mut self, packet: &Packet) -> Sent {
        let local = self.segments.default_local();
        let flow = self.segments.of_injected(packet.ports, packet.flags & (SYN | crate::flow::ACK) == SYN);
        let mut live = flow.on_wire(packet);
        let (from, to) = (flow.remote, flow.local.unwrap_or(local));
        if packet.flags & SYN != 0 {
            strip(self.way, live.options.get_or_insert_default());
        }
        Sent { from, to, message: live.into() }
    }

    /// Returns a message about a packet of ours on the wire; sequence numbers count from the handshake.
    fn icmp_to_wire(&mut self, icmp: &Icmp) -> (Sent, Option<About>) {
        let (flows, seq) = match icmp.echoed {
            Some(Echoed::Udp(_)) => (&mut self.datagrams, 0),
            Some(Echoed::Tcp(seq, _)) => (&mut self.segments, seq),
            None => (&mut self.segments, 0),
        };
        let local = flows.default_local();
        let flow = flows.current();
        let (local, remote) = (flow.local.unwrap_or(local), flow.remote);
        let about = About { from: local, to: remote, seq: seq.wrapping_add(flow.offset(false)) };
        let (from, to) = (Endpoint::at(remote.addr, 0), Endpoint::at(local.addr, 0));
        (Sent { from, to, message: (*icmp).into() }, Some(about))
    }

    fn log(&mut self, direction: char, at: Instant, message: &Message) {
        self.exchange.push(format!(
            "{} {direction} {}",
            seconds(micros(at)),
            wire::describe(message, self.family)
        ));
    }

    /// Waits for a packet, and compares it. Returns when it was sent.
    fn expect(&mut self, expected: &Message, from: Micros, to: Micros) -> Result<Micros, Wrong> {
        let last = instant(to.saturating_add(self.tolerance).min(micros(self.host.now()) + 3_600_000_000));
        if self.host.sent.is_empty() {
            self.run_until(last.max(self.host.now()), |runner| !runner.host.sent.is_empty())?;
        }
        let script = wire::describe(expected, self.family);
        let Some((at, sent)) = self.take_sent(expected) else {
            return Err(Wrong::new(format!(
                "nothing was sent by {}; the script has\n      {script}",
                seconds(micros(last))
            )));
        };
        let (seen, has_ports) = self.in_script_numbers(sent, expected);
        self.log('>', at, &seen);
        let what = if has_ports { difference(expected, &seen, self.compared) } else { Some("a port") };
        if let Some(what) = what {
            let text = format!("{what}: the script has\n      {script}\n    the stack has sent\n      ");
            return Err(Wrong::new(text + &wire::describe(&seen, self.family)));
        }
        let sent = micros(at);
        if let Some(what) = difference(expected, &seen, self.compared) {
            let text = format!("{what}: the script has\n      {script}\n    the stack has sent\n      ");
            return Err(Wrong::new(text + &wire::describe(&seen, self.family)));
        }
        if sent < from - self.tolerance || sent > to.saturating_add(self.tolerance) {
            let due =
                if from == to { seconds(from) } else { format!("{} to {}", seconds(from), seconds(to)) };
            return Err(Wrong::new(format!("sent at {}, but due at {due}: {script}", seconds(sent))));
        }
        Ok(sent)
    }

    /// Returns the next packet that was sent. A segment is joined with those that continue it, as far as the
    /// expected one goes: how text is cut into segments is up to the link.
    fn take_sent(&mut self, expected: &Message) -> Option<(Instant, Sent)> {
        let (at, mut sent) = self.host.sent.pop_front()?;
        let (Message::Tcp(packet), Message::Tcp(Packet { len, .. })) = (&mut sent.message, expected) else {
            return Some((at, sent));
        };
        while packet.len < *len && !self.strict_segments {
            let next_seq = packet.seq.wrapping_add(packet.len);
            let Some((_, Sent { from, to, message: Message::Tcp(next) })) = self.host.sent.front() else {
                break;
            };
            let continues = (sent.from, sent.to) == (*from, *to)
                && next.seq == next_seq
                && next.len > 0
                && next.ack == packet.ack;
            if !continues || packet.len + next.len > *len {
                break;
            }
            packet.len += next.len;
            packet.flags |= next.flags;
            self.host.sent.pop_front();
        }
        Some((at, sent))
    }

    /// Returns the packet in the script's notation, and whether its ports are the right ones.
    fn in_script_numbers(&mut self, sent: Sent, expected: &Message) -> (Message, bool) {
        let (mut seen, is_right) = self.translated(sent, expected);
        let (ip, wanted) = (seen.ip_mut(), expected.ip());
        // Header fields that the script does not mention are not compared.
        ip.ttl = ip.ttl.filter(|_| wanted.ttl.is_some());
        ip.flow_label = ip.flow_label.filter(|_| wanted.flow_label.is_some());
        (seen, is_right)
    }

    fn translated(&mut self, sent: Sent, expected: &Message) -> (Message, bool) {
        let way = self.way;
        match (&sent.message, expected) {
            (Message::Tcp(packet), _) => {
                let packet = packet.clone();
                let default = Packet::default();
                let expected = if let Message::Tcp(expected) = expected { expected } else { &default };
                let (flow, is_right) = self.segments.of_sent(&sent, expected.ports);
                let mut seen = flow.in_script(packet, expected);
                if seen.flags & SYN != 0 {
                    strip(way, seen.options.get_or_insert_default());
                }
                seen.ports = seen.ports.filter(|_| !is_right);
                (seen.into(), is_right)
            }
            (Message::Udp(datagram), _) => {
                let mut seen = *datagram;
                let ports = if let Message::Udp(expected) = expected { expected.ports } else { None };
                let (_, is_right) = self.datagrams.of_sent(&sent, ports);
                seen.ports = seen.ports.filter(|_| !is_right);
                (seen.into(), is_right)
            }
            (Message::Icmp(icmp), _) => {
                let mut seen = *icmp;
                if let Some(Echoed::Tcp(seq, _)) = &mut seen.echoed {
                    *seq = self.segments.current().theirs(*seq);
                }
                (seen.into(), true)
            }
        }
    }
}

/// Removes from a SYN the options that the path strips, laid out as Linux does then.
fn strip(way: Way, options: &mut Vec<TcpOption>) {
    if way.strips_sack {
        let before = options.clone();
        options.retain(|option| *option != TcpOption::SackOk);
        // The two octets in front of timestamps become padding.
        if let Some(at) = before.iter().position(|option| *option == TcpOption::SackOk) {
            let is_padded = at >= 2 && before[at - 2..at] == [TcpOption::Nop, TcpOption::Nop];
            if is_padded {
                options.drain(at - 2..at);
            } else {
                options.splice(at..at, [TcpOption::Nop, TcpOption::Nop]);
            }
        }
    }
    if way.strips_timestamps
        && let Some(at) = options.iter().position(|option| matches!(option, TcpOption::Timestamps { .. }))
    {
        options.remove(at);
        match options.iter().position(|option| *option == TcpOption::SackOk) {
            Some(sack) => drop(options.splice(sack..sack, [TcpOption::Nop, TcpOption::Nop])),
            // These options padded the timestamps.
            None if at >= 2 && options[at - 2..at] == [TcpOption::Nop, TcpOption::Nop] => {
                drop(options.drain(at - 2..at))
            }
            None => {}
        }
    }
    if way.strips_window_scale
        && let Some(at) = options.iter().position(|option| matches!(option, TcpOption::WindowScale(_)))
    {
        options.remove(at);
        if at >= 1 && options[at - 1] == TcpOption::Nop {
            options.remove(at - 1);
        }
    }
}
