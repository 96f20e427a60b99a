//! TCP options on the wire.

use crate::parse::packet::{ACCURATE, EXPERIMENTAL};
use crate::script::TcpOption;

/// The kind of the Fast Open option.
const FAST_OPEN: u8 = 34;

/// Writes options, and pads them to whole 32-bit words.
pub fn put(options: &[TcpOption], out: &mut Vec<u8>) {
    for option in options {
        match option {
            TcpOption::Nop => out.push(1),
            TcpOption::End => out.push(0),
            TcpOption::Mss(mss) => {
                out.extend([2, 4]);
                out.extend(mss.to_be_bytes());
            }
            TcpOption::WindowScale(shift) => out.extend([3, 3, *shift]),
            TcpOption::SackOk => out.extend([4, 2]),
            TcpOption::Sack(blocks) => {
                out.extend([5, 2 + 8 * blocks.len() as u8]);
                for (left, right) in blocks {
                    out.extend(left.to_be_bytes());
                    out.extend(right.to_be_bytes());
                }
            }
            TcpOption::Timestamps { value, echo } => {
                out.extend([8, 10]);
                out.extend(value.to_be_bytes());
                out.extend(echo.to_be_bytes());
            }
            TcpOption::FastOpen(octets) => {
                out.extend([FAST_OPEN, 2 + octets.len() as u8]);
                out.extend(octets);
            }
            TcpOption::FastOpenExperimental(octets) => {
                let (kind, magic) = EXPERIMENTAL;
                out.extend([kind, 4 + octets.len() as u8]);
                out.extend(magic);
                out.extend(octets);
            }
            TcpOption::AccurateEcn(kind, counters) => {
                out.extend([*kind, option.octets() as u8]);
                counters.iter().for_each(|counter| out.extend(&counter.to_be_bytes()[1..]));
            }
            TcpOption::Other(kind, octets) => {
                out.extend([*kind, 2 + octets.len() as u8]);
                out.extend(octets);
            }
        }
    }
    out.resize(out.len().next_multiple_of(4), 0);
}

pub(super) fn word(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.first_chunk()?))
}

/// Reads options up to the first that is malformed.
pub fn get(mut bytes: &[u8]) -> Vec<TcpOption> {
    let mut options = Vec::new();
    while let [kind, rest @ ..] = bytes {
        if *kind < 2 {
            options.push(if *kind == 0 { TcpOption::End } else { TcpOption::Nop });
            bytes = rest;
            continue;
        }
        let Some((len, body)) = rest.split_first() else { break };
        let Some((body, after)) = usize::from(*len).checked_sub(2).and_then(|len| body.split_at_checked(len))
        else {
            break;
        };
        bytes = after;
        options.push(one(*kind, body));
    }
    options
}

fn one(kind: u8, body: &[u8]) -> TcpOption {
    match (kind, body) {
        (2, &[a, b]) => TcpOption::Mss(u16::from_be_bytes([a, b])),
        (3, &[shift]) => TcpOption::WindowScale(shift),
        (4, []) => TcpOption::SackOk,
        (5, blocks) if blocks.len().is_multiple_of(8) => {
            let blocks = blocks.chunks_exact(8);
            TcpOption::Sack(blocks.filter_map(|block| Some((word(block)?, word(&block[4..])?))).collect())
        }
        (8, body) if body.len() == 8 => TcpOption::Timestamps {
            value: word(body).unwrap_or_default(),
            echo: word(&body[4..]).unwrap_or_default(),
        },
        (FAST_OPEN, cookie) => TcpOption::FastOpen(cookie.to_vec()),
        (kind, [a, b, cookie @ ..]) if (kind, [*a, *b]) == EXPERIMENTAL => {
            TcpOption::FastOpenExperimental(cookie.to_vec())
        }
        (kind, body) if ACCURATE.contains(&kind) && body.len().is_multiple_of(3) && body.len() <= 9 => {
            let counters = body
                .chunks_exact(3)
                .map(|octets| octets.iter().fold(0, |n, octet| n << 8 | u32::from(*octet)));
            TcpOption::AccurateEcn(kind, counters.collect())
        }
        (kind, body) => TcpOption::Other(kind, body.to_vec()),
    }
}
