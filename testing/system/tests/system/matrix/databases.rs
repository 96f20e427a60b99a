//! Databases: MariaDB, OpenLDAP, PostgreSQL's replication. PostgreSQL itself is in `servers.rs`.

use std::process::Command;

use atoll_system_tests::{Net, Proc, Stack};

use super::{folder_of, give, installed};

soak_on_both_stacks![mariadb, slapd, postgresql_replicates];

/// A thread for each connection. https://mariadb.com/kb/en/mariadbd-options/
fn mariadb(stack: Stack) {
    let net = Net::configured(stack, "[users]\nallow = [\"mysql\"]\n");
    let data = folder_of(&net, "data", "mysql");
    let common = ["--no-defaults".to_owned(), format!("--datadir={data}"), "--user=mysql".to_owned()];
    let mut install = Command::new(installed("mariadb-install-db"));
    install.args(&common).args(["--auth-root-authentication-method=normal", "--skip-test-db"]);
    Proc::start(install.args(["--innodb-log-file-size=4M", "--innodb-flush-log-at-trx-commit=0"]), None)
        .success(120);
    let start = net.scratch.file(
        "start.sql",
        "CREATE USER you@'%' IDENTIFIED BY 'secret';\nGRANT ALL ON *.* TO you@'%';\nCREATE DATABASE test;\n",
    );
    let mut server = net.on_stack(&installed("mariadbd"));
    server.args(&common).args([
        "--bind-address=0.0.0.0",
        "--port=3306",
        "--skip-name-resolve",
        "--innodb-log-file-size=4M",
        "--innodb-buffer-pool-size=16M",
        "--innodb-flush-log-at-trx-commit=0",
        &format!("--socket={data}/sock"),
        &format!("--pid-file={data}/pid"),
        &format!("--init-file={start}"),
    ]);
    let mut server = Proc::start(&mut server, None);
    server.says("ready for connections", 60);
    net.listens(&mut server, 3306);
    let account = ["-h", Net::SERVER, "-u", "you", "-psecret"];
    let orders = "CREATE TABLE test.t (n INT PRIMARY KEY, text LONGTEXT); INSERT INTO test.t VALUES (1, \
                  REPEAT('x', 1000000)); SELECT n, LENGTH(text) FROM test.t;";
    let said = net.client("mariadb", &[&account[..], &["-N", "-e", orders]].concat()).success(60);
    assert_eq!(said, "1\t1000000\n", "{}", server.report());
    let load = ["--auto-generate-sql", "--concurrency=8", "--number-of-queries=400", "--detach=10"];
    let said = net.client("mariadb-slap", &[&account[..], &load].concat()).success(120);
    assert!(said.contains("Number of clients running queries: 8"), "{said}");
    sysbench(&net, &server);
    server.terminate();
    assert!(server.end(60).success(), "{}", server.report());
    assert!(!server.errors().contains("libatoll"), "{}", server.report());
}

/// https://github.com/akopytov/sysbench
fn sysbench(net: &Net, server: &Proc) {
    for order in ["prepare", "run"] {
        let mut bench = net.on_client(&installed("sysbench"));
        bench.args(["oltp_read_write", &format!("--mysql-host={}", Net::SERVER)]);
        bench.args(["--mysql-user=you", "--mysql-password=secret", "--mysql-db=test", "--tables=2"]);
        bench.args(["--table-size=1000", "--threads=8", "--events=400", "--time=0", order]);
        let said = Proc::start(&mut bench, None).success(180);
        assert!(!said.contains("FATAL"), "{said}\n{}", server.report());
    }
}

/// Threads, one of which waits for all connections. https://www.openldap.org/doc/admin25/
fn slapd(stack: Stack) {
    let net = Net::configured(stack, "[users]\nallow = [\"openldap\"]\n");
    let data = folder_of(&net, "data", "openldap");
    let config = net.scratch.file(
        "slapd.conf",
        format!(
            "include /etc/ldap/schema/core.schema\ninclude /etc/ldap/schema/cosine.schema\n\
             include /etc/ldap/schema/inetorgperson.schema\nmodulepath /usr/lib/ldap\nmoduleload back_mdb\n\
             pidfile {data}/pid\nargsfile {data}/args\ndatabase mdb\nmaxsize 10485760\n\
             suffix \"dc=test\"\nrootdn \"cn=admin,dc=test\"\nrootpw secret\ndirectory {data}\n"
        ),
    );
    let url = "ldap://0.0.0.0:389";
    let arguments = ["-d", "0", "-h", url, "-f", &config, "-u", "openldap", "-g", "openldap"];
    let mut server = net.serve(&installed("slapd"), &arguments);
    net.listens(&mut server, 389);
    let people: String = (0..200)
        .map(|n| format!("dn: cn=p{n},dc=test\nobjectClass: person\ncn: p{n}\nsn: number {n}\n\n"))
        .collect();
    let entries = net.scratch.file(
        "entries",
        format!(
            "dn: dc=test\nobjectClass: dcObject\nobjectClass: organization\no: test\ndc: test\n\n{people}"
        ),
    );
    let at = format!("ldap://{}", Net::SERVER);
    let account = ["-x", "-H", &at, "-D", "cn=admin,dc=test", "-w", "secret"];
    net.client(&installed("ldapadd"), &[&account[..], &["-f", &entries]].concat()).success(60);
    for client in [net.on_client(&installed("ldapsearch")), net.on_stack(&installed("ldapsearch"))] {
        let mut client = client;
        client.args(account).args(["-LLL", "-b", "dc=test", "(sn=number 1*)", "sn"]);
        let said = Proc::start(&mut client, None).success(30);
        let found = said.lines().filter(|line| line.starts_with("sn: number 1")).count();
        assert_eq!(found, 111, "{}", server.report());
    }
    assert!(server.runs() && !server.errors().contains("libatoll"), "{}", server.report());
}

/// One server on the stack streams what it writes to another on the stack, which is asked for it; the first
/// is stopped and started again under load.
/// https://www.postgresql.org/docs/15/warm-standby.html#STREAMING-REPLICATION
fn postgresql_replicates(stack: Stack) {
    const USER: [&str; 4] = ["--reuid", "www-data", "--regid", "www-data"];
    let net = Net::configured(stack, "[users]\nallow = [\"www-data\"]\n");
    let versions = std::fs::read_dir("/usr/lib/postgresql").expect("PostgreSQL is installed").flatten();
    let programs = versions.map(|version| version.path().join("bin")).max().expect("a version is installed");
    let program = |name: &str| programs.join(name).to_string_lossy().into_owned();
    let as_user = |mut command: Command, words: &[&str]| {
        command.args(USER).args(["--clear-groups", "--"]).args(words);
        Proc::start(&mut command, None)
    };
    let first = folder_of(&net, "first", "www-data");
    let second = folder_of(&net, "second", "www-data");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(&second, mode).expect("it is ours");
    let init = [&program("initdb"), "--auth=trust", "--no-sync", "--username=postgres", "-D", &first];
    as_user(net.on_server("setpriv"), &init).success(60);
    std::fs::write(format!("{first}/pg_hba.conf"), "host all,replication all all trust\n")
        .expect("initdb has made it");
    let start = |data: &str, port: &str| {
        let words = [&program("postgres"), "-D", data, "-p", port, "-c", "listen_addresses=*", "-c"];
        let more = ["unix_socket_directories=", "-c", "fsync=off", "-c", "hot_standby=on"];
        let mut server = as_user(net.on_stack("setpriv"), &[&words[..], &more].concat());
        server.says("ready to accept", 60);
        server
    };
    let ask = |port: &str, order: &str| {
        let words = ["-h", Net::SERVER, "-p", port, "-U", "postgres", "-tAc", order, "postgres"];
        let mut psql = net.client(&program("psql"), &words);
        psql.end(30).success().then(|| psql.output().trim_end().to_owned())
    };
    let bench = |words: &[&str]| {
        let common = ["-h", Net::SERVER, "-p", "5432", "-U", "postgres"];
        net.client(&program("pgbench"), &[&common[..], words, &["postgres"]].concat())
    };
    let mut primary = start(&first, "5432");
    bench(&["-i", "-q"]).success(60);
    let copy = ["-h", Net::SERVER, "-p", "5432", "-U", "postgres", "-c", "fast", "-R", "-D", &second];
    as_user(net.on_stack("setpriv"), &[&[program("pg_basebackup").as_str()][..], &copy].concat())
        .success(120);
    give(std::path::Path::new(&second), "www-data");
    let replica = start(&second, "5433");
    for turn in 0..3 {
        let report = bench(&["-n", "-c", "4", "-t", "50"]).success(120);
        assert!(report.contains("processed: 200/200"), "{report}");
        let sum = ask("5432", "SELECT sum(abalance) FROM pgbench_accounts").expect("the primary answers");
        atoll_system_tests::until("the replica to have it all", 60, || {
            (ask("5433", "SELECT sum(abalance) FROM pgbench_accounts") == Some(sum.clone())).then_some(())
        });
        if turn < 2 {
            // A restart under load: the load's connections end, the replica comes back by itself.
            let mut load = bench(&["-n", "-C", "-c", "4", "-T", "60"]);
            atoll_system_tests::until("the load", 20, || {
                ask("5432", "SELECT count(*) FROM pgbench_history").filter(|count| count != "0")
            });
            crate::recovery::signal("INT", primary.pid().into());
            assert!(primary.end(60).success(), "{}", primary.report());
            load.end(90);
            primary = start(&first, "5432");
        }
    }
    assert!(!(primary.errors() + &replica.errors()).contains("libatoll"), "{}", replica.report());
}
