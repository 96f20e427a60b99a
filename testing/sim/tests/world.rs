//! Whole stacks, libraries and processes that sleep: hundreds of seeds.
//!
//! `ATOLL_SEED=n` replays one seed; `ATOLL_SEEDS=n` changes how many are tried.

use atoll_base::{Duration, SessionId};
use atoll_ipc::balance::{Balance, Scheme};
use atoll_sim::{
    Appetite, Going, Hoard, IpPlan, ManagerPlan, Poison, ScaledBy, ScalingPlan, Story, Workforce, World,
    seeds,
};

#[test]
fn every_connection_is_accepted_served_and_closed() {
    run(200, false);
}

#[test]
fn others_are_served_beside_an_attacker() {
    run(100, true);
}

/// A program on each machine asks for too much of some resource. The work of other programs goes on in each
/// window of time.
#[test]
fn others_are_served_beside_greedy_programs() {
    for seed in seeds(60) {
        let greed = Some(Appetite::ALL[(seed % 6) as usize]);
        let story = Story { greed, memory_log2: 20, ..Story::random(seed) };
        end(seed, &Story { loss: 0, duplicate: 0, tear: 0, late: 0, ..story });
    }
}

/// Replicas die at any moment beside greedy programs, also while they clean up after one.
#[test]
fn others_are_served_beside_greedy_programs_while_replicas_die() {
    for seed in seeds(60) {
        let greed = Some(Appetite::ALL[(seed % 6) as usize]);
        let crashes = [2000, 20_000][(seed / 6 % 2) as usize];
        end(seed, &Story { greed, crashes, memory_log2: 20, ..Story::random(seed) });
    }
}

/// Memory is short, and a program reads nothing of many connections. Another program on the same machine and
/// replicas gets all its text back. None of its open connections is lost, and one that cannot be opened fails
/// with a reason and can be opened later. In each story some connections have to be shed.
#[test]
fn an_honest_program_goes_on_beside_one_that_does_not_read() {
    let mut refused = 0;
    for seed in seeds(12) {
        let hoard = Some(Hoard { connections: 60, memory: 512 << 10 });
        let story = Story { hoard, memory_log2: 22, length: 70_000, ..Story::random(seed) };
        let story = Story { loss: 0, duplicate: 0, tear: 0, late: 0, ..story };
        let mut world = World::new(&story);
        crash_of(seed, &story, &mut world);
        let seen = world.shortage();
        assert!(seen.shed > 0 && seen.lost > 0, "ATOLL_SEED={seed}: nobody had to go: {seen:?}");
        assert!(seen.most > 256 << 10, "ATOLL_SEED={seed}: memory was not short: {seen:?}");
        refused += seen.refused;
    }
    assert!(refused > 0, "nobody has heard ENOBUFS");
}

/// No session gets another's port, or datagrams sent to it, whatever it claims about its grants.
#[test]
fn forged_commands_get_nobody_another_ones_port_or_datagrams() {
    let (mut got, mut had) = (0, 0);
    for seed in seeds(40) {
        let story = Story { forged: true, memory_log2: 20, ..Story::random(seed) };
        let replicas = [1 + (seed % 4) as u8, 1 + (seed / 4 % 2) as u8];
        let story = Story { replicas, loss: 0, duplicate: 0, tear: 0, late: 0, links_apart: false, ..story };
        let mut world = World::new(&story);
        crash_of(seed, &story, &mut world);
        let (datagrams, grants) =
            world.mail().unwrap_or_else(|fault| panic!("ATOLL_SEED={seed}: {fault}\n{story:#?}"));
        (got, had) = (got + datagrams, had + grants);
        world.settle().unwrap_or_else(|report| panic!("ATOLL_SEED={seed}: {report}"));
    }
    println!("{got} datagrams have arrived; the forger had that port {had} times");
    assert!(got > 3000 && had > 50 || std::env::var_os("ATOLL_SEED").is_some(), "{got} {had}");
}

/// Runs a story, and then until no state is left.
fn end(seed: u64, story: &Story) {
    let mut world = World::new(story);
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        world.run()?;
        world.settle()
    }));
    match outcome {
        Ok(Ok(())) => {}
        Ok(Err(report)) => panic!("ATOLL_SEED={seed}: {report}\n{story:#?}"),
        Err(_) => panic!("ATOLL_SEED={seed}: see above\n{}\n{story:#?}", world.report()),
    }
}

/// Workers are slow, stop for a while, or die; messages between replicas are lost; the rules are any. Every
/// connection is claimed in the end.
#[test]
fn workers_that_are_slow_stop_or_die_lose_no_connection() {
    for seed in seeds(150) {
        let story = Story { workers: 2 + (seed % 4) as usize, attacked: false, ..Story::random(seed) };
        tell(seed, &Story { workforce: Workforce::random(seed, story.workers), ..story });
    }
}

/// Workers ask for each connection (P4's naive accept) while they are slow, stop or die. Every connection is
/// claimed in the end.
#[test]
fn workers_that_ask_lose_no_connection() {
    for seed in seeds(150) {
        let workers = 1 + (seed % 4) as usize;
        let story = Story { asks: true, workers, ..Story::random(seed) };
        tell(seed, &Story { workforce: Workforce::random(seed, story.workers), ..story });
    }
}

/// Processes of the server fork, execute another program, send each other connections, and end; every other
/// one uses poll(2). No octet is lost or changed, and nothing is left of anything.
#[test]
fn processes_that_hand_their_connections_over_lose_none() {
    let mut handed = [0; 4];
    for seed in seeds(80) {
        let hands_over = [20_000, 100_000, 400_000][(seed % 3) as usize];
        let polls = seed / 3 % 2 == 0;
        let story = Story { hands_over, polls, memory_log2: 20, ..Story::random(seed) };
        let mut world = World::new(&story);
        crash_of(seed, &story, &mut world);
        world.settle().unwrap_or_else(|report| panic!("ATOLL_SEED={seed}: {report}\n{story:#?}"));
        handed.iter_mut().zip(world.handed()).for_each(|(all, more)| *all += more);
    }
    println!("executed, forked, sent, ended: {handed:?}");
    let is_enough = handed.iter().all(|count| *count > 50);
    assert!(is_enough || std::env::var_os("ATOLL_SEED").is_some(), "{handed:?}");
}

/// The server's stack goes with all of its processes, and comes back under programs that fork, execute and
/// send each other connections. No program takes the loss of a connection for its end, and all are served by
/// the next stack, which may have another number of replicas.
#[test]
fn programs_serve_again_when_a_stack_that_went_is_back() {
    let mut losses = 0;
    for seed in seeds(60) {
        let goes = Going {
            after: Duration::from_micros(seed * 7919 % 30_000),
            away: [Duration::from_millis(1), Duration::from_secs(20)][(seed % 2) as usize],
            replicas: 1 + (seed % 3) as u8,
        };
        let hands_over = [0, 20_000, 100_000][(seed % 3) as usize];
        let story = Story { goes: Some(goes), hands_over, memory_log2: 20, ..Story::random(seed) };
        let story = Story { polls: seed / 3 % 2 == 0, links_apart: false, ..story };
        let mut world = World::new(&story);
        world.run().unwrap_or_else(|report| panic!("ATOLL_SEED={seed}: {report}\n{story:#?}"));
        losses += world.losses();
        world.settle().unwrap_or_else(|report| panic!("ATOLL_SEED={seed}: {report}\n{story:#?}"));
    }
    println!("{losses} connections lost");
    assert!(losses > 50 || std::env::var_os("ATOLL_SEED").is_some(), "{losses}");
}

/// Replicas die between any two of their stores, and successors take their places. No stream changes, and no
/// connection is lost.
#[test]
fn replicas_that_die_lose_no_connection() {
    let mut crashed = 0;
    for seed in seeds(200) {
        let crashes = [2000, 20_000, 200_000][(seed % 3) as usize];
        crashed += crash(seed, &Story { crashes, ..Story::random(seed) });
    }
    println!("{crashed} deaths");
    assert!(crashed > 100 || std::env::var_os("ATOLL_SEED").is_some(), "{crashed}");
}

/// Replicas die while programs rest now and then, so long that connections give their send buffers back.
#[test]
fn replicas_that_die_lose_no_connection_whose_buffers_were_given_back() {
    let mut crashed = 0;
    for seed in seeds(100) {
        let (crashes, rests) =
            ([20_000, 200_000][(seed % 2) as usize], [20_000, 200_000][(seed / 2 % 2) as usize]);
        crashed += crash(seed, &Story { crashes, rests, ..Story::random(seed) });
    }
    println!("{crashed} deaths");
    assert!(crashed > 100 || std::env::var_os("ATOLL_SEED").is_some(), "{crashed}");
}

/// Replicas die while no worker accepts: connections wait with their text, and many with their ends.
#[test]
fn replicas_that_die_lose_no_connection_that_waits() {
    let mut crashed = 0;
    for seed in seeds(100) {
        let crashes = [20_000, 100_000, 400_000][(seed % 3) as usize];
        let length = [1, 500, 3000, 70_000][(seed % 4) as usize];
        crashed +=
            crash(seed, &Story { crashes, workers: 1, length, workforce: waits(), ..Story::random(seed) });
    }
    println!("{crashed} deaths");
    assert!(crashed > 100 || std::env::var_os("ATOLL_SEED").is_some(), "{crashed}");
}

/// A program makes every replica die by a command. Its session is cut off when each has died twice, and no
/// other session loses anything.
#[test]
fn a_session_that_makes_replicas_die_is_cut_off_and_no_other_notices() {
    for seed in seeds(60) {
        let crashes = [0, 0, 20_000][(seed % 3) as usize];
        let story = Story { poison: Some(Poison::Command), crashes, ..Story::random(seed) };
        let mut world = World::new(&story);
        crash_of(seed, &story, &mut world);
        let (deaths, quarantined, lost, cut_off) = world.verdicts();
        let rogue = story.workers as u32 + 1;
        assert_eq!(
            (quarantined, lost, cut_off),
            (0, 0, vec![SessionId(rogue)]),
            "ATOLL_SEED={seed}: {story:#?}"
        );
        // The supervisor informs the others, once one replica knows.
        assert!(
            (2..=1 + u32::from(story.replicas[0])).contains(&deaths),
            "ATOLL_SEED={seed}: {deaths} deaths"
        );
    }
}

/// The segments of a client make the replica die that has its connection. The connection is given up, its
/// client gets a reset, and no other connection is lost, whether or not a worker had accepted it.
#[test]
fn a_connection_that_makes_replicas_die_is_given_up_and_no_other_notices() {
    for seed in seeds(60) {
        let crashes = [0, 0, 20_000][(seed % 3) as usize];
        let random = Story::random(seed);
        let length = random.length.max(500);
        let waits = if seed % 4 == 3 { waits() } else { Workforce::default() };
        let workers = if seed % 4 == 3 { 1 } else { random.workers };
        let story =
            Story { poison: Some(Poison::Segment), crashes, length, workers, workforce: waits, ..random };
        let mut world = World::new(&story);
        crash_of(seed, &story, &mut world);
        let (deaths, quarantined, lost, cut_off) = world.verdicts();
        assert_eq!(
            (quarantined, lost, cut_off),
            (1, 1, vec![]),
            "ATOLL_SEED={seed}: {deaths} deaths, {story:#?}"
        );
    }
}

/// Replicas leave their processes at any moment, one after another or at once, and continue in others.
/// Whatever is addressed to them waits meanwhile.
#[test]
fn replicas_that_move_lose_no_connection() {
    let (mut moved, mut crashed) = (0, 0);
    for seed in seeds(40) {
        let (moves, deaths, _) = scale(seed, &Story { scaling: Some(by_a_person(seed, 0)), ..moving(seed) });
        (moved, crashed) = (moved + moves, crashed + deaths);
    }
    println!("{moved} moves");
    assert_eq!(crashed, 0);
    assert!(moved > 500 || std::env::var_os("ATOLL_SEED").is_some(), "{moved}");
}

/// Replicas move while processes die with all the replicas in them, at any moment and during moves.
#[test]
fn replicas_that_move_and_die_lose_no_connection() {
    let (mut moved, mut crashed) = (0, 0);
    for seed in seeds(40) {
        let (crashes, deaths) =
            ([0, 2000, 20_000][(seed % 3) as usize], [50_000, 300_000, 600_000][(seed / 3 % 3) as usize]);
        let story = Story { crashes, scaling: Some(by_a_person(seed, deaths)), ..moving(seed) };
        let (moves, deaths, _) = scale(seed, &story);
        (moved, crashed) = (moved + moves, crashed + deaths);
    }
    println!("{moved} moves, {crashed} deaths");
    assert!(moved > 200 && crashed > 1000 || std::env::var_os("ATOLL_SEED").is_some(), "{moved} {crashed}");
}

/// Replicas move and die while no worker accepts: connections wait with their text, and many with their ends.
#[test]
fn replicas_that_move_and_die_lose_no_connection_that_waits() {
    for seed in seeds(30) {
        let deaths = [0, 300_000][(seed % 2) as usize];
        let length = [1, 500, 3000, 70_000][(seed % 4) as usize];
        let scaling = Some(by_a_person(seed, deaths));
        scale(seed, &Story { scaling, workers: 1, length, workforce: waits(), ..moving(seed) });
    }
}

/// IP is in other processes, which also end and start again. Whatever is addressed to a replica on its way
/// waits with them.
#[test]
fn replicas_that_move_lose_no_connection_where_ip_is_apart() {
    check(move_apart(14, |seed, story| Story { ip: Some(ip_apart(seed)), ..story }));
}

/// Connection managers are in other processes, or in those of other replicas, while replicas move.
#[test]
fn replicas_that_move_lose_no_connection_where_connection_managers_are_apart() {
    check(move_apart(14, |seed, story| Story { managers: Some(managers_apart(seed)), ..story }));
}

/// Both IP and connection managers are in other processes, while replicas move.
#[test]
fn replicas_that_move_lose_no_connection_where_only_transport_servers_are_in_them() {
    check(move_apart(14, |seed, story| Story {
        ip: Some(ip_apart(seed / 2)),
        managers: Some(managers_apart(seed / 3)),
        ..story
    }));
}

/// Programs die while replicas are on their way, which learn of it when they are there again. No socket of
/// theirs is left, and no arena.
#[test]
fn replicas_that_move_hear_of_programs_that_have_died() {
    let counts = move_apart(16, |seed, story| {
        let workers = 2 + (seed % 3) as usize;
        let stops = Some(((seed % 2) as usize, Duration::from_micros(seed * 7919 % 40_000)));
        let stands = (Duration::from_micros(seed * 104_729 % 3000), true);
        let outlived = Duration::from_millis([0, 5, 200][(seed / 4 % 3) as usize]);
        Story {
            ip: Some(ip_apart(seed)).filter(|_| seed & 1 != 0),
            managers: Some(managers_apart(seed)).filter(|_| seed & 2 != 0),
            workers,
            workforce: Workforce { stops, stands, outlived, ..Workforce::random(seed, workers) },
            ..story
        }
    });
    check(counts);
    assert!(counts.told > 20 || std::env::var_os("ATOLL_SEED").is_some(), "{counts:?}");
}

/// Moves and deaths happen at once with everything else that a story may have: workers that are slow, stop or
/// ask, and replicas that do not receive each other's messages.
#[test]
fn replicas_that_move_lose_no_connection_whatever_else_happens() {
    move_apart(16, anything);
}

/// A lost fragment leaves others waiting for half a minute, and meanwhile the identifications of IPv4 wrap
/// around several times. What is assembled from fragments of two packets must not be delivered. (The
/// simulated network gave IPv6 as few identifications, and no part of it compared checksums.)
#[test]
fn fragments_of_two_packets_are_no_packet() {
    let seed = 107;
    scale(seed, &anything(seed, moving_and_dying(seed)));
}

/// The supervisor's own state machine decides the number of processes by the load of the replicas: from one
/// to as many as help, and back to one at the end.
#[test]
fn processes_follow_the_load_and_lose_no_connection() {
    for seed in seeds(4) {
        let deaths = [0, 200_000][(seed % 2) as usize];
        let by = ScaledBy::Load(Duration::from_micros(40));
        let scaling = Some(ScalingPlan { start: 1, by, at_once: false, deaths });
        let story = Story {
            replicas: [4, 1 + (seed % 4) as u8],
            workers: 2,
            connections: 400,
            length: 20_000,
            at_once: Some(24),
            loss: 0,
            tear: 0,
            late: 0,
            rests: 0,
            memory_log2: 22,
            scaling,
            ..Story::random(seed)
        };
        let mut world = World::new(&story);
        let outcome = world.run().and_then(|_| world.settle());
        assert_eq!(outcome, Ok(()), "ATOLL_SEED={seed}: {story:#?}");
        let numbers = world.processes();
        println!("ATOLL_SEED={seed}: {numbers:?}, {} moves, {} deaths", world.moves(), world.crashed());
        // A look takes half a millisecond, and a story seconds: there is time for many more.
        assert!(
            numbers.iter().any(|number| *number > 1) && numbers.last() == Some(&1),
            "ATOLL_SEED={seed}: {numbers:?}"
        );
        assert!(numbers.len() <= 16, "ATOLL_SEED={seed}: {numbers:?}");
    }
}

/// Returns a story whose server mostly has four replicas.
fn moving(seed: u64) -> Story {
    let story = Story::random(seed);
    let replicas = if seed % 4 == 3 { story.replicas } else { [4, 1 + (seed % 4) as u8] };
    // A program has slots for 64 with each replica.
    Story { replicas, connections: (story.connections * 3).min(60), ..story }
}

/// Returns a story as of [`moving`] in which processes mostly die.
fn moving_and_dying(seed: u64) -> Story {
    let (crashes, deaths) =
        ([0, 0, 2000, 20_000][(seed % 4) as usize], [0, 100_000, 600_000][(seed / 4 % 3) as usize]);
    Story { crashes, scaling: Some(by_a_person(seed / 2, deaths)), ..moving(seed) }
}

fn by_a_person(seed: u64, deaths: u32) -> ScalingPlan {
    let every = Duration::from_micros([300, 2000, 20_000][(seed / 2 % 3) as usize]);
    ScalingPlan {
        start: 1 + (seed % 4) as u8,
        by: ScaledBy::Person(every),
        at_once: seed.is_multiple_of(2),
        deaths,
    }
}

/// Adds everything else that a story may have.
fn anything(seed: u64, story: Story) -> Story {
    let any = Story::random(seed ^ 0x0061_6e79);
    let workers = 1 + (seed % 5) as usize;
    let workforce = if seed % 6 == 5 { waits() } else { Workforce::random(seed / 2, workers) };
    Story {
        ip: Some(ip_apart(any.seed)).filter(|_| any.links_apart || seed.is_multiple_of(3)),
        managers: Some(managers_apart(any.seed)).filter(|_| seed % 5 < 3),
        // Applications that ask need a connection manager in each replica.
        asks: seed % 5 == 3,
        // Replicas die where they are, too.
        scaling: story.scaling.filter(|_| seed % 7 != 6),
        workers: if seed % 6 == 5 { 1 } else { workers },
        workforce,
        ..story
    }
}

/// Returns workers of which none accepts for a while.
fn waits() -> Workforce {
    let stands = (Duration::from_millis(300), false);
    Workforce { stops: Some((0, Duration::ZERO)), stands, ..Workforce::default() }
}

/// Returns IP servers, most of which end now and then.
fn ip_apart(seed: u64) -> IpPlan {
    let every = [None, Some(5), Some(40), Some(300)][(seed / 3 % 4) as usize];
    IpPlan { count: 1 + (seed % 3) as u8, ends_every: every.map(Duration::from_millis) }
}

/// Returns connection managers, most of which end now and then, with their replicas or in processes of their
/// own.
fn managers_apart(seed: u64) -> ManagerPlan {
    ManagerPlan { count: 1 + (seed % 3) as u8, apart: seed % 5 > 1, die: seed % 7 > 2 }
}

/// The totals of several stories.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    moves: u32,
    deaths: u32,
    /// How often a successor learned that a program had died.
    told: u32,
}

/// Runs stories with `change`, in which replicas move and mostly die, too. Returns the totals.
fn move_apart(usual: u64, change: impl Fn(u64, Story) -> Story) -> Counts {
    let mut counts = Counts::default();
    for seed in seeds(usual) {
        let (moves, deaths, told) = scale(seed, &change(seed, moving_and_dying(seed)));
        counts =
            Counts { moves: counts.moves + moves, deaths: counts.deaths + deaths, told: counts.told + told };
    }
    counts
}

fn check(counts: Counts) {
    println!("{counts:?}");
    assert!(
        counts.moves > 50 && counts.deaths > 200 || std::env::var_os("ATOLL_SEED").is_some(),
        "{counts:?}"
    );
}

/// Runs a story with moves, until all is over and free. Returns the numbers of moves, of deaths, and of
/// programs' deaths that successors learned of.
fn scale(seed: u64, story: &Story) -> (u32, u32, u32) {
    let mut world = World::new(story);
    let outcome =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.run().and_then(|_| world.settle())));
    match outcome {
        Ok(Ok(())) => (world.moves(), world.crashed(), world.told()),
        Ok(Err(report)) => panic!("ATOLL_SEED={seed}: {report}\n{story:#?}"),
        Err(_) => panic!("ATOLL_SEED={seed}: see above\n{}\n{story:#?}", world.report()),
    }
}

/// Runs a story with deaths. Returns how many there were.
fn crash(seed: u64, story: &Story) -> u32 {
    let mut world = World::new(story);
    crash_of(seed, story, &mut world);
    world.crashed()
}

fn crash_of(seed: u64, story: &Story, world: &mut World) {
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.run()));
    match outcome {
        Ok(Ok(_)) => {}
        Ok(Err(report)) => panic!("ATOLL_SEED={seed}: {report}\n{story:#?}"),
        Err(_) => panic!("ATOLL_SEED={seed}: see above\n{}\n{story:#?}", world.report()),
    }
}

/// Sessions are numbered from 1, so with two replicas the odd ones are at home at replica 1.
#[test]
fn shares_follow_service_times() {
    for seed in seeds(5) {
        let rules = Balance { scheme: Scheme::Tournament, ..Balance::new() };
        let workforce = Workforce { rules, services: vec![20_000, 2000, 2000, 2000], ..Workforce::default() };
        let story = Story {
            replicas: [2, 2],
            workers: 4,
            connections: 600,
            length: 1,
            loss: 0,
            duplicate: 0,
            tear: 0,
            late: 0,
            rests: 0,
            memory_log2: 20,
            v6: false,
            workforce,
            ..Story::random(seed)
        };
        let mut world = World::new(&Story { at_once: Some(16), ..story.clone() });
        world.run().unwrap_or_else(|report| panic!("ATOLL_SEED={seed}: {report}"));
        let served = world.served();
        assert_eq!(served.iter().sum::<u64>(), 600);
        let others = served[1..].iter().sum::<u64>() / 3;
        assert!(served[0] * 4 < others, "ATOLL_SEED={seed}: {served:?}");
        assert!(served[0] > 5, "ATOLL_SEED={seed}: it is tried again: {served:?}");
        // Without regard to its slowness, it gets as much as its neighbour.
        let naive = Balance { scheme: Scheme::Naive, ..rules };
        let workforce = Workforce { rules: naive, ..story.workforce.clone() };
        let mut world = World::new(&Story { at_once: Some(16), workforce, ..story });
        world.run().unwrap_or_else(|report| panic!("ATOLL_SEED={seed}: {report}"));
        let served = world.served();
        assert!(served[0].abs_diff(served[2]) <= 60, "ATOLL_SEED={seed}: {served:?}");
    }
}

#[test]
fn a_link_server_apart_loses_nothing() {
    for seed in seeds(30) {
        // Large texts over many connections: its rings are full most of the time.
        let story = Story { links_apart: true, length: 300_000, loss: 0, ..Story::random(seed) };
        tell(seed, &story);
    }
}

/// Connection managers are in other numbers and places than replicas: their messages are late, and cross with
/// the ends of connections.
#[test]
fn connection_managers_apart_lose_no_connection() {
    for seed in seeds(150) {
        let managers =
            Some(ManagerPlan { count: 1 + (seed % 2) as u8, apart: seed % 3 != 0, die: seed % 5 < 2 });
        let workers = 2 + (seed % 4) as usize;
        let story = Story {
            managers,
            replicas: [1 + (seed % 4) as u8, 2],
            workers,
            connections: 40,
            // Other tests have connections that last, or that do not find their neighbour.
            length: [1, 500, 5000][(seed % 3) as usize],
            v6: false,
            workforce: Workforce::random(seed, workers),
            ..Story::random(seed)
        };
        tell(seed, &story);
    }
}

/// IP is in other numbers and places than replicas, in any story.
#[test]
fn ip_servers_apart_lose_no_connection() {
    for seed in seeds(100) {
        let ip = Some(IpPlan { count: 1 + (seed % 3) as u8, ends_every: None });
        tell(seed, &Story { ip, attacked: seed % 5 == 4, ..Story::random(seed) });
    }
}

/// IP recovers transparently (N6): whichever server ends, connections continue with its successor.
#[test]
fn ip_servers_that_end_again_and_again_lose_no_connection() {
    for seed in seeds(60) {
        let every = [5, 40, 300][(seed % 3) as usize];
        let ip = Some(IpPlan { count: 1 + (seed % 2) as u8, ends_every: Some(Duration::from_millis(every)) });
        tell(seed, &Story { ip, ..Story::random(seed) });
    }
}

fn run(usual: u64, attacked: bool) {
    for seed in seeds(usual) {
        tell(seed, &Story { attacked, ..Story::random(seed) });
    }
}

fn tell(seed: u64, story: &Story) {
    let replay = format!("ATOLL_SEED={seed}");
    match std::panic::catch_unwind(|| World::new(story).run()) {
        Ok(Ok(_)) => {}
        Ok(Err(report)) => panic!("{replay}: {report}\n{story:#?}"),
        Err(_) => panic!("{replay}: a panic, see above\n{story:#?}"),
    }
}
