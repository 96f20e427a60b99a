//! The TCP header (RFC 9293 §3.1), with the options of RFC 7323 and RFC 2018.
//!
//! [`parse`] turns hostile bytes into a [`Segment`] that is always valid: every field is in host order, every
//! option has been checked for length, and unknown or malformed options are gone. [`emit`] writes one back.
//!
//! ```text
//!  0                   1                   2                   3
//!  |          source port          |       destination port        |
//!  |                        sequence number                        |
//!  |                     acknowledgement number                    |
//!  | offset|  rsv  |C E U A P R S F|            window             |
//!  |           checksum            |         urgent pointer        |
//!  |                 options, padded to 32 bits                    |
//! ```

use atoll_base::SeqNum;
use bitflags::bitflags;
use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ParseError;
use crate::ipv4::Ecn;

/// Octets of a TCP header without options.
pub const HEADER_MIN: usize = 20;
/// Octets of the largest TCP header: the data offset counts 15 words.
pub const HEADER_MAX: usize = 60;

bitflags! {
    /// The control bits of a segment.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Flags: u16 {
        /// The sender will send no more text.
        const FIN = 0x01;
        /// Synchronize sequence numbers.
        const SYN = 0x02;
        /// Reset the connection.
        const RST = 0x04;
        /// Push function.
        const PSH = 0x08;
        /// The acknowledgement field is valid.
        const ACK = 0x10;
        /// The urgent pointer is valid.
        const URG = 0x20;
        /// ECN echo (RFC 3168).
        const ECE = 0x40;
        /// Congestion window reduced (RFC 3168).
        const CWR = 0x80;
        /// Accurate ECN (RFC 9768), the lowest bit of the octet before the other flags.
        const AE = 0x100;
    }
}

/// The timestamps option (RFC 7323 §3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamps {
    /// TSval: the sender's clock.
    pub value: u32,
    /// TSecr: the last clock value of the other end that the sender has seen; meaningful with ACK only.
    pub echo: u32,
}

/// Up to four blocks of selectively acknowledged text (RFC 2018 §3), in the order of the option.
///
/// Blocks are what the peer claims; nothing but their number has been checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SackBlocks {
    blocks: [(SeqNum, SeqNum); SackBlocks::MAX],
    len: u8,
}

impl SackBlocks {
    /// The maximum number of blocks that fit into the option space.
    pub const MAX: usize = 4;

    /// Creates an empty list of blocks.
    pub const fn new() -> SackBlocks {
        SackBlocks { blocks: [(SeqNum(0), SeqNum(0)); SackBlocks::MAX], len: 0 }
    }

    /// Appends `[left, right)`; a fifth block is left out.
    pub fn push(&mut self, left: SeqNum, right: SeqNum) {
        if let Some(slot) = self.blocks.get_mut(usize::from(self.len)) {
            *slot = (left, right);
            self.len += 1;
        }
    }

    /// Returns the number of blocks.
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns whether there is no block.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the blocks, `[left, right)`, in their order.
    pub fn iter(&self) -> impl Iterator<Item = (SeqNum, SeqNum)> + '_ {
        self.blocks.iter().take(self.len()).copied()
    }
}

/// The options that this stack knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Largest segment the sender wants to receive; belongs on a SYN.
    pub mss: Option<u16>,
    /// Window shift, at most 14 (RFC 7323 §2.3: larger values are taken as 14); belongs on a SYN.
    pub window_scale: Option<u8>,
    /// Whether selective acknowledgements are welcome; belongs on a SYN.
    pub sack_permitted: bool,
    /// Timestamps.
    pub timestamps: Option<Timestamps>,
    /// Selective acknowledgements.
    pub sack: SackBlocks,
}

/// One TCP segment without its text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Port of the sender.
    pub src_port: u16,
    /// Port of the receiver.
    pub dst_port: u16,
    /// Sequence number of the first octet of text, or of the SYN.
    pub seq: SeqNum,
    /// Next sequence number that the sender of this segment expects; meaningful with ACK only.
    pub ack: SeqNum,
    /// Control bits.
    pub flags: Flags,
    /// Window field, as on the wire (unscaled).
    pub window: u16,
    /// Urgent pointer; meaningful with URG only.
    pub urgent: u16,
    /// Options.
    pub options: Options,
    /// Octets of text.
    pub len: u32,
    /// The congestion mark of the packet that carries the segment (RFC 3168); it is not in the TCP header.
    pub ecn: Ecn,
}

impl Segment {
    /// Returns whether every bit of `flags` is set.
    pub const fn has(&self, flags: Flags) -> bool {
        self.flags.contains(flags)
    }

    /// Returns the octets of sequence space: text, plus one for SYN and one for FIN (RFC 9293 §3.4).
    pub const fn sequence_len(&self) -> u32 {
        self.len + self.flags.contains(Flags::SYN) as u32 + self.flags.contains(Flags::FIN) as u32
    }

    /// Returns the segment as if text and FIN had been lost on the way, which is what a receiver without room
    /// sees.
    #[must_use]
    pub const fn without_text(mut self) -> Segment {
        self.len = 0;
        self.flags = self.flags.difference(Flags::FIN.union(Flags::PSH));
        self
    }
}

/// Reads the header of a segment. Returns it with the length of the header; the text follows.
///
/// `bytes` is header and text, nothing else (no link padding). The checksum is verified elsewhere. Malformed
/// options end the reading of options but not of the segment, as in every stack in use: options before them
/// count.
pub fn parse(bytes: &[u8]) -> Result<(Segment, usize), ParseError> {
    let (header, rest) = Header::ref_from_prefix(bytes).map_err(|_| ParseError::Truncated)?;
    let header_len = usize::from(header.offset >> 4) * 4;
    let options_len = header_len.checked_sub(HEADER_MIN).ok_or(ParseError::BadLength)?;
    let options = rest.get(..options_len).ok_or(ParseError::Truncated)?;
    let len = u32::try_from(rest.len() - options_len).map_err(|_| ParseError::Truncated)?;
    let segment = Segment {
        src_port: header.src_port.get(),
        dst_port: header.dst_port.get(),
        seq: SeqNum(header.seq.get()),
        ack: SeqNum(header.ack.get()),
        flags: Flags::from_bits_retain(u16::from(header.offset) << 8 & 0x100 | u16::from(header.flags)),
        window: header.window.get(),
        urgent: header.urgent.get(),
        options: parse_options(options),
        len,
        ecn: Ecn::NotEct,
    };
    Ok((segment, header_len))
}

/// Writes the header of `segment` into `out` and returns its length. The checksum field is zero.
///
/// Options are laid out as Linux does, so that other stacks' fast paths recognise them. SACK blocks that do
/// not fit beside the other options are left out.
pub fn emit(segment: &Segment, out: &mut [u8; HEADER_MAX]) -> usize {
    let mut writer = Writer { out, at: HEADER_MIN };
    emit_options(&segment.options, &mut writer);
    let header_len = writer.at;
    let header = Header {
        src_port: U16::new(segment.src_port),
        dst_port: U16::new(segment.dst_port),
        seq: U32::new(segment.seq.0),
        ack: U32::new(segment.ack.0),
        // Cannot truncate: the writer stops at 60 octets, which are 15 words.
        offset: ((header_len / 4) as u8) << 4 | (segment.flags.bits() >> 8 & 1) as u8,
        flags: (segment.flags.bits() & 0xff) as u8,
        window: U16::new(segment.window),
        checksum: U16::ZERO,
        urgent: U16::new(segment.urgent),
    };
    if let Some(front) = out.first_chunk_mut::<HEADER_MIN>() {
        front.copy_from_slice(header.as_bytes());
    }
    header_len
}

/// The fixed part of the header as it lies on the wire.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    src_port: U16,
    dst_port: U16,
    seq: U32,
    ack: U32,
    offset: u8,
    flags: u8,
    window: U16,
    checksum: U16,
    urgent: U16,
}

const KIND_END: u8 = 0;
const KIND_NOP: u8 = 1;
const KIND_MSS: u8 = 2;
const KIND_WINDOW_SCALE: u8 = 3;
const KIND_SACK_PERMITTED: u8 = 4;
const KIND_SACK: u8 = 5;
const KIND_TIMESTAMPS: u8 = 8;
/// The largest window scale; a larger one is taken as this one (RFC 7323 §2.3).
const WINDOW_SCALE_MAX: u8 = 14;

fn parse_options(bytes: &[u8]) -> Options {
    let mut options = Options::default();
    // The layout of nearly every segment of an open connection: NOP NOP TS.
    if let [KIND_NOP, KIND_NOP, KIND_TIMESTAMPS, 10, v0, v1, v2, v3, e0, e1, e2, e3] = *bytes {
        options.timestamps = Some(Timestamps {
            value: u32::from_be_bytes([v0, v1, v2, v3]),
            echo: u32::from_be_bytes([e0, e1, e2, e3]),
        });
        return options;
    }
    let mut rest = bytes;
    while let Some((&kind, after)) = rest.split_first() {
        match kind {
            KIND_END => break,
            KIND_NOP => rest = after,
            _ => {
                let Some(body_len) = after.first().and_then(|len| usize::from(*len).checked_sub(2)) else {
                    break;
                };
                let Some(body) = after.get(1..1 + body_len) else { break };
                parse_option(kind, body, &mut options);
                rest = after.get(1 + body_len..).unwrap_or_default();
            }
        }
    }
    options
}

fn parse_option(kind: u8, body: &[u8], options: &mut Options) {
    match (kind, body) {
        (KIND_MSS, &[a, b]) => options.mss = Some(u16::from_be_bytes([a, b])),
        (KIND_WINDOW_SCALE, &[shift]) => options.window_scale = Some(shift.min(WINDOW_SCALE_MAX)),
        (KIND_SACK_PERMITTED, []) => options.sack_permitted = true,
        (KIND_TIMESTAMPS, &[v0, v1, v2, v3, e0, e1, e2, e3]) => {
            options.timestamps = Some(Timestamps {
                value: u32::from_be_bytes([v0, v1, v2, v3]),
                echo: u32::from_be_bytes([e0, e1, e2, e3]),
            });
        }
        (KIND_SACK, blocks) if blocks.len() % 8 == 0 => {
            for block in blocks.chunks_exact(8) {
                if let &[l0, l1, l2, l3, r0, r1, r2, r3] = block {
                    let left = SeqNum(u32::from_be_bytes([l0, l1, l2, l3]));
                    options.sack.push(left, SeqNum(u32::from_be_bytes([r0, r1, r2, r3])));
                }
            }
        }
        _ => {}
    }
}

fn emit_options(options: &Options, writer: &mut Writer<'_>) {
    if let Some(mss) = options.mss {
        let [a, b] = mss.to_be_bytes();
        writer.put(&[KIND_MSS, 4, a, b]);
    }
    if let Some(Timestamps { value, echo }) = options.timestamps {
        // SACK-permitted, where there is one, takes the place of the two NOPs.
        let lead = if options.sack_permitted { [KIND_SACK_PERMITTED, 2] } else { [KIND_NOP, KIND_NOP] };
        writer.put(&lead);
        writer.put(&[KIND_TIMESTAMPS, 10]);
        writer.put(&value.to_be_bytes());
        writer.put(&echo.to_be_bytes());
    } else if options.sack_permitted {
        writer.put(&[KIND_NOP, KIND_NOP, KIND_SACK_PERMITTED, 2]);
    }
    if let Some(shift) = options.window_scale {
        writer.put(&[KIND_NOP, KIND_WINDOW_SCALE, 3, shift]);
    }
    let room = (HEADER_MAX - writer.at).saturating_sub(4) / 8;
    let blocks = options.sack.len().min(room);
    if blocks > 0 {
        // Cannot truncate: at most four blocks.
        writer.put(&[KIND_NOP, KIND_NOP, KIND_SACK, (2 + 8 * blocks) as u8]);
        for (left, right) in options.sack.iter().take(blocks) {
            writer.put(&left.0.to_be_bytes());
            writer.put(&right.0.to_be_bytes());
        }
    }
}

/// Appends whole words to the header; words that do not fit are left out, which the callers above rule out.
struct Writer<'a> {
    out: &'a mut [u8; HEADER_MAX],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        if let Some(room) = self.out.get_mut(self.at..self.at + bytes.len()) {
            room.copy_from_slice(bytes);
            self.at += bytes.len();
        }
    }
}

#[cfg(test)]
mod tests;
