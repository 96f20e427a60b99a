//! What do the others notice if a process of a family dies between any two stores of the library? One
//! session, three processes with the client that ships: the owner of the session, a child that dies, and a
//! child that lives. And what if it is stopped there, in its turn in the arena, and killed later?

use std::collections::BTreeMap;

use atoll_base::{Duration, Epoch, Instant, ReplicaId, SlotId};
use atoll_ipc::arena::{ArenaConfig, ArenaLayout, COMMANDS, EVENTS, OVERFLOW, library};
use atoll_ipc::command::Protocol;
use atoll_ipc::control::Reply;
use atoll_ipc::page::{
    APP_PAGE_BYTES, AppPage, REPLICA_PAGE_BYTES, ReplicaPage, STACK_PAGE_BYTES, StackFacts, StackPage,
};
use atoll_ipc::ring::{Consumer, Producer};
use atoll_ipc::slot::{APP_SHUT_SEND, Slot, SlotState};
use atoll_ipc::{Command, Event, HeapMemory, Memory};
use atoll_sim::{Life, Mortal};
use atoll_sockets::Failure;
use atoll_sockets::client::Client;
use atoll_sockets::client::exec_state::{Inherited, SocketState};
use atoll_sockets::client::object::{Kind, Object, Owner, Place, Socket as Connection};
use atoll_sockets::client::session::Session;
use atoll_sockets::client::simulated::{HELD, HELD_BY_A_STOPPED, Moment, Simulated, shared};
use atoll_sockets::client::transfer::Sending;

const OWNER: u8 = 0;
const DYING: u8 = 1;
const LIVING: u8 = 2;
/// The program that the dying one prepares, which ends with it.
const NEXT: u8 = 3;
/// Sockets that all three hold, that the dying one shares with the living one, and that it has for itself.
const SOCKETS: usize = 9;
const LIMIT: u32 = 16 << 10;
const CONFIG: ArenaConfig = ArenaConfig { slots: 64, send_log2: 19, receive_log2: 16 };
/// The arena of a child's own session, in which nothing happens.
const SMALL: ArenaConfig = ArenaConfig { slots: 16, send_log2: 16, receive_log2: 16 };
const LAYOUT: ArenaLayout = CONFIG.layout();
/// The word of the family's lock.
const LOCK: usize = LAYOUT.library + library::LOCK;

/// The replica: it acknowledges when the test wants it, and checks what it reads.
struct Replica {
    arena: HeapMemory,
    commands: Consumer,
}

impl Replica {
    fn slot(&self, socket: Socket) -> Slot<'_, HeapMemory> {
        Slot::new(&self.arena, &LAYOUT, socket.slot).expect("in range")
    }

    /// Reads everything that was sent and not acknowledged, checks it, and acknowledges half of it, or all.
    fn take(&self, socket: Socket, all: bool, story: &str) {
        let slot = self.slot(socket);
        let (from, to) = (slot.acknowledged(), slot.send_tail());
        let mut text = vec![0; (to - from) as usize];
        if !text.is_empty() {
            let extents = slot.send_extents(&LAYOUT).expect("sane");
            let pieces =
                extents.pieces(from, text.len()).unwrap_or_else(|| panic!("{story}: text without a ring"));
            pieces.read(&self.arena, LAYOUT.send_area, &mut text);
        }
        for (at, byte) in (from..).zip(&text) {
            assert_eq!(*byte, socket.octet(at), "{story}: octet {at} of slot {}", socket.slot.0);
        }
        slot.set_acknowledged(if all { to } else { from + (to - from) / 2 });
    }

    /// Notifies the session's owner that a slot is done.
    fn finish(&self, slot: SlotId, generation: u32) {
        Slot::new(&self.arena, &LAYOUT, slot).expect("in range").set_state(SlotState::Free);
        let mut events = Producer::resume(&self.arena, LAYOUT.events, EVENTS);
        assert!(events.push(&self.arena, 1, &Event::SlotDone { slot, generation }.encode()), "there is room");
    }

    /// Returns the commands that have arrived since the last call.
    fn commands(&mut self) -> Vec<Command> {
        let mut commands = Vec::new();
        while let Some((_, payload)) = self.commands.pop(&self.arena) {
            commands.push(Command::decode(&payload).expect("only whole commands arrive"));
        }
        self.commands.publish(&self.arena);
        commands
    }
}

#[derive(Clone, Copy, Debug)]
struct Socket {
    slot: SlotId,
    generation: u32,
}

impl Socket {
    /// Returns the octet that every writer writes at this offset of the stream.
    fn octet(self, at: u64) -> u8 {
        (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 ^ (self.slot.0 * 29) as u8
    }
}

/// A process of the family.
struct Process {
    client: Client<Simulated<Mortal>>,
    clock: Moment,
    /// The process's objects, by slot.
    objects: BTreeMap<u32, u32>,
}

/// Creates a session with one replica, as a member of the family has it.
fn session(
    arena: &HeapMemory,
    config: ArenaConfig,
    id: u32,
    member: u8,
    life: &Life,
) -> Session<Simulated<Mortal>> {
    let mortal = |memory: HeapMemory| Mortal::new(memory, life);
    let stack = StackPage(HeapMemory::new(STACK_PAGE_BYTES));
    stack.write_facts(&StackFacts { replicas: 1, ..StackFacts::default() });
    let page = ReplicaPage(HeapMemory::new(REPLICA_PAGE_BYTES));
    page.announce(ReplicaId(0), Epoch(1));
    let app_page = AppPage(mortal(HeapMemory::new(APP_PAGE_BYTES)));
    let shared = shared(StackPage(mortal(stack.0)), app_page, [(mortal(page.0), mortal(arena.clone()))]);
    let reply = Reply::Joined { session: id, key: 1, member, replicas: 1, config };
    Session::new(&reply, shared).expect("a whole session")
}

impl Process {
    /// Creates the process that owns the session.
    fn owner(arena: &HeapMemory) -> Process {
        let (mut client, clock) = (Client::new(), Moment::default());
        client.adopt(session(arena, CONFIG, 1, OWNER, &Life::new()), clock.clone(), 1);
        Process { client, clock, objects: BTreeMap::new() }
    }

    /// Creates a child that has a session of its own and has inherited `sockets`.
    fn child(arena: &HeapMemory, member: u8, sockets: &[Socket], life: &Life) -> Process {
        let (mut client, clock) = (Client::new(), Moment::default());
        let own = session(&HeapMemory::new(SMALL.layout().total), SMALL, 2, 0, life);
        let joined = vec![session(arena, CONFIG, 1, member, life)];
        let inherited = |socket: &Socket| {
            let place = Place { session: 1, replica: 0, slot: socket.slot, generation: socket.generation };
            let mut connection = Connection::new(Protocol::Tcp, false);
            connection.kind = Kind::Stream(place, connection.options.local());
            let socket_state = SocketState::of(&connection, (true, Owner::default()), |place| place);
            Inherited { socket: socket_state, descriptors: vec![socket.slot.0 as i32] }
        };
        let inherited = sockets.iter().map(inherited).collect();
        let objects = client.take_exec_state((own, clock.clone(), 2), joined, inherited);
        let objects = objects.into_iter().map(|(slot, object)| (slot as u32, object)).collect();
        Process { client, clock, objects }
    }

    fn object(&self, socket: Socket) -> u32 {
        self.objects[&socket.slot.0]
    }

    /// Sends up to `want` octets, as send(2) does. Returns whether any were sent.
    fn send(&mut self, socket: Socket, want: usize) -> bool {
        let object = self.object(socket);
        let place = self.client.socket(object).expect("a socket").places()[0];
        let tail = self.client.slot_of(place).expect("in range").send_tail();
        let text: Vec<u8> = (tail..).take(want).map(|at| socket.octet(at)).collect();
        let mut done = 0;
        let source = || std::iter::once(&text[..]);
        let _ = self.client.send_octets(object, source, want, Sending::default(), &mut done);
        done > 0
    }

    fn close(&mut self, socket: Socket) {
        let object = self.object(socket);
        self.client.release(object);
    }

    /// Tries what a call of the process may do while another process is stopped in its turn in the arena.
    /// None of it waits, and other sessions do not notice.
    fn try_without_a_turn(&mut self, socket: Socket, story: &str) {
        let object = self.object(socket);
        assert!(!self.send(socket, 100), "{story}: sent without a turn");
        assert_eq!(self.client.shutdown(object, true, true), Err(Failure::WouldBlock), "{story}");
        assert_eq!(self.client.disconnect(object), Err(Failure::WouldBlock), "{story}");
        self.client.poll_due();
        let nap = self.client.nap(None).expect("no doorbell rings when the other one goes on");
        assert!(nap <= Duration::from_millis(1), "{story}: {nap:?}");
        let other = self.client.insert(Object::socket(Protocol::Tcp, false, true));
        let place = self.client.new_place(other, 0).expect("free");
        self.client.socket_mut(other).expect("a socket").kind =
            Kind::Stream(place, Connection::new(Protocol::Tcp, false).options.local());
        self.client.release(other);
        self.client.drain();
    }
}

/// Runs `act` while a process is stopped in its turn, if `stopped`, and lets the others catch up afterwards.
fn beside_a_stopped(
    arena: &HeapMemory,
    stopped: bool,
    all: &mut [&mut Process],
    act: impl FnOnce(&mut [&mut Process]),
) {
    if stopped {
        arena.store32(LOCK, HELD_BY_A_STOPPED);
    }
    act(all);
    if stopped {
        arena.store32(LOCK, 0);
    }
    all.iter_mut().for_each(|process| process.client.poll_due());
}

/// Runs the actions of the process that dies, each store of which may be its last.
fn live(process: &mut Process, replica: &Replica, sockets: &[Socket], life: &Life) {
    for (n, socket) in sockets.iter().enumerate() {
        // A first ring, a larger second one, the end of the first, the end of both.
        for (want, all) in [(3000, false), (9000, false), (500, true), (100, true)] {
            process.send(*socket, want);
            if life.is_over() {
                return;
            }
            replica.take(*socket, all, "before the death");
        }
        // Buffers of connections that rest are given back.
        for look in [1, 2] {
            process.clock.set(Instant::ZERO + Duration::from_secs(10 * (n as u64 + 1) + 2 * look));
            process.client.poll_due();
        }
        let object = process.object(*socket);
        let place = process.client.socket(object).expect("a socket").places()[0];
        match n % 4 {
            0 => assert!(process.client.add_holder(place, NEXT)),
            1 => assert!(process.client.pass(object).is_some()),
            _ => {}
        }
        if n % 2 == 0 {
            let _ = process.client.shutdown(object, false, true);
            if let Some((stream, ..)) = process.client.stream(object) {
                stream.consume(1);
                stream.set_reset_on_close(true);
            }
        }
        if n % 3 != 0 {
            process.close(*socket);
        }
    }
}

// structure: story: one story is read from its beginning to its end
/// Returns whether the dying one has lived to its end. If `stopped`, it is stopped before it dies.
fn story(stores: u64, stopped: bool) -> bool {
    let story = format!("after {stores} stores, stopped: {stopped}");
    let arena = HeapMemory::new(LAYOUT.total);
    let mut owner = Process::owner(&arena);
    let commands = Consumer::resume(&arena, LAYOUT.commands, COMMANDS);
    let mut replica = Replica { arena: arena.clone(), commands };
    let mut sockets = Vec::new();
    for n in 0..SOCKETS {
        let object = owner.client.insert(Object::socket(Protocol::Tcp, false, true));
        let place = owner.client.new_place(object, 0).expect("free");
        let connection = owner.client.socket_mut(object).expect("a socket");
        connection.kind = Kind::Stream(place, connection.options.local());
        let socket = Socket { slot: place.slot, generation: place.generation };
        replica.slot(socket).replica_reset(place.generation, SlotState::Open, LIMIT);
        for member in [&[DYING, LIVING][..], &[DYING, LIVING], &[DYING]][n / 3] {
            assert!(owner.client.add_holder(place, *member));
        }
        owner.objects.insert(place.slot.0, object);
        sockets.push(socket);
    }
    // Some are only its children's.
    sockets[SOCKETS / 3..].iter().for_each(|socket| owner.close(*socket));
    let life = Life::new();
    let mut dying = Process::child(&arena, DYING, &sockets, &life);
    let mut living = Process::child(&arena, LIVING, &sockets[..SOCKETS / 3 * 2], &Life::new());
    life.shorten(stores);
    live(&mut dying, &replica, &sockets, &life);
    let is_complete = !life.is_over();
    replica.commands();
    if stopped && arena.load32(LOCK) == HELD {
        arena.store32(LOCK, HELD_BY_A_STOPPED);
        living.try_without_a_turn(sockets[0], &story);
        owner.try_without_a_turn(sockets[1], &story);
        arena.store32(LOCK, HELD);
        replica.commands();
    }
    // All others continue: what the dead process has sent is complete, and every buffer belongs to one
    // socket.
    let shared = &sockets[..SOCKETS / 3 * 2];
    let open: Vec<(usize, Socket)> = (0..)
        .zip(shared.iter().copied())
        .filter(|(_, socket)| replica.slot(*socket).app_flags() & APP_SHUT_SEND == 0)
        .collect();
    let mut said = 0;
    for round in 0..6 {
        for (n, socket) in &open {
            let process = if n % 3 == 0 || *n >= SOCKETS / 3 { &mut living } else { &mut owner };
            said += usize::from(process.send(*socket, 2000 + round * 700));
        }
        shared.iter().for_each(|socket| replica.take(*socket, round % 3 == 2, &story));
    }
    let heard = replica.commands();
    let is_kick = |command: &&Command| matches!(command, Command::Kick { .. });
    assert_eq!(heard.iter().filter(is_kick).count(), said, "{story}: every command has arrived");
    assert!(said >= 2 * open.len(), "{story}: only {said} could be sent");
    // The replica learns of the death.
    for socket in &sockets {
        replica.slot(*socket).remove_holder(NEXT);
        if replica.slot(*socket).remove_holder(DYING) == 0 {
            replica.finish(socket.slot, socket.generation);
        }
    }
    beside_a_stopped(&arena, stopped, &mut [&mut owner], |all| {
        all[0].client.drain();
    });
    // The others close.
    beside_a_stopped(&arena, stopped, &mut [&mut owner, &mut living], |all| {
        for (n, socket) in shared.iter().enumerate() {
            if n < SOCKETS / 3 {
                all[0].close(*socket);
            }
            all[1].close(*socket);
        }
    });
    // The one `SlotDone` is lost, the other comes.
    for command in replica.commands() {
        let Command::Close { slot, generation, .. } = command else { panic!("{story}: {command:?}") };
        match slot.0 % 2 {
            0 => replica.finish(slot, generation),
            _ => Slot::new(&arena, &LAYOUT, slot).expect("in range").set_state(SlotState::Free),
        }
    }
    arena.store32(OVERFLOW, arena.load32(OVERFLOW) + 1);
    beside_a_stopped(&arena, stopped, &mut [&mut owner], |all| {
        all[0].client.drain();
    });
    assert_eq!(LAYOUT.send_pool.used_bytes(&arena), 0, "{story}: all memory is back");
    let port = owner.client.own_mut().expect("its own").replicas_mut()[0].port_mut();
    let mut again: Vec<u32> = std::iter::from_fn(|| port.allocate_slot()).map(|(slot, _)| slot.0).collect();
    again.sort_unstable();
    assert_eq!(again, (0..32).collect::<Vec<u32>>(), "{story}: every slot is back, once");
    is_complete
}

#[test]
fn whenever_a_child_dies_the_family_goes_on_and_everything_comes_back() {
    let lived = (0..).find(|stores| story(*stores, false)).expect("it comes to its end");
    assert!(lived > 500, "only {lived} stores");
}

#[test]
fn whenever_a_child_is_stopped_the_family_does_not_wait_for_it() {
    // The other story is told of each store; here some are enough.
    (0..).step_by(5).find(|stores| story(*stores, true)).expect("it comes to its end");
}
