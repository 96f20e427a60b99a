//! What lies in shared memory: rings, slots, pages, the record for `TCP_INFO`, the ledger.

use atoll_base::{Addr, Endpoint, Epoch, FlowGroup, FlowKey, FourTuple, ReplicaId, SessionId, SlotId};
use atoll_ipc::arena::ArenaConfig;
use atoll_ipc::buffer::{Extent, Extents};
use atoll_ipc::channel::{self, Channel, Place};
use atoll_ipc::command::Protocol;
use atoll_ipc::info::{INFO_BYTES, Info};
use atoll_ipc::lease::{Grant, Pass};
use atoll_ipc::ledger::{
    BEYOND_MAX, ConnectionRecord, Ledger, LedgerConfig, Phase, Progress, RequestRecord, SECRET_BYTES,
    TextPool, TimeWaitRecord, Work,
};
use atoll_ipc::mesh::{self, KIND_FRAME, MeshConsumer, MeshProducer};
use atoll_ipc::network::{
    AddressFacts, AddressState, DhcpFacts, DhcpState, Network, PrefixFacts, RouterFacts, V4Facts,
};
use atoll_ipc::page::{
    APP_PAGE_BYTES, AppPage, REPLICA_PAGE_BYTES, ReplicaPage, STACK_PAGE_BYTES, StackFacts, StackPage, Stat,
    V6Facts,
};
use atoll_ipc::pool::{self, MIN_LOG2, Pool};
use atoll_ipc::ring::{self, Consumer, MESSAGE_BYTES, Producer};
use atoll_ipc::slot::{Slot, SlotState};
use atoll_ipc::{Cause, Command, Device, HeapMemory, Memory};

use super::Octets;

fn addr(first: u8) -> Addr {
    Addr::from_octets(std::array::from_fn(|at| first + at as u8))
}

/// Returns 8 octets, the lowest of which is `first`.
fn long(first: u8) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|at| first + at as u8))
}

fn word(first: u8) -> u32 {
    long(first) as u32
}

fn half(first: u8) -> u16 {
    long(first) as u16
}

pub fn add_all(octets: &mut Octets) {
    rings(octets);
    slot(octets);
    pool(octets);
    seals(octets);
    pages(octets);
    info(octets);
    work(octets);
    for version in [1, 2] {
        ledger(octets, version);
    }
}

fn rings(octets: &mut Octets) {
    let payload: [u8; MESSAGE_BYTES] = std::array::from_fn(|at| 0x80 + at as u8);

    let memory = HeapMemory::new(ring::ring_bytes(4));
    let mut producer = Producer::resume(&memory, 0, 4);
    let mut consumer = Consumer::resume(&memory, 0, 4);
    (0..3).for_each(|n| assert!(producer.push(&memory, word(0x10) + n, &payload)));
    (0..2).for_each(|_| assert!(consumer.pop(&memory).is_some()));
    consumer.publish(&memory);
    octets.add_memory("ring", &memory);

    let one = channel::ring_bytes(4);
    let memory = HeapMemory::new(2 * one);
    let there = Place { outgoing: 0, incoming: one, capacity: 4 };
    let back = Place { outgoing: one, incoming: 0, capacity: 4 };
    let mut sender = Channel::resume(memory.clone(), there, Epoch(word(0x10)), Epoch(word(0x20)));
    let mut receiver = Channel::resume(memory.clone(), back, Epoch(word(0x20)), Epoch(word(0x10)));
    for _ in 0..3 {
        sender.push(&payload).expect("there is room");
        let _ = sender.publish();
    }
    (0..2).for_each(|_| assert!(receiver.pop().is_some()));
    receiver.release();
    receiver.fall_asleep();
    octets.add_memory("channel", &memory);

    let memory = HeapMemory::new(mesh::mesh_bytes(18));
    let mut producer = MeshProducer::resume(&memory, 0, 18);
    let mut consumer = MeshConsumer::resume(&memory, 0, 18);
    let mut out = vec![0; mesh::PAYLOAD_MAX];
    for _ in 0..5 {
        producer.push(&memory, KIND_FRAME, &[&payload, &[0; 60_000]]).expect("there is room");
        producer.publish(&memory);
        assert!(consumer.pop(&memory, &mut out).is_some());
        consumer.publish(&memory);
    }
    consumer.set_sleep_word(&memory, word(0x30));
    octets.add_memory("mesh ring", &memory);
}

fn extents(first: u8) -> Extents {
    Extents {
        current: Some(Extent { base: long(first), unit: 2, log2: 13 }),
        old: Some(Extent { base: long(first) - 1, unit: 7, log2: 11 }),
    }
}

fn slot(octets: &mut Octets) {
    let layout = ArenaConfig { slots: 16, send_log2: 16, receive_log2: 16 }.layout();
    octets.add("arena", format!("{layout:?}").as_bytes());
    let memory = HeapMemory::new(layout.total);
    let slot = Slot::new(&memory, &layout, SlotId(3)).expect("in range");
    slot.app_reset(word(1));
    slot.replica_reset(word(0x11), SlotState::Closing, word(0x21));
    slot.set_app_flags(word(0x31));
    slot.set_send_tail(long(0x41));
    slot.set_send_urgent(long(0x51));
    slot.set_taken(long(0x61));
    slot.set_receive_head(long(0x71));
    slot.set_bell(word(0x81));
    assert!(!slot.claim(word(0x91)));
    slot.set_holders(long(0xa1));
    slot.set_library_word(0, long(0xb1));
    slot.set_library_word(1, long(0xc1));
    slot.set_send_extents(&extents(0x10));
    slot.set_send_extents(&extents(0x20));
    slot.set_acknowledged(long(0xd1));
    slot.set_receive_tail(long(0xe1));
    slot.set_replica_flags(word(0x31));
    slot.set_error(Cause::PermissionDenied);
    slot.revoke(word(0x93));
    slot.set_read_mark(long(0xf1));
    slot.set_mark(long(0x02), Some((long(0x12), 99)));
    slot.set_local(Endpoint::at(addr(0x22), half(0x42)));
    slot.set_receive_extents(&extents(0x40));
    assert_eq!(
        (slot.send_extents(&layout), slot.receive_extents(&layout)),
        (Some(extents(0x20)), Some(extents(0x40)))
    );
    octets.add_memory("slot", &memory);
}

fn pool(octets: &mut Octets) {
    let links = 64 + pool::CONTROL_BYTES;
    let pool = Pool { control: 64, links, units: 32 };
    let memory = HeapMemory::new(links + 32 * 4);
    let units = [3, 0, 1, 2, 0].map(|class| pool.allocate(&memory, MIN_LOG2 + class).expect("there is room"));
    pool.free(&memory, units[0], MIN_LOG2 + 3);
    pool.free(&memory, units[1], MIN_LOG2);
    pool.free(&memory, units[3], MIN_LOG2 + 2);
    octets.add_memory("pool", &memory);
    assert_eq!(pool.resume(&memory, &mut [(3, MIN_LOG2 + 1), (11, MIN_LOG2)]), []);
    octets.add_memory("pool of a successor", &memory);
}

/// What a seal is made over.
fn seals(octets: &mut Octets) {
    let grant = Grant {
        lease: long(1),
        protocol: Protocol::Udp,
        local: Endpoint::at(addr(0x10), half(0x20)),
        v6_only: true,
        reuse_addr: false,
        reuse_port: true,
        listening: true,
        uid: word(0x31),
        granted: long(0x41),
        device: Device::None,
    };
    octets.add("sealed grant", &grant.sealed());
    for (name, device) in [("loopback", Device::Loopback), ("link", Device::Link)] {
        octets.add(&format!("sealed grant on the {name}"), &Grant { device, ..grant }.sealed());
    }
    let pass = Pass { lease: long(1), uid: word(0x11), protocol: Protocol::Udp, port: half(0x21) };
    octets.add("sealed pass", &pass.sealed());
}

pub fn network() -> Network {
    let states =
        [AddressState::Tentative, AddressState::Preferred, AddressState::Deprecated, AddressState::Duplicate];
    let address = |(n, state)| AddressFacts {
        addr: addr(0x10 + n),
        prefix_len: 0x40 + n,
        state,
        dynamic: n % 2 == 1,
        preferred_until: long(0x30 + n),
        valid_until: long(0x50 + n),
    };
    Network {
        v4: Some(V4Facts {
            addr: word(0x61),
            prefix_len: 24,
            gateway: word(0x71),
            mtu: half(0x81),
            valid_until: long(0x91),
        }),
        dhcp: Some(DhcpFacts {
            state: DhcpState::Rebinding,
            server: word(0xa1),
            dns: vec![word(0xb1), word(0xc1)],
            domain: "example.org".to_owned(),
        }),
        addresses: (0u8..).zip(states).map(address).collect(),
        on_link: vec![PrefixFacts { prefix: addr(0xd1), len: 99, until: long(0xe1) }],
        routers: vec![RouterFacts { addr: addr(0x33), until: long(0x44) }],
    }
}

fn pages(octets: &mut Octets) {
    let memory = HeapMemory::new(STACK_PAGE_BYTES);
    let page = StackPage(memory.clone());
    let facts = StackFacts {
        replicas: 7,
        addr: word(0x11),
        prefix_len: 31,
        gateway: word(0x21),
        mtu: half(0x31),
        mac: [1, 2, 3, 4, 5, 6],
        key: FlowKey { k0: word(0x41), k1: word(0x51) },
        calibration: [long(0x61), long(0x71), long(0x81), long(0x91)],
        ephemeral: (half(0xa1), half(0xb1)),
        spin_us: word(0xc1),
        claim_timeout_us: word(0xd1),
        naive_accept: true,
        ecn: 3,
        fast_open: word(0xe1),
        v6: Some(V6Facts { address: Some((addr(0x10), 77)), gateway: Some(addr(0x30)), autoconf: true }),
    };
    page.write_facts(&facts);
    page.set_owner(FlowGroup(33), ReplicaId(5));
    assert_eq!(page.facts(), Some(facts));
    octets.add_memory("stack page", &memory);

    let memory = HeapMemory::new(REPLICA_PAGE_BYTES);
    let page = ReplicaPage(memory.clone());
    page.announce(ReplicaId(5), Epoch(word(0x11)));
    page.set_sleep_word(word(0x21));
    page.set_heartbeat(long(0x31));
    page.set_layers(word(0x41));
    page.set_network(&network());
    page.set_port(false, 80, true);
    page.set_port(true, 53, true);
    Stat::ALL.iter().for_each(|stat| page.set_stat(*stat, long(1 + *stat as u8)));
    assert_eq!(page.network(), network());
    let words = (ReplicaPage::<HeapMemory>::END_AT, ReplicaPage::<HeapMemory>::FAULT_AT);
    memory.store32(words.0, word(0x51));
    memory.store32(words.1, word(0x61));
    memory.store32(ReplicaPage::<HeapMemory>::FORBIDDEN_CALL_AT, word(0x71));
    octets.add_memory("replica page", &memory);

    let memory = HeapMemory::new(APP_PAGE_BYTES);
    let page = AppPage(memory.clone());
    (0..16).for_each(|bell| page.set_sleep_word(bell, word(1 + bell as u8)));
    octets.add_memory("application page", &memory);
}

fn info(octets: &mut Octets) {
    let info = Info {
        state: long(1),
        ca_state: long(2),
        retransmits: long(3),
        probes: long(4),
        backoff: long(5),
        options: long(6),
        snd_wscale: long(7),
        rcv_wscale: long(8),
        rto: long(9),
        ato: long(10),
        snd_mss: long(11),
        rcv_mss: long(12),
        unacked: long(13),
        sacked: long(14),
        lost: long(15),
        retrans: long(16),
        pmtu: long(17),
        rtt: long(18),
        rttvar: long(19),
        snd_ssthresh: long(20),
        snd_cwnd: long(21),
        advmss: long(22),
        rcv_space: long(23),
        total_retrans: long(24),
        bytes_acked: long(25),
        bytes_received: long(26),
        segs_out: long(27),
        segs_in: long(28),
        pacing_rate: long(29),
        max_pacing_rate: long(30),
        notsent_bytes: long(31),
        min_rtt: long(32),
        delivery_rate: long(33),
        snd_wnd: long(34),
        rcv_wnd: long(35),
        last_data_sent: long(36),
        bbr_bw: long(37),
        bbr_min_rtt: long(38),
        bbr_pacing_gain: long(39),
        bbr_cwnd_gain: long(40),
        last_ack_recv: long(41),
        bytes_sent: long(42),
        bytes_retrans: long(43),
        rcv_ooopack: long(44),
        total_rto: long(45),
        total_rto_recoveries: long(46),
        total_rto_time: long(47),
        data_segs_in: long(48),
        data_segs_out: long(49),
        delivered: long(50),
        dsack_dups: long(51),
        reord_seen: long(52),
        last_data_recv: long(53),
    };
    let memory = HeapMemory::new(INFO_BYTES);
    info.store(&memory, 0);
    assert_eq!(Info::load(&memory, 0), info);
    octets.add_memory("info", &memory);
}

fn connection() -> ConnectionRecord {
    let base = i64::from(word(0x51));
    ConnectionRecord {
        progress: Progress { acked: i64::from(word(0x41)), received: base, edge: i64::from(word(0x61)) },
        tuple: FourTuple {
            local: Endpoint::at(addr(0x10), half(0x20)),
            remote: Endpoint::at(addr(0x30), half(0x40)),
        },
        state: 0x77,
        phase: Phase::Closing,
        place: Some((SessionId(word(1)), SlotId(word(0x11)), word(0x21))),
        send_start: word(0x31),
        receive_start: word(0x71),
        send_tail: i64::from(word(0x22)),
        send_fin: true,
        receive_fin: Some(i64::from(word(0x32))),
        receive: extents(0x42),
        ts_offset: word(0x52),
        ts_recent: word(0x62),
        window_max: word(0x72),
        receive_capacity: word(0x82),
        send_limit: word(0x92),
        unsent_low: word(0xa2),
        mss_path: half(0xb2),
        mss_peer: half(0xc2),
        mss_receive: half(0xd2),
        flags: word(0xe2),
        snd_scale: 13,
        rcv_scale: 14,
        congestion: 0x91,
        ecn: 0x92,
        ttl: 0x93,
        tos: 0x94,
        hops_min: 0x9a,
        syn_retries: 0x95,
        cause: 0x96,
        keep_probes: 0x97,
        keep_idle: half(0x13),
        keep_interval: half(0x23),
        mss_max: half(0x33),
        user_timeout_ms: word(0x43),
        linger2_ms: word(0x53),
        pacing_rate: long(0x63),
        srtt_us: word(0x73),
        text: word(0x83),
        text_len: word(0x93),
        crashes: 0x98,
        beyond: std::array::from_fn(|n| {
            let from = base + 0x0102 + 0x0403_0000 * n as i64;
            (from, from + 0x0201_0304 + n as i64)
        }),
    }
}

/// The word of each kind of work.
fn work(octets: &mut Octets) {
    const WORD_AT: usize = 136;
    let config = LedgerConfig { connections: 4, requests: 4, text_units: 4 };
    let memory = HeapMemory::new(config.bytes());
    let ledger = Ledger::open(memory.clone(), config, Epoch(word(0x81))).expect("an empty ledger");
    let (place, session) = (word(0x11), SessionId(word(0x21)));
    for work in [
        Work::Nothing,
        Work::Segment(place),
        Work::Timer(place),
        Work::Output(place),
        Work::Adoption(place),
        Work::Commands(session),
        Work::Datagrams(session),
        Work::Opening(session),
        Work::Cleanup(session),
        Work::Frame,
        Work::Mesh(place),
        Work::Offer(place),
    ] {
        ledger.mark(work);
        let mut bytes = [0; 8];
        memory.read(WORD_AT, &mut bytes);
        octets.add(&format!("{work:?}"), &bytes);
    }
}

fn ledger(octets: &mut Octets, version: u32) {
    let config = LedgerConfig { connections: 4, requests: 4, text_units: 4 };
    let memory = HeapMemory::new(config.bytes());
    let mut ledger =
        Ledger::open_as(memory.clone(), config, Epoch(word(0x81)), version).expect("an empty ledger");
    ledger.set_secrets(&std::array::from_fn::<u8, SECRET_BYTES, _>(|at| 0x80 + at as u8));
    ledger.mark(Work::Offer(word(0x11)));
    ledger.begin();
    ledger.touch(word(0x21));
    ledger.set_deaths(SessionId(word(0x31)), 0x99);
    ledger.stage_connection(1, Some(&connection()));
    let bare = ConnectionRecord {
        place: None,
        receive_fin: None,
        receive: Extents::default(),
        send_fin: false,
        phase: Phase::Unclaimed,
        beyond: [(0, 0); BEYOND_MAX],
        ..connection()
    };
    ledger.stage_connection(2, Some(&bare));
    let command = Command::Bind {
        token: 0,
        lease: long(0x41),
        protocol: Protocol::Tcp,
        local: Endpoint::at(addr(0x50), half(0x70)),
        reuse_addr: true,
        reuse_port: false,
        v6_only: true,
        device: Device::None,
    };
    let request = RequestRecord { order: long(0x61), session: SessionId(word(0x71)), command };
    ledger.stage_request(3, Some(&request));
    ledger.commit();
    for timestamps in [Some((word(0x91), word(0xa1))), None] {
        ledger.put_time_wait(&TimeWaitRecord {
            tuple: connection().tuple,
            deadline_ms: word(0xb1),
            snd_nxt: word(0xc1),
            rcv_nxt: word(0xd1),
            window: half(0xe1),
            window_shift: 15,
            timestamps,
        });
    }
    let mut pool = TextPool::default();
    assert_ne!(pool.write(&ledger.text_area(), &[0x5a; 600]), 0);
    if version == 2 {
        assert_eq!(ledger.connection(1), Some(Ok(connection())));
        assert_eq!(ledger.connection(2), Some(Ok(bare)));
    }
    assert_eq!(ledger.requests().next(), Some((3, Ok(request))));
    octets.add_memory(&format!("ledger {version}"), &memory);
    let config = LedgerConfig::STACK;
    octets.add("ledger of a stack", &config.bytes().to_le_bytes());
}
