//! What can an ordinary user do?

use std::process::Command;

use atoll_system_tests::{NoNet, Proc, Scratch, atoll};

/// Runs a script as user `nobody`, which may open /dev/net/tun (as on most distributions) but has no other
/// privilege.
pub fn as_nobody(script: &str) -> String {
    as_nobody_after("true", script)
}

/// Runs a script as [`as_nobody`] does, after root has run `setup` in the same folder.
pub fn as_nobody_after(setup: &str, script: &str) -> String {
    let _turn = NoNet::new();
    let scratch = Scratch::new();
    let folder = scratch.path().to_string_lossy().into_owned();
    // The files are copied, because the folder that cargo builds into may belong to another user.
    let built = atoll();
    for name in ["atoll", "libatoll.so"] {
        atoll_system_tests::copy_program(built.with_file_name(name), scratch.path().join(name));
    }
    scratch.file("page", "from nobody\n");
    let begin = "cd \"$1\"; eval \"$3\"; mknod tun c 10 200; chmod 666 tun; \
                 mount --bind tun /dev/net/tun; mkdir run; chmod 755 .; \
                 chown 65534 run . ; exec setpriv --reuid=65534 --regid=65534 --clear-groups \
                 env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin ATOLL_RUNTIME_DIR=\"$1/run\" HOME=/ sh -ec \"$2\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "--", "sh", "-ec", begin, "sh", &folder, script, setup]);
    Proc::start(&mut command, None).success(40)
}

/// A user starts a stack with a TAP in a namespace of the user's own, a server on it, and a client at the
/// kernel's end.
#[test]
fn a_user_has_a_stack_and_a_network() {
    a_stack_and_a_network("TS2LS2CM2");
}

#[test]
fn link_servers_need_no_privilege_either() {
    a_stack_and_a_network("TS2CM2+LS2");
}

fn a_stack_and_a_network(configuration: &str) {
    let said = as_nobody(
        &"./atoll up --rootless --daemon -n own --configuration CONFIGURATION --address 198.18.0.2/24 \
          --peer-address 198.18.0.1/24 >up
         trap './atoll down own >/dev/null' EXIT
         ./atoll run -n own -- /usr/bin/python3 -m http.server --bind 198.18.0.2 8000 >/dev/null 2>&1 &
         server=$!
         pid=$(./atoll status own --json | /usr/bin/python3 -c 'import json, sys; \
          print(json.load(sys.stdin)[\"stack\"][\"pid\"])')
         for try in 1 2 3 4 5 6 7 8 9 10; do
             nsenter --preserve-credentials -U -n -t $pid curl -sS --max-time 5 http://198.18.0.2:8000/page \
             2>/dev/null && break
             sleep 0.3
         done
         kill $server"
            .replace("CONFIGURATION", configuration),
    );
    assert_eq!(said, "from nobody\n");
}

/// A private stack needs no device.
#[test]
fn a_user_has_a_private_stack() {
    let said = as_nobody(
        "./atoll run -- sh -c '
             /usr/bin/python3 -m http.server --bind 127.0.0.1 8000 >/dev/null 2>&1 & server=$!
             for try in 1 2 3 4 5 6 7 8 9 10; do
                 curl -sS --max-time 5 http://127.0.0.1:8000/page 2>/dev/null && break
                 sleep 0.3
             done
             kill $server'",
    );
    assert_eq!(said, "from nobody\n");
}
