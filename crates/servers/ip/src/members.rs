//! Which transport servers want packets to which group? An IP server is in a group as long as one of those
//! that it serves is.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use atoll_base::{Addr, Instant};
use atoll_ip::{Ip, Link};

/// The groups that were asked for. As many as [`Ip`] lets anybody join.
#[derive(Debug, Default)]
pub(crate) struct Members {
    /// By whom: a bit for each TS.
    groups: BTreeMap<Addr, u8>,
}

impl Members {
    /// TS `from` (below 8) joins or leaves. `false`: there is no such group, or there are too many.
    pub(crate) fn change(&mut self, now: Instant, ip: &mut Ip, from: u8, group: Addr, joins: bool) -> bool {
        let bit = 1 << from;
        let known = self.groups.get(&group).copied().unwrap_or(0);
        let wanted = if joins { known | bit } else { known & !bit };
        if known == 0 && wanted != 0 && !ip.join_group(now, Link::Outside, group) {
            return false;
        }
        if wanted == 0 {
            if self.groups.remove(&group).is_some() {
                ip.leave_group(now, Link::Outside, group);
            }
        } else {
            self.groups.insert(group, wanted);
        }
        true
    }

    /// TS `from` is another one, and has not asked for anything.
    pub(crate) fn forget(&mut self, now: Instant, ip: &mut Ip, from: u8) {
        let groups: Vec<Addr> =
            self.groups.iter().filter(|(_, by)| *by & 1 << from != 0).map(|(group, _)| *group).collect();
        for group in groups {
            self.change(now, ip, from, group, false);
        }
    }
}
