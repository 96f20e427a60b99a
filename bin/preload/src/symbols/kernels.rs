//! Functions that make descriptors of the kernel, or show them. Nothing of them is the stack's, but the
//! program sees by them which numbers are free, so the reserved ones are given back before
//! ([`crate::table::reserved`]).

use crate::real;
use crate::table::reserved;

/// Defines functions that are passed on, every argument as the register that it came in.
macro_rules! passed_on {
    ($($name:ident($($arg:ident),*);)*) => { $(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: usize),*) -> usize {
            reserved::give_back();
            // SAFETY: passed on.
            unsafe { real::$name($($arg),*) }
        }
    )* };
}

passed_on! {
    creat(path, mode);
    creat64(path, mode);
    mkstemp(template);
    mkstemp64(template);
    mkostemp(template, flags);
    opendir(path);
    pipe(ends);
    pipe2(ends, flags);
    socketpair(domain, kind, protocol, ends);
    eventfd(count, flags);
    signalfd(fd, mask, flags);
    timerfd_create(clock, flags);
    inotify_init();
    inotify_init1(flags);
    memfd_create(name, flags);
    fstat(fd, status);
    fstat64(fd, status);
    fstatat(directory, path, status, flags);
    fstatat64(directory, path, status, flags);
    __fxstat(version, fd, status);
    __fxstat64(version, fd, status);
    statx(directory, path, flags, mask, status);
    readlink(path, buf, len);
    readlinkat(directory, path, buf, len);
}
