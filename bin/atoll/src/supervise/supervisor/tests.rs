use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use atoll_base::{Instant, Rng};
use atoll_ipc::LAYOUT_VERSION;
use atoll_ipc::arena::{ArenaConfig, library};
use atoll_ipc::command::Protocol;
use atoll_ipc::control::{Refusal, Reply, User};
use atoll_ipc::lease::Pass;
use atoll_ipc::ledger::{LEDGER_BYTES, Ledger, LedgerConfig};
use atoll_ipc::page::{BELLS, REPLICA_PAGE_BYTES, STACK_PAGE_BYTES};
use atoll_shm::{Access, ShmMemory};
use atoll_supervisor::{
    ConfigFile, Joined, LINGERING_MAX, Mac, Pace, ReportPart, ScalingReport, StatusReport,
};
use atoll_sys::process::Child;
use atoll_sys::unix::Blocking;
use atoll_sys::{eventfd, process};
use atoll_transport::seal_pass;

use atoll_sys::unix::Listener;

use super::serving::ACCEPTS_PER_TURN;
use super::*;
use crate::rows::{RowsPacket, SocketRow};
use crate::supervise::launch::Stack;
use crate::supervise::memory::SessionMemory;
use crate::supervise::memory::bells;
use crate::supervise::owner::SESSIONS_REMAIN;
use crate::supervise::setups::Duty;
use crate::{rows, setup};

mod listing;
mod scaling;
mod sequences;
mod shortage;
mod standby;
mod stories;
mod telling;

/// A supervisor whose replicas are ends of sockets held by the test.
struct Bench {
    server: Supervisor,
    replicas: Vec<Channel>,
    launches: Rc<RefCell<Launches>>,
    socket: PathBuf,
}

/// The servers that the supervisor has started, which have no processes.
#[derive(Default)]
struct Launches {
    /// The number of each server, its incarnation, and its end of the control socket.
    started: Vec<(usize, u32, Channel)>,
    /// The numbers of processes for replicas, and their ends of the sockets over which they are given
    /// replicas.
    hosts: Vec<(usize, Channel)>,
    /// The versions of those processes, in that order.
    builds: Vec<String>,
    /// The octets of memory that each standby is to have.
    memory: Vec<u64>,
    /// Whether processes for replicas do not report that they are up.
    are_dumb: bool,
    /// The number of launches that are to fail.
    failing: u32,
    /// The error of a failing launch; `None` means one that no shortage causes.
    for_want: Option<i32>,
}

/// The number for a server without one.
const STANDBY: usize = usize::MAX;

struct FakeLauncher(Rc<RefCell<Launches>>);

impl FakeLauncher {
    /// Returns the two ends of a socket that represents a process, or the failure that was asked for.
    fn socket(&mut self) -> Result<(Channel, Channel), Failure> {
        if self.0.borrow().failing > 0 {
            self.0.borrow_mut().failing -= 1;
            let lack = self.0.borrow().for_want;
            let Some(number) = lack else { return Err(Failure::new("no process today")) };
            return Err(io::Error::from_raw_os_error(number)).or_fail("a process");
        }
        Channel::pair(Blocking::No).or_fail("a socket")
    }
}

impl Launch for FakeLauncher {
    fn start_host(
        &mut self,
        duty: Duty,
        program: &Program,
        _: BorrowedFd<'_>,
        _: &Stack<'_>,
    ) -> Result<(Option<Child>, Channel), Failure> {
        let (ours, theirs) = self.socket()?;
        let mut launches = self.0.borrow_mut();
        if !launches.are_dumb {
            theirs.send(setup::UP, &[]).unwrap();
        }
        launches.builds.push(program.build.version.clone());
        let number = match duty {
            Duty::Replicas(number) => number,
            Duty::Standby { memory } => {
                launches.memory.push(memory);
                STANDBY
            }
        };
        launches.hosts.push((number, theirs));
        Ok((None, ours))
    }

    fn place(
        &mut self,
        replica: usize,
        host: &Channel,
        epochs: &[u32],
        _: &Stack<'_>,
    ) -> Result<Channel, Failure> {
        let (ours, theirs) = self.socket()?;
        host.send(&[replica as u8], &[]).or_fail("a place")?;
        self.0.borrow_mut().started.push((replica, epochs[replica], theirs));
        Ok(ours)
    }

    fn launch(
        &mut self,
        server: usize,
        _: &Program,
        epochs: &[u32],
        _: &Stack<'_>,
    ) -> Result<(Option<Child>, Channel), Failure> {
        let (ours, theirs) = self.socket()?;
        self.0.borrow_mut().started.push((server, epochs[server], theirs));
        Ok((None, ours))
    }
}

impl Bench {
    fn new(replicas: u8) -> Bench {
        Bench::with(replicas, "")
    }

    /// Creates a bench whose configuration has `more` at its end.
    fn with(replicas: u8, more: &str) -> Bench {
        process::raise_nofile_limit(1 << 16).unwrap();
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let socket = std::env::temp_dir().join(format!("atoll-server-test-{}-{number}", std::process::id()));
        let text = format!(
            "replicas = {replicas}\n[link]\ntype = \"none\"\n[sessions]\nmax = 600\nsockets = 16\n\
             send_log2 = 16\n\
             receive_log2 = 16\n{more}"
        );
        let mut config = ConfigFile::parse(&text).unwrap().validate().unwrap();
        // Only tests that need a standby ask for it.
        config.recovery.standby = more.contains("standby = true");
        let memory = StackMemory::create(bells(usize::from(replicas)).unwrap(), None).unwrap();
        // The listener accepts descriptors, as on kernels before 6.16.
        let bind = |path: &std::path::Path| {
            let listener = Listener::bind(path, 16, Blocking::No).unwrap();
            Channel::ask_for_senders(&listener).unwrap();
            listener
        };
        let doors =
            Doors { applications: bind(&socket), administration: bind(&socket.with_extension("admin")) };
        let identity = Identity {
            uid: rustix::process::geteuid().as_raw(),
            pid: std::process::id(),
            guardian: None,
            takeovers: 0,
            socket: socket.clone(),
            started: clock::now(),
            mac: Mac([2, 0, 0, 0, 0, 1]),
            device: None,
            offload: false,
            steering: Steering::Software,
            servers: None,
        };
        let launches = Rc::new(RefCell::new(Launches::default()));
        let launcher = Box::new(FakeLauncher(launches.clone()));
        let (rights, link) = (Rights::of(identity.uid), Link::default());
        let server = Supervisor::new(Foundation {
            config,
            identity,
            memory,
            launcher,
            doors,
            rights,
            link,
            signals: None,
        })
        .unwrap();
        let theirs = launches.borrow_mut().started.drain(..).map(|(_, _, channel)| channel).collect();
        let mut bench = Bench { server, replicas: theirs, launches, socket };
        for (index, replica) in bench.replicas.iter().enumerate() {
            let rules = bench.server.config.accept.rules();
            assert_eq!(bench.told(index), [Request::Balance { rules }, Request::Adopt { blamed: false }]);
            replica.send(setup::READY, &[]).unwrap();
        }
        bench.settle();
        assert!(bench.server.all_ready());
        bench
    }

    /// Lets the supervisor do all it can do now. Returns how the stack has ended, if it has.
    fn settle(&mut self) -> Option<Ending> {
        let mut ending = None;
        for _ in 0..30 {
            ending = self.server.turn(Some(0)).unwrap();
        }
        ending
    }

    fn client(&self) -> Channel {
        Channel::connect(&self.socket, Blocking::No).unwrap()
    }

    /// Returns a connection as the command line makes it.
    fn administrator(&self) -> Channel {
        Channel::connect(&self.socket.with_extension("admin"), Blocking::No).unwrap()
    }

    fn attach(&mut self) -> (Channel, Joined, Vec<OwnedFd>) {
        let client = self.client();
        let (joined, fds) =
            self.ask(&client, &Request::Attach { layout_version: LAYOUT_VERSION, room_mib: 0 });
        (client, joined.unwrap(), fds)
    }

    fn ask(&mut self, client: &Channel, request: &Request) -> (Result<Joined, Refusal>, Vec<OwnedFd>) {
        client.send(&request.encode(), &[]).unwrap();
        self.settle();
        let (packet, fds) = receive(client).expect("requests are answered");
        match Reply::decode(&packet).unwrap() {
            Reply::Joined { session, key, member, replicas, config } => {
                assert_eq!(usize::from(replicas), self.replicas.len());
                assert_eq!(config, self.server.config.sessions.arena);
                (Ok(Joined { session, key, member }), fds)
            }
            Reply::Refused { reason } => (Err(reason), fds),
            other => panic!("nobody has asked for {other:?}"),
        }
    }

    /// Returns the end of the control socket of the server that was started last, which has said that it is
    /// ready.
    fn comes_back(&mut self, server: usize, epoch: u32) -> Channel {
        let (which, incarnation, channel) =
            self.launches.borrow_mut().started.pop().expect("one was started");
        assert_eq!((which, incarnation), (server, epoch));
        channel.send(setup::READY, &[]).unwrap();
        channel
    }

    fn told(&self, replica: usize) -> Vec<Request> {
        std::iter::from_fn(|| receive(&self.replicas[replica]))
            .map(|(packet, _)| Request::decode(&packet).unwrap())
            .collect()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
        let _ = std::fs::remove_file(self.socket.with_extension("admin"));
    }
}

/// Notices whether a doorbell is rung.
struct Watch(Epoll);

impl Watch {
    fn of(bell: &OwnedFd) -> Watch {
        let watch = Watch(Epoll::new().unwrap());
        watch.0.add(bell, 0, eventfd::WATCHED).unwrap();
        assert!(watch.is_rung(), "a watch begins with an event");
        watch
    }

    fn is_rung(&self) -> bool {
        self.0.wait(&mut [epoll::EMPTY], Some(0)).unwrap() == 1
    }
}

fn receive(channel: &Channel) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
    let (mut buffer, mut fds) = (vec![0; 300 << 10], Vec::new());
    match channel.receive(&mut buffer, &mut fds) {
        Ok(0) | Err(_) => None,
        Ok(len) => Some((buffer[..len].to_vec(), fds)),
    }
}

#[test]
fn who_attaches_and_leaves_in_a_loop_waits_and_others_do_not() {
    let mut bench = Bench::new(1);
    // A pace that the loop of this test exceeds on any machine.
    bench.server.clients.set_pace(Pace::of(512, 256));
    let (looping, waiting) = (bench.client(), bench.client());
    let attach = Request::Attach { layout_version: LAYOUT_VERSION, room_mib: 0 };
    let mut count = 0;
    let begin = clock::now();
    loop {
        looping.send(&attach.encode(), &[]).unwrap();
        for _ in 0..3 {
            bench.server.turn(Some(0)).unwrap();
        }
        let Some((packet, _)) = receive(&looping) else { break };
        let Reply::Joined { session, .. } = Reply::decode(&packet).unwrap() else {
            panic!("it is not refused")
        };
        looping.send(&Request::Leave { session }.encode(), &[]).unwrap();
        count += 1;
        bench.told(0);
    }
    let most = 513 + 257 * (clock::now().since(begin).as_secs() as u32 + 1);
    assert!((500..=most).contains(&count), "{count}");
    // The other connection is of this process as well, so it waits, too; it is forgotten once it is closed.
    waiting.send(&attach.encode(), &[]).unwrap();
    bench.settle();
    assert!(receive(&waiting).is_none());
    let clients = bench.server.clients.len();
    drop(waiting);
    bench.settle();
    assert_eq!((bench.server.clients.len(), bench.server.clients.slowed()), (clients - 1, 1));
    // No turn is due before that time; the connection is served then.
    let due = bench.server.clients.slowed_until().expect("one waits");
    assert!(bench.server.servers_timeout_ms(clock::now()).is_some_and(|ms| ms <= 1000));
    std::thread::sleep(due.since(clock::now()));
    bench.settle();
    assert!(matches!(
        receive(&looping).map(|(packet, _)| Reply::decode(&packet)),
        Some(Ok(Reply::Joined { .. }))
    ));
}

#[test]
fn who_attaches_gets_the_documented_descriptors_and_every_replica_hears_of_it() {
    let mut bench = Bench::new(2);
    let watches: Vec<_> =
        bench.server.memory.replicas().iter().map(|replica| Watch::of(&replica.bell)).collect();
    let (_client, joined, fds) = bench.attach();
    assert_eq!((joined.session, joined.member), (1, 0));
    assert_eq!(fds.len(), 2 + BELLS + 3 * 2);
    let layout = bench.server.config.sessions.arena.layout();
    assert!(ShmMemory::map(&fds[0], STACK_PAGE_BYTES, Access::ReadOnly).is_ok());
    assert!(ShmMemory::map(&fds[0], STACK_PAGE_BYTES, Access::ReadWrite).is_err());
    for replica in fds[2 + BELLS..].chunks(3) {
        assert!(ShmMemory::map_page(&replica[0], REPLICA_PAGE_BYTES, Access::ReadWrite).is_err());
        assert!(ShmMemory::map(&replica[1], layout.total, Access::ReadWrite).is_ok());
    }
    for (index, end) in bench.replicas.iter().enumerate() {
        let (packet, theirs) = receive(end).unwrap();
        let opened = Request::decode(&packet).unwrap();
        assert!(
            matches!(opened, Request::SessionOpened { session: 1, pid, .. } if pid == std::process::id())
        );
        assert_eq!(theirs.len(), 3 + BELLS);
        // The replica has the arena and the doorbells that the application has for it.
        let ours = ShmMemory::map(&fds[2 + BELLS + index * 3 + 1], layout.total, Access::ReadWrite).unwrap();
        atoll_ipc::Memory::store64(&ours, 8192, 4711);
        let same = ShmMemory::map(&theirs[0], layout.total, Access::ReadWrite).unwrap();
        assert_eq!(atoll_ipc::Memory::load64(&same, 8192), 4711);
        let rung = Watch::of(&fds[2 + 5]);
        eventfd::ring(&theirs[3 + 5]).unwrap();
        assert!(rung.is_rung());
        assert!(watches[index].is_rung(), "the replica was rung");
    }
}

/// A program can make its doorbells slow for every process that rings them.
#[test]
fn no_bell_is_shared_between_sessions() {
    let mut bench = Bench::new(2);
    let of_servers: Vec<_> =
        bench.server.memory.replicas().iter().map(|replica| Watch::of(&replica.bell)).collect();
    let (_one, _, first) = bench.attach();
    let (_two, _, second) = bench.attach();
    let bells = |fds: &[OwnedFd]| -> Vec<OwnedFd> {
        let own = 2..2 + BELLS;
        let doorbells = [2 + BELLS + 2, 2 + BELLS + 5];
        own.chain(doorbells).map(|at| fds[at].try_clone().unwrap()).collect()
    };
    let watches: Vec<_> = bells(&second).iter().map(Watch::of).collect();
    for watch in &of_servers {
        watch.is_rung();
    }
    bells(&first).iter().for_each(|bell| eventfd::ring(bell).unwrap());
    assert!(watches.iter().chain(&of_servers).all(|watch| !watch.is_rung()));
    // Each replica learns of both sessions.
    for (index, end) in bench.replicas.iter().enumerate() {
        for fds in [&first, &second] {
            let (_, theirs) = receive(end).unwrap();
            let heard = Watch::of(&theirs[2]);
            eventfd::ring(&fds[2 + BELLS + 3 * index + 2]).unwrap();
            assert!(heard.is_rung());
        }
    }
}

#[test]
fn a_session_ends_with_its_last_process() {
    let mut bench = Bench::new(2);
    let (parent, joined, _) = bench.attach();
    let child = bench.client();
    let wrong = Request::Join { session: joined.session, key: joined.key ^ 1 };
    assert_eq!(bench.ask(&child, &wrong).0, Err(Refusal::NoSession));
    let (member, fds) = bench.ask(&child, &Request::Join { session: joined.session, key: joined.key });
    assert_eq!((member.unwrap().member, fds.len()), (1, 2 + BELLS + 3 * 2));
    drop(parent);
    bench.settle();
    drop(child);
    bench.settle();
    for replica in 0..2 {
        let told = bench.told(replica);
        assert_eq!(
            told[1..],
            [Request::MemberGone { session: 1, member: 0 }, Request::SessionGone { session: 1 }],
            "{told:?}"
        );
    }
    assert!(bench.server.books.open_now().is_empty() && bench.server.clients.len() == 0);
}

/// The programs of the session live on, but no replica reads its rings any more. Their other sessions are not
/// affected.
#[test]
fn a_session_that_replicas_have_died_of_ends() {
    let mut bench = Bench::new(2);
    let (parent, joined, _) = bench.attach();
    let child = bench.client();
    bench.ask(&child, &Request::Join { session: joined.session, key: joined.key }).0.unwrap();
    let own = bench
        .ask(&child, &Request::Attach { layout_version: LAYOUT_VERSION, room_mib: 0 })
        .0
        .unwrap()
        .session;
    bench.told(0);
    bench.told(1);
    // A report about a session that does not exist, or has ended, is ignored.
    for session in [joined.session, 77, joined.session] {
        bench.replicas[0].send(&setup::cut_off(session), &[]).unwrap();
        bench.settle();
    }
    for replica in 0..2 {
        let session = joined.session;
        let told = bench.told(replica);
        let departed = |member| Request::MemberGone { session, member };
        let gone = Request::SessionGone { session };
        assert_eq!(told, [Request::CutOff { session }, departed(0), gone], "{told:?}");
    }
    assert_eq!(bench.server.books.open_now(), [own]);
    let again = Request::Join { session: joined.session, key: joined.key };
    assert_eq!(bench.ask(&parent, &again).0, Err(Refusal::NoSession));
    assert!(bench.ask(&parent, &Request::Attach { layout_version: LAYOUT_VERSION, room_mib: 0 }).0.is_ok());
}

#[test]
fn leaving_is_like_going() {
    let mut bench = Bench::new(1);
    let (client, joined, _) = bench.attach();
    client.send(&Request::Leave { session: joined.session }.encode(), &[]).unwrap();
    bench.settle();
    assert_eq!(bench.told(0)[1..], [Request::SessionGone { session: 1 }]);
    assert!(receive(&client).is_none(), "leaving is not answered");
    assert_eq!(
        bench
            .ask(&client, &Request::Attach { layout_version: LAYOUT_VERSION, room_mib: 0 })
            .0
            .unwrap()
            .session,
        2
    );
}

#[test]
fn hostile_packets_are_refused_and_disturb_nobody() {
    let mut bench = Bench::new(1);
    let (_other, ..) = bench.attach();
    let mut rng = Rng::new(11);
    let bell = eventfd::create().unwrap();
    let client = bench.client();
    for round in 0..2000 {
        let len = 1 + rng.below(5000) as usize;
        let mut packet: Vec<u8> = (0..len.min(100)).map(|_| rng.next_u64() as u8).collect();
        packet.resize(len, b'"');
        packet[0] = if rng.below(2) == 0 { b'{' } else { 9 + packet[0] % 90 };
        let fds = vec![bell.as_fd(); rng.below(if round % 100 == 0 { 250 } else { 3 }) as usize];
        client.send(&packet, &fds).unwrap();
        bench.settle();
        let (answer, fds) = receive(&client).expect("everything is answered");
        assert!(fds.is_empty());
        let refused = Reply::decode(&answer) == Ok(Reply::Refused { reason: Refusal::Malformed });
        assert!(refused || matches!(serde_json::from_slice(&answer), Ok(ReportPart::Error(_))), "{answer:?}");
    }
    let known = Request::Attach { layout_version: LAYOUT_VERSION + 1, room_mib: 0 };
    assert_eq!(bench.ask(&client, &known).0, Err(Refusal::Version));
    assert_eq!(bench.told(0).len(), 1, "no replica heard of any of this");
    assert_eq!(bench.server.books.len(), 1);
}

#[test]
fn requests_with_descriptors_are_refused_and_the_descriptors_closed() {
    let mut bench = Bench::new(1);
    let client = bench.client();
    let (ours, theirs) = Channel::pair(Blocking::No).unwrap();
    client
        .send(&Request::Attach { layout_version: LAYOUT_VERSION, room_mib: 0 }.encode(), &[theirs.as_fd()])
        .unwrap();
    drop(theirs);
    bench.settle();
    assert!(receive(&client).is_some());
    assert_eq!(ours.receive(&mut [0; 8], &mut Vec::new()).unwrap(), 0, "the other end is closed");
}

#[test]
fn a_client_that_does_not_read_is_not_read_from() {
    let mut bench = Bench::new(1);
    let client = bench.administrator();
    let mut sent = 0;
    for _ in 0..100 {
        while client.send(br#"{"cmd":"status"}"#, &[]).is_ok() {
            sent += 1;
        }
        bench.settle();
    }
    assert!(client.send(br#"{"cmd":"status"}"#, &[]).is_err(), "its requests wait in its own socket");
    assert!(bench.server.clients.have_waiting());
    // Other clients are served meanwhile, and this one is served once it reads.
    bench.attach();
    let mut done = 0;
    assert!(sent > 20);
    while done < 20 {
        bench.settle();
        while let Some((packet, _)) = receive(&client) {
            done += u32::from(matches!(serde_json::from_slice(&packet), Ok(ReportPart::Done(true))));
        }
    }
}

#[test]
fn a_replica_that_does_not_read_delays_nobody_and_misses_nothing() {
    let mut bench = Bench::new(2);
    let mut clients = Vec::new();
    for _ in 0..400 {
        clients.push(bench.attach());
        assert!(!bench.told(0).is_empty());
    }
    assert!(
        bench.server.servers.replicas()[1].has_waiting(),
        "400 packets with 18 descriptors do not fit a socket"
    );
    clients.clear();
    let mut told = Vec::new();
    while told.len() < 800 {
        told.extend(bench.told(1));
        bench.settle();
    }
    for (number, request) in (1..).zip(&told[..400]) {
        assert!(matches!(request, Request::SessionOpened { session, .. } if *session == number));
    }
    assert!(told[400..].iter().all(|request| matches!(request, Request::SessionGone { .. })));
}

#[test]
fn too_many_sessions_are_refused() {
    let mut bench = Bench::new(1);
    bench.server.books = Books::new(2);
    let (_a, _b) = (bench.attach(), bench.attach());
    let client = bench.client();
    assert_eq!(
        bench.ask(&client, &Request::Attach { layout_version: LAYOUT_VERSION, room_mib: 0 }).0,
        Err(Refusal::Sessions)
    );
}

#[test]
fn rows_of_all_replicas_reach_the_one_who_asked_and_end() {
    let mut bench = Bench::new(2);
    let (asks, leaves) = (bench.administrator(), bench.administrator());
    for client in [&leaves, &asks] {
        client.send(br#"{"cmd":"ss"}"#, &[]).unwrap();
        bench.settle();
    }
    drop(leaves);
    bench.settle();
    let row = |replica| SocketRow { replica, ..SocketRow::default() };
    for round in 0..2u8 {
        for (index, replica) in (0..).zip(&bench.replicas) {
            assert!(matches!(Request::decode(&receive(replica).unwrap().0), Ok(Request::ListSockets { .. })));
            for packet in rows::packets((0..100).map(|_| row(index + 10 * round))) {
                replica.send(&packet, &[]).unwrap();
            }
        }
        bench.settle();
    }
    let mut rows = Vec::new();
    loop {
        let (packet, _) = receive(&asks).expect("the listing ends");
        if let Ok(RowsPacket { rows: some }) = serde_json::from_slice(&packet) {
            rows.extend(some);
        } else {
            assert_eq!(serde_json::from_slice::<ReportPart>(&packet).unwrap(), ReportPart::Done(true));
            break;
        }
    }
    assert_eq!(rows.len(), 200);
    assert!(rows.iter().all(|row| row.replica >= 10), "rows for who left go nowhere");
}

#[test]
fn the_status_names_processes_and_counts() {
    let mut bench = Bench::new(2);
    let (client, joined, fds) = bench.attach();
    let layout = bench.server.config.sessions.arena.layout();
    let arena = ShmMemory::map(&fds[2 + BELLS + 1], layout.total, Access::ReadWrite).unwrap();
    atoll_ipc::Memory::store64(&arena, layout.library + library::CALLS, 1000);
    atoll_ipc::Memory::store64(&arena, layout.library + library::CALLS_WITH_SYSTEM_CALL, 10);
    let status = |bench: &Bench| StatusReport::assemble(bench.server.report()).unwrap();
    let report = status(&bench);
    assert_eq!(report.replicas.len(), 2);
    let session = &report.sessions[0];
    assert_eq!((session.id, session.calls, session.calls_with_syscall), (joined.session, 1000, 10));
    assert_eq!(session.members, [std::process::id()]);
    drop(client);
    bench.settle();
    let report = status(&bench);
    assert!(report.sessions.is_empty());
    assert_eq!((report.stack.library_calls, report.stack.sessions_opened), (1000, 1));
}

#[test]
fn a_replica_that_dies_is_started_again_and_told_what_there_is() {
    let mut bench = Bench::new(2);
    let (_parent, first, fds) = bench.attach();
    let child = bench.client();
    let (second, _) = bench.ask(&child, &Request::Join { session: first.session, key: first.key });
    assert_eq!(second.unwrap().member, 1);
    drop(child);
    let (gone, ..) = bench.attach();
    bench.settle();
    assert_eq!(bench.told(0).len(), 3);
    drop(bench.replicas.remove(1));
    assert_eq!(bench.settle(), None, "the stack goes on");
    // The successor also learns what happens before it is ready.
    drop(gone);
    bench.settle();
    assert_eq!(
        bench.told(0),
        [
            Request::ServerGone { server: 1 },
            Request::ServerRestarted { server: 1, epoch: 2 },
            Request::SessionGone { session: 2 }
        ]
    );
    let back = bench.comes_back(1, 2);
    let (packet, theirs) = receive(&back).unwrap();
    assert!(matches!(Request::decode(&packet), Ok(Request::SessionOpened { session: 1, .. })));
    let layout = bench.server.config.sessions.arena.layout();
    let ours = ShmMemory::map(&fds[2 + BELLS + 3 + 1], layout.total, Access::ReadWrite).unwrap();
    atoll_ipc::Memory::store64(&ours, 8192, 4711);
    let same = ShmMemory::map(&theirs[0], layout.total, Access::ReadWrite).unwrap();
    assert_eq!(atoll_ipc::Memory::load64(&same, 8192), 4711, "it is the arena that the application has");
    let rest: Vec<_> =
        std::iter::from_fn(|| receive(&back)).map(|(packet, _)| Request::decode(&packet).unwrap()).collect();
    let rules = bench.server.config.accept.rules();
    let user = bench.server.gate.counting_for(None);
    let opened = Request::SessionOpened {
        session: 2,
        pid: std::process::id(),
        config: bench.server.config.sessions.arena,
        user,
    };
    assert_eq!(
        rest,
        [
            opened,
            Request::Balance { rules },
            Request::Adopt { blamed: false },
            Request::MemberGone { session: 1, member: 1 },
            Request::SessionGone { session: 2 }
        ]
    );
    bench.settle();
    bench.replicas.push(back);
    assert!(bench.server.all_ready());
    // The successor learns of new sessions as the other replica does.
    let _client = bench.attach();
    assert!(matches!(bench.told(1)[..], [Request::SessionOpened { session: 3, .. }]));
    let life = bench.server.servers.replicas()[1].record().life();
    assert!(
        life.crashes == 1
            && life.last.is_some()
            && bench.server.servers.replicas()[0].record().life().crashes == 0
    );
}

#[test]
fn who_waits_for_servers_that_start_does_not_spin() {
    let mut bench = Bench::new(1);
    bench.server.course.set_unready();
    let later = clock::now() + Duration::from_secs(60);
    assert_ne!(bench.server.servers_timeout_ms(later), Some(0), "it would do nothing then");
}

/// A session's memory holds text that its connections have still to send.
#[test]
fn the_memory_of_a_session_stays_until_every_replica_says_that_it_is_over() {
    let mut bench = Bench::new(2);
    let (ends, ..) = bench.attach();
    drop(ends);
    bench.settle();
    bench.replicas[1].send(&setup::over(1), &[]).unwrap();
    // Reports about other sessions, or repeated ones, do no harm.
    for session in [1, 7] {
        bench.replicas[1].send(&setup::over(session), &[]).unwrap();
    }
    bench.settle();
    let told = |end: &Channel| -> Vec<_> {
        std::iter::from_fn(|| receive(end)).map(|(packet, _)| Request::decode(&packet).unwrap()).collect()
    };
    let gone = Request::SessionGone { session: 1 };
    for (replica, knows) in [(0, true), (1, false)] {
        drop(bench.replicas.remove(replica));
        bench.settle();
        let back = bench.comes_back(replica, 2);
        let told = told(&back);
        assert_eq!(told.contains(&gone), knows, "replica {replica}: {told:?}");
        assert_eq!(
            matches!(told[0], Request::SessionOpened { session: 1, .. }),
            knows,
            "replica {replica}: {told:?}"
        );
        bench.replicas.insert(replica, back);
        bench.settle();
    }
    bench.replicas[0].send(&setup::over(1), &[]).unwrap();
    bench.settle();
    assert!(bench.server.books.ended().is_empty());
    // The number of ended sessions with memory has a limit.
    let config = bench.server.config.sessions.arena;
    let memory = Rc::new(SessionMemory::create(1, User::privileged(0), 2, config).unwrap());
    for session in 2..LINGERING_MAX as u32 + 5 {
        bench.server.books.linger(session, memory.clone(), 2);
    }
    assert_eq!((bench.server.books.ended().len(), bench.server.books.ended()[0]), (LINGERING_MAX, 5));
}

#[test]
fn status_and_sockets_are_told_while_a_replica_is_away() {
    let mut bench = Bench::new(2);
    let (before, after) = (bench.administrator(), bench.administrator());
    before.send(br#"{"cmd":"ss"}"#, &[]).unwrap();
    bench.settle();
    // The replica dies before it has listed its sockets; the other one lists them.
    bench.launches.borrow_mut().failing = 2;
    drop(bench.replicas.remove(1));
    bench.settle();
    after.send(br#"{"cmd":"ss"}"#, &[]).unwrap();
    bench.settle();
    for client in [&before, &after] {
        for packet in rows::packets(std::iter::once(SocketRow::default())) {
            bench.replicas[0].send(&packet, &[]).unwrap();
        }
        bench.settle();
        let (mut rows, mut parts) = (0, Vec::new());
        while let Some((packet, _)) = receive(client) {
            match serde_json::from_slice::<RowsPacket>(&packet) {
                Ok(packet) => rows += packet.rows.len(),
                Err(_) => parts.push(serde_json::from_slice::<ReportPart>(&packet).unwrap()),
            }
        }
        assert_eq!(
            (rows, parts),
            (1, vec![ReportPart::Restarting("replica 1".into()), ReportPart::Done(true)])
        );
    }
    let report = StatusReport::assemble(bench.server.report()).unwrap();
    assert_eq!(report.replicas.len(), 2);
}

#[test]
fn nobody_is_started_again_in_a_stack_that_ends() {
    let mut bench = Bench::new(2);
    let client = bench.administrator();
    client.send(br#"{"cmd":"down"}"#, &[]).unwrap();
    assert_eq!(bench.settle(), Some(Ending::Asked));
    drop(bench.replicas.remove(1));
    bench.settle();
    bench.server.stop();
    assert!(bench.launches.borrow().started.is_empty());
}

#[test]
fn the_stack_ends_on_request() {
    let mut bench = Bench::new(1);
    let client = bench.administrator();
    client.send(br#"{"cmd":"down"}"#, &[]).unwrap();
    assert_eq!(bench.settle(), Some(Ending::Asked));
    assert!(receive(&client).is_some());
    bench.server.stop();
    assert_eq!(bench.told(0), [Request::Stop]);
}

#[test]
fn a_private_stack_ends_after_its_program_and_the_sessions_of_its_children() {
    let mut bench = Bench::new(1);
    let (owner, theirs) = Channel::pair(Blocking::No).unwrap();
    bench.server.set_owner(theirs).unwrap();
    let (child, ..) = bench.attach();
    assert_eq!(bench.settle(), None);
    owner.send(b"{\"program_ended\":true}", &[]).unwrap();
    assert_eq!(bench.settle(), None);
    assert_eq!(receive(&owner).unwrap().0, SESSIONS_REMAIN);
    drop(owner);
    assert_eq!(bench.settle(), None);
    drop(child);
    let deadline = clock::now() + Duration::from_secs(10);
    let ending = loop {
        assert!(clock::now() < deadline, "it ends when nothing moves");
        if let Some(ending) = bench.server.turn(None).unwrap() {
            break ending;
        }
    };
    assert_eq!(ending, Ending::ProgramEnded);
}

/// Returns another build, which differs only in its name.
fn next_build() -> Program {
    let own = Program::own();
    Program { build: atoll_supervisor::Build { version: "next".into(), ..own.build.clone() }, ..own }
}

/// Begins an exchange of servers for those of [`next_build`]. Returns the client that has asked for it.
fn begin_exchange(bench: &mut Bench) -> Channel {
    let client = bench.administrator();
    bench.settle();
    let id = ClientId(bench.server.clients.next() - 1);
    bench.server.exchange(id, next_build()).unwrap();
    bench.settle();
    client
}

#[test]
fn a_build_whose_first_server_dies_is_replaced_by_the_one_before() {
    let mut bench = Bench::new(2);
    let (_client, joined, _) = bench.attach();
    bench.told(0);
    let ledger = ShmMemory::map(&bench.server.memory.ledgers[0], LEDGER_BYTES, Access::ReadWrite).unwrap();
    Ledger::open_as(ledger, LedgerConfig::STACK, atoll_base::Epoch(1), 1).unwrap();
    let new = next_build();
    let cli = bench.administrator();
    cli.send(br#"{"cmd":"upgrade","path":"next"}"#, &[]).unwrap();
    bench.settle();
    let (refusal, _) = receive(&cli).expect("there is no such file");
    assert!(String::from_utf8_lossy(&refusal).contains("next: No such file"));

    let own_ledger = new.build.ledger.newest;
    let id = ClientId(bench.server.clients.next() - 1);
    bench.server.exchange(id, new).unwrap();
    bench.settle();
    assert_eq!(bench.told(0), [Request::HandOver { ledger: 1 }]);
    assert_eq!(bench.told(1).len(), 1, "of the session, and nothing of an upgrade");
    // The server leaves, and everything is repeated to the next one.
    drop(bench.replicas.remove(0));
    bench.settle();
    let next = bench.comes_back(0, 2);
    bench.settle();
    let told: Vec<_> =
        std::iter::from_fn(|| receive(&next)).map(|(packet, _)| Request::decode(&packet).unwrap()).collect();
    assert!(matches!(told[0], Request::SessionOpened { session, .. } if session == joined.session));
    assert!(told.contains(&Request::Adopt { blamed: false }));
    assert!(
        !told.iter().any(|request| matches!(request, Request::WriteLedger { .. })),
        "not before it has proved itself"
    );
    assert_eq!(bench.server.servers.replicas()[0].record().life().crashes, 0);
    // The new server crashes.
    drop(next);
    bench.settle();
    let back = bench.comes_back(0, 3);
    bench.settle();
    assert_eq!(
        bench.launches.borrow().builds,
        [env!("CARGO_PKG_VERSION"), env!("CARGO_PKG_VERSION"), "next", env!("CARGO_PKG_VERSION")]
    );
    let told: Vec<_> =
        std::iter::from_fn(|| receive(&back)).map(|(packet, _)| Request::decode(&packet).unwrap()).collect();
    assert_eq!(told.last(), Some(&Request::WriteLedger { version: own_ledger }));
    let said: String =
        std::iter::from_fn(|| receive(&cli)).map(|(packet, _)| String::from_utf8(packet).unwrap()).collect();
    assert!(said.contains("replica 0 is of next") && said.contains("the old build is back"), "{said}");
    assert!(bench.server.succession.is_none() && bench.server.all_ready());
}

/// Returns what a supervisor has noted, as its guardian would keep it.
fn notes_of(guardian: &Channel) -> crate::notes::Notes {
    let mut notes = crate::notes::Notes::new();
    loop {
        let mut descriptors = Vec::new();
        let Ok(Some(note)) = crate::notes::receive(guardian, &mut descriptors) else { return notes };
        crate::notes::take_note(&mut notes, note, descriptors);
    }
}

/// Returns the state of a supervisor whose guardian has the other end of `channel`.
fn kept_by(channel: Channel) -> PersistedState {
    let lock = std::fs::File::open("/dev/null").unwrap();
    PersistedState::new(crate::supervise::Guardian { pid: 1, channel, job: String::new() }, lock.into())
}

#[test]
fn a_supervisor_makes_way_only_if_there_is_somebody_to_start_the_next_one() {
    let mut bench = Bench::new(1);
    let file = std::fs::File::open("/dev/null").unwrap();
    let next = Program { file: Some(file.into()), ..Program::own() };
    let cli = bench.administrator();
    bench.settle();
    let id = ClientId(bench.server.clients.next() - 1);
    assert!(!bench.server.make_way(id, &next), "nobody has ever been there");
    let (guardian, theirs) = Channel::pair(Blocking::No).unwrap();
    bench.server.leave_to(kept_by(theirs));
    drop(guardian);
    assert!(!bench.server.make_way(id, &next) && bench.server.course.ending().is_none(), "it is gone");
    let (guardian, theirs) = Channel::pair(Blocking::No).unwrap();
    bench.server.leave_to(kept_by(theirs));
    assert!(!bench.server.make_way(id, &Program::own()), "its file is not known");
    assert!(bench.server.make_way(id, &next));
    assert_eq!(bench.server.course.ending(), Some(&Ending::MadeWay));
    let notes = notes_of(&guardian);
    assert_eq!(notes[crate::notes::NEXT].descriptors.len(), 1);
    let stack: crate::supervise::persisted::StackNote =
        serde_json::from_str(&notes[crate::notes::STACK].text).unwrap();
    assert_eq!(stack.exchange_for, Some(id.0));

    // The next supervisor is of the old build, and says why.
    let reason = Some("it was ended by SIGABRT".into());
    bench.server.course.goes_on();
    bench.server.exchanged(id, reason).unwrap();
    let (packet, _) = receive(&cli).expect("it is told");
    let said = String::from_utf8(packet).unwrap();
    assert!(said.contains("the supervisor is of the old one: it was ended by SIGABRT"), "{said}");
}

#[test]
fn another_supervisor_goes_on_where_one_has_died() {
    let mut bench = Bench::new(2);
    let (early, first, _) = bench.attach();
    let (guardian, theirs) = Channel::pair(Blocking::No).unwrap();
    bench.server.leave_to(kept_by(theirs));
    let (late, second, _) = bench.attach();
    let child = bench.client();
    let (joined, _) = bench.ask(&child, &Request::Join { session: first.session, key: first.key });
    assert_eq!(joined.unwrap().member, 1);
    // This client is gone by the time that there is a supervisor again.
    let (short, third, _) = bench.attach();
    // Replica 1 has been restarted since, and one client has asked, and got no answer.
    bench.replicas.remove(1);
    bench.settle();
    let replica1 = bench.comes_back(1, 2);
    bench.settle();
    let administrator = bench.administrator();
    bench.settle();
    let notes = notes_of(&guardian);
    let asking = bench.client();
    let Bench { server, replicas, launches, socket } = &mut bench;
    let mut config = server.config.clone();
    let identity = server.identity.clone();
    asking.send(&Request::Attach { layout_version: LAYOUT_VERSION, room_mib: 0 }.encode(), &[]).unwrap();
    drop((short, child));
    let mut found = Found::read(notes, &mut config).unwrap();
    assert!(std::mem::take(&mut found.queues).is_empty());
    let (guardian, theirs) = Channel::pair(Blocking::No).unwrap();
    let launcher = Box::new(FakeLauncher(launches.clone()));
    let mut next = found.resume(config, identity, launcher, None, kept_by(theirs)).unwrap();
    // The old supervisor is dropped: descriptors that others have too stay open.
    std::mem::swap(server, &mut next);
    drop(next);
    for end in [&replicas[0], &replica1] {
        let told: Vec<_> = std::iter::from_fn(|| receive(end))
            .map(|(packet, _)| Request::decode(&packet).unwrap())
            .collect();
        let opened = |number: u32| {
            told.iter().any(
                |request| matches!(request, Request::SessionOpened { session, .. } if *session == number),
            )
        };
        assert!(opened(first.session) && opened(second.session), "{told:?}");
    }
    for _ in 0..30 {
        server.turn(Some(0)).unwrap();
    }
    let (packet, fds) = receive(&asking).expect("whoever has asked in between is answered");
    let answer = Reply::decode(&packet).unwrap();
    assert!(matches!(answer, Reply::Joined { session, .. } if session == third.session + 1), "{answer:?}");
    assert_eq!(fds.len(), 2 + BELLS + 3 * 2);
    let told: Vec<_> = std::iter::from_fn(|| receive(&replica1))
        .map(|(packet, _)| Request::decode(&packet).unwrap())
        .collect();
    assert!(told.contains(&Request::SessionGone { session: third.session }), "{told:?}");
    assert!(told.contains(&Request::MemberGone { session: first.session, member: 1 }), "{told:?}");
    assert_eq!(server.books.len(), 3);
    assert_eq!(
        server
            .servers
            .replicas()
            .iter()
            .map(|replica| (replica.record().epoch(), replica.record().life().crashes))
            .collect::<Vec<_>>(),
        [(1, 0), (2, 1)]
    );

    // A connection may still do only what it could do before.
    for (client, done) in [(&early, false), (&administrator, true)] {
        client.send(br#"{"cmd":"balance"}"#, &[]).unwrap();
        for _ in 0..30 {
            server.turn(Some(0)).unwrap();
        }
        let said: Vec<ReportPart> = scaling::answers(client);
        assert_eq!(said.contains(&ReportPart::Done(true)), done, "{said:?}");
    }
    drop(administrator);

    // The second supervisor can die as well, and the third one knows what has happened since. Of the sessions
    // that have ended, one is over everywhere.
    drop((late, early));
    for _ in 0..30 {
        server.turn(Some(0)).unwrap();
    }
    for (end, session) in
        [(&replicas[0], first.session), (&replica1, first.session), (&replica1, second.session)]
    {
        end.send(&setup::over(session), &[]).unwrap();
    }
    for _ in 0..30 {
        server.turn(Some(0)).unwrap();
    }
    let notes = notes_of(&guardian);
    let names: Vec<&String> = notes.keys().collect();
    let kept: Vec<&&String> = names.iter().filter(|name| name.starts_with("session.")).collect();
    assert_eq!(kept.len(), 3, "the second, the third, and that of who has asked: {kept:?}");
    assert_eq!(names.iter().filter(|name| name.starts_with(crate::notes::CLIENTS)).count(), 1, "{names:?}");
    let (config, identity) = (server.config.clone(), server.identity.clone());
    let found = Found::read(notes, &mut config.clone()).unwrap();
    let (guardian, theirs) = Channel::pair(Blocking::No).unwrap();
    let launcher = Box::new(FakeLauncher(launches.clone()));
    let third_one = found.resume(config, identity, launcher, None, kept_by(theirs)).unwrap();
    let ended: Vec<u32> = third_one.books.ended();
    assert_eq!(ended, [second.session, third.session]);
    let notes = notes_of(&guardian);
    for session in ended {
        let known = notes.get(&format!("session.{session:010}")).expect("the fourth one will know of it");
        assert_eq!(known.descriptors.len(), 1 + BELLS + 2 * 2);
    }
    let _ = std::fs::remove_file(socket);
}

/// A program with little address space has small arenas. Other processes that join its session get these
/// sizes, too, also from the next supervisor.
#[test]
fn arenas_fit_the_address_space_of_a_program() {
    let mut bench = Bench::new(2);
    let (guardian, theirs) = Channel::pair(Blocking::No).unwrap();
    bench.server.leave_to(kept_by(theirs));
    let ask = |server: &mut Supervisor, client: &Channel, request: &Request| {
        client.send(&request.encode(), &[]).unwrap();
        for _ in 0..30 {
            server.turn(Some(0)).unwrap();
        }
        match Reply::decode(&receive(client).expect("requests are answered").0) {
            Ok(Reply::Joined { session, key, config, .. }) => (Request::Join { session, key }, config),
            other => panic!("{other:?}"),
        }
    };
    let usual = ArenaConfig::default();
    bench.server.config.sessions.arena = usual;
    let (limited, free, members) = (bench.client(), bench.client(), [0; 4].map(|_| bench.client()));
    let attach = |room_mib| Request::Attach { layout_version: LAYOUT_VERSION, room_mib };
    let (to_small, small) = ask(&mut bench.server, &limited, &attach(20));
    let (to_usual, large) = ask(&mut bench.server, &free, &attach(0));
    assert!(small.layout().total <= 10 << 20 && small.is_valid() && small != usual, "{small:?}");
    assert_eq!((large, usual.within(10 << 20)), (usual, small));
    assert_eq!(ask(&mut bench.server, &members[0], &to_small).1, small);
    let told = bench.told(1);
    let of_session = |request: &Request| match request {
        Request::SessionOpened { config, .. } => Some(*config),
        _ => None,
    };
    assert_eq!(told.iter().filter_map(of_session).collect::<Vec<_>>(), [small, usual]);

    let Bench { server, launches, .. } = &mut bench;
    let (mut config, identity) = (server.config.clone(), server.identity.clone());
    let found = Found::read(notes_of(&guardian), &mut config).unwrap();
    let launcher = Box::new(FakeLauncher(launches.clone()));
    let mut next = found.resume(config, identity, launcher, None, PersistedState::default()).unwrap();
    std::mem::swap(server, &mut next);
    drop(next);
    assert_eq!(ask(server, &members[1], &to_small).1, small);
    assert_eq!(ask(server, &members[2], &to_usual).1, usual);
}

/// A connection that an old supervisor accepted becomes an application's. Such connections could be used for
/// both purposes, and any child could inherit them.
#[test]
fn a_supervisor_of_before_there_were_two_sockets_is_succeeded() {
    let mut bench = Bench::new(1);
    let (guardian, theirs) = Channel::pair(Blocking::No).unwrap();
    bench.server.leave_to(kept_by(theirs));
    let (client, ..) = bench.attach();
    let cli = bench.administrator();
    bench.settle();
    let mut notes = notes_of(&guardian);
    notes.remove("admin");
    for (_, known) in notes.iter_mut().filter(|(name, _)| name.starts_with(crate::notes::CLIENTS)) {
        known.text = "null".into();
    }
    let (mut config, identity) = (bench.server.config.clone(), bench.server.identity.clone());
    let mut paths = atoll_supervisor::Paths::new(&std::env::temp_dir(), &config.name);
    paths.admin = bench.socket.with_extension("admin2");
    let found = Found::read_at(notes, &mut config, &paths).unwrap();
    let launcher = Box::new(FakeLauncher(bench.launches.clone()));
    let mut next = found.resume(config, identity, launcher, None, PersistedState::default()).unwrap();
    let fresh = Channel::connect(&paths.admin, Blocking::No).unwrap();
    let _ = std::fs::remove_file(&paths.admin);
    for (channel, done) in [(&client, false), (&cli, false), (&fresh, true)] {
        channel.send(br#"{"cmd":"balance"}"#, &[]).unwrap();
        for _ in 0..30 {
            next.turn(Some(0)).unwrap();
        }
        let said = scaling::answers(channel);
        assert_eq!(said.contains(&ReportPart::Done(true)), done, "{said:?}");
    }
}

/// A child in a chroot needs this. The new connection has the rights of one that was made by the path, and no
/// others.
#[test]
fn a_connection_gives_another_one() {
    let mut bench = Bench::new(1);
    let client = bench.client();
    client.send(&Request::Connect.encode(), &[]).unwrap();
    bench.settle();
    let (packet, mut fds) = receive(&client).expect("requests are answered");
    assert_eq!((Reply::decode(&packet), fds.len()), (Ok(Reply::Connected), 1));
    let another = Channel::from(fds.pop().unwrap());
    drop(client);
    bench.settle();
    another.send(br#"{"cmd":"down"}"#, &[]).unwrap();
    assert_eq!(bench.settle(), None);
    // The request waits for its turn, as on a connection that a program has made.
    another.set_timeouts(atoll_base::Duration::from_secs(5)).unwrap();
    let (packet, _) = receive(&another).unwrap();
    assert!(matches!(serde_json::from_slice(&packet), Ok(ReportPart::Error(_))));
    let (joined, fds) = bench.ask(&another, &Request::Attach { layout_version: LAYOUT_VERSION, room_mib: 0 });
    assert_eq!((joined.unwrap().session, fds.len()), (1, 2 + BELLS + 3));
    drop(another);
    bench.settle();
    assert!(bench.server.clients.len() == 0 && bench.server.books.len() == 0);
}

/// A process that has begun a session may become another user, and its children may begin sessions, which
/// count for that user. Neither the key of a session nor a connection without a session admits a process.
#[test]
fn who_was_let_in_stays_in_as_another_user() {
    if rustix::process::geteuid().as_raw() != 0 {
        return; // The kernel lets root alone name another user as the sender.
    }
    const OTHER: u32 = 33;
    let mut bench = Bench::new(1);
    let attach = Request::Attach { layout_version: LAYOUT_VERSION, room_mib: 0 };
    let ask = |bench: &mut Bench, client: &Channel, request: &Request, uid| {
        client.send_as(&request.encode(), uid).unwrap();
        bench.settle();
        let (packet, fds) = receive(client).expect("requests are answered");
        (Reply::decode(&packet).unwrap(), fds)
    };
    let refused = Reply::Refused { reason: Refusal::Permission };
    let (parent, joined, _fds) = bench.attach();
    let fresh = bench.client();
    assert_eq!(ask(&mut bench, &fresh, &attach, OTHER).0, refused);
    assert_eq!(ask(&mut bench, &fresh, &Request::Connect, OTHER).0, refused);
    // Root makes a connection before a chroot, and begins nothing over it.
    let (_, mut fds) = ask(&mut bench, &fresh, &Request::Connect, 0);
    let kept = Channel::from(fds.pop().expect("a connection"));
    assert_eq!(ask(&mut bench, &kept, &attach, OTHER).0, refused);
    // Whoever was sent a socket knows the key of its session.
    let join = Request::Join { session: joined.session, key: joined.key };
    assert!(matches!(ask(&mut bench, &fresh, &join, OTHER).0, Reply::Joined { .. }));
    assert_eq!(ask(&mut bench, &fresh, &attach, OTHER).0, refused);

    let (_, mut fds) = ask(&mut bench, &parent, &Request::Connect, OTHER);
    let child = Channel::from(fds.pop().expect("a connection"));
    let (_, mut fds) = ask(&mut bench, &child, &Request::Connect, OTHER);
    let grandchild = Channel::from(fds.pop().expect("a connection"));
    bench.told(0);
    for heir in [&parent, &child, &grandchild] {
        assert!(matches!(ask(&mut bench, heir, &attach, OTHER).0, Reply::Joined { .. }));
        let told = bench.told(0);
        let [Request::SessionOpened { user, .. }] = told[..] else { panic!("{told:?}") };
        assert_eq!((user.counts_for, user.may_bind(1023)), (Some(OTHER), false));
    }
    // It is let in, and administers nothing.
    grandchild.send_as(br#"{"cmd":"down"}"#, OTHER).unwrap();
    assert_eq!(bench.settle(), None);
}

/// The next supervisor knows which users were admitted, and admits no others.
#[test]
fn who_was_let_in_stays_in_under_the_next_supervisor() {
    if rustix::process::geteuid().as_raw() != 0 {
        return; // The kernel lets root alone name another user as the sender.
    }
    let mut bench = Bench::new(1);
    let (guardian, theirs) = Channel::pair(Blocking::No).unwrap();
    bench.server.leave_to(kept_by(theirs));
    let (inside, ..) = bench.attach();
    let outside = bench.client();
    bench.settle();
    let (mut config, identity) = (bench.server.config.clone(), bench.server.identity.clone());
    let found = Found::read(notes_of(&guardian), &mut config).unwrap();
    let launcher = Box::new(FakeLauncher(bench.launches.clone()));
    let mut next = found.resume(config, identity, launcher, None, PersistedState::default()).unwrap();
    for (client, is_let_in) in [(&inside, true), (&outside, false)] {
        client
            .send_as(&Request::Attach { layout_version: LAYOUT_VERSION, room_mib: 0 }.encode(), 33)
            .unwrap();
        for _ in 0..30 {
            next.turn(Some(0)).unwrap();
        }
        let (packet, _) = receive(client).expect("requests are answered");
        let reply = Reply::decode(&packet).unwrap();
        assert_eq!(matches!(reply, Reply::Joined { .. }), is_let_in, "{reply:?}");
    }
}

/// The voucher names the user that asks, with that user's rights, and not the user that connected or
/// attached. The seal covers exactly that.
#[test]
fn whoever_asks_is_vouched_for_as_who_he_is() {
    let mut bench = Bench::new(1);
    let (client, ..) = bench.attach();
    let uid = rustix::process::geteuid().as_raw();
    let vouch = Request::Vouch { lease: 7, protocol: Protocol::Tcp, port: 80 };
    client.send(&vouch.encode(), &[]).unwrap();
    bench.settle();
    let (packet, fds) = receive(&client).expect("requests are answered");
    let Ok(Reply::Vouched { pass, seal }) = Reply::decode(&packet) else { panic!("{packet:?}") };
    assert_eq!((pass, fds.len()), (Pass { lease: 7, uid, protocol: Protocol::Tcp, port: 80 }, 0));
    let key = bench.server.memory.lease_key;
    assert_eq!(seal, seal_pass(&key, &pass));
    assert!(key != [0; 16] && seal != seal_pass(&[0; 16], &pass), "and nobody else can make it");
    // Another user asks over the same connection: the kernel lets root name any user, and that user may have
    // none of the low ports.
    if uid == 0 {
        for (claims, pass) in [(33, Pass { uid: 33, port: 0, ..pass }), (0, pass)] {
            client.send_as(&vouch.encode(), claims).unwrap();
            bench.settle();
            let (packet, _) = receive(&client).expect("requests are answered");
            assert_eq!(Reply::decode(&packet), Ok(Reply::Vouched { pass, seal: seal_pass(&key, &pass) }));
        }
    }
}

/// Raw sockets are for processes with CAP_NET_RAW, and for the user of a stack that root does not run.
/// That a user may have the port of that number does not count.
#[test]
fn raw_sockets_are_vouched_for_by_the_capability_and_not_by_the_port() {
    let mut bench = Bench::new(1);
    let (client, ..) = bench.attach();
    let uid = rustix::process::geteuid().as_raw();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    let has_it = u64::from_str_radix(effective.trim(), 16).unwrap() & 1 << 13 != 0;
    let vouch = Request::Vouch { lease: 7, protocol: Protocol::Raw, port: 1 };
    let mut vouched = |claims: u32| {
        if claims == uid {
            client.send(&vouch.encode(), &[]).unwrap();
        } else {
            client.send_as(&vouch.encode(), claims).unwrap();
        }
        bench.settle();
        let (packet, _) = receive(&client).expect("requests are answered");
        let Ok(Reply::Vouched { pass, .. }) = Reply::decode(&packet) else { panic!("{packet:?}") };
        assert_eq!((pass.uid, pass.protocol), (claims, Protocol::Raw));
        pass.port
    };
    assert_eq!(vouched(uid), u16::from(has_it || uid != 0));
    if uid == 0 {
        assert_eq!(vouched(33), 0);
    }
}
