//! Do large streams arrive as they were sent, in both directions, also over a bad wire?

use std::fs::File;
use std::io::Write;
use std::process::Command;

use atoll_system_tests::{Impairments, Net, Proc, Stack, program, soak};

use crate::servers::start_nginx;

on_both_stacks![
    download_from_nginx,
    upload_to_nginx,
    both_ways_through_nc,
    download_over_a_bad_wire,
    both_ways_through_nc_over_a_bad_wire,
    both_ways_at_once,
    both_ways_at_once_over_a_bad_wire,
    congestion_is_told_by_marks,
    download_through_a_black_hole,
];

/// Returns the amount to send, in MiB.
fn amount() -> u32 {
    if soak() { 1024 } else { 64 }
}

/// Returns the amount to send over the bad wire, in MiB. It is less, because losses decide how long the
/// transfer takes.
fn amount_over_a_bad_wire() -> u32 {
    if soak() { 1024 } else { 16 }
}

const DEADLINE: u64 = 120;

fn deadline() -> u64 {
    if soak() { 3600 } else { DEADLINE }
}

/// Creates a file of this many MiB without repetition.
fn large_file(net: &Net, name: &str, mebibytes: u32, seed: u64) -> String {
    let path = net.scratch.path().join(name);
    let mut file = std::io::BufWriter::new(File::create(&path).expect("the temporary folder is writable"));
    let mut rng = atoll_base::Rng::new(seed);
    for _ in 0..u64::from(mebibytes) * 131_072 {
        file.write_all(&rng.next_u64().to_le_bytes()).expect("the temporary folder has room");
    }
    path.to_string_lossy().into_owned()
}

fn sha256(path: &str) -> String {
    let output = Command::new("sha256sum").arg(path).output().expect("coreutils are installed");
    assert!(output.status.success(), "sha256sum {path}");
    String::from_utf8_lossy(&output.stdout).split_whitespace().next().unwrap_or_default().into()
}

fn download(net: &Net, mebibytes: u32) {
    let mut server = start_nginx(net);
    let original = large_file(net, "large", mebibytes, 1);
    net.listens(&mut server, 80);
    let copy = net.scratch.path().join("copy").to_string_lossy().into_owned();
    let limit = deadline().to_string();
    let url = format!("http://{}/large", Net::SERVER);
    net.client("curl", &["-sS", "--fail", "--max-time", &limit, "-o", &copy, &url]).success(deadline() + 5);
    assert_eq!(sha256(&copy), sha256(&original));
}

fn download_from_nginx(stack: Stack) {
    download(&Net::new(stack), amount());
}

fn download_over_a_bad_wire(stack: Stack) {
    download(&Net::impaired(stack, Impairments::USUAL), amount_over_a_bad_wire());
}

/// The client's kernel asks for ECN. It counts packets that arrived marked, and its own packets whose marks
/// the other end reports.
fn congestion_is_told_by_marks(stack: Stack) {
    let net = Net::impaired(stack, Impairments::MARKS);
    net.client("sysctl", &["-q", "-w", "net.ipv4.tcp_ecn=1"]).success(10);
    let counted = |counter: &str| -> u64 {
        let said = net.client("nstat", &["-asz", counter]).success(10);
        let line = said.lines().find(|line| line.starts_with(counter)).unwrap_or_else(|| panic!("{said}"));
        line.split_whitespace()
            .nth(1)
            .and_then(|count| count.parse().ok())
            .unwrap_or_else(|| panic!("{line}"))
    };
    download(&net, amount_over_a_bad_wire());
    assert!(counted("IpExtInCEPkts") > 10, "the stack's text is marked");
    through_nc(&net, amount_over_a_bad_wire());
    assert!(counted("TcpExtTCPDeliveredCE") > 10, "the stack tells of marks");
}

/// Of nginx's modules only `dav` stores uploads, and not every build has it. So the upload passes through
/// nginx as a proxy to a server on the same stack.
fn upload_to_nginx(stack: Stack) {
    let net = Net::new(stack);
    let folder = net.scratch.path().to_string_lossy().into_owned();
    let original = large_file(&net, "large", amount(), 2);
    let mut behind = net.serve("/usr/bin/python3", &[&program("store_server.py"), "8000"]);
    net.listens(&mut behind, 8000);
    let config = net.scratch.file(
        "proxy.conf",
        format!(
            "daemon off; pid {folder}/nginx.pid; error_log stderr warn; user root; events {{ }}
             http {{ access_log off; client_max_body_size 0; client_body_temp_path {folder}/b; \
             proxy_temp_path {folder}/p;
                     fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
                     server {{ listen 80; location / {{ proxy_pass http://{}:8000; proxy_request_buffering \
                     off; }} }} }}",
            Net::SERVER
        ),
    );
    let mut nginx = net.serve("nginx", &["-p", &folder, "-c", &config]);
    net.listens(&mut nginx, 80);
    let (limit, url) = (deadline().to_string(), format!("http://{}/", Net::SERVER));
    let answer = net.client("curl", &["-sS", "--fail", "--max-time", &limit, "-T", &original, &url]);
    assert_eq!(answer.success(deadline() + 5), sha256(&original));
}

/// Runs `nc` at both ends, one way and then the other. Its listener ends with its peer's stream, whatever it
/// has left to send.
fn through_nc(net: &Net, mebibytes: u32) {
    let original = large_file(net, "original", mebibytes, 3);
    let copy = net.scratch.path().join("copy").to_string_lossy().into_owned();
    let client_address = format!("{} 7000", Net::SERVER);
    // With `-N` the end of the input ends the stream in that direction.
    let ways = [("-N -l 7000", client_address.as_str()), ("-l 7000", &format!("-N {client_address}"))];
    for (server_options, client_options) in ways {
        let script = |options: &str| {
            let (from, to) =
                if options.starts_with("-N") { (&*original, "/dev/null") } else { ("/dev/null", &*copy) };
            format!("exec nc.openbsd {options} <{from} >{to}")
        };
        let mut server = net.serve("sh", &["-c", &script(server_options)]);
        let end = std::time::Instant::now() + std::time::Duration::from_secs(deadline());
        // Connections are refused until the server listens.
        atoll_system_tests::until("nc to connect", 20 + deadline(), || {
            let refused = !net.client("sh", &["-c", &script(client_options)]).end(deadline()).success();
            assert!(!refused || (server.runs() && std::time::Instant::now() < end), "{}", server.report());
            (!refused).then_some(())
        });
        assert!(server.end(20).success(), "{}", server.report());
        assert_eq!(sha256(&copy), sha256(&original), "{server_options}");
        std::fs::remove_file(&copy).expect("it has just been read");
    }
}

/// Both directions transfer at once, over one connection.
fn exchange(net: &Net, mebibytes: u32) {
    let (down, up) = (large_file(net, "down", mebibytes, 4), large_file(net, "up", mebibytes, 5));
    let mut server = net.serve("/usr/bin/python3", &[&program("exchange.py"), "serve", "7001", &down]);
    server.says("listening", 20);
    let arguments = [&*program("exchange.py"), Net::SERVER, "7001", &up];
    let heard = net.client("/usr/bin/python3", &arguments).success(deadline());
    assert_eq!(heard.trim_end(), sha256(&down));
    server.says(&sha256(&up), 20);
}

fn both_ways_through_nc(stack: Stack) {
    through_nc(&Net::new(stack), amount());
}

fn both_ways_through_nc_over_a_bad_wire(stack: Stack) {
    through_nc(&Net::impaired(stack, Impairments::USUAL), amount_over_a_bad_wire());
}

fn both_ways_at_once(stack: Stack) {
    exchange(&Net::new(stack), amount());
}

fn both_ways_at_once_over_a_bad_wire(stack: Stack) {
    exchange(&Net::impaired(stack, Impairments::USUAL), amount_over_a_bad_wire());
}

/// The streams are affected by the relay's impairments, so the relay does impair frames.
#[test]
fn the_bad_wire_is_bad() {
    let net = Net::impaired(Stack::Kernel, Impairments { drop: 200_000, ..Impairments::USUAL });
    let mut ping = net.on_client("ping");
    ping.args(["-q", "-c", "100", "-i", "0.01", "-W", "1", Net::SERVER]);
    let mut ping = Proc::start(&mut ping, None);
    ping.end(30);
    let lost = ping.output();
    assert!(!lost.contains(" 0% packet loss") && !lost.contains("100% packet loss"), "{lost}");
}

/// No packet above 1300 octets passes, and no ICMP reports that (RFC 4821). The kernel, too, finds out only
/// if it is configured to probe.
fn download_through_a_black_hole(stack: Stack) {
    let net = Net::with_black_hole(stack, 1300);
    download(&net, 4);
    if stack == Stack::Atoll {
        let status = net.atoll_says("status");
        let replicas = status["replicas"].as_array().expect("a list");
        let found: u64 =
            replicas.iter().filter_map(|replica| replica["stats"]["mtu_black_holes"].as_u64()).sum();
        assert!(found > 0, "{status}");
    }
}
