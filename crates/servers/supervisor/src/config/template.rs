//! The output of `atoll config`: every key with its value and a comment.

use std::fmt::Write;

use super::ConfigFile;

// structure: commented: a line for each setting, in the order of the file
/// Returns the values of `file` as commented TOML. Keys without a value appear as a comment with an example.
pub(super) fn commented(file: &ConfigFile) -> String {
    let mut out = Out(String::new());
    out.text("The configuration of an Atoll stack. All keys may be left out; the values here are used then.");
    out.text("Start it with `atoll up --config FILE`.");
    out.blank();
    out.text(
        "Its name, by which other commands find it. The one called \"default\" is found without a name.",
    );
    out.key("name", Some(quoted(&file.name)), "");
    out.text(
        "Its servers: TSnLSnCMn is n replicas (1 to 8), each of one transport server, link server and \
         connection",
    );
    out.text(
        "manager in one process. `replicas = n` says the same. TSnCMnLSm: only m of them have a link server, \
         which serves",
    );
    out.text("the others, too; TSnCMn+LSm: m link servers in processes of their own. So it is with CM.");
    let default = file.replicas.is_none().then(|| quoted("TS1LS1CM1"));
    let configuration = file.configuration.as_deref().map(quoted).or(default);
    out.key("configuration", configuration, "\"TS1LS1CM1\"");
    out.key("replicas", file.replicas.map(|n| n.to_string()), "1");

    let link = &file.link;
    out.section("link");
    out.text(
        "What joins it to the world: \"tap\" (a device of the kernel), \"shm\" (shared memory with another \
         stack) or",
    );
    out.text("\"none\" (programs on the stack reach each other only; needs no privilege).");
    out.key("type", Some(quoted(&link.kind.to_string())), "");
    out.text("tap: name of the device; %d is the first free number.");
    out.key("device", Some(quoted(&link.device)), "");
    out.text(
        "tap: the network namespace (as in `ip netns add NAME`) in which the device is made, so that the \
         kernel's end",
    );
    out.text("of the link is there. Otherwise it is made where `atoll up` runs.");
    out.key("netns", link.netns.as_deref().map(quoted), "\"client\"");
    out.text(
        "Own address, with the prefix of its network. tap: \"dhcp\" asks a DHCP server on the link for it.",
    );
    out.key("address", Some(quoted(&link.address)), "");
    out.text(
        "For how many seconds `atoll up` waits for a DHCP server; then the stack goes on asking in the \
         background.",
    );
    out.key("dhcp_wait_s", Some(link.dhcp_wait_s.to_string()), "");
    out.text(
        "tap: the address for the kernel's end of the device, which is then switched on; \"none\" leaves all \
         of it to you.",
    );
    out.key("peer_address", Some(quoted(&link.peer_address)), "");
    out.text("Who knows the way to other networks.");
    out.key("gateway", link.gateway.as_deref().map(quoted), "\"198.18.0.1\"");
    out.text("IPv6 on the link. A stack makes itself a link-local address; ::1 is there in any case.");
    out.key("ipv6", Some(link.ipv6.to_string()), "");
    out.text("Own IPv6 address, with the prefix of its network.");
    out.key("address6", link.address6.as_deref().map(quoted), "\"2001:db8::2/64\"");
    out.text("tap: an IPv6 address for the kernel's end of the device, besides its link-local one.");
    out.key("peer_address6", link.peer_address6.as_deref().map(quoted), "\"2001:db8::1/64\"");
    out.text("Who knows the way to other IPv6 networks, before the routers that advertise themselves.");
    out.key("gateway6", link.gateway6.as_deref().map(quoted), "\"2001:db8::1\"");
    out.text("Take IPv6 addresses, routers and MTU from router advertisements.");
    out.key("autoconf", Some(link.autoconf.to_string()), "");
    out.text("Largest packet in bytes, 576 to 65521; below 1280 there is no IPv6.");
    out.key("mtu", Some(link.mtu.to_string()), "");
    out.text("Own hardware address. Otherwise a random one.");
    out.key("mac", link.mac.as_deref().map(quoted), "\"02:00:00:00:00:02\"");
    out.text("tap: leave segmentation to the kernel and take unsegmented data from it.");
    out.key("offload", Some(link.offload.to_string()), "");
    out.text(
        "shm: the name of the stack at the other end, whose link names this one. Either may start first.",
    );
    out.key("peer", link.peer.as_deref().map(quoted), "\"other\"");

    out.section("steering");
    out.text(
        "Who sorts incoming frames by replica: \"bpf\" (a program in the kernel), \"software\" (the replicas \
         pass them on),",
    );
    out.text("or \"auto\": bpf where it is permitted.");
    out.key("by", Some(quoted(steering(file))), "");

    out.section("wait");
    out.text(
        "How long replicas and programs look for work at most before they sleep, in microseconds. They do \
         only if it tends",
    );
    out.text("to come so soon, conversations are few, and nobody else wants the processor. 0: never.");
    out.key("spin_us", Some(file.wait.spin_us.to_string()), "");

    out.section("accept");
    out.text(
        "How programs come to connections: \"speculative\" (they are offered to those who accept some), or \
         \"naive\" (each accept asks",
    );
    out.text("for one by a message and waits for the answer; slower, and there to be measured against).");
    out.key("handshake", Some(quoted(handshake(file))), "");
    out.text(
        "How long a process may take to accept a connection offered to it before another one gets it, in \
         microseconds.",
    );
    out.key("claim_timeout_us", Some(file.accept.claim_timeout_us.to_string()), "");
    let accept = &file.accept;
    let rules = accept.rules();
    out.text(
        "Which of several processes gets a connection, by how long each takes: \"tournament\" (the best of \
         the replica against",
    );
    out.text(
        "the best that others offer), \"filtered\" (one draw among the replica's and the offers that are \
         better), \"unfiltered\" (and",
    );
    out.text(
        "all offers), or \"naive\" (the replica's in turn). `atoll balance` changes this and what follows \
         while the stack is up.",
    );
    out.key("scheme", Some(quoted(&accept.scheme.to_string())), "");
    out.text("By how much what another replica offers counts as slower than it is.");
    out.key("tariff", Some(accept.tariff.to_string()), "");
    out.text("How long a process takes: \"median\" or \"average\" of its last connections;");
    out.key("estimate", Some(quoted(&accept.estimate.to_string())), "");
    out.text("of so many (128 for the median, 256 for the average),");
    out.key("window", accept.window.map(|n| n.to_string()), &rules.window.to_string());
    out.text("anew after so many microseconds (500 and 1000).");
    out.key("sample_us", accept.sample_us.map(|n| n.to_string()), &rules.sample_us.to_string());
    out.text("Microseconds between two offers.");
    out.key("offer_us", Some(accept.offer_us.to_string()), "");
    out.text(
        "tournament: an offer counts when what the replica has takes more than the first percentage of what \
         is offered, after",
    );
    out.text("tariff, until it takes less than the second.");
    out.key("watermarks", Some(format!("{:?}", accept.watermarks)), "");

    out.section("tcp");
    out.text(
        "Explicit congestion notification: \"accept\" it if the peer asks, \"request\" it as well (RFC \
         3168), \"accurate\": request",
    );
    out.text("the accurate kind (RFC 9768), or \"off\".");
    out.key("ecn", Some(quoted(ecn(file))), "");
    out.text(
        "Who does TCP Fast Open (text on the SYN): \"client\" (programs that ask for it when they connect), \
         \"server\"",
    );
    out.text("(listeners with TCP_FASTOPEN), \"both\" or \"none\".");
    out.key("fast_open", Some(quoted(fast_open(file))), "");

    out.section("ports");
    out.text("First and last port for connections that do not choose one.");
    out.key("ephemeral", Some(format!("{:?}", file.ports.ephemeral)), "");
    out.text(
        "The first port that everybody may have who is let in. Those below it are for programs with \
         CAP_NET_BIND_SERVICE, for root and for",
    );
    out.text("who runs the stack (Linux: net.ipv4.ip_unprivileged_port_start).");
    out.key("unprivileged_start", Some(file.ports.unprivileged_start.to_string()), "");
    out.text("Ports below that, and ranges of them, up to four for a user, who is given by name or number.");
    let users: Vec<String> =
        file.ports.users.iter().map(|(user, ports)| format!("{} = {ports:?}", quoted(user))).collect();
    let users = (!users.is_empty()).then(|| format!("{{ {} }}", users.join(", ")));
    out.key("users", users, "{ www-data = [\"80\", \"443\"], 1000 = [\"100-110\"] }");

    let sessions = &file.sessions;
    out.section("sessions");
    out.text(
        "How many processes with sockets of their own may be attached (those that inherited them do not \
         count).",
    );
    out.key("max", Some(sessions.max.to_string()), "");
    out.text("Sockets of one process and replica, a power of two.");
    out.key("sockets", Some(sessions.sockets.to_string()), "");
    out.text(
        "Most bytes of send and of receive buffers of one process and replica, as powers of two (30 is 1 \
         GiB).",
    );
    out.text("Only what is used takes memory.");
    out.key("send_log2", Some(sessions.send_log2.to_string()), "");
    out.key("receive_log2", Some(sessions.receive_log2.to_string()), "");

    out.section("memory");
    out.text(
        "How much memory the stack may take with all its connections, in bytes or with K, M or G. Without it \
         the limits of its cgroup",
    );
    out.text("and the machine's memory alone count, which hold besides in any case.");
    out.key("limit", file.memory.limit.as_deref().map(quoted), "\"512M\"");

    let scheduling = &file.scheduling;
    out.section("scheduling");
    out.text(
        "The processors of the replicas, in their order and from the start again: [0, 1]. Empty: the kernel \
         chooses.",
    );
    out.key("cpus", Some(format!("{:?}", scheduling.cpus)), "");
    out.text(
        "Let servers change to SCHED_BATCH while they have many conversations, so that work gathers, and to \
         SCHED_OTHER while they have few. If false, they keep the policy of the program that starts them.",
    );
    out.key("batch", Some(scheduling.batch.to_string()), "");

    let recovery = &file.recovery;
    out.section("recovery");
    out.text(
        "What becomes of connections when the process of a replica dies: its successor goes on with them \
         (\"stateful\"), or they",
    );
    out.text("are reset (\"stateless\"). Listeners stay in either case.");
    out.key("mode", Some(quoted(recovery_mode(file))), "");
    out.text(
        "A server that gives no sign of life for so many milliseconds, or is stopped (SIGSTOP) at all, is \
         killed and replaced. 0: never.",
    );
    out.key("hang_ms", Some(recovery.hang_ms.to_string()), "");
    out.text(
        "Keep a process that stands by, and goes on with the replicas of one that has died at once. It takes \
         some megabytes of memory, and",
    );
    out.text("a kilobyte more for each connection of the replica that has most of them, up to 64 MiB.");
    out.key("standby", Some(recovery.standby.to_string()), "");

    let scaling = &file.scaling;
    let number = |n: Option<u8>| n.map(|n| n.to_string());
    out.section("scaling");
    out.text(
        "In how many processes the replicas are at the start, from 1 (all in one) to as many as there are \
         replicas, which is usual.",
    );
    out.text("`atoll scale` changes it while connections are open.");
    out.key("start", number(scaling.start), "1");
    out.text(
        "Have as many as they need: more while they are busy, fewer while they are not, within these limits.",
    );
    out.key("auto", Some(scaling.auto.to_string()), "");
    out.key("min", number(scaling.min), "1");
    out.key("max", number(scaling.max), "4");

    out.section("users");
    out.text(
        "Users, and groups, whose programs may use the stack besides those of its own user and of root, by \
         name or number.",
    );
    out.text("Only a stack of root can have some; administration stays root's.");
    out.key("allow", Some(format!("{:?}", file.users.allow)), "");
    out.key("groups", Some(format!("{:?}", file.users.groups)), "");

    out.section("servers");
    out.text(
        "The user that servers run as, by name or number, where the stack is root's: one that nothing else \
         runs as. Absent: `atoll`, if there",
    );
    out.text("is such a user. \"root\": the stack's own, without capabilities.");
    out.key("user", file.servers.user.as_deref().map(quoted), "\"atoll\"");

    out.section("log");
    out.text(
        "The form of the log: \"text\" (lines for people), \"json\" (an object per line) or \
         \"journal\" (entries with fields in",
    );
    out.text("systemd's journal). docs/events.md lists the events.");
    out.key("format", Some(quoted(log_format(file))), "");
    out.text("The least grave events that are logged: \"error\", \"warn\", \"info\" or \"debug\".");
    out.key("level", Some(quoted(log_level(file))), "");
    out.0
}

fn steering(file: &ConfigFile) -> &'static str {
    match file.steering.by {
        super::Steering::Auto => "auto",
        super::Steering::Bpf => "bpf",
        super::Steering::Software => "software",
    }
}

fn log_format(file: &ConfigFile) -> &'static str {
    match file.log.format {
        super::LogFormat::Text => "text",
        super::LogFormat::Json => "json",
        super::LogFormat::Journal => "journal",
    }
}

fn log_level(file: &ConfigFile) -> &'static str {
    match file.log.level {
        super::LogLevel::Error => "error",
        super::LogLevel::Warn => "warn",
        super::LogLevel::Info => "info",
        super::LogLevel::Debug => "debug",
    }
}

fn handshake(file: &ConfigFile) -> &'static str {
    match file.accept.handshake {
        super::Handshake::Speculative => "speculative",
        super::Handshake::Naive => "naive",
    }
}

fn ecn(file: &ConfigFile) -> &'static str {
    match file.tcp.ecn {
        super::EcnMode::Off => "off",
        super::EcnMode::Request => "request",
        super::EcnMode::Accept => "accept",
        super::EcnMode::Accurate => "accurate",
    }
}

fn fast_open(file: &ConfigFile) -> &'static str {
    match file.tcp.fast_open {
        super::FastOpen::None => "none",
        super::FastOpen::Client => "client",
        super::FastOpen::Server => "server",
        super::FastOpen::Both => "both",
    }
}

fn recovery_mode(file: &ConfigFile) -> &'static str {
    match file.recovery.mode {
        super::RecoveryMode::Stateful => "stateful",
        super::RecoveryMode::Stateless => "stateless",
    }
}

fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

struct Out(String);

impl Out {
    fn text(&mut self, line: &str) {
        let _ = writeln!(self.0, "# {line}");
    }

    fn blank(&mut self) {
        self.0.push('\n');
    }

    fn section(&mut self, name: &str) {
        let _ = writeln!(self.0, "\n[{name}]");
    }

    fn key(&mut self, key: &str, value: Option<String>, example: &str) {
        let _ = match value {
            Some(value) => writeln!(self.0, "{key} = {value}"),
            None => writeln!(self.0, "# {key} = {example}"),
        };
    }
}
