//! The state of handshakes under way: everything about connections that no application has yet, except the
//! connections themselves.
//!
//! ```text
//!   SYN -------> inherited: what its listener hands on
//!                servers, cookies_until: cookies, of Fast Open and of a flood
//!   ESTABLISHED  deferred: it waits for text (TCP_DEFER_ACCEPT)
//!                early: the application has it, and the handshake goes on (Fast Open)
//!   no listener  resets: so many in a round
//! ```

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use atoll_base::Instant;
use atoll_connmgr::{ConnMgr, ListenerId};
use atoll_ipc::SocketOption;
use atoll_wire::fast_open::FastOpen;

use crate::config::Config;
use crate::connections::Connections;
use crate::entry::{Entry, Flags};
use crate::fast_open::Cookies;
use crate::names::Name;
use crate::options::Inherited;
use crate::phases::Phases;
use crate::resets::Resets;

mod cookie;
mod early;

/// The state of handshakes beside the connections. It is lost in a crash: listeners are made again, and a
/// client with a cookie tries again.
#[derive(Debug)]
pub(crate) struct Handshakes {
    /// The options that each listener hands on, by the listener's index.
    inherited: Vec<Option<(ListenerId, Inherited)>>,
    /// Whether a listener was told the least TTL or hop limit of segments. As on Linux (`ip4_min_ttl`), no
    /// segment pays for it before.
    limits_hops: bool,
    /// The Fast Open option of the SYN that is being handled.
    syn_option: Option<FastOpen>,
    /// The Fast Open cookies of servers.
    servers: Cookies,
    /// The connections that applications have before their handshakes are complete, and the number of these
    /// of each listener.
    early: BTreeMap<u32, ListenerId>,
    early_of: BTreeMap<ListenerId, u32>,
    /// The moment until which a peer may have a SYN cookie.
    cookies_until: Instant,
    /// The connections that wait for text before they are offered (TCP_DEFER_ACCEPT), by port.
    deferred: BTreeSet<(u16, u32)>,
    /// The connections that are to be reset because their listener is gone.
    resets: Resets,
    /// Measurements of some handshakes.
    phases: Phases,
}

impl Handshakes {
    /// Creates the tables, all empty. `seed` is for the table of cookies, which has at most `cookies_max`.
    pub(crate) fn new(cookies_max: usize, seed: u64) -> Handshakes {
        Handshakes {
            inherited: Vec::new(),
            limits_hops: false,
            syn_option: None,
            servers: Cookies::new(cookies_max, seed),
            early: BTreeMap::new(),
            early_of: BTreeMap::new(),
            cookies_until: Instant::ZERO,
            deferred: BTreeSet::new(),
            resets: Resets::default(),
            phases: Phases::default(),
        }
    }

    /// Returns the measurements of what handshakes take.
    #[inline]
    pub(crate) const fn phases(&mut self) -> &mut Phases {
        &mut self.phases
    }

    // ---- listeners ----

    /// Returns whether a segment for a listener has come from too far away (`IP_MINTTL`,
    /// `IPV6_MINHOPCOUNT`).
    pub(crate) fn is_too_far(&self, listener: ListenerId, is_v4: bool, hops: u8) -> bool {
        match self.inherited.get(listener.index as usize) {
            Some(Some((id, inherited))) => *id == listener && hops < inherited.hops_min(is_v4),
            _ => false,
        }
    }

    /// Returns whether some listener may have such an option, or had one.
    #[inline]
    pub(crate) const fn limits_hops(&self) -> bool {
        self.limits_hops
    }

    /// Returns the options with which connections of a listener begin.
    pub(crate) fn inherited(&self, config: &Config, listener: ListenerId) -> Inherited {
        match self.inherited.get(listener.index as usize) {
            Some(Some((id, inherited))) if *id == listener => *inherited,
            _ => Inherited::new(config),
        }
    }

    /// Sets an option that a listener hands on. Returns `false` if there is no such option, or no such value.
    pub(crate) fn set_option(
        &mut self,
        config: &Config,
        listener: ListenerId,
        option: SocketOption,
        value: u32,
    ) -> bool {
        let index = listener.index as usize;
        if index >= self.inherited.len() {
            self.inherited.resize(index + 1, None);
        }
        let place = &mut self.inherited[index];
        if place.is_none_or(|(id, _)| id != listener) {
            *place = Some((listener, Inherited::new(config)));
        }
        self.limits_hops |= matches!(option, SocketOption::MinTtl | SocketOption::MinHopCount);
        place.as_mut().is_some_and(|(_, inherited)| inherited.set(config, option, value))
    }

    // ---- Fast Open ----

    /// Notes the Fast Open option of the SYN that is being handled.
    #[inline]
    pub(crate) const fn note_syn_option(&mut self, option: Option<FastOpen>) {
        self.syn_option = option;
    }

    /// Returns the option of the SYN that is being handled.
    const fn syn_option(&self) -> Option<FastOpen> {
        self.syn_option
    }

    /// Returns how many connections of the listener applications have before their handshakes are complete.
    fn early_of(&self, listener: ListenerId) -> u32 {
        self.early_of.get(&listener).copied().unwrap_or(0)
    }

    /// Notes that an application gets the connection before its handshake is complete.
    pub(crate) fn begin_early(&mut self, index: u32, listener: ListenerId) {
        *self.early_of.entry(listener).or_default() += 1;
        self.early.insert(index, listener);
    }

    /// Notes that the handshake of a connection that the application had before is complete, or has failed.
    pub(crate) fn end_early(&mut self, index: u32, entry: &mut Entry) {
        if !entry.flags.take(Flags::FAST_OPEN) {
            return;
        }
        let Some(listener) = self.early.remove(&index) else { return };
        if let Some(pending) = self.early_of.get_mut(&listener) {
            *pending -= 1;
            if *pending == 0 {
                self.early_of.remove(&listener);
            }
        }
    }

    // ---- connections that wait for text ----

    /// Notes that a connection waits for text before it is offered.
    pub(crate) fn defer(&mut self, name: &Name, index: u32) {
        self.deferred.insert((name.local_port(), index));
    }

    /// Notes that the connection does not wait for text any more.
    pub(crate) fn end_deferral(&mut self, name: &Name, index: u32) {
        self.deferred.remove(&(name.local_port(), index));
    }

    /// Returns how many connections wait for text.
    #[cfg(test)]
    pub(crate) fn deferred(&self) -> usize {
        self.deferred.len()
    }

    // ---- connections whose listener is gone ----

    /// Marks a connection to be reset, because its listener is gone.
    pub(crate) fn reset_later(&mut self, index: u32, name: Name) {
        self.resets.add(index, name);
    }

    /// Marks the connections that wait for text at the port to be reset, because no socket listens there any
    /// more.
    pub(crate) fn reset_deferred_later(&mut self, port: u16) {
        self.resets.add_deferred(port);
    }

    /// Returns whether any connection is to be reset.
    #[inline]
    pub(crate) fn has_resets(&self) -> bool {
        !self.resets.is_empty()
    }

    /// Returns since when some are to be reset.
    pub(crate) fn resets_since(&self) -> Option<Instant> {
        self.resets.since()
    }

    /// Resets some of the marked connections.
    pub(crate) fn reset_some(&mut self, now: Instant, connections: &mut Connections, cm: &ConnMgr) {
        self.resets.go_on(now, &mut self.deferred, connections, cm);
    }

    /// Ends the round: as many may be reset in the next.
    pub(crate) const fn conclude(&mut self) {
        self.resets.conclude();
    }
}
