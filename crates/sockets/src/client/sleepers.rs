//! The threads of this process that sleep, and the doorbells on which they sleep.

use alloc::vec::Vec;

use atoll_ipc::page::BELLS;

/// The threads that sleep.
#[derive(Debug)]
pub(super) struct Sleepers {
    /// Threads that sleep in a call on one object: the object and the doorbell.
    on_objects: Vec<(u32, u32)>,
    /// The number of threads that sleep on each doorbell.
    asleep: [u32; BELLS],
    /// The doorbells, as bits, on which the running thread is about to sleep; it need not be woken.
    dozing: u16,
    next_bell: u32,
}

impl Sleepers {
    pub(super) const fn new() -> Sleepers {
        Sleepers { on_objects: Vec::new(), asleep: [0; BELLS], dozing: 0, next_bell: 0 }
    }

    /// Returns a doorbell for a new sleeper; sleepers share doorbells when there are more of them. Doorbell 0
    /// is the family's.
    pub(super) fn new_bell(&mut self) -> u32 {
        self.next_bell = self.next_bell.wrapping_add(1);
        1 + self.next_bell % (BELLS as u32 - 1)
    }

    /// Notes that a thread will sleep on `bell` until something happens to the object.
    pub(super) fn add(&mut self, object: u32, bell: u32) {
        self.on_objects.push((object, bell));
    }

    /// Notes that a thread does not sleep on the object any more.
    pub(super) fn remove(&mut self, object: u32, bell: u32) {
        if let Some(at) = self.on_objects.iter().position(|sleeper| *sleeper == (object, bell)) {
            self.on_objects.swap_remove(at);
        }
    }

    /// Removes an object that is gone.
    pub(super) fn forget(&mut self, object: u32) {
        self.on_objects.retain(|(sleeping, _)| *sleeping != object);
    }

    /// Returns the doorbell of one thread that sleeps on the object.
    pub(super) fn bell_of(&self, object: u32) -> Option<u32> {
        self.on_objects.iter().find(|(sleeping, _)| *sleeping == object).map(|(_, bell)| *bell)
    }

    /// Returns the doorbells, as bits, of all threads that sleep on the object.
    pub(super) fn bells_of(&self, object: u32) -> u16 {
        self.on_objects
            .iter()
            .fold(0, |bells, (sleeping, bell)| bells | u16::from(*sleeping == object) << bell)
    }

    /// Notes that the running thread is about to sleep on `bells`.
    pub(super) fn begin(&mut self, bells: u16) {
        self.dozing = bells;
        for bell in bits(bells) {
            self.asleep[bell as usize] += 1;
        }
    }

    /// Notes that the running thread blocks now: from here on others wake it.
    pub(super) fn doze_off(&mut self) {
        self.dozing = 0;
    }

    /// Notes that the running thread does not sleep on `bells` any more.
    pub(super) fn end(&mut self, bells: u16) {
        self.dozing = 0;
        for bell in bits(bells) {
            self.asleep[bell as usize] = self.asleep[bell as usize].saturating_sub(1);
        }
    }

    /// Returns whether any thread sleeps on a doorbell.
    pub(super) fn is_asleep(&self, bell: u32) -> bool {
        self.asleep[bell as usize] > 0
    }

    /// Returns whether a thread other than the running one sleeps on a doorbell.
    pub(super) fn has_others(&self, bell: u32) -> bool {
        self.asleep[bell as usize] > u32::from(self.dozing & 1 << bell != 0)
    }

    /// Returns all doorbells, as bits, on which a thread sleeps.
    pub(super) fn all(&self) -> u16 {
        (0..BELLS).filter(|bell| self.asleep[*bell] > 0).fold(0, |mask, bell| mask | 1 << bell)
    }

    /// Removes all threads: the child of a fork has one thread, which is awake.
    pub(super) fn clear(&mut self) {
        self.on_objects.clear();
        self.asleep = [0; BELLS];
        self.dozing = 0;
    }
}

/// Returns the numbers of the bits that are set.
pub(super) fn bits(mut mask: u16) -> impl Iterator<Item = u32> {
    core::iter::from_fn(move || {
        let bit = mask.trailing_zeros();
        (mask != 0).then(|| {
            mask &= mask - 1;
            bit
        })
    })
}
