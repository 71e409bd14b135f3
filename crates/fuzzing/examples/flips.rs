//! `flips [flips a kind] [seed]`: the table of `docs/design/damage.md`. `flips journaled …` and `flips journal …`: those of journaled pools, flips in
//! the pool's file or in the journal.

use durix_fuzzing::flips;

fn main() {
    let mut words = std::env::args().skip(1).peekable();
    let form = words.next_if(|word| word.starts_with("journal"));
    let mut numbers = words.map(|number| number.parse().expect("a number"));
    let (count, seed) = (numbers.next().unwrap_or(2000), numbers.next().unwrap_or(1));
    let Some(form) = form else {
        print!("{}", flips::table(count, seed));
        return;
    };
    let directory = std::env::temp_dir().join(format!("durix-flips-{}", std::process::id()));
    print!("{}", flips::journaled_table(&directory, form == "journaled", count, seed));
    let _ = std::fs::remove_dir_all(directory);
}
