//! The attacks on a stack from its own applications, and what is to stop each.
//!
//! [`ATTACKS`] is the one list. `tests/attacks.rs` runs each attack against a neighbour whose text is checked
//! octet by octet, and whose answers are timed. `make attacks` runs all of them, `make attacks
//! ATTACKS="groups bells"` some, and `ATTACK_SECONDS=60` says for how long.
//!
//! To add an attack, write it in `src/bin/attacker.rs` (without the library), `programs/misbehave.c` (by the
//! socket API) or `programs/intruder.py` (after giving up root), and add a row. The program prints
//! `attacking` when it has begun, and runs until it is killed. It prints `SUCCEEDED` if it got what no
//! program should get.
#![forbid(unsafe_code)]

/// The program that carries out an attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// `src/bin/attacker.rs`, which makes a session by hand, or uses nothing but the control socket.
    Raw,
    /// `programs/misbehave.c`, which uses the socket API.
    Sockets,
    /// `programs/misbehave.c`, with a crowd of clients at the other end.
    Crowded,
    /// `programs/intruder.py`, a process that was root.
    Intruder,
    /// A signal from an administrator to a replica.
    Signal,
}

/// One attack.
#[derive(Clone, Copy, Debug)]
pub struct Attack {
    /// The name of the attack, as the programs know it.
    pub name: &'static str,
    /// The program that carries it out.
    pub means: Means,
    /// The action of the attack.
    pub does: &'static str,
    /// The quota or check that stops it.
    pub stopped_by: &'static str,
    /// The most MiB by which the stack's processes may grow because of it.
    pub memory_max: u64,
}

const fn attack(name: &'static str, means: Means, does: &'static str, stopped_by: &'static str) -> Attack {
    Attack { name, means, does, stopped_by, memory_max: 128 }
}

impl Attack {
    const fn memory(mut self, mib: u64) -> Attack {
        self.memory_max = mib;
        self
    }
}

/// All attacks.
pub const ATTACKS: &[Attack] = &[
    attack(
        "scribble",
        Means::Raw,
        "writes anything anywhere in its arenas",
        "copies that are judged (decision 4)",
    ),
    attack(
        "commands",
        Means::Raw,
        "sends commands of every kind as fast as it can",
        "commands per session and round",
    ),
    attack("groups", Means::Raw, "joins and leaves groups that are all different", "a pace for groups"),
    attack(
        "listeners",
        Means::Raw,
        "binds, listens, and gives back or does not",
        "leases and listeners per session",
    ),
    attack("connects", Means::Raw, "connects to where nobody is, and closes", "sockets per user"),
    attack("options", Means::Raw, "sets options without end", "commands per session and round"),
    attack("udp-open", Means::Raw, "opens a datagram socket on the neighbour's port", "the lease"),
    attack("listen", Means::Raw, "listens at the neighbour's port without a lease", "the lease"),
    attack(
        "usurper",
        Means::Raw,
        "asks as nobody by a session that it has opened as root",
        "the supervisor's word",
    ),
    attack(
        "openers",
        Means::Raw,
        "opens connections to the control socket, says nothing",
        "connections per user",
    ),
    attack("attach", Means::Raw, "attaches and leaves in a loop", "a pace for each process and user"),
    attack("sessions", Means::Raw, "keeps all sessions it gets", "sessions per user").memory(256),
    attack("rubbish", Means::Raw, "says what is no request, and half of what is", "messages that are judged"),
    attack("askers", Means::Raw, "asks for sockets and status over and over", "answers in slices, by turns"),
    attack("reopen", Means::Raw, "opens pages for writing by /proc/self/fd", "seals and modes"),
    attack("hog", Means::Crowded, "listens and never accepts", "one offer for who claims none").memory(256),
    attack(
        "reader",
        Means::Crowded,
        "accepts thousands and reads nothing",
        "memory per session, then in all",
    )
    .memory(1024),
    // The attacker's sockets and their records take about 170 MiB, and nothing is added after ten seconds.
    attack("bells", Means::Crowded, "waits with 20,000 entries on each bell", "bells of each session's own")
        .memory(256),
    attack("udp-self", Means::Sockets, "sends datagrams to itself", "room of its own socket"),
    attack("udp-flood", Means::Sockets, "sends datagrams to nobody", "datagrams per session and round"),
    attack(
        "churn",
        Means::Sockets,
        "makes sockets of all kinds and closes them",
        "commands per session and round",
    ),
    attack(
        "stopped",
        Means::Sockets,
        "stops its children wherever they are",
        "locks are of the family alone",
    ),
    attack(
        "ring",
        Means::Sockets,
        "sends sockets round in messages",
        "the kernel's limit on descriptors under way",
    ),
    attack("forks", Means::Sockets, "forks a hundred processes with sockets", "sessions per user")
        .memory(256),
    attack("admin", Means::Intruder, "asks as a worker what its master might", "credentials of each request"),
    attack("thief", Means::Intruder, "shares the port of another user", "SO_REUSEPORT for one user"),
    attack("segv", Means::Signal, "sends SIGSEGV to a replica", "a successor (decision 28)").memory(512),
];

/// Returns the attack of this name.
///
/// # Panics
/// Panics if there is no such attack.
pub fn of_name(name: &str) -> &'static Attack {
    ATTACKS.iter().find(|attack| attack.name == name).unwrap_or_else(|| panic!("no attack is called {name}"))
}
