//! What proves to a replica that a socket has a port?
//!
//! The authority of a port (`port % replicas`) knows who holds it. What it grants it tells the application
//! with its reply, sealed with a key that only servers know; the application shows it to the other replicas
//! before it asks them for something under that port ([`crate::Command::Show`]). So any replica can check,
//! without a message to another.
//!
//! Nothing takes a grant back. But of two that cannot both be in force the later one is, because the
//! authority gives no port away that somebody has: so who shows an older one is refused, and who has used it
//! goes.

use atoll_base::Endpoint;

use crate::protocol::Protocol;
use crate::words::{Reader, Writer};

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
    /// The user whose socket it is: whoever made it, or asked for the port; [`NO_USER`] where nobody had to
    /// know.
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

/// What a supervisor says of whoever asks for a socket. It asks the kernel who that is, each time
/// ([`crate::control::Request::Vouch`]), and seals the answer: so a process that has given up a user can show
/// what was said of it before about this one socket, and nothing new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// The socket. Whoever knows the number, and the seal, has inherited it.
    pub lease: u64,
    /// The effective user.
    pub uid: u32,
    /// Of the port.
    pub protocol: Protocol,
    /// A port below the unprivileged ones that it may have; 0: none.
    pub port: u16,
}

/// No user: that of a grant which nobody vouched for. It shares nothing by SO_REUSEPORT, not even with
/// another one like it.
pub const NO_USER: u32 = u32::MAX;

/// Octets that the seal of a pass is made of. Another number than [`SEALED_BYTES`], so that none is ever that
/// of a grant.
pub const PASS_BYTES: usize = 15;

impl Pass {
    /// What the seal is made of.
    pub fn sealed(&self) -> [u8; PASS_BYTES] {
        let mut bytes = [0; PASS_BYTES];
        bytes[..8].copy_from_slice(&self.lease.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.uid.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.port.to_le_bytes());
        bytes[14] = self.protocol as u8;
        bytes
    }
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

    /// Whether it is this user's. What is nobody's in particular is not.
    pub fn is_of(&self, uid: u32) -> bool {
        uid != NO_USER && self.uid == uid
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

impl Writer {
    #[inline]
    pub(crate) fn voucher(self, value: Voucher) -> Writer {
        self.u32(value.uid).u8(value.flags).u64(value.granted).u64(value.seal)
    }

    #[inline]
    pub(crate) fn pass(self, value: Pass) -> Writer {
        self.u64(value.lease).u32(value.uid).u8(value.protocol as u8).u16(value.port)
    }
}

impl Reader<'_> {
    #[inline]
    pub(crate) fn voucher(&mut self) -> Voucher {
        Voucher { uid: self.u32(), flags: self.u8(), granted: self.u64(), seal: self.u64() }
    }

    #[inline]
    pub(crate) fn pass(&mut self) -> Option<Pass> {
        let (lease, uid) = (self.u64(), self.u32());
        let protocol = Protocol::from_u8(self.u8())?;
        Some(Pass { lease, uid, protocol, port: self.u16() })
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

    #[test]
    fn every_field_of_a_pass_is_sealed() {
        let pass = Pass { lease: 1, uid: 2, protocol: Protocol::Tcp, port: 3 };
        for other in [
            Pass { lease: 2, ..pass },
            Pass { uid: 3, ..pass },
            Pass { protocol: Protocol::Udp, ..pass },
            Pass { port: 2, ..pass },
        ] {
            assert_ne!(other.sealed(), pass.sealed(), "{other:?}");
        }
        assert_ne!(PASS_BYTES, SEALED_BYTES);
    }
}
