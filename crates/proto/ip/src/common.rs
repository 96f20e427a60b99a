//! What do all parts use? The configuration, randomness, identifications, the queue of frames that the stack
//! itself sends, and the counters.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::Range;

use atoll_base::{Addr, Rng};
use atoll_wire::ipv4::Protocol;
use atoll_wire::{Mac, ethernet, mld, nd};

use crate::config::Config;
use crate::counters::Counters;
use crate::identifications::Identifications;
use crate::link::{Frame, Link};
use crate::output::{FRAGMENT_HEADERS_LEN_MAX, Outgoing, headers_len, parts};

/// The state that all parts use.
#[derive(Debug)]
pub(crate) struct Common {
    config: Config,
    rng: Rng,
    identifications: Identifications,
    frames: VecDeque<Frame>,
    counters: Counters,
    /// The message of ICMP in the frame that was handled last, until it is taken.
    message: Option<Message>,
}

/// A message of ICMP or ICMPv6 for this stack, as raw sockets get it. The checksum of one of ICMP may be
/// wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The host that has sent it.
    pub src: Addr,
    /// The address that it is for.
    pub dst: Addr,
    /// DSCP and ECN.
    pub tos: u8,
    /// The TTL or hop limit with which the packet arrived.
    pub ttl: u8,
    /// The type of the message.
    pub kind: u8,
    /// Where in the frame the IPv4 packet is, with its header, or the message of ICMPv6, without one.
    pub at: Range<usize>,
}

impl Message {
    /// Returns whether every replica handles such a message, as the link server classifies it
    /// (`atoll_link::Class::All`): what routers and neighbours say.
    pub fn is_for_all(&self) -> bool {
        match self.kind {
            _ if self.dst.is_v4() => false,
            nd::ROUTER_ADVERTISEMENT | nd::NEIGHBOUR_ADVERTISEMENT | nd::REDIRECT | mld::QUERY => true,
            nd::NEIGHBOUR_SOLICITATION => self.src == Addr::ANY,
            _ => false,
        }
    }
}

impl Common {
    pub(crate) fn new(config: Config, mut rng: Rng) -> Common {
        let identifications = Identifications::new(&mut rng, config.sibling);
        Common {
            config,
            rng,
            identifications,
            frames: VecDeque::new(),
            counters: Counters::default(),
            message: None,
        }
    }

    #[inline]
    pub(crate) const fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the hardware address of the stack.
    #[inline]
    pub(crate) const fn mac(&self) -> Mac {
        self.config.mac
    }

    /// Returns whether `mac` is a station that may be believed to be another one than ours.
    pub(crate) fn is_other_station(&self, mac: Mac) -> bool {
        mac.is_station() && mac != self.config.mac
    }

    /// Notes a valid message of ICMP. Its frame is the one that is being handled.
    pub(crate) fn note_message(&mut self, message: Message) {
        self.message = Some(message);
    }

    /// Forgets the message of an earlier frame.
    #[inline]
    pub(crate) fn forget_message(&mut self) {
        self.message = None;
    }

    /// Takes the message that was noted.
    pub(crate) const fn take_message(&mut self) -> Option<Message> {
        self.message.take()
    }

    pub(crate) const fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }

    pub(crate) const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the counters, to count something.
    #[inline]
    pub(crate) const fn count(&mut self) -> &mut Counters {
        &mut self.counters
    }

    pub(crate) fn identify(&mut self, dst: Addr, protocol: Protocol) -> u32 {
        self.identifications.next(dst, protocol)
    }

    /// Writes the headers of `packet`, as [`Ip::emit_headers`](crate::Ip::emit_headers) does.
    #[inline]
    pub(crate) fn emit_headers(&mut self, out: &mut [u8], packet: &Outgoing) -> usize {
        if !packet.dst.is_v4() {
            return packet.emit_v6(out, self.config.mac);
        }
        // RFC 6864 §4: the identification only matters where a packet may be fragmented.
        let id = if packet.dont_fragment {
            0
        } else {
            self.identifications.next(packet.dst, packet.protocol) as u16
        };
        packet.emit_v4(out, self.config.mac, id)
    }

    /// Queues the frame `bytes` to be sent, or drops it if too many wait. Returns whether it was queued.
    pub(crate) fn queue(&mut self, link: Link, bytes: Vec<u8>) -> bool {
        self.counters.push(&mut self.frames, Frame { link, bytes }, self.config.frames_max)
    }

    /// Queues a packet of the stack itself, in fragments if it has more than `mtu` octets and leaves the
    /// machine. `bytes` holds the payload behind room for the headers. Returns whether all of it was queued.
    pub(crate) fn send(&mut self, link: Link, packet: &Outgoing, mut bytes: Vec<u8>, mtu: u16) -> bool {
        let at = headers_len(packet.dst);
        if link == Link::Inside || bytes.len() - ethernet::HEADER_LEN <= usize::from(mtu) {
            self.emit_headers(&mut bytes, packet);
            return self.queue(link, bytes);
        }
        let id = self.identify(packet.dst, packet.protocol);
        parts(packet.dst, packet.payload_len, 0, mtu).all(|part| {
            let mut fragment = alloc::vec![0; FRAGMENT_HEADERS_LEN_MAX];
            let len = packet.emit_fragment(&mut fragment, self.config.mac, id, &part);
            fragment.truncate(len);
            fragment.extend_from_slice(&bytes[at + part.offset..][..part.len]);
            self.counters.fragments_out += 1;
            self.queue(link, fragment)
        })
    }

    /// Queues a packet of the stack itself to others, which is small enough for every link.
    pub(crate) fn send_small(&mut self, packet: &Outgoing, payload: &[u8]) -> bool {
        let mut bytes = alloc::vec![0; headers_len(packet.dst)];
        bytes.extend_from_slice(payload);
        self.send(Link::Outside, packet, bytes, u16::MAX)
    }

    /// Appends to a queue of what waits to be polled, or drops and counts what is too much.
    pub(crate) fn push<T>(&mut self, queue: &mut VecDeque<T>, item: T) {
        self.counters.push(queue, item, self.config.frames_max);
    }

    /// Returns the next frame to send, if any.
    pub(crate) fn poll_frame(&mut self) -> Option<Frame> {
        self.frames.pop_front()
    }

    pub(crate) fn check_invariants(&self) {
        assert!(self.frames.len() <= self.config.frames_max);
    }
}
