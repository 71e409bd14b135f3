//! `soak [seconds] [seed] [kind]`: damages indices of all kinds (or of one) at random and uses them, as the target `index_damage` does, until
//! the time is over. Four of 256 cases damage the files of a journaled pool. Prints how many cases ran, and each that panicked or in which a
//! call took longer than 100 ms (4 s with files): as an input of `durix_fuzzing::damage::damage_and_use`, or after the word `files` of
//! `damage_files`, in hexadecimal. Before each batch of 256 cases it prints the batch's seed, so that a signal is found again with
//! `soak 1 <seed>`. At the end it prints how many cases each kind had.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use durix_fuzzing::damage;

/// Inputs of a seed, the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// The kind, and one to four damages.
    fn input(&mut self, kind: Option<u8>) -> Vec<u8> {
        let damages = 1 + self.next() as usize % 4;
        let drawn = self.next() as u8;
        // The kind is in the remainder; what is above chooses transactions.
        let kinds = (damage::pristine().len() / 2) as u8;
        let mut input = vec![kind.map_or(drawn, |kind| kind + drawn / kinds % 4 * kinds)];
        input.extend((0..damages * 2).flat_map(|_| self.next().to_le_bytes()).take(damages * 10));
        input
    }
}

fn main() {
    let mut words = std::env::args().skip(1);
    let mut number = |otherwise: u64| words.next().map_or(otherwise, |word| word.parse().expect("a number"));
    let (seconds, mut seed) = (number(60), number(1));
    let kind = words
        .next()
        .map(|name| damage::pristine().iter().position(|pristine| pristine.entry.name == name).expect("a kind") as u8);
    let (start, mut cases, mut failed) = (Instant::now(), 0_u64, 0_u64);
    let mut told = start;
    let names: Vec<&str> = damage::pristine().iter().map(|pristine| pristine.entry.name).collect();
    let kinds = names.len() / 2;
    let mut of_kind = vec![0_u64; kinds];
    std::panic::set_hook(Box::new(|_| ()));
    damage::longest_call(Duration::from_millis(100));
    let directory = std::env::temp_dir().join(format!("durix-soak-{}", std::process::id()));
    while start.elapsed() < Duration::from_secs(seconds) {
        let mut random = Random(seed.wrapping_mul(0xd6e8_feb8_6659_fd93));
        for number in 0..256 {
            let mut input = random.input(kind);
            // Files take a hundred times as long.
            let in_files = number % 64 == 63;
            if in_files {
                input.insert(1, random.next() as u8);
            }
            let case =
                || if in_files { damage::damage_files(&directory, &input) } else { damage::damage_and_use(&input) };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(case)) {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default();
                let input: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
                println!("batch {seed}: {}{input}: {text}", if in_files { "files " } else { "" });
                failed += 1;
            }
            cases += 1;
            of_kind[usize::from(input[0]) % kinds] += 1;
        }
        seed += 1;
        if told.elapsed() > Duration::from_secs(10) {
            told = Instant::now();
            println!("next batch {seed}: {cases} cases, {failed} failed, in {} s", start.elapsed().as_secs());
        }
    }
    let _ = std::fs::remove_dir_all(directory);
    println!("end before batch {seed}: {cases} cases, {failed} failed, in {} s", start.elapsed().as_secs());
    names.iter().zip(of_kind).for_each(|(name, cases)| println!("{name}: {cases}"));
}
