//! Which ICMP messages are answered, which packets get an error, and where is silence required? RFC 792, RFC
//! 1122 §3.2.2, RFC 1812 §4.3.2.

use atoll_base::{Addr, FourTuple};
use atoll_wire::ethernet;
use atoll_wire::icmp::{self, Message, code};
use atoll_wire::ipv4::{self, Protocol};

use super::network::Network;
use crate::addresses::Addresses;
use crate::common::Common;
use crate::counters::Reason;
use crate::icmp::{self as both, ErrorKind, HEADER_LEN, Icmp, NetworkError, REASSEMBLY, Reply};
use crate::input::{Arrival, Received};
use crate::link::Link;
use crate::output::TTL;

/// Judges the ICMP message `bytes`.
#[inline(never)]
pub(super) fn receive<'a>(
    arrival: &Arrival<'a>,
    header: &ipv4::Header,
    bytes: &'a [u8],
    network: &Network,
    icmp: &mut Icmp,
    common: &mut Common,
) -> Result<Received<'a>, Reason> {
    let (message, head) = icmp::parse(bytes)?;
    let body = bytes.get(head..).unwrap_or_default();
    let kind = match message {
        Message::EchoRequest { id, seq } => {
            let mtu = network.mtu(common.config().mtu);
            let reply = Reply {
                link: arrival.link,
                to: arrival.from,
                src: Addr::v4(header.dst),
                dst: Addr::v4(header.src),
                // RFC 1122 §3.2.1.6 returns the TOS; congestion marks are not echoed.
                tos: header.tos & !3,
                ttl: TTL,
                message: both::Message::V4(Message::EchoReply { id, seq }),
                body,
                mtu,
            };
            return icmp.answer_echo(arrival.now, common, mtu, &reply).map(|()| Received::Consumed);
        }
        Message::EchoReply { id, .. } => {
            return Ok(Received::EchoReply {
                src: Addr::v4(header.src),
                dst: Addr::v4(header.dst),
                id,
                tos: header.tos,
                ttl: header.ttl,
                message: bytes,
            });
        }
        error => kind_of(error)?,
    };
    let quoted = icmp::quoted(body).map_err(|_| Reason::Malformed)?;
    let lost = quoted.header.payload_len.saturating_add(ipv4::HEADER_LEN as u16);
    let error = NetworkError {
        kind,
        protocol: quoted.header.protocol,
        tuple: FourTuple { local: quoted.source, remote: quoted.destination },
        quoted_seq: quoted.seq,
        quoted: quoted.head,
        reporter: Addr::v4(header.src),
        hops: quoted.header.ttl,
    };
    let is_ours = network.addresses().is_ours(arrival.link, quoted.header.src);
    let error = error.believe(is_ours, lost.into())?;
    let kind = match kind {
        ErrorKind::FragNeeded { mtu: 0 } => ErrorKind::FragNeeded { mtu: plateau_below(lost) },
        ErrorKind::FragNeeded { mtu } => ErrorKind::FragNeeded { mtu: mtu.max(MTU_FLOOR) },
        kind => kind,
    };
    let text = body.get(quoted.text_at..).unwrap_or_default();
    Ok(Received::Error(NetworkError { kind, ..error }, text))
}

/// Returns the fate of a packet that a message reports.
fn kind_of(message: Message) -> Result<ErrorKind, Reason> {
    Ok(match message {
        Message::Unreachable { code: code::FRAGMENTATION_NEEDED, next_hop_mtu } => {
            ErrorKind::FragNeeded { mtu: next_hop_mtu }
        }
        // icmp_unreach of Linux: codes that nobody knows, and that a packet was not put together in time, are
        // nobody's errors.
        Message::Unreachable { code, .. } if code > code::PRECEDENCE_CUTOFF => {
            return Err(Reason::IcmpIgnored);
        }
        Message::TimeExceeded { code: REASSEMBLY } => return Err(Reason::IcmpIgnored),
        Message::Unreachable { code, .. } => ErrorKind::Lost { kind: icmp::UNREACHABLE, code, info: 0 },
        Message::TimeExceeded { code } => ErrorKind::Lost { kind: icmp::TIME_EXCEEDED, code, info: 0 },
        // RFC 1122 §3.2.2.5.
        Message::Other { kind: kind @ icmp::PARAMETER_PROBLEM, code, rest: [at, ..] } => {
            ErrorKind::Lost { kind, code, info: at.into() }
        }
        // RFC 6633: transports do not act on it; a ping that asks for errors sees it (ping_err of Linux).
        Message::Other { kind: kind @ icmp::SOURCE_QUENCH, code, .. } => {
            ErrorKind::Lost { kind, code, info: 0 }
        }
        _ => return Err(Reason::IcmpIgnored),
    })
}

/// Returns the error `message` about `frame`; `None` where an error is forbidden (RFC 1122 §3.2.2: about
/// ICMP errors, broadcasts, later fragments, packets from no single host).
pub(super) fn error_about<'a>(
    frame: &'a [u8],
    link: Link,
    message: Message,
    addresses: &Addresses,
    mtu: u16,
) -> Option<Reply<'a>> {
    let (ethernet, at) = ethernet::parse(frame).ok()?;
    let packet = frame.get(at..)?;
    let (header, header_len) = ipv4::parse(packet).ok()?;
    let payload = packet.get(header_len..header_len + usize::from(header.payload_len))?;
    let about_one_host = !ethernet.dst.is_group()
        && addresses.is_ours(link, header.dst)
        && addresses.is_source(link, header.src);
    // The checksum of a first fragment cannot be verified; the type is enough.
    let about_an_error = header.protocol == Protocol::ICMP && icmp::is_error(payload);
    if !about_one_host || about_an_error || header.fragment_offset != 0 || ethernet.src.is_group() {
        return None;
    }
    let whole = header_len + payload.len();
    Some(Reply {
        link,
        to: ethernet.src,
        src: Addr::v4(header.dst),
        dst: Addr::v4(header.src),
        tos: INTERNETWORK_CONTROL,
        ttl: TTL,
        message: both::Message::V4(message),
        body: packet.get(..whole.min(QUOTATION_MAX))?,
        mtu,
    })
}

/// Returns the largest plateau of RFC 1191 §7.1 that is below `size`.
fn plateau_below(size: u16) -> u16 {
    PLATEAUS.into_iter().find(|plateau| *plateau < size).unwrap_or(MTU_FLOOR)
}

const PLATEAUS: [u16; 10] = [32_000, 17_914, 8_166, 4_352, 2_002, 1_492, 1_006, 508, 296, 68];

/// The smallest MTU that is believed: every link carries 68 octets (RFC 791).
const MTU_FLOOR: u16 = 68;

/// The most octets of a packet that an error quotes: an error is at most 576 octets long (RFC 1812 §4.3.2.3).
const QUOTATION_MAX: usize = 576 - ipv4::HEADER_LEN - HEADER_LEN;

/// The TOS of ICMP errors: precedence 6 (RFC 1812 §4.3.2.5).
const INTERNETWORK_CONTROL: u8 = 0xc0;
