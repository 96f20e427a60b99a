//! In which order does an application that looks from another core see what a replica writes?

use std::sync::{Mutex, PoisonError};

use atoll_base::{Endpoint, Epoch, FlowKey, Instant, ReplicaId, SessionId, SlotId};
use atoll_ip::Ip;
use atoll_ipc::arena::{ArenaConfig, ArenaLayout, COMMANDS, EVENTS};
use atoll_ipc::command::Protocol;
use atoll_ipc::control::User;
use atoll_ipc::page::{APP_PAGE_BYTES, AppPage, REPLICA_PAGE_BYTES, ReplicaPage};
use atoll_ipc::ring::{Consumer, Producer};
use atoll_ipc::slot::{Slot, SlotState};
use atoll_ipc::{Cause, Command, Event};
use atoll_shm::ShmMemory;
use atoll_transport::{Config, Secrets, Transport};
use atoll_wire::Mac;

const PORTS: u32 = 500;

/// Each test needs two cores.
static CORES: Mutex<()> = Mutex::new(());

struct Rig {
    transport: Transport<ShmMemory>,
    page: ReplicaPage<ShmMemory>,
    layout: ArenaLayout,
    arena: ShmMemory,
    commands: Producer,
}

impl Rig {
    fn new() -> Rig {
        let memory = |bytes: usize| ShmMemory::create("order", bytes).expect("there is memory").1;
        let now = Instant::from_millis(1000);
        let config = Config::new(ReplicaId(0), 1, Epoch(3), FlowKey { k0: 1, k1: 2 });
        let ip = Ip::new(atoll_ip::Config::new(Mac([2, 0, 0, 0, 0, 1]), 0x0a00_0001, 24), 7, now)
            .expect("a valid network");
        let page = ReplicaPage(memory(REPLICA_PAGE_BYTES));
        let secrets = Secrets { sequence: [1; 16], fast_open: [1; 16], leases: [1; 16], table: 5, ports: 1 };
        let mut transport = Transport::new(config, secrets, ip, page.clone(), now);
        let layout = ArenaConfig { slots: 1024, send_log2: 20, receive_log2: 20 }.layout();
        let arena = memory(layout.total);
        transport.open_session(
            now,
            (SessionId(1), User::privileged(0)),
            layout,
            arena.clone(),
            AppPage(memory(APP_PAGE_BYTES)),
        );
        Rig { transport, page, layout, commands: Producer::resume(&arena, layout.commands, COMMANDS), arena }
    }

    fn carry_out(&mut self, command: Command) {
        assert!(self.commands.push(&self.arena, 1, &command.encode()), "the command ring is full");
        self.transport.handle_commands(Instant::from_millis(1000), 64);
    }
}

/// Returns a function that says whether a test has taken too long. Each side may wait for the other.
fn deadline() -> impl Fn() -> bool {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    move || std::time::Instant::now() > end
}

/// A program that has the reply may connect at once, and finds the port's replica on the page.
#[test]
fn a_port_is_on_the_page_before_the_reply_is_in_the_ring() {
    let _alone = CORES.lock().unwrap_or_else(PoisonError::into_inner);
    let mut rig = Rig::new();
    let (page, arena) = (rig.page.clone(), rig.arena.clone());
    let mut events = Consumer::resume(&arena, rig.layout.events, EVENTS);
    std::thread::scope(|scope| {
        let is_too_late = deadline();
        let application = scope.spawn(move || {
            let mut seen = 0;
            while seen < PORTS && !is_too_late() {
                let Some((_, payload)) = events.pop(&arena) else { continue };
                if let Event::ListenReply { token: port, cause, .. } =
                    Event::decode(&payload).expect("well-formed")
                {
                    assert!(page.has_port(false, port as u16), "the reply for port {port} came first");
                    assert_eq!(cause, Cause::None);
                    seen += 1;
                }
                events.publish(&arena);
            }
            assert_eq!(seen, PORTS, "a reply has not come");
        });
        for port in 1..=PORTS {
            let (lease, local, reuse_port) = (port.into(), Endpoint::new(0, port as u16), false);
            rig.carry_out(Command::Bind {
                token: port,
                lease,
                protocol: Protocol::Tcp,
                local,
                reuse_addr: true,
                reuse_port,
                v6_only: false,
            });
            rig.carry_out(Command::Listen {
                token: port,
                lease,
                local,
                backlog: 16,
                reuse_port,
                defer_accept: 0,
                v6_only: false,
            });
            std::thread::sleep(std::time::Duration::from_micros(20));
            if application.is_finished() {
                break;
            }
        }
    });
}

/// A datagram socket's port is on the page before the state of its slot, which is its reply.
#[test]
fn a_port_is_on_the_page_before_the_datagram_socket_is_open() {
    let _alone = CORES.lock().unwrap_or_else(PoisonError::into_inner);
    let mut rig = Rig::new();
    let (page, arena, layout) = (rig.page.clone(), rig.arena.clone(), rig.layout);
    std::thread::scope(|scope| {
        let is_too_late = deadline();
        let application = scope.spawn(move || {
            for port in 1..=PORTS {
                let slot = Slot::new(&arena, &layout, SlotId(port)).expect("a slot");
                while slot.replica_generation() != 1 || slot.state() != SlotState::Open {
                    assert!(!is_too_late(), "the socket on port {port} is not opened");
                    std::hint::spin_loop();
                }
                assert!(page.has_port(true, port as u16), "the socket on port {port} was open first");
            }
        });
        for port in 1..=PORTS {
            let slot = Slot::new(&rig.arena, &rig.layout, SlotId(port)).expect("a slot");
            slot.app_reset(1);
            slot.set_holders(1);
            rig.carry_out(Command::Bind {
                token: port,
                lease: port.into(),
                protocol: Protocol::Udp,
                local: Endpoint::new(0, port as u16),
                reuse_addr: false,
                reuse_port: false,
                v6_only: false,
            });
            let (slot, local, remote) = (SlotId(port), Endpoint::new(0, port as u16), Endpoint::default());
            rig.carry_out(Command::UdpOpen {
                slot,
                generation: 1,
                lease: port.into(),
                local,
                remote,
                reuse_port: false,
                v6_only: false,
            });
            std::thread::sleep(std::time::Duration::from_micros(20));
            if application.is_finished() {
                break;
            }
        }
    });
}
