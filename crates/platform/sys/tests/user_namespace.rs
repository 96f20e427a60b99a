//! Does a process become root in a namespace of its own, so that the rest works there without privileges?

use atoll_sys::{netns, process};

fn main() {
    let was_root = rustix::process::geteuid().is_root();
    match process::become_root_in_user_namespace() {
        Ok(()) => {}
        // Not every system lets unprivileged users have user namespaces.
        Err(error) if !was_root => {
            return eprintln!("skipped: user namespaces are closed to this user ({error})");
        }
        Err(error) => panic!("cannot become root in a user namespace although root: {error}"),
    }
    assert!(rustix::process::geteuid().is_root());
    assert!(rustix::process::getegid().is_root());
    netns::unshare().expect("root of a user namespace may make network namespaces");
    println!("test a_process_becomes_root_in_a_user_namespace ... ok");
}
