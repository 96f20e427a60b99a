//! A simulated process around a client, for simulators, tests and experiments. Its clock is the simulation's,
//! it has one thread, and its memory is whatever the simulation shares, by default the heap.

use alloc::rc::Rc;
use core::cell::Cell;
use core::fmt::Debug;
use core::marker::PhantomData;

use atoll_base::{Endpoint, Instant};
use atoll_ipc::arena::ArenaConfig;
use atoll_ipc::control::Reply;
use atoll_ipc::page::{AppPage, BELLS, ReplicaPage, StackPage};
use atoll_ipc::{HeapMemory, Memory};

use super::platform::{Before, Bell, Clock, Platform};
use super::session::{Session, Shared, SharedReplica};
use super::{Binding, Client, Registration};
use crate::{Errno, Failure};

/// The process around a simulated client, which shares memory of the kind `M` with its stack.
#[derive(Debug)]
pub struct Simulated<M = HeapMemory>(PhantomData<M>);

impl<M: Memory + Clone + Debug> Platform for Simulated<M> {
    type Memory = M;
    type Bell = CountingBell;
    type FamilyLock = Held<M>;
    type Clock = Moment;
    type Kernel = ();

    /// Takes the family's lock. One process runs at a time, from one sleep to the next, and none sleeps with
    /// the lock: a lock that is taken was held by a process that has died, unless [`HELD_BY_A_STOPPED`] says
    /// otherwise.
    fn lock_family(memory: &M, at: usize) -> Option<(Held<M>, Before)> {
        let before = match memory.load32(at) {
            0 => Before::Done,
            HELD_BY_A_STOPPED => return None,
            _ => Before::Died,
        };
        memory.store32(at, HELD);
        Some((Held { memory: memory.clone(), at }, before))
    }
}

/// The word of a lock that a process holds which runs or has died.
pub const HELD: u32 = 1;
/// The word of a lock that a stopped process holds.
pub const HELD_BY_A_STOPPED: u32 = 2;

/// A family's lock, held as long as this value lives.
#[derive(Debug)]
pub struct Held<M: Memory> {
    memory: M,
    at: usize,
}

impl<M: Memory> Drop for Held<M> {
    fn drop(&mut self) {
        self.memory.store32(self.at, 0);
    }
}

/// A doorbell that counts how often it was rung. Nothing has to wake up: replicas check their rings in each
/// round, and a process with one thread does not wake itself.
#[derive(Debug, Default)]
pub struct CountingBell(Cell<u32>);

impl CountingBell {
    /// Returns how often the doorbell was rung.
    pub fn count(&self) -> u32 {
        self.0.get()
    }
}

impl Bell for CountingBell {
    fn ring(&self) {
        self.0.set(self.0.get() + 1);
    }
}

/// The simulation's clock, as far as one process has seen it.
#[derive(Clone, Debug, Default)]
pub struct Moment(Rc<Cell<Instant>>);

impl Moment {
    /// Sets the clock to `now`.
    pub fn set(&self, now: Instant) {
        self.0.set(now);
    }
}

impl Clock for Moment {
    fn now(&self) -> Instant {
        self.0.get()
    }

    /// The days of the simulation begin with its clock.
    fn time_of_day(&self) -> u64 {
        self.0.get().as_nanos()
    }
}

/// Returns the parts of a session of a simulated process. `replicas` has the page and the session's arena of
/// each replica.
pub fn shared<M: Memory + Clone + Debug>(
    stack: StackPage<M>,
    app_page: AppPage<M>,
    replicas: impl IntoIterator<Item = (M, M)>,
) -> Shared<Simulated<M>> {
    let bells = (0..BELLS).map(|_| CountingBell::default()).collect();
    let replica =
        |(page, arena)| SharedReplica { page: ReplicaPage(page), arena, bell: CountingBell::default() };
    Shared { stack, app_page, bells, replicas: replicas.into_iter().map(replica).collect() }
}

/// Returns a client whose session is number `id` at the only replica of a stack, and the client's clock.
/// `replica` has the replica's page and the session's arena there, whose sizes `config` gives.
///
/// # Panics
///
/// If nothing is written on the stack's page.
pub fn joined<M: Memory + Clone + Debug>(
    id: u32,
    config: ArenaConfig,
    stack: StackPage<M>,
    app_page: AppPage<M>,
    replica: (M, M),
) -> (Client<Simulated<M>>, Moment) {
    let reply = Reply::Joined { session: id, key: 0, member: 0, replicas: 1, config };
    let session = Session::new(&reply, shared(stack, app_page, [replica])).expect("a whole session");
    let (mut client, clock) = (Client::new(), Moment::default());
    client.adopt(session, clock.clone(), id.into());
    (client, clock)
}

/// A socket on its way to a port, to listening or to a peer: bind(2), listen(2), and connect(2) of datagram
/// sockets, whose answers come while the simulation runs. No supervisor vouches for users: sessions belong to
/// a privileged user.
#[derive(Debug)]
pub struct Opening {
    object: u32,
    /// The backlog with which the socket listens once it has its port.
    backlog: Option<i32>,
    step: Step,
}

/// The event that an [`Opening`] waits for.
#[derive(Debug)]
enum Step {
    /// The opening waits for the answer under this token, which grants the port.
    Binding(Binding, u32),
    /// The opening waits for the answer under this token: one more replica listens.
    Listening(Registration, u32),
    /// The opening waits until all replicas have the datagram socket.
    Datagrams,
    Done,
}

impl Opening {
    /// Asks for a port. A datagram socket is opened, too, once it has its port.
    pub fn bind<P: Platform>(client: &mut Client<P>, object: u32, local: Endpoint) -> Result<Opening, Errno> {
        let binding = client.start_binding(object, local)?;
        let token = client.ask_for_port(object, &binding, &[])?;
        Ok(Opening { object, backlog: None, step: Step::Binding(binding, token) })
    }

    /// Registers a bound socket as a listener.
    pub fn listen<P: Platform>(client: &mut Client<P>, object: u32, backlog: i32) -> Result<Opening, Errno> {
        let registration = client.start_listening(object, backlog)?;
        let token = client.ask_to_listen(object, &registration, &[])?;
        let step = token.map_or(Step::Done, |token| Step::Listening(registration, token));
        Ok(Opening { object, backlog: None, step })
    }

    /// Asks for a port, and registers the socket as a listener when it has it.
    pub fn listen_at<P: Platform>(
        client: &mut Client<P>,
        object: u32,
        local: Endpoint,
        backlog: i32,
    ) -> Result<Opening, Errno> {
        Ok(Opening { backlog: Some(backlog), ..Opening::bind(client, object, local)? })
    }

    /// Asks for the port that a socket had on a stack that went, and has it listen if it did
    /// ([`Client::registered_again`]).
    pub fn again<P: Platform>(client: &mut Client<P>, object: u32) -> Result<Opening, Errno> {
        let binding = client.start_binding_again(object)?;
        let token = client.ask_for_port(object, &binding, &[])?;
        let backlog = client.listener(object).map(|listener| listener.backlog as i32);
        Ok(Opening { object, backlog, step: Step::Binding(binding, token) })
    }

    /// Gives a datagram socket with a port a peer; if the peer's port is 0, the socket has no peer any more.
    pub fn connect<P: Platform>(
        client: &mut Client<P>,
        object: u32,
        remote: Endpoint,
    ) -> Result<Opening, Errno> {
        if remote.port == 0 {
            client.forget_source(object);
        } else {
            client.choose_source(object, remote)?;
        }
        client.open_datagrams(object, remote)?;
        Ok(Opening { object, backlog: None, step: Step::Datagrams })
    }

    /// Continues as far as answers have come; returns Ok when all is done.
    pub fn poll<P: Platform>(&mut self, client: &mut Client<P>) -> Result<(), Failure> {
        let object = self.object;
        loop {
            match &mut self.step {
                Step::Binding(binding, token) => {
                    let answer = take_answer(client, *token)?;
                    client.finish_binding(object, binding, &answer)?;
                    self.step = match self.backlog {
                        Some(backlog) => Opening::listen(client, object, backlog)?.step,
                        None => Step::Done,
                    };
                    if client.socket(object).is_some_and(|socket| socket.protocol.is_datagram()) {
                        client.open_datagrams(object, client.peer_to_open(object))?;
                        self.step = Step::Datagrams;
                    }
                }
                Step::Listening(registration, token) => {
                    let answer = take_answer(client, *token)?;
                    client.listens_at(object, registration, &answer)?;
                    match client.ask_to_listen(object, registration, &[])? {
                        Some(next) => *token = next,
                        None => {
                            client.finish_listening(object, registration)?;
                            self.step = Step::Done;
                        }
                    }
                }
                Step::Datagrams => return client.poll_opened(object),
                Step::Done => return Ok(()),
            }
        }
    }
}

/// Returns the answer under a token and forgets it, once it has come.
fn take_answer<P: Platform>(client: &mut Client<P>, token: u32) -> Result<super::Answer, Failure> {
    let answer = client.poll_answer(token);
    if answer != Err(Failure::WouldBlock) {
        client.answered(token);
    }
    answer
}
