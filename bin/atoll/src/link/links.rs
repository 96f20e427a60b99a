//! The links of a replica, and the choice of the link for a frame of the transport.

use atoll_base::{Addr, Endpoint, FourTuple, Instant};
use atoll_ipc::mesh::Mark;
use atoll_ipc::page::StackPage;
use atoll_link::Steering;
use atoll_shm::ShmMemory;
use atoll_sys::Gather;
use atoll_tap::{Queue, SendOutcome};
use atoll_transport::{FrameSink, Offload, TextRef};
use atoll_wire::vnet;

use super::internal::InternalLink;
use super::retry_queue::RetryQueue;
use super::rings::{Outgoing, Rings, prefix_of};

/// The device that carries frames to other hosts.
pub enum Device {
    /// There are no other hosts: the stack talks only to itself.
    None,
    /// The replica has a queue of a TAP device.
    Tap(Queue),
    /// The replica has rings to the replicas of a joined stack, and knows that stack's steering.
    Joined(Box<Joined>),
    /// The server with this number has a queue, and carries the replica's frames.
    Server(usize),
}

/// A link to another stack.
pub struct Joined {
    /// The rings to and from the other stack's replicas.
    pub rings: Rings,
    page: StackPage<ShmMemory>,
    /// The other stack's steering; `None` while that stack is not up.
    steering: Option<Steering>,
}

impl Joined {
    /// Creates a link. `page` is the stack page of the other stack.
    pub fn new(rings: Rings, page: StackPage<ShmMemory>) -> Joined {
        let mut joined = Joined { rings, page, steering: None };
        joined.refresh();
        joined
    }

    /// Checks whether the other stack is up, and which replica owns which flows there.
    pub fn refresh(&mut self) {
        self.steering = self.page.facts().map(|facts| {
            let mut steering = Steering::new(facts.key);
            steering.refresh(&self.page, facts.replicas);
            steering
        });
    }

    /// Sends a frame to the replica that owns its flow there; a frame of no flow goes to replica 0. Returns
    /// whether the frame was taken, or lost because the other stack is not up.
    fn send(&mut self, vnet: &[u8; vnet::HEADER_LEN], headers: &[u8], text: &TextRef<'_, ShmMemory>) -> bool {
        let Some(steering) = &self.steering else { return true };
        let owner = receivers_tuple(headers).map_or(0, |tuple| steering.owner(&tuple).0);
        self.rings.send_frame(usize::from(owner), &outgoing(vnet, Mark::Internal, headers, text))
    }
}

/// All links of one replica, with their counters.
pub struct Links {
    /// The link to other hosts.
    pub device: Device,
    /// The link to the other servers and to the replica itself.
    pub internal: InternalLink,
    /// Frames that the replica carries for servers without a device.
    pub retry_queue: RetryQueue,
    /// The steering of this stack: which replica owns which flow.
    pub steering: Box<Steering>,
    /// The most payload bytes of a super-segment; 0 if the device cuts nothing.
    pub segment_max: u32,
    /// The number of frames sent over the device.
    pub frames_out: u64,
    /// The octets of those frames, from the Ethernet header on.
    pub bytes_out: u64,
    /// The number of frames that a link did not take.
    pub failures: u64,
}

impl Links {
    /// Creates the links of one replica. `segment_max` is the most payload bytes of a super-segment that the
    /// device cuts, 0 if it cuts none.
    pub fn new(device: Device, internal: InternalLink, steering: Box<Steering>, segment_max: u32) -> Links {
        let retry_queue = RetryQueue::new(internal.rings.len());
        Links {
            device,
            internal,
            retry_queue,
            steering,
            segment_max,
            frames_out: 0,
            bytes_out: 0,
            failures: 0,
        }
    }

    /// Gives a frame from outside to the replica that owns it. `now` is when the frame came.
    pub fn forward(&mut self, now: Instant, owner: usize, vnet: &[u8; vnet::HEADER_LEN], frame: &[u8]) {
        self.retry_queue.forward(now, &mut self.internal.rings, owner, vnet, frame);
    }

    /// Sends a frame of server `from`, which has no device. `record` is the frame as it came out of the ring.
    pub fn carry(&mut self, from: usize, record: &[u8]) {
        if let Device::Tap(queue) = &mut self.device {
            self.retry_queue.send(queue, &mut self.internal.rings, from, record);
        }
    }

    /// Tries again what the device and rings did not take for other servers.
    pub fn retry(&mut self) {
        let queue = match &mut self.device {
            Device::Tap(queue) => Some(queue),
            Device::Joined(_) | Device::Server(_) | Device::None => None,
        };
        self.retry_queue.retry(queue, &mut self.internal.rings);
    }

    /// Publishes what was sent over rings, and rings the doorbells of sleeping peers. Returns how many were
    /// rung.
    pub fn publish(&mut self) -> u64 {
        let joined = match &mut self.device {
            Device::Joined(joined) => joined.rings.publish(),
            Device::Tap(_) | Device::Server(_) | Device::None => 0,
        };
        joined + self.internal.rings.publish()
    }

    /// Returns whether a frame waits in a ring (devices wake a sleeper by themselves).
    pub fn is_ready(&self) -> bool {
        let joined = match &self.device {
            Device::Joined(joined) => joined.rings.is_ready(),
            Device::Tap(_) | Device::Server(_) | Device::None => false,
        };
        joined || self.internal.rings.is_ready() || self.internal.own_waiting() > 0
    }

    /// Returns the highest sleep word that this replica, or a predecessor, has written for a peer.
    pub fn sleep_word(&self) -> u32 {
        let own = self.internal.rings.sleep_word();
        match &self.device {
            Device::Joined(joined) => {
                let other = joined.rings.sleep_word();
                if other.wrapping_sub(own) as i32 > 0 { other } else { own }
            }
            Device::Tap(_) | Device::Server(_) | Device::None => own,
        }
    }

    /// Writes the sleep word where the peers look: an odd `word` says that this replica's doorbell is wanted.
    pub fn set_sleep_word(&self, word: u32) {
        if let Device::Joined(joined) = &self.device {
            joined.rings.set_sleep_word(word);
        }
        self.internal.rings.set_sleep_word(word);
    }
}

impl FrameSink<ShmMemory> for Links {
    fn send(&mut self, headers: &[u8], text: TextRef<'_, ShmMemory>, offload: Offload) -> bool {
        let vnet = vnet_header(headers, &offload);
        let taken = match &mut self.device {
            Device::None => true,
            Device::Tap(queue) => send_to_tap(queue, &vnet, headers, &text),
            Device::Joined(joined) => joined.send(&vnet, headers, &text),
            Device::Server(server) => {
                self.internal.rings.send_frame(*server, &outgoing(&vnet, Mark::Outbound, headers, &text))
            }
        };
        if taken {
            self.frames_out += 1;
            self.bytes_out += (headers.len() + text.len()) as u64;
        } else {
            self.failures += 1;
        }
        taken
    }

    fn send_internal(&mut self, headers: &[u8], text: TextRef<'_, ShmMemory>, offload: Offload) -> bool {
        let vnet = vnet_header(headers, &offload);
        let owner = receivers_tuple(headers).map_or(0, |tuple| self.steering.owner(&tuple).0);
        let taken = self.internal.send(usize::from(owner), &outgoing(&vnet, Mark::Internal, headers, &text));
        self.failures += u64::from(!taken);
        taken
    }

    fn segment_max(&self) -> u32 {
        self.segment_max
    }
}

fn send_to_tap(queue: &mut Queue, vnet: &[u8], headers: &[u8], text: &TextRef<'_, ShmMemory>) -> bool {
    // The headers are one part, because gathering costs the kernel a little for each part. Whole frames of
    // the IP component are longer.
    let mut front = [0u8; 128];
    let front_len = vnet.len() + headers.len();
    let mut gather = Gather::new();
    let mut fits = match front.get_mut(..front_len) {
        Some(room) => {
            room[..vnet.len()].copy_from_slice(vnet);
            room[vnet.len()..].copy_from_slice(headers);
            gather.push_slice(&front[..front_len]).is_ok()
        }
        None => gather.push_slice(vnet).is_ok() && gather.push_slice(headers).is_ok(),
    };
    match text {
        TextRef::None => {}
        TextRef::Slice(bytes) => fits &= gather.push_slice(bytes).is_ok(),
        TextRef::Pieces(memory, parts) => {
            for &(at, len) in parts.iter() {
                fits &= gather.push_mapping(memory.mapping(), at, len).is_ok();
            }
        }
    }
    match fits.then(|| queue.send(&gather)) {
        Some(Ok(SendOutcome::Sent)) => true,
        // What the kernel refuses now it would refuse again, so the frame counts as lost on the wire.
        Some(Ok(SendOutcome::Refused | SendOutcome::LinkDown) | Err(_)) | None => true,
        Some(Ok(SendOutcome::NoRoom)) => false,
    }
}

fn outgoing<'a>(
    vnet: &[u8; vnet::HEADER_LEN],
    mark: Mark,
    headers: &'a [u8],
    text: &'a TextRef<'_, ShmMemory>,
) -> Outgoing<'a> {
    let (slice, pieces): (&[u8], _) = match text {
        TextRef::None => (&[], None),
        TextRef::Slice(bytes) => (bytes, None),
        TextRef::Pieces(memory, parts) => (&[], Some((*memory, &parts[..]))),
    };
    Outgoing { prefix: prefix_of(vnet, mark), headers, slice, pieces }
}

/// Returns the virtio-net header that says what the receiving side, or the kernel, still has to do.
fn vnet_header(headers: &[u8], offload: &Offload) -> [u8; vnet::HEADER_LEN] {
    let mut header = vnet::Header::default();
    if offload.needs_checksum {
        header.flags = vnet::NEEDS_CSUM;
        header.csum_start = offload.csum_start;
        header.csum_offset = offload.csum_offset;
    }
    if let Some(gso_size) = offload.gso_size {
        header.gso = if is_v6(headers) { vnet::Gso::TcpV6 } else { vnet::Gso::TcpV4 };
        header.gso_size = gso_size;
        header.hdr_len = headers.len() as u16;
    }
    let mut bytes = [0; vnet::HEADER_LEN];
    vnet::emit(&header, &mut bytes);
    bytes
}

/// Returns the flow as the receiver of one of this replica's own frames sees it. The frame was made here, so
/// the offsets of its headers are known.
fn receivers_tuple(headers: &[u8]) -> Option<FourTuple> {
    if is_v6(headers) {
        return receivers_tuple_v6(headers);
    }
    if headers.get(12..14) != Some(&[8, 0]) {
        return None;
    }
    let word = |at: usize| Some(u32::from_be_bytes(*headers.get(at..)?.first_chunk()?));
    let (src, dst) = (word(26)?, word(30)?);
    let (id_and_fragment, protocol) = (word(18)?, *headers.get(23)?);
    let ports = match protocol {
        // Fragments have an identification instead of ports, as in `atoll_link::classify`.
        _ if id_and_fragment & 0x3fff != 0 => id_and_fragment & 0xffff_0000 | u32::from(protocol),
        6 | 17 => word(34)?,
        _ => 0,
    };
    Some(FourTuple {
        local: Endpoint::new(dst, ports as u16),
        remote: Endpoint::new(src, (ports >> 16) as u16),
    })
}

fn receivers_tuple_v6(headers: &[u8]) -> Option<FourTuple> {
    let addr = |at: usize| Some(Addr::from_octets(*headers.get(at..)?.first_chunk()?));
    let (src, dst) = (addr(22)?, addr(38)?);
    let [a, b, c, d] = match headers.get(20) {
        Some(6 | 17) => *headers.get(54..)?.first_chunk()?,
        _ => [0; 4],
    };
    let (src_port, dst_port) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
    Some(FourTuple { local: Endpoint::at(dst, dst_port), remote: Endpoint::at(src, src_port) })
}

fn is_v6(headers: &[u8]) -> bool {
    headers.get(12..14) == Some(&[0x86, 0xdd])
}
