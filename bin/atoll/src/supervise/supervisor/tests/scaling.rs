use super::*;

/// Returns the number of a process for replicas, and the replicas that it was given since the last call.
pub(super) fn given(bench: &Bench, at: usize) -> (usize, Vec<u8>) {
    let launches = bench.launches.borrow();
    let (number, channel) = &launches.hosts[at];
    (*number, std::iter::from_fn(|| receive(channel)).map(|(packet, _)| packet[0]).collect())
}

/// Lets a replica hand over, as it was asked to, and continue in another process.
pub(super) fn move_on(bench: &mut Bench, replica: usize, epoch: u32) {
    let told = bench.told(replica);
    assert!(matches!(told.last(), Some(Request::HandOver { .. })), "replica {replica}: {told:?}");
    bench.replicas[replica].send(setup::LEFT, &[]).unwrap();
    bench.settle();
    bench.replicas[replica] = bench.comes_back(replica, epoch);
    let told = bench.told(replica);
    assert!(told.contains(&Request::Adopt { blamed: false }), "{told:?}");
    bench.settle();
}

fn is_hand_over(request: &Request) -> bool {
    matches!(request, Request::HandOver { .. })
}

pub(super) fn ask_to_scale(bench: &mut Bench, processes: &str) -> Channel {
    let client = bench.administrator();
    client.send(format!(r#"{{"cmd":"scale","processes":{processes}}}"#).as_bytes(), &[]).unwrap();
    bench.settle();
    client
}

pub(super) fn answers(client: &Channel) -> Vec<ReportPart> {
    std::iter::from_fn(|| receive(client))
        .map(|(packet, _)| serde_json::from_slice(&packet).unwrap())
        .collect()
}

pub(super) fn hosts(bench: &Bench) -> Vec<usize> {
    (0..bench.server.servers.replica_count()).map(|index| bench.server.process_of(index)).collect()
}

pub(super) fn scaled(processes: u8, max: u8) -> Vec<ReportPart> {
    let report = ScalingReport { processes, wanted: processes, auto: false, min: 1, max };
    vec![ReportPart::Scaling(report), ReportPart::Done(true)]
}

#[test]
fn replicas_begin_in_as_many_processes_as_the_configuration_says() {
    let bench = Bench::with(4, "[scaling]\nstart = 2");
    assert_eq!((given(&bench, 0), given(&bench, 1)), ((0, vec![0, 2]), (1, vec![1, 3])));
    assert_eq!(bench.launches.borrow().hosts.len(), 2);
    let bench = Bench::new(2);
    assert_eq!((given(&bench, 0), given(&bench, 1)), ((0, vec![0]), (1, vec![1])));
}

#[test]
fn replicas_move_one_after_another_and_hear_of_what_happens_meanwhile() {
    let mut bench = Bench::with(3, "[scaling]\nstart = 1");
    let (_client, ..) = bench.attach();
    (0..3).for_each(|replica| drop(bench.told(replica)));
    let asks = ask_to_scale(&mut bench, "3");
    assert_eq!(bench.told(2), [], "one at a time");
    // A program comes, and one goes, while the first replica is leaving, which does not read that any more.
    let (gone, ..) = bench.attach();
    drop(gone);
    bench.settle();
    let told = bench.told(1);
    assert!(matches!(told[..], [Request::HandOver { .. }, ..]));
    bench.replicas[1].send(setup::LEFT, &[]).unwrap();
    bench.settle();
    assert_eq!(hosts(&bench), [0, 1, 0]);
    bench.replicas[1] = bench.comes_back(1, 2);
    let pid = std::process::id();
    let (user, config) = (bench.server.gate.counting_for(None), bench.server.config.sessions.arena);
    let opened = |session| Request::SessionOpened { session, pid, config, user };
    let rules = bench.server.config.accept.rules();
    assert_eq!(
        bench.told(1),
        [
            opened(1),
            opened(2),
            Request::Balance { rules },
            Request::Adopt { blamed: false },
            Request::SessionGone { session: 2 }
        ]
    );
    bench.settle();
    assert_eq!(
        bench.told(0)[2..],
        [Request::ServerGone { server: 1 }, Request::ServerRestarted { server: 1, epoch: 2 }],
        "the others know of its new life"
    );
    assert_eq!(answers(&asks), [], "not yet");
    move_on(&mut bench, 2, 2);
    assert_eq!((hosts(&bench), answers(&asks)), (vec![0, 1, 2], scaled(3, 3)));
    let life = |index: usize| bench.server.servers.replicas()[index].record().life().report();
    assert_eq!((life(0).moves, life(1).moves, life(1).crashes, life(1).last), (0, 1, 0, None));
    // Back to one process: processes that are left without replicas end.
    let asks = ask_to_scale(&mut bench, "1");
    move_on(&mut bench, 1, 3);
    move_on(&mut bench, 2, 3);
    assert_eq!((hosts(&bench), answers(&asks)), (vec![0; 3], scaled(1, 3)));
    for (number, channel) in &bench.launches.borrow().hosts[1..] {
        let ends = channel.receive(&mut [0; 8], &mut Vec::new()).is_ok_and(|len| len > 0)
            && matches!(channel.receive(&mut [0; 8], &mut Vec::new()), Ok(0));
        assert!(ends, "process {number} was given a replica, and then nothing more");
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let mut bench = Bench::new(2);
    for wanted in ["0", "3", "255"] {
        let client = ask_to_scale(&mut bench, wanted);
        let answers = answers(&client);
        assert!(
            matches!(
                &answers[..],
                [ReportPart::Error(reason)] if reason.contains("2 replicas can be in 1 to 2 processes")
            ),
            "{answers:?}"
        );
    }
    let client = ask_to_scale(&mut bench, "2");
    assert_eq!(answers(&client), scaled(2, 2), "it is so already");
}

#[test]
fn who_asks_for_something_else_is_obeyed_and_the_first_one_told() {
    let mut bench = Bench::with(4, "[scaling]\nstart = 1");
    let first = ask_to_scale(&mut bench, "4");
    let second = ask_to_scale(&mut bench, "2");
    assert!(matches!(
        &answers(&first)[..],
        [ReportPart::Error(reason)] if reason.contains("2 processes were asked for")
    ));
    // The first replica is under way to where it is still to be.
    move_on(&mut bench, 1, 2);
    move_on(&mut bench, 3, 2);
    assert_eq!((hosts(&bench), answers(&second)), (vec![0, 1, 0, 1], scaled(2, 4)));
}

#[test]
fn all_replicas_of_a_process_that_dies_come_back_together() {
    let mut bench = Bench::with(4, "[scaling]\nstart = 2");
    given(&bench, 0);
    bench.launches.borrow_mut().hosts.remove(0);
    bench.settle();
    assert_eq!(given(&bench, 1), (0, vec![0, 2]), "in one process");
    bench.replicas[2] = bench.comes_back(2, 2);
    bench.replicas[0] = bench.comes_back(0, 2);
    bench.settle();
    assert!(bench.server.all_ready());
    let crashes: Vec<u64> =
        bench.server.servers.replicas().iter().map(|replica| replica.record().life().crashes).collect();
    assert_eq!(crashes, [1, 0, 1, 0]);
}

#[test]
fn who_dies_on_the_way_recovers_where_he_was_to_go() {
    let mut bench = Bench::with(2, "[scaling]\nstart = 1");
    let asks = ask_to_scale(&mut bench, "2");
    assert!(bench.told(1).iter().any(is_hand_over));
    // Both replicas die instead.
    bench.launches.borrow_mut().hosts.remove(0);
    bench.settle();
    assert_eq!(hosts(&bench), [0, 1]);
    bench.replicas[1] = bench.comes_back(1, 2);
    bench.replicas[0] = bench.comes_back(0, 2);
    bench.settle();
    assert_eq!(answers(&asks), scaled(2, 2));
    // The replica dies in the process to which it has moved, and takes the other replica along.
    let asks = ask_to_scale(&mut bench, "1");
    bench.told(1);
    bench.replicas[1].send(setup::LEFT, &[]).unwrap();
    bench.settle();
    let (_, epoch, dies) = bench.launches.borrow_mut().started.pop().unwrap();
    assert_eq!((epoch, hosts(&bench)), (3, vec![0, 0]));
    drop(dies);
    // Both have died not long ago, so their restart is delayed.
    while bench.launches.borrow().started.len() < 2 {
        bench.server.turn(None).unwrap();
    }
    bench.replicas[1] = bench.comes_back(1, 4);
    bench.replicas[0] = bench.comes_back(0, 3);
    bench.settle();
    assert_eq!(answers(&asks), scaled(1, 2));
    let life = bench.server.servers.replicas()[1].record().life().report();
    assert_eq!((life.crashes, life.moves), (2, 0));
}

#[test]
fn processes_that_cannot_be_had_leave_everything_as_it_was() {
    let mut bench = Bench::with(2, "[scaling]\nstart = 1");
    bench.launches.borrow_mut().failing = 3;
    let asks = ask_to_scale(&mut bench, "2");
    let deadline = clock::now() + Duration::from_secs(10);
    let answer = loop {
        bench.server.turn(Some(20)).unwrap();
        if let Some((packet, _)) = receive(&asks) {
            break serde_json::from_slice::<ReportPart>(&packet).unwrap();
        }
        assert!(clock::now() < deadline, "it is given up");
    };
    assert!(
        matches!(
            &answer,
            ReportPart::Error(reason) if reason.contains("it stays with 1 processes: no process today")
        ),
        "{answer:?}"
    );
    assert!(bench.server.all_ready() && !bench.told(1).iter().any(is_hand_over));
    // A client that asks again gets an answer at once.
    let asks = ask_to_scale(&mut bench, "2");
    move_on(&mut bench, 1, 2);
    assert_eq!(answers(&asks), scaled(2, 2));
}

#[test]
fn a_process_that_is_not_up_is_given_nobody() {
    let mut bench = Bench::with(2, "[scaling]\nstart = 1");
    bench.launches.borrow_mut().are_dumb = true;
    let asks = ask_to_scale(&mut bench, "2");
    assert_eq!((bench.told(1).iter().any(is_hand_over), answers(&asks).len()), (false, 0));
    bench.launches.borrow().hosts[1].1.send(setup::UP, &[]).unwrap();
    bench.settle();
    move_on(&mut bench, 1, 2);
    assert_eq!(answers(&asks), scaled(2, 2));
}

#[test]
fn a_replica_says_that_it_has_left_only_when_it_was_asked() {
    let mut bench = Bench::new(1);
    bench.replicas[0].send(setup::LEFT, &[]).unwrap();
    bench.settle();
    assert_eq!(bench.server.servers.replicas()[0].record().life().crashes, 1);
}

#[test]
fn a_stack_may_be_left_to_itself() {
    let mut bench = Bench::with(4, "[scaling]\nauto = true\nmax = 2");
    assert_eq!(hosts(&bench), [0; 4], "the fewest");
    let report = bench.server.scaling_report();
    assert_eq!(report, ScalingReport { processes: 1, wanted: 1, auto: true, min: 1, max: 2 });
    // A number given by a client holds until a client gives it up.
    let asks = ask_to_scale(&mut bench, "1");
    assert_eq!(answers(&asks)[1], ReportPart::Done(true));
    assert!(!bench.server.scaling_report().auto);
    let asks = ask_to_scale(&mut bench, "null");
    assert_eq!(answers(&asks)[1], ReportPart::Done(true));
    assert!(bench.server.scaling_report().auto);
}

fn ask_to_move(bench: &mut Bench, replicas: &str, to: u8) -> Channel {
    let client = bench.administrator();
    client.send(format!(r#"{{"cmd":"move","replicas":{replicas},"to":{to}}}"#).as_bytes(), &[]).unwrap();
    bench.settle();
    client
}

#[test]
fn replicas_move_where_they_are_wanted() {
    let mut bench = Bench::new(4);
    let asks = ask_to_move(&mut bench, "[1,3]", 0);
    move_on(&mut bench, 1, 2);
    move_on(&mut bench, 3, 2);
    assert_eq!((hosts(&bench), answers(&asks)), (vec![0, 0, 2, 0], scaled(2, 4)));
    // One replica is in the process already, and one moves to a process that does not exist yet.
    let asks = ask_to_move(&mut bench, "[0]", 0);
    assert_eq!(answers(&asks), scaled(2, 4));
    let asks = ask_to_move(&mut bench, "[3,3]", 1);
    move_on(&mut bench, 3, 3);
    assert_eq!((hosts(&bench), answers(&asks)), (vec![0, 0, 2, 1], scaled(3, 4)));
    // A replica that dies comes back where it was.
    bench.launches.borrow_mut().hosts.retain(|(number, _)| *number != 0);
    bench.settle();
    assert_eq!(hosts(&bench), [0, 0, 2, 1]);
    for (what, to, reason) in [
        ("[4]", 0, "there is no replica 4: this stack has 0 to 3"),
        ("[0,255]", 0, "there is no replica 255"),
        ("[1]", 4, "there is no process 4: those for replicas are numbered 0 to 3"),
    ] {
        let answer = answers(&ask_to_move(&mut bench, what, to));
        assert!(matches!(&answer[..], [ReportPart::Error(said)] if said.contains(reason)), "{answer:?}");
    }
    assert_eq!(hosts(&bench), [0, 0, 2, 1]);
}

#[test]
fn an_upgrade_takes_replicas_that_share_a_process_to_one_of_the_new_build() {
    let mut bench = Bench::with(2, "[scaling]\nstart = 1");
    let client = begin_exchange(&mut bench);
    // No replica moves meanwhile.
    let asks = ask_to_scale(&mut bench, "2");
    assert!(
        matches!(&answers(&asks)[..], [ReportPart::Error(said)] if said.contains("an upgrade is under way"))
    );
    move_on(&mut bench, 0, 2);
    assert_eq!(hosts(&bench), [0, 0], "the same number, but not the same process");
    assert_eq!(bench.launches.borrow().hosts.len(), 2);
    let builds = |bench: &Bench| bench.launches.borrow().builds.clone();
    assert_eq!(builds(&bench), [env!("CARGO_PKG_VERSION"), "next"]);
    while bench.told(1).iter().all(|request| !is_hand_over(request)) {
        bench.server.turn(None).unwrap();
    }
    bench.replicas[1].send(setup::LEFT, &[]).unwrap();
    bench.settle();
    bench.replicas[1] = bench.comes_back(1, 2);
    bench.settle();
    assert_eq!((builds(&bench).len(), given(&bench, 1).1), (2, vec![0, 1]), "in the one that is there");
    // A process of the old build would have ended. One of the new build dies, and takes both replicas along;
    // the old build comes back.
    bench.launches.borrow_mut().hosts.clear();
    bench.settle();
    assert_eq!((builds(&bench)[2..].to_vec(), given(&bench, 0).1), (vec![own_version()], vec![0, 1]));
    bench.replicas[1] = bench.comes_back(1, 3);
    bench.replicas[0] = bench.comes_back(0, 3);
    bench.settle();
    let said: String = std::iter::from_fn(|| receive(&client))
        .map(|(packet, _)| String::from_utf8(packet).unwrap())
        .collect();
    assert!(said.contains("the old build is back"), "{said}");
    assert!(bench.server.succession.is_none() && bench.server.all_ready());
    // Replicas may move again.
    let asks = ask_to_scale(&mut bench, "2");
    move_on(&mut bench, 1, 4);
    assert_eq!(answers(&asks), scaled(2, 2));
}

fn own_version() -> String {
    env!("CARGO_PKG_VERSION").into()
}

#[test]
fn another_supervisor_knows_which_replicas_are_where_and_which_are_on_their_way() {
    let mut bench = Bench::with(4, "[scaling]\nstart = 2");
    let (guardian, theirs) = Channel::pair(Blocking::No).unwrap();
    bench.server.leave_to(kept_by(theirs));
    let asks = ask_to_move(&mut bench, "[1,2]", 3);
    // Replica 1 was asked to leave, and has left, but there is no supervisor to receive its message.
    assert!(bench.told(1).iter().any(is_hand_over));
    bench.replicas[1].send(setup::LEFT, &[]).unwrap();
    let notes = notes_of(&guardian);
    let Bench { server, launches, .. } = &mut bench;
    let (mut config, identity) = (server.config.clone(), server.identity.clone());
    let found = Found::read(notes, &mut config).unwrap();
    let (guardian, theirs) = Channel::pair(Blocking::No).unwrap();
    let launcher = Box::new(FakeLauncher(launches.clone()));
    let mut next = found.resume(config, identity, launcher, None, kept_by(theirs)).unwrap();
    std::mem::swap(server, &mut next);
    drop(next);
    bench.settle();
    bench.replicas[1] = bench.comes_back(1, 2);
    bench.settle();
    assert!(bench.told(2).iter().any(is_hand_over), "it goes on with what was asked for");
    bench.replicas[2].send(setup::LEFT, &[]).unwrap();
    bench.settle();
    bench.replicas[2] = bench.comes_back(2, 2);
    bench.settle();
    assert_eq!(hosts(&bench), [0, 3, 3, 1]);
    assert_eq!(answers(&asks), scaled(3, 4), "whoever has asked is told");
    let report = StatusReport::assemble(bench.server.report()).unwrap();
    assert_eq!(
        report.replicas.iter().map(|replica| replica.recovery.moves).collect::<Vec<_>>(),
        [0, 1, 1, 0]
    );
    assert_eq!(report.replicas.iter().map(|replica| replica.recovery.crashes).collect::<Vec<_>>(), [0; 4]);
    // Replicas that share a process die together under this supervisor, too.
    bench.launches.borrow_mut().hosts.retain(|(number, _)| *number != 3);
    bench.settle();
    bench.replicas[2] = bench.comes_back(2, 3);
    bench.replicas[1] = bench.comes_back(1, 3);
    bench.settle();
    assert!(bench.server.all_ready() && hosts(&bench) == [0, 3, 3, 1]);
    let names: Vec<String> =
        notes_of(&guardian).into_keys().filter(|name| name.starts_with("host.")).collect();
    assert_eq!(names.len(), 3, "{names:?}");
}
