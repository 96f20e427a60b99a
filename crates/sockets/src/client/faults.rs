//! The network errors about what a datagram socket has sent, and the completions of sends with MSG_ZEROCOPY:
//! ip(7), `IP_RECVERR`; recv(2), `MSG_ERRQUEUE`.
//!
//! They come as records between the datagrams, and are told before datagrams that came before them, as on
//! Linux, which keeps them in a queue of their own. poll(2) and its kin look past the datagrams that wait,
//! and leave the errors where they are, so that each process that shares the socket sees them. A call that
//! tells an error moves all of them into a queue of its process, from which calls with MSG_ERRQUEUE read
//! them; the next other call fails with the errno of the last one. As with datagrams, of several processes
//! one gets an error.
//!
//! How far errors were looked for, and which were taken, is one position in the slot
//! ([`atoll_ipc::slot::Slot::errors_seen`]), so each record is looked at once.

use alloc::boxed::Box;
use alloc::vec::Vec;

use atoll_base::Endpoint;
use atoll_ipc::Ready;
use atoll_ipc::command::Protocol;

use super::Client;
use super::fault_queue::Entry;
use super::notify::when;
use super::object::{Kind, Place, Socket};
use super::platform::Platform;
use super::transfer::Received;
use crate::ancillary::{self, Addressed, Queued};
use crate::copies::Copies;
use crate::datagram::TakenError;
use crate::options::Name;
use crate::{Errno, Failure};

impl<P: Platform> Client<P> {
    /// Takes the errors in the slots of a socket that asks for errors.
    pub(super) fn take_faults(&mut self, object: u32) -> Result<(), Failure> {
        let Some(socket) = self.socket(object) else { return Ok(()) };
        let Kind::Datagram(datagram) = &socket.kind else { return Ok(()) };
        if !socket.keeps_errors() {
            return Ok(());
        }
        for at in 0..datagram.places.len() {
            if let Some(place) = self.socket(object).and_then(|socket| socket.places().get(at)).copied() {
                self.take_faults_at(object, place)?;
            }
        }
        Ok(())
    }

    /// Takes the errors in one slot, and leaves what has no room in this process, but for one: a hostile
    /// replica may write them without end, and the lock of the state is held.
    pub(super) fn take_faults_at(&mut self, object: u32, place: Place) -> Result<(), Failure> {
        let Some(Socket { kind: Kind::Datagram(datagram), .. }) = self.socket(object) else { return Ok(()) };
        let most = datagram.faults.room().max(1);
        let turn = self.turn(object)?;
        let mut all = Vec::new();
        let kick = self.datagrams(place).is_some_and(|slot| slot.take_faults(most, |taken| all.push(taken)));
        drop(turn);
        if kick {
            self.kick(place);
        }
        if let Some(Socket { kind: Kind::Datagram(datagram), .. }) = self.socket_mut(object) {
            for TakenError { to, fault, quoted } in all {
                datagram.faults.push(to, Entry::Network(fault, quoted));
            }
        }
        Ok(())
    }

    /// Returns whether datagrams wait in the slots of a socket, and whether errors do, which stay where they
    /// are. Only a socket that asks for errors, or has done so, has any there.
    pub(super) fn waiting_in_slots(&self, object: u32) -> Ready {
        let Some(socket) = self.socket(object) else { return Ready::empty() };
        let places = || socket.places().iter().filter_map(|place| self.datagrams(*place));
        let has_asked =
            [Name::ReceiveErrors, Name::ReceiveErrorsV6].map(|name| socket.options.set_value(name).is_some());
        let turn = if has_asked.contains(&true) { self.turn(object).ok() } else { None };
        if turn.is_none() {
            // Without a turn the errors are announced later.
            return when(places().any(|one| one.has_waiting()), Ready::READABLE);
        }
        let has_datagram = places().any(|one| one.first_datagram().is_some());
        let has_error = socket.keeps_errors() && places().any(|one| one.has_fault());
        when(has_datagram, Ready::READABLE) | when(has_error, Ready::ERR)
    }

    /// Forgets the errors that wait, because the program has switched one of the options off that ask for
    /// them (do_ip_setsockopt, do_ipv6_setsockopt).
    pub(super) fn purge_faults(&mut self, object: u32) -> Result<(), Failure> {
        for place in self.socket(object).map(|socket| socket.places().to_vec()).unwrap_or_default() {
            self.take_faults_at(object, place)?;
            let _turn = self.turn(object)?;
            if let Some(slot) = self.datagrams(place) {
                slot.forget_faults();
            }
        }
        if let Some(Socket { kind: Kind::Datagram(datagram), .. }) = self.socket_mut(object) {
            datagram.faults.purge();
        }
        Ok(())
    }

    /// Returns the completions of sends of a connection or a datagram socket.
    fn copies(&mut self, object: u32) -> Option<&mut Copies> {
        match &mut self.socket_mut(object)?.kind {
            Kind::Stream(_, local) => Some(&mut local.copies),
            Kind::Datagram(datagram) => Some(&mut datagram.faults.copies),
            _ => None,
        }
    }

    /// Notes that a call with MSG_ZEROCOPY has sent what it is to send. Without `SO_ZEROCOPY` the flag means
    /// nothing.
    pub fn note_copied(&mut self, object: u32) {
        if !self.socket(object).is_some_and(|socket| socket.options.is_on(Name::ZeroCopy)) {
            return;
        }
        if let Some(copies) = self.copies(object) {
            copies.add();
            self.announce(object, Ready::ERR);
        }
    }

    /// Notes that a call with `len` octets for `to` has failed with EMSGSIZE (ip_local_error,
    /// ipv6_local_error). Linux has no entry for what is longer than any packet of IPv4.
    pub(super) fn note_too_long(&mut self, object: u32, to: Addressed<'_>, len: usize) {
        let Some(socket) = self.socket(object) else { return };
        let Kind::Datagram(datagram) = &socket.kind else { return };
        let peer = to.peer.unwrap_or(socket.remote);
        let is_v4 = peer.addr.is_v4();
        let name = if is_v4 { Name::ReceiveErrors } else { Name::ReceiveErrorsV6 };
        let segments = ancillary::parse(to.control, peer.addr).map_or(0, |asked| asked.segment.unwrap_or(0));
        let is_divided = segments != 0 || socket.options.value(Name::Segment) != 0;
        if !socket.options.is_on(name) || is_divided || is_v4 && len > usize::from(u16::MAX) {
            return;
        }
        // ip_append_data: the port is that of the socket's peer.
        let port = match (socket.protocol, is_v4) {
            (Protocol::Udp, true) if !datagram.connected => 0,
            (Protocol::Udp, true) => socket.remote.port,
            (Protocol::Udp, false) => peer.port,
            _ => 0,
        };
        let mtu = self.packet_max_to(socket, peer.addr);
        let Some(socket) = self.socket_mut(object) else { return };
        if let Kind::Datagram(datagram) = &mut socket.kind {
            datagram.faults.push(Endpoint::at(peer.addr, port), Entry::TooLong(mtu));
            self.announce(object, Ready::ERR);
        }
    }

    /// Receives the completions that wait, or the oldest error, with what it quotes of the packet behind the
    /// header that the program did not write: recvmsg(2) with MSG_ERRQUEUE. Never waits.
    pub fn receive_fault<'b>(
        &mut self,
        object: u32,
        targets: impl Iterator<Item = &'b mut [u8]>,
    ) -> Result<Received, Failure> {
        if let Some(done) = self.copies(object).and_then(Copies::take) {
            return Ok(Received { queued: Some(Box::new(Queued::Copied(done))), ..Received::default() });
        }
        if let Some(Socket { kind: Kind::Datagram(datagram), .. }) = self.socket(object)
            && datagram.faults.room() > 0
        {
            self.take_faults(object)?;
        }
        let Some(socket) = self.socket_mut(object) else { return Err(Errno::EBADF.into()) };
        let v6 = socket.v6;
        // The program has written the header of an echo request, and not that of UDP.
        let has_header = socket.protocol.is_icmp();
        let Kind::Datagram(datagram) = &mut socket.kind else { return Err(Failure::WouldBlock) };
        let (to, entry) = datagram.faults.pop().ok_or(Failure::WouldBlock)?;
        let (text, queued) = match entry {
            Entry::Network(fault, quoted) => {
                let header = if has_header { &fault.quoted.0[..] } else { &[] };
                ([header, &quoted].concat(), Queued::Fault(fault))
            }
            Entry::TooLong(mtu) => (Vec::new(), Queued::TooLong(mtu)),
        };
        let mut len = 0;
        for target in targets {
            let now = target.len().min(text.len() - len);
            target[..now].copy_from_slice(&text[len..len + now]);
            len += now;
        }
        let truncated = len < text.len();
        Ok(Received {
            len,
            peer: Some((to, v6)),
            truncated,
            queued: Some(Box::new(queued)),
            ..Received::default()
        })
    }
}
