use super::*;
use crate::ConfigFile;

const MS: Duration = Duration::from_millis(1);
const BEGIN: Instant = Instant::from_millis(100_000);

/// Four replicas, in as many processes as `scaling` says, which do what the placement asks.
struct Bench {
    placement: Placement,
    now: Instant,
    stands: Vec<Stand>,
    /// Processes that can be given replicas, and those that were started.
    up: Vec<usize>,
    starting: Vec<usize>,
}

impl Bench {
    fn new(scaling: &str) -> Bench {
        let text = format!("replicas = 4\n[link]\ntype = \"none\"\n[scaling]\n{scaling}");
        let config = ConfigFile::parse(&text).unwrap().validate().unwrap();
        let placement = Placement::new(&config, BEGIN);
        let stand = |place: &u8| Stand {
            process: Some(usize::from(*place)),
            serves: true,
            is_leaving: false,
            target: Target::Absent,
        };
        let stands = placement.places().iter().map(stand).collect();
        let up = placement.places().iter().map(|place| usize::from(*place)).collect();
        Bench { placement, now: BEGIN, stands, up, starting: Vec::new() }
    }

    fn poll(&mut self) -> Option<PlacementStep> {
        self.poll_in(false)
    }

    fn poll_in(&mut self, is_fixed: bool) -> Option<PlacementStep> {
        let places: Vec<usize> = self.placement.places().iter().map(|place| usize::from(*place)).collect();
        let (stands, up, starting) = (&self.stands, &self.up, &self.starting);
        let target = |place| match (up.contains(&place), starting.contains(&place)) {
            (true, _) => Target::Up,
            (false, true) => Target::Starting,
            (false, false) => Target::Absent,
        };
        self.placement
            .poll(self.now, is_fixed, |replica| Stand { target: target(places[replica]), ..stands[replica] })
    }

    /// Moves one replica, all the way; the process is started if it does not exist.
    fn moves(&mut self, replica: usize, to: usize) {
        if !self.up.contains(&to) {
            assert_eq!(self.poll(), Some(PlacementStep::Open { replica, process: to }));
            self.placement.opened(self.now, replica);
            self.starting.push(to);
            assert_eq!(self.poll(), None, "it is not up yet");
            self.starting.clear();
            self.up.push(to);
        }
        assert_eq!(self.poll(), Some(PlacementStep::Leave(replica)));
        self.stands[replica].is_leaving = true;
        assert_eq!(self.poll(), None, "one after another");
        self.stands[replica] =
            Stand { process: None, serves: false, is_leaving: false, target: Target::Absent };
        assert_eq!(self.poll(), None, "it does not serve yet");
        self.stands[replica] = Stand { process: Some(to), serves: true, ..self.stands[replica] };
    }

    fn want(&mut self, client: u64, processes: u8) -> Vec<ClientId> {
        let places = self.placement.spread(processes).unwrap();
        self.placement.want_by(ClientId(client), places)
    }
}

#[test]
fn replicas_move_one_after_another_and_who_has_waited_is_told() {
    let mut bench = Bench::new("start = 1");
    assert_eq!(bench.poll(), Some(PlacementStep::Settle));
    assert!(bench.placement.reached().is_empty());
    assert!(bench.want(7, 2).is_empty());
    bench.moves(1, 1);
    bench.moves(3, 1);
    assert_eq!(bench.poll(), Some(PlacementStep::Settle));
    assert_eq!(bench.placement.reached(), [ClientId(7)]);
    assert_eq!((bench.placement.wanted(), bench.placement.most_in_one()), (2, 2));
}

#[test]
fn who_has_wanted_something_else_hears_of_it() {
    let mut bench = Bench::new("start = 2");
    assert!(bench.want(1, 4).is_empty());
    assert!(bench.want(2, 4).is_empty(), "it is the same");
    assert_eq!(bench.want(3, 1), [ClientId(1), ClientId(2)]);
    assert_eq!(bench.placement.asking(), [ClientId(3)]);
    assert!(bench.placement.leave_to_itself(BEGIN).is_empty(), "there are to be as many");
    assert!(bench.placement.is_auto() && bench.placement.asking() == [ClientId(3)]);
}

#[test]
fn places_that_cannot_be_are_refused_with_a_reason() {
    let bench = Bench::new("start = 2");
    for processes in [0, 5] {
        let error = PlacementError::Processes { processes, replicas: 4 };
        assert_eq!(bench.placement.spread(processes), Err(error));
        let text = format!("4 replicas can be in 1 to 4 processes, not in {processes}; more");
        assert!(error.to_string().starts_with(&text), "{error}");
    }
    let relocated = |replicas: &[u8], to| bench.placement.relocated(replicas, to);
    assert_eq!(relocated(&[0], 4), Err(PlacementError::NoProcess { to: 4, last: 3 }));
    assert_eq!(relocated(&[0, 4], 1), Err(PlacementError::NoReplica { replica: 4, last: 3 }));
    assert_eq!(bench.placement.relocated(&[0, 3], 3), Ok(vec![3, 1, 0, 3]));
}

#[test]
fn a_process_that_cannot_be_started_is_given_up_after_some_attempts() {
    let mut bench = Bench::new("start = 1");
    bench.want(7, 4);
    for attempt in 1..VAIN_MAX {
        assert_eq!(bench.poll(), Some(PlacementStep::Open { replica: 1, process: 1 }));
        assert_eq!(bench.placement.failed(bench.now), None);
        assert_eq!(bench.placement.next_timeout(), Some(bench.now + RETRY_TIME * attempt));
        assert_eq!(bench.poll(), None, "not at once again");
        bench.now += RETRY_TIME * attempt;
    }
    // The process is started, and never comes up.
    assert_eq!(bench.poll(), Some(PlacementStep::Open { replica: 1, process: 1 }));
    bench.placement.opened(bench.now, 1);
    bench.starting.push(1);
    bench.now += READY_TIME - MS;
    assert_eq!(bench.poll(), None);
    bench.now += MS;
    let step = bench.poll();
    assert!(matches!(step, Some(PlacementStep::Abandon { replica: 1, process: 1, .. })), "{step:?}");
    let given_up = GivenUp { wanted: 4, stays: 1, asking: vec![ClientId(7)] };
    assert_eq!(bench.placement.failed(bench.now), Some(given_up));
    assert_eq!(bench.placement.places(), [0; 4], "they stay where they were");
    assert_eq!(bench.poll(), None);
    bench.now += GIVEN_UP_TIME;
    assert_eq!(bench.poll(), Some(PlacementStep::Settle));
}

#[test]
fn one_that_ends_while_it_starts_is_a_failure_and_one_that_nobody_wants_any_more_is_none() {
    let mut bench = Bench::new("start = 1");
    bench.want(7, 4);
    assert_eq!(bench.poll(), Some(PlacementStep::Open { replica: 1, process: 1 }));
    bench.placement.opened(bench.now, 1);
    assert!(matches!(bench.poll(), Some(PlacementStep::Abandon { .. })), "it is gone");
    bench.placement.failed(bench.now);
    bench.now += RETRY_TIME;
    assert_eq!(bench.poll(), Some(PlacementStep::Open { replica: 1, process: 1 }));
    bench.placement.opened(bench.now, 1);
    bench.starting.push(1);
    assert_eq!(bench.want(8, 1), [ClientId(7)]);
    assert_eq!(bench.poll(), Some(PlacementStep::Settle), "it stays");
    assert_eq!(bench.placement.reached(), [ClientId(8)]);
}

#[test]
fn one_that_dies_on_its_way_is_where_it_was_to_go_and_one_that_recovers_is_not_asked_to_leave() {
    let mut bench = Bench::new("start = 1");
    bench.want(7, 2);
    bench.stands[1].serves = false;
    assert_eq!(bench.poll(), None, "it recovers first");
    bench.stands[1].process = None;
    bench.up.push(1);
    assert_eq!(
        bench.poll(),
        Some(PlacementStep::Leave(3)),
        "it recovers where it is to be, and does not have to move"
    );
    bench.stands[3] = Stand { process: None, serves: false, ..bench.stands[3] };
    assert_eq!(bench.poll(), None);
    bench.stands[3] = Stand { process: Some(1), serves: true, ..bench.stands[3] };
    assert_eq!(bench.poll(), Some(PlacementStep::Settle));
}

#[test]
fn nobody_sets_out_while_an_upgrade_is_under_way() {
    let mut bench = Bench::new("start = 1");
    bench.want(7, 2);
    assert_eq!(bench.poll_in(true), None);
    assert!(!bench.placement.is_reached(|replica| bench.stands[replica]));
    assert!(bench.poll().is_some());
}

#[test]
fn what_another_supervisor_has_left_is_believed_if_it_can_be() {
    let config = ConfigFile::parse("replicas = 3\n[link]\ntype = \"none\"\n[scaling]\nstart = 1").unwrap();
    let config = config.validate().unwrap();
    let resume = |places: &[u8]| Placement::resume(&config, places, true, vec![ClientId(7)], BEGIN);
    let good = resume(&[2, 0, 2]);
    assert_eq!((good.places(), good.is_auto(), good.asking()), (&[2, 0, 2][..], true, &[ClientId(7)][..]));
    for bad in [&[0, 0][..], &[0, 0, 3], &[]] {
        assert_eq!(resume(bad).places(), [0, 0, 0], "{bad:?}");
    }
}

#[test]
fn where_the_load_counts_busy_replicas_get_more_processes() {
    let mut bench = Bench::new("start = 1\nmin = 1\nmax = 4\nauto = true");
    assert!(bench.placement.is_auto());
    let mut nanos = [0; 4];
    let mut changes = Vec::new();
    for look in 1..=6 {
        assert!(!bench.placement.is_look_due(bench.now + LOOK_EVERY - MS));
        bench.now += LOOK_EVERY;
        assert!(bench.placement.is_look_due(bench.now));
        nanos = nanos.map(|nanos| nanos + 120_000_000);
        let seen = nanos.iter().map(|nanos| Busy { epoch: 1, nanos: *nanos }).collect();
        changes
            .extend(bench.placement.look(bench.now, true, seen).map(|change| (look, change.from, change.to)));
    }
    // The first measurement changes nothing, because there is none before it.
    assert_eq!(changes, [(4, 1, 2)]);
    assert_eq!(bench.placement.places(), [0, 1, 0, 1]);
    // The counters of a new incarnation cannot be compared with those of the last one.
    let seen = |epoch| nanos.iter().map(|nanos| Busy { epoch, nanos: nanos + 1_000_000_000 }).collect();
    assert_eq!(bench.placement.look(bench.now + LOOK_EVERY, true, seen(2)), None);
    assert_eq!(bench.placement.look(bench.now + 2 * LOOK_EVERY, false, seen(2)), None);
}
