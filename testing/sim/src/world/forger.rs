//! Checks that forged commands do not get a program the port of another one, or what is sent to it. On the
//! server's machine a forger takes ports, and releases them at the replica that granted them but not
//! elsewhere. It shows grants, changed or not, and asks for ports, listeners, datagram sockets and
//! connections with grants of its own, with none, and for other ports. Beside it an honest program has a
//! datagram socket, which it opens and closes again and again with the library's own code. Every datagram
//! that is sent to the socket while it is open must reach it, and no other program.

use std::collections::BTreeSet;

use atoll_base::{Addr, Duration, Endpoint, Instant, Rng, SlotId};
use atoll_ipc::command::{CloseMode, DatagramKind, Protocol};
use atoll_ipc::lease::{Pass, Voucher};
use atoll_ipc::{Cause, Command, Event, HeapMemory};
use atoll_sockets::datagram::{Datagrams, Outgoing};

use super::{Departure, PORT, Process, SERVER, World, WorldViolation, address};

/// The port of the honest program's datagram socket.
const MAILBOX: u16 = 5353;
/// The ports that datagrams come from: several, so that every replica has some.
const SENDERS: std::ops::Range<u16> = 6000..6008;
/// How long the whole scenario takes; `OPEN` is how long the mailbox is open at a time.
const LASTS: Duration = Duration::from_millis(150);
const OPEN: Duration = Duration::from_millis(12);
/// A datagram that is sent within this time after the opening or before the end may miss it.
const MARGIN: Duration = Duration::from_millis(1);
/// The most sockets that a forger keeps; `GRANTS_MAX` is the most grants.
const SOCKETS_MAX: usize = 24;
const GRANTS_MAX: usize = 16;

/// The role of a program that is neither server nor client.
#[derive(Debug)]
pub(super) enum Role {
    Mailbox(Mailbox),
    Mailer(Mailer),
    Forger(Box<Forger>),
}

/// A datagram socket, made as by the library: bound where the port is granted, then opened everywhere.
#[derive(Debug)]
struct DatagramSocket {
    port: u16,
    lease: u64,
    stage: Stage,
    slots: Vec<(SlotId, u32)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Unbound,
    Asked,
    Opening,
    Open,
}

/// An honest program that receives and counts datagrams.
#[derive(Debug)]
pub(super) struct Mailbox {
    ends_at: Instant,
    socket: DatagramSocket,
    opened_at: Instant,
    /// The periods during which the mailbox was open.
    periods: Vec<(Instant, Instant)>,
    got: BTreeSet<u64>,
}

/// A program that sends numbered datagrams.
#[derive(Debug)]
pub(super) struct Mailer {
    ends_at: Instant,
    sockets: Vec<DatagramSocket>,
    sent: Vec<(Instant, u64)>,
}

/// A program that asks for what is not its own.
#[derive(Debug)]
pub(super) struct Forger {
    ends_at: Instant,
    next_lease: u64,
    /// The grants that the forger got, and whether it has released each.
    grants: Vec<Granted>,
    /// The number of new grants of the mailbox's port.
    news: usize,
    asked: Vec<(u64, Protocol, Endpoint)>,
    /// The datagram sockets that the forger has asked for, by replica.
    sockets: Vec<(usize, SlotId, u32)>,
    /// The numbers of the datagrams that reached the forger.
    took: BTreeSet<u64>,
    /// The number of grants of the mailbox's port that the forger had.
    had: u32,
}

/// A lease, its protocol and endpoint, the authority's voucher, and whether the lease was released there.
type Granted = (u64, Protocol, Endpoint, Voucher, bool);

impl DatagramSocket {
    fn new(port: u16) -> DatagramSocket {
        DatagramSocket { port, lease: 0, stage: Stage::Unbound, slots: Vec::new() }
    }

    /// Takes the next step towards being open. Fails if what was granted cannot be had.
    fn step(
        &mut self,
        process: &mut Process,
        replies: &[Event],
        rng: &mut Rng,
    ) -> Result<(), WorldViolation> {
        let (protocol, local) = (Protocol::Udp, Endpoint::new(0, self.port));
        let (reuse_addr, reuse_port, v6_only) = (false, false, false);
        let authority = usize::from(self.port) % process.ports.len();
        match self.stage {
            Stage::Unbound => {
                self.lease = rng.next_u64() | 1;
                let (token, lease) = (self.port.into(), self.lease);
                process.push(
                    authority,
                    &Command::Bind {
                        token,
                        lease,
                        protocol,
                        local,
                        reuse_addr,
                        reuse_port,
                        v6_only,
                        device: atoll_ipc::Device::None,
                    },
                );
                self.stage = Stage::Asked;
            }
            Stage::Asked => {
                let reply = replies.iter().find_map(|event| match event {
                    Event::BindReply { token, cause, voucher, .. } if *token == u32::from(self.port) => {
                        Some((*cause, *voucher))
                    }
                    _ => None,
                });
                match reply {
                    None => {}
                    Some((Cause::None, voucher)) => self.open(process, authority, voucher),
                    // The forger has the port now.
                    Some((Cause::AddressInUse, _)) => self.stage = Stage::Unbound,
                    Some((cause, _)) => return Err(WorldViolation::PortRefused { port: self.port, cause }),
                }
            }
            Stage::Opening => {
                if let Some(errno) = self.on_replicas(process).find_map(|one| one.refusal()) {
                    return Err(WorldViolation::PortNotOpened { port: self.port, errno });
                }
                if self.on_replicas(process).all(|one| one.is_open()) {
                    self.stage = Stage::Open;
                }
            }
            Stage::Open => {}
        }
        Ok(())
    }

    fn open(&mut self, process: &mut Process, authority: usize, voucher: Voucher) {
        let (lease, local, remote) = (self.lease, Endpoint::new(0, self.port), Endpoint::default());
        self.slots.clear();
        for replica in 0..process.ports.len() {
            let (slot, generation) = process.new_slot(replica).expect("there are slots");
            self.slots.push((slot, generation));
            if replica != authority {
                process.push(replica, &Command::Show { lease, protocol: Protocol::Udp, local, voucher });
            }
            let (reuse_port, v6_only) = (false, false);
            process.push(
                replica,
                &Command::UdpOpen {
                    slot,
                    generation,
                    lease,
                    local,
                    remote,
                    reuse_port,
                    v6_only,
                    kind: DatagramKind::Udp,
                },
            );
        }
        self.stage = Stage::Opening;
    }

    fn on_replicas<'a>(
        &'a self,
        process: &'a Process,
    ) -> impl Iterator<Item = Datagrams<'a, HeapMemory>> + 'a {
        let all = process.ports.iter().zip(&self.slots);
        all.map(|(port, (slot, generation))| Datagrams::new(port, *slot, *generation))
    }

    fn close(&mut self, process: &mut Process) {
        if self.stage == Stage::Unbound {
            return;
        }
        for (replica, (slot, generation)) in std::mem::take(&mut self.slots).into_iter().enumerate() {
            process.close_socket(replica, slot, generation);
        }
        let authority = usize::from(self.port) % process.ports.len();
        process.push(authority, &Command::Release { lease: self.lease });
        self.stage = Stage::Unbound;
    }
}

impl Mailbox {
    fn run(
        &mut self,
        process: &mut Process,
        now: Instant,
        replies: &[Event],
        rng: &mut Rng,
    ) -> Result<(), WorldViolation> {
        let was_open = self.socket.stage == Stage::Open;
        self.socket.step(process, replies, rng)?;
        if self.socket.stage != Stage::Open {
            return Ok(());
        }
        if !was_open {
            self.opened_at = now;
        }
        for (replica, (slot, generation)) in self.socket.slots.iter().enumerate() {
            process.take_numbers(replica, *slot, *generation, &mut self.got);
        }
        if now.since(self.opened_at) > OPEN {
            // Datagrams that are still on their way are not waited for; see `MARGIN`.
            self.periods.push((self.opened_at, now));
            self.socket.close(process);
        }
        Ok(())
    }
}

impl Mailer {
    fn run(
        &mut self,
        process: &mut Process,
        now: Instant,
        replies: &[Event],
        rng: &mut Rng,
    ) -> Result<(), WorldViolation> {
        for socket in &mut self.sockets {
            socket.step(process, replies, rng)?;
        }
        let open: Vec<_> = self.sockets.iter().filter(|socket| socket.stage == Stage::Open).collect();
        if open.is_empty() {
            return Ok(());
        }
        let socket = open[rng.below(open.len() as u32) as usize];
        let replica = rng.below(process.ports.len() as u32) as usize;
        let (slot, generation) = socket.slots[replica];
        let (number, peer) = (self.sent.len() as u64, Endpoint::new(address(SERVER), MAILBOX));
        let one = Datagrams::new(&process.ports[replica], slot, generation);
        let to = Outgoing { to: peer, broadcast: false, details: None, segment: None, message: false };
        if one.send(&to, 8, std::iter::once(&number.to_le_bytes()[..])).is_ok() {
            self.sent.push((now, number));
            process.push(replica, &Command::Kick { slot, generation });
        }
        Ok(())
    }
}

impl Forger {
    fn run(&mut self, process: &mut Process, replies: &[Event], rng: &mut Rng) -> Result<(), WorldViolation> {
        for event in replies {
            self.hear(event)?;
        }
        for (replica, slot, generation) in &self.sockets {
            process.take_numbers(*replica, *slot, *generation, &mut self.took);
        }
        // The forger uses its grants everywhere, at once and repeatedly: also when they are released and the
        // port belongs to another program.
        let of_mailbox = |grant: &&Granted| grant.1 == Protocol::Udp && grant.2.port == MAILBOX;
        let granted: Vec<Granted> = self.grants.iter().filter(of_mailbox).copied().collect();
        for (at, grant) in granted.iter().enumerate() {
            let is_new = at + self.news >= granted.len();
            for replica in (0..process.ports.len()).filter(|_| is_new || rng.below(20) == 0) {
                self.open(process, replica, grant);
            }
        }
        self.news = 0;
        for _ in 0..1 + rng.below(6) {
            let replica = rng.below(process.ports.len() as u32) as usize;
            if let Some(command) = self.want(process, replica, rng) {
                let _ = process.ports[replica].push(&command);
            }
        }
        // The forger soon releases the mailbox's port at its authority, and nowhere else.
        for (lease, _, local, _, is_released) in &mut self.grants {
            if local.port == MAILBOX && !*is_released && rng.below(20) == 0 {
                *is_released = true;
                let authority = usize::from(local.port) % process.ports.len();
                let _ = process.ports[authority].push(&Command::Release { lease: *lease });
            }
        }
        if self.grants.len() > GRANTS_MAX {
            let (lease, ..) = self.grants.remove(rng.below(GRANTS_MAX as u32) as usize);
            for port in &mut process.ports {
                let _ = port.push(&Command::Release { lease });
            }
        }
        Ok(())
    }

    fn open(
        &mut self,
        process: &mut Process,
        replica: usize,
        &(lease, protocol, local, voucher, _): &Granted,
    ) {
        if let Some((slot, generation)) = process.new_slot(replica) {
            self.sockets.push((replica, slot, generation));
            let (remote, reuse_port, v6_only) = (Endpoint::default(), false, false);
            let _ = process.ports[replica].push(&Command::Show { lease, protocol, local, voucher });
            let kind = DatagramKind::Udp;
            let open = Command::UdpOpen { slot, generation, lease, local, remote, reuse_port, v6_only, kind };
            let _ = process.ports[replica].push(&open);
        }
        // Sockets that were refused go first.
        while self.sockets.len() > SOCKETS_MAX {
            let is_refused = |(at, slot, generation): &(usize, SlotId, u32)| {
                Datagrams::new(&process.ports[*at], *slot, *generation).refusal().is_some()
            };
            let at = self.sockets.iter().position(is_refused).unwrap_or(0);
            let (at, slot, generation) = self.sockets.remove(at);
            process.close_socket(at, slot, generation);
        }
    }

    fn hear(&mut self, event: &Event) -> Result<(), WorldViolation> {
        match event {
            Event::ConnectionAvailable { local, .. } if local.port == PORT => {
                Err(WorldViolation::ConnectionStolen(*local))
            }
            Event::BindReply { token, cause: Cause::None, port, voucher } => {
                let asked = self.asked.iter().find(|(lease, ..)| *lease as u32 == *token).copied();
                let Some((lease, protocol, local)) = asked else { return Ok(()) };
                if protocol == Protocol::Tcp && *port == PORT {
                    return Err(WorldViolation::PortStolen);
                }
                let is_mailbox = protocol == Protocol::Udp && *port == MAILBOX;
                self.had += u32::from(is_mailbox);
                self.news += usize::from(is_mailbox);
                self.grants.push((lease, protocol, Endpoint { port: *port, ..local }, *voucher, false));
                Ok(())
            }
            Event::ListenReply { token, cause: Cause::None, .. } if *token == u32::from(PORT) => {
                Err(WorldViolation::ListenerStolen)
            }
            _ => Ok(()),
        }
    }

    /// Returns one forged command, or an honest one that a forged one needs.
    fn want(&mut self, process: &mut Process, replica: usize, rng: &mut Rng) -> Option<Command> {
        let count = process.ports.len() as u32;
        let port = [PORT, MAILBOX, MAILBOX, MAILBOX, 5000 + rng.below(8) as u16][rng.below(5) as usize];
        let addr = [Addr::V4_ANY, Addr::V4_ANY, Addr::ANY, Addr::v4(address(SERVER))][rng.below(4) as usize];
        let local = Endpoint { addr, port };
        let protocol = if rng.below(3) == 0 { Protocol::Tcp } else { Protocol::Udp };
        let flag = |rng: &mut Rng| rng.below(3) == 0;
        let (reuse_addr, reuse_port, v6_only) = (flag(rng), flag(rng), flag(rng));
        let own =
            (!self.grants.is_empty()).then(|| self.grants[rng.below(self.grants.len() as u32) as usize]);
        let lease = own.filter(|_| rng.below(8) > 0).map_or(rng.next_u64() | 1, |own| own.0);
        let token = u32::from(port);
        Some(match rng.below(10) {
            0 | 1 if u32::from(port) % count == replica as u32 => {
                self.next_lease += 1;
                let lease = self.next_lease;
                self.asked.retain(|(asked, ..)| asked + 64 > lease);
                self.asked.push((lease, protocol, local));
                Command::Bind {
                    token: lease as u32,
                    lease,
                    protocol,
                    local,
                    reuse_addr,
                    reuse_port,
                    v6_only,
                    device: atoll_ipc::Device::None,
                }
            }
            2..=4 => {
                let (lease, protocol, at, voucher, _) = own?;
                let (mut shown, mut given) = (at, voucher);
                match rng.below(8) {
                    0 => shown = local,
                    1 => given.granted += u64::from(rng.below(1000)),
                    2 => given.uid = 0,
                    3 => given.flags ^= 1 << rng.below(4),
                    4 => given.seal = rng.next_u64(),
                    // The grant is unchanged; it may be in force or not.
                    _ => {}
                }
                Command::Show { lease, protocol, local: shown, voucher: given }
            }
            5 => Command::Pass { pass: Pass { lease, uid: 0, protocol, port }, seal: rng.next_u64() },
            6 => Command::Listen {
                token,
                lease,
                local,
                backlog: 9,
                reuse_port,
                defer_accept: 0,
                v6_only,
                hops_min: [0; 2],
            },
            7 if rng.below(4) > 0 => Command::AcceptConnection { lease },
            7 => {
                let (slot, generation) = process.new_slot(replica)?;
                self.sockets.push((replica, slot, generation));
                let (local, remote) = (Endpoint::new(address(SERVER), port), Endpoint::new(address(2), 9));
                Command::Connect { slot, generation, lease, local, remote }
            }
            _ if self.sockets.len() > SOCKETS_MAX => return None,
            _ => {
                let (slot, generation) = process.new_slot(replica)?;
                self.sockets.push((replica, slot, generation));
                let (remote, local) =
                    (Endpoint::default(), own.filter(|_| rng.below(4) > 0).map_or(local, |own| own.2));
                let kind = match rng.below(8) {
                    0 | 1 => DatagramKind::Icmp,
                    2 => DatagramKind::Raw,
                    _ => DatagramKind::Udp,
                };
                Command::UdpOpen { slot, generation, lease, local, remote, reuse_port, v6_only, kind }
            }
        })
    }

    fn close(&mut self, process: &mut Process) {
        for (replica, slot, generation) in std::mem::take(&mut self.sockets) {
            process.close_socket(replica, slot, generation);
        }
        for (lease, ..) in std::mem::take(&mut self.grants) {
            for port in &mut process.ports {
                let _ = port.push(&Command::Release { lease });
            }
        }
    }
}

impl Process {
    fn new_slot(&mut self, replica: usize) -> Option<(SlotId, u32)> {
        let (slot, generation) = self.ports[replica].allocate_slot()?;
        self.ports[replica].slot(slot)?.set_holders(1);
        Some((slot, generation))
    }

    fn close_socket(&mut self, replica: usize, slot: SlotId, generation: u32) {
        self.ports[replica].close_slot(slot, generation, 0);
        let _ = self.ports[replica].push(&Command::Close { slot, generation, mode: CloseMode::Abort });
    }

    /// Reads everything that waits in a datagram socket.
    fn take_numbers(&mut self, replica: usize, slot: SlotId, generation: u32, numbers: &mut BTreeSet<u64>) {
        let port = &self.ports[replica];
        let is_current = port.slot(slot).is_some_and(|view| view.replica_generation() == generation);
        let one = Datagrams::new(port, slot, generation);
        let mut kick = false;
        while let Some(waiting) = one.waiting().filter(|_| is_current) {
            let mut number = [0; 8];
            one.copy_out(&waiting, 0, &mut number);
            numbers.insert(u64::from_le_bytes(number));
            kick |= one.consume(&waiting, &waiting);
        }
        if kick {
            let _ = self.ports[replica].push(&Command::Kick { slot, generation });
        }
    }

    /// Runs a program with a role between two sleeps. Returns `false` if it has no role.
    pub(super) fn run_role(&mut self, now: Instant, rng: &mut Rng) -> bool {
        let Some(mut role) = self.role.take() else { return false };
        let mut replies = Vec::new();
        for replica in 0..self.ports.len() {
            while let Some(event) = self.ports[replica].next_event() {
                match event {
                    Event::SlotDone { slot, generation } => {
                        self.ports[replica].slot_done(slot, generation);
                    }
                    event => replies.push(event),
                }
            }
            self.ports[replica].publish();
        }
        let (ends_at, outcome) = match &mut role {
            Role::Mailbox(mailbox) => (mailbox.ends_at, mailbox.run(self, now, &replies, rng)),
            Role::Mailer(mailer) => (mailer.ends_at, mailer.run(self, now, &replies, rng)),
            Role::Forger(forger) => (forger.ends_at, forger.run(self, &replies, rng)),
        };
        outcome.unwrap_or_else(|fault| panic!("{fault}"));
        self.wakes_at = Some(now + Duration::from_micros(20 + u64::from(rng.below(200))));
        if now >= ends_at {
            match &mut role {
                Role::Mailbox(mailbox) => mailbox.socket.close(self),
                Role::Mailer(mailer) => mailer.sockets.iter_mut().for_each(|socket| socket.close(self)),
                Role::Forger(forger) => forger.close(self),
            }
            self.wakes_at = None;
        }
        self.role = Some(role);
        true
    }

    /// Returns whether the process has a role, and more to do in it.
    pub(super) fn plays(&self) -> bool {
        self.role.is_some() && self.departure.is_none() && self.wakes_at.is_some()
    }
}

impl World {
    /// Adds a forger and a mailbox to the server's machine, and a sender to the other one.
    pub(super) fn invite_forger(&mut self) {
        let begins_at = self.now + Duration::from_millis(20);
        let ends_at = begins_at + LASTS;
        let forger = Forger {
            ends_at,
            next_lease: 1 << 40,
            grants: Vec::new(),
            news: 0,
            asked: Vec::new(),
            sockets: Vec::new(),
            took: BTreeSet::new(),
            had: 0,
        };
        let socket = DatagramSocket::new(MAILBOX);
        let mailbox =
            Mailbox { ends_at, socket, opened_at: begins_at, periods: Vec::new(), got: BTreeSet::new() };
        let mailer =
            Mailer { ends_at, sockets: SENDERS.map(DatagramSocket::new).collect(), sent: Vec::new() };
        let roles =
            [(0, Role::Forger(Box::new(forger))), (0, Role::Mailbox(mailbox)), (1, Role::Mailer(mailer))];
        for (machine, role) in roles {
            self.attach_in(machine, None, Some(role));
            // They begin when the honest listeners are there.
            self.processes.last_mut().expect("just attached").wakes_at = Some(begins_at);
        }
    }

    /// Ends the programs with a role.
    pub(super) fn dismiss_roles(&mut self) {
        for process in self.processes.iter_mut().filter(|process| process.role.is_some()) {
            let replicas = self.machines[process.machine].replicas.len();
            process
                .departure
                .get_or_insert_with(|| Departure::new(self.now, Duration::ZERO, replicas, &mut self.rng));
        }
    }

    /// Checks that each datagram reached the program whose port it was sent to. Returns how many did, and how
    /// often the forger had had that port.
    pub fn mail(&self) -> Result<(usize, u32), WorldViolation> {
        let (mut sent, mut got, mut periods) = (None, None, None);
        let (mut took, mut had) = (None, 0);
        for role in self.processes.iter().filter_map(|process| process.role.as_ref()) {
            match role {
                Role::Mailbox(mailbox) => (got, periods) = (Some(&mailbox.got), Some(&mailbox.periods)),
                Role::Mailer(mailer) => sent = Some(&mailer.sent),
                Role::Forger(forger) => (took, had) = (Some(&forger.took), forger.had),
            }
        }
        let (Some(sent), Some(got), Some(periods), Some(took)) = (sent, got, periods, took) else {
            return Err(WorldViolation::NoMail);
        };
        for (at, number) in sent {
            let is_meant = |(from, to): &(Instant, Instant)| *at >= *from + MARGIN && *at + MARGIN <= *to;
            if periods.iter().any(is_meant) && (took.contains(number) || !got.contains(number)) {
                let thief = if took.contains(number) { "the forger has" } else { "nobody has" };
                let (number, at, periods) = (*number, *at, periods.clone());
                return Err(WorldViolation::Mail { number, at, thief, periods });
            }
        }
        Ok((got.len(), had))
    }
}
