//! The messages between a transport server (TS) and its IP server, as the TS handles them.

use atoll_base::{Epoch, FourTuple, Instant, SeqNum};
use atoll_ip::{ErrorKind, Ip, NetworkError, Request};
use atoll_ipc::ip::{IpBody, IpMessage};
use atoll_wire::icmp;
use atoll_wire::icmpv6;
use atoll_wire::ipv4::Protocol;

use crate::news;

/// A TS's side of the exchange with its IP server. Each recognises a new incarnation of the other by its
/// epoch, and then sends again everything that the other needs.
#[derive(Debug)]
pub struct Client {
    epoch: Epoch,
    /// The IP server's incarnation, or `Epoch(0)` before its first message.
    server: Epoch,
    /// Whether the TS has still to greet the IP server.
    greets: bool,
    bad: u64,
}

impl Client {
    /// Creates the side of a TS in its `epoch`.
    pub const fn new(epoch: Epoch) -> Client {
        Client { epoch, server: Epoch(0), greets: true, bad: 0 }
    }

    /// Handles a message of the IP server. `ip` is the TS's half. Returns the error about one of the
    /// transport's packets, if the message reports one.
    pub fn handle(&mut self, now: Instant, ip: &mut Ip, message: &IpMessage) -> Option<NetworkError> {
        if message.epoch.0 < self.server.0 {
            self.bad += 1;
            return None;
        }
        if message.epoch != self.server {
            // This holds for the first message, too: it is unknown which incarnation has read earlier
            // requests.
            ip.forget_requests();
            (self.server, self.greets) = (message.epoch, true);
        }
        match message.body {
            IpBody::Network { ref news } => ip.handle_told(news::decode(news)),
            IpBody::Unreachable { protocol, local, remote, seq } => {
                ip.handle_unreachable(now, remote.addr);
                let protocol = Protocol(protocol);
                let [a, b, c, d] = seq.to_be_bytes();
                let [e, f] = local.port.to_be_bytes();
                let (is_known, quoted) = match protocol {
                    Protocol::TCP => (true, [e, f, 0, 0, a, b, c, d]),
                    Protocol::UDP => (true, [e, f, 0, 0, 0, 0, 0, 0]),
                    Protocol::ICMP => (true, [icmp::ECHO_REQUEST, 0, 0, 0, e, f, c, d]),
                    Protocol::ICMPV6 => (true, [icmpv6::ECHO_REQUEST, 0, 0, 0, e, f, c, d]),
                    _ => (false, [0; 8]),
                };
                return is_known.then_some(NetworkError {
                    kind: ErrorKind::unanswered(local.addr.is_v4()),
                    protocol,
                    tuple: FourTuple { local, remote },
                    quoted_seq: (protocol == Protocol::TCP).then_some(SeqNum(seq)),
                    quoted,
                    reporter: local.addr,
                    // No router has seen the packet.
                    hops: u8::MAX,
                });
            }
            IpBody::Hello
            | IpBody::Group { .. }
            | IpBody::Path { .. }
            | IpBody::Neighbour { .. }
            | IpBody::Progress { .. } => self.bad += 1,
        }
        None
    }

    /// Passes all messages to `send`, which returns whether the ring took one. A message that it did not take
    /// is offered again by the next call.
    pub fn send(&mut self, ip: &mut Ip, mut send: impl FnMut(&IpMessage) -> bool) {
        let epoch = self.epoch;
        let mut say = |body| send(&IpMessage { epoch, body });
        if self.greets {
            if !say(IpBody::Hello) {
                return;
            }
            self.greets = false;
        }
        ip.send_requests(|request| {
            say(match request {
                Request::Join(group) => IpBody::Group { group, joins: true },
                Request::Leave(group) => IpBody::Group { group, joins: false },
                Request::Progress(hop) => IpBody::Progress { hop },
                Request::Path(update) => IpBody::Path { dst: update.dst, mtu: update.mtu },
            })
        });
    }

    /// Returns whether there is a message to send.
    pub fn has_messages(&self, ip: &Ip) -> bool {
        self.greets || ip.has_requests()
    }

    /// Returns the number of messages of the IP server that were invalid, or came from an ended incarnation.
    pub const fn bad(&self) -> u64 {
        self.bad
    }
}
