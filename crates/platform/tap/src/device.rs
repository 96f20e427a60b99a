//! How a TAP device is opened, and what is missing if that fails.

use std::os::fd::{AsFd, OwnedFd};

use atoll_sys::netlink::Netlink;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use crate::Queue;
use crate::ioctl::{self, InterfaceRequest};
use crate::queue::VNET_HEADER_LEN;

/// The most queues that the driver allows per device (MAX_TAP_QUEUES).
pub const QUEUES_MAX: usize = 256;

/// The longest name of a link in bytes.
pub const NAME_LEN_MAX: usize = libc::IFNAMSIZ - 1;

/// How many frames wait in a queue before the kernel silently drops further ones.
///
/// The driver's default is 1000. A frame in the queue counts as sent for the kernel's TCP, so nothing else
/// holds a sender back. With 1000, bulk traffic in packets of 1500 bytes fell to 0.2 Gb/s; with 10000 nothing
/// was lost.
pub const QUEUE_LEN: u32 = 10_000;

/// The properties of a device to open.
#[derive(Clone, Copy, Debug)]
pub struct TapOptions<'name> {
    /// The name of the device; `None` lets the kernel choose one (`tap0`, `tap1` ...).
    pub name: Option<&'name str>,
    /// The number of queues, `1..=QUEUES_MAX`: one for every replica there may ever be.
    ///
    /// Closing a queue later renumbers the last one into its place, so queues are opened once and idle ones
    /// stay.
    pub queues: usize,
    /// The offloads that the stack is ready to receive.
    pub offloads: Offloads,
    /// The action if the device exists.
    pub existing: Existing,
}

/// The unfinished work that the stack takes over from the kernel's senders, and may hand over to its
/// receivers. Unfinished checksums are always included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offloads {
    /// Whether there may be TCP segments of up to 64 KiB, to be cut into `gso_size` pieces.
    pub tso: bool,
    /// Whether there may be trains of datagrams in one frame. [`Tap::offloads`] lacks this on kernels before
    /// 6.2.
    pub uso: bool,
}

/// The action if there is a device of that name already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// Fail with [`OpenError::Busy`]. Otherwise two stacks could end up sharing one device without noticing.
    Refuse,
    /// Attach to the device, which `ip tuntap add mode tap multi_queue vnet_hdr user USER` has made for a
    /// user without privileges.
    Attach,
}

/// An open TAP device.
#[derive(Debug)]
pub struct Tap {
    name: String,
    offloads: Offloads,
    queues: Vec<Queue>,
}

impl Tap {
    /// Opens a device in the network namespace of the calling thread. The device is down, and has no address.
    ///
    /// This needs /dev/net/tun, and CAP_NET_ADMIN in the namespace unless it attaches to a device of the
    /// caller.
    pub fn open(options: &TapOptions<'_>) -> Result<Tap, OpenError> {
        if options.queues == 0 || options.queues > QUEUES_MAX {
            return Err(OpenError::QueueCount(options.queues));
        }
        let mut name = [0; libc::IFNAMSIZ];
        let wanted = options.name.unwrap_or("tap%d").as_bytes();
        if wanted.is_empty() || wanted.len() > NAME_LEN_MAX {
            return Err(OpenError::NameLength(wanted.len()));
        }
        name[..wanted.len()].copy_from_slice(wanted);

        let mut queues = Vec::with_capacity(options.queues);
        for number in 0..options.queues {
            let exclusive = number == 0 && options.existing == Existing::Refuse;
            // From the second queue on, `name` is what the kernel called the device.
            queues.push(open_queue(&mut name, exclusive)?);
        }
        let first = queues[0].as_fd();
        let len = VNET_HEADER_LEN as i32;
        ioctl::set_vnet_header_len(first, len)
            .map_err(|e| OpenError::Other("TUNSETVNETHDRSZ", e.raw_os_error()))?;
        ioctl::set_vnet_little_endian(first)
            .map_err(|e| OpenError::Other("TUNSETVNETLE", e.raw_os_error()))?;
        let offloads = set_offloads(&queues[0], options.offloads)?;

        let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        let name = String::from_utf8_lossy(&name[..end]).into_owned();
        match set_queue_len(&name) {
            // The user of a device that another process has made may not change the length, which is the
            // maker's choice then.
            Err(error)
                if !(options.existing == Existing::Attach && error.raw_os_error() == Some(libc::EPERM)) =>
            {
                return Err(OpenError::Other("setting the queue length", error.raw_os_error().unwrap_or(0)));
            }
            _ => {}
        }
        Ok(Tap { name, offloads, queues: queues.into_iter().map(Queue::from_fd).collect() })
    }

    /// Returns the device's name, by which netlink finds it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the offloads that the kernel has agreed to; they may be fewer than were asked for.
    pub fn offloads(&self) -> Offloads {
        self.offloads
    }

    /// Returns the queues, by number.
    pub fn queues(&self) -> &[Queue] {
        &self.queues
    }

    /// Returns the queues, by number, for reading and writing.
    pub fn queues_mut(&mut self) -> &mut [Queue] {
        &mut self.queues
    }

    /// Returns the queues by value; the device lives as long as any of them, or a copy of its descriptor,
    /// does.
    pub fn into_queues(self) -> Vec<Queue> {
        self.queues
    }
}

fn open_queue(name: &mut [u8; libc::IFNAMSIZ], exclusive: bool) -> Result<OwnedFd, OpenError> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = open("/dev/net/tun", flags, Mode::empty()).map_err(|error| match error {
        Errno::NOENT => OpenError::NoDeviceNode,
        Errno::NODEV | Errno::NXIO => OpenError::NoDriver,
        Errno::ACCESS | Errno::PERM => OpenError::DeviceNodeNotPermitted,
        other => OpenError::Other("opening /dev/net/tun", other.raw_os_error()),
    })?;
    let mut flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_MULTI_QUEUE | libc::IFF_VNET_HDR;
    if exclusive {
        flags |= libc::IFF_TUN_EXCL;
    }
    // The flags fill all 16 bits of a signed field.
    let mut request = InterfaceRequest { name: *name, flags: flags as libc::c_short, rest_of_union: [0; 22] };
    ioctl::set_interface(fd.as_fd(), &mut request).map_err(|error| match error {
        Errno::PERM => OpenError::NotPermitted,
        Errno::BUSY | Errno::EXIST => OpenError::Busy,
        Errno::INVAL => OpenError::WrongKind,
        Errno::TOOBIG => OpenError::DeviceFull,
        other => OpenError::Other("TUNSETIFF", other.raw_os_error()),
    })?;
    *name = request.name;
    Ok(fd)
}

fn set_offloads(queue: &OwnedFd, wanted: Offloads) -> Result<Offloads, OpenError> {
    let bits = |offloads: Offloads| {
        let tso = if offloads.tso { libc::TUN_F_TSO4 | libc::TUN_F_TSO6 } else { 0 };
        let uso = if offloads.uso { libc::TUN_F_USO4 | libc::TUN_F_USO6 } else { 0 };
        libc::TUN_F_CSUM | tso | uso
    };
    let attempts = [wanted, Offloads { uso: false, ..wanted }];
    let mut last = Errno::INVAL;
    for offloads in attempts {
        match ioctl::set_offload(queue.as_fd(), bits(offloads)) {
            Ok(()) => return Ok(offloads),
            Err(error) => last = error,
        }
    }
    Err(OpenError::Other("TUNSETOFFLOAD", last.raw_os_error()))
}

fn set_queue_len(name: &str) -> std::io::Result<()> {
    let mut netlink = Netlink::open()?;
    let index = netlink.link(name)?.index;
    netlink.set_queue_len(index, QUEUE_LEN)
}

/// Why a device was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// /dev/net/tun does not exist.
    #[error(
        "/dev/net/tun does not exist: load the driver (`modprobe tun`), or, in a container, pass the device \
         in \
         (`--device /dev/net/tun`)"
    )]
    NoDeviceNode,
    /// /dev/net/tun exists, but no driver answers.
    #[error("/dev/net/tun has no driver: load it (`modprobe tun`), or use a kernel with CONFIG_TUN")]
    NoDriver,
    /// This process may not open /dev/net/tun.
    #[error(
        "no permission to open /dev/net/tun: run as root, or let its users in (`chmod 0666 /dev/net/tun`, \
         the \
         default of most distributions)"
    )]
    DeviceNodeNotPermitted,
    /// CAP_NET_ADMIN is missing, or the existing device belongs to another user.
    #[error(
        "not permitted to make a TAP: run as root or with CAP_NET_ADMIN, run inside `unshare -Urn`, or \
         attach to \
         a device made for this user (`ip tuntap add dev NAME mode tap multi_queue vnet_hdr user USER`)"
    )]
    NotPermitted,
    /// There is a device of that name, or all its queues are in use.
    #[error("the device is in use: choose another name, or end who uses it")]
    Busy,
    /// There is a link of that name, but it is not a multi-queue TAP with offloads; or the name is not a
    /// valid one.
    #[error(
        "the name belongs to a link that is not a multi-queue TAP with vnet_hdr, or is not a valid name: \
         choose \
         another name"
    )]
    WrongKind,
    /// The existing device has all the queues it can have.
    #[error("the device has no queue left (at most {QUEUES_MAX})")]
    DeviceFull,
    /// The name has this many bytes, not `1..=NAME_LEN_MAX`.
    #[error("the name of a link has 1 to {NAME_LEN_MAX} bytes, this one has {0}")]
    NameLength(usize),
    /// This many queues were asked for, not `1..=QUEUES_MAX`.
    #[error("a TAP has 1 to {QUEUES_MAX} queues, not {0}")]
    QueueCount(usize),
    /// The named step failed with this errno.
    #[error("opening a TAP failed at {0}: {error}", error = std::io::Error::from_raw_os_error(*.1))]
    Other(&'static str, i32),
}
