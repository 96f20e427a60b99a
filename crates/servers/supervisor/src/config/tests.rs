use super::*;

fn parse(text: &str) -> Result<Config, ConfigError> {
    ConfigFile::parse(text)?.validate()
}

#[test]
fn an_empty_file_is_the_defaults() {
    assert_eq!(ConfigFile::parse("").unwrap(), ConfigFile::default());
    let config = parse("").unwrap();
    assert_eq!((config.replicas(), config.name.as_str(), config.link.kind), (1, "default", LinkType::Tap));
}

#[test]
fn the_commented_defaults_mean_the_defaults() {
    let text = ConfigFile::default().to_commented_toml();
    assert_eq!(parse(&text), parse(""));
}

#[test]
fn every_key_survives_being_written_out() {
    let text = r#"
        name = "web"
        replicas = 3
        [link]
        type = "shm"
        device = "tapq\"x"
        netns = "client"
        address = "10.1.2.3/16"
        dhcp_wait_s = 3
        peer_address = "none"
        gateway = "10.1.0.1"
        ipv6 = true
        address6 = "2001:db8::2/64"
        peer_address6 = "2001:db8::1/64"
        gateway6 = "2001:db8::1"
        autoconf = false
        mtu = 9000
        mac = "02:00:00:00:00:07"
        offload = false
        peer = "db"
        [steering]
        by = "software"
        [wait]
        spin_us = 0
        [accept]
        handshake = "naive"
        claim_timeout_us = 5
        [tcp]
        ecn = "request"
        [ports]
        ephemeral = [1024, 65535]
        unprivileged_start = 512
        users = { www-data = ["80", "443-444"], 7 = [] }
        [sessions]
        max = 7
        sockets = 64
        send_log2 = 20
        receive_log2 = 21
        [scheduling]
        cpus = [1, 0]
        batch = false
        [log]
        format = "json"
        level = "debug"
    "#;
    let file = ConfigFile::parse(text).unwrap();
    assert_eq!(ConfigFile::parse(&file.to_commented_toml()), Ok(file.clone()));
    assert_eq!(serde_json::from_str::<ConfigFile>(&serde_json::to_string(&file).unwrap()).unwrap(), file);
    let config = file.validate().unwrap();
    assert_eq!((config.replicas(), config.link.mtu, config.sessions.arena.slots), (3, 9000, 64));
    let none = (0, 0);
    let users = [("7".into(), [none; 4]), ("www-data".into(), [(80, 80), (443, 444), none, none])];
    assert_eq!(config.ports.users, users);
}

#[test]
fn unknown_keys_are_errors_that_name_the_key() {
    for (text, key) in [("nam = 1", "nam"), ("[link]\nadress = \"x\"", "adress"), ("[lnk]", "lnk")] {
        let Err(ConfigError::Syntax(message)) = parse(text) else { panic!("{text} was taken") };
        assert!(message.contains(key), "{message}");
    }
}

#[test]
fn values_are_refused_with_their_reason() {
    for (text, error) in [
        ("name = \"a/b\"", "name"),
        ("replicas = 9", "replicas"),
        ("configuration = \"TS2LS2CM3\"", "configuration"),
        ("configuration = \"TS2CM2+LS1\"\n[link]\ntype = \"none\"", "nothing to do"),
        ("configuration = \"TS2CM2LS1\"\n[link]\ntype = \"shm\"\npeer = \"b\"", "as in TS2LS2CM2"),
        ("replicas = 2\nconfiguration = \"TS3LS3CM3\"", "disagree"),
        ("[link]\naddress = \"198.18.0.2\"", "link.address"),
        ("[link]\npeer_address = \"here\"", "link.peer_address"),
        ("[link]\npeer_address = \"198.18.0.2/24\"", "other than"),
        ("[link]\ngateway = \"10.0.0.1\"", "link.gateway"),
        ("[link]\naddress = \"dhcp\"\ngateway = \"10.0.0.1\"", "DHCP"),
        ("[link]\naddress = \"dhcp\"\ntype = \"none\"", "DHCP"),
        ("[link]\naddress = \"DHCP\"", "link.address"),
        ("[link]\nmtu = 100", "link.mtu"),
        ("[link]\naddress6 = \"2001:db8::2\"", "link.address6"),
        ("[link]\npeer_address6 = \"198.18.0.1/24\"", "link.peer_address6"),
        ("[link]\ngateway6 = \"2001:db8::1\"", "link.gateway6"),
        ("[link]\naddress6 = \"2001:db8::2/64\"\nipv6 = false", "no IPv6"),
        ("[link]\naddress6 = \"2001:db8::2/64\"\nmtu = 1279", "no IPv6"),
        ("[link]\nmac = \"ff:ff:ff:ff:ff:ff\"", "link.mac"),
        ("[link]\ndevice = \"a b\"", "link.device"),
        ("[link]\ntype = \"shm\"", "link.peer"),
        ("name = \"a\"\n[link]\ntype = \"shm\"\npeer = \"a\"", "another"),
        ("[link]\ntype = \"veth\"", "veth"),
        ("[log]\nformat = \"xml\"", "`text`, `json`, `journal`"),
        ("[log]\nlevel = \"loud\"", "`error`, `warn`, `info`, `debug`"),
        ("[log]\ncolour = true", "colour"),
        ("[ports]\nephemeral = [60999, 32768]", "ports.ephemeral"),
        ("[ports]\nusers = { a = [\"1\", \"2\", \"3\", \"4\", \"5\"] }", "ports.users"),
        ("[ports]\nusers = { a = [\"0\"] }", "ports.users"),
        ("[ports]\nusers = { a = [\"81-80\"] }", "ports.users"),
        ("[ports]\nusers = { a = [\"http\"] }", "ports.users"),
        ("[ports]\nunprivileged_start = 65536", "unprivileged_start"),
        ("[sessions]\nsockets = 100", "sessions"),
        ("[sessions]\nmax = 0", "sessions.max"),
        ("[memory]\nlimit = \"12X\"", "such as \"512M\""),
        ("[memory]\nlimit = \"+64M\"", "is no size"),
        ("[memory]\nlimit = \"99999999999T\"", "is no size"),
        ("[memory]\nlimit = \"63M\"", "63M is less than 64M"),
        ("[wait]\nspin_us = 2000000", "wait.spin_us"),
        ("[accept]\nclaim_timeout_us = 0", "claim_timeout_us"),
        ("[accept]\nhandshake = \"late\"", "handshake"),
        ("configuration = \"TS2LS2CM1\"\n[accept]\nhandshake = \"naive\"", "handshake"),
        ("configuration = \"TS2LS2+CM2\"\n[accept]\nhandshake = \"naive\"", "handshake"),
        ("[accept]\ntariff = 0", "tariff"),
        ("[accept]\nscheme = \"fair\"", "scheme"),
        ("[accept]\nwatermarks = [50, 75]", "watermarks"),
        ("[recovery]\nhang_ms = 100", "recovery.hang_ms"),
        ("[recovery]\nmode = \"none\"", "stateless"),
        ("replicas = 4\n[scaling]\nstart = 5", "scaling.start: 4 replicas can be in 1 to 4 processes"),
        ("replicas = 4\n[scaling]\nmin = 0", "scaling.min"),
        ("replicas = 4\n[scaling]\nmin = 3\nmax = 2", "min is 3 and max is 2"),
        ("replicas = 4\n[scaling]\nauto = true\nmin = 2\nstart = 1", "a start between them"),
    ] {
        let message = parse(text).unwrap_err().to_string();
        assert!(message.contains(error), "{text}: {message}");
    }
}

#[test]
fn memory_is_bounded_by_bytes_or_units() {
    let limit = |text: &str| parse(&format!("[memory]\n{text}")).unwrap().memory_limit;
    assert_eq!(limit(""), None);
    assert_eq!(limit("limit = \"67108864\""), Some(64 << 20));
    assert_eq!([limit("limit = \"512M\""), limit("limit = \"524288K\"")], [Some(512 << 20); 2]);
    assert_eq!([limit("limit = \"3G\""), limit("limit = \"1T\"")], [Some(3 << 30), Some(1 << 40)]);
}

#[test]
fn configuration_and_replicas_may_agree() {
    assert_eq!(parse("replicas = 2\nconfiguration = \"TS2LS2CM2\"").unwrap().replicas(), 2);
    assert_eq!(parse("configuration = \"TS4LS4CM4\"").unwrap().replicas(), 4);
    assert_eq!(parse("configuration = \"TS4CM4+LS2\"").unwrap().replicas(), 4);
    assert!(parse("configuration = \"TS4CM4LS2\"\n[link]\ntype = \"none\"").is_ok());
}

#[test]
fn replicas_have_a_process_each_unless_it_is_said_otherwise() {
    let scaling = |text: &str| parse(&format!("replicas = 4\n[scaling]\n{text}")).unwrap().scaling;
    assert_eq!(scaling(""), Scaling { start: 4, auto: false, min: 1, max: 4 });
    assert_eq!(scaling("start = 2"), Scaling { start: 2, auto: false, min: 1, max: 4 });
    assert_eq!(scaling("auto = true\nmin = 2\nmax = 3"), Scaling { start: 2, auto: true, min: 2, max: 3 });
}

#[test]
fn an_address_may_come_by_dhcp() {
    let link = parse("[link]\naddress = \"dhcp\"").unwrap().link;
    assert_eq!((link.address, link.gateway, link.dhcp_wait_s), (None, None, 20));
}

#[test]
fn ipv6_is_on_where_the_link_carries_it() {
    assert_eq!(parse("").unwrap().link.v6.map(|v6| (v6.address, v6.autoconf)), Some((None, true)));
    for text in ["ipv6 = false", "mtu = 1279", "type = \"none\""] {
        assert_eq!(parse(&format!("[link]\n{text}")).unwrap().link.v6, None, "{text}");
    }
    assert!(parse("[link]\ngateway6 = \"fe80::1\"").is_ok());
}
