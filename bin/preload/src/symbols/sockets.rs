//! socket(2) to shutdown(2), and the options of sockets.

use std::ffi::{c_int, c_ulong, c_void};
use std::sync::atomic::AtomicBool;

use atoll_base::Endpoint;
use atoll_ipc::Device;
use atoll_ipc::command::Protocol;
use atoll_sockets::Errno;
use atoll_sockets::client::multicast;
use atoll_sockets::client::object::{Kind, Socket};
use atoll_sockets::options::{Name, SO_BINDTOIFINDEX, Value};
use libc::{sockaddr, socklen_t};

use super::{Address, answer, fail, give_address, write_address};
use crate::lock::STATE;
use crate::settings::settings;
use crate::state::State;
use crate::supervisor::with_choice;
use crate::table::reserved;
use crate::table::{self, Fd, lookup};
use crate::{calls, dispatch, netlink, options, reach, real, stats};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if domain == libc::AF_NETLINK
        && let Some(made) = netlink::socket(kind, protocol)
    {
        return made.unwrap_or_else(fail);
    }
    reserved::give_back();
    let (kernel_kind, kernel_protocol) = placeholder(domain, kind, protocol);
    let fd = real::kernel_socket(domain, kernel_kind, kernel_protocol);
    if fd < 0 {
        return fd;
    }
    let (nonblocking, close_on_exec) = (kind & libc::SOCK_NONBLOCK != 0, kind & libc::SOCK_CLOEXEC != 0);
    let what = match (domain, kind & 0xf, protocol) {
        (libc::AF_INET, libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => (Protocol::Tcp, false),
        (libc::AF_INET, libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => (Protocol::Udp, false),
        (libc::AF_INET, libc::SOCK_DGRAM, libc::IPPROTO_ICMP) => (Protocol::Icmp, false),
        (libc::AF_INET6, libc::SOCK_DGRAM, libc::IPPROTO_ICMPV6) => (Protocol::Icmp, true),
        (libc::AF_INET6, libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => (Protocol::Tcp, true),
        (libc::AF_INET6, libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => (Protocol::Udp, true),
        _ if is_raw(domain, kind, protocol) && serves_icmp() => (Protocol::Raw, domain == libc::AF_INET6),
        (libc::AF_INET | libc::AF_INET6, ..) => return of_another_kind(fd, kind, protocol),
        _ => return fd,
    };
    crate::real::count_system_call();
    match calls::socket(fd, what.0, what.1, nonblocking, close_on_exec) {
        Ok(()) if what.0 == Protocol::Raw => open_raw(fd),
        Ok(()) => fd,
        Err(errno) => {
            table::close(fd);
            fail(errno)
        }
    }
}

/// Returns kind and protocol of the kernel's socket behind one of the stack. The kernel may refuse its own
/// sockets of ICMP (`net.ipv4.ping_group_range`, CAP_NET_RAW), which are only needed where its network serves
/// the rest: the places that may be named besides are for TCP and UDP.
fn placeholder(domain: c_int, kind: c_int, protocol: c_int) -> (c_int, c_int) {
    let is_ping = kind & 0xf == libc::SOCK_DGRAM && is_icmp(domain, protocol);
    if serves_icmp() && (is_ping || is_raw(domain, kind, protocol)) {
        return (kind & !0xf | libc::SOCK_DGRAM, 0);
    }
    (kind, protocol)
}

/// Returns whether sockets of ICMP are the stack's: they are the kernel's where its network serves the rest.
fn serves_icmp() -> bool {
    settings().socket.is_some() && !settings().kernel_network.has_rest()
}

/// Returns whether a program asks for a raw socket of the ICMP of that family.
fn is_raw(domain: c_int, kind: c_int, protocol: c_int) -> bool {
    kind & 0xf == libc::SOCK_RAW && is_icmp(domain, protocol)
}

/// Returns whether this is the ICMP of the family.
fn is_icmp(domain: c_int, protocol: c_int) -> bool {
    matches!((domain, protocol), (libc::AF_INET, libc::IPPROTO_ICMP) | (libc::AF_INET6, libc::IPPROTO_ICMPV6))
}

/// Opens a new raw socket, which gets messages at once. Fails with EPERM, as inet_create does, if the
/// supervisor does not see CAP_NET_RAW.
fn open_raw(fd: c_int) -> c_int {
    let Some(object) = table::object_at(fd) else { return fd };
    let opened =
        STATE.with(|state| state.client.start_of_raw(object)).and_then(|any| calls::bind(object, any));
    let Err(errno) = opened else { return fd };
    // SAFETY: just created.
    unsafe { super::descriptors::close(fd) };
    fail(if errno == Errno::EACCES { Errno::EPERM } else { errno })
}

/// A socket of AF_INET or AF_INET6 of a kind that the stack does not have (raw, SCTP ...). Returns the
/// kernel's if the kernel's network serves the rest; fails otherwise as a kernel does without that kind, or
/// without the right to it.
fn of_another_kind(fd: c_int, kind: c_int, protocol: c_int) -> c_int {
    if settings().socket.is_none() || settings().kernel_network.has_rest() {
        return fd;
    }
    static IS_TOLD: AtomicBool = AtomicBool::new(false);
    // Go tries Multipath TCP for each listener, and does without where there is none.
    if protocol != libc::IPPROTO_MPTCP {
        crate::complain_once(
            &IS_TOLD,
            format_args!(
                "libatoll: a stack has sockets of TCP, UDP and ICMP; others, and raw ones of other \
                 protocols, fail (atoll run --kernel-network would let the program use the kernel's)\n"
            ),
        );
    }
    // SAFETY: just created.
    unsafe { real::close(fd) };
    fail(match (kind & 0xf, protocol) {
        (libc::SOCK_RAW, _) => Errno::EPERM,
        _ => Errno(libc::EPROTONOSUPPORT),
    })
}

/// Where a socket is bound.
enum Local {
    /// At an address of the stack.
    Stack(Endpoint),
    /// At an address of the kernel's network.
    Kernel,
    /// Nowhere: the kernel says why.
    Invalid,
    /// Nowhere: the stack does not have the address.
    Foreign(Endpoint),
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    let Some(object) = table::object_at(fd) else {
        // SAFETY: the program's address.
        if let Some(result) = unsafe { netlink::bind(fd, addr, len) } {
            return answer(result);
        }
        // SAFETY: passed on.
        return unsafe { real::bind(fd, addr, len) };
    };
    let _call = stats::Call::new(stats::SOCKET);
    if let Err(errno) = Address::check(addr, len) {
        return fail(errno);
    }
    // SAFETY: the program's address.
    let address = unsafe { Address::read_to_bind(addr, len) };
    match with_choice(object, |state, undecided| local_of(state, object, (address, len), undecided)) {
        Ok(Local::Stack(endpoint)) => answer(calls::bind_by_name(object, endpoint)),
        Ok(Local::Kernel) => {
            calls::to_kernel(object);
            // SAFETY: passed on.
            unsafe { real::bind(fd, addr, len) }
        }
        // SAFETY: passed on. The kernel has no such address either.
        Ok(Local::Invalid) => unsafe { real::bind(fd, addr, len) },
        Ok(Local::Foreign(endpoint)) => {
            tell_foreign(endpoint);
            fail(Errno::EADDRNOTAVAIL)
        }
        Err(errno) => fail(errno),
    }
}

fn local_of(
    state: &State,
    object: u32,
    (address, len): (Address, socklen_t),
    undecided: bool,
) -> Result<Local, Errno> {
    let Some(socket) = state.client.socket(object) else { return Err(Errno::ENOTSOCK) };
    let raw = socket.protocol == Protocol::Raw;
    let udp = raw || socket.protocol == Protocol::Udp;
    let Some(endpoint) = address.endpoint(socket.v6) else {
        return if undecided { Ok(Local::Invalid) } else { Err(address.why_not(socket.v6, len)) };
    };
    let Some(session) = state.client.own() else { return Ok(Local::Kernel) };
    let network = &settings().kernel_network;
    if undecided && may_be_the_kernels(socket) && network.names(endpoint) {
        return Ok(Local::Kernel);
    }
    // inet6_bind
    if socket.v6 && socket.protocol.is_icmp() && endpoint.addr.is_v4() {
        // ping_check_bind_addr, rawv6_bind
        return Err(Errno::EADDRNOTAVAIL);
    }
    if socket.options.is_on(Name::V6Only) && endpoint.addr.is_v4() || !udp && endpoint.addr.is_v6_multicast()
    {
        return Err(Errno::EINVAL);
    }
    let is_group =
        endpoint.addr.to_v4().is_some_and(multicast::is_group) || (udp && endpoint.addr.is_v6_multicast());
    if endpoint.addr.is_unspecified() || session.is_own(endpoint.addr) || is_group {
        return Ok(Local::Stack(endpoint));
    }
    match network.has_rest() {
        _ if raw => Ok(Local::Foreign(endpoint)),
        // __inet_bind looks at the address before the state of the socket, __inet6_bind after it.
        _ if !undecided => Err(if socket.v6 { Errno::EINVAL } else { Errno::EADDRNOTAVAIL }),
        true if is_on_no_link(socket) => Ok(Local::Kernel),
        _ => Ok(Local::Foreign(endpoint)),
    }
}

/// Returns whether the kernel's network may serve a socket. The kernel's `eth0` is another one than the
/// stack's, to which the socket may be bound.
fn may_be_the_kernels(socket: &Socket) -> bool {
    !socket.protocol.is_icmp() && is_on_no_link(socket)
}

fn is_on_no_link(socket: &Socket) -> bool {
    socket.options.device() != Device::Link
}

/// Says once that an address is not the stack's.
fn tell_foreign(endpoint: Endpoint) {
    static IS_TOLD: AtomicBool = AtomicBool::new(false);
    let addr = endpoint.addr;
    crate::complain_once(
        &IS_TOLD,
        format_args!(
            "libatoll: {addr} is no address of this stack (atoll run --kernel-network={addr} would let the \
             program have the kernel's)\n"
        ),
    );
}

/// Says once that an address is not reached, and returns the errno. Nothing is said of IPv6, which programs
/// try on every host, and of what the C library tries by itself.
fn unreached(endpoint: Endpoint) -> Errno {
    static IS_TOLD: AtomicBool = AtomicBool::new(false);
    let addr = endpoint.addr;
    if addr.is_v4() && !dispatch::is_resolving() {
        crate::complain_once(
            &IS_TOLD,
            format_args!(
                "libatoll: this stack does not reach {addr} (atoll run --kernel-network={addr} would let the \
                 program use the kernel's network for it)\n"
            ),
        );
    }
    Errno::ENETUNREACH
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    let Some(object) = table::object_at(fd) else {
        // SAFETY: passed on.
        return unsafe { real::listen(fd, backlog) };
    };
    let _call = stats::Call::new(stats::SOCKET);
    with_choice(object, |_, _| ());
    answer(calls::listen(object, backlog))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: passed on.
    unsafe { accept4(fd, addr, len, 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
    let Some(object) = table::object_at(fd) else {
        reserved::give_back();
        // SAFETY: passed on.
        return unsafe { real::accept4(fd, addr, len, flags) };
    };
    if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
        return fail(Errno::EINVAL);
    }
    match calls::accept(fd, object, flags & libc::SOCK_NONBLOCK != 0, flags & libc::SOCK_CLOEXEC != 0) {
        Ok(accepted) => {
            if let Err(errno) = write_address(accepted.remote, accepted.v6, addr, len) {
                // As on Linux, who cannot be named is let go.
                // SAFETY: just accepted.
                unsafe { super::descriptors::close(accepted.fd) };
                return fail(errno);
            }
            accepted.fd
        }
        Err(errno) => fail(errno),
    }
}

/// Returns whether a connection or datagram to `to` is for the stack; otherwise it is for the kernel.
/// How a socket reaches its peer.
enum Choice {
    /// Through the stack.
    Stack(Endpoint),
    /// Through the kernel's network.
    Kernel,
    /// Not at all: the kernel says why.
    Invalid,
    /// Not at all: nobody reaches it.
    Unreached(Endpoint),
    /// Not at all.
    Fail(Errno),
    /// It gives up its peer.
    Disconnect,
}

/// Decides for a proper peer. What the stack does not reach is refused, unless the kernel's network was asked
/// for; loopback is the stack's, whoever comes first.
fn choice_for(state: &State, socket: &Socket, to: Endpoint) -> Choice {
    let Some(session) = state.client.own() else { return Choice::Kernel };
    if !matches!(socket.kind, Kind::Fresh) {
        return Choice::Stack(to);
    }
    let network = &settings().kernel_network;
    if may_be_the_kernels(socket) && network.names(to) {
        return Choice::Kernel;
    }
    let is_inside =
        to.addr.is_v6_multicast() && socket.multicast.as_ref().is_some_and(|wishes| wishes.v6.is_inside());
    let is_here = to.is_loopback() || to.addr.is_unspecified() || session.is_own(to.addr);
    let is_group = to.addr.to_v4().is_some_and(multicast::is_group);
    if is_here || is_inside || is_group || session.reaches(to.addr) {
        return Choice::Stack(to);
    }
    if network.has_rest() && is_on_no_link(socket) {
        return Choice::Kernel;
    }
    Choice::Unreached(to)
}

/// Decides where connect(2) leads.
fn choose(object: u32, address: Address, len: socklen_t) -> Choice {
    with_choice(object, |state, undecided| {
        let Some(socket) = state.client.socket(object) else { return Choice::Fail(Errno::ENOTSOCK) };
        let is_v6_only = socket.is_v6_only() || socket.is_bound_to_v6();
        let endpoint = match address {
            // ip6_datagram_connect: a datagram socket takes addresses of both kinds.
            Address::Ours { v6: false, .. } if socket.protocol == Protocol::Udp && is_v6_only => {
                return Choice::Fail(Errno::EAFNOSUPPORT);
            }
            Address::Ours { endpoint, v6: false } if socket.protocol == Protocol::Udp => Some(endpoint),
            _ => address.endpoint(socket.v6),
        };
        match endpoint {
            // tcp_v6_connect, ip6_datagram_connect: such a socket cannot reach IPv4.
            Some(endpoint) if is_v6_only && endpoint.addr.is_v4() => Choice::Fail(Errno::ENETUNREACH),
            Some(Endpoint { addr, .. })
                if socket.is_bound_to_v4() && !addr.is_v4() && !addr.is_unspecified() =>
            {
                Choice::Fail(Errno::EAFNOSUPPORT)
            }
            Some(endpoint) => choice_for(state, socket, endpoint),
            _ if undecided => Choice::Invalid,
            _ if address == Address::Unspecified => Choice::Disconnect,
            _ => Choice::Fail(address.why_not(socket.v6, len)),
        }
    })
}

/// Returns whether a socket listens, or has begun to connect.
fn is_begun(object: u32) -> bool {
    STATE.with(|state| {
        let kind = state.client.socket(object).map(|socket| &socket.kind);
        matches!(kind, Some(Kind::Listening(_) | Kind::Stream(..)))
    })
}

pub(super) fn or_loopback(to: Endpoint) -> Endpoint {
    if to.addr.is_unspecified() { Endpoint::at(to.addr.loopback_of_family(), to.port) } else { to }
}

/// Returns the server that sendto(2) with MSG_FASTOPEN names. `Err` means that the call fails or, if it is
/// `None`, that the socket is the kernel's.
pub(super) fn server(object: u32, address: Address) -> Result<Option<Endpoint>, Option<Errno>> {
    match choose(object, address, size_of::<libc::sockaddr_in6>() as socklen_t) {
        Choice::Stack(to) => Ok(Some(or_loopback(to))),
        Choice::Kernel => Err(None),
        Choice::Invalid => {
            Err(Some(if address == Address::Other { Errno::EAFNOSUPPORT } else { Errno::EINVAL }))
        }
        Choice::Unreached(to) => Err(Some(unreached(to))),
        Choice::Disconnect => Err(Some(Errno::EOPNOTSUPP)),
        Choice::Fail(errno) => Err(Some(errno)),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    let Some(object) = table::object_at(fd) else {
        // SAFETY: the program's address.
        if let Some(result) = unsafe { netlink::connect(fd, addr, len) } {
            return answer(result);
        }
        // SAFETY: passed on.
        return unsafe { real::connect(fd, addr, len) };
    };
    if let Err(errno) = Address::check(addr, len) {
        return fail(errno);
    }
    if (len as usize) < size_of::<libc::sa_family_t>() {
        return fail(Errno::EINVAL);
    }
    // SAFETY: the program's address.
    let address = unsafe { Address::read(addr, len) };
    match choose(object, address, len) {
        // __inet_stream_connect: of a connection the address is not looked at.
        Choice::Fail(_) if is_begun(object) => answer(calls::connect(object, Endpoint::default())),
        Choice::Stack(to) => answer(calls::connect(object, or_loopback(to))),
        Choice::Kernel => {
            // SAFETY: passed on.
            let result = unsafe { real::connect(fd, addr, len) };
            let errno = if result == 0 { Errno(0) } else { real::last_errno() };
            // A socket that was refused may try again, and its next peer may be the stack's.
            if matches!(errno, Errno(0) | Errno::EINPROGRESS | Errno::EALREADY | Errno::EINTR) {
                calls::to_kernel(object);
            }
            if result == 0 { 0 } else { fail(errno) }
        }
        Choice::Invalid => {
            if address == Address::Unspecified {
                let _ = calls::disconnect(object);
            }
            // SAFETY: passed on. The kernel has no such peer either.
            unsafe { real::connect(fd, addr, len) }
        }
        Choice::Unreached(to) => fail(unreached(to)),
        Choice::Disconnect => answer(calls::disconnect(object)),
        Choice::Fail(errno) => fail(errno),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let known = table::object_at(fd).and_then(|object| {
        calls::await_name(object);
        STATE.with(|state| match state.client.socket(object) {
            None => None,
            // A port that was given back is shown still.
            Some(Socket { kind: Kind::Fresh, local, .. }) if local.port == 0 => None,
            Some(socket) => Some((state.client.local_of(object), socket.v6)),
        })
    });
    let Some((local, v6)) = known else {
        // SAFETY: the program's memory.
        if unsafe { netlink::write_name(fd, true, addr, len) } {
            return 0;
        }
        // SAFETY: passed on.
        return unsafe { real::getsockname(fd, addr, len) };
    };
    answer(give_address(local, v6, addr, len))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let Some(object) = table::object_at(fd) else {
        // SAFETY: the program's memory.
        if unsafe { netlink::write_name(fd, false, addr, len) } {
            return 0;
        }
        // SAFETY: passed on.
        return unsafe { real::getpeername(fd, addr, len) };
    };
    let peer = STATE.with(|state| {
        let v6 = state.client.socket(object).is_some_and(|s| s.v6);
        state.client.peer_of(object).map(|peer| (peer, v6))
    });
    match peer {
        Ok((peer, v6)) => answer(give_address(peer, v6, addr, len)),
        Err(errno) => fail(errno),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    let Some(object) = table::object_at(fd) else {
        // SAFETY: passed on.
        let result = unsafe { real::getsockopt(fd, level, name, value, len) };
        if result == 0
            && let Some(other) = netlink::option(fd, level, name)
        {
            // SAFETY: the kernel has written at most as many octets there.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    (&raw const other).cast(),
                    value.cast::<u8>(),
                    (*len as usize).min(4),
                );
            }
        }
        return result;
    };
    answer(get_option(object, (level, name), value, len))
}

fn get_option(
    object: u32,
    (level, name): (c_int, c_int),
    value: *mut c_void,
    len: *mut socklen_t,
) -> Result<(), Errno> {
    // do_sock_getsockopt: a level that the socket does not have comes first.
    STATE.with(|state| state.client.check_level(object, level))?;
    // SAFETY: any octets are a number.
    let room = unsafe { reach::get(len) }? as i32;
    // do_ipv6_getsockopt: a negative length is a large one.
    let room = match usize::try_from(room) {
        Err(_) if level == libc::IPPROTO_IPV6 => usize::MAX,
        room => room.map_err(|_| Errno::EINVAL)?,
    };
    let found = options::get(object, level, name)?;
    // sk_getsockopt: a rate in four octets is the largest number if there is no room for it.
    let is_short_rate = (level, name) == (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE) && room < 8;
    let found = match found.octets().first_chunk::<8>().filter(|_| is_short_rate) {
        Some(rate) => Value::of_int(u32::try_from(u64::from_ne_bytes(*rate)).unwrap_or(u32::MAX)),
        None => found,
    };
    let octets = found.octets();
    if (level, name) == (libc::SOL_SOCKET, libc::SO_BINDTODEVICE)
        && !octets.is_empty()
        && room < libc::IFNAMSIZ
    {
        // sock_getbindtodevice
        return Err(Errno::EINVAL);
    }
    let room = room.min(octets.len());
    // ip(7): at that level one octet is enough for a small number, if there is no room for more.
    let is_small = level == libc::IPPROTO_IP
        && octets.len() == 4
        && u32::from_ne_bytes([octets[0], octets[1], octets[2], octets[3]]) < 256;
    let room = if is_small && (1..4).contains(&room) { 1 } else { room };
    if !reach::can_write(value, room) {
        return Err(Errno::EFAULT);
    }
    // SAFETY: the program's memory, `room` bytes of it.
    unsafe { std::ptr::copy_nonoverlapping(octets.as_ptr(), value.cast::<u8>(), room) };
    reach::put(len, room as socklen_t)
}

/// No option is longer, in octets.
const OPTION_MAX: usize = 512;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    let Some(object) = table::object_at(fd) else {
        // SAFETY: the program's value.
        if let Some(result) = unsafe { netlink::set_option(fd, (level, name), value, len) } {
            return answer(result);
        }
        // SAFETY: passed on.
        return unsafe { real::setsockopt(fd, level, name, value, len) };
    };
    if (len as i32) < 0 {
        return fail(Errno::EINVAL);
    }
    let is_name = (level, name) == (libc::SOL_SOCKET, libc::SO_BINDTODEVICE);
    // sock_setbindtodevice: a name that is too long is cut off.
    let len_read = (len as usize).min(if is_name { libc::IFNAMSIZ - 1 } else { OPTION_MAX });
    if !reach::can_read(value, len_read) {
        // sock_setsockopt: the length is looked at first.
        let is_short = level == libc::SOL_SOCKET && !is_name && len_read < size_of::<c_int>();
        let refused = STATE.with(|state| state.client.refusal(object, (level, name), len_read));
        return fail(if is_short { Errno::EINVAL } else { refused.unwrap_or(Errno::EFAULT) });
    }
    let bytes: &[u8] = match len_read {
        0 => &[],
        // SAFETY: the program's memory.
        len => unsafe { std::slice::from_raw_parts(value.cast::<u8>(), len) },
    };
    let is_fresh =
        STATE.with(|state| matches!(state.client.socket(object), Some(Socket { kind: Kind::Fresh, .. })));
    let ours = options::set(object, level, name, bytes);
    let is_named_here = is_name || (level, name) == (libc::SOL_SOCKET, SO_BINDTOIFINDEX);
    let is_ours_alone = is_named_here
        && STATE.with(|state| state.client.socket(object).is_some_and(|socket| !is_on_no_link(socket)));
    if is_fresh && ours.is_ok() && !is_ours_alone {
        // The socket may still become the kernel's, which has then been told the option, too. Its answer is
        // not used: what the stack refuses was not taken, and what it takes acts.
        // SAFETY: passed on.
        let _ = unsafe { real::setsockopt(fd, level, name, value, len) };
    }
    if ours.is_ok() && (level, name) == (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT) {
        return answer(calls::listen_again(object));
    }
    answer(ours)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn shutdown(fd: c_int, how: c_int) -> c_int {
    match lookup(fd) {
        Fd::Object(object) => answer(calls::shutdown(object, how)),
        // SAFETY: passed on.
        _ => unsafe { real::shutdown(fd, how) },
    }
}

/// The number of `SIOCATMARK`, linux/sockios.h.
pub(super) const SIOCATMARK: c_ulong = 0x8905;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sockatmark(fd: c_int) -> c_int {
    let mut mark: c_int = 0;
    // SAFETY: an int is filled.
    let result = unsafe { super::descriptors::ioctl(fd, SIOCATMARK, (&raw mut mark).cast()) };
    if result < 0 { result } else { mark }
}

/// Returns whether a datagram to `peer` of an unconnected socket is the kernel's: the socket is undecided,
/// and the kernel's network serves the destination. Fails if nobody reaches it.
pub(super) fn goes_to_kernel(object: u32, peer: Endpoint) -> Result<bool, Errno> {
    let choice = with_choice(object, |state, undecided| match state.client.socket(object) {
        Some(socket) if undecided && socket.protocol.is_datagram() => choice_for(state, socket, peer),
        _ => Choice::Stack(peer),
    });
    match choice {
        Choice::Unreached(to) => Err(unreached(to)),
        choice => Ok(matches!(choice, Choice::Kernel)),
    }
}
