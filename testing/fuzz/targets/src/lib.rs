//! The fuzz targets: one function for each parser of hostile bytes, and for each state machine that hostile
//! bytes drive.
//!
//! The same functions run on stable in this crate's test, which replays `testing/fuzz/seeds` and mutates them
//! with a fixed seed; for hours by `make fuzz` ([`runner`]); and under coverage guidance
//! (`cargo +nightly fuzz run NAME`, in `testing/fuzz`).
//!
//! To add a target: write its function, add a row to [`TARGETS`], put seeds under `testing/fuzz/seeds/NAME`
//! (see `examples/seeds.rs`), add `testing/fuzz/fuzz_targets/NAME.rs` and its `[[bin]]`. The test fails until
//! all of it is there.
#![forbid(unsafe_code)]

mod balance;
mod channel;
mod conformance;
mod connection;
mod control;
mod dhcp;
mod exec_state;
mod features;
mod input;
mod ip;
mod ip_server;
mod ipc;
mod manager;
mod mutate;
mod netlink;
mod options;
mod program;
pub mod runner;
pub mod seeds;
mod sequence;
mod stack;
mod tcp;
mod udp;
mod wire;

pub use balance::{cm_balance, ipc_balance};
pub use channel::{ipc_message, rpc_channel};
pub use conformance::conformance_script;
pub use connection::tcp_connection;
pub use control::{config_file, link_classify, supervisor_request, supervisor_said};
pub use dhcp::{dhcp_client, wire_dhcp};
pub use exec_state::exec_state;
pub use ip::{ip_fragments, ip_frame, ip_script};
pub use ip_server::{ip_server, ipc_ip};
pub use ipc::{ipc_command, ipc_control, ipc_event};
pub use manager::{cm_manager, ipc_manager};
pub use mutate::mutate;
pub use netlink::netlink_request;
pub use options::{tcp_cookie, tcp_options};
pub use program::program_format;
pub use sequence::supervisor_sequence;
pub use stack::{stack_arena, stack_frames, stack_ledger};
pub use tcp::{tcp_script, wire_tcp};
pub use udp::udp_record;
pub use wire::{
    wire_arp, wire_ethernet, wire_icmp, wire_icmpv6, wire_igmp, wire_ipv4, wire_ipv6, wire_udp, wire_vnet,
};

/// A fuzz target.
#[derive(Clone, Copy)]
pub struct Target {
    /// The name of the target, of its cargo-fuzz binary and of the folder with its seeds.
    pub name: &'static str,
    /// The function to run; it panics if the bytes break a property.
    pub run: fn(&[u8]),
    /// The number of executions in `cargo test`.
    pub executions: u64,
}

/// All fuzz targets.
pub const TARGETS: &[Target] = &[
    Target { name: "cm_balance", run: cm_balance, executions: 100_000 },
    Target { name: "cm_manager", run: cm_manager, executions: 100_000 },
    Target { name: "config_file", run: config_file, executions: 10_000 },
    Target { name: "conformance_script", run: conformance_script, executions: 2_000 },
    Target { name: "dhcp_client", run: dhcp_client, executions: 100_000 },
    Target { name: "exec_state", run: exec_state, executions: 100_000 },
    Target { name: "ip_fragments", run: ip_fragments, executions: 100_000 },
    Target { name: "ip_frame", run: ip_frame, executions: 200_000 },
    Target { name: "ip_script", run: ip_script, executions: 200_000 },
    Target { name: "ip_server", run: ip_server, executions: 100_000 },
    Target { name: "ipc_balance", run: ipc_balance, executions: 200_000 },
    Target { name: "ipc_command", run: ipc_command, executions: 200_000 },
    Target { name: "ipc_control", run: ipc_control, executions: 200_000 },
    Target { name: "ipc_event", run: ipc_event, executions: 200_000 },
    Target { name: "ipc_ip", run: ipc_ip, executions: 100_000 },
    Target { name: "ipc_manager", run: ipc_manager, executions: 200_000 },
    Target { name: "ipc_message", run: ipc_message, executions: 200_000 },
    Target { name: "link_classify", run: link_classify, executions: 200_000 },
    Target { name: "netlink_request", run: netlink_request, executions: 100_000 },
    Target { name: "program_format", run: program_format, executions: 200_000 },
    Target { name: "rpc_channel", run: rpc_channel, executions: 100_000 },
    Target { name: "stack_arena", run: stack_arena, executions: 20_000 },
    Target { name: "stack_frames", run: stack_frames, executions: 20_000 },
    Target { name: "stack_ledger", run: stack_ledger, executions: 20_000 },
    Target { name: "tcp_connection", run: tcp_connection, executions: 150_000 },
    Target { name: "supervisor_request", run: supervisor_request, executions: 100_000 },
    Target { name: "supervisor_said", run: supervisor_said, executions: 100_000 },
    Target { name: "supervisor_sequence", run: supervisor_sequence, executions: 30_000 },
    Target { name: "tcp_cookie", run: tcp_cookie, executions: 200_000 },
    Target { name: "tcp_options", run: tcp_options, executions: 200_000 },
    Target { name: "tcp_script", run: tcp_script, executions: 200_000 },
    Target { name: "udp_record", run: udp_record, executions: 200_000 },
    Target { name: "wire_arp", run: wire_arp, executions: 200_000 },
    Target { name: "wire_dhcp", run: wire_dhcp, executions: 50_000 },
    Target { name: "wire_ethernet", run: wire_ethernet, executions: 200_000 },
    Target { name: "wire_icmp", run: wire_icmp, executions: 200_000 },
    Target { name: "wire_icmpv6", run: wire_icmpv6, executions: 200_000 },
    Target { name: "wire_igmp", run: wire_igmp, executions: 200_000 },
    Target { name: "wire_ipv4", run: wire_ipv4, executions: 200_000 },
    Target { name: "wire_ipv6", run: wire_ipv6, executions: 200_000 },
    Target { name: "wire_tcp", run: wire_tcp, executions: 200_000 },
    Target { name: "wire_udp", run: wire_udp, executions: 200_000 },
    Target { name: "wire_vnet", run: wire_vnet, executions: 200_000 },
];
