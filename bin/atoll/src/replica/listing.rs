//! Rows of `atoll ss`, made from the facts that a transport server reports about its sockets.

use atoll_base::{Addr, Endpoint};
use atoll_connmgr::AcceptorView;
use atoll_ipc::command::Protocol;
use atoll_ipc::info::Info;
use atoll_ipc::tcp_state;
use atoll_tcp::Algorithm;
use atoll_transport::SocketFacts;

use crate::rows::{self, AcceptorRow, SocketRow, TcpRow};

/// Returns the row of one socket in `atoll ss`.
pub fn row(replica: u8, facts: &SocketFacts) -> SocketRow {
    SocketRow {
        proto: facts.protocol.name().into(),
        state: state_name(facts.protocol, facts.state).into(),
        recv_q: facts.receive_queue,
        send_q: facts.send_queue,
        local: endpoint(facts.local, facts.v6_only),
        peer: match facts.remote.port {
            // The peers of a listener are any of its own address's family (ss(8)).
            0 => endpoint(
                Endpoint::at(any_of(facts.local.addr), 0),
                facts.v6_only || !is_both(facts.local.addr),
            ),
            _ => endpoint(facts.remote, false),
        },
        replica,
        session: facts.session.map_or(0, |session| session.0),
        holders: facts.holders,
        info: facts.info.map(|info| tcp_row(&info, facts)),
        timer: None,
        acceptors: Vec::new(),
    }
}

/// Returns what this replica knows of the acceptors of a listener; nothing for other sockets.
pub fn acceptors_of(facts: &SocketFacts, all: &[(Endpoint, AcceptorView)]) -> Vec<AcceptorRow> {
    if facts.protocol != Protocol::Tcp || facts.state != tcp_state::LISTEN {
        return Vec::new();
    }
    let row = |view: &AcceptorView| AcceptorRow {
        session: view.session.0,
        lease: view.lease,
        home: view.home.0,
        accepting: view.registered,
        service_us: view.service_us,
        samples: view.samples,
        given: view.given,
        unclaimed: view.unclaimed,
        open: view.open,
    };
    all.iter()
        .filter(|(local, _)| *local == facts.local)
        .map(|(_, view)| row(view))
        .take(rows::ACCEPTORS_MAX)
        .collect()
}

fn tcp_row(info: &Info, facts: &SocketFacts) -> TcpRow {
    let options = [(1, "ts"), (2, "sack"), (8, "ecn")];
    let small = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    TcpRow {
        options: options
            .iter()
            .filter(|(bit, _)| info.options & bit != 0)
            .map(|(_, name)| (*name).into())
            .collect(),
        congestion: match facts.congestion {
            Some(Algorithm::Bbr) => "bbr",
            Some(Algorithm::NewReno) => "reno",
            _ => "cubic",
        }
        .into(),
        wscale: (info.options & 4 != 0).then_some((info.snd_wscale as u8, info.rcv_wscale as u8)),
        rto_ms: info.rto as f64 / 1000.0,
        rtt_us: info.rtt,
        rttvar_us: info.rttvar,
        ato_ms: info.ato as f64 / 1000.0,
        mss: small(info.snd_mss),
        pmtu: small(info.pmtu),
        rcvmss: small(info.rcv_mss),
        advmss: small(info.advmss),
        cwnd: small(info.snd_cwnd),
        ssthresh: (info.snd_ssthresh < u64::from(u32::MAX)).then_some(small(info.snd_ssthresh)),
        bytes_acked: info.bytes_acked,
        bytes_received: info.bytes_received,
        segs_out: info.segs_out,
        segs_in: info.segs_in,
        unacked: small(info.unacked),
        retrans: small(info.retrans),
        retrans_total: small(info.total_retrans),
        lost: small(info.lost),
        sacked: small(info.sacked),
        rcv_space: info.rcv_space,
        ..TcpRow::default()
    }
}

/// Returns the state as `ss` writes it.
fn state_name(protocol: Protocol, state: u8) -> &'static str {
    match (protocol, state) {
        (Protocol::Icmp | Protocol::Raw | Protocol::Udp, tcp_state::CLOSED) => "UNCONN",
        (_, tcp_state::ESTABLISHED) => "ESTAB",
        (_, tcp_state::SYN_SENT) => "SYN-SENT",
        (_, tcp_state::SYN_RECEIVED) => "SYN-RECV",
        (_, tcp_state::FIN_WAIT_1) => "FIN-WAIT-1",
        (_, tcp_state::FIN_WAIT_2) => "FIN-WAIT-2",
        (_, tcp_state::TIME_WAIT) => "TIME-WAIT",
        (_, tcp_state::CLOSE_WAIT) => "CLOSE-WAIT",
        (_, tcp_state::LAST_ACK) => "LAST-ACK",
        (_, tcp_state::LISTEN) => "LISTEN",
        (_, tcp_state::CLOSING) => "CLOSING",
        _ => "CLOSED",
    }
}

/// Returns an endpoint as `ss` writes it; `*` is any address of both families.
fn endpoint(endpoint: Endpoint, v6_only: bool) -> String {
    let port = if endpoint.port == 0 { "*".to_owned() } else { endpoint.port.to_string() };
    match endpoint.addr {
        Addr::ANY if !v6_only => format!("*:{port}"),
        addr if addr.is_v4() => format!("{addr}:{port}"),
        addr => format!("[{addr}]:{port}"),
    }
}

/// Returns the unspecified address of the family.
fn any_of(addr: Addr) -> Addr {
    if addr.is_v4() { Addr::V4_ANY } else { Addr::ANY }
}

/// Returns whether a socket at this address may use both families.
fn is_both(addr: Addr) -> bool {
    addr == Addr::ANY
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_written_as_ss_writes_them() {
        let v6 = Addr::from("2001:db8::1".parse::<std::net::Ipv6Addr>().unwrap());
        for (addr, v6_only, text) in [
            (Addr::V4_ANY, false, "0.0.0.0:80"),
            (Addr::ANY, false, "*:80"),
            (Addr::ANY, true, "[::]:80"),
            (v6, false, "[2001:db8::1]:80"),
            (Addr::v4(0xc612_0002), false, "198.18.0.2:80"),
        ] {
            assert_eq!(endpoint(Endpoint::at(addr, 80), v6_only), text);
        }
    }
}
