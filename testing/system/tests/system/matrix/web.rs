//! Servers of the Web that stand before others: Squid, Varnish, nginx before PHP, Caddy; and busybox, which
//! is static.

use atoll_system_tests::{Net, Proc, Stack, until};

use super::{folder_of, installed, path, unpacked};
use crate::servers::{fetch, megabyte};

on_both_stacks![squid, php_fpm];
soak_on_both_stacks![varnish, caddy, busybox];

/// A server of files at the client's end.
fn origin(net: &Net) -> Proc {
    net.scratch.file("big", megabyte());
    net.scratch.file("small", "tiny");
    let folder = net.scratch.path().to_string_lossy().into_owned();
    let arguments = ["-u", "-m", "http.server", "8000", "--bind", "198.18.0.1", "--directory", &folder];
    let mut server = net.client("/usr/bin/python3", &arguments);
    server.says("Serving HTTP", 10);
    server
}

/// It becomes `proxy` after it has bound; its children look up names and keep its log.
/// http://www.squid-cache.org/Doc/config/
fn squid(stack: Stack) {
    let net = Net::configured(stack, "[users]\nallow = [\"proxy\"]\n");
    let _origin = origin(&net);
    let folder = folder_of(&net, "squid", "proxy");
    let config = net.scratch.file(
        "squid.conf",
        format!(
            "http_port 3128\nhttp_access allow all\npid_filename none\ncache_log {folder}/log\n\
             access_log none\ncoredump_dir {folder}\ncache_mem 16 MB\nvisible_hostname atoll.test\n\
             shutdown_lifetime 1 seconds\npinger_enable off\n"
        ),
    );
    let mut server = net.serve(&installed("squid"), &["-N", "-f", &config]);
    net.listens(&mut server, 3128);
    let proxy = format!("http://{}:3128", Net::SERVER);
    for (turn, name) in ["big", "small", "small", "big"].into_iter().enumerate() {
        let target = path(&net, &format!("fetched-{turn}"));
        let url = format!("http://198.18.0.1:8000/{name}");
        let curl = ["-sS", "--fail", "--max-time", "40", "-x", &proxy, "-o", &target, &url];
        net.client("curl", &curl).success(60);
        let expected = if name == "big" { megabyte() } else { b"tiny".to_vec() };
        assert!(std::fs::read(&target).is_ok_and(|got| got == expected), "{name}: {}", server.report());
    }
    // A tunnel, as for HTTPS.
    let url = "http://198.18.0.1:8000/small";
    let tunnel = ["-sS", "--fail", "--max-time", "40", "-p", "-x", &proxy, url];
    std::fs::write(path(&net, "squid.conf"), "").expect("it is ours");
    let _ = net.client("curl", &tunnel).end(60);
    assert!(server.runs() && !server.errors().contains("libatoll"), "{}", server.report());
}

/// A manager and a child of many threads, which listens on sockets that the manager has opened.
/// https://varnish-cache.org/docs/7.1/
fn varnish(stack: Stack) {
    let net = Net::configured(stack, "[users]\nallow = [\"vcache\", \"varnish\"]\n");
    let _origin = origin(&net);
    let folder = folder_of(&net, "varnish", "root");
    let arguments = ["-F", "-a", ":80", "-b", "198.18.0.1:8000", "-n", &folder, "-s", "malloc,16m"];
    let mut server = net.serve(&installed("varnishd"), &[&arguments[..], &["-T", "127.0.0.1:6082"]].concat());
    net.listens(&mut server, 80);
    for name in ["/big", "/small", "/big"] {
        let expected = if name == "/big" { megabyte() } else { b"tiny".to_vec() };
        let got = until("the cache to serve", 20, || {
            let target = path(&net, "fetched");
            let url = format!("http://{}{name}", Net::SERVER);
            let mut curl = net.client("curl", &["-sS", "--fail", "--max-time", "20", "-o", &target, &url]);
            curl.end(25).success().then(|| std::fs::read(&target).expect("curl has written it"))
        });
        assert!(got == expected, "{name}: {}", server.report());
    }
    let mut ab = net.on_client("ab");
    ab.args(["-q", "-s", "10", "-n", "500", "-c", "8", "-k", &format!("http://{}/small", Net::SERVER)]);
    let report = Proc::start(&mut ab, None).success(60);
    assert!(report.contains("Failed requests:        0"), "{report}\n{}", server.report());
    assert!(server.runs() && !server.errors().contains("libatoll"), "{}", server.report());
}

/// nginx asks PHP over a connection of the stack's loopback for each request.
/// https://www.php.net/manual/install.fpm.configuration.php
fn php_fpm(stack: Stack) {
    let net = Net::new(stack);
    let folder = net.scratch.path().to_string_lossy().into_owned();
    net.scratch.file(
        "sum.php",
        "<?php\necho array_sum(range(1, (int)$_GET['to'])), ' ', strlen(file_get_contents('php://input'));\n",
    );
    let php = net.scratch.file(
        "fpm.conf",
        "[global]\nerror_log = /dev/stderr\ndaemonize = no\n[www]\nuser = www-data\ngroup = www-data\n\
         listen = 127.0.0.1:9000\npm = static\npm.max_children = 3\npm.max_requests = 20\n",
    );
    let version = std::fs::read_dir("/usr/sbin").expect("a folder of the system").flatten();
    let mut names = version.filter_map(|entry| entry.file_name().into_string().ok());
    let fpm = names.find(|name| name.starts_with("php-fpm")).unwrap_or_else(|| "php-fpm".into());
    let mut fpm = net.serve(&installed(&fpm), &["-F", "-y", &php]);
    fpm.says("ready to handle connections", 20);
    let config = net.scratch.file(
        "nginx.conf",
        format!(
            "daemon off; pid {folder}/nginx.pid; error_log stderr warn; user root; events {{ }}\n\
             http {{ access_log off; client_body_temp_path {folder}/b; fastcgi_temp_path {folder}/f;\n\
             proxy_temp_path {folder}/p; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;\n\
             client_max_body_size 0; server {{ listen 80; location / {{ fastcgi_pass 127.0.0.1:9000;\n\
             fastcgi_param SCRIPT_FILENAME {folder}/sum.php; fastcgi_param QUERY_STRING $query_string;\n\
             fastcgi_param REQUEST_METHOD $request_method; fastcgi_param CONTENT_TYPE $content_type;\n\
             fastcgi_param CONTENT_LENGTH $content_length; }} }} }}\n"
        ),
    );
    let mut nginx = net.serve("/usr/sbin/nginx", &["-p", &folder, "-c", &config]);
    net.listens(&mut nginx, 80);
    for to in 1..5 {
        let got = fetch(&net, 80, &format!("/?to={to}"));
        assert_eq!(String::from_utf8_lossy(&got), format!("{} 0", to * (to + 1) / 2), "{}", fpm.report());
    }
    let source = net.scratch.file("big", megabyte());
    let body = format!("@{source}");
    let url = format!("http://{}/?to=3", Net::SERVER);
    let said =
        net.client("curl", &["-sS", "--fail", "--max-time", "40", "--data-binary", &body, &url]).success(60);
    assert_eq!(said, format!("6 {}", megabyte().len()), "{}", fpm.report());
    let mut ab = net.on_client("ab");
    ab.args(["-q", "-s", "10", "-n", "200", "-c", "8", &url]);
    let report = Proc::start(&mut ab, None).success(60);
    assert!(report.contains("Failed requests:        0"), "{report}\n{}", fpm.report());
    assert!(fpm.runs() && !fpm.errors().contains("libatoll"), "{}", fpm.report());
}

/// A program of Go without cgo, which serves files, and asks a server at the client's end.
/// https://caddyserver.com/docs/
fn caddy(stack: Stack) {
    let net = Net::new(stack);
    let _origin = origin(&net);
    let folder = net.scratch.path().to_string_lossy().into_owned();
    let config = net.scratch.file(
        "Caddyfile",
        format!(
            "{{\n admin off\n}}\n:80 {{\n root * {folder}\n file_server\n}}\n\
             :81 {{\n reverse_proxy 198.18.0.1:8000\n}}\n"
        ),
    );
    let mut server = net.on_stack(&installed("caddy"));
    server.env("HOME", &folder).args(["run", "--config", &config, "--adapter", "caddyfile"]);
    let mut server = Proc::start(&mut server, None);
    for port in [80, 81] {
        net.listens(&mut server, port);
        assert!(fetch(&net, port, "/big") == megabyte(), "{}", server.report());
        let url = format!("http://{}:{port}/small", Net::SERVER);
        let said = net.client("ab", &["-q", "-s", "20", "-n", "300", "-c", "8", "-k", &url]).success(60);
        assert!(said.contains("Failed requests:        0"), "{said}\n{}", server.report());
    }
    assert!(server.runs() && !server.errors().contains("libatoll"), "{}", server.report());
}

/// A static program, which forks for each connection, as server and as client.
fn busybox(stack: Stack) {
    let net = Net::new(stack);
    let _origin = origin(&net);
    let busybox = unpacked("busybox-static").join("bin/busybox").to_string_lossy().into_owned();
    let folder = net.scratch.path().to_string_lossy().into_owned();
    let mut server = net.serve(&busybox, &["httpd", "-f", "-p", "80", "-h", &folder]);
    net.listens(&mut server, 80);
    assert!(fetch(&net, 80, "/big") == megabyte(), "{}", server.report());
    let url = format!("http://{}/small", Net::SERVER);
    let said = net.client("ab", &["-q", "-s", "20", "-n", "100", "-c", "8", &url]).success(60);
    assert!(said.contains("Failed requests:        0"), "{said}\n{}", server.report());
    let target = path(&net, "by-wget");
    net.serve(&busybox, &["wget", "-q", "-O", &target, "http://198.18.0.1:8000/big"]).success(60);
    assert!(std::fs::read(&target).is_ok_and(|got| got == megabyte()), "busybox wget");
    assert!(server.runs() && !server.errors().contains("libatoll"), "{}", server.report());
}
