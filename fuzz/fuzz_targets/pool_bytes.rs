#![no_main]
//! Changes bytes of a pool, then opens, checks, reads and writes it.

libfuzzer_sys::fuzz_target!(|input: &[u8]| durix_fuzzing::pool_bytes::mutate_and_use(input));
