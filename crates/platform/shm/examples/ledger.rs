//! What does writing the record of a connection cost? The result is in nanoseconds per record, in shared
//! memory as replicas have it.
//!
//!     cargo run --release -p atoll-shm --example ledger
//!
//! A round takes a millisecond or less, so the least of many rounds is one in which no other process had the
//! processor.

use std::hint::black_box;
use std::time::Instant;

use atoll_base::{Endpoint, Epoch, FourTuple, SessionId, SlotId};
use atoll_ipc::buffer::{Extent, Extents};
use atoll_ipc::ledger::{BEYOND_MAX, ConnectionRecord, Ledger, LedgerConfig, Phase, Progress};
use atoll_shm::ShmMemory;

const ROUNDS: usize = 2000;
/// Records of a round.
const RECORDS: u32 = 1024;

fn main() -> std::io::Result<()> {
    let config = LedgerConfig { connections: 1 << 14, requests: 1 << 10, text_units: 1 << 10 };
    let (_fd, memory) = ShmMemory::create("atoll-example-ledger", config.bytes())?;
    let mut ledger = Ledger::open(memory, config, Epoch(1)).expect("the memory is new");
    for batch in [1, 4, 16, 64] {
        for (name, spread) in
            [("the same places", batch), ("1,024 places", RECORDS), ("16,384 places", 1 << 14)]
        {
            let written = least(|round| write(&mut ledger, batch, spread, round));
            println!("batches of {batch:2}, {name:15}: {written:6.1} ns for each record");
        }
    }
    let freed = least(|_| {
        for place in 0..RECORDS {
            ledger.begin();
            ledger.stage_connection(place, None);
            ledger.commit();
        }
    });
    println!("a place that is free again:         {freed:6.1} ns");
    let progress = Progress { acked: 1, received: 2, edge: 3 };
    let moved = least(|_| (0..RECORDS).for_each(|place| ledger.store_progress(place, black_box(&progress))));
    println!("progress:                           {moved:6.1} ns");
    Ok(())
}

/// Returns the nanoseconds for each record in the shortest round.
fn least(mut round: impl FnMut(u32)) -> f64 {
    let times = (0..ROUNDS).map(|number| {
        let started = Instant::now();
        round(number as u32);
        started.elapsed().as_nanos() as f64 / f64::from(RECORDS)
    });
    times.fold(f64::MAX, f64::min)
}

fn write(ledger: &mut Ledger<ShmMemory>, batch: u32, spread: u32, round: u32) {
    for first in (0..RECORDS).step_by(batch as usize) {
        ledger.begin();
        for number in first..first + batch {
            let place = (round * RECORDS + number) % spread;
            ledger.touch(place);
            ledger.stage_connection(place, Some(&record(number)));
        }
        ledger.commit();
    }
}

fn record(n: u32) -> ConnectionRecord {
    ConnectionRecord {
        progress: Progress { acked: i64::from(n), received: 70, edge: 70_000 },
        tuple: FourTuple {
            local: Endpoint::new(0xc612_0001, 80),
            remote: Endpoint::new(0xc612_0002, n as u16),
        },
        state: 1,
        phase: Phase::Open,
        place: Some((SessionId(1), SlotId(n), 2)),
        send_start: n,
        receive_start: n + 1,
        send_tail: 100,
        send_fin: false,
        receive_fin: None,
        receive: Extents { current: Some(Extent { base: 0, unit: n, log2: 11 }), old: None },
        ts_offset: 1,
        ts_recent: n,
        window_max: 65536,
        receive_capacity: 131_072,
        send_limit: 16384,
        unsent_low: 0,
        mss_path: 1460,
        mss_peer: 1460,
        mss_receive: 1460,
        flags: 7 << 19,
        snd_scale: 7,
        rcv_scale: 7,
        congestion: 0,
        ecn: 0,
        ttl: 64,
        tos: 0,
        hops_min: 0,
        syn_retries: 6,
        cause: 0,
        keep_probes: 9,
        keep_idle: 7200,
        keep_interval: 75,
        mss_max: 0,
        user_timeout_ms: 0,
        linger2_ms: 60_000,
        pacing_rate: 0,
        srtt_us: 100,
        text: 0,
        text_len: 0,
        crashes: 0,
        beyond: [(0, 0); BEYOND_MAX],
    }
}
