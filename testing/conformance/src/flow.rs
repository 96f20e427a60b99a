//! Maps the script's numbers and ports to those on the wire.

use std::collections::BTreeMap;

use atoll_base::Endpoint;

use crate::host::PORT;
use crate::script::{Packet, Ports, TcpOption};
use crate::wire::{Family, Sent};

/// The first port of the other end where the script names none; each connection has a new one.
const REMOTE_PORT: u16 = 40_000;
/// The control bits of SYN and ACK.
pub const SYN: u16 = 0x02;
pub const ACK: u16 = 0x10;

/// One connection, or exchange of datagrams.
#[derive(Debug)]
pub struct Flow {
    pub local: Option<Endpoint>,
    pub remote: Endpoint,
    /// The ports that the script uses for the flow: that of the other end, and ours.
    script: Ports,
    /// Our initial sequence number on the wire, and in the script.
    iss: (u32, u32),
    /// The initial sequence number of the other end, which is the same in both.
    irs: u32,
    /// The initial sequence number of a SYN of the other end that we have not answered yet.
    offered: Option<u32>,
    /// Whether our SYN was not answered yet.
    is_opening: bool,
    /// Our timestamps, by those in the script.
    timestamps: BTreeMap<u32, u32>,
}

impl Flow {
    fn new(remote: Endpoint) -> Flow {
        Flow {
            local: None,
            remote,
            script: None,
            iss: (0, 0),
            irs: 0,
            offered: None,
            is_opening: false,
            timestamps: BTreeMap::new(),
        }
    }

    /// Returns the offset from our numbers in the script to those on the wire.
    pub fn offset(&self, is_syn: bool) -> u32 {
        let (live, script) = self.iss;
        if is_syn { live.wrapping_sub(script) } else { live }
    }

    /// Converts a segment to the stack to the numbers of the wire.
    pub fn on_wire(&mut self, packet: &Packet) -> Packet {
        let mut live = packet.clone();
        let is_syn = packet.flags & SYN != 0;
        if is_syn {
            self.offered = Some(packet.seq);
            if std::mem::take(&mut self.is_opening) {
                self.irs = packet.seq;
            }
        } else {
            live.seq = packet.seq.wrapping_add(self.irs);
        }
        let offset = self.offset(is_syn);
        live.ack = live.ack.map(|ack| ack.wrapping_add(offset));
        for option in live.options.iter_mut().flatten() {
            match option {
                TcpOption::Sack(blocks) => {
                    for (left, right) in blocks {
                        *left = left.wrapping_add(offset);
                        *right = right.wrapping_add(offset);
                    }
                }
                TcpOption::Timestamps { echo, .. } => {
                    *echo = self.timestamps.get(echo).copied().unwrap_or(*echo)
                }
                _ => {}
            }
        }
        live
    }

    /// Converts a segment of the stack to the script's numbers.
    pub fn in_script(&mut self, mut packet: Packet, expected: &Packet) -> Packet {
        let is_syn = packet.flags & SYN != 0;
        if is_syn && expected.flags & SYN != 0 {
            self.iss = (packet.seq, expected.seq);
            match self.offered {
                Some(irs) if packet.flags & ACK != 0 => self.irs = irs,
                _ => self.is_opening = true,
            }
        }
        packet.seq = packet.seq.wrapping_sub(self.offset(is_syn));
        if !is_syn {
            // After the SYNs, the numbers of both ends count from them.
            let irs = self.irs;
            packet.ack = packet.ack.map(|ack| ack.wrapping_sub(irs));
            for option in packet.options.iter_mut().flatten() {
                if let TcpOption::Sack(blocks) = option {
                    for (left, right) in blocks {
                        *left = left.wrapping_sub(irs);
                        *right = right.wrapping_sub(irs);
                    }
                }
            }
        }
        let theirs = expected.options.iter().flatten().find_map(|option| match option {
            TcpOption::Timestamps { value, .. } => Some(*value),
            _ => None,
        });
        for option in packet.options.iter_mut().flatten() {
            if let (TcpOption::Timestamps { value, .. }, Some(theirs)) = (option, theirs) {
                self.timestamps.insert(theirs, *value);
                *value = theirs;
            }
        }
        packet
    }

    /// Converts a number of the other end on the wire to the script's numbers.
    pub fn theirs(&self, seq: u32) -> u32 {
        seq.wrapping_sub(self.irs)
    }
}

/// All connections, or all exchanges of datagrams, of a script.
#[derive(Debug)]
pub struct Flows {
    family: Family,
    /// The flows; never empty. A packet without ports belongs to the current one.
    all: Vec<Flow>,
    current: usize,
}

impl Flows {
    /// Creates the flows, with only the one that a first packet of the other end would open.
    pub fn new(family: Family) -> Flows {
        let remote = Endpoint::at(family.remote(), REMOTE_PORT);
        Flows { family, all: vec![Flow::new(remote)], current: 0 }
    }

    /// Returns the flow that is meant where no ports are named.
    pub fn current(&mut self) -> &mut Flow {
        &mut self.all[self.current]
    }

    /// Begins a new flow, because a program listens or (with `remote`) connects.
    pub fn open(&mut self, remote: Option<Endpoint>) {
        let port = REMOTE_PORT.wrapping_add(self.all.len() as u16);
        self.all.push(Flow::new(remote.unwrap_or(Endpoint::at(self.family.remote(), port))));
        self.current = self.all.len() - 1;
    }

    /// Returns the flow that a packet to the stack belongs to. `opens` says whether the packet may open one.
    pub fn of_injected(&mut self, ports: Ports, opens: bool) -> &mut Flow {
        let Some((from, to)) = ports else { return &mut self.all[self.current] };
        if let Some(at) = self.all.iter().position(|flow| flow.script == ports) {
            self.current = at;
            return &mut self.all[at];
        }
        // A flow that our own SYN has opened is known by its ports from here on.
        let current = &mut self.all[self.current];
        if current.script.is_some() || opens || current.local.is_none() {
            let mut flow = Flow::new(Endpoint::at(self.family.remote(), from));
            flow.local = Some(Endpoint::at(self.family.local(), to));
            self.all.push(flow);
            self.current = self.all.len() - 1;
        }
        let flow = &mut self.all[self.current];
        flow.script = ports;
        flow
    }

    /// Returns the flow that a packet of the stack belongs to, and whether it has the ports that the script
    /// expects.
    pub fn of_sent(&mut self, sent: &Sent, expected: Ports) -> (&mut Flow, bool) {
        let matches =
            |flow: &Flow| flow.remote == sent.to && flow.local.is_none_or(|local| local == sent.from);
        let known = if matches(&self.all[self.current]) {
            Some(self.current)
        } else {
            self.all.iter().rposition(matches)
        };
        let at = known.unwrap_or_else(|| {
            self.all.push(Flow::new(sent.to));
            self.all.len() - 1
        });
        if expected.is_some() {
            self.current = at;
        }
        let flow = &mut self.all[at];
        flow.local = Some(sent.from);
        // A port that the stack chooses gets the name that the script uses for it first.
        let is_right = expected.is_none_or(|(from, to)| *flow.script.get_or_insert((to, from)) == (to, from));
        (flow, is_right)
    }

    /// Returns the destination of the other end's packets if the stack has not sent any yet.
    pub fn default_local(&self) -> Endpoint {
        Endpoint::at(self.family.local(), PORT)
    }
}
