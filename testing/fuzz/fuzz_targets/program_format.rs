#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| atoll_fuzz_targets::program_format(data));
