//! Decides which connections are opened with text on their SYN, and which servers accept that: RFC 7413. The
//! TCB's part is in `atoll_tcp`.
//!
//! As a server: a listener with TCP_FASTOPEN has a limit for connections that its application has before
//! their handshake is complete, because each of them may be forged (RFC 7413 §5.1). Beyond it handshakes are
//! ordinary ones. As a client: a bounded number of cookies of servers is kept, with what is known about paths
//! that drop such SYNs.

use alloc::collections::VecDeque;

use atoll_base::{Addr, Duration, Instant};
use atoll_ipc::page::{FAST_OPEN_CLIENT, FAST_OPEN_SERVER};
use atoll_tcp::{Connection, State};
use atoll_wire::fast_open::FastOpen;
use foldhash::quality::FixedState;
use hashbrown::HashMap;

/// The enabled sides of Fast Open, as in Linux's `net.ipv4.tcp_fastopen`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastOpenSides {
    /// Whether programs may ask for it when they connect.
    pub client: bool,
    /// Whether listeners with TCP_FASTOPEN support it.
    pub server: bool,
}

impl FastOpenSides {
    /// Returns the sides by the bits of the stack page.
    pub const fn from_bits(bits: u32) -> FastOpenSides {
        FastOpenSides { client: bits & FAST_OPEN_CLIENT != 0, server: bits & FAST_OPEN_SERVER != 0 }
    }
}

/// The knowledge about a server.
#[derive(Clone, Copy, Debug)]
struct Known {
    cookie: FastOpen,
    /// The largest segment that the server takes.
    mss: u16,
    /// The SYNs with an option that were lost in a row, and when the last one was.
    losses: u8,
    lost_at: Instant,
}

/// The servers whose cookies are known. They are lost in a crash, which costs a round trip each.
#[derive(Debug)]
pub(crate) struct Cookies {
    servers: HashMap<Addr, Known, FixedState>,
    /// The servers in the order in which they became known: the oldest makes room.
    order: VecDeque<Addr>,
    max: usize,
}

impl Cookies {
    pub(crate) fn new(max: usize, seed: u64) -> Cookies {
        Cookies { servers: HashMap::with_hasher(FixedState::with_seed(seed)), order: VecDeque::new(), max }
    }

    /// Returns the option and the segment size for a SYN to `addr`; `None` if it has no option, because
    /// others were lost.
    pub(crate) fn option_for(&self, now: Instant, addr: Addr) -> Option<(FastOpen, u16)> {
        let Some(known) = self.servers.get(&addr) else { return Some((FastOpen::REQUEST, 0)) };
        // As Linux had it: a server for which one SYN after the other is lost is spared, twice as long each
        // time.
        let wait = Duration::from_secs(LOSS_WAIT_S << known.losses.min(LOSSES_MAX));
        let is_spared = known.losses > 1 && now.since(known.lost_at) < wait;
        (!is_spared).then_some((known.cookie, known.mss))
    }

    /// Learns the result of a SYN with an option: the option of the answer, and whether the first SYN was
    /// lost.
    pub(crate) fn learn(&mut self, now: Instant, addr: Addr, answer: Option<FastOpen>, mss: u16, lost: bool) {
        if !self.servers.contains_key(&addr) {
            if answer.is_none() && !lost {
                return;
            }
            while self.servers.len() >= self.max {
                let Some(oldest) = self.order.pop_front() else { return };
                self.servers.remove(&oldest);
            }
            self.order.push_back(addr);
        }
        let fresh = Known { cookie: FastOpen::REQUEST, mss: 0, losses: 0, lost_at: Instant::ZERO };
        let known = self.servers.entry(addr).or_insert(fresh);
        if let Some(cookie) = answer {
            known.cookie = cookie;
        }
        known.mss = mss;
        // An option that comes back shows that such SYNs pass: the time-out had another cause.
        if lost && answer.is_none() {
            known.losses = known.losses.saturating_add(1);
            known.lost_at = now;
        } else {
            known.losses = 0;
        }
    }
}

/// Returns whether the application is to see a connection as not open yet.
pub(crate) fn is_connecting(connection: &Connection) -> bool {
    matches!(connection.state(), State::SynSent | State::SynReceived) && !connection.is_open_early()
}

/// A quarter of the time in seconds for which a server is spared after the second loss.
const LOSS_WAIT_S: u64 = 60;
const LOSSES_MAX: u8 = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_are_bounded_and_the_oldest_goes_first() {
        let mut cookies = Cookies::new(3, 1);
        let cookie = FastOpen::cookie(&[7; 8]).expect("a cookie");
        for addr in 0..5 {
            cookies.learn(Instant::ZERO, Addr::v4(addr), Some(cookie), 1460, false);
        }
        let known: alloc::vec::Vec<bool> = (0..5)
            .map(|addr| cookies.option_for(Instant::ZERO, Addr::v4(addr)) == Some((cookie, 1460)))
            .collect();
        assert_eq!(known, [false, false, true, true, true]);
        assert_eq!(cookies.option_for(Instant::ZERO, Addr::v4(0)), Some((FastOpen::REQUEST, 0)));
    }

    #[test]
    fn a_way_that_loses_such_syns_is_spared_for_a_while() {
        // covers: RFC 7413 §4.1.3.1
        let mut cookies = Cookies::new(3, 1);
        let (mut now, cookie) = (Instant::from_millis(1000), FastOpen::cookie(&[7; 8]));
        cookies.learn(now, Addr::v4(1), cookie, 1460, false);
        cookies.learn(now, Addr::v4(1), None, 0, true);
        assert!(cookies.option_for(now, Addr::v4(1)).is_some());
        cookies.learn(now, Addr::v4(1), None, 0, true);
        assert!(cookies.option_for(now, Addr::v4(1)).is_none());
        now += Duration::from_secs(241);
        assert_eq!(cookies.option_for(now, Addr::v4(1)).map(|(option, _)| Some(option)), Some(cookie));
        cookies.learn(now, Addr::v4(1), None, 0, false);
        assert!(cookies.option_for(now, Addr::v4(1)).is_some());
    }
}
