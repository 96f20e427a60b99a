//! The clients that open connections, on as many other machines as are needed.

use super::connections::Connection;
use super::cores::Origin;
use super::items::{Frame, Item, Reply};
use super::{Load, Machine, What};

/// The time after which a client retransmits a SYN that was dropped (RFC 6298 §2.1), in nanoseconds.
const SYN_AGAIN: u64 = 1_000_000_000;

impl Machine {
    pub(crate) fn start_clients(&mut self) {
        match self.settings.load {
            Load::Closed(clients) => {
                // Clients do not begin all at once: they have half of the warm-up.
                let spread = u32::try_from(self.settings.warm_up.as_nanos() / 2).unwrap_or(u32::MAX);
                for client in 0..clients {
                    let at = self.now + u64::from(self.rng.below(spread));
                    self.at(at, What::Open { client });
                }
            }
            Load::Constant(_) => self.at(self.now, What::Open { client: 0 }),
        }
    }

    /// Lets a client open a connection, whose source port decides where its frames go (P7).
    pub(crate) fn open(&mut self, client: u32) {
        if let Load::Constant(rate) = self.settings.load {
            self.at(self.now + 1_000_000_000 / u64::from(rate.max(1)), What::Open { client });
        }
        self.report.opened();
        self.connect(client, self.now);
    }

    fn connect(&mut self, client: u32, opened_at: u64) {
        let ts = self.rng.below(self.ts.len() as u32) as usize;
        let requests = self.settings.requests;
        let connection =
            self.connections.open(Connection { client, ts, requests, opened_at, ..Connection::default() });
        self.reach(connection, Frame::Syn);
    }

    /// Handles a dropped SYN. The next attempt has another number, and keeps the moment when the client
    /// began.
    pub(crate) fn try_again_later(&mut self, connection: u32) {
        let known = self.connections.get(connection);
        let client = known.client;
        self.connections.close(connection);
        // Under a constant load other clients come anyway.
        if matches!(self.settings.load, Load::Closed(_)) {
            self.at(self.now + SYN_AGAIN, What::Open { client });
        }
    }

    /// Handles a frame that reaches the client.
    pub(crate) fn handle_reply(&mut self, connection: u32, reply: Reply) {
        match reply {
            Reply::SynAck => {
                self.reach(connection, Frame::Ack);
                self.reach(connection, Frame::Text);
            }
            Reply::Text { last: false } => self.reach(connection, Frame::Text),
            Reply::Text { last: true } => {
                let known = self.connections.get(connection);
                let (client, took) = (known.client, self.now - known.opened_at);
                self.report.finished(took);
                self.reach(connection, Frame::Fin);
                if matches!(self.settings.load, Load::Closed(_)) {
                    self.at(self.now, What::Open { client });
                }
            }
            // The connection is over.
            Reply::Ack => {}
        }
    }

    fn reach(&mut self, connection: u32, frame: Frame) {
        let ls = self.link_of(connection);
        let at = self.now + self.settings.wire.as_nanos() as u64;
        self.at(at, What::Arrive { core: ls, from: Origin::Device, item: Item::Frame { connection, frame } });
    }
}
