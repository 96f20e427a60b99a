//! Who starts the processes of servers, for the first time and again?

use std::os::fd::OwnedFd;
use std::rc::Rc;

use atoll_supervisor::{Component, Config};
use atoll_sys::process::Child;
use atoll_sys::unix::Channel;

use super::device::TapDevice;
use super::memory::StackMemory;
use super::report::Identity;
use super::spawn::{self, Shared};
use super::succession::Program;
use crate::failure::Failure;
use crate::setup::LinkSide;

/// Starts servers. The supervisor's tests have one of their own.
pub trait Launch {
    /// The queues of the device, if there is one.
    fn queues(&self) -> &[OwnedFd] {
        &[]
    }

    /// Starts the server with this number, of this build, as the incarnation that `epochs`, by number, say of it. Returns its process, and the
    /// control socket's end.
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

impl Launch for Launcher {
    fn queues(&self) -> &[OwnedFd] {
        self.device.as_ref().map_or(&[], |device| &device.queues)
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
        let queues: &[OwnedFd] = self.device.as_ref().map_or(&[], |device| &device.queues);
        let shared = Shared { plan: &plan, program, memory, queues, link: &self.link };
        // Cannot truncate: there are few servers.
        let number = server as u8;
        let (child, control) = if process.has(Component::Ts) {
            let (has_device, side) = (self.device.is_some(), self.link_side);
            spawn::start_replica(
                super::replica_setup(config, identity, &plan, epochs, number, has_device, side),
                &shared,
            )?
        } else if process.has(Component::Ip) {
            spawn::start_ip_server(super::ip_server_setup(config, identity, &plan, epochs, number), &shared)?
        } else if process.has(Component::Cm) {
            spawn::start_manager(super::manager_setup(config, identity, &plan, epochs, number), &shared)?
        } else {
            spawn::start_link_server(super::link_server_setup(config, identity, &plan, epochs, number), &shared)?
        };
        Ok((Some(child), control))
    }
}
