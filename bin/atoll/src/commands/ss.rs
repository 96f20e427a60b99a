//! `atoll ss`: lists the sockets of a stack, with the columns and words of ss(8).

use std::collections::BTreeMap;
use std::process::ExitCode;

use atoll_supervisor::{SessionReport, StackName};

use crate::client::SupervisorClient;
use crate::failure::{Failure, OrFail};
use crate::rows::{AcceptorRow, SocketRow, TcpRow};
use crate::supervise::comm;

/// List the sockets of a stack, as `ss` does for the kernel's.
///
/// Without -a or -l: connections only. A listener is in every replica and shown once; its queue is the sum.
#[derive(clap::Args)]
pub struct Ss {
    /// The stack.
    #[arg(default_value = "default")]
    name: StackName,
    /// Show TCP sockets.
    #[arg(long, short = 't')]
    tcp: bool,
    /// Show UDP sockets.
    #[arg(long, short = 'u')]
    udp: bool,
    /// Show listeners only.
    #[arg(long, short = 'l', conflicts_with = "all")]
    listening: bool,
    /// Show listeners and connections.
    #[arg(long, short = 'a')]
    all: bool,
    /// Show ports as numbers, which this command always does.
    #[arg(long, short = 'n')]
    numeric: bool,
    /// Show processes, which this command always does.
    #[arg(long, short = 'p')]
    processes: bool,
    /// Show what TCP knows about each connection, and what is known of acceptors.
    #[arg(long, short = 'i')]
    info: bool,
    /// Show timers.
    #[arg(long, short = 'o')]
    options: bool,
    /// Leave the line of headings out.
    #[arg(long, short = 'H')]
    no_header: bool,
    /// Print every row of every replica as JSON (docs/cli.md).
    #[arg(long, short = 'j')]
    json: bool,
}

impl Ss {
    /// Runs the command. Returns its exit status.
    pub fn run(&self) -> Result<ExitCode, Failure> {
        let supervisor = SupervisorClient::connect(&self.name)?;
        let (mut rows, restarting) = supervisor.sockets()?;
        for server in restarting {
            complain!("atoll: {server} is being restarted: its sockets are not listed");
        }
        rows.retain(|row| self.wants(row));
        if self.json {
            println!("{}", serde_json::to_string_pretty(&rows).or_fail("writing JSON")?);
            return Ok(ExitCode::SUCCESS);
        }
        // The status is requested afterwards, so that it has every session that a row names, unless the
        // session has ended since.
        let sessions: BTreeMap<u32, SessionReport> =
            supervisor.status()?.sessions.into_iter().map(|session| (session.id, session)).collect();
        let rows = merge_listeners(rows);
        print!("{}", super::harmless(&self.text(&rows, &sessions)));
        Ok(ExitCode::SUCCESS)
    }

    fn wants(&self, row: &SocketRow) -> bool {
        let protocol = self.tcp == self.udp || row.proto == if self.tcp { "tcp" } else { "udp" };
        let is_listener = matches!(row.state.as_str(), "LISTEN" | "UNCONN");
        protocol && (self.all || is_listener == self.listening)
    }

    fn text(&self, rows: &[SocketRow], sessions: &BTreeMap<u32, SessionReport>) -> String {
        let with_protocol = self.tcp == self.udp;
        let heads =
            ["Netid", "State", "Recv-Q", "Send-Q", "Local Address:Port", "Peer Address:Port", "Process"];
        let cells = |row: &SocketRow| {
            [
                row.proto.clone(),
                row.state.clone(),
                row.recv_q.to_string(),
                row.send_q.to_string(),
                row.local.clone(),
                row.peer.clone(),
                users(row, sessions),
            ]
        };
        let skipped = usize::from(!with_protocol);
        let table = std::iter::once(heads.map(str::to_owned)).chain(rows.iter().map(cells));
        let table = table.map(|cells| cells.into_iter().skip(skipped));
        let mut lines = super::table::lines(table, 1, &[LOCAL - skipped]).into_iter();
        let head = lines.next().filter(|_| !self.no_header).map(|head| head + "\n");
        let mut out = head.unwrap_or_default();
        for (row, line) in rows.iter().zip(lines) {
            out += &line;
            if let (true, Some((kind, ms, count))) = (self.options, &row.timer) {
                out += &format!(" timer:({kind},{},{count})", milliseconds(*ms));
            }
            out.push('\n');
            if let (true, Some(info)) = (self.info, &row.info) {
                out += &format!("\t {}\n", info_line(info));
            }
            if self.info {
                out += &acceptor_lines(&row.acceptors);
            }
        }
        out
    }
}

/// The index of the column of the local address, which `ss` aligns to the right.
const LOCAL: usize = 4;

/// Merges the copies of a listener in all replicas into one row.
fn merge_listeners(rows: Vec<SocketRow>) -> Vec<SocketRow> {
    let mut merged: Vec<SocketRow> = Vec::new();
    let mut seen: BTreeMap<(String, String, u32), usize> = BTreeMap::new();
    for row in rows {
        if !matches!(row.state.as_str(), "LISTEN" | "UNCONN") {
            merged.push(row);
            continue;
        }
        let key = (row.proto.clone(), row.local.clone(), row.session);
        match seen.get(&key).and_then(|&at| merged.get_mut(at)) {
            Some(first) => {
                first.recv_q += row.recv_q;
                first.send_q = first.send_q.max(row.send_q);
                first.holders |= row.holders;
                merge_acceptors(&mut first.acceptors, row.acceptors, row.replica);
            }
            None => {
                seen.insert(key, merged.len());
                merged.push(row);
            }
        }
    }
    merged
}

/// Adds what replica `replica` knows of the acceptors of a listener: counts are added, and the estimate of
/// the acceptor's home replica is used.
fn merge_acceptors(merged: &mut Vec<AcceptorRow>, others: Vec<AcceptorRow>, replica: u8) {
    for other in others {
        match merged.iter_mut().find(|row| (row.session, row.lease) == (other.session, other.lease)) {
            Some(row) => {
                row.given += other.given;
                row.unclaimed += other.unclaimed;
                row.accepting |= other.accepting;
                if other.home == replica {
                    (row.service_us, row.samples, row.open) = (other.service_us, other.samples, other.open);
                }
            }
            None => merged.push(other),
        }
    }
}

/// Returns a line for each acceptor, with its share of all connections given.
fn acceptor_lines(acceptors: &[AcceptorRow]) -> String {
    let all: u64 = acceptors.iter().map(|row| row.given).sum();
    let line = |row: &AcceptorRow| {
        let service = row.service_us.map(|micros| format!(" service:{}", trimmed(micros as f64 / 1e3)));
        format!(
            "\t acceptor session:{} home:{}{} share:{:.1}% given:{} unclaimed:{} open:{}{}\n",
            row.session,
            row.home,
            service.unwrap_or_default(),
            row.given as f64 * 100.0 / all.max(1) as f64,
            row.given,
            row.unclaimed,
            row.open,
            if row.accepting { "" } else { " away" },
        )
    };
    acceptors.iter().map(line).collect()
}

/// Returns the processes of a socket's session, such as `users:(("nginx",pid=12),("nginx",pid=13))`.
fn users(row: &SocketRow, sessions: &BTreeMap<u32, SessionReport>) -> String {
    let Some(session) = sessions.get(&row.session) else { return String::new() };
    let users: Vec<String> =
        session.members.iter().map(|pid| format!("(\"{}\",pid={pid})", comm(*pid))).collect();
    if users.is_empty() { String::new() } else { format!("users:({})", users.join(",")) }
}

/// Returns the facts of a connection as `ss -i` writes them; zeros are left out where `ss` does so.
fn info_line(info: &TcpRow) -> String {
    let mut out: Vec<String> = info.options.clone();
    out.push(info.congestion.clone());
    if let Some((send, receive)) = info.wscale {
        out.push(format!("wscale:{send},{receive}"));
    }
    out.push(format!("rto:{}", trimmed(info.rto_ms)));
    if info.rtt_us > 0 {
        out.push(format!(
            "rtt:{}/{}",
            trimmed(info.rtt_us as f64 / 1e3),
            trimmed(info.rttvar_us as f64 / 1e3)
        ));
    }
    if info.ato_ms > 0.0 {
        out.push(format!("ato:{}", trimmed(info.ato_ms)));
    }
    for (name, value) in [
        ("mss", u64::from(info.mss)),
        ("pmtu", u64::from(info.pmtu)),
        ("rcvmss", u64::from(info.rcvmss)),
        ("advmss", u64::from(info.advmss)),
        ("cwnd", u64::from(info.cwnd)),
        ("ssthresh", u64::from(info.ssthresh.unwrap_or(0))),
        ("bytes_sent", info.bytes_sent),
        ("bytes_retrans", info.bytes_retrans),
        ("bytes_acked", info.bytes_acked),
        ("bytes_received", info.bytes_received),
        ("segs_out", info.segs_out),
        ("segs_in", info.segs_in),
    ] {
        if value > 0 {
            out.push(format!("{name}:{value}"));
        }
    }
    if info.rtt_us > 0 && info.cwnd > 0 {
        let rate = f64::from(info.cwnd) * f64::from(info.mss) * 8.0 * 1e6 / info.rtt_us as f64;
        out.push(format!("send {rate:.0}bps"));
    }
    for (name, value) in [("unacked", info.unacked), ("lost", info.lost), ("sacked", info.sacked)] {
        if value > 0 {
            out.push(format!("{name}:{value}"));
        }
    }
    if info.retrans > 0 || info.retrans_total > 0 {
        out.push(format!("retrans:{}/{}", info.retrans, info.retrans_total));
    }
    if info.rcv_space > 0 {
        out.push(format!("rcv_space:{}", info.rcv_space));
    }
    out.retain(|word| !word.is_empty());
    out.join(" ")
}

/// Formats a number with at most three digits after the point, and no zeros at the end.
fn trimmed(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats a time as `7.2sec` or `200ms`.
fn milliseconds(ms: u64) -> String {
    if ms < 1000 { format!("{ms}ms") } else { trimmed(ms as f64 / 1e3) + "sec" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(state: &str, local: &str, replica: u8) -> SocketRow {
        SocketRow {
            proto: "tcp".into(),
            state: state.into(),
            recv_q: 1,
            send_q: 511,
            local: local.into(),
            peer: "0.0.0.0:*".into(),
            replica,
            session: 4,
            ..SocketRow::default()
        }
    }

    #[test]
    fn a_listener_is_shown_once() {
        let rows = vec![
            row("LISTEN", "0.0.0.0:80", 0),
            row("ESTAB", "198.18.0.2:80", 0),
            row("LISTEN", "0.0.0.0:80", 1),
            row("ESTAB", "198.18.0.2:80", 1),
        ];
        let merged = merge_listeners(rows);
        assert_eq!(
            merged.iter().map(|row| row.state.as_str()).collect::<Vec<_>>(),
            ["LISTEN", "ESTAB", "ESTAB"]
        );
        assert_eq!((merged[0].recv_q, merged[0].send_q), (2, 511));
    }

    #[test]
    fn acceptors_are_shown_as_their_home_knows_them() {
        let acceptor = |home: u8, service_us, given, open| AcceptorRow {
            session: 3 + u32::from(home),
            lease: 9,
            home,
            accepting: true,
            service_us,
            given,
            open,
            ..AcceptorRow::default()
        };
        let mut here = row("LISTEN", "0.0.0.0:80", 0);
        here.acceptors = vec![acceptor(0, Some(250), 60, 2), acceptor(1, Some(9000), 10, 1)];
        let mut there = row("LISTEN", "0.0.0.0:80", 1);
        there.acceptors = vec![acceptor(0, None, 20, 0), acceptor(1, Some(1500), 10, 4)];
        let merged = merge_listeners(vec![here, there]);
        assert_eq!(
            acceptor_lines(&merged[0].acceptors),
            "\t acceptor session:3 home:0 service:0.25 share:80.0% given:80 unclaimed:0 open:2\n\
             \t acceptor session:4 home:1 service:1.5 share:20.0% given:20 unclaimed:0 open:4\n"
        );
    }

    #[test]
    fn the_lines_are_those_of_ss() {
        let info = TcpRow {
            options: vec!["ts".into(), "sack".into()],
            congestion: "cubic".into(),
            wscale: Some((7, 8)),
            rto_ms: 204.0,
            rtt_us: 1250,
            rttvar_us: 500,
            mss: 1448,
            cwnd: 10,
            bytes_acked: 3,
            retrans_total: 2,
            ..TcpRow::default()
        };
        assert_eq!(
            info_line(&info),
            "ts sack cubic wscale:7,8 rto:204 rtt:1.25/0.5 mss:1448 cwnd:10 bytes_acked:3 send 92672000bps \
             retrans:0/2"
        );
        let ss = Ss {
            name: StackName::default(),
            tcp: true,
            udp: false,
            listening: false,
            all: true,
            numeric: true,
            processes: false,
            info: true,
            options: true,
            no_header: false,
            json: false,
        };
        let mut row = row("ESTAB", "198.18.0.2:80", 0);
        row.info = Some(info);
        row.timer = Some(("on".into(), 7200, 1));
        let text = ss.text(&[row], &BTreeMap::new());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0].split_whitespace().collect::<Vec<_>>(),
            ["State", "Recv-Q", "Send-Q", "Local", "Address:Port", "Peer", "Address:Port", "Process"]
        );
        assert!(
            lines[1].starts_with("ESTAB 1      511") && lines[1].ends_with("timer:(on,7.2sec,1)"),
            "{}",
            lines[1]
        );
        assert!(lines[2].starts_with("\t ts sack cubic"));
    }
}
