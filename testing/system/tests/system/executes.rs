//! What happens to programs that load no library when a program on a stack executes them?

use std::process::Command;

use atoll_system_tests::{Net, NoNet, Proc, Stack, atoll, compiled, compiled_apart, compiled_statically};

use crate::rootless::as_nobody_after;

/// The output of a program that is kept off the kernel's network.
const APART: &str = "inet EACCES, inet6 EACCES, smc EACCES, unix works, ring ENOSYS, blocked 0\n";

/// The ways of `programs/executes.c` that execute a program in place of their own, and then those that start
/// one.
const EXEC: [&str; 12] = [
    "execve",
    "execv",
    "execvp",
    "execvpe",
    "execl",
    "execlp",
    "execle",
    "fexecve",
    "execveat",
    "number",
    "number-at",
    "vfork",
];
const SPAWN: [&str; 3] = ["spawn", "spawnp", "chdir"];
const SHELL: [&str; 2] = ["system", "popen"];

/// Returns the program's expected output for all ways; `after` is its own output after it has started another
/// program.
fn expected(after: &str) -> String {
    let apart = |way: &str| format!("{way}: {APART}");
    let spawned = |way: &str| format!("{way}: {APART}{after}");
    let exec = EXEC.iter().copied().map(apart);
    exec.chain(SPAWN.iter().copied().map(spawned)).chain(SHELL.iter().copied().map(apart)).collect()
}

/// Returns a command with the library preloaded by other means than `atoll run`, so that there is no filter.
fn preloaded(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("env");
    let library = atoll().with_file_name("libatoll.so");
    command.arg(format!("LD_PRELOAD={}", library.display())).arg("ATOLL_SOCKET=/nowhere/at/all").arg(program);
    command.args(arguments);
    command
}

#[test]
fn a_program_that_loads_no_library_is_apart_however_it_is_executed() {
    let (executes, apart) = (compiled("executes"), compiled_apart("executes"));
    let mut run = Command::new(atoll());
    run.args(["run", "--private", "--", &executes, "ways", &apart]);
    let program = Proc::start(&mut NoNet::new().without_network(&run), None).success(30);
    assert_eq!(program, expected(&served()));
}

/// A program says so that has the stack.
fn served() -> String {
    let served = APART.replace("inet EACCES", "inet works").replace("inet6 EACCES", "inet6 works");
    served.replace("smc EACCES", "smc EAFNOSUPPORT")
}

/// Static programs have the stack however they are executed, and so have those that they execute, also with
/// an environment that has none of the variables.
#[test]
fn static_programs_are_served_however_they_are_executed() {
    let (executes, fixed) = (compiled("executes"), compiled_statically("executes"));
    let everywhere = expected(&served()).replace(APART, &served());
    for (program, other) in [(&executes, &fixed), (&fixed, &fixed), (&fixed, &executes)] {
        let mut run = Command::new(atoll());
        run.args(["run", "--private", "--", program, "ways", other]);
        let mut program = Proc::start(&mut NoNet::new().without_network(&run), None);
        assert!(program.end(30).success(), "{}", program.report());
        assert_eq!(program.output(), everywhere);
        assert_eq!(program.errors(), "");
    }
}

/// What a static program inherits is a socket of the stack, where nobody listens.
#[test]
fn static_programs_inherit_sockets() {
    let (executes, fixed) = (compiled("executes"), compiled_statically("executes"));
    for program in [&executes, &fixed] {
        let mut run = Command::new(atoll());
        run.args(["run", "--private", "--", program, "inherits", &fixed]);
        let said = Proc::start(&mut NoNet::new().without_network(&run), None).success(30);
        assert_eq!(said, "connect ECONNREFUSED\n");
    }
}

#[test]
fn what_loads_the_library_by_other_means_keeps_programs_apart_by_itself() {
    let (executes, fixed) = (compiled("executes"), compiled_statically("executes"));
    let ways = preloaded(&executes, &["ways", &fixed]);
    let program = Proc::start(&mut NoNet::new().without_network(&ways), None).success(30);
    // The program that starts the other has no filter itself; its sockets fail because there is no such
    // stack.
    let after = APART.replace("inet EACCES", "inet ENETDOWN").replace("inet6 EACCES", "inet6 ENETDOWN");
    assert_eq!(program, expected(&after.replace("smc EACCES", "smc EAFNOSUPPORT")));
}

/// Each socket of the stack has a kernel socket behind it. A child without the library could connect that
/// socket, so the child must not get it.
#[test]
fn what_is_inherited_cannot_be_connected_on_the_host() {
    let net = Net::new(Stack::Kernel);
    let listen = "import socket, time
server = socket.create_server(('127.0.0.1', 7009))
server.settimeout(4)
print('listening', flush=True)
try: print(server.accept()[1])
except TimeoutError: print('nobody')";
    let mut server = Proc::start(net.on_server("/usr/bin/python3").args(["-c", listen]), None);
    server.says("listening", 10);
    let (executes, apart) = (compiled("executes"), compiled_apart("executes"));
    let mut run = net.on_server(&atoll().to_string_lossy());
    run.args(["run", "--private", "--", &executes, "inherits", &apart]);
    assert_eq!(Proc::start(&mut run, None).success(30), "connect EINVAL\n");
    // The socket is duplicated to the standard input of the program that is started.
    let start = "import os, socket, sys
s = socket.socket(); s.bind(('127.0.0.1', 0)); os.dup2(s.fileno(), 0)
os.posix_spawn(sys.argv[1], ['x', 'connects'], os.environ); os.wait()
s.listen(); print(s.getsockname()[1] > 0)";
    let mut run = net.on_server(&atoll().to_string_lossy());
    run.args(["run", "--private", "--", "/usr/bin/python3", "-c", start, &apart]);
    assert_eq!(Proc::start(&mut run, None).success(30), "connect EINVAL\nTrue\n");
    assert!(server.end(20).success() && server.output().ends_with("nobody\n"), "{}", server.report());
}

/// Package managers execute ldconfig, which is static and needs no sockets, so nothing is printed about it.
#[test]
fn a_program_that_wants_no_sockets_runs_as_ever() {
    let mut run = Command::new(atoll());
    run.args(["run", "--private", "--", "/bin/sh", "-c", "/sbin/ldconfig -p | grep -c libc.so.6"]);
    let mut program = Proc::start(&mut NoNet::new().without_network(&run), None);
    assert!(program.end(30).success() && program.errors().is_empty(), "{}", program.report());
}

/// An ordinary user cannot have both the filter and the rights of a set-user-ID program.
#[test]
fn rights_and_the_filter_exclude_each_other() {
    let program = |options: &str| {
        let executes = compiled("executes");
        let setup = format!("cp {executes} plain; cp {executes} owned; chmod 4755 owned; chmod 755 plain");
        as_nobody_after(&setup, options)
    };
    let said = program("./atoll run -- ./plain fails ./owned 2>&1");
    assert!(said.contains("runs without the rights that it would get"), "{said}");
    let preload = "env LD_PRELOAD=$PWD/libatoll.so ATOLL_SOCKET=/nowhere ./plain fails ./owned 2>&1";
    let said = program(preload);
    assert!(said.contains("so it is not executed") && said.contains("EACCES\nEACCES\n"), "{said}");
}
