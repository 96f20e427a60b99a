//! The messages between a DHCP client and its server: RFC 2131 §2; options by RFC 2132 and RFC 3396.
//!
//! ```text
//!   op | htype | hlen | hops | xid | secs | flags | ciaddr | yiaddr | siaddr | giaddr
//!   | chaddr 16 | sname 64 | file 128 | cookie
//!   options: code, length, that many octets; PAD and END are one octet long
//! ```
//! Options may continue in `file` and `sname` (option 52), and a long one comes in pieces (RFC 3396):
//! [`Message::option`] joins them.

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ParseError;
use crate::ethernet::Mac;

/// The port of servers.
pub const SERVER_PORT: u16 = 67;
/// The port of clients.
pub const CLIENT_PORT: u16 = 68;
/// Bytes of a message before its options, the cookie included.
pub const HEADER_LEN: usize = 240;
/// Bytes of the shortest message: relays of BOOTP drop shorter ones (RFC 951 §3).
pub const MESSAGE_LEN_MIN: usize = 300;

/// The type of a message (option 53).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A client looks for servers.
    Discover = 1,
    /// A server offers an address.
    Offer = 2,
    /// A client wants an address, or wants it for longer.
    Request = 3,
    /// A client has found that another host has the address.
    Decline = 4,
    /// A server gives the address.
    Ack = 5,
    /// A server refuses the address.
    Nak = 6,
    /// A client does not need its address any more.
    Release = 7,
    /// A client has an address, and asks for the other parameters.
    Inform = 8,
}

/// The fixed part of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Whether the message is from a server.
    pub is_reply: bool,
    /// The number of the exchange, which the client draws.
    pub xid: u32,
    /// Seconds since the client began.
    pub secs: u16,
    /// Whether answers have to be broadcast.
    pub broadcast: bool,
    /// The address that the client has.
    pub client_addr: u32,
    /// The address that the client is given.
    pub your_addr: u32,
    /// The next server of a boot, which is not the DHCP server.
    pub next_addr: u32,
    /// The relay between client and server.
    pub relay_addr: u32,
    /// The hardware address of the client.
    pub mac: Mac,
}

/// A message that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// The fixed part of the message.
    pub header: Header,
    /// The type of the message.
    pub kind: Kind,
    /// The fields with options, in the order in which their pieces are joined (RFC 3396 §5): options, `file`,
    /// `sname`.
    fields: [&'a [u8]; 3],
}

/// Codes of options (RFC 2132, RFC 3442).
pub mod option {
    /// Padding of one octet.
    pub const PAD: u8 = 0;
    /// The mask of the network.
    pub const SUBNET_MASK: u8 = 1;
    /// Routers, the best first.
    pub const ROUTERS: u8 = 3;
    /// The addresses of resolvers.
    pub const DNS_SERVERS: u8 = 6;
    /// The domain in which names are looked up.
    pub const DOMAIN_NAME: u8 = 15;
    /// The MTU of the link.
    pub const MTU: u8 = 26;
    /// The address that the client asks for.
    pub const REQUESTED_ADDRESS: u8 = 50;
    /// The lease time of the address, in seconds.
    pub const LEASE_TIME: u8 = 51;
    /// The option that says which of `file` (1) and `sname` (2) hold options.
    pub const OVERLOAD: u8 = 52;
    /// The type of the message: [`Kind`](super::Kind).
    pub const MESSAGE_TYPE: u8 = 53;
    /// The address by which a server is known.
    pub const SERVER_IDENTIFIER: u8 = 54;
    /// The options that the client asks for.
    pub const PARAMETER_LIST: u8 = 55;
    /// The length of the longest message that the client takes.
    pub const MESSAGE_SIZE_MAX: u8 = 57;
    /// T1: the number of seconds after which the client asks its server for more time.
    pub const RENEWAL_TIME: u8 = 58;
    /// T2: the number of seconds after which the client asks all servers.
    pub const REBINDING_TIME: u8 = 59;
    /// The identity of the client; its hardware address unless this says otherwise.
    pub const CLIENT_IDENTIFIER: u8 = 61;
    /// Routes to networks (RFC 3442).
    pub const CLASSLESS_ROUTES: u8 = 121;
    /// Ends the options of a field.
    pub const END: u8 = 255;
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Layout {
    op: u8,
    hardware: u8,
    hardware_len: u8,
    hops: u8,
    xid: U32,
    secs: U16,
    flags: U16,
    client_addr: U32,
    your_addr: U32,
    next_addr: U32,
    relay_addr: U32,
    mac: Mac,
    mac_padding: [u8; 10],
    server_name: [u8; 64],
    file: [u8; 128],
    cookie: U32,
}

const _: () = assert!(size_of::<Layout>() == HEADER_LEN);

/// Reads a message; `bytes` is the text of a datagram.
///
/// Fails with [`ParseError::Unsupported`] for BOOTP (no cookie, no type) and for other hardware than
/// Ethernet. Options are read as far as they are valid: the first that is longer than its field ends them.
pub fn parse(bytes: &[u8]) -> Result<Message<'_>, ParseError> {
    let (raw, options) = Layout::ref_from_prefix(bytes).map_err(|_| ParseError::Truncated)?;
    if !(raw.op == REQUEST || raw.op == REPLY) || raw.cookie.get() != COOKIE {
        return Err(ParseError::Unsupported);
    }
    if raw.hardware != HARDWARE_ETHERNET || raw.hardware_len != 6 {
        return Err(ParseError::Unsupported);
    }
    let overload = pieces(options, option::OVERLOAD).next().and_then(<[u8]>::first).copied().unwrap_or(0);
    let fields = [
        options,
        if overload & OVERLOAD_FILE != 0 { &raw.file } else { &[] },
        if overload & OVERLOAD_SERVER_NAME != 0 { &raw.server_name } else { &[] },
    ];
    let mut message = Message {
        header: Header {
            is_reply: raw.op == REPLY,
            xid: raw.xid.get(),
            secs: raw.secs.get(),
            broadcast: raw.flags.get() & BROADCAST != 0,
            client_addr: raw.client_addr.get(),
            your_addr: raw.your_addr.get(),
            next_addr: raw.next_addr.get(),
            relay_addr: raw.relay_addr.get(),
            mac: raw.mac,
        },
        kind: Kind::Inform,
        fields,
    };
    let [kind] = message.octets(option::MESSAGE_TYPE).ok_or(ParseError::Unsupported)?;
    message.kind = Kind::from_u8(kind).ok_or(ParseError::Unsupported)?;
    Ok(message)
}

/// Writes the header at the start of `out`, with the cookie and without options, for which see
/// [`push_option`]; returns [`HEADER_LEN`]. Panics if `out` is shorter.
pub fn emit(header: &Header, out: &mut [u8]) -> usize {
    let raw = Layout {
        op: if header.is_reply { REPLY } else { REQUEST },
        hardware: HARDWARE_ETHERNET,
        hardware_len: 6,
        hops: 0,
        xid: U32::new(header.xid),
        secs: U16::new(header.secs),
        flags: U16::new(if header.broadcast { BROADCAST } else { 0 }),
        client_addr: U32::new(header.client_addr),
        your_addr: U32::new(header.your_addr),
        next_addr: U32::new(header.next_addr),
        relay_addr: U32::new(header.relay_addr),
        mac: header.mac,
        mac_padding: [0; 10],
        server_name: [0; 64],
        file: [0; 128],
        cookie: U32::new(COOKIE),
    };
    out[..HEADER_LEN].copy_from_slice(raw.as_bytes());
    HEADER_LEN
}

/// Writes an option of at most 255 octets at `at`; returns where the next one goes. Panics if `out` is too
/// short.
///
/// The last option is followed by [`option::END`].
pub fn push_option(out: &mut [u8], at: usize, code: u8, data: &[u8]) -> usize {
    let len = data.len().min(255);
    out[at] = code;
    out[at + 1] = len as u8;
    out[at + 2..at + 2 + len].copy_from_slice(&data[..len]);
    at + 2 + len
}

impl<'a> Message<'a> {
    /// Returns the octets of an option in `out`, its pieces joined; `None` if the option is not there. An
    /// option longer than `out` is cut.
    pub fn option<'b>(&self, code: u8, out: &'b mut [u8]) -> Option<&'b [u8]> {
        let mut found = None;
        for piece in self.fields.iter().flat_map(|field| pieces(field, code)) {
            let at = found.unwrap_or(0);
            let len = piece.len().min(out.len() - at);
            out[at..at + len].copy_from_slice(&piece[..len]);
            found = Some(at + len);
        }
        found.map(|len| &out[..len])
    }

    /// Returns the octets of an option; `None` if it is not there, or of another length.
    pub fn octets<const N: usize>(&self, code: u8) -> Option<[u8; N]> {
        let mut out = [0; N];
        (self.option(code, &mut out)?.len() == N).then_some(out)
    }

    /// Returns an option of four octets: an address, or a number of seconds.
    pub fn word(&self, code: u8) -> Option<u32> {
        self.octets(code).map(u32::from_be_bytes)
    }
}

/// Returns the pieces of an option in one field.
fn pieces(field: &[u8], code: u8) -> impl Iterator<Item = &[u8]> {
    let mut rest = field;
    let next = move || {
        loop {
            let (&found, tail) = rest.split_first()?;
            match found {
                option::PAD => rest = tail,
                option::END => return None,
                _ => {
                    let (&len, tail) = tail.split_first()?;
                    let (data, tail) = tail.split_at_checked(len.into())?;
                    rest = tail;
                    if found == code {
                        return Some(data);
                    }
                }
            }
        }
    };
    core::iter::from_fn(next).fuse()
}

impl Kind {
    const fn from_u8(n: u8) -> Option<Kind> {
        Some(match n {
            1 => Kind::Discover,
            2 => Kind::Offer,
            3 => Kind::Request,
            4 => Kind::Decline,
            5 => Kind::Ack,
            6 => Kind::Nak,
            7 => Kind::Release,
            8 => Kind::Inform,
            _ => return None,
        })
    }
}

const REQUEST: u8 = 1;
const REPLY: u8 = 2;
const HARDWARE_ETHERNET: u8 = 1;
const BROADCAST: u16 = 0x8000;
const COOKIE: u32 = 0x6382_5363;
const OVERLOAD_FILE: u8 = 1;
const OVERLOAD_SERVER_NAME: u8 = 2;

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    /// Returns a message with options, followed by other octets.
    fn message(options: &[(u8, &[u8])]) -> Vec<u8> {
        let mut bytes = std::vec![0; 2000];
        let mut at = emit(&Header { is_reply: true, ..Header::default() }, &mut bytes);
        for (code, data) in options {
            at = push_option(&mut bytes, at, *code, data);
        }
        bytes[at] = option::END;
        bytes.truncate(at + 1);
        bytes
    }

    const ACK: (u8, &[u8]) = (option::MESSAGE_TYPE, &[5]);

    #[test]
    fn a_message_is_laid_out_as_rfc_2131_draws_it() {
        let mut bytes = [0xee; HEADER_LEN];
        let header = Header {
            is_reply: false,
            xid: 0x0102_0304,
            secs: 5,
            broadcast: true,
            client_addr: 0x0a00_0001,
            mac: Mac([2, 0, 0, 0, 0, 1]),
            ..Header::default()
        };
        assert_eq!(emit(&header, &mut bytes), HEADER_LEN);
        assert_eq!(bytes[..16], [1, 1, 6, 0, 1, 2, 3, 4, 0, 5, 0x80, 0, 10, 0, 0, 1]);
        assert_eq!(bytes[28..36], [2, 0, 0, 0, 0, 1, 0, 0]);
        assert_eq!(bytes[236..], [99, 130, 83, 99]);
        assert!(bytes[36..236].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn long_options_come_in_pieces_and_in_other_fields() {
        let mut bytes = message(&[ACK, (option::OVERLOAD, &[3]), (6, &[1, 2, 3]), (15, b"a"), (6, &[4])]);
        // `sname` is read last.
        bytes[44..49].copy_from_slice(&[6, 1, 6, 15, 0]);
        bytes[108..114].copy_from_slice(&[0, 0, 6, 1, 5, option::END]);
        let message = parse(&bytes).unwrap();
        let mut out = [0; 16];
        assert_eq!(message.option(6, &mut out), Some(&[1, 2, 3, 4, 5, 6][..]));
        assert_eq!(message.option(6, &mut out[..5]), Some(&[1, 2, 3, 4, 5][..]));
        assert_eq!((message.word(6), message.octets::<7>(6)), (Some(0x0102_0304), None));
        assert_eq!(message.option(15, &mut out), Some(&b"a"[..]));
        assert_eq!(message.option(3, &mut out), None);
    }

    #[test]
    fn what_cannot_be_read_ends_the_options() {
        let mut bytes = message(&[ACK, (3, &[1; 4])]);
        bytes.truncate(bytes.len() - 1);
        bytes.extend([6, 9, 1, 1]);
        let message = parse(&bytes).unwrap();
        assert_eq!((message.kind, message.word(3), message.word(6)), (Kind::Ack, Some(0x0101_0101), None));
    }

    #[test]
    fn other_protocols_are_refused() {
        let good = message(&[ACK]);
        for (at, error) in [
            (0, ParseError::Unsupported),
            (1, ParseError::Unsupported),
            (2, ParseError::Unsupported),
            (239, ParseError::Unsupported),
        ] {
            let mut bytes = good.clone();
            bytes[at] ^= 0x10;
            assert_eq!(parse(&bytes), Err(error), "byte {at}");
        }
        assert_eq!(parse(&message(&[])), Err(ParseError::Unsupported));
        assert_eq!(parse(&message(&[(option::MESSAGE_TYPE, &[9])])), Err(ParseError::Unsupported));
        assert_eq!(parse(&good[..239]), Err(ParseError::Truncated));
    }

    proptest! {
        #[test]
        fn parse_undoes_emit(
            is_reply: bool, xid: u32, secs: u16, broadcast: bool, addrs: [u32; 4], mac: [u8; 6],
        ) {
            let [client_addr, your_addr, next_addr, relay_addr] = addrs;
            let mac = Mac(mac);
            let header =
                Header { is_reply, xid, secs, broadcast, client_addr, your_addr, next_addr, relay_addr, mac };
            let mut bytes = message(&[ACK]);
            emit(&header, &mut bytes);
            let parsed = parse(&bytes).unwrap();
            prop_assert_eq!((parsed.header, parsed.kind), (header, Kind::Ack));
        }

        #[test]
        fn junk_is_judged_without_panic(junk in prop::collection::vec(any::<u8>(), 0..400)) {
            let mut bytes = message(&[ACK]);
            bytes.extend(junk);
            let mut out = [0; 40];
            for code in 0..=255 {
                let _ = parse(&bytes).map(|message| message.option(code, &mut out).map(<[u8]>::len));
            }
        }
    }
}
