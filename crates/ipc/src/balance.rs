//! The messages by which connection managers (CMs) report their acceptors to each other (P5), and the rules
//! by which they choose.
//!
//! Each message is a plain value with its own encoding; mesh records ([`crate::mesh::KIND_BALANCE`]) carry it
//! between replicas.
//!
//! ```text
//!   home CM of an acceptor  --PeerOffer: "my best acceptor takes so long"-->              every other CM
//!   every other CM  --ServiceReport: "what your acceptor did with what I gave it"-->      home CM
//! ```

use atoll_base::{Epoch, Instant, ReplicaId, SessionId};
use zerocopy::{FromBytes, LE, TryFromBytes, U32};

use crate::layout::{BadMessage, Field, numbered, part, put, record};

/// The rule by which a CM chooses among acceptors (P5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, TryFromBytes)]
#[repr(u8)]
pub enum Scheme {
    /// The CM takes its own acceptors in turn; offers of others only if it has none.
    Naive = 0,
    /// The CM draws once among its own acceptors and all offers.
    Unfiltered = 1,
    /// The CM draws once among its own acceptors and the offers that are better than its own after tariff.
    Filtered = 2,
    /// The CM compares its best acceptor with the best offer, with watermarks.
    #[default]
    Tournament = 3,
}

impl Scheme {
    /// All schemes, in the order of their numbers.
    pub const ALL: [Scheme; 4] = [Scheme::Naive, Scheme::Unfiltered, Scheme::Filtered, Scheme::Tournament];
}

/// The estimator of an acceptor's service time from its last connections (P5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, TryFromBytes)]
#[repr(u8)]
pub enum Estimator {
    /// The estimate is a moving median.
    #[default]
    Median = 0,
    /// The estimate is a moving average.
    Average = 1,
}

numbered!(Scheme);
numbered!(Estimator);

record! {
    /// The rules of balancing, which are the same in every replica. They may change while connections are
    /// served.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Balance {
        /// The scheme of choosing acceptors.
        pub scheme: Scheme,
        /// The estimator of service times.
        pub estimator: Estimator,
        /// The factor by which the service time of an offer counts more than that of an own acceptor.
        pub tariff: u16,
        /// The number of connections from which the estimate is made.
        pub window: u16,
        /// Microseconds between two estimates, and between two reports to an acceptor's home.
        pub sample_us: u32,
        /// Microseconds between two offers.
        pub offer_us: u32,
        /// Percent: an offer passes the filter of [`Scheme::Tournament`] when the own service time is more
        /// than this share of the offered one after tariff.
        pub high: u16,
        /// Percent: an offer is filtered again when the own service time is less than this share.
        pub low: u16,
    } if is_valid
}

impl Balance {
    /// The largest window, in connections.
    pub const WINDOW_MAX: u16 = 4096;
    /// The largest tariff.
    pub const TARIFF_MAX: u16 = 10_000;
    /// The longest period, in microseconds.
    pub const PERIOD_MAX: u32 = 10_000_000;

    /// Returns the rules that P5 found best: Tournament 2, moving median of 128 connections every 500 us,
    /// offers every 50 us.
    pub const fn new() -> Balance {
        Balance {
            scheme: Scheme::Tournament,
            tariff: 2,
            estimator: Estimator::Median,
            window: 128,
            sample_us: 500,
            offer_us: 50,
            high: 100,
            low: 75,
        }
    }

    /// Returns the window (in connections) and the period (in microseconds) that P5 used with an estimator.
    pub const fn usual_window(estimator: Estimator) -> (u16, u32) {
        match estimator {
            Estimator::Median => (128, 500),
            Estimator::Average => (256, 1000),
        }
    }

    /// Returns whether a CM can work with these rules.
    pub const fn is_valid(&self) -> bool {
        self.tariff >= 1
            && self.tariff <= Balance::TARIFF_MAX
            && self.window >= 1
            && self.window <= Balance::WINDOW_MAX
            && self.sample_us >= 1
            && self.sample_us <= Balance::PERIOD_MAX
            && self.offer_us >= 1
            && self.offer_us <= Balance::PERIOD_MAX
            && self.low >= 1
            && self.low <= self.high
    }
}

impl Default for Balance {
    fn default() -> Balance {
        Balance::new()
    }
}

/// An offer of a CM's best acceptor of a listener.
///
/// Its home sends it to every other CM, at most every [`Balance::offer_us`] and only after something has
/// happened there; no CM is woken for it. Lost: repeated within 10 ms while connections come; a receiver that
/// gets nothing for a second uses what it has seen itself. Late: the acceptor may be gone; then the receiver
/// does not know it either, or the claim times out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerOffer {
    /// The acceptor's socket, which names the listener, too.
    pub lease: u64,
    /// The acceptor's session.
    pub session: SessionId,
    /// The time in microseconds that its next connection is expected to take, at least 1; `None` if the CM
    /// has no acceptor any more.
    pub service_us: Option<u32>,
}

/// A report of what became of the connections that one CM gave to an acceptor of another.
///
/// Sent at most every [`Balance::sample_us`]. Lost: samples are missed, and the next report corrects the
/// counts. A home that sleeps is woken only for many connections or an old report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceReport {
    /// The acceptor's socket.
    pub lease: u64,
    /// The acceptor's session.
    pub session: SessionId,
    /// Whether the acceptor has not claimed in time: its home removes it, too (P4).
    pub timed_out: bool,
    /// The number of given connections that the acceptor has claimed and not closed.
    pub open: u32,
    /// The average time at which those were offered, in microseconds of the machine's clock.
    pub open_since_us: u64,
    /// The number of offered connections that the acceptor has not claimed.
    pub unclaimed: u32,
    /// Service times of connections that ended since the last report.
    pub services: Services,
}

/// Service times in microseconds, at most [`Services::MAX`] of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Services {
    micros: [u32; Services::MAX],
    len: u8,
}

impl Services {
    /// The number of service times in a report; of more the last ones are kept.
    pub const MAX: usize = 32;

    /// Adds a service time; if there are too many, the oldest is dropped.
    pub fn push(&mut self, micros: u32) {
        if usize::from(self.len) == Services::MAX {
            self.micros.copy_within(1.., 0);
            self.len -= 1;
        }
        self.micros[usize::from(self.len)] = micros;
        self.len += 1;
    }

    /// Returns the service times, oldest first.
    pub fn as_slice(&self) -> &[u32] {
        &self.micros[..usize::from(self.len)]
    }
}

impl PartialEq for Services {
    fn eq(&self, other: &Services) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for Services {}

/// A message from one CM to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerMessage {
    /// The replica that sends the message.
    pub from: ReplicaId,
    /// The incarnation of the sender; messages of a dead one do not count.
    pub epoch: Epoch,
    /// When the message was sent, on the machine's clock: a receiver that slept may read it much later.
    pub sent_at: Instant,
    /// The content of the message.
    pub body: PeerBody,
}

/// The content of a message between CMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // Both live on the stack, for a moment.
pub enum PeerBody {
    /// An offer, sent to all CMs.
    Offer(PeerOffer),
    /// A report, sent to an acceptor's home.
    Report(ServiceReport),
}

record! {
    /// The part of a message before its service times.
    #[derive(Default)]
    struct Fixed {
        kind: u8,
        from: ReplicaId,
        flags: u8,
        services_len: u8,
        epoch: Epoch,
        lease: u64,
        session: SessionId,
        /// The time of an offer, 0 for none; in a report the number of open connections.
        service_us_or_open: u32,
        unclaimed: u32,
        open_since_us: u64,
        sent_at: Instant; 4 unused,
    }
}

/// The size of a message in bytes before the service times.
const FIXED: usize = size_of::<<Fixed as Field>::Octets>();
/// The size of the longest message in bytes.
pub const PEER_BYTES_MAX: usize = FIXED + Services::MAX * 4;
const KIND_OFFER: u8 = 1;
const KIND_REPORT: u8 = 2;
const TIMED_OUT: u8 = 1;

impl PeerMessage {
    /// Writes the message to `out` and returns the part of it that was used.
    pub fn encode<'a>(&self, out: &'a mut [u8; PEER_BYTES_MAX]) -> &'a [u8] {
        let (mut fixed, services) = match &self.body {
            PeerBody::Offer(PeerOffer { lease, session, service_us }) => {
                let service_us_or_open = service_us.unwrap_or(0);
                let (kind, lease, session) = (KIND_OFFER, *lease, *session);
                (Fixed { kind, lease, session, service_us_or_open, ..Fixed::default() }, &[][..])
            }
            PeerBody::Report(report) => {
                let fixed = Fixed {
                    kind: KIND_REPORT,
                    flags: u8::from(report.timed_out) * TIMED_OUT,
                    services_len: report.services.len,
                    lease: report.lease,
                    session: report.session,
                    service_us_or_open: report.open,
                    unclaimed: report.unclaimed,
                    open_since_us: report.open_since_us,
                    ..Fixed::default()
                };
                (fixed, report.services.as_slice())
            }
        };
        (fixed.from, fixed.epoch, fixed.sent_at) = (self.from, self.epoch, self.sent_at);
        put(out, 0, &fixed.write());
        for (i, micros) in services.iter().enumerate() {
            put(out, FIXED + i * 4, &micros.write());
        }
        &out[..FIXED + services.len() * 4]
    }

    /// Decodes the message in a payload. Fails with [`BadMessage`] for malformed ones.
    pub fn decode(bytes: &[u8]) -> Result<PeerMessage, BadMessage> {
        let fixed = Fixed::read(part(bytes, 0)?)?;
        let micros = <[U32<LE>]>::ref_from_bytes(&bytes[FIXED..]).map_err(|_| BadMessage)?;
        let count = usize::from(fixed.services_len);
        if count > Services::MAX || micros.len() != count || fixed.flags & !TIMED_OUT != 0 {
            return Err(BadMessage);
        }
        let mut services = Services::default();
        micros.iter().for_each(|micros| services.push(micros.get()));
        let Fixed { from, epoch, lease, session, sent_at, .. } = fixed;
        let body = match fixed.kind {
            KIND_OFFER if count == 0 => {
                let service_us = Some(fixed.service_us_or_open).filter(|micros| *micros > 0);
                PeerBody::Offer(PeerOffer { lease, session, service_us })
            }
            KIND_REPORT => PeerBody::Report(ServiceReport {
                lease,
                session,
                timed_out: fixed.flags & TIMED_OUT != 0,
                open: fixed.service_us_or_open,
                open_since_us: fixed.open_since_us,
                unclaimed: fixed.unclaimed,
                services,
            }),
            _ => return Err(BadMessage),
        };
        Ok(PeerMessage { from, epoch, sent_at, body })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(count: u32) -> ServiceReport {
        let mut services = Services::default();
        (0..count).for_each(|micros| services.push(micros));
        ServiceReport {
            lease: u64::MAX - 1,
            session: SessionId(9),
            timed_out: count % 2 == 1,
            open: 3,
            open_since_us: 1 << 50,
            unclaimed: 4,
            services,
        }
    }

    #[test]
    fn every_message_survives_the_ring() {
        let offer = |service_us| PeerBody::Offer(PeerOffer { lease: 7, session: SessionId(3), service_us });
        let reports = [0, 1, 31, 32, 40].map(|count| PeerBody::Report(report(count)));
        for body in [offer(None), offer(Some(1)), offer(Some(u32::MAX))].into_iter().chain(reports) {
            let message = PeerMessage {
                from: ReplicaId(5),
                epoch: Epoch(8),
                sent_at: Instant::from_nanos(1 << 60),
                body,
            };
            let mut out = [0xff; PEER_BYTES_MAX];
            let bytes = message.encode(&mut out);
            assert_eq!(PeerMessage::decode(bytes), Ok(message));
            assert_eq!(PeerMessage::decode(&bytes[..bytes.len() - 1]), Err(BadMessage));
        }
        assert_eq!(PeerMessage::decode(&[0; FIXED]), Err(BadMessage));
    }

    #[test]
    fn of_too_many_service_times_the_last_are_kept() {
        assert_eq!(report(40).services.as_slice(), (8..40).collect::<alloc::vec::Vec<u32>>());
    }

    #[test]
    fn the_usual_rules_are_valid_and_senseless_ones_are_not() {
        let usual = Balance::new();
        assert!(usual.is_valid());
        for rules in [
            Balance { tariff: 0, ..usual },
            Balance { window: 0, ..usual },
            Balance { window: 4097, ..usual },
            Balance { sample_us: 0, ..usual },
            Balance { offer_us: 10_000_001, ..usual },
            Balance { high: 50, low: 51, ..usual },
            Balance { low: 0, ..usual },
        ] {
            assert!(!rules.is_valid(), "{rules:?}");
        }
    }
}
