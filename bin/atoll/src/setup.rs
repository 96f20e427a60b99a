//! What does a server get from the supervisor when it starts? Facts as JSON, and descriptors in a fixed
//! order.
//!
//! Descriptors, from number 3 on, without gaps; of a replica, in the packet with its setup:
//!
//! ```text
//!   control socket (SOCK_SEQPACKET, nonblocking)
//!   stack page (opened read-only)
//!   own page
//!   own bell
//!   keys of all servers (sealed)
//!   memory that it shares with another server  one for each of `pairs`, in that order (`mesh.rs`)
//!   ledger, LEDGER_BYTES                       of a replica only
//!   TAP queue                                  of a replica or IP server: only if `has_tap`; of a connection manager: none
//!   bells of all servers, by number            of a replica or IP server: `servers` of them; of a link server: those of its `peers`
//!                                              only; of a connection manager: those of all CMs, then those of the replicas
//!   bells of the replicas                      of a replica only: once more, because it may not copy descriptors
//!   link memory, LINK_BYTES                    }
//!   stack page of the peer (opened read-only)  } only if `link` is given
//!   bells of the peer's replicas, by index     }   `REPLICAS_MAX` of them, whatever the peer has
//! ```
//! A process for replicas starts with three only: a socket on which it is given replicas, one a packet, the
//! stack page, and a page of its own, which says how it is confined. Servers are numbered as in
//! `atoll_supervisor::Plan`: replicas first.

use atoll_ipc::page::REPLICAS_MAX;
use atoll_supervisor::RecoveryMode;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::mesh::RING_STRIDE;

/// Version of all this: the setups, the order of descriptors, the requests. A server of one build is started
/// by a supervisor of another one.
pub const SETUP_VERSION: u32 = 3;
/// Bytes of one direction of a link: a ring for every pair of replicas.
const LINK_SIDE_BYTES: usize = REPLICAS_MAX * REPLICAS_MAX * RING_STRIDE;
/// Bytes of a link.
pub const LINK_BYTES: usize = 2 * LINK_SIDE_BYTES;
/// The largest TCP text of a frame that the link cuts: an IP packet of 64 KiB without its longest usual
/// headers.
pub const SEGMENT_MAX: u32 = 65_535 - 20 - 60;

/// Offset in the link memory of the ring from replica `from` of the stack at `sender` to replica `to` of the
/// other stack.
pub const fn link_ring(sender: LinkSide, from: usize, to: usize) -> usize {
    (sender as usize) * LINK_SIDE_BYTES + (from * REPLICAS_MAX + to) * RING_STRIDE
}

/// The command line of a process that the supervisor starts.
#[derive(Clone, Debug, clap::Args)]
pub struct SetupArgs<S: Setup + Clone + Send + Sync + 'static> {
    /// Its number; for people who look at the process list.
    #[arg(long)]
    pub index: u8,
    /// Everything else.
    #[arg(long, value_parser = <S as Setup>::from_json)]
    pub setup: S,
}

/// What a process is told on its command line.
pub trait Setup: Serialize + DeserializeOwned {
    /// What every process is told.
    fn process(&self) -> &ProcessSetup;

    /// Reads the value of `--setup`.
    fn from_json(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    /// The value of `--setup`.
    fn to_json(&self) -> String {
        serde_json::to_string(self).expect("plain data has a JSON form")
    }
}

/// What a server in a process of its own is told there.
pub trait OwnSetup: Setup {
    /// The subcommand.
    const COMMAND: &'static str;

    /// What every such server is told.
    fn server(&self) -> &ServerSetup;

    /// The same, to be filled in.
    fn server_mut(&mut self) -> &mut ServerSetup;
}

/// The user that servers run as, where the stack is root's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerUser {
    /// Number of the user, which is not root.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

/// What every process is told when it starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessSetup {
    /// Name of the stack.
    pub stack: String,
    /// Process number of the supervisor, for `die_with_parent`.
    pub supervisor: u32,
    /// The user that it becomes; `None`: it stays the supervisor's.
    #[serde(default)]
    pub user: Option<ServerUser>,
    /// Whether it outlives the supervisor: somebody keeps what the next one needs.
    pub guarded: bool,
    /// How many descriptors are inherited, for `take_inherited`.
    pub descriptors: usize,
    /// Own number among those of its kind; of a link server, also that of its queue.
    pub index: u8,
    /// The processor to run on.
    pub cpu: Option<usize>,
    /// Whether to run as SCHED_BATCH.
    pub batch_scheduling: bool,
}

/// What every server in a process of its own is told when it starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerSetup {
    /// What its process is told.
    #[serde(flatten)]
    pub process: ProcessSetup,
    /// Own number among the servers.
    pub server: u8,
    /// The servers with which it shares memory: a descriptor each, in this order.
    pub pairs: Vec<u8>,
    /// Own incarnation.
    pub epoch: u32,
}

/// What a process for replicas is told when it starts. Which ones it is to have it hears afterwards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostSetup {
    /// What every process is told.
    #[serde(flatten)]
    pub process: ProcessSetup,
    /// It stands by, to be given the replicas of another one that has died; so many octets of its memory are
    /// to be there then.
    #[serde(default)]
    pub standby: Option<u64>,
    /// Whether replicas may come with a TAP queue.
    pub has_tap: bool,
}

/// What a replica is told when it starts. What all processes of the stack share is on the stack page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaSetup {
    /// Own number.
    pub index: u8,
    /// How many replicas the stack has.
    pub replicas: u8,
    /// How many servers it has, replicas included.
    pub servers: u8,
    /// Own incarnation.
    pub epoch: u32,
    /// The servers with which it shares memory: a descriptor each, in this order.
    pub pairs: Vec<u8>,
    /// The incarnations of all replicas, by number.
    pub epochs: Vec<u32>,
    /// Whether there is a TAP queue.
    pub has_tap: bool,
    /// How many connection managers the stack has.
    pub managers: u8,
    /// The server that has the connection manager for this replica; `None`: it has it itself.
    pub manager: Option<u8>,
    /// The incarnation of that one.
    pub manager_epoch: u32,
    /// Whether connection managers are in processes of their own.
    pub managers_apart: bool,
    /// The server that has IP for this replica, where that is another one.
    pub ip_server: Option<u8>,
    /// How many IP servers in processes of their own there are.
    pub ip_servers: u8,
    /// The server that has the queue for this replica, or the IP server that knows; `None`: it needs none.
    pub link_server: Option<u8>,
    /// The largest TCP text of a frame that the link cuts into segments, 0 if it cuts none.
    pub segment_max: u32,
    /// Whether frames may arrive at a replica that does not own their flow group, which then passes them on.
    pub software_steering: bool,
    /// The shared-memory link to another stack, if there is one.
    pub link: Option<LinkSetup>,
    /// What becomes of the connections that a predecessor had.
    pub recovery: RecoveryMode,
}

/// What a link server in a process of its own is told when it starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkServerSetup {
    /// What every server is told.
    #[serde(flatten)]
    pub common: ServerSetup,
    /// The replica that gets what belongs to no flow, or whose IP server does.
    pub first_replica: u8,
    /// The servers that it gives frames to, and gets them from: the replicas or, where IP is apart, the IP
    /// servers. Replicas take turns.
    pub peers: Vec<u8>,
}

/// What an IP server in a process of its own is told when it starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpServerSetup {
    /// What every server is told.
    #[serde(flatten)]
    pub common: ServerSetup,
    /// All IP servers, by their numbers among the servers.
    pub ip_servers: Vec<u8>,
    /// How many servers there are.
    pub servers: u8,
    /// Whether there is a TAP queue.
    pub has_tap: bool,
    /// The server that has the queue; it itself, if there is one.
    pub link_server: u8,
}

/// What a connection manager in a process of its own is told when it starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManagerSetup {
    /// What every server is told.
    #[serde(flatten)]
    pub common: ServerSetup,
    /// How many of them there are.
    pub managers: u8,
}

/// A shared-memory link. The other stack is there once its stack page has facts, and gone when it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkSetup {
    /// Which end this stack is.
    pub side: LinkSide,
}

/// The two ends of a link, by who made its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkSide {
    /// The stack that made it.
    Host = 0,
    /// The stack that joined.
    Guest = 1,
}

impl LinkSide {
    /// The other end.
    pub const fn other(self) -> LinkSide {
        match self {
            LinkSide::Host => LinkSide::Guest,
            LinkSide::Guest => LinkSide::Host,
        }
    }
}

impl ReplicaSetup {
    /// Reads the packet by which a process is given a replica.
    pub fn from_json(text: &[u8]) -> Result<ReplicaSetup, String> {
        serde_json::from_slice(text).map_err(|error| error.to_string())
    }

    /// That packet.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("plain data has a JSON form")
    }
}

impl Setup for HostSetup {
    fn process(&self) -> &ProcessSetup {
        &self.process
    }
}

impl Setup for LinkServerSetup {
    fn process(&self) -> &ProcessSetup {
        &self.common.process
    }
}

impl OwnSetup for LinkServerSetup {
    const COMMAND: &'static str = "link-server";

    fn server(&self) -> &ServerSetup {
        &self.common
    }

    fn server_mut(&mut self) -> &mut ServerSetup {
        &mut self.common
    }
}

impl Setup for IpServerSetup {
    fn process(&self) -> &ProcessSetup {
        &self.common.process
    }
}

impl OwnSetup for IpServerSetup {
    const COMMAND: &'static str = "ip-server";

    fn server(&self) -> &ServerSetup {
        &self.common
    }

    fn server_mut(&mut self) -> &mut ServerSetup {
        &mut self.common
    }
}

impl Setup for ManagerSetup {
    fn process(&self) -> &ProcessSetup {
        &self.common.process
    }
}

impl OwnSetup for ManagerSetup {
    const COMMAND: &'static str = "connection-manager";

    fn server(&self) -> &ServerSetup {
        &self.common
    }

    fn server_mut(&mut self) -> &mut ServerSetup {
        &mut self.common
    }
}

/// The packet that a server sends on its control socket when it is ready to serve.
pub const READY: &[u8] = br#"{"ready":true}"#;
/// The last packet of a server that was asked to hand over. It touches nothing any more that it was given.
pub const LEFT: &[u8] = br#"{"left":true}"#;
/// The packet that a process for replicas sends when it may be given some.
pub const UP: &[u8] = br#"{"up":true}"#;

/// What a replica says when nothing of a session that has ended needs its memory any more: this, and the
/// session's number.
const OVER: &[u8] = b"over";

/// Says it.
pub fn over(session: u32) -> Vec<u8> {
    [OVER, &session.to_le_bytes()].concat()
}

/// Which session is over; `None`: the packet says something else.
pub fn is_over(packet: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(packet.strip_prefix(OVER)?.try_into().ok()?))
}

/// What a replica says when its predecessors have died of a session again and again: this, and the session's
/// number.
const CUT_OFF: &[u8] = b"cut off";

/// Says it.
pub fn cut_off(session: u32) -> Vec<u8> {
    [CUT_OFF, &session.to_le_bytes()].concat()
}

/// Which session is cut off; `None`: the packet says something else.
pub fn is_cut_off(packet: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(packet.strip_prefix(CUT_OFF)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process() -> ProcessSetup {
        ProcessSetup {
            stack: "web".into(),
            supervisor: 1,
            user: Some(ServerUser { uid: 990, gid: 991 }),
            guarded: true,
            descriptors: 8,
            index: 1,
            cpu: Some(1),
            batch_scheduling: true,
        }
    }

    fn common() -> ServerSetup {
        let process = ProcessSetup { cpu: None, batch_scheduling: false, ..process() };
        ServerSetup { process, server: 3, pairs: vec![0, 1], epoch: 1 }
    }

    #[test]
    fn the_setup_survives_the_command_line() {
        let setup = HostSetup { process: process(), standby: Some(1 << 20), has_tap: true };
        assert_eq!(HostSetup::from_json(&setup.to_json()), Ok(setup));
        let setup = ReplicaSetup {
            index: 1,
            replicas: 2,
            servers: 3,
            epoch: 1,
            pairs: vec![0, 2],
            epochs: vec![1, 1],
            has_tap: true,
            managers: 1,
            manager: Some(2),
            manager_epoch: 4,
            managers_apart: true,
            ip_server: Some(2),
            ip_servers: 1,
            link_server: None,
            segment_max: SEGMENT_MAX,
            software_steering: false,
            link: Some(LinkSetup { side: LinkSide::Guest }),
            recovery: RecoveryMode::Stateless,
        };
        assert_eq!(ReplicaSetup::from_json(setup.to_json().as_bytes()), Ok(setup));
        let setup = LinkServerSetup { common: common(), first_replica: 1, peers: vec![0, 1] };
        assert_eq!(LinkServerSetup::from_json(&setup.to_json()), Ok(setup));
        let setup =
            IpServerSetup { common: common(), ip_servers: vec![2, 3], servers: 4, has_tap: false, link_server: 2 };
        assert_eq!(IpServerSetup::from_json(&setup.to_json()), Ok(setup));
        let setup = ManagerSetup { common: common(), managers: 2 };
        assert_eq!(ManagerSetup::from_json(&setup.to_json()), Ok(setup));
    }

    /// A server of one build is started by a supervisor of another one, in both directions: these are the
    /// names that version 3 has.
    #[test]
    fn what_processes_share_stands_beside_what_only_some_are_told() {
        let of_process =
            r#""stack":"web","supervisor":1,"user":{"uid":990,"gid":991},"guarded":true,"descriptors":8,"index":1"#;
        let of_server =
            format!(r#"{{{of_process},"server":3,"pairs":[0,1],"epoch":1,"cpu":null,"batch_scheduling":false"#);
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        let host = HostSetup { process: process(), standby: None, has_tap: true };
        let text = format!(r#"{{{of_process},"standby":null,"has_tap":true,"cpu":1,"batch_scheduling":true}}"#);
        assert_eq!((value(&host.to_json()), HostSetup::from_json(&text)), (value(&text), Ok(host)));
        let link = LinkServerSetup { common: common(), first_replica: 1, peers: vec![0, 1] };
        let text = format!(r#"{of_server},"first_replica":1,"peers":[0,1]}}"#);
        assert_eq!((value(&link.to_json()), LinkServerSetup::from_json(&text)), (value(&text), Ok(link)));
        let (ip_servers, servers, link_server) = (vec![2, 3], 4, 2);
        let ip = IpServerSetup { common: common(), ip_servers, servers, has_tap: false, link_server };
        let text = format!(r#"{of_server},"ip_servers":[2,3],"servers":4,"has_tap":false,"link_server":2}}"#);
        assert_eq!((value(&ip.to_json()), IpServerSetup::from_json(&text)), (value(&text), Ok(ip)));
        let manager = ManagerSetup { common: common(), managers: 2 };
        let text = format!(r#"{of_server},"managers":2}}"#);
        assert_eq!((value(&manager.to_json()), ManagerSetup::from_json(&text)), (value(&text), Ok(manager)));
        // One that says no user is of a build from before there was one.
        let text = text.replace(r#""user":{"uid":990,"gid":991},"#, "");
        assert_eq!(ManagerSetup::from_json(&text).unwrap().process().user, None);
    }

    #[test]
    fn rings_of_links_do_not_overlap_and_end_with_the_memory() {
        assert_eq!(link_ring(LinkSide::Guest, 7, 7) + RING_STRIDE, LINK_BYTES);
        assert_eq!(link_ring(LinkSide::Guest, 0, 0), link_ring(LinkSide::Host, 7, 7) + RING_STRIDE);
    }
}
