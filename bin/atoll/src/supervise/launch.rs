//! Starts the processes of servers, for the first time and again.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;

use atoll_supervisor::{Component, Config, Plan};
use atoll_sys::process::Child;
use atoll_sys::unix::Channel;

use super::device::TapDevice;
use super::identity::Identity;
use super::memory::StackMemory;
use super::program::Program;
use super::setups::{Duty, Setups};
use super::spawn::{self, Shared};
use crate::failure::Failure;
use crate::setup::LinkSide;

/// The stack that servers are started for.
pub struct Stack<'a> {
    /// The configuration of the stack.
    pub config: &'a Config,
    /// The properties of the stack besides its configuration.
    pub identity: &'a Identity,
    /// The memory that the stack's processes share.
    pub memory: &'a StackMemory,
}

impl Stack<'_> {
    fn setups<'b>(&'b self, plan: &'b Plan) -> Setups<'b> {
        Setups { config: self.config, identity: self.identity, plan }
    }
}

/// Starts servers. The supervisor's tests implement it without processes.
pub trait Launch {
    /// Returns the queues of the device, if there is one.
    fn queues(&self) -> &[OwnedFd] {
        &[]
    }

    /// Starts a process for replicas, of this build, which has no replica yet. It reports on `page` how it is
    /// confined. Returns the process, and the end of the socket over which it is given replicas.
    fn start_host(
        &mut self,
        duty: Duty,
        program: &Program,
        page: BorrowedFd<'_>,
        stack: &Stack<'_>,
    ) -> Result<(Option<Child>, Channel), Failure>;

    /// Gives the replica with this number to the process at the other end of `host`, as its incarnation in
    /// `epochs`. Returns the supervisor's end of the control socket.
    fn place(
        &mut self,
        replica: usize,
        host: &Channel,
        epochs: &[u32],
        stack: &Stack<'_>,
    ) -> Result<Channel, Failure>;

    /// Starts the server with this number, which is no replica, of this build, as its incarnation in
    /// `epochs`, which is indexed by server. Returns the process, and the supervisor's end of the control
    /// socket.
    fn launch(
        &mut self,
        server: usize,
        program: &Program,
        epochs: &[u32],
        stack: &Stack<'_>,
    ) -> Result<(Option<Child>, Channel), Failure>;
}

/// The resources that servers get besides memory. The supervisor keeps them, so that frames wait in the
/// device's queues while a server is away.
pub struct Launcher {
    /// The device, if there is one.
    pub device: Option<TapDevice>,
    /// Descriptors of the shared-memory link, in the order of `setup.rs`; empty if there is none.
    pub link: Vec<Rc<OwnedFd>>,
    /// The end of the link that this stack has.
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
        stack: &Stack<'_>,
    ) -> Result<(Option<Child>, Channel), Failure> {
        let setup = stack.setups(&stack.config.notation.plan()).host(duty);
        let (child, control) = spawn::start_host(setup, program, page, stack.memory)?;
        Ok((Some(child), control))
    }

    fn place(
        &mut self,
        replica: usize,
        host: &Channel,
        epochs: &[u32],
        stack: &Stack<'_>,
    ) -> Result<Channel, Failure> {
        let plan = stack.config.notation.plan();
        let setup = stack.setups(&plan).replica(replica as u8, epochs, self.device.is_some(), self.link_side);
        spawn::place_replica(&setup, host, &self.shared(&plan, stack.memory))
    }

    fn launch(
        &mut self,
        server: usize,
        program: &Program,
        epochs: &[u32],
        stack: &Stack<'_>,
    ) -> Result<(Option<Child>, Channel), Failure> {
        let plan = stack.config.notation.plan();
        let process =
            plan.processes().get(server).ok_or_else(|| Failure::new("a server that is not in the plan"))?;
        let (shared, setups) = (self.shared(&plan, stack.memory), stack.setups(&plan));
        let (child, control) = if process.has(Component::Ip) {
            spawn::start_ip_server(setups.ip_server(server, epochs), program, &shared)?
        } else if process.has(Component::Cm) {
            spawn::start_manager(setups.manager(server, epochs), program, &shared)?
        } else {
            spawn::start_link_server(setups.link_server(server, epochs), program, &shared)?
        };
        Ok((Some(child), control))
    }
}
