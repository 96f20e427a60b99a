//! Keeps the multicast groups that transport servers want packets of. An IP server is in a group as long as
//! one of those that it serves is.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use atoll_base::{Addr, Instant};
use atoll_ip::{Ip, Link};

/// The groups that were asked for, which are at most as many as [`Ip`] allows. The unspecified address of a
/// family stands for all messages of its ICMP.
#[derive(Debug, Default)]
pub(crate) struct Members {
    /// The TSs that asked for each group, a bit each.
    groups: BTreeMap<Addr, u8>,
}

impl Members {
    /// Lets TS `from` (below 8) join or leave a group. Returns `false` if `Ip` does not let the group be
    /// joined: it is no valid group, or there are too many.
    pub(crate) fn change(&mut self, now: Instant, ip: &mut Ip, from: u8, group: Addr, joins: bool) -> bool {
        let bit = 1 << from;
        let known = self.groups.get(&group).copied().unwrap_or(0);
        let wanted = if joins { known | bit } else { known & !bit };
        let is_group = !group.is_unspecified();
        if is_group && known == 0 && wanted != 0 && !ip.join_group(now, Link::Outside, group) {
            return false;
        }
        if wanted == 0 {
            if self.groups.remove(&group).is_some() && is_group {
                ip.leave_group(now, Link::Outside, group);
            }
        } else {
            self.groups.insert(group, wanted);
        }
        true
    }

    /// Returns whether a TS has raw sockets of the ICMP to which a message for `dst` belongs.
    pub(crate) fn want_messages(&self, dst: Addr) -> bool {
        self.groups.contains_key(if dst.is_v4() { &Addr::V4_ANY } else { &Addr::ANY })
    }

    /// Removes TS `from` from all groups, because a new incarnation of it has not asked for any.
    pub(crate) fn forget(&mut self, now: Instant, ip: &mut Ip, from: u8) {
        let groups: Vec<Addr> =
            self.groups.iter().filter(|(_, by)| *by & 1 << from != 0).map(|(group, _)| *group).collect();
        for group in groups {
            self.change(now, ip, from, group, false);
        }
    }
}
