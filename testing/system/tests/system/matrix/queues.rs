//! Servers of messages and of what a cluster agrees on: Mosquitto, RabbitMQ, etcd.

use std::process::Command;

use atoll_system_tests::{Net, Proc, Stack, until};

use super::{folder_of, installed};

on_both_stacks![mosquitto];
soak_on_both_stacks![rabbitmq, etcd];

/// It waits in epoll_wait(2). Subscribers are told what others publish; one of each is on the stack itself.
/// https://mosquitto.org/man/mosquitto-conf-5.html
fn mosquitto(stack: Stack) {
    let net = Net::configured(stack, "[users]\nallow = [\"mosquitto\"]\n");
    let config = net.scratch.file(
        "mosquitto.conf",
        "listener 1883 0.0.0.0\nallow_anonymous true\npersistence false\nuser mosquitto\nlog_dest stderr\n\
         log_type all\n",
    );
    let mut server = net.serve(&installed("mosquitto"), &["-c", &config]);
    net.listens(&mut server, 1883);
    let common = ["-h", Net::SERVER, "-q", "1", "-t", "here"];
    let arguments = [&common[..], &["-C", "20"]].concat();
    let subscribers = [net.client("mosquitto_sub", &arguments), net.serve("mosquitto_sub", &arguments)];
    until("both subscribers to be there", 20, || {
        (server.errors().matches("Sending SUBACK").count() == 2).then_some(())
    });
    for number in 0..20 {
        let message = [&common[..], &["-m"]].concat();
        let text = format!("message {number}");
        let words = [&message[..], &[&text]].concat();
        let publisher = if number % 2 == 0 {
            net.client("mosquitto_pub", &words)
        } else {
            net.serve("mosquitto_pub", &words)
        };
        publisher.success(20);
    }
    for mut subscriber in subscribers {
        assert!(subscriber.end(20).success(), "{}", subscriber.report());
        let said = subscriber.output();
        let got: Vec<&str> = said.lines().filter(|line| line.starts_with("message ")).collect();
        let sent: Vec<String> = (0..20).map(|number| format!("message {number}")).collect();
        assert_eq!(got, sent);
    }
    assert!(server.runs() && !server.errors().contains("libatoll"), "{}", server.report());
}

/// Erlang's schedulers wait in epoll_wait(2); a daemon on the loopback knows the node's port. Messages go
/// through a queue that lasts. https://www.rabbitmq.com/docs/3.13/configure
fn rabbitmq(stack: Stack) {
    let net = Net::new(stack);
    let own = folder_of(&net, "rabbit", "root");
    let config = net.scratch.file(
        "rabbit/rabbitmq.conf",
        "listeners.tcp.default = 0.0.0.0:5672\nloopback_users = none\nlog.console = true\n",
    );
    let plugins = net.scratch.file("rabbit/plugins", "[].\n");
    let _names = net.serve("epmd", &[]);
    let environment = |command: &mut Command| {
        command.env("HOME", &own).env("RABBITMQ_NODENAME", "rabbit@localhost");
        command.env("RABBITMQ_MNESIA_BASE", &own).env("RABBITMQ_LOG_BASE", &own);
        command.env("RABBITMQ_CONFIG_FILE", &config).env("RABBITMQ_ENABLED_PLUGINS_FILE", &plugins);
        command.env("RABBITMQ_CONF_ENV_FILE", "/dev/null").env("RABBITMQ_LOGS", "-");
        command.env("LC_ALL", "C.UTF-8");
    };
    let mut server = net.on_stack("/usr/lib/rabbitmq/bin/rabbitmq-server");
    environment(&mut server);
    let mut server = Proc::start(&mut server, None);
    server.says("Server startup complete", 120);
    net.listens(&mut server, 5672);
    let talk = "import amqp, sys
with amqp.Connection(sys.argv[1] + ':5672', connect_timeout=30) as connection:
    channel = connection.channel()
    channel.queue_declare(sys.argv[2], durable=True, auto_delete=False)
    for number in range(200):
        channel.basic_publish(amqp.Message(b'%d ' % number * 2000), routing_key=sys.argv[2])
    got = []
    channel.basic_consume(sys.argv[2], callback=got.append, no_ack=True)
    while len(got) < 200:
        connection.drain_events(timeout=30)
    print([message.body for message in got] == [b'%d ' % number * 2000 for number in range(200)])";
    let there = net.client("/usr/bin/python3", &["-c", talk, Net::SERVER, "there"]);
    let here = net.serve("/usr/bin/python3", &["-c", talk, "127.0.0.1", "here"]);
    assert_eq!([there, here].map(|client| client.success(90)), ["True\n"; 2], "{}", server.report());
    let mut ask = net.on_stack("/usr/lib/rabbitmq/bin/rabbitmqctl");
    environment(&mut ask);
    let said = Proc::start(ask.args(["list_queues", "-q"]), None).success(90);
    assert!(said.contains("there\t0") && said.contains("here\t0"), "{said}");
    assert!(server.runs() && !server.errors().contains("libatoll"), "{}", server.report());
}

/// Three members, which are Go programs without cgo: they agree over the stack's loopback, and go on when
/// one of them is killed. https://etcd.io/docs/v3.4/
fn etcd(stack: Stack) {
    let net = Net::new(stack);
    let peer = |number: usize| format!("http://127.0.0.1:{}", 2380 + number);
    let all = (0..3).map(|number| format!("m{number}={}", peer(number))).collect::<Vec<_>>().join(",");
    let mut members: Vec<Proc> = (0..3)
        .map(|number| {
            let client = format!("http://{}:{}", Net::SERVER, 2370 + number);
            let mut member = net.on_stack(&installed("etcd"));
            member.args(["--name", &format!("m{number}"), "--initial-cluster", &all]);
            member.args(["--data-dir", &folder_of(&net, &format!("m{number}"), "root")]);
            member.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
            member.args([
                "--listen-peer-urls",
                &peer(number),
                "--initial-advertise-peer-urls",
                &peer(number),
            ]);
            Proc::start(member.arg("--unsafe-no-fsync"), None)
        })
        .collect();
    for (number, member) in members.iter_mut().enumerate() {
        member.says("ready to serve client requests", 90);
        net.listens(member, 2370 + number as u16);
    }
    let ask = |member: usize, what: &str, json: &str| {
        let url = format!("http://{}:{}/v3/kv/{what}", Net::SERVER, 2370 + member);
        let mut curl = net.client("curl", &["-sS", "--fail", "--max-time", "20", &url, "-d", json]);
        curl.end(30).success().then(|| curl.output())
    };
    // The API takes keys and values in base64.
    let pairs = ["YQ==", "Yg==", "Yw=="];
    for (member, pair) in pairs.into_iter().enumerate() {
        let put = format!("{{\"key\":\"{pair}\",\"value\":\"{pair}\"}}");
        until("a member to take a value", 60, || ask(member, "put", &put));
    }
    members[0].kill();
    for pair in pairs {
        let said = until("a member to answer", 60, || ask(2, "range", &format!("{{\"key\":\"{pair}\"}}")));
        assert!(said.contains(&format!("\"value\":\"{pair}\"")), "{said}");
    }
    for member in &mut members[1..] {
        assert!(member.runs() && !member.errors().contains("libatoll"), "{}", member.report());
    }
}
