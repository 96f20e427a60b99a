//! The echo requests of ICMP sockets: what an application may write, and what leaves (ping_v4_sendmsg,
//! ping_v6_sendmsg of Linux; RFC 792, RFC 4443 §4.1).

use alloc::vec;
use alloc::vec::Vec;

use atoll_base::FourTuple;
use atoll_ipc::Memory;
use atoll_ipc::datagram::ECHO_HEADER;
use atoll_wire::ipv4::Protocol;
use atoll_wire::{icmp, icmpv6};

use crate::sink::TextRef;

/// Returns the message that leaves for what an application has written: an echo request of the socket's own
/// identifier, and with a right checksum. Returns `None` if that was no echo request of the peer's family.
pub(super) fn request<M: Memory>(tuple: &FourTuple, text: &TextRef<'_, M>) -> Option<Vec<u8>> {
    if text.len() < ECHO_HEADER as usize {
        return None;
    }
    // The application may be writing to it: it is copied once, and the copy is judged.
    let mut message = vec![0; text.len()];
    text.copy_to(&mut message);
    let &[kind, code, _, _, _, _, a, b] = message.first_chunk()?;
    let (id, seq) = (tuple.local.port, u16::from_be_bytes([a, b]));
    let (src, dst) = (tuple.local.addr, tuple.remote.addr);
    match (kind, code) {
        (icmp::ECHO_REQUEST, 0) if dst.is_v4() => {
            icmp::emit(&icmp::Message::EchoRequest { id, seq }, &mut message);
        }
        (icmpv6::ECHO_REQUEST, 0) if !dst.is_v4() => {
            icmpv6::emit(src, dst, &icmpv6::Message::EchoRequest { id, seq }, &mut message);
        }
        _ => return None,
    }
    Some(message)
}

/// Returns the protocol of echo requests with this tuple.
pub(super) const fn protocol(tuple: &FourTuple) -> Protocol {
    if tuple.remote.addr.is_v4() { Protocol::ICMP } else { Protocol::ICMPV6 }
}
