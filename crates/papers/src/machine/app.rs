//! A simulated application: a web server that takes one connection after another and serves a page from
//! memory.

use super::items::{Batch, Item};
use super::{Handshake, Machine, Purpose};

/// An application process.
#[derive(Debug, Default)]
pub(crate) struct App {}

/// The number of cache lines of another core that the library fetches for a new connection: its slot and the
/// request, without the event's entry.
const LINES_ACCEPT: u32 = 4;
/// The number of cache lines that the library fetches for another request on the same connection.
const LINES_READ: u32 = 3;

impl Machine {
    pub(crate) fn run_app(&mut self, batch: &mut Batch, app: usize, item: Item) {
        match item {
            Item::Available { connection, offer } => self.accept(batch, connection, offer),
            Item::Readable { connection } => {
                // The event may be about what was found already, or about a connection that was revoked.
                let known = self.connections.find(connection).filter(|known| known.app == app);
                if known.is_some_and(|known| known.has_text && std::mem::take(&mut known.app_waits)) {
                    let ts = self.ts_core(connection);
                    self.fetch(batch, ts, LINES_READ);
                    self.answer(batch, app, connection);
                }
            }
            // The application sleeps in accept, or the manager has just answered that no connection waits. It
            // then sleeps until the manager sends news.
            Item::Waits { cm, waiting } => {
                if waiting {
                    self.send(batch, cm, Item::AskFor { app, takes: true });
                }
            }
            // `accept` is called again at once, and registers.
            Item::Removed { cm } => self.send(batch, cm, Item::Register { app }),
            _ => unreachable!("nothing else goes to applications"),
        }
    }

    fn accept(&mut self, batch: &mut Batch, connection: u32, offer: u64) {
        self.spend(batch, Purpose::App, self.costs.app_accept);
        let Some(known) = self.connections.find(connection).filter(|known| known.offer == offer) else {
            return; // It was taken back.
        };
        known.claimed = true;
        let (app, has_text) = (known.app, known.has_text);
        known.app_waits = !has_text;
        let ts = self.ts_core(connection);
        self.fetch(batch, ts, LINES_ACCEPT);
        self.send(batch, ts, Item::Claim { connection });
        if has_text {
            self.answer(batch, app, connection);
        }
    }

    /// Serves one request.
    fn answer(&mut self, batch: &mut Batch, app: usize, connection: u32) {
        let work = self.settings.work(&self.costs);
        self.spend(batch, Purpose::App, self.costs.app_request + work);
        let warm = self.began + self.settings.warm_up.as_nanos() as u64;
        batch.clock += self.settings.delay(app, batch.clock.saturating_sub(warm), batch.clock >= warm);
        let known = self.connections.get(connection);
        known.has_text = false;
        known.requests = known.requests.saturating_sub(1);
        let close = known.requests == 0;
        known.app_waits = !close;
        if close {
            self.spend(batch, Purpose::App, self.costs.app_close);
        }
        let ts = self.ts_core(connection);
        self.send(batch, ts, Item::Respond { connection, close });
        let handshake = self.settings.handshake;
        if close && handshake != Handshake::Speculative {
            // The application calls accept or select again, which asks and waits for the answer.
            let cm = self.cm[app % self.cm.len()];
            self.send(batch, cm, Item::AskFor { app, takes: handshake == Handshake::Accept });
        }
    }

    fn ts_core(&mut self, connection: u32) -> usize {
        self.ts[self.connections.get(connection).ts]
    }
}
