#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| atoll_fuzz_targets::supervisor_said(data));
