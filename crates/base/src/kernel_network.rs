//! What programs on a stack may use the kernel's network for.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;

use crate::{Addr, Endpoint};

/// The permitted uses of the kernel's network for programs on a stack: none by default.
///
/// Its text is `rest`, or a list of `ADDRESS[/PREFIX][:PORT]`, separated by commas; an address of IPv6 with a
/// port is in brackets, with its prefix: `[2001:db8::/32]:53`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelNetwork {
    has_rest: bool,
    places: Vec<Place>,
}

/// Addresses with a common prefix, and a port, or all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    network: Addr,
    /// The length of the prefix of the address with its sixteen octets.
    prefix: u32,
    port: Option<u16>,
}

/// The reason why a text names no part of the kernel's network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{0}\" is not ADDRESS, ADDRESS/PREFIX, ADDRESS:PORT or ADDRESS/PREFIX:PORT (with brackets around IPv6 \
     before a port: [2001:db8::/32]:53)"
)]
pub struct NoPlace(String);

impl KernelNetwork {
    /// The text of [`KernelNetwork::has_rest`].
    pub const REST: &str = "rest";

    /// Returns whether what the stack does not serve is the kernel's: addresses that it does not have or
    /// reach, kinds of sockets that it does not know, programs that cannot join it.
    pub fn has_rest(&self) -> bool {
        self.has_rest
    }

    /// Returns whether `endpoint` was named, so that it is the kernel's even where the stack reaches it.
    pub fn names(&self, endpoint: Endpoint) -> bool {
        self.places.iter().any(|place| place.contains(endpoint))
    }
}

impl Place {
    fn contains(&self, endpoint: Endpoint) -> bool {
        let bits = |addr: Addr| u128::from_be_bytes(addr.octets());
        let differs =
            (bits(endpoint.addr) ^ bits(self.network)).checked_shr(128 - self.prefix).unwrap_or(0) != 0;
        !differs && self.port.is_none_or(|port| port == endpoint.port)
    }
}

impl FromStr for Place {
    type Err = NoPlace;

    fn from_str(text: &str) -> Result<Place, NoPlace> {
        let error = || NoPlace(text.into());
        let (network, port) = match text.strip_prefix('[').map(|rest| rest.split_once(']')) {
            Some(None) => return Err(error()),
            Some(Some((network, ""))) => (network, None),
            Some(Some((network, port))) => (network, Some(port.strip_prefix(':').ok_or_else(error)?)),
            // More than one colon: an address of IPv6 without a port.
            None => match text.split_once(':').filter(|(_, port)| !port.contains(':')) {
                Some((network, port)) => (network, Some(port)),
                None => (text, None),
            },
        };
        let (addr, prefix) = network.split_once('/').map_or((network, None), |(a, p)| (a, Some(p)));
        let (network, bits) = match addr.parse().map_err(|_| error())? {
            IpAddr::V4(v4) => (Addr::from(v4), 32),
            IpAddr::V6(v6) => (Addr::from(v6), 128),
        };
        let prefix: u32 = prefix.map_or(Ok(bits), str::parse).map_err(|_| error())?;
        let port: Option<u16> = port.map(str::parse).transpose().map_err(|_| error())?;
        if prefix > bits || port == Some(0) {
            return Err(error());
        }
        Ok(Place { network, prefix: 128 - bits + prefix, port })
    }
}

impl FromStr for KernelNetwork {
    type Err = NoPlace;

    fn from_str(text: &str) -> Result<KernelNetwork, NoPlace> {
        if text == KernelNetwork::REST {
            return Ok(KernelNetwork { has_rest: true, places: Vec::new() });
        }
        let places = text.split(',').map(|place| place.trim().parse()).collect::<Result<_, _>>()?;
        Ok(KernelNetwork { has_rest: false, places })
    }
}

impl fmt::Display for KernelNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.has_rest {
            return f.write_str(KernelNetwork::REST);
        }
        for (n, place) in self.places.iter().enumerate() {
            let comma = if n > 0 { "," } else { "" };
            let (network, prefix) = (place.network, place.prefix);
            let prefix = if network.is_v4() { prefix.saturating_sub(96) } else { prefix };
            match place.port {
                Some(port) if network.is_v4() => write!(f, "{comma}{network}/{prefix}:{port}")?,
                Some(port) => write!(f, "{comma}[{network}/{prefix}]:{port}")?,
                None => write!(f, "{comma}{network}/{prefix}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    fn names(text: &str, addr: &str, port: u16) -> bool {
        let addr = match addr.parse().expect("an address") {
            IpAddr::V4(v4) => Addr::from(v4),
            IpAddr::V6(v6) => Addr::from(v6),
        };
        text.parse::<KernelNetwork>().expect("a list").names(Endpoint::at(addr, port))
    }

    #[test]
    fn networks_and_ports_are_named() {
        assert!(names("10.1.2.3/8", "10.9.9.9", 1) && !names("10.1.2.3/8", "11.1.2.3", 1));
        assert!(names("10.1.2.3", "10.1.2.3", 1) && !names("10.1.2.3", "10.1.2.4", 1));
        assert!(names("0.0.0.0/0", "1.2.3.4", 1) && !names("0.0.0.0/0", "2001:db8::1", 1));
        assert!(names("::/0", "1.2.3.4", 1) && names("2001:db8::/32", "2001:db8:7::1", 1));
        assert!(names("127.0.0.1:53", "127.0.0.1", 53) && !names("127.0.0.1:53", "127.0.0.1", 54));
        assert!(names("1.2.3.4, [::1]:80", "::1", 80) && !names("[::1/128]:80", "::1", 81));
    }

    #[test]
    fn what_names_nothing_is_refused() {
        for text in
            ["", "nonsense", "10.0.0.0/33", "10.0.0.1:", "10.0.0.1:0", "10.0.0.1:65536", "[::1", "[::1]80"]
        {
            assert_eq!(text.parse::<KernelNetwork>(), Err(NoPlace(text.into())));
        }
        assert!("rest,10.0.0.1".parse::<KernelNetwork>().is_err());
    }

    #[test]
    fn its_text_is_read_as_what_it_was() {
        for text in ["rest", "10.1.2.3/8", "10.1.2.3:53,[2001:db8::/32]:80,::1"] {
            let network: KernelNetwork = text.parse().expect("valid");
            assert_eq!(network.to_string().parse(), Ok(network));
        }
    }
}
