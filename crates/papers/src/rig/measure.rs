//! Measures what the steps of the real code take on this machine (`atoll paper measure`).

use std::time::{Duration, Instant as Clock};

use atoll_base::{Addr, Endpoint, Epoch, FourTuple, Instant, ReplicaId, SessionId};
use atoll_connmgr::{
    Bind, ConnMgr, ConnectionId, Directive, Listen, ListenerId, PeerOutput, Reach, Syn, SynVerdict,
};
use atoll_ip::Ip;
use atoll_ip_server::{Config, Egress, IpServer, Party};
use atoll_ipc::balance::PeerBody;
use atoll_ipc::command::Protocol;
use atoll_ipc::control::User;
use atoll_ipc::ip::{IpBody, IpMessage};
use atoll_ipc::lease::Grant;
use atoll_wire::vnet;

use super::{BATCH, CLIENTS, PAGE, PORT, REQUEST, Rig, SERVER, Step, address, mac, take};
use crate::costs::Table;
use crate::machine::percentile;

/// The port that connection managers serve.
const LEASE: u64 = 77;

/// The measurements of one cost, in nanoseconds.
type Samples = Vec<f64>;

/// Measures everything that needs no other process, `runs` times. Returns `table` with the results: the
/// median of each run, and of those the median, the least and the greatest. Calls `progress` after each run.
pub fn measure(table: &Table, runs: usize, mut progress: impl FnMut(usize)) -> Table {
    let mut medians: Vec<(&'static str, Samples)> = Vec::new();
    for run in 0..runs.max(1) {
        let managers = managers();
        let of = |name: &str| managers.iter().find(|(of, _)| *of == name).map_or(0.0, |(_, nanos)| *nanos);
        let mut found = servers(of("cm_syn"), of("cm_choose"), of("cm_claimed"));
        found.extend(managers);
        found.extend(ip());
        found.push(("poll", poll()));
        for (name, nanos) in found {
            match medians.iter_mut().find(|(of, _)| *of == name) {
                Some((_, samples)) => samples.push(nanos),
                None => medians.push((name, vec![nanos])),
            }
        }
        progress(run + 1);
    }
    let mut table = table.clone();
    for (name, mut samples) in medians {
        samples.sort_by(f64::total_cmp);
        let Some(cost) = table.0.get_mut(name) else { continue };
        let round = |nanos: f64| (nanos.max(0.0) * 10.0).round() / 10.0;
        cost.median = round(percentile(&samples, 50.0));
        cost.low = round(samples[0]);
        cost.high = round(samples[samples.len() - 1]);
        cost.how = format!("atoll paper measure, {} runs", samples.len());
    }
    table
}

/// The numbers of batches of a run, and of the warm-up before it.
const ROUNDS: usize = 600;
const WARM_UP: usize = 100;

fn median(mut samples: Samples) -> f64 {
    samples.sort_by(f64::total_cmp);
    percentile(&samples, 50.0)
}

/// Returns the nanoseconds that `work` takes for each of `count`.
fn time(count: usize, work: impl FnOnce()) -> f64 {
    let began = Clock::now();
    work();
    began.elapsed().as_nanos() as f64 / count as f64
}

/// Measures the steps of the transport server and the library, without the connection manager's part in them.
fn servers(cm_syn: f64, cm_choose: f64, cm_claimed: f64) -> Vec<(&'static str, f64)> {
    let mut samples: [Samples; 8] = Default::default();
    let mut rig = Rig::new();
    for round in 0..WARM_UP + ROUNDS {
        rig.short(&mut |step, now, server, frames| {
            let nanos = time(BATCH, || take(step, now, server, frames));
            if round >= WARM_UP {
                samples[step as usize].push(nanos);
            }
        });
    }
    let of = |step: Step| median(samples[step as usize].clone());
    vec![
        ("tcp_syn", of(Step::Syn) - cm_syn),
        ("tcp_ack", of(Step::Ack) - cm_choose),
        ("tcp_text", of(Step::Text)),
        ("tcp_respond", of(Step::Respond) - cm_claimed),
        ("tcp_fin", of(Step::Fin)),
        ("tcp_reply", replies()),
        ("app_accept", of(Step::Accept)),
        ("app_request", of(Step::Request)),
        ("app_close", of(Step::Close)),
    ]
}

/// Measures pages on connections that stay open.
fn replies() -> f64 {
    let mut samples = Samples::new();
    let mut rig = Rig::new();
    rig.keep_open();
    for round in 0..WARM_UP + ROUNDS {
        let nanos = rig.request_again(REQUEST, PAGE, |server, now| time(BATCH, || server.work(now)));
        if round >= WARM_UP {
            samples.push(nanos);
        }
    }
    median(samples)
}

/// The receiver of an IP server's frames.
#[derive(Default)]
struct Exit {
    frames: Vec<u8>,
    count: usize,
}

impl Egress for Exit {
    fn send(&mut self, _: &[u8; vnet::HEADER_LEN], frame: &[u8]) -> bool {
        self.frames.extend_from_slice(frame);
        self.count += 1;
        true
    }

    fn deliver(&mut self, _: &FourTuple, vnet: &[u8; vnet::HEADER_LEN], frame: &[u8]) {
        self.send(vnet, frame);
    }

    fn tell(&mut self, _: Party, _: &IpMessage) -> bool {
        true
    }
}

/// Measures an IP server with the packets of short connections, as a TAP gives them: checksums are the
/// kernel's business.
fn ip() -> Vec<(&'static str, f64)> {
    let mut rig = Rig::new();
    let ip_config = atoll_ip::Config::new(mac(SERVER), address(SERVER), 24);
    let ip = Ip::new(ip_config, 1, rig.now).expect("a valid network");
    let mut server = IpServer::new(Config { number: 0, servers: 1, replicas: 1, epoch: Epoch(1) }, ip);
    let neighbour = IpBody::Neighbour { addr: address(CLIENTS), mac: mac(CLIENTS).0, learned: true };
    server.handle_message(rig.now, Party::Sibling(1), &IpMessage { epoch: Epoch(1), body: neighbour });
    let mut header = [0; vnet::HEADER_LEN];
    header[0] = vnet::NEEDS_CSUM;
    let (mut ins, mut outs) = (Samples::new(), Samples::new());
    let mut exit = Exit::default();
    for round in 0..WARM_UP + ROUNDS {
        rig.short(&mut |step, now, side, frames| {
            take(step, now, side, frames);
            let inward: Vec<&[u8]> = frames.iter().collect();
            // The half of IP that a transport server has leaves the stations to the IP server.
            let mut outward: Vec<Vec<u8>> = side.out.iter().map(<[u8]>::to_vec).collect();
            outward.iter_mut().for_each(|frame| frame[..6].fill(0));
            exit.frames.clear();
            exit.count = 0;
            let in_each = time(inward.len().max(1), || {
                inward.iter().for_each(|frame| server.handle_frame(now, &header, frame, &mut exit));
                server.flush(now, &mut exit);
            });
            let out_each = time(outward.len().max(1), || {
                outward.iter_mut().for_each(|frame| server.transmit(now, 0, &header, frame, &mut exit));
                server.flush(now, &mut exit);
            });
            assert!(exit.count >= inward.len() + outward.len(), "every packet goes on: {step:?}");
            for (packets, each, samples) in
                [(inward.len(), in_each, &mut ins), (outward.len(), out_each, &mut outs)]
            {
                if packets > 0 && round >= WARM_UP {
                    samples.push(each);
                }
            }
        });
    }
    vec![("ip_in", median(ins)), ("ip_out", median(outs))]
}

/// Measures a look at rings without an event.
fn poll() -> f64 {
    let rigs: Vec<Rig> = (0..8).map(|_| Rig::new()).collect();
    let look = || {
        let mut any = false;
        for _ in 0..100 {
            any |= rigs.iter().any(|rig| std::hint::black_box(&rig.clients.client).has_event());
        }
        assert!(!any, "nothing has happened");
    };
    median((0..200).map(|_| time(800, look)).collect())
}

/// The connection managers, one for each application, and the messages between them.
struct Managers {
    all: Vec<(ConnMgr, ListenerId)>,
    now: Instant,
    mail: Vec<PeerOutput>,
}

impl Managers {
    fn new(count: usize) -> Managers {
        let now = Instant::from_millis(1000);
        let new = |number: usize| {
            let config = atoll_connmgr::Config {
                replica: ReplicaId(number as u8),
                replicas: count as u8,
                epoch: Epoch(1),
                ephemeral: (32768, 60999),
                backlog_max: 4096,
                leases_max: 1000,
                session_leases_max: 1000,
                session_listeners_max: 1000,
                managers: count as u8,
                managers_apart: false,
                patience: Duration::from_millis(200),
            };
            let mut cm = ConnMgr::new(config, 9);
            let local = Endpoint::at(Addr::V4_ANY, PORT);
            let mut listener = None;
            for app in 0..count {
                let session = SessionId((app + count) as u32);
                let (lease, reuse_addr, reuse_port, v6_only) = (LEASE, true, false, false);
                let protocol = Protocol::Tcp;
                // Refused where it is not the port's authority, which does not matter here.
                let user = User::privileged(0);
                let _ = cm.handle_bind(&Bind {
                    session,
                    user,
                    lease,
                    protocol,
                    local,
                    reuse_addr,
                    reuse_port,
                    v6_only,
                    device: atoll_ipc::Device::None,
                });
                let (backlog, defer_accept, shown) = (4096, 0, Some(Grant::to_listen(lease, local)));
                listener = cm
                    .handle_listen(&Listen {
                        session,
                        lease,
                        local,
                        backlog,
                        reuse_port,
                        defer_accept,
                        v6_only,
                        uid: 0,
                        shown,
                    })
                    .ok();
                cm.handle_accept(now, session, LEASE);
            }
            while cm.poll_directive().is_some() {}
            (cm, listener.expect("the authority has leased the port"))
        };
        Managers { all: (0..count).map(new).collect(), now, mail: Vec::new() }
    }

    // structure: round: what is measured must not be interrupted by calls
    /// Serves a batch of connections everywhere, then exchanges the managers' messages. Returns the
    /// nanoseconds for each operation of manager 0: verdict, choice, claim, close, message out, message in.
    fn round(&mut self) -> [f64; 6] {
        let mut found = [0.0; 6];
        for number in 0..self.all.len() {
            let (cm, listener) = &mut self.all[number];
            let listener = *listener;
            let now = self.now;
            let syn = Syn {
                local: Endpoint::at(Addr::v4(1), PORT),
                by_cookie: false,
                device: atoll_ipc::Device::None,
            };
            let syns = time(BATCH, || {
                for _ in 0..BATCH {
                    assert!(matches!(cm.handle_syn(&syn), SynVerdict::Accept { .. }), "there is room");
                }
            });
            let mut offered = Vec::with_capacity(BATCH);
            let choices = time(BATCH, || {
                for connection in 0..BATCH as u32 {
                    cm.handle_established(now, ConnectionId(connection), listener);
                    if let Some(Directive::Offer(offer)) = cm.poll_directive() {
                        offered.push((offer.connection, offer.session));
                    }
                    // The last connection is claimed, so that the next one finds no acceptor slow.
                }
            });
            let claims = time(BATCH, || {
                for &(connection, session) in &offered {
                    cm.handle_claimed(now, connection, listener, session, LEASE, now);
                }
            });
            let later = now + Duration::from_micros(30 + number as u64);
            let closes = time(BATCH, || {
                for &(_, session) in &offered {
                    cm.handle_closed(later, session, LEASE, now);
                }
            });
            if number == 0 {
                found[..4].copy_from_slice(&[syns, choices, claims, closes]);
            }
        }
        self.now += Duration::from_micros(600);
        let (now, reach) = (self.now, Reach { awake: u64::MAX, takes: u64::MAX });
        self.mail.clear();
        let (first, others) = self.all.split_at_mut(1);
        let before = self.mail.len();
        let mail = &mut self.mail;
        let spoken = time(1, || {
            while let Some(output) = first[0].0.poll_peer(now, reach, false) {
                mail.push(output);
            }
        });
        found[4] = spoken / (self.mail.len() - before).max(1) as f64;
        for (cm, _) in others {
            while let Some(output) = cm.poll_peer(now, reach, false) {
                self.mail.push(output);
            }
        }
        let mail = std::mem::take(&mut self.mail);
        for (number, (cm, _)) in self.all.iter_mut().enumerate() {
            let heard: Vec<&PeerOutput> = mail.iter().filter(|output| output.to & 1 << number != 0).collect();
            let nanos = time(heard.len().max(1), || {
                for output in &heard {
                    cm.handle_peer(now, &output.message);
                }
            });
            if number == 0 {
                found[5] = nanos;
            }
            while cm.poll_directive().is_some() {}
        }
        debug_assert!(
            mail.iter().all(|output| matches!(output.message.body, PeerBody::Offer(_) | PeerBody::Report(_)))
        );
        self.mail = mail;
        found
    }
}

/// Measures a manager whose connections wait until an application asks for each.
fn asked() -> f64 {
    let now = Instant::from_millis(1000);
    let mut managers = Managers::new(1);
    let (cm, listener) = &mut managers.all[0];
    let session = SessionId(1);
    assert!(cm.handle_stop_accepting(now, session, LEASE), "it has accepted");
    let mut samples = Samples::new();
    for round in 0..WARM_UP + ROUNDS {
        let nanos = time(BATCH, || {
            for connection in 0..BATCH as u32 {
                cm.handle_established(now, ConnectionId(connection), *listener);
            }
            for _ in 0..BATCH {
                assert!(cm.handle_ask(now, session, LEASE, true), "it listens");
                assert!(matches!(cm.poll_directive(), Some(Directive::Offer(_))), "one waits");
            }
        });
        for connection in 0..BATCH as u32 {
            cm.handle_claimed(now, ConnectionId(connection), *listener, session, LEASE, now);
        }
        if round >= WARM_UP {
            samples.push(nanos);
        }
    }
    median(samples)
}

fn managers() -> Vec<(&'static str, f64)> {
    let of = |count: usize| -> [f64; 6] {
        let mut managers = Managers::new(count);
        let mut samples: [Samples; 6] = Default::default();
        for round in 0..WARM_UP + ROUNDS {
            for (samples, nanos) in samples.iter_mut().zip(managers.round()) {
                if round >= WARM_UP {
                    samples.push(nanos);
                }
            }
        }
        samples.map(median)
    };
    let (two, sixteen) = (of(2), of(16));
    let each = ((sixteen[1] - two[1]) / 14.0).max(0.0);
    vec![
        ("cm_syn", two[0]),
        ("cm_choose", (two[1] - each).max(0.0)),
        ("cm_choose_each", each),
        ("cm_claimed", two[2]),
        ("cm_closed", two[3]),
        ("cm_asked", asked()),
        ("peer_out", sixteen[4]),
        ("peer_in", sixteen[5]),
    ]
}
