//! A replica: takes frames, commands and time; gives frames, events and doorbells. It has one thread.
//!
//! ```text
//!   loop   frames from the link (at most a batch) -> transport       } nothing leaves
//!          frames and messages from other replicas, own frames       } before the
//!          commands of applications -> transport                     } batch is done
//!          timers -> transport
//!          transport -> frames out, slots and events published
//!          bells of sleeping applications and replicas
//!          nothing to do: spin for a while, then sleep on {device, bell, control socket, timer}
//! ```
//!
//! Its process is that of `host.rs`.

mod listing;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use atoll_base::{Duration, Endpoint, Epoch, Instant, ReplicaId, SessionId};
use atoll_connmgr::AcceptorView;
use atoll_ip::{ChecksumOffload, Ip, Link};
use atoll_ip_server::Client;
use atoll_ipc::Memory;
use atoll_ipc::arena::ArenaConfig;
use atoll_ipc::balance::{PEER_BYTES_MAX, PeerMessage};
use atoll_ipc::control::{Request, User};
use atoll_ipc::ip::IpMessage;
use atoll_ipc::ledger::{LEDGER_BYTES, Ledger, LedgerConfig, SECRET_BYTES};
use atoll_ipc::manager::ManagerMessage;
use atoll_ipc::mesh::{
    FRAME_PREFIX, FramePrefix, KIND_ADDRESS, KIND_BALANCE, KIND_FRAME, KIND_IP, KIND_MANAGER, Mark,
    PAYLOAD_MAX, mark_of,
};
use atoll_ipc::page::{
    APP_PAGE_BYTES, AppPage, BELLS, COOKIE_KEY, LEASE_KEY, REPLICAS_MAX, STACK_PAGE_BYTES, StackFacts,
    StackPage, Stat,
};
use atoll_link::{Destination, Steering};
use atoll_shm::{Access, ShmMemory};
use atoll_supervisor::RecoveryMode;
use atoll_sys::{eventfd, process, sched};
use atoll_tap::{FRAME_LEN_MAX, Queue};
use atoll_transport::{Calendar, Charge, Config, Listing, Recovery, Secrets, Stopwatch, Transport, past};
use atoll_wire::vnet;

use self::listing::{acceptors_of, row};
use crate::address;
use crate::ip_server::network_config;
use crate::link::{Device, InternalLink, Joined, Links, Received, Rings, Way, partner_of, waited};
use crate::ringing::Ringer;
use crate::rows::{self, SocketRow};
use crate::self_check;
use crate::server::{CONTROL_EVERY, Inherited, Role, ServerProcess};
use crate::setup::{LINK_BYTES, LinkSetup, ReplicaSetup, cut_off, link_ring, over};
use crate::siblings::Siblings;

/// The number of frames taken from the device, and from the rings, before the rest of the loop gets its turn.
const BATCH: usize = 64;
/// The limit of what the commands of one application may cost in a round, in tenths of a microsecond.
const SHARE: u32 = 512;
/// The number of rows of a listing that are made at once, which takes some tens of microseconds.
const ROWS_PER_SLICE: usize = 16;
/// How often rows are made while there is other work: they take a tenth of the time, or less.
const SLICE_EVERY: Duration = Duration::from_millis(1);
/// The number of packets waiting for the supervisor at which no more rows are made.
const ANSWERS_MAX: usize = 4;
/// The number of sessions that are opened in each round, which takes about 50 us.
const OPENED_PER_ROUND: usize = 4;

/// One replica.
pub struct Replica {
    index: ReplicaId,
    server: ServerProcess,
    stack: StackPage<ShmMemory>,
    facts: StackFacts,
    transport: Transport<ShmMemory>,
    links: Links,
    siblings: Siblings,
    /// The server that has the connection manager, if another server does.
    manager: Option<usize>,
    recovery: Recovery,
    /// The server that has IP, if another server does, and this replica's side of it.
    ip_server: Option<(usize, Client)>,
    /// The doorbells of each session, by number.
    bells: BTreeMap<SessionId, Vec<OwnedFd>>,
    ringer: Ringer,
    /// Sessions that are not opened yet. Those that the ledger names are opened before the replica serves,
    /// the others afterwards, some in each round.
    unopened: BTreeMap<SessionId, Unopened>,
    /// Sessions that have ended but still use their memory. They must not be opened a second time.
    ending: BTreeSet<SessionId>,
    frame: Box<[u8]>,
    /// The generation of the IPv4 address that was last sent to each other replica.
    told: [u64; REPLICAS_MAX],
    counts: Counts,
    /// The listing of sockets that is under way.
    listing: Option<Listed>,
}

/// The progress of a listing of sockets.
struct Listed {
    listing: Listing,
    /// The acceptors of connections when the listing began.
    acceptors: Vec<(Endpoint, AcceptorView)>,
    /// When more rows are made although there is other work.
    due: Instant,
}

impl Listed {
    fn new(acceptors: Vec<(Endpoint, AcceptorView)>, now: Instant) -> Listed {
        Listed { listing: Listing::default(), acceptors, due: now }
    }
}

/// A session as the supervisor described it.
struct Unopened {
    config: ArenaConfig,
    user: User,
    fds: Vec<OwnedFd>,
}

/// Counters that the replica itself keeps.
#[derive(Default)]
struct Counts {
    frames_in: u64,
    bytes_in: u64,
    forwarded: u64,
    internal: u64,
}

impl Replica {
    /// Creates a replica from its setup and the descriptors that the supervisor gave it.
    pub fn start(setup: &ReplicaSetup, mut inherited: Inherited) -> io::Result<Replica> {
        let (facts, mesh, stack) = (inherited.facts, inherited.mesh.clone(), inherited.stack.clone());
        let Given { ledger, queue, bells, for_messages, link } = Given::take(setup, &mut inherited)?;
        let clock = inherited.clock();
        let now = clock.now();
        let me = usize::from(setup.index);
        let keys = inherited.secrets.clone();
        let server = ServerProcess::new(inherited);

        let epochs: Vec<Epoch> = setup.epochs.iter().copied().map(Epoch).collect();
        let siblings = Siblings::new(&mesh, ReplicaId(setup.index), &epochs, for_messages, now);
        let internal = InternalLink::new(me, Rings::resume(mesh.ways(0..setup.servers.into()), bells));
        let mut steering = Box::new(Steering::new(facts.key));
        steering.refresh(&stack, facts.replicas);
        let device = match (queue, link) {
            (Some(queue), _) => Device::Tap(queue),
            (None, Some(link)) => Device::Joined(Box::new(link.join(me)?)),
            (None, None) => setup.link_server.map_or(Device::None, |server| Device::Server(server.into())),
        };

        let mut seed = [0; 48];
        process::random(&mut seed)?;
        let is_linked = !matches!(device, Device::None);
        let ip = make_ip(setup, &facts, &server, (word(&seed, 0), is_linked), now)?;
        server.announce(setup.index, setup.epoch);
        let newest = self_check::newest_ledger();
        let ledger = Ledger::open_as(ledger, LedgerConfig::STACK, Epoch(setup.epoch), newest);
        let ledger = ledger.map_err(|error| io::Error::other(format!("the ledger: {error:?}")))?;
        let secrets = make_secrets(&keys, &ledger, &seed);
        let mut transport =
            Transport::new(transport_config(setup, &facts), secrets, ip, server.page.clone(), now);
        transport.set_owners(|group| stack.owner(group));
        if setup.manager.is_some() {
            transport.handle_manager_restarted(now, Epoch(setup.manager_epoch));
        }
        transport.set_stopwatch(Stopwatch::new(move || clock.now().as_nanos()));
        transport.set_calendar(Calendar::new(atoll_sys::time_of_day));
        transport.set_ledger(ledger);

        Ok(Replica {
            index: ReplicaId(setup.index),
            server,
            stack,
            facts,
            transport,
            links: Links::new(device, internal, steering, setup.segment_max),
            siblings,
            manager: setup.manager.map(usize::from),
            recovery: match setup.recovery {
                RecoveryMode::Stateful => Recovery::Stateful,
                RecoveryMode::Stateless => Recovery::Stateless,
            },
            ip_server: setup.ip_server.map(|server| (server.into(), Client::new(Epoch(setup.epoch)))),
            bells: BTreeMap::new(),
            ringer: Ringer::new(clock),
            unopened: BTreeMap::new(),
            ending: BTreeSet::new(),
            frame: vec![0; FRAME_LEN_MAX.max(PAYLOAD_MAX)].into_boxed_slice(),
            told: [0; REPLICAS_MAX],
            counts: Counts::default(),
            listing: None,
        })
    }

    /// Sends offers and reports of the connection manager to the others (P5). `last` says that this replica
    /// is about to sleep.
    fn tell_peers(&mut self, now: Instant, last: bool) {
        let rings = &mut self.links.internal.rings;
        let reach = rings.reach();
        while let Some(output) = self.transport.poll_peer(now, reach, last) {
            let mut bytes = [0; PEER_BYTES_MAX];
            rings.tell(output.to, output.wakes, KIND_BALANCE, output.message.encode(&mut bytes));
        }
    }

    /// Sends messages between transport servers and connection managers in different processes (P2). What a
    /// ring does not take is offered to it again in the next round.
    fn send_messages(&mut self, now: Instant) {
        if self.transport.has_messages() {
            let (rings, manager) = (&mut self.links.internal.rings, self.manager);
            self.transport.send_messages(now, |to, message| {
                let to = to.map(|replica| usize::from(replica.0)).or(manager);
                to.is_none_or(|to| rings.send(to, KIND_MANAGER, &message.encode()))
            });
        }
    }

    /// Sends messages to the IP server. What the ring does not take is offered to it again in the next round.
    fn send_to_ip_server(&mut self) {
        let (rings, ip) = (&mut self.links.internal.rings, self.transport.ip_mut());
        if let Some((server, client)) = &mut self.ip_server
            && client.has_messages(ip)
        {
            client.send(ip, |message| rings.send(*server, KIND_IP, &message.encode()));
        }
    }

    /// Takes up to a batch of frames from the device. Returns whether there were any.
    fn receive_from_device(&mut self, now: Instant) -> io::Result<bool> {
        for taken in 0..BATCH {
            let received = match &mut self.links.device {
                Device::Tap(queue) => queue.receive(&mut self.frame)?,
                Device::Joined(joined) => match joined.rings.receive(taken, &mut self.frame) {
                    Some(Received { kind: KIND_FRAME, len, .. }) => Some(len),
                    Some(_) => continue,
                    None => None,
                },
                // Frames of a link server come through the mesh.
                Device::Server(_) | Device::None => None,
            };
            let Some(len) = received else { return Ok(taken > 0) };
            let prefix =
                if matches!(self.links.device, Device::Tap(_)) { vnet::HEADER_LEN } else { FRAME_PREFIX };
            self.counts.frames_in += 1;
            self.counts.bytes_in += len.saturating_sub(prefix) as u64;
            self.handle_frame(now, len, prefix);
            if self.transport.is_flush_due() {
                break;
            }
        }
        Ok(true)
    }

    /// Handles a frame from outside, which lies in the first `len` bytes of the frame buffer, behind a
    /// prefix.
    fn handle_frame(&mut self, now: Instant, len: usize, prefix: usize) {
        let bytes = &self.frame[..len.min(self.frame.len())];
        let (Ok((header, _)), Some(vnet)) = (vnet::parse(bytes), bytes.first_chunk()) else { return };
        let Some(frame) = bytes.get(prefix..) else { return };
        self.server.patience.met(partner_of(frame));
        match self.destination(frame) {
            Destination::All => {
                for other in (0..self.facts.replicas).filter(|other| *other != self.index.0) {
                    self.links.forward(now, usize::from(other), vnet, frame);
                }
            }
            Destination::One(owner) if owner != self.index => {
                self.counts.forwarded += 1;
                self.links.forward(now, owner.0.into(), vnet, frame);
                return;
            }
            Destination::One(_) => {}
        }
        self.transport.handle_frame(now, frame, offload_of(&header), false);
    }

    /// Returns which replica gets a frame from outside. A frame that any replica may handle is handled here.
    fn destination(&self, frame: &[u8]) -> Destination {
        if self.facts.replicas == 1 {
            return Destination::One(self.index);
        }
        self.links.steering.destination(frame, self.index)
    }

    /// Passes reassembled packets to the owners of their flows, which only the whole packet shows.
    fn receive_wholes(&mut self, now: Instant) {
        while let Some(whole) = self.transport.ip_mut().poll_whole() {
            let internal = whole.link == Link::Inside;
            match self.destination(&whole.bytes) {
                Destination::One(owner) if !internal && owner != self.index => {
                    self.counts.forwarded += 1;
                    self.links.forward(now, owner.0.into(), &[0; vnet::HEADER_LEN], &whole.bytes);
                }
                _ => self.transport.handle_frame(now, &whole.bytes, ChecksumOffload::Unknown, internal),
            }
        }
    }

    /// Takes up to a batch of records from the other servers, and of frames that this replica sent to itself.
    /// Returns whether any of them is a reason to stay awake.
    fn receive_from_rings(&mut self, now: Instant) -> bool {
        let mut busy = false;
        for turn in 0..BATCH {
            let Some(record) = self.links.internal.rings.receive(turn, &mut self.frame) else { break };
            // Messages of other connection managers can wait, and are no reason to stay awake.
            busy |= record.kind != KIND_BALANCE;
            let payload = &self.frame[..record.len];
            self.transport.mark_mesh(record.peer as u32);
            match record.kind {
                KIND_BALANCE => {
                    if let Ok(message) = PeerMessage::decode(payload) {
                        self.transport.handle_peer(now, &message);
                    }
                }
                // This comes from the connection manager of this replica or, if that is its own, from other
                // replicas.
                KIND_MANAGER if self.manager.is_none_or(|manager| manager == record.peer) => {
                    if let Ok(message) = ManagerMessage::decode(payload) {
                        self.transport.handle_message(now, ReplicaId(record.peer as u8), &message);
                    }
                }
                KIND_IP => {
                    if let (Some((server, client)), Ok(message)) =
                        (&mut self.ip_server, IpMessage::decode(payload))
                        && *server == record.peer
                    {
                        let error = client.handle(now, self.transport.ip_mut(), &message);
                        if let Some(error) = error {
                            self.transport.handle_network_error(now, &error, &[]);
                        }
                    }
                }
                KIND_ADDRESS => {
                    if let Some(address) = address::decode(payload) {
                        self.transport.ip_mut().handle_v4_address(address);
                    }
                }
                KIND_FRAME if mark_of(payload) == Some(Mark::Outbound) => {
                    self.links.carry(record.peer, payload)
                }
                KIND_FRAME => self.handle_internal(now, record.len),
                _ => {}
            }
            if self.transport.is_flush_due() {
                break;
            }
        }
        busy | self.receive_own(now)
    }

    /// Takes up to a batch of the frames that this replica sent to itself. Returns whether there were any.
    fn receive_own(&mut self, now: Instant) -> bool {
        let count = self.links.internal.own_waiting().min(BATCH);
        for _ in 0..count {
            let Some(packet) = self.links.internal.take_own() else { break };
            self.counts.internal += 1;
            if let (Ok((header, _)), Some(frame)) = (vnet::parse(&packet), packet.get(FRAME_PREFIX..)) {
                self.server.patience.met(partner_of(frame));
                self.transport.handle_frame(now, frame, offload_of(&header), true);
            }
            self.links.internal.recycle(packet);
            if self.transport.is_flush_due() {
                break;
            }
        }
        count > 0
    }

    /// Handles a frame from another server: one of the internal link, or one from outside that was passed on.
    fn handle_internal(&mut self, now: Instant, len: usize) {
        let payload = &self.frame[..len];
        let (Some(prefix), Some(frame)) = (FramePrefix::decode(payload), payload.get(FRAME_PREFIX..)) else {
            return;
        };
        let Ok((header, _)) = vnet::parse(&prefix.vnet) else { return };
        let outside = prefix.mark == Mark::Forwarded;
        self.server.patience.met(partner_of(frame));
        if outside && matches!(self.links.device, Device::Server(_)) {
            self.counts.frames_in += 1;
            self.counts.bytes_in += frame.len() as u64;
        } else {
            self.counts.internal += 1;
        }
        if outside {
            self.transport.note_wait(waited(now, &prefix));
        }
        self.transport.handle_frame(now, frame, offload_of(&header), !outside);
    }

    /// Sends the stack's IPv4 address to the other replicas. What a ring does not take is offered to it
    /// again.
    fn tell_address(&mut self) {
        if !self.has_untold() {
            return;
        }
        let ip = self.transport.ip_mut();
        let (generation, record) = (ip.v4_generation(), address::encode(ip.v4_address()));
        let me = usize::from(self.index.0);
        for other in (0..usize::from(self.facts.replicas)).filter(|other| *other != me) {
            if self.told[other] != generation && self.links.internal.rings.send(other, KIND_ADDRESS, &record)
            {
                self.told[other] = generation;
            }
        }
    }

    /// Returns whether a replica does not know the newest address yet. Only the replica that asks DHCP
    /// servers sends it to the others.
    fn has_untold(&mut self) -> bool {
        let (me, replicas) = (usize::from(self.index.0), usize::from(self.facts.replicas));
        let ip = self.transport.ip_mut();
        ip.dhcp().is_some() && {
            let generation = ip.v4_generation();
            (0..replicas).any(|other| other != me && self.told[other] != generation)
        }
    }

    /// Logs what became of the connections of a predecessor, once that is known, if any were lost.
    fn tell_losses(&mut self) {
        let Some(adoption) = self.transport.take_adoption().filter(|adoption| adoption.lost > 0) else {
            return;
        };
        let why = adoption.why.map(|why| format!("{why:?}")).unwrap_or_default();
        let (replica, kept, lost) = (self.index.0, adoption.kept, adoption.lost);
        event!(
            connections_lost,
            { replica, kept, lost, why = &*why },
            "replica {replica}: {kept} connections go on, {lost} do not (the first: {why})"
        );
    }

    /// Makes the next rows of a requested listing: few at a time, and seldom while there is other work, so
    /// that connections do not wait for listings. A listing waits until the connections of a predecessor
    /// continue. Returns whether rows were made.
    fn list_some(&mut self, now: Instant, busy: bool) -> bool {
        let Some(listed) = &mut self.listing else { return false };
        let waits = self.transport.is_adopting() || self.server.answers.len() >= ANSWERS_MAX;
        if waits || (busy && now < listed.due) {
            return false;
        }
        listed.due = now + SLICE_EVERY;
        let replica = self.index.0;
        let facts = self.transport.list(now, &mut listed.listing, ROWS_PER_SLICE);
        let rows = facts.iter().map(|facts| SocketRow {
            acceptors: acceptors_of(facts, &listed.acceptors),
            ..row(replica, facts)
        });
        self.server.answers.extend(rows::packets(rows).filter(|packet| packet != rows::END));
        if listed.listing.is_over() {
            self.server.answers.push_back(rows::END.to_vec());
            self.listing = None;
        }
        true
    }

    /// Maps the memory of a session, and serves it from now on.
    fn open(&mut self, now: Instant, session: SessionId, what: Unopened) -> io::Result<()> {
        let Unopened { config, user, fds } = what;
        let mut fds = fds.into_iter();
        let (Some(arena), Some(app_page)) = (fds.next(), fds.next()) else {
            let (replica, session) = (self.index.0, session.0);
            event!(
                session_incomplete,
                { replica, session },
                "replica {replica}: session {session} came without its memory"
            );
            return Ok(());
        };
        if let Some(doorbell) = fds.next() {
            self.server.watch(session.0, doorbell);
        }
        let layout = config.layout();
        let arena = ShmMemory::map(arena, layout.total, Access::ReadWrite)?;
        let app_page = AppPage(ShmMemory::map(app_page, APP_PAGE_BYTES, Access::ReadOnly)?);
        self.bells.insert(session, fds.collect());
        self.transport.open_session(now, (session, user), layout, arena, app_page);
        Ok(())
    }

    /// Opens a session that is needed now, if it is not open yet.
    fn open_now(&mut self, now: Instant, session: SessionId) -> io::Result<()> {
        match self.unopened.remove(&session) {
            Some(what) => self.open(now, session, what),
            None => Ok(()),
        }
    }

    /// Opens some more sessions, the newest first: they are the likeliest to have asked for something, or to
    /// wait for it. Returns whether there were any.
    fn open_some(&mut self, now: Instant) -> io::Result<bool> {
        for count in 0..OPENED_PER_ROUND {
            let Some((session, what)) = self.unopened.pop_last() else { return Ok(count > 0) };
            self.open(now, session, what)?;
            self.transport.remind(session);
        }
        Ok(true)
    }

    /// Forgets the doorbells of a session on which no process waits any more.
    fn forget_bells(&mut self, session: SessionId) {
        self.bells.remove(&session);
        self.ringer.forget(session);
        self.server.unwatch(session.0);
    }

    fn ring_bells(&mut self) {
        let (bells, ringer) = (&self.bells, &mut self.ringer);
        let ring = |session: SessionId, bell: u32| {
            if let Some(fd) = bells.get(&session).and_then(|bells| bells.get(bell as usize % BELLS)) {
                let _ = eventfd::ring(fd);
            }
        };
        self.transport.take_bells(|session, bell| ringer.ring(session, bell, || ring(session, bell)));
        self.server.bells_rung += ringer.end_round(ring) + self.links.publish() + self.siblings.publish();
    }
}

impl Role for Replica {
    const HAND_OVER_ROUNDS: usize = 256;

    fn server(&mut self) -> &mut ServerProcess {
        &mut self.server
    }

    fn own(&self) -> &ServerProcess {
        &self.server
    }

    fn round(&mut self, now: Instant) -> io::Result<bool> {
        self.links.retry();
        let mut busy = self.receive_from_device(now)?;
        self.transport.mark_nothing();
        busy |= self.receive_from_rings(now);
        self.transport.mark_nothing();
        busy |= self.siblings.turn(now, &mut self.transport);
        self.receive_wholes(now);
        let opens = !self.unopened.is_empty() && self.open_some(now)?;
        busy |= self.transport.handle_commands(now, SHARE);
        self.transport.handle_timers(now);
        self.tell_losses();
        self.transport.flush(now, &mut self.links);
        self.siblings.spread_news(&mut self.transport);
        for session in self.transport.take_ended() {
            self.ending.remove(&session);
            self.forget_bells(session);
            self.server.answers.push_back(over(session.0));
        }
        self.tell_address();
        self.send_messages(now);
        self.send_to_ip_server();
        if self.transport.is_peer_due(now, false) {
            self.tell_peers(now, false);
        }
        self.ring_bells();
        // A session's commands beyond its share are handled in the next round.
        busy |= self.transport.is_behind();
        if (self.transport.is_adopting() || opens) && !busy {
            busy = true;
            // There is nothing else to do, and an application that was just woken may be waiting for this
            // very processor.
            sched::yield_now();
        }
        if self.listing.is_some() && self.list_some(now, busy) && !busy {
            busy = true;
            sched::yield_now();
        }
        Ok(busy || self.links.internal.own_waiting() > 0)
    }

    fn before_sleep(&mut self, now: Instant) -> u64 {
        if !self.transport.is_peer_due(now, true) {
            return 0;
        }
        self.tell_peers(now, true);
        self.links.publish()
    }

    fn set_sleep_word(&mut self, word: u32) {
        self.links.set_sleep_word(word);
        if word & 1 == 1 { self.siblings.fall_asleep() } else { self.siblings.wake_up() }
    }

    fn adopt(&mut self, now: Instant, blamed: bool) -> io::Result<()> {
        for session in self.transport.sessions_in_ledger() {
            self.open_now(now, session)?;
        }
        self.transport.adopt(now, self.recovery, blamed);
        if let Some(Charge { work, deaths }) = self.transport.take_charge() {
            let often =
                if deaths > 0 { format!(", for the same session {deaths} times") } else { String::new() };
            let replica = self.index.0;
            event!(
                died_at_work,
                { replica, work = format!("{work:?}"), deaths },
                "replica {replica}: the one before died at work on {work:?}{often}"
            );
        }
        self.server.answers.extend(self.transport.take_cut_off().iter().map(|session| cut_off(session.0)));
        Ok(())
    }

    fn past_sleep_word(&self) -> u32 {
        self.links.sleep_word()
    }

    fn is_ready(&self) -> bool {
        let has_work =
            self.transport.has_commands() || self.transport.has_work() || !self.unopened.is_empty();
        has_work || self.links.is_ready() || self.siblings.is_ready()
    }

    fn next_timeout(&mut self, now: Instant) -> Option<Instant> {
        let untold =
            self.ip_server.as_ref().is_some_and(|(_, client)| client.has_messages(self.transport.ip_mut()));
        let keeps =
            self.links.retry_queue.keeps() || self.transport.has_messages() || self.has_untold() || untold;
        let keeps = keeps || self.listing.is_some();
        let retry_at = keeps.then_some(now + CONTROL_EVERY);
        let due = [
            retry_at,
            self.transport.next_timeout(),
            self.siblings.next_timeout(),
            self.ringer.next_timeout(),
        ];
        due.into_iter().flatten().min()
    }

    fn refresh(&mut self) {
        self.links.steering.refresh(&self.stack, self.facts.replicas);
        self.transport.set_owners(|group| self.stack.owner(group));
        if let Device::Joined(joined) = &mut self.links.device {
            joined.refresh();
        }
    }

    fn count(&self, mut put: impl FnMut(Stat, u64)) {
        let (counts, links) = (&self.counts, &self.links);
        for (stat, value) in [
            (Stat::FramesIn, counts.frames_in),
            (Stat::BytesIn, counts.bytes_in),
            (Stat::FramesOut, links.frames_out + links.retry_queue.frames_out),
            (Stat::BytesOut, links.bytes_out + links.retry_queue.bytes_out),
            (Stat::FramesForwarded, counts.forwarded),
            (Stat::FramesInternal, counts.internal),
            (Stat::SendFailures, links.failures + links.retry_queue.failures),
            (Stat::ForwardDrops, links.retry_queue.dropped),
        ] {
            put(stat, value);
        }
        self.siblings.stats().into_iter().for_each(|(stat, value)| put(stat, value));
    }

    fn publish(&mut self) {
        self.count(|stat, value| self.server.publish_stat(stat, value));
        self.transport.publish_stats();
    }

    fn device(&self) -> Option<BorrowedFd<'_>> {
        if let Device::Tap(queue) = &self.links.device { Some(queue.as_fd()) } else { None }
    }

    /// Sends what lies in memory of this process, as far as others take it; what is left then is lost as on a
    /// wire. Frames in rings and in the device's queue wait there for the successor.
    fn pass_on(&mut self, now: Instant) -> bool {
        // Only this process has these: frames to itself, and frames that a ring or the device did not take.
        self.links.retry();
        self.receive_own(now);
        self.transport.flush(now, &mut self.links);
        self.send_messages(now);
        self.ring_bells();
        self.links.retry_queue.keeps()
            || self.transport.has_messages()
            || self.links.internal.own_waiting() > 0
    }

    fn write_ledger(&mut self, version: u32) {
        self.transport.convert_ledger(version);
    }

    fn drain(&mut self, now: Instant) -> bool {
        self.receive_from_rings(now)
    }

    fn close(&mut self, now: Instant) {
        self.transport.abort_all(now);
        self.transport.flush(now, &mut self.links);
        // The address is released after the last segments, which are sent from it.
        self.transport.ip_mut().release(now);
        self.transport.flush(now, &mut self.links);
        self.links.publish();
        // Programs that wait hear that their connections are reset.
        self.ring_bells();
    }

    fn handle_request(&mut self, now: Instant, request: Request, fds: &mut Vec<OwnedFd>) -> io::Result<()> {
        match request {
            Request::SessionOpened { session, config, user, .. } => {
                let (session, fds) = (SessionId(session), std::mem::take(fds));
                // A supervisor that has taken over describes all sessions again.
                if !self.bells.contains_key(&session) && !self.ending.contains(&session) {
                    self.unopened.insert(session, Unopened { config, user, fds });
                }
            }
            Request::MemberGone { session, member } => {
                self.open_now(now, SessionId(session))?;
                self.transport.member_gone(now, SessionId(session), member);
            }
            Request::SessionGone { session } => {
                self.open_now(now, SessionId(session))?;
                // Programs of a session that is cut off still exist, and learn that their sockets fail.
                let is_heard = self.transport.is_cut_off(SessionId(session));
                self.ending.insert(SessionId(session));
                self.transport.close_session(now, SessionId(session));
                if !is_heard {
                    self.forget_bells(SessionId(session));
                }
            }
            // `list_some` makes the rows. The supervisor asks for one listing at a time; another request
            // begins anew.
            Request::ListSockets { .. } => {
                self.listing = Some(Listed::new(self.transport.acceptors(now), now))
            }
            Request::Memory { level, buffers_max } => self.transport.set_memory(now, level, buffers_max),
            Request::CutOff { session } => {
                self.open_now(now, SessionId(session))?;
                self.transport.cut_off(now, SessionId(session));
            }
            Request::Balance { rules } => self.transport.set_balance(rules),
            Request::WriteLedger { version } => {
                self.transport.convert_ledger(version);
            }
            Request::ServerGone { server } => self.siblings.gone(ReplicaId(server)),
            Request::ServerRestarted { server, epoch } => {
                self.siblings.restarted(ReplicaId(server), Epoch(epoch), now);
                if self.manager == Some(usize::from(server)) {
                    self.transport.handle_manager_restarted(now, Epoch(epoch));
                }
                // The restarted replica does not ask DHCP servers, and knows no address yet.
                if let Some(told) = self.told.get_mut(usize::from(server)) {
                    *told = 0;
                }
            }
            Request::Attach { .. }
            | Request::Join { .. }
            | Request::Leave { .. }
            | Request::Connect
            | Request::Vouch { .. } => {}
            // The loop in `server.rs` has handled these.
            Request::Adopt { .. } | Request::HandOver { .. } | Request::Stop => {}
        }
        Ok(())
    }
}

/// Returns what the link says about the checksum of a frame's payload.
fn offload_of(header: &vnet::Header) -> ChecksumOffload {
    if header.needs_csum() {
        ChecksumOffload::Partial
    } else if header.data_valid() {
        ChecksumOffload::Valid
    } else {
        ChecksumOffload::Unknown
    }
}

/// The descriptors that a replica gets besides those of all servers, in the order of `setup.rs`.
struct Given {
    ledger: ShmMemory,
    queue: Option<Queue>,
    /// The doorbells of all servers.
    bells: Vec<OwnedFd>,
    /// The doorbells of the replicas once more, for [`Siblings`].
    for_messages: Vec<OwnedFd>,
    link: Option<GivenLink>,
}

/// The descriptors of a shared-memory link.
struct GivenLink {
    setup: LinkSetup,
    memory: OwnedFd,
    page: OwnedFd,
    bells: Vec<OwnedFd>,
}

impl Given {
    fn take(setup: &ReplicaSetup, inherited: &mut Inherited) -> io::Result<Given> {
        let ledger = ShmMemory::map(inherited.next()?, LEDGER_BYTES, Access::ReadWrite)?;
        let queue = if setup.has_tap { Some(Queue::from_fd(inherited.next()?)) } else { None };
        let bells = inherited.take_next(setup.servers.into())?;
        let for_messages = inherited.take_next(inherited.facts.replicas.into())?;
        let link = match (&queue, setup.link) {
            (None, Some(setup)) => {
                let (memory, page) = (inherited.next()?, inherited.next()?);
                Some(GivenLink { setup, memory, page, bells: inherited.take_next(REPLICAS_MAX)? })
            }
            _ => None,
        };
        Ok(Given { ledger, queue, bells, for_messages, link })
    }
}

impl GivenLink {
    /// Maps the rings to and from the replicas of the other stack.
    fn join(self, me: usize) -> io::Result<Joined> {
        let memory = ShmMemory::map(self.memory, LINK_BYTES, Access::ReadWrite)?;
        let page = StackPage(ShmMemory::map(self.page, STACK_PAGE_BYTES, Access::ReadOnly)?);
        let (side, other) = (self.setup.side, self.setup.side.other());
        let way = |peer| {
            let (to, from) = (link_ring(side, me, peer), link_ring(other, peer, me));
            Some(Way { memory: memory.clone(), to, from })
        };
        Ok(Joined::new(Rings::resume((0..REPLICAS_MAX).map(way).collect(), self.bells), page))
    }
}

/// Creates the replica's IP, or its part of IP if an IP server has the rest. The pair is a random seed, and
/// whether there is a link to announce the address on.
fn make_ip(
    setup: &ReplicaSetup,
    facts: &StackFacts,
    server: &ServerProcess,
    (seed, is_linked): (u64, bool),
    now: Instant,
) -> io::Result<Ip> {
    let config = atoll_ip::Config {
        apart: setup.ip_server.is_some(),
        sibling: (setup.ip_servers + setup.index, setup.ip_servers + facts.replicas),
        ..network_config(facts)
    };
    let mut ip = Ip::new(config, seed, now).map_err(|error| io::Error::other(error.to_string()))?;
    if setup.ip_server.is_none() {
        ip.resume(now, &past(&server.page.network(), now));
    }
    if setup.index == 0 && setup.ip_server.is_none() && is_linked {
        ip.announce(now);
    }
    Ok(ip)
}

fn transport_config(setup: &ReplicaSetup, facts: &StackFacts) -> Config {
    Config {
        managers: setup.managers,
        managers_apart: setup.managers_apart,
        ..Config::from_facts(facts, ReplicaId(setup.index), Epoch(setup.epoch))
    }
}

/// Collects the secrets of a replica: those of all servers, that of the first incarnation, and fresh ones.
fn make_secrets(keys: &ShmMemory, ledger: &Ledger<ShmMemory>, seed: &[u8; 48]) -> Secrets {
    let mut fast_open = [0; 16];
    keys.read(COOKIE_KEY, &mut fast_open);
    let mut leases = [0; 16];
    keys.read(LEASE_KEY, &mut leases);
    let sequence = sequence_secret(ledger, &seed[24..40]);
    Secrets { sequence, fast_open, leases, table: word(seed, 8), ports: word(seed, 16) }
}

/// Returns the eight octets at `at`.
fn word(seed: &[u8; 48], at: usize) -> u64 {
    u64::from_ne_bytes(*seed[at..].first_chunk().expect("48 bytes hold the word"))
}

/// Returns the secret of initial sequence numbers. It is the first incarnation's, so that sequence numbers of
/// its successors lie above those that it has used. `fresh` becomes the secret if there is none yet.
fn sequence_secret(ledger: &Ledger<ShmMemory>, fresh: &[u8]) -> [u8; 16] {
    let mut secrets = ledger.secrets();
    if secrets == [0; SECRET_BYTES] {
        secrets[..16].copy_from_slice(fresh);
        ledger.set_secrets(&secrets);
    }
    *secrets.first_chunk().expect("more than 16 octets")
}

#[cfg(test)]
mod tests {
    use atoll_transport::EcnMode;

    use super::*;
    use crate::setup::tests::a_replica;

    #[test]
    fn what_the_stack_page_says_of_tcp_is_what_the_transport_server_does() {
        let setup = a_replica();
        let config = |ecn| {
            let facts =
                StackFacts { replicas: 2, ecn, claim_timeout_us: 7, fast_open: 1, ..StackFacts::default() };
            transport_config(&setup, &facts)
        };
        let modes = [EcnMode::Off, EcnMode::Request, EcnMode::Accept, EcnMode::RequestAccurate];
        assert_eq!([0, 1, 2, 3].map(|ecn| config(ecn).ecn), modes);
        let Config { claim_timeout, fast_open, managers, .. } = config(0);
        assert_eq!(
            (claim_timeout, fast_open.client, fast_open.server),
            (Duration::from_micros(7), true, false)
        );
        assert_eq!(managers, setup.managers);
    }
}
