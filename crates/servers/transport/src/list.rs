//! Lists the sockets, for `atoll ss`.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use atoll_base::{Endpoint, Instant};
use atoll_ipc::command::Protocol;
use atoll_ipc::{Memory, tcp_state};

use crate::datagrams::Datagram;
use crate::facts::{ConnectionFacts, SocketFacts};
use crate::names::Name;
use crate::transport::Transport;

/// The progress of a listing. Sockets that come and go between two slices may be missing, or be listed twice,
/// as in /proc/net/tcp.
#[derive(Debug, Default)]
pub struct Listing {
    part: Part,
    /// The next place in the part.
    at: usize,
    /// The connections in TIME-WAIT that were listed: some are queued twice.
    told: BTreeSet<Name>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Part {
    #[default]
    Listeners,
    Connections,
    TimeWaits,
    Datagrams,
    Over,
}

impl Part {
    const fn next(self) -> Part {
        match self {
            Part::Listeners => Part::Connections,
            Part::Connections => Part::TimeWaits,
            Part::TimeWaits => Part::Datagrams,
            Part::Datagrams | Part::Over => Part::Over,
        }
    }
}

impl Listing {
    /// Returns whether everything was listed.
    pub fn is_over(&self) -> bool {
        self.part == Part::Over
    }
}

impl<M: Memory> Transport<M> {
    /// Returns every socket of this replica, listeners first. What the application has read is as of its last
    /// report. Called after [`Transport::adopt_rest`]: connections of a predecessor that are not continued
    /// yet are missing.
    pub fn sockets(&self, now: Instant) -> impl Iterator<Item = SocketFacts> + '_ {
        let mut listing = Listing::default();
        core::iter::from_fn(move || (!listing.is_over()).then(|| self.list(now, &mut listing, usize::MAX)))
            .flatten()
    }

    /// Returns the next sockets of a listing, at most `count`, and all of one kind; none if there are no more
    /// of that kind. A listing that waits costs nothing.
    pub fn list(&self, now: Instant, listing: &mut Listing, count: usize) -> Vec<SocketFacts> {
        let mut facts = Vec::new();
        let (from, mut next) = (listing.at, listing.at);
        match listing.part {
            Part::Listeners => {
                facts.extend(self.listener_facts().skip(from).take(count).inspect(|_| next += 1))
            }
            Part::Connections => {
                facts.extend(self.connections.iter_from(from as u32).take(count).map(|(index, entry)| {
                    next = index as usize + 1;
                    ConnectionFacts::of(now, entry, self.connections.tuple(&entry.name), &self.applications)
                        .row()
                }))
            }
            Part::TimeWaits => {
                for (name, is_there) in self.connections.time_waits().queued_from(from).take(count) {
                    next += 1;
                    if is_there && listing.told.insert(*name) {
                        let tuple = self.connections.tuple(name);
                        facts.push(SocketFacts::new(
                            Protocol::Tcp,
                            tcp_state::TIME_WAIT,
                            tuple.local,
                            tuple.remote,
                        ));
                    }
                }
            }
            Part::Datagrams => {
                facts.extend(self.datagrams.iter_from(from as u32).take(count).map(|(index, socket)| {
                    next = index as usize + 1;
                    self.datagram_facts(socket)
                }))
            }
            Part::Over => {}
        }
        // Some places may be passed over, but each call makes progress.
        if next == from {
            (listing.part, listing.at) = (listing.part.next(), 0);
            listing.told.clear();
        } else {
            listing.at = next;
        }
        facts
    }

    fn listener_facts(&self) -> impl Iterator<Item = SocketFacts> + '_ {
        self.cm.listeners().map(|listener| SocketFacts {
            session: listener.session,
            receive_queue: listener.unclaimed.into(),
            send_queue: listener.backlog.into(),
            v6_only: listener.v6_only,
            ..SocketFacts::new(Protocol::Tcp, tcp_state::LISTEN, listener.local, Endpoint::default())
        })
    }

    fn datagram_facts(&self, socket: &Datagram) -> SocketFacts {
        SocketFacts {
            session: self.applications.get(socket.place().session).map(|session| session.id),
            receive_queue: socket.received(),
            send_queue: socket.unsent(),
            v6_only: socket.v6_only(),
            ..SocketFacts::new(
                socket.protocol(),
                if socket.remote().is_some() { tcp_state::ESTABLISHED } else { tcp_state::CLOSED },
                socket.local(),
                socket.remote().unwrap_or_default(),
            )
        }
    }

    /// Returns the octets of heap that all connections hold beside themselves. It walks all of them, and is
    /// for tests.
    pub fn heap_bytes(&self) -> usize {
        self.connections.iter().map(|(_, entry)| entry.connection.heap_bytes() + entry.parked_len()).sum()
    }
}
