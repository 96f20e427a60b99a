//! Tests of what the deaths of servers are charged to: the session or connection of the work, and no other.

use std::vec;

use atoll_base::{Duration, Endpoint, SessionId};
use atoll_ipc::arena::CUT_OFF;
use atoll_ipc::command::Protocol;
use atoll_ipc::ledger::Work;
use atoll_ipc::page::Stat;
use atoll_ipc::slot::{REPLICA_CLOSED, REPLICA_RESET};
use atoll_ipc::{Command, Memory};

use super::kit::{App, Net, Socket, Stack, addr};
use crate::{Charge, Loss, Recovery};

const ENDED: u32 = REPLICA_CLOSED | REPLICA_RESET;

/// Two programs on the first stack, whose server is mortal, each with a connection to the program of the
/// second.
struct Scene {
    net: Net,
    honest: App,
    rogue: App,
    client: App,
    /// Both ends of the honest program's connection, and of the rogue's.
    honest_ends: (Socket, Socket),
    rogue_ends: (Socket, Socket),
}

fn scene() -> Scene {
    let mut net = Net::new(vec![Stack::new(1).mortal(), Stack::new(2)]);
    let mut honest = App::attach(net.stack(0), 1);
    let mut rogue = App::attach(net.stack(0), 9);
    let mut client = App::attach(net.stack(1), 2);
    honest.listen(&mut net, 77, Endpoint::new(0, 80), 16);
    rogue.listen(&mut net, 78, Endpoint::new(0, 81), 16);
    let mut meet = |server: &mut App, port: u16| {
        let c = client.connect(Endpoint::new(addr(1), port));
        net.settle();
        let s = server.accept().expect("offered");
        net.settle();
        (s, c)
    };
    let (honest_ends, rogue_ends) = (meet(&mut honest, 80), meet(&mut rogue, 81));
    Scene { net, honest, rogue, client, honest_ends, rogue_ends }
}

impl Scene {
    /// Lets the server die at this work. Returns how many connections were lost and quarantined.
    fn die_of(&mut self, work: Work) -> (u32, u32) {
        let now = self.net.now;
        let adoption = self.net.stack(0).die_of(now, &[&self.honest, &self.rogue], work);
        self.net.settle();
        (adoption.lost, adoption.quarantined)
    }

    /// Returns whether text passes both ways.
    fn talks(&mut self, ends: (Socket, Socket), is_rogue: bool) -> bool {
        let (s, c) = ends;
        let server = if is_rogue { &mut self.rogue } else { &mut self.honest };
        server.write(s, b"an answer");
        self.client.write(c, b"a question");
        self.net.wait(Duration::from_secs(2));
        let server = if is_rogue { &mut self.rogue } else { &mut self.honest };
        (server.read(s), self.client.read(c)) == (b"a question".to_vec(), b"an answer".to_vec())
    }

    fn place(&mut self, ends: (Socket, Socket)) -> u32 {
        let entries = &self.net.stack(0).transport.connections;
        let slot = ends.0.slot;
        let is_it =
            |place: crate::session::Place, session: u32| place.slot == slot && place.session == session;
        let session = u32::from(ends == self.rogue_ends);
        let found = entries.iter().find(|(_, entry)| entry.place.is_some_and(|place| is_it(place, session)));
        found.expect("it is there").0
    }
}

/// The second death by any kind of work that a session has caused cuts that session off, and no other.
#[test]
fn a_session_that_servers_die_of_is_cut_off_and_no_other() {
    let id = SessionId(9);
    for work in [Work::Commands(id), Work::Datagrams(id), Work::Opening(id), Work::Cleanup(id)] {
        let mut scene = scene();
        assert_eq!(scene.die_of(work), (0, 0));
        assert_eq!(scene.net.stack(0).transport.take_charge(), Some(Charge { work, deaths: 1 }));
        assert_eq!(scene.net.stack(0).transport.take_cut_off(), []);
        assert!(scene.talks(scene.rogue_ends, true), "once is chance");
        assert_eq!(scene.die_of(work), (1, 0), "{work:?}");
        assert_eq!(scene.net.stack(0).transport.take_charge(), Some(Charge { work, deaths: 2 }));
        assert_eq!(scene.net.stack(0).transport.take_cut_off(), [id]);
        let said = |app: &App| app.arena.load32(CUT_OFF);
        assert_eq!((said(&scene.rogue), said(&scene.honest)), (1, 0), "it can see that nobody listens");
        // Both ends are notified, and at once.
        let (s, c) = scene.rogue_ends;
        assert_eq!(scene.rogue.state(s).2 & ENDED, ENDED);
        assert_eq!(scene.client.state(c).2 & ENDED, ENDED);
        // Its commands are not read.
        scene.rogue.poll();
        scene.rogue.raw().bind(79, Protocol::Tcp, Endpoint::new(0, 82), true);
        scene.rogue.raw().listen(79, Endpoint::new(0, 82), 16);
        scene.net.wait(Duration::from_secs(1));
        assert_eq!(scene.rogue.raw().events(), []);
        let refused = scene.client.connect(Endpoint::new(addr(1), 81));
        scene.net.wait(Duration::from_secs(1));
        assert_ne!(scene.client.state(refused).2 & REPLICA_CLOSED, 0, "nobody listens there any more");
        // Its neighbour notices nothing, and the next servers remember.
        for _ in 0..3 {
            assert!(scene.talks(scene.honest_ends, false));
            let now = scene.net.now;
            let apps = [&scene.honest, &scene.rogue];
            let adoption = scene.net.stack(0).restart(now, &apps, Recovery::Stateful);
            assert_eq!((adoption.kept, adoption.lost), (1, 0), "{adoption:?}");
            assert_eq!(
                scene.net.stack(0).transport.take_cut_off(),
                [id],
                "the supervisor may not have heard of it"
            );
        }
        // Nothing of the session is left when it is over.
        let now = scene.net.now;
        scene.net.stack(0).transport.close_session(now, id);
        scene.net.settle();
        assert_eq!(scene.net.stack(0).transport.take_ended(), [id]);
        let adoption = scene.net.stack(0).restart(now, &[&scene.honest], Recovery::Stateful);
        assert_eq!((adoption.kept, adoption.lost), (1, 0));
        assert_eq!(scene.net.stack(0).transport.take_cut_off(), []);
    }
}

/// A segment, a timer, the output or the record of a connection is charged to that connection, and neither to
/// its session nor to another connection. Its peer is reset.
#[test]
fn a_connection_is_given_up_for_deaths_at_work_of_its_own_and_its_peer_hears_so() {
    for kind in [Work::Segment, Work::Timer, Work::Output, Work::Adoption, Work::Offer] {
        let mut scene = scene();
        let place = scene.place(scene.rogue_ends);
        assert_eq!(scene.die_of(kind(place)), (0, 0));
        assert_eq!(scene.die_of(kind(place)), (1, 1));
        assert_eq!(scene.net.stack(0).transport.take_cut_off(), []);
        let (s, c) = scene.rogue_ends;
        assert_eq!(scene.rogue.state(s).2 & ENDED, ENDED);
        assert_eq!(scene.client.state(c).2 & ENDED, ENDED, "{:?}: the peer waits for a minute", kind(place));
        assert!(scene.talks(scene.honest_ends, false));
        // Its session continues.
        let again = scene.client.connect(Endpoint::new(addr(1), 81));
        scene.net.settle();
        let accepted = scene.rogue.accept().expect("offered");
        scene.net.settle();
        assert!(scene.talks((accepted, again), true));
        // A new connection has its place, and not its past.
        scene.rogue_ends = (accepted, again);
        assert_eq!(scene.place((accepted, again)), place);
        let now = scene.net.now;
        let apps = [&scene.honest, &scene.rogue];
        let adoption = scene.net.stack(0).restart(now, &apps, Recovery::Stateful);
        assert_eq!((adoption.kept, adoption.lost), (2, 0), "{adoption:?}");
        scene.net.settle();
        assert!(scene.talks((accepted, again), true));
    }
}

/// This holds whatever was under way: text that has arrived, or has not, and ends of the stream.
#[test]
fn the_peer_of_a_lost_connection_is_reset_wherever_it_stands() {
    for (lost_frames, with_end) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut scene = scene();
        let ((s, c), place) = (scene.rogue_ends, scene.place(scene.rogue_ends));
        scene.rogue.write(s, &[7; 5000]);
        scene.client.write(c, &[8; 3000]);
        if with_end {
            scene.rogue.shutdown(s);
        }
        let now = scene.net.now;
        scene.net.stack(0).round(now);
        if !lost_frames {
            // The text arrives, and its acknowledgement is lost.
            let frames = core::mem::take(&mut scene.net.stack(0).out.outside);
            for frame in frames {
                scene.net.stack(1).hear(now, &frame, atoll_ip::ChecksumOffload::Partial);
            }
            scene.net.stack(1).round(now);
            scene.net.stack(1).out.outside.clear();
        }
        scene.die_of(Work::Segment(place));
        // The server dies again before anything is sent.
        let apps = [&scene.honest, &scene.rogue];
        let adoption = scene.net.stack(0).die_of(now, &apps, Work::Segment(place));
        assert_eq!(adoption.quarantined, 1);
        scene.net.settle();
        let state = scene.client.state(c).2;
        assert_eq!(state & ENDED, ENDED, "frames lost: {lost_frames}, an end: {with_end}");
    }
}

/// The server died by kill(1), or without a known cause.
#[test]
fn deaths_by_others_and_deaths_at_nothing_are_put_down_to_nobody() {
    let mut scene = scene();
    let place = scene.place(scene.rogue_ends);
    for work in [Work::Commands(SessionId(9)), Work::Segment(place)] {
        for _ in 0..5 {
            scene.net.stack(0).transport.durability.mark(work);
            let now = scene.net.now;
            let apps = [&scene.honest, &scene.rogue];
            assert_eq!(scene.net.stack(0).restart(now, &apps, Recovery::Stateful).lost, 0);
            assert_eq!(scene.net.stack(0).transport.take_charge(), None);
        }
    }
    for work in [Work::Nothing, Work::Frame, Work::Mesh(1), Work::Commands(SessionId(1000))] {
        for _ in 0..3 {
            assert_eq!(scene.die_of(work), (0, 0));
        }
    }
    assert_eq!(scene.net.stack(0).transport.take_cut_off(), []);
    assert!(scene.talks(scene.rogue_ends, true) && scene.talks(scene.honest_ends, false));
}

#[test]
fn deaths_long_ago_are_forgotten() {
    let mut scene = scene();
    let work = Work::Commands(SessionId(9));
    for _ in 0..3 {
        assert_eq!(scene.die_of(work), (0, 0));
        scene.net.wait(Duration::from_secs(601));
    }
    assert_eq!(scene.die_of(work), (0, 0));
    assert_eq!(scene.die_of(work), (1, 0));
    scene.net.wait(Duration::from_secs(601));
    let now = scene.net.now;
    scene.net.stack(0).restart(now, &[&scene.honest, &scene.rogue], Recovery::Stateful);
    assert_eq!(scene.net.stack(0).transport.take_cut_off(), [SessionId(9)], "who is cut off stays so");
}

/// Another replica's servers have died of the session.
#[test]
fn a_session_may_be_cut_off_where_nobody_has_died() {
    let mut scene = scene();
    let now = scene.net.now;
    scene.net.stack(0).transport.cut_off(now, SessionId(9));
    scene.net.settle();
    let (s, c) = scene.rogue_ends;
    assert_eq!(scene.rogue.state(s).2 & ENDED, ENDED);
    assert_eq!(scene.client.state(c).2 & ENDED, ENDED);
    scene.rogue.raw().push(Command::AcceptConnection { lease: 78 });
    let refused = scene.client.connect(Endpoint::new(addr(1), 81));
    scene.net.wait(Duration::from_secs(1));
    assert_ne!(scene.client.state(refused).2 & REPLICA_CLOSED, 0);
    assert!(scene.talks(scene.honest_ends, false));
    let now = scene.net.now;
    scene.net.stack(0).transport.close_session(now, SessionId(9));
    scene.net.settle();
    assert_eq!(scene.net.stack(0).transport.take_ended(), [SessionId(9)]);
}

/// Nothing in the record can be trusted. The application is notified by its slot, and the peer as soon as it
/// sends something.
#[test]
fn both_ends_of_a_connection_whose_record_is_damaged_hear_of_it() {
    let mut scene = scene();
    let ((s, c), place) = (scene.rogue_ends, scene.place(scene.rogue_ends));
    scene.net.stack(0).spoil(place);
    let now = scene.net.now;
    let apps = [&scene.honest, &scene.rogue];
    let adoption = scene.net.stack(0).restart(now, &apps, Recovery::Stateful);
    assert_eq!((adoption.lost, adoption.why), (1, Some(Loss::Unreadable)));
    scene.net.settle();
    assert_eq!(scene.rogue.state(s).2 & ENDED, ENDED);
    scene.client.write(c, b"are you there?");
    scene.net.settle();
    assert_eq!(scene.client.state(c).2 & ENDED, ENDED);
    assert!(scene.talks(scene.honest_ends, false));
    // The slot is the application's until it closes it.
    assert!(!scene.rogue.is_done(s));
    scene.rogue.close(s);
    scene.net.settle();
    assert!(scene.rogue.is_done(s));
    assert!(scene.net.stack(0).stat(Stat::ResetsOut) > 0);
}
