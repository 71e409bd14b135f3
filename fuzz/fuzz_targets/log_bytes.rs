#![no_main]
//! Changes bytes of a log, then recovers, checks, reads and writes it.

libfuzzer_sys::fuzz_target!(|input: &[u8]| durix_fuzzing::log_bytes::mutate_and_use(input));
