//! The proof that a socket has a port, which any replica can check.
//!
//! The authority of a port (`port % replicas`) knows its holders. It sends its grant to the application with
//! its reply, sealed with a key that only servers know. The application shows the grant to the other replicas
//! before it asks them for something under that port ([`crate::Command::Show`]). So any replica can check the
//! grant without a message to another.
//!
//! Nothing takes a grant back. But of two grants that cannot both be in force the later one is, because the
//! authority gives out no port that is held. So an older grant is refused when it is shown, and a socket that
//! has used it is removed.

use atoll_base::Endpoint;
use bitflags::bitflags;

use crate::device::Device;
use crate::layout::{Field, record};
use crate::protocol::Protocol;

/// A port of a socket: what the authority has granted, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The number of the socket. A process that knows the number and the seal has inherited the socket.
    pub lease: u64,
    /// The protocol; TCP and UDP ports are separate.
    pub protocol: Protocol,
    /// The address (perhaps unspecified) and the port.
    pub local: Endpoint,
    /// Whether a socket at `::` takes IPv6 alone.
    pub v6_only: bool,
    /// The value of `SO_REUSEADDR`.
    pub reuse_addr: bool,
    /// The value of `SO_REUSEPORT`.
    pub reuse_port: bool,
    /// Whether the socket may listen.
    pub listening: bool,
    /// The device that the socket is bound to.
    pub device: Device,
    /// The user that created the socket or asked for the port; [`NO_USER`] where no replica had to know.
    pub uid: u32,
    /// The number of the grant: later grants of an authority have larger numbers.
    pub granted: u64,
}

record! {
    /// The part of a grant that the application learns from the authority.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Voucher {
        /// The user of the grant: [`Grant::uid`].
        pub uid: u32,
        /// The options of the grant, as bits.
        pub flags: u8,
        /// The number of the grant: [`Grant::granted`].
        pub granted: u64,
        /// The seal over the grant, which only servers can compute.
        pub seal: u64,
    }
}

record! {
    /// The supervisor's statement about the user that asks for a socket. The supervisor asks the kernel for
    /// the user each time ([`crate::control::Request::Vouch`]), and seals the answer. So a process that has
    /// given up a user can show an earlier statement about this one socket, and nothing new.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Pass {
        /// The number of the socket. A process that knows the number and the seal has inherited the socket.
        pub lease: u64,
        /// The effective user.
        pub uid: u32,
        /// The protocol of the port.
        pub protocol: Protocol,
        /// A port below the unprivileged ones that the user may have; 0 for none. For
        /// [`Protocol::Raw`], its port if the user may have raw sockets.
        pub port: u16,
    }
}

/// The user of a grant for which no supervisor vouched. Such a grant shares nothing by SO_REUSEPORT, not even
/// with another one like it.
pub const NO_USER: u32 = u32::MAX;

bitflags! {
    /// The options of a grant.
    #[derive(Clone, Copy)]
    struct Options: u8 {
        const V6_ONLY = 1;
        const REUSE_ADDR = 2;
        const REUSE_PORT = 4;
        const LISTENING = 8;
        /// The socket is bound to the loopback.
        const ON_LOOPBACK = 16;
        /// The socket is bound to the link.
        const ON_LINK = 32;
    }
}

impl Options {
    const fn device(self) -> Device {
        if self.contains(Options::ON_LOOPBACK) {
            Device::Loopback
        } else if self.contains(Options::ON_LINK) {
            Device::Link
        } else {
            Device::None
        }
    }
}

record! {
    /// What is under the seal of a pass.
    struct SealedPass {
        lease: u64,
        uid: u32,
        port: u16,
        protocol: Protocol,
    }
}

/// The number of octets under the seal of a pass. It differs from [`SEALED_BYTES`], so that no seal of a pass
/// is that of a grant.
pub const PASS_BYTES: usize = size_of::<<SealedPass as Field>::Octets>();

impl Pass {
    /// Returns the octets under the seal.
    pub fn sealed(&self) -> [u8; PASS_BYTES] {
        let Pass { lease, uid, protocol, port } = *self;
        zerocopy::transmute!(SealedPass { lease, uid, port, protocol }.write())
    }
}

record! {
    /// What is under the seal of a grant.
    struct SealedGrant {
        lease: u64,
        local: Endpoint,
        protocol: Protocol,
        flags: u8,
        uid: u32,
        granted: u64,
    }
}

/// The number of octets under the seal of a grant.
pub const SEALED_BYTES: usize = size_of::<<SealedGrant as Field>::Octets>();

impl Grant {
    /// Returns the grant that a voucher belongs to.
    pub const fn of(lease: u64, protocol: Protocol, local: Endpoint, voucher: &Voucher) -> Grant {
        let Voucher { uid, flags, granted, .. } = *voucher;
        let options = Options::from_bits_truncate(flags);
        Grant {
            lease,
            protocol,
            local,
            v6_only: options.contains(Options::V6_ONLY),
            reuse_addr: options.contains(Options::REUSE_ADDR),
            reuse_port: options.contains(Options::REUSE_PORT),
            listening: options.contains(Options::LISTENING),
            device: options.device(),
            uid,
            granted,
        }
    }

    /// Returns a grant to listen, with no options, for callers that play the authority.
    pub const fn to_listen(lease: u64, local: Endpoint) -> Grant {
        let voucher = Voucher { uid: 0, flags: Options::LISTENING.bits(), granted: 1, seal: 0 };
        Grant::of(lease, Protocol::Tcp, local, &voucher)
    }

    /// Returns whether the grant belongs to this user; a grant of [`NO_USER`] belongs to none.
    pub fn is_of(&self, uid: u32) -> bool {
        uid != NO_USER && self.uid == uid
    }

    /// Returns the voucher that the application is sent.
    pub fn voucher(&self, seal: u64) -> Voucher {
        Voucher { uid: self.uid, flags: self.flags(), granted: self.granted, seal }
    }

    /// Returns the octets under the seal.
    pub fn sealed(&self) -> [u8; SEALED_BYTES] {
        let Grant { lease, protocol, local, uid, granted, .. } = *self;
        let sealed = SealedGrant { lease, local, protocol, flags: self.flags(), uid, granted };
        zerocopy::transmute!(sealed.write())
    }

    fn flags(&self) -> u8 {
        let mut options = Options::empty();
        options.set(Options::V6_ONLY, self.v6_only);
        options.set(Options::REUSE_ADDR, self.reuse_addr);
        options.set(Options::REUSE_PORT, self.reuse_port);
        options.set(Options::LISTENING, self.listening);
        options.set(Options::ON_LOOPBACK, matches!(self.device, Device::Loopback));
        options.set(Options::ON_LINK, matches!(self.device, Device::Link));
        options.bits()
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
            device: Device::None,
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
            Grant { device: Device::Loopback, ..grant },
            Grant { device: Device::Link, ..grant },
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
