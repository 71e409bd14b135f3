//! Figure 11: the new-order transaction of TPC-C over B+-trees, in four layouts.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Barrier, Mutex, MutexGuard};
use std::time::Instant;

use durix_pmem::{Hardware, Medium, Session};
use durix_rewind::Options;

use super::micro::figure;
use super::tree::{Tree, Words};
use super::world::{Any, How, World};
use crate::interleave::Series;
use crate::paper::report::{Claim, Form, Panel, Point};
use crate::paper::{Context, Error, Figure, Measured};
use crate::place::Place;
use crate::workload::{Random, medium};

pub(in crate::paper) const FIGURE: Figure = figure("rewind-fig11", "TPC-C new-order, four layouts", run);

const DISTRICTS: u64 = 10;
const TERMINALS: usize = 10;

/// Tables that all layouts have as one tree.
const STOCK: u64 = 0;
const ITEM: u64 = 1;
const DISTRICT: u64 = 2;
/// Tables with a compound key: one tree each in the naive layout, one for each district in the optimised one.
const ORDERS: u64 = 3;
const ORDER_LINE: u64 = 4;
const NEW_ORDER: u64 = 5;
/// Where the trees of the optimised layout begin.
const BY_DISTRICT: u64 = 8;

/// One layout.
struct Layout {
    name: &'static str,
    world: World<Hardware>,
    by_district: bool,
    /// Orders that have committed.
    orders: AtomicU64,
    /// One for the naive trees, or one for each district; then one for each part of the stock.
    tables: Vec<Mutex<()>>,
    stock: Vec<Mutex<()>>,
}

/// Parts of the stock, each with a lock.
const PARTS: u64 = 64;

impl Layout {
    fn new(place: &Place, name: &'static str, how: How, by_district: bool, items: u64) -> Result<Self, Error> {
        let world = World::at(place, medium(), how, 64 << 20)?;
        let mut session = world.pool.session()?;
        world.load(&mut session, STOCK, (1..=items).map(|item| (item, [100, 0, 0])))?;
        world.load(&mut session, ITEM, (1..=items).map(|item| (item, [item % 100 + 1, 0, 0])))?;
        // Tax, next order.
        world.load(&mut session, DISTRICT, (0..DISTRICTS).map(|district| (district, [7, 1, 0])))?;
        let trees = if by_district { BY_DISTRICT..BY_DISTRICT + 3 * DISTRICTS } else { ORDERS..NEW_ORDER + 1 };
        trees.into_iter().try_for_each(|tree| world.load(&mut session, tree, std::iter::empty()))?;
        drop(session);
        let locks = |count| (0..count).map(|_| Mutex::new(())).collect();
        let tables = locks(if by_district { DISTRICTS } else { 1 });
        Ok(Layout { name, world, by_district, orders: AtomicU64::new(0), tables, stock: locks(PARTS) })
    }

    /// The tree of a table for a district, and the key there of what is `rest` within the district.
    fn at(&self, table: u64, district: u64, rest: u64) -> (Tree, u64) {
        if self.by_district {
            (self.world.tree(BY_DISTRICT + (table - ORDERS) * DISTRICTS + district), rest)
        } else {
            (self.world.tree(table), district << 48 | rest)
        }
    }

    /// One order. Returns whether it was placed: one of a hundred names an item that there is not.
    fn new_order(&self, session: &mut Session<Hardware>, order: &Order) -> Result<bool, Error> {
        // In the order of their numbers, so that nobody waits in a circle; held until the commit.
        let _table = lock(&self.tables[order.district as usize % self.tables.len()]);
        let mut parts: Vec<u64> = order.lines.iter().map(|(item, _)| item % PARTS).collect();
        parts.sort_unstable();
        parts.dedup();
        let _stock: Vec<MutexGuard<'_, ()>> = parts.iter().map(|part| lock(&self.stock[*part as usize])).collect();
        let mut placed = false;
        self.world.transaction(session, |words| {
            placed = self.place(words, order).is_some();
            words.done();
            placed
        })?;
        self.orders.fetch_add(u64::from(placed), Relaxed);
        Ok(placed)
    }

    fn place(&self, words: &mut Any<'_, '_, Hardware>, order: &Order) -> Option<()> {
        let district = self.world.tree(DISTRICT).place(words, order.district)?;
        let number = words.get(district + 8);
        words.set(district + 8, number + 1);
        let (tree, key) = self.at(ORDERS, order.district, number);
        tree.insert(words, key, [order.customer, order.lines.len() as u64, 0]);
        let (tree, key) = self.at(NEW_ORDER, order.district, number);
        tree.insert(words, key, [0; 3]);
        for (line, (item, quantity)) in order.lines.iter().enumerate() {
            let [price, ..] = self.world.tree(ITEM).get(words, *item)?;
            let stock = self.world.tree(STOCK).place(words, *item)?;
            let left = words.get(stock);
            let left = if left >= quantity + 10 { left - quantity } else { left + 91 - quantity };
            let (sold, count) = (words.get(stock + 8), words.get(stock + 16));
            for (word, value) in [left, sold + quantity, count + 1].into_iter().enumerate() {
                words.set(stock + 8 * word as u64, value);
            }
            let (tree, key) = self.at(ORDER_LINE, order.district, number << 8 | line as u64);
            tree.insert(words, key, [*item, *quantity, price * quantity]);
        }
        Some(())
    }
}

fn lock(mutex: &Mutex<()>) -> MutexGuard<'_, ()> {
    mutex.lock().expect("no terminal panics")
}

/// What a terminal asks for.
struct Order {
    district: u64,
    customer: u64,
    lines: Vec<(u64, u64)>,
}

impl Order {
    fn draw(random: &mut Random, district: u64, items: u64) -> Order {
        let mut next = || random.next() >> 11;
        let count = 5 + next() % 11;
        let mut lines: Vec<(u64, u64)> = (0..count).map(|_| (1 + next() % items, 1 + next() % 10)).collect();
        if next() % 100 == 0 {
            // An item that there is not, in the last line: the order is rolled back.
            lines.last_mut().expect("five lines at least").0 = items + 1;
        }
        Order { district, customer: 1 + next() % 3000, lines }
    }
}

/// Orders placed a minute by ten terminals, each with its district.
fn throughput(layout: &Layout, orders: usize, items: u64, seed: u64) -> Result<f64, Error> {
    let barrier = Barrier::new(TERMINALS + 1);
    let before = layout.orders.load(Relaxed);
    let mut seconds = 0.0;
    std::thread::scope(|scope| {
        let barrier = &barrier;
        let terminal = move |district: usize| {
            let mut session = layout.world.pool.session()?;
            let mut random = Random(88_172_645_463_325_252 ^ ((seed << 8) + district as u64 + 1) << 9);
            let drawn: Vec<Order> = (0..orders).map(|_| Order::draw(&mut random, district as u64, items)).collect();
            barrier.wait();
            let done = drawn.iter().try_for_each(|order| layout.new_order(&mut session, order).map(drop));
            barrier.wait();
            done
        };
        let handles: Vec<_> = (0..TERMINALS).map(|district| scope.spawn(move || terminal(district))).collect();
        barrier.wait();
        let start = Instant::now();
        barrier.wait();
        seconds = start.elapsed().as_secs_f64();
        handles.into_iter().try_for_each(|handle| handle.join().expect("no terminal panics"))
    })?;
    // Without checkpoints within a round, as in the figures before.
    layout.world.tm.checkpoint(&mut layout.world.pool.session()?)?;
    Ok((layout.orders.load(Relaxed) - before) as f64 / seconds * 60.0)
}

const NAIVE: &str = "NVM, naive trees";
const PLAIN: &str = "NVM, trees by district";
const LOGGED: &str = "REWIND, naive trees";
const OPTIMISED: &str = "REWIND, trees by district";
const DISTRIBUTED: &str = "REWIND, trees by district, distributed log";

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let (items, orders) = if context.quick { (10_000, 100) } else { (100_000, 1000) };
    let rounds = if context.quick { 5 } else { 15 };
    context.expect(1, rounds);
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes: notes(items, orders) };
    for place in &context.places {
        context.now(format!("ten terminals, {}", place.pages));
        let log = Options::default();
        let layouts = [
            Layout::new(place, NAIVE, How::Plain, false, items)?,
            Layout::new(place, LOGGED, How::Logged(log), false, items)?,
            Layout::new(place, PLAIN, How::Plain, true, items)?,
            Layout::new(place, OPTIMISED, How::Logged(log), true, items)?,
            Layout::new(place, DISTRIBUTED, How::Logged(log.lanes(TERMINALS as u64)), true, items)?,
        ];
        let mut rates = [const { Vec::new() }; 5];
        for round in 0..rounds + 1 {
            for (layout, rates) in layouts.iter().zip(&mut rates) {
                let rate = throughput(layout, orders, items, round as u64)?;
                // The first round grows the logs.
                if round > 0 {
                    rates.push(rate / 1000.0);
                }
            }
            if !context.tick() && round >= 3 {
                break;
            }
        }
        let how = format!("medians of {} interleaved rounds of {orders} orders a terminal", rates[0].len());
        let panel = Panel::new("new-order", place, medium().describe(), how);
        let mut panel = panel.axes("layout", vec!["orders".into()], "thousand orders a minute", Form::Bars);
        let rates = rates.map(Series::new);
        for (layout, rates) in layouts.iter().zip(&rates) {
            panel.set(layout.name, 0, Point::nanoseconds(rates));
        }
        measured.panels.push(panel);
        let claim = |what: &str, paper: &str, (a, b): (usize, usize), goal: Option<f64>| {
            let ours = rates[a].ratio_to(&rates[b]).median();
            let what = format!("{what}, {}", place.pages);
            Claim { what, paper: paper.into(), ours: format!("{ours:.2} times"), holds: goal.map(|goal| ours <= goal) }
        };
        measured.claims.extend([
            claim("naive NVM over REWIND by district", "1.39 times", (0, 3), Some(1.39)),
            claim("naive NVM over REWIND by district with a distributed log", "1.05 times", (0, 4), Some(1.05)),
            claim("naive NVM over naive REWIND", "7.37 times", (0, 1), None),
            claim("NVM by district over REWIND by district", "(not in the paper)", (2, 3), None),
        ]);
    }
    Ok(measured)
}

fn notes(items: u64, orders: usize) -> Vec<String> {
    vec![
        format!("{items} items, {orders} orders a terminal and round, 1% rolled back; rows are cut to what new-order reads and writes"),
        "ten threads, time that passes: other work on the machine counts".into(),
        "naive: one tree and one lock a table; by district: ten of each. NVM: persistent when an order returns, one fence an order, \
         nothing is rolled back"
            .into(),
        "the paper's 1.39 compares trees by district over REWIND with naive trees without it; the last claim compares like with like"
            .into(),
    ]
}
