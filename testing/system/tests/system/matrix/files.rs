//! Servers of files: rsync, vsftpd, ProFTPD, Samba.

use std::os::unix::fs::PermissionsExt;

use atoll_system_tests::{Net, Proc, Stack};

use super::{folder_of, installed, path, unpacked};
use crate::servers::megabyte;

on_both_stacks![vsftpd];
soak_on_both_stacks![rsync, samba, proftpd];

/// Whether a file of the scratch folder holds the megabyte.
fn is_megabyte(net: &Net, name: &str) -> bool {
    std::fs::read(path(net, name)).is_ok_and(|octets| octets == megabyte())
}

/// The daemon forks for each connection, which it hands to a child in a chroot(2); the client on the stack
/// asks a daemon of the kernel's, and each of both ways is taken.
fn rsync(stack: Stack) {
    let net = Net::new(stack);
    let rsync = installed("rsync");
    let folder = folder_of(&net, "served", "nobody");
    net.scratch.file("served/big", megabyte());
    for number in 0..50 {
        net.scratch.file(&format!("served/{number}"), format!("file {number}"));
    }
    let config = net.scratch.file(
        "rsyncd.conf",
        format!(
            "use chroot = yes\nuid = nobody\ngid = nogroup\n[files]\npath = {folder}\nread only = no\n\
             munge symlinks = no\n"
        ),
    );
    let config = format!("--config={config}");
    let serve = ["--daemon", "--no-detach", "--port=873", &config, "--log-file=/dev/stderr"];
    let mut here = net.serve(&rsync, &serve);
    let there = net.client(&rsync, &[&serve[..], &["--address=198.18.0.1"]].concat());
    net.listens(&mut here, 873);
    for (client, address, target) in [
        (net.on_client(&rsync), Net::SERVER, "from-here"),
        (net.on_stack(&rsync), "198.18.0.1", "from-there"),
    ] {
        let mut client = client;
        let from = format!("rsync://{address}/files/");
        client.args(["-a", "--timeout=30", &from, &path(&net, target)]);
        Proc::start(&mut client, None).success(60);
        assert!(is_megabyte(&net, &format!("{target}/big")), "{}\n{}", here.report(), there.report());
        assert_eq!(
            std::fs::read_to_string(path(&net, &format!("{target}/49"))).unwrap_or_default(),
            "file 49"
        );
    }
    // The other way.
    let source = net.scratch.file("new", megabyte());
    for (client, address, name) in
        [(net.on_client(&rsync), Net::SERVER, "a"), (net.on_stack(&rsync), "198.18.0.1", "b")]
    {
        let mut client = client;
        client.args(["--timeout=30", &source, &format!("rsync://{address}/files/{name}")]);
        Proc::start(&mut client, None).success(60);
        assert!(is_megabyte(&net, &format!("served/{name}")), "{}", here.report());
    }
    assert!(!here.errors().contains("libatoll"), "{}", here.report());
}

/// Fetches and stores over FTP, with connections for data that the client opens, and that the server opens.
fn transfers(net: &Net, server: &mut Proc, upload: &str) {
    net.listens(server, 21);
    let source = net.scratch.file("new", megabyte());
    let modes: [&[&str]; 3] = [&["--ftp-pasv", "--disable-epsv"], &["--ftp-pasv"], &["--ftp-port", "-"]];
    for (number, mode) in modes.into_iter().enumerate() {
        let curl = |arguments: &[&str]| {
            net.client("curl", &[&["-sS", "--fail", "--max-time", "40"], mode, arguments].concat())
                .success(60)
        };
        let host = format!("ftp://{}", Net::SERVER);
        let target = format!("fetched-{number}");
        curl(&["-o", &path(net, &target), &format!("{host}/big")]);
        assert!(is_megabyte(net, &target), "{mode:?}: {}", server.report());
        assert!(curl(&["-l", &format!("{host}/")]).lines().any(|line| line == "big"), "{mode:?}");
        curl(&["-T", &source, &format!("{host}/{upload}/{number}")]);
        assert!(is_megabyte(net, &format!("served/{upload}/{number}")), "{mode:?}: {}", server.report());
    }
    assert!(server.runs() && !server.errors().contains("libatoll"), "{}", server.report());
}

/// Folders for FTP: one that nobody may write, and one in it for what is stored.
fn ftp_folder(net: &Net, user: &str) -> String {
    let folder = folder_of(net, "served", "root");
    folder_of(net, "served/upload", user);
    net.scratch.file("served/big", megabyte());
    folder
}

/// Each session is two processes: one without rights, in namespaces of its own, with a limited address space
/// and a filter of system calls, which gets connections for data over a unix socket from the other.
/// https://security.appspot.com/vsftpd/vsftpd_conf.html
fn vsftpd(stack: Stack) {
    let net = Net::new(stack);
    let folder = ftp_folder(&net, "ftp");
    let empty = folder_of(&net, "empty", "root");
    let config = net.scratch.file(
        "vsftpd.conf",
        format!(
            "listen=YES\nbackground=NO\nanonymous_enable=YES\nlocal_enable=NO\nanon_root={folder}\n\
             no_anon_password=YES\nwrite_enable=YES\nanon_upload_enable=YES\nanon_umask=022\n\
             ftp_username=ftp\nnopriv_user=nobody\nsecure_chroot_dir={empty}\nconnect_from_port_20=YES\n\
             xferlog_enable=NO\n"
        ),
    );
    let mut server = net.serve(&installed("vsftpd"), &[&config]);
    transfers(&net, &mut server, "upload");
}

/// A process for each session, which asks for SIGURG, gives up capabilities in its one thread, and changes
/// its user again and again. http://www.proftpd.org/docs/
fn proftpd(stack: Stack) {
    let net = Net::new(stack);
    let folder = ftp_folder(&net, "ftp");
    let own = folder_of(&net, "own", "root");
    let config = net.scratch.file(
        "proftpd.conf",
        format!(
            "ServerName atoll.test\nServerType standalone\nPort 21\nUser nobody\nGroup nogroup\n\
             UseIPv6 off\nPidFile {own}/pid\nScoreboardFile {own}/scores\nSystemLog {own}/log\n\
             WtmpLog off\nTransferLog none\nDelayEngine off\nUseReverseDNS off\nControlsEngine off\n\
             AuthOrder mod_auth_unix.c\nRequireValidShell off\nDefaultServer on\n<Anonymous {folder}>\n\
             User ftp\nGroup nogroup\nUserAlias anonymous ftp\n</Anonymous>\n"
        ),
    );
    let program = unpacked("proftpd-core").join("usr/sbin/proftpd");
    let mut server = net.serve(&program.to_string_lossy(), &["-n", "-c", &config]);
    transfers(&net, &mut server, "upload");
    let log = std::fs::read_to_string(path(&net, "own/log")).unwrap_or_default();
    assert!(!log.contains("signal"), "{log}");
}

/// smbd forks for each connection and has a process that tells the others of changes.
/// https://www.samba.org/samba/docs/current/man-html/smb.conf.5.html
fn samba(stack: Stack) {
    let net = Net::new(stack);
    let folder = folder_of(&net, "served", "nobody");
    net.scratch.file("served/big", megabyte());
    let own = ["private", "lock", "state", "cache", "pid", "ncalrpc"]
        .map(|name| {
            format!(
                " {name} {} = {}\n",
                if name == "private" || name == "ncalrpc" { "dir" } else { "directory" },
                {
                    let made = folder_of(&net, name, "root");
                    std::fs::set_permissions(&made, std::fs::Permissions::from_mode(0o755))
                        .expect("it is ours");
                    made
                }
            )
        })
        .concat();
    let config = net.scratch.file(
        "smb.conf",
        format!(
            "[global]\n workgroup = TEST\n server role = standalone server\n map to guest = Bad User\n\
             guest account = nobody\n security = user\n disable netbios = yes\n smb ports = 445\n\
             load printers = no\n printing = bsd\n printcap name = /dev/null\n disable spoolss = yes\n{own}\
             [files]\n path = {folder}\n guest ok = yes\n read only = no\n"
        ),
    );
    // It begins a session of its own, and when it ends it ends its process group.
    let arguments = ["-F", "--debug-stdout", "-s", &config];
    let mut server = net.serve(&installed("smbd"), &arguments);
    net.listens(&mut server, 445);
    let share = format!("//{}/files", Net::SERVER);
    let source = net.scratch.file("new", megabyte());
    let orders = format!("get big {}; put {source} new; ls", path(&net, "fetched"));
    let said = net.client(&installed("smbclient"), &["-N", "-s", &config, &share, "-c", &orders]).success(60);
    assert!(said.contains("big"), "{said}");
    assert!(is_megabyte(&net, "fetched") && is_megabyte(&net, "served/new"), "{}", server.report());
    assert!(server.runs() && !server.errors().contains("libatoll"), "{}", server.report());
}
