//! Runs all tests of this crate once more, with an IP server before every stack.

use std::string::String;

/// Returns whether stacks have IP servers, which is so in the process that the test below starts.
pub(crate) fn is_ip_apart() -> bool {
    std::env::var_os(APART).is_some()
}

const APART: &str = "ATOLL_IP_APART";

#[test]
fn everything_holds_where_ip_is_apart() {
    if is_ip_apart() {
        return;
    }
    let this = std::env::current_exe().expect("this program has a name");
    let output = std::process::Command::new(this).env(APART, "1").output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{APART}=1: {said}");
    assert!(said.contains("everything_holds_where_ip_is_apart ... ok"), "{said}");
}
