//! The settings in the environment. The constructor reads them once: servers such as nginx clear the
//! environment of their workers.

use std::ffi::CString;
use std::net::IpAddr;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::OnceLock;

use atoll_base::Addr;

/// The settings in the environment; see the crate's documentation.
#[derive(Debug, Default)]
pub struct Settings {
    /// The value of `ATOLL_SOCKET`.
    pub socket: Option<PathBuf>,
    /// Whether `ATOLL_REQUIRED` is set.
    pub required: bool,
    /// Whether `ATOLL_STATS` is set.
    pub stats: bool,
    /// Whether `ATOLL_FOLLOW` is set: programs that are executed with an environment without these variables
    /// get them nevertheless.
    pub follow: bool,
    /// The networks of `ATOLL_KERNEL`, as IPv6 addresses, and the lengths of their prefixes.
    kernel: Vec<(u128, u32)>,
    /// `NAME=VALUE` of all of these, and of the variable that loads this library, for programs that are
    /// executed with sockets of ours and an environment without them.
    pub environment: Vec<CString>,
}

const VARIABLES: [&str; 6] =
    ["LD_PRELOAD", "ATOLL_SOCKET", "ATOLL_REQUIRED", "ATOLL_STATS", "ATOLL_KERNEL", "ATOLL_FOLLOW"];

static SETTINGS: OnceLock<Settings> = OnceLock::new();

/// Returns the settings of this process.
pub fn settings() -> &'static Settings {
    SETTINGS.get_or_init(|| {
        let is_set = |name| std::env::var_os(name).is_some_and(|value| value == "1");
        Settings {
            socket: std::env::var_os("ATOLL_SOCKET").filter(|path| !path.is_empty()).map(PathBuf::from),
            required: is_set("ATOLL_REQUIRED"),
            stats: is_set("ATOLL_STATS"),
            follow: is_set("ATOLL_FOLLOW"),
            kernel: std::env::var("ATOLL_KERNEL")
                .unwrap_or_default()
                .split(',')
                .filter_map(network)
                .collect(),
            environment: VARIABLES.iter().filter_map(|name| entry(name)).collect(),
        }
    })
}

impl Settings {
    /// Returns whether this process can see the path of the stack's socket.
    pub fn sees_socket(&self) -> bool {
        self.socket.as_deref().is_none_or(atoll_sys::unix::is_visible)
    }

    /// Returns whether destinations at `addr` are reserved for the kernel.
    pub fn is_kernels(&self, addr: Addr) -> bool {
        let bits = u128::from_be_bytes(addr.octets());
        self.kernel.iter().any(|(network, len)| (bits ^ network).checked_shr(128 - len).unwrap_or(0) == 0)
    }
}

/// Returns `NAME=VALUE`, if there is such a variable.
fn entry(name: &str) -> Option<CString> {
    let value = std::env::var_os(name)?.into_vec();
    CString::new([name.as_bytes(), b"=", &value].concat()).ok()
}

/// Parses a network `ADDRESS/PREFIX` of either family. Returns it with the length of its prefix.
fn network(text: &str) -> Option<(u128, u32)> {
    let (addr, prefix) = text.trim().split_once('/').unwrap_or((text.trim(), ""));
    let (addr, bits) = match addr.parse().ok()? {
        IpAddr::V4(v4) => (Addr::from(v4), 32),
        IpAddr::V6(v6) => (Addr::from(v6), 128),
    };
    let len: u32 = if prefix.is_empty() { bits } else { prefix.parse().ok().filter(|len| *len <= bits)? };
    Some((u128::from_be_bytes(addr.octets()), 128 - bits + len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_read() {
        let kernels = |networks: &str, addr: &str| {
            let settings =
                Settings { kernel: networks.split(',').filter_map(network).collect(), ..Settings::default() };
            let addr = match addr.parse().expect("an address") {
                IpAddr::V4(v4) => Addr::from(v4),
                IpAddr::V6(v6) => Addr::from(v6),
            };
            settings.is_kernels(addr)
        };
        assert!(kernels("10.1.2.3/8", "10.9.9.9") && !kernels("10.1.2.3/8", "11.1.2.3"));
        assert!(kernels("10.1.2.3", "10.1.2.3") && !kernels("10.1.2.3", "10.1.2.4"));
        assert!(kernels("0.0.0.0/0", "1.2.3.4") && !kernels("0.0.0.0/0", "2001:db8::1"));
        assert!(kernels("::/0", "1.2.3.4") && kernels("2001:db8::/32", "2001:db8:7::1"));
        assert!(!kernels("2001:db8::/32,nonsense,10.0.0.0/33", "2001:db9::1"));
    }
}
