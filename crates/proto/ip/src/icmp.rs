//! Answers and sends ICMP messages, and stays silent where that is required (RFC 792, RFC 1122 §3.2.2, RFC
//! 1812 §4.3.2).

use atoll_base::{Addr, FourTuple, Instant, SeqNum};
use atoll_wire::ethernet::EtherType;
use atoll_wire::icmp::{self, Message, code};
use atoll_wire::ipv4::{self, Protocol};
use atoll_wire::{Mac, ParseError, ethernet, icmpv6};

use crate::counters::Reason;
use crate::input::Received;
use crate::ip::Ip;
use crate::link::Link;
use crate::output::{HEADERS_LEN, Outgoing, TTL};

/// An ICMP error about a packet of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkError {
    /// What happened to the packet.
    pub kind: ErrorKind,
    /// The protocol of the packet: TCP or UDP.
    pub protocol: Protocol,
    /// The connection that the packet belonged to; `local` is ours. Nothing proves that there is such a
    /// connection, or that the packet was sent.
    pub tuple: FourTuple,
    /// The sequence number of the packet, if it was TCP. An error about data that is not in flight is forged
    /// or late (RFC 5927 §4.1).
    pub quoted_seq: Option<SeqNum>,
    /// The host that sent the error.
    pub reporter: Addr,
}

/// What happened to a packet of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The packet was larger than a link on its path carries, and not to be fragmented.
    FragNeeded {
        /// The size of the packets that pass, in octets: at least 68, for IPv6 at least 1280. Routers older
        /// than RFC 1191 do not report a size; then it is the next plateau below the size of the lost packet
        /// (RFC 1191 §7.1).
        mtu: u16,
    },
    /// The packet could not be delivered.
    Unreachable {
        /// A code of [`atoll_wire::icmp::code`]; for IPv6 errors, the equivalent code there.
        code: u8,
    },
    /// The packet ran out of hops (code 0), or its fragments did not arrive in time (code 1).
    TimeExceeded {
        /// The ICMP code: 0 or 1.
        code: u8,
    },
    /// A host on the path found a fault in the packet's header.
    Problem,
}

impl Ip {
    /// Judges an ICMP message. `from` is the station that sent the frame.
    #[inline(never)]
    pub(crate) fn handle_icmp<'a>(
        &mut self,
        now: Instant,
        link: Link,
        from: Mac,
        header: &ipv4::Header,
        bytes: &'a [u8],
    ) -> Result<Received<'a>, Reason> {
        let (message, head) = icmp::parse(bytes).map_err(|error| match error {
            ParseError::BadChecksum => Reason::BadChecksum,
            _ => Reason::Malformed,
        })?;
        let body = bytes.get(head..).unwrap_or_default();
        let kind = match message {
            Message::EchoRequest { id, seq } => {
                self.answer_echo(now, link, from, header, Message::EchoReply { id, seq }, body)?;
                return Ok(Received::Consumed);
            }
            Message::Unreachable { code: code::FRAGMENTATION_NEEDED, next_hop_mtu } => {
                ErrorKind::FragNeeded { mtu: next_hop_mtu }
            }
            Message::Unreachable { code, .. } => ErrorKind::Unreachable { code },
            Message::TimeExceeded { code } => ErrorKind::TimeExceeded { code },
            // RFC 1122 §3.2.2.5.
            Message::Other { kind: icmp::PARAMETER_PROBLEM, .. } => ErrorKind::Problem,
            Message::EchoReply { .. } | Message::Other { .. } => return Err(Reason::IcmpIgnored),
        };
        self.attribute(link, header.src, kind, body).map(Received::Error)
    }

    /// Queues "destination unreachable" with `code` about `frame` (from the Ethernet header on), which
    /// arrived over `link`.
    ///
    /// Sends nothing and counts that where an error is forbidden (RFC 1122 §3.2.2: about ICMP errors,
    /// broadcasts, later fragments, packets from no single host), or where too many were sent (RFC 1812
    /// §4.3.2.8).
    #[inline(never)]
    pub fn unreachable(&mut self, now: Instant, link: Link, frame: &[u8], code: u8) {
        let is_v6 = frame.get(12..14) == Some(&EtherType::IPV6.0.to_be_bytes());
        if is_v6 {
            let code = if code == code::PORT { icmpv6::code::PORT } else { icmpv6::code::ADDRESS };
            self.error_v6(now, link, frame, icmpv6::Message::Unreachable { code });
            return;
        }
        self.report(now, link, frame, Message::Unreachable { code, next_hop_mtu: 0 });
    }

    /// Sends the ICMP error `error` about an IPv4 frame, under the same rules as [`Ip::unreachable`], and
    /// counts it.
    pub(crate) fn report(&mut self, now: Instant, link: Link, frame: &[u8], error: Message) {
        let sent = self.send_error(now, link, frame, error);
        if sent.is_some() {
            self.common.count().errors_out += 1;
        } else {
            self.common.count().errors_suppressed += 1;
        }
        self.check_invariants();
    }

    /// Answers an echo request with its own data; source and destination change places (RFC 1122 §3.2.2.6).
    fn answer_echo(
        &mut self,
        now: Instant,
        link: Link,
        from: Mac,
        header: &ipv4::Header,
        reply: Message,
        body: &[u8],
    ) -> Result<(), Reason> {
        // A request that came in fragments is answered in fragments, each of which takes a token.
        let len = icmp::HEADER_LEN + body.len();
        if !self.echo_limit.take(now, 1 + (len / usize::from(self.mtu())) as u32) {
            return Err(Reason::EchoLimit);
        }
        // The reply goes to the station that the request came from, without ARP: that also works where
        // another replica had asked ARP. RFC 1122 §3.2.1.6 returns the TOS; congestion marks are not echoed.
        let outgoing = Outgoing {
            dst_mac: from,
            src: Addr::v4(header.dst),
            dst: Addr::v4(header.src),
            protocol: Protocol::ICMP,
            payload_len: len,
            tos: header.tos & !3,
            ttl: TTL,
            dont_fragment: false,
        };
        if self.send_icmp(link, &outgoing, &reply, body) {
            self.common.count().echoes += 1;
        }
        Ok(())
    }

    /// Returns the error for the packet that an ICMP error quotes; fails if the packet is not ours.
    fn attribute(
        &self,
        link: Link,
        reporter: u32,
        kind: ErrorKind,
        quotation: &[u8],
    ) -> Result<NetworkError, Reason> {
        let quoted = icmp::quoted(quotation).map_err(|_| Reason::Malformed)?;
        let protocol = quoted.header.protocol;
        if !self.addresses.is_ours(link, quoted.header.src)
            || !matches!(protocol, Protocol::TCP | Protocol::UDP)
        {
            return Err(Reason::IcmpNotAboutUs);
        }
        let lost = quoted.header.payload_len.saturating_add(ipv4::HEADER_LEN as u16);
        let kind = match kind {
            ErrorKind::FragNeeded { mtu: 0 } => ErrorKind::FragNeeded { mtu: plateau_below(lost) },
            // RFC 5927 §7.2: a packet that fits was not lost for its size.
            ErrorKind::FragNeeded { mtu } if mtu > lost => return Err(Reason::IcmpNotAboutUs),
            ErrorKind::FragNeeded { mtu } => ErrorKind::FragNeeded { mtu: mtu.max(MTU_FLOOR) },
            kind => kind,
        };
        let tuple = FourTuple { local: quoted.source, remote: quoted.destination };
        Ok(NetworkError { kind, protocol, tuple, quoted_seq: quoted.seq, reporter: Addr::v4(reporter) })
    }

    fn send_error(&mut self, now: Instant, link: Link, frame: &[u8], message: Message) -> Option<()> {
        let (ethernet, at) = ethernet::parse(frame).ok()?;
        let packet = frame.get(at..)?;
        let (header, header_len) = ipv4::parse(packet).ok()?;
        let payload = packet.get(header_len..header_len + usize::from(header.payload_len))?;
        let about_one_host = !ethernet.dst.is_group()
            && self.addresses.is_ours(link, header.dst)
            && self.addresses.is_source(link, header.src);
        // The checksum of a first fragment cannot be verified; the type is enough.
        let about_an_error = header.protocol == Protocol::ICMP && icmp::is_error(payload);
        if !about_one_host || about_an_error || header.fragment_offset != 0 || ethernet.src.is_group() {
            return None;
        }
        // The cost is random, so that a host cannot count our errors to others by those that it still gets
        // (CVE-2020-25705).
        let cost = 1 + self.common.rng().below(3);
        if !self.error_limit.take(now, cost) {
            return None;
        }
        // RFC 1812 §4.3.2.3: the error quotes as much of the packet as fits in 576 octets.
        let whole = header_len + payload.len();
        let quotation = packet.get(..whole.min(QUOTATION_MAX))?;
        let outgoing = Outgoing {
            dst_mac: ethernet.src,
            src: Addr::v4(header.dst),
            dst: Addr::v4(header.src),
            protocol: Protocol::ICMP,
            payload_len: icmp::HEADER_LEN + quotation.len(),
            tos: INTERNETWORK_CONTROL,
            ttl: TTL,
            dont_fragment: false,
        };
        self.send_icmp(link, &outgoing, &message, quotation).then_some(())
    }

    fn send_icmp(&mut self, link: Link, outgoing: &Outgoing, message: &Message, body: &[u8]) -> bool {
        let mut bytes = alloc::vec![0; HEADERS_LEN + outgoing.payload_len];
        let text = &mut bytes[HEADERS_LEN..];
        text[icmp::HEADER_LEN..].copy_from_slice(body);
        icmp::emit(message, text);
        let mtu = self.mtu();
        self.common.send(link, outgoing, bytes, mtu)
    }
}

/// Returns the largest plateau of RFC 1191 §7.1 that is below `size`.
fn plateau_below(size: u16) -> u16 {
    PLATEAUS.into_iter().find(|plateau| *plateau < size).unwrap_or(MTU_FLOOR)
}

const PLATEAUS: [u16; 10] = [32_000, 17_914, 8_166, 4_352, 2_002, 1_492, 1_006, 508, 296, 68];

/// The smallest MTU that is believed: every link carries 68 octets (RFC 791).
const MTU_FLOOR: u16 = 68;

/// The most octets of a packet that an error quotes: an error is at most 576 octets long (RFC 1812 §4.3.2.3).
const QUOTATION_MAX: usize = 576 - ipv4::HEADER_LEN - icmp::HEADER_LEN;

/// The TOS of ICMP errors: precedence 6 (RFC 1812 §4.3.2.5).
const INTERNETWORK_CONTROL: u8 = 0xc0;
