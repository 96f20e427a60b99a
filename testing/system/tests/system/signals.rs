//! Are sockets sound at every instruction, whatever interrupts it? `programs/signals.c` sends signals at
//! random, and `programs/stepping.c` is a debugger that interrupts a program at chosen instructions. Both run
//! on the kernel as well, and print the same lines there.

use std::process::Command;

use atoll_system_tests::{NoNet, Proc, Stack, compiled, compiled_by, compiled_statically, program, soak};

fn run(stack: Stack, name: &str, arguments: &[&str], seconds: u64) -> String {
    run_program(stack, &compiled(name), arguments, seconds)
}

fn run_program(stack: Stack, program: &str, arguments: &[&str], seconds: u64) -> String {
    let mut command = Command::new(program);
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
    at_every_instruction_of(&compiled("stepping"), way, what, every);
}

fn at_every_instruction_of(program: &str, way: &str, what: &str, every: u32) {
    let kernel = run_program(Stack::Kernel, program, &[way, what, "23"], 600);
    let every = if soak() { 1 } else { every };
    let atoll = run_program(Stack::Atoll, program, &[way, what, &every.to_string()], 24 * 3600);
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
fn at_any_instruction_one_of_a_family_is_stopped() {
    at_every_instruction("symbols", "stop", 2503);
}

#[test]
fn at_any_instruction_of_a_trapped_call_handlers_use_sockets() {
    at_every_instruction("raw", "sockets", 7001);
}

#[test]
fn at_any_instruction_of_a_trapped_call_handlers_leave_by_a_jump() {
    at_every_instruction("raw", "jumps", 7001);
}

#[test]
fn at_any_instruction_of_a_static_program_handlers_use_sockets() {
    at_every_instruction_of(&compiled_statically("stepping"), "symbols", "sockets", 5003);
}

#[test]
fn at_any_instruction_of_a_static_program_handlers_leave_by_a_jump() {
    at_every_instruction_of(&compiled_statically("stepping"), "symbols", "jumps", 7001);
}

/// The system calls that a static program makes for a socket are its own: a trap is two of them.
#[test]
fn static_programs_receive_without_a_trap() {
    let source = program("stepping.c");
    for program in [compiled_statically("stepping"), compiled_by("musl-gcc", &source, &["-static"])] {
        let counts = run_program(Stack::Atoll, &program, &["symbols", "count"], 60);
        let received = counts.lines().find(|line| line.starts_with("recv of 1 octet"));
        assert!(received.is_some_and(|line| line.contains(" 0 system calls")), "{counts}");
    }
}
