//! Random histories, then damage to the file: opening, recovering and using it gives results or errors, never a panic or a hang.

use std::sync::Arc;

use durix_pmem::backing::HeapBacking;
use durix_pmem::{Hardware, Off, PoolOptions, Session, Word};
use durix_rewind::testing::all_options;
use durix_rewind::{Error, LogRecovery, Options, TransactionManager};
use proptest::collection::vec;
use proptest::prelude::*;

const LEN: u64 = 4096 * 24;

fn pool_options() -> PoolOptions {
    PoolOptions::new().chunk_size(4096).lanes(1).max_indices(2).initial_size(LEN).max_size(LEN)
}

/// The file as a process leaves it that dies in a transaction.
fn history(options: &Options, transactions: &[(Vec<u64>, bool)]) -> Vec<u8> {
    let pool = pool_options().create_on(HeapBacking::new(LEN), Hardware::PAGE_CACHE).unwrap();
    let tm = TransactionManager::open(&pool, "log", options).unwrap();
    let mut session = pool.session().unwrap();
    for (writes, commits) in transactions {
        let done = work(&tm, &mut session, writes, *commits);
        assert_eq!(done.is_ok(), *commits, "{done:?}");
    }
    let mut tx = tm.begin(&mut session).unwrap();
    tx.set(tm.cell(0), 1).unwrap();
    tx.alloc(&[7; 4]).unwrap();
    HeapBacking::image_of(pool.mapping())
}

/// Words, and a block in the place of another.
fn work(tm: &Arc<TransactionManager>, session: &mut Session, writes: &[u64], commits: bool) -> Result<(), Error> {
    tm.transaction(session, |tx| {
        for write in writes {
            tx.set(tm.cell(*write as usize % 7), *write)?;
        }
        let old = tx.get(tm.cell(7))?;
        if old != 0 {
            tx.free(Off::<Word>::new(old))?;
        }
        let block = tx.alloc(&[writes.len() as u64; 3])?;
        tx.set(tm.cell(7), block.get())?;
        if commits { Ok(()) } else { Err(Error::RolledBack) }
    })
}

/// What a damaged word holds.
#[derive(Clone, Copy, Debug)]
enum Damage {
    Any(u64),
    Small(u64),
    /// What another word of the file holds.
    Moved(usize),
    /// The place of a line of the file.
    Line(u64),
    Bit(u32),
}

fn damage() -> impl Strategy<Value = (usize, Damage)> {
    let kinds = prop_oneof![
        any::<u64>().prop_map(Damage::Any),
        (0..70u64).prop_map(Damage::Small),
        any::<usize>().prop_map(Damage::Moved),
        (0..LEN / 64).prop_map(|line| Damage::Line(line * 64)),
        (0..64u32).prop_map(Damage::Bit),
    ];
    (any::<usize>(), kinds)
}

fn hurt(image: &mut [u8], what: &[(usize, Damage)]) {
    // The pool's own header and roots have tests of their own; here it is the log that is damaged.
    let used: Vec<usize> = (3 * 4096..LEN as usize).step_by(8).filter(|at| image[*at..*at + 8] != [0; 8]).collect();
    let word = |image: &[u8], at: usize| u64::from_le_bytes(image[at..at + 8].try_into().unwrap());
    for (at, damage) in what {
        let at = used[at % used.len()];
        let value = match *damage {
            Damage::Any(value) | Damage::Small(value) | Damage::Line(value) => value,
            Damage::Moved(from) => word(image, used[from % used.len()]),
            Damage::Bit(bit) => word(image, at) ^ 1 << bit,
        };
        image[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if std::env::var_os("DURIX_DEEP").is_some() { 100_000 } else { 400 },
        ..ProptestConfig::default()
    })]
    #[test]
    fn a_damaged_log_is_an_error_or_a_log(
        options in prop::sample::select(all_options()),
        lanes in 1..3u64,
        transactions in vec((vec(any::<u64>(), 0..9), any::<bool>()), 0..6),
        what in vec(damage(), 1..5),
    ) {
        let options = options.lanes(lanes);
        let mut image = history(&options, &transactions);
        hurt(&mut image, &what);
        let Ok(found) = pool_options().open_on(HeapBacking::from_image(image), Hardware::PAGE_CACHE) else { return Ok(()) };
        let Ok(pool) = found.recover() else { return Ok(()) };
        // Twice: what a recovery leaves when it fails is found by the next one.
        if pool.recover_logs(&[&LogRecovery]).is_err() && pool.recover_logs(&[&LogRecovery]).is_err() {
            return Ok(());
        }
        let Ok(tm) = TransactionManager::open(&pool, "log", &options) else { return Ok(()) };
        let mut session = pool.session().unwrap();
        for commits in [true, false] {
            let _ = work(&tm, &mut session, &[1, 2, 3], commits);
        }
        let _ = tm.checkpoint(&mut session);
        let _ = tm.check(&mut session);
    }
}
