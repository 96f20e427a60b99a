//! The access to a stack: the sockets that it listens at, the users that it serves, and the ports that they
//! may have.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use atoll_ipc::command::Protocol;
use atoll_ipc::control::User;
use atoll_supervisor::{Door, Rights};
use atoll_sys::epoll::{Epoll, EventFlags};
use atoll_sys::unix::{Blocking, Channel, Peer};

use super::doors::{Doors, asker};
use super::tokens::{ADMINISTRATION, LISTENER};
use super::users::Users;

/// The access to the stack.
pub struct Gate {
    doors: Doors,
    /// The users that may ask for what.
    rights: Rights,
    users: Users,
}

impl Gate {
    /// Creates the access through these sockets for the users of `rights`.
    pub fn new(doors: Doors, rights: Rights, users: Users) -> Gate {
        Gate { doors, rights, users }
    }

    /// Lets clients connect.
    pub fn open(&self, epoll: &Epoll) -> io::Result<()> {
        epoll.add(&self.doors.applications, LISTENER, EventFlags::IN)?;
        epoll.add(&self.doors.administration, ADMINISTRATION, EventFlags::IN)
    }

    /// Accepts the next connection at a door.
    pub fn accept(&self, door: Door) -> io::Result<Channel> {
        self.doors.listener(door).accept(Blocking::No)
    }

    /// Returns the sockets for applications and for administration, for the next supervisor.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.doors.applications.as_fd(), self.doors.administration.as_fd()]
    }

    /// Returns the rights of users.
    pub fn rights(&self) -> &Rights {
        &self.rights
    }

    /// Returns whether a process with these credentials may have sessions of its own.
    pub fn may_attach(&self, peer: Peer) -> bool {
        self.rights.may_attach(asker(peer))
    }

    /// Returns whether a request may concern the stack as a whole. `opened` has connected; `asks` has sent
    /// the request, if the kernel says which process did.
    pub fn may_administer(&self, opened: Peer, asks: Option<Peer>) -> bool {
        self.rights.may_administer(asker(opened), asks.map(asker))
    }

    /// Returns whether a process that has these credentials now may have `port` of `protocol`.
    pub fn may_bind(&self, peer: &Peer, protocol: Protocol, port: u16) -> bool {
        match protocol {
            Protocol::Raw => self.users.may_open_raw(peer),
            Protocol::Icmp | Protocol::Tcp | Protocol::Udp => self.users.may_bind(peer, port),
        }
    }

    /// Returns the rights of a session that `peer` opens.
    pub fn user_of(&self, peer: &Peer) -> User {
        self.users.anybody(peer)
    }

    /// Returns the rights of a session that counts for the user `counts_for`.
    pub fn counting_for(&self, counts_for: Option<u32>) -> User {
        self.users.counting_for(counts_for)
    }
}
