//! getaddrinfo(3) and its kin, whose calls for names go over the stack ([`crate::dispatch`]).

use std::sync::atomic::AtomicBool;

use crate::dispatch::resolving;
use crate::settings::settings;
use crate::{complain_once, real};

/// A temporary failure of a look-up: EAI_AGAIN of netdb.h.
const EAI_AGAIN: i32 = -3;

macro_rules! look_ups {
    ($($name:ident($($arg:ident),*);)*) => { $(
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments)]
        pub unsafe extern "C" fn $name($($arg: usize),*) -> usize {
            // SAFETY: passed on, every argument as the register or the place that it came in.
            resolving(|| unsafe { real::$name($($arg),*) })
        }
    )* };
}

look_ups! {
    getnameinfo(addr, addr_len, host, host_len, service, service_len, flags);
    gethostbyname(name);
    gethostbyname2(name, family);
    gethostbyaddr(addr, len, family);
    gethostbyname_r(name, entry, buf, len, result, errno);
    gethostbyname2_r(name, family, entry, buf, len, result, errno);
    gethostbyaddr_r(addr, addr_len, family, entry, buf, len, result, errno);
    res_query(name, class, kind, answer, len);
    res_search(name, class, kind, answer, len);
    res_querydomain(name, domain, class, kind, answer, len);
    res_send(query, query_len, answer, len);
    res_nquery(state, name, class, kind, answer, len);
    res_nsearch(state, name, class, kind, answer, len);
    res_nquerydomain(state, name, domain, class, kind, answer, len);
    res_nsend(state, query, query_len, answer, len);
    __res_query(name, class, kind, answer, len);
    __res_search(name, class, kind, answer, len);
    __res_querydomain(name, domain, class, kind, answer, len);
    __res_send(query, query_len, answer, len);
    __res_nquery(state, name, class, kind, answer, len);
    __res_nsearch(state, name, class, kind, answer, len);
    __res_nquerydomain(state, name, domain, class, kind, answer, len);
    __res_nsend(state, query, query_len, answer, len);
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn getaddrinfo(name: usize, service: usize, hints: usize, list: usize) -> usize {
    // SAFETY: passed on.
    let look_up = || unsafe { real::getaddrinfo(name, service, hints, list) };
    let result = resolving(look_up);
    if result as i32 == EAI_AGAIN && settings().socket.is_some() {
        static IS_TOLD: AtomicBool = AtomicBool::new(false);
        complain_once(
            &IS_TOLD,
            format_args!(
                "libatoll: names are looked up over the stack, and no name server of /etc/resolv.conf \
                 answers there (atoll run --kernel-network=ADDRESS:53 would ask one over the kernel's \
                 network)\n"
            ),
        );
    }
    result
}
