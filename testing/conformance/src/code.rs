//! Assertions in `%{ }%`: the part of Python that packetdrill's scripts use. It is `assert` with comparisons
//! and arithmetic over the fields of `struct tcp_info`.

use atoll_ipc::info::Info;

/// Why a piece of code did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// An assertion does not hold.
    Failed(String),
    /// The code uses something that this runner does not support.
    Unsupported(String),
}

type Result<T> = std::result::Result<T, Trouble>;

/// Runs a piece of code whose statements stand on separate lines.
///
/// # Errors
/// Returns the first statement that fails or is not supported.
pub fn run(code: &str, info: &Info) -> Result<()> {
    for statement in code.replace("\\\n", " ").lines().flat_map(|line| line.split(';')) {
        let statement = statement.split('#').next().unwrap_or_default().trim();
        if statement.is_empty() || statement.starts_with("print") || statement == "pass" {
            continue;
        }
        let Some(rest) = statement.strip_prefix("assert").filter(|rest| rest.starts_with([' ', '('])) else {
            return Err(Trouble::Unsupported(format!("the statement `{statement}`")));
        };
        let mut parser = Parser { rest, info, depth: 0 };
        let holds = parser.either()? != 0.0;
        let message = if parser.takes(",") { parser.rest.trim() } else { "" };
        if message.is_empty() && !parser.rest.trim().is_empty() {
            return Err(Trouble::Unsupported(format!("`{}` in `{statement}`", parser.rest.trim())));
        }
        if !holds {
            return Err(Trouble::Failed(format!("`{statement}`, but {}", values(rest, info))));
        }
    }
    Ok(())
}

/// Returns the fields that a text names, with their values.
fn values(text: &str, info: &Info) -> String {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let mut values: Vec<String> = words
        .filter(|word| word.starts_with("tcpi_"))
        .filter_map(|word| Some(format!("{word} is {}", lookup(word, info)?)))
        .collect();
    values.dedup();
    values.join(", ")
}

fn lookup(name: &str, info: &Info) -> Option<f64> {
    let value = match name {
        "tcpi_state" => info.state,
        "tcpi_ca_state" => info.ca_state,
        "tcpi_retransmits" => info.retransmits,
        "tcpi_probes" => info.probes,
        "tcpi_backoff" => info.backoff,
        "tcpi_options" => info.options,
        "tcpi_snd_wscale" => info.snd_wscale,
        "tcpi_rcv_wscale" => info.rcv_wscale,
        "tcpi_rto" => info.rto,
        "tcpi_ato" => info.ato,
        "tcpi_snd_mss" => info.snd_mss,
        "tcpi_rcv_mss" => info.rcv_mss,
        "tcpi_unacked" => info.unacked,
        "tcpi_sacked" => info.sacked,
        "tcpi_lost" => info.lost,
        "tcpi_retrans" => info.retrans,
        "tcpi_pmtu" => info.pmtu,
        "tcpi_rtt" => info.rtt,
        "tcpi_rttvar" => info.rttvar,
        "tcpi_snd_ssthresh" => info.snd_ssthresh,
        "tcpi_snd_cwnd" => info.snd_cwnd,
        "tcpi_advmss" => info.advmss,
        "tcpi_total_retrans" => info.total_retrans,
        "tcpi_bytes_acked" => info.bytes_acked,
        "tcpi_bytes_received" => info.bytes_received,
        "tcpi_segs_out" => info.segs_out,
        "tcpi_segs_in" => info.segs_in,
        "tcpi_data_segs_in" => info.data_segs_in,
        "tcpi_data_segs_out" => info.data_segs_out,
        "tcpi_delivered" => info.delivered,
        "tcpi_dsack_dups" => info.dsack_dups,
        "tcpi_reord_seen" => info.reord_seen,
        "tcpi_last_data_recv" => info.last_data_recv,
        "tcpi_pacing_rate" => info.pacing_rate,
        "tcpi_max_pacing_rate" => info.max_pacing_rate,
        "tcpi_notsent_bytes" => info.notsent_bytes,
        "tcpi_min_rtt" => info.min_rtt,
        "tcpi_delivery_rate" => info.delivery_rate,
        "tcpi_snd_wnd" => info.snd_wnd,
        "tcpi_rcv_wnd" => info.rcv_wnd,
        "tcpi_rcv_space" => info.rcv_space,
        "tcpi_last_data_sent" => info.last_data_sent,
        "TCP_CA_Open" => 0,
        "TCP_CA_Disorder" | "TCPI_OPT_TIMESTAMPS" | "TCP_ESTABLISHED" | "True" => 1,
        "TCP_CLOSE" => 7,
        "TCP_CLOSE_WAIT" | "TCPI_OPT_ECN" => 8,
        "TCP_LAST_ACK" => 9,
        "TCP_LISTEN" => 10,
        "TCP_CLOSING" => 11,
        "TCP_CA_CWR" | "TCPI_OPT_SACK" | "TCP_SYN_SENT" => 2,
        "TCP_CA_Recovery" | "TCP_SYN_RECV" => 3,
        "TCP_CA_Loss" | "TCPI_OPT_WSCALE" | "TCP_FIN_WAIT1" => 4,
        "TCP_FIN_WAIT2" => 5,
        "TCP_TIME_WAIT" => 6,
        "TCPI_OPT_SYN_DATA" => 32,
        "TCP_INFINITE_SSTHRESH" => 0x7fff_ffff,
        _ => return None,
    };
    Some(value as f64)
}

struct Parser<'a> {
    rest: &'a str,
    info: &'a Info,
    /// The number of open parentheses and signs.
    depth: u32,
}

/// The most open parentheses and signs; more, which no script has, would use up the stack.
const DEPTH_MAX: u32 = 32;

impl Parser<'_> {
    fn takes(&mut self, token: &str) -> bool {
        let rest = self.rest.trim_start();
        let Some(after) = rest.strip_prefix(token) else { return false };
        // `or` is not a prefix of the word `order`.
        let is_word = token.starts_with(|c: char| c.is_ascii_alphabetic());
        if is_word && after.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
            return false;
        }
        self.rest = after;
        true
    }

    fn either(&mut self) -> Result<f64> {
        let mut left = self.both()?;
        while self.takes("or") {
            let right = self.both()?;
            left = f64::from(left != 0.0 || right != 0.0);
        }
        Ok(left)
    }

    fn both(&mut self) -> Result<f64> {
        let mut left = self.not()?;
        while self.takes("and") {
            let right = self.not()?;
            left = f64::from(left != 0.0 && right != 0.0);
        }
        Ok(left)
    }

    fn not(&mut self) -> Result<f64> {
        // `not not x` means x.
        let mut turns = false;
        while self.takes("not") {
            turns = !turns;
        }
        let value = self.comparison()?;
        Ok(if turns { f64::from(value == 0.0) } else { value })
    }

    fn comparison(&mut self) -> Result<f64> {
        let mut left = self.bits()?;
        let mut holds = None;
        loop {
            // Longer operators are tried first.
            let operators = ["==", "!=", "<=", ">=", "<", ">"];
            let Some(operator) = operators.into_iter().find(|operator| self.takes(operator)) else {
                return Ok(holds.map_or(left, f64::from));
            };
            let right = self.bits()?;
            let now = match operator {
                "==" => left == right,
                "!=" => left != right,
                "<=" => left <= right,
                ">=" => left >= right,
                "<" => left < right,
                _ => left > right,
            };
            holds = Some(holds.unwrap_or(true) && now);
            left = right;
        }
    }

    fn bits(&mut self) -> Result<f64> {
        let mut left = self.sum()?;
        loop {
            if self.takes("&") {
                left = (left as i64 & self.sum()? as i64) as f64;
            } else if self.takes("|") {
                left = (left as i64 | self.sum()? as i64) as f64;
            } else {
                return Ok(left);
            }
        }
    }

    fn sum(&mut self) -> Result<f64> {
        let mut left = self.product()?;
        loop {
            if self.takes("+") {
                left += self.product()?;
            } else if self.takes("-") {
                left -= self.product()?;
            } else {
                return Ok(left);
            }
        }
    }

    fn product(&mut self) -> Result<f64> {
        let mut left = self.atom()?;
        loop {
            if self.takes("*") {
                left *= self.atom()?;
            } else if self.takes("//") {
                left = (left / self.atom()?).floor();
            } else if self.takes("/") {
                left /= self.atom()?;
            } else if self.takes("%") {
                left %= self.atom()?;
            } else {
                return Ok(left);
            }
        }
    }

    fn atom(&mut self) -> Result<f64> {
        if self.depth == DEPTH_MAX {
            return self.unknown();
        }
        self.depth += 1;
        let value = self.shallow_atom();
        self.depth -= 1;
        value
    }

    fn shallow_atom(&mut self) -> Result<f64> {
        let is_abs = self.takes("abs") && self.rest.trim_start().starts_with('(');
        if self.takes("(") {
            let value = self.either()?;
            let value = if is_abs { value.abs() } else { value };
            return if self.takes(")") { Ok(value) } else { self.unknown() };
        }
        if self.takes("-") {
            return Ok(-self.atom()?);
        }
        self.rest = self.rest.trim_start();
        let len = self
            .rest
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '.')
            .unwrap_or(self.rest.len());
        let word = &self.rest[..len];
        let value = match word.strip_prefix("0x") {
            Some(digits) => i64::from_str_radix(digits, 16).ok().map(|value| value as f64),
            None if word.starts_with(|c: char| c.is_ascii_digit()) => word.parse().ok(),
            None => lookup(word, self.info),
        };
        let Some(value) = value else { return self.unknown() };
        self.rest = &self.rest[len..];
        Ok(value)
    }

    fn unknown<T>(&self) -> Result<T> {
        Err(Trouble::Unsupported(format!("`{}`", self.rest.trim())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assertions_are_judged() {
        let info = Info { snd_cwnd: 10, ca_state: 3, options: 6, rtt: 100_000, ..Info::default() };
        let good = [
            "assert tcpi_snd_cwnd == 10, tcpi_snd_cwnd",
            "assert 9 < tcpi_snd_cwnd <= 5 * 2",
            "assert tcpi_ca_state == TCP_CA_Recovery and not tcpi_snd_cwnd == 9",
            "\nassert (tcpi_options & TCPI_OPT_SACK) != 0\nassert abs_is_not_known == 1 or 1 == 1\n",
            "assert tcpi_rtt // 1000 == 100; assert tcpi_rtt % 7 == 100000 - 7 * 14285",
        ];
        for (n, code) in good.into_iter().enumerate() {
            let judged = run(code, &info);
            if n == 3 {
                assert!(matches!(judged, Err(Trouble::Unsupported(_))), "{judged:?}");
            } else {
                assert_eq!(judged, Ok(()), "{code}");
            }
        }
        let bad = ["assert tcpi_snd_cwnd == 11", "assert tcpi_snd_cwnd != 10 or tcpi_ca_state < 3"];
        for code in bad {
            assert!(matches!(run(code, &info), Err(Trouble::Failed(_))), "{code}");
        }
        let strange = [
            "import os",
            "assert tcpi_snd_cwnd ==",
            "assert tcpi_nonsense == 1",
            "assert 1 == 1 if x else 2",
        ];
        for code in strange {
            assert!(matches!(run(code, &info), Err(Trouble::Unsupported(_))), "{code}");
        }
    }
}
