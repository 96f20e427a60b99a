//! `atoll-conformance [--OPTION=VALUE...] FILE...` runs scripts, and prints which of them pass. The options
//! are packetdrill's; every script is run as if it began with them, before its own.
#![forbid(unsafe_code)]

use std::fmt::Arguments;
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut counts = [0; 3];
    let (options, files): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|argument| argument.starts_with("--"));
    for file in files {
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) => {
                eprintln!("{file}: {error}");
                return ExitCode::from(2);
            }
        };
        let outcome = match atoll_conformance::run_with(&options.join(" "), &text) {
            Ok(()) => {
                say(format_args!("{file}: passed"));
                0
            }
            Err(report) => {
                let outcome = if report.unsupported { "not run" } else { "FAILED" };
                say(format_args!("{file}: {outcome}\n{report}"));
                if report.unsupported { 2 } else { 1 }
            }
        };
        counts[outcome] += 1;
    }
    let [passed, failed, unsupported] = counts;
    say(format_args!(
        "{passed} passed, {failed} failed, {unsupported} not run: they ask for what this runner does not have"
    ));
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints a line; a closed standard output is ignored.
fn say(line: Arguments<'_>) {
    let _ = writeln!(std::io::stdout(), "{line}");
}
