//! Checks that configuration, requests to the supervisor and the choice of a replica survive any bytes.

use atoll_base::{Endpoint, FlowKey, FourTuple};
use atoll_link::{Class, classify};
use atoll_supervisor::{ConfigFile, Door, Incoming, SAID_FIELDS_MAX, SAID_MAX, Said};
use atoll_wire::{ethernet, ipv4};

use crate::features::mark;
use crate::wire::repair_ipv4;

/// Reads the text of a configuration file. It is refused with a reason, or checked; and a checked
/// configuration is equal when it is written out and read again.
pub fn config_file(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let Ok(file) = ConfigFile::parse(&text) else { return };
    match file.validate() {
        Ok(config) => {
            assert!((1..=8).contains(&config.replicas()));
            mark(60, config.replicas().into());
            let again =
                ConfigFile::parse(&file.to_commented_toml()).expect("what was written out is read again");
            assert_eq!(again.validate(), Ok(config));
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            mark(61, error.to_string().len() as u64);
        }
    }
}

/// Reads a packet on one of the supervisor's sockets. The first byte says which socket, and how many
/// descriptors came with the packet.
pub fn supervisor_request(data: &[u8]) {
    let Some((first, bytes)) = data.split_first() else { return };
    let door = if first & 0x80 == 0 { Door::Applications } else { Door::Administration };
    match atoll_supervisor::classify(door, bytes, usize::from(first & 0x7f) % 3) {
        Ok(Incoming::Cli(request)) => {
            mark(62, bytes.len() as u64);
            let text = serde_json::to_string(&request).expect("it came as JSON");
            assert_eq!(door, Door::Administration);
            assert_eq!(atoll_supervisor::classify(door, text.as_bytes(), 0), Ok(Incoming::Cli(request)));
        }
        Ok(Incoming::Application(request)) => {
            mark(63, bytes[0].into());
            assert_eq!(door, Door::Applications);
            assert_eq!(
                atoll_supervisor::classify(door, &request.encode(), 0),
                Ok(Incoming::Application(request))
            );
        }
        Err(_) => {}
    }
}

/// Checks that a line printed by a server parses to an event within the bounds that prints to an equal event,
/// or to none.
pub fn supervisor_said(data: &[u8]) {
    let Some(said) = Said::parse(data) else { return };
    assert!(data.len() <= SAID_MAX && said.fields.len() <= SAID_FIELDS_MAX);
    for name in said.fields.keys().chain([&said.event]) {
        let is_known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        assert!((1..=32).contains(&name.len()) && name.bytes().all(is_known), "{name}");
    }
    mark(65, said.fields.len() as u64);
    let line = said.to_line();
    assert!(!line.contains('\n'));
    if line.len() <= SAID_MAX {
        // Fractions may differ in their last digit.
        let again = Said::parse(line.as_bytes()).expect("what was written is read again");
        assert!((again.event, again.message) == (said.event, said.message));
        assert!(again.fields.keys().eq(said.fields.keys()));
    }
}

/// Checks that only a frame's headers decide its flow, as in `bpf/steer.c`.
pub fn link_classify(data: &[u8]) {
    for repair in [false, true] {
        let mut frame = data.to_vec();
        if repair && let Some(packet) = frame.get_mut(ethernet::HEADER_LEN..) {
            repair_ipv4(packet);
        }
        let Class::Flow(tuple) = classify(&frame) else { continue };
        let group = FlowKey { k0: 1, k1: 2 }.group(&tuple);
        mark(64, u64::from(frame[ethernet::HEADER_LEN + 9]) << 16 | u64::from(group.0 % 16));
        // Only addresses, ports, and what an error quotes count; the payload does not.
        let packet = &frame[ethernet::HEADER_LEN..];
        let (header, len) = ipv4::parse(packet).expect("only what can be read has a flow");
        if header.protocol != ipv4::Protocol::ICMP && !header.is_fragment() {
            let ports = &packet[len..len + 4];
            let port = |at: usize| u16::from_be_bytes([ports[at], ports[at + 1]]);
            let expected = FourTuple {
                local: Endpoint::new(header.dst, port(2)),
                remote: Endpoint::new(header.src, port(0)),
            };
            assert_eq!(tuple, expected);
        }
    }
}
