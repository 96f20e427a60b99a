use std::collections::BTreeSet;
use std::vec::Vec;

use atoll_base::Rng;
use atoll_ipc::control::User;
use atoll_ipc::lease::NO_USER;

use super::*;
use crate::users::Users;

const UNITS: u32 = 1 << 15;
const MAX: u64 = 4 << 20;

/// A session's memory, and the pages of it for which the kernel would have given memory.
struct Kept {
    memory: ReceiveMemory,
    pages: BTreeSet<usize>,
    blocks: Vec<(u32, u8)>,
}

fn session(books: &Arc<Books>, counts_for: Option<u32>, users: &mut Users) -> Kept {
    let user = User { uid: NO_USER, unprivileged_start: 0, ports: Default::default(), counts_for };
    let memory = ReceiveMemory::new(UNITS, books.clone(), users.of(&user, 10));
    Kept { memory, pages: BTreeSet::new(), blocks: Vec::new() }
}

fn books() -> Arc<Books> {
    Arc::new(Books { held: AtomicU64::new(0), max: AtomicU64::new(MAX) })
}

impl Kept {
    /// Takes a block and writes to all of it.
    fn take(&mut self, log2: u8) -> bool {
        let Some(unit) = self.memory.allocate(log2) else { return false };
        self.write(unit, log2);
        true
    }

    fn write(&mut self, unit: u32, log2: u8) {
        let at = unit as usize * UNIT_BYTES;
        self.pages.extend(pages_of(at..at + (1 << log2)));
        self.blocks.push((unit, log2));
    }

    fn give_back(&mut self, number: usize) {
        let (unit, log2) = self.blocks.swap_remove(number);
        self.memory.free(unit, log2);
    }

    fn discard(&mut self) {
        let pages = &mut self.pages;
        self.memory.discard_free(|at, len| {
            for page in whole_pages_of(&(at..at + len)) {
                pages.remove(&page);
            }
        });
    }

    fn octets(&self) -> u64 {
        octets(self.pages.len() as u32)
    }
}

#[test]
fn what_the_kernel_has_given_memory_for_is_known_to_the_page_and_never_more_than_allowed() {
    for seed in 0..40 {
        let (books, mut users, mut rng) = (books(), Users::default(), Rng::new(seed));
        let mut sessions: Vec<Kept> =
            (0..3).map(|user| session(&books, (user > 0).then_some(7), &mut users)).collect();
        let mut refused = 0;
        for _ in 0..4000 {
            let one = &mut sessions[rng.below(3) as usize];
            match rng.below(8) {
                0..=4 => refused += u32::from(!one.take(MIN_LOG2 + rng.below(9) as u8)),
                5 if rng.below(20) == 0 => one.discard(),
                // All blocks are freed, so that the area is one piece again.
                6 if rng.below(200) == 0 => {
                    (0..one.blocks.len()).rev().for_each(|number| one.give_back(number))
                }
                _ if !one.blocks.is_empty() => one.give_back(rng.below(one.blocks.len() as u32) as usize),
                _ => {}
            }
            let held: Vec<u64> = sessions.iter().map(Kept::octets).collect();
            assert_eq!(sessions.iter().map(|one| one.memory.held()).collect::<Vec<_>>(), held, "seed {seed}");
            let all: u64 = held.iter().sum();
            assert_eq!(books.held.load(Ordering::Relaxed), all, "seed {seed}");
            assert!(all <= MAX + 2 * FLOOR, "seed {seed}: {all}");
            assert!(held[1] + held[2] <= MAX / 2 + FLOOR, "seed {seed}: a user has a half: {held:?}");
        }
        assert!(refused > 0, "seed {seed}: there was always room");
        drop(sessions);
        assert_eq!(books.held.load(Ordering::Relaxed), 0);
    }
}

/// Text pours in, the connections that hold it are reset and return their memory, and this repeats. Buffers
/// have other sizes each time.
#[test]
fn memory_that_was_given_back_counts_from_the_moment_when_it_is_used_again() {
    let (books, mut users) = (books(), Users::default());
    let mut one = session(&books, None, &mut users);
    assert!(one.take(MIN_LOG2), "one that stays: the area is never one piece again");
    for log2 in [14, 20, 16, 21, 15, 19, 17, 20] {
        while one.take(log2) {}
        assert!(one.octets() > MAX / 2 && one.octets() <= MAX, "{} with buffers of 2^{log2}", one.octets());
        while one.blocks.len() > 1 {
            one.give_back(1);
        }
        one.discard();
        assert_eq!(one.octets(), PAGE as u64, "the page of the block that stays");
    }
}

#[test]
fn who_holds_little_gets_some_though_nothing_is_left_and_what_he_has_touched() {
    let (books, mut users) = (books(), Users::default());
    let [mut greedy, mut modest] = [(); 2].map(|()| session(&books, None, &mut users));
    assert!(modest.take(20) && modest.take(MIN_LOG2));
    modest.give_back(0);
    modest.discard();
    while greedy.take(16) {}
    assert!(greedy.octets() + modest.octets() > MAX - (64 << 10));
    // The session gets neither what was given back nor what was never used, beyond the least that it may
    // have.
    while modest.take(14) {}
    assert!((FLOOR - (16 << 10)..=FLOOR).contains(&modest.octets()), "{}", modest.octets());
    // The session may use again what it has already, as often as it likes.
    modest.give_back(modest.blocks.len() - 1);
    assert!(modest.take(14) && !modest.take(14));
    // Acknowledged text has to be stored somewhere.
    let unit = greedy.memory.unbounded().allocate(16).expect("there is room in the area");
    greedy.write(unit, 16);
    assert_eq!(greedy.memory.held(), greedy.octets());
}

#[test]
fn a_successor_counts_what_lies_before_the_last_block() {
    let (books, mut users) = (books(), Users::default());
    let one = session(&books, None, &mut users);
    assert_eq!(one.memory.resume(&mut [(100, 13), (UNITS, 11), (4, 12)]), [2]);
    assert_eq!(one.memory.held(), octets(52));
    let mut discarded = Vec::new();
    one.memory.discard_free(|at, len| discarded.push((at / UNIT_BYTES, len / UNIT_BYTES)));
    discarded.sort_unstable();
    assert!(discarded.iter().all(|(unit, len)| unit + len <= 100 && !(4..6).contains(unit)), "{discarded:?}");
    assert!(one.memory.held() < octets(12), "{}", one.memory.held());
}
