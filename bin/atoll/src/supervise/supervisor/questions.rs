//! Answers requests of the command line. `atoll_supervisor::Questions` decides when; this asks the replicas,
//! and passes on their answers.

use std::io;

use atoll_base::Instant;
use atoll_ipc::listing;
use atoll_supervisor::{Answer, ClientId, Door, ReportPart};

use super::Supervisor;
use crate::clock;
use crate::supervise::doors::caller;
use crate::supervise::ending::Role;
use crate::supervise::servers::ServerSlot;
use crate::supervise::socket_entries;

impl Supervisor {
    /// Handles a client's request for a listing of the sockets.
    pub(super) fn ask_for_listing(&mut self, id: ClientId) -> io::Result<()> {
        let Some(client) = self.clients.get(id) else { return Ok(()) };
        let caller = caller(client.peer());
        self.clients.questions_mut().ask_for_listing(id, &caller);
        self.clients.flush(id)?;
        self.answer_questions(clock::now())
    }

    /// Handles a client's request for a report of the stack's status.
    pub(super) fn ask_for_report(&mut self, id: ClientId) -> io::Result<()> {
        let Some(client) = self.clients.get(id) else { return Ok(()) };
        let caller = caller(client.peer());
        self.clients.questions_mut().ask_for_report(id, &caller);
        self.clients.flush(id)?;
        self.answer_questions(clock::now())
    }

    /// Gives the answers that are due.
    pub(super) fn answer_questions(&mut self, now: Instant) -> io::Result<()> {
        while let Some(answer) = self.clients.questions_mut().poll(now) {
            match answer {
                Answer::Report(askers) => {
                    let began = clock::now();
                    self.send_report(&askers)?;
                    self.clients.questions_mut().reported(now, clock::now().since(began));
                }
                Answer::Listing => self.begin_listing()?,
            }
        }
        Ok(())
    }

    fn send_report(&mut self, askers: &[ClientId]) -> io::Result<()> {
        let mut parts = self.report();
        parts.push(ReportPart::Done(true));
        for part in &parts {
            let packet = serde_json::to_vec(part).map_err(io::Error::from)?;
            for &id in askers {
                self.clients.send(id, packet.clone(), Vec::new())?;
            }
        }
        Ok(())
    }

    /// Asks the replicas for their sockets.
    fn begin_listing(&mut self) -> io::Result<()> {
        for index in self.servers.replica_numbers() {
            if !self.servers.ask_for_listing(index)? {
                let part = ReportPart::Restarting(Role::Replica(index).to_string());
                self.tell_hearers(&part)?;
            }
        }
        self.listing_goes_on()
    }

    /// Passes on a packet with some sockets of a replica: unchanged to the command line, and without what
    /// programs are not shown to applications.
    pub(super) fn pass_rows(&mut self, packet: &[u8]) -> io::Result<()> {
        let (applications, others) = self.hearers();
        for id in others {
            self.clients.send(id, packet.to_vec(), Vec::new())?;
        }
        if applications.is_empty() {
            return Ok(());
        }
        let entries = socket_entries::of(packet, |session| self.user_of(session));
        for id in applications {
            for part in entries.chunks(listing::ENTRIES_MAX) {
                self.clients.send(id, listing::encode(part), Vec::new())?;
            }
            if self.clients.get(id).is_some_and(|client| client.waiting_bytes() > WAITING_MAX) {
                self.close_client(id)?;
            }
        }
        Ok(())
    }

    /// Sends the command line a part of the listing under way.
    pub(super) fn tell_hearers(&mut self, part: &ReportPart) -> io::Result<()> {
        let packet = serde_json::to_vec(part).map_err(io::Error::from)?;
        for id in self.hearers().1 {
            self.clients.send(id, packet.clone(), Vec::new())?;
        }
        Ok(())
    }

    /// Returns the clients that receive the listing under way: applications, and others.
    fn hearers(&self) -> (Vec<ClientId>, Vec<ClientId>) {
        self.clients.questions().hearers().into_iter().partition(|id| self.is_application(*id))
    }

    fn is_application(&self, id: ClientId) -> bool {
        self.clients.get(id).is_some_and(|client| client.door() == Door::Applications)
    }

    /// Returns the user of the first process in a session; root, as the kernel does, where there is none.
    fn user_of(&self, session: u32) -> u32 {
        let first = self.books.members(session).next();
        first.and_then(|(_, id)| self.clients.get(id)).map_or(0, |client| client.peer().uid)
    }

    /// Ends the listing if no replica is still to list its sockets. Call it when a replica has listed all of
    /// them, or will not.
    pub(super) fn listing_goes_on(&mut self) -> io::Result<()> {
        if !self.clients.questions().is_listing() || self.servers.replicas().iter().any(ServerSlot::lists) {
            return Ok(());
        }
        // These clients may ask again.
        for id in self.clients.questions_mut().listed(clock::now()) {
            match self.is_application(id) {
                true => self.clients.send(id, listing::encode(&[]), Vec::new())?,
                false => self.clients.answer(id, &ReportPart::Done(true))?,
            }
        }
        Ok(())
    }
}

/// The most octets of a listing that wait for a program. A program that reads more slowly than replicas list,
/// and has as many sockets in its listing, is cut off.
const WAITING_MAX: usize = 8 << 20;
