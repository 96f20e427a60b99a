//! The Fast Open option of a SYN (RFC 7413 §4.1.1).
//!
//! The option is on SYNs alone, so it is kept out of [`crate::tcp::Options`], which every segment carries.

use crate::tcp::HEADER_MAX;

/// The option: a cookie, or (empty) the request for one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FastOpen {
    octets: [u8; FastOpen::COOKIE_MAX],
    len: u8,
}

impl FastOpen {
    /// Shortest and longest cookie.
    const COOKIE_MIN: usize = 4;
    const COOKIE_MAX: usize = 16;
    /// The option of a client that has no cookie and asks for one.
    pub const REQUEST: FastOpen = FastOpen { octets: [0; FastOpen::COOKIE_MAX], len: 0 };

    /// Creates the option with a cookie; returns `None` unless its length is one that RFC 7413 allows: an
    /// even number from 4 to 16.
    pub fn cookie(bytes: &[u8]) -> Option<FastOpen> {
        let is_valid = (FastOpen::COOKIE_MIN..=FastOpen::COOKIE_MAX).contains(&bytes.len())
            && bytes.len().is_multiple_of(2);
        let mut octets = [0; FastOpen::COOKIE_MAX];
        octets.get_mut(..bytes.len()).filter(|_| is_valid)?.copy_from_slice(bytes);
        // Cannot truncate: at most 16.
        Some(FastOpen { octets, len: bytes.len() as u8 })
    }

    /// Returns the octets of the cookie; none for a request.
    pub fn bytes(&self) -> &[u8] {
        self.octets.get(..self.len.into()).unwrap_or_default()
    }

    /// Returns whether the option asks for a cookie.
    pub const fn is_request(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of octets that the option takes in a header, with padding.
    pub const fn header_len(&self) -> usize {
        (2 + self.len as usize).next_multiple_of(4)
    }
}

/// Returns the first such option in `header`, a whole TCP header. Options of other lengths are skipped.
pub fn find(header: &[u8]) -> Option<FastOpen> {
    let mut rest = header.get(crate::tcp::HEADER_MIN..)?;
    while let Some((&kind, after)) = rest.split_first() {
        match kind {
            0 => return None,
            1 => rest = after,
            _ => {
                let body_len = after.first().and_then(|len| usize::from(*len).checked_sub(2))?;
                let body = after.get(1..1 + body_len)?;
                if kind == KIND {
                    let found =
                        if body.is_empty() { Some(FastOpen::REQUEST) } else { FastOpen::cookie(body) };
                    if found.is_some() {
                        return found;
                    }
                }
                rest = after.get(1 + body_len..)?;
            }
        }
    }
    None
}

/// Appends the option to a header of `header_len` octets in `out`; returns the new length. If it does not
/// fit, nothing changes.
pub fn append(option: &FastOpen, out: &mut [u8; HEADER_MAX], header_len: usize) -> usize {
    let (bytes, end) = (option.bytes(), header_len + option.header_len());
    let Some(room) = out.get_mut(header_len..end) else { return header_len };
    // As Linux lays it out, the option first.
    room.fill(1);
    room[0] = KIND;
    room[1] = 2 + option.len;
    room[2..2 + bytes.len()].copy_from_slice(bytes);
    // Cannot truncate: at most 60 octets, 15 words.
    out[12] = ((end / 4) as u8) << 4;
    end
}

/// The option's number in IANA's list.
const KIND: u8 = 34;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::{Flags, HEADER_MIN, Options, Segment, Timestamps, emit, parse};

    #[test]
    fn what_was_appended_is_found_beside_the_other_options() {
        let options = Options {
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some(Timestamps { value: 1, echo: 2 }),
            ..Options::default()
        };
        let segment = Segment { flags: Flags::SYN, options, ..Segment::default() };
        for len in [0usize, 4, 6, 8, 10, 16] {
            let option = if len == 0 { Some(FastOpen::REQUEST) } else { FastOpen::cookie(&[9; 16][..len]) };
            let option = option.expect("an allowed length");
            let mut out = [0; HEADER_MAX];
            let before = emit(&segment, &mut out);
            let end = append(&option, &mut out, before);
            assert_eq!(end, before + option.header_len());
            assert_eq!(find(&out[..end]), Some(option));
            assert_eq!(parse(&out[..end]), Ok((segment, end)));
        }
    }

    #[test]
    fn odd_lengths_are_no_cookies() {
        for len in [1, 2, 3, 5, 7, 17] {
            assert_eq!(FastOpen::cookie(&[0; 20][..len]), None);
            let mut header = [1; HEADER_MAX];
            header[HEADER_MIN] = KIND;
            header[HEADER_MIN + 1] = 2 + len as u8;
            assert_eq!(find(&header), None);
        }
        assert_eq!(find(&[1; 30]), None);
        assert_eq!(find(&[]), None);
    }

    #[test]
    fn an_option_without_room_is_left_out() {
        let mut out = [0; HEADER_MAX];
        out[12] = 15 << 4;
        assert_eq!(append(&FastOpen::REQUEST, &mut out, HEADER_MAX), HEADER_MAX);
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let mut rng = atoll_base::Rng::new(7);
        for _ in 0..100_000 {
            let mut bytes = [0; HEADER_MAX];
            bytes.fill_with(|| (rng.next_u32() % 40) as u8);
            let len = rng.below(61) as usize;
            let _ = find(&bytes[..len]);
        }
    }
}
