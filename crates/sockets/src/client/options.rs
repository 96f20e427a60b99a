//! The options and groups of a socket that are sent to replicas: everything that differs from the default
//! when the socket is new to them, and later changes.

use alloc::vec;
use alloc::vec::Vec;

use atoll_base::Addr;
use atoll_ipc::Command;
use atoll_ipc::command::{Protocol, SocketOption};
use atoll_ipc::details::TimeOfDay;
use atoll_ipc::page::FAST_OPEN_CLIENT;
use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET, SOL_UDP};

use super::Client;
use super::object::{Kind, Place, Socket};
use super::platform::Platform;
use crate::errno::{Errno, Failure};
use crate::options::{Name, Row, SO_BINDTOIFINDEX, TABLE, Told, Value, When, interface_named, name_of};
use crate::stamps::{Form, NO_FORM, Stamp};

/// `SO_MARK` (linux/asm-generic/socket.h), which only root may set on Linux, and no program here.
const MARK: (i32, i32) = (SOL_SOCKET, libc::SO_MARK);

/// `SO_BINDTODEVICE` (asm-generic/socket.h), whose value is a name.
const BINDTODEVICE: (i32, i32) = (SOL_SOCKET, libc::SO_BINDTODEVICE);

/// Options of unix sockets (linux/asm-generic/socket.h).
const PASSPIDFD: i32 = 76;
const PEERPIDFD: i32 = 77;
const PASSRIGHTS: i32 = 83;

/// The change of a membership that is sent to replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership {
    /// The socket joins, and a caller waits for the answer.
    Joins,
    /// The socket joins, and no caller waits for the answer.
    JoinsUnasked,
    /// The socket leaves.
    Leaves,
}

/// Returns the error for an option of `TCP_REPAIR`, which takes CAP_NET_ADMIN on Linux, or of a connection
/// that would have to be under repair (do_tcp_setsockopt). `is_open`: the socket listens, or has a
/// connection.
fn of_repair(number: i32, is_open: bool) -> Option<Errno> {
    match number {
        libc::TCP_REPAIR | libc::TCP_REPAIR_QUEUE | libc::TCP_TIMESTAMP | libc::TCP_REPAIR_WINDOW => {
            Some(Errno::EPERM)
        }
        libc::TCP_QUEUE_SEQ => Some(if is_open { Errno::EPERM } else { Errno::EINVAL }),
        libc::TCP_REPAIR_OPTIONS => Some(Errno::EINVAL),
        _ => None,
    }
}

impl<P: Platform> Client<P> {
    // structure: set_option: each check refuses with an error of its own, in the order of Linux
    /// Sets an option of a socket to the value that the program has written. Fails as setsockopt(2) does,
    /// with ENOPROTOOPT for options that are not in the table. [`Failure::WouldBlock`] means that there was
    /// no turn ([`Client::turn`]).
    pub fn set_option(&mut self, object: u32, level: i32, number: i32, value: &[u8]) -> Result<(), Failure> {
        let is_closed = self.stream(object).is_some_and(|(stream, ..)| stream.is_closed());
        let may_open_fast = self.own().is_some_and(|session| session.facts.fast_open & FAST_OPEN_CLIENT != 0);
        if let Some(result) = self.set_raw_option(object, (level, number), value) {
            return result.map_err(Failure::from);
        }
        let index;
        let (number, value) = if (level, number) == BINDTODEVICE {
            index = interface_named(value)?.to_ne_bytes();
            (SO_BINDTOIFINDEX, &index[..])
        } else {
            (number, value)
        };
        let socket = self.socket_mut(object).ok_or(Errno::ENOTSOCK)?;
        let is_tcp = socket.protocol == Protocol::Tcp;
        let is_udp = socket.protocol == Protocol::Udp;
        if level == SOL_SOCKET && value.len() < size_of::<i32>() {
            return Err(Errno::EINVAL.into());
        }
        let row = Row::find(level, number).filter(|_| match level {
            IPPROTO_TCP => is_tcp,
            IPPROTO_IPV6 => socket.v6,
            SOL_UDP => is_udp,
            _ => !is_tcp || Form::of(level, number).is_none(),
        });
        let is_of_both = |row: &Row| matches!(row.name, Name::ZeroCopy | Name::PeekOffset);
        if row.is_some_and(is_of_both) && !is_tcp && !is_udp {
            return Err(Errno::EOPNOTSUPP.into());
        }
        let is_mark = (level, number) == MARK;
        let is_of_protocol = level == IPPROTO_TCP && is_tcp || level == SOL_UDP && is_udp;
        let row = row.ok_or(match (level, number) {
            _ if is_mark => Errno::EPERM,
            (SOL_SOCKET, libc::SO_PASSCRED | libc::SO_PASSSEC | PASSPIDFD | PASSRIGHTS) => Errno::EOPNOTSUPP,
            // sk_detach_filter: there is none.
            (SOL_SOCKET, libc::SO_DETACH_FILTER) => Errno::ENOENT,
            (IPPROTO_TCP, libc::TCP_FASTOPEN_KEY) => Errno::ENOPROTOOPT,
            // tcp_set_ulp: there is no protocol of any name.
            (IPPROTO_TCP, libc::TCP_ULP) if is_tcp => {
                if value.is_empty() {
                    Errno::EINVAL
                } else {
                    Errno::ENOENT
                }
            }
            _ if is_of_protocol && value.len() < size_of::<i32>() => Errno::EINVAL,
            (IPPROTO_TCP, number) if is_tcp => {
                let is_open = !is_closed && !matches!(socket.kind, Kind::Fresh | Kind::Bound);
                of_repair(number, is_open).unwrap_or(Errno::ENOPROTOOPT)
            }
            _ => Errno::ENOPROTOOPT,
        })?;
        let mut held = row.decode(value, socket.options.value(row.name), is_tcp)?;
        if let Some(form) = Form::of(level, number) {
            held = match held {
                // sock_set_timestamp: times are noted as before.
                0 if socket.options.is_on(row.name) => NO_FORM,
                0 => 0,
                _ => form as u64,
            };
        }
        if row.name == Name::ReceiveLow
            && is_tcp
            && socket.options.is_receive_locked()
            && let Some(buffer) = socket.options.set_value(Name::ReceiveBuffer)
        {
            // tcp_set_rcvlowat: a program that waits for more than there is room for would wait for ever.
            held = held.min(buffer);
        }
        if row.name == Name::Device
            && matches!(socket.kind, Kind::Listening(_))
            && held != socket.options.value(Name::Device)
        {
            // DEVIATION: the connections of a listener would have to move with it.
            return Err(Errno::EOPNOTSUPP.into());
        }
        if row.name == Name::FastOpenConnect && !may_open_fast {
            return Err(Errno::EOPNOTSUPP.into());
        }
        let is_in_time = match row.when {
            // As on Linux, a clamp that was set may only become another one.
            When::Always if row.name == Name::WindowClamp && held == 0 => {
                matches!(socket.kind, Kind::Fresh | Kind::Bound)
            }
            When::Always => true,
            // As on Linux, what was closed is not connected.
            When::Unconnected | When::NotConnected if is_closed => true,
            When::Fresh => matches!(socket.kind, Kind::Fresh),
            When::Unconnected => matches!(socket.kind, Kind::Fresh | Kind::Bound),
            When::NotConnected => matches!(socket.kind, Kind::Fresh | Kind::Bound | Kind::Listening(_)),
        };
        if !is_in_time {
            return Err(Errno::EINVAL.into());
        }
        if row.name == Name::WindowClamp && socket.unset_clamp() == Some(held) {
            // What getsockopt(2) has said is given back: nothing bounds the window more than before.
            return Ok(());
        }
        // A program may set an option again and again, as web servers do; replicas get the value once.
        let is_new = match socket.options.set_value(row.name) {
            Some(_) if row.name == Name::QuickAck => true,
            // tcp_sock_set_nodelay: each time what a cork holds back leaves.
            Some(_) if row.name == Name::NoDelay && held != 0 && socket.is_corked() => true,
            Some(before) => before != held,
            None => row.differs(held),
        };
        socket.options.set(row.name, held);
        socket.options.lock_buffer(row.name);
        self.apply(object, row.name)?;
        if is_new {
            self.tell(object, row);
        }
        Ok(())
    }

    /// Fails as getsockopt(2) does for a level that the socket does not have.
    pub fn check_level(&self, object: u32, level: i32) -> Result<(), Errno> {
        let socket = self.socket(object).ok_or(Errno::ENOTSOCK)?;
        match level {
            SOL_SOCKET | IPPROTO_IP => Ok(()),
            IPPROTO_TCP if socket.protocol == Protocol::Tcp => Ok(()),
            SOL_UDP if socket.protocol == Protocol::Udp => Ok(()),
            IPPROTO_IPV6 if socket.v6 => Ok(()),
            _ if socket.protocol == Protocol::Raw => Ok(()),
            // Linux passes a level that it does not know on to that of IP.
            _ => Err(if socket.v6 { Errno::ENOPROTOOPT } else { Errno::EOPNOTSUPP }),
        }
    }

    /// Returns the error of setsockopt(2) that Linux finds before it looks at the value, of `len` octets.
    pub fn refusal(&self, object: u32, (level, number): (i32, i32), len: usize) -> Option<Errno> {
        let socket = self.socket(object)?;
        let is_of_protocol = (level, socket.protocol) == (IPPROTO_TCP, Protocol::Tcp)
            || (level, socket.protocol) == (SOL_UDP, Protocol::Udp);
        match (level, number) {
            (SOL_SOCKET, _) => None,
            // do_tcp_setsockopt
            (IPPROTO_TCP, libc::TCP_CONGESTION | libc::TCP_ULP | libc::TCP_FASTOPEN_KEY)
                if is_of_protocol =>
            {
                None
            }
            _ if is_of_protocol => (len < size_of::<i32>()).then_some(Errno::EINVAL),
            (IPPROTO_IP, libc::IP_MULTICAST_IF) if socket.protocol == Protocol::Tcp => Some(Errno::EINVAL),
            (IPPROTO_IP, libc::IP_ADD_MEMBERSHIP | libc::IP_DROP_MEMBERSHIP)
                if socket.protocol == Protocol::Tcp =>
            {
                Some(Errno::EPROTO)
            }
            (IPPROTO_IP, libc::IP_MULTICAST_IF..=libc::IP_DROP_MEMBERSHIP)
            | (IPPROTO_IP, libc::MCAST_JOIN_GROUP | libc::MCAST_LEAVE_GROUP | libc::IP_MULTICAST_ALL) => None,
            (IPPROTO_IP, _) => Row::find(level, number).is_none().then_some(Errno::ENOPROTOOPT),
            (IPPROTO_IPV6, _) if socket.v6 => None,
            _ => Some(Errno::ENOPROTOOPT),
        }
    }

    /// Returns the value of an option of a socket. Fails as getsockopt(2) does.
    pub fn option(&self, object: u32, level: i32, number: i32) -> Result<Value, Errno> {
        let socket = self.socket(object).ok_or(Errno::ENOTSOCK)?;
        if let Some(result) = super::raw::option(socket, (level, number)) {
            return result;
        }
        let is_tcp = socket.protocol == Protocol::Tcp;
        self.check_level(object, level)?;
        if (level, number) == (IPPROTO_IPV6, libc::IPV6_V6ONLY) && socket.is_bound_to_v6() {
            return Ok(Value::of_int(1));
        }
        if matches!((level, number), (IPPROTO_IPV6, libc::IPV6_MTU) | (IPPROTO_IP, libc::IP_MTU)) {
            // ip(7): the MTU of the path is what is asked for, and a replica was asked if there is a peer.
            return Err(Errno::ENOTCONN);
        }
        if let Some(form) = Form::of(level, number).filter(|_| !is_tcp) {
            return Ok(Value::of_int(form.is_on(Form::held(socket.options.value(Name::Times))).into()));
        }
        let is_force = level == SOL_SOCKET && matches!(number, libc::SO_SNDBUFFORCE | libc::SO_RCVBUFFORCE);
        if let Some(row) = Row::find(level, number).filter(|row| row.name != Name::Times && !is_force) {
            let offset = match &socket.kind {
                _ if row.name != Name::PeekOffset => None,
                // inet_sockraw_ops has none.
                _ if socket.protocol.is_icmp() => return Err(Errno::EOPNOTSUPP),
                Kind::Stream(_, local) => local.peek.map(u64::from),
                _ => None,
            };
            let set = offset.or(socket.options.set_value(row.name));
            let unset = socket.unset_clamp().filter(|_| row.name == Name::WindowClamp);
            return Ok(row.encode(set.or(unset).unwrap_or(row.default), set.is_some()));
        }
        if (level, number) == BINDTODEVICE {
            return Ok(name_of(socket.options.device()));
        }
        if (level, number) == (SOL_SOCKET, libc::SO_MEMINFO) {
            return Ok(Value::of(&self.memory_info(socket).map(u32::to_ne_bytes).concat()));
        }
        let family = if socket.v6 { libc::AF_INET6 } else { libc::AF_INET };
        let kind = match socket.protocol {
            Protocol::Tcp => libc::SOCK_STREAM,
            Protocol::Raw => libc::SOCK_RAW,
            Protocol::Icmp | Protocol::Udp => libc::SOCK_DGRAM,
        };
        let value = match (level, number) {
            (SOL_SOCKET, libc::SO_TYPE) => kind as u32,
            (SOL_SOCKET, libc::SO_DOMAIN) => family as u32,
            (SOL_SOCKET, libc::SO_PROTOCOL) => match socket.protocol {
                Protocol::Icmp | Protocol::Raw => Protocol::raw_port(socket.v6).into(),
                protocol => protocol as u32,
            },
            (SOL_SOCKET, libc::SO_ACCEPTCONN) => matches!(&socket.kind, Kind::Listening(_)).into(),
            (SOL_SOCKET, libc::SO_SNDLOWAT) => 1,
            // The value is Linux's before a segment has come.
            (SOL_SOCKET, libc::SO_INCOMING_CPU) => u32::MAX,
            // No frame comes by NAPI: the stack reads its frames itself.
            (SOL_SOCKET, libc::SO_INCOMING_NAPI_ID) => 0,
            (SOL_SOCKET, libc::SO_PASSCRED | libc::SO_PASSSEC | PASSPIDFD | PASSRIGHTS) => {
                return Err(Errno::EOPNOTSUPP);
            }
            // do_tcp_getsockopt: there is none, and no socket is under repair.
            (IPPROTO_TCP, libc::TCP_ULP) => return Ok(Value::of(&[])),
            (IPPROTO_TCP, libc::TCP_REPAIR) => 0,
            (IPPROTO_TCP, libc::TCP_REPAIR_QUEUE | libc::TCP_QUEUE_SEQ) => return Err(Errno::EINVAL),
            (IPPROTO_TCP, libc::TCP_REPAIR_WINDOW) => return Err(Errno::EPERM),
            // There is no peer whose user is known.
            (SOL_SOCKET, libc::SO_PEERGROUPS | PEERPIDFD) => return Err(Errno(libc::ENODATA)),
            _ => return Err(Errno::ENOPROTOOPT),
        };
        Ok(Value::of_int(value))
    }

    /// Returns the value of `SO_MEMINFO`, in the order of `SK_MEMINFO_RMEM_ALLOC` and its kin
    /// (linux/sock_diag.h), as far as the stack knows: octets that wait for the program, or to be sent.
    fn memory_info(&self, socket: &Socket) -> [u32; 9] {
        let number = |octets: u64| u32::try_from(octets).unwrap_or(u32::MAX);
        let shown = |name: Name| {
            let row = &TABLE[name as usize];
            let set = socket.options.set_value(name);
            let value = row.encode(set.unwrap_or(row.default), set.is_some());
            value.octets().first_chunk().map_or(0, |octets| u32::from_ne_bytes(*octets))
        };
        let (mut received, mut queued, mut dropped) = (0, 0, 0u32);
        for place in socket.places() {
            let Some(slot) = self.slot_of(*place) else { continue };
            if slot.replica_generation() != place.generation {
                continue;
            }
            received += number(slot.receive_tail().saturating_sub(slot.receive_head()));
            queued += number(slot.send_tail().saturating_sub(slot.acknowledged()));
            if socket.protocol.is_datagram() {
                dropped = dropped.wrapping_add(slot.dropped());
            }
        }
        // The queue is that of a connection; a datagram that was written is the link's.
        let (sent, queue) = if socket.protocol.is_datagram() { (queued, 0) } else { (0, queued) };
        let (receive_buffer, send_buffer) = (shown(Name::ReceiveBuffer), shown(Name::SendBuffer));
        [received, receive_buffer, sent, send_buffer, 0, queue, 0, 0, dropped]
    }

    /// Returns when the last datagram came that was received: ioctl(2), `SIOCGSTAMP`. The first call asks for
    /// times from then on; until there is one it fails with ENOENT, as for a connection (sock_gettstamp).
    pub fn stamp(&mut self, object: u32) -> Result<TimeOfDay, Errno> {
        let now = self.time_of_day();
        let socket = self.socket_mut(object).ok_or(Errno::ENOTSOCK)?;
        let is_asked = socket.options.is_on(Name::Times);
        if !is_asked && socket.protocol.is_datagram() {
            socket.options.set(Name::Times, NO_FORM);
        }
        let stamp = match &mut socket.kind {
            Kind::Datagram(datagram) => {
                if let (Stamp::Unknown, Some(now)) = (datagram.stamp, now) {
                    datagram.stamp = Stamp::At(now);
                }
                datagram.stamp
            }
            _ => Stamp::Never,
        };
        if let Some(row) = TABLE.get(Name::Times as usize).filter(|_| !is_asked) {
            self.tell(object, row);
        }
        match stamp {
            Stamp::At(moment) => Ok(moment),
            Stamp::Never | Stamp::Unknown => Err(Errno::ENOENT),
        }
    }

    /// Applies a new value to what the library itself does.
    fn apply(&mut self, object: u32, name: Name) -> Result<(), Failure> {
        let Some(socket) = self.socket_mut(object) else { return Ok(()) };
        let options = socket.options.local();
        match (name, &mut socket.kind) {
            (Name::ReceiveLow, Kind::Stream(_, local)) => local.receive_low = options.receive_low,
            (Name::OobInline, Kind::Stream(_, local)) => local.urgent_inline = options.urgent_inline,
            (Name::PeekOffset, Kind::Stream(_, local)) => local.peek = options.peek,
            (Name::Linger, Kind::Stream(..)) => {
                let resets = socket.options.linger() == Some(0);
                let _turn = self.turn(object)?;
                if let Some((stream, ..)) = self.stream(object) {
                    stream.set_reset_on_close(resets);
                }
            }
            (Name::ReceiveErrors | Name::ReceiveErrorsV6, Kind::Datagram(_))
                if !socket.options.is_on(name) =>
            {
                self.purge_faults(object)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Sends a new value to the replicas.
    fn tell(&mut self, object: u32, row: &Row) {
        let Some(socket) = self.socket(object) else { return };
        let value = socket.options.told(row);
        if let Told::Authority(option) = row.told {
            return self.tell_authority(object, option, value);
        }
        let Some(option) = row.told(socket.protocol == Protocol::Tcp) else { return };
        match row.told {
            _ if row.name == Name::Device && socket.places().is_empty() => {
                self.tell_authority(object, option, value);
            }
            Told::KeepAlive(_) => self.send_keep_alive(object),
            _ => self.send_option(object, option, value),
        }
    }

    /// Tells the authority of the port of a socket a value that decides who may have the port beside it. A
    /// later bind(2) and connect(2) tell it themselves.
    fn tell_authority(&mut self, object: u32, option: SocketOption, value: u32) {
        let replicas = self.replicas();
        let Some(socket) = self.socket(object).filter(|socket| socket.lease != 0 && replicas != 0) else {
            return;
        };
        let (lease, authority) = (socket.lease, usize::from(socket.local.port) % replicas);
        self.push(0, authority, &Command::SetListenerOption { lease, option, value });
    }

    /// Sends every option of a socket that was set to the replicas.
    pub fn send_options(&mut self, object: u32) {
        let Some(socket) = self.socket(object) else { return };
        let is_tcp = socket.protocol == Protocol::Tcp;
        let is_listening = matches!(socket.kind, Kind::Listening(_));
        let (mut told, mut keeps_alive) = (Vec::new(), false);
        for (row, held) in socket.options.iter() {
            let Some(option) = row.told(is_tcp).filter(|_| row.differs(held)) else { continue };
            match row.told {
                Told::KeepAlive(_) => keeps_alive |= socket.options.is_on(Name::KeepAlive),
                Told::Listener(_) if !is_listening => {}
                // The grant of its port says so.
                _ if row.name == Name::Device && is_listening => {}
                _ => told.push((option, socket.options.told(row))),
            }
        }
        for (option, value) in told {
            self.send_option(object, option, value);
        }
        if keeps_alive {
            self.send_keep_alive(object);
        }
        if !is_tcp {
            self.send_filter(object);
            self.send_groups(object);
        }
    }

    /// Sends keep-alive to the replicas first and its times afterwards, because turning it on resets them.
    pub fn send_keep_alive(&mut self, object: u32) {
        let Some(socket) = self.socket(object) else { return };
        let options = socket.options.clone();
        let is_on = options.is_on(Name::KeepAlive);
        if !is_on && matches!(socket.kind, Kind::Listening(_)) {
            return;
        }
        self.send_option(object, SocketOption::KeepAlive, is_on.into());
        for (row, _) in options.iter().filter(|_| is_on) {
            if let (Told::KeepAlive(option), true) = (row.told, row.name != Name::KeepAlive) {
                self.send_option(object, option, options.told(row));
            }
        }
    }

    // ---- groups ----

    /// Sends replicas the change of a membership of a socket. Returns the tokens of the questions that are
    /// answered here: answers for sockets of another process's session go to that process.
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

    /// Sends replicas the multicast settings of a socket that is new to them.
    pub fn send_groups(&mut self, object: u32) {
        let Some(socket) = self.socket(object) else { return };
        let Some(multicast) = socket.multicast.clone() else {
            // Replicas take a socket with an address of IPv4 for one of AF_INET.
            if socket.v6 && socket.local.addr.is_v4() {
                self.send_option(object, SocketOption::MulticastAll, 0);
            }
            return;
        };
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
