use super::*;
use crate::script::{Echoed, IpFacts, TcpOption};

fn there_and_back(sent: &Sent, about: Option<&About>) -> Message {
    let Frame::Sent(seen) = read(&frame(sent, about)) else { panic!("a packet") };
    assert_eq!((seen.from, seen.to), (sent.from, sent.to));
    seen.message
}

#[test]
fn what_is_written_is_read_back() {
    let options = vec![
        TcpOption::Mss(1460),
        TcpOption::Nop,
        TcpOption::WindowScale(7),
        TcpOption::Timestamps { value: 100, echo: 7 },
        TcpOption::AccurateEcn(174, vec![1, 0, 0x00ff_ffff]),
        TcpOption::Other(99, vec![1, 2, 3]),
        TcpOption::FastOpenExperimental(vec![]),
    ];
    for family in [Family::V4, Family::V6] {
        let ip = IpFacts { tos: Some((2, 0xff)), ttl: Some(63), ..IpFacts::default() };
        let packet = Packet {
            ip: IpFacts { flow_label: (family == Family::V6).then_some(7), ..ip },
            ports: Some((4, 80)),
            flags: 0x1d8,
            seq: 1000,
            len: 7,
            ack: Some(5),
            window: Some(257),
            urgent: None,
            options: Some(options.clone()),
        };
        let (from, to) = (Endpoint::at(family.remote(), 4), Endpoint::at(family.local(), 80));
        let Message::Tcp(mut seen) = there_and_back(&Sent { from, to, message: packet.clone().into() }, None)
        else {
            panic!("a segment")
        };
        let padding = seen.options.as_mut().map(|seen| seen.split_off(options.len()));
        assert!(padding.is_some_and(|padding| padding.iter().all(|option| *option == TcpOption::End)));
        assert_eq!(seen, packet);
    }
}

#[test]
fn datagrams_and_errors_are_read_back() {
    for family in [Family::V4, Family::V6] {
        let (from, to) = (Endpoint::at(family.remote(), 4), Endpoint::at(family.local(), 80));
        let Message::Udp(seen) = there_and_back(
            &Sent { from, to, message: Datagram { len: 9, ..Datagram::default() }.into() },
            None,
        ) else {
            panic!("a datagram")
        };
        assert_eq!((seen.ports, seen.len), (Some((4, 80)), 9));
        let (kind, code) = if family == Family::V6 { (2, 0) } else { (3, 4) };
        for echoed in [Echoed::Tcp(77, 1460), Echoed::Udp(5)] {
            let message = Icmp { kind, code, mtu: Some(1300), echoed: Some(echoed), ..Icmp::default() };
            let (from, to) = (Endpoint::at(family.remote(), 0), Endpoint::at(family.local(), 0));
            let about = About { from: to, to: from, seq: 77 };
            let Message::Icmp(seen) =
                there_and_back(&Sent { from, to, message: message.into() }, Some(&about))
            else {
                panic!("an error")
            };
            assert_eq!(
                Icmp { ip: IpFacts::default(), ..seen },
                message,
                "{}",
                describe(&seen.into(), family)
            );
        }
    }
}
