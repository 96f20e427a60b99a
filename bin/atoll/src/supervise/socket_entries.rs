//! The sockets of the stack as programs see them in /proc/net, made from the rows that replicas list for
//! `atoll ss`.

use std::net::{Ipv4Addr, Ipv6Addr};

use atoll_base::{Addr, Endpoint};
use atoll_ipc::command::Protocol;
use atoll_ipc::listing::SocketEntry;
use atoll_ipc::tcp_state::LISTEN;

use crate::rows::{RowsPacket, SocketRow};

/// Returns the sockets in a packet of a listing. `user_of` returns the user of a session. What is malformed
/// is left out: replicas may be hostile.
pub fn of(packet: &[u8], user_of: impl Fn(u32) -> u32) -> Vec<SocketEntry> {
    let rows = serde_json::from_slice::<RowsPacket>(packet).map_or(Vec::new(), |packet| packet.rows);
    rows.iter().filter_map(|row| entry(row, &user_of)).collect()
}

fn entry(row: &SocketRow, user_of: impl Fn(u32) -> u32) -> Option<SocketEntry> {
    let small = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    let state = state_number(&row.state)?;
    Some(SocketEntry {
        local: endpoint(&row.local)?,
        remote: endpoint(&row.peer)?,
        protocol: match &*row.proto {
            "udp" => Protocol::Udp,
            "icmp" => Protocol::Icmp,
            "raw" => Protocol::Raw,
            _ => Protocol::Tcp,
        },
        state,
        replica: row.replica,
        session: row.session,
        uid: if row.session == 0 { 0 } else { user_of(row.session) },
        receive_queue: small(row.recv_q),
        send_queue: if state == LISTEN { 0 } else { small(row.send_q) },
    })
}

/// Returns the number of a state in linux/tcp_states.h.
fn state_number(name: &str) -> Option<u8> {
    Some(match name {
        "ESTAB" => 1,
        "SYN-SENT" => 2,
        "SYN-RECV" => 3,
        "FIN-WAIT-1" => 4,
        "FIN-WAIT-2" => 5,
        "TIME-WAIT" => 6,
        "UNCONN" | "CLOSED" => 7,
        "CLOSE-WAIT" => 8,
        "LAST-ACK" => 9,
        "LISTEN" => LISTEN,
        "CLOSING" => 11,
        _ => return None,
    })
}

/// Reads an endpoint that is written as `ss` does: `*` is any address of both families, or any port.
fn endpoint(text: &str) -> Option<Endpoint> {
    let (addr, port) = text.rsplit_once(':')?;
    let port = if port == "*" { 0 } else { port.parse().ok()? };
    let v6 = addr.strip_prefix('[').and_then(|addr| addr.strip_suffix(']'));
    let addr = match v6 {
        _ if addr == "*" => Addr::ANY,
        Some(addr) => Addr::from(addr.parse::<Ipv6Addr>().ok()?),
        None => Addr::from(addr.parse::<Ipv4Addr>().ok()?),
    };
    Some(Endpoint::at(addr, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_entries_and_noise_is_left_out() {
        let row = |proto: &str, state: &str, local: &str, peer: &str| SocketRow {
            proto: proto.into(),
            state: state.into(),
            local: local.into(),
            peer: peer.into(),
            recv_q: 3,
            send_q: 128,
            session: 4,
            ..SocketRow::default()
        };
        let rows = vec![
            row("tcp", "LISTEN", "*:80", "*:*"),
            row("udp", "UNCONN", "[2001:db8::1]:53", "[::]:*"),
            row("tcp", "ESTAB", "198.18.0.2:80", "198.18.0.1:4000"),
            row("tcp", "ASLEEP", "198.18.0.2:80", "198.18.0.1:4000"),
            row("tcp", "ESTAB", "198.18.0.2:99999", "198.18.0.1:4000"),
            row("tcp", "ESTAB", "nowhere", "198.18.0.1:4000"),
        ];
        let packet = serde_json::to_vec(&RowsPacket { rows }).unwrap();
        let found = of(&packet, |session| session * 10);
        assert_eq!(found.len(), 3);
        assert_eq!((found[0].local, found[0].state), (Endpoint::at(Addr::ANY, 80), LISTEN));
        assert_eq!((found[0].uid, found[0].receive_queue, found[0].send_queue), (40, 3, 0));
        assert!(found[1].is_udp() && !found[1].local.addr.is_v4());
        assert_eq!((found[2].remote, found[2].send_queue), (Endpoint::new(0xc612_0001, 4000), 128));
        assert!(of(b"{", |_| 0).is_empty());
    }
}
