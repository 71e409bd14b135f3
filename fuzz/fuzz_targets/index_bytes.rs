#![no_main]
//! Changes bytes of a pool with an index of any kind, then opens, checks, reads, walks and writes it.

libfuzzer_sys::fuzz_target!(|input: &[u8]| durix_fuzzing::index_bytes::mutate_and_use(input));
