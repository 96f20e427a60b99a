//! A kernel on the other side: a network namespace with one TAP, and frames to put into it.
#![allow(dead_code, reason = "each test program uses its part")]

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use atoll_sys::epoll::{self, Epoll, EventFlags};
use atoll_sys::netlink::Netlink;
use atoll_sys::netns;
use atoll_tap::{Existing, FRAME_LEN_MAX, Offloads, Queue, Tap, TapOptions, VNET_HEADER_LEN};

/// The kernel's address and ours, on the TAP.
pub const KERNEL: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
pub const STACK: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);

const KERNEL_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const STACK_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// Runs `test` in a network namespace of its own. Without root's rights it prints why it skips the test; with
/// them, a failure to make the namespace fails the test.
pub fn in_new_namespace(test: impl FnOnce() + Send + 'static) {
    let run = || match netns::unshare() {
        Ok(()) => test(),
        Err(error) if !is_root() => eprintln!("skipped: network namespaces and TAPs need root ({error})"),
        Err(error) => panic!("cannot make a network namespace although root: {error}"),
    };
    std::thread::spawn(run).join().unwrap();
}

pub fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|me| std::os::unix::fs::MetadataExt::uid(&me) == 0)
}

pub fn options(queues: usize) -> TapOptions<'static> {
    TapOptions { name: None, queues, offloads: Offloads { tso: true, uso: true }, existing: Existing::Refuse }
}

/// Opens a TAP that is up, with [`KERNEL`] as the kernel's address and [`STACK`] known to the kernel as a
/// neighbour.
pub fn network(queues: usize) -> Tap {
    let tap = Tap::open(&options(queues)).unwrap();
    // No router solicitations among the frames. Where there is no IPv6 at all, there is nothing to switch
    // off.
    let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{}/disable_ipv6", tap.name()), "1");
    let mut netlink = Netlink::open().unwrap();
    let link = netlink.link(tap.name()).unwrap();
    assert_eq!(link.queue_len, atoll_tap::QUEUE_LEN);
    netlink.set_mac(link.index, KERNEL_MAC).unwrap();
    netlink.add_address(link.index, KERNEL, 24).unwrap();
    netlink.set_up(link.index).unwrap();
    netlink.add_neighbour(link.index, STACK, STACK_MAC).unwrap();
    tap
}

/// A frame that the kernel sent.
pub struct Arrival {
    pub queue: usize,
    pub bytes: Vec<u8>,
}

impl Arrival {
    pub fn vnet_header(&self) -> &[u8] {
        &self.bytes[..VNET_HEADER_LEN]
    }

    pub fn frame(&self) -> &[u8] {
        &self.bytes[VNET_HEADER_LEN..]
    }

    pub fn ip(&self) -> &[u8] {
        &self.frame()[14..]
    }

    /// Returns whether the frame has an IPv4 packet of this protocol without options.
    pub fn is(&self, protocol: u8) -> bool {
        self.frame()[12..14] == [8, 0] && self.ip()[0] == 0x45 && self.ip()[9] == protocol
    }

    pub fn source_port(&self) -> u16 {
        u16::from_be_bytes([self.ip()[20], self.ip()[21]])
    }
}

/// Returns the next frame from any queue that satisfies `wanted`, and drops the others. Panics after ten
/// seconds.
pub fn receive(queues: &mut [Queue], wanted: impl Fn(&Arrival) -> bool) -> Arrival {
    let epoll = Epoll::new().unwrap();
    for (token, queue) in (0..).zip(&*queues) {
        epoll.add(queue, token, EventFlags::IN).unwrap();
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut buffer = vec![0; FRAME_LEN_MAX];
    while Instant::now() < deadline {
        let mut events = [epoll::EMPTY; 1];
        if epoll.wait(&mut events, Some(100)).unwrap() == 0 {
            continue;
        }
        let queue = epoll::token(&events[0]) as usize;
        if let Some(len) = queues[queue].receive(&mut buffer).unwrap() {
            let arrival = Arrival { queue, bytes: buffer[..len].to_vec() };
            if wanted(&arrival) {
                return arrival;
            }
        }
    }
    panic!("the awaited frame did not come");
}

/// Returns the vnet, Ethernet and IPv4 headers of a packet from [`STACK`] to [`KERNEL`], followed by
/// `transport`. `payload_len` bytes of payload follow separately. The vnet header asks for the checksum at
/// `checksum_at` of the transport header; that field holds the sum of the pseudo header, as for any
/// unfinished checksum.
pub fn frame(protocol: u8, transport: &[u8], checksum_at: usize, payload_len: usize) -> Vec<u8> {
    let len = (transport.len() + payload_len) as u16;
    const NEEDS_CSUM: u8 = 1;
    const TRANSPORT_AT: u16 = 14 + 20;
    let mut frame = vec![NEEDS_CSUM, 0, 0, 0, 0, 0];
    frame.extend(TRANSPORT_AT.to_le_bytes());
    frame.extend((checksum_at as u16).to_le_bytes());
    frame.extend([&KERNEL_MAC[..], &STACK_MAC, &[8, 0]].concat());
    let mut ip = vec![0x45, 0];
    ip.extend((20 + len).to_be_bytes());
    ip.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
    ip.extend(STACK.octets());
    ip.extend(KERNEL.octets());
    let checksum = !sum(&ip);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    frame.extend(ip);
    let pseudo = [&STACK.octets()[..], &KERNEL.octets(), &[0, protocol], &len.to_be_bytes()].concat();
    let mut transport = transport.to_vec();
    transport[checksum_at..checksum_at + 2].copy_from_slice(&sum(&pseudo).to_be_bytes());
    frame.extend(transport);
    frame
}

/// Returns the ones' complement sum of RFC 1071, not inverted.
fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
