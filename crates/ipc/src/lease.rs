//! What proves to a replica that a socket has a port?
//!
//! The authority of a port (`port % replicas`) knows who holds it. What it grants it tells the application with its reply, sealed with a key that
//! only servers know; the application shows it to the other replicas before it asks them for something under that port
//! ([`crate::Command::Show`]). So any replica can check, without a message to another.
//!
//! Nothing takes a grant back. But of two that cannot both be in force the later one is, because the authority gives no port away that somebody
//! has: so who shows an older one is refused, and who has used it goes.

use atoll_base::Endpoint;

use crate::command::Protocol;

/// A socket has a port: what the authority has said, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The socket. Who knows the number, and the seal, has inherited it.
    pub lease: u64,
    /// TCP and UDP ports are separate.
    pub protocol: Protocol,
    /// Address (perhaps any) and port.
    pub local: Endpoint,
    /// At `::`: IPv6 alone.
    pub v6_only: bool,
    /// `SO_REUSEADDR`.
    pub reuse_addr: bool,
    /// `SO_REUSEPORT`.
    pub reuse_port: bool,
    /// It may listen.
    pub listening: bool,
    /// The user who was granted it first.
    pub uid: u32,
    /// Later grants of an authority have larger numbers.
    pub granted: u64,
}

/// What an authority tells of a grant that the application does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Voucher {
    /// [`Grant::uid`].
    pub uid: u32,
    /// Options of the grant, as bits.
    pub flags: u8,
    /// [`Grant::granted`].
    pub granted: u64,
    /// What only servers can make of all the rest.
    pub seal: u64,
}

/// Octets that a seal is made of.
pub const SEALED_BYTES: usize = 40;

impl Grant {
    /// The grant that a voucher is of.
    pub const fn of(lease: u64, protocol: Protocol, local: Endpoint, voucher: &Voucher) -> Grant {
        let Voucher { uid, flags, granted, .. } = *voucher;
        Grant {
            lease,
            protocol,
            local,
            v6_only: flags & 1 != 0,
            reuse_addr: flags & 2 != 0,
            reuse_port: flags & 4 != 0,
            listening: flags & 8 != 0,
            uid,
            granted,
        }
    }

    /// One to listen by, with no options: for those who play the authority.
    pub const fn to_listen(lease: u64, local: Endpoint) -> Grant {
        let voucher = Voucher { uid: 0, flags: 8, granted: 1, seal: 0 };
        Grant::of(lease, Protocol::Tcp, local, &voucher)
    }

    /// What the application is told.
    pub fn voucher(&self, seal: u64) -> Voucher {
        Voucher { uid: self.uid, flags: self.flags(), granted: self.granted, seal }
    }

    /// What the seal is made of.
    pub fn sealed(&self) -> [u8; SEALED_BYTES] {
        let mut bytes = [0; SEALED_BYTES];
        bytes[..8].copy_from_slice(&self.lease.to_le_bytes());
        bytes[8..24].copy_from_slice(&self.local.addr.octets());
        bytes[24..26].copy_from_slice(&self.local.port.to_le_bytes());
        bytes[26] = self.protocol as u8;
        bytes[27] = self.flags();
        bytes[28..32].copy_from_slice(&self.uid.to_le_bytes());
        bytes[32..].copy_from_slice(&self.granted.to_le_bytes());
        bytes
    }

    fn flags(&self) -> u8 {
        u8::from(self.v6_only)
            | u8::from(self.reuse_addr) << 1
            | u8::from(self.reuse_port) << 2
            | u8::from(self.listening) << 3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_comes_back_from_its_voucher_and_every_field_is_sealed() {
        let grant = Grant {
            lease: 1,
            protocol: Protocol::Udp,
            local: Endpoint::new(2, 3),
            v6_only: false,
            reuse_addr: false,
            reuse_port: false,
            listening: false,
            uid: 4,
            granted: 5,
        };
        let others = [
            Grant { lease: 2, ..grant },
            Grant { protocol: Protocol::Tcp, ..grant },
            Grant { local: Endpoint::new(3, 3), ..grant },
            Grant { local: Endpoint::new(2, 4), ..grant },
            Grant { v6_only: true, ..grant },
            Grant { reuse_addr: true, ..grant },
            Grant { reuse_port: true, ..grant },
            Grant { listening: true, ..grant },
            Grant { uid: 5, ..grant },
            Grant { granted: 6, ..grant },
        ];
        for other in others {
            assert_ne!(other.sealed(), grant.sealed(), "{other:?}");
            assert_eq!(Grant::of(other.lease, other.protocol, other.local, &other.voucher(7)), other);
        }
    }
}
