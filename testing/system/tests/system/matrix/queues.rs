//! Servers of messages: Mosquitto.

use atoll_system_tests::{Net, Stack, until};

use super::installed;

on_both_stacks![mosquitto];

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
