//! Checks that what a program sends to its netlink socket is answered by whole messages, or by nothing.

use atoll_base::Instant;
use atoll_ipc::network::{Network, V4Facts};
use atoll_ipc::page::StackFacts;
use atoll_sockets::view::{Counters, View, netlink, proc_net};

/// Answers the requests in a packet, and looks the octets up as a path.
pub fn netlink_request(data: &[u8]) {
    let v4 = V4Facts { addr: 0xc612_0002, prefix_len: 24, gateway: 0xc612_0001, mtu: 1500, valid_until: 9 };
    let network = Network { v4: Some(v4), ..Network::default() };
    let facts = StackFacts { mtu: 1500, ..StackFacts::default() };
    let view = View::of(&facts, &network, Counters::default(), Instant::from_millis(1));
    for datagram in netlink::answer(&view, data, 7, data.len().is_multiple_of(2)) {
        let mut rest = &datagram[..];
        while !rest.is_empty() {
            let len = u32::from_ne_bytes(*rest.first_chunk().expect("a whole head")) as usize;
            assert!(len >= 16 && rest.len() >= len.next_multiple_of(4), "{len} of {}", rest.len());
            rest = &rest[len.next_multiple_of(4)..];
        }
    }
    let _ = proc_net::file(data);
}
