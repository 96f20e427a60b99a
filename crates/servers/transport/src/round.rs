//! The steps of a round, in their order.
//!
//! ```text
//!   handle_frame*    frames of this round     ---> connections, datagrams, handshakes
//!   handle_commands  what applications ask    ---> a share for each session; then a slice of cleaning up
//!                                                  after processes that have ended
//!   handle_timers    what is due              ---> adoption goes on, TIME-WAIT, timers of connections,
//!                                                  resets, memory
//!   flush            1  what links and neighbours held up tries again
//!                    2  commit: what a successor has to know is written before it is shown to others
//!                    3  segments and datagrams are sent; slots are published, events pushed
//!                    4  conclude: the commands that led to all this are off their rings
//!   take_bells       sleeping programs are woken
//! ```

use atoll_base::{Instant, SessionId};
use atoll_ip::ChecksumOffload;
use atoll_ipc::Memory;
use atoll_ipc::ledger::Work;
use atoll_ipc::page::Stat;

use crate::adopt::LOST_SLOTS;
use crate::blame::SESSION_DEATHS_MAX;
use crate::challenge::is_suspicious;
use crate::egress::Full;
use crate::pressure::Holders;
use crate::session::{Occupant, Session};
use crate::sink::FrameSink;
use crate::transport::Transport;

/// The budget of all sessions together in one round, as a multiple of that of one.
pub const ALL_SHARES: u32 = 16;

impl<M: Memory> Transport<M> {
    /// Handles a frame, which starts at the Ethernet header, of a flow of this replica. `offload` is from its
    /// vnet header; `internal` says that it came over the stack's link to itself. Never panics, whatever the
    /// bytes are.
    #[inline]
    pub fn handle_frame(&mut self, now: Instant, frame: &[u8], offload: ChecksumOffload, internal: bool) {
        self.handshakes.phases().frame_begins();
        self.durability.mark(Work::Frame);
        self.frame_arrives(now, frame, offload, internal);
        self.handshakes.phases().frame_ends();
    }

    /// Takes commands of every session, for up to `budget` each and [`ALL_SHARES`] times that in all; the
    /// price of a command is its [`cost`](crate::commands::cost). The first session changes with each round,
    /// and one that got no turn is first in the next. Returns whether there were any.
    pub fn handle_commands(&mut self, now: Instant, budget: u32) -> bool {
        self.durability.mark(Work::Nothing);
        let (mut left, mut any) = (budget.saturating_mul(ALL_SHARES), false);
        for (step, place) in (0..).zip(self.applications.turns()) {
            if left == 0 {
                self.applications.resume_turns_at(step);
                break;
            }
            let spent = self.handle_commands_of(now, place, budget.min(left));
            any |= spent > 0;
            left = left.saturating_sub(spent);
        }
        let endings = self.applications.endings();
        if endings.len() > 0 {
            any |= endings.left() > 0;
            self.clean_up(now);
        }
        any
    }

    /// Runs the timers that are due.
    pub fn handle_timers(&mut self, now: Instant) {
        self.adopt_some(now);
        if self.applications.endings().has_departures() {
            self.let_depart(now);
        }
        if self.aftermath.is_looking() {
            let lost = self.aftermath.look_for_lost(LOST_SLOTS, &mut self.applications, &mut self.stats);
            self.stats.add(Stat::ConnectionsLost, lost.into());
        }
        self.durability.mark(Work::Nothing);
        if self.ip.next_timeout().is_some_and(|due| due <= now) {
            self.ip.handle_timeout(now);
        }
        self.connections.expire_time_waits(now);
        self.cm.handle_timers(now);
        self.run_directives(now);
        for _ in 0..self.connections.timers_mut().expire(now) {
            let Some(id) = self.connections.timers_mut().pop() else { break };
            self.handle_timer(now, id.0);
        }
        self.durability.mark(Work::Nothing);
        self.connections.timers_mut().conclude(now);
        if self.handshakes.has_resets() {
            self.handshakes.reset_some(now, &mut self.connections, &self.cm);
        }
        self.expire_sessions(now);
        if self.shortage.is_due(now) {
            let (connections, applications, stats) =
                (&mut self.connections, &mut self.applications, &mut self.stats);
            self.shortage.look_after(now, Holders { connections, applications, stats });
        }
        self.durability.forgive(now, |deaths| deaths < SESSION_DEATHS_MAX);
    }

    /// Sends what is due, publishes what has changed to the slots, and notifies the applications. Called once
    /// per round; the caller rings the doorbells afterwards.
    pub fn flush(&mut self, now: Instant, out: &mut impl FrameSink<M>) {
        self.load.begin_flush();
        self.applications.begin_flush();
        let retries = self.egress.take_retry();
        self.egress.flush_ip(now, &mut self.ip, out);
        if self.applications.has_put_off() {
            self.take_up();
        }
        self.requeue_resolved();
        let mut full = Full::default();
        if retries {
            self.retry_full_links(now, out, &mut full);
        }
        let mut dirty = self.connections.take_dirty();
        self.durability.commit(&dirty, &mut self.connections, &mut self.applications);
        self.shortage.discard_if_due(&self.applications);
        self.egress.flush_answers(now, (&mut self.ip, &self.owners), &mut self.stats, out, &mut full);
        for index in dirty.drain(..) {
            self.flush_connection(now, index, out, &mut full);
        }
        self.connections.put_back_dirty(dirty);
        self.durability.mark(Work::Nothing);
        self.flush_datagrams(now, out);
        self.egress.flush_ip(now, &mut self.ip, out);
        self.conclude();
    }

    /// Passes each doorbell to ring to `ring`; a program sleeps on each of them. Called after every flush.
    pub fn take_bells(&mut self, mut ring: impl FnMut(SessionId, u32)) {
        for session in self.applications.iter_mut() {
            let id = session.id;
            session.take_bells(|bell| ring(id, bell));
        }
    }

    /// Ends the last flush: the commands that led to it need not be carried out again. A server that dies
    /// from now on was working on nothing.
    fn conclude(&mut self) {
        self.applications.publish_commands();
        self.applications.endings_mut().conclude();
        self.handshakes.conclude();
        self.durability.mark(Work::Nothing);
    }

    // ---- between rounds ----

    /// Returns when [`Transport::handle_timers`] has to be called at the latest.
    pub fn next_timeout(&self) -> Option<Instant> {
        let orphans = self.applications.iter().filter_map(|session| session.gone).min();
        let paced = self.applications.iter().filter_map(|session| session.pace.due()).min();
        let due = [
            self.ip.next_timeout(),
            self.connections.time_waits().next_timeout(),
            self.shortage.next_look(&self.applications),
            self.cm.next_timeout(),
            paced,
            self.connections.timers().next_timeout(),
            orphans,
            self.egress.retry_at(),
            self.adopts_at(),
            self.cleans_up_at(),
        ];
        due.into_iter().flatten().min()
    }

    /// Returns whether a command is waiting that may be taken. Before sleeping the caller sets its sleep
    /// word, fences, and asks this and [`Transport::has_work`].
    pub fn has_commands(&self) -> bool {
        let may_be_taken = |session: &Session<M>| !session.pace.is_waiting() && session.has_command();
        !self.cm.is_crowded() && self.applications.iter().any(may_be_taken)
    }

    /// Returns whether [`Transport::flush`] has something to do now. Frames that wait for a full link do not
    /// count: they are tried at every flush, and [`Transport::next_timeout`] ensures that there is one.
    pub fn has_work(&self) -> bool {
        let is_dirty =
            self.connections.has_dirty() || self.datagrams.has_dirty() || self.egress.has_answers();
        is_dirty || self.is_adopting() || self.is_behind()
    }

    /// Returns whether the round had no time for everything, which the next one continues.
    pub fn is_behind(&self) -> bool {
        let endings = self.applications.endings();
        let is_ending = self.handshakes.has_resets() || endings.len() > 0 || endings.has_departures();
        is_ending
            || self.applications.has_put_off()
            || self.connections.timers().is_behind()
            || self.cm.is_behind()
    }

    /// Returns whether a peer waits for an answer, or frames for many sockets have taken long: the caller
    /// should not take more frames before it flushes.
    pub fn is_flush_due(&self) -> bool {
        self.load.is_flush_due()
    }

    // ---- the steps ----

    /// Handles the timer of a connection. It may have fired too early, because timers are moved lazily.
    fn handle_timer(&mut self, now: Instant, index: u32) {
        self.durability.mark(Work::Timer(index));
        let Some(entry) = self.connections.get_mut(index) else { return };
        entry.armed = Instant::FAR_FUTURE;
        if entry.connection.next_timeout().is_some_and(|due| due <= now) {
            let mss = entry.connection.mss();
            let events = entry.connection.handle_timeout(now);
            if entry.connection.mss() < mss {
                self.stats.count(Stat::MtuBlackHoles);
            }
            if is_suspicious(events) {
                let limit = (self.config.challenges_per_second, &mut self.rng);
                self.challenges.note(now, events, &mut entry.connection, limit, &mut self.stats);
            }
            self.react(now, index, events);
        }
        let Some(entry) = self.connections.get_mut(index) else { return };
        if entry.deadline <= now {
            entry.deadline = Instant::FAR_FUTURE;
            self.handle_deadline(now, index);
        }
        // The flush arms the timer again.
        self.connections.touch(index);
    }

    /// Continues the sockets that were put off, of each session as many as may have a share.
    fn take_up(&mut self) {
        let (connections, datagrams) = (&mut self.connections, &mut self.datagrams);
        self.applications.take_up(|socket| match socket {
            Occupant::Connection(index) => connections.take_up(index),
            Occupant::Datagram(index) => datagrams.take_up(index),
            Occupant::Lost | Occupant::Nobody => {}
        });
    }

    /// Lets everything that waited for a neighbour try again, if one was resolved or has failed.
    fn requeue_resolved(&mut self) {
        if self.egress.requeue_resolved(&mut self.ip, &mut self.connections) {
            self.publish_network();
            self.datagrams.touch_unresolved();
        }
    }
}
