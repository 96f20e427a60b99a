//! Router solicitations: routers are asked to advertise themselves when the stack starts (RFC 4861 §6.3.7).

use atoll_base::{Duration, Instant};
use atoll_wire::ipv6::multicast_mac;
use atoll_wire::nd::Message;

use super::addresses::{ALL_ROUTERS, State};
use super::neighbour;
use super::network::Network;
use crate::common::Common;

/// The router solicitations that are still to be sent.
#[derive(Debug)]
pub(super) struct Solicitations {
    left: u8,
    due: Instant,
}

impl Solicitations {
    /// Sends none until [`Solicitations::start`].
    pub(super) const fn new() -> Solicitations {
        Solicitations { left: 0, due: Instant::FAR_FUTURE }
    }

    /// Sends the first one, and schedules the others.
    pub(super) fn start(&mut self, now: Instant, network: &Network, common: &mut Common) {
        *self = Solicitations { left: SOLICITATIONS, due: now };
        self.expire(now, network, common);
    }

    /// Sends no more, because a router has answered.
    pub(super) const fn stop(&mut self) {
        *self = Solicitations::new();
    }

    /// Returns when to call [`Solicitations::expire`]; [`Instant::FAR_FUTURE`] means never.
    pub(super) const fn due(&self) -> Instant {
        self.due
    }

    /// Sends a solicitation if one is due, and notes when to send the next one.
    pub(super) fn expire(&mut self, now: Instant, network: &Network, common: &mut Common) {
        if self.due > now {
            return;
        }
        let Some(left) = self.left.checked_sub(1) else {
            self.due = Instant::FAR_FUTURE;
            return;
        };
        self.left = left;
        self.due = if left > 0 { now + SOLICITATION_INTERVAL } else { Instant::FAR_FUTURE };
        // RFC 4861 §4.1: without a source address, the solicitation names no station.
        let own = network.own().first().filter(|own| own.state == State::Preferred).map(|own| own.addr);
        let source_mac = own.map(|_| common.mac());
        let (src, mac) = (own.unwrap_or_default(), multicast_mac(ALL_ROUTERS));
        neighbour::send(common, src, ALL_ROUTERS, mac, &Message::RouterSolicitation { source_mac });
    }
}

/// The number of router solicitations (MAX_RTR_SOLICITATIONS, RFC 4861 §10).
const SOLICITATIONS: u8 = 3;
/// The time between two router solicitations (RTR_SOLICITATION_INTERVAL, RFC 4861 §10).
const SOLICITATION_INTERVAL: Duration = Duration::from_secs(4);
