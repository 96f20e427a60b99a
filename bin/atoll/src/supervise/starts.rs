//! What do servers start with? A launcher, and descriptors that are held back for that: without them nothing
//! could be started when it is needed most.

use std::os::fd::OwnedFd;

use atoll_supervisor::Budget;

use super::launch::Launch;
use super::reserve::Reserve;
use crate::failure::Failure;

/// The means to start servers.
pub struct Starts {
    /// `None` once the stack has ended.
    launcher: Option<Box<dyn Launch>>,
    /// Descriptors to spare: for starting servers, and so that a connection can be taken and refused when
    /// there are no others.
    reserve: Reserve,
    budget: Budget,
}

impl Starts {
    /// With this launcher. `budget`: how many descriptors there are.
    pub fn new(launcher: Box<dyn Launch>, budget: Budget) -> Starts {
        Starts { launcher: Some(launcher), reserve: Reserve::new(&budget), budget }
    }

    /// The stack has ended: lets go of the device.
    pub fn end(&mut self) {
        self.launcher = None;
    }

    /// The queues of the device, if there is one.
    pub fn queues(&self) -> &[OwnedFd] {
        self.launcher.as_ref().map(|launcher| launcher.queues()).unwrap_or_default()
    }

    /// Whether there is room for one more session beside so many. `shared`: as for [`Budget::has_room`].
    pub fn has_room(&self, sessions: usize, clients: usize, shared: usize) -> bool {
        self.budget.has_room(sessions, clients, shared)
    }

    /// What was held back is free until [`Starts::refill`]. To be called before anything is started.
    pub fn release(&mut self) {
        self.reserve.release();
    }

    /// What a start has left of it is kept back for the next one.
    pub fn refill(&mut self) {
        self.reserve.refill();
    }

    /// What starts servers.
    pub fn launcher(&mut self) -> Result<&mut (dyn Launch + 'static), Failure> {
        self.launcher.as_deref_mut().ok_or_else(|| Failure::new("the stack has ended"))
    }
}

#[cfg(test)]
impl Starts {
    /// There are so many descriptors.
    pub fn set_budget(&mut self, budget: Budget) {
        self.budget = budget;
    }

    /// Whether some that should be held back are not.
    pub fn is_short(&self) -> bool {
        self.reserve.is_short()
    }
}
