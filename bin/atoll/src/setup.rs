//! What a server gets from the supervisor when it starts: facts as JSON, and descriptors in a fixed order.
//!
//! Descriptors, from number 3 on, without gaps; those of a replica come in the packet with its setup:
//!
//! ```text
//!   control socket (SOCK_SEQPACKET, nonblocking)
//!   stack page (opened read-only)
//!   own page
//!   own bell
//!   keys of all servers (sealed)
//!   memory that it shares with another server  one for each of `pairs`, in that order (`mesh.rs`)
//!   ledger, LEDGER_BYTES                       of a replica only
//!   TAP queue                                  of a link server: always; of a replica or IP server: only if
//!                                              `has_tap`; of a connection manager: none
//!   bells of all servers, by number            of a replica or IP server: `servers` of them;
//!                                              of a link server: those of its `peers` only; of a connection
//!                                              manager: those of all CMs, then those of the replicas
//!   bells of the replicas                      of a replica only: once more, because it may not
//!                                              copy descriptors
//!   link memory, LINK_BYTES                    }
//!   stack page of the peer (opened read-only)  } only if `link` is given
//!   bells of the peer's replicas, by index     }   `REPLICAS_MAX` of them, whatever the peer has
//! ```
//!
//! A process for replicas starts with only three. These are a socket over which it gets replicas, one per
//! packet; the stack page; and a page of its own, which says how it is confined. Servers are numbered as in
//! `atoll_supervisor::Plan`: replicas first.

use atoll_ipc::page::REPLICAS_MAX;
use atoll_supervisor::RecoveryMode;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::mesh::RING_STRIDE;

/// Version of the setups, the order of descriptors, and the requests. A supervisor may start servers of
/// another build.
pub const SETUP_VERSION: u32 = 3;
/// Bytes of one direction of a link, which has a ring for every pair of replicas.
const LINK_SIDE_BYTES: usize = REPLICAS_MAX * REPLICAS_MAX * RING_STRIDE;
/// Bytes of the memory of a link.
pub const LINK_BYTES: usize = 2 * LINK_SIDE_BYTES;
/// The most TCP payload bytes of a frame that the link cuts: an IP packet of 64 KiB without its longest usual
/// headers.
pub const SEGMENT_MAX: u32 = 65_535 - 20 - 60;

/// Returns the offset in the link memory of the ring from replica `from` of the stack at `sender` to replica
/// `to` of the other stack.
pub const fn link_ring(sender: LinkSide, from: usize, to: usize) -> usize {
    (sender as usize) * LINK_SIDE_BYTES + (from * REPLICAS_MAX + to) * RING_STRIDE
}

/// The command line of a process that the supervisor starts.
#[derive(Clone, Debug, clap::Args)]
pub struct SetupArgs<S: Setup + Clone + Send + Sync + 'static> {
    /// The number of the process, which the process list shows.
    #[arg(long)]
    pub index: u8,
    /// The setup as JSON.
    #[arg(long, value_parser = <S as Setup>::from_json)]
    pub setup: S,
}

/// The setup that a process gets on its command line.
pub trait Setup: Serialize + DeserializeOwned {
    /// Returns the part of the setup that every process gets.
    fn process(&self) -> &ProcessSetup;

    /// Reads the value of `--setup`.
    fn from_json(text: &str) -> serde_json::Result<Self> {
        serde_json::from_str(text)
    }

    /// Returns the value of `--setup`.
    fn to_json(&self) -> String {
        serde_json::to_string(self).expect("plain data has a JSON form")
    }
}

/// The setup that a server in a process of its own gets on the command line.
pub trait OwnSetup: Setup {
    /// The name of the subcommand.
    const COMMAND: &'static str;

    /// Returns the part of the setup that every such server gets.
    fn server(&self) -> &ServerSetup;

    /// Returns the part of the setup that every such server gets, to be filled in.
    fn server_mut(&mut self) -> &mut ServerSetup;
}

/// The user that servers run as if the stack is root's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerUser {
    /// The number of the user, which is not 0.
    pub uid: u32,
    /// The number of the user's group.
    pub gid: u32,
}

/// The setup that every process gets when it starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessSetup {
    /// The name of the stack.
    pub stack: String,
    /// Process number of the supervisor, for `die_with_parent`.
    pub supervisor: u32,
    /// The user that the process becomes; `None` keeps the supervisor's user.
    #[serde(default)]
    pub user: Option<ServerUser>,
    /// Whether the process outlives the supervisor, because a guardian keeps what the next one needs.
    pub guarded: bool,
    /// The number of inherited descriptors, for `take_inherited`.
    pub descriptors: usize,
    /// The process's number among those of its kind; a link server's is also that of its queue.
    pub index: u8,
    /// The processor to run on.
    pub cpu: Option<usize>,
    /// Whether to run as SCHED_BATCH.
    pub batch_scheduling: bool,
}

/// The setup that every server in a process of its own gets when it starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerSetup {
    /// The setup of the server's process.
    #[serde(flatten)]
    pub process: ProcessSetup,
    /// The server's number among all servers.
    pub server: u8,
    /// The servers with which this one shares memory: a descriptor each, in this order.
    pub pairs: Vec<u8>,
    /// The epoch of the server.
    pub epoch: u32,
}

/// The setup that a process for replicas gets when it starts. Its replicas come later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostSetup {
    /// The setup that every process gets.
    #[serde(flatten)]
    pub process: ProcessSetup,
    /// `Some` for a standby, which later gets the replicas of a process that has died: the octets of its
    /// memory that are to be resident by then.
    #[serde(default)]
    pub standby: Option<u64>,
    /// Whether replicas may come with a TAP queue.
    pub has_tap: bool,
}

/// The setup that a replica gets when it starts. What all processes of the stack share is on the stack page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaSetup {
    /// The replica's number.
    pub index: u8,
    /// The number of replicas in the stack.
    pub replicas: u8,
    /// The number of servers in the stack, replicas included.
    pub servers: u8,
    /// The epoch of the replica.
    pub epoch: u32,
    /// The servers with which the replica shares memory: a descriptor each, in this order.
    pub pairs: Vec<u8>,
    /// The epochs of all replicas, by number.
    pub epochs: Vec<u32>,
    /// Whether the replica gets a TAP queue.
    pub has_tap: bool,
    /// The number of connection managers in the stack.
    pub managers: u8,
    /// The server with the connection manager for this replica; `None` if the replica has its own.
    pub manager: Option<u8>,
    /// The epoch of that server.
    pub manager_epoch: u32,
    /// Whether connection managers are in processes of their own.
    pub managers_apart: bool,
    /// The server with IP for this replica; `None` if the replica has its own.
    pub ip_server: Option<u8>,
    /// The number of IP servers in processes of their own.
    pub ip_servers: u8,
    /// The server with the queue for this replica, or the IP server that knows it; `None` if the replica
    /// needs none.
    pub link_server: Option<u8>,
    /// The most TCP payload bytes of a frame that the link cuts into segments; 0 if it cuts none.
    pub segment_max: u32,
    /// Whether a frame may arrive at a replica that does not own its flow group, which then passes it on.
    pub software_steering: bool,
    /// The shared-memory link to another stack, if there is one.
    pub link: Option<LinkSetup>,
    /// The fate of the connections that a predecessor had.
    pub recovery: RecoveryMode,
}

/// The setup that a link server in a process of its own gets when it starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkServerSetup {
    /// The setup that every server gets.
    #[serde(flatten)]
    pub common: ServerSetup,
    /// The replica that gets frames of no flow, directly or from its IP server.
    pub first_replica: u8,
    /// The servers to and from which the link server passes frames: the replicas or, where IP is apart, the
    /// IP servers, which share the replicas in turns.
    pub peers: Vec<u8>,
}

/// The setup that an IP server in a process of its own gets when it starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpServerSetup {
    /// The setup that every server gets.
    #[serde(flatten)]
    pub common: ServerSetup,
    /// The server numbers of all IP servers.
    pub ip_servers: Vec<u8>,
    /// The number of servers in the stack.
    pub servers: u8,
    /// Whether the server gets a TAP queue.
    pub has_tap: bool,
    /// The server that has the queue; this server itself if it has one.
    pub link_server: u8,
}

/// The setup that a connection manager in a process of its own gets when it starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManagerSetup {
    /// The setup that every server gets.
    #[serde(flatten)]
    pub common: ServerSetup,
    /// The number of connection managers.
    pub managers: u8,
}

/// A shared-memory link. The other stack is present while its stack page has facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkSetup {
    /// The end of the link that this stack has.
    pub side: LinkSide,
}

/// The two ends of a link, by which stack made its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkSide {
    /// The stack that made the link's memory.
    Host = 0,
    /// The stack that joined the link.
    Guest = 1,
}

impl LinkSide {
    /// Returns the other end.
    pub const fn other(self) -> LinkSide {
        match self {
            LinkSide::Host => LinkSide::Guest,
            LinkSide::Guest => LinkSide::Host,
        }
    }
}

impl ReplicaSetup {
    /// Reads the packet by which a process is given a replica.
    pub fn from_json(text: &[u8]) -> serde_json::Result<ReplicaSetup> {
        serde_json::from_slice(text)
    }

    /// Returns the packet by which a process is given this replica.
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
/// The last packet of a server that was asked to hand over. The server touches nothing after it that it was
/// given.
pub const LEFT: &[u8] = br#"{"left":true}"#;
/// The packet that a process for replicas sends when it can be given replicas.
pub const UP: &[u8] = br#"{"up":true}"#;

/// The beginning of a replica's packet about a session that has ended and whose memory it does not need any
/// more; the session's number follows.
const OVER: &[u8] = b"over";

/// Returns the packet that says that a replica does not need the memory of an ended session any more.
pub fn over(session: u32) -> Vec<u8> {
    [OVER, &session.to_le_bytes()].concat()
}

/// Returns the session whose memory a replica does not need any more; `None` if the packet says something
/// else.
pub fn is_over(packet: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(packet.strip_prefix(OVER)?.try_into().ok()?))
}

/// The beginning of a replica's packet about a session of which its predecessors have died again and again;
/// the session's number follows.
const CUT_OFF: &[u8] = b"cut off";

/// Returns the packet that says that a session is cut off.
pub fn cut_off(session: u32) -> Vec<u8> {
    [CUT_OFF, &session.to_le_bytes()].concat()
}

/// Returns the session that is cut off; `None` if the packet says something else.
pub fn is_cut_off(packet: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(packet.strip_prefix(CUT_OFF)?.try_into().ok()?))
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Returns the setup of some replica.
    pub fn a_replica() -> ReplicaSetup {
        ReplicaSetup {
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
        }
    }

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
        assert_eq!(HostSetup::from_json(&setup.to_json()).unwrap(), setup);
        let setup = a_replica();
        assert_eq!(ReplicaSetup::from_json(setup.to_json().as_bytes()).unwrap(), setup);
        let setup = LinkServerSetup { common: common(), first_replica: 1, peers: vec![0, 1] };
        assert_eq!(LinkServerSetup::from_json(&setup.to_json()).unwrap(), setup);
        let setup = IpServerSetup {
            common: common(),
            ip_servers: vec![2, 3],
            servers: 4,
            has_tap: false,
            link_server: 2,
        };
        assert_eq!(IpServerSetup::from_json(&setup.to_json()).unwrap(), setup);
        let setup = ManagerSetup { common: common(), managers: 2 };
        assert_eq!(ManagerSetup::from_json(&setup.to_json()).unwrap(), setup);
    }

    /// A supervisor of one build may start a server of another build, older or newer. These are the field
    /// names of version 3.
    #[test]
    fn what_processes_share_stands_beside_what_only_some_are_told() {
        let of_process = r#""stack":"web","supervisor":1,"user":{"uid":990,"gid":991},"guarded":true,"descriptors":8,"index":1"#;
        let of_server = format!(
            r#"{{{of_process},"server":3,"pairs":[0,1],"epoch":1,"cpu":null,"batch_scheduling":false"#
        );
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        let host = HostSetup { process: process(), standby: None, has_tap: true };
        let text =
            format!(r#"{{{of_process},"standby":null,"has_tap":true,"cpu":1,"batch_scheduling":true}}"#);
        assert_eq!((value(&host.to_json()), HostSetup::from_json(&text).unwrap()), (value(&text), host));
        let link = LinkServerSetup { common: common(), first_replica: 1, peers: vec![0, 1] };
        let text = format!(r#"{of_server},"first_replica":1,"peers":[0,1]}}"#);
        assert_eq!(
            (value(&link.to_json()), LinkServerSetup::from_json(&text).unwrap()),
            (value(&text), link)
        );
        let (ip_servers, servers, link_server) = (vec![2, 3], 4, 2);
        let ip = IpServerSetup { common: common(), ip_servers, servers, has_tap: false, link_server };
        let text = format!(r#"{of_server},"ip_servers":[2,3],"servers":4,"has_tap":false,"link_server":2}}"#);
        assert_eq!((value(&ip.to_json()), IpServerSetup::from_json(&text).unwrap()), (value(&text), ip));
        let manager = ManagerSetup { common: common(), managers: 2 };
        let text = format!(r#"{of_server},"managers":2}}"#);
        assert_eq!(
            (value(&manager.to_json()), ManagerSetup::from_json(&text).unwrap()),
            (value(&text), manager)
        );
        // A setup without a user comes from a build that did not have this field yet.
        let text = text.replace(r#""user":{"uid":990,"gid":991},"#, "");
        assert_eq!(ManagerSetup::from_json(&text).unwrap().process().user, None);
    }

    #[test]
    fn rings_of_links_do_not_overlap_and_end_with_the_memory() {
        assert_eq!(link_ring(LinkSide::Guest, 7, 7) + RING_STRIDE, LINK_BYTES);
        assert_eq!(link_ring(LinkSide::Guest, 0, 0), link_ring(LinkSide::Host, 7, 7) + RING_STRIDE);
    }
}
