//! Calls the functions of the C library that this library replaces: dlsym(3), RTLD_NEXT.

use std::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use atoll_sockets::Errno;
use libc::{
    FILE, epoll_event, fd_set, ifaddrs, iovec, mmsghdr, mode_t, msghdr, nfds_t, off_t, pid_t, pollfd,
    posix_spawn_file_actions_t, posix_spawnattr_t, pthread_t, rlimit, sigset_t, size_t, sockaddr, socklen_t,
    ssize_t, timespec, timeval, uid_t,
};

use crate::thread;

macro_rules! real {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => { $(
        /// Calls the C library's function of this name.
        ///
        /// # Safety
        /// As for the function itself.
        #[inline]
        #[allow(missing_docs, non_snake_case, clippy::too_many_arguments)]
        pub unsafe fn $name($($arg: $ty),*) -> $ret {
            static ADDRESS: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
            let mut address = ADDRESS.load(Ordering::Relaxed);
            if address.is_null() {
                let symbol = concat!(stringify!($name), "\0");
                // SAFETY: a valid name; dlsym may be called at any time after the loader has run us.
                address = unsafe { libc::dlsym(libc::RTLD_NEXT, symbol.as_ptr().cast()) };
                assert!(!address.is_null(), "the C library has no {}", stringify!($name));
                ADDRESS.store(address, Ordering::Relaxed);
            }
            // SAFETY: the C library's function of this name has this type.
            let function: unsafe extern "C" fn($($ty),*) -> $ret = unsafe { std::mem::transmute(address) };
            // SAFETY: the caller's promise.
            unsafe { function($($arg),*) }
        }
    )* };
}

real! {
    fn bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    fn listen(fd: c_int, backlog: c_int) -> c_int;
    fn accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    fn getsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    fn getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
    fn shutdown(fd: c_int, how: c_int) -> c_int;
    fn read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t;
    fn write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t;
    fn readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
    fn writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
    fn preadv2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t;
    fn pwritev2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t;
    fn recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    fn send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    fn recvfrom(
        fd: c_int, buf: *mut c_void, len: size_t, flags: c_int, addr: *mut sockaddr, alen: *mut socklen_t
    ) -> ssize_t;
    fn sendto(
        fd: c_int, buf: *const c_void, len: size_t, flags: c_int, addr: *const sockaddr, alen: socklen_t
    ) -> ssize_t;
    fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t;
    fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t;
    fn recvmmsg(fd: c_int, msgs: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    fn sendmmsg(fd: c_int, msgs: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    fn sendfile(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    fn close(fd: c_int) -> c_int;
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    fn dup(fd: c_int) -> c_int;
    fn dup2(old: c_int, new: c_int) -> c_int;
    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int;
    fn fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int;
    fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int;
    fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    fn select(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval
    ) -> c_int;
    fn pselect(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec,
        mask: *const sigset_t
    ) -> c_int;
    fn epoll_create1(flags: c_int) -> c_int;
    fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    fn epoll_pwait(
        epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int, mask: *const sigset_t
    ) -> c_int;
    fn syscall(number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long) -> c_long;
    fn splice(
        from: c_int, at: *mut off_t, to: c_int, to_at: *mut off_t, len: size_t, flags: c_uint
    ) -> ssize_t;
    fn execve(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    fn execvpe(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    fn fexecve(fd: c_int, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    fn posix_spawn(
        pid: *mut pid_t, path: *const c_char, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, argv: *const *mut c_char, envp: *const *mut c_char
    ) -> c_int;
    fn posix_spawnp(
        pid: *mut pid_t, path: *const c_char, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, argv: *const *mut c_char, envp: *const *mut c_char
    ) -> c_int;
    fn pidfd_spawn(
        pidfd: *mut c_int, path: *const c_char, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, argv: *const *mut c_char, envp: *const *mut c_char
    ) -> c_int;
    fn pidfd_spawnp(
        pidfd: *mut c_int, path: *const c_char, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, argv: *const *mut c_char, envp: *const *mut c_char
    ) -> c_int;
    fn system(command: *const c_char) -> c_int;
    fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE;
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;
    fn fileno(stream: *mut FILE) -> c_int;
    fn vdprintf(fd: c_int, format: *const c_char, values: *mut c_void) -> c_int;
    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, values: *mut c_void) -> c_int;
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE;
    fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE;
    fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn openat(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn openat64(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn __open_2(path: *const c_char, flags: c_int) -> c_int;
    fn __open64_2(path: *const c_char, flags: c_int) -> c_int;
    fn __openat_2(directory: c_int, path: *const c_char, flags: c_int) -> c_int;
    fn __openat64_2(directory: c_int, path: *const c_char, flags: c_int) -> c_int;
    fn getaddrinfo(name: usize, service: usize, hints: usize, list: usize) -> usize;
    fn getnameinfo(
        addr: usize, addr_len: usize, host: usize, host_len: usize, service: usize, service_len: usize,
        flags: usize
    ) -> usize;
    fn gethostbyname(name: usize) -> usize;
    fn gethostbyname2(name: usize, family: usize) -> usize;
    fn gethostbyaddr(addr: usize, len: usize, family: usize) -> usize;
    fn gethostbyname_r(
        name: usize, entry: usize, buf: usize, len: usize, result: usize, errno: usize
    ) -> usize;
    fn gethostbyname2_r(
        name: usize, family: usize, entry: usize, buf: usize, len: usize, result: usize, errno: usize
    ) -> usize;
    fn gethostbyaddr_r(
        addr: usize, addr_len: usize, family: usize, entry: usize, buf: usize, len: usize, result: usize,
        errno: usize
    ) -> usize;
    fn res_query(name: usize, class: usize, kind: usize, answer: usize, len: usize) -> usize;
    fn res_search(name: usize, class: usize, kind: usize, answer: usize, len: usize) -> usize;
    fn res_querydomain(
        name: usize, domain: usize, class: usize, kind: usize, answer: usize, len: usize
    ) -> usize;
    fn res_send(query: usize, query_len: usize, answer: usize, len: usize) -> usize;
    fn res_nquery(state: usize, name: usize, class: usize, kind: usize, answer: usize, len: usize) -> usize;
    fn res_nsearch(
        state: usize, name: usize, class: usize, kind: usize, answer: usize, len: usize
    ) -> usize;
    fn res_nquerydomain(
        state: usize, name: usize, domain: usize, class: usize, kind: usize, answer: usize, len: usize
    ) -> usize;
    fn res_nsend(state: usize, query: usize, query_len: usize, answer: usize, len: usize) -> usize;
    fn __res_query(name: usize, class: usize, kind: usize, answer: usize, len: usize) -> usize;
    fn __res_search(name: usize, class: usize, kind: usize, answer: usize, len: usize) -> usize;
    fn __res_querydomain(
        name: usize, domain: usize, class: usize, kind: usize, answer: usize, len: usize
    ) -> usize;
    fn __res_send(query: usize, query_len: usize, answer: usize, len: usize) -> usize;
    fn __res_nquery(
        state: usize, name: usize, class: usize, kind: usize, answer: usize, len: usize
    ) -> usize;
    fn __res_nsearch(
        state: usize, name: usize, class: usize, kind: usize, answer: usize, len: usize
    ) -> usize;
    fn __res_nquerydomain(
        state: usize, name: usize, domain: usize, class: usize, kind: usize, answer: usize, len: usize
    ) -> usize;
    fn __res_nsend(state: usize, query: usize, query_len: usize, answer: usize, len: usize) -> usize;
    fn creat(path: usize, mode: usize) -> usize;
    fn creat64(path: usize, mode: usize) -> usize;
    fn mkstemp(template: usize) -> usize;
    fn mkstemp64(template: usize) -> usize;
    fn mkostemp(template: usize, flags: usize) -> usize;
    fn opendir(path: usize) -> usize;
    fn pipe(ends: usize) -> usize;
    fn pipe2(ends: usize, flags: usize) -> usize;
    fn socketpair(domain: usize, kind: usize, protocol: usize, ends: usize) -> usize;
    fn eventfd(count: usize, flags: usize) -> usize;
    fn signalfd(fd: usize, mask: usize, flags: usize) -> usize;
    fn timerfd_create(clock: usize, flags: usize) -> usize;
    fn inotify_init() -> usize;
    fn inotify_init1(flags: usize) -> usize;
    fn memfd_create(name: usize, flags: usize) -> usize;
    fn fstat(fd: usize, status: usize) -> usize;
    fn fstat64(fd: usize, status: usize) -> usize;
    fn fstatat(directory: usize, path: usize, status: usize, flags: usize) -> usize;
    fn fstatat64(directory: usize, path: usize, status: usize, flags: usize) -> usize;
    fn __fxstat(version: usize, fd: usize, status: usize) -> usize;
    fn __fxstat64(version: usize, fd: usize, status: usize) -> usize;
    fn statx(directory: usize, path: usize, flags: usize, mask: usize, status: usize) -> usize;
    fn readlink(path: usize, buf: usize, len: usize) -> usize;
    fn readlinkat(directory: usize, path: usize, buf: usize, len: usize) -> usize;
    fn sigaltstack(new: *const libc::stack_t, old: *mut libc::stack_t) -> c_int;
    fn daemon(keeps_folder: c_int, keeps_descriptors: c_int) -> c_int;
    fn login_tty(fd: c_int) -> c_int;
    fn forkpty(
        master: *mut c_int, name: *mut c_char, terminal: *const libc::termios, size: *const libc::winsize
    ) -> pid_t;
    fn getifaddrs(list: *mut *mut ifaddrs) -> c_int;
    fn if_nametoindex(name: *const c_char) -> c_uint;
    fn if_indextoname(index: c_uint, name: *mut c_char) -> *mut c_char;
    fn if_nameindex() -> *mut libc::if_nameindex;
    fn sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
    fn capset(header: *mut c_void, data: *const c_void) -> c_int;
    fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int;
    fn pthread_create(
        thread: *mut pthread_t, attributes: *const libc::pthread_attr_t,
        start: extern "C" fn(*mut c_void) -> *mut c_void, argument: *mut c_void
    ) -> c_int;
    fn thrd_create(
        thread: *mut pthread_t, start: extern "C" fn(*mut c_void) -> c_int, argument: *mut c_void
    ) -> c_int;
    fn pthread_sigmask(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int;
    fn _Fork() -> pid_t;
    fn pthread_cancel(thread: pthread_t) -> c_int;
    fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int;
    fn getrlimit(resource: c_int, old: *mut rlimit) -> c_int;
    fn setrlimit(resource: c_int, new: *const rlimit) -> c_int;
    fn prlimit(pid: pid_t, resource: c_int, new: *const rlimit, old: *mut rlimit) -> c_int;
    fn mlockall(flags: c_int) -> c_int;
    fn chroot(path: *const c_char) -> c_int;
    fn setuid(uid: uid_t) -> c_int;
    fn seteuid(uid: uid_t) -> c_int;
    fn setreuid(real: uid_t, effective: uid_t) -> c_int;
    fn setresuid(real: uid_t, effective: uid_t, saved: uid_t) -> c_int;
    fn unshare(flags: c_int) -> c_int;
    fn setns(fd: c_int, kind: c_int) -> c_int;
}

/// Makes a system call by its number, past the `syscall` of this library.
///
/// # Safety
/// As for the system call.
pub unsafe fn system_call<const N: usize>(number: c_long, arguments: [c_long; N]) -> c_long {
    let a = |n: usize| arguments.get(n).copied().unwrap_or(0);
    // SAFETY: the caller's promise.
    unsafe { syscall(number, a(0), a(1), a(2), a(3), a(4), a(5)) }
}

/// Makes a [`system_call`] with arguments of any type, which are cast to words.
macro_rules! sys {
    ($number:expr $(, $argument:expr)* $(,)?) => {
        $crate::real::system_call($number, [$($argument as ::std::ffi::c_long),*])
    };
}
pub(crate) use sys;

/// Creates a socket of the kernel, with the words by which the filter of programs on a stack lets it through:
/// socket(2).
pub fn kernel_socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let [first, second] = atoll_sys::internet::WORDS;
    // SAFETY: numbers only.
    unsafe { sys!(libc::SYS_socket, domain, kind, protocol, 0, first, second) as c_int }
}

/// Counts a system call of this thread.
#[inline]
pub fn count_system_call() {
    let count = &thread::current().system_calls;
    count.set(count.get().wrapping_add(1));
}

/// Returns the last error of the C library in this thread.
pub fn last_errno() -> Errno {
    // SAFETY: a valid thread-local.
    Errno(unsafe { *libc::__errno_location() })
}

/// Sets the last error of the C library in this thread.
pub fn set_errno(errno: Errno) {
    // SAFETY: a valid thread-local.
    unsafe { *libc::__errno_location() = errno.0 };
}

/// Returns the address of the C library's vfork, to jump there.
pub fn vfork_address() -> *mut c_void {
    // SAFETY: a valid name.
    unsafe { libc::dlsym(libc::RTLD_NEXT, c"vfork".as_ptr()) }
}
