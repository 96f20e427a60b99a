//! Makes the TAP device in the right namespace, with an address on the kernel's end.

use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

use atoll_base::{Duration, FLOW_GROUPS, FlowKey};
use atoll_supervisor::{Cidr, Cidr6, Link, Steering as Wanted};
use atoll_sys::netlink::Netlink;
use atoll_sys::privileges::CapabilitySet;
use atoll_sys::process::{self, Signal, Spawn};
use atoll_sys::unix::{Blocking, Channel};
use atoll_sys::{netns, privileges};
use atoll_tap::{Existing, Offloads, OpenError, Queue, Steering, SteeringError, Table, Tap, TapOptions};
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, OrFail};

/// A device that is set up, and the supervisor's part of it.
pub struct TapDevice {
    /// The name of the device.
    pub name: String,
    /// A queue per link server. The supervisor keeps them, so that frames wait in them while a server is
    /// away.
    pub queues: Vec<OwnedFd>,
    /// The offloads that the kernel agreed to.
    pub offloads: Offloads,
    /// Whether a BPF program steers frames to the queues; otherwise the replicas do.
    pub is_steered: bool,
}

impl TapDevice {
    /// Makes the device that `link` describes, with `queues` queues steered by `table`.
    ///
    /// A process of its own does this and ends (`atoll make-device`). So the supervisor, which accepts
    /// connections of untrusted programs, never needs the privilege to change links, and can give it up
    /// before it listens. Fails with the reason of that process, or if it does not answer within
    /// [`MAKING_TIME`].
    pub fn open(
        link: &Link,
        queues: usize,
        key: FlowKey,
        table: &Table,
        steering: Wanted,
    ) -> Result<TapDevice, Failure> {
        let what = "making the TAP device";
        let (channel, theirs) = Channel::pair(Blocking::Yes).or_fail(what)?;
        channel.set_timeouts(MAKING_TIME).or_fail(what)?;
        let mut spawn = Spawn::this_binary("atoll").or_fail(what)?;
        spawn.arg("make-device").or_fail(what)?;
        spawn.inherit(theirs.as_fd());
        let child = spawn.start().or_fail(what)?;
        drop(theirs);
        let order = serde_json::to_vec(&Order::new(link, queues, key, table, steering)).or_fail(what)?;
        let mut packet = vec![0; ORDER_MAX];
        let mut descriptors = Vec::new();
        let answer = channel.send(&order, &[]).and_then(|()| channel.receive(&mut packet, &mut descriptors));
        let answer = answer.ok().and_then(|len| serde_json::from_slice(&packet[..len]).ok());
        if answer.is_none() {
            let _ = child.kill(Signal::KILL);
        }
        let exit = child.wait().or_fail(what)?;
        match answer {
            Some(Answer::Made { name, tso, uso, is_steered }) if descriptors.len() == queues => {
                Ok(TapDevice { name, queues: descriptors, offloads: Offloads { tso, uso }, is_steered })
            }
            Some(Answer::Failed(reason)) => Err(Failure::new(reason)),
            _ => Err(Failure::new(format!("{what}: its process ended without a device ({exit:?})"))),
        }
    }
}

/// The order to the process that makes the device, as JSON in one packet.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Order {
    netns: Option<String>,
    device: String,
    queues: usize,
    offload: bool,
    mtu: u16,
    /// The stack's own address, if it is known.
    address: Option<Ipv4Addr>,
    /// The address and prefix of the kernel's end.
    peer_address: Option<(Ipv4Addr, u8)>,
    peer_address6: Option<(std::net::Ipv6Addr, u8)>,
    /// The two halves of the flow hash's key.
    key: (u32, u32),
    /// The queue of each flow group.
    table: Vec<u8>,
    steering: Wanted,
}

/// The answer of that process, which carries the queues' descriptors.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Made { name: String, tso: bool, uso: bool, is_steered: bool },
    Failed(String),
}

impl Order {
    fn new(link: &Link, queues: usize, key: FlowKey, table: &Table, steering: Wanted) -> Order {
        let six = link.v6.and_then(|v6| v6.peer_address);
        Order {
            netns: link.netns.clone(),
            device: link.device.clone(),
            queues,
            offload: link.offload,
            mtu: link.mtu,
            address: link.address.map(|own| own.address),
            peer_address: link.peer_address.map(|Cidr { address, prefix }| (address, prefix)),
            peer_address6: six.map(|Cidr6 { address, prefix }| (address, prefix)),
            key: (key.k0, key.k1),
            table: table.to_vec(),
            steering,
        }
    }
}

/// The command that makes the TAP device of a stack for its supervisor, and ends.
#[derive(clap::Args)]
pub struct MakeDevice {}

impl MakeDevice {
    /// Runs the command: takes an [`Order`] from the socket at descriptor 3, and answers it there.
    pub fn run(&self) -> Result<ExitCode, Failure> {
        let what = "making the device of a stack";
        privileges::keep_capabilities(MAKERS).or_fail(what)?;
        process::set_no_new_privs().or_fail(what)?;
        let channel = process::take_inherited(1).or_fail(what)?.into_iter().next();
        let channel = Channel::from(channel.ok_or_else(|| Failure::new(what))?);
        let mut packet = vec![0; ORDER_MAX];
        let len = channel.receive(&mut packet, &mut Vec::new()).or_fail(what)?;
        let order: Order = serde_json::from_slice(&packet[..len]).or_fail(what)?;
        let (answer, queues) = match make(&order) {
            Ok((answer, queues)) => (answer, queues),
            Err(failure) => (Answer::Failed(failure.to_string()), Vec::new()),
        };
        let queues: Vec<_> = queues.iter().map(AsFd::as_fd).collect();
        channel.send(&serde_json::to_vec(&answer).or_fail(what)?, &queues).or_fail(what)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn make(order: &Order) -> Result<(Answer, Vec<OwnedFd>), Failure> {
    if let Some(name) = &order.netns {
        netns::enter_named(name).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Failure::new(format!(
                "link.netns: there is no network namespace called \"{name}\"; make it with `ip netns add \
                 {name}`"
            )),
            std::io::ErrorKind::PermissionDenied => Failure::new(format!(
                "link.netns: entering the network namespace \"{name}\" takes root; start the stack as root, \
                 or let it make a namespace of its own with --rootless"
            )),
            _ => Failure::new(format!("link.netns: entering \"{name}\": {error}")),
        })?;
    }
    let options = TapOptions {
        name: Some(&order.device),
        queues: order.queues,
        offloads: Offloads { tso: order.offload, uso: false },
        existing: Existing::Refuse,
    };
    let tap = Tap::open(&options).map_err(|error| explain(&error, &order.device))?;
    set_up(&tap, order)?;
    let is_steered = attach_steering(&tap.queues()[0], order)?;
    let (name, Offloads { tso, uso }) = (tap.name().to_owned(), tap.offloads());
    let queues = tap.into_queues().into_iter().map(Queue::into_fd).collect();
    Ok((Answer::Made { name, tso, uso, is_steered }, queues))
}

fn explain(error: &OpenError, device: &str) -> Failure {
    let without =
        "without a device, programs on the stack still reach each other: link.type = \"none\" (--link none)";
    match error {
        OpenError::NoDeviceNode | OpenError::NoDriver | OpenError::DeviceNodeNotPermitted => {
            Failure::new(format!("{error}; {without}"))
        }
        OpenError::NotPermitted => Failure::new(format!("{error}; or use --rootless; {without}")),
        OpenError::Busy => Failure::new(format!("link.device: \"{device}\": {error}")),
        _ => Failure::new(format!("link.device: {error}")),
    }
}

/// Sets up the kernel's end, unless the configuration leaves that to others.
fn set_up(tap: &Tap, order: &Order) -> Result<(), Failure> {
    let what = |step: &str| format!("{step} of the device {}", tap.name());
    let mut netlink = Netlink::open().or_fail("talking to the kernel about links")?;
    let index = netlink.link(tap.name()).or_fail(what("finding the number"))?.index;
    netlink.set_mtu(index, u32::from(order.mtu)).or_fail(what("setting the MTU"))?;
    let Some((address, prefix)) = order.peer_address else { return Ok(()) };
    netlink.add_address(index, address, prefix).or_fail(what("setting the address"))?;
    if let Some((address, prefix)) = order.peer_address6 {
        netlink.add_address(index, address, prefix).or_fail(what("setting the IPv6 address"))?;
    }
    netlink.set_up(index).or_fail(what("switching on the kernel's end"))?;
    if let Some(own) = order.address.filter(|own| !Cidr { address, prefix }.contains(*own)) {
        netlink.add_route(index, own, 32, None).or_fail(what("adding the route to the stack"))?;
    }
    Ok(())
}

/// Lets a BPF program steer frames to the queues, where that is wanted and possible. Returns whether it does.
fn attach_steering(queue: &Queue, order: &Order) -> Result<bool, Failure> {
    let wanted = order.steering;
    if wanted == Wanted::Software {
        return Ok(false);
    }
    let table: &Table = order.table.as_slice().try_into().or_fail("steering")?;
    let key = FlowKey { k0: order.key.0, k1: order.key.1 };
    // Locked memory counts against a limit only on kernels before 5.11; if it cannot be raised, loading may
    // still work.
    let _ = process::raise_memlock_limit();
    match Steering::attach(queue, key, table) {
        Ok(_) => Ok(true),
        Err(SteeringError::NotPermitted | SteeringError::Unsupported) if wanted == Wanted::Auto => Ok(false),
        Err(error) => Err(Failure::new(format!("steering.by = \"{}\": {error}", name(wanted)))),
    }
}

fn name(steering: Wanted) -> &'static str {
    match steering {
        Wanted::Auto => "auto",
        Wanted::Bpf => "bpf",
        Wanted::Software => "software",
    }
}

/// How long the process that makes the device may take.
const MAKING_TIME: Duration = Duration::from_secs(10);
/// The longest order or answer in bytes: a number of up to three digits for each flow group, and the rest.
const ORDER_MAX: usize = 4 * FLOW_GROUPS + (16 << 10);
/// The capabilities for making a device: links and addresses (NET_ADMIN), entering a named namespace
/// (SYS_ADMIN), loading the steering program (BPF), and, before Linux 5.11, memory for that (SYS_RESOURCE).
const MAKERS: CapabilitySet = CapabilitySet::NET_ADMIN
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::SYS_RESOURCE);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_order_fits_into_a_packet_and_arrives_as_it_was() {
        let order = Order {
            netns: Some("n".repeat(255)),
            device: "d".repeat(15),
            queues: 64,
            offload: true,
            mtu: u16::MAX,
            address: Some(Ipv4Addr::BROADCAST),
            peer_address: Some((Ipv4Addr::BROADCAST, 32)),
            peer_address6: Some((std::net::Ipv6Addr::from(u128::MAX), 128)),
            key: (u32::MAX, u32::MAX),
            table: vec![u8::MAX; FLOW_GROUPS],
            steering: Wanted::Software,
        };
        let packet = serde_json::to_vec(&order).unwrap();
        assert!(packet.len() <= ORDER_MAX, "{}", packet.len());
        assert_eq!(serde_json::from_slice::<Order>(&packet).unwrap(), order);
    }
}
