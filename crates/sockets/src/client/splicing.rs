//! One step of splice(2) from a connection.

use super::Client;
use super::platform::Platform;
use crate::{Errno, Failure};

impl<P: Platform> Client<P> {
    /// Shows octets of a connection to `put`, at most as many as `room` holds, and takes those that `put`
    /// says it has taken: the others are received again. Returns how many it took; 0 means the end of the
    /// stream. `is_first` says that the call has taken none yet, so that it reports an error.
    ///
    /// They are copied to `room` before `put` sees them: the replica may take the memory of a connection
    /// away that it has ended, and nobody can take octets back from a pipe.
    pub fn splice_octets(
        &mut self,
        object: u32,
        room: &mut [u8],
        is_first: bool,
        put: impl FnOnce(&[u8]) -> Result<usize, Errno>,
    ) -> Result<usize, Failure> {
        let waits = !self.is_nonblocking(object);
        let turn = self.turn(object)?;
        let Some((stream, local, place)) = self.stream(object) else { return Err(Errno::ENOTCONN.into()) };
        if stream.is_at_mark(local) {
            // tcp_splice_read: it goes no further than an urgent octet, and does not wait at it.
            return if waits { Ok(0) } else { Err(Failure::WouldBlock) };
        }
        let found = stream.readable(local);
        if local.pass.is_some() {
            let kick = stream.pass(local);
            drop(turn);
            if kick {
                self.kick(place);
            }
            return found.map(|_| 0);
        }
        let readable = match found {
            Err(failure) => {
                local.error_taken &= is_first;
                return Err(failure);
            }
            Ok(readable) if readable.len == 0 => return Ok(0),
            Ok(readable) => readable,
        };
        let len = room.len().min(usize::try_from(readable.len).unwrap_or(usize::MAX));
        let octets = &mut room[..len];
        if !stream.copy_out(&readable, readable.head, octets) {
            return Err(stream.error().unwrap_or(Errno::ECONNRESET).into());
        }
        let taken = put(octets)?.min(len);
        let kick = stream.consume(readable.head + taken as u64);
        drop(turn);
        if kick {
            self.kick(place);
        }
        Ok(taken)
    }
}
