//! What servers are started with: a launcher, and reserved descriptors, without which nothing could be
//! started when it is needed most.

use std::os::fd::OwnedFd;

use atoll_supervisor::Budget;

use super::launch::Launch;
use super::reserve::Reserve;
use crate::failure::Failure;

/// The means to start servers.
pub struct Starts {
    /// The launcher; `None` once the stack has ended.
    launcher: Option<Box<dyn Launch>>,
    /// Reserved descriptors: for starting servers, and to accept and refuse a connection when there are no
    /// others.
    reserve: Reserve,
    budget: Budget,
}

impl Starts {
    /// Creates the means from a launcher and the budget of descriptors.
    pub fn new(launcher: Box<dyn Launch>, budget: Budget) -> Starts {
        Starts { launcher: Some(launcher), reserve: Reserve::new(&budget), budget }
    }

    /// Drops the launcher, and thereby the device, when the stack has ended.
    pub fn end(&mut self) {
        self.launcher = None;
    }

    /// Returns the queues of the device, if there is one.
    pub fn queues(&self) -> &[OwnedFd] {
        self.launcher.as_ref().map(|launcher| launcher.queues()).unwrap_or_default()
    }

    /// Returns whether there is room for one more session beside these numbers of sessions and clients.
    /// `shared` has its meaning from [`Budget::has_room`].
    pub fn has_room(&self, sessions: usize, clients: usize, shared: usize) -> bool {
        self.budget.has_room(sessions, clients, shared)
    }

    /// Frees the reserved descriptors until [`Starts::refill`]. Call it before anything is started.
    pub fn release(&mut self) {
        self.reserve.release();
    }

    /// Reserves descriptors again, as far as there are any.
    pub fn refill(&mut self) {
        self.reserve.refill();
    }

    /// Returns the launcher, or an error if the stack has ended.
    pub fn launcher(&mut self) -> Result<&mut (dyn Launch + 'static), Failure> {
        self.launcher.as_deref_mut().ok_or_else(|| Failure::new("the stack has ended"))
    }
}

#[cfg(test)]
impl Starts {
    /// Sets the budget of descriptors.
    pub fn set_budget(&mut self, budget: Budget) {
        self.budget = budget;
    }

    /// Returns whether some descriptors are missing from the reserve.
    pub fn is_short(&self) -> bool {
        self.reserve.is_short()
    }
}
