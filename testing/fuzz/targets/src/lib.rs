//! What is fuzzed: one function per parser of hostile bytes.
//!
//! The same functions run under coverage guidance (`cargo +nightly fuzz run NAME`, in `testing/fuzz`) and, on stable, in this crate's
//! test, which replays `testing/fuzz/seeds` and mutates them with a fixed seed.
//!
//! To add a target: write its function, add a row to [`TARGETS`], put seeds under `testing/fuzz/seeds/NAME` (see
//! `examples/seeds.rs`), add `testing/fuzz/fuzz_targets/NAME.rs` and its `[[bin]]`. The test fails until all of it is there.
#![forbid(unsafe_code)]

mod connection;
mod features;
mod input;
mod ip;
mod ipc;
mod mutate;
pub mod runner;
pub mod seeds;
mod stack;
mod tcp;
mod udp;
mod wire;

pub use connection::tcp_connection;
pub use ip::{ip_frame, ip_script};
pub use ipc::{ipc_command, ipc_control, ipc_event};
pub use mutate::mutate;
pub use stack::{stack_arena, stack_frames};
pub use tcp::{tcp_script, wire_tcp};
pub use udp::udp_record;
pub use wire::{wire_arp, wire_ethernet, wire_icmp, wire_ipv4, wire_udp, wire_vnet};

/// One thing that is fuzzed.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name: of the cargo-fuzz binary and of the folder with its seeds.
    pub name: &'static str,
    /// Panics if the bytes break a property.
    pub run: fn(&[u8]),
}

/// Everything that is fuzzed.
pub const TARGETS: &[Target] = &[
    Target { name: "ip_frame", run: ip_frame },
    Target { name: "ip_script", run: ip_script },
    Target { name: "ipc_command", run: ipc_command },
    Target { name: "ipc_control", run: ipc_control },
    Target { name: "ipc_event", run: ipc_event },
    Target { name: "stack_arena", run: stack_arena },
    Target { name: "stack_frames", run: stack_frames },
    Target { name: "tcp_connection", run: tcp_connection },
    Target { name: "tcp_script", run: tcp_script },
    Target { name: "udp_record", run: udp_record },
    Target { name: "wire_arp", run: wire_arp },
    Target { name: "wire_ethernet", run: wire_ethernet },
    Target { name: "wire_icmp", run: wire_icmp },
    Target { name: "wire_ipv4", run: wire_ipv4 },
    Target { name: "wire_tcp", run: wire_tcp },
    Target { name: "wire_udp", run: wire_udp },
    Target { name: "wire_vnet", run: wire_vnet },
];
