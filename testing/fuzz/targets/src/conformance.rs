//! Checks that the runner of conformance scripts has an answer to every text.

/// Runs a script, given as text. It passes, fails or is not run; the error for a script that cannot be read
/// names one of its lines.
pub fn conformance_script(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if text.len() > LEN_MAX {
        return;
    }
    if let Err(report) = atoll_conformance::run(text) {
        assert!(report.line <= text.lines().count() + 1, "{report}");
    }
}

/// The most octets of a script: longer ones take long, and show nothing new.
const LEN_MAX: usize = 4096;
