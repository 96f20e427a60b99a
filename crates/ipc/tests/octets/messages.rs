//! Messages in rings, in channels and on sockets.

use std::fmt::Debug;

use atoll_base::{Addr, Endpoint, Epoch, Instant, ReplicaId, SessionId, SlotId};
use atoll_ipc::arena::ArenaConfig;
use atoll_ipc::balance::{
    Balance, Estimator, PeerBody, PeerMessage, PeerOffer, Scheme, ServiceReport, Services,
};
use atoll_ipc::command::{CloseMode, DatagramKind, Protocol};
use atoll_ipc::control::{self, MemoryLevel, Refusal, Reply, Request, User};
use atoll_ipc::ip::{IpBody, IpMessage, NetworkNews};
use atoll_ipc::lease::{Grant, Pass, Voucher};
use atoll_ipc::manager::{ManagerBody, ManagerMessage};
use atoll_ipc::message::{Envelope, NewsBasis, Role};
use atoll_ipc::{Cause, Command, Device, Event, Message, Ready, SocketOption};

use super::{Octets, memory};

const TOKEN: u32 = 0x1413_1211;
const LEASE: u64 = 0x2827_2625_2423_2221;
const SLOT: SlotId = SlotId(0x3433_3231);
const GENERATION: u32 = 0x4443_4241;
const SESSION: SessionId = SessionId(0x5453_5251);
const TICKET: u32 = 0x6463_6261;
const CONNECTION: u32 = 0x7473_7271;
const LISTENER: u64 = 0x8887_8685_8483_8281;
const AT: Instant = Instant::from_nanos(0x9897_9695_9493_9291);
const EPOCH: Epoch = Epoch(0xa4a3_a2a1);

fn v6(first: u8) -> Addr {
    Addr::from_octets(std::array::from_fn(|at| first + at as u8))
}

fn local() -> Endpoint {
    Endpoint::at(v6(0xb0), 0xc2c1)
}

fn remote() -> Endpoint {
    Endpoint::at(v6(0xd0), 0xe2e1)
}

fn voucher() -> Voucher {
    Voucher { uid: 0xf4f3_f2f1, flags: 13, granted: 0x0807_0605_0403_0201, seal: 0x1817_1615_1413_1211 }
}

fn pass() -> Pass {
    Pass { lease: LEASE, uid: 0xf4f3_f2f1, protocol: Protocol::Udp, port: 0xe2e1 }
}

fn config() -> ArenaConfig {
    ArenaConfig { slots: 1 << 20, send_log2: 17, receive_log2: 18 }
}

/// Returns the name of a value: its variant.
fn name(value: &impl Debug) -> String {
    let text = format!("{value:?}");
    text.split([' ', '(']).next().unwrap_or_default().to_owned()
}

pub fn add_all(octets: &mut Octets) {
    commands(octets);
    events(octets);
    requests(octets);
    replies(octets);
    envelopes(octets);
    manager_messages(octets);
    ip_messages(octets);
    peer_messages(octets);
    octets.add("sealed pass", &pass().sealed());
    octets.add("sealed grant", &Grant::of(LEASE, Protocol::Udp, local(), &voucher()).sealed());
}

fn commands(octets: &mut Octets) {
    let (slot, generation, lease, token) = (SLOT, GENERATION, LEASE, TOKEN);
    let (local, remote, voucher, protocol) = (local(), remote(), voucher(), Protocol::Udp);
    let (reuse_addr, reuse_port, v6_only) = (true, false, true);
    let udp_open = |kind, reuse_port, v6_only| Command::UdpOpen {
        slot,
        generation,
        lease,
        local,
        remote,
        reuse_port,
        v6_only,
        kind,
    };
    for command in [
        Command::Bind {
            token,
            lease,
            protocol,
            local,
            reuse_addr,
            reuse_port,
            v6_only,
            device: Device::None,
        },
        Command::Bind {
            token,
            lease,
            protocol: Protocol::Tcp,
            local,
            reuse_addr: false,
            reuse_port: true,
            v6_only: false,
            device: Device::Loopback,
        },
        Command::BindWithin {
            token,
            lease,
            protocol: Protocol::Udp,
            local,
            first: 0x0201,
            last: 0x0403,
            reuse_addr: true,
            reuse_port: false,
            v6_only: true,
            device: Device::Link,
        },
        Command::Release { lease },
        Command::Listen {
            token,
            lease,
            local,
            backlog: 0x0403_0201,
            reuse_port,
            defer_accept: 0x0605,
            v6_only,
            hops_min: [0; 2],
        },
        Command::Listen {
            token,
            lease,
            local,
            backlog: 0x0403_0201,
            reuse_port: true,
            defer_accept: 0x0605,
            v6_only: false,
            hops_min: [0x07, 0x08],
        },
        Command::Show { lease, protocol, local, voucher },
        Command::Pass { pass: pass(), seal: 0x0807_0605_0403_0201 },
        Command::AcceptConnection { lease },
        Command::AskConnection { lease, takes: true },
        Command::StopAccepting { lease },
        Command::Claim { slot, generation },
        Command::Connect { slot, generation, lease, local, remote },
        Command::ConnectWithin { slot, generation, local, remote, first: 0x0201, last: 0x0403 },
        udp_open(DatagramKind::Udp, reuse_port, v6_only),
        udp_open(DatagramKind::Icmp, reuse_port, v6_only),
        udp_open(DatagramKind::Raw, reuse_port, v6_only),
        udp_open(DatagramKind::Udp, true, false),
        Command::Kick { slot, generation },
        Command::Close { slot, generation, mode: CloseMode::Graceful },
        Command::Close { slot, generation, mode: CloseMode::Abort },
        Command::SetOption { slot, generation, option: SocketOption::MulticastInsideV6, value: 0x0403_0201 },
        Command::SetListenerOption { lease, option: SocketOption::DeferAccept, value: 0x0403_0201 },
        Command::Info { token, slot, generation },
        Command::Group { slot, generation, group: local.addr, inside: true, joins: false, token },
        Command::Group { slot, generation, group: local.addr, inside: false, joins: true, token },
    ] {
        let bytes = command.encode();
        octets.add(&format!("command {}", name(&command)), &bytes);
        assert_eq!(Command::decode(&bytes), Ok(command));
    }
    let options =
        (0..=255).filter_map(SocketOption::from_u8).map(|option| format!("{option:?}={}", option as u8));
    octets.add("socket options", options.collect::<Vec<_>>().join(" ").as_bytes());
}

fn events(octets: &mut Octets) {
    let (slot, generation, listener, token, voucher) = (SLOT, GENERATION, LISTENER, TOKEN, voucher());
    for event in [
        Event::Ready { slot, generation, ready: Ready::from_bits_retain(0x0403_0201) },
        Event::ConnectionAvailable { listener, slot, generation, local: local(), remote: remote() },
        Event::ClaimVerdict { slot, generation, confirmed: true },
        Event::AcceptorRemoved { listener },
        Event::ConnectionsWait { listener, waiting: true, answers: false },
        Event::ConnectionsWait { listener, waiting: false, answers: true },
        Event::SlotDone { slot, generation },
        Event::BindReply { token, cause: Cause::PermissionDenied, port: 0x0605, voucher },
        Event::ListenReply { token, cause: Cause::Lost, voucher },
        Event::InfoReply { token, cause: Cause::Invalid },
        Event::GroupReply { token, cause: Cause::NoBuffers },
    ] {
        let bytes = event.encode();
        octets.add(&format!("event {}", name(&event)), &bytes);
        assert_eq!(Event::decode(&bytes), Ok(event));
    }
    let causes = (0..=19).map(Cause::from_u8).map(|cause| format!("{cause:?}={}", cause as u8));
    octets.add("causes", causes.collect::<Vec<_>>().join(" ").as_bytes());
}

fn requests(octets: &mut Octets) {
    let (session, config) = (SESSION.0, config());
    let ports = [(0x0201, 0x0403), (0x0605, 0x0807), (0x0a09, 0x0c0b), (0x0e0d, 0x100f)];
    let user = User { uid: 0x1413_1211, unprivileged_start: 0x1615, ports, counts_for: Some(0x2423_2221) };
    let rules = Balance {
        scheme: Scheme::Filtered,
        tariff: 0x0201,
        estimator: Estimator::Average,
        window: 0x0403,
        sample_us: 0x0007_0605,
        offer_us: 0x000b_0a09,
        high: 0x0e0d,
        low: 0x0c0b,
    };
    for request in [
        Request::Attach { layout_version: TOKEN, room_mib: 0 },
        Request::Attach { layout_version: TOKEN, room_mib: 0x2423_2221 },
        Request::Join { session, key: LEASE },
        Request::Leave { session },
        Request::Connect,
        Request::Vouch { lease: LEASE, protocol: Protocol::Tcp, port: 0xe2e1 },
        Request::SessionOpened { session, pid: TOKEN, config, user },
        Request::SessionOpened { session, pid: TOKEN, config, user: User { counts_for: None, ..user } },
        Request::MemberGone { session, member: 0xaa },
        Request::SessionGone { session },
        Request::CutOff { session },
        Request::Stop,
        Request::ListSockets { token: TOKEN },
        Request::Balance { rules },
        Request::Adopt { blamed: true },
        Request::ServerGone { server: 0xbb },
        Request::ServerRestarted { server: 0xbb, epoch: EPOCH.0 },
        Request::HandOver { ledger: TOKEN },
        Request::WriteLedger { version: TOKEN },
        Request::Memory { level: MemoryLevel::Pressure, buffers_max: LEASE },
        Request::Memory { level: MemoryLevel::High, buffers_max: LEASE },
    ] {
        let bytes = request.encode();
        octets.add(&format!("request {}", name(&request)), &bytes);
        assert_eq!(Request::decode(&bytes), Ok(request));
    }
}

fn replies(octets: &mut Octets) {
    for reply in [
        Reply::Joined { session: SESSION.0, key: LEASE, member: 0xaa, replicas: 0xbb, config: config() },
        Reply::Refused { reason: Refusal::Malformed },
        Reply::Refused { reason: Refusal::Version },
        Reply::Connected,
        Reply::Listed { is_last: true },
        Reply::Vouched { pass: pass(), seal: LISTENER },
    ] {
        let mut bytes = reply.encode();
        octets.add(&format!("reply {}", name(&reply)), &bytes);
        assert_eq!(Reply::decode(&bytes), Ok(reply));
        control::set_token(&mut bytes, LISTENER);
        octets.add("reply with a number", &bytes);
    }
}

fn envelopes(octets: &mut Octets) {
    for role in [Role::Notice, Role::Request(TOKEN), Role::Reply(TOKEN, EPOCH)] {
        for message in [
            Message::Hello { replica: ReplicaId(0xcc), epoch: Epoch(TICKET) },
            Message::Neighbour { addr: v6(0xb0), mac: [1, 2, 3, 4, 5, 6], basis: NewsBasis::Learned },
            Message::Neighbour { addr: v6(0xb0), mac: [1, 2, 3, 4, 5, 6], basis: NewsBasis::Overheard },
            Message::Path { dst: v6(0xb0), mtu: 0x0605 },
        ] {
            let bytes = Envelope { role, message }.encode();
            octets.add(&format!("channel {} {}", name(&role), name(&message)), &bytes);
            assert_eq!(Envelope::decode(&bytes), Ok(Envelope { role, message }));
        }
    }
}

fn manager_messages(octets: &mut Octets) {
    let (listener, connection, ticket) = (LISTENER, CONNECTION, TICKET);
    let (session, lease, offered_at) = (SESSION, LEASE, Instant::from_nanos(0x0807_0605_0403_0201));
    for body in [
        ManagerBody::Opened { listener, lease, local: local(), v6_only: true, device: Device::Loopback },
        ManagerBody::Left { listener, lease },
        ManagerBody::Closed { listener },
        ManagerBody::Registered { listener, session, lease },
        ManagerBody::Deregistered { listener, session, lease },
        ManagerBody::Forgotten { listener, session, lease },
        ManagerBody::Established { listener, connection, ticket },
        ManagerBody::Claimed { connection, offered_at },
        ManagerBody::TimedOut { connection, ticket },
        ManagerBody::Returned { connection, ticket },
        ManagerBody::Gone { connection },
        ManagerBody::Served { session, lease, offered_at },
        ManagerBody::Offer { connection, ticket, session, lease, measured: true },
        ManagerBody::Queued { connection, ticket },
        ManagerBody::Reset { connection, ticket },
        ManagerBody::AcceptorRemoved { session, lease },
        ManagerBody::Offered { listener, connection, ticket, session, lease },
    ] {
        let message = ManagerMessage { epoch: EPOCH, to: Epoch(TOKEN), at: AT, body };
        let bytes = message.encode();
        octets.add(&format!("manager {}", name(&body)), &bytes);
        assert_eq!(ManagerMessage::decode(&bytes), Ok(message));
    }
}

fn ip_messages(octets: &mut Octets) {
    let routers = vec![v6(0x10), v6(0x30)];
    let news = NetworkNews { network: memory::network(), routers, mtu_v6: 0x0201, hop_limit: 0x77 };
    for body in [
        IpBody::Hello,
        IpBody::Group { group: v6(0xb0), joins: true },
        IpBody::Path { dst: v6(0xb0), mtu: 0x0605 },
        IpBody::Network { news: Box::new(news) },
        IpBody::Network { news: Box::default() },
        IpBody::Unreachable { protocol: 0x99, local: local(), remote: remote(), seq: TOKEN },
        IpBody::Neighbour { addr: TOKEN, mac: [1, 2, 3, 4, 5, 6], learned: true },
        IpBody::Progress { hop: v6(0xb0) },
    ] {
        let kind = name(&body);
        let message = IpMessage { epoch: EPOCH, body };
        let bytes = message.encode();
        octets.add(&format!("ip {kind}"), &bytes);
        assert_eq!(IpMessage::decode(&bytes), Ok(message));
    }
}

fn peer_messages(octets: &mut Octets) {
    let mut services = Services::default();
    [0x0403_0201, 0x0807_0605, 0x0c0b_0a09].into_iter().for_each(|micros| services.push(micros));
    let (lease, session) = (LEASE, SESSION);
    let report = ServiceReport {
        lease,
        session,
        timed_out: true,
        open: TOKEN,
        open_since_us: LISTENER,
        unclaimed: TICKET,
        services,
    };
    for body in [
        PeerBody::Offer(PeerOffer { lease, session, service_us: Some(TOKEN) }),
        PeerBody::Offer(PeerOffer { lease, session, service_us: None }),
        PeerBody::Report(report),
        PeerBody::Report(ServiceReport { timed_out: false, services: Services::default(), ..report }),
    ] {
        let message = PeerMessage { from: ReplicaId(0xcc), epoch: EPOCH, sent_at: AT, body };
        let mut out = [0xff; atoll_ipc::balance::PEER_BYTES_MAX];
        let bytes = message.encode(&mut out);
        octets.add(&format!("peer {}", name(&body)), bytes);
        assert_eq!(PeerMessage::decode(bytes), Ok(message));
    }
}
