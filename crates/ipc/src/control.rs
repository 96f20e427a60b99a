//! How does a process join a stack? Messages on the supervisor's unix socket (SOCK_SEQPACKET), with descriptors.
//!
//! A packet that starts with `{` is a JSON request of the command line and does not concern this module. Every other packet
//! is one [`Request`] or [`Reply`] of 56 bytes, sent with the descriptors that its doc names, in that order.
//!
//! A connection stands for one process: when it closes, the process is gone, and all its memberships end.

use crate::arena::ArenaConfig;
use crate::balance::{Balance, Estimator, Scheme};
use crate::event::BadMessage;
use crate::words::{MESSAGE_BYTES, Reader, Writer};

/// What a process asks of the supervisor, and what the supervisor tells a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // Fields are named after what the variant's doc says of them.
pub enum Request {
    /// Application to supervisor: a new session of its own, on all replicas. Answered by [`Reply::Joined`].
    Attach { layout_version: u32 },
    /// Application to supervisor: membership in an existing session, whose sockets were inherited over `fork` or `exec`. The
    /// supervisor checks `key`. Answered by [`Reply::Joined`].
    Join { session: u32, key: u64 },
    /// Application to supervisor: the membership is no longer needed.
    Leave { session: u32 },
    /// Supervisor to replica: a session was opened. Descriptors: arena, application page, [`crate::page::BELLS`] bells.
    SessionOpened { session: u32, pid: u32, config: ArenaConfig },
    /// Supervisor to replica: one process of the session's family is gone; sockets that it alone held are closed.
    MemberGone { session: u32, member: u8 },
    /// Supervisor to replica: the last member is gone. All sockets close; the arena goes when they are done.
    SessionGone { session: u32 },
    /// Supervisor to replica: end orderly (RST to all peers).
    Stop,
    /// Supervisor to replica: list sockets as JSON. The answer is a sequence of JSON packets, the last one empty (`{}`).
    ListSockets { token: u32 },
    /// Supervisor to replica: from now on balance by these rules (P5).
    Balance { rules: Balance },
    /// Supervisor to server, as the first request or, to a replica, behind the sessions that are open: these are all. Now it takes over
    /// what its predecessor left, says that it is ready, and serves.
    Adopt { blamed: bool },
    /// Supervisor to server: the process of another server has ended. What it had been asked is not answered.
    ServerGone { server: u8 },
    /// Supervisor to server: it is succeeded by another process. It puts what it has where its successor finds it, the ledger in a version
    /// that this one reads, and ends: nobody hears anything.
    HandOver { ledger: u32 },
    /// Supervisor to replica: from now on the ledger is written in this version.
    WriteLedger { version: u32 },
    /// Supervisor to server: another server, which is gone, is started again, as this incarnation.
    ServerRestarted { server: u8, epoch: u32 },
}

/// What the supervisor answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // Fields are named after what the variant's doc says of them.
pub enum Reply {
    /// The process is `member` of `session`. Descriptors: stack page, application page, [`crate::page::BELLS`] bells, then
    /// per replica: replica page, session arena, bell of the replica.
    Joined { session: u32, key: u64, member: u8, replicas: u8, config: ArenaConfig },
    /// It did not work; `reason` is one of [`Refusal`].
    Refused { reason: Refusal },
}

/// Where a request of an application, and the reply to it, have a number of the application's own choice: a supervisor that takes over may
/// answer again what the one before has answered, and the application has to know.
const TOKEN: usize = MESSAGE_BYTES - 8;

/// Sets the number of a request or a reply.
pub fn set_token(packet: &mut [u8; MESSAGE_BYTES], token: u64) {
    packet[TOKEN..].copy_from_slice(&token.to_le_bytes());
}

/// The number of a request or a reply; 0 if it is neither.
pub fn token(packet: &[u8]) -> u64 {
    let octets = packet.get(TOKEN..MESSAGE_BYTES).and_then(|octets| octets.first_chunk());
    octets.map_or(0, |octets| u64::from_le_bytes(*octets))
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// The library and the stack are of different versions.
    Version = 1,
    /// Too many sessions.
    Sessions = 2,
    /// No such session, or the wrong key.
    NoSession = 3,
    /// The session has 64 members already.
    Members = 4,
    /// Out of memory or descriptors.
    Resources = 5,
    /// The process may not use this stack.
    Permission = 6,
    /// The request makes no sense.
    Malformed = 7,
}

impl Refusal {
    const fn from_u8(n: u8) -> Refusal {
        match n {
            1 => Refusal::Version,
            2 => Refusal::Sessions,
            3 => Refusal::NoSession,
            4 => Refusal::Members,
            5 => Refusal::Resources,
            6 => Refusal::Permission,
            _ => Refusal::Malformed,
        }
    }
}

impl Request {
    /// The packet.
    pub fn encode(&self) -> [u8; MESSAGE_BYTES] {
        match *self {
            Request::Attach { layout_version } => Writer::new(1).u32(layout_version),
            Request::Join { session, key } => Writer::new(2).u32(session).u64(key),
            Request::Leave { session } => Writer::new(3).u32(session),
            Request::SessionOpened { session, pid, config } => {
                config_fields(Writer::new(4).u32(session).u32(pid), config)
            }
            Request::MemberGone { session, member } => Writer::new(5).u32(session).u8(member),
            Request::SessionGone { session } => Writer::new(6).u32(session),
            Request::Stop => Writer::new(7),
            Request::ListSockets { token } => Writer::new(8).u32(token),
            Request::Balance { rules } => balance_fields(Writer::new(9), rules),
            Request::Adopt { blamed } => Writer::new(10).u8(blamed.into()),
            Request::ServerGone { server } => Writer::new(11).u8(server),
            Request::ServerRestarted { server, epoch } => Writer::new(12).u8(server).u32(epoch),
            Request::HandOver { ledger } => Writer::new(20).u32(ledger),
            Request::WriteLedger { version } => Writer::new(21).u32(version),
        }
        .bytes
    }

    /// The request in a packet.
    pub fn decode(bytes: &[u8]) -> Result<Request, BadMessage> {
        let bytes: &[u8; MESSAGE_BYTES] = bytes.try_into().map_err(|_| BadMessage)?;
        let (kind, mut r) = Reader::new(bytes);
        Ok(match kind {
            1 => Request::Attach { layout_version: r.u32() },
            2 => Request::Join { session: r.u32(), key: r.u64() },
            3 => Request::Leave { session: r.u32() },
            4 => Request::SessionOpened { session: r.u32(), pid: r.u32(), config: read_config(&mut r)? },
            5 => Request::MemberGone { session: r.u32(), member: r.u8() },
            6 => Request::SessionGone { session: r.u32() },
            7 => Request::Stop,
            8 => Request::ListSockets { token: r.u32() },
            9 => Request::Balance { rules: read_balance(&mut r)? },
            10 => Request::Adopt { blamed: r.u8() != 0 },
            11 => Request::ServerGone { server: r.u8() },
            12 => Request::ServerRestarted { server: r.u8(), epoch: r.u32() },
            20 => Request::HandOver { ledger: r.u32() },
            21 => Request::WriteLedger { version: r.u32() },
            _ => return Err(BadMessage),
        })
    }
}

impl Reply {
    /// The packet.
    pub fn encode(&self) -> [u8; MESSAGE_BYTES] {
        match *self {
            Reply::Joined { session, key, member, replicas, config } => {
                config_fields(Writer::new(65).u32(session).u64(key).u8(member).u8(replicas), config)
            }
            Reply::Refused { reason } => Writer::new(66).u8(reason as u8),
        }
        .bytes
    }

    /// The reply in a packet.
    pub fn decode(bytes: &[u8]) -> Result<Reply, BadMessage> {
        let bytes: &[u8; MESSAGE_BYTES] = bytes.try_into().map_err(|_| BadMessage)?;
        let (kind, mut r) = Reader::new(bytes);
        Ok(match kind {
            65 => Reply::Joined {
                session: r.u32(),
                key: r.u64(),
                member: r.u8(),
                replicas: r.u8(),
                config: read_config(&mut r)?,
            },
            66 => Reply::Refused { reason: Refusal::from_u8(r.u8()) },
            _ => return Err(BadMessage),
        })
    }
}

fn config_fields(writer: Writer, config: ArenaConfig) -> Writer {
    writer.u32(config.slots).u8(config.send_log2).u8(config.receive_log2)
}

fn read_config(r: &mut Reader<'_>) -> Result<ArenaConfig, BadMessage> {
    let config = ArenaConfig { slots: r.u32(), send_log2: r.u8(), receive_log2: r.u8() };
    if config.is_valid() { Ok(config) } else { Err(BadMessage) }
}

fn balance_fields(writer: Writer, rules: Balance) -> Writer {
    let Balance { scheme, tariff, estimator, window, sample_us, offer_us, high, low } = rules;
    let writer = writer.u8(scheme as u8).u8(estimator as u8).u16(tariff).u16(window);
    writer.u32(sample_us).u32(offer_us).u16(high).u16(low)
}

fn read_balance(r: &mut Reader<'_>) -> Result<Balance, BadMessage> {
    let scheme = Scheme::ALL.get(usize::from(r.u8())).copied().ok_or(BadMessage)?;
    let estimator = match r.u8() {
        0 => Estimator::Median,
        1 => Estimator::Average,
        _ => return Err(BadMessage),
    };
    let (tariff, window) = (r.u16(), r.u16());
    let (sample_us, offer_us) = (r.u32(), r.u32());
    let (high, low) = (r.u16(), r.u16());
    let rules = Balance { scheme, tariff, estimator, window, sample_us, offer_us, high, low };
    if rules.is_valid() { Ok(rules) } else { Err(BadMessage) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_packet_survives_the_socket() {
        let config = ArenaConfig::default();
        for request in [
            Request::Attach { layout_version: 1 },
            Request::Join { session: 3, key: u64::MAX },
            Request::Leave { session: 3 },
            Request::SessionOpened { session: 1, pid: 2, config },
            Request::MemberGone { session: 1, member: 63 },
            Request::SessionGone { session: 1 },
            Request::Stop,
            Request::ListSockets { token: 5 },
            Request::Balance { rules: Balance { scheme: Scheme::Filtered, offer_us: 77, ..Balance::new() } },
            Request::Adopt { blamed: true },
            Request::ServerGone { server: 9 },
            Request::ServerRestarted { server: 9, epoch: u32::MAX },
            Request::HandOver { ledger: 1 },
            Request::WriteLedger { version: 2 },
        ] {
            assert_eq!(Request::decode(&request.encode()), Ok(request));
        }
        for reply in [
            Reply::Joined { session: 1, key: 7, member: 2, replicas: 8, config },
            Reply::Refused { reason: Refusal::Members },
        ] {
            assert_eq!(Reply::decode(&reply.encode()), Ok(reply));
        }
        assert_eq!(Request::decode(&[0; 55]), Err(BadMessage));
        // The number lies behind everything else.
        let reply = Reply::Joined { session: 1, key: u64::MAX, member: 255, replicas: 255, config };
        let mut packet = reply.encode();
        assert_eq!(token(&packet), 0);
        set_token(&mut packet, u64::MAX - 1);
        assert_eq!((token(&packet), Reply::decode(&packet)), (u64::MAX - 1, Ok(reply)));
        let senseless = Request::Balance { rules: Balance { tariff: 0, ..Balance::new() } };
        assert_eq!(Request::decode(&senseless.encode()), Err(BadMessage));
    }
}
