//! The doorbells of an application. Each of its threads sleeps on a doorbell of its own, and each doorbell is
//! rung once per sleep.

use atoll_ipc::Memory;
use atoll_ipc::page::{AppPage, BELLS};

/// The doorbells of a session.
#[derive(Debug)]
pub(crate) struct Bells<M: Memory> {
    /// The page with the sleep words.
    page: AppPage<M>,
    /// The doorbells to be considered at the end of the flush, a bit each.
    due: u32,
    /// The sleep word for which each doorbell was rung last.
    rung: [u32; BELLS],
}

impl<M: Memory> Bells<M> {
    /// Creates the doorbells, none of them due.
    pub(crate) const fn new(page: AppPage<M>) -> Bells<M> {
        Bells { page, due: 0, rung: [0; BELLS] }
    }

    /// Notes that this doorbell is to be rung if a thread sleeps on it; `None` means every doorbell.
    #[inline]
    pub(crate) fn note(&mut self, bell: Option<u32>) {
        self.due |= bell.map_or(u32::MAX, |bell| 1 << (bell as usize % BELLS));
    }

    /// Passes the doorbells that have to be rung now to `ring`. Each is rung once per sleep.
    pub(crate) fn take(&mut self, arena: &M, mut ring: impl FnMut(u32)) {
        if self.due == 0 {
            return;
        }
        let due = core::mem::take(&mut self.due);
        // Partner: the application stores its sleep word, fences, and checks the event ring once more.
        arena.fence();
        for bell in (0..BELLS as u32).filter(|bell| due & (1 << bell) != 0) {
            let word = self.page.sleep_word(bell);
            let rung = &mut self.rung[bell as usize];
            if word & 1 == 1 && *rung != word {
                *rung = word;
                ring(bell);
            }
        }
    }
}
