//! A bad wire between two network namespaces:
//! `atoll-relay NS:TAP NS:TAP DROP DUPLICATE REORDER CORRUPT MARK SEED`, each rate per million frames. Makes
//! both TAPs, prints `ready`, and forwards frames until it is killed.
//!
//! The TAPs take no large segments, so what is lost is a packet of at most the MTU, as on a wire. Checksums
//! that the kernel left to the device are completed here, before a frame is damaged: otherwise the receiver
//! could not find the damage.
#![forbid(unsafe_code)]

use std::io::{self, Write};

use atoll_base::Rng;
use atoll_sys::epoll::{self, Epoll, EventFlags};
use atoll_system_tests::{complete_checksum, is_ecn_capable, mark_congestion, open_end};
use atoll_tap::{FRAME_LEN_MAX, Queue, VNET_HEADER_LEN};
use atoll_testkit::{Impairer, Rules};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Err(error) = run(&arguments) {
        eprintln!("atoll-relay: {error}");
        std::process::exit(1);
    }
}

fn run(arguments: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    let [left, right, rates @ .., seed] = arguments else {
        return Err("see the head of its source for usage".into());
    };
    let rates: Vec<u32> = rates.iter().map(|rate| rate.parse()).collect::<Result<_, _>>()?;
    let [drop, duplicate, reorder, corrupt, mark] = rates[..] else {
        return Err("five rates are needed".into());
    };
    let rules = Rules { drop, duplicate, reorder, corrupt, mark };
    let mut seeds = Rng::new(seed.parse()?);
    let mut ends = [open_end(left)?, open_end(right)?];
    let mut directions = [Impairer::new(rules, seeds.next_u64()), Impairer::new(rules, seeds.next_u64())];
    println!("ready");
    io::stdout().flush()?;

    let epoll = Epoll::new()?;
    for (number, end) in ends.iter().enumerate() {
        epoll.add(end, number as u64, EventFlags::IN)?;
    }
    let mut events = [epoll::EMPTY; 2];
    let mut buf = vec![0; FRAME_LEN_MAX];
    loop {
        // A frame that is held back waits at most this long for others to overtake it.
        let timeout = directions.iter().any(Impairer::holds_back).then_some(10);
        if epoll.wait(&mut events, timeout)? == 0 {
            directions.iter_mut().for_each(Impairer::handle_silence);
        }
        let [left, right] = &mut ends;
        let [to_right, to_left] = &mut directions;
        forward(left, to_right, right, &mut buf)?;
        forward(right, to_left, left, &mut buf)?;
    }
}

/// Moves the frames that wait at one end through one direction to the other end.
fn forward(from: &mut Queue, through: &mut Impairer, to: &mut Queue, buf: &mut [u8]) -> io::Result<()> {
    for _ in 0..64 {
        let Some(len) = from.receive(buf)? else { break };
        let mut frame = buf[..len].to_vec();
        complete_checksum(&mut frame);
        if through.marks() && is_ecn_capable(&frame) {
            mark_congestion(&mut frame);
        }
        // ARP is not changed: no checksum would detect that, and a wrong neighbour would stop all traffic.
        let is_arp = frame.get(VNET_HEADER_LEN + 12..VNET_HEADER_LEN + 14) == Some(&[8, 6]);
        through.handle_frame(frame, if is_arp { len } else { VNET_HEADER_LEN });
    }
    while let Some(frame) = through.poll_frame() {
        // A full queue drops frames, as a wire does.
        let _ = to.send_bytes(&frame)?;
    }
    Ok(())
}
