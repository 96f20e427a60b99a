//! Decides which socket owns a port. It keeps the leases of the ports whose authority this replica is
//! (`port % replicas`), by the rules of Linux's `inet_csk_bind_conflict` and `udp_lib_get_port`. Other
//! replicas rely on what this one has granted ([`atoll_ipc::lease`]).

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use atoll_base::{Addr, BitSet, Endpoint, SessionId};
use atoll_ipc::command::Protocol;
use atoll_ipc::lease::{Grant, NO_USER};
use atoll_ipc::{Cause, Device};

use crate::manager::Config;
use crate::messages::Bind;

/// The leases, by port and by number.
#[derive(Debug)]
pub(crate) struct Ports {
    config: Config,
    by_port: BTreeMap<(Protocol, u16), Vec<Lease>>,
    by_number: BTreeMap<u64, (Protocol, u16)>,
    /// The ephemeral ports that no socket has, of TCP and of UDP, and the identifiers of ICMP.
    free: [FreePorts; 3],
    /// The leases that each session holds.
    by_session: Held,
    /// The number of the last grant. It contains the incarnation, so that the grants of a successor have
    /// larger numbers.
    granted: u64,
}

/// The leases that each session holds.
#[derive(Debug, Default)]
pub(crate) struct Held(BTreeMap<SessionId, BTreeSet<u64>>);

impl Held {
    pub(crate) fn count(&self, session: SessionId) -> usize {
        self.0.get(&session).map_or(0, BTreeSet::len)
    }

    pub(crate) fn insert(&mut self, session: SessionId, lease: u64) {
        self.0.entry(session).or_default().insert(lease);
    }

    pub(crate) fn remove(&mut self, session: SessionId, lease: u64) {
        if let Some(held) = self.0.get_mut(&session) {
            held.remove(&lease);
            if held.is_empty() {
                self.0.remove(&session);
            }
        }
    }

    /// Returns the smallest lease number that a session holds.
    pub(crate) fn first(&self, session: SessionId) -> Option<u64> {
        self.0.get(&session)?.first().copied()
    }
}

/// The ephemeral ports whose authority this replica is (`first`, and each `step`th after it), and which of
/// them no socket has. The search for a free one takes the same time when few are left.
#[derive(Debug)]
struct FreePorts {
    first: u16,
    step: u16,
    count: u32,
    free: BitSet,
}

impl FreePorts {
    fn new(config: &Config) -> FreePorts {
        let ((first, last), n) = (config.ephemeral, u16::from(config.replicas.max(1)));
        let skip = (u16::from(config.replica.0) + n - first % n) % n;
        let range = first.checked_add(skip).and_then(|first| Some((first, last.checked_sub(first)?)));
        let (first, count) = range.map_or((first, 0), |(first, range)| (first, u32::from(range / n) + 1));
        let mut ports = FreePorts { first, step: n, count, free: BitSet::full(count) };
        // No socket has port 0.
        ports.take(0);
        ports
    }

    /// Returns the place of a port in the set.
    fn place(&self, port: u16) -> Option<u32> {
        let distance = port.checked_sub(self.first)?;
        (distance % self.step == 0).then_some(u32::from(distance / self.step))
    }

    fn take(&mut self, port: u16) {
        if let Some(place) = self.place(port) {
            self.free.remove(place);
        }
    }

    fn give_back(&mut self, port: u16) {
        if let Some(place) = self.place(port) {
            self.free.insert(place);
        }
    }

    /// Returns a port from `first` to `last` that no socket has, searching from the `at`th of these on.
    fn find_within(&self, (first, last): (u16, u16), at: u32) -> Option<u16> {
        let step = u32::from(self.step);
        // Below the first port there is none, and the distance of the last one is rounded down.
        let low = u32::from(first.saturating_sub(self.first)).div_ceil(step);
        let high = u32::from(last.checked_sub(self.first)?) / step;
        let high = high.min(self.count.checked_sub(1)?);
        let start = low + at.checked_rem((high + 1).checked_sub(low)?)?;
        let is_within = |place: &u32| (low..=high).contains(place);
        let place = self.free.next(start).filter(is_within).or(self.free.next(low).filter(is_within))?;
        // Cannot overflow: the port is in the range.
        Some(self.first + place as u16 * self.step)
    }

    /// Returns a port that no socket has, searching from the `at`th one on.
    fn find(&self, at: u32) -> Option<u16> {
        let place = self.free.next(at.checked_rem(self.count)?)?;
        // Cannot overflow: the port is in the range.
        Some(self.first + place as u16 * self.step)
    }
}

#[derive(Debug)]
struct Lease {
    grant: Grant,
    holders: BTreeSet<SessionId>,
}

/// The position of the incarnation in the number of a grant. The 2^40 numbers below it are not used up: at a
/// million grants a second they last for twelve days.
const EPOCH_SHIFT: u32 = 40;

impl Ports {
    pub(crate) fn new(config: Config) -> Ports {
        let granted = u64::from(config.epoch.0) << EPOCH_SHIFT;
        let (by_session, free) = (Held::default(), core::array::from_fn(|_| FreePorts::new(&config)));
        Ports { config, by_port: BTreeMap::new(), by_number: BTreeMap::new(), free, by_session, granted }
    }

    /// Leases a port: see [`crate::ConnMgr::handle_bind`]. `is_granted`: a predecessor has leased this port
    /// to this socket, and no other one can take it away.
    pub(crate) fn bind(&mut self, bind: &Bind, is_granted: bool) -> Result<u16, Cause> {
        if let Some(&(protocol, port)) = self.by_number.get(&bind.lease) {
            return self.bind_again(bind, protocol, port);
        }
        if !may_bind(bind) {
            return Err(Cause::PermissionDenied);
        }
        if self.by_number.len() >= self.config.leases_max || !self.has_room(bind.session) {
            return Err(Cause::NoBuffers);
        }
        let port = match bind.local.port {
            0 => self.free_port(bind).ok_or(Cause::AddressInUse)?,
            port if port % self.replicas() != u16::from(self.config.replica.0) => return Err(Cause::Invalid),
            port if is_granted || self.is_free(bind, port) => port,
            _ => return Err(Cause::AddressInUse),
        };
        self.granted += 1;
        let grant = Grant {
            lease: bind.lease,
            protocol: bind.protocol,
            local: Endpoint::at(bind.local.addr, port),
            v6_only: bind.v6_only,
            reuse_addr: bind.reuse_addr,
            reuse_port: bind.reuse_port,
            listening: false,
            device: bind.device,
            uid: bind.user.uid,
            granted: self.granted,
        };
        let holders = BTreeSet::from([bind.session]);
        self.by_port.entry((bind.protocol, port)).or_default().push(Lease { grant, holders });
        if let Some(free) = self.free_ports(bind.protocol) {
            free.take(port);
        }
        self.by_number.insert(bind.lease, (bind.protocol, port));
        self.by_session.insert(bind.session, bind.lease);
        Ok(port)
    }

    /// Returns whether the session may hold one more lease.
    fn has_room(&self, session: SessionId) -> bool {
        self.by_session.count(session) < self.config.session_leases_max
    }

    /// Adds a holder to a lease: a forked child asks, or the same session once more.
    fn bind_again(&mut self, bind: &Bind, protocol: Protocol, port: u16) -> Result<u16, Cause> {
        let has_room = self.has_room(bind.session);
        let lease = self.lease_mut(bind.lease).ok_or(Cause::Invalid)?;
        let same = protocol == bind.protocol
            // A connected socket names an address covered by the one that it was bound to.
            && covers(&lease.grant, Endpoint::at(bind.local.addr, port))
            && (bind.local.port == 0 || bind.local.port == port);
        if !same {
            return Err(Cause::Invalid);
        }
        if !has_room && !lease.holders.contains(&bind.session) {
            return Err(Cause::NoBuffers);
        }
        lease.holders.insert(bind.session);
        self.by_session.insert(bind.session, bind.lease);
        Ok(port)
    }

    pub(crate) fn release(&mut self, session: SessionId, number: u64) {
        self.by_session.remove(session, number);
        let Some(lease) = self.lease_mut(number) else { return };
        lease.holders.remove(&session);
        if lease.holders.is_empty() {
            self.forget(number);
        }
    }

    /// Returns one of the leases that the session holds.
    pub(crate) fn held(&self, session: SessionId) -> Option<u64> {
        self.by_session.first(session)
    }

    /// Returns the grant of a lease that the session holds.
    pub(crate) fn grant(&self, session: SessionId, number: u64) -> Option<Grant> {
        let place = self.by_number.get(&number)?;
        let lease = self.by_port.get(place)?.iter().find(|lease| lease.grant.lease == number)?;
        lease.holders.contains(&session).then_some(lease.grant)
    }

    /// Returns the grant that the session would have if it listened. It is later than the grants of other
    /// listeners, which may be gone here and not yet elsewhere. `uid` is the owner if the grant names none.
    pub(crate) fn grant_listening(
        &mut self,
        session: SessionId,
        number: u64,
        reuse_port: bool,
        uid: u32,
    ) -> Option<Grant> {
        let mut grant = self.grant(session, number)?;
        if grant.uid == NO_USER {
            grant.uid = uid;
        }
        if grant.listening {
            return Some(Grant { reuse_port, ..grant });
        }
        self.granted += 1;
        Some(Grant { reuse_port, listening: true, granted: self.granted, ..grant })
    }

    /// Binds the socket of a lease to another device. As on Linux (sock_bindtoindex), nothing is refused that
    /// conflicts with another socket then; listen(2) looks again. Returns `false` if there is no such lease.
    pub(crate) fn set_device(&mut self, number: u64, device: Device) -> bool {
        let lease = self.lease_mut(number);
        lease.map(|lease| lease.grant.device = device).is_some()
    }

    /// Notes that the socket of a lease has `SO_REUSEADDR` now, or has it no more, which decides who may have
    /// the port beside it from now on (inet_bind_conflict, udp_lib_lport_inuse). Returns `false` if there is
    /// no such lease.
    pub(crate) fn set_reuse_addr(&mut self, number: u64, reuse_addr: bool) -> bool {
        let lease = self.lease_mut(number);
        lease.map(|lease| lease.grant.reuse_addr = reuse_addr).is_some()
    }

    /// Notes that the holder of the lease listens now.
    pub(crate) fn listens(&mut self, grant: &Grant) {
        if let Some(lease) = self.lease_mut(grant.lease) {
            lease.grant = *grant;
        }
    }

    pub(crate) fn is_leased(&self, protocol: Protocol, port: u16) -> bool {
        self.by_port.contains_key(&(protocol, port))
    }

    /// Returns the number of leases of a port. Each of them is examined when one more is asked for or given
    /// back.
    pub(crate) fn count_at(&self, protocol: Protocol, port: u16) -> usize {
        self.by_port.get(&(protocol, port)).map_or(0, Vec::len)
    }

    fn lease_mut(&mut self, number: u64) -> Option<&mut Lease> {
        let place = self.by_number.get(&number)?;
        self.by_port.get_mut(place)?.iter_mut().find(|lease| lease.grant.lease == number)
    }

    fn forget(&mut self, number: u64) {
        let Some(place) = self.by_number.remove(&number) else { return };
        if let Some(leases) = self.by_port.get_mut(&place) {
            leases.retain(|lease| lease.grant.lease != number);
            if leases.is_empty() {
                self.by_port.remove(&place);
                if let Some(free) = self.free_ports(place.0) {
                    free.give_back(place.1);
                }
            }
        }
    }

    /// Returns the free ports of a protocol; `None` if its sockets do not choose their ports.
    fn free_ports(&mut self, protocol: Protocol) -> Option<&mut FreePorts> {
        match protocol {
            Protocol::Tcp => Some(&mut self.free[0]),
            Protocol::Udp => Some(&mut self.free[1]),
            Protocol::Icmp => Some(&mut self.free[2]),
            Protocol::Raw => None,
        }
    }

    /// Returns whether no lease of the port conflicts with a new one.
    fn is_free(&self, bind: &Bind, port: u16) -> bool {
        let leases = self.by_port.get(&(bind.protocol, port));
        leases.into_iter().flatten().all(|lease| !lease.conflicts_with(bind))
    }

    /// Returns a port that no socket has, from a random start on: sockets that name no port never share one.
    fn free_port(&mut self, bind: &Bind) -> Option<u16> {
        self.free_ports(bind.protocol)?.find(start(bind.lease))
    }

    /// Returns a port from `first` to `last` that no socket has; 0 if the lease has its port already, which
    /// it asks for again.
    pub(crate) fn port_within(&mut self, protocol: Protocol, lease: u64, range: (u16, u16)) -> Option<u16> {
        if self.by_number.contains_key(&lease) {
            return Some(0);
        }
        self.free_ports(protocol)?.find_within(range, start(lease))
    }

    fn replicas(&self) -> u16 {
        u16::from(self.config.replicas.max(1))
    }
}

/// Returns where the search for a free port starts. It follows from the lease's number, which is random: a
/// successor that carries out the request again finds the same port.
const fn start(lease: u64) -> u32 {
    (lease.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

/// Returns whether the user may have the port that is asked for.
fn may_bind(bind: &Bind) -> bool {
    let port = bind.local.port;
    match bind.protocol {
        // An identifier of ICMP is nobody's privilege, as on Linux (ping_get_port).
        Protocol::Icmp => true,
        // A raw socket needs one always (inet_create: CAP_NET_RAW), wherever ports begin to need none.
        Protocol::Raw => {
            port == Protocol::raw_port(!bind.local.addr.is_v4()) && bind.user.is_vouched_for(port)
        }
        Protocol::Tcp | Protocol::Udp => bind.user.may_bind(port),
    }
}

/// Returns whether two sockets, each with its address and `IPV6_V6ONLY`, could get the same packets, as
/// Linux's `ipv6_rcv_saddr_equal`.
pub(crate) fn overlap((a, a_v6_only): (Addr, bool), (b, b_v6_only): (Addr, bool)) -> bool {
    let takes = |any: Addr, v6_only: bool, other: Addr| match any {
        Addr::V4_ANY => other.is_v4(),
        Addr::ANY => !(v6_only && other.is_v4()),
        _ => false,
    };
    a == b || takes(a, a_v6_only, b) || takes(b, b_v6_only, a)
}

/// Returns whether a socket with this grant may have the address `local`: the granted one, or one that the
/// granted one includes.
pub fn covers(grant: &Grant, local: Endpoint) -> bool {
    let takes = match grant.local.addr {
        Addr::V4_ANY => local.addr.is_v4(),
        Addr::ANY => !(grant.v6_only && local.addr.is_v4()),
        _ => false,
    };
    local.port == grant.local.port && (takes || local.addr == grant.local.addr)
}

/// Returns whether two sockets of one protocol, which were both granted the same port, cannot both have it.
/// The earlier grant is over then, and its holder, which may not know yet, has to leave.
pub fn are_rivals(a: &Grant, b: &Grant) -> bool {
    if a.protocol == Protocol::Raw {
        // All raw sockets get what comes.
        return false;
    }
    // The later one knew that others could share the port. Whether the earlier one has allowed that since,
    // its authority alone knows.
    let later = if b.granted > a.granted { b } else { a };
    let by_addr = later.reuse_addr && !(a.listening && b.listening);
    if a.protocol == Protocol::Icmp {
        return a.lease != b.lease && !(by_addr && a.is_of(b.uid));
    }
    let overlap = overlap((a.local.addr, a.v6_only), (b.local.addr, b.v6_only));
    let overlap = overlap && a.device.overlaps(b.device);
    a.lease != b.lease && overlap && !by_addr && !share_port(a, (b.reuse_port, b.uid))
}

/// Returns whether two sockets share a port by `SO_REUSEPORT`: both have set it and are of the same user, so
/// that no other user can take part of what arrives at the port.
fn share_port(a: &Grant, (reuse_port, uid): (bool, u32)) -> bool {
    a.reuse_port && reuse_port && a.is_of(uid)
}

impl Lease {
    /// Returns whether addresses and devices overlap and the options do not allow it. Allowed are
    /// `SO_REUSEADDR` on both, for TCP only while none of them listens, and `SO_REUSEPORT` on both for
    /// sockets of the same user.
    fn conflicts_with(&self, bind: &Bind) -> bool {
        let own = &self.grant;
        if bind.protocol == Protocol::Raw {
            return false;
        }
        if bind.protocol == Protocol::Icmp {
            // ping_get_port: the addresses do not matter, nor does the family.
            // DEVIATION: sockets share an identifier by default, as on Linux, but only those of one user. So
            // no user takes what is for another one.
            return !(own.reuse_addr && bind.reuse_addr && own.is_of(bind.user.uid));
        }
        let overlap = overlap((own.local.addr, own.v6_only), (bind.local.addr, bind.v6_only));
        // inet_bind_conflict, inet_rcv_saddr_equal: what comes over one device is not for the other socket.
        let overlap = overlap && own.device.overlaps(bind.device);
        let by_addr = own.reuse_addr && bind.reuse_addr && (bind.protocol == Protocol::Udp || !own.listening);
        overlap && !by_addr && !share_port(own, (bind.reuse_port, bind.user.uid))
    }
}
