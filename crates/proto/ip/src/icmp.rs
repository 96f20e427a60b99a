//! The parts that ICMP and ICMPv6 have in common: what a received error means for a transport, how a message
//! is sent, and at which rate (RFC 792, RFC 1122 §3.2.2, RFC 1812 §4.3.2, RFC 4443).
//!
//! `v4/icmp.rs` and `v6/icmp.rs` read messages, and decide which packets get an answer or an error.

use atoll_base::{Addr, FourTuple, Instant, SeqNum};
use atoll_wire::ipv4::Protocol;
use atoll_wire::{Mac, icmp, icmpv6};

use crate::common::Common;
use crate::counters::Reason;
use crate::link::Link;
use crate::output::{Outgoing, headers_len};
use crate::rate::TokenBucket;

/// An ICMP error about a packet of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkError {
    /// The fate of the packet.
    pub kind: ErrorKind,
    /// The protocol of the packet: TCP, UDP, or that of an echo request.
    pub protocol: Protocol,
    /// The connection that the packet belonged to; `local` is ours. Nothing proves that there is such a
    /// connection, or that the packet was sent. An echo request has its identifier in the place of the own
    /// port, and 0 in the place of the other.
    pub tuple: FourTuple,
    /// The sequence number of the packet, if it was TCP. An error about data that is not in flight is forged
    /// or late (RFC 5927 §4.1).
    pub quoted_seq: Option<SeqNum>,
    /// The first octets of the packet's transport header.
    pub quoted: icmp::Head,
    /// The host that sent the error.
    pub reporter: Addr,
    /// What `IP_MINTTL` and `IPV6_MINHOPCOUNT` judge the error by. As on Linux (tcp_v4_err, tcp_v6_err) it is
    /// the TTL of the quoted packet of IPv4, and the hop limit with which a message of ICMPv6 arrived.
    pub hops: u8,
}

/// The fate of a packet of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The packet was larger than a link on its path carries, and not to be fragmented.
    FragNeeded {
        /// The size of the packets that pass, in octets: at least 68, for IPv6 at least 1280. Routers older
        /// than RFC 1191 do not report a size; then it is the next plateau below the size of the lost packet
        /// (RFC 1191 §7.1).
        mtu: u16,
    },
    /// The packet was lost for another reason.
    Lost {
        /// The type of the message: of ICMP about a packet of IPv4, of ICMPv6 about one of IPv6.
        kind: u8,
        /// The code of the message.
        code: u8,
        /// The word that the message adds: of a parameter problem, where in the packet the fault is.
        info: u32,
    },
}

impl ErrorKind {
    /// Returns the error that the neighbour of a packet does not answer, as this host itself reports it:
    /// arp_error_report and ndisc_error_report of Linux.
    pub const fn unanswered(is_v4: bool) -> ErrorKind {
        if is_v4 {
            ErrorKind::Lost { kind: icmp::UNREACHABLE, code: icmp::code::HOST, info: 0 }
        } else {
            ErrorKind::Lost { kind: icmpv6::UNREACHABLE, code: icmpv6::code::ADDRESS, info: 0 }
        }
    }
}

/// The limits on answers and errors, which both families share.
#[derive(Debug)]
pub(crate) struct Icmp {
    echo_limit: TokenBucket,
    error_limit: TokenBucket,
}

/// A message of either family.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Message {
    V4(icmp::Message),
    V6(icmpv6::Message),
}

/// A message that answers a packet.
#[derive(Debug)]
pub(crate) struct Reply<'a> {
    pub(crate) link: Link,
    /// The station that sent the packet. It gets the message without ARP or neighbour discovery: that also
    /// works where another replica had asked for the station.
    pub(crate) to: Mac,
    pub(crate) src: Addr,
    pub(crate) dst: Addr,
    pub(crate) tos: u8,
    pub(crate) ttl: u8,
    pub(crate) message: Message,
    /// The octets after the message's header: the data of an echo, or the packet that an error is about.
    pub(crate) body: &'a [u8],
    /// The size in octets above which the message is sent in fragments.
    pub(crate) mtu: u16,
}

impl NetworkError {
    /// Returns the error about a packet of `len` octets if the packet can have been sent: from an address of
    /// ours, and by a protocol that reports errors.
    pub(crate) fn believe(self, is_ours: bool, len: usize) -> Result<NetworkError, Reason> {
        // RFC 5927 §7.2: a packet that fits was not lost for its size.
        let fits = matches!(self.kind, ErrorKind::FragNeeded { mtu } if usize::from(mtu) > len);
        let is_spoken = match self.protocol {
            Protocol::TCP | Protocol::UDP => true,
            // Nobody hears of the fate of a reply.
            Protocol::ICMP | Protocol::ICMPV6 => self.tuple.local.port != 0,
            _ => false,
        };
        if is_ours && !fits && is_spoken { Ok(self) } else { Err(Reason::IcmpNotAboutUs) }
    }
}

impl Icmp {
    pub(crate) const fn new(now: Instant) -> Icmp {
        Icmp {
            echo_limit: TokenBucket::new(ECHO_PER_SECOND, ECHO_BURST, now),
            error_limit: TokenBucket::new(ERRORS_PER_SECOND, ERRORS_BURST, now),
        }
    }

    /// Answers an echo request that arrived over a link whose packets have at most `mtu` octets.
    pub(crate) fn answer_echo(
        &mut self,
        now: Instant,
        common: &mut Common,
        mtu: u16,
        reply: &Reply<'_>,
    ) -> Result<(), Reason> {
        // A request that came in fragments is answered in fragments, each of which takes a token.
        if !self.echo_limit.take(now, 1 + (reply.len() / usize::from(mtu)) as u32) {
            return Err(Reason::EchoLimit);
        }
        if reply.send(common) {
            common.count().echoes += 1;
        }
        Ok(())
    }

    /// Sends an error unless it is `None`, because it is forbidden, or too many were sent outside (RFC 1812
    /// §4.3.2.8, RFC 4443 §2.4 (f)). Counts it, or that it was not sent.
    pub(crate) fn report(&mut self, now: Instant, common: &mut Common, error: Option<Reply<'_>>) {
        // The cost is random, so that a host cannot count our errors to others by those that it still gets
        // (CVE-2020-25705).
        let is_sent = error.is_some_and(|error| {
            // As on Linux, what stays on this machine is not limited: a program hears of each refusal.
            if error.link == Link::Inside {
                return error.send(common);
            }
            let cost = 1 + common.rng().below(3);
            self.error_limit.take(now, cost) && error.send(common)
        });
        match is_sent {
            true => common.count().errors_out += 1,
            false => common.count().errors_suppressed += 1,
        }
    }
}

impl Reply<'_> {
    /// Returns the length of the message in octets.
    const fn len(&self) -> usize {
        HEADER_LEN + self.body.len()
    }

    fn send(&self, common: &mut Common) -> bool {
        let (protocol, dont_fragment) = match self.message {
            Message::V4(_) => (Protocol::ICMP, false),
            Message::V6(_) => (Protocol::ICMPV6, true),
        };
        let packet = Outgoing {
            dst_mac: self.to,
            src: self.src,
            dst: self.dst,
            protocol,
            payload_len: self.len(),
            tos: self.tos,
            ttl: self.ttl,
            dont_fragment,
        };
        let at = headers_len(self.dst);
        let mut bytes = alloc::vec![0; at + packet.payload_len];
        let text = &mut bytes[at..];
        text[HEADER_LEN..].copy_from_slice(self.body);
        match &self.message {
            Message::V4(message) => icmp::emit(message, text),
            Message::V6(message) => icmpv6::emit(self.src, self.dst, message, text),
        };
        common.send(self.link, &packet, bytes, self.mtu)
    }
}

/// The octets of the header of a message, in both families.
pub(crate) const HEADER_LEN: usize = icmp::HEADER_LEN;
const _: () = assert!(icmp::HEADER_LEN == icmpv6::HEADER_LEN);

/// The code of "time exceeded" for reassembly (RFC 792, RFC 4443 §3.3).
pub(crate) const REASSEMBLY: u8 = 1;

/// Echo requests answered per second: far more than any operator sends, far fewer than a flood.
pub(crate) const ECHO_PER_SECOND: u32 = 10_000;
const ECHO_BURST: u32 = 1_000;

/// Tokens for ICMP errors per second. Each error costs 1 to 3, so there are about 500 errors. Linux has
/// icmp_msgs_per_sec 1000 and icmp_msgs_burst 50.
const ERRORS_PER_SECOND: u32 = 1_000;
const ERRORS_BURST: u32 = 100;
