//! Speaks to a stack without the library, and keeps to none of its rules: `attacker ATTACK PORT`.
//!
//! The program runs until it is killed, and prints `attacking` once its attack is under way. `SUCCEEDED` at
//! the start of a line says that it got what no program should get. `ATOLL_SOCKET` names the stack; PORT is
//! the neighbour's.
#![forbid(unsafe_code)]

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use atoll_base::{Addr, Duration, Endpoint, Rng, SlotId};
use atoll_ipc::command::{CloseMode, DatagramKind, Protocol, SocketOption};
use atoll_ipc::control::{Reply, Request};
use atoll_ipc::lease::{Pass, Voucher};
use atoll_ipc::page::{APP_PAGE_BYTES, BELLS, REPLICA_PAGE_BYTES};
use atoll_ipc::{Cause, Command, Event, LAYOUT_VERSION, Memory};
use atoll_shm::{Access, ShmMemory};
use atoll_sockets::port::Port;
use atoll_sys::eventfd;
use atoll_sys::unix::{Blocking, Channel};
use rustix::process::{Resource, Rlimit, Uid, setrlimit};
use rustix::thread::set_thread_res_uid;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [attack, port] = &arguments[..] else { return usage() };
    let Ok(port) = port.parse() else { return usage() };
    // The limit of descriptors is raised as far as it goes.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(65536), maximum: Some(65536) });
    match &attack[..] {
        "scribble" => scribble(),
        "commands" => commands(port),
        "groups" => groups(),
        "listeners" => listeners(),
        "connects" => connects(),
        "options" => options(),
        "udp-open" => udp_open(port),
        "listen" => listen(port),
        "usurper" => usurper(port),
        "openers" => openers(),
        "attach" => attach_and_leave(),
        "sessions" => sessions(),
        "rubbish" => rubbish(),
        "askers" => askers(),
        "reopen" => reopen(),
        "reopened" => reopened(),
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    eprintln!("usage: attacker ATTACK PORT");
    ExitCode::from(2)
}

/// A session, made by hand.
struct Raw {
    /// The connection to the supervisor, which keeps the session open.
    control: Channel,
    replicas: Vec<Replica>,
    app_page: ShmMemory,
}

struct Replica {
    port: Port<ShmMemory>,
    _page: ShmMemory,
    bell: OwnedFd,
}

impl Raw {
    fn attach() -> Raw {
        let control = connect().expect("the stack takes connections");
        let (reply, fds) = ask(&control, &Request::Attach { layout_version: LAYOUT_VERSION, room_mib: 0 })
            .expect("an answer");
        let Reply::Joined { replicas, config, .. } = reply else { panic!("not let in: {reply:?}") };
        let mut fds = fds.into_iter();
        let mut next = || fds.next().expect("as many descriptors as Reply::Joined says");
        let map = |fd: OwnedFd, len, access| ShmMemory::map(fd, len, access).expect("memory can be mapped");
        let _stack_page = next();
        let app_page = map(next(), APP_PAGE_BYTES, Access::ReadWrite);
        for _ in 0..BELLS {
            next();
        }
        let layout = config.layout();
        let mut all = Vec::new();
        for _ in 0..replicas {
            let _page = ShmMemory::map_page(next(), REPLICA_PAGE_BYTES, Access::ReadOnly);
            let _page = _page.expect("a page can be mapped");
            let arena = map(next(), layout.total, Access::ReadWrite);
            all.push(Replica { port: Port::new(arena, layout), _page, bell: next() });
        }
        Raw { control, replicas: all, app_page }
    }

    /// Sends a command to every replica, and waits for room where a ring is full.
    fn push(&mut self, command: &Command) {
        for replica in 0..self.replicas.len() {
            self.push_to(replica, command);
        }
    }

    fn push_to(&mut self, replica: usize, command: &Command) {
        let Replica { port, bell, .. } = &mut self.replicas[replica];
        while !port.push(command) {
            let _ = eventfd::ring(&*bell);
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
    }

    /// Wakes all replicas, and discards their events.
    fn ring(&mut self) -> Vec<Event> {
        let mut said = Vec::new();
        for Replica { port, bell, .. } in &mut self.replicas {
            let _ = eventfd::ring(&*bell);
            while let Some(event) = port.next_event() {
                said.push(event);
            }
            port.publish();
        }
        said
    }

    /// Takes a slot with the same number in all replicas, and one holder.
    fn slot(&mut self) -> (SlotId, u32) {
        let slots: Vec<_> =
            self.replicas.iter_mut().filter_map(|replica| replica.port.allocate_slot()).collect();
        for (replica, (slot, _)) in self.replicas.iter().zip(&slots) {
            if let Some(view) = replica.port.slot(*slot) {
                view.set_holders(1);
            }
        }
        slots[0]
    }
}

fn connect() -> Option<Channel> {
    connect_to(&PathBuf::from(std::env::var_os("ATOLL_SOCKET")?))
}

/// Returns the endpoint that the command line names.
fn connect_to_administration() -> Option<Channel> {
    connect_to(&PathBuf::from(std::env::var_os("ATOLL_SOCKET")?).with_extension("admin"))
}

fn connect_to(path: &Path) -> Option<Channel> {
    let channel = Channel::connect(path, Blocking::Yes).ok()?;
    channel.set_timeouts(Duration::from_secs(5)).ok()?;
    Some(channel)
}

fn ask(control: &Channel, request: &Request) -> Option<(Reply, Vec<OwnedFd>)> {
    control.send(&request.encode(), &[]).ok()?;
    let (mut packet, mut fds) = ([0; 256], Vec::new());
    let len = control.receive(&mut packet, &mut fds).ok()?.min(packet.len());
    Some((Reply::decode(&packet[..len]).ok()?, fds))
}

fn attacking() {
    println!("attacking");
}

fn random() -> Rng {
    Rng::new(u64::from(std::process::id()))
}

/// The number of rings of a doorbell before the attacker reads its events.
const BATCH: usize = 256;

/// Writes words everywhere in the arenas and on its own page, many of them where heads, tails and flags are,
/// and sends commands between, so that replicas read the words.
fn scribble() -> ExitCode {
    let mut raw = Raw::attach();
    let mut rng = random();
    let (slot, generation) = raw.slot();
    attacking();
    loop {
        for replica in &raw.replicas {
            let memory = replica.port.memory();
            let layout = replica.port.layout();
            for _ in 0..BATCH {
                let end = match rng.below(4) {
                    0 => layout.events,
                    1 => layout.slots + 4096,
                    2 => layout.library + 8192,
                    _ => memory.len(),
                };
                let at = rng.below((end / 8) as u32) as usize * 8;
                memory.store64(at, rng.next_u64() >> rng.below(64));
            }
        }
        let at = rng.below((raw.app_page.len() / 8) as u32) as usize * 8;
        raw.app_page.store64(at, rng.next_u64());
        // The rings are spoilt as well, so what is pushed may be anything.
        for replica in &mut raw.replicas {
            let _ = replica.port.push(&Command::Kick { slot, generation });
            let _ = eventfd::ring(&replica.bell);
        }
    }
}

/// Sends every kind of command at random, about a handful of slots and leases, as fast as possible.
fn commands(port: u16) -> ExitCode {
    let mut raw = Raw::attach();
    let mut rng = random();
    let slots: Vec<_> = (0..8).map(|_| raw.slot()).collect();
    attacking();
    loop {
        for _ in 0..BATCH {
            let (slot, generation) = slots[rng.below(8) as usize];
            let (lease, token) = (u64::from(rng.below(8)) + 1, rng.next_u32());
            // The port is never the neighbour's: that is another attack.
            let own = Endpoint::at(Addr::V4_ANY, port + 1 + rng.below(8) as u16);
            let nowhere = Endpoint::new(0xc612_0000 | rng.next_u32() >> 16, rng.next_u32() as u16);
            let command = match rng.below(15) {
                0 => Command::Bind {
                    token,
                    lease,
                    protocol: if rng.below(2) == 0 { Protocol::Tcp } else { Protocol::Udp },
                    local: own,
                    reuse_addr: true,
                    reuse_port: false,
                    v6_only: false,
                    device: atoll_ipc::Device::None,
                },
                1 => Command::Release { lease },
                2 => Command::Listen {
                    token,
                    lease,
                    local: own,
                    backlog: rng.next_u32(),
                    reuse_port: rng.below(2) == 0,
                    defer_accept: rng.next_u32() as u16,
                    v6_only: false,
                    hops_min: [0; 2],
                },
                3 => Command::AcceptConnection { lease },
                4 => Command::StopAccepting { lease },
                5 => Command::Claim { slot, generation },
                6 => {
                    Command::Connect { slot, generation, lease, local: Endpoint::default(), remote: nowhere }
                }
                7 => Command::Kick { slot, generation },
                8 => Command::Close { slot, generation, mode: CloseMode::Abort },
                9 | 10 => {
                    let option = SocketOption::from_u8(rng.below(43) as u8).unwrap_or(SocketOption::NoDelay);
                    Command::SetOption { slot, generation, option, value: rng.next_u32() }
                }
                11 => {
                    let option = SocketOption::from_u8(rng.below(43) as u8).unwrap_or(SocketOption::FastOpen);
                    Command::SetListenerOption { lease, option, value: rng.next_u32() }
                }
                12 => Command::Info { token, slot, generation },
                13 => Command::AskConnection { lease, takes: rng.below(2) == 0 },
                _ => Command::Group {
                    slot,
                    generation,
                    group: group(&mut rng),
                    inside: false,
                    joins: true,
                    token: 0,
                },
            };
            let replica = rng.below(raw.replicas.len() as u32) as usize;
            raw.push_to(replica, &command);
        }
        raw.ring();
    }
}

fn group(rng: &mut Rng) -> Addr {
    Addr::v4(0xe000_0000 | rng.next_u32() >> 4)
}

fn open_datagram_socket(raw: &mut Raw) -> (SlotId, u32) {
    let (slot, generation) = raw.slot();
    let local = Endpoint::at(Addr::V4_ANY, 0);
    let remote = Endpoint::default();
    raw.push(&Command::UdpOpen {
        slot,
        generation,
        lease: 77,
        local,
        remote,
        reuse_port: false,
        v6_only: false,
        kind: DatagramKind::Udp,
    });
    (slot, generation)
}

/// Lets one datagram socket join and leave multicast groups, all of them different.
fn groups() -> ExitCode {
    let mut raw = Raw::attach();
    let mut rng = random();
    let (slot, generation) = open_datagram_socket(&mut raw);
    attacking();
    loop {
        for n in 0..BATCH {
            let group = group(&mut rng);
            raw.push(&Command::Group { slot, generation, group, inside: false, joins: n % 4 != 0, token: 0 });
        }
        raw.ring();
    }
}

/// Leases ports, listens at them, and gives them back or not.
fn listeners() -> ExitCode {
    let mut raw = Raw::attach();
    let mut lease = 1 << 40;
    attacking();
    loop {
        for n in 0..BATCH as u64 {
            lease += 1;
            let local = Endpoint::at(Addr::V4_ANY, 20000 + (lease % 10000) as u16);
            let token = lease as u32;
            raw.push(&Command::Bind {
                token,
                lease,
                protocol: Protocol::Tcp,
                local,
                reuse_addr: true,
                reuse_port: true,
                v6_only: false,
                device: atoll_ipc::Device::None,
            });
            raw.push(&Command::Listen {
                token,
                lease,
                local,
                backlog: u32::MAX,
                reuse_port: true,
                defer_accept: 0,
                v6_only: false,
                hops_min: [0; 2],
            });
            raw.push(&Command::AcceptConnection { lease });
            if n % 2 == 0 {
                raw.push(&Command::Release { lease });
            }
        }
        raw.ring();
    }
}

/// Opens connections to unused addresses, and closes them a moment later.
fn connects() -> ExitCode {
    let mut raw = Raw::attach();
    let mut rng = random();
    attacking();
    let mut open = Vec::new();
    let mut number = 0;
    loop {
        for _ in 0..BATCH {
            let replica = rng.below(raw.replicas.len() as u32) as usize;
            let Some((slot, generation)) = raw.replicas[replica].port.allocate_slot() else { break };
            if let Some(view) = raw.replicas[replica].port.slot(slot) {
                view.set_holders(1);
            }
            number += 1;
            let remote = Endpoint::new(0xc612_0000 | (200 + rng.below(50)), 9);
            let local = Endpoint::at(Addr::V4_ANY, 0);
            raw.push_to(replica, &Command::Connect { slot, generation, lease: number, local, remote });
            open.push((replica, slot, generation));
        }
        raw.ring();
        if open.len() > 4096 {
            for (replica, slot, generation) in open.drain(..2048) {
                raw.replicas[replica].port.close_slot(slot, generation, 0);
                raw.push_to(replica, &Command::Close { slot, generation, mode: CloseMode::Abort });
            }
        }
        for replica in &mut raw.replicas {
            replica.port.sweep();
        }
    }
}

/// Sets options of one socket again and again.
fn options() -> ExitCode {
    let mut raw = Raw::attach();
    let mut rng = random();
    let (slot, generation) = open_datagram_socket(&mut raw);
    attacking();
    loop {
        for _ in 0..BATCH {
            let option = SocketOption::from_u8(rng.below(43) as u8).unwrap_or(SocketOption::TimeToLive);
            raw.push(&Command::SetOption { slot, generation, option, value: rng.next_u32() });
        }
        raw.ring();
    }
}

/// Opens a datagram socket on the neighbour's port, without a lease of it, and with forged ones. What the
/// socket gets shows as loss at the neighbour.
fn udp_open(port: u16) -> ExitCode {
    let mut raw = Raw::attach();
    let (mut rng, protocol) = (random(), Protocol::Udp);
    let (slot, generation) = raw.slot();
    let remote = Endpoint::default();
    attacking();
    loop {
        for local in
            [Addr::V4_ANY, Addr::v4(0xc612_0002), Addr::default()].map(|addr| Endpoint { addr, port })
        {
            let lease = 0x7000_0001;
            let (granted, seal) = (rng.next_u64() >> rng.below(64), rng.next_u64());
            let voucher = Voucher { uid: 0, flags: rng.next_u32() as u8, granted, seal };
            raw.push(&Command::Show { lease, protocol, local, voucher });
            raw.push(&Command::UdpOpen {
                slot,
                generation,
                lease,
                local,
                remote,
                reuse_port: false,
                v6_only: false,
                kind: DatagramKind::Udp,
            });
            raw.ring();
            pause(5);
            let has_text =
                |replica: &Replica| replica.port.slot(slot).is_some_and(|view| view.receive_tail() > 0);
            if raw.replicas.iter().any(has_text) {
                println!("SUCCEEDED: datagrams of somebody else's port");
            }
        }
    }
}

/// Opens a session as root, gives root up, and then asks over that session for what belongs to root: a low
/// port, and a share of the neighbour's port. It tries without a pass, with the pass that the supervisor
/// gives, with a changed pass, and with a claim to be root.
fn usurper(port: u16) -> ExitCode {
    let mut raw = Raw::attach();
    let nobody = Some(Uid::from_raw(65534));
    if set_thread_res_uid(nobody, nobody, nobody).is_err() {
        eprintln!("usurper: it has to be root first");
        return ExitCode::FAILURE;
    }
    let mut rng = random();
    attacking();
    for round in 0u64.. {
        let (lease, protocol) = (0x7100_0000 + round, Protocol::Tcp);
        for port in [port, 79] {
            let vouch = Request::Vouch { lease, protocol, port };
            // The kernel refuses credentials of a user that the process may not become.
            let claims = raw.control.send_as(&vouch.encode(), 0).is_ok();
            if !claims && raw.control.send(&vouch.encode(), &[]).is_err() {
                continue;
            }
            let (mut packet, mut fds) = ([0; 256], Vec::new());
            let Ok(len) = raw.control.receive(&mut packet, &mut fds) else { continue };
            let Ok(Reply::Vouched { pass, seal }) = Reply::decode(&packet[..len.min(packet.len())]) else {
                continue;
            };
            if claims || pass.uid == 0 {
                println!("SUCCEEDED: the supervisor takes it for root");
            }
            let shown = [
                None,
                Some((pass, seal)),
                Some((Pass { uid: 0, ..pass }, seal)),
                Some((Pass { uid: 0, port, ..pass }, seal)),
                Some((Pass { uid: 0, port, ..pass }, rng.next_u64())),
            ];
            for shown in shown {
                let (token, local) = (port.into(), Endpoint::at(Addr::V4_ANY, port));
                let (reuse_addr, reuse_port, v6_only) = (false, true, false);
                if let Some((pass, seal)) = shown {
                    raw.push(&Command::Pass { pass, seal });
                }
                raw.push(&Command::Bind {
                    token,
                    lease,
                    protocol,
                    local,
                    reuse_addr,
                    reuse_port,
                    v6_only,
                    device: atoll_ipc::Device::None,
                });
                pause(1);
                if raw.ring().iter().any(|event| matches!(event, Event::BindReply { cause: Cause::None, .. }))
                {
                    println!("SUCCEEDED: port {port}, which is root's");
                }
            }
        }
    }
    ExitCode::SUCCESS
}

/// Listens at the neighbour's port in all replicas, without a lease of it. A connection that is offered is
/// taken, which shows at the neighbour as a refusal or a silence.
fn listen(port: u16) -> ExitCode {
    let mut raw = Raw::attach();
    let (lease, local) = (0x7000_0002, Endpoint::at(Addr::V4_ANY, port));
    attacking();
    for round in 0.. {
        // Every second attempt shows a forged grant.
        let voucher = Voucher { uid: 0, flags: 12, granted: u64::MAX, seal: u64::from(round) };
        if round % 2 == 1 {
            raw.push(&Command::Show { lease, protocol: Protocol::Tcp, local, voucher });
        }
        raw.push(&Command::Listen {
            token: round,
            lease,
            local,
            backlog: 1024,
            reuse_port: true,
            defer_accept: 0,
            v6_only: false,
            hops_min: [0; 2],
        });
        raw.push(&Command::AcceptConnection { lease });
        pause(2);
        if raw.ring().iter().any(|event| matches!(event, Event::ConnectionAvailable { .. })) {
            println!("SUCCEEDED: a connection to somebody else's port");
        }
    }
    ExitCode::SUCCESS
}

/// Opens as many connections to the control socket as possible, and sends nothing over them.
fn openers() -> ExitCode {
    let mut open = Vec::new();
    let mut said = false;
    loop {
        let connected = if open.len() < 20_000 { connect_without_waiting() } else { None };
        match connected {
            Some(channel) => open.push(channel),
            None => pause(10),
        }
        if !said && open.len() >= 200 {
            said = true;
            attacking();
        }
    }
}

fn connect_without_waiting() -> Option<Channel> {
    Channel::connect(&PathBuf::from(std::env::var_os("ATOLL_SOCKET")?), Blocking::No).ok()
}

/// Opens sessions one after another, and gives up each in another way.
fn attach_and_leave() -> ExitCode {
    for round in 0u64.. {
        let Some(control) = connect() else {
            pause(10);
            continue;
        };
        let attached = ask(&control, &Request::Attach { layout_version: LAYOUT_VERSION, room_mib: 0 });
        if round == 0 {
            attacking();
        }
        if let (Some((Reply::Joined { session, .. }, _)), true) = (attached, round % 2 == 0) {
            let _ = control.send(&Request::Leave { session }.encode(), &[]);
        }
    }
    ExitCode::SUCCESS
}

/// Opens as many sessions as it gets, and keeps them all.
fn sessions() -> ExitCode {
    let mut open = Vec::new();
    loop {
        let mut is_in = false;
        if open.len() < 300
            && let Some(control) = connect()
        {
            let attached = ask(&control, &Request::Attach { layout_version: LAYOUT_VERSION, room_mib: 0 });
            if let Some((Reply::Joined { .. }, fds)) = attached {
                is_in = true;
                open.push((control, fds));
            }
        }
        if open.len() == 20 {
            attacking();
        }
        pause(if is_in { 1 } else { 100 });
    }
}

/// Sends packets that are no requests, requests of supervisors and about others' sessions, and requests whose
/// answers it does not read.
fn rubbish() -> ExitCode {
    let mut rng = random();
    attacking();
    loop {
        let Some(control) = connect_without_waiting() else {
            pause(1);
            continue;
        };
        for _ in 0..rng.below(64) {
            let mut packet: Vec<u8> = (0..rng.below(300)).map(|_| rng.next_u32() as u8).collect();
            let session = rng.below(8);
            match rng.below(8) {
                0 => packet = Request::Join { session, key: rng.next_u64() }.encode().to_vec(),
                1 => packet = Request::Leave { session }.encode().to_vec(),
                2 => packet = Request::SessionGone { session }.encode().to_vec(),
                3 => packet = Request::Stop.encode().to_vec(),
                4 => packet = Request::Adopt { blamed: true }.encode().to_vec(),
                5 => {
                    packet = Request::Attach { layout_version: rng.next_u32(), room_mib: rng.next_u32() }
                        .encode()
                        .to_vec()
                }
                6 => packet.insert(0, b'{'),
                _ => {}
            }
            if control.send(&packet, &[]).is_err() {
                break;
            }
        }
    }
}

/// Asks for everything that can be shown, over and over, over four connections, of which one never reads.
fn askers() -> ExitCode {
    let ask_on = |number: usize| {
        loop {
            let Some(control) = connect_to_administration() else {
                pause(10);
                continue;
            };
            let mut packet = [0; 65536];
            let request: &[u8] =
                if number.is_multiple_of(2) { br#"{"cmd":"ss"}"# } else { br#"{"cmd":"status"}"# };
            for _ in 0..64 {
                if control.send(request, &[]).is_err() {
                    break;
                }
                // The last packet of an answer says that it is the last.
                while number != 3
                    && let Ok(len @ 1..) = control.receive(&mut packet, &mut Vec::new())
                {
                    if packet[..len.min(packet.len())].windows(6).any(|word| word == b"\"done\"") {
                        break;
                    }
                }
            }
        }
    };
    attacking();
    std::thread::scope(|scope| {
        for number in 0..4 {
            scope.spawn(move || ask_on(number));
        }
    });
    ExitCode::SUCCESS
}

/// Starts a process of another user, which opens the descriptors of pages for reading again, for writing.
fn reopen() -> ExitCode {
    let control = connect().expect("the stack takes connections");
    let (_, fds) =
        ask(&control, &Request::Attach { layout_version: LAYOUT_VERSION, room_mib: 0 }).expect("an answer");
    for fd in &fds {
        rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty()).expect("flags can be changed");
    }
    let mut child = std::process::Command::new("/proc/self/exe");
    // The process has neither the library nor root's rights.
    child.args(["reopened", "1"]).env_remove("LD_PRELOAD").uid(NOBODY).gid(NOBODY);
    match child.status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        outcome => {
            eprintln!("the other user's process: {outcome:?}");
            ExitCode::FAILURE
        }
    }
}

const NOBODY: u32 = 65534;

/// Runs the other user's process, which goes through its descriptors again and again.
fn reopened() -> ExitCode {
    let mut said = false;
    let parent = rustix::process::getppid();
    // The test ends the attack by ending this process' parent.
    while rustix::process::getppid() == parent {
        for entry in std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten() {
            // Its output goes to a file of the test's.
            let is_standard =
                entry.file_name().to_string_lossy().parse().is_ok_and(|number: i32| number <= 2);
            let Ok(target) = std::fs::read_link(entry.path()) else { continue };
            let target = target.to_string_lossy().into_owned();
            // It may write its own page and arenas anyway.
            let is_file =
                target.starts_with('/') && !target.starts_with("/dev/") && !target.starts_with("/proc/");
            if is_file && !is_standard && !["atoll-app", "atoll-arena"].iter().any(|own| target.contains(own))
            {
                let opened = std::fs::OpenOptions::new().write(true).open(entry.path());
                if let Ok(file) = opened
                    && std::os::unix::fs::FileExt::write_at(&file, &[0], 0).is_ok()
                {
                    // One zero at the start does no harm that would hide other findings.
                    println!("SUCCEEDED: {target} was written");
                }
            }
        }
        if !std::mem::replace(&mut said, true) {
            attacking();
        }
        pause(50);
    }
    ExitCode::SUCCESS
}

fn pause(ms: u64) {
    std::thread::sleep(std::time::Duration::from_millis(ms));
}
