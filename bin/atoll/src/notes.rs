//! What does a supervisor note with its guardian, and how do the two talk? See [`crate::guardian`].

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use atoll_sys::process::{self, Child, Spawn};
use atoll_sys::unix::{Blocking, Channel};
use rustix::event::{PollFd, PollFlags};
use serde::{Deserialize, Serialize};

use crate::runtime;

/// The note without which there is no stack yet.
pub const STACK: &str = "stack";
/// The note of a supervisor that makes way: of this build is the next one to be.
pub const NEXT: &str = "next";
/// What the guardian itself notes: why the next one is not of that build.
pub const STAYED: &str = "stayed";
/// Names of notes about connections to the control socket begin so, and no others are behind them.
pub const CLIENTS: &str = "~client.";
/// Longest note: a configuration.
const NOTE_MAX: usize = 128 << 10;

/// What a supervisor tells its guardian, and what that tells the next one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Note {
    /// This is so. The descriptors that come with it take the place of those that came before.
    Put(String, String),
    /// This is so now. The descriptors stay.
    Amend(String, String),
    /// This is not so any more. The descriptors are closed.
    Drop(String),
    /// The stack works, and this was all there is to say of it.
    Ready,
    /// There is another guardian.
    Dismissed,
    /// The stack ends.
    Bye,
}

/// What is known under a name.
#[derive(Debug)]
pub struct Known {
    /// As the supervisor wrote it.
    pub text: String,
    /// What came with it.
    pub descriptors: Vec<OwnedFd>,
}

/// Everything that a supervisor has noted, by name.
pub type Notes = BTreeMap<String, Known>;

/// Receives one note; `None` at the end.
pub fn receive(channel: &Channel, descriptors: &mut Vec<OwnedFd>) -> io::Result<Option<Note>> {
    let mut buffer = vec![0; NOTE_MAX];
    match channel.receive(&mut buffer, descriptors)? {
        0 => Ok(None),
        len => serde_json::from_slice(&buffer[..len]).map(Some).map_err(io::Error::from),
    }
}

/// Sends one note.
pub fn send(channel: &Channel, note: &Note, descriptors: &[impl AsFd]) -> io::Result<()> {
    let packet = serde_json::to_vec(note).map_err(io::Error::from)?;
    let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    channel.send(&packet, &descriptors)
}

/// Notes what `note` says. Returns it if it says something else.
pub fn take_note(notes: &mut Notes, note: Note, descriptors: Vec<OwnedFd>) -> Option<Note> {
    match note {
        Note::Put(name, text) => {
            notes.insert(name, Known { text, descriptors });
        }
        Note::Amend(name, text) => {
            if let Some(known) = notes.get_mut(&name) {
                known.text = text;
            }
        }
        Note::Drop(name) => {
            notes.remove(&name);
        }
        other => return Some(other),
    }
    None
}

/// Starts a guardian for this process. Returns it with this end of the socket for notes.
pub fn start_another(job: &str) -> io::Result<(Child, Channel)> {
    let (ours, theirs) = Channel::pair(Blocking::No)?;
    let pid = std::process::id();
    let own = process::pidfd_open(pid)?;
    let mut spawn = Spawn::this_binary("atoll")?;
    spawn.env(runtime::DIRECTORY_VARIABLE, runtime::directory())?;
    spawn.arg("supervise")?.arg(job)?.arg("--guardian-of")?.arg(pid.to_string())?;
    spawn.inherit(own.as_fd());
    spawn.inherit(theirs.as_fd());
    Ok((spawn.start()?, ours))
}

/// Waits until a socket takes something, or its other end is gone.
pub fn wait_for_room(channel: &Channel) {
    wait_for(channel, PollFlags::OUT);
}

/// Waits until a socket is ready for something, or its other end is gone.
pub fn wait_for(channel: &Channel, what: PollFlags) {
    let _ = rustix::event::poll(&mut [PollFd::new(channel, what)], None);
}
