use super::scaling::{answers, ask_to_scale, given, hosts, move_on, scaled};
use super::*;

/// A time longer than any wait.
const LATER: Duration = Duration::from_secs(5);

impl Bench {
    /// Creates a bench with a standby, which was started after the other processes.
    fn standing_by(replicas: u8, more: &str) -> Bench {
        let mut bench = Bench::with(replicas, &format!("{more}\n[recovery]\nstandby = true"));
        let before = bench.launches.borrow().hosts.len();
        bench.look(clock::now());
        assert_eq!(bench.launches.borrow().hosts.len(), before, "programs are started first");
        bench.look(clock::now() + LATER);
        assert_eq!(bench.launches.borrow().hosts.len(), before + 1);
        assert_eq!(given(&bench, before), (STANDBY, vec![]));
        bench
    }

    /// Lets the supervisor check the standby at this time.
    fn look(&mut self, now: Instant) {
        self.server.look_after_standby(now).unwrap();
        self.settle();
    }

    /// Returns how many processes for replicas were ever started, and whether there is a standby now.
    fn started(&self) -> (usize, bool) {
        (self.launches.borrow().hosts.len(), self.server.hosts.standby().is_some())
    }

    /// Lets the replica die, and its process with it; the next one serves at once.
    fn dies(&mut self, replica: usize, epoch: u32) {
        drop(self.replicas.remove(replica));
        self.settle();
        let back = self.comes_back(replica, epoch);
        self.replicas.insert(replica, back);
        self.settle();
        assert!(self.server.all_ready());
    }
}

#[test]
fn who_stands_by_goes_on_for_one_that_has_died_and_another_one_comes_after_that() {
    let mut bench = Bench::standing_by(2, "");
    assert_eq!(bench.started(), (3, true));
    bench.look(clock::now() + 2 * LATER);
    assert_eq!(bench.started(), (3, true), "one is enough");
    bench.dies(1, 2);
    assert_eq!(given(&bench, 2).1, [1], "it was there already");
    assert_eq!((hosts(&bench), bench.started()), (vec![0, 1], (3, false)));
    bench.look(clock::now() + LATER);
    assert_eq!(bench.started(), (4, true));
    bench.dies(0, 2);
    bench.look(clock::now() + LATER);
    // The process that has taken over can die as well, though not so soon that a delay would apply.
    bench.server.servers.lives_anew(1);
    bench.dies(1, 3);
    assert_eq!((given(&bench, 3).1, given(&bench, 4).1, bench.started()), (vec![0], vec![1], (5, false)));
    assert_eq!(hosts(&bench), [0, 1]);
}

#[test]
fn all_replicas_of_a_process_go_to_the_one_that_stands_by() {
    let mut bench = Bench::standing_by(4, "[scaling]\nstart = 2");
    drop(bench.replicas.remove(3));
    bench.settle();
    let back = bench.comes_back(3, 2);
    let other = bench.comes_back(1, 2);
    bench.settle();
    assert_eq!((given(&bench, 2).1, hosts(&bench)), (vec![1, 3], vec![0, 1, 0, 1]));
    assert!(bench.server.all_ready());
    drop((back, other));
}

#[test]
fn nobody_minds_the_death_of_who_stands_by() {
    let mut bench = Bench::standing_by(1, "");
    bench.launches.borrow_mut().hosts[1].1 = Channel::pair(Blocking::No).unwrap().0;
    assert_eq!(bench.settle(), None);
    assert_eq!(bench.started(), (2, false));
    assert!(bench.server.all_ready() && bench.server.servers.replicas()[0].record().life().crashes == 0);
    // A replica dies meanwhile: a process is started for it.
    bench.dies(0, 2);
    assert_eq!((bench.started(), given(&bench, 2)), ((3, false), (0, vec![0])));
    bench.look(clock::now() + LATER);
    assert_eq!(bench.started(), (4, true));
    // A standby that has not reported yet that it is up is not waited for.
    bench.launches.borrow_mut().hosts[3].1 = Channel::pair(Blocking::No).unwrap().0;
    bench.settle();
    bench.launches.borrow_mut().are_dumb = true;
    bench.look(clock::now() + 2 * LATER);
    assert_eq!(bench.started(), (5, true));
    bench.server.servers.lives_anew(0);
    bench.dies(0, 3);
    assert_eq!((given(&bench, 4), given(&bench, 5)), ((STANDBY, vec![]), (0, vec![0])));
    bench.launches.borrow_mut().failing = u32::MAX;
    bench.launches.borrow_mut().hosts[4].1 = Channel::pair(Blocking::No).unwrap().0;
    bench.settle();
    bench.look(clock::now() + 2 * LATER);
    assert_eq!(bench.settle(), None, "the stack does without");
}

#[test]
fn who_stands_by_is_neither_scaled_nor_moved() {
    let mut bench = Bench::standing_by(2, "");
    let asks = ask_to_scale(&mut bench, "1");
    move_on(&mut bench, 1, 2);
    assert_eq!(answers(&asks), scaled(1, 2));
    assert_eq!((bench.started(), hosts(&bench)), ((3, true), vec![0, 0]));
    let asks = ask_to_scale(&mut bench, "2");
    move_on(&mut bench, 1, 3);
    assert_eq!(answers(&asks), scaled(2, 2));
    assert_eq!((given(&bench, 2), given(&bench, 3)), ((STANDBY, vec![]), (1, vec![1])));
    assert!(bench.started().1);
}

#[test]
fn one_of_another_build_is_not_used_and_makes_way_for_one_of_this() {
    let mut bench = Bench::standing_by(1, "");
    let client = begin_exchange(&mut bench);
    move_on(&mut bench, 0, 2);
    assert_eq!((given(&bench, 1).1, given(&bench, 2)), (vec![], (0, vec![0])));
    bench.look(clock::now() + LATER);
    assert_eq!(bench.started(), (3, true), "while builds are exchanged nothing is started beside");
    bench.server.go_on_with_upgrade(clock::now() + 2 * LATER).unwrap();
    assert!(bench.server.succession.is_none());
    bench.look(clock::now() + 3 * LATER);
    assert_eq!(bench.started(), (3, false));
    bench.look(clock::now() + 4 * LATER);
    assert_eq!(bench.started(), (4, true));
    assert_eq!(bench.launches.borrow().builds[3], "next");
    bench.dies(0, 3);
    assert_eq!(given(&bench, 3).1, [0]);
    drop(client);
}

/// Returns the page on which a replica reports how many connections it has.
fn page_of(bench: &Bench, replica: usize) -> atoll_ipc::page::ReplicaPage<ShmMemory> {
    let page = &bench.server.memory.replicas()[replica].page_write;
    atoll_ipc::page::ReplicaPage(ShmMemory::map_page(page, REPLICA_PAGE_BYTES, Access::ReadWrite).unwrap())
}

#[test]
fn who_has_too_little_memory_makes_way_for_one_with_more() {
    let mut bench = Bench::standing_by(2, "");
    let page = page_of(&bench, 1);
    page.set_stat(Stat::Connections, 10_000);
    bench.look(clock::now() + 2 * LATER);
    bench.look(clock::now() + 3 * LATER);
    page.set_stat(Stat::Connections, 9000);
    bench.look(clock::now() + 4 * LATER);
    assert_eq!(
        (bench.launches.borrow().memory.clone(), bench.started()),
        (vec![2 << 20, 16 << 20], (4, true))
    );
}

/// If the standby were replaced now, none would be ready just when a server has begun to serve.
#[test]
fn who_stands_by_is_not_replaced_because_of_the_first_connections() {
    let mut bench = Bench::standing_by(2, "");
    let page = page_of(&bench, 1);
    for (looks, connections) in [(2, 1), (3, 1000), (4, 2048)] {
        page.set_stat(Stat::Connections, connections);
        bench.look(clock::now() + looks * LATER);
        assert_eq!(bench.started(), (3, true), "{connections} connections");
    }
    page.set_stat(Stat::Connections, 2049);
    bench.look(clock::now() + 5 * LATER);
    assert_eq!(bench.started(), (3, false));
}

/// The standby ends with its supervisor, and the next supervisor starts another.
#[test]
fn who_stands_by_is_noted_only_when_it_has_been_called() {
    let mut bench = Bench::standing_by(1, "");
    let (guardian, theirs) = Channel::pair(Blocking::No).unwrap();
    bench.server.leave_to(kept_by(theirs));
    let hosts = |notes: &crate::notes::Notes| notes.keys().filter(|name| name.starts_with("host.")).count();
    assert_eq!(hosts(&notes_of(&guardian)), 1);
    bench.dies(0, 2);
    assert_eq!(given(&bench, 1).1, [0]);
    let notes = notes_of(&guardian);
    assert_eq!(hosts(&notes), 1);
    assert!(notes.contains_key("host.1") && notes.contains_key("server.0"), "{:?}", notes.keys());
    bench.look(clock::now() + LATER);
    assert_eq!((bench.started(), hosts(&notes_of(&guardian))), ((3, true), 0));
}

#[test]
fn without_it_the_stack_is_as_before() {
    let mut bench = Bench::with(1, "");
    bench.look(clock::now() + LATER);
    assert_eq!((bench.started(), bench.server.standby_due()), ((1, false), None));
}
