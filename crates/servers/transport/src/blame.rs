//! Decides what a server's death is charged to. Each kind of work has its own mark ([`Work`]), which survives
//! the server in its ledger.
//!
//! ```text
//!   a segment, a timer, the output        that connection: after two deaths it is given up
//!   or the record of a connection         (quarantine)
//!   commands, datagrams in or out,        that session: after two deaths it is cut off
//!   memory or clean-up of a session
//!   everything else                       nothing
//! ```
//!
//! The commands of a session that is cut off stay in their rings, its requests are in force no longer, and
//! its connections are reset at both ends. Other sessions lose nothing. Only deaths by a server's own fault
//! count, and hangs.

use alloc::vec::Vec;

use atoll_base::{Duration, Instant, SeqNum};
use atoll_ipc::Memory;
use atoll_ipc::ledger::{ConnectionRecord, Work};
use atoll_ipc::page::Stat;
use atoll_tcp::State;
use atoll_wire::tcp::{Flags, Segment};

use crate::aftermath::{Aftermath, Charge};
use crate::applications::Applications;
use crate::durability::Records;
use crate::egress::Egress;
use crate::record::state;
use crate::stats::Stats;

/// The number of deaths at work for a session that cut it off.
pub(crate) const SESSION_DEATHS_MAX: u8 = 2;
/// The time after which a server has not died of what its predecessors were working on.
const FORGIVEN_AFTER: Duration = Duration::from_secs(600);

/// Charges the death of the predecessor to the work that it was doing, and cuts sessions off because of that.
/// Returns the connection that is charged.
pub(crate) fn charge<M: Memory>(
    now: Instant,
    records: &mut Records<M>,
    is_blamed: bool,
    applications: &mut Applications<M>,
    aftermath: &mut Aftermath,
) -> Option<u32> {
    let work = if is_blamed { records.ledger().past_work() } else { Work::Nothing };
    let mut deaths = 0;
    if let Some(session) = work.session().filter(|session| applications.place_of(*session).is_some()) {
        let before = records.ledger().suspects().find(|(suspect, _)| *suspect == session);
        deaths = before.map_or(0, |(_, deaths)| deaths).saturating_add(1);
        records.ledger().set_deaths(session, deaths);
    }
    let suspects: Vec<_> = records.ledger().suspects().collect();
    for (id, deaths) in suspects {
        let Some(session) = applications.find_mut(id) else {
            records.ledger().set_deaths(id, 0);
            continue;
        };
        if deaths >= SESSION_DEATHS_MAX {
            session.cut_off();
            applications.tell_cut_off(id);
        } else {
            records.forgive_at(now + FORGIVEN_AFTER);
        }
    }
    aftermath.tell_charge(is_blamed.then_some(Charge { work, deaths }));
    work.connection()
}

/// Resets the peer of a connection that cannot continue, as far as the record says what the peer expects.
///
/// A reset counts only exactly where the peer waits for the next octet (RFC 5961 §3). Elsewhere in its window
/// it makes the peer ask, and the question is answered as for any unknown connection, by a reset in the right
/// place. The peer waits at what was acknowledged if nothing was under way, at the end of what was sent if
/// all has arrived, and otherwise in between. So resets are sent for both places.
pub(crate) fn reset_peer(
    record: &ConnectionRecord,
    written: Option<i64>,
    egress: &mut Egress,
    stats: &mut Stats,
) {
    let is_synchronised = match state(record) {
        Some(State::Closed | State::SynSent | State::TimeWait) | None => false,
        Some(_) => true,
    };
    if !is_synchronised || record.progress.received < 0 {
        return;
    }
    let at = |start: u32, offset: i64| SeqNum(start.wrapping_add(offset as u32));
    let acked = record.progress.acked;
    let end = record.send_tail.max(written.unwrap_or(0)).saturating_add(i64::from(record.send_fin));
    let sent = end.min(record.progress.edge).max(acked);
    let has_fin = record.receive_fin == Some(record.progress.received);
    let ack = at(record.receive_start, record.progress.received.saturating_add(i64::from(has_fin)));
    let (local, remote) = (record.tuple.local.port, record.tuple.remote.port);
    let mut places = alloc::vec![acked];
    places.extend((sent != acked).then_some(sent));
    for offset in places {
        let seq = at(record.send_start, offset);
        let flags = Flags::RST | Flags::ACK;
        stats.count(Stat::ResetsOut);
        egress.answer(
            record.tuple,
            Segment { src_port: local, dst_port: remote, seq, ack, flags, ..Segment::default() },
        );
    }
}
