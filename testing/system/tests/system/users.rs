//! Which user may do what on a stack that processes of several users can reach?

use std::path::{Path, PathBuf};
use std::process::Command;

use atoll_system_tests::{Net, Proc, Scratch, Stack, atoll, compiled, until};

use crate::servers::fetch;

/// Writes a program that leaves a mark when it is run. Returns the program and the mark.
fn evil(net: &Net) -> (String, String) {
    let mark = net.scratch.path().join("mark").to_string_lossy().into_owned();
    let path = net.scratch.file("evil", format!("#!/bin/sh\nid >{mark}\n"));
    std::os::unix::fs::chown(&path, Some(33), Some(33)).expect("this is root");
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("it is ours");
    (path, mark)
}

/// Sends every request that a stack has, as www-data, over the connections of process `of`, or with `own`
/// over those that the asking program itself has opened as root.
fn ask_as_www_data(net: &Net, of: &str) -> String {
    let (evil, mark) = evil(net);
    let upgrade = format!(r#"{{"cmd":"upgrade","path":"{evil}"}}"#);
    // This attach has an invalid version, so that it is answered in any case.
    let attach = format!("hex:01{}", "00".repeat(55));
    let down = r#"{"cmd":"down"}"#;
    let requests = [
        &*attach,
        r#"{"cmd":"status"}"#,
        r#"{"cmd":"ss"}"#,
        r#"{"cmd":"scale","processes":1}"#,
        &upgrade,
        down,
    ];
    let inherited = compiled("inherited");
    let arguments: Vec<&str> = ["www-data", of].into_iter().chain(requests).collect();
    let mut asks = match of {
        "own" => net.serve(&inherited, &arguments),
        _ => Proc::start(std::process::Command::new(&inherited).args(arguments), None),
    };
    assert!(asks.end(60).success(), "{}", asks.report());
    let said = asks.output();
    assert!(
        !Path::new(&mark).exists(),
        "www-data's program was run: {}",
        std::fs::read_to_string(&mark).unwrap()
    );
    said
}

/// Checks that every request was refused with a reason, and that the stack is unchanged. An admitted user may
/// begin a session, except that the version is invalid.
fn assert_all_refused(net: &Net, said: &str) {
    assert!(said.contains("answer "), "{said}");
    for line in said.lines().filter(|line| line.contains(": answer ")) {
        let (_, answer) = line.split_once(": answer ").expect("it is in it");
        // The refusal is `Refusal::Version`, or an error in words.
        assert!(
            line.starts_with("hex:01") && answer.starts_with("4201")
                || answer.contains("administration has a socket of its own"),
            "{line}"
        );
    }
    assert!(net.atoll_says("status")["replicas"].is_array());
}

/// A program opens the stack as root, gives up its privileges, and uses what it has inherited.
#[test]
fn www_data_does_not_become_root_over_an_inherited_connection() {
    let net = Net::new(Stack::Atoll);
    let replicas = net.replicas();
    let said = ask_as_www_data(&net, "own");
    assert_all_refused(&net, &said);
    assert_eq!(net.replicas(), replicas);
}

/// The descriptors are those of a worker of stock nginx, which runs as www-data.
#[test]
fn workers_of_nginx_do_not_become_root() {
    let net = Net::new(Stack::Atoll);
    let replicas = net.replicas();
    let folder = net.scratch.path().to_string_lossy().into_owned();
    net.scratch.file("small", "tiny");
    let config = net.scratch.file(
        "nginx.conf",
        format!(
            "daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log stderr warn; user www-data;
             events {{ }} http {{ access_log off; client_body_temp_path {folder}/b; proxy_temp_path \
             {folder}/p;
                fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
                server {{ listen 80; root {folder}; }} }}"
        ),
    );
    let mut server = net.serve("/usr/sbin/nginx", &["-p", &folder, "-c", &config]);
    net.listens(&mut server, 80);
    let master = server.pid().to_string();
    // The worker exists before it becomes www-data, and before it has a session.
    let worker = until("a worker that serves", 20, || {
        let children =
            std::fs::read_to_string(format!("/proc/{master}/task/{master}/children")).expect("it runs");
        let worker = children.split_whitespace().next()?.to_owned();
        let status = std::fs::read_to_string(format!("/proc/{worker}/status")).ok()?;
        (status.contains("Uid:\t33\t33") && fetch(&net, 80, "/small") == b"tiny").then_some(worker)
    });
    let said = ask_as_www_data(&net, &worker);
    assert_all_refused(&net, &said);
    assert_eq!(net.replicas(), replicas);
    // The worker still serves.
    assert_eq!(fetch(&net, 80, "/small"), b"tiny");
    assert!(server.runs(), "{}", server.report());
}

/// On administration's own socket, too, the user that asks now counts.
#[test]
fn administration_is_for_those_who_ask_with_its_rights() {
    let net = Net::new(Stack::Atoll);
    let socket = format!("/run/atoll/{}.admin", net.name());
    let ask = format!(
        "import os, socket
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.connect('{socket}')
s.send(b'{{\"cmd\":\"status\"}}')
while b'\"done\"' not in s.recv(1 << 20): pass
print('answered to root')
os.setgroups([]); os.setgid(33); os.setuid(33)
for cmd in ['status', 'down']:
    s.send(('{{\"cmd\":\"%s\"}}' % cmd).encode())
    print(s.recv(1 << 20).decode(), flush=True)
try:
    socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect('{socket}')
except PermissionError: print('closed to others')"
    );
    let said =
        Proc::start(std::process::Command::new("/usr/bin/python3").args(["-c", &ask]), None).success(30);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 4, "{said}");
    assert!(lines[1..3].iter().all(|line| line.contains("user 33 may not administer this stack")), "{said}");
    assert!(lines[3] == "closed to others", "{said}");
    assert!(!net.replicas().is_empty());
}

/// Copies command and library to a folder that other users can reach, because the folder that cargo builds
/// into may not be.
fn for_everybody(net: &Net) -> PathBuf {
    let built = atoll();
    for name in ["atoll", "libatoll.so"] {
        let copy = net.scratch.path().join(name);
        if !copy.exists() {
            atoll_system_tests::copy_program(built.with_file_name(name), copy);
        }
    }
    net.scratch.path().join("atoll")
}

/// A server that sends its user to each client, once.
const WHO: &str = "import os, socket, sys
server = socket.create_server(('', int(sys.argv[1])))
print('listening', flush=True)
peer, _ = server.accept()
peer.sendall(b'%d' % os.geteuid())
peer.close()";

/// Starts [`WHO`] on the stack, by way of `wrapper`.
fn serve_as(net: &Net, options: &[&str], wrapper: &[&str], port: u16) -> Proc {
    let mut run = net.on_server(&for_everybody(net).to_string_lossy());
    run.args(["run", "--name", net.name()]).args(options).arg("--").args(wrapper);
    Proc::start(run.args(["/usr/bin/python3", "-c", WHO, &port.to_string()]), None)
}

/// Returns the user that answers at a port of the stack.
fn who_answers(net: &Net, server: &mut Proc, port: u16) -> String {
    server.says("listening", 30);
    net.client("nc.openbsd", &["-d", "-w", "10", Net::SERVER, &port.to_string()]).success(30)
}

const AS_WWW_DATA: &[&str] = &["setpriv", "--reuid=33", "--regid=33", "--clear-groups", "--"];
const AS_NOBODY: &[&str] = &["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"];

/// Programs that gave up root before their first socket are served.
#[test]
fn users_that_are_allowed_are_served() {
    let net = Net::configured(Stack::Atoll, "[users]\nallow = [\"www-data\"]\ngroups = [\"daemon\"]\n");
    let in_group = ["setpriv", "--reuid=65534", "--regid=1", "--clear-groups", "--"];
    for (wrapper, uid, port) in [(AS_WWW_DATA, "33", 8001), (&in_group, "65534", 8002), (&["env"], "0", 8003)]
    {
        let mut server = serve_as(&net, &[], wrapper, port);
        assert_eq!(who_answers(&net, &mut server, port), uid, "{}", server.report());
    }
    // This server is not part of Atoll.
    let mut server = net.on_server(&for_everybody(&net).to_string_lossy());
    server.args(["run", "--name", net.name(), "--", "/usr/bin/memcached", "-u", "www-data", "-p", "11211"]);
    let mut server = Proc::start(&mut server, None);
    net.listens(&mut server, 11211);
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("it runs");
    assert!(status.contains("Uid:\t33\t33"), "{status}");
}

/// An administrator starts an ordinary server as root, and makes it another user in the usual ways.
#[test]
fn a_server_that_root_has_made_another_user_is_served() {
    let net = Net::configured(Stack::Atoll, "[users]\nallow = [\"www-data\"]\n");
    let atoll = for_everybody(&net);
    let by_su = ["su", "-s", "/bin/sh", "-c", "exec \"$0\" \"$@\"", "--", "www-data"];
    let alone: Vec<&str> =
        ["unshare", "--pid", "--fork", "--mount-proc", "--"].iter().chain(AS_WWW_DATA).copied().collect();
    let cleared: Vec<&str> = AS_WWW_DATA.iter().copied().chain(["env", "-i"]).collect();
    for (wrapper, port) in [AS_WWW_DATA, &by_su, &alone, &cleared].into_iter().zip(6379u16..) {
        let mut run = net.on_server(&atoll.to_string_lossy());
        run.args(["run", "--name", net.name(), "--"]).args(wrapper);
        run.args([
            "/usr/bin/redis-server",
            "--bind",
            "0.0.0.0",
            "--protected-mode",
            "no",
            "--save",
            "",
            "--port",
        ]);
        let mut server = Proc::start(run.arg(port.to_string()).current_dir("/tmp"), None);
        net.listens(&mut server, port);
        let port = port.to_string();
        let ask = |what: &[&str]| {
            let arguments: Vec<&str> = ["-h", Net::SERVER, "-p", &port].iter().chain(what).copied().collect();
            net.client("redis-cli", &arguments)
        };
        assert_eq!(ask(&["set", "a", "b"]).success(30).trim(), "OK", "{wrapper:?}: {}", server.report());
        // The server may be a child of the process that was started here, and would outlive it.
        ask(&["shutdown", "nosave"]).end(30);
        server.end(30);
    }
}

/// The supervisor's reason reaches the program, and the terminal.
#[test]
fn a_user_that_is_not_allowed_hears_why() {
    for settings in ["", "[users]\nallow = [\"www-data\"]\n"] {
        let net = Net::configured(Stack::Atoll, settings);
        let mut refused = serve_as(&net, &[], AS_NOBODY, 8001);
        assert!(!refused.end(30).success(), "{}", refused.report());
        let said = refused.errors();
        assert!(said.contains("user 65534 may not use it (start it with --allow-user 65534)"), "{said}");
        assert!(said.contains("PermissionError") && said.matches("libatoll").count() == 1, "{said}");
    }
}

/// A daemon of root that becomes a user that is not admitted keeps its sockets, and so do its children and
/// the programs that they execute. They make new sockets with their own rights, without root's ports.
#[test]
fn children_of_a_user_that_is_not_allowed_have_its_sockets() {
    for settings in ["", "[users]\nallow = [\"daemon\"]\n"] {
        let net = Net::configured(Stack::Atoll, settings);
        let program = "import os, socket, sys
server = socket.create_server(('', int(sys.argv[1])))
os.setgroups([]); os.setresgid(33, 33, 33); os.setresuid(33, 33, 33)
print('listening', flush=True)
new = \"\"\"import os, socket, sys
other = socket.create_server(('127.0.0.1', 0))
again = socket.create_connection(other.getsockname())
try: low = socket.create_server(('', 81))
except PermissionError: low = None
ours = again.getpeername()[1] == other.getsockname()[1] and os.fstat(other.fileno()).st_mode != 0
print(os.geteuid(), sys.argv[1], ours and not low, end=' ', flush=True)
\"\"\"
def child(f):
    pid = os.fork()
    if pid == 0:
        try: f()
        finally: os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
def over(peer, *rest):
    os.dup2(peer.fileno(), 1)
    os.execv('/usr/bin/python3', ['python3', '-c', *rest])
def nested(peer):
    child(lambda: over(peer, new, 'grandchild'))
    os._exit(0)
def spawned(peer):
    # The program that begins with no socket begins another, which gets none either.
    inner = \"import os, sys; os.execv('/usr/bin/python3', ['python3', '-c', sys.argv[1], 'spawned'])\"
    reader, writer = os.pipe(); os.dup2(writer, 1); os.close(writer)
    pid = os.posix_spawn('/usr/bin/python3', ['python3', '-c', inner, new], os.environ)
    os.close(1)
    assert os.waitpid(pid, 0)[1] == 0
    peer.sendall(os.read(reader, 100))
    os._exit(0)
peer, _ = server.accept()
child(lambda: (peer.sendall(b'%d forked ' % os.geteuid()), os._exit(0)))
child(lambda: over(peer, new, 'executed'))
child(lambda: nested(peer))
child(lambda: spawned(peer))
peer.close()";
        let mut run = net.on_server(&for_everybody(&net).to_string_lossy());
        run.args(["run", "--name", net.name(), "--", "/usr/bin/python3", "-c", program, "8001"]);
        let mut server = Proc::start(&mut run, None);
        let said = who_answers(&net, &mut server, 8001);
        let all = "33 forked 33 executed True 33 grandchild True 33 spawned True ";
        assert_eq!(said, all, "{}", server.report());
        assert!(server.end(30).success() && server.errors().is_empty(), "{}", server.report());
    }
}

/// A stack may have all the sessions that it allows. A program whose children then cannot have its sockets
/// says so once.
#[test]
fn a_program_whose_children_have_none_of_its_sockets_says_why() {
    let net = Net::configured(Stack::Atoll, "[sessions]\nmax = 1\n");
    let program = "import os, socket, sys
server = socket.create_server(('', int(sys.argv[1])))
for turn in range(2):
    if os.fork() == 0: os._exit(0)
    os.wait()
print('listening', flush=True)
peer, _ = server.accept()
peer.sendall(b'%d' % os.geteuid())";
    let mut run = net.on_server(&for_everybody(&net).to_string_lossy());
    run.args(["run", "--name", net.name(), "--", "/usr/bin/python3", "-c", program, "8001"]);
    let mut server = Proc::start(&mut run, None);
    assert_eq!(who_answers(&net, &mut server, 8001), "0", "{}", server.report());
    let said = server.errors();
    let complaint = "children and the next program cannot have this program's sockets, nor the stack: the \
                     stack has as many sessions as it may have";
    assert_eq!(said.matches(complaint).count(), 1, "{said}");
}

/// A program has sockets, but the program that it executes gets none of them.
#[test]
fn a_cleared_environment_is_followed_by_who_has_sockets_of_its_own() {
    let net = Net::new(Stack::Atoll);
    let program = "import os, select, socket, sys
sockets = socket.socket(), select.epoll()
os.execve(sys.argv[1], sys.argv[1:], {})";
    let mut server = serve_as(&net, &[], &["/usr/bin/python3", "-c", program], 8001);
    assert_eq!(who_answers(&net, &mut server, 8001), "0", "{}", server.report());
}

/// On a stack of root, the admitted user runs the program.
#[test]
fn users_find_the_stack_of_root() {
    let net = Net::configured(Stack::Atoll, "[users]\nallow = [\"www-data\"]\n");
    let atoll = for_everybody(&net);
    let atoll = atoll.to_string_lossy();
    let on_its_own = |wrapper: &[&str], arguments: &[&str]| {
        let mut run = net.on_server(wrapper[0]);
        run.args(&wrapper[1..]).args([&atoll, arguments[0], "--name", net.name()]).args(&arguments[1..]);
        Proc::start(&mut run, None)
    };
    let serve = ["run", "--", "/usr/bin/python3", "-c", WHO, "8001"];
    let mut server = on_its_own(AS_WWW_DATA, &serve);
    assert_eq!(who_answers(&net, &mut server, 8001), "33", "{}", server.report());
    let mut refused = on_its_own(AS_NOBODY, &serve);
    assert!(!refused.end(30).success(), "{}", refused.report());
    let said = refused.errors();
    assert!(said.contains("has not let nobody in: atoll up --allow-user nobody"), "{said}");
    // Administration still belongs to root.
    for command in ["status", "down"] {
        let mut asks = net.on_server(AS_WWW_DATA[0]);
        asks.args(&AS_WWW_DATA[1..]).arg(&*atoll).args([command, net.name()]);
        asks.env("ATOLL_RUNTIME_DIR", "/run/atoll");
        let mut asks = Proc::start(&mut asks, None);
        assert!(
            !asks.end(30).success() && asks.errors().contains("belongs to another user"),
            "{}",
            asks.report()
        );
    }
    assert!(!net.replicas().is_empty());
}

#[test]
fn unknown_users_are_an_error_that_says_what_to_do() {
    let folder = Scratch::new();
    let file = folder.file("atoll.toml", "[ports]\nusers = { nonesuch = [\"80\"] }\n");
    let mut up = Command::new(atoll());
    let mut up =
        Proc::start(up.args(["up", "--daemon", "-n", "nonesuch", "--link", "none", "--config", &file]), None);
    let said = "ports.users: there is no user \"nonesuch\": make it, take it out of the configuration, or \
                give a number";
    assert!(!up.end(30).success() && up.errors().contains(said), "{}", up.report());

    for (option, name, reason) in
        [("--allow-user", "nonesuch", "there is no user"), ("--allow-group", "nonesuch", "there is no group")]
    {
        let mut up = Command::new(atoll());
        let mut up =
            Proc::start(up.args(["up", "--daemon", "-n", "nonesuch", "--link", "none", option, name]), None);
        assert!(!up.end(30).success() && up.errors().contains(reason), "{}", up.report());
    }
}

/// The supervisor sees another process number than the process itself, or none.
#[test]
fn programs_in_namespaces_of_their_own_are_served() {
    let net = Net::configured(Stack::Atoll, "[users]\nallow = [\"www-data\"]\n");
    let pid = ["unshare", "--pid", "--fork", "--mount-proc", "--"];
    let pid_and_user: Vec<&str> = pid.iter().chain(AS_WWW_DATA).copied().collect();
    let user = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--"];
    for (wrapper, uid, port) in [(&pid[..], "0", 8001), (&pid_and_user, "33", 8002), (&user, "0", 8003)] {
        let mut server = serve_as(&net, &[], wrapper, port);
        assert_eq!(who_answers(&net, &mut server, port), uid, "{wrapper:?}: {}", server.report());
    }
}

/// A folder that is the root directory of programs: it has this machine's files, except the sockets of
/// stacks.
struct Jail(PathBuf);

impl Jail {
    fn new(net: &Net) -> Jail {
        let root = net.scratch.path().join("jail");
        for name in ["usr", "etc", "dev", "tmp", "run", "lib", "lib64", "bin"] {
            std::fs::create_dir_all(root.join(name)).expect("the folder is writable");
        }
        let jail = Jail(root);
        for name in ["usr", "etc", "lib", "lib64", "bin", "dev"] {
            let mut mount = Command::new("mount");
            mount.args(["--bind", &format!("/{name}")]).arg(jail.0.join(name));
            assert!(mount.status().expect("mount is installed").success());
        }
        // The library has the path inside that it has outside.
        let folder = net.scratch.path().to_string_lossy().into_owned();
        let inside = jail.0.join(folder.trim_start_matches('/'));
        std::fs::create_dir_all(&inside).expect("the folder is writable");
        std::fs::copy(atoll().with_file_name("libatoll.so"), inside.join("libatoll.so"))
            .expect("it is built");
        jail
    }
}

impl Drop for Jail {
    fn drop(&mut self) {
        for name in ["usr", "etc", "lib", "lib64", "bin", "dev"] {
            let _ = Command::new("umount").arg("-l").arg(self.0.join(name)).status();
        }
    }
}

/// The socket's path does not exist there. A connection that was made before is handed on over chroot,
/// setuid, exec, fork and spawn.
#[test]
fn programs_in_a_chroot_are_served() {
    let net = Net::configured(Stack::Atoll, "[users]\nallow = [\"www-data\"]\n");
    let jail = Jail::new(&net);
    let root = jail.0.to_string_lossy().into_owned();
    let plain = ["chroot", &*root];
    let as_user = ["chroot", "--userspec=33:33", "--groups=", &*root];
    // A shell forks before it executes, and a program that spawns does so without fork(3).
    let by_shell = ["chroot", &*root, "/bin/sh", "-c", "true; \"$@\"; true", "sh"];
    let spawn = "import os, sys; os.waitpid(os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ), 0)";
    let spawned = ["chroot", &*root, "/usr/bin/python3", "-c", spawn];
    let namespaces =
        ["unshare", "--pid", "--mount", "--fork", "--", "chroot", "--userspec=33:33", "--groups=", &*root];
    let wrappers: [(&[&str], &str); 5] =
        [(&plain, "0"), (&as_user, "33"), (&by_shell, "0"), (&spawned, "0"), (&namespaces, "33")];
    for ((wrapper, uid), port) in wrappers.into_iter().zip(8001..) {
        let mut server = serve_as(&net, &[], wrapper, port);
        assert_eq!(who_answers(&net, &mut server, port), uid, "{wrapper:?}: {}", server.report());
    }
    // A user that may not use the stack may not use it over that connection either.
    let as_nobody = ["chroot", "--userspec=65534:65534", "--groups=", &*root];
    let mut refused = serve_as(&net, &[], &as_nobody, 8009);
    assert!(!refused.end(30).success(), "{}", refused.report());
    assert!(refused.errors().contains("user 65534 may not use it"), "{}", refused.report());
}

/// A program that changes its root directory keeps its connections and its children's.
#[test]
fn a_program_that_shuts_itself_in_goes_on() {
    let net = Net::configured(Stack::Atoll, "[users]\nallow = [\"www-data\"]\n");
    let jail = Jail::new(&net);
    // The program listens, changes its root, gives up root's rights, and lets a child answer, which opens
    // another socket.
    let program = "import os, socket, sys
server = socket.create_server(('', int(sys.argv[1])))
os.chroot(sys.argv[2]); os.chdir('/'); os.setgroups([]); os.setgid(33); os.setuid(33)
print('listening', flush=True)
if os.fork() == 0:
    peer, _ = server.accept()
    other = socket.create_server(('127.0.0.1', 0))
    again = socket.create_connection(other.getsockname())
    peer.sendall(b'%d %d' % (os.geteuid(), other.accept()[0].getsockname()[1] == other.getsockname()[1]))
    peer.close(); os._exit(0)
os.wait()";
    let mut run = net.on_server(&for_everybody(&net).to_string_lossy());
    run.args(["run", "--name", net.name(), "--", "/usr/bin/python3", "-c", program, "8001"]).arg(&jail.0);
    let mut server = Proc::start(&mut run, None);
    assert_eq!(who_answers(&net, &mut server, 8001), "33 1", "{}", server.report());
}

/// A child has a session of its own, which its parent opens before the fork. It has no rights of its parent's
/// user.
#[test]
fn children_that_give_up_root_have_no_port_of_roots() {
    let net = Net::configured(Stack::Atoll, "[users]\nallow = [\"www-data\"]\n");
    let program = "import os, socket, sys
def sharing():
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return sock
def attempt(what, call, *arguments):
    try: call(*arguments); print(what, 'worked', flush=True)
    except OSError as error: print(what, type(error).__name__, error.errno, flush=True)
low, high, early = sharing(), sharing(), sharing()
low.bind(('', 80)); high.bind(('', 8080)); high.listen()
for before in (True, False):
    if not before: os.setgroups([]); os.setresgid(33, 33, 33); os.setresuid(33, 33, 33)
    if os.fork() == 0:
        if before: os.setgroups([]); os.setresgid(33, 33, 33); os.setresuid(33, 33, 33)
        attempt('low', socket.socket().bind, ('', 81))
        attempt('low again', sharing().bind, ('', 80))
        attempt('shared', sharing().bind, ('', 8080))
        attempt('made before', early.bind, ('', 8080 + before))
        attempt('inherited', low.listen)
        os._exit(0)
    os.wait()
print('done', flush=True)";
    let mut run = net.on_server(&for_everybody(&net).to_string_lossy());
    run.args(["run", "--name", net.name(), "--", "/usr/bin/python3", "-c", program]);
    let said = Proc::start(&mut run, None).success(60);
    let each = "low PermissionError 13\nlow again PermissionError 13\nshared OSError 98\nmade before worked\n\
                inherited worked\n";
    assert_eq!(said, format!("{each}{each}done\n"));
}

#[test]
fn a_cleared_environment_leads_nowhere_else() {
    let net = Net::new(Stack::Atoll);
    let mut server = serve_as(&net, &[], &["env", "-i"], 8001);
    assert_eq!(who_answers(&net, &mut server, 8001), "0", "{}", server.report());
}
