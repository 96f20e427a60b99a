//! Are sockets sound at every instruction, whatever interrupts it? `programs/signals.c` sends signals at
//! random, and `programs/stepping.c` is a debugger that interrupts a program at chosen instructions. Both run
//! on the kernel as well, and print the same lines there.

use std::process::Command;

use atoll_system_tests::{NoNet, Proc, Stack, compiled, soak};

fn run(stack: Stack, name: &str, arguments: &[&str], seconds: u64) -> String {
    let mut command = Command::new(compiled(name));
    Proc::start(&mut NoNet::new().on(stack, command.args(arguments)), None).success(seconds)
}

/// The number of signals: `ATOLL_SIGNALS`, or a million in `make soak`.
fn signals() -> String {
    let usual = if soak() { "1000000" } else { "50000" };
    std::env::var("ATOLL_SIGNALS").unwrap_or_else(|_| usual.to_owned())
}

#[test]
fn at_random_instructions_signals_lose_no_octet() {
    // Cancelled calls of the kernel's lose octets (glibc bug 12683), and those of Atoll do not.
    let kernel = run(Stack::Kernel, "signals", &["20000", "cancelled-calls-lose"], 600);
    let atoll = run(Stack::Atoll, "signals", &[&signals()], 24 * 3600);
    assert_eq!(kernel, atoll);
}

/// Interrupts rounds of calls at every so many instructions: all in `make soak`. The kernel's calls are one
/// instruction each.
fn at_every_instruction(way: &str, what: &str, every: u32) {
    let kernel = run(Stack::Kernel, "stepping", &[way, what, "23"], 600);
    let every = if soak() { 1 } else { every };
    let atoll = run(Stack::Atoll, "stepping", &[way, what, &every.to_string()], 24 * 3600);
    assert!(kernel == atoll && kernel.contains("ends well") | kernel.contains("goes on"), "{kernel}{atoll}");
}

#[test]
fn at_any_instruction_handlers_use_sockets() {
    at_every_instruction("symbols", "sockets", 4999);
}

#[test]
fn at_any_instruction_handlers_fork() {
    at_every_instruction("symbols", "forks", 7001);
}

#[test]
fn at_any_instruction_handlers_leave_by_a_jump() {
    at_every_instruction("symbols", "jumps", 5003);
}

#[test]
fn at_any_instruction_one_of_a_family_dies() {
    at_every_instruction("symbols", "death", 4999);
}

#[test]
fn at_any_instruction_of_a_trapped_call_handlers_use_sockets() {
    at_every_instruction("raw", "sockets", 7001);
}

#[test]
fn at_any_instruction_of_a_trapped_call_handlers_leave_by_a_jump() {
    at_every_instruction("raw", "jumps", 7001);
}
