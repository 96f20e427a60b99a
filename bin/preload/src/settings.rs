//! What does the environment want? Read once, by the constructor: servers such as nginx clear the environment
//! of their workers.

use std::ffi::CString;
use std::net::IpAddr;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::OnceLock;

use atoll_base::Addr;

/// The environment's wishes; see the crate's documentation.
#[derive(Debug, Default)]
pub struct Settings {
    /// `ATOLL_SOCKET`.
    pub socket: Option<PathBuf>,
    /// `ATOLL_REQUIRED`.
    pub required: bool,
    /// `ATOLL_STATS`.
    pub stats: bool,
    /// `ATOLL_FOLLOW`: programs that are executed with an environment that says nothing of us are told all
    /// the same.
    pub follow: bool,
    /// `ATOLL_KERNEL`: networks and the lengths of their prefixes, as IPv6 addresses.
    kernel: Vec<(u128, u32)>,
    /// `NAME=VALUE` of all of these, and of the variable that loads this library: for programs that are
    /// executed with sockets of ours and an environment that says nothing of us.
    pub environment: Vec<CString>,
}

const VARIABLES: [&str; 6] =
    ["LD_PRELOAD", "ATOLL_SOCKET", "ATOLL_REQUIRED", "ATOLL_STATS", "ATOLL_KERNEL", "ATOLL_FOLLOW"];

static SETTINGS: OnceLock<Settings> = OnceLock::new();

/// The settings of this process.
pub fn settings() -> &'static Settings {
    SETTINGS.get_or_init(|| {
        let is_set = |name| std::env::var_os(name).is_some_and(|value| value == "1");
        Settings {
            socket: std::env::var_os("ATOLL_SOCKET").filter(|path| !path.is_empty()).map(PathBuf::from),
            required: is_set("ATOLL_REQUIRED"),
            stats: is_set("ATOLL_STATS"),
            follow: is_set("ATOLL_FOLLOW"),
            kernel: std::env::var("ATOLL_KERNEL").unwrap_or_default().split(',').filter_map(network).collect(),
            environment: VARIABLES.iter().filter_map(|name| entry(name)).collect(),
        }
    })
}

impl Settings {
    /// Whether the path of the stack's socket leads anywhere, as this process sees it.
    pub fn sees_socket(&self) -> bool {
        self.socket.as_deref().is_none_or(atoll_sys::unix::is_visible)
    }

    /// Whether destinations at `addr` were reserved for the kernel.
    pub fn is_kernels(&self, addr: Addr) -> bool {
        let bits = u128::from_be_bytes(addr.octets());
        self.kernel.iter().any(|(network, len)| (bits ^ network).checked_shr(128 - len).unwrap_or(0) == 0)
    }
}

/// `NAME=VALUE`, if there is such a variable.
fn entry(name: &str) -> Option<CString> {
    let value = std::env::var_os(name)?.into_vec();
    CString::new([name.as_bytes(), b"=", &value].concat()).ok()
}

/// A network and the length of its prefix from `ADDRESS/PREFIX` of either family.
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
