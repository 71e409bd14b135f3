//! The targets over kinds of index run on every kind that is registered: a new one is taken up by itself.

use durix::Hardware;

/// What is done to which key; and which bytes are changed.
const STEPS: [u8; 28] = [0, 1, 2, 3, 11, 4, 5, 6, 12, 0, 9, 16, 14, 0, 1, 0, 11, 9, 9, 40, 14, 0, 0, 0, 7, 1, 0, 0];

#[test]
fn every_kind_is_fuzzed() {
    for (number, kind) in (0..).zip(durix::kind::kinds::<Hardware>()) {
        println!("fuzzing {}", kind.name);
        durix_fuzzing::index_ops::run(&[&[number], &STEPS[..]].concat());
        durix_fuzzing::index_bytes::mutate_and_use(&[&[2 * number], &STEPS[..]].concat());
    }
}
