//! Answers requests of the command line. `atoll_supervisor::Questions` decides when; this asks the replicas,
//! and passes on their answers.

use std::io;

use atoll_base::Instant;
use atoll_supervisor::{Answer, ClientId, ReportPart};

use super::Supervisor;
use crate::clock;
use crate::supervise::doors::caller;
use crate::supervise::ending::Role;
use crate::supervise::servers::ServerSlot;

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

    /// Passes on a packet with some sockets of a replica.
    pub(super) fn pass_rows(&mut self, packet: &[u8]) -> io::Result<()> {
        for id in self.clients.questions().hearers() {
            self.clients.send(id, packet.to_vec(), Vec::new())?;
        }
        Ok(())
    }

    pub(super) fn tell_hearers(&mut self, part: &ReportPart) -> io::Result<()> {
        self.pass_rows(&serde_json::to_vec(part).map_err(io::Error::from)?)
    }

    /// Ends the listing if no replica is still to list its sockets. Call it when a replica has listed all of
    /// them, or will not.
    pub(super) fn listing_goes_on(&mut self) -> io::Result<()> {
        if !self.clients.questions().is_listing() || self.servers.replicas().iter().any(ServerSlot::lists) {
            return Ok(());
        }
        // These clients may ask again.
        for id in self.clients.questions_mut().listed(clock::now()) {
            self.clients.answer(id, &ReportPart::Done(true))?;
        }
        Ok(())
    }
}
