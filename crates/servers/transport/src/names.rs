//! The names of connections: their 4-tuples, in few octets.

use alloc::vec::Vec;

use atoll_base::{Addr, Endpoint, FourTuple};
use core::hash::{BuildHasher, Hasher};
use foldhash::quality::FixedState;

/// The hash of names.
#[derive(Clone, Debug)]
pub(crate) struct NameHash(FixedState);

impl NameHash {
    /// Creates the hash. `seed` is secret, so that no peer can choose ports that collide.
    pub(crate) fn new(seed: u64) -> NameHash {
        NameHash(FixedState::with_seed(seed))
    }

    #[inline]
    pub(crate) fn of(&self, name: &Name) -> u64 {
        let mut hasher = self.0.build_hasher();
        let [high, low] = name.remote.to_u64s();
        hasher.write_u64(high);
        hasher.write_u64(low);
        hasher.write_u64(
            u64::from(name.local) << 32 | u64::from(name.local_port) << 16 | u64::from(name.remote_port),
        );
        hasher.finish()
    }
}

/// A 4-tuple in 24 octets instead of 36: an own IPv6 address is kept as a number, because there are few.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Name {
    remote: Addr,
    /// The own IPv4 address, if the remote one is IPv4; otherwise a place in [`Locals`].
    local: u32,
    remote_port: u16,
    local_port: u16,
}

const _: () = assert!(size_of::<Name>() == 24);

/// The own IPv6 addresses that names refer to. Those that nothing refers to any more are found by a search
/// when there are many.
#[derive(Debug, Default)]
pub(crate) struct Locals {
    addrs: Vec<Option<Addr>>,
    /// The number of addresses from which those that are still needed are searched for.
    search_at: usize,
}

/// A number that is larger than that of a stack's addresses at one time.
const SEARCH_AT_MIN: usize = 32;

impl Locals {
    /// Returns the name of `tuple`; `None` if no name has this own address, so that there is no such
    /// connection.
    #[inline]
    pub(crate) fn find(&self, tuple: &FourTuple) -> Option<Name> {
        let local = match (tuple.remote.addr.to_v4(), tuple.local.addr.to_v4()) {
            (Some(_), Some(local)) => local,
            // Cannot truncate: `add` is where they come from.
            _ => self.addrs.iter().position(|addr| *addr == Some(tuple.local.addr))? as u32,
        };
        let (remote, remote_port, local_port) = (tuple.remote.addr, tuple.remote.port, tuple.local.port);
        Some(Name { remote, local, remote_port, local_port })
    }

    /// Adds an address that [`Locals::find`] did not find.
    pub(crate) fn add(&mut self, addr: Addr) {
        match self.addrs.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(addr),
            None => self.addrs.push(Some(addr)),
        }
    }

    /// Returns whether it is time to call [`Locals::retain`].
    pub(crate) fn has_many(&self) -> bool {
        self.addrs.iter().flatten().count() >= self.search_at.max(SEARCH_AT_MIN)
    }

    /// Forgets all addresses that none of `names` refers to.
    pub(crate) fn retain<'a>(&mut self, names: impl Iterator<Item = &'a Name>) {
        let mut used = alloc::vec![false; self.addrs.len()];
        for name in names.filter(|name| !name.remote.is_v4()) {
            if let Some(used) = used.get_mut(name.local as usize) {
                *used = true;
            }
        }
        for (place, used) in self.addrs.iter_mut().zip(&used) {
            *place = place.filter(|_| *used);
        }
        self.search_at = used.iter().filter(|used| **used).count() * 2;
    }

    /// Returns the tuple of a name.
    #[inline]
    pub(crate) fn tuple(&self, name: &Name) -> FourTuple {
        let local = match name.remote.is_v4() {
            true => Addr::v4(name.local),
            false => self.addrs.get(name.local as usize).copied().flatten().unwrap_or_default(),
        };
        FourTuple {
            local: Endpoint::at(local, name.local_port),
            remote: Endpoint::at(name.remote, name.remote_port),
        }
    }
}

impl Name {
    /// Returns whether both ends are IPv4 addresses.
    #[inline]
    pub(crate) const fn is_v4(&self) -> bool {
        self.remote.is_v4()
    }

    /// Returns the common part of the names of all connections from one own address to one remote end.
    pub(crate) const fn destination(&self) -> Name {
        Name { local_port: 0, ..*self }
    }

    /// Returns the address of the peer.
    #[inline]
    pub(crate) const fn remote_addr(&self) -> Addr {
        self.remote
    }

    /// Returns the port of our end.
    #[inline]
    pub(crate) const fn local_port(&self) -> u16 {
        self.local_port
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(local: u8, port: u16) -> FourTuple {
        let at = |n: u8, port| Endpoint::at(Addr::from_octets([n; 16]), port);
        FourTuple { local: at(local, 80), remote: at(0x77, port) }
    }

    #[test]
    fn names_stand_for_their_tuples() {
        let mut locals = Locals::default();
        let v4 = FourTuple { local: Endpoint::new(1, 2), remote: Endpoint::new(3, 4) };
        assert_eq!(locals.find(&v4).map(|name| locals.tuple(&name)), Some(v4));
        assert_eq!(locals.find(&tuple(0x20, 5)), None);
        locals.add(tuple(0x20, 5).local.addr);
        locals.add(tuple(0x21, 5).local.addr);
        for tuple in [tuple(0x20, 5), tuple(0x21, 5), tuple(0x21, 6)] {
            assert_eq!(locals.find(&tuple).map(|name| locals.tuple(&name)), Some(tuple));
        }
        assert_ne!(locals.find(&tuple(0x20, 5)), locals.find(&tuple(0x21, 5)));
    }

    #[test]
    fn addresses_that_nothing_refers_to_are_forgotten() {
        let mut locals = Locals::default();
        (1..=32).for_each(|n| locals.add(tuple(n, 1).local.addr));
        assert!(locals.has_many());
        let kept = locals.find(&tuple(7, 1)).unwrap();
        locals.retain([&kept].into_iter());
        assert!(!locals.has_many() && locals.find(&tuple(8, 1)).is_none());
        locals.add(tuple(99, 1).local.addr);
        assert_eq!(locals.tuple(&kept), tuple(7, 1));
        assert_eq!(locals.addrs.len(), 32);
    }
}
