//! In which order does an application that looks from another core see what a replica writes?

use std::sync::{Mutex, PoisonError};

use atoll_base::{Endpoint, Epoch, FlowKey, Instant, ReplicaId, SessionId};
use atoll_ip::Ip;
use atoll_ipc::arena::ArenaConfig;
use atoll_ipc::command::Protocol;
use atoll_ipc::control::User;
use atoll_ipc::page::{
    APP_PAGE_BYTES, AppPage, REPLICA_PAGE_BYTES, ReplicaPage, STACK_PAGE_BYTES, StackFacts, StackPage,
};
use atoll_shm::ShmMemory;
use atoll_sockets::Failure;
use atoll_sockets::client::Client;
use atoll_sockets::client::object::{Object, any};
use atoll_sockets::client::simulated::{Opening, Simulated, joined};
use atoll_sockets::options::Name;
use atoll_transport::{Config, Secrets, Transport};
use atoll_wire::Mac;

/// As many as it takes: a replica that wrote in the wrong order would be seen at one of hundreds.
const PORTS: u16 = 4000;
const NOW: Instant = Instant::from_millis(1000);
const SESSION: SessionId = SessionId(1);
const ARENA: ArenaConfig = ArenaConfig { slots: 1 << 14, send_log2: 20, receive_log2: 20 };

/// Each test needs two cores.
static CORES: Mutex<()> = Mutex::new(());

fn memory(bytes: usize) -> ShmMemory {
    ShmMemory::create("order", bytes).expect("there is memory").1
}

/// Lets a program open a socket at each of [`PORTS`] ports on one core, while a replica serves it on another.
/// The program checks that the port is on the replica's page once it knows that the socket is open.
fn open_everywhere(
    protocol: Protocol,
    open: fn(&mut Client<Simulated<ShmMemory>>, object: u32, at: Endpoint) -> Opening,
) {
    let _alone = CORES.lock().unwrap_or_else(PoisonError::into_inner);
    let config = Config::new(ReplicaId(0), 1, Epoch(3), FlowKey { k0: 1, k1: 2 });
    let ip = Ip::new(atoll_ip::Config::new(Mac([2, 0, 0, 0, 0, 1]), 0x0a00_0001, 24), 7, NOW)
        .expect("a valid network");
    let page = ReplicaPage(memory(REPLICA_PAGE_BYTES));
    let secrets = Secrets { sequence: [1; 16], fast_open: [1; 16], leases: [1; 16], table: 5, ports: 1 };
    let mut transport = Transport::new(config, secrets, ip, page.clone(), NOW);
    let (layout, app_page) = (ARENA.layout(), AppPage(memory(APP_PAGE_BYTES)));
    let arena = memory(layout.total);
    let user = User::privileged(0);
    transport.open_session(NOW, (SESSION, user), layout, arena.clone(), app_page.clone());
    let stack = StackPage(memory(STACK_PAGE_BYTES));
    stack.write_facts(&StackFacts {
        replicas: 1,
        addr: 0x0a00_0001,
        prefix_len: 24,
        ..StackFacts::default()
    });
    std::thread::scope(|scope| {
        let application = scope.spawn(move || {
            // Each side may wait for the other.
            let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
            let replica = (page.0.clone(), arena);
            let (mut client, _) = joined(SESSION.0, ARENA, stack, app_page, replica);
            for port in 1..=PORTS {
                let object = client.insert(Object::socket(protocol, false, true));
                client.socket_mut(object).expect("a socket").options.set(Name::ReuseAddr, 1);
                let mut opening = open(&mut client, object, Endpoint { port, ..any(false) });
                loop {
                    client.drain();
                    match opening.poll(&mut client) {
                        Err(Failure::WouldBlock) => std::hint::spin_loop(),
                        answer => break assert_eq!(answer, Ok(()), "port {port}"),
                    }
                    assert!(std::time::Instant::now() < end, "port {port} is not answered");
                }
                assert!(
                    page.has_port(protocol == Protocol::Udp, port),
                    "the reply for port {port} came first"
                );
                client.release(object);
            }
        });
        while !application.is_finished() {
            if !transport.handle_commands(NOW, 64) {
                std::thread::sleep(std::time::Duration::from_micros(20));
            }
        }
    });
}

/// A program that has the reply may connect at once, and finds the port's replica on the page.
#[test]
fn a_port_is_on_the_page_before_the_reply_is_in_the_ring() {
    open_everywhere(Protocol::Tcp, |client, object, at| {
        Opening::listen_at(client, object, at, 16).expect("it is fresh")
    });
}

/// A datagram socket's port is on the page before the state of its slot, which is its reply.
#[test]
fn a_port_is_on_the_page_before_the_datagram_socket_is_open() {
    open_everywhere(Protocol::Udp, |client, object, at| {
        Opening::bind(client, object, at).expect("it is fresh")
    });
}
