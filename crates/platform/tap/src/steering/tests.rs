//! Tests of the program against the Rust hash, frame by frame, through BPF_PROG_TEST_RUN: no device is
//! needed, only root.

use super::*;
use atoll_base::{Addr, Endpoint, FourTuple, Rng};
use aya::programs::{TestRun, TestRunOptions};

const FIXTURES: &str = include_str!("../../../../../bpf/fixtures/steer.txt");

/// Implements the rule of `bpf/steer.c` in a readable way: returns the group of a frame, or `None` for "queue
/// 0 whatever the table says".
fn oracle(key: FlowKey, frame: &[u8]) -> Option<FlowGroup> {
    let packet = frame.strip_prefix(frame.get(..12)?)?;
    if let Some(ip) = packet.strip_prefix(&[0x86, 0xdd]) {
        return oracle_v6(key, ip);
    }
    let ip = packet.strip_prefix(&[0x08, 0x00])?;
    let header_len = usize::from(ip.first()? & 0xf) * 4;
    if ip.len() < 20 || ip[0] >> 4 != 4 || header_len < 20 {
        return None;
    }
    let be32 = |at: usize| u32::from_be_bytes(ip[at..at + 4].try_into().unwrap());
    let is_fragment = u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff != 0;
    let has_ports = matches!(ip[9], 6 | 17);
    let ports = match is_fragment {
        true => &[ip[4], ip[5], 0, ip[9]],
        false => ip.get(header_len..header_len + 4).filter(|_| has_ports).unwrap_or(&[0; 4]),
    };
    let port = |at: usize| u16::from_be_bytes([ports[at], ports[at + 1]]);
    let (remote, local) = (Endpoint::new(be32(12), port(0)), Endpoint::new(be32(16), port(2)));
    Some(key.group(&FourTuple { local, remote }))
}

fn oracle_v6(key: FlowKey, ip: &[u8]) -> Option<FlowGroup> {
    if ip.len() < 40 || ip[0] >> 4 != 6 {
        return None;
    }
    let addr = |at: usize| Addr::from_octets(ip[at..at + 16].try_into().unwrap());
    let fragment = ip.get(40..48).filter(|_| ip[6] == 44);
    let is_part = |fragment: &[u8]| u16::from_be_bytes([fragment[2], fragment[3]]) & 0xfff9 != 0;
    let ports = match fragment {
        Some(fragment) if is_part(fragment) => Some(&fragment[4..8]),
        Some(fragment) => ip.get(48..52).filter(|_| matches!(fragment[0], 6 | 17)),
        None => ip.get(40..44).filter(|_| matches!(ip[6], 6 | 17)),
    };
    let ports = ports.unwrap_or(&[0; 4]);
    let port = |at: usize| u16::from_be_bytes([ports[at], ports[at + 1]]);
    let (remote, local) = (Endpoint::at(addr(8), port(0)), Endpoint::at(addr(24), port(2)));
    // Mapped addresses do not appear on the wire (RFC 4038 §4.2), and are hashed differently.
    (!remote.addr.is_v4()).then(|| key.group(&FourTuple { local, remote }))
}

/// The program with a table that has each group's number plus one, so that 0 stands for no group.
struct Program(Ebpf);

impl Program {
    /// Loads the program. Returns `None`, and prints the reason, if this process may not load programs; as
    /// root that is a failure.
    fn load(key: FlowKey) -> Option<Program> {
        let mut loaded = match load(key) {
            Ok(loaded) => loaded,
            Err(SteeringError::NotPermitted) if !is_root() => {
                eprintln!("skipped: loading BPF programs needs root");
                return None;
            }
            Err(error) => panic!("cannot load the steering program: {error}"),
        };
        let mut table: Array<_, u32> = Array::try_from(loaded.map_mut("steering_table").unwrap()).unwrap();
        (0..FLOW_GROUPS as u32).for_each(|group| table.set(group, group + 1, 0).unwrap());
        Some(Program(loaded))
    }

    fn group(&mut self, frame: &[u8]) -> Option<FlowGroup> {
        // The test harness of the kernel strips an Ethernet header before it calls a socket filter; TAP does
        // not.
        let wrapped = [&[0; 14][..], frame].concat();
        let mut options = TestRunOptions::new();
        options.data_in = Some(&wrapped);
        let answer = steer_program(&mut self.0).unwrap().test_run(options).unwrap().return_value;
        answer.checked_sub(1).map(|group| FlowGroup(group as u16))
    }
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|me| std::os::unix::fs::MetadataExt::uid(&me) == 0)
}

struct Fixture {
    what: &'static str,
    key: FlowKey,
    frame: Vec<u8>,
    group: Option<FlowGroup>,
}

fn fixtures() -> Vec<Fixture> {
    let hex = |text| u32::from_str_radix(text, 16).unwrap();
    let parse = |line: &'static str| {
        let fields: Vec<&str> = line.split(" | ").collect();
        let [what, k0, k1, frame, group] = fields[..] else { panic!("five fields: {line}") };
        let byte = |at| u8::from_str_radix(&frame[at..at + 2], 16).unwrap();
        Fixture {
            what,
            key: FlowKey { k0: hex(k0), k1: hex(k1) },
            frame: (0..frame.len()).step_by(2).map(byte).collect(),
            group: (group != "-").then(|| FlowGroup(group.parse().unwrap())),
        }
    };
    FIXTURES.lines().filter(|line| !line.starts_with('#')).map(parse).collect()
}

#[test]
fn the_rust_hash_agrees_with_the_fixtures() {
    for fixture in fixtures() {
        assert_eq!(oracle(fixture.key, &fixture.frame), fixture.group, "{}", fixture.what);
    }
}

#[test]
fn the_program_agrees_with_the_fixtures() {
    for fixture in fixtures() {
        let Some(mut program) = Program::load(fixture.key) else { return };
        assert_eq!(program.group(&fixture.frame), fixture.group, "{}", fixture.what);
    }
}

#[test]
fn the_program_agrees_with_the_rust_hash_on_random_frames() {
    let mut rng = Rng::new(0x5eed);
    for _ in 0..8 {
        let key = FlowKey { k0: rng.next_u64() as u32, k1: rng.next_u64() as u32 };
        let Some(mut program) = Program::load(key) else { return };
        for _ in 0..2000 {
            let frame = if rng.below(2) == 0 { random_frame(&mut rng) } else { random_frame_v6(&mut rng) };
            assert_eq!(program.group(&frame), oracle(key, &frame), "{key:?} {frame:02x?}");
        }
    }
}

/// Returns random bytes that are mostly IPv6 with TCP or UDP.
fn random_frame_v6(rng: &mut Rng) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..14 + rng.next_u64() % 90).map(|_| rng.next_u64() as u8).collect();
    let mut put = |at: usize, value: u8| frame.get_mut(at).into_iter().for_each(|byte| *byte = value);
    put(12, 0x86);
    put(13, 0xdd);
    put(14, if rng.below(10) == 0 { 0x45 } else { 0x60 });
    put(20, [6, 6, 17, 17, 58, 0][rng.next_u64() as usize % 6]);
    frame
}

/// Returns random bytes that are mostly IPv4 with TCP or UDP, and sometimes broken in one field.
fn random_frame(rng: &mut Rng) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..14 + rng.next_u64() % 90).map(|_| rng.next_u64() as u8).collect();
    let mut put = |at: usize, value: u8| frame.get_mut(at).into_iter().for_each(|byte| *byte = value);
    put(12, 0x08);
    put(13, 0x00);
    let header_words = [5, 5, 5, 6, 15][rng.next_u64() as usize % 5];
    put(14, 0x40 | header_words);
    if !rng.next_u64().is_multiple_of(4) {
        // Without this the field would be random, which is nearly always a fragment.
        put(20, 0x40);
        put(21, 0);
    }
    put(23, [6, 6, 17, 17, 1, 50][rng.next_u64() as usize % 6]);
    if rng.next_u64().is_multiple_of(10) {
        put(12 + rng.next_u64() as usize % 3, rng.next_u64() as u8);
    }
    frame
}
