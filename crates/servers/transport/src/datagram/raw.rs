//! Raw sockets of ICMP and ICMPv6: which messages they get, and what leaves (raw(7); `raw_local_deliver`,
//! `rawv6_rcv` and `rawv6_push_pending_frames` of Linux).

use alloc::vec;
use alloc::vec::Vec;

use atoll_base::{Addr, Endpoint, FourTuple, Instant};
use atoll_ip::{Cast, ErrorKind, IcmpMessage, Link, NetworkError};
use atoll_ipc::command::Protocol;
use atoll_ipc::{Details, Memory, Ready, details};
use atoll_wire::checksum;
use atoll_wire::ipv4::Protocol as WireProtocol;

use super::{COPY_COST, LOOKS, cause_of, device_of_error, fault_of};
use crate::datagrams::{Arrived, Datagram};
use crate::input::device_of;
use crate::sink::TextRef;
use crate::transport::Transport;

/// Where the checksum is in a message of ICMPv6, in octets.
const CHECKSUM_AT: usize = 2;

impl<M: Memory> Transport<M> {
    /// Gives the ICMP message in a frame that was just handled to every raw socket that wants it.
    #[inline(never)]
    pub(crate) fn pass_to_raw(&mut self, now: Instant, link: Link, frame: &[u8]) {
        let Some(message) = self.ip.take_message() else { return };
        let port = Protocol::raw_port(!message.dst.is_v4());
        if self.datagrams.at_port((Protocol::Raw, port)).is_empty() || !self.is_first(&message) {
            return;
        }
        let Some(payload) = frame.get(message.at.clone()) else { return };
        let tuple =
            FourTuple { local: Endpoint::at(message.dst, port), remote: Endpoint::at(message.src, 0) };
        self.catch_up_raw(now, port);
        let device = device_of(frame, link == Link::Inside, message.dst);
        let all = self.datagrams.find_raw(&tuple, device, message.kind);
        self.load.charge_frame((all.len() * COPY_COST) as u32);
        let came_over = if link == Link::Inside { details::Link::Inside } else { details::Link::Outside };
        let details = Details {
            own: message.dst,
            tos: Some(message.tos),
            ttl: Some(message.ttl),
            link: Some(came_over),
            came: None,
            dropped: 0,
        };
        let (protocol, cast) = (Protocol::Raw, Cast::Unicast);
        let mut arrived = Arrived { protocol, tuple, device, cast, details, payload };
        for index in all {
            self.store_datagram(index, &mut arrived);
        }
    }

    /// Returns whether this replica passes a message on. What all replicas handle the first one passes on; IP
    /// servers hand over one of each kind.
    fn is_first(&self, message: &IcmpMessage) -> bool {
        self.config.replica.0 == 0 || self.ip.is_apart() || !message.is_for_all()
    }

    /// Carries out what the applications of all raw sockets of a family have asked for: see
    /// [`Transport::catch_up`].
    fn catch_up_raw(&mut self, now: Instant, port: u16) {
        let all = self.datagrams.at_port((Protocol::Raw, port)).to_vec();
        self.load.charge_frame((all.len() / LOOKS) as u32);
        for index in all {
            self.catch_up(now, index);
        }
    }

    /// Handles an ICMP error about a message of ICMP: every raw socket that may have sent it is told (raw_err
    /// and rawv6_err).
    pub(super) fn network_error_of_raw(&mut self, now: Instant, error: &NetworkError) {
        let port = Protocol::raw_port(!error.tuple.local.addr.is_v4());
        let tuple = FourTuple {
            local: Endpoint::at(error.tuple.local.addr, port),
            remote: Endpoint::at(error.tuple.remote.addr, 0),
        };
        self.catch_up_raw(now, port);
        let device = device_of_error(&self.ip, error);
        for index in self.datagrams.at_port((Protocol::Raw, port)).to_vec() {
            let Some(socket) = self.datagrams.get(index).filter(|it| it.score(&tuple, device) > 0) else {
                continue;
            };
            let wants_errors = socket.options().wants_errors(tuple.remote.addr);
            let has_peer = socket.remote().is_some();
            let discovery = socket.options().discovery_to(tuple.remote.addr);
            if let ErrorKind::FragNeeded { mtu } = error.kind
                && discovery.believes_paths()
            {
                // As for a datagram socket, a forged error makes fragments smaller and nothing else.
                self.ip.learn_path_mtu(now, tuple.remote.addr, mtu);
            }
            let Some(meaning) = cause_of(error, Protocol::Raw, discovery) else { continue };
            if wants_errors {
                self.report_fault(index, (fault_of(error), &[]), tuple.remote);
            } else if has_peer && meaning.is_hard {
                self.datagrams.fail(index, meaning.cause, Ready::IN | Ready::OUT);
            }
        }
    }
}

/// Returns the message that leaves for what an application has written to a raw socket. That of ICMP has the
/// application's own checksum, as on Linux; that of ICMPv6 gets one. Returns `None` for what a raw socket
/// must not send.
pub(super) fn message<M: Memory>(tuple: &FourTuple, text: &TextRef<'_, M>) -> Option<Vec<u8>> {
    // The application may be writing to it: it is copied once, and the copy is judged.
    let mut message = vec![0; text.len()];
    text.copy_to(&mut message);
    if tuple.remote.addr.is_v4() {
        return Some(message);
    }
    // DEVIATION: Linux lets such a socket speak to neighbours and routers for the host.
    if Protocol::is_of_link(*message.first()?) {
        return None;
    }
    message.get_mut(CHECKSUM_AT..CHECKSUM_AT + 2)?.fill(0);
    let (src, dst) = (tuple.local.addr, tuple.remote.addr);
    let pseudo = checksum::pseudo_header_v6(src, dst, WireProtocol::ICMPV6.0, message.len());
    let sum = pseudo.bytes(&message).finish().to_be_bytes();
    message.get_mut(CHECKSUM_AT..CHECKSUM_AT + 2)?.copy_from_slice(&sum);
    Some(message)
}

/// Returns whether a raw socket sends to receivers of this family.
pub(super) fn speaks(socket: &Datagram, peer: Addr) -> bool {
    socket.protocol() != Protocol::Raw || socket.local().port == Protocol::raw_port(!peer.is_v4())
}
