//! The settings in the environment. The constructor reads them once: servers such as nginx clear the
//! environment of their workers.

use std::ffi::CString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::OnceLock;

use atoll_base::KernelNetwork;

/// The settings in the environment; see the crate's documentation.
#[derive(Debug, Default)]
pub struct Settings {
    /// The value of `ATOLL_SOCKET`.
    pub socket: Option<PathBuf>,
    /// Whether `ATOLL_STATS` is set.
    pub stats: bool,
    /// Whether `ATOLL_VERBOSE` is set.
    pub verbose: bool,
    /// The value of `ATOLL_KERNEL_NETWORK`. One that is not valid counts as none.
    pub kernel_network: KernelNetwork,
    /// The value of `ATOLL_HOST`: the program in whose place static ones are executed.
    pub host: Option<CString>,
    /// `NAME=VALUE` of all of these, and of the variable that loads this library, for programs that are
    /// executed with an environment without them.
    pub environment: Vec<CString>,
}

const VARIABLES: [&str; 6] =
    ["LD_PRELOAD", "ATOLL_SOCKET", "ATOLL_STATS", "ATOLL_VERBOSE", "ATOLL_KERNEL_NETWORK", "ATOLL_HOST"];

static SETTINGS: OnceLock<Settings> = OnceLock::new();

/// Returns the settings of this process.
pub fn settings() -> &'static Settings {
    SETTINGS.get_or_init(|| Settings {
        socket: std::env::var_os("ATOLL_SOCKET").filter(|path| !path.is_empty()).map(PathBuf::from),
        stats: is_set("ATOLL_STATS"),
        verbose: is_set("ATOLL_VERBOSE"),
        kernel_network: std::env::var("ATOLL_KERNEL_NETWORK")
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or_default(),
        host: std::env::var_os("ATOLL_HOST").and_then(|path| CString::new(path.into_vec()).ok()),
        environment: VARIABLES.iter().filter_map(|name| entry(name)).collect(),
    })
}

impl Settings {
    /// Returns whether this process can see the path of the stack's socket.
    pub fn sees_socket(&self) -> bool {
        self.socket.as_deref().is_none_or(atoll_sys::unix::is_visible)
    }
}

/// Returns whether a variable is 1.
fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| value == "1")
}

/// Returns `NAME=VALUE`, if there is such a variable.
fn entry(name: &str) -> Option<CString> {
    let value = std::env::var_os(name)?.into_vec();
    CString::new([name.as_bytes(), b"=", &value].concat()).ok()
}
