//! The next hop of a connection's packets, and their marks. IP is asked again only when the neighbours have
//! changed.

use atoll_wire::Mac;

/// The octets by which the header of IPv6 is longer than that of IPv4.
pub(crate) const V6_EXTRA: u16 = 20;

/// The next hop of a connection, and the marks of its packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextHop {
    /// The neighbour generation for which `mac` holds.
    generation: u64,
    mac: Mac,
    ttl: u8,
    tos: u8,
}

/// How a packet is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub(crate) internal: bool,
    pub(crate) mac: Mac,
    pub(crate) tos: u8,
    pub(crate) ttl: u8,
}

impl NextHop {
    /// Creates a next hop that is not known.
    pub(crate) const fn new() -> NextHop {
        NextHop { generation: u64::MAX, mac: Mac::ZERO, ttl: atoll_ip::TTL, tos: 0 }
    }

    /// Returns the station of the next hop, if it is known in this generation of neighbours.
    #[inline]
    pub(crate) fn known(&self, generation: u64) -> Option<Mac> {
        (self.generation == generation).then_some(self.mac)
    }

    /// Learns the station in this generation of neighbours.
    pub(crate) const fn learn(&mut self, generation: u64, mac: Mac) {
        (self.generation, self.mac) = (generation, mac);
    }

    /// Forgets the station.
    pub(crate) const fn forget(&mut self) {
        self.generation = u64::MAX;
    }

    /// Returns how a packet is sent.
    #[inline]
    pub(crate) const fn way(&self, internal: bool) -> Way {
        Way { internal, mac: self.mac, tos: self.tos, ttl: self.ttl }
    }

    /// Returns TTL and type of service.
    pub(crate) const fn marks(&self) -> (u8, u8) {
        (self.ttl, self.tos)
    }

    /// Sets TTL and type of service.
    pub(crate) const fn set_marks(&mut self, (ttl, tos): (u8, u8)) {
        (self.ttl, self.tos) = (ttl, tos);
    }
}
