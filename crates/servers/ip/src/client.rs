//! What does a transport server (TS) say to its IP server, and hear from it, besides packets?

use atoll_base::{Epoch, FourTuple, Instant, SeqNum};
use atoll_ip::{ErrorKind, Ip, NetworkError, Request};
use atoll_ipc::ip::{IpBody, IpMessage};
use atoll_wire::icmp::code;
use atoll_wire::ipv4::Protocol;

use crate::news;

/// A TS's side of the talk. Of what it knows the IP server learns again if either has ended: both say by
/// their epochs who they are.
#[derive(Debug)]
pub struct Client {
    epoch: Epoch,
    /// The IP server's incarnation, once it has said something.
    server: Epoch,
    /// The IP server is to be told that there is a TS.
    greets: bool,
    bad: u64,
}

impl Client {
    /// The side of a TS in its `epoch`.
    pub const fn new(epoch: Epoch) -> Client {
        Client { epoch, server: Epoch(0), greets: true, bad: 0 }
    }

    /// Takes a message of the IP server. `ip`: the TS's half. Returns what the transport has to hear of one
    /// of its packets.
    pub fn handle(&mut self, now: Instant, ip: &mut Ip, message: &IpMessage) -> Option<NetworkError> {
        if message.epoch.0 < self.server.0 {
            self.bad += 1;
            return None;
        }
        if message.epoch != self.server {
            // Also of the first one that speaks it is not known which one has read what was asked.
            ip.forget_requests();
            (self.server, self.greets) = (message.epoch, true);
        }
        match message.body {
            IpBody::Network(ref news) => ip.handle_told(news::decode(news)),
            IpBody::Unreachable { protocol, local, remote, seq } => {
                ip.handle_unreachable(now, remote.addr);
                let protocol = Protocol(protocol);
                return matches!(protocol, Protocol::TCP | Protocol::UDP).then_some(NetworkError {
                    kind: ErrorKind::Unreachable { code: code::HOST },
                    protocol,
                    tuple: FourTuple { local, remote },
                    quoted_seq: (protocol == Protocol::TCP).then_some(SeqNum(seq)),
                    reporter: local.addr,
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

    /// Passes what there is to say to `send`, which says whether the ring took it; what it did not is offered
    /// again next time.
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

    /// Whether there is something to say.
    pub fn has_messages(&self, ip: &Ip) -> bool {
        self.greets || ip.has_requests()
    }

    /// Messages of the IP server that made no sense, or came from one that is gone.
    pub const fn bad(&self) -> u64 {
        self.bad
    }
}
