//! What does the environment want? Read once, by the constructor: servers such as nginx clear the environment of their workers.

use std::ffi::CString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::OnceLock;

/// The environment's wishes; see the crate's documentation.
#[derive(Debug, Default)]
pub struct Settings {
    /// `ATOLL_SOCKET`.
    pub socket: Option<PathBuf>,
    /// `ATOLL_REQUIRED`.
    pub required: bool,
    /// `ATOLL_STATS`.
    pub stats: bool,
    /// `ATOLL_KERNEL`: networks and their masks.
    kernel: Vec<(u32, u32)>,
    /// `NAME=VALUE` of all of these, and of the variable that loads this library: for programs that are executed with sockets of ours
    /// and an environment that says nothing of us.
    pub environment: Vec<CString>,
}

const VARIABLES: [&str; 5] = ["LD_PRELOAD", "ATOLL_SOCKET", "ATOLL_REQUIRED", "ATOLL_STATS", "ATOLL_KERNEL"];

static SETTINGS: OnceLock<Settings> = OnceLock::new();

/// The settings of this process.
pub fn settings() -> &'static Settings {
    SETTINGS.get_or_init(|| {
        let is_set = |name| std::env::var_os(name).is_some_and(|value| value == "1");
        Settings {
            socket: std::env::var_os("ATOLL_SOCKET").filter(|path| !path.is_empty()).map(PathBuf::from),
            required: is_set("ATOLL_REQUIRED"),
            stats: is_set("ATOLL_STATS"),
            kernel: std::env::var("ATOLL_KERNEL").unwrap_or_default().split(',').filter_map(network).collect(),
            environment: VARIABLES.iter().filter_map(|name| entry(name)).collect(),
        }
    })
}

impl Settings {
    /// Whether destinations at `addr` were reserved for the kernel.
    pub fn is_kernels(&self, addr: u32) -> bool {
        self.kernel.iter().any(|(network, mask)| addr & mask == *network)
    }
}

/// `NAME=VALUE`, if there is such a variable.
fn entry(name: &str) -> Option<CString> {
    let value = std::env::var_os(name)?.into_vec();
    CString::new([name.as_bytes(), b"=", &value].concat()).ok()
}

/// A network and its mask from `ADDRESS/PREFIX`.
fn network(text: &str) -> Option<(u32, u32)> {
    let (addr, prefix) = text.trim().split_once('/').unwrap_or((text.trim(), "32"));
    let addr = u32::from(addr.parse::<std::net::Ipv4Addr>().ok()?);
    let mask = u32::MAX.checked_shl(32u32.checked_sub(prefix.parse().ok()?)?).unwrap_or(0);
    Some((addr & mask, mask))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_read() {
        assert_eq!(network("10.1.2.3/8"), Some((0x0a00_0000, 0xff00_0000)));
        assert_eq!(network("10.1.2.3"), Some((0x0a01_0203, u32::MAX)));
        assert_eq!(network("0.0.0.0/0"), Some((0, 0)));
        assert_eq!(network("nonsense"), None);
    }
}
