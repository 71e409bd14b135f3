//! Not in a paper: every kind of index side by side. A kind comes here by being registered.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use durix::kind::{self, Entry};
use durix::{Hardware, Index, Lengths, Pool, PoolOptions, Session};
use durix_pmem::backing::FileBacking;

use super::figure::{Context, Error, Figure, Measured};
use super::report::{Form, Panel, Point};
use crate::interleave::Series;
use crate::workload::medium;

pub(super) const FIGURE: Figure = Figure {
    name: "kinds",
    title: "every kind of index side by side, one thread (not in a paper)",
    source: "–",
    keys: Some("keys of each index"),
    run,
};

const MOST: u64 = 1 << 30;
/// Bytes of keys and values where the kind takes any.
const BYTES: usize = 8;
/// What is timed.
const CALLS: [&str; 4] = ["get", "update", "insert", "remove"];

/// An index of a kind, with half of the keys.
struct Filled {
    name: &'static str,
    pool: Pool,
    index: Arc<dyn Index>,
    keys: Vec<Vec<u8>>,
    value: Vec<u8>,
    /// Nanoseconds an operation, by call and round.
    times: [Vec<f64>; CALLS.len()],
}

fn len(lengths: Lengths) -> usize {
    match lengths {
        Lengths::Exactly(len) => len,
        Lengths::UpTo(limit) => limit.min(BYTES),
    }
}

impl Filled {
    fn new(entry: &Entry, path: &Path, keys: u64) -> Result<Self, Error> {
        let options = PoolOptions::new().initial_size(16 << 20).max_size(MOST);
        let pool = options.create_on(FileBacking::create(path)?, medium())?;
        let index = entry.open_or_create(&pool, "filled")?;
        let keys = keys.min(entry.meant_for);
        // Spread over all bytes, and all different: an odd factor.
        let spread = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        let long = |number: u64| spread(number).into_iter().chain(std::iter::repeat(0));
        let keys = (0..keys).map(|number| long(number).take(len(entry.limits.key)).collect()).collect();
        let value = vec![7; len(entry.limits.value)];
        let filled = Filled { name: entry.name, pool, index, keys, value, times: Default::default() };
        let mut session = filled.pool.session()?;
        for key in filled.first() {
            filled.index.insert(&session.enter()?, key, &filled.value)?;
        }
        Ok(filled)
    }

    /// The keys that are always there.
    fn first(&self) -> &[Vec<u8>] {
        &self.keys[..self.keys.len() / 2]
    }

    /// The keys that come and go.
    fn second(&self) -> &[Vec<u8>] {
        &self.keys[self.keys.len() / 2..]
    }

    fn round(&mut self) -> Result<(), Error> {
        let mut session = self.pool.session()?;
        let mut found = Vec::new();
        let times = [
            self.timed(&mut session, self.first(), |index, op, key| index.get(op, key, &mut found))?,
            self.timed(&mut session, self.first(), |index, op, key| index.update(op, key, &self.value))?,
            self.timed(&mut session, self.second(), |index, op, key| index.insert(op, key, &self.value))?,
            self.timed(&mut session, self.second(), |index, op, key| index.remove(op, key))?,
        ];
        self.times.iter_mut().zip(times).for_each(|(all, time)| all.push(time));
        // A buffered kind writes back now, and not in the next kind's turn.
        self.index.sync(&mut session)?;
        Ok(())
    }

    /// Nanoseconds a call, each of which has to find its key as expected.
    fn timed(
        &self,
        session: &mut Session,
        keys: &[Vec<u8>],
        mut call: impl FnMut(&dyn Index, &durix::Op<'_, Hardware>, &[u8]) -> durix::Result<bool>,
    ) -> Result<f64, Error> {
        let start = Instant::now();
        for key in keys {
            assert!(
                call(&*self.index, &session.enter()?, key)?,
                "{}: a call has not done what it was to do",
                self.name
            );
        }
        Ok(start.elapsed().as_nanos() as f64 / keys.len().max(1) as f64)
    }
}

fn run(context: &Context<'_>) -> Result<Measured, Error> {
    let (rounds, keys) = (if context.quick { 3 } else { 21 }, context.keys_or(1 << 10).max(2));
    let entries = kind::kinds::<Hardware>();
    context.expect(1, entries.len() * rounds);
    let mut measured = Measured { panels: Vec::new(), claims: Vec::new(), notes: Vec::new() };
    for place in &context.places {
        let paths: Vec<_> = entries.iter().map(|_| place.unused_path()).collect();
        let outcome = compare(context, &entries, &paths, rounds, keys);
        paths.iter().for_each(|path| _ = std::fs::remove_file(path));
        let filled = outcome?;
        let method = format!("{rounds} rounds in turn, medians, {keys} keys or as many as the kind is meant for");
        let title = "a call of each kind of index";
        let x = entries.iter().map(|entry| entry.name.to_owned()).collect();
        let mut panel = Panel::new(title, place, super::figure::medium_text(medium()), method).axes(
            "kind",
            x,
            "nanoseconds",
            Form::Bars,
        );
        for (at, filled) in filled.iter().enumerate() {
            for (call, times) in CALLS.iter().zip(&filled.times) {
                panel.set(call, at, Point::nanoseconds(&Series::new(times.clone())));
            }
        }
        measured.panels.push(panel);
    }
    Ok(measured)
}

fn compare(
    context: &Context<'_>,
    entries: &[Entry],
    paths: &[std::path::PathBuf],
    rounds: usize,
    keys: u64,
) -> Result<Vec<Filled>, Error> {
    let made = entries.iter().zip(paths).map(|(entry, path)| Filled::new(entry, path, keys));
    let mut filled = made.collect::<Result<Vec<_>, _>>()?;
    for _ in 0..rounds {
        for filled in &mut filled {
            context.now(filled.name.to_owned());
            filled.round()?;
            context.tick();
        }
    }
    Ok(filled)
}
