//! Changes the number of processes for replicas while connections are open. `atoll_supervisor::Placement`
//! decides which replica moves; this starts processes, and asks replicas to leave.

use std::io;

use atoll_base::Instant;
use atoll_ipc::page::Stat;
use atoll_supervisor::{
    Busy, Change, ClientId, GivenUp, PlacementStep as Step, ReportPart, ScalingReport, Stand, Target,
    count_processes,
};

use super::Supervisor;
use crate::clock;
use crate::supervise::hosts::{Host, Hosts};
use crate::supervise::servers::Servers;
use crate::supervise::setups::Duty;

impl Supervisor {
    /// Returns the number of the process that a replica is in, or is to be in if it is in none.
    pub(super) fn process_of(&self, index: usize) -> usize {
        process_in(&self.servers, &self.hosts, index).unwrap_or(self.placement.place(index))
    }

    /// Returns the report of the number of processes for replicas.
    pub(super) fn scaling_report(&self) -> ScalingReport {
        let (min, max) = self.placement.limits();
        let processes: Vec<u8> =
            self.servers.replica_numbers().map(|index| self.process_of(index) as u8).collect();
        let (wanted, auto) = (self.placement.wanted(), self.placement.is_auto());
        ScalingReport { processes: count_processes(&processes), wanted, auto, min, max }
    }

    /// Returns whether every replica is in its place, or will be when it has recovered.
    pub(super) fn are_in_place(&self) -> bool {
        self.placement
            .is_reached(|replica| stand(&self.servers, &self.hosts, replica, self.placement.place(replica)))
    }

    /// Handles `atoll scale`, which is answered when that many processes are in use.
    pub(super) fn scale(&mut self, id: ClientId, processes: Option<u8>) -> io::Result<()> {
        let Some(wanted) = processes else {
            let others = self.placement.leave_to_itself(clock::now());
            self.note_stack();
            self.answer_all(others, &ReportPart::Error("the stack was left to itself meanwhile".into()))?;
            self.clients.answer(id, &ReportPart::Scaling(self.scaling_report()))?;
            return self.clients.answer(id, &ReportPart::Done(true));
        };
        match self.placement.spread(wanted) {
            Ok(places) => self.want_by(id, places, &format!("{wanted} processes were asked for meanwhile")),
            Err(reason) => self.clients.answer(id, &ReportPart::Error(reason.to_string())),
        }
    }

    /// Handles `atoll move`, which is answered when the replicas are in the process.
    pub(super) fn relocate(&mut self, id: ClientId, replicas: &[u8], to: u8) -> io::Result<()> {
        match self.placement.relocated(replicas, to) {
            Ok(places) => self.want_by(id, places, "replicas were asked to be elsewhere meanwhile"),
            Err(reason) => self.clients.answer(id, &ReportPart::Error(reason.to_string())),
        }
    }

    /// Sets the places that a client wants. Clients that waited for other places get the error `instead`.
    fn want_by(&mut self, id: ClientId, places: Vec<u8>, instead: &str) -> io::Result<()> {
        if self.succession.is_some() {
            let reason = "an upgrade is under way: try again when it is over";
            return self.clients.answer(id, &ReportPart::Error(reason.into()));
        }
        let others = self.placement.want_by(id, places);
        self.note_stack();
        self.answer_all(others, &ReportPart::Error(instead.into()))?;
        self.look_after_scaling(clock::now())
    }

    fn answer_all(&mut self, clients: Vec<ClientId>, last: &ReportPart) -> io::Result<()> {
        clients.into_iter().try_for_each(|id| self.clients.answer(id, last))
    }

    /// Takes the next steps of the placement.
    pub(super) fn look_after_scaling(&mut self, now: Instant) -> io::Result<()> {
        self.look_at_load(now);
        loop {
            let is_fixed = self.succession.is_some();
            let (servers, hosts, placement) = (&self.servers, &self.hosts, &mut self.placement);
            let places = placement.places().to_vec();
            let place = |replica: usize| places.get(replica).copied().unwrap_or(0).into();
            let step =
                placement.poll(now, is_fixed, |replica| stand(servers, hosts, replica, place(replica)));
            match step {
                None => return Ok(()),
                Some(Step::Open { replica, process }) => {
                    let Some(program) = self.servers.replica(replica).map(|slot| slot.program().clone())
                    else {
                        return Ok(());
                    };
                    if let Err(failure) = self.open_host(Duty::Replicas(process), &program) {
                        return self.move_failed(now, &failure.to_string());
                    }
                    self.placement.opened(now, replica);
                }
                Some(Step::Leave(replica)) => {
                    let newest =
                        self.servers.replica(replica).map_or(0, |slot| slot.program().build.ledger.newest);
                    let ledger = self.memory.ledger_version(replica).unwrap_or(newest);
                    self.ask_to_leave(replica, ledger, now)?;
                }
                Some(Step::Abandon { replica, process, why }) => {
                    let program = self.servers.replica(replica).map(|slot| slot.program());
                    if let Some(key) = program.and_then(|program| self.hosts.find(process, program)) {
                        self.hosts.kill(key);
                    }
                    return self.move_failed(now, why);
                }
                Some(Step::Settle) => return self.settle_placement(now),
            }
        }
    }

    /// Lets processes without replicas end, now that all replicas are in their places, and answers the
    /// clients that have waited if all serve.
    fn settle_placement(&mut self, now: Instant) -> io::Result<()> {
        let standby = self.hosts.standby();
        for key in self.hosts.keys().into_iter().filter(|key| Some(*key) != standby) {
            self.close_host_if_idle(key, now);
        }
        if !self.servers.replicas().iter().all(|replica| replica.record().is_serving()) {
            return Ok(());
        }
        let asking = self.placement.reached();
        if asking.is_empty() {
            return Ok(());
        }
        let processes = self.scaling_report().processes;
        event!(move_done, { processes }, "the replicas are in {processes} processes");
        for id in asking {
            self.clients.answer(id, &ReportPart::Scaling(self.scaling_report()))?;
            self.clients.answer(id, &ReportPart::Done(true))?;
        }
        self.note_stack();
        Ok(())
    }

    /// Handles a failed move: the replica stays where it is until the next attempt, or for good.
    fn move_failed(&mut self, now: Instant, why: &str) -> io::Result<()> {
        let Some(GivenUp { wanted, stays, asking }) = self.placement.failed(now) else { return Ok(()) };
        event!(
            move_failed,
            { processes = wanted, error = why },
            "{wanted} processes for replicas were not to be had: {why}"
        );
        self.note_stack();
        self.answer_all(asking, &ReportPart::Error(format!("it stays with {stays} processes: {why}")))
    }

    /// Measures the load of the replicas, if the number of processes follows it.
    fn look_at_load(&mut self, now: Instant) {
        if !self.placement.is_look_due(now) {
            return;
        }
        let is_settled = self.are_in_place()
            && self.succession.is_none()
            && self.servers.replicas().iter().all(|replica| replica.record().hears());
        let pages = self.servers.replicas().iter().zip(self.memory.replicas());
        let busy = pages.map(|(replica, memory)| Busy {
            epoch: replica.record().epoch(),
            nanos: memory.page.stat(Stat::BusyNanos),
        });
        if let Some(Change { from, to, shares }) = self.placement.look(now, is_settled, busy.collect()) {
            let percent: Vec<String> = shares.iter().map(|share| format!("{:.0}", share * 100.0)).collect();
            let busy = percent.join(" ");
            event!(
                scaled,
                { from, to, busy_percent = &*busy },
                "{to} processes instead of {from}: the replicas are busy {busy} %"
            );
            self.note_stack();
        }
    }
}

/// Returns the number of the process that a replica is in.
fn process_in(servers: &Servers, hosts: &Hosts, index: usize) -> Option<usize> {
    servers.replica(index).and_then(|replica| hosts.get(replica.host()?)).and_then(Host::number)
}

/// Returns the state of a replica that is to be in process `to`.
fn stand(servers: &Servers, hosts: &Hosts, index: usize, to: usize) -> Stand {
    let replica = servers.replica(index);
    let target = replica.and_then(|replica| hosts.get(hosts.find(to, replica.program())?));
    Stand {
        process: process_in(servers, hosts, index),
        serves: replica.is_some_and(|replica| replica.record().is_serving()),
        is_leaving: replica.is_some_and(|replica| replica.record().is_leaving()),
        target: match target {
            None => Target::Absent,
            Some(host) if host.is_up() => Target::Up,
            Some(_) => Target::Starting,
        },
    }
}
