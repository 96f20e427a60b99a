//! The states of a connection, and which states may follow (RFC 9293 §3.3.2).

/// A connection state of RFC 9293 §3.3.2. LISTEN is not among them: a listener is not a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum State {
    /// There is no connection any more: the caller deletes it.
    Closed,
    /// A SYN has been sent.
    SynSent,
    /// SYNs have been sent and received; ours is not acknowledged yet.
    SynReceived,
    /// Data flows both ways.
    Established,
    /// We closed; our FIN is not acknowledged yet.
    FinWait1,
    /// Our FIN is acknowledged; the peer may still send.
    FinWait2,
    /// The peer closed; we may still send.
    CloseWait,
    /// Both closed at once; our FIN is not acknowledged yet.
    Closing,
    /// The peer closed, then we; our FIN is not acknowledged yet.
    LastAck,
    /// Both directions are closed; late segments are answered for a while.
    TimeWait,
}

impl State {
    /// All states, by number.
    pub const ALL: [State; 10] = [
        State::Closed,
        State::SynSent,
        State::SynReceived,
        State::Established,
        State::FinWait1,
        State::FinWait2,
        State::CloseWait,
        State::Closing,
        State::LastAck,
        State::TimeWait,
    ];

    /// Returns whether both SYNs are acknowledged.
    pub const fn is_synchronized(self) -> bool {
        !matches!(self, State::Closed | State::SynSent | State::SynReceived)
    }

    /// Returns whether the peer may still send text.
    pub const fn may_receive(self) -> bool {
        matches!(self, State::Established | State::FinWait1 | State::FinWait2)
    }

    /// Returns whether text, or our FIN, may have to be sent.
    pub const fn may_send(self) -> bool {
        matches!(
            self,
            State::Established | State::CloseWait | State::FinWait1 | State::Closing | State::LastAck
        )
    }

    /// Returns whether `next` may follow by the diagram in RFC 9293 §3.3.2; every state may also end in
    /// CLOSED (reset, abort, time-out).
    pub(crate) const fn may_become(self, next: State) -> bool {
        use State::{
            CloseWait, Closed, Closing, Established, FinWait1, FinWait2, LastAck, SynReceived, SynSent,
            TimeWait,
        };
        match self {
            Closed => false,
            SynSent => matches!(next, SynReceived | Established | Closed),
            SynReceived => matches!(next, Established | Closed),
            Established => matches!(next, FinWait1 | CloseWait | Closed),
            FinWait1 => matches!(next, FinWait2 | Closing | TimeWait | Closed),
            FinWait2 => matches!(next, TimeWait | Closed),
            CloseWait => matches!(next, LastAck | Closed),
            Closing => matches!(next, TimeWait | Closed),
            LastAck | TimeWait => matches!(next, Closed),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::format;
    use std::string::String;

    use super::State;

    #[test]
    fn the_edges_are_those_of_the_diagram() {
        // covers: RFC 9293 §3.3.2, figure 5, without LISTEN
        let mut table = String::new();
        for from in State::ALL {
            let next: std::vec::Vec<State> =
                State::ALL.into_iter().filter(|to| from.may_become(*to)).collect();
            table += &format!("{from:?} -> {next:?}\n");
        }
        let expected = "\
Closed -> []
SynSent -> [Closed, SynReceived, Established]
SynReceived -> [Closed, Established]
Established -> [Closed, FinWait1, CloseWait]
FinWait1 -> [Closed, FinWait2, Closing, TimeWait]
FinWait2 -> [Closed, TimeWait]
CloseWait -> [Closed, LastAck]
Closing -> [Closed, TimeWait]
LastAck -> [Closed]
TimeWait -> [Closed]
";
        assert_eq!(table, expected);
    }
}
