//! `flips [flips a kind] [seed] [kinds]`: the table of `docs/measurements/damage.md`, of all kinds if none is named. `flips journaled …` and `flips journal …`: those of journaled pools, flips in
//! the pool's file or in the journal. `flips journaled-lost-beyond …`: what was flipped in the pool's file where `repair` lost keys that lie in no damaged
//! node. `flips missed …`: what was flipped where, of those that were missed. `flips lost …`: of those where
//! `repair` saved fewer than nine tenths of the keys. `flips lost-beyond …`: of those where it lost keys that lie in no damaged node.
//! `flips taken-for-sound [pages a kind]`: damaged pages that count as sound after their index was opened and changed.

use durix_fuzzing::flips;

fn main() {
    let mut words = std::env::args().skip(1).peekable();
    let form = words.next_if(|word| {
        word.starts_with("journal") || word == "missed" || word.starts_with("lost") || word.starts_with("taken")
    });
    let mut number = || {
        words.next_if(|word| word.starts_with(|c: char| c.is_ascii_digit())).map(|word| word.parse().expect("a number"))
    };
    let (count, seed) = (number().unwrap_or(2000), number().unwrap_or(1));
    let kinds: Vec<String> = words.collect();
    let Some(form) = form else {
        print!("{}", flips::table(count, seed, &kinds));
        return;
    };
    if form == "missed" {
        print!("{}", flips::missed(count, seed, &kinds));
        return;
    }
    if form == "lost-beyond" {
        print!("{}", flips::lost_beyond(count, seed, &kinds));
        return;
    }
    if form == "lost" {
        print!("{}", flips::lost(count, seed, &kinds, 900));
        return;
    }
    if form == "taken-for-sound" {
        for entry in durix::kind::kinds() {
            let (name, directory) = (entry.name, tempfile_of(entry.name));
            println!("{name}: {:?}", flips::taken_for_sound(entry, &directory, count as usize));
            let _ = std::fs::remove_dir_all(directory);
        }
        return;
    }
    let directory = std::env::temp_dir().join(format!("durix-flips-{}", std::process::id()));
    if form == "journaled-lost-beyond" {
        print!("{}", flips::journaled_lost_beyond(&directory, count, seed, &kinds));
    } else {
        print!("{}", flips::journaled_table(&directory, form == "journaled", count, seed));
    }
    let _ = std::fs::remove_dir_all(directory);
}

fn tempfile_of(kind: &str) -> std::path::PathBuf {
    let directory = std::env::temp_dir().join(format!("durix-flips-{}-{kind}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    directory
}
