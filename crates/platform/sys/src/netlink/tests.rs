use super::*;
use crate::netns;

/// Runs `test` in a network namespace of its own; prints why not if this process may not make one.
fn in_new_namespace(test: impl FnOnce() + Send + 'static) {
    std::thread::spawn(|| match netns::unshare() {
        Ok(()) => test(),
        Err(error) if !rustix::process::geteuid().is_root() => {
            eprintln!("skipped: a network namespace needs root ({error})");
        }
        Err(error) => panic!("cannot make a network namespace although root: {error}"),
    })
    .join()
    .unwrap();
}

#[test]
fn loopback_can_be_set_up_routed_and_read_back() {
    in_new_namespace(|| {
        let mut netlink = Netlink::open().unwrap();
        let before = netlink.link("lo").unwrap();
        assert!(!before.up);
        netlink.set_mtu(before.index, 9000).unwrap();
        netlink.set_queue_len(before.index, 1234).unwrap();
        netlink.add_address(before.index, Ipv4Addr::new(198, 18, 0, 1), 24).unwrap();
        netlink.add_address(before.index, Ipv4Addr::new(198, 18, 0, 1), 24).unwrap();
        netlink.set_up(before.index).unwrap();
        netlink.add_route(before.index, Ipv4Addr::new(198, 18, 1, 0), 24, None).unwrap();
        let gateway = Some(Ipv4Addr::new(198, 18, 1, 1));
        netlink.add_route(before.index, Ipv4Addr::new(198, 18, 2, 0), 24, gateway).unwrap();
        let after = netlink.link("lo").unwrap();
        assert_eq!((after.up, after.mtu, after.queue_len), (true, 9000, 1234));
        // The address and the route work: a datagram to an address of the routed network can be sent.
        let socket = std::net::UdpSocket::bind("198.18.0.1:0").unwrap();
        socket.send_to(b"x", "198.18.1.9:9").unwrap();
        netlink.set_down(before.index).unwrap();
        assert!(!netlink.link("lo").unwrap().up);
    });
}

#[test]
fn errors_of_the_kernel_keep_their_number() {
    in_new_namespace(|| {
        let mut netlink = Netlink::open().unwrap();
        assert_eq!(netlink.link("atoll-none").unwrap_err().raw_os_error(), Some(libc::ENODEV));
        assert_eq!(netlink.set_up(4711).unwrap_err().raw_os_error(), Some(libc::ENODEV));
        let lo = netlink.link("lo").unwrap().index;
        assert!(netlink.set_mtu(lo, 1).is_ok(), "the next request is not confused by an earlier error");
    });
}
