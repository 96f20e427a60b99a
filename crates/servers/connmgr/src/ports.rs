//! Which socket owns a port? Leases of the ports whose authority this replica is (`port % replicas`), by the rules of
//! Linux's `inet_csk_bind_conflict` and `udp_lib_get_port`.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use atoll_base::{Addr, Endpoint, SessionId};
use atoll_ipc::Cause;
use atoll_ipc::command::Protocol;

use crate::manager::Config;
use crate::messages::Bind;

/// Leases, by port and by number.
#[derive(Debug)]
pub(crate) struct Ports {
    config: Config,
    by_port: BTreeMap<(Protocol, u16), Vec<Lease>>,
    by_number: BTreeMap<u64, (Protocol, u16)>,
}

#[derive(Debug)]
struct Lease {
    number: u64,
    local: Endpoint,
    reuse_addr: bool,
    reuse_port: bool,
    v6_only: bool,
    listening: bool,
    holders: BTreeSet<SessionId>,
}

impl Ports {
    pub(crate) fn new(config: Config) -> Ports {
        Ports { config, by_port: BTreeMap::new(), by_number: BTreeMap::new() }
    }

    /// See [`crate::ConnMgr::handle_bind`].
    pub(crate) fn bind(&mut self, bind: &Bind) -> Result<u16, Cause> {
        if let Some(&(protocol, port)) = self.by_number.get(&bind.lease) {
            return self.bind_again(bind, protocol, port);
        }
        if self.by_number.len() >= self.config.leases_max {
            return Err(Cause::NoBuffers);
        }
        let port = match bind.local.port {
            0 => self.free_port(bind).ok_or(Cause::AddressInUse)?,
            port if port % self.replicas() != u16::from(self.config.replica.0) => return Err(Cause::Invalid),
            port if self.is_free(bind, port) => port,
            _ => return Err(Cause::AddressInUse),
        };
        self.by_port.entry((bind.protocol, port)).or_default().push(Lease {
            number: bind.lease,
            local: Endpoint::at(bind.local.addr, port),
            reuse_addr: bind.reuse_addr,
            reuse_port: bind.reuse_port,
            v6_only: bind.v6_only,
            listening: false,
            holders: BTreeSet::from([bind.session]),
        });
        self.by_number.insert(bind.lease, (bind.protocol, port));
        Ok(port)
    }

    /// A forked child, or the same session once more.
    fn bind_again(&mut self, bind: &Bind, protocol: Protocol, port: u16) -> Result<u16, Cause> {
        let lease = self.lease_mut(bind.lease).ok_or(Cause::Invalid)?;
        let same = protocol == bind.protocol
            && lease.local.addr == bind.local.addr
            && (bind.local.port == 0 || bind.local.port == port);
        if !same {
            return Err(Cause::Invalid);
        }
        lease.holders.insert(bind.session);
        Ok(port)
    }

    pub(crate) fn release(&mut self, session: SessionId, number: u64) {
        let Some(lease) = self.lease_mut(number) else { return };
        lease.holders.remove(&session);
        if lease.holders.is_empty() {
            self.forget(number);
        }
    }

    pub(crate) fn session_gone(&mut self, session: SessionId) {
        let mut ended = Vec::new();
        for lease in self.by_port.values_mut().flatten() {
            if lease.holders.remove(&session) && lease.holders.is_empty() {
                ended.push(lease.number);
            }
        }
        for number in ended {
            self.forget(number);
        }
    }

    /// The holder of the lease starts to listen. `false`: it is not the holder, or of another address.
    pub(crate) fn listen(&mut self, session: SessionId, number: u64, local: Endpoint) -> bool {
        match self.lease_mut(number) {
            Some(lease) if lease.holders.contains(&session) && lease.local == local => {
                lease.listening = true;
                true
            }
            _ => false,
        }
    }

    pub(crate) fn is_leased(&self, protocol: Protocol, port: u16) -> bool {
        self.by_port.contains_key(&(protocol, port))
    }

    fn lease_mut(&mut self, number: u64) -> Option<&mut Lease> {
        let place = self.by_number.get(&number)?;
        self.by_port.get_mut(place)?.iter_mut().find(|lease| lease.number == number)
    }

    fn forget(&mut self, number: u64) {
        let Some(place) = self.by_number.remove(&number) else { return };
        if let Some(leases) = self.by_port.get_mut(&place) {
            leases.retain(|lease| lease.number != number);
            if leases.is_empty() {
                self.by_port.remove(&place);
            }
        }
    }

    /// Whether no lease of the port stands against a new one.
    fn is_free(&self, bind: &Bind, port: u16) -> bool {
        let leases = self.by_port.get(&(bind.protocol, port));
        leases.into_iter().flatten().all(|lease| !lease.conflicts_with(bind))
    }

    /// A port that nobody has, from a random start on. Sockets without a port of their own never share one.
    fn free_port(&mut self, bind: &Bind) -> Option<u16> {
        let (first, last) = self.config.ephemeral;
        let n = self.replicas();
        // The ports of the range whose authority this replica is: first + skip, + n, + 2n ...
        let skip = (u16::from(self.config.replica.0) + n - first % n) % n;
        let first = first.checked_add(skip).filter(|first| *first <= last)?;
        let count = (last - first) / n + 1;
        // By the lease's number, which is random: who carries the request out again, because a predecessor has died of it or after it, finds the
        // same port.
        let start = (bind.lease.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32 % u32::from(count);
        (0..count)
            .map(|i| first + (start + u32::from(i)).rem_euclid(count.into()) as u16 * n)
            .find(|port| *port != 0 && !self.by_port.contains_key(&(bind.protocol, *port)))
    }

    fn replicas(&self) -> u16 {
        u16::from(self.config.replicas.max(1))
    }
}

/// Whether two sockets, each with its address and `IPV6_V6ONLY`, could get the same packets: Linux's `ipv6_rcv_saddr_equal`.
pub(crate) fn overlap((a, a_v6_only): (Addr, bool), (b, b_v6_only): (Addr, bool)) -> bool {
    let takes = |any: Addr, v6_only: bool, other: Addr| match any {
        Addr::V4_ANY => other.is_v4(),
        Addr::ANY => !(v6_only && other.is_v4()),
        _ => false,
    };
    a == b || takes(a, a_v6_only, b) || takes(b, b_v6_only, a)
}

impl Lease {
    /// Addresses overlap, and the options do not allow it: `SO_REUSEADDR` on both as long as none of them listens (TCP) or in any
    /// case (UDP), `SO_REUSEPORT` on both always. (Linux also wants the same user for the latter; one stack serves one.)
    fn conflicts_with(&self, bind: &Bind) -> bool {
        let overlap = overlap((self.local.addr, self.v6_only), (bind.local.addr, bind.v6_only));
        let by_addr = self.reuse_addr && bind.reuse_addr && (bind.protocol == Protocol::Udp || !self.listening);
        let by_port = self.reuse_port && bind.reuse_port;
        overlap && !by_addr && !by_port
    }
}
