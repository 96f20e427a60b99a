//! Measures what a channel costs: messages are encoded, sent, received and decoded.

use std::hint::black_box;
use std::io;

use atoll_base::{Duration, Epoch, ReplicaId};
use atoll_ipc::channel::{Channel, MESSAGE_BYTES};
use atoll_ipc::message::{Envelope, Role};
use atoll_ipc::{Memory, Message};

use crate::partner::{EPOCH, Side};

/// The number of messages that are under way at a time.
pub const WINDOW: u64 = 32;

fn question(n: u64) -> Envelope {
    Envelope {
        role: Role::Request(n as u32),
        message: Message::Hello { replica: ReplicaId(0), epoch: Epoch(n as u32) },
    }
}

/// Returns the answer to a message.
fn answer(payload: &[u8; MESSAGE_BYTES]) -> io::Result<[u8; MESSAGE_BYTES]> {
    match Envelope::decode(payload) {
        Ok(Envelope { role: Role::Request(call), message }) => {
            Ok(Envelope { role: Role::Reply(call, EPOCH), message }.encode())
        }
        other => Err(io::Error::other(format!("{other:?} is no question"))),
    }
}

fn push<M: Memory>(channel: &mut Channel<M>, payload: &[u8; MESSAGE_BYTES]) -> io::Result<()> {
    channel.push(payload).map_err(|_| io::Error::other("the ring is full"))
}

pub fn synchronous_ours(side: &Side, count: u64) -> io::Result<Option<Duration>> {
    let mut channel = side.our_channel();
    for n in 0..count {
        push(&mut channel, &question(n).encode())?;
        let _ = channel.publish();
        let mut payload = None;
        side.wait(|| {
            payload = channel.pop();
            payload.is_some()
        });
        black_box(payload.and_then(|payload| Envelope::decode(&payload).ok()));
    }
    channel.release();
    Ok(None)
}

pub fn synchronous_theirs(side: &Side, count: u64) -> io::Result<()> {
    let mut channel = side.their_channel();
    for _ in 0..count {
        let mut payload = None;
        side.wait(|| {
            payload = channel.pop();
            payload.is_some()
        });
        if let Some(payload) = payload {
            push(&mut channel, &answer(&payload)?)?;
        }
        let _ = channel.publish();
    }
    channel.release();
    Ok(())
}

/// Sends messages, of which no more than [`WINDOW`] are without an answer. Answers that have come are taken
/// before more is sent.
pub fn concurrent_ours(side: &Side, count: u64) -> io::Result<Option<Duration>> {
    let mut channel = side.our_channel();
    let (mut sent, mut received) = (0, 0);
    while received < count {
        side.wait(|| sent == received || channel.is_ready());
        while let Some(payload) = channel.pop() {
            black_box(Envelope::decode(&payload).ok());
            received += 1;
        }
        while sent < count && sent - received < WINDOW {
            push(&mut channel, &question(sent).encode())?;
            sent += 1;
        }
        let _ = channel.publish();
    }
    channel.release();
    Ok(None)
}

pub fn concurrent_theirs(side: &Side, count: u64) -> io::Result<()> {
    let mut channel = side.their_channel();
    let mut done = 0;
    while done < count {
        side.wait(|| channel.is_ready());
        while let Some(payload) = channel.pop() {
            push(&mut channel, &answer(&payload)?)?;
            done += 1;
        }
        let _ = channel.publish();
    }
    channel.release();
    Ok(())
}

pub fn one_way_ours(side: &Side, count: u64) -> io::Result<Option<Duration>> {
    let mut channel = side.our_channel();
    let mut sent = 0;
    while sent < count {
        for n in sent..count.min(sent + WINDOW) {
            let payload = question(n).encode();
            if channel.push(&payload).is_err() {
                let _ = channel.publish();
                side.wait(|| channel.push(&payload).is_ok());
            }
        }
        sent = count.min(sent + WINDOW);
        let _ = channel.publish();
    }
    // All messages have arrived when this one comes.
    side.wait(|| channel.pop().is_some());
    channel.release();
    Ok(None)
}

pub fn one_way_theirs(side: &Side, count: u64) -> io::Result<()> {
    let mut channel = side.their_channel();
    let mut done = 0;
    while done < count {
        side.wait(|| channel.is_ready());
        while let Some(payload) = channel.pop() {
            black_box(Envelope::decode(&payload).ok());
            done += 1;
        }
    }
    channel.release();
    push(&mut channel, &question(done).encode())?;
    let _ = channel.publish();
    Ok(())
}

/// Measures what the sender alone pays: its receiver is awake, but takes nothing.
pub fn publish_alone(_: &Side, count: u64) -> io::Result<Option<Duration>> {
    const CAPACITY: usize = 64;
    let (_, memory) =
        atoll_shm::ShmMemory::create("atoll-messages", atoll_ipc::channel::ring_bytes(CAPACITY))?;
    let mut sender = atoll_ipc::channel::Sender::resume(&memory, 0, CAPACITY, EPOCH);
    let mut receiver = atoll_ipc::channel::Receiver::resume(&memory, 0, CAPACITY, EPOCH);
    for n in 0..count {
        let _ = sender.push(&memory, &question(n).encode());
        let _ = sender.publish(&memory);
        black_box(receiver.pop(&memory));
    }
    Ok(None)
}
