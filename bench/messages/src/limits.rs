//! Measures what the processor and the kernel allow. No message layer can be faster.

use std::hint::black_box;
use std::io;
use std::sync::atomic::{Ordering, fence};

use atoll_base::Duration;
use atoll_ipc::Memory;

use crate::partner::{CREDIT, STREAM, STREAM_LINES, Side, WORD};

/// Sends a word back and forth: odd values go there, even ones come back.
pub fn line_ours(side: &Side, count: u64) -> io::Result<Option<Duration>> {
    let word = side.word(WORD);
    let start = word.load(Ordering::Relaxed);
    for n in 0..count as u32 {
        word.store(start.wrapping_add(2 * n + 1), Ordering::Release);
        let answer = start.wrapping_add(2 * n + 2);
        side.wait(|| word.load(Ordering::Acquire) == answer);
    }
    Ok(None)
}

pub fn line_theirs(side: &Side, count: u64) -> io::Result<()> {
    let word = side.word(WORD);
    // The other process may have begun already.
    let start = word.load(Ordering::Relaxed) & !1;
    for n in 0..count as u32 {
        let question = start.wrapping_add(2 * n + 1);
        side.wait(|| word.load(Ordering::Acquire) == question);
        word.store(question.wrapping_add(1), Ordering::Release);
    }
    Ok(())
}

/// Fills lines one after another, each of which the other process reads; the reader reports its progress
/// every 256 lines.
pub fn stream_ours(side: &Side, count: u64) -> io::Result<Option<Duration>> {
    let m = &side.memory;
    m.store64_release(CREDIT, 0);
    for line in 0..STREAM_LINES {
        m.store64(STREAM + line as usize * 64, 0);
    }
    m.store32_release(WORD + 4, 1);
    for n in 0..count {
        if n % 256 == 0 {
            side.wait(|| m.load64_acquire(CREDIT) + STREAM_LINES >= n + 256);
        }
        m.store64_release(STREAM + (n % STREAM_LINES) as usize * 64, n + 1);
    }
    side.wait(|| m.load64_acquire(CREDIT) >= count);
    Ok(None)
}

pub fn stream_theirs(side: &Side, count: u64) -> io::Result<()> {
    let m = &side.memory;
    side.wait(|| m.load32_acquire(WORD + 4) == 1);
    m.store32(WORD + 4, 0);
    for n in 0..count {
        let at = STREAM + (n % STREAM_LINES) as usize * 64;
        side.wait(|| m.load64_acquire(at) == n + 1);
        if (n + 1) % 256 == 0 {
            m.store64_release(CREDIT, n + 1);
        }
    }
    m.store64_release(CREDIT, count);
    Ok(())
}

/// Measures the fence alone, after a store that hits the own cache.
pub fn fences(side: &Side, count: u64) -> io::Result<Option<Duration>> {
    for n in 0..count {
        side.memory.store64(CREDIT, n);
        fence(Ordering::SeqCst);
        black_box(side.memory.load32(WORD));
    }
    Ok(None)
}

/// Measures what a sleeper would pay if senders had no fence.
pub fn membarrier_ours(side: &Side, count: u64) -> io::Result<Option<Duration>> {
    for _ in 0..count {
        rustix::thread::membarrier(rustix::thread::MembarrierCommand::GlobalExpedited)?;
    }
    side.memory.store32_release(WORD + 8, 1);
    Ok(None)
}

pub fn membarrier_theirs(side: &Side, _: u64) -> io::Result<()> {
    side.wait(|| side.memory.load32_acquire(WORD + 8) == 1);
    side.memory.store32(WORD + 8, 0);
    Ok(())
}
