//! Checks that every replica is in one process, and in the end where it is wanted, whatever happens. The
//! supervisor is the real one; processes and replicas are sockets that answer late, die at any moment, or
//! cannot be started.

use std::collections::BTreeMap;

use atoll_supervisor::host_of;

use super::scaling::{answers, hosts};
use super::*;

/// The processes, by number of their start, and the replicas in them, as they are outside the supervisor.
struct Outside {
    bench: Bench,
    rng: Rng,
    processes: BTreeMap<usize, (usize, Channel)>,
    started: usize,
    replicas: Vec<Option<Incarnation>>,
    epochs: Vec<u32>,
    /// The number of deaths still to come: a supervisor delays servers that die again and again more and
    /// more.
    deaths: u32,
    /// The place where each replica is wanted, and the clients that have asked for that or for something
    /// else.
    wanted: Vec<usize>,
    askers: Vec<Channel>,
}

/// A replica in a process.
struct Incarnation {
    control: Channel,
    process: usize,
    /// Whether it has the order to adopt.
    adopts: bool,
    serves: bool,
    /// Whether it was asked to leave.
    leaves: bool,
}

impl Outside {
    fn new(seed: u64) -> Outside {
        let mut rng = Rng::new(seed);
        let (replicas, start) = (2 + rng.below(4) as u8, 1 + rng.below(2) as u8);
        let mut bench = Bench::with(replicas, &format!("[scaling]\nstart = {start}"));
        let controls = std::mem::take(&mut bench.replicas);
        let count = controls.len();
        let mut outside = Outside {
            bench,
            rng,
            processes: BTreeMap::new(),
            started: 0,
            replicas: (0..count).map(|_| None).collect(),
            epochs: vec![1; count],
            deaths: if seed.is_multiple_of(3) { 0 } else { 4 },
            wanted: (0..count).map(|replica| host_of(replica, start.into())).collect(),
            askers: Vec::new(),
        };
        outside.bench.launches.borrow_mut().started.clear();
        let places = outside.places();
        for (replica, control) in controls.into_iter().enumerate() {
            let life =
                Incarnation { control, process: places[&replica], adopts: true, serves: true, leaves: false };
            outside.replicas[replica] = Some(life);
        }
        outside
    }

    /// Collects the processes that were started. Returns the process that each replica was put into since the
    /// last call.
    fn places(&mut self) -> BTreeMap<usize, usize> {
        for started in self.bench.launches.borrow_mut().hosts.drain(..) {
            self.processes.insert(self.started, started);
            self.started += 1;
        }
        let mut places = BTreeMap::new();
        let mut ended = Vec::new();
        for (&key, (_, channel)) in &self.processes {
            let mut packet = [0; 8];
            loop {
                match channel.receive(&mut packet, &mut Vec::new()) {
                    Ok(0) => break ended.push(key),
                    Ok(_) => {
                        let replica = usize::from(packet[0]);
                        assert_eq!(
                            places.insert(replica, key),
                            None,
                            "replica {replica} is given to two processes"
                        );
                    }
                    Err(_) => break,
                }
            }
        }
        for key in ended {
            // The supervisor lets processes end that have no replicas.
            assert!(
                self.replicas.iter().flatten().all(|life| life.process != key),
                "a process ends with its last replica"
            );
            self.processes.remove(&key);
        }
        places
    }

    /// Follows what the supervisor has done.
    fn observe(&mut self) {
        let places = self.places();
        let started: Vec<_> = self.bench.launches.borrow_mut().started.drain(..).collect();
        for (replica, epoch, control) in started {
            assert!(self.replicas[replica].is_none(), "replica {replica} is in a process already");
            assert!(epoch > self.epochs[replica], "each incarnation has its own number");
            self.epochs[replica] = epoch;
            // The replica may have died with its process before this.
            let Some(&process) = places.get(&replica) else { continue };
            self.replicas[replica] =
                Some(Incarnation { control, process, adopts: false, serves: false, leaves: false });
        }
        for life in self.replicas.iter_mut().flatten() {
            while let Some((packet, _)) = receive(&life.control) {
                match Request::decode(&packet).unwrap() {
                    Request::Adopt { .. } => life.adopts = true,
                    Request::HandOver { .. } => {
                        assert!(life.serves && !life.leaves, "who serves is asked, and once");
                        life.leaves = true;
                    }
                    _ => {}
                }
            }
        }
        let leaving = self.replicas.iter().flatten().filter(|life| life.leaves).count();
        assert!(leaving <= 1, "one after another");
    }

    fn kill(&mut self, process: usize) {
        self.processes.remove(&process);
        for replica in &mut self.replicas {
            replica.take_if(|life| life.process == process);
        }
    }

    /// Lets a replica do what it was asked to do, or not yet.
    fn act(&mut self, replica: usize) {
        let chance = self.rng.below(8);
        let Some(life) = &mut self.replicas[replica] else { return };
        let process = life.process;
        if life.adopts && !life.serves && chance > 2 {
            life.control.send(setup::READY, &[]).unwrap();
            life.serves = true;
        } else if life.leaves && chance > 2 {
            // If the process dies now, the supervisor learns of that together with the replica's last
            // message.
            let dies = self.deaths > 0 && chance == 3;
            if !(dies && self.rng.below(2) == 0) {
                life.control.send(setup::LEFT, &[]).unwrap();
                self.replicas[replica] = None;
            }
            if dies {
                self.deaths -= 1;
                self.kill(process);
            }
        }
    }

    /// Lets a client ask for another placement.
    fn want(&mut self) {
        let count = self.replicas.len();
        let to = self.rng.below(count as u32) as usize;
        let request = if self.rng.below(2) == 0 {
            self.wanted = (0..count).map(|replica| host_of(replica, to + 1)).collect();
            format!(r#"{{"cmd":"scale","processes":{}}}"#, to + 1)
        } else {
            let moved: Vec<usize> = (0..count).filter(|_| self.rng.below(2) == 0).collect();
            moved.iter().for_each(|replica| self.wanted[*replica] = to);
            format!(r#"{{"cmd":"move","replicas":{moved:?},"to":{to}}}"#)
        };
        let client = self.bench.administrator();
        client.send(request.as_bytes(), &[]).unwrap();
        self.askers.push(client);
        // The supervisor reads the request before anything else happens, so `wanted` is what it knows.
        while self
            .bench
            .server
            .placement
            .places()
            .iter()
            .map(|place| usize::from(*place))
            .ne(self.wanted.iter().copied())
        {
            self.bench.server.turn(Some(0)).unwrap();
        }
    }

    fn is_over(&self) -> bool {
        let serves =
            |life: &Option<Incarnation>| life.as_ref().is_some_and(|life| life.serves && !life.leaves);
        self.bench.server.are_in_place() && self.bench.server.all_ready() && self.replicas.iter().all(serves)
    }
}

#[test]
fn every_replica_is_in_one_process_and_in_the_end_where_it_is_wanted() {
    let (mut moves, mut deaths) = (0, 0);
    for seed in 0..80 {
        let mut outside = Outside::new(seed);
        for _ in 0..150 {
            match outside.rng.below(40) {
                0..2 => outside.want(),
                2 if outside.deaths > 0 && !outside.processes.is_empty() => {
                    outside.deaths -= 1;
                    let at = outside.rng.below(outside.processes.len() as u32) as usize;
                    let process = *outside.processes.keys().nth(at).expect("there are so many");
                    outside.kill(process);
                }
                3 if seed.is_multiple_of(8) => outside.bench.launches.borrow_mut().failing = 1,
                _ => {
                    let replica = outside.rng.below(outside.replicas.len() as u32) as usize;
                    outside.act(replica);
                }
            }
            outside.bench.server.turn(Some(0)).unwrap();
            outside.observe();
        }
        outside.bench.launches.borrow_mut().failing = 0;
        outside.want();
        let deadline = clock::now() + Duration::from_secs(60);
        while !outside.is_over() {
            outside.bench.server.turn(Some(1)).unwrap();
            outside.observe();
            (0..outside.replicas.len()).for_each(|replica| outside.act(replica));
            assert!(clock::now() < deadline, "seed {seed}: {:?}", outside.bench.server.placement.places());
        }
        outside.bench.settle();
        outside.observe();
        // These are the places that the supervisor knows, and the real ones.
        let real =
            |life: &Option<Incarnation>| outside.processes[&life.as_ref().expect("it serves").process].0;
        let real: Vec<usize> = outside.replicas.iter().map(real).collect();
        assert_eq!((&hosts(&outside.bench), &real), (&outside.wanted, &outside.wanted), "seed {seed}");
        let mut numbers = outside.wanted.clone();
        numbers.sort_unstable();
        numbers.dedup();
        let left: Vec<usize> = outside.processes.values().map(|(number, _)| *number).collect();
        assert_eq!(left.len(), numbers.len(), "seed {seed}: {left:?}");
        // Every client is answered once: that it is done, or that another client has asked for something
        // else.
        let last = outside.askers.len() - 1;
        for (at, asker) in outside.askers.iter().enumerate() {
            let said = answers(asker);
            let is_done = matches!(&said[..], [ReportPart::Scaling(_), ReportPart::Done(true)]);
            let is_refused = matches!(&said[..], [ReportPart::Error(why)] if why.contains("meanwhile"));
            assert!(is_done || is_refused && at < last, "seed {seed}: {said:?}");
        }
        let lives =
            outside.bench.server.servers.replicas().iter().map(|replica| replica.record().life().report());
        lives.for_each(|life| (moves, deaths) = (moves + life.moves, deaths + life.crashes));
    }
    assert!(moves > 200 && deaths > 100, "{moves} moves, {deaths} deaths");
}
