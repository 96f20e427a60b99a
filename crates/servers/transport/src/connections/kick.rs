//! Reads what an application has changed in its lines of a slot. Every value is hostile until checked.

use atoll_base::Instant;
use atoll_ipc::Memory;
use atoll_ipc::page::Stat;
use atoll_ipc::slot::{APP_FAST_OPEN, APP_OPTIONS_FOLLOW, APP_SHUT_RECEIVE, APP_SHUT_SEND};

use super::Connections;
use crate::applications::Applications;
use crate::config::Config;
use crate::entry::{Flags, Stage};
use crate::stats::Stats;

/// The most octets that are ever in a send buffer.
const SEND_MAX: u64 = 16 << 20;

impl Connections {
    /// Takes plausible changes of the application's lines. An implausible one ends the connection.
    pub(crate) fn kick<M: Memory>(
        &mut self,
        now: Instant,
        index: u32,
        config: &Config,
        applications: &Applications<M>,
        stats: &mut Stats,
    ) {
        let Some(entry) = self.get_mut(index) else { return };
        let (Some(place), Stage::Open(_)) = (entry.place, entry.stage) else { return };
        let Some(session) = applications.get(place.session) else { return };
        let Some(slot) = session.slot(place.slot) else { return };
        if slot.app_generation() != place.generation {
            stats.count(Stat::BadCommands);
            return;
        }
        let (tail, head, flags) = (slot.send_tail(), slot.receive_head(), slot.app_flags());
        let connection = &mut entry.connection;
        let (una, known_tail) = (connection.send_una(), connection.send_tail());
        let is_plausible = tail >= known_tail
            && tail - una <= SEND_MAX
            && (connection.receive_head()..=entry.view.tail().max(connection.receive_head())).contains(&head);
        if !is_plausible {
            stats.count(Stat::BadCommands);
            connection.abort();
            self.touch(index);
            return;
        }
        if tail > known_tail {
            // The rings are published before the tail that needs them.
            entry.send = slot.send_extents(&session.layout).unwrap_or_default().into();
            connection.handle_send_tail(now, tail);
            // The urgent position is published before the tail, too.
            connection.handle_urgent(slot.send_urgent());
            // The application may have read the limit before it was doubled: half of two thirds. With two
            // rings there may be no room for a third, however little is in them.
            let queued = tail - entry.view.acked();
            if queued * 3 >= u64::from(entry.send_limit)
                || entry.send.old().is_some()
                // All that TCP_NOTSENT_LOWAT allows is there.
                || entry.unsent_low != 0 && queued >= u64::from(slot.send_limit())
            {
                entry.flags.insert(Flags::WANTS_ROOM);
            }
        }
        if flags & APP_OPTIONS_FOLLOW == 0 {
            entry.flags.remove(Flags::HELD);
        }
        if flags & APP_FAST_OPEN == 0 {
            connection.send_waiting_syn();
        }
        if flags & APP_SHUT_SEND != 0 {
            connection.shutdown_send(now);
        }
        if flags & APP_SHUT_RECEIVE != 0 {
            connection.shutdown_receive();
        }
        if head > connection.receive_head() {
            connection.handle_read_head(now, head);
        }
        // Also if the head is known: where text wants memory, `Entry::reserve` has looked at it before.
        entry.follow_reader(session, config.receive_capacity.1);
        self.touch(index);
    }
}
