//! What do the others notice if a process of a family dies between any two stores of the library? One arena, three processes: the owner of
//! the session, a child that dies, and a child that lives.

use atoll_base::SlotId;
use atoll_ipc::arena::{ArenaConfig, ArenaLayout, COMMANDS};
use atoll_ipc::command::CloseMode;
use atoll_ipc::ring::Consumer;
use atoll_ipc::slot::{APP_SHUT_SEND, Slot, SlotState};
use atoll_ipc::{Command, HeapMemory, Memory};
use atoll_sim::{Life, Mortal};
use atoll_sockets::port::Port;
use atoll_sockets::stream::{Local, Stream};

const OWNER: u8 = 0;
const DYING: u8 = 1;
const LIVING: u8 = 2;
/// Sockets that all three hold, that the dying one shares with the living one, and that it has for itself.
const SOCKETS: usize = 9;
const LIMIT: u32 = 16 << 10;

/// The replica: it acknowledges what it is told to, and checks what it reads.
struct Replica {
    arena: HeapMemory,
    layout: ArenaLayout,
    commands: Consumer,
}

impl Replica {
    fn slot(&self, socket: Socket) -> Slot<'_, HeapMemory> {
        Slot::new(&self.arena, &self.layout, socket.slot).expect("in range")
    }

    /// Reads everything that was sent and not acknowledged, checks it, and acknowledges half of it, or all.
    fn take(&self, socket: Socket, all: bool, story: &str) {
        let slot = self.slot(socket);
        let (from, to) = (slot.acknowledged(), slot.send_tail());
        let mut text = vec![0; (to - from) as usize];
        if !text.is_empty() {
            let extents = slot.send_extents(&self.layout).expect("sane");
            let pieces = extents.pieces(from, text.len()).unwrap_or_else(|| panic!("{story}: text without a ring"));
            pieces.read(&self.arena, self.layout.send_area, &mut text);
        }
        for (at, byte) in (from..).zip(&text) {
            assert_eq!(*byte, socket.octet(at), "{story}: octet {at} of slot {}", socket.slot.0);
        }
        slot.set_acknowledged(if all { to } else { from + (to - from) / 2 });
    }

    /// The commands since the last call.
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
    /// What every writer writes at a place of the stream.
    fn octet(self, at: u64) -> u8 {
        (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 ^ (self.slot.0 * 29) as u8
    }
}

fn send<M: Memory>(port: &Port<M>, socket: Socket, want: usize) -> usize {
    let stream = Stream::new(port, socket.slot, socket.generation).expect("in range");
    let Ok(room) = stream.writable(&mut Local::default(), want) else { return 0 };
    let text: Vec<u8> = (room.tail..).take(room.len).map(|at| socket.octet(at)).collect();
    stream.copy_in(&room, 0, &text);
    stream.commit(&room, room.len);
    room.len
}

fn kick<M: Memory>(port: &mut Port<M>, socket: Socket) {
    port.reload();
    let Socket { slot, generation } = socket;
    assert!(port.push(&Command::Kick { slot, generation }), "there is room");
}

fn close<M: Memory>(port: &mut Port<M>, socket: Socket, member: u8) {
    let Socket { slot, generation } = socket;
    if port.close_slot(slot, generation, member) {
        port.reload();
        assert!(port.push(&Command::Close { slot, generation, mode: CloseMode::Graceful }), "there is room");
    }
}

/// What the dying one does, every store of which may be its last.
fn live(port: &mut Port<Mortal>, replica: &Replica, sockets: &[Socket], life: &Life) {
    for (n, socket) in sockets.iter().enumerate() {
        // A first ring, a larger second one, the end of the first, the end of both.
        for (want, all) in [(3000, false), (9000, false), (500, true), (100, true)] {
            if send(port, *socket, want) > 0 {
                kick(port, *socket);
            }
            if life.is_over() {
                return;
            }
            replica.take(*socket, all, "before the death");
        }
        let stream = Stream::new(port, socket.slot, socket.generation).expect("in range");
        stream.release();
        if n % 2 == 0 {
            let _ = stream.shutdown(false, true);
            stream.consume(1);
            stream.set_reset_on_close(true);
        }
        if n % 3 != 0 {
            close(port, *socket, DYING);
        }
    }
}

/// Returns whether the dying one has lived to its end.
fn story(stores: u64) -> bool {
    let story = format!("after {stores} stores");
    let layout = ArenaConfig { slots: 64, send_log2: 20, receive_log2: 16 }.layout();
    let arena = HeapMemory::new(layout.total);
    let mut owner = Port::new(arena.clone(), layout);
    let mut living = Port::new(arena.clone(), layout);
    let commands = Consumer::resume(&arena, layout.commands, COMMANDS);
    let mut replica = Replica { arena: arena.clone(), layout, commands };
    let mut sockets = Vec::new();
    for n in 0..SOCKETS {
        let (slot, generation) = owner.allocate_slot().expect("free");
        let socket = Socket { slot, generation };
        let holders = [1 << OWNER | 1 << DYING | 1 << LIVING, 1 << DYING | 1 << LIVING, 1 << DYING][n / 3];
        replica.slot(socket).set_holders(holders);
        replica.slot(socket).replica_reset(generation, SlotState::Open, LIMIT);
        sockets.push(socket);
    }
    let life = Life::new();
    let mut dying = Port::new(Mortal::new(arena.clone(), &life), layout);
    life.shorten(stores);
    live(&mut dying, &replica, &sockets, &life);
    let is_complete = !life.is_over();
    // Whoever takes the lock next.
    living.repair();
    replica.commands();
    // All go on: what the dead one has sent is whole, and every buffer is of one socket.
    let shared = &sockets[..SOCKETS / 3 * 2];
    let open: Vec<Socket> =
        shared.iter().filter(|socket| replica.slot(**socket).app_flags() & APP_SHUT_SEND == 0).copied().collect();
    for round in 0..6 {
        for (n, socket) in open.iter().enumerate() {
            let port = if n % 3 == 0 { &mut living } else { &mut owner };
            send(port, *socket, 2000 + round * 700);
            kick(port, *socket);
        }
        shared.iter().for_each(|socket| replica.take(*socket, round % 3 == 2, &story));
    }
    let told = replica.commands().len();
    assert_eq!(told, 6 * open.len(), "{story}: every command has arrived");
    // The replica hears of the death.
    for socket in &sockets {
        let slot = replica.slot(*socket);
        if slot.remove_holder(DYING) == 0 {
            slot.set_state(SlotState::Free);
            assert!(owner.slot_done(socket.slot, socket.generation), "{story}: {socket:?}");
        }
    }
    // The others close.
    for socket in shared {
        for (port, member) in [(&mut owner, OWNER), (&mut living, LIVING)] {
            if replica.slot(*socket).holders() >> member & 1 == 1 {
                close(port, *socket, member);
            }
        }
        replica.slot(*socket).set_state(SlotState::Free);
    }
    // The one `SlotDone` is lost, the other comes.
    for command in replica.commands() {
        let Command::Close { slot, generation, .. } = command else { panic!("{story}: {command:?}") };
        if slot.0 % 2 == 0 {
            assert!(owner.slot_done(slot, generation), "{story}");
        }
    }
    owner.sweep();
    assert_eq!(layout.send_pool.used_bytes(&arena), 0, "{story}: all memory is back");
    let mut again: Vec<u32> = std::iter::from_fn(|| owner.allocate_slot()).map(|(slot, _)| slot.0).collect();
    again.sort_unstable();
    assert_eq!(again, (0..32).collect::<Vec<u32>>(), "{story}: every slot is back, once");
    is_complete
}

#[test]
fn whenever_a_child_dies_the_family_goes_on_and_everything_comes_back() {
    let lived = (0..).find(|stores| story(*stores)).expect("it comes to its end");
    assert!(lived > 500, "only {lived} stores");
}
