//! The packet sizes that paths take, as reported by ICMP, for as long as that is to be believed (RFC 1191
//! §6.3, RFC 8201 §5.3).

use alloc::collections::{BTreeMap, VecDeque};

use atoll_base::{Addr, Duration, Instant};
use atoll_wire::ipv6;

use crate::common::Common;

/// An update about a path, from one replica to all others of its stack (N8).
///
/// The replica that got an ICMP error about a packet that a socket of ours may have sent sends it. If an
/// update is lost, the others send packets that are too large until they get an error themselves. One that is
/// late or repeated keeps packets small for longer than necessary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathUpdate {
    /// The destination.
    pub dst: Addr,
    /// The size of the packets that pass, in octets.
    pub mtu: u16,
}

/// The known MTU of the path to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathMtu {
    /// The size of packets that pass, as far as is known, in octets.
    pub mtu: u16,
    /// Whether packets of this size may be too large after all: the path has reported less than is believed,
    /// so that "don't fragment" would lose them. This is never so with IPv6.
    pub is_doubtful: bool,
}

/// The destinations whose path takes less than the link does. The table is bounded; the oldest entry goes
/// first.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    known: BTreeMap<Addr, Path>,
    /// The updates for the other replicas.
    updates: VecDeque<PathUpdate>,
}

#[derive(Clone, Copy, Debug)]
struct Path {
    path: PathMtu,
    expires: Instant,
}

impl Paths {
    /// Notes for ten minutes that the path to `dst` takes packets of `mtu` octets, if that is less than
    /// `link_mtu` and than what was known. Returns whether it was noted.
    pub(crate) fn learn(&mut self, now: Instant, dst: Addr, mtu: u16, link_mtu: u16) -> bool {
        // RFC 8201 §4: every link carries 1280 octets; a report of less is ignored.
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

    /// Notes what an ICMP error has reported, as [`Paths::learn`] does, and informs the other replicas.
    pub(crate) fn report(
        &mut self,
        now: Instant,
        common: &mut Common,
        update: PathUpdate,
        link_mtu: u16,
    ) -> bool {
        let learned = self.learn(now, update.dst, update.mtu, link_mtu);
        if learned {
            common.push(&mut self.updates, update);
        }
        learned
    }

    pub(crate) fn poll_update(&mut self) -> Option<PathUpdate> {
        self.updates.pop_front()
    }

    pub(crate) fn check_invariants(&self, common: &Common) {
        assert!(self.updates.len() <= common.config().frames_max);
    }

    /// Returns what is known about the path to `dst`.
    #[inline]
    pub(crate) fn get(&self, now: Instant, dst: Addr) -> Option<PathMtu> {
        if self.known.is_empty() {
            return None;
        }
        self.known.get(&dst).filter(|path| now < path.expires).map(|path| path.path)
    }
}

/// The smallest size that is believed, in octets (Linux's `min_pmtu`): a smaller one only multiplies packets
/// (RFC 5927 §7 names the attack).
const PATH_MTU_MIN: u16 = 552;
/// How long a size is believed: ten minutes, as RFC 1191 §6.3 recommends (Linux's `mtu_expires`).
const LIFETIME: Duration = Duration::from_secs(600);
/// The most destinations; false reports about more paths than this evict older ones.
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
