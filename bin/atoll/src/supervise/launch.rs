//! Who starts the processes of servers, for the first time and again?

use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;

use atoll_supervisor::{Component, Config, Plan};
use atoll_sys::process::Child;
use atoll_sys::unix::Channel;

use super::device::TapDevice;
use super::memory::StackMemory;
use super::report::Identity;
use super::spawn::{self, Shared};
use super::succession::Program;
use crate::failure::Failure;
use crate::setup::LinkSide;

/// What a process for replicas is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duty {
    /// It is the one with this number, and has those replicas that are to be there, or is about to.
    Replicas(usize),
    /// It waits until another one dies, and has so many octets of its memory ready for what it is given then.
    Standby { memory: u64 },
}

/// Starts servers. The supervisor's tests have one of their own.
pub trait Launch {
    /// The queues of the device, if there is one.
    fn queues(&self) -> &[OwnedFd] {
        &[]
    }

    /// Starts a process for replicas, of this build, which has none yet. `page`: where it says how it is confined. Returns it, and the end of
    /// the socket over which it is given some.
    fn start_host(
        &mut self,
        duty: Duty,
        program: &Program,
        page: BorrowedFd<'_>,
        config: &Config,
        identity: &Identity,
        memory: &StackMemory,
    ) -> Result<(Option<Child>, Channel), Failure>;

    /// Gives the replica with this number to the process at the other end of `host`, as the incarnation that `epochs` say of it. Returns the
    /// control socket's end.
    fn place(
        &mut self,
        replica: usize,
        host: &Channel,
        epochs: &[u32],
        config: &Config,
        identity: &Identity,
        memory: &StackMemory,
    ) -> Result<Channel, Failure>;

    /// Starts the server with this number, which is no replica, of this build, as the incarnation that `epochs`, by number, say of it. Returns
    /// its process, and the control socket's end.
    fn launch(
        &mut self,
        server: usize,
        program: &Program,
        epochs: &[u32],
        config: &Config,
        identity: &Identity,
        memory: &StackMemory,
    ) -> Result<(Option<Child>, Channel), Failure>;
}

/// What servers are given besides memory. The supervisor keeps it, so that frames wait in the device's queues while a server is away.
pub struct Launcher {
    /// The device, if there is one.
    pub device: Option<TapDevice>,
    /// Descriptors of the shared-memory link, in the order of `setup.rs`; empty: none.
    pub link: Vec<Rc<OwnedFd>>,
    /// Which end of it this stack is.
    pub link_side: Option<LinkSide>,
}

impl Launcher {
    fn shared<'a>(&'a self, plan: &'a Plan, memory: &'a StackMemory) -> Shared<'a> {
        Shared { plan, memory, queues: self.queues(), link: &self.link }
    }
}

impl Launch for Launcher {
    fn queues(&self) -> &[OwnedFd] {
        self.device.as_ref().map_or(&[], |device| &device.queues)
    }

    fn start_host(
        &mut self,
        duty: Duty,
        program: &Program,
        page: BorrowedFd<'_>,
        config: &Config,
        identity: &Identity,
        memory: &StackMemory,
    ) -> Result<(Option<Child>, Channel), Failure> {
        let setup = super::host_setup(config, identity, duty);
        let (child, control) = spawn::start_host(setup, program, page, memory)?;
        Ok((Some(child), control))
    }

    fn place(
        &mut self,
        replica: usize,
        host: &Channel,
        epochs: &[u32],
        config: &Config,
        identity: &Identity,
        memory: &StackMemory,
    ) -> Result<Channel, Failure> {
        let plan = config.notation.plan();
        let has_device = self.device.is_some();
        let setup = super::replica_setup(config, identity, &plan, epochs, replica as u8, has_device, self.link_side);
        spawn::place_replica(&setup, host, &self.shared(&plan, memory))
    }

    fn launch(
        &mut self,
        server: usize,
        program: &Program,
        epochs: &[u32],
        config: &Config,
        identity: &Identity,
        memory: &StackMemory,
    ) -> Result<(Option<Child>, Channel), Failure> {
        let plan = config.notation.plan();
        let process = plan.processes().get(server).ok_or_else(|| Failure::new("a server that is not in the plan"))?;
        let shared = self.shared(&plan, memory);
        // Cannot truncate: there are few servers.
        let number = server as u8;
        let (child, control) = if process.has(Component::Ip) {
            spawn::start_ip_server(super::ip_server_setup(config, identity, &plan, epochs, number), program, &shared)?
        } else if process.has(Component::Cm) {
            spawn::start_manager(super::manager_setup(config, identity, &plan, epochs, number), program, &shared)?
        } else {
            let setup = super::link_server_setup(config, identity, &plan, epochs, number);
            spawn::start_link_server(setup, program, &shared)?
        };
        Ok((Some(child), control))
    }
}
