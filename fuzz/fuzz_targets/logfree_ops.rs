#![no_main]
//! Operations on the log-free maps against a model; then on pools with changed words.

libfuzzer_sys::fuzz_target!(|input: &[u8]| match input.split_first() {
    Some((0, rest)) => durix_fuzzing::logfree_ops::corrupt(rest),
    Some((_, rest)) => durix_fuzzing::logfree_ops::run(rest),
    None => {}
});
