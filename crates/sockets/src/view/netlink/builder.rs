//! Writes netlink messages: netlink(7). Numbers have the byte order of the machine.

use alloc::vec::Vec;

use super::{HEAD_BYTES, aligned};

/// The octets up to which a datagram takes further messages. The kernel's are of a page, too, and programs
/// have buffers for that.
const DATAGRAM_BYTES: usize = 3800;
const NLM_F_MULTI: u16 = libc::NLM_F_MULTI as u16;
const NLM_F_CAPPED: u16 = libc::NLM_F_CAPPED as u16;
const NLMSG_ERROR: u16 = libc::NLMSG_ERROR as u16;
const NLMSG_DONE: u16 = libc::NLMSG_DONE as u16;

/// The head of a message: `struct nlmsghdr`.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// The length of the message in octets, with its head.
    pub len: u32,
    /// The type of the message.
    pub kind: u16,
    /// The `NLM_F_*` flags.
    pub flags: u16,
    /// The number by which the program knows the answer.
    pub sequence: u32,
}

impl Head {
    /// Reads the head of a message.
    pub fn read(octets: &[u8]) -> Option<Head> {
        let octets: &[u8; HEAD_BYTES] = octets.first_chunk()?;
        let half = |at: usize| u16::from_ne_bytes([octets[at], octets[at + 1]]);
        let word =
            |at: usize| u32::from_ne_bytes([octets[at], octets[at + 1], octets[at + 2], octets[at + 3]]);
        Some(Head { len: word(0), kind: half(4), flags: half(6), sequence: word(8) })
    }
}

/// The datagrams of an answer.
pub struct Answers {
    datagrams: Vec<Vec<u8>>,
    /// Whether the last datagram holds parts of a list, and takes more.
    is_open: bool,
    port: u32,
    cap_errors: bool,
}

impl Answers {
    /// Creates an empty answer for the socket of this number.
    pub fn new(port: u32, cap_errors: bool) -> Answers {
        Answers { datagrams: Vec::new(), is_open: false, port, cap_errors }
    }

    /// Appends a message that is an answer by itself, in a datagram of its own.
    pub fn plain(&mut self, to: &Head, kind: u16, body: impl FnOnce(&mut Vec<u8>)) {
        self.is_open = false;
        self.message(to, (kind, 0), body);
    }

    /// Appends one part of a list.
    pub fn part(&mut self, to: &Head, kind: u16, body: impl FnOnce(&mut Vec<u8>)) {
        self.message(to, (kind, NLM_F_MULTI), body);
        self.is_open = true;
    }

    /// Ends a list.
    pub fn done(&mut self, to: &Head) {
        self.message(to, (NLMSG_DONE, NLM_F_MULTI), |out| out.extend([0; 4]));
        self.is_open = false;
    }

    /// Appends an error, or an acknowledgement if `errno` is 0, which quotes the request.
    pub fn error(&mut self, to: &Head, request: &[u8], errno: i32) {
        let is_capped = errno == 0 || self.cap_errors;
        let quoted = if is_capped { &request[..HEAD_BYTES] } else { request };
        self.is_open = false;
        self.message(to, (NLMSG_ERROR, if is_capped { NLM_F_CAPPED } else { 0 }), |out| {
            out.extend((-errno).to_ne_bytes());
            out.extend(quoted);
        });
    }

    /// Returns the datagrams.
    pub fn finish(self) -> Vec<Vec<u8>> {
        self.datagrams
    }

    fn message(&mut self, to: &Head, (kind, flags): (u16, u16), body: impl FnOnce(&mut Vec<u8>)) {
        let mut message = Vec::with_capacity(1024);
        message.extend([0; 4]);
        message.extend(kind.to_ne_bytes());
        message.extend(flags.to_ne_bytes());
        message.extend(to.sequence.to_ne_bytes());
        message.extend(self.port.to_ne_bytes());
        body(&mut message);
        let len = message.len() as u32;
        message[..4].copy_from_slice(&len.to_ne_bytes());
        message.resize(aligned(message.len()), 0);
        match self.datagrams.last_mut() {
            Some(last) if self.is_open && last.len() + message.len() <= DATAGRAM_BYTES => {
                last.extend(message)
            }
            _ => self.datagrams.push(message),
        }
    }
}

/// Appends an attribute.
pub fn attribute(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let len = 4 + value.len();
    out.extend((len as u16).to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(value);
    out.resize(out.len() + aligned(len) - len, 0);
}

/// Appends an attribute of 32 bits.
pub fn word(out: &mut Vec<u8>, kind: u16, value: u32) {
    attribute(out, kind, &value.to_ne_bytes());
}

/// Appends an attribute of text, which ends with a zero.
pub fn text(out: &mut Vec<u8>, kind: u16, value: &str) {
    let with_end: Vec<u8> = value.bytes().chain([0]).collect();
    attribute(out, kind, &with_end);
}
