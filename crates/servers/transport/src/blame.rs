//! Who pays when servers die of something? Each kind of work has its own mark ([`Work`]), which survives the
//! server in its ledger.
//!
//! ```text
//!   a segment, a timer, the output or the record of a connection   that connection: after two deaths it is given up (quarantine)
//!   commands, datagrams in or out, memory or clean-up of a session that session: after two deaths it is cut off
//!   everything else                                                nobody
//! ```
//! A session that is cut off is not listened to any more: its commands stay in their rings, its requests are
//! in force no longer, its connections are reset at both ends. Its neighbours lose nothing. Only deaths by a
//! server's own fault count, and hangs.

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

/// So many deaths at work for a session cut it off.
pub(crate) const SESSION_DEATHS_MAX: u8 = 2;
/// A server that lives so long has not died of what its predecessors were at work on.
const FORGIVEN_AFTER: Duration = Duration::from_secs(600);

/// Puts the death of the predecessor down to whoever it was at work for, and marks the sessions that are cut
/// off because of that. Returns the connection that is charged.
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

/// The peer of a connection that does not go on hears so, as far as the record says where it stands.
///
/// A reset counts only exactly where the peer waits for the next octet (RFC 5961 §3); in its window it makes
/// the peer ask, and what it asks is answered as for any unknown connection, by a reset in the right place.
/// What was acknowledged is where it waits if nothing was under way, the end of what was sent if all has
/// arrived, and in its window otherwise: both are said.
pub(crate) fn reset_peer(record: &ConnectionRecord, written: Option<i64>, egress: &mut Egress, stats: &mut Stats) {
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
        egress
            .answer(record.tuple, Segment { src_port: local, dst_port: remote, seq, ack, flags, ..Segment::default() });
    }
}
