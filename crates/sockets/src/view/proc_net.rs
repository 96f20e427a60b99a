//! The files of /proc/net, in the kernel's format: proc(5), net/ipv4/{tcp_ipv4,udp,fib_trie}.c,
//! net/ipv6/{addrconf,route}.c, net/core/net-procfs.c of Linux.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;

use atoll_base::{Addr, Endpoint};
use atoll_ipc::command::Protocol;
use atoll_ipc::listing::SocketEntry;
use atoll_ipc::tcp_state;

use super::{InterfaceAddress, Route, TABLE_MAIN, View};

/// A file that shows the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    /// A file that does not need the list of sockets.
    Plain(Plain),
    /// A table of sockets.
    Sockets {
        /// Whether these are datagram sockets.
        udp: bool,
        /// Whether these are sockets of IPv6.
        v6: bool,
    },
}

/// A file that shows interfaces or routes, or is empty but for its heading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plain {
    /// /proc/net/dev.
    Device,
    /// /proc/net/route.
    Route,
    /// /proc/net/if_inet6.
    Addresses6,
    /// /proc/net/ipv6_route.
    Route6,
    /// /proc/net/arp, without entries.
    Arp,
    /// /proc/net/raw, udplite: no socket is of these kinds.
    NoSockets,
    /// /proc/net/raw6, udplite6.
    NoSockets6,
}

/// Returns what a path shows: `None` for a path outside /proc/net, and `Some(None)` for a file there that has
/// no information on the stack and must not be seen (ENOENT).
///
/// Files that are not about TCP/IP stay the kernel's: `unix`, `netlink`, `packet`.
pub fn file(path: &[u8]) -> Option<Option<File>> {
    let name = name_in_net(path)?;
    let sockets = |udp, v6| Some(Some(File::Sockets { udp, v6 }));
    let plain = |plain| Some(Some(File::Plain(plain)));
    match name {
        b"tcp" => sockets(false, false),
        b"tcp6" => sockets(false, true),
        b"udp" => sockets(true, false),
        b"udp6" => sockets(true, true),
        b"dev" => plain(Plain::Device),
        b"route" => plain(Plain::Route),
        b"if_inet6" => plain(Plain::Addresses6),
        b"ipv6_route" => plain(Plain::Route6),
        b"arp" => plain(Plain::Arp),
        b"raw" | b"udplite" | b"icmp" => plain(Plain::NoSockets),
        b"raw6" | b"udplite6" | b"icmp6" => plain(Plain::NoSockets6),
        b"" | b"unix" | b"netlink" | b"packet" | b"protocols" | b"ptype" => None,
        // Directories and their files are of subsystems that the stack has not (netfilter, sctp, vlan).
        _ => Some(None),
    }
}

/// Returns what follows /proc/net, /proc/PID/net or /proc/PID/task/TID/net.
fn name_in_net(path: &[u8]) -> Option<&[u8]> {
    let below = |path: &'_ [u8]| -> Option<usize> {
        let parts = path.split(|octet| *octet == b'/');
        let mut at = 0;
        let mut kept: Vec<&[u8]> = Vec::new();
        for part in parts {
            at += part.len() + 1;
            if !part.is_empty() && part != b"." {
                kept.push(part);
            }
            let is_process = |part: &[u8]| {
                part == b"self" || part == b"thread-self" || part.iter().all(u8::is_ascii_digit)
            };
            match kept[..] {
                [] | [b"proc"] => {}
                [b"proc", b"net"] | [b"proc", _, b"net"] | [b"proc", _, b"task", _, b"net"] => {
                    return Some(at.min(path.len()));
                }
                [b"proc", process] | [b"proc", process, b"task"] if is_process(process) => {}
                [b"proc", process, b"task", thread] if is_process(process) && is_process(thread) => {}
                _ => return None,
            }
        }
        None
    };
    let name = path.starts_with(b"/").then(|| below(path)).flatten().and_then(|at| path.get(at..))?;
    let start = name.iter().position(|octet| *octet != b'/').unwrap_or(name.len());
    Some(&name[start..])
}

/// Returns the content of a file without sockets.
pub fn plain(view: &View, file: Plain) -> String {
    match file {
        Plain::Device => devices(view),
        Plain::Route => routes(view),
        Plain::Addresses6 => addresses6(view),
        Plain::Route6 => routes6(view),
        Plain::Arp => ARP.into(),
        Plain::NoSockets => padded(DATAGRAMS, 127),
        Plain::NoSockets6 => DATAGRAMS6.into(),
    }
}

const ARP: &str = "IP address       HW type     Flags       HW address            Mask     Device\n";

/// Appends a line that is filled up with blanks, as `seq_pad` does.
fn pad(out: &mut String, line: &str, width: usize) {
    let _ = writeln!(out, "{line:<width$}");
}

fn padded(line: &str, width: usize) -> String {
    let mut out = String::new();
    pad(&mut out, line, width);
    out
}

fn devices(view: &View) -> String {
    let mut out = String::from(
        "Inter-|   Receive                                                |  Transmit\n \
         face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo \
         colls carrier compressed\n",
    );
    for interface in &view.interfaces {
        let n = interface.counters;
        let _ = writeln!(
            out,
            "{:>6}: {:>7} {:>7} {:>4} {:>4} {:>4} {:>5} {:>10} {:>9} {:>8} {:>7} {:>4} {:>4} {:>4} \
             {:>5} {:>7} {:>10}",
            interface.name,
            n.bytes_in,
            n.frames_in,
            0,
            n.dropped_in,
            0,
            0,
            0,
            0,
            n.bytes_out,
            n.frames_out,
            0,
            n.dropped_out,
            0,
            0,
            0,
            0
        );
    }
    out
}

/// Returns the octets of an IPv4 address as the kernel prints them: as a number of the machine's byte order.
fn word(addr: Addr) -> u32 {
    addr.to_v4().unwrap_or(0).swap_bytes()
}

/// Returns an address of IPv6 as 32 digits.
fn digits(addr: Addr) -> String {
    let mut out = String::new();
    for octet in addr.octets() {
        let _ = write!(out, "{octet:02x}");
    }
    out
}

/// Returns the `RTF_*` flags of a route (route(7), linux/route.h).
fn flags(route: &Route) -> u32 {
    const UP: u32 = 1;
    const GATEWAY: u32 = 2;
    const HOST: u32 = 4;
    const LOCAL: u32 = 0x8000_0000;
    let is_host = route.destination.is_v4() && route.prefix_len == 32;
    UP | if route.gateway.is_some() { GATEWAY } else { 0 }
        | if is_host { HOST } else { 0 }
        | if route.table == TABLE_MAIN { 0 } else { LOCAL }
}

fn routes(view: &View) -> String {
    let mut out =
        padded("Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT", 127);
    for route in view.routes.iter().filter(|it| it.destination.is_v4() && it.table == TABLE_MAIN) {
        let mask = InterfaceAddress::permanent(route.destination, route.prefix_len).mask();
        let mut line = String::new();
        let _ = write!(
            line,
            "{}\t{:08X}\t{:08X}\t{:04X}\t0\t0\t{}\t{:08X}\t0\t0\t0",
            view.numbered(route.interface).map_or("", |interface| interface.name),
            word(route.destination),
            route.gateway.map_or(0, word),
            flags(route),
            route.metric,
            word(mask),
        );
        pad(&mut out, &line, 127);
    }
    out
}

fn addresses6(view: &View) -> String {
    let mut out = String::new();
    for (interface, own) in view.addresses(false) {
        // The kernel's own scopes (IPV6_ADDR_LOOPBACK, IPV6_ADDR_LINKLOCAL).
        let scope = match own.scope() {
            libc::RT_SCOPE_HOST => 0x10,
            libc::RT_SCOPE_LINK => 0x20,
            _ => 0,
        };
        let _ = writeln!(
            out,
            "{} {:02x} {:02x} {scope:02x} {:02x} {:>8}",
            digits(own.addr),
            interface.index,
            own.prefix_len,
            own.flags & 0xff,
            interface.name
        );
    }
    out
}

fn routes6(view: &View) -> String {
    let mut out = String::new();
    for route in view.routes.iter().filter(|route| !route.destination.is_v4()) {
        let _ = writeln!(
            out,
            "{} {:02x} {} 00 {} {:08x} 00000001 00000000 {:08x} {:>8}",
            digits(route.destination),
            route.prefix_len,
            digits(Addr::ANY),
            digits(route.gateway.unwrap_or(Addr::ANY)),
            route.metric,
            flags(route),
            view.numbered(route.interface).map_or("", |interface| interface.name)
        );
    }
    out
}

const STREAMS: &str =
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode";
const STREAMS6: &str = concat!(
    "  sl  local_address                         remote_address                        st",
    " tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
);
const DATAGRAMS: &str = concat!(
    "   sl  local_address rem_address   st",
    " tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops"
);
const DATAGRAMS6: &str = concat!(
    "  sl  local_address                         remote_address                        st",
    " tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n"
);

/// Returns a table of those sockets in `entries` that belong there. Those at `::` that take both families are
/// sockets of IPv6. Inodes are unknown, and 0.
pub fn sockets(entries: &[SocketEntry], udp: bool, v6: bool) -> String {
    let width = match (udp, v6) {
        (_, true) => 0,
        (false, false) => 149,
        (true, false) => 127,
    };
    let mut out = match (udp, v6) {
        (false, false) => padded(STREAMS, width),
        (false, true) => STREAMS6.into(),
        (true, false) => padded(DATAGRAMS, width),
        (true, true) => DATAGRAMS6.into(),
    };
    let protocol = if udp { Protocol::Udp } else { Protocol::Tcp };
    let belongs = |entry: &&SocketEntry| entry.protocol == protocol && entry.local.addr.is_v4() != v6;
    for (number, entry) in entries.iter().filter(belongs).enumerate() {
        let mut line = String::new();
        let number_width = if udp { 5 } else { 4 };
        let _ = write!(line, "{number:>number_width$}: ");
        for endpoint in [entry.local, entry.remote] {
            end(&mut line, endpoint, v6);
        }
        let _ = write!(
            line,
            "{:02X} {:08X}:{:08X} 00:00000000 00000000 {:>5} {:>8} 0",
            entry.state, entry.send_queue, entry.receive_queue, entry.uid, 0
        );
        line.push_str(match (udp, entry.state) {
            (true, _) => " 2 0000000000000000 0",
            (false, tcp_state::TIME_WAIT) => " 3 0000000000000000",
            (false, _) => " 1 0000000000000000 100 0 0 10 0",
        });
        pad(&mut out, &line, width);
    }
    out
}

/// Appends an address and a port.
fn end(line: &mut String, endpoint: Endpoint, v6: bool) {
    match v6 {
        false => {
            let _ = write!(line, "{:08X}", word(endpoint.addr));
        }
        true => {
            for part in endpoint.addr.octets().chunks_exact(4) {
                let part = part.first_chunk().map_or(0, |octets| u32::from_ne_bytes(*octets));
                let _ = write!(line, "{part:08X}");
            }
        }
    }
    let _ = write!(line, ":{:04X} ", endpoint.port);
}
