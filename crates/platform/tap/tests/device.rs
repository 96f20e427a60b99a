//! What does the kernel hand out and accept at a TAP, and what does it say when it does not want to?

mod common;

use std::io::Write;
use std::net::{TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::process::Command;
use std::time::Duration;

use atoll_base::FlowKey;
use atoll_sys::{Gather, Mapping, Prefault};
use atoll_tap::{
    Existing, Offloads, OpenError, Queue, SendOutcome, Steering, SteeringError, Tap, TapOptions,
};
use common::{KERNEL, STACK, frame, in_new_namespace, is_root, network, options, receive};

const TCP: u8 = 6;
const UDP: u8 = 17;

fn udp_socket() -> (UdpSocket, u16) {
    let socket = UdpSocket::bind((KERNEL, 0)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let port = socket.local_addr().unwrap().port();
    (socket, port)
}

/// Returns a UDP header to `port` for a payload of `len` bytes. Its checksum is still to be completed.
fn udp_header(port: u16, len: usize) -> Vec<u8> {
    [7u16, port, 8 + len as u16, 0].iter().flat_map(|field| field.to_be_bytes()).collect()
}

#[test]
fn a_gathered_frame_with_an_unfinished_checksum_reaches_a_socket() {
    in_new_namespace(|| {
        let mut tap = network(1);
        let (socket, port) = udp_socket();
        let (_fd, arena) = Mapping::create("atoll-test", 4096, Prefault::No).unwrap();
        // SAFETY: in bounds, writable, and used by nobody else.
        unsafe { arena.range(1001, 11).unwrap().copy_from(b"shared data".as_ptr(), 11) };
        let headers = frame(UDP, &udp_header(port, 11), 6, 11);
        let mut gather = Gather::new();
        gather.push_slice(&headers).unwrap();
        gather.push_mapping(&arena, 1001, 6).unwrap();
        gather.push_mapping(&arena, 1007, 5).unwrap();
        assert_eq!(tap.queues_mut()[0].send(&gather).unwrap(), SendOutcome::Sent);

        let mut buffer = [0; 64];
        let (len, from) = socket.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..len], from.ip(), from.port()), (&b"shared data"[..], STACK.into(), 7));
    });
}

#[test]
fn tcp_arrives_in_super_packets_with_their_vnet_header() {
    in_new_namespace(|| {
        let mut tap = network(1);
        assert!(tap.offloads().tso);
        let client = std::thread::spawn(|| {
            let mut stream = TcpStream::connect((STACK, 80)).unwrap();
            stream.set_nonblocking(true).unwrap();
            // As much as it takes at once is enough; the stream stays open until the test has seen it.
            assert!(stream.write(&[b'x'; 30_000]).unwrap() > 3000);
            stream
        });
        let syn = receive(tap.queues_mut(), |arrival| arrival.is(TCP));
        let sequence = u32::from_be_bytes(syn.ip()[24..28].try_into().unwrap());
        let mut answer = vec![0, 80];
        answer.extend(syn.source_port().to_be_bytes());
        answer.extend(1000u32.to_be_bytes());
        answer.extend(sequence.wrapping_add(1).to_be_bytes());
        answer.extend([0x60, 0x12, 0xff, 0xff, 0, 0, 0, 0]); // 24 bytes, SYN and ACK, the largest window.
        answer.extend([2, 4, 5, 180]); // MSS 1460.
        let answer = frame(TCP, &answer, 16, 0);
        assert_eq!(tap.queues_mut()[0].send_bytes(&answer).unwrap(), SendOutcome::Sent);

        let big = receive(tap.queues_mut(), |arrival| arrival.is(TCP) && arrival.frame().len() > 1514);
        let header = big.vnet_header();
        const NEEDS_CSUM: u8 = 1;
        const GSO_TCPV4: u8 = 1;
        assert_eq!((header[0] & NEEDS_CSUM, header[1] & 0x7f), (NEEDS_CSUM, GSO_TCPV4));
        assert_eq!(u16::from_le_bytes([header[4], header[5]]), 1460, "gso_size is the MSS");
        assert_eq!(u16::from_le_bytes([header[6], header[7]]), 34, "the checksum starts at the TCP header");
        drop(client.join().unwrap());
    });
}

#[test]
fn frames_that_make_no_sense_and_links_that_are_down_are_told_apart() {
    in_new_namespace(|| {
        let mut tap = network(1);
        let (_socket, port) = udp_socket();
        let good = frame(UDP, &udp_header(port, 0), 6, 0);
        let queue = &mut tap.queues_mut()[0];
        assert_eq!(queue.send_bytes(&good[..5]).unwrap(), SendOutcome::Refused);
        let mut beyond = good.clone();
        beyond[6..8].copy_from_slice(&9999u16.to_le_bytes()); // The checksum would start behind the end.
        assert_eq!(queue.send_bytes(&beyond).unwrap(), SendOutcome::Refused);
        assert_eq!(queue.send_bytes(&good).unwrap(), SendOutcome::Sent);
        assert_eq!(queue.receive(&mut [0; 2000]).unwrap(), None);

        let mut netlink = atoll_sys::netlink::Netlink::open().unwrap();
        let index = netlink.link(tap.name()).unwrap().index;
        netlink.set_down(index).unwrap();
        assert_eq!(tap.queues_mut()[0].send_bytes(&good).unwrap(), SendOutcome::LinkDown);
        netlink.delete_link(index).unwrap();
        assert!(tap.queues_mut()[0].receive(&mut [0; 2000]).is_err());
    });
}

#[test]
fn a_queue_works_without_privileges_and_keeps_the_device_alive() {
    in_new_namespace(|| {
        let tap = network(2);
        let name = tap.name().to_owned();
        let (socket, port) = udp_socket();
        let mut queue = Queue::from_fd(tap.queues()[1].as_fd().try_clone_to_owned().unwrap());
        drop(tap);
        let replica = std::thread::spawn(move || {
            become_nobody();
            let good = frame(UDP, &udp_header(port, 0), 6, 0);
            assert_eq!(queue.send_bytes(&good).unwrap(), SendOutcome::Sent);
            queue
        });
        let queue = replica.join().unwrap();
        assert_eq!(socket.recv_from(&mut [0; 8]).unwrap().0, 0);
        let mut netlink = atoll_sys::netlink::Netlink::open().unwrap();
        assert!(netlink.link(&name).is_ok());
        drop(queue);
        assert!(netlink.link(&name).is_err(), "nobody holds a queue any more");
    });
}

#[test]
fn impossible_devices_are_refused_with_their_reason() {
    in_new_namespace(|| {
        let open = |options: TapOptions<'_>| Tap::open(&options).map(drop).unwrap_err();
        assert_eq!(
            open(TapOptions { name: Some("sixteen-letters-"), ..options(1) }),
            OpenError::NameLength(16)
        );
        assert_eq!(open(TapOptions { name: Some(""), ..options(1) }), OpenError::NameLength(0));
        assert_eq!(open(options(0)), OpenError::QueueCount(0));
        assert_eq!(open(options(257)), OpenError::QueueCount(257));
        assert_eq!(open(TapOptions { name: Some("a/b"), ..options(1) }), OpenError::WrongKind);

        let attach =
            |name, queues| TapOptions { name: Some(name), existing: Existing::Attach, ..options(queues) };
        assert_eq!(open(attach("lo", 1)), OpenError::WrongKind);
        let first = Tap::open(&TapOptions { name: Some("fifteen-letters"), ..options(2) }).unwrap();
        assert_eq!(first.name(), "fifteen-letters");
        assert_eq!(open(TapOptions { name: Some(first.name()), ..options(1) }), OpenError::Busy);
        assert_eq!(Tap::open(&attach(first.name(), 1)).unwrap().name(), first.name());
    });
}

#[test]
fn offloads_that_were_not_asked_for_are_off() {
    in_new_namespace(|| {
        let offloads = Offloads { tso: false, uso: false };
        let tap = Tap::open(&TapOptions { offloads, ..options(1) }).unwrap();
        assert_eq!(tap.offloads(), offloads);
    });
}

#[test]
fn without_privileges_the_error_says_what_is_missing() {
    in_new_namespace(|| {
        let tap = network(1);
        let nobody = std::thread::spawn(move || {
            become_nobody();
            let error = Tap::open(&options(1)).unwrap_err();
            // Which of the two depends on the mode of the device node.
            assert!(matches!(error, OpenError::DeviceNodeNotPermitted | OpenError::NotPermitted), "{error}");
            let steering = Steering::attach(&tap.queues()[0], FlowKey::default(), &[0; 4096]);
            assert_eq!(steering.map(drop), Err(SteeringError::NotPermitted));
        });
        nobody.join().unwrap();
    });
}

#[test]
fn in_a_user_namespace_the_device_works_and_steering_is_refused() {
    const INSIDE: &str = "ATOLL_TEST_IN_USER_NAMESPACE";
    if std::env::var_os(INSIDE).is_some() {
        let tap = network(2);
        let steering = Steering::attach(&tap.queues()[0], FlowKey::default(), &[0; 4096]);
        assert_eq!(steering.map(drop), Err(SteeringError::NotPermitted));
        return;
    }
    let this_test = "in_a_user_namespace_the_device_works_and_steering_is_refused";
    let mut command = Command::new("unshare");
    command.arg("-Urn").arg(std::env::current_exe().unwrap()).args(["--exact", this_test, "--nocapture"]);
    let output = command.env(INSIDE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if !is_root() && !output.status.success() {
        eprintln!("skipped: not root, and user namespaces or /dev/net/tun are closed ({said})");
        return;
    }
    assert!(output.status.success(), "{said}");
}

/// Gives up all privileges of the calling thread only.
fn become_nobody() {
    use rustix::thread::{Gid, Uid, set_thread_res_gid, set_thread_res_uid};
    let (uid, gid) = (Uid::from_raw(65534), Gid::from_raw(65534));
    set_thread_res_gid(gid, gid, gid).unwrap();
    set_thread_res_uid(uid, uid, uid).unwrap();
}
