//! The inputs that long runs of the fuzz targets have kept, once each: the quick form of fuzzing, the same on every machine. A file
//! of `corpus/` has an input a line, in hexadecimal; `ci/fuzz.sh` says how they are made.

use std::path::Path;

fn inputs(target: &str) -> Vec<Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target).with_extension("hex");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().map(|line| decode(line).unwrap_or_else(|| panic!("{target}: {line:?} is not hexadecimal"))).collect()
}

fn decode(line: &str) -> Option<Vec<u8>> {
    let digits = line.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2));
    digits.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect()
}

/// Runs all inputs of a target; says which one it was, where one fails.
fn replay(target: &str, run: fn(&[u8])) {
    let inputs = inputs(target);
    assert!(inputs.len() >= 20, "{target} has {} inputs", inputs.len());
    for input in inputs {
        let told = Told { target, input: &input };
        run(&input);
        std::mem::forget(told);
    }
}

/// Prints the input while a panic unwinds.
struct Told<'i> {
    target: &'i str,
    input: &'i [u8],
}

impl Drop for Told<'_> {
    fn drop(&mut self) {
        eprintln!("{} fails with {:02x?}", self.target, self.input);
    }
}

/// A test for each target, so that they run side by side.
macro_rules! replay {
    ($($target:ident => $run:path),* $(,)?) => {
        $(#[test]
        fn $target() {
            replay(stringify!($target), $run);
        })*

        #[test]
        fn every_target_is_replayed() {
            let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/fuzz_targets");
            let mut targets: Vec<String> = std::fs::read_dir(manifest)
                .expect("the fuzz targets")
                .map(|file| file.expect("a file").path().file_stem().expect("a name").to_string_lossy().into_owned())
                .collect();
            targets.sort();
            let mut replayed = [$(stringify!($target)),*];
            replayed.sort();
            assert_eq!(targets, replayed);
        }
    };
}

replay! {
    index_bytes => durix_fuzzing::index_bytes::mutate_and_use,
    index_damage => durix_fuzzing::damage::damage_and_use,
    index_ops => durix_fuzzing::index_ops::run,
    log_bytes => durix_fuzzing::log_bytes::mutate_and_use,
    logfree_ops => durix_fuzzing::logfree_ops::run_or_corrupt,
    pool_bytes => durix_fuzzing::pool_bytes::mutate_and_use,
}
