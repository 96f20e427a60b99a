//! Mutates inputs: a few of libFuzzer's mutations, with a seed, for the test that needs no nightly compiler.

use atoll_base::Rng;

/// Applies one to eight random changes to `bytes`; `other` is an input to cross it with.
pub fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..=rng.below(8) {
        let at = below(rng, bytes.len());
        match rng.below(9) {
            0 => set(bytes, at, |byte| byte ^ (1 << (at & 7))),
            1 => {
                let byte = rng.next_u32() as u8;
                set(bytes, at, |_| byte);
            }
            2 => {
                let edge = EDGES[below(rng, EDGES.len())].to_be_bytes();
                bytes.iter_mut().skip(at).zip(edge).for_each(|(to, from)| *to = from);
            }
            3 => {
                let delta = 1 + rng.below(4) as u8;
                set(bytes, at, |byte| byte.wrapping_add(delta));
            }
            4 => bytes.truncate(at),
            5 => {
                let end = (at + below(rng, 8)).min(bytes.len());
                bytes.drain(at..end);
            }
            6 => {
                let fill = rng.next_u32() as u8;
                let many = below(rng, 24);
                bytes.splice(at..at, core::iter::repeat_n(fill, many));
            }
            7 => {
                let from = below(rng, other.len());
                let len = below(rng, 64).min(other.len() - from);
                bytes.splice(at..(at + len).min(bytes.len()), other[from..from + len].iter().copied());
            }
            _ => {
                let other = below(rng, bytes.len());
                if other != at {
                    bytes.swap(at, other);
                }
            }
        }
    }
}

fn set(bytes: &mut [u8], at: usize, change: impl FnOnce(u8) -> u8) {
    if let Some(byte) = bytes.get_mut(at) {
        *byte = change(*byte);
    }
}

fn below(rng: &mut Rng, bound: usize) -> usize {
    rng.below(u32::try_from(bound).unwrap_or(u32::MAX)) as usize
}

const EDGES: [u16; 10] = [0, 1, 7, 8, 0x7f, 0x80, 0xff, 0x7fff, 0x8000, 0xffff];
