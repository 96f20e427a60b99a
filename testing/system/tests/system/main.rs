//! System tests run unmodified programs on Atoll and on the kernel.
//!
//! `cargo test -p atoll-system-tests kernel::` runs the half on the kernel, which does not use Atoll; `...
//! atoll::` runs the other half.
#![forbid(unsafe_code)]

/// Makes two tests of each function that takes a [`Stack`](atoll_system_tests::Stack): one on the kernel, one
/// on Atoll.
macro_rules! on_both_stacks {
    ($($name:ident),* $(,)?) => {
        mod kernel {
            $(#[test] fn $name() { super::$name(atoll_system_tests::Stack::Kernel) })*
        }
        mod atoll {
            $(#[test] fn $name() { super::$name(atoll_system_tests::Stack::Atoll) })*
        }
    };
}

mod balance;
mod blame;
mod chaos;
mod clients;
mod closed;
mod configurations;
mod deaths;
mod devices;
mod dhcp;
mod every_call;
mod executes;
mod fast_open;
mod faults;
mod fixed;
mod fragments;
mod full_ring;
mod gone;
mod groups;
mod hostile;
mod icmp_errors;
mod interception;
mod internal;
mod joined;
mod late;
mod late_answers;
mod load;
mod log;
mod matrix;
mod metrics;
mod naive_accept;
mod names;
mod options;
mod passing;
mod ping;
mod privileges;
mod random_calls;
mod recovery;
mod rootless;
mod runtimes;
mod scaling;
mod semantics;
mod servers;
mod shortage;
mod signals;
mod space;
mod stack;
mod stand_still;
mod standby;
mod survival;
mod takeover;
mod transfer;
mod upgrade;
mod users;
mod v6;
mod view;
