use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use atoll_base::{Addr, Endpoint, Instant, Rng};
use atoll_ipc::command::Protocol;
use atoll_ipc::listing::SocketEntry;
use atoll_ipc::network::{AddressFacts, AddressState, Network, PrefixFacts, RouterFacts, V4Facts};
use atoll_ipc::page::StackFacts;
use atoll_ipc::tcp_state::LISTEN;

use super::proc_net::{File, Plain};
use super::{Counters, LINK, LOOPBACK, View, netlink, proc_net, request};
use crate::Errno;

fn v6(first: u16, last: u8) -> Addr {
    let mut octets = [0; 16];
    octets[..2].copy_from_slice(&first.to_be_bytes());
    octets[15] = last;
    Addr::from_octets(octets)
}

/// Returns the view of a stack with an IPv4 address, two of IPv6, and gateways.
fn view() -> View {
    let own = |addr, prefix_len| AddressFacts {
        addr,
        prefix_len,
        state: AddressState::Preferred,
        dynamic: false,
        preferred_until: u64::MAX,
        valid_until: u64::MAX,
    };
    let network = Network {
        v4: Some(V4Facts {
            addr: 0xc612_0002,
            prefix_len: 24,
            gateway: 0xc612_0001,
            mtu: 1500,
            valid_until: u64::MAX,
        }),
        dhcp: None,
        addresses: vec![
            own(v6(0xfe80, 2), 64),
            AddressFacts { dynamic: true, valid_until: 9_000_000_000, ..own(v6(0x2001, 2), 64) },
        ],
        on_link: vec![PrefixFacts { prefix: v6(0x2001, 0), len: 64, until: u64::MAX }],
        routers: vec![RouterFacts { addr: v6(0xfe80, 1), until: u64::MAX }],
    };
    let facts = StackFacts { mtu: 1500, mac: [2, 0, 0, 0, 0, 7], ..StackFacts::default() };
    let counters = Counters { bytes_in: 70, frames_in: 1, ..Counters::default() };
    View::of(&facts, &network, counters, Instant::from_millis(2000))
}

fn asked(name: &[u8]) -> [u8; request::REQUEST_BYTES] {
    let mut entry = [0; request::REQUEST_BYTES];
    entry[..name.len()].copy_from_slice(name);
    entry
}

#[test]
fn interfaces_answer_as_netdevice_says() {
    let view = view();
    let ask = |name: &[u8], which| {
        let mut entry = asked(name);
        request::answer(&view, which, &mut entry).map(|()| entry[16..32].to_vec())
    };
    let addr = |octets: [u8; 4]| [&[2, 0, 0, 0][..], &octets, &[0; 8]].concat();
    assert_eq!(ask(b"eth0", 0x8915), Ok(addr([198, 18, 0, 2])));
    assert_eq!(ask(b"eth0:1", 0x891b), Ok(addr([255, 255, 255, 0])));
    assert_eq!(ask(b"eth0", 0x8919), Ok(addr([198, 18, 0, 255])));
    assert_eq!(ask(b"lo", 0x8915), Ok(addr([127, 0, 0, 1])));
    assert_eq!(ask(b"lo", 0x8919), Ok(addr([0; 4])));
    assert_eq!(&ask(b"eth0", 0x8913).unwrap()[..2], &0x1043u16.to_ne_bytes());
    assert_eq!(&ask(b"lo", 0x8913).unwrap()[..2], &0x49u16.to_ne_bytes());
    assert_eq!(&ask(b"eth0", 0x8933).unwrap()[..4], &LINK.to_ne_bytes());
    assert_eq!(&ask(b"eth0", 0x8927).unwrap()[..8], &[1, 0, 2, 0, 0, 0, 0, 7]);
    assert_eq!(ask(b"wlan0", 0x8913), Err(Errno::ENODEV));
    assert_eq!(ask(b"0123456789abcdef", 0x8913), Err(Errno::ENODEV), "a name without an end");
    assert_eq!(ask(b"eth0", 0x8914), Err(Errno::EPERM), "SIOCSIFFLAGS");
    assert_eq!(ask(b"eth0", 0x8946), Err(Errno::EOPNOTSUPP), "SIOCETHTOOL");
    let mut entry = [0; request::REQUEST_BYTES];
    entry[16..20].copy_from_slice(&1u32.to_ne_bytes());
    request::answer(&view, 0x8910, &mut entry).unwrap();
    assert_eq!(&entry[..3], b"lo\0");
    assert_eq!(request::list(&view).iter().map(|entry| entry[0]).collect::<Vec<_>>(), *b"le");
    assert!(request::is_of_ipv4(0x8915) && !request::is_of_ipv4(0x8913));
    assert!(request::is_about_interfaces(0x8912) && !request::is_about_interfaces(0x8905));
}

/// Returns a request of netlink with this body.
fn ask_netlink(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let mut packet = ((16 + body.len()) as u32).to_ne_bytes().to_vec();
    packet.extend(kind.to_ne_bytes());
    packet.extend(flags.to_ne_bytes());
    packet.extend(77u32.to_ne_bytes());
    packet.extend([0; 4]);
    packet.extend(body);
    packet
}

/// Returns the types and bodies of the messages in datagrams.
fn messages(datagrams: &[Vec<u8>]) -> Vec<(u16, Vec<u8>)> {
    let mut all = Vec::new();
    for datagram in datagrams {
        let mut rest = &datagram[..];
        while !rest.is_empty() {
            let len = u32::from_ne_bytes(rest[..4].try_into().unwrap()) as usize;
            assert_eq!(rest[8..16], [77u32.to_ne_bytes(), 5u32.to_ne_bytes()].concat());
            all.push((u16::from_ne_bytes(rest[4..6].try_into().unwrap()), rest[16..len].to_vec()));
            rest = &rest[len.next_multiple_of(4)..];
        }
    }
    all
}

fn kinds(kind: u16, flags: u16, body: &[u8]) -> Vec<(u16, Vec<u8>)> {
    messages(&netlink::answer(&view(), &ask_netlink(kind, flags, body), 5, false))
}

#[test]
fn netlink_lists_links_addresses_and_routes() {
    let count = |kind, family: i32| {
        let answer = kinds(kind, 0x301, &[family as u8]);
        let (last, parts) = answer.split_last().unwrap();
        assert_eq!(*last, (3, vec![0; 4]));
        assert!(parts.iter().all(|(part, _)| *part == kind - 2));
        parts.len()
    };
    assert_eq!([count(18, 0), count(18, libc::AF_PACKET), count(18, libc::AF_BRIDGE)], [2, 2, 0]);
    assert_eq!([count(22, 0), count(22, libc::AF_INET), count(22, libc::AF_INET6)], [5, 2, 3]);
    // IPv4: the gateway, the network, two own addresses; IPv6: two prefixes, a router, three own addresses.
    assert_eq!([count(26, 0), count(26, libc::AF_INET), count(26, libc::AF_INET6)], [10, 4, 6]);
    let neighbours = kinds(30, 0x301, &[0]);
    assert_eq!(neighbours, [(3, vec![0; 4])]);
}

fn error_of(answer: &[(u16, Vec<u8>)]) -> i32 {
    assert_eq!((answer.len(), answer[0].0), (1, 2));
    i32::from_ne_bytes(answer[0].1[..4].try_into().unwrap())
}

#[test]
fn netlink_changes_nothing_and_says_so() {
    let not_permitted = -Errno::EPERM.0;
    for kind in [16, 17, 19, 20, 21, 24, 25, 28, 29] {
        assert_eq!(error_of(&kinds(kind, 5, &[0; 24])), not_permitted, "{kind}");
    }
    assert_eq!(error_of(&kinds(34, 0x301, &[0; 12])), -Errno::EOPNOTSUPP.0, "RTM_GETRULE");
    assert_eq!(error_of(&kinds(9999, 1, &[0; 12])), -Errno::EOPNOTSUPP.0);
    assert_eq!(error_of(&kinds(18, 1, &[0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])), -Errno::ENODEV.0);
    // What is no request is acknowledged, if that is wanted.
    assert_eq!(error_of(&kinds(3, 5, &[])), 0);
    assert!(kinds(3, 1, &[]).is_empty());
}

#[test]
fn netlink_takes_for_done_what_is_so() {
    let address = |octets: [u8; 4], prefix_len, interface: u32| {
        let mut body = vec![libc::AF_INET as u8, prefix_len, 0x80, 254];
        body.extend(interface.to_ne_bytes());
        for kind in [2, 1] {
            body.extend([8, 0, kind, 0]);
            body.extend(octets);
        }
        error_of(&kinds(20, 0x605, &body))
    };
    let not_permitted = -Errno::EPERM.0;
    assert_eq!(address([127, 0, 0, 1], 8, LOOPBACK), 0);
    assert_eq!(address([127, 0, 0, 2], 8, LOOPBACK), not_permitted);
    assert_eq!(address([127, 0, 0, 1], 32, LOOPBACK), not_permitted);
    assert_eq!(address([198, 18, 0, 2], 24, LINK), not_permitted);
    let link = |interface: u32, flags: u32, change: u32| {
        let body = [0, interface, flags, change].map(u32::to_ne_bytes).concat();
        error_of(&kinds(16, 5, &body))
    };
    assert_eq!(link(LOOPBACK, 1, 1), 0);
    assert_eq!(link(LOOPBACK, 0, 1), not_permitted, "down");
    assert_eq!(link(LOOPBACK, 1, 0x101), not_permitted);
    assert_eq!(link(LINK, 1, 1), not_permitted);
}

#[test]
fn netlink_finds_one_link_and_one_route() {
    let mut by_name = vec![0; 16];
    by_name.extend([9, 0, 3, 0]);
    by_name.extend(b"eth0\0");
    let found = kinds(18, 1, &by_name);
    assert_eq!((found.len(), found[0].0), (1, 16));
    assert_eq!(found[0].1[4..8], LINK.to_ne_bytes());
    let route = |to: [u8; 4]| {
        let mut body = vec![libc::AF_INET as u8, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 1, 0];
        body.extend(to);
        kinds(26, 1, &body)
    };
    let holds =
        |found: &[(u16, Vec<u8>)], octets: &[u8]| found[0].1.windows(octets.len()).any(|part| part == octets);
    assert!(holds(&route([9, 9, 9, 9]), &[8, 0, 5, 0, 198, 18, 0, 1]), "by the gateway");
    assert!(!holds(&route([198, 18, 0, 9]), &[8, 0, 5, 0]), "on the link");
    assert!(holds(&route([127, 3, 2, 1]), &[8, 0, 4, 0, 1, 0, 0, 0]), "loopback");
}

#[test]
fn noise_is_answered_without_panic() {
    let (view, mut rng) = (view(), Rng::new(9));
    for _ in 0..20_000 {
        let mut packet = vec![0; (rng.next_u64() % 90) as usize];
        packet.iter_mut().for_each(|octet| *octet = rng.next_u64() as u8);
        if let Some(len) = packet.get_mut(..4) {
            len.copy_from_slice(&(rng.next_u64() as u32 % 100).to_ne_bytes());
        }
        if let Some(kind) = packet.get_mut(4..8) {
            kind.copy_from_slice(&[16 + (rng.next_u64() % 24) as u8, 0, 1, (rng.next_u64() % 4) as u8]);
        }
        netlink::answer(&view, &packet, 5, packet.len().is_multiple_of(2));
        proc_net::file(&packet);
    }
}

#[test]
fn paths_lead_to_files_of_the_stack() {
    let tcp = Some(Some(File::Sockets { udp: false, v6: false }));
    for path in ["/proc/net/tcp", "//proc/./self/net//tcp", "/proc/12/net/tcp", "/proc/1/task/2/net/tcp"] {
        assert_eq!(proc_net::file(path.as_bytes()), tcp, "{path}");
    }
    assert_eq!(proc_net::file(b"/proc/net/dev"), Some(Some(File::Plain(Plain::Device))));
    for path in ["/proc/net/snmp", "/proc/net/stat/nf_conntrack", "/proc/net/fib_trie"] {
        assert_eq!(proc_net::file(path.as_bytes()), Some(None), "{path}");
    }
    for path in ["/proc/net", "/proc/net/unix", "/etc/net/tcp", "/proc/meminfo", "proc/net/tcp", "/", ""] {
        assert_eq!(proc_net::file(path.as_bytes()), None, "{path}");
    }
}

#[test]
fn files_have_the_kernels_columns() {
    let view = view();
    let lines = |file| proc_net::plain(&view, file).lines().map(String::from).collect::<Vec<_>>();
    let devices = lines(Plain::Device);
    assert_eq!(devices[3].split_whitespace().take(3).collect::<Vec<_>>(), ["eth0:", "70", "1"]);
    assert!(devices.iter().skip(2).all(|line| line.split_whitespace().count() == 17));
    let routes = lines(Plain::Route);
    assert_eq!(routes[1].trim_end(), "eth0\t00000000\t010012C6\t0003\t0\t0\t0\t00000000\t0\t0\t0");
    assert_eq!(routes[2].trim_end(), "eth0\t000012C6\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0");
    assert!(routes.iter().all(|line| line.len() == 127));
    let addresses = lines(Plain::Addresses6);
    assert_eq!(addresses[0], "00000000000000000000000000000001 01 80 10 80       lo");
    assert_eq!(addresses[1], "fe800000000000000000000000000002 02 40 20 80     eth0");
    assert_eq!(addresses[2], "20010000000000000000000000000002 02 40 00 00     eth0");
    let gateway = "00000000000000000000000000000000 00 00000000000000000000000000000000 00 \
                   fe800000000000000000000000000001 00000400 00000001 00000000 00000003     eth0";
    assert!(lines(Plain::Route6).iter().any(|line| line == gateway));
}

#[test]
fn sockets_stand_in_the_table_of_their_kind() {
    let listener = SocketEntry {
        local: Endpoint::new(0x7f00_0001, 80),
        remote: Endpoint::new(0, 0),
        protocol: Protocol::Tcp,
        state: LISTEN,
        replica: 0,
        session: 1,
        uid: 33,
        receive_queue: 2,
        send_queue: 0,
    };
    let datagram = SocketEntry {
        local: Endpoint::at(v6(0xfe80, 2), 53),
        remote: Endpoint::at(Addr::ANY, 0),
        protocol: Protocol::Udp,
        state: 7,
        ..listener
    };
    let table = |udp, v6| proc_net::sockets(&[listener, datagram], udp, v6);
    // As a line of the kernel's, but for inode and pointer.
    let line = "   0: 0100007F:0050 00000000:0000 0A 00000000:00000002 00:00000000 00000000    33        0 0 \
                1 0000000000000000 100 0 0 10 0";
    assert_eq!(table(false, false).lines().nth(1).unwrap().trim_end(), line);
    assert!(table(false, false).lines().all(|line| line.len() == 149));
    let line = "    0: 000080FE000000000000000002000000:0035 00000000000000000000000000000000:0000 07 \
                00000000:00000002 00:00000000 00000000    33        0 0 2 0000000000000000 0";
    let line6 = table(true, true);
    assert!(line6.lines().nth(1).unwrap().starts_with("    0: 000080FE0000000000000000"), "{line6}");
    assert_eq!(line6.lines().nth(1).unwrap().len(), line.len());
    assert_eq!(table(true, false).lines().count(), 1);
    assert_eq!(table(false, true).lines().count(), 1);
}
