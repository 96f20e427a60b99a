//! How does the TAP device come into being, in the right namespace, with an address on the kernel's end?

use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::thread;

use atoll_base::FlowKey;
use atoll_supervisor::{Cidr, Link, Steering as Wanted};
use atoll_sys::netlink::Netlink;
use atoll_sys::netns;
use atoll_tap::{Existing, Offloads, OpenError, Queue, Steering, SteeringError, Table, Tap, TapOptions};

use crate::failure::{Failure, OrFail};

/// A device that is set up, and the supervisor's part of it.
pub struct TapDevice {
    /// Its name.
    pub name: String,
    /// A queue per replica. The supervisor keeps them, so that frames wait in them while a replica is away.
    pub queues: Vec<OwnedFd>,
    /// What the kernel agreed to.
    pub offloads: Offloads,
    /// The steering program's table; `None`: the replicas steer.
    pub steering: Option<Steering>,
}

impl TapDevice {
    /// Makes the device that `link` describes, with `queues` queues steered by `table`.
    pub fn open(
        link: &Link,
        queues: usize,
        key: FlowKey,
        table: &Table,
        steering: Wanted,
    ) -> Result<TapDevice, Failure> {
        // A namespace is entered by one thread, and left by ending it.
        thread::scope(|scope| scope.spawn(|| open_here(link, queues, key, table, steering)).join())
            .unwrap_or_else(|_| Err(Failure::new("setting up the TAP device failed unexpectedly")))
    }
}

fn open_here(link: &Link, queues: usize, key: FlowKey, table: &Table, steering: Wanted) -> Result<TapDevice, Failure> {
    if let Some(name) = &link.netns {
        netns::enter_named(name).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Failure::new(format!(
                "link.netns: there is no network namespace called \"{name}\"; make it with `ip netns add {name}`"
            )),
            std::io::ErrorKind::PermissionDenied => Failure::new(format!(
                "link.netns: entering the network namespace \"{name}\" takes root; start the stack as root, or let it make \
                 a namespace of its own with --rootless"
            )),
            _ => Failure::new(format!("link.netns: entering \"{name}\": {error}")),
        })?;
    }
    let options = TapOptions {
        name: Some(&link.device),
        queues,
        offloads: Offloads { tso: link.offload, uso: false },
        existing: Existing::Refuse,
    };
    let tap = Tap::open(&options).map_err(|error| explain(&error, &link.device))?;
    set_up(&tap, link)?;
    let steering = attach_steering(&tap.queues()[0], key, table, steering)?;
    let (name, offloads) = (tap.name().to_owned(), tap.offloads());
    Ok(TapDevice { name, offloads, steering, queues: tap.into_queues().into_iter().map(Queue::into_fd).collect() })
}

fn explain(error: &OpenError, device: &str) -> Failure {
    let without = "without a device, programs on the stack still reach each other: link.type = \"none\" (--link none)";
    match error {
        OpenError::NoDeviceNode | OpenError::NoDriver | OpenError::DeviceNodeNotPermitted => {
            Failure::new(format!("{error}; {without}"))
        }
        OpenError::NotPermitted => Failure::new(format!("{error}; or use --rootless; {without}")),
        OpenError::Busy => Failure::new(format!("link.device: \"{device}\": {error}")),
        _ => Failure::new(format!("link.device: {error}")),
    }
}

/// Switches the kernel's end on, unless it was said to be somebody else's business.
fn set_up(tap: &Tap, link: &Link) -> Result<(), Failure> {
    let what = |step: &str| format!("{step} of the device {}", tap.name());
    let mut netlink = Netlink::open().or_fail("talking to the kernel about links")?;
    let index = netlink.link(tap.name()).or_fail(what("finding the number"))?.index;
    netlink.set_mtu(index, u32::from(link.mtu)).or_fail(what("setting the MTU"))?;
    let Some(peer) = link.peer_address else { return Ok(()) };
    netlink.add_address(index, peer.address, peer.prefix).or_fail(what("setting the address"))?;
    if let Some(peer) = link.v6.and_then(|v6| v6.peer_address) {
        netlink.add_address(index, peer.address, peer.prefix).or_fail(what("setting the IPv6 address"))?;
    }
    netlink.set_up(index).or_fail(what("switching on the kernel's end"))?;
    if let Some(own) = link.address.filter(|own| !reaches(peer, own.address)) {
        netlink.add_route(index, own.address, 32, None).or_fail(what("adding the route to the stack"))?;
    }
    Ok(())
}

fn reaches(peer: Cidr, address: Ipv4Addr) -> bool {
    peer.contains(address)
}

fn attach_steering(queue: &Queue, key: FlowKey, table: &Table, wanted: Wanted) -> Result<Option<Steering>, Failure> {
    if wanted == Wanted::Software {
        return Ok(None);
    }
    // Locked memory counts against a limit on kernels before 5.11 only; if it cannot be raised, loading may still work.
    let _ = atoll_sys::process::raise_memlock_limit();
    match Steering::attach(queue, key, table) {
        Ok(steering) => Ok(Some(steering)),
        Err(SteeringError::NotPermitted | SteeringError::Unsupported) if wanted == Wanted::Auto => Ok(None),
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
