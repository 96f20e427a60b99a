//! Addresses as they are written in the configuration: `198.18.0.2/24`, `2001:db8::2/64`,
//! `02:00:00:00:00:01`.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use thiserror::Error;

/// An IPv4 address with the length of its network's prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    /// The address of a host, not of the network.
    pub address: Ipv4Addr,
    /// The length of the prefix, from 1 to 32.
    pub prefix: u8,
}

impl Cidr {
    /// Returns whether `other` is in the same network.
    pub fn contains(self, other: Ipv4Addr) -> bool {
        let mask = u32::MAX << (32 - u32::from(self.prefix.clamp(1, 32)));
        (u32::from(self.address) ^ u32::from(other)) & mask == 0
    }
}

impl FromStr for Cidr {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Cidr, AddressError> {
        let (address, prefix) = text.split_once('/').ok_or(AddressError::NoPrefix)?;
        let address: Ipv4Addr = address.parse().map_err(|_| AddressError::NotIpv4)?;
        let prefix = prefix.parse().ok().filter(|n| (1..=32).contains(n)).ok_or(AddressError::Prefix)?;
        let host_bits = !(u32::MAX << (32 - u32::from(prefix)));
        let host = u32::from(address) & host_bits;
        // RFC 3021: networks of two addresses have neither a network address nor a broadcast address.
        let not_a_host = prefix <= 30 && (host == 0 || host == host_bits);
        if not_a_host || address.is_multicast() || address.is_broadcast() || address.is_unspecified() {
            return Err(AddressError::NotAHost);
        }
        if address.is_loopback() {
            return Err(AddressError::Loopback);
        }
        Ok(Cidr { address, prefix })
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// An IPv6 address with the length of its network's prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr6 {
    /// The address of a host.
    pub address: Ipv6Addr,
    /// The length of the prefix, from 1 to 128.
    pub prefix: u8,
}

impl Cidr6 {
    /// Returns whether `other` is in the same network.
    pub fn contains(self, other: Ipv6Addr) -> bool {
        let mask = u128::MAX << (128 - u32::from(self.prefix.clamp(1, 128)));
        (self.address.to_bits() ^ other.to_bits()) & mask == 0
    }
}

impl FromStr for Cidr6 {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Cidr6, AddressError> {
        let (address, prefix) = text.split_once('/').ok_or(AddressError::NoPrefix6)?;
        let address: Ipv6Addr = address.parse().map_err(|_| AddressError::NotIpv6)?;
        let prefix = prefix.parse().ok().filter(|n| (1..=128).contains(n)).ok_or(AddressError::Prefix6)?;
        if address.is_multicast() || address.is_unspecified() || address.to_ipv4_mapped().is_some() {
            return Err(AddressError::NotAHost);
        }
        if address.is_loopback() {
            return Err(AddressError::Loopback);
        }
        if address.is_unicast_link_local() {
            return Err(AddressError::LinkLocal);
        }
        Ok(Cidr6 { address, prefix })
    }
}

impl fmt::Display for Cidr6 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// The hardware address of one station.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Makes a locally administered address of a single station from random bytes.
    pub fn local(random: [u8; 6]) -> Mac {
        let mut bytes = random;
        bytes[0] = bytes[0] & !1 | 2;
        Mac(bytes)
    }
}

impl FromStr for Mac {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Mac, AddressError> {
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part =
                parts.next().filter(|part| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit()));
            *byte = part.and_then(|part| u8::from_str_radix(part, 16).ok()).ok_or(AddressError::NotMac)?;
        }
        if parts.next().is_some() || bytes[0] & 1 == 1 || bytes == [0; 6] {
            return Err(AddressError::NotMac);
        }
        Ok(Mac(bytes))
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The fault of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AddressError {
    /// The length of an IPv4 prefix is missing.
    #[error("the length of the prefix is missing: write it as in 198.18.0.2/24")]
    NoPrefix,
    /// The length of the prefix is not from 1 to 32.
    #[error("the length of the prefix is not a number from 1 to 32")]
    Prefix,
    /// The text before the prefix is not an IPv4 address.
    #[error("not an IPv4 address with a prefix, such as 198.18.0.2/24")]
    NotIpv4,
    /// The address is that of a network, a multicast group, or broadcast.
    #[error("the address of a network, of a group or of everybody cannot be a stack's own")]
    NotAHost,
    /// The address is in 127.0.0.0/8 or is ::1, which exist inside every stack already.
    #[error("127.0.0.0/8 and ::1 exist inside every stack already: give it another address")]
    Loopback,
    /// The length of an IPv6 prefix is missing.
    #[error("the length of the prefix is missing: write it as in 2001:db8::2/64")]
    NoPrefix6,
    /// The length of the prefix is not from 1 to 128.
    #[error("the length of the prefix is not a number from 1 to 128")]
    Prefix6,
    /// The text before the prefix is not an IPv6 address.
    #[error("not an IPv6 address with a prefix, such as 2001:db8::2/64")]
    NotIpv6,
    /// The address is link-local; a stack makes that address itself.
    #[error("a stack makes its link-local address itself: give it another one, or none")]
    LinkLocal,
    /// The text is not the hardware address of a single station.
    #[error("not the hardware address of one station, such as 02:00:00:00:00:01")]
    NotMac,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_hosts_are_taken() {
        for text in ["198.18.0.2/24", "10.0.0.0/31", "10.0.0.1/31", "10.0.0.0/32", "192.168.1.254/16"] {
            assert_eq!(text.parse::<Cidr>().unwrap().to_string(), text);
        }
        let cidr: Cidr = "198.18.0.2/24".parse().unwrap();
        assert!(cidr.contains(Ipv4Addr::new(198, 18, 0, 99)) && !cidr.contains(Ipv4Addr::new(198, 18, 1, 2)));
    }

    #[test]
    fn other_addresses_are_refused_with_their_reason() {
        for (text, reason) in [
            ("198.18.0.2", AddressError::NoPrefix),
            ("198.18.0.2/0", AddressError::Prefix),
            ("198.18.0.2/33", AddressError::Prefix),
            ("198.18.0.256/24", AddressError::NotIpv4),
            ("::1/64", AddressError::NotIpv4),
            ("198.18.0.0/24", AddressError::NotAHost),
            ("198.18.0.255/24", AddressError::NotAHost),
            ("224.0.0.1/24", AddressError::NotAHost),
            ("127.0.0.1/8", AddressError::Loopback),
        ] {
            assert_eq!(text.parse::<Cidr>(), Err(reason), "{text}");
        }
    }

    #[test]
    fn ipv6_addresses_are_those_of_hosts_too() {
        let cidr: Cidr6 = "2001:db8:0:0::2/64".parse().unwrap();
        assert_eq!(cidr.to_string(), "2001:db8::2/64");
        assert!(
            cidr.contains("2001:db8::99".parse().unwrap())
                && !cidr.contains("2001:db8:1::2".parse().unwrap())
        );
        for (text, reason) in [
            ("2001:db8::2", AddressError::NoPrefix6),
            ("2001:db8::2/0", AddressError::Prefix6),
            ("2001:db8::2/129", AddressError::Prefix6),
            ("198.18.0.2/24", AddressError::NotIpv6),
            ("ff02::1/64", AddressError::NotAHost),
            ("::/64", AddressError::NotAHost),
            ("::ffff:198.18.0.2/120", AddressError::NotAHost),
            ("::1/128", AddressError::Loopback),
            ("fe80::1/64", AddressError::LinkLocal),
        ] {
            assert_eq!(text.parse::<Cidr6>(), Err(reason), "{text}");
        }
    }

    #[test]
    fn hardware_addresses_are_of_one_station() {
        assert_eq!("02:00:00:00:00:fF".parse(), Ok(Mac([2, 0, 0, 0, 0, 255])));
        for text in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:01:02",
            "01:00:5e:00:00:01",
            "00:00:00:00:00:00",
            "2:0:0:0:0:+1",
        ] {
            assert_eq!(text.parse::<Mac>(), Err(AddressError::NotMac), "{text}");
        }
        let mac = Mac::local([0xff; 6]);
        assert_eq!(mac.to_string().parse(), Ok(mac));
        assert_eq!(mac.0[0] & 3, 2);
    }
}
