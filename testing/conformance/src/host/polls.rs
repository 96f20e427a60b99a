//! Readiness: poll(2) and epoll(7), as in `libatoll.so`.

use atoll_sockets::client::Change;
use atoll_sockets::client::object::{Body, Object, Set};
use atoll_sockets::watch::Fired;
use atoll_sockets::{Errno, Failure};

use super::{Host, Outcome};

/// The operation of epoll_ctl(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// EPOLL_CTL_ADD.
    Add,
    /// EPOLL_CTL_MOD.
    Modify,
    /// EPOLL_CTL_DEL.
    Remove,
}

impl Host {
    /// Returns the events of poll(2) that are ready.
    pub fn readiness(&mut self, fd: i32) -> Result<u32, Failure> {
        let object = self.object(fd)?;
        self.client.prune(object);
        Ok(self.client.readiness(object))
    }

    /// Calls epoll_create(2).
    pub fn create_set(&mut self) -> Outcome {
        let set = Set::new(self.client.new_bell(), ());
        let object = self.client.insert(Object::new(Body::Epoll(Box::new(set)), false));
        Ok(self.add(object))
    }

    /// Returns the epoll instance behind a descriptor.
    fn set_of(&self, fd: i32) -> Result<u32, Errno> {
        let object = self.object(fd)?;
        self.client.set(object).map(|_| object).ok_or(Errno::EINVAL)
    }

    /// Calls epoll_ctl(2).
    pub fn control(&mut self, set: i32, control: Control, fd: i32, events: u32, data: u64) -> Outcome {
        let (set, target) = (self.set_of(set)?, self.object(fd)?);
        if target == set {
            return Err(Errno::EINVAL.into());
        }
        let change = match control {
            Control::Add => Change::Add(events, data),
            Control::Modify => Change::Modify(events, data),
            Control::Remove => Change::Delete,
        };
        self.client.control(set, target, fd, change)?;
        self.step();
        Ok(0)
    }

    /// Calls epoll_wait(2): returns what is ready now, at most `max` events.
    pub fn collect(&mut self, set: i32, max: usize) -> Result<Vec<Fired>, Failure> {
        let set = self.set_of(set)?;
        self.client.accept_watched(set);
        self.step();
        let mut fired = Vec::new();
        self.client.collect(set, max, |one| fired.push(one));
        Ok(fired)
    }
}
