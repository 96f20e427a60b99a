//! Answers and sends ICMPv6 messages, and stays silent where that is required (RFC 4443).

use atoll_base::{Addr, FourTuple, Instant};
use atoll_wire::icmpv6::{self, Message};
use atoll_wire::ipv4::Protocol;
use atoll_wire::{Mac, ParseError, ethernet, icmp, ipv6, mld, nd};

use crate::counters::Reason;
use crate::icmp::{ErrorKind, NetworkError};
use crate::input::Received;
use crate::ip::Ip;
use crate::link::Link;
use crate::output::{Outgoing, headers_len};

impl Ip {
    /// Judges an ICMPv6 message. `from` is the station that sent the frame; `alerts_mld` is as in
    /// [`ipv6::Upper`].
    #[inline(never)]
    pub(super) fn handle_icmpv6<'a>(
        &mut self,
        now: Instant,
        link: Link,
        from: Mac,
        header: &ipv6::Header,
        alerts_mld: bool,
        bytes: &'a [u8],
    ) -> Result<Received<'a>, Reason> {
        let (message, head) = icmpv6::parse(header.src, header.dst, bytes).map_err(|error| match error {
            ParseError::BadChecksum => Reason::BadChecksum,
            _ => Reason::Malformed,
        })?;
        if let Message::Other { kind, .. } = message
            && link == Link::Outside
            && !message.is_error()
        {
            return match kind {
                // RFC 3810 §6.2: a query carries the router alert option.
                mld::QUERY if !alerts_mld => Err(Reason::NdIgnored),
                mld::QUERY | mld::REPORT_V1 | mld::DONE => self.handle_listeners(now, header, bytes),
                kind if nd::KINDS.contains(&kind) => self.handle_nd(now, from, header, bytes),
                _ => Err(Reason::IcmpIgnored),
            }
            .map(|()| Received::Consumed);
        }
        if header.src == Addr::ANY {
            return Err(Reason::Martian);
        }
        let body = bytes.get(head..).unwrap_or_default();
        let kind = match message {
            // DEVIATION: RFC 4443 §4.2 wants requests to groups answered as well. As with IPv4, not answering
            // them keeps the stack from amplifying attacks.
            Message::EchoRequest { id, seq } if !header.dst.is_v6_multicast() => {
                self.answer_echo_v6(now, link, from, header, Message::EchoReply { id, seq }, body)?;
                return Ok(Received::Consumed);
            }
            // RFC 8201 §4, RFC 8021: a size below what every link carries is not believed, and leads to no
            // atomic fragments.
            Message::PacketTooBig { mtu } if mtu < u32::from(ipv6::MTU_MIN) => {
                return Err(Reason::IcmpIgnored);
            }
            Message::PacketTooBig { mtu } => {
                ErrorKind::FragNeeded { mtu: u16::try_from(mtu).unwrap_or(u16::MAX) }
            }
            Message::Unreachable { code } => ErrorKind::Unreachable { code: code_of(code) },
            Message::ParameterProblem { code: icmpv6::code::UNRECOGNIZED_NEXT_HEADER, .. } => {
                ErrorKind::Unreachable { code: icmp::code::PROTOCOL }
            }
            Message::TimeExceeded { code } => ErrorKind::TimeExceeded { code },
            Message::ParameterProblem { .. } => ErrorKind::Problem,
            // RFC 4443 §2.4 (a): an error of an unknown type is an error all the same.
            Message::Other { .. } if message.is_error() => ErrorKind::Problem,
            _ => return Err(Reason::IcmpIgnored),
        };
        self.attribute_v6(link, header.src, kind, body).map(Received::Error)
    }

    /// Queues an error about `frame`, or counts that it may not be sent (RFC 4443 §2.4 (e), (f)).
    pub(crate) fn error_v6(&mut self, now: Instant, link: Link, frame: &[u8], message: Message) {
        match self.send_error_v6(now, link, frame, message) {
            Some(()) => self.common.count().errors_out += 1,
            None => self.common.count().errors_suppressed += 1,
        }
    }

    fn send_error_v6(&mut self, now: Instant, link: Link, frame: &[u8], message: Message) -> Option<()> {
        let (ethernet, at) = ethernet::parse(frame).ok()?;
        let packet = frame.get(at..)?;
        let (header, header_len) = ipv6::parse(packet).ok()?;
        let payload = packet.get(header_len..header_len + usize::from(header.payload_len))?;
        if !self.is_source_v6(link, header.src) || ethernet.src.is_group() {
            return None;
        }
        // Only an unknown option that asks for an error gets one although the packet went to a group.
        let to_group = ethernet.dst.is_group() || header.dst.is_v6_multicast();
        let asks =
            matches!(message, Message::ParameterProblem { code: icmpv6::code::UNRECOGNIZED_OPTION, .. });
        if to_group && !asks {
            return None;
        }
        if let Ok(upper) = ipv6::upper(&header, payload) {
            let text = payload.get(upper.at..)?;
            // The type in a later fragment cannot be seen; redirects count as errors (RFC 4443 §2.4 (e.2)).
            let is_later_part = upper.fragment.is_some_and(|fragment| fragment.offset != 0);
            let kind = text.first().filter(|_| !is_later_part);
            if upper.protocol == Protocol::ICMPV6 && kind.is_none_or(|kind| *kind < 128 || *kind == 137) {
                return None;
            }
        }
        let src = if self.is_ours_v6(link, header.dst) { header.dst } else { self.source_for(header.src)? };
        let cost = 1 + self.common.rng().below(3);
        if !self.error_limit.take(now, cost) {
            return None;
        }
        // RFC 4443 §2.4 (c): the error quotes as much of the packet as fits the smallest link.
        let whole = header_len + payload.len();
        let quotation = packet.get(..whole.min(QUOTATION_MAX))?;
        let outgoing = Outgoing {
            dst_mac: ethernet.src,
            src,
            dst: header.src,
            protocol: Protocol::ICMPV6,
            payload_len: icmpv6::HEADER_LEN + quotation.len(),
            tos: 0,
            ttl: self.v6.hop_limit,
            dont_fragment: true,
        };
        self.send_icmpv6(now, link, &outgoing, &message, quotation).then_some(())
    }

    /// Answers an echo request with its own data; source and destination change places (RFC 4443 §4.2).
    fn answer_echo_v6(
        &mut self,
        now: Instant,
        link: Link,
        from: Mac,
        header: &ipv6::Header,
        reply: Message,
        body: &[u8],
    ) -> Result<(), Reason> {
        // A request that came in fragments is answered in fragments, each of which takes a token.
        let len = icmpv6::HEADER_LEN + body.len();
        if !self.echo_limit.take(now, 1 + (len / usize::from(self.mtu_v6())) as u32) {
            return Err(Reason::EchoLimit);
        }
        let outgoing = Outgoing {
            dst_mac: from,
            src: header.dst,
            dst: header.src,
            protocol: Protocol::ICMPV6,
            payload_len: len,
            tos: header.traffic_class & !3,
            ttl: self.v6.hop_limit,
            dont_fragment: true,
        };
        if self.send_icmpv6(now, link, &outgoing, &reply, body) {
            self.common.count().echoes += 1;
        }
        Ok(())
    }

    /// Returns the error for the packet that an ICMPv6 error quotes; fails if the packet is not ours.
    fn attribute_v6(
        &self,
        link: Link,
        reporter: Addr,
        kind: ErrorKind,
        body: &[u8],
    ) -> Result<NetworkError, Reason> {
        let quoted = icmpv6::quoted(body).map_err(|_| Reason::Malformed)?;
        let protocol = quoted.protocol;
        if !self.is_ours_v6(link, quoted.source.addr) || !matches!(protocol, Protocol::TCP | Protocol::UDP) {
            return Err(Reason::IcmpNotAboutUs);
        }
        // RFC 5927 §7.2: a packet that fits was not lost for its size.
        let lost = usize::from(quoted.header.payload_len) + ipv6::HEADER_LEN;
        if matches!(kind, ErrorKind::FragNeeded { mtu } if usize::from(mtu) > lost) {
            return Err(Reason::IcmpNotAboutUs);
        }
        let tuple = FourTuple { local: quoted.source, remote: quoted.destination };
        Ok(NetworkError { kind, protocol, tuple, quoted_seq: quoted.seq, reporter })
    }

    fn send_icmpv6(
        &mut self,
        now: Instant,
        link: Link,
        outgoing: &Outgoing,
        message: &Message,
        body: &[u8],
    ) -> bool {
        let at = headers_len(outgoing.dst);
        let mut bytes = alloc::vec![0; at + outgoing.payload_len];
        let text = &mut bytes[at..];
        text[icmpv6::HEADER_LEN..].copy_from_slice(body);
        icmpv6::emit(outgoing.src, outgoing.dst, message, text);
        let mtu = self.path_mtu(now, outgoing.dst).map_or(self.mtu_v6(), |path| path.mtu);
        self.common.send(link, outgoing, bytes, mtu)
    }
}

/// Returns the equivalent code of IPv4's ICMP, for callers that need not know the difference.
const fn code_of(code: u8) -> u8 {
    match code {
        icmpv6::code::NO_ROUTE => icmp::code::NET,
        icmpv6::code::PROHIBITED => icmp::code::ADMINISTRATIVELY_PROHIBITED,
        icmpv6::code::PORT => icmp::code::PORT,
        _ => icmp::code::HOST,
    }
}

/// The most octets of a packet that an error quotes: an error is no longer than the smallest link carries.
const QUOTATION_MAX: usize = ipv6::MTU_MIN as usize - ipv6::HEADER_LEN - icmpv6::HEADER_LEN;
