//! The calls on datagram sockets, as in `libatoll.so`.

use std::cell::Cell;

use atoll_base::{Addr, Endpoint};
use atoll_ipc::datagram::DATAGRAM_MAX;
use atoll_sockets::Errno;
use atoll_sockets::Failure;
use atoll_sockets::ancillary::Addressed;
use atoll_sockets::client::simulated::Opening;
use atoll_sockets::client::transfer::Receiving;

use super::{Host, Outcome};

impl Host {
    /// Calls connect(2).
    pub(super) fn connect_datagrams(&mut self, fd: i32, remote: Endpoint) -> Outcome {
        let object = self.object(fd)?;
        if self.is_fresh(fd) {
            self.bind(fd, Some(Endpoint::at(self.family.any(), 0)))?;
        }
        let opening = Opening::connect(&mut self.client, object, remote)?;
        self.finish(opening)?;
        Ok(0)
    }

    /// Calls sendto(2), or send(2) where no peer is named.
    pub fn send_datagram(&mut self, fd: i32, len: usize, to: Option<Endpoint>) -> Outcome {
        let object = self.object(fd)?;
        if len > DATAGRAM_MAX as usize {
            return Err(Errno::EMSGSIZE.into());
        }
        if self.is_fresh(fd) {
            let to = to.ok_or(Errno::EDESTADDRREQ)?;
            let any = if to.addr.is_v4() { Addr::V4_ANY } else { self.family.any() };
            self.bind(fd, Some(Endpoint::at(any, 0)))?;
        }
        let (octets, to) = (vec![0; len], Addressed::to(to));
        let sent = self.client.send_datagram(object, std::iter::once(&octets[..]), len, to, false);
        self.step();
        sent.map(|()| len as i64)
    }

    /// Calls recv(2) or a related call: receives a datagram, of which at most `most` octets are taken.
    pub(super) fn receive_datagram(&mut self, fd: i32, most: usize, peek: bool) -> Outcome {
        let object = self.object(fd)?;
        if self.is_fresh(fd) {
            return Err(Failure::WouldBlock);
        }
        let mut bytes = vec![0; most.min(DATAGRAM_MAX as usize)];
        // The targets are asked for once, because the socket does not merge datagrams.
        let (target, how) = (Cell::new(Some(&mut bytes[..])), Receiving { peek, ..Receiving::default() });
        let received = self.client.receive_datagram(object, || target.take().into_iter(), how);
        self.step();
        let received = received?;
        self.last_peer = received.peer.map(|(peer, _)| peer).or(self.last_peer);
        Ok(received.len as i64)
    }
}
