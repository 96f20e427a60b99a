//! Descriptors that are reserved so that servers can be started when all others are taken. See
//! `atoll_supervisor::Budget`.

use std::os::fd::OwnedFd;

use atoll_supervisor::Budget;
use atoll_sys::eventfd;

/// Descriptors that are held open so that nothing else takes them.
#[derive(Debug, Default)]
pub struct Reserve {
    held: Vec<OwnedFd>,
    size: usize,
}

impl Reserve {
    pub fn new(budget: &Budget) -> Reserve {
        let mut reserve = Reserve { held: Vec::new(), size: budget.reserve() };
        reserve.refill();
        reserve
    }

    /// Closes the reserved descriptors, because something is about to be started that needs them.
    pub fn release(&mut self) {
        self.held.clear();
    }

    /// Opens the descriptors again, as far as there are any; the next call retries what is missing.
    pub fn refill(&mut self) {
        while self.held.len() < self.size {
            let Ok(descriptor) = eventfd::create() else { return };
            self.held.push(descriptor);
        }
    }

    /// Returns whether some descriptors are missing.
    #[cfg(test)]
    pub fn is_short(&self) -> bool {
        self.held.len() < self.size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserve_is_there_when_it_is_needed() {
        let mut reserve = Reserve::new(&Budget::new(1024, 2, 2, 1));
        assert!(!reserve.is_short());
        reserve.release();
        assert!(reserve.is_short() && reserve.held.is_empty());
        reserve.refill();
        assert!(!reserve.is_short());
    }
}
