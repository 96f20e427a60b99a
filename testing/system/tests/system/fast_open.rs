//! Does text travel on the SYN between a program on the stack and one on the kernel, both ways? RFC 7413.

use atoll_system_tests::{Net, Proc, Stack, until};

use crate::servers::{fetch, nginx_that_listens};

on_both_stacks![nginx_takes_requests_on_the_syn, curl_sends_its_request_on_the_syn];

/// Returns a counter of the kernel's TCP at the client's end.
fn kernel_counter(net: &Net, name: &str) -> u64 {
    let text = net.client("cat", &["/proc/net/netstat"]).success(10);
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt: "));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let found = names.split(' ').zip(values.split(' ')).find(|(known, _)| *known == name);
    found.and_then(|(_, value)| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in {text}"))
}

/// Returns the kernel's counter of this name where the kernel serves, and otherwise the corresponding counter
/// of all replicas.
fn opened(net: &Net, of_kernel: &str) -> u64 {
    if net.stack == Stack::Kernel {
        return kernel_counter(net, of_kernel);
    }
    let status = net.atoll_says("status");
    let replicas = status["replicas"].as_array().expect("status lists the replicas").clone();
    replicas.iter().map(|replica| replica["stats"]["fast_opens"].as_u64().unwrap_or_default()).sum()
}

/// nginx runs on the stack, curl on the kernel.
fn nginx_takes_requests_on_the_syn(stack: Stack) {
    let net = Net::fast_open(stack);
    let mut server = nginx_that_listens(&net, "fastopen=16");
    net.listens(&mut server, 80);
    let url = format!("http://{}/small", Net::SERVER);
    for _ in 0..5 {
        let said = net.client("curl", &["-sS", "--tcp-fastopen", "--max-time", "10", &url]).success(15);
        assert_eq!(said, "tiny");
    }
    // The first connection gets the cookie.
    assert_eq!(kernel_counter(&net, "TCPFastOpenActive"), 4);
    until("the stack to count them", 10, || (opened(&net, "TCPFastOpenActive") == 4).then_some(()));
    // Clients without TCP Fast Open are served, too.
    assert_eq!(fetch(&net, 80, "/small"), b"tiny");
}

/// curl runs on the stack, nginx on the kernel at the other end.
fn curl_sends_its_request_on_the_syn(stack: Stack) {
    let net = Net::fast_open(stack);
    let folder = net.scratch.path().to_string_lossy().into_owned();
    net.scratch.file("page", "from the kernel");
    let config = net.scratch.file(
        "client.conf",
        format!(
            "daemon off; worker_processes 1; pid {folder}/client.pid; error_log stderr; user root; events \
             {{ }}
             http {{ access_log off; client_body_temp_path {folder}/cb; proxy_temp_path {folder}/cp;
                     fastcgi_temp_path {folder}/cf; uwsgi_temp_path {folder}/cu; scgi_temp_path {folder}/cs;
                     server {{ listen 8000 fastopen=16; root {folder}; }} }}"
        ),
    );
    let _server: Proc = net.client("/usr/sbin/nginx", &["-p", &folder, "-c", &config]);
    let count = 12;
    for _ in 0..count {
        let options = ["-sS", "--tcp-fastopen", "--retry-connrefused", "--retry", "5", "--max-time", "10"];
        let said = net.serve("curl", &[&options[..], &["http://198.18.0.1:8000/page"]].concat()).success(15);
        assert_eq!(said, "from the kernel");
    }
    // Each replica first asks for a cookie of its own.
    let passive = kernel_counter(&net, "TCPFastOpenPassive");
    assert!(passive >= count - 3, "{passive}");
    if stack == Stack::Atoll {
        until("the stack to count them", 10, || (opened(&net, "") == passive).then_some(()));
    }
}
