//! The matrix of real programs (docs/programs.md): does each serve on Atoll what it serves on the kernel?
//!
//! Most of them run in `make soak` only, which installs them (`testing/install-deps --soak`): those tests
//! return at once otherwise. A program that is missing then is a failure, not a test that was skipped.

use std::path::{Path, PathBuf};

use atoll_system_tests::Net;

/// Makes two tests of each function, as `on_both_stacks!` does, that do nothing unless `make soak` runs them.
macro_rules! soak_on_both_stacks {
    ($($name:ident),* $(,)?) => {
        mod kernel_soak {
            $(#[test] fn $name() {
                if atoll_system_tests::soak() { super::$name(atoll_system_tests::Stack::Kernel) }
            })*
        }
        mod atoll_soak {
            $(#[test] fn $name() {
                if atoll_system_tests::soak() { super::$name(atoll_system_tests::Stack::Atoll) }
            })*
        }
    };
}

mod databases;
mod files;
mod mail;
mod names;
mod queues;
mod relays;
mod supervised;
mod web;

/// The full name of an installed program.
///
/// # Panics
/// If it is not installed, or only unpacked and not there.
fn installed(program: &str) -> String {
    let folders = ["/usr/sbin", "/usr/bin", "/usr/lib/postfix/sbin"].map(PathBuf::from);
    let found = folders.iter().map(|folder| folder.join(program)).find(|path| path.exists());
    let missing = || panic!("{program} is not installed: `testing/install-deps --soak` does that");
    found.unwrap_or_else(missing).to_string_lossy().into_owned()
}

/// Makes a folder in the scratch folder that belongs to `user`, and returns its full name.
fn folder_of(net: &Net, name: &str, user: &str) -> String {
    let path = net.scratch.path().join(name);
    std::fs::create_dir_all(&path).expect("the scratch folder is ours");
    give(&path, user);
    path.to_string_lossy().into_owned()
}

/// Gives a file or folder to `user`.
fn give(path: &Path, user: &str) {
    let chown = std::process::Command::new("chown").arg("-R").arg(user).arg(path).status();
    assert!(chown.is_ok_and(|status| status.success()), "chown {user} {}", path.display());
}

/// The full name of a file in the scratch folder.
fn path(net: &Net, name: &str) -> String {
    net.scratch.path().join(name).to_string_lossy().into_owned()
}

/// The folder into which `testing/install-deps --soak` has unpacked a package that cannot be installed beside
/// others.
///
/// # Panics
/// If it is not there.
fn unpacked(package: &str) -> PathBuf {
    let folder = Path::new("/usr/local/lib/atoll-tests").join(package);
    assert!(folder.exists(), "{package} is not unpacked: `testing/install-deps --soak` does that");
    folder
}
