//! [`Ip`]: the parts of one replica's IP layer, and the order in which a packet passes them.
//!
//! ```text
//!   a frame arrives              handle_frame: for our station? which family?
//!     v4, v6                       own address, group or broadcast? can it come from there? extension headers
//!     fragments                    kept until the packet is whole           --> poll_whole, then here again
//!     v4, v6  ARP, ND, IGMP,       learn and answer; DHCP and router
//!             MLD, DHCP            advertisements change the addresses      --> poll_neighbour, poll_unreachable
//!     icmp    ICMP, ICMPv6         echo is answered                         --> poll_frame
//!             errors               about our packets                        --> Received::Error
//!     (none)  TCP, UDP             the checksum is verified                 --> Received::Tcp, Received::Udp
//!     icmp    a bad packet         an error, as far as the rate allows      --> poll_frame
//!
//!   a transport sends            route: what does the destination mean? which neighbour? at which station?
//!     half                         in a transport server: the IP server knows the station
//!     v4, v6                       next hop, then ARP or ND; asks if needed --> poll_frame
//!     paths                        path_mtu: how large may it be?
//!     common                       emit_headers, or identify and emit_fragment
//! ```
//! The fields of a part are its own. A method of a part gets the other parts that it needs as arguments, and
//! [`Common`] is what all of them need. The methods here connect the parts.

use alloc::boxed::Box;

use atoll_base::{Addr, Instant, Rng};
use atoll_wire::ethernet::{self, EtherType};
use atoll_wire::ipv4::Protocol;
use atoll_wire::{Mac, icmp, icmpv6};

use crate::common::{Common, Message};
use crate::config::{BadConfig, Config, V4Address};
use crate::counters::{Counters, Reason};
use crate::dhcp::{self, Client};
use crate::fragments::Fragments;
use crate::half::{Half, Request, Told};
use crate::icmp::{Icmp, REASSEMBLY};
use crate::input::{Arrival, ChecksumOffload, Received};
use crate::link::{Cast, Frame, Link};
use crate::neighbours::NeighbourUpdate;
use crate::output::{Outgoing, Part, Route};
use crate::past::Past;
use crate::paths::{PathMtu, PathUpdate, Paths};
use crate::v4::V4;
use crate::v6::{OwnAddress, V6};

/// The IP layer of one replica: IPv4 with ARP and ICMP, and IPv6 with neighbour discovery.
///
/// Only what others have given for a time survives a crash ([`Ip::resume`]). A new incarnation starts with an
/// empty neighbour cache and refills it by asking and from other replicas. Frames, updates and failures not
/// yet polled are lost; peers and other replicas ask again.
///
/// After any `handle_*`, [`Ip::route`] or [`Ip::unreachable`], poll until empty: [`Ip::poll_frame`],
/// [`Ip::poll_neighbour`], [`Ip::poll_unreachable`], [`Ip::poll_path`], [`Ip::poll_whole`]; then set a timer
/// for [`Ip::next_timeout`].
#[derive(Debug)]
pub struct Ip {
    common: Common,
    v4: V4,
    v6: V6,
    icmp: Icmp,
    fragments: Fragments,
    paths: Paths,
    /// The additional state of a transport server's part; `None` in a full IP layer.
    half: Option<Box<Half>>,
}

impl Ip {
    /// Creates a replica's IP layer for `config`; fails if [`Config::check`] does. `seed` must be
    /// unpredictable from outside, because hash keys and identifications depend on it.
    pub fn new(config: Config, seed: u64, now: Instant) -> Result<Ip, BadConfig> {
        config.check()?;
        let mut rng = Rng::new(seed);
        let [v4_key, v6_key, fragments_key] = [(); 3].map(|()| [rng.next_u64(), rng.next_u64()]);
        Ok(Ip {
            v4: V4::new(&config, v4_key),
            v6: V6::new(&config, v6_key, now),
            icmp: Icmp::new(now),
            fragments: Fragments::new(config.reassembly, fragments_key),
            paths: Paths::default(),
            half: config.apart.then(Box::default),
            common: Common::new(config, rng),
        })
    }

    /// Judges `frame` (from the Ethernet header on), which arrived over `link`. `offload` is taken from the
    /// link's vnet header.
    ///
    /// Never panics, whatever the bytes are. A TCP segment whose checksum need not be computed costs a few
    /// ns.
    #[inline]
    pub fn handle_frame<'a>(
        &mut self,
        now: Instant,
        link: Link,
        frame: &'a [u8],
        offload: ChecksumOffload,
    ) -> Received<'a> {
        self.common.count().frames_in += 1;
        self.common.forget_message();
        let received = self.receive(now, link, frame, offload);
        let counters = self.common.count();
        match &received {
            Ok(Received::Tcp { .. }) => counters.tcp_in += 1,
            Ok(Received::Udp { .. }) => counters.udp_in += 1,
            Ok(Received::Error(..)) => counters.errors_in += 1,
            Ok(Received::Consumed | Received::EchoReply { .. }) => {}
            Ok(Received::Dropped(reason)) | Err(reason) => counters.drop(*reason),
        }
        self.check_invariants();
        received.unwrap_or_else(Received::Dropped)
    }

    /// Returns the message of ICMP in the frame that was handled last, if it held one for this stack, whether
    /// it was answered or not.
    pub fn take_message(&mut self) -> Option<Message> {
        self.common.take_message()
    }

    #[inline]
    fn receive<'a>(
        &mut self,
        now: Instant,
        link: Link,
        frame: &'a [u8],
        offload: ChecksumOffload,
    ) -> Result<Received<'a>, Reason> {
        let (ethernet, _) = ethernet::parse(frame).map_err(|_| Reason::Malformed)?;
        let ethernet::Header { dst: to, src: from, ethertype } = ethernet;
        // A frame that a socket has sent which is bound to the loopback has the address of Linux's `lo`.
        let is_ours = to == self.common.mac() || (to == Mac::ZERO && link == Link::Inside);
        if (!is_ours && !to.is_group()) || from.is_group() {
            return Err(Reason::NotOurStation);
        }
        let arrival = Arrival { now, link, from, to, frame, offload };
        let Ip { common, v4, v6, icmp, fragments, paths, .. } = self;
        match ethertype {
            EtherType::IPV4 => v4.receive(&arrival, common, icmp, fragments),
            EtherType::IPV6 => v6.receive(&arrival, common, icmp, fragments, paths),
            EtherType::ARP if common.config().apart => Err(Reason::NotForTransport),
            EtherType::ARP if link == Link::Outside => v4.receive_arp(&arrival, common),
            _ => Err(Reason::UnknownEtherType),
        }
    }

    /// Queues "destination unreachable" with `code` about `frame` (from the Ethernet header on), which
    /// arrived over `link`.
    ///
    /// Sends nothing and counts that where an error is forbidden (RFC 1122 §3.2.2, RFC 4443 §2.4), or where
    /// too many were sent (RFC 1812 §4.3.2.8).
    #[inline(never)]
    pub fn unreachable(&mut self, now: Instant, link: Link, frame: &[u8], code: u8) {
        let of_v6 = if code == icmp::code::PORT { icmpv6::code::PORT } else { icmpv6::code::ADDRESS };
        let v4 = icmp::Message::Unreachable { code, next_hop_mtu: 0 };
        self.report(now, link, frame, v4, icmpv6::Message::Unreachable { code: of_v6 });
    }

    /// Sends the error of its family about `frame`, or counts that it may not be sent.
    fn report(
        &mut self,
        now: Instant,
        link: Link,
        frame: &[u8],
        of_v4: icmp::Message,
        of_v6: icmpv6::Message,
    ) {
        let Ip { common, v4, v6, icmp, .. } = self;
        if frame.get(12..14) == Some(&EtherType::IPV6.0.to_be_bytes()) {
            v6.report(now, common, icmp, link, frame, of_v6);
        } else {
            v4.report(now, common, icmp, link, frame, of_v4);
        }
        self.check_invariants();
    }

    /// Announces our IPv4 address to the link, now and once more after two seconds (RFC 5227 §2.3):
    /// neighbours that knew the address at another station learn the new one. Also starts duplicate address
    /// detection for the IPv6 addresses (RFC 4862 §5.4), router solicitation, and the DHCP client if the
    /// address comes by DHCP. One replica of a stack calls this when its link comes up.
    pub fn announce(&mut self, now: Instant) {
        self.v4.announce(now, &mut self.common);
        self.v6.start(now, &mut self.common);
        self.v4.start_dhcp(now, &mut self.common);
    }

    /// Continues with what a predecessor knew, as far as it is valid at `now` and nothing contradicts it.
    /// Call this before [`Ip::announce`], which then asks for no address that is there, and probes none that
    /// was probed already.
    pub fn resume(&mut self, now: Instant, past: &Past) {
        match (&past.lease, past.v4) {
            (Some(lease), _) => self.v4.resume(now, &mut self.common, lease),
            (None, Some(address)) if address.valid_until > now => self.handle_v4_address(Some(address)),
            _ => {}
        }
        self.v6.resume(now, &self.common, &past.addresses, &past.on_link, &past.routers);
    }

    /// Releases the address to the server, if it came from one. Call when the stack ends.
    pub fn release(&mut self, now: Instant) {
        self.v4.release(now, &mut self.common);
    }

    /// Does what is due at `now`; does nothing if nothing is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.v4.handle_timeout(now, &mut self.common);
        self.v6.handle_timeout(now, &mut self.common);
        while let Some(packet) = self.fragments.expire(now, &mut self.common) {
            if let Some(frame) = packet.first {
                let v4 = icmp::Message::TimeExceeded { code: REASSEMBLY };
                let v6 = icmpv6::Message::TimeExceeded { code: REASSEMBLY };
                self.report(now, packet.link, &frame, v4, v6);
            }
        }
        self.check_invariants();
    }

    /// Returns when to call [`Ip::handle_timeout`]; `None` if nothing is pending.
    pub fn next_timeout(&self) -> Option<Instant> {
        let all = [self.v4.next_timeout(), self.v6.next_timeout(), self.fragments.next_timeout()];
        all.into_iter().flatten().min()
    }

    /// Returns the next frame to send, if any.
    pub fn poll_frame(&mut self) -> Option<Frame> {
        self.common.poll_frame()
    }

    /// Returns the next neighbour update for the other replicas, if any. A stack of one replica may discard
    /// it.
    pub fn poll_neighbour(&mut self) -> Option<NeighbourUpdate> {
        self.v4.poll_update()
    }

    /// Returns the next neighbour that did not answer, if any. No destination whose [`Ip::next_hop`] it is
    /// can be reached for now: drop the packets kept for it, and report EHOSTUNREACH to sockets where the
    /// protocol wants it.
    pub fn poll_unreachable(&mut self) -> Option<u32> {
        self.v4.poll_failed()
    }

    /// Returns the next path update for the other replicas, if any.
    pub fn poll_path(&mut self) -> Option<PathUpdate> {
        self.paths.poll_update()
    }

    /// Returns the next reassembled packet, from the Ethernet header on. The owner of its flow must handle it
    /// like a frame of its link without checksum offload.
    pub fn poll_whole(&mut self) -> Option<Frame> {
        self.fragments.poll_whole()
    }

    /// Returns the number of incomplete packets that were evicted to make room for others.
    pub fn reassembly_evictions(&self) -> u64 {
        self.fragments.evictions()
    }

    /// Returns the route to `dst`, and asks for the neighbour if it is not known. The cost is a hash lookup.
    #[inline]
    pub fn route(&mut self, now: Instant, dst: impl Into<Addr>) -> Route {
        let dst = dst.into();
        if let Some(half) = &self.half {
            return self.route_half(half, now, dst);
        }
        match dst.to_v4() {
            Some(v4) => self.v4.route(now, &mut self.common, v4),
            None => self.v6.route(now, &mut self.common, dst),
        }
    }

    /// Returns the route to `dst` in a transport server: packets that are not local leave without a hardware
    /// destination.
    fn route_half(&self, half: &Half, now: Instant, dst: Addr) -> Route {
        if self.is_own(dst) {
            return if self.common.config().loopback { Route::Local } else { Route::Unreachable };
        }
        let has_way = match self.cast(dst) {
            Some(Cast::Unicast) => self.next_hop(dst).is_some() && !half.is_unreachable(now, dst),
            Some(Cast::Broadcast) => true,
            Some(Cast::Multicast) => dst.is_v4() || !self.v6_addresses().is_empty(),
            None => false,
        };
        if has_way { Route::Via { mac: Mac::ZERO } } else { Route::Unreachable }
    }

    /// Returns the neighbour that takes packets for `dst`. `None` means that there is none: `dst` is our own
    /// address or a group, or there is no gateway.
    pub fn next_hop(&self, dst: impl Into<Addr>) -> Option<Addr> {
        let dst = dst.into();
        match dst.to_v4() {
            Some(v4) => self.v4.next_hop(v4),
            None => self.v6.next_hop(dst),
        }
    }

    /// Returns a number that grows whenever [`Ip::route`] may answer differently: a neighbour was resolved,
    /// moved to another station or failed, or own addresses have changed. It also grows when there is
    /// something new to report about these.
    pub fn neighbour_generation(&self) -> u64 {
        self.v4.generation() + self.v6.generation()
    }

    /// Writes the Ethernet and IP headers of `packet` at the start of `out`; returns their length,
    /// [`headers_len`](crate::headers_len).
    ///
    /// Panics if `out` is shorter than that. The caller writes the payload and its checksum.
    #[inline]
    pub fn emit_headers(&mut self, out: &mut [u8], packet: &Outgoing) -> usize {
        self.common.emit_headers(out, packet)
    }

    /// Returns the identification for a packet to `dst` whose fragments [`Ip::emit_fragment`] will write.
    pub fn identify(&mut self, dst: impl Into<Addr>, protocol: Protocol) -> u32 {
        self.common.identify(dst.into(), protocol)
    }

    /// Writes the headers of one fragment of `packet`, as [`Ip::emit_headers`] does for a whole packet.
    /// Returns their length in octets, at most [`FRAGMENT_HEADERS_LEN_MAX`](crate::FRAGMENT_HEADERS_LEN_MAX).
    /// Call [`Ip::fragment_sent`] once the link has taken the fragment.
    pub fn emit_fragment(&self, out: &mut [u8], packet: &Outgoing, id: u32, part: &Part) -> usize {
        packet.emit_fragment(out, self.common.mac(), id, part)
    }

    /// Counts a fragment that was sent.
    pub fn fragment_sent(&mut self) {
        self.common.count().fragments_out += 1;
    }

    /// Applies a neighbour update from another replica, after checking it. Updates about addresses that are
    /// no neighbours of ours are ignored.
    pub fn handle_neighbour(&mut self, now: Instant, update: NeighbourUpdate) {
        if self.half.is_none() {
            self.v4.handle_neighbour(now, &mut self.common, update);
            self.check_invariants();
        }
    }

    /// Notes that packets to `dst` arrive, as the progress of a transport shows (RFC 4861 §7.3.1). This
    /// confirms the neighbour that they go through. The call is cheap, but not cheap enough for every
    /// segment.
    pub fn note_progress(&mut self, now: Instant, dst: Addr) {
        let Some(hop) = self.next_hop(dst) else { return };
        match &mut self.half {
            Some(half) => half.note_progress(now, hop),
            None => self.confirm_neighbour(now, hop, true),
        }
    }

    /// Notes, on behalf of a transport server in another process, that packets arrive through the neighbour
    /// `hop`. This is not believed where two stations claim the address, because that concerns other servers
    /// as well.
    pub fn handle_progress(&mut self, now: Instant, hop: Addr) {
        self.confirm_neighbour(now, hop, false);
        self.check_invariants();
    }

    fn confirm_neighbour(&mut self, now: Instant, hop: Addr, settles: bool) {
        match hop.to_v4() {
            Some(v4) => self.v4.progress(now, v4, settles),
            None => self.v6.progress(now, hop, settles),
        }
    }

    /// Joins a socket to `group`: packets to the group are accepted, and a report is sent to routers if the
    /// socket is its first member. Returns `false` if `group` is no multicast address, or there are too many
    /// groups.
    pub fn join_group(&mut self, now: Instant, link: Link, group: impl Into<Addr>) -> bool {
        let group = group.into();
        let joined = self.cast(group) == Some(Cast::Multicast)
            && match group.to_v4() {
                Some(group) => self.v4.groups_mut().join(now, link, group),
                None => self.v6.join_group(now, link, group),
            };
        if let Some(half) = self.half.as_mut().filter(|_| joined) {
            half.note_membership(link);
        }
        self.check_invariants();
        joined
    }

    /// Removes a socket from a group that it had joined.
    pub fn leave_group(&mut self, now: Instant, link: Link, group: impl Into<Addr>) {
        let group = group.into();
        match group.to_v4() {
            Some(group) => self.v4.groups_mut().leave(now, link, group),
            None => self.v6.leave_group(now, link, group),
        }
        if let Some(half) = &mut self.half {
            half.note_membership(link);
        }
        self.check_invariants();
    }

    /// Returns whether a socket is in `group`.
    pub fn is_member(&self, link: Link, group: impl Into<Addr>) -> bool {
        let group = group.into();
        match group.to_v4() {
            Some(group) => self.v4.groups().has(link, group),
            None => self.v6.groups().has(link, group),
        }
    }

    /// Returns the packet size that the path to `dst` takes, if that is known to be less than
    /// [`Ip::mtu_for`].
    #[inline]
    pub fn path_mtu(&self, now: Instant, dst: impl Into<Addr>) -> Option<PathMtu> {
        self.paths.get(now, dst.into())
    }

    /// Notes that the path to `dst` only takes packets of `mtu` octets, and informs the other replicas. The
    /// caller has checked that the ICMP error was about a packet of ours.
    pub fn learn_path_mtu(&mut self, now: Instant, dst: impl Into<Addr>, mtu: u16) {
        let dst = dst.into();
        let (update, link_mtu) = (PathUpdate { dst, mtu }, self.mtu_for(dst));
        let learned = self.paths.report(now, &mut self.common, update, link_mtu);
        if let Some(half) = self.half.as_mut().filter(|_| learned) {
            half.note_path(&mut self.common, update);
        }
    }

    /// Applies a path update from another replica.
    pub fn handle_path(&mut self, now: Instant, update: PathUpdate) {
        self.paths.learn(now, update.dst, update.mtu, self.mtu_for(update.dst));
    }

    /// Returns what the transport servers of this IP server have to know.
    pub fn told(&self) -> Told {
        Told {
            v4: self.v4_address().copied(),
            dhcp: self.dhcp_news(),
            addresses: self.v6_addresses().to_vec(),
            on_link: self.v6_on_link().map(|(prefix, len, _)| (prefix, len)).collect(),
            routers: self.v6_routers().map(|(addr, _)| addr).collect(),
            mtu_v6: self.v6.network().mtu(),
            hop_limit: self.hop_limit(),
        }
    }

    /// Applies the state of the network that the IP server has sent, after checking it. Does nothing if this
    /// is not the part in a transport server.
    pub fn handle_told(&mut self, told: Told) {
        let Some(half) = &mut self.half else { return };
        if half.set_dhcp(told.dhcp) {
            self.v4.note();
        }
        let v4 = told.v4.filter(|address| address.check().is_ok());
        if self.v4_address() != v4.as_ref() {
            self.v4.set_address(v4);
        }
        self.v6.replace(&told.addresses, &told.on_link, &told.routers);
        self.v6.set_limits(&self.common, told.mtu_v6, told.hop_limit);
        self.check_invariants();
    }

    /// Notes that the IP server cannot deliver packets to `dst`. That is believed for a second, as for a
    /// neighbour that does not answer.
    pub fn handle_unreachable(&mut self, now: Instant, dst: Addr) {
        if self.half.as_mut().is_some_and(|half| half.note_unreachable(now, dst)) {
            self.v6.change_routes();
        }
    }

    /// Returns whether the rest of IP is in another process: an IP server.
    pub const fn is_apart(&self) -> bool {
        self.half.is_some()
    }

    /// Notes whether there are raw sockets of ICMP, or of ICMPv6. An IP server is asked for the messages that
    /// it handles itself ([`Ip::take_message`]).
    pub fn want_messages(&mut self, v6: bool, wants: bool) {
        if let Some(half) = &mut self.half {
            half.want_messages(v6, wants);
        }
    }

    /// Forgets what was asked of the IP server, because a new one has taken over that knows of no group.
    pub fn forget_requests(&mut self) {
        if let Some(half) = &mut self.half {
            half.forget_requests();
        }
    }

    /// Returns whether there is something to ask of the IP server.
    pub fn has_requests(&self) -> bool {
        self.half.as_ref().is_some_and(|half| half.has_requests())
    }

    /// Passes each pending request to `send`, which returns whether it was accepted. A request that was not
    /// is offered again by the next call.
    pub fn send_requests(&mut self, send: impl FnMut(Request) -> bool) {
        if let Some(half) = &mut self.half {
            let v4 = self.v4.groups().members().map(Addr::v4);
            half.send_requests(v4.chain(self.v6.groups().members()), send);
        }
    }

    /// Applies the address that the replica with the DHCP client has sent, after checking it. Does nothing if
    /// the address does not come by DHCP, or this replica runs the client itself.
    pub fn handle_v4_address(&mut self, address: Option<V4Address>) {
        let is_told = self.common.config().dhcp && self.dhcp().is_none();
        if is_told && address.is_none_or(|address| address.check().is_ok()) {
            self.v4.set_address(address);
            self.check_invariants();
        }
    }

    /// Returns the DHCP client; `None` if this replica does not run one.
    pub fn dhcp(&self) -> Option<&Client> {
        self.v4.dhcp()
    }

    /// Returns what is known of DHCP; `None` if neither this replica nor its IP server runs a client.
    pub fn dhcp_news(&self) -> Option<dhcp::News> {
        match self.dhcp() {
            Some(client) => Some(dhcp::News::of(client)),
            None => self.half.as_ref().and_then(|half| half.dhcp().cloned()),
        }
    }

    /// Returns the counters.
    pub fn counters(&self) -> &Counters {
        self.common.counters()
    }

    /// Returns the hardware address of the stack, which is also the destination of every frame on the inside
    /// link.
    pub fn mac(&self) -> Mac {
        self.common.mac()
    }

    /// Returns the IPv4 address of the stack, if it has one.
    pub fn addr(&self) -> Option<u32> {
        self.v4.network().addresses().own()
    }

    /// Returns the stack's IPv4 address with its network, if it has one.
    pub fn v4_address(&self) -> Option<&V4Address> {
        self.v4.network().address()
    }

    /// Returns a number that grows whenever [`Ip::v4_address`] has changed. The replica that asks for the
    /// address then informs the others.
    pub fn v4_generation(&self) -> u64 {
        self.v4.network().generation()
    }

    /// Returns the IPv6 addresses of the stack on its link, the link-local one first.
    pub fn v6_addresses(&self) -> &[OwnAddress] {
        self.v6.network().own()
    }

    /// Returns the prefixes that are reached without a router, their lengths in bits, and until when.
    pub fn v6_on_link(&self) -> impl Iterator<Item = (Addr, u8, Instant)> + '_ {
        self.v6.network().on_link()
    }

    /// Returns the IPv6 routers in the order in which they are tried, and until when they serve as such.
    pub fn v6_routers(&self) -> impl Iterator<Item = (Addr, Instant)> + '_ {
        self.v6.network().routers()
    }

    /// Returns whether there is a route to IPv6 addresses that are not on the link.
    pub fn has_v6_router(&self) -> bool {
        self.v6.network().routers().next().is_some()
    }

    /// Returns whether `addr` is one of the stack's own, of either family: on its link, or a loopback
    /// address.
    pub fn is_own(&self, addr: Addr) -> bool {
        match addr.to_v4() {
            Some(v4) => self.v4.network().addresses().is_ours(Link::Inside, v4),
            None => self.v6.network().is_ours(Link::Inside, addr),
        }
    }

    /// Returns the source address for packets to `dst`; `None` if we have none from which `dst` can be
    /// reached.
    pub fn source_for(&self, dst: Addr) -> Option<Addr> {
        match dst.to_v4() {
            Some(_) if dst.is_loopback() => Some(dst.loopback_of_family()),
            Some(_) => self.addr().map(Addr::v4),
            None => self.v6.network().source_for(dst),
        }
    }

    /// Returns what `addr` means as a destination; `None` if packets cannot be sent to it over the outside
    /// link.
    pub fn cast(&self, addr: impl Into<Addr>) -> Option<Cast> {
        let addr = addr.into();
        match addr.to_v4() {
            Some(v4) => self.v4.network().addresses().cast(v4),
            None => self.v6.network().cast(addr),
        }
    }

    /// Returns the size in octets of the largest IPv4 packet that the outside link carries.
    #[inline]
    pub fn mtu(&self) -> u16 {
        self.v4.network().mtu(self.common.config().mtu)
    }

    /// Returns the size in octets of the largest packet that the outside link carries, for the family of
    /// `dst`.
    pub fn mtu_for(&self, dst: Addr) -> u16 {
        if dst.is_v4() { self.mtu() } else { self.v6.network().mtu() }
    }

    /// Returns the hop limit of IPv6 packets whose socket asks for no other: that of the router, or the
    /// default.
    pub fn hop_limit(&self) -> u8 {
        self.v6.network().hop_limit()
    }

    /// Checks the invariants of the parts in debug builds; panics if one is broken, which is a bug of the
    /// stack.
    fn check_invariants(&self) {
        if cfg!(debug_assertions) {
            self.common.check_invariants();
            self.v4.check_invariants(&self.common);
            self.v6.check_invariants();
            self.fragments.check_invariants(self.common.config().frames_max);
            self.paths.check_invariants(&self.common);
        }
    }

    /// Returns what a transport server's part has in addition.
    #[cfg(test)]
    pub(crate) fn half(&self) -> Option<&Half> {
        self.half.as_deref()
    }

    /// Returns the number of incomplete packets.
    #[cfg(test)]
    pub(crate) fn incomplete(&self) -> usize {
        self.fragments.len()
    }

    /// Returns the number of redirects that are believed.
    #[cfg(test)]
    pub(crate) fn redirects(&self) -> usize {
        self.v6.redirects()
    }
}

#[cfg(test)]
pub(crate) mod tests;
