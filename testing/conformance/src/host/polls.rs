//! What is ready? poll(2) and epoll(7), over the same lists of watches as in `libatoll.so`.

use atoll_base::SlotId;
use atoll_ipc::command::Protocol;
use atoll_sockets::watch::{Fired, Head};
use atoll_sockets::{Errno, Failure};

use super::{Host, Kind, Outcome};

/// What epoll_ctl(2) is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// EPOLL_CTL_ADD.
    Add,
    /// EPOLL_CTL_MOD.
    Modify,
    /// EPOLL_CTL_DEL.
    Remove,
}

impl Host {
    /// The bits of poll(2) that hold.
    pub fn readiness(&mut self, fd: i32) -> Result<u32, Failure> {
        let socket = self.socket_mut(fd)?;
        let (lease, is_shut) = (socket.lease, socket.protocol == Protocol::Udp);
        match socket.kind {
            Kind::Listening => Ok(if self.offers.iter().any(|(of, _)| *of == lease) { 0x41 } else { 0 }),
            Kind::Set { .. } => Ok(0),
            Kind::Datagram { .. } => self.datagram_readiness(fd),
            // tcp_poll: a socket that is not connected has hung up.
            Kind::Fresh => Ok(if is_shut { 0x104 } else { 0x114 }),
            Kind::Stream { .. } => self.with_stream(fd, |stream, local| Ok(stream.readiness(local))),
        }
    }

    /// epoll_create(2).
    pub fn create_set(&mut self) -> Outcome {
        Ok(self.add(Kind::Set { members: Head::default(), ready: Head::default() }, Protocol::Tcp))
    }

    /// epoll_ctl(2).
    pub fn control(&mut self, set: i32, control: Control, fd: i32, events: u32, data: u64) -> Outcome {
        let Kind::Set { mut members, mut ready } = self.socket_mut(set)?.kind else { return Err(Errno::EINVAL.into()) };
        let mut watchers = self.socket_mut(fd)?.watchers;
        let found = self.watches.find(&watchers, set as u32, fd);
        let looked = match (control, found) {
            (Control::Add, None) => {
                Some(self.watches.add((set as u32, &mut members), (fd as u32, &mut watchers), fd, events, data))
            }
            (Control::Modify, Some(watch)) => {
                self.watches.modify(watch, events, data);
                Some(watch)
            }
            (Control::Remove, Some(watch)) => {
                self.watches.remove(watch, &mut members, &mut ready, &mut watchers);
                None
            }
            (Control::Add, Some(_)) => return Err(Errno::EEXIST.into()),
            (_, None) => return Err(Errno::ENOENT.into()),
        };
        self.socket_mut(fd)?.watchers = watchers;
        if let Some(watch) = looked {
            let bits = self.readiness(fd)?;
            self.watches.queue(watch, bits, &mut ready);
        }
        self.socket_mut(set)?.kind = Kind::Set { members, ready };
        Ok(0)
    }

    /// epoll_wait(2): what is ready now, at most `max`.
    pub fn collect(&mut self, set: i32, max: usize) -> Result<Vec<Fired>, Failure> {
        let Kind::Set { members, mut ready } = self.socket_mut(set)?.kind else { return Err(Errno::EINVAL.into()) };
        let bits: Vec<(i32, u32)> = self
            .sockets
            .keys()
            .copied()
            .collect::<Vec<_>>()
            .into_iter()
            .map(|fd| (fd, self.readiness(fd).unwrap_or(8)))
            .collect();
        let now = |target: u32| bits.iter().find(|(fd, _)| *fd as u32 == target).map_or(0, |(_, bits)| *bits);
        let mut fired = Vec::new();
        self.watches.collect(&mut ready, max, now, |one| fired.push(one));
        self.socket_mut(set)?.kind = Kind::Set { members, ready };
        Ok(fired)
    }

    /// The replica says that something holds of the socket in a slot.
    pub(super) fn announce_slot(&mut self, of: SlotId, at: u32, bits: u32) {
        let found = self.sockets.iter().find(|(_, socket)| match socket.kind {
            Kind::Stream { slot, generation, .. } | Kind::Datagram { slot, generation } => {
                (slot, generation) == (of, at)
            }
            _ => false,
        });
        if let Some(fd) = found.map(|(fd, _)| *fd) {
            if bits & 8 != 0 {
                self.note_datagram_error(fd);
            }
            self.announce(fd, bits | (bits & 1) << 6 | (bits & 4) << 6);
        }
    }

    /// A connection waits.
    pub(super) fn announce_listener(&mut self, lease: u64) {
        let found = self.sockets.iter().find(|(_, socket)| socket.lease == lease);
        if let Some(fd) = found.map(|(fd, _)| *fd) {
            self.announce(fd, 0x41);
        }
    }

    fn announce(&mut self, fd: i32, bits: u32) {
        let Some(watchers) = self.sockets.get(&fd).map(|socket| socket.watchers) else { return };
        let mut watch = self.watches.first(&watchers);
        while let Some(set) = self.watches.get(watch).map(|watch| watch.set) {
            if let Some(super::Socket { kind: Kind::Set { ready, .. }, .. }) = self.sockets.get_mut(&(set as i32)) {
                self.watches.queue(watch, bits, ready);
            }
            watch = self.watches.next_of_target(watch);
        }
    }

    fn note_datagram_error(&mut self, fd: i32) {
        if let Some(super::Socket { kind: Kind::Datagram { slot, generation }, .. }) = self.sockets.get(&fd) {
            atoll_sockets::datagram::Datagrams::new(&self.port, *slot, *generation).error_arrived();
        }
    }

    /// The descriptor is closed: nobody watches it any more, and it watches nobody.
    pub(super) fn forget_watches(&mut self, fd: i32) {
        let sets: Vec<i32> = self.sockets.keys().copied().collect();
        for set in sets {
            for (set, target) in [(set, fd), (fd, set)] {
                let _ = self.control(set, Control::Remove, target, 0, 0);
            }
        }
    }
}
