//! Few entries at a time in a pool that has room for many, whatever came and went before.

use std::collections::VecDeque;

use durix::kind::{Entry, kinds};
use durix::{Lengths, PoolOptions};
use durix_pmem::Hardware;
use durix_pmem::backing::HeapBacking;
use durix_pmem::service::Tick;

use super::{At, Random};

const CHUNK: u64 = 4096;

/// How much is done.
#[derive(Clone, Copy, Debug)]
struct Size {
    chunks: u64,
    /// Entries at a time.
    live: usize,
    changes: u64,
}

const QUICK: Size = Size { chunks: 256, live: 100, changes: 3000 };
/// Enough for trees of several levels, tables that grow, logs of several pages.
const DEEP: Size = Size { chunks: 4096, live: 8000, changes: 100_000 };

/// The order in which entries come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// Each after all before it; the oldest goes.
    Ascending,
    /// Each before all before it; the oldest goes.
    Descending,
    /// Anywhere; the oldest goes.
    Scattered,
    /// Anywhere; any goes.
    Random,
    /// The same few over and over, beside others that stay.
    Few,
}

/// When somebody works for the services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ticks {
    /// At odd moments; and what is there is made durable now and then, as it is every 64 ms otherwise.
    Often,
    /// Never; but what is there is made durable now and then.
    Never,
}

fn key(order: Order, number: u64, live: u64) -> [u8; 8] {
    match order {
        Order::Ascending => number,
        Order::Descending => !number,
        Order::Scattered | Order::Random => number.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        // The first half stays; the others are a few more than the second half.
        Order::Few if number < live / 2 => number * 3,
        Order::Few => u64::MAX / 2 + number % (live / 2 + 10),
    }
    .to_be_bytes()
}

fn value(entry: &Entry, random: &mut Random) -> Vec<u8> {
    match entry.limits.value {
        Lengths::Exactly(len) => vec![3; len],
        Lengths::UpTo(_) => vec![3; [0, 8, 40, 200, 900][random.below(5) as usize]],
    }
}

fn run(entry: Entry, order: Order, ticks: Ticks, size: Size) -> Result<(), String> {
    let limit = size.chunks * CHUNK;
    let options = PoolOptions::new().chunk_size(CHUNK).lanes(1).max_indices(2).initial_size(limit).max_size(limit);
    let pool = options.create_on(HeapBacking::new(limit), Hardware::PAGE_CACHE).unwrap();
    let mut at = At::over(entry, pool);
    let (mut live, mut random) = (VecDeque::new(), Random(7));
    for number in 0..size.changes {
        let new = key(order, number, size.live as u64);
        if live.len() >= size.live {
            let gone = match order {
                Order::Random => live.swap_remove_back(random.below(size.live as u64) as usize),
                Order::Few => live.remove(size.live / 2),
                _ => live.pop_front(),
            };
            let gone: [u8; 8] = gone.expect("some are there");
            let removed = at.index.remove(&at.session.enter().unwrap(), &gone);
            assert!(removed.map_err(|error| format!("removal {number}: {error}"))?, "{gone:?} is there");
        }
        let value = value(&at.entry, &mut random);
        let inserted = at.index.insert(&at.session.enter().unwrap(), &new, &value);
        assert!(inserted.map_err(|error| format!("insertion {number}: {error}"))?, "{new:?} is new");
        live.push_back(new);
        if ticks == Ticks::Often && number % 13 == 5 {
            while at.pool.tick(&mut at.session).unwrap() == Tick::Worked {}
        }
        if number % 400 == 399 {
            at.index.sync(&mut at.session).unwrap();
        }
    }
    Ok(())
}

#[test]
fn a_pool_does_not_fill_up_while_few_entries_are_there() {
    let size = if std::env::var_os("DURIX_DEEP").is_some() { DEEP } else { QUICK };
    let mut wrong = Vec::new();
    for entry in kinds::<Hardware>() {
        // It is linear.
        if size.live > QUICK.live && entry.name.starts_with("list") {
            continue;
        }
        for order in [Order::Ascending, Order::Descending, Order::Scattered, Order::Random, Order::Few] {
            for ticks in [Ticks::Often, Ticks::Never] {
                // It becomes a list.
                let is_list = entry.name.starts_with("bst") && matches!(order, Order::Ascending | Order::Descending);
                if is_list && size.live > QUICK.live {
                    continue;
                }
                if let Err(error) = run(entry, order, ticks, size) {
                    wrong.push(format!("{}, {order:?}, ticks {ticks:?}: {error}", entry.name));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
