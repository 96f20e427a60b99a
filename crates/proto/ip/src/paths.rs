//! How large may packets to a destination be? What ICMP says of paths, for as long as it is to be believed
//! (RFC 1191 §6.3, RFC 8201 §5.3).

use alloc::collections::BTreeMap;

use atoll_base::{Addr, Duration, Instant};
use atoll_wire::ipv6;

/// News about a path, from one replica to all others of its stack (N8).
///
/// Sent by the replica that was told by ICMP about a packet that a socket of ours may have sent; if it is
/// lost, the others send packets that are too large until they are told themselves; late or repeated, it
/// makes packets small for longer than necessary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathUpdate {
    /// The destination.
    pub dst: Addr,
    /// The packets that pass.
    pub mtu: u16,
}

/// What is known about the way to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathMtu {
    /// Packets of this size pass, as far as is known.
    pub mtu: u16,
    /// Whether packets of this size may be too large after all: the path has said less than is believed, so
    /// that "don't fragment" would lose them. Never so with IPv6.
    pub is_doubtful: bool,
}

/// The destinations that take less than the link does. Bounded; what is known longest goes first.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    known: BTreeMap<Addr, Path>,
}

#[derive(Clone, Copy, Debug)]
struct Path {
    path: PathMtu,
    expires: Instant,
}

impl Paths {
    /// Believes that the way to `dst` takes packets of `mtu`, for ten minutes, if that is less than
    /// `link_mtu` and than what was known. Returns whether it did.
    pub(crate) fn learn(&mut self, now: Instant, dst: Addr, mtu: u16, link_mtu: u16) -> bool {
        // RFC 8201 §4: every link carries 1280 octets, and who says otherwise is not heard.
        if !dst.is_v4() && mtu < ipv6::MTU_MIN {
            return false;
        }
        let path = PathMtu { mtu: mtu.max(PATH_MTU_MIN), is_doubtful: mtu < PATH_MTU_MIN };
        let known = self.get(now, dst).unwrap_or(PathMtu { mtu: link_mtu, is_doubtful: false });
        if path.mtu > known.mtu || (path.mtu == known.mtu && path.is_doubtful <= known.is_doubtful) {
            return false;
        }
        if self.known.len() >= PATHS_MAX
            && !self.known.contains_key(&dst)
            && let Some(oldest) = self.known.iter().min_by_key(|(_, path)| path.expires).map(|(dst, _)| *dst)
        {
            self.known.remove(&oldest);
        }
        self.known.insert(dst, Path { path, expires: now + LIFETIME });
        true
    }

    /// What is known about the way to `dst`.
    #[inline]
    pub(crate) fn get(&self, now: Instant, dst: Addr) -> Option<PathMtu> {
        if self.known.is_empty() {
            return None;
        }
        self.known.get(&dst).filter(|path| now < path.expires).map(|path| path.path)
    }
}

/// Linux's `min_pmtu`: a smaller one is not believed, because it only multiplies packets (RFC 5927 §7 names
/// the attack).
const PATH_MTU_MIN: u16 = 552;
/// RFC 1191 §6.3 recommends ten minutes; Linux's `mtu_expires`.
const LIFETIME: Duration = Duration::from_secs(600);
/// Destinations at most: who lies about more paths than this makes older ones be forgotten.
const PATHS_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: u16 = 1500;

    fn at(seconds: u64) -> Instant {
        Instant::from_millis(seconds * 1000)
    }

    fn host(n: u32) -> Addr {
        Addr::v4(n)
    }

    #[test]
    fn a_path_is_believed_for_ten_minutes() {
        let mut paths = Paths::default();
        assert!(paths.learn(at(1), host(7), 1400, LINK));
        assert_eq!(paths.get(at(600), host(7)), Some(PathMtu { mtu: 1400, is_doubtful: false }));
        assert_eq!(paths.get(at(601), host(7)), None);
        assert_eq!(paths.get(at(1), host(8)), None);
    }

    #[test]
    fn a_path_only_gets_narrower_while_it_is_believed() {
        // RFC 1191 §3: a message that would raise the estimate is stale or forged.
        let mut paths = Paths::default();
        assert!(!paths.learn(at(0), host(7), 1500, LINK));
        assert!(paths.learn(at(0), host(7), 1300, LINK));
        assert!(!paths.learn(at(1), host(7), 1400, LINK));
        assert!(paths.learn(at(601), host(7), 1400, LINK), "the old one is forgotten");
    }

    #[test]
    fn absurd_sizes_are_taken_as_the_least_and_as_doubtful() {
        let mut paths = Paths::default();
        assert!(paths.learn(at(0), host(7), 68, LINK));
        assert_eq!(paths.get(at(0), host(7)), Some(PathMtu { mtu: 552, is_doubtful: true }));
        assert!(!paths.learn(at(0), host(7), 100, LINK), "that is no news");
    }

    #[test]
    fn no_path_of_ipv6_takes_less_than_every_link_does() {
        let (mut paths, dst) = (Paths::default(), Addr::from_octets([0x20; 16]));
        assert!(!paths.learn(at(0), dst, 1279, LINK) && paths.get(at(0), dst).is_none());
        assert!(paths.learn(at(0), dst, 1280, LINK));
        assert_eq!(paths.get(at(0), dst), Some(PathMtu { mtu: 1280, is_doubtful: false }));
    }

    #[test]
    fn the_oldest_makes_room() {
        let mut paths = Paths::default();
        for dst in 0..=PATHS_MAX as u32 {
            assert!(paths.learn(at(u64::from(dst / 100)), host(dst), 1400, LINK));
        }
        assert_eq!(paths.known.len(), PATHS_MAX);
        assert_eq!(paths.get(at(11), host(0)), None);
    }
}
