//! Does the runner of conformance scripts have an answer to every text?

/// A script, as text. Whatever it says, it passes, fails or is not run; and a script that cannot be read
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

/// Longer ones take long, and say nothing else.
const LEN_MAX: usize = 4096;
