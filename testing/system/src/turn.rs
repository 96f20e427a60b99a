//! Which tests run at the same time, in all processes of this user?
//!
//! Networks, stacks and folders have names of their own, so all that tests share are the processors. Most
//! tests run beside others, as many at once as there are places. A test that judges how long something takes,
//! or that keeps the processors busy by itself, runs alone: [`alone`].

use std::cell::Cell;
use std::fs::File;
use std::marker::PhantomData;
use std::thread::available_parallelism;
use std::time::Duration;

/// The number of tests that run beside each other for each processor.
const PLACES_OF_PROCESSOR: usize = 3;

/// The right of a test to run, until it is dropped.
#[derive(Debug)]
pub struct Turn {
    _files: [File; 2],
}

/// The right of a test to run without others, until it is dropped. What the test makes meanwhile, such as a
/// [`Net`](crate::Net), does not wait for a turn of its own.
#[derive(Debug)]
pub struct Alone {
    _turn: Turn,
    // The mark belongs to the thread that has waited, so the value stays on that thread.
    _thread: PhantomData<*const ()>,
}

thread_local! {
    static IS_ALONE: Cell<bool> = const { Cell::new(false) };
}

/// Waits until no other test runs, and keeps others from running.
///
/// # Panics
/// If the temporary folder is not writable.
pub fn alone() -> Alone {
    assert!(!IS_ALONE.get(), "this test runs alone already");
    // While this thread holds the door, no other test enters, so the number of running tests falls.
    let door = open("door");
    door.lock().expect("files can be locked");
    let room = open("room");
    room.lock().expect("files can be locked");
    IS_ALONE.set(true);
    Alone { _turn: Turn { _files: [room, door] }, _thread: PhantomData }
}

impl Drop for Alone {
    fn drop(&mut self) {
        IS_ALONE.set(false);
    }
}

/// Waits for a place beside other tests. Returns `None` if this thread's test runs alone.
///
/// # Panics
/// If the temporary folder is not writable.
pub fn beside() -> Option<Turn> {
    if IS_ALONE.get() {
        return None;
    }
    // The test that holds the door is the next to get a place, so every test gets one in the end.
    let door = open("door");
    door.lock().expect("files can be locked");
    let room = open("room");
    room.lock_shared().expect("files can be locked");
    let places: Vec<File> = (0..places()).map(|number| open(&format!("place-{number}"))).collect();
    loop {
        if let Some(place) = places.iter().position(|place| place.try_lock().is_ok()) {
            let place = places.into_iter().nth(place).expect("it was found there");
            return Some(Turn { _files: [place, room] });
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the number of tests that run at once at most. Tests mostly wait for programs, timers and deaths,
/// so there are more places than processors.
fn places() -> usize {
    PLACES_OF_PROCESSOR * available_parallelism().map_or(1, usize::from)
}

/// Opens the file of a lock.
fn open(name: &str) -> File {
    let path = std::env::temp_dir().join(format!("atoll-system-tests.{name}"));
    File::create(path).expect("the temporary folder is writable")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn who_runs_alone_has_nobody_beside() {
        let (inside, most) = (AtomicU32::new(0), AtomicU32::new(0));
        thread::scope(|scope| {
            for number in 0..12 {
                let (inside, most) = (&inside, &most);
                scope.spawn(move || {
                    let is_alone = number % 3 == 0;
                    let _alone = is_alone.then(alone);
                    let turn = beside();
                    assert_eq!(turn.is_none(), is_alone);
                    let others = inside.fetch_add(1, Ordering::SeqCst);
                    most.fetch_max(others + 1, Ordering::SeqCst);
                    assert!(!is_alone || others == 0);
                    thread::sleep(Duration::from_millis(20));
                    assert!(!is_alone || inside.load(Ordering::SeqCst) == 1);
                    inside.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        let most = most.into_inner();
        assert!(most > 1 && most as usize <= places(), "{most} at once");
    }
}
