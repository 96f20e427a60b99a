//! Kills processes of the stack that are stopped, so that they are replaced soon. `atoll_supervisor::Stops`
//! decides when to check, and which processes are to be killed.

use std::rc::Rc;

use atoll_base::Instant;
use atoll_sys::process::{Child, Signal};

use super::Supervisor;
use crate::supervise::ending::Role;
use crate::supervise::servers::ServerSlot;
use crate::supervise::spawn;

impl Supervisor {
    /// Kills processes that are stopped; SIGKILL also ends a stopped process. Their ends are noticed as those
    /// of other processes are.
    pub(super) fn look_for_stopped(&mut self, now: Instant) {
        let Some(stops) = self.health.stops() else { return };
        let of_others = self.servers.others().iter().filter_map(ServerSlot::own_child);
        let children = || self.hosts.children().chain(of_others.clone());
        let state = |pid| spawn::look(pid).map(|(_, running)| running.state);
        let stopped = stops.look(now, children().map(|child| child.pid()), state);
        let to_kill: Vec<Rc<Child>> =
            children().filter(|child| stopped.contains(&child.pid())).cloned().collect();
        for child in to_kill {
            let pid = child.pid();
            let servers = self.servers_in(pid);
            event!(
                server_stopped,
                { pid, servers = &*servers },
                "process {pid} ({servers}) is stopped: it is killed"
            );
            let _ = child.kill(Signal::KILL);
        }
    }

    /// Returns the names of the servers that a process has, for messages.
    fn servers_in(&self, pid: u32) -> String {
        let plan = self.config.notation.plan();
        let in_it = self.servers.all().iter().enumerate().filter(|(_, server)| server.pid() == Some(pid));
        let names: Vec<String> = in_it.map(|(index, _)| Role::of(&plan, index).to_string()).collect();
        if names.is_empty() { "no replica".into() } else { names.join(", ") }
    }
}
