//! The new-order transaction of TPC-C over five maps, each order one transaction of the facade.
//!
//! Rows are cut to what the transaction reads and writes: `district` (next order), `item` (price), `stock` (quantity, sold, orders),
//! `orders` (customer, lines), `order_line` (item, quantity, amount). The table of new orders that wait is the last field of an order.
//! An order has 5 to 15 lines; one of a hundred names an item that there is not, and is rolled back. A thread is a terminal;
//! terminals take turns in ten districts.

use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use durix::kind::Entry;
use durix::{Db, DbBuilder, Error, Guarantee, Hardware, Map, Medium, Pool, Transaction};
use durix_pmem::backing::FileBacking;
use durix_pmem::testing::mix;
use durix_pmem::{Counting, Counts};
use hdrhistogram::Histogram;
use serde_json::json;

use super::workload::Random;
use super::{PERCENTILES, create, medium_of, on_threads, options};
use crate::args::BenchArgs;
use crate::failure::{Code, Failure};
use crate::output::{self, table};

const DISTRICTS: u64 = 10;
/// Items, unless said otherwise.
const ITEMS: u64 = 100_000;
/// Orders of the counting run, and its items at most.
const COUNTED: u64 = 2_000;
const COUNTED_ITEMS: u64 = 10_000;
/// Bytes of the longest value: three words.
const ROW: usize = 24;

type Row = [u8; ROW];

fn row(words: [u64; 3]) -> Row {
    let mut row = [0; ROW];
    row.chunks_exact_mut(8).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
    row
}

fn word(row: &Row, at: usize) -> u64 {
    u64::from_le_bytes(row[8 * at..][..8].try_into().expect("8 bytes"))
}

/// The tables.
struct Shop<M: Medium> {
    db: Db<M>,
    district: Map<u64, Row, M>,
    item: Map<u64, Row, M>,
    stock: Map<u64, Row, M>,
    orders: Map<u64, Row, M>,
    lines: Map<u64, Row, M>,
}

/// What a terminal asks for.
struct Order {
    district: u64,
    customer: u64,
    /// Items and quantities.
    lines: Vec<(u64, u64)>,
}

impl Order {
    fn draw(random: &mut Random, district: u64, items: u64) -> Order {
        let count = 5 + random.below(11);
        let mut lines: Vec<_> = (0..count).map(|_| (1 + random.below(items), 1 + random.below(10))).collect();
        if random.below(100) == 0
            && let Some(last) = lines.last_mut()
        {
            last.0 = items + 1;
        }
        Order { district, customer: 1 + random.below(3000), lines }
    }
}

impl<M: Medium> Shop<M> {
    fn new(db: Db<M>, kind: &str, items: u64) -> Result<Self, Failure> {
        let open = |name| db.map_of_kind(name, kind);
        let (district, item, stock) = (open("district")?, open("item")?, open("stock")?);
        let (orders, lines) = (open("orders")?, open("order_line")?);
        district.try_extend((0..DISTRICTS).map(|number| (number, row([1, 0, 0]))))?;
        item.try_extend((1..=items).map(|number| (number, row([number % 100 + 1, 0, 0]))))?;
        stock.try_extend((1..=items).map(|number| (number, row([100, 0, 0]))))?;
        db.sync()?;
        Ok(Shop { db, district, item, stock, orders, lines })
    }

    /// Returns whether the order was placed.
    fn place(&self, order: &Order) -> Result<bool, Failure> {
        match self.db.transaction(|tx| self.place_in(tx, order)) {
            Ok(()) => Ok(true),
            Err(Error::Aborted(_)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn place_in(&self, tx: &Transaction<M>, order: &Order) -> durix::Result<()> {
        let missing = || Error::abort("no such item");
        let (item, stock, lines) = (tx.map(&self.item)?, tx.map(&self.stock)?, tx.map(&self.lines)?);
        let district = tx.map(&self.district)?;
        let number = word(&district.get_for_update(&order.district)?.ok_or_else(missing)?, 0);
        district.insert(&order.district, &row([number + 1, 0, 0]))?;
        let id = order.district << 48 | number << 8;
        tx.map(&self.orders)?.insert(&id, &row([order.customer, order.lines.len() as u64, 1]))?;
        for (line, (bought, quantity)) in order.lines.iter().enumerate() {
            let price = word(&item.get(bought)?.ok_or_else(missing)?, 0);
            let there = stock.get_for_update(bought)?.ok_or_else(missing)?;
            let left = word(&there, 0);
            let left = if left >= quantity + 10 { left - quantity } else { left + 91 - quantity };
            stock.insert(bought, &row([left, word(&there, 1) + quantity, word(&there, 2) + 1]))?;
            lines.insert(&(id | line as u64), &row([*bought, *quantity, price * quantity]))?;
        }
        Ok(())
    }

    /// Whether the tables agree: as many lines as orders say, and as many orders as the districts have given numbers.
    fn is_consistent(&self) -> Result<bool, Failure> {
        let mut given = 0;
        for pair in self.district.iter() {
            given += word(&pair?.1, 0) - 1;
        }
        let (mut orders, mut lines) = (0, 0);
        for pair in self.orders.iter() {
            (orders, lines) = (orders + 1, lines + word(&pair?.1, 1));
        }
        Ok((given, lines) == (orders, self.lines.count()?))
    }
}

fn builder(args: &BenchArgs) -> DbBuilder {
    Db::builder().checkpoint_every(Duration::from_millis(args.checkpoint_ms))
}

pub fn run(args: &BenchArgs, kind: &Entry) -> Result<Code, Failure> {
    if !kind.limits.value.allow(ROW) || !kind.limits.key.allow(8) {
        let what =
            format!("tpcc-neworder needs keys of 8 and values of {ROW} bytes, which {} does not take", args.kind);
        return Err(Failure::usage(what));
    }
    let items = args.keys.unwrap_or(ITEMS);
    let folder = args.dir.clone().unwrap_or_else(crate::torture::default_dir);
    let dir = tempfile::Builder::new().prefix("durix-bench-").tempdir_in(&folder);
    let dir = dir.map_err(Failure::io(format!("making a folder in {}", folder.display())))?;
    let counts = counted(args, items.min(COUNTED_ITEMS), &dir.path().join("counted"))?;
    let pool: Pool = create(args, &dir.path().join("pool"))?;
    let shop = Shop::new(builder(args).over(pool)?, &args.kind, items)?;
    let measured = measure(&shop, args, items)?;
    let outcome = Outcome { args, items, guarantee: shop.lines.guarantee(), measured, counts };
    if !shop.is_consistent()? {
        return Err(Failure::usage("the tables do not agree after the run; please report this"));
    }
    if args.json {
        output::json(&outcome.as_json())?
    } else {
        output::line(&outcome.as_text(&shop))?
    };
    Ok(Code::Done)
}

/// Exact counts of one terminal's orders.
fn counted(args: &BenchArgs, items: u64, path: &Path) -> Result<Counts, Failure> {
    let backing = FileBacking::create(path)?;
    let counting = Counting::new(medium_of(args, &backing)?);
    let pool = options(args).create_on(backing, counting)?;
    let db = Db::builder().no_background_threads().over(pool)?;
    let shop = Shop::new(db, &args.kind, items)?;
    let mut random = Random::new(args.seed);
    let before = counting.counts();
    for number in 0..COUNTED {
        shop.place(&Order::draw(&mut random, number % DISTRICTS, items))?;
    }
    shop.db.sync()?;
    let counts = counting.counts() - before;
    drop(shop);
    let _ = std::fs::remove_file(path);
    Ok(counts)
}

struct Measured {
    took: Duration,
    placed: u64,
    latencies: Histogram<u64>,
}

fn new_latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("bounds that fit")
}

/// All terminals at once.
fn measure<M: Medium>(shop: &Shop<M>, args: &BenchArgs, items: u64) -> Result<Measured, Failure> {
    let barrier = Barrier::new(args.threads as usize);
    let of_threads = on_threads(args.threads, |thread| {
        let mut random = Random::new(args.seed ^ mix(thread + 1));
        let own = args.ops / args.threads + u64::from(thread < args.ops % args.threads);
        let (mut latencies, mut placed) = (new_latencies(), 0);
        barrier.wait();
        let start = Instant::now();
        let mut before = start;
        for number in 0..own {
            let district = (thread + number * args.threads) % DISTRICTS;
            placed += u64::from(shop.place(&Order::draw(&mut random, district, items))?);
            let now = Instant::now();
            latencies.saturating_record((now - before).as_nanos() as u64);
            before = now;
        }
        Ok((latencies, placed, start, before))
    })?;
    let start = of_threads.iter().map(|(_, _, start, _)| *start).min();
    let end = of_threads.iter().map(|(_, _, _, end)| *end).max();
    let mut measured = Measured { took: Duration::ZERO, placed: 0, latencies: new_latencies() };
    measured.took = start.zip(end).map_or(Duration::ZERO, |(start, end)| end - start);
    for (latencies, placed, ..) in of_threads {
        measured.latencies.add(&latencies).map_err(|e| Failure::usage(e.to_string()))?;
        measured.placed += placed;
    }
    Ok(measured)
}

struct Outcome<'a> {
    args: &'a BenchArgs,
    items: u64,
    guarantee: Guarantee,
    measured: Measured,
    counts: Counts,
}

impl Outcome<'_> {
    fn a_minute(&self) -> f64 {
        self.measured.placed as f64 / self.measured.took.as_secs_f64() * 60.0
    }

    fn an_order(count: u64) -> f64 {
        count as f64 / COUNTED as f64
    }

    fn as_text(&self, shop: &Shop<Hardware>) -> String {
        let BenchArgs { kind, ops, threads, .. } = self.args;
        let mut text = format!(
            "{kind}, new-order of TPC-C: {} items, {ops} orders, {}, {DISTRICTS} districts\n\
             medium      {}\n\
             guarantee   {}\n\
             throughput  {:.0} orders/min; {} of {ops} placed, the rest rolled back\n\
             an order: {:.2} write-backs, {:.2} fences ({COUNTED} orders counted, one terminal)\n\n",
            self.items,
            output::counted(*threads, "terminal"),
            shop.db.pool().mapping().medium().describe(),
            self.guarantee,
            self.a_minute(),
            self.measured.placed,
            Self::an_order(self.counts.write_backs),
            Self::an_order(self.counts.fences),
        );
        let latencies = &self.measured.latencies;
        let mut cells = vec!["new-order".to_owned(), latencies.len().to_string(), format!("{:.0}", latencies.mean())];
        cells.extend(PERCENTILES.iter().map(|p| latencies.value_at_percentile(*p).to_string()));
        cells.push(latencies.max().to_string());
        let header = ["ns", "count", "mean", "p50", "p90", "p99", "p99.9", "p99.99", "max"];
        text.push_str(&table(&header, vec![cells], &[1, 2, 3, 4, 5, 6, 7, 8]));
        text
    }

    fn as_json(&self) -> serde_json::Value {
        let BenchArgs { kind, ops, threads, seed, .. } = self.args;
        let latencies = &self.measured.latencies;
        let mut ns = json!({ "count": latencies.len(), "mean": latencies.mean(), "max": latencies.max() });
        for p in PERCENTILES {
            ns[format!("p{p}")] = json!(latencies.value_at_percentile(p));
        }
        json!({
            "kind": kind, "workload": "tpcc-neworder", "items": self.items, "ops": ops, "threads": threads, "seed": seed,
            "placed": self.measured.placed,
            "orders_per_minute": self.a_minute(),
            "write_backs_per_op": Self::an_order(self.counts.write_backs),
            "fences_per_op": Self::an_order(self.counts.fences),
            "latency_ns": { "new-order": ns },
        })
    }
}
