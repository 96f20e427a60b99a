//! The state of each connection, wherever it is.

use atoll_connmgr::ListenerId;

/// A connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Connection {
    /// The client that opened the connection.
    pub(crate) client: u32,
    /// The number of its transport server.
    pub(crate) ts: usize,
    pub(crate) listener: Option<ListenerId>,
    /// The number of requests that are left.
    pub(crate) requests: u32,
    /// Whether a request lies in the receive buffer.
    pub(crate) has_text: bool,
    /// The number of the current offer; an older one does not count.
    pub(crate) offer: u64,
    pub(crate) app: usize,
    /// The moment of the current offer in nanoseconds; 0 before the first.
    pub(crate) offered_at: u64,
    /// Whether the last page was sent.
    pub(crate) closed: bool,
    /// The moment of the first offer.
    pub(crate) first_offered_at: u64,
    pub(crate) claimed: bool,
    /// Whether its application waits for a request.
    pub(crate) app_waits: bool,
    /// The moment when the client began.
    pub(crate) opened_at: u64,
    /// The moment of the last question to the connection manager.
    pub(crate) asked_at: u64,
    /// The nanoseconds spent waiting for the connection manager.
    pub(crate) waited_for_cm: u64,
    pub(crate) is_open: bool,
}

/// All connections, by number.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    all: Vec<Connection>,
    free: Vec<u32>,
}

impl Connections {
    pub(crate) fn open(&mut self, connection: Connection) -> u32 {
        let connection = Connection { is_open: true, ..connection };
        match self.free.pop() {
            Some(number) => {
                self.all[number as usize] = connection;
                number
            }
            None => {
                self.all.push(connection);
                (self.all.len() - 1) as u32
            }
        }
    }

    pub(crate) fn get(&mut self, number: u32) -> &mut Connection {
        let connection = &mut self.all[number as usize];
        debug_assert!(connection.is_open, "nothing names a connection that is over");
        connection
    }

    /// Returns a connection, or `None` if it is over.
    pub(crate) fn find(&mut self, number: u32) -> Option<&mut Connection> {
        self.all.get_mut(number as usize).filter(|connection| connection.is_open)
    }

    /// Returns the connections that are not over.
    pub(crate) fn open_ones(&self) -> impl Iterator<Item = &Connection> {
        self.all.iter().filter(|connection| connection.is_open)
    }

    /// Frees the number of a connection. Nothing that names it may be under way any more but deadlines.
    pub(crate) fn close(&mut self, number: u32) {
        self.all[number as usize].is_open = false;
        self.free.push(number);
    }
}
