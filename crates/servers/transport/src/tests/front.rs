//! An IP server before the transport of a stack, with nothing lost or late in between; and all tests of this crate once more with one.

use std::collections::VecDeque;
use std::vec::Vec;

use atoll_base::{Epoch, FourTuple, Instant};
use atoll_ip::{ChecksumOffload, Ip};
use atoll_ip_server::{Client, Exits, IpServer, Party};
use atoll_ipc::HeapMemory;
use atoll_ipc::ip::IpMessage;
use atoll_wire::vnet;

use crate::Transport;

/// Whether stacks have IP servers: in the process that the test below starts.
pub(crate) fn is_ip_apart() -> bool {
    std::env::var_os(APART).is_some()
}

const APART: &str = "ATOLL_IP_APART";

/// The IP server of a stack, and what its transport says to it.
pub(crate) struct Front {
    pub(crate) server: IpServer,
    client: Client,
}

#[derive(Default)]
struct Exit {
    sent: VecDeque<Vec<u8>>,
    delivered: Vec<(ChecksumOffload, Vec<u8>)>,
    told: Vec<IpMessage>,
}

impl Exits for Exit {
    fn send(&mut self, _: &[u8; vnet::HEADER_LEN], frame: &[u8]) -> bool {
        self.sent.push_back(frame.to_vec());
        true
    }

    fn deliver(&mut self, _: &FourTuple, vnet: &[u8; vnet::HEADER_LEN], frame: &[u8]) {
        let offload = match vnet[0] {
            vnet::NEEDS_CSUM => ChecksumOffload::Partial,
            vnet::DATA_VALID => ChecksumOffload::Valid,
            flags => panic!("what was checked says so: {flags}"),
        };
        self.delivered.push((offload, frame.to_vec()));
    }

    fn tell(&mut self, to: Party, message: &IpMessage) -> bool {
        assert_eq!(to, Party::Transport(0));
        self.told.push(message.clone());
        true
    }
}

impl Front {
    pub(crate) fn new(ip: Ip) -> Front {
        let config = atoll_ip_server::Config { number: 0, servers: 1, replicas: 1, epoch: Epoch(1) };
        Front { server: IpServer::new(config, ip), client: Client::new(Epoch(3)) }
    }

    /// Frames of the transport, and what both have to say to each other. Returns what leaves.
    pub(crate) fn round(
        &mut self,
        now: Instant,
        transport: &mut Transport<HeapMemory>,
        frames: VecDeque<Vec<u8>>,
    ) -> VecDeque<Vec<u8>> {
        let mut exit = Exit::default();
        for mut frame in frames {
            self.server.transmit(now, 0, &[0; vnet::HEADER_LEN], &mut frame, &mut exit);
        }
        let server = &mut self.server;
        self.client.send(transport.ip_mut(), |message| {
            server.handle_message(now, Party::Transport(0), message);
            true
        });
        self.server.handle_timeout(now);
        self.server.flush(now, &mut exit);
        for message in exit.told {
            if let Some(error) = self.client.handle(now, transport.ip_mut(), &message) {
                transport.handle_network_error(now, &error);
            }
        }
        exit.sent
    }

    /// A frame has come. Returns what leaves at once.
    pub(crate) fn hear(
        &mut self,
        now: Instant,
        transport: &mut Transport<HeapMemory>,
        offload: ChecksumOffload,
        frame: &[u8],
    ) -> VecDeque<Vec<u8>> {
        let mut exit = Exit::default();
        let mut vnet = [0; vnet::HEADER_LEN];
        vnet[0] = match offload {
            ChecksumOffload::Partial => vnet::NEEDS_CSUM,
            ChecksumOffload::Valid => vnet::DATA_VALID,
            ChecksumOffload::Unknown => 0,
        };
        self.server.handle_frame(now, &vnet, frame, &mut exit);
        for (offload, frame) in exit.delivered {
            transport.handle_frame(now, &frame, offload, false);
        }
        exit.sent
    }
}

#[test]
fn everything_holds_where_ip_is_apart() {
    if is_ip_apart() {
        return;
    }
    let this = std::env::current_exe().expect("this program has a name");
    let output = std::process::Command::new(this).env(APART, "1").output().expect("it starts");
    let said = std::string::String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{APART}=1: {said}");
    assert!(said.contains("everything_holds_where_ip_is_apart ... ok"), "{said}");
}
