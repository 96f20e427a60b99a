//! An IP server in front of the transport of a stack, with no loss or delay in between.

use std::collections::VecDeque;

use atoll_base::{Epoch, FourTuple, Instant};
use atoll_ip::{ChecksumOffload, Ip, NetworkError};
use atoll_ip_server::{Client, Egress, IpServer, Party};
use atoll_ipc::ip::IpMessage;
use atoll_wire::vnet;

/// The IP server of a stack with one transport server, and the client side of that transport server.
#[derive(Debug)]
pub struct Front {
    server: IpServer,
    client: Client,
}

#[derive(Default)]
struct Exit {
    sent: VecDeque<Vec<u8>>,
    delivered: Vec<(ChecksumOffload, Vec<u8>)>,
    told: Vec<IpMessage>,
}

impl Egress for Exit {
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
    /// Creates an IP server that runs `ip`, a full IP layer.
    pub fn new(ip: Ip) -> Front {
        let config = atoll_ip_server::Config { number: 0, servers: 1, replicas: 1, epoch: Epoch(1) };
        Front { server: IpServer::new(config, ip), client: Client::new(Epoch(3)) }
    }

    /// Takes frames of the transport, and exchanges messages between the server and `half`, the transport's
    /// part of IP. Returns the frames that leave, and the reports to the transport about its packets.
    pub fn round(
        &mut self,
        now: Instant,
        half: &mut Ip,
        frames: impl IntoIterator<Item = Vec<u8>>,
    ) -> (VecDeque<Vec<u8>>, Vec<NetworkError>) {
        let mut exit = Exit::default();
        for mut frame in frames {
            self.server.transmit(now, 0, &[0; vnet::HEADER_LEN], &mut frame, &mut exit);
        }
        let server = &mut self.server;
        self.client.send(half, |message| {
            server.handle_message(now, Party::Transport(0), message);
            true
        });
        self.server.handle_timeout(now);
        self.server.flush(now, &mut exit);
        let errors = exit.told.iter().filter_map(|message| self.client.handle(now, half, message)).collect();
        (exit.sent, errors)
    }

    /// Takes a frame from the link. Returns the frames that leave at once, and those that the transport gets.
    #[allow(clippy::type_complexity)] // Two lists of frames.
    pub fn hear(
        &mut self,
        now: Instant,
        offload: ChecksumOffload,
        frame: &[u8],
    ) -> (VecDeque<Vec<u8>>, Vec<(ChecksumOffload, Vec<u8>)>) {
        let mut exit = Exit::default();
        let mut vnet = [0; vnet::HEADER_LEN];
        vnet[0] = match offload {
            ChecksumOffload::Partial => vnet::NEEDS_CSUM,
            ChecksumOffload::Valid => vnet::DATA_VALID,
            ChecksumOffload::Unknown => 0,
        };
        self.server.handle_frame(now, &vnet, frame, &mut exit);
        (exit.sent, exit.delivered)
    }

    /// Returns when the next round is due even if no frame arrives.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.server.next_timeout()
    }

    /// Returns the full IP layer of the server.
    pub fn ip_mut(&mut self) -> &mut Ip {
        self.server.ip_mut()
    }
}
