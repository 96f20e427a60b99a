//! The settings that a script's options and commands ask for.
//!
//! Commands are not run. Those that set sysctls are interpreted: the stack must behave so anyway, or be
//! configurable so; otherwise the script is not run.

use atoll_ipc::CONGESTION_NAMES;
use thiserror::Error;

use crate::host::Settings;
use crate::parse::Trouble;
use crate::script::{Micros, Script};
use crate::wire::Family;

/// How many microseconds earlier or later than its time an event may happen: packetdrill's default.
const TOLERANCE: Micros = 4000;

/// The settings that a script asks for.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The settings of the stack.
    pub settings: Settings,
    /// The settings of the path between the two ends.
    pub way: Way,
    /// How many microseconds earlier or later than its time an event may happen.
    pub tolerance: Micros,
    /// Whether PSH is compared.
    pub checks_push: bool,
    /// Whether each expected segment must be one segment on the wire.
    pub strict_segments: bool,
}

/// The options that the path removes from SYNs, where a script turns them off and the stack cannot.
#[derive(Clone, Copy, Debug, Default)]
pub struct Way {
    /// `net.ipv4.tcp_timestamps` is 0.
    pub strips_timestamps: bool,
    /// `net.ipv4.tcp_sack` is 0.
    pub strips_sack: bool,
    /// `net.ipv4.tcp_window_scaling` is 0.
    pub strips_window_scale: bool,
}

/// A request of a script's first command that is not supported.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
enum Unsupported {
    #[error("the command `{0}`")]
    Command(String),
    #[error("`{more}` behind {program}")]
    Behind { program: String, more: String },
    #[error("`{0}`")]
    NoAssignment(String),
    #[error("{0}")]
    Sysctl(String),
}

/// Returns the settings that the options and the first command of a script ask for.
///
/// # Errors
/// Fails if something is not supported.
pub fn configure(script: &Script) -> Result<Asked, Trouble> {
    let mut asked = Asked {
        settings: Settings::default(),
        way: Way::default(),
        tolerance: TOLERANCE,
        checks_push: false,
        strict_segments: false,
    };
    for (line, name, value) in &script.options {
        let trouble =
            || Trouble { line: *line, what: format!("the option --{name}={value}"), unsupported: true };
        match (name.as_str(), value.as_str()) {
            ("push", "checked") => asked.checks_push = true,
            ("tolerance_usecs", value) => {
                asked.tolerance = value
                    .parse()
                    .ok()
                    .filter(|usecs| (0..=1_000_000_000).contains(usecs))
                    .ok_or_else(trouble)?;
            }
            ("mtu", value) => asked.settings.mtu = Some(value.parse().map_err(|_| trouble())?),
            ("ip_apart", "1") => asked.settings.ip_apart = true,
            ("ip_version", "ipv4") => {}
            ("ip_version", "ipv6") => asked.settings.family = Family::V6,
            ("ip_version", "ipv4-mapped-ipv6") => asked.settings.family = Family::Mapped,
            // These values are what the stack does anyway, or change nothing here.
            ("tcp_ts_tick_usecs", "1000")
            | ("send_omit_free" | "mss" | "verbose" | "wire_protocol" | "non_fatal" | "bind_port", _)
            | ("local_ip" | "remote_ip" | "gateway_ip" | "netmask_ip", _) => {}
            ("strict_segments", "" | "1") => asked.strict_segments = true,
            _ => return Err(trouble()),
        }
    }
    if let Some(mtu) = asked.settings.mtu {
        let least = if asked.settings.family == Family::V6 { 1280 } else { 576 };
        if mtu < least {
            return Err(Trouble { line: 1, what: format!("the option --mtu={mtu}"), unsupported: true });
        }
    }
    if let Some((line, command)) = &script.setup {
        let trouble = |what: Unsupported| Trouble { line: *line, what: what.to_string(), unsupported: true };
        // The text behind a semicolon or `&&` is a command of its own.
        let command = command.replace("\\\n", " ").replace("&&", "\n").replace(';', "\n");
        for words in command.lines() {
            set_up(words, &mut asked).map_err(trouble)?;
        }
    }
    Ok(asked)
}

/// Returns whether a command between events changes nothing here.
pub fn is_idle(command: &str) -> bool {
    let mut lines = command.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.all(|line| {
        // Such commands undo the first command, flush what the stack does not keep, reset the kernel's
        // counters, or switch a device's offloads: here frames are always cut.
        line.contains("sysctl_restore")
            || line.starts_with("ip tcp_metrics flush")
            || line.starts_with("sync")
            || line == "true"
            || line.starts_with("echo ")
            || line.starts_with("ethtool -K ")
            || matches!(line, "nstat -n" | "nstat > /dev/null")
    })
}

/// Applies what one line of the first command sets.
fn set_up(command: &str, asked: &mut Asked) -> Result<(), Unsupported> {
    let command = command.split('#').next().unwrap_or_default().trim();
    if is_idle(command) {
        return Ok(());
    }
    let command = without_redirection(command);
    let mut words = command.split_whitespace();
    let Some(program) = words.next() else { return Ok(()) };
    match program.rsplit('/').next().unwrap_or_default() {
        "defaults.sh" | "defaults-linux.sh" => {
            defaults(&mut asked.settings);
            words.next().map_or(Ok(()), |more| {
                Err(Unsupported::Behind { program: program.into(), more: more.into() })
            })
        }
        "sysctl" | "set_sysctls.py" => set_sysctls(command, asked),
        _ => Err(Unsupported::Command(command.trim().into())),
    }
}

/// Returns a command without the redirection of its output: `> /dev/null 2>&1`.
fn without_redirection(command: &str) -> &str {
    let Some((before, _)) = command.split_once('>') else { return command };
    let before = before.trim_end();
    before.strip_suffix(" 2").or(before.strip_suffix(" 1")).unwrap_or(before)
}

/// Applies what the `defaults.sh` of packetdrill sets.
fn defaults(settings: &mut Settings) {
    settings.receive = Some((540_000, 15 << 20));
    settings.send = Some((256 << 10, 4 << 20));
    settings.fast_open = Some(3);
    settings.ecn = Some(0);
}

fn set_sysctls(command: &str, asked: &mut Asked) -> Result<(), Unsupported> {
    let assignments = command
        .split_whitespace()
        .skip(1)
        .filter(|word| !matches!(*word, "-q" | "-w" | "-e" | "-qw" | "-wq"));
    // A shell reads `a="1 2 3"` as one word.
    let text = assignments.collect::<Vec<_>>().join(" ").replace("/proc/sys/", "").replace('/', ".");
    for assignment in split_assignments(&text) {
        let (key, value) =
            assignment.split_once('=').ok_or_else(|| Unsupported::NoAssignment(assignment.clone()))?;
        set_sysctl(key, value.trim_matches(['"', '\'']), asked)
            .ok_or_else(|| Unsupported::Sysctl(assignment.clone()))?;
    }
    Ok(())
}

/// Applies a sysctl; returns `None` if it is not supported.
fn set_sysctl(key: &str, value: &str, asked: &mut Asked) -> Option<()> {
    let (settings, way) = (&mut asked.settings, &mut asked.way);
    let numbers: Vec<u64> = value.split_whitespace().filter_map(number).collect();
    let small = |at: usize| u32::try_from(numbers[at]).unwrap_or(u32::MAX);
    let size = |at: usize| small(at).clamp(256, 64 << 20);
    let Some(name) = key.strip_prefix("net.ipv4.") else {
        // These are limits and defaults of what the stack does not have; the runner is the next hop and its
        // queue.
        return matches!(
            key,
            "net.core.rmem_max" | "net.core.wmem_max" | "net.core.somaxconn" | "net.core.optmem_max"
        )
        .then_some(());
    };
    match (name, numbers.as_slice()) {
        ("tcp_rmem", [_, _, _]) => settings.receive = Some((size(1), size(2))),
        ("tcp_wmem", [_, _, _]) => settings.send = Some((size(1), size(2))),
        ("tcp_ecn", [0..=3]) => settings.ecn = Some(small(0)),
        // The bits of client and server are supported; the others concern cookies and options that are
        // absent.
        ("tcp_fastopen", [0..=3]) => settings.fast_open = Some(small(0)),
        ("tcp_notsent_lowat", [_]) => settings.unsent_low = Some(small(0)),
        ("tcp_timestamps", [0]) => way.strips_timestamps = true,
        ("tcp_timestamps", [1]) => way.strips_timestamps = false,
        ("tcp_sack", [on @ (0 | 1)]) => way.strips_sack = *on == 0,
        ("tcp_window_scaling", [on @ (0 | 1)]) => way.strips_window_scale = *on == 0,
        ("tcp_congestion_control", _) => {
            settings.congestion = CONGESTION_NAMES.iter().position(|known| *known == value)? as u32;
        }
        (name, [value]) => {
            let does = DOES.iter().any(|(known, values)| *known == name && values.contains(value));
            return (does || IDLE.contains(&name)).then_some(());
        }
        _ => return None,
    }
    Some(())
}

/// Reads `0x203`, `$((256*1024))` or `12`.
fn number(word: &str) -> Option<u64> {
    if let Some(product) = word.strip_prefix("$((").and_then(|rest| rest.strip_suffix("))")) {
        return product.split('*').map(number).try_fold(1u64, |all, factor| all.checked_mul(factor?));
    }
    match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    }
}

/// The sysctls whose behaviour the stack has anyway, with the values that mean it.
const DOES: [(&str, &[u64]); 30] = [
    ("tcp_abort_on_overflow", &[0]),
    ("tcp_adv_win_scale", &[1, 2]),
    ("tcp_autocorking", &[0, 1]),
    ("tcp_base_mss", &[1024]),
    ("tcp_dsack", &[1]),
    ("tcp_early_retrans", &[3, 4]),
    ("tcp_ecn_fallback", &[1]),
    ("tcp_ecn_option", &[0]),
    ("tcp_fack", &[0]),
    ("tcp_fin_timeout", &[60]),
    ("tcp_frto", &[1, 2]),
    ("tcp_keepalive_intvl", &[75]),
    ("tcp_keepalive_probes", &[9]),
    ("tcp_keepalive_time", &[7200]),
    ("tcp_min_rtt_wlen", &[300]),
    ("tcp_moderate_rcvbuf", &[1]),
    ("tcp_mtu_probing", &[1]),
    ("tcp_no_metrics_save", &[1]),
    ("tcp_recovery", &[1]),
    ("tcp_reordering", &[3]),
    ("tcp_retries2", &[15]),
    ("tcp_rto_min_us", &[200_000]),
    ("tcp_shrink_window", &[0]),
    ("tcp_slow_start_after_idle", &[1]),
    ("tcp_synack_retries", &[5]),
    ("tcp_syncookies", &[1]),
    ("tcp_syn_linear_timeouts", &[0]),
    ("tcp_syn_retries", &[6]),
    ("tcp_tw_reuse", &[1, 2]),
    ("tcp_workaround_signed_windows", &[0]),
];

/// The sysctls that change nothing that a script sees here: how text is cut into segments, what is remembered
/// of other connections, the key of cookies.
const IDLE: [&str; 13] = [
    "tcp_challenge_ack_limit",
    "tcp_fastopen_blackhole_timeout_sec",
    "tcp_fastopen_key",
    "tcp_invalid_ratelimit",
    "tcp_limit_output_bytes",
    "tcp_max_syn_backlog",
    "tcp_metrics_save",
    "tcp_min_tso_segs",
    "tcp_pacing_ca_ratio",
    "tcp_pacing_ss_ratio",
    "tcp_tso_rtt_log",
    "tcp_tso_win_divisor",
    "tcp_max_tw_buckets",
];

/// Splits at blanks that stand outside quotation marks.
fn split_assignments(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut quoted = None;
    for c in text.chars() {
        match quoted {
            None if c == '"' || c == '\'' => quoted = Some(c),
            Some(mark) if mark == c => quoted = None,
            _ => {}
        }
        match parts.last_mut() {
            Some(last) if quoted.is_some() || c != ' ' => last.push(c),
            _ => parts.push(String::new()),
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(command: &str) -> Result<Asked, Trouble> {
        let script = Script { setup: Some((1, command.to_owned())), ..Script::default() };
        configure(&script)
    }

    #[test]
    fn sysctls_are_set() {
        let text = "../common/defaults.sh\nsysctl -q net.ipv4.tcp_timestamps=0 net/ipv4/tcp_sack=0 > \
                    /dev/null 2>&1\n\
                    ./set_sysctls.py /proc/sys/net/ipv4/tcp_wmem=\"4096 50000 $((4*1024))\" \\\n \
                    /proc/sys/net/ipv4/tcp_fastopen=0x3; sysctl -w net.ipv4.tcp_congestion_control='reno'\n";
        let asked = asked(text).expect("understood");
        assert!(asked.way.strips_timestamps && asked.way.strips_sack && !asked.way.strips_window_scale);
        assert_eq!((asked.settings.send, asked.settings.fast_open), (Some((50_000, 4096)), Some(3)));
        assert_eq!((asked.settings.congestion, asked.settings.ecn), (1, Some(0)));
    }

    #[test]
    fn what_is_not_there_is_said() {
        for (command, what) in [
            ("sysctl -q net.ipv4.tcp_frto=0", "tcp_frto=0"),
            ("sysctl -q net.ipv4.tcp_nonsense=1", "tcp_nonsense"),
            ("sysctl -q net.ipv4.tcp_congestion_control=vegas", "vegas"),
            ("defaults.sh && tc qdisc replace dev tun0 root fq", "tc qdisc"),
            ("sysctl -a", "-a"),
        ] {
            let trouble = asked(command).expect_err("not there");
            assert!(trouble.unsupported && trouble.what.contains(what), "{trouble:?}");
        }
    }
}
