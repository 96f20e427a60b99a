//! Do languages, their runtimes and tools work on the stack? A part of the matrix of programs
//! (docs/programs.md); most of it runs in `make soak` only, which installs what it needs.

use std::process::Command;

use atoll_system_tests::{Net, Proc, Stack, until};

use crate::servers::{fetch, megabyte};

on_both_stacks![
    gunicorn_as_another_user,
    uvicorn_with_uvloop,
    node_encrypts_and_answers_datagrams,
    git_over_http_and_ssh,
    apt_get,
    traced_and_debugged,
    valgrind,
    bubblewrap,
    socket_activation
];

/// Makes two tests of each function, which do nothing unless `make soak` runs them.
macro_rules! in_soak {
    ($($name:ident),* $(,)?) => {
        mod kernel_in_soak {
            $(#[test] fn $name() {
                if atoll_system_tests::soak() { super::$name(atoll_system_tests::Stack::Kernel) }
            })*
        }
        mod atoll_in_soak {
            $(#[test] fn $name() {
                if atoll_system_tests::soak() { super::$name(atoll_system_tests::Stack::Atoll) }
            })*
        }
    };
}

in_soak![
    php,
    ruby,
    puma,
    uwsgi,
    aiohttp,
    tornado,
    twisted,
    erlang,
    perl,
    java,
    netty,
    celery,
    zeromq,
    grpc,
    openssl,
    downloads,
    load_generators,
    measuring_programs,
    port_scan,
    every_namespace,
    qemu
];

/// The kernel's end of the network.
const PEER: &str = "198.18.0.1";

/// Puts what programs serve into the scratch folder.
fn files(net: &Net) -> String {
    net.scratch.file("small", "tiny");
    net.scratch.file("big", megabyte());
    net.scratch.path().to_string_lossy().into_owned()
}

fn path(net: &Net, name: &str) -> String {
    net.scratch.path().join(name).to_string_lossy().into_owned()
}

/// A server of files that a language brings: a small one, a megabyte, and some at once.
fn serves(net: &Net, mut server: Proc, port: u16) {
    net.listens(&mut server, port);
    assert_eq!(fetch(net, port, "/small"), b"tiny", "{}", server.report());
    assert!(fetch(net, port, "/big") == megabyte(), "the megabyte arrived changed");
    let url = format!("http://{}:{port}/small", Net::SERVER);
    let report = net.client("ab", &["-q", "-s", "20", "-n", "100", "-c", "10", &url]).success(60);
    assert!(report.contains("Complete requests:      100"), "{report}\n{}", server.report());
    assert!(report.contains("Failed requests:        0"), "{report}");
    assert!(server.runs(), "{}", server.report());
    assert!(!server.errors().contains("libatoll"), "{}", server.report());
}

/// A program in Python that serves the scratch folder.
fn python_serves(stack: Stack, source: &str, arguments: &[&str]) {
    let net = Net::new(stack);
    files(&net);
    let program = net.scratch.file("app.py", source);
    let arguments = if arguments.is_empty() { vec![program.as_str()] } else { arguments.to_vec() };
    let server = net.serve("/usr/bin/python3", &arguments);
    serves(&net, server, 8000);
}

const WSGI: &str = "
def app(environ, start_response):
    data = open(environ['PATH_INFO'].lstrip('/'), 'rb').read()
    start_response('200 OK', [('Content-Length', str(len(data)))])
    return [data]
application = app
";

/// The master listens, and gives up root before it forks its workers.
fn gunicorn_as_another_user(stack: Stack) {
    let user = ["--user", "www-data", "--group", "www-data"];
    let common = ["/usr/bin/gunicorn", "-w", "2", "-b", "0.0.0.0:8000", "app:app"];
    python_serves(stack, WSGI, &[&common[..], &user].concat());
}

/// uWSGI listens when it has given up root, so its user has to be allowed.
fn uwsgi(stack: Stack) {
    let net = Net::configured(stack, "[users]\nallow = [\"www-data\"]\n");
    files(&net);
    let program = net.scratch.file("app.py", WSGI);
    let folder = net.scratch.path().to_string_lossy().into_owned();
    let chown = Command::new("chown").args(["-R", "www-data", &folder]).status();
    assert!(chown.is_ok_and(|status| status.success()), "chown");
    let arguments = ["--plugin", "python3", "--http-socket", "0.0.0.0:8000", "--wsgi-file", &program];
    let user = ["--processes", "2", "--master", "--uid", "www-data", "--gid", "www-data"];
    let server = net.serve("uwsgi_python3", &[&arguments[..], &user].concat());
    serves(&net, server, 8000);
}

/// uvloop brings libuv, which batches its calls through io_uring where it may.
fn uvicorn_with_uvloop(stack: Stack) {
    let source = "
async def app(scope, receive, send):
    if scope['type'] != 'http':
        return
    data = open(scope['path'].lstrip('/'), 'rb').read()
    head = [(b'content-length', str(len(data)).encode())]
    await send({'type': 'http.response.start', 'status': 200, 'headers': head})
    await send({'type': 'http.response.body', 'body': data})
";
    let options = ["--loop", "uvloop", "--host", "0.0.0.0", "--port", "8000", "--log-level", "warning"];
    python_serves(stack, source, &[&["-m", "uvicorn"][..], &options, &["app:app"]].concat());
}

fn aiohttp(stack: Stack) {
    let source = "
from aiohttp import web
async def serve(request):
    return web.Response(body=open(request.path.lstrip('/'), 'rb').read())
app = web.Application()
app.router.add_get('/{name}', serve)
web.run_app(app, host='0.0.0.0', port=8000)
";
    python_serves(stack, source, &[]);
}

fn tornado(stack: Stack) {
    let source = "
import tornado.ioloop, tornado.web
class Serve(tornado.web.RequestHandler):
    def get(self, name):
        self.write(open(name, 'rb').read())
tornado.web.Application([('/(.*)', Serve)]).listen(8000)
tornado.ioloop.IOLoop.current().start()
";
    python_serves(stack, source, &[]);
}

fn twisted(stack: Stack) {
    let net = Net::new(stack);
    files(&net);
    let arguments = ["-n", "--pidfile=", "web", "--listen", "tcp:8000", "--path", "."];
    let server = net.serve("twistd3", &arguments);
    serves(&net, server, 8000);
}

fn php(stack: Stack) {
    let net = Net::new(stack);
    files(&net);
    let server = net.serve("php", &["-S", "0.0.0.0:8000", "-t", "."]);
    serves(&net, server, 8000);
}

/// WEBrick: a thread for each connection.
fn ruby(stack: Stack) {
    let net = Net::new(stack);
    files(&net);
    let server = net.serve("ruby", &["-run", "-e", "httpd", ".", "-p", "8000"]);
    serves(&net, server, 8000);
}

/// Workers with threads, which share the listener of their parent.
fn puma(stack: Stack) {
    let net = Net::new(stack);
    files(&net);
    let program = "run lambda { |env| [200, {}, [File.binread(env['PATH_INFO'].sub('/', ''))]] }\n";
    let program = net.scratch.file("config.ru", program);
    let arguments = ["-b", "tcp://0.0.0.0:8000", "-w", "2", "-e", "production", &program];
    let server = net.serve("puma", &arguments);
    serves(&net, server, 8000);
}

fn erlang(stack: Stack) {
    let net = Net::new(stack);
    let folder = files(&net);
    let program = format!(
        "inets:start(), {{ok, _}} = inets:start(httpd, [{{port, 8000}}, {{server_name, \"stack\"}}, \
         {{server_root, \"{folder}\"}}, {{document_root, \"{folder}\"}}, {{bind_address, {{0,0,0,0}}}}]), \
         receive stop -> ok end."
    );
    let server = net.serve("erl", &["-noshell", "-eval", &program]);
    serves(&net, server, 8000);
}

/// A child for each connection, and accept(2) that is interrupted when one ends.
fn perl(stack: Stack) {
    let net = Net::new(stack);
    files(&net);
    let program = "
use IO::Socket::INET;
$SIG{CHLD} = sub { 1 while waitpid(-1, 1) > 0 };
my $listener = IO::Socket::INET->new(LocalPort => 8000, Listen => 50, ReuseAddr => 1) or die $!;
while (1) {
    my $peer = $listener->accept or next;
    if (fork == 0) {
        my ($name) = <$peer> =~ m{GET /(\\S+)};
        while (<$peer>) { last if /^\\r?\\n$/ }
        open my $file, '<', $name; local $/; my $data = <$file>;
        print $peer 'HTTP/1.0 200 OK', \"\\r\\nContent-Length: \", length $data, \"\\r\\n\\r\\n\", $data;
        close $peer;
        exit;
    }
    close $peer;
}
";
    let program = net.scratch.file("serve.pl", program);
    let server = net.serve("perl", &[&program]);
    serves(&net, server, 8000);
}

/// The JDK's HTTP server, its asynchronous channels and its datagram sockets, and its HTTP client.
fn java(stack: Stack) {
    let net = Net::new(stack);
    files(&net);
    let program = net.scratch.file("Serve.java", JAVA);
    let mut server = net.serve("java", &[&program, "serve"]);
    server.says("ready", 60);
    let echo = "
import socket, sys
data = open('big', 'rb').read()
peer = socket.create_connection((sys.argv[1], 8001), 20)
import threading
threading.Thread(target=lambda: (peer.sendall(data), peer.shutdown(socket.SHUT_WR))).start()
got = b''.join(iter(lambda: peer.recv(65536), b''))
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.settimeout(20)
datagrams.sendto(b'hello', (sys.argv[1], 8002))
print(got == data, datagrams.recv(100))
";
    let said = net.client("/usr/bin/python3", &["-c", echo, Net::SERVER]).success(60);
    assert_eq!(said, "True b'hello'\n", "{}", server.report());
    let files = file_server(&net);
    let url = format!("http://{PEER}:8000/big");
    let said = net.serve("java", &[&program, "fetch", &url]).success(60);
    assert_eq!(
        said,
        "20000000\n".replace("20000000", &(20 * megabyte().len()).to_string()),
        "{}",
        files.report()
    );
    serves(&net, server, 8000);
}

const JAVA: &str = r#"
import com.sun.net.httpserver.HttpServer;
import java.net.*;
import java.net.http.*;
import java.nio.ByteBuffer;
import java.nio.channels.*;
import java.nio.file.*;
import java.util.*;
import java.util.concurrent.*;

public class Serve {
    public static void main(String[] words) throws Exception {
        if (words[0].equals("fetch")) {
            fetch(URI.create(words[1]));
            System.exit(0);
        }
        HttpServer http = HttpServer.create(new InetSocketAddress("0.0.0.0", 8000), 100);
        http.setExecutor(Executors.newFixedThreadPool(8));
        http.createContext("/", exchange -> {
            byte[] data = Files.readAllBytes(Path.of(exchange.getRequestURI().getPath().substring(1)));
            exchange.sendResponseHeaders(200, data.length);
            exchange.getResponseBody().write(data);
            exchange.close();
        });
        http.start();
        AsynchronousServerSocketChannel server = AsynchronousServerSocketChannel.open();
        server.bind(new InetSocketAddress(8001));
        server.accept(null, new CompletionHandler<AsynchronousSocketChannel, Void>() {
            public void completed(AsynchronousSocketChannel channel, Void nothing) {
                server.accept(null, this);
                echo(channel, ByteBuffer.allocate(65536));
            }
            public void failed(Throwable error, Void nothing) { error.printStackTrace(); }
        });
        DatagramSocket datagrams = new DatagramSocket(8002);
        System.out.println("ready");
        byte[] room = new byte[2000];
        while (true) {
            DatagramPacket packet = new DatagramPacket(room, room.length);
            datagrams.receive(packet);
            datagrams.send(packet);
        }
    }

    static void echo(AsynchronousSocketChannel channel, ByteBuffer buffer) {
        channel.read(buffer, null, new CompletionHandler<Integer, Void>() {
            public void completed(Integer count, Void nothing) {
                try {
                    if (count < 0) { channel.close(); return; }
                    buffer.flip();
                    while (buffer.hasRemaining()) channel.write(buffer).get();
                    buffer.clear();
                    channel.read(buffer, null, this);
                } catch (Exception error) { error.printStackTrace(); }
            }
            public void failed(Throwable error, Void nothing) { error.printStackTrace(); }
        });
    }

    static void fetch(URI from) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        List<CompletableFuture<HttpResponse<byte[]>>> all = new ArrayList<>();
        HttpRequest request = HttpRequest.newBuilder(from).build();
        for (int i = 0; i < 20; i++)
            all.add(client.sendAsync(request, HttpResponse.BodyHandlers.ofByteArray()));
        int sum = 0;
        for (var one : all) sum += one.get(30, TimeUnit.SECONDS).body().length;
        System.out.println(sum);
    }
}
"#;

/// Netty, over Java's selectors: a thread that accepts, and some that serve.
fn netty(stack: Stack) {
    let net = Net::new(stack);
    files(&net);
    let program = net.scratch.file("Netty.java", NETTY);
    let server = net.serve("java", &["-cp", "/usr/share/java/*", &program]);
    let mut server = server;
    server.says("ready", 60);
    serves(&net, server, 8000);
}

const NETTY: &str = r#"
import io.netty.bootstrap.ServerBootstrap;
import io.netty.buffer.Unpooled;
import io.netty.channel.*;
import io.netty.channel.nio.NioEventLoopGroup;
import io.netty.channel.socket.nio.NioServerSocketChannel;
import io.netty.handler.codec.http.*;
import java.nio.file.*;

public class Netty {
    public static void main(String[] words) throws Exception {
        new ServerBootstrap().group(new NioEventLoopGroup(1), new NioEventLoopGroup(4))
            .channel(NioServerSocketChannel.class)
            .childHandler(new ChannelInitializer<Channel>() {
                protected void initChannel(Channel channel) {
                    channel.pipeline().addLast(
                        new HttpServerCodec(), new HttpObjectAggregator(65536), new Serve());
                }
            }).bind("0.0.0.0", 8000).sync();
        System.out.println("ready");
    }

    static class Serve extends SimpleChannelInboundHandler<FullHttpRequest> {
        protected void channelRead0(ChannelHandlerContext context, FullHttpRequest request) throws Exception {
            byte[] data = Files.readAllBytes(Path.of(request.uri().substring(1)));
            var answer = new DefaultFullHttpResponse(
                HttpVersion.HTTP_1_1, HttpResponseStatus.OK, Unpooled.wrappedBuffer(data));
            answer.headers().set(HttpHeaderNames.CONTENT_LENGTH, data.length);
            context.writeAndFlush(answer).addListener(ChannelFutureListener.CLOSE);
        }
    }
}
"#;

/// A server of files on the kernel, at the other end.
fn file_server(net: &Net) -> Proc {
    let folder = files(net);
    let arguments = ["-u", "-m", "http.server", "8000", "--bind", PEER, "--directory", &folder];
    let mut server = net.client("/usr/bin/python3", &arguments);
    server.says("Serving HTTP", 20);
    server
}

/// Makes a certificate of this name in the scratch folder.
fn certify(net: &Net) -> [String; 2] {
    let [key, certificate] = ["key.pem", "cert.pem"].map(|name| path(net, name));
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=stack"]);
    openssl.args(["-keyout", &key, "-out", &certificate]);
    Proc::start(&mut openssl, None).success(60);
    [key, certificate]
}

fn fetch_encrypted(net: &Net, port: u16, server: &Proc) {
    let url = format!("https://{}:{port}/big", Net::SERVER);
    net.client("curl", &["-sSk", "--fail", "--max-time", "30", "-o", "fetched", &url]).success(40);
    let fetched = std::fs::read(net.scratch.path().join("fetched")).expect("curl has written it");
    assert!(fetched == megabyte(), "{}", server.report());
}

fn node_encrypts_and_answers_datagrams(stack: Stack) {
    let net = Net::new(stack);
    files(&net);
    let [key, certificate] = certify(&net);
    let program = format!(
        "const fs = require('fs'), https = require('https'), dgram = require('dgram');
        const secrets = {{ key: fs.readFileSync('{key}'), cert: fs.readFileSync('{certificate}') }};
        https.createServer(secrets, (ask, tell) => tell.end(fs.readFileSync('.' + ask.url))).listen(8443);
        for (const [type, port] of [['udp4', 7], ['udp6', 8]]) {{
            const socket = dgram.createSocket(type);
            socket.on('message', (text, from) => socket.send(text, from.port, from.address));
            socket.bind(port);
        }}"
    );
    let program = net.scratch.file("serve.js", program);
    let mut server = net.serve("node", &[&program]);
    net.listens(&mut server, 8443);
    fetch_encrypted(&net, 8443, &server);
    for (address, port) in [(Net::SERVER, "7"), (Net::SERVER6, "8")] {
        let ask = "import socket, sys
family = socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET
sock = socket.socket(family, socket.SOCK_DGRAM)
sock.settimeout(20)
sock.sendto(b'hello', (sys.argv[1], int(sys.argv[2])))
print(sock.recv(100))";
        let said = net.client("/usr/bin/python3", &["-c", ask, address, port]).success(30);
        assert_eq!(said, "b'hello'\n", "{}", server.report());
    }
}

/// Both ends of OpenSSL's own programs.
fn openssl(stack: Stack) {
    let net = Net::new(stack);
    files(&net);
    let [key, certificate] = certify(&net);
    let arguments = ["s_server", "-accept", "8443", "-key", &key, "-cert", &certificate, "-WWW"];
    let mut server = net.serve("openssl", &arguments);
    net.listens(&mut server, 8443);
    fetch_encrypted(&net, 8443, &server);
    let there = ["s_server", "-accept", "198.18.0.1:8443", "-key", &key, "-cert", &certificate, "-WWW"];
    let mut there = net.client("openssl", &there);
    there.says("ACCEPT", 20);
    let ask = std::fs::File::open(net.scratch.file("ask", "GET /small HTTP/1.0\r\n\r\n")).expect("written");
    let mut client = net.on_stack("openssl");
    client.args(["s_client", "-quiet", "-connect", "198.18.0.1:8443"]);
    let said = Proc::start(&mut client, Some(ask)).success(30);
    assert!(said.ends_with("tiny"), "{said}");
}

/// Clones from the kernel's end over HTTP, and from the stack over SSH.
fn git_over_http_and_ssh(stack: Stack) {
    let net = Net::new(stack);
    files(&net);
    let [repository, work] = ["repository.git", "work"].map(|name| path(&net, name));
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        let who = ["-c", "user.email=a@example.test", "-c", "user.name=a", "-c", "init.defaultBranch=main"];
        Proc::start(command.args(who).args(arguments), None).success(30)
    };
    git(&["init", "-q", &work]);
    std::fs::copy(path(&net, "big"), format!("{work}/big")).expect("both are ours");
    git(&["-C", &work, "add", "big"]);
    git(&["-C", &work, "commit", "-q", "-m", "a megabyte"]);
    git(&["clone", "-q", "--bare", &work, &repository]);
    git(&["-C", &repository, "update-server-info"]);
    let _files = file_server(&net);
    let cloned = |name: &str| std::fs::read(net.scratch.path().join(name).join("big")).unwrap_or_default();
    net.serve("git", &["clone", "-q", "http://198.18.0.1:8000/repository.git", "by-http"]).success(60);
    assert!(cloned("by-http") == megabyte(), "over HTTP");
    let (mut server, ssh) = ssh_server(&net);
    net.listens(&mut server, 22);
    let mut clone = net.on_client("git");
    clone.env("GIT_SSH_COMMAND", ssh);
    clone.args(["clone", "-q", &format!("root@{}:{repository}", Net::SERVER), "by-ssh"]);
    Proc::start(&mut clone, None).success(60);
    assert!(cloned("by-ssh") == megabyte(), "{}", server.report());
}

/// Starts an OpenSSH server on the stack; returns the command of a client that it lets in as well.
fn ssh_server(net: &Net) -> (Proc, String) {
    for name in ["host", "key"] {
        let mut keygen = Command::new("ssh-keygen");
        keygen.args(["-q", "-t", "ed25519", "-N", "", "-f", &path(net, name)]);
        Proc::start(&mut keygen, None).success(20);
    }
    let settings = format!(
        "Port 22\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nPidFile none\nUsePAM no\n\
         PermitRootLogin yes\n",
        path(net, "host"),
        path(net, "key.pub")
    );
    let file = net.scratch.file("sshd_config", settings);
    std::fs::create_dir_all("/run/sshd").expect("a folder of the system");
    let server = net.serve("/usr/sbin/sshd", &["-D", "-e", "-f", &file]);
    let client = format!(
        "ssh -q -i {} -F none -oStrictHostKeyChecking=no -oUserKnownHostsFile=/dev/null -oBatchMode=yes",
        path(net, "key")
    );
    (server, client)
}

/// Fetches the list of a repository, and a package. apt-get's methods give up root, so their user has to be
/// allowed.
fn apt_get(stack: Stack) {
    let net = Net::configured(stack, "[users]\nallow = [\"_apt\"]\n");
    let control =
        "Package: nothing\nVersion: 1\nArchitecture: all\nMaintainer: a <a@example.test>\nDescription: x\n";
    for folder in ["package/DEBIAN", "repository", "apt/etc/apt/apt.conf.d", "apt/var/lib/dpkg"] {
        std::fs::create_dir_all(net.scratch.path().join(folder)).expect("the scratch folder is ours");
    }
    for folder in ["lib/apt/lists/partial", "cache/apt/archives/partial"] {
        std::fs::create_dir_all(net.scratch.path().join("apt/var").join(folder)).expect("as above");
    }
    net.scratch.file("package/DEBIAN/control", control);
    let package = path(&net, "repository/nothing_1_all.deb");
    let mut build = Command::new("dpkg-deb");
    build.args(["--build", "--root-owner-group", &path(&net, "package"), &package]);
    Proc::start(&mut build, None).success(30);
    let sum = Proc::start(Command::new("sha256sum").arg(&package), None).success(20);
    let (sum, size) = (&sum[..64], std::fs::metadata(&package).expect("just built").len());
    let list = format!("{control}Filename: ./nothing_1_all.deb\nSize: {size}\nSHA256: {sum}\n");
    net.scratch.file("repository/Packages", list);
    net.scratch.file("apt/var/lib/dpkg/status", "");
    net.scratch.file("apt/etc/apt/sources.list", "deb [trusted=yes] http://198.18.0.1:8000/repository ./\n");
    for folder in ["apt/var/lib/apt/lists", "apt/var/cache/apt/archives"] {
        let chown = Command::new("chown").args(["-R", "_apt", &path(&net, folder)]).status();
        assert!(chown.is_ok_and(|status| status.success()), "chown {folder}");
    }
    let files = file_server(&net);
    let folder = format!("Dir={}", path(&net, "apt"));
    let status = format!("Dir::State::status={}", path(&net, "apt/var/lib/dpkg/status"));
    for orders in [&["update"][..], &["install", "--yes", "--download-only", "nothing"]] {
        let options = ["-q", "-o", &folder, "-o", &status, "-o", "Acquire::http::Timeout=20"];
        net.serve("apt-get", &[&options[..], orders].concat()).success(60);
    }
    let fetched = std::fs::read(path(&net, "apt/var/cache/apt/archives/nothing_1_all.deb"));
    assert!(
        fetched.is_ok_and(|octets| octets == std::fs::read(&package).expect("just built")),
        "{}",
        files.report()
    );
}

/// Fetches the megabyte with a program on the stack that another one watches.
fn fetches(net: &Net, watcher: &[&str]) {
    let target = path(net, "fetched");
    let _ = std::fs::remove_file(&target);
    let (program, arguments) = watcher.split_first().expect("a program");
    let curl = ["curl", "-sS", "--max-time", "60", "-o", &target, "http://198.18.0.1:8000/big"];
    let process = net.serve(program, &[arguments, &curl].concat());
    let said = process.success(90);
    assert!(std::fs::read(&target).is_ok_and(|octets| octets == megabyte()), "{watcher:?}: {said}");
}

/// Programs under strace, and under gdb, which is told to pass on SIGSYS.
fn traced_and_debugged(stack: Stack) {
    let net = Net::new(stack);
    let _files = file_server(&net);
    fetches(&net, &["strace", "-f", "-o", &path(&net, "trace")]);
    let pass = "handle SIGSYS nostop noprint pass";
    fetches(&net, &["gdb", "-q", "-batch", "-ex", pass, "-ex", "run", "--args"]);
}

fn valgrind(stack: Stack) {
    let net = Net::new(stack);
    let _files = file_server(&net);
    fetches(&net, &["valgrind", "-q"]);
}

/// bubblewrap makes namespaces by a clone(2) of its own, in which it sets up the loopback, and hides most of
/// the file system. A namespace of the network that a program makes for itself is the kernel's: on Atoll the
/// program keeps its stack.
fn bubblewrap(stack: Stack) {
    let net = Net::new(stack);
    let _files = file_server(&net);
    let own = path(&net, "");
    let system =
        ["--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"];
    let rest = ["--symlink", "usr/bin", "/bin", "--dev", "/dev", "--proc", "/proc", "--bind", &own, &own];
    let library = atoll_system_tests::atoll();
    let library = library.parent().expect("a folder").to_string_lossy().into_owned();
    let library = ["--ro-bind", &library, &library];
    let bwrap = [&["bwrap"][..], &system, &rest, &library, &["--chdir", &own]].concat();
    let apart = ["--unshare-user", "--unshare-pid", "--unshare-uts", "--unshare-ipc"];
    fetches(&net, &[&bwrap[..], &apart].concat());
    if stack == Stack::Atoll {
        fetches(&net, &[&bwrap[..], &["--unshare-all"]].concat());
    }
}

/// unshare(1) makes every namespace that there is. One of the network is the kernel's own: on Atoll the
/// program keeps its stack.
fn every_namespace(stack: Stack) {
    let net = Net::new(stack);
    let _files = file_server(&net);
    let all = ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--user", "--map-root-user"];
    let all = [&all[..], &["--cgroup", "--time", "--mount-proc"]].concat();
    fetches(&net, &all);
    if stack == Stack::Atoll {
        fetches(&net, &[&all[..], &["--net"]].concat());
    }
}

/// systemd-socket-activate(1) listens, and starts the program with the listener at number 3 when somebody
/// connects; with `--accept`, one for each connection.
fn socket_activation(stack: Stack) {
    let net = Net::new(stack);
    let serve = "import os, socket
listener = socket.socket(fileno=3)
while True:
    peer = listener.accept()[0]
    is_mine = os.environ['LISTEN_PID'] == str(os.getpid())
    peer.sendall(b'%s of %d' % (os.environ['LISTEN_FDS'].encode(), is_mine))
    peer.close()";
    let answer = "import socket
peer = socket.socket(fileno=3)
peer.sendall(peer.recv(99).upper())";
    let ask = "import socket, sys
peer = socket.create_connection((sys.argv[1], int(sys.argv[2])), 30)
peer.sendall(b'hello\\n')
print(peer.recv(99))";
    for (port, options, program, expected) in [
        ("7007", &[][..], serve, "b'1 of 1'\n"),
        ("7008", &["--accept"], answer, "b'HELLO\\n'\n"),
        ("7009", &["--accept", "--inetd"], "print(input().upper())", "b'HELLO\\n'\n"),
    ] {
        let listen = ["--listen", port];
        let python = ["/usr/bin/python3", "-c", program];
        let mut server = net.serve("systemd-socket-activate", &[&listen[..], options, &python].concat());
        server.says("Listening on", 20);
        for _ in 0..2 {
            let said = net.client("/usr/bin/python3", &["-c", ask, Net::SERVER, port]).success(40);
            assert_eq!(said, expected, "{}", server.report());
        }
        assert!(!server.errors().contains("libatoll"), "{}", server.report());
    }
}

/// Programs that fetch files: several connections for one file, and other libraries for HTTP.
fn downloads(stack: Stack) {
    let net = Net::new(stack);
    let _files = file_server(&net);
    let target = path(&net, "fetched");
    let url = "http://198.18.0.1:8000/big";
    let get = format!("get {url} -o {target}");
    for words in [
        &["aria2c", "-q", "-x", "4", "-d", "/", "-o", &target[1..], url][..],
        &["axel", "-q", "-n", "4", "-o", &target, url],
        &["lftp", "-c", &get],
        &["http", "--ignore-stdin", "-b", "-o", &target, "GET", url],
    ] {
        let _ = std::fs::remove_file(&target);
        net.serve(words[0], &words[1..]).success(60);
        assert!(std::fs::read(&target).is_ok_and(|octets| octets == megabyte()), "{}", words[0]);
    }
}

/// Clients that make many requests.
fn load_generators(stack: Stack) {
    let net = Net::new(stack);
    let folder = files(&net);
    let config =
        format!("server.document-root = \"{folder}\"\nserver.port = 8080\nserver.bind = \"{PEER}\"\n");
    let config = net.scratch.file("lighttpd.conf", config);
    let _server = net.client("lighttpd", &["-D", "-f", &config]);
    let url = "http://198.18.0.1:8080/small";
    until("the server to serve", 20, || net.client("curl", &["-sf", url]).end(20).success().then_some(()));
    let said = net.serve("wrk", &["-t", "2", "-c", "8", "-d", "1", url]).success(60);
    assert!(said.contains("requests in") && !said.contains("Socket errors"), "{said}");
    let said = net.serve("siege", &["-q", "-b", "-c", "4", "-r", "50", url]).success(60);
    assert!(said.contains("\"failed_transactions\":\t\t           0"), "{said}");
    let said = net.serve("ab", &["-q", "-k", "-n", "1000", "-c", "8", url]).success(60);
    assert!(said.contains("Failed requests:        0"), "{said}");
}

/// Programs that measure networks, by connections and by datagrams.
fn measuring_programs(stack: Stack) {
    let net = Net::new(stack);
    let mut server = net.serve("iperf", &["-s"]);
    net.listens(&mut server, 5001);
    let said = net.client("iperf", &["-c", Net::SERVER, "-t", "1", "-P", "2"]).success(30);
    assert!(said.contains("SUM") && said.contains("its/sec"), "{said}");
    let mut server = net.serve("sockperf", &["sr", "--tcp", "-i", Net::SERVER, "-p", "11111"]);
    net.listens(&mut server, 11111);
    let said =
        net.client("sockperf", &["pp", "--tcp", "-i", Net::SERVER, "-p", "11111", "-t", "1"]).success(30);
    assert!(said.contains("Summary"), "{said}");
}

/// nmap connects without privileges of its own (-sT), and tells an open port from closed ones.
fn port_scan(stack: Stack) {
    let net = Net::new(stack);
    let _files = file_server(&net);
    let said = net.serve("nmap", &["-sT", "-n", "-Pn", "-p", "8000,9,10", PEER]).success(60);
    assert!(said.contains("8000/tcp open") && said.contains("9/tcp    closed"), "{said}");
}

/// A broker on the stack, a worker with processes beside it, and whoever asks at the other end.
fn celery(stack: Stack) {
    let net = Net::new(stack);
    let tasks = "
import os
from celery import Celery
place = 'redis://' + os.environ['BROKER'] + ':6379/0'
app = Celery('tasks', broker=place, backend=place)
@app.task
def add(a, b):
    return a + b
";
    net.scratch.file("tasks.py", tasks);
    let arguments = ["--port", "6379", "--save", "", "--protected-mode", "no", "--bind", "0.0.0.0"];
    let mut broker = net.serve("redis-server", &arguments);
    net.listens(&mut broker, 6379);
    let mut worker = net.on_stack("/usr/bin/python3");
    worker.env("BROKER", "127.0.0.1").env("C_FORCE_ROOT", "1");
    worker.args(["-m", "celery", "-A", "tasks", "worker", "-c", "2", "-l", "warning"]);
    let worker = Proc::start(&mut worker, None);
    let mut ask = net.on_client("/usr/bin/python3");
    let program =
        "import tasks; print([one.get(timeout=40) for one in [tasks.add.delay(n, 1) for n in range(9)]])";
    ask.env("BROKER", Net::SERVER).args(["-c", program]);
    let said = Proc::start(&mut ask, None).success(60);
    assert_eq!(said, "[1, 2, 3, 4, 5, 6, 7, 8, 9]\n", "{}", worker.report());
}

/// Serves at both ends with `server`, and asks with `client` from both: programs in Python that take their
/// address as an argument.
fn both_ways(stack: Stack, server: &str, client: &str) {
    let net = Net::new(stack);
    let mut here = net.serve("/usr/bin/python3", &["-c", server, "0.0.0.0:8000"]);
    net.listens(&mut here, 8000);
    let at = |address: &str| format!("{address}:8000");
    assert_eq!(net.client("/usr/bin/python3", &["-c", client, &at(Net::SERVER)]).success(60), "ok\n");
    let there = net.client("/usr/bin/python3", &["-c", server, &at(PEER)]);
    assert_eq!(net.serve("/usr/bin/python3", &["-c", client, &at(PEER)]).success(60), "ok\n");
    assert!(!here.errors().contains("libatoll"), "{}\n{}", here.report(), there.report());
}

/// ZeroMQ has threads of its own for all input and output.
fn zeromq(stack: Stack) {
    let server = "
import sys, zmq
socket = zmq.Context().socket(zmq.REP)
socket.bind('tcp://' + sys.argv[1])
while True:
    socket.send(socket.recv())
";
    let client = "
import sys, zmq
socket = zmq.Context().socket(zmq.REQ)
socket.setsockopt(zmq.RCVTIMEO, 30000)
socket.connect('tcp://' + sys.argv[1])
for number in range(200):
    text = bytes([number]) * 5000
    socket.send(text)
    assert socket.recv() == text
print('ok')
";
    both_ways(stack, server, client);
}

fn grpc(stack: Stack) {
    let server = "
import grpc, sys
from concurrent import futures
class Echo(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(lambda request, context: request)
server = grpc.server(futures.ThreadPoolExecutor(4))
server.add_generic_rpc_handlers((Echo(),))
assert server.add_insecure_port(sys.argv[1])
server.start()
server.wait_for_termination()
";
    let client = "
import grpc, sys
channel = grpc.insecure_channel(sys.argv[1])
grpc.channel_ready_future(channel).result(timeout=30)
call = channel.unary_unary('/test/echo')
for number in range(50):
    text = bytes([number]) * 5000
    assert call(text, timeout=30) == text
print('ok')
";
    both_ways(stack, server, client);
}

/// A guest whose network is QEMU's own (SLIRP): its boot firmware fetches a file over HTTP, which QEMU does
/// by sockets of the stack.
fn qemu(stack: Stack) {
    let net = Net::new(stack);
    net.scratch.file("boot.ipxe", "#!ipxe\nimgfetch http://198.18.0.1:8000/big\npoweroff\n");
    let mut files = file_server(&net);
    let network = "user,id=n,hostfwd=tcp:0.0.0.0:9040-:80,bootfile=http://198.18.0.1:8000/boot.ipxe";
    let machine = ["-m", "64", "-display", "none", "-serial", "none", "-monitor", "none", "-boot", "n"];
    let device = ["-netdev", network, "-device", "virtio-net-pci,netdev=n"];
    let mut guest = net.serve("qemu-system-x86_64", &[&machine[..], &device].concat());
    net.listens(&mut guest, 9040);
    files.says("GET /big", 120);
    assert!(guest.runs() || guest.end(20).success(), "{}", guest.report());
}
