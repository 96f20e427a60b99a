//! What do replicas hear of a socket's options and groups? Everything that differs from the default when the
//! socket is new to them, and changes afterwards.

use alloc::vec;
use alloc::vec::Vec;

use atoll_base::Addr;
use atoll_ipc::Command;
use atoll_ipc::command::{Protocol, SocketOption};

use super::Client;
use super::object::{Kind, Options, Place};
use super::platform::Platform;

/// What replicas are told of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership {
    /// The socket joins, and somebody waits for the answer.
    Joins,
    /// The socket joins; whether there was room is not asked.
    JoinsUnasked,
    /// The socket leaves.
    Leaves,
}

/// `SO_MAX_PACING_RATE` as replicas are told, in octets a second: they pace up to 4 GB a second.
pub fn pacing_rate(rate: u64) -> u32 {
    u32::try_from(rate).unwrap_or(u32::MAX)
}

impl<P: Platform> Client<P> {
    /// Tells replicas every option of a socket that differs from the default.
    pub fn send_options(&mut self, object: u32) {
        let Some(socket) = self.socket(object) else { return };
        let (o, udp) = (socket.options, socket.protocol == Protocol::Udp);
        let listening = matches!(socket.kind, Kind::Listening(_));
        for (differs, option, value) in [
            (o.nodelay, SocketOption::NoDelay, 1),
            (o.cork, SocketOption::Cork, 1),
            (o.quickack, SocketOption::QuickAck, 1),
            (o.user_timeout > 0, SocketOption::UserTimeout, o.user_timeout),
            (o.max_segment > 0, SocketOption::MaxSegment, o.max_segment),
            (o.receive_buffer > 0, SocketOption::ReceiveBuffer, o.receive_buffer),
            (o.send_buffer > 0, SocketOption::SendBuffer, o.send_buffer),
            (o.congestion > 0, SocketOption::Congestion, o.congestion.into()),
            (o.linger2 > 0, SocketOption::Linger2, o.linger2),
            (o.syn_count > 0, SocketOption::SynCount, o.syn_count),
            (o.unsent_low > 0, SocketOption::UnsentLow, o.unsent_low),
            (o.pacing_rate > 0 && !udp, SocketOption::MaxPacingRate, pacing_rate(o.pacing_rate)),
            (o.fast_open > 0 && listening, SocketOption::FastOpen, o.fast_open),
            (o.ttl > 0, SocketOption::TimeToLive, o.ttl),
            (o.tos > 0, SocketOption::TypeOfService, o.tos),
            (o.mtu_discover.is_some() && udp, SocketOption::MtuDiscover, o.mtu_discover.unwrap_or_default()),
            (o.mtu_discover_v6.is_some() && udp, SocketOption::MtuDiscoverV6, o.mtu_discover_v6.unwrap_or_default()),
            (o.dont_fragment_v6 && udp, SocketOption::DontFragmentV6, 1),
            (o.hops > 0, SocketOption::UnicastHops, o.hops.saturating_sub(1)),
            (o.tclass > 0, SocketOption::TrafficClass, o.tclass),
        ] {
            if differs {
                self.send_option(object, option, value);
            }
        }
        self.send_keep_alive(object, &o);
        if udp {
            self.send_groups(object);
        }
    }

    /// Tells replicas of keep-alive first, of its times afterwards: turning it on resets them.
    pub fn send_keep_alive(&mut self, object: u32, o: &Options) {
        let listening = self.socket(object).is_some_and(|socket| matches!(socket.kind, Kind::Listening(_)));
        if !o.keepalive && listening {
            return;
        }
        self.send_option(object, SocketOption::KeepAlive, o.keepalive.into());
        if o.keepalive {
            for (option, value) in [
                (SocketOption::KeepIdle, o.keep_idle),
                (SocketOption::KeepInterval, o.keep_interval),
                (SocketOption::KeepCount, o.keep_count),
            ] {
                if value > 0 {
                    self.send_option(object, option, value);
                }
            }
        }
    }

    // ---- groups ----

    /// Tells replicas that a socket joins or leaves a group. Returns the tokens of the questions that are
    /// answered: a session of another process gets its answers itself.
    pub fn send_membership(&mut self, object: u32, group: Addr, inside: bool, what: Membership) -> Vec<u32> {
        let places = self.socket(object).map(|socket| socket.places().to_vec()).unwrap_or_default();
        let mut tokens = Vec::new();
        for Place { session, replica, slot, generation } in places {
            let is_asked = what == Membership::Joins && session == 0;
            let token = if is_asked { self.new_token() } else { 0 };
            tokens.extend(is_asked.then_some(token));
            let joins = what != Membership::Leaves;
            let command = Command::Group { slot, generation, group, inside, joins, token };
            if is_asked {
                self.ask(replica, token, vec![command]);
            } else {
                self.push(session, replica, &command);
            }
        }
        tokens
    }

    /// Tells replicas what a socket wants of groups: the socket is new to them.
    pub fn send_groups(&mut self, object: u32) {
        let Some(multicast) = self.socket(object).and_then(|socket| socket.multicast.clone()) else { return };
        let v6 = &multicast.v6;
        for (option, value) in [
            (SocketOption::MulticastTtl, multicast.ttl.into()),
            (SocketOption::MulticastLoop, multicast.is_looped.into()),
            (SocketOption::MulticastAll, multicast.all.into()),
            (SocketOption::MulticastInside, u32::from(multicast.interface >> 24 == 127)),
            (SocketOption::MulticastHops, v6.hops.into()),
            (SocketOption::MulticastLoopV6, v6.is_looped.into()),
            (SocketOption::MulticastAllV6, v6.all.into()),
            (SocketOption::MulticastInsideV6, v6.is_inside().into()),
        ] {
            self.send_option(object, option, value);
        }
        for (group, inside) in multicast.joined {
            self.send_membership(object, group, inside, Membership::JoinsUnasked);
        }
    }
}
