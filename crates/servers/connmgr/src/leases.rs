//! Who holds which port? The authority for the ports `p` with `p mod replicas == me`. bind(2), ip(7), socket(7).

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use atoll_base::{Endpoint, Rng, SessionId};
use atoll_ipc::Cause;
use atoll_ipc::command::Protocol;

/// The ports that this replica is the authority for.
#[derive(Debug)]
pub struct Leases {
    me: u16,
    replicas: u16,
    ephemeral: (u16, u16),
    rng: Rng,
    leases: BTreeMap<u64, Lease>,
    /// Which leases hold a port.
    ports: BTreeMap<(Protocol, u16), Vec<u64>>,
}

/// What a socket asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BindRequest {
    /// Identity of the socket.
    pub lease: u64,
    /// Its protocol.
    pub protocol: Protocol,
    /// Address (0: all) and port (0: any).
    pub local: Endpoint,
    /// `SO_REUSEADDR`.
    pub reuse_addr: bool,
    /// `SO_REUSEPORT`.
    pub reuse_port: bool,
}

#[derive(Debug)]
struct Lease {
    request: BindRequest,
    holders: Vec<SessionId>,
    listening: bool,
}

impl Leases {
    /// The authority of replica `me` of `replicas`; `ephemeral`: first and last port given to sockets that want any.
    pub fn new(me: u8, replicas: u8, ephemeral: (u16, u16), seed: u64) -> Leases {
        Leases {
            me: u16::from(me),
            replicas: u16::from(replicas.max(1)),
            ephemeral: (ephemeral.0.max(1), ephemeral.1.max(ephemeral.0.max(1))),
            rng: Rng::new(seed),
            leases: BTreeMap::new(),
            ports: BTreeMap::new(),
        }
    }

    /// Leases a port to a socket held by `session`, and returns it. A lease that exists gets one more holder.
    ///
    /// Errors: [`Cause::AddressInUse`]; [`Cause::Invalid`] for a port of another authority.
    pub fn bind(&mut self, session: SessionId, mut request: BindRequest) -> Result<u16, Cause> {
        if let Some(lease) = self.leases.get_mut(&request.lease) {
            if !lease.holders.contains(&session) {
                lease.holders.push(session);
            }
            return Ok(lease.request.local.port);
        }
        if request.local.port == 0 {
            request.local.port = self.free_port(&request).ok_or(Cause::AddressInUse)?;
        } else if request.local.port % self.replicas != self.me {
            return Err(Cause::Invalid);
        } else if self.conflicts(&request) {
            return Err(Cause::AddressInUse);
        }
        let port = request.local.port;
        self.ports.entry((request.protocol, port)).or_default().push(request.lease);
        let lease = Lease { request, holders: Vec::from([session]), listening: false };
        self.leases.insert(request.lease, lease);
        Ok(port)
    }

    /// The socket began to listen: others with `SO_REUSEADDR` alone may no longer join (Linux). Fails with
    /// [`Cause::AddressInUse`] if another socket listens there already and the two do not share the port.
    pub fn listen(&mut self, lease: u64) -> Result<(), Cause> {
        let Some(mine) = self.leases.get(&lease).map(|lease| lease.request) else { return Ok(()) };
        let others = self.ports.get(&(mine.protocol, mine.local.port)).map_or(&[][..], Vec::as_slice);
        let clash = others.iter().filter(|id| **id != lease).filter_map(|id| self.leases.get(id)).any(|other| {
            other.listening
                && overlap(other.request.local, mine.local)
                && !(other.request.reuse_port && mine.reuse_port)
        });
        if clash {
            return Err(Cause::AddressInUse);
        }
        if let Some(lease) = self.leases.get_mut(&lease) {
            lease.listening = true;
        }
        Ok(())
    }

    /// `session` no longer holds the lease; the port is free when nobody does.
    pub fn release(&mut self, session: SessionId, lease: u64) {
        let Some(entry) = self.leases.get_mut(&lease) else { return };
        entry.holders.retain(|holder| *holder != session);
        if entry.holders.is_empty() {
            let key = (entry.request.protocol, entry.request.local.port);
            self.leases.remove(&lease);
            if let Some(list) = self.ports.get_mut(&key) {
                list.retain(|id| *id != lease);
                if list.is_empty() {
                    self.ports.remove(&key);
                }
            }
        }
    }

    /// `session` is gone.
    pub fn release_session(&mut self, session: SessionId) {
        let held: Vec<u64> =
            self.leases.iter().filter(|(_, lease)| lease.holders.contains(&session)).map(|(id, _)| *id).collect();
        for lease in held {
            self.release(session, lease);
        }
    }

    /// Number of leases.
    pub fn len(&self) -> usize {
        self.leases.len()
    }

    /// Whether there are no leases.
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    fn conflicts(&self, wanted: &BindRequest) -> bool {
        let Some(holders) = self.ports.get(&(wanted.protocol, wanted.local.port)) else { return false };
        holders.iter().filter_map(|id| self.leases.get(id)).any(|other| {
            let held = &other.request;
            let shared =
                (held.reuse_port && wanted.reuse_port) || (held.reuse_addr && wanted.reuse_addr && !other.listening);
            overlap(held.local, wanted.local) && !shared
        })
    }

    fn free_port(&mut self, request: &BindRequest) -> Option<u16> {
        let (first, last) = self.ephemeral;
        let span = u32::from(last - first) + 1;
        let start = self.rng.below(span);
        (0..span)
            .map(|i| first + ((start + i) % span) as u16)
            .filter(|port| port % self.replicas == self.me)
            .find(|port| !self.ports.contains_key(&(request.protocol, *port)))
    }
}

fn overlap(a: Endpoint, b: Endpoint) -> bool {
    a.addr == 0 || b.addr == 0 || a.addr == b.addr
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SessionId = SessionId(1);
    const B: SessionId = SessionId(2);

    fn request(lease: u64, addr: u32, port: u16) -> BindRequest {
        BindRequest {
            lease,
            protocol: Protocol::Tcp,
            local: Endpoint::new(addr, port),
            reuse_addr: false,
            reuse_port: false,
        }
    }

    fn leases() -> Leases {
        Leases::new(0, 2, (40000, 40019), 1)
    }

    #[test]
    fn a_port_is_held_until_the_last_session_releases_it() {
        let mut leases = leases();
        assert_eq!(leases.bind(A, request(1, 0, 80)), Ok(80));
        assert_eq!(leases.bind(B, request(1, 0, 80)), Ok(80), "a forked child adds itself");
        assert_eq!(leases.bind(B, request(2, 7, 80)), Err(Cause::AddressInUse));
        leases.release(A, 1);
        assert_eq!(leases.bind(B, request(2, 7, 80)), Err(Cause::AddressInUse));
        leases.release_session(B);
        assert_eq!(leases.bind(B, request(2, 7, 80)), Ok(80));
    }

    #[test]
    fn sharing_follows_the_options_of_both() {
        let both = |addr, port| BindRequest { reuse_addr: addr, reuse_port: port, ..request(0, 0, 80) };
        for (first, second, allowed) in [
            (both(false, false), both(true, true), false),
            (both(true, false), both(true, false), true),
            (both(false, true), both(false, true), true),
            (both(true, false), both(false, true), false),
        ] {
            let mut leases = leases();
            assert_eq!(leases.bind(A, BindRequest { lease: 1, ..first }), Ok(80));
            let got = leases.bind(B, BindRequest { lease: 2, ..second });
            assert_eq!(got.is_ok(), allowed, "{first:?} {second:?}");
        }
    }

    #[test]
    fn a_listening_port_is_not_shared_by_reuse_addr() {
        let mut leases = leases();
        let reuse = BindRequest { reuse_addr: true, ..request(1, 0, 80) };
        assert_eq!(leases.bind(A, reuse), Ok(80));
        assert_eq!(leases.bind(B, BindRequest { lease: 2, ..reuse }), Ok(80));
        assert_eq!(leases.listen(1), Ok(()));
        assert_eq!(leases.listen(2), Err(Cause::AddressInUse));
        assert_eq!(leases.bind(B, BindRequest { lease: 3, ..reuse }), Err(Cause::AddressInUse));
    }

    #[test]
    fn ports_of_other_authorities_are_refused_and_any_port_is_an_own_one() {
        let mut leases = leases();
        assert_eq!(leases.bind(A, request(1, 0, 81)), Err(Cause::Invalid));
        for lease in 0..10 {
            let port = leases.bind(A, request(100 + lease, 0, 0)).expect("free");
            assert!(port % 2 == 0 && (40000..=40019).contains(&port));
        }
        assert_eq!(leases.bind(A, request(999, 0, 0)), Err(Cause::AddressInUse));
    }
}
