//! A full pool, in which deleting one entry lets one of its size be inserted.

use durix::kind::kinds;
use durix::{Error, Lengths, PoolOptions};
use durix_pmem::Hardware;
use durix_pmem::backing::HeapBacking;

use super::At;

const CHUNK: u64 = 4096;
const LIMIT: u64 = 64 * CHUNK;
/// Entries that are replaced by others, one after the other.
const ROUNDS: usize = 100;

fn is_full(error: &Error) -> bool {
    matches!(error, Error::Pool(durix_pmem::Error::Full { .. }))
}

/// A key of eight bytes: those that are near each other in number lie far apart.
fn key(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

/// How many deletions one insert may need at most.
fn most_deletions(kind: &str) -> u64 {
    match kind {
        // A new key in a full node needs a node, and nodes are given back when they are empty.
        "masstree" | "bplustree" => 100,
        // A range that is merged needs new leaves beside the old ones; the log has its pages meanwhile.
        "dptree" => 350,
        // Branches and records have pages of their own, which are given back when they are empty.
        "bst-values" => 700,
        _ => 1,
    }
}

#[test]
fn in_a_full_pool_deleting_an_entry_makes_room_for_another() {
    let mut wrong = Vec::new();
    for entry in kinds::<Hardware>() {
        let name = entry.name;
        let options = PoolOptions::new().chunk_size(CHUNK).lanes(1).max_indices(2).initial_size(LIMIT).max_size(LIMIT);
        let pool = options.create_on(HeapBacking::new(LIMIT), Hardware::PAGE_CACHE).unwrap();
        let value = match entry.limits.value {
            Lengths::Exactly(len) => vec![3; len],
            Lengths::UpTo(_) => vec![3; 40],
        };
        let mut at = At::over(entry, pool);
        let insert = |at: &mut At, number| at.index.insert(&at.session.enter().unwrap(), &key(number), &value);
        let mut next = 0;
        let error = loop {
            match insert(&mut at, next) {
                Ok(new) => assert!(new),
                Err(error) => break error,
            }
            next += 1;
        };
        assert!(is_full(&error), "{name}: {error}");
        at.index.sync(&mut at.session).unwrap();
        let (filled, mut first, mut most) = (next, 0, 0);
        for _ in 0..ROUNDS {
            let mut deletions = 0;
            loop {
                assert!(at.index.remove(&at.session.enter().unwrap(), &key(first)).unwrap(), "{name}");
                (first, deletions) = (first + 1, deletions + 1);
                at.index.sync(&mut at.session).unwrap();
                match insert(&mut at, next) {
                    Ok(new) => break assert!(new),
                    Err(error) => {
                        assert!(is_full(&error) && first < filled, "{name}: {error} after {deletions} deletions")
                    }
                }
            }
            next += 1;
            most = most.max(deletions);
        }
        println!("{name}: {filled} entries, {most} deletions for an insert at most");
        if most > most_deletions(name) {
            wrong.push(format!("{name}: {most} deletions for one insert, of {filled} entries"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
