//! What do calls do to a datagram socket? As in `libatoll.so`.

use atoll_base::{Addr, Endpoint};
use atoll_ipc::Command;
use atoll_sockets::datagram::Datagrams;
use atoll_sockets::{Errno, Failure};

use super::{BELL, Host, Kind, Outcome};

impl Host {
    /// Opens a bound datagram socket, or gives it another peer.
    pub(super) fn open_datagrams(&mut self, fd: i32, remote: Endpoint) -> Result<(), Failure> {
        let socket = self.socket_mut(fd)?;
        let (lease, local) = (socket.lease, socket.local);
        let place = match socket.kind {
            Kind::Datagram { slot, generation } => (slot, generation),
            _ => {
                let (slot, generation) = self.port.allocate_slot().ok_or(Errno::ENOBUFS)?;
                if let Some(view) = self.port.slot(slot) {
                    view.set_holders(1);
                    view.set_bell(BELL);
                }
                (slot, generation)
            }
        };
        let (slot, generation) = place;
        self.push(&Command::UdpOpen { slot, generation, lease, local, remote, reuse_port: false, v6_only: false });
        let socket = self.socket_mut(fd)?;
        socket.remote = remote;
        socket.kind = Kind::Datagram { slot, generation };
        Ok(())
    }

    /// connect(2).
    pub(super) fn connect_datagrams(&mut self, fd: i32, remote: Endpoint) -> Outcome {
        let local = Endpoint::at(self.family.local(), 0);
        if self.is_fresh(fd) {
            self.bind(fd, Some(local))?;
        }
        let socket = self.socket_mut(fd)?;
        if socket.local.addr.is_unspecified() {
            socket.local.addr = local.addr;
        }
        self.open_datagrams(fd, remote)?;
        Ok(0)
    }

    fn with_datagrams<T>(
        &mut self,
        fd: i32,
        act: impl FnOnce(&Datagrams<'_, atoll_ipc::HeapMemory>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let Kind::Datagram { slot, generation } = self.socket_mut(fd)?.kind else { return Err(Failure::WouldBlock) };
        act(&Datagrams::new(&self.port, slot, generation))
    }

    fn kick_datagrams(&mut self, fd: i32) -> Result<(), Failure> {
        if let Kind::Datagram { slot, generation } = self.socket_mut(fd)?.kind {
            self.push(&Command::Kick { slot, generation });
        }
        Ok(())
    }

    /// sendto(2), or send(2) where no peer is named.
    pub fn send_datagram(&mut self, fd: i32, len: usize, to: Option<Endpoint>) -> Outcome {
        if len > atoll_sockets::datagram::DATAGRAM_MAX {
            return Err(Errno::EMSGSIZE.into());
        }
        if self.is_fresh(fd) {
            let any = if to.is_some_and(|to| to.addr.is_v4()) { Addr::V4_ANY } else { self.family.any() };
            self.bind(fd, Some(Endpoint::at(any, 0)))?;
        }
        let connected = self.socket_mut(fd)?.remote;
        let peer = to.or((connected.port != 0).then_some(connected)).ok_or(Errno::EDESTADDRREQ)?;
        self.with_datagrams(fd, |socket| {
            if let Some(errno) = socket.take_error() {
                return Err(errno.into());
            }
            socket.send(peer, false, len, [&vec![0; len][..]].into_iter())
        })?;
        self.kick_datagrams(fd)?;
        Ok(len as i64)
    }

    /// recv(2) and its kin: a datagram, of which `most` octets are taken.
    pub(super) fn receive_datagram(&mut self, fd: i32, most: usize, peek: bool) -> Outcome {
        let (len, peer, kick) = self.with_datagrams(fd, |socket| {
            if let Some(errno) = socket.take_error() {
                return Err(errno.into());
            }
            let waiting = socket.waiting().ok_or(Failure::WouldBlock)?;
            let len = socket.copy_out(&waiting, 0, &mut vec![0; most.min(waiting.len)]);
            Ok((len, waiting.peer, !peek && socket.consume(&waiting)))
        })?;
        self.last_peer = Some(peer);
        if kick {
            self.kick_datagrams(fd)?;
        }
        Ok(len as i64)
    }

    /// SO_ERROR of a datagram socket.
    pub(super) fn take_datagram_error(&mut self, fd: i32) -> Outcome {
        if self.is_fresh(fd) {
            return Ok(0);
        }
        self.with_datagrams(fd, |socket| Ok(socket.take_error().map_or(0, |errno| errno.0.into())))
    }

    /// The bits of poll(2) that hold.
    pub(super) fn datagram_readiness(&mut self, fd: i32) -> Result<u32, Failure> {
        if self.is_fresh(fd) {
            return Ok(0x104);
        }
        self.with_datagrams(fd, |socket| {
            let readable = if socket.has_waiting() { 0x41 } else { 0 };
            let writable = if socket.is_writable() { 0x104 } else { 0 };
            Ok(readable | writable | if socket.has_error() { 8 } else { 0 })
        })
    }
}
