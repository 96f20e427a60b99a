//! What does a replica process do? For now it starts, says so, and waits for the end.

use std::io;
use std::process::ExitCode;

use atoll_ipc::control::Request;
use atoll_sys::process;
use atoll_sys::unix::Channel;
use rustix::event::{PollFd, PollFlags, poll};

use crate::rows;
use crate::setup::{READY, ReplicaSetup};

/// Runs a replica. Returns when told to stop.
pub fn main(setup: &ReplicaSetup) -> ExitCode {
    match serve(setup) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("atoll: replica {}: {error}", setup.index);
            ExitCode::FAILURE
        }
    }
}

fn serve(setup: &ReplicaSetup) -> io::Result<()> {
    let fds = process::take_inherited(setup.descriptors)?;
    let control = fds.into_iter().next().map(Channel::from).ok_or(io::ErrorKind::InvalidInput)?;
    control.send(READY, &[])?;
    loop {
        poll(&mut [PollFd::new(&control, PollFlags::IN)], None)?;
        let (mut packet, mut fds) = ([0; 4096], Vec::new());
        match control.receive(&mut packet, &mut fds) {
            Ok(0) => return Ok(()),
            Ok(len) => match Request::decode(&packet[..len]) {
                Ok(Request::Stop) => return Ok(()),
                Ok(Request::ListSockets { .. }) => {
                    rows::packets(Vec::new()).try_for_each(|packet| control.send(&packet, &[]))?
                }
                _ => {}
            },
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}
