//! Random sequences of socket calls say the same on Atoll and on the kernel.

use std::collections::BTreeMap;
use std::process::Command;

use atoll_system_tests::{NoNet, Proc, Stack, program};

/// Runs some sequences, with so many milliseconds after each call. Returns what each of them says.
fn start(stack: Stack, pause: u32, seeds: &[u32]) -> Proc {
    let mut python = Command::new("/usr/bin/python3");
    python.arg(program("random_calls.py")).arg(pause.to_string());
    python.args(seeds.iter().map(u32::to_string));
    Proc::start(&mut NoNet::new().on(stack, &python), None)
}

fn said(mut process: Proc) -> BTreeMap<u32, String> {
    assert!(process.end(900).success(), "{}", process.report());
    let output = process.output();
    let parts = output.split("seed ").filter_map(|part| part.split_once('\n'));
    parts.map(|(seed, calls)| (seed.parse().expect("a number"), calls.to_owned())).collect()
}

/// Returns the sequences that say something else on Atoll.
fn different(pause: u32, seeds: &[u32]) -> BTreeMap<u32, String> {
    let parts: Vec<&[u32]> = seeds.chunks(seeds.len().div_ceil(4).max(1)).collect();
    let runs = |stack| parts.iter().map(move |part| start(stack, pause, part)).collect::<Vec<_>>();
    let (kernel, atoll) = (runs(Stack::Kernel), runs(Stack::Atoll));
    let mut different = BTreeMap::new();
    for (kernel, atoll) in kernel.into_iter().zip(atoll) {
        let (kernel, atoll) = (said(kernel), said(atoll));
        assert_eq!(kernel.len(), atoll.len());
        for (seed, kernel) in kernel.iter().filter(|(seed, kernel)| atoll.get(seed) != Some(kernel)) {
            different.insert(*seed, format!("on the kernel:\n{kernel}on Atoll:\n{}", atoll[seed]));
        }
    }
    different
}

/// On a busy machine an effect may come after the next call: what differs is done again, slowly.
#[test]
fn random_calls_say_what_they_say_on_the_kernel() {
    let count = if std::env::var_os("ATOLL_SOAK").is_some() { 2000 } else { 120 };
    let seeds: Vec<u32> = (0..count).collect();
    let doubtful: Vec<u32> = different(12, &seeds).into_keys().collect();
    assert!(doubtful.len() <= seeds.len() / 4, "too many differ to be slow only: {doubtful:?}");
    let different = different(200, &doubtful);
    assert!(different.is_empty(), "{}", different.into_values().collect::<String>());
}
