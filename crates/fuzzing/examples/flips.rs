//! `flips [flips a kind] [seed]`: the table of `docs/damage.md`.

fn main() {
    let mut numbers = std::env::args().skip(1).map(|number| number.parse().expect("a number"));
    let (flips, seed) = (numbers.next().unwrap_or(2000), numbers.next().unwrap_or(1));
    print!("{}", durix_fuzzing::flips::table(flips, seed));
}
