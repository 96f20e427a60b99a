//! Servers of mail: Postfix, Dovecot. Exim is in `servers.rs`.

use std::os::unix::fs::PermissionsExt;

use atoll_system_tests::{Net, Proc, Stack};

use super::{folder_of, give, installed, path, unpacked};

soak_on_both_stacks![postfix, dovecot];

/// What postfix(1) calls a private folder of its queue.
const QUEUE: [&str; 11] = [
    "active", "bounce", "corrupt", "defer", "deferred", "flush", "hold", "incoming", "private", "saved",
    "trace",
];

/// The services of postfix(1): name, type, private, chroot, whether one process is enough, program.
const SERVICES: &str = "smtp inet n - n - - smtpd\npickup unix n - n 60 1 pickup\ncleanup unix n - n - 0 \
    cleanup\nqmgr unix n - n 300 1 qmgr\nrewrite unix - - n - - trivial-rewrite\nbounce unix - - n - 0 \
    bounce\ndefer unix - - n - 0 bounce\ntrace unix - - n - 0 bounce\nproxymap unix - - n - - proxymap\n\
    smtp unix - - n - - smtp\nrelay unix - - n - - smtp\nerror unix - - n - - error\nretry unix - - n - - \
    error\nanvil unix - - n - 1 anvil\nscache unix - - n - 1 scache\nshowq unix n - n - - showq\n\
    verify unix - - n - 1 verify\ntlsmgr unix - - n 1000? 1 tlsmgr\nflush unix n - n 1000? 0 flush\n";

/// A master executes a program for each service, with the listening socket at a fixed number and a cleared
/// environment; what comes in is sent on to a server at the client's end.
/// https://www.postfix.org/OVERVIEW.html
fn postfix(stack: Stack) {
    let net = Net::configured(stack, "[users]\nallow = [\"ftp\"]\n");
    let package = unpacked("postfix").to_string_lossy().into_owned();
    let etc = folder_of(&net, "etc", "root");
    let queue = folder_of(&net, "queue", "root");
    let data = folder_of(&net, "data", "ftp");
    folder_of(&net, "queue/pid", "root");
    QUEUE.iter().for_each(|name| drop(folder_of(&net, &format!("queue/{name}"), "ftp")));
    for (name, mode) in [("public", 0o710), ("maildrop", 0o730)] {
        let folder = folder_of(&net, &format!("queue/{name}"), "ftp:irc");
        std::fs::set_permissions(folder, PermissionsExt::from_mode(mode)).expect("it is ours");
    }
    net.scratch.file(
        "etc/main.cf",
        format!(
            "compatibility_level = 3.6\nqueue_directory = {queue}\ndata_directory = {data}\n\
             daemon_directory = {package}/usr/lib/postfix/sbin\ncommand_directory = {package}/usr/sbin\n\
             shlib_directory = {package}/usr/lib/postfix\nmeta_directory = {etc}\nmail_owner = ftp\n\
             setgid_group = irc\ndefault_privs = nobody\nimport_environment = MAIL_CONFIG LD_LIBRARY_PATH\n\
             inet_interfaces = all\ninet_protocols = ipv4\nmyhostname = mail.test\nmydestination =\n\
             local_recipient_maps =\nlocal_transport = error:none\nmynetworks = 0.0.0.0/0\n\
             smtpd_recipient_restrictions = permit_mynetworks, reject\nrelayhost = [198.18.0.1]:2525\n\
             smtpd_relay_restrictions = permit_mynetworks, reject\nmaillog_file = {queue}/log\n\
             maillog_file_prefixes = {queue}\ndisable_dns_lookups = yes\nsmtputf8_enable = no\n\
             smtpd_peername_lookup = no\nalias_maps =\nalias_database =\n"
        ),
    );
    net.scratch.file("etc/master.cf", SERVICES);
    let mut sink = net.client("/usr/bin/python3", &["-c", SINK, "198.18.0.1", "2525", "3"]);
    sink.says("ready", 20);
    let mut server = net.on_stack(&format!("{package}/usr/lib/postfix/sbin/master"));
    server.env("MAIL_CONFIG", &etc).env("LD_LIBRARY_PATH", format!("{package}/usr/lib/postfix")).arg("-d");
    let mut server = Proc::start(&mut server, None);
    net.listens(&mut server, 25);
    let talk = "import smtplib, sys
for turn in range(3):
    server = smtplib.SMTP(sys.argv[1], 25, timeout=30)
    text = b'Subject: x\\r\\n\\r\\n' + b'hello\\r\\n' * 20000
    server.sendmail('me@test.example', ['you@atoll.example'], text)
    print(server.quit()[0])";
    let log = || std::fs::read_to_string(path(&net, "queue/log")).unwrap_or_default();
    let mut client = net.client("/usr/bin/python3", &["-c", talk, Net::SERVER]);
    assert!(client.end(90).success(), "{}\n{}", client.report(), log());
    assert_eq!(client.output(), "221\n".repeat(3), "{}", log());
    assert!(sink.end(60).success(), "{}", log());
    assert_eq!(sink.output().matches("20000 lines").count(), 3, "{}", log());
    assert!(server.runs() && !(server.errors() + &log()).contains("libatoll"), "{}", log());
    give(std::path::Path::new(&queue), "root");
}

/// Takes so many messages, over one connection or several, and counts the lines of each.
const SINK: &str = "import socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
print('ready', flush=True)
left = int(sys.argv[3])
while left:
    file = listener.accept()[0].makefile('rwb')
    def say(text):
        file.write(text + b'\\r\\n'); file.flush()
    say(b'220 sink')
    inside, lines = False, 0
    for line in file:
        if inside:
            lines += line == b'hello\\r\\n'
            if line == b'.\\r\\n':
                print(lines, 'lines', flush=True)
                inside, lines, left = False, 0, left - 1
                say(b'250 ok')
        elif line.upper().startswith(b'DATA'):
            inside = True
            say(b'354 go')
        elif line.upper().startswith(b'QUIT'):
            say(b'221 bye'); break
        else:
            say(b'250 ok')";

/// A process in a chroot logs users in and hands their connections to another process over a unix socket; all
/// of them have limits of address space, and were executed with a cleared environment.
/// https://doc.dovecot.org/2.3/
fn dovecot(stack: Stack) {
    let net = Net::configured(stack, "[users]\nallow = [\"dovenull\"]\n");
    let own = folder_of(&net, "own", "root");
    let home = folder_of(&net, "home", "ftp");
    let config = net.scratch.file(
        "dovecot.conf",
        format!(
            "protocols = imap\nlisten = *\nbase_dir = {own}/run\nstate_dir = {own}/state\nssl = no\n\
             disable_plaintext_auth = no\nlog_path = {own}/log\nmail_location = maildir:~/mail\n\
             first_valid_uid = 1\npassdb {{\n driver = static\n args = password=secret\n}}\n\
             userdb {{\n driver = static\n args = uid=ftp gid=nogroup home={home}/%u\n}}\n\
             service imap-login {{\n inet_listener imaps {{\n port = 0\n }}\n}}\n"
        ),
    );
    let mut server = net.serve(&installed("dovecot"), &["-F", "-c", &config]);
    net.listens(&mut server, 143);
    let talk = "import imaplib, sys
text = b'Subject: x\\r\\n\\r\\n' + b'hello\\r\\n' * 100000
for turn in range(3):
    with imaplib.IMAP4(sys.argv[1], timeout=40) as mail:
        mail.login('user%d' % turn, 'secret')
        mail.append('INBOX', None, None, text)
        mail.select()
        print(mail.fetch('1', '(RFC822)')[1][0][1] == text)";
    let log = || std::fs::read_to_string(path(&net, "own/log")).unwrap_or_default();
    let mut clients: Vec<Proc> =
        (0..3).map(|_| net.client("/usr/bin/python3", &["-c", talk, Net::SERVER])).collect();
    for client in &mut clients {
        assert!(client.end(90).success(), "{}\n{}", client.report(), log());
        assert_eq!(client.output(), "True\n".repeat(3), "{}", log());
    }
    assert!(server.runs() && !(server.errors() + &log()).contains("libatoll"), "{}", log());
    drop(server);
    give(std::path::Path::new(&home), "root");
}
