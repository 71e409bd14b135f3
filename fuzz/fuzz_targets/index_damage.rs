#![no_main]
//! Damages words, lines and pages of an index of any kind, and calls all that there is.

libfuzzer_sys::fuzz_target!(|input: &[u8]| durix_fuzzing::damage::damage_and_use(input));
