//! systemd's journal as a log: a datagram for each event, to a socket that every process may write to.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

/// The journal, for writes that do not wait. It is found anew for each event, because it may be started
/// again.
#[derive(Debug)]
pub struct Journal {
    /// `None` if the kernel had no socket when the log was opened.
    socket: Option<UnixDatagram>,
    path: PathBuf,
}

impl Journal {
    /// Prepares for writing to the journal of this machine, whether it is there or not.
    pub fn open() -> Journal {
        Journal::at(Path::new(SOCKET))
    }

    fn at(path: &Path) -> Journal {
        let socket = UnixDatagram::unbound().and_then(|socket| socket.set_nonblocking(true).map(|()| socket));
        Journal { socket: socket.ok(), path: path.into() }
    }

    /// Checks that the journal can be written to. Fails with the reason if it cannot.
    pub fn check(&self) -> io::Result<()> {
        UnixDatagram::unbound()?.connect(&self.path)
    }

    /// Writes an entry as a whole, or fails with EAGAIN if the journal does not read.
    pub fn write(&self, entry: &[u8]) -> io::Result<()> {
        let socket = self.socket.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        // The standard library's sockets do not raise SIGPIPE.
        socket.send_to(entry, &self.path).map(|_| ())
    }
}

/// The socket of systemd-journald(8).
pub const SOCKET: &str = "/run/systemd/journal/socket";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_that_is_not_there_or_does_not_read_costs_no_time() {
        let folder = std::env::temp_dir().join(format!("atoll-journal-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("socket");
        let journal = Journal::at(&path);
        assert_eq!(journal.check().unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(journal.write(b"MESSAGE=nobody\n").is_err());
        let reader = UnixDatagram::bind(&path).unwrap();
        journal.check().unwrap();
        journal.write(b"MESSAGE=first\n").unwrap();
        let mut bytes = [0; 100];
        let len = reader.recv(&mut bytes).unwrap();
        assert_eq!(&bytes[..len], b"MESSAGE=first\n");
        let full = (0..100_000).find_map(|_| journal.write(&[b'x'; 1000]).err()).unwrap();
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        // Another journal takes over.
        drop(reader);
        std::fs::remove_file(&path).unwrap();
        assert!(journal.write(b"MESSAGE=lost\n").is_err());
        let _reader = UnixDatagram::bind(&path).unwrap();
        journal.write(b"MESSAGE=again\n").unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
