//! The valid inputs from which fuzzing starts. `cargo run --example seeds` writes them to
//! `testing/fuzz/seeds`.

use atoll_base::{Addr, Epoch, Instant, ReplicaId, SessionId, SlotId};
use atoll_ipc::arena::ArenaConfig;
use atoll_ipc::balance::{PEER_BYTES_MAX, PeerBody, PeerMessage, PeerOffer};
use atoll_ipc::command::Protocol as TransportProtocol;
use atoll_ipc::control::{Reply, Request, User};
use atoll_ipc::datagram::{Flags, Record, encode, padded_len};
use atoll_ipc::ip::{IpBody, IpMessage, NetworkNews};
use atoll_ipc::manager::{ManagerBody, ManagerMessage};
use atoll_ipc::message::{Envelope, NewsBasis, Role};
use atoll_ipc::{Command, Event, Message as ServerMessage};
use atoll_sockets::client::exec_state::{ExecState, Inherited, PassedSocket, SessionState, SocketState};
use atoll_sockets::client::groups::Multicast;
use atoll_sockets::client::object::{Datagram, Kind, Owner, Place, Socket};
use atoll_sockets::options::Name;
use atoll_wire::arp::{self, Operation, Packet};
use atoll_wire::ethernet::{self, EtherType};
use atoll_wire::icmp::{self, Message, code};
use atoll_wire::ipv4::{self, Protocol};
use atoll_wire::ipv6;
use atoll_wire::nd::{self, PrefixInformation, RouterAdvertisement};
use atoll_wire::{Mac, checksum, dhcp, icmpv6, mld, udp, vnet};

use crate::ip::{GATEWAY, MAC_PEER, MAC_US, PEER, PEER_V6, ROUTER_V6, US, US_V6};

/// An input to start from.
pub struct Seed {
    /// The target of the input.
    pub target: &'static str,
    /// The name of the input, and of its file.
    pub name: &'static str,
    /// The input.
    pub bytes: Vec<u8>,
}

/// Returns every seed, in the order of the files.
pub fn all() -> Vec<Seed> {
    let seed = |target, name, bytes| Seed { target, name, bytes };
    let mut seeds = Vec::new();
    for (name, frame) in frames() {
        seeds.push(seed("ip_frame", name, [&[1], &frame[..]].concat()));
        let bytes = &frame[ethernet::HEADER_LEN..];
        seeds.push(seed("link_classify", name, frame.clone()));
        seeds.push(seed("wire_ethernet", name, frame.clone()));
        if frame[12..14] == EtherType::ARP.0.to_be_bytes() {
            seeds.push(seed("wire_arp", name, bytes.to_vec()));
            continue;
        }
        seeds.push(seed("wire_ipv4", name, bytes.to_vec()));
        match Protocol(bytes[9]) {
            Protocol::ICMP => seeds.push(seed("wire_icmp", name, bytes[20..].to_vec())),
            Protocol::UDP => seeds.push(seed("wire_udp", name, bytes[20..].to_vec())),
            _ => {}
        }
    }
    seeds.push(seed("ip_fragments", "in_order", vec![0, 0, 0, 64, 0, 8, 0, 64, 4, 16, 0, 9]));
    seeds.push(seed(
        "ip_fragments",
        "mixed",
        vec![5, 8, 0, 9, 0, 0, 0, 64, 1, 0, 0, 64, 4, 8, 200, 3, 2, 1, 4, 16],
    ));
    seeds.push(seed("ip_fragments", "overlap", vec![0, 0, 0, 64, 0, 4, 0, 64, 4, 8, 0, 1]));
    seeds.push(seed("wire_igmp", "query_v2", vec![0x11, 100, 0, 0, 0, 0, 0, 0]));
    seeds.push(seed("wire_igmp", "query_v3", vec![0x11, 0x90, 0, 0, 239, 1, 2, 3, 2, 125, 0, 0]));
    seeds.push(seed("wire_igmp", "report_v2", vec![0x16, 0, 0, 0, 239, 1, 2, 3]));
    for (name, frame) in frames_v6() {
        seeds.push(seed("ip_frame", name, [&[1], &frame[..]].concat()));
        let packet = &frame[ethernet::HEADER_LEN..];
        seeds.push(seed("wire_ipv6", name, packet.to_vec()));
        if packet[6] == Protocol::ICMPV6.0 {
            seeds.push(seed("wire_icmpv6", name, packet[ipv6::HEADER_LEN..].to_vec()));
        }
    }
    seeds.push(seed("ip_script", "autoconf", script_autoconf()));
    seeds.push(seed("ip_script", "resolve_v6", script_resolve_v6()));
    seeds.push(seed("ip_script", "fragments_v6", script_fragments_v6()));
    seeds.push(seed("ip_script", "resolve", script_resolve()));
    seeds.push(seed("ip_script", "fail", script_fail()));
    seeds.push(seed("ip_script", "failover", script_failover()));
    for (name, request) in requests() {
        seeds.push(seed("ipc_control", name, request.encode().to_vec()));
        seeds.push(seed("supervisor_request", name, [&[0], &request.encode()[..]].concat()));
    }
    // The client gets an offer, an acknowledgement, the probes, then T1 and another acknowledgement; or a
    // refusal.
    let steps = |last: u8| [0, 0, 0, 0, 0, 1, 0, 0, 5, 5, 5, 5, 5, 0, last, 0, 0, 5, 5, 5, 5].to_vec();
    seeds.push(seed("dhcp_client", "renewed", steps(1)));
    seeds.push(seed("dhcp_client", "refused", steps(3)));
    seeds.push(seed("dhcp_client", "taken", [0, 0, 0, 0, 0, 1, 0, 0, 5, 7, 2, 5, 5].to_vec()));
    let options: [(u8, &[u8]); 4] = [(53, &[5]), (52, &[3]), (121, &[0, 10, 0]), (121, &[0, 1])];
    let mut message = vec![0; 270];
    let header =
        dhcp::Header { is_reply: true, xid: 7, your_addr: US, mac: MAC_US, ..dhcp::Header::default() };
    let start = dhcp::emit(&header, &mut message);
    let end = options.iter().fold(start, |at, (code, data)| dhcp::push_option(&mut message, at, *code, data));
    message[end] = dhcp::option::END;
    message[108..112].copy_from_slice(&[15, 2, b'a', b'b']);
    seeds.push(seed("wire_dhcp", "overloaded", message));
    let join = br#"{"cmd":"join_link","from":"other","layout_version":1}"#;
    for (name, text) in [("status", &br#"{"cmd":"status"}"#[..]), ("join_link", join), ("noise", b"{")] {
        seeds.push(seed("supervisor_request", name, [&[0x80], text].concat()));
    }
    let lost =
        br#"{"event":"connections_lost","fields":{"replica":0,"lost":1,"why":"Reset"},"message":"lost"}"#;
    let failed = br#"{"event":"server_failed","message":"a\nb","fields":{"shortage":true,"ms":-1.5e3}}"#;
    for (name, line) in [("lost", &lost[..]), ("failed", failed), ("text", b"replica 0: it is so")] {
        seeds.push(seed("supervisor_said", name, line.to_vec()));
    }
    // Two attach, a third joins the first one's, the supervisor dies, the first one goes and the third
    // leaves; or one takes all there are.
    let family = [0, 0, 1, 0, 2, 2, 1, 1, 0, 6, 0, 5, 2, 4, 1, 3, 2, 2, 0];
    seeds.push(seed("supervisor_sequence", "family", family.to_vec()));
    seeds.push(seed("supervisor_sequence", "greedy", [3, 0].repeat(9)));
    let (inherited, passed) = exec_states();
    seeds.push(seed("exec_state", "inherited", inherited));
    seeds.push(seed("exec_state", "passed", passed));
    seeds.push(seed("config_file", "short", CONFIG.to_vec()));
    seeds.push(seed("config_file", "apart", b"configuration = \"TS2CM2IP2+LS1\"\n".to_vec()));
    seeds.push(seed("config_file", "ip_apart", b"configuration = \"TS4CM2+IP2LS2\"\n".to_vec()));
    let options = &syn(PEER, US)[20..40];
    seeds.push(seed(
        "tcp_options",
        "linux",
        [&[20], options, &[1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 1]].concat(),
    ));
    let hostile = [2, 3, 5, 8, 10, 3, 0, 1, 3, 3, 255, 4, 2, 5, 2, 254, 255, 0];
    seeds.push(seed("tcp_options", "hostile", [&[18], &hostile[..], &[5, 34], &[255; 32]].concat()));
    seeds.push(seed(
        "tcp_cookie",
        "linux",
        [&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2, 3, 4, 20], options, &[7; 8]].concat(),
    ));
    let (slot, generation) = (atoll_base::SlotId(7), 3);
    seeds.push(seed("ipc_command", "kick", Command::Kick { slot, generation }.encode().to_vec()));
    let neighbour = ServerMessage::Neighbour { addr: Addr::v4(1), mac: [2; 6], basis: NewsBasis::Learned };
    let request = Envelope { role: Role::Request(4096), message: neighbour };
    seeds.push(seed("ipc_message", "neighbour", request.encode().to_vec()));
    // The steps are a call that is answered, a request of the peer that is relayed to it, a scribbled word,
    // and sleep.
    seeds.push(seed("rpc_channel", "answered", vec![4, 0, 3, 10, 0, 0, 1, 2, 255, 11, 0, 0]));
    seeds.push(seed(
        "rpc_channel",
        "relayed",
        vec![10, 2, 1, 0, 0, 0, 0, 0, 1, 255, 11, 0, 0, 3, 6, 255, 255, 0],
    ));
    seeds.push(seed(
        "rpc_channel",
        "scribbled",
        vec![7, 5, 1, 1, 3, 13, 8, 0, 1, 5, 0, 8, 9, 200, 2, 12, 2, 0],
    ));
    seeds.push(seed("ipc_event", "done", Event::SlotDone { slot, generation }.encode().to_vec()));
    let offer = PeerOffer { lease: 7, session: SessionId(1), service_us: Some(100) };
    let (from, epoch, sent_at) = (ReplicaId(1), Epoch(1), Instant::from_millis(1));
    let message = PeerMessage { from, epoch, sent_at, body: PeerBody::Offer(offer) };
    seeds.push(seed("ipc_balance", "offer", message.encode(&mut [0; PEER_BYTES_MAX]).to_vec()));
    // All acceptors register, and then each of the steps is repeated.
    let register = (0..4).flat_map(|session| [session, 0, 0, 0, 0]);
    let steps = (0..120u8).flat_map(|i| [i % 4, 200, i % 3, i % 2, i % 9, i, i.wrapping_mul(7), 1, 0, 0]);
    let body = ManagerBody::Registered { listener: 1 << 32, session: SessionId(1), lease: 7 };
    let message = ManagerMessage { epoch: Epoch(1), to: Epoch(1), at: sent_at, body };
    seeds.push(seed("ipc_manager", "registered", message.encode().to_vec()));
    for (name, message) in ip_messages() {
        seeds.push(seed("ipc_ip", name, message));
    }
    seeds.push(seed("ip_server", "everything", script_ip_server()));
    // Both get every message, and connections come and go.
    let messages = (0..200u8).flat_map(|i| {
        let head = [200, 0, i % 8, i % 6, i % 3, i % 4, 0, 0, i % 4, i % 8, i % 32];
        let tail = [i / 6 % 2, 1, [0, 3, 6, 12, i % 17][usize::from(i % 5)], 1, 1];
        head.into_iter().chain([0; 8]).chain(tail).chain([1; 8])
    });
    seeds.push(seed("cm_manager", "steps", messages.collect()));
    seeds.push(seed("cm_balance", "steps", register.chain(steps).collect()));
    seeds.push(seed("wire_tcp", "syn", syn(PEER, US)));
    for how in 0..3u8 {
        let steps: Vec<u8> =
            (0..40u8).flat_map(|i| [i % 16, 0x10, 255, 255, 0, 0, 0, 0, 200, 5, i, 0]).collect();
        let name = ["active", "passive", "established"][usize::from(how)];
        seeds.push(seed("tcp_script", name, [&[how], &steps[..]].concat()));
    }
    let record = Record { len: 9, peer: atoll_base::Endpoint::new(PEER, 53), flags: Flags::BROADCAST };
    // A list of links, and one route, in the byte order of the machine (rtnetlink(7)).
    let asked = |kind: u16, flags: u16, body: &[u8]| {
        let head = [&(16 + body.len() as u32).to_ne_bytes()[..], &kind.to_ne_bytes(), &flags.to_ne_bytes()];
        [&head.concat()[..], &[1, 0, 0, 0, 0, 0, 0, 0], body].concat()
    };
    let route = [2, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 1, 0, 198, 18, 0, 9];
    let requests = [asked(18, 0x301, &[0; 16]), asked(26, 5, &route)].concat();
    seeds.push(seed("netlink_request", "links_and_route", requests));
    seeds.extend(programs());
    seeds.push(seed("udp_record", "nine", [&padded_len(9).to_le_bytes()[..], &encode(&record)].concat()));
    for (name, gso) in [
        ("plain", vnet::Gso::None),
        ("tso", vnet::Gso::TcpV4),
        ("tso6", vnet::Gso::TcpV6),
        ("uso", vnet::Gso::UdpL4),
    ] {
        let header = vnet::Header {
            flags: vnet::NEEDS_CSUM,
            gso,
            hdr_len: 54,
            gso_size: 1448,
            csum_start: 34,
            csum_offset: 16,
        };
        let mut out = vec![0; vnet::HEADER_LEN];
        vnet::emit(&header, &mut out);
        seeds.push(seed("wire_vnet", name, out));
    }
    seeds
}

const CONFIG: &[u8] =
    b"name = \"a\"\nreplicas = 4\n[link]\naddress = \"10.1.2.3/16\"\ngateway = \"10.1.0.1\"\n\
mac = \"02:00:00:00:00:01\"\nmtu = 9000\n[ports]\nephemeral = [1024, 65535]\n[scheduling]\ncpus = [0, 1]\n";

/// Returns two encoded states. The first has a program's own session and a joined one, with a connection, a
/// datagram socket in a group, a raw socket and a listener. The second is the connection in the form in which
/// it is sent to another process.
fn exec_states() -> (Vec<u8>, Vec<u8>) {
    let config = ArenaConfig { slots: 32, send_log2: 16, receive_log2: 16 };
    let session = |id, first| SessionState {
        reply: Reply::Joined { session: id, key: 5, member: 1, replicas: 1, config },
        descriptors: (first..first + 21).collect(),
    };
    let place = |session, slot| Place { session, replica: 0, slot: SlotId(slot), generation: 2 };
    let mut connection = Socket::new(TransportProtocol::Tcp, true);
    connection.options.set(Name::NoDelay, 1);
    connection.options.set(Name::Linger, 1 << 32 | 5);
    connection.kind = Kind::Stream(place(1, 3), connection.options.local());
    let mut listener = Socket::new(TransportProtocol::Tcp, false);
    (listener.lease, listener.kind) = (9, Kind::Listening(Box::default()));
    let mut datagrams = Socket::new(TransportProtocol::Udp, false);
    datagrams.kind = Kind::Datagram(Box::new(Datagram { places: vec![place(1, 4)], ..Datagram::default() }));
    let mut raw = Socket::new(TransportProtocol::Raw, true);
    let filter = [0, 1, 2, 3, u32::MAX, 5, 6, 7];
    raw.kind =
        Kind::Datagram(Box::new(Datagram { places: vec![place(1, 5)], filter, ..Datagram::default() }));
    datagrams.multicast =
        Some(Box::new(Multicast { joined: vec![(Addr::v4(0xe000_0001), true)], ..Multicast::new(false) }));
    let written = |socket: &Socket| SocketState::of(socket, (true, Owner::default()), |place| place);
    let inherited = |(n, socket)| Inherited { socket: written(socket), descriptors: vec![n] };
    let sockets = (3..).zip([&connection, &listener, &datagrams, &raw]).map(inherited).collect();
    let state = ExecState { control: 400, sessions: vec![session(4, 401), session(3, 422)], sockets };
    connection.kind = Kind::Stream(place(0, 3), connection.options.local());
    let passed = PassedSocket { session: 3, key: 5, socket: written(&connection) };
    (state.encode().expect("short"), passed.encode().expect("short"))
}

fn requests() -> [(&'static str, Request); 5] {
    [
        ("attach", Request::Attach { layout_version: atoll_ipc::LAYOUT_VERSION, room_mib: 0 }),
        ("join", Request::Join { session: 1, key: 2 }),
        ("vouch", Request::Vouch { lease: 7, protocol: TransportProtocol::Tcp, port: 80 }),
        ("vouch_raw", Request::Vouch { lease: 7, protocol: TransportProtocol::Raw, port: 1 }),
        (
            "opened",
            Request::SessionOpened {
                session: 1,
                pid: 2,
                config: ArenaConfig::default(),
                user: User::privileged(0),
            },
        ),
    ]
}

fn frames() -> Vec<(&'static str, Vec<u8>)> {
    let echo = icmp_text(Message::EchoRequest { id: 1, seq: 1 }, b"abcdefghijklmnop");
    let quoted = &ipv4_packet(US, PEER, Protocol::TCP, &syn(US, PEER))[..28];
    let too_big =
        icmp_text(Message::Unreachable { code: code::FRAGMENTATION_NEEDED, next_hop_mtu: 1400 }, quoted);
    let no_port = icmp_text(Message::Unreachable { code: code::PORT, next_hop_mtu: 0 }, quoted);
    let expired = icmp_text(Message::TimeExceeded { code: 0 }, quoted);
    let mut options = ipv4_packet(PEER, US, Protocol::TCP, &syn(PEER, US));
    options.splice(20..20, [0x94, 4, 0, 0]);
    options[0] = 0x46;
    options[3] += 4;
    crate::wire::repair_ipv4(&mut options);
    let mut fragment = ipv4_packet(PEER, US, Protocol::UDP, &datagram(PEER, US, b"0123456789abcdef"));
    fragment[6] = 0x20;
    crate::wire::repair_ipv4(&mut fragment);
    let ipv4 = |packet: &[u8]| frame(MAC_US, EtherType::IPV4, packet);
    let from_peer = |protocol, text: &[u8]| ipv4(&ipv4_packet(PEER, US, protocol, text));
    vec![
        ("arp_announcement", arp_frame(Mac::BROADCAST, Operation::Request, PEER, PEER)),
        ("arp_reply", arp_frame(MAC_US, Operation::Reply, GATEWAY, US)),
        ("arp_request", arp_frame(Mac::BROADCAST, Operation::Request, PEER, US)),
        ("echo_request", from_peer(Protocol::ICMP, &echo)),
        ("fragment", ipv4(&fragment)),
        ("fragmentation_needed", from_peer(Protocol::ICMP, &too_big)),
        ("options", ipv4(&options)),
        ("port_unreachable", from_peer(Protocol::ICMP, &no_port)),
        ("syn", from_peer(Protocol::TCP, &syn(PEER, US))),
        (
            "syn_inside",
            ipv4(&ipv4_packet(0x7f00_0001, 0x7f00_0001, Protocol::TCP, &syn(0x7f00_0001, 0x7f00_0001))),
        ),
        ("time_exceeded", from_peer(Protocol::ICMP, &expired)),
        ("udp", from_peer(Protocol::UDP, &datagram(PEER, US, b"hello"))),
        ("unknown_protocol", from_peer(Protocol(132), b"????????")),
    ]
}

fn frames_v6() -> Vec<(&'static str, Vec<u8>)> {
    let all_nodes = Addr::from_octets(ALL_NODES);
    let icmp = |src, dst, message: icmpv6::Message, body: &[u8]| {
        let mut text = [&[0; icmpv6::HEADER_LEN][..], body].concat();
        icmpv6::emit(src, dst, &message, &mut text);
        v6_frame(src, dst, Protocol::ICMPV6, 64, &text)
    };
    let mut ours = v6_frame(US_V6, PEER_V6, Protocol::TCP, 64, &syn(0, 0))[ethernet::HEADER_LEN..].to_vec();
    // The packet was longer than its quotation.
    ours[4..6].copy_from_slice(&1400u16.to_be_bytes());
    let behind = [&[Protocol::UDP.0, 0, 1, 4, 0, 0, 0, 0][..], &datagram(0, 0, b"hello")].concat();
    let atomic = [&[Protocol::UDP.0, 0, 0, 0, 0, 0, 0, 7][..], &datagram(0, 0, b"hello")].concat();
    let part = |offset: u16, more: bool, text: &[u8]| {
        let mut head = vec![0; ipv6::FRAGMENT_LEN];
        ipv6::emit_fragment(Protocol::UDP, &ipv6::Fragment { offset, more, id: 7 }, &mut head);
        v6_frame(PEER_V6, US_V6, Protocol(ipv6::FRAGMENT), 64, &[&head, text].concat())
    };
    let torn = datagram(0, 0, b"0123456789abcdef and more");
    let mut query = vec![0; 28];
    let asks_for_groups = icmpv6::Message::Other { kind: mld::QUERY, code: 0, rest: [0, 100, 0, 0] };
    icmpv6::emit(ROUTER_V6, all_nodes, &asks_for_groups, &mut query);
    let query = [&mld::ROUTER_ALERT[..], &query].concat();
    let advertises = nd::Message::NeighbourAdvertisement {
        target: PEER_V6,
        router: false,
        solicited: true,
        overriding: true,
        target_mac: Some(MAC_PEER),
    };
    let redirects = nd::Message::Redirect {
        target: ROUTER_V6,
        destination: Addr::from_octets([0x30; 16]),
        target_mac: Some(MAC_PEER),
    };
    let asks = nd::Message::NeighbourSolicitation { target: US_V6, source_mac: Some(MAC_PEER) };
    vec![
        ("v6_atomic_fragment", v6_frame(PEER_V6, US_V6, Protocol(44), 64, &atomic)),
        (
            "v6_echo_request",
            icmp(PEER_V6, US_V6, icmpv6::Message::EchoRequest { id: 1, seq: 1 }, b"abcdefgh"),
        ),
        ("v6_fragment_first", part(0, true, &torn[..16])),
        ("v6_fragment_last", part(2, false, &torn[16..])),
        ("v6_listener_query", v6_frame(ROUTER_V6, all_nodes, Protocol(ipv6::HOP_BY_HOP), 1, &query)),
        ("v6_neighbour_advertisement", nd_frame(PEER_V6, US_V6, &advertises)),
        ("v6_neighbour_solicitation", nd_frame(PEER_V6, nd::solicited_node(US_V6), &asks)),
        ("v6_options", v6_frame(PEER_V6, US_V6, Protocol(60), 64, &behind)),
        ("v6_packet_too_big", icmp(ROUTER_V6, US_V6, icmpv6::Message::PacketTooBig { mtu: 1300 }, &ours)),
        ("v6_redirect", nd_frame(ROUTER_V6, US_V6, &redirects)),
        ("v6_router_advertisement", nd_frame(ROUTER_V6, all_nodes, &advertisement())),
        ("v6_syn", v6_frame(PEER_V6, US_V6, Protocol::TCP, 64, &syn(0, 0))),
        ("v6_udp", v6_frame(PEER_V6, US_V6, Protocol::UDP, 64, &datagram(0, 0, b"hello"))),
    ]
}

fn advertisement() -> nd::Message {
    let mut advertisement = RouterAdvertisement {
        hop_limit: 64,
        router_lifetime: 1800,
        source_mac: Some(MAC_PEER),
        mtu: Some(1400),
        ..RouterAdvertisement::default()
    };
    advertisement.prefixes.push(PrefixInformation {
        prefix: Addr::from_octets([0x20, 1, 0xd, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        len: 64,
        on_link: true,
        autonomous: true,
        valid_lifetime: 120,
        preferred_lifetime: 60,
    });
    nd::Message::RouterAdvertisement(advertisement)
}

fn nd_frame(src: Addr, dst: Addr, message: &nd::Message) -> Vec<u8> {
    let mut text = vec![0; nd::MESSAGE_LEN_MAX];
    let len = nd::emit(src, dst, message, &mut text);
    v6_frame(src, dst, Protocol::ICMPV6, nd::HOP_LIMIT, &text[..len])
}

fn v6_frame(src: Addr, dst: Addr, next_header: Protocol, hop_limit: u8, text: &[u8]) -> Vec<u8> {
    let payload_len = text.len() as u16;
    let header = ipv6::Header { src, dst, next_header, payload_len, hop_limit, ..ipv6::Header::default() };
    let mut out = vec![0; ipv6::HEADER_LEN];
    ipv6::emit(&header, &mut out);
    out.extend_from_slice(text);
    frame(if dst.is_v6_multicast() { ipv6::multicast_mac(dst) } else { MAC_US }, EtherType::IPV6, &out)
}

/// Returns a script in which the machine comes up, receives a router's advertisement, uses the router, and
/// runs longer than the advertised lifetimes.
fn script_autoconf() -> Vec<u8> {
    let heard = nd_frame(ROUTER_V6, Addr::from_octets(ALL_NODES), &advertisement());
    let far = [0x30; 16];
    script(&[
        (6, &[]),
        (2, &1_100u32.to_le_bytes()),
        (0, &heard),
        (3, &far),
        (2, &70_000u32.to_le_bytes()),
        (3, &far),
    ])
}

/// Returns the script of [`script_resolve`] for IPv6.
fn script_resolve_v6() -> Vec<u8> {
    let frames = frames_v6();
    let answer =
        &frames.iter().find(|(name, _)| *name == "v6_neighbour_advertisement").expect("among the frames").1;
    let peer = PEER_V6.octets();
    let steps: [(u8, &[u8]); 6] = [
        (3, &peer),
        (0, answer),
        (3, &peer),
        (2, &61_000u32.to_le_bytes()),
        (3, &peer),
        (2, &70_000u32.to_le_bytes()),
    ];
    script(&steps)
}

/// Returns a script: a packet arrives in two parts, then one of which a part is missing.
fn script_fragments_v6() -> Vec<u8> {
    let frames = frames_v6();
    let named =
        |name: &str| &frames.iter().find(|(other, _)| *other == name).expect("among the frames").1[..];
    let (first, last) = (named("v6_fragment_first"), named("v6_fragment_last"));
    script(&[(0, last), (0x80, first), (0x80, first), (2, &61_000u32.to_le_bytes()), (0, last)])
}

const ALL_NODES: [u8; 16] = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

/// Returns a script in which the machine asks for the peer, gets the answer, and uses the peer for more than
/// a lifetime.
fn script_resolve() -> Vec<u8> {
    let peer = PEER.to_le_bytes();
    let reply = arp_frame(MAC_US, Operation::Reply, PEER, US);
    let steps: [(u8, &[u8]); 6] = [
        (3, &peer),
        (0, &reply),
        (3, &peer),
        (2, &61_000u32.to_le_bytes()),
        (3, &peer),
        (2, &70_000u32.to_le_bytes()),
    ];
    script(&steps)
}

/// Returns a script: the machine asks for many neighbours, none of which answers.
fn script_fail() -> Vec<u8> {
    script(&[(7, &20u32.to_le_bytes()), (2, &1_100u32.to_le_bytes()), (7, &63u32.to_le_bytes()), (6, &[])])
}

/// Returns a script: the gateway is learned from another replica, and moves to another station.
fn script_failover() -> Vec<u8> {
    let update = [&GATEWAY.to_le_bytes()[..], &[2, 0, 0, 0, 0, 9]].concat();
    let moved = arp_frame(Mac::BROADCAST, Operation::Request, GATEWAY, GATEWAY);
    let reply = arp_frame(MAC_US, Operation::Reply, GATEWAY, US);
    script(&[
        (4, &update),
        (3, &0x0808_0808u32.to_le_bytes()),
        (2, &5_000u32.to_le_bytes()),
        (0, &moved),
        (0, &reply),
    ])
}

fn script(steps: &[(u8, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    for (opcode, bytes) in steps {
        out.push(*opcode);
        out.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
        out.extend_from_slice(bytes);
    }
    out
}

fn frame(dst: Mac, ethertype: EtherType, packet: &[u8]) -> Vec<u8> {
    let mut out = vec![0; ethernet::HEADER_LEN];
    ethernet::emit(&ethernet::Header { dst, src: MAC_PEER, ethertype }, &mut out);
    out.extend_from_slice(packet);
    out
}

fn arp_frame(dst: Mac, operation: Operation, sender_addr: u32, target_addr: u32) -> Vec<u8> {
    let packet = Packet { operation, sender_mac: MAC_PEER, sender_addr, target_mac: MAC_US, target_addr };
    let mut out = [0; arp::PACKET_LEN];
    arp::emit(&packet, &mut out);
    frame(dst, EtherType::ARP, &out)
}

fn ipv4_packet(src: u32, dst: u32, protocol: Protocol, text: &[u8]) -> Vec<u8> {
    let payload_len = text.len() as u16;
    let header =
        ipv4::Header { src, dst, protocol, payload_len, ttl: 64, dont_fragment: true, ..Default::default() };
    let mut out = vec![0; ipv4::HEADER_LEN];
    ipv4::emit(&header, &mut out);
    out.extend_from_slice(text);
    out
}

fn icmp_text(message: Message, body: &[u8]) -> Vec<u8> {
    let mut out = vec![0; icmp::HEADER_LEN];
    out.extend_from_slice(body);
    icmp::emit(&message, &mut out);
    out
}

fn datagram(src: u32, dst: u32, text: &[u8]) -> Vec<u8> {
    let mut out = vec![0; udp::HEADER_LEN];
    out.extend_from_slice(text);
    let header = udp::Header { src_port: 4000, dst_port: 53, payload_len: text.len() as u16, checksum: 0 };
    udp::emit(&header, &mut out);
    udp::seal(src, dst, &mut out);
    out
}

/// Returns a SYN with MSS, SACK-permitted, timestamps and window scale, as Linux sends it.
fn syn(src: u32, dst: u32) -> Vec<u8> {
    let mut out = vec![0x9c, 0x40, 0, 80, 1, 2, 3, 4, 0, 0, 0, 0, 0xa0, 2, 0xfa, 0xf0, 0, 0, 0, 0];
    out.extend_from_slice(&[2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7]);
    let sum = checksum::pseudo_header(src, dst, Protocol::TCP.0, out.len()).bytes(&out).finish();
    out[16..18].copy_from_slice(&sum.to_be_bytes());
    out
}

/// Returns one message of each kind between transport servers and IP servers.
fn ip_messages() -> Vec<(&'static str, Vec<u8>)> {
    let (local, remote) = (atoll_base::Endpoint::new(US, 80), atoll_base::Endpoint::new(PEER, 4000));
    let own = atoll_ipc::network::AddressFacts { addr: US_V6, prefix_len: 64, ..Default::default() };
    let v4 = atoll_ipc::network::V4Facts {
        addr: US,
        prefix_len: 24,
        gateway: GATEWAY,
        mtu: 1500,
        valid_until: u64::MAX,
    };
    let network = atoll_ipc::network::Network { v4: Some(v4), addresses: vec![own], ..Default::default() };
    let news = NetworkNews { network, routers: vec![ROUTER_V6], mtu_v6: 1500, hop_limit: 64 };
    let bodies = [
        ("hello", IpBody::Hello),
        ("group", IpBody::Group { group: Addr::v4(0xe000_0005), joins: true }),
        ("path", IpBody::Path { dst: Addr::v4(PEER), mtu: 1400 }),
        ("network", IpBody::Network { news: Box::new(news) }),
        ("unreachable", IpBody::Unreachable { protocol: 6, local, remote, seq: 7 }),
        ("neighbour", IpBody::Neighbour { addr: PEER, mac: MAC_PEER.0, learned: true }),
        ("progress", IpBody::Progress { hop: Addr::v4(PEER) }),
    ];
    bodies.map(|(name, body)| (name, IpMessage { epoch: Epoch(2), body }.encode())).into()
}

/// Returns a script with every frame and every message, from and to each server.
fn script_ip_server() -> Vec<u8> {
    let step =
        |opcode: u8, bytes: &[u8]| [&[opcode][..], &(bytes.len() as u16).to_le_bytes(), bytes].concat();
    let mut script = Vec::new();
    for how in 0..4u8 {
        for (_, message) in ip_messages() {
            script.extend(step(4 | how << 3, &message));
            script.extend(step(5, &message));
        }
        script.extend(step(7 | how << 3, &PEER.to_le_bytes()));
        for (_, frame) in frames().into_iter().chain(frames_v6()) {
            script.extend(step(3 | (how * 2 + 1) << 3, &frame));
            script.extend(step(how & 1, &frame));
        }
        script.extend(step(6 | how << 3, &[]));
        script.extend(step(2, &1100u32.to_le_bytes()));
    }
    script
}

/// Returns the beginnings of program files.
fn programs() -> impl Iterator<Item = Seed> {
    let loader = b"/lib64/ld-linux-x86-64.so.2\0";
    let mut elf = vec![0; 64];
    elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
    // e_type, e_machine, e_phoff, e_phentsize, e_phnum; then p_type, p_offset, p_filesz (elf(5)).
    for (at, value) in
        [(16, 3), (18, 62), (32, 64), (54, 56), (56, 1), (64, 3), (72, 120), (96, loader.len())]
    {
        elf.resize(elf.len().max(at + 8).max(120), 0);
        elf[at..at + 2].copy_from_slice(&(value as u16).to_le_bytes());
    }
    elf.extend(loader);
    let programs = [("elf", elf), ("script", b"#! /bin/sh -e\nexit\n".to_vec())];
    // The first octet says in how long pieces the file comes.
    programs.into_iter().map(|(name, file)| Seed {
        target: "program_format",
        name,
        bytes: [&[99][..], &file].concat(),
    })
}
