//! The network device of a stack to which a socket is bound (socket(7), `SO_BINDTODEVICE`).

use zerocopy::TryFromBytes;

use crate::layout::numbered;

/// The device that a socket is bound to, or over which a packet has come.
///
/// A stack has two: its loopback, and its link. As on Linux (`inet_iif`), a packet to an address of the link
/// counts as one that has come over the link even if it has not left the stack, unless a socket has sent it
/// that is bound to the loopback.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, TryFromBytes)]
#[repr(u8)]
pub enum Device {
    /// The socket is bound to no device: it takes what comes over any of them.
    #[default]
    None = 0,
    /// The loopback, `lo`.
    Loopback = 1,
    /// The stack's link, `eth0`.
    Link = 2,
}

numbered!(Device);

impl Device {
    /// Returns the device of a value of [`crate::SocketOption::Device`]; `None` if there is no such device.
    pub fn of_value(value: u32) -> Option<Device> {
        u8::try_from(value).ok().and_then(Device::from_u8)
    }

    /// Returns whether a socket that is bound to this device takes what has come over `arrival`
    /// (`inet_sk_bound_dev_eq`). [`Device::None`] as `arrival` fits every socket.
    #[inline]
    pub fn takes(self, arrival: Device) -> bool {
        self == Device::None || arrival == Device::None || self == arrival
    }

    /// Returns whether a packet could be for a socket that is bound to this device and for one that is bound
    /// to `other` (`inet_bind_conflict`).
    #[inline]
    pub fn overlaps(self, other: Device) -> bool {
        self.takes(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_takes_what_comes_over_its_device_and_one_without_takes_all() {
        use Device::{Link, Loopback, None};
        for (own, arrival, takes) in [
            (None, Loopback, true),
            (None, Link, true),
            (Loopback, Loopback, true),
            (Loopback, Link, false),
            (Link, Loopback, false),
            (Link, Link, true),
            (Link, None, true),
        ] {
            assert_eq!(own.takes(arrival), takes, "{own:?} {arrival:?}");
            assert_eq!(own.overlaps(arrival), arrival.overlaps(own));
        }
        assert_eq!(
            [0, 1, 2, 3, 256].map(Device::of_value),
            [Some(None), Some(Loopback), Some(Link), Option::None, Option::None]
        );
    }
}
