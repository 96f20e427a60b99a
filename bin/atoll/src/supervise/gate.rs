//! Who may come in, and what may he have? The sockets that a stack listens at, whom it is for, and which
//! ports users may have.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use atoll_ipc::control::User;
use atoll_supervisor::{Door, Rights};
use atoll_sys::epoll::{Epoll, EventFlags};
use atoll_sys::unix::{Blocking, Channel, Peer};

use super::doors::{Doors, asker};
use super::tokens::{ADMINISTRATION, LISTENER};
use super::users::Users;

/// The way into the stack.
pub struct Gate {
    doors: Doors,
    /// Who may ask for what.
    rights: Rights,
    users: Users,
}

impl Gate {
    /// One with these sockets, for whom `rights` says.
    pub fn new(doors: Doors, rights: Rights, users: Users) -> Gate {
        Gate { doors, rights, users }
    }

    /// Lets clients connect.
    pub fn open(&self, epoll: &Epoll) -> io::Result<()> {
        epoll.add(&self.doors.applications, LISTENER, EventFlags::IN)?;
        epoll.add(&self.doors.administration, ADMINISTRATION, EventFlags::IN)
    }

    /// The next connection at a door.
    pub fn accept(&self, door: Door) -> io::Result<Channel> {
        self.doors.listener(door).accept(Blocking::No)
    }

    /// The sockets for applications and for administration, for the next supervisor.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.doors.applications.as_fd(), self.doors.administration.as_fd()]
    }

    /// Who may ask for what.
    pub fn rights(&self) -> &Rights {
        &self.rights
    }

    /// Whether who has these credentials may have sessions of its own.
    pub fn may_attach(&self, peer: Peer) -> bool {
        self.rights.may_attach(asker(peer))
    }

    /// Whether somebody may ask for what concerns the stack as a whole. `opened`: who has connected; `asks`:
    /// who has sent the request.
    pub fn may_administer(&self, opened: Peer, asks: Option<Peer>) -> bool {
        self.rights.may_administer(asker(opened), asks.map(asker))
    }

    /// Whether a process that has these credentials now may have `port`.
    pub fn may_bind(&self, peer: &Peer, port: u16) -> bool {
        self.users.may_bind(peer, port)
    }

    /// What a session may have that `peer` opens.
    pub fn user_of(&self, peer: &Peer) -> User {
        self.users.anybody(peer)
    }

    /// What a session may have of which it is known for whom it counts.
    pub fn counting_for(&self, counts_for: Option<u32>) -> User {
        self.users.counting_for(counts_for)
    }
}
