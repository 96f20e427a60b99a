//! What is known of each connection, wherever it is?

use atoll_connmgr::ListenerId;

/// One connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Connection {
    /// The client that opened it.
    pub(crate) client: u32,
    /// Its transport server, by number.
    pub(crate) ts: usize,
    pub(crate) listener: Option<ListenerId>,
    /// Requests that are left.
    pub(crate) requests: u32,
    /// Whether its request lies in the receive buffer.
    pub(crate) has_text: bool,
    /// The offer that counts, and to whom.
    pub(crate) offer: u64,
    pub(crate) app: usize,
    /// Nanoseconds; 0: not yet.
    pub(crate) offered_at: u64,
    /// Its last page is on its way.
    pub(crate) closed: bool,
    /// When it was offered for the first time.
    pub(crate) first_offered_at: u64,
    pub(crate) claimed: bool,
    /// Its application waits for a request.
    pub(crate) app_waits: bool,
    /// When the client began.
    pub(crate) opened_at: u64,
    /// When the last question to the connection manager was asked.
    pub(crate) asked_at: u64,
    /// Nanoseconds spent waiting for the connection manager.
    pub(crate) waited_for_cm: u64,
    pub(crate) is_open: bool,
}

/// All of them, by number.
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

    /// A connection that may be over: `None` then.
    pub(crate) fn find(&mut self, number: u32) -> Option<&mut Connection> {
        self.all.get_mut(number as usize).filter(|connection| connection.is_open)
    }

    /// Those that are not over.
    pub(crate) fn open_ones(&self) -> impl Iterator<Item = &Connection> {
        self.all.iter().filter(|connection| connection.is_open)
    }

    /// Nothing that names it is under way any more but deadlines.
    pub(crate) fn close(&mut self, number: u32) {
        self.all[number as usize].is_open = false;
        self.free.push(number);
    }
}
