//! The notes that a supervisor keeps with its guardian, and how the two exchange them; see
//! [`crate::guardian`].

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use atoll_sys::process::{self, Child, Spawn};
use atoll_sys::unix::{Blocking, Channel};
use rustix::event::{PollFd, PollFlags};
use serde::{Deserialize, Serialize};

use crate::runtime;

/// The name of the note about the stack; without it there is no stack yet.
pub const STACK: &str = "stack";
/// The name of the note of a supervisor that makes way; its descriptor is the program of the next supervisor.
pub const NEXT: &str = "next";
/// The name of a note by the guardian itself: why the next supervisor is not of the other build.
pub const STAYED: &str = "stayed";
/// The prefix of names of notes about connections to the control socket; they sort after all other names.
pub const CLIENTS: &str = "~client.";
/// Longest note in bytes: it holds a configuration.
const NOTE_MAX: usize = 128 << 10;

/// The messages from a supervisor to its guardian, and from the guardian to the next supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Note {
    /// Sets the text of a name. The descriptors that come with the note replace all earlier ones of that
    /// name.
    Put(String, String),
    /// Changes the text of a name, and keeps its descriptors.
    Amend(String, String),
    /// Removes a name, and closes its descriptors.
    Drop(String),
    /// The stack works, and all notes have been sent.
    Ready,
    /// There is another guardian, so this one ends.
    Dismissed,
    /// The stack ends.
    Bye,
}

/// The value of a name.
#[derive(Debug)]
pub struct Known {
    /// The text, as the supervisor wrote it.
    pub text: String,
    /// The descriptors that came with the text.
    pub descriptors: Vec<OwnedFd>,
}

/// Everything that a supervisor has noted, by name.
pub type Notes = BTreeMap<String, Known>;

/// Receives one note; returns `None` at the end of the connection.
pub fn receive(channel: &Channel, descriptors: &mut Vec<OwnedFd>) -> io::Result<Option<Note>> {
    let mut buffer = vec![0; NOTE_MAX];
    match channel.receive(&mut buffer, descriptors)? {
        0 => Ok(None),
        len => serde_json::from_slice(&buffer[..len]).map(Some).map_err(io::Error::from),
    }
}

/// Sends one note with its descriptors.
pub fn send(channel: &Channel, note: &Note, descriptors: &[impl AsFd]) -> io::Result<()> {
    let packet = serde_json::to_vec(note).map_err(io::Error::from)?;
    let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    channel.send(&packet, &descriptors)
}

/// Applies `note` if it changes the notes, and returns any other note.
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

/// Starts a guardian for this process. Returns the guardian and this end of the socket for notes.
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

/// Waits until the socket can take data, or its other end is gone.
pub fn wait_for_room(channel: &Channel) {
    wait_for(channel, PollFlags::OUT);
}

/// Waits until the socket is ready for `what`, or its other end is gone.
pub fn wait_for(channel: &Channel, what: PollFlags) {
    let _ = rustix::event::poll(&mut [PollFd::new(channel, what)], None);
}
