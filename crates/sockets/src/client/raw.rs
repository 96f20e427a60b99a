//! What raw sockets of ICMP have besides what all datagram sockets have: raw(7), icmp(7), RFC 3542.

use atoll_base::Endpoint;
use atoll_ipc::command::{Protocol, SocketOption};
use libc::{IPPROTO_ICMPV6, IPPROTO_IP, IPPROTO_IPV6};

use super::Client;
use super::object::{Kind, Socket, any};
use super::platform::Platform;
use crate::Errno;
use crate::options::Value;

/// `SOL_RAW` and `ICMP_FILTER` (linux/icmp.h).
const ICMP_FILTER: (i32, i32) = (SOL_RAW, 1);
const SOL_RAW: i32 = 255;
/// `ICMP6_FILTER` (netinet/icmp6.h).
const ICMP6_FILTER: (i32, i32) = (IPPROTO_ICMPV6, 1);
/// `IPV6_CHECKSUM` (linux/in6.h): where the checksum is.
const IPV6_CHECKSUM: (i32, i32) = (IPPROTO_IPV6, 7);
/// The value of `IPV6_CHECKSUM` for ICMPv6, which cannot be changed (RFC 3542 §3.1).
const CHECKSUM_AT: u32 = 2;
/// Whether programs write the header of IP.
const IP_HDRINCL: (i32, i32) = (IPPROTO_IP, libc::IP_HDRINCL);

impl<P: Platform> Client<P> {
    /// Returns where a new raw socket is to be bound before its program sees it.
    pub fn start_of_raw(&self, object: u32) -> Result<Endpoint, Errno> {
        let socket = self.socket(object).ok_or(Errno::ENOTSOCK)?;
        Ok(Endpoint { port: Protocol::raw_port(socket.v6), ..any(socket.v6) })
    }

    /// Changes the local address of a raw socket, which has its port from the start: bind(2). Fails with
    /// EINVAL if it has a peer (raw_bind).
    pub fn rename_raw(&mut self, object: u32, local: Endpoint) -> Result<(), Errno> {
        let socket = self.socket_mut(object).ok_or(Errno::ENOTSOCK)?;
        let Kind::Datagram(datagram) = &mut socket.kind else { return Err(Errno::EINVAL) };
        if datagram.connected {
            return Err(Errno::EINVAL);
        }
        datagram.local_chosen = false;
        socket.local.addr = local.addr;
        Ok(())
    }

    /// Sets an option that only raw sockets have. Returns `None` if it is none of these.
    pub(super) fn set_raw_option(
        &mut self,
        object: u32,
        option: (i32, i32),
        value: &[u8],
    ) -> Option<Result<(), Errno>> {
        let socket = self.socket_mut(object).filter(|socket| socket.protocol == Protocol::Raw)?;
        let words = match option {
            ICMP_FILTER if !socket.v6 => 1,
            ICMP6_FILTER if socket.v6 => 8,
            // rawv6_setsockopt: the checksum of ICMPv6 is where it is.
            IPV6_CHECKSUM if socket.v6 => return Some(Err(Errno::EINVAL)),
            // What such a socket does anyway.
            IP_HDRINCL if value.first_chunk() == Some(&[0; 4]) => return Some(Ok(())),
            _ => return None,
        };
        let Kind::Datagram(datagram) = &mut socket.kind else { return Some(Err(Errno::EINVAL)) };
        // raw_seticmpfilter: what the value does not reach stays.
        let mut octets = octets_of(&datagram.filter);
        let len = value.len().min(4 * words);
        octets[..len].copy_from_slice(&value[..len]);
        let before = datagram.filter;
        for (word, octets) in datagram.filter.iter_mut().zip(octets.as_chunks().0) {
            *word = u32::from_ne_bytes(*octets);
        }
        if before != datagram.filter {
            self.send_filter(object);
        }
        Some(Ok(()))
    }

    /// Sends replicas the types of messages that a raw socket does not get.
    pub(super) fn send_filter(&mut self, object: u32) {
        let Some(Socket { protocol: Protocol::Raw, v6, kind: Kind::Datagram(datagram), .. }) =
            self.socket(object)
        else {
            return;
        };
        let (filter, words) = (datagram.filter, if *v6 { 8 } else { 1 });
        for (option, word) in SocketOption::FILTERS.into_iter().zip(filter).take(words) {
            self.send_option(object, option, word);
        }
    }
}

/// Returns the value of an option that only raw sockets have; `None` if it is none of these.
pub(super) fn option(socket: &Socket, option: (i32, i32)) -> Option<Result<Value, Errno>> {
    let Kind::Datagram(datagram) = &socket.kind else { return None };
    if socket.protocol != Protocol::Raw {
        return None;
    }
    let filter = octets_of(&datagram.filter);
    Some(Ok(match option {
        ICMP_FILTER if !socket.v6 => Value::of(&filter[..4]),
        ICMP6_FILTER if socket.v6 => Value::of(&filter),
        IPV6_CHECKSUM if socket.v6 => Value::of_int(CHECKSUM_AT),
        IP_HDRINCL => Value::of_int(0),
        (SOL_RAW | IPPROTO_ICMPV6, _) => return Some(Err(Errno::ENOPROTOOPT)),
        _ => return None,
    }))
}

fn octets_of(filter: &[u32; 8]) -> [u8; 32] {
    let mut octets = [0; 32];
    for (to, word) in octets.as_chunks_mut().0.iter_mut().zip(filter) {
        *to = word.to_ne_bytes();
    }
    octets
}
