//! Lets the supervisor send without ever waiting: what a socket does not take now is queued.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use atoll_sys::unix::Channel;

use crate::failure::is_shortage;

/// Packets that are to be sent to one process.
#[derive(Debug, Default)]
pub struct Outbox {
    packets: VecDeque<Packet>,
    bytes: usize,
    /// Whether the system was short of something when the next packet was to be sent.
    is_starved: bool,
}

#[derive(Debug)]
struct Packet {
    bytes: Vec<u8>,
    descriptors: Vec<Rc<OwnedFd>>,
}

impl Outbox {
    /// Appends a packet.
    pub fn push(&mut self, bytes: Vec<u8>, descriptors: Vec<Rc<OwnedFd>>) {
        self.bytes += bytes.len() + PACKET_OVERHEAD;
        self.packets.push_back(Packet { bytes, descriptors });
    }

    /// Sends what the socket takes. An error means that the other end is gone, or does not read what it asked
    /// for.
    pub fn flush(&mut self, channel: &Channel) -> io::Result<()> {
        self.is_starved = false;
        while let Some(packet) = self.packets.front() {
            let descriptors: Vec<_> = packet.descriptors.iter().map(|fd| fd.as_fd()).collect();
            match channel.send(&packet.bytes, &descriptors) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // Too many descriptors are in flight (unix(7), ETOOMANYREFS), or there is no memory: the
                // other end is not to blame.
                Err(error) if is_shortage(&error) => {
                    self.is_starved = true;
                    break;
                }
                Err(error) => return Err(error),
            }
            self.bytes -= packet.bytes.len() + PACKET_OVERHEAD;
            self.packets.pop_front();
        }
        if self.bytes > BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::OutOfMemory, "it does not read what it asked for"));
        }
        Ok(())
    }

    /// Returns whether packets wait because the system was short of something; the socket does not report
    /// when that has passed.
    pub fn is_starved(&self) -> bool {
        self.is_starved
    }

    /// Returns how many octets wait, with what each packet costs.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns whether no packet is waiting.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }
}

/// The cost of a waiting packet in bytes besides its content, so that many short ones count too.
const PACKET_OVERHEAD: usize = 256;
/// The most bytes that wait for one process: a listing of the sockets of a large stack.
const BYTES_MAX: usize = 256 << 20;

#[cfg(test)]
mod tests {
    use atoll_sys::unix::Blocking;

    use super::*;

    #[test]
    fn packets_wait_in_order_until_the_peer_reads() {
        let (a, b) = Channel::pair(Blocking::No).unwrap();
        let mut outbox = Outbox::default();
        for n in 0..2000u32 {
            outbox.push(vec![(n % 251) as u8; 1000], Vec::new());
        }
        outbox.flush(&a).unwrap();
        assert!(!outbox.is_empty(), "two megabytes do not fit a socket");
        let (mut buffer, mut fds) = ([0; 2000], Vec::new());
        for n in 0..2000u32 {
            outbox.flush(&a).unwrap();
            assert_eq!(b.receive(&mut buffer, &mut fds).unwrap(), 1000);
            assert_eq!(u32::from(buffer[0]), n % 251);
        }
        assert!(outbox.is_empty());
        drop(b);
        outbox.push(vec![1], Vec::new());
        assert!(outbox.flush(&a).is_err());
    }

    #[test]
    fn a_peer_that_never_reads_is_given_up() {
        let (a, _b) = Channel::pair(Blocking::No).unwrap();
        let mut outbox = Outbox::default();
        for _ in 0..BYTES_MAX / 50_000 + 10 {
            outbox.push(vec![0; 50_000], Vec::new());
        }
        assert!(outbox.flush(&a).is_err());
    }
}
