//! The append benchmark of OOPSLA'17, section 5.1 (Table 1, Figure 4(a)): all logs, all entry sizes, one interleaved
//! run, beside the floor.
//!
//! A round of a log is [`BATCH`] appends in one operation, and then, as in the paper, "the log entries are read and
//! discarded". The two are timed apart: ratios to the floor are of the appends alone, the paper's stress test is their
//! sum.

use std::fmt::Write as _;
use std::hint::black_box;
use std::marker::PhantomData;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use durix_pmem::{Counting, Hardware, Mapping, Medium, Session};

use crate::floor::{Floor, Stores};
use crate::interleave::{Contestant, Outcome, Series, Stopwatch, interleave_telling};
use crate::logs::{AppendLog, EntrySize, Error, HALF, ONE, Region, SIZES, Visitor, visit_logs};
use crate::machine::{Bytes, Machine};
use crate::place::{Place, Refused, free_bytes};
use crate::with_size;
pub use crate::workload::medium;

/// Appends between two readings, as in the paper.
pub const BATCH: usize = 512;

/// The region of the floor, and of each log.
const REGION: u64 = 64 << 20;
/// More than the contestants of one size.
const REGIONS: u64 = 16;

/// A log in rounds.
#[derive(Debug)]
pub struct LogRounds<M: Medium, L, const W: usize> {
    name: &'static str,
    session: Session<M>,
    log: L,
    payloads: [[u64; W]; PAYLOADS],
    /// The payload that comes next.
    turn: usize,
}

/// Different payloads that are appended in turn; no divisor of any number of slots, so that no slot gets the same again in the
/// next pass.
const PAYLOADS: usize = 13;

impl<M: Medium, L: AppendLog<M, W>, const W: usize> LogRounds<M, L, W> {
    /// Formats a log in `region`, which is all zero.
    ///
    /// # Errors
    /// What [`AppendLog::format`] refuses.
    ///
    /// # Panics
    /// If the mapping is shut or out of sessions.
    pub fn new(mapping: &Mapping<M>, region: Region) -> Result<Self, Error> {
        let mut session = mapping.session().expect("fewer contestants than sessions");
        let log = L::format(&session.enter().expect("the mapping is open"), region)?;
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        let payloads = std::array::from_fn(|_| {
            std::array::from_fn(|_| {
                random = (random ^ random >> 27).wrapping_mul(0x3c79_ac49_2ba7_b653).wrapping_add(1);
                random ^ random >> 33
            })
        });
        Ok(LogRounds { name: L::NAME, session, log, payloads, turn: 0 })
    }

    /// Appends [`BATCH`] entries.
    ///
    /// # Panics
    /// If the log is too small for them.
    #[inline(never)]
    pub fn append_batch(&mut self) {
        let op = self.session.enter().expect("the mapping is open");
        let (payloads, mut turn) = (black_box(&self.payloads), self.turn);
        for _ in 0..BATCH {
            self.log.append(&op, &payloads[turn]).expect("a region holds more than a batch");
            turn = if turn + 1 == PAYLOADS { 0 } else { turn + 1 };
        }
        self.turn = turn;
    }

    /// Reads all entries and discards them. Returns how many there were.
    ///
    /// # Panics
    /// If the mapping is shut.
    #[inline(never)]
    pub fn consume(&mut self) -> usize {
        let op = self.session.enter().expect("the mapping is open");
        let (mut sum, mut entries) = (0u64, 0);
        self.log.consume(&op, |payload| {
            sum = payload.iter().fold(sum, |sum, word| sum.wrapping_add(*word));
            entries += 1;
        });
        black_box(sum);
        entries
    }
}

impl<M: Medium, L: AppendLog<M, W>, const W: usize> Contestant<2> for LogRounds<M, L, W> {
    fn name(&self) -> &str {
        self.name
    }

    fn round(&mut self) -> [f64; 2] {
        let start = Stopwatch::start();
        self.append_batch();
        let appended = start.elapsed();
        assert_eq!(self.consume(), BATCH, "{} lost entries", self.name);
        let all = start.elapsed();
        [appended, all - appended].map(per_append)
    }
}

fn per_append(time: Duration) -> f64 {
    time.as_nanos() as f64 / BATCH as f64
}

/// Exact counts of a log, for each append.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerAppend {
    /// Lines written back.
    pub write_backs: f64,
    /// Fences.
    pub fences: f64,
    /// Words stored.
    pub stores: f64,
}

/// Makes contestants of all logs of a size.
struct Enter<'m, M: Medium> {
    mapping: &'m Mapping<M>,
    regions: Box<dyn Iterator<Item = Region>>,
    contestants: Vec<Box<dyn Contestant<2>>>,
    missing: Vec<String>,
}

impl<M: Medium, const W: usize> Visitor<M, W> for Enter<'_, M> {
    fn visit<L: AppendLog<M, W> + 'static>(&mut self) {
        let region = self.regions.next().expect("as many regions as contestants");
        match LogRounds::<M, L, W>::new(self.mapping, region) {
            Ok(rounds) => self.contestants.push(Box::new(rounds)),
            Err(error) => self.missing.push(format!("{} is left out: {error}", L::NAME)),
        }
    }
}

/// Counts all logs of a size.
struct Count {
    found: Vec<(&'static str, PerAppend)>,
}

impl<const W: usize> Visitor<Counting<Hardware>, W> for Count {
    fn visit<L: AppendLog<Counting<Hardware>, W> + 'static>(&mut self) {
        let counting = Counting::new(medium());
        let mapping = Mapping::heap(2 << 20, counting);
        let region = Region { off: 4096, len: 1 << 20 };
        let Ok(mut rounds) = LogRounds::<_, L, W>::new(&mapping, region) else { return };
        // The second batch: nothing in it is done for the first time.
        rounds.append_batch();
        rounds.consume();
        let before = counting.counts();
        rounds.append_batch();
        let counts = counting.counts() - before;
        let each = |n: u64| n as f64 / BATCH as f64;
        let per_append = PerAppend {
            write_backs: each(counts.write_backs),
            fences: each(counts.fences),
            stores: each(counts.stores),
        };
        self.found.push((L::NAME, per_append));
    }
}

fn count<const W: usize>() -> Vec<(&'static str, PerAppend)> {
    let mut count = Count { found: Vec::new() };
    visit_logs::<_, W>(&mut count);
    count.found
}

/// The exact counts of all logs of a size, by name.
pub fn counts(size: EntrySize) -> Vec<(&'static str, PerAppend)> {
    with_size!(size, count())
}

fn regions(region: u64) -> impl Iterator<Item = Region> {
    (0..REGIONS).map(move |i| Region { off: 4096 + i * region, len: region })
}

/// All contestants of a size: floors first.
fn contestants<M: Medium, const W: usize>(
    mapping: &Mapping<M>,
    region: u64,
    size: EntrySize,
) -> (Vec<Box<dyn Contestant<2>>>, Vec<String>) {
    let mut regions = regions(region);
    let mut floor = |lines: usize, stores| -> Box<dyn Contestant<2>> {
        let session = mapping.session().expect("fewer contestants than sessions");
        let region = regions.next().expect("as many regions as contestants");
        match lines {
            1 => Box::new(Floor::<_, 1>::new(session, region, stores, BATCH)),
            2 => Box::new(Floor::<_, 2>::new(session, region, stores, BATCH)),
            4 => Box::new(Floor::<_, 4>::new(session, region, stores, BATCH)),
            _ => Box::new(Floor::<_, 8>::new(session, region, stores, BATCH)),
        }
    };
    let second = if W == HALF { Stores::HalfLine } else { Stores::Line };
    let floors = vec![floor(size.lines, Stores::Word), floor(size.lines, second)];
    let mut enter = Enter { mapping, regions: Box::new(regions), contestants: floors, missing: Vec::new() };
    visit_logs::<M, W>(&mut enter);
    (enter.contestants, enter.missing)
}

/// What was measured of all logs at one size.
#[derive(Clone, Debug)]
pub struct SizeReport {
    /// The size.
    pub size: EntrySize,
    /// The floors, then the logs: appending, and reading back.
    pub outcomes: Vec<Outcome<2>>,
    /// Counts by name.
    pub counts: Vec<(&'static str, PerAppend)>,
    /// What could not take part, and why.
    pub missing: Vec<String>,
}

impl SizeReport {
    /// The append times of a contestant.
    pub fn appends(&self, name: &str) -> Option<&Series> {
        self.outcomes.iter().find(|o| o.name == name).map(|o| &o.phases[0])
    }

    /// Median over the rounds of one contestant's time divided by another's.
    pub fn ratio(&self, name: &str, to: &str) -> Option<f64> {
        Some(self.appends(name)?.ratio_to(self.appends(to)?).median())
    }
}

/// Measures one size in a place.
///
/// # Errors
/// [`Refused`] where the memory cannot be had.
pub fn measure(
    place: &Place,
    size: EntrySize,
    region: u64,
    rounds: usize,
    after_round: &mut dyn FnMut() -> bool,
) -> Result<SizeReport, Refused> {
    let mapping = place.map(4096 + REGIONS * region, medium())?;
    let (mut contestants, missing) = with_size!(size, on_hardware(&mapping, region, size));
    let outcomes = interleave_telling(&mut contestants, warm_up(rounds), rounds, after_round);
    Ok(SizeReport { size, outcomes, counts: counts(size), missing })
}

fn on_hardware<const W: usize>(
    mapping: &Mapping<Hardware>,
    region: u64,
    size: EntrySize,
) -> (Vec<Box<dyn Contestant<2>>>, Vec<String>) {
    contestants::<_, W>(mapping, region, size)
}

/// Measures entries of half a line on any medium.
///
/// # Errors
/// [`Refused`] where the memory cannot be had.
pub fn measure_half<M: Medium>(
    place: &Place,
    medium: M,
    region: u64,
    rounds: usize,
    after_round: &mut dyn FnMut() -> bool,
) -> Result<Vec<Outcome<2>>, Refused> {
    let mapping = place.map(4096 + REGIONS * region, medium)?;
    let (mut contestants, _) = contestants::<M, HALF>(&mapping, region, SIZES[0]);
    Ok(interleave_telling(&mut contestants, warm_up(rounds), rounds, after_round))
}

/// A full log of entries of one line that is recovered again and again.
struct Recovery<M: Medium, L> {
    name: &'static str,
    session: Session<M>,
    region: Region,
    entries: usize,
    _log: PhantomData<L>,
}

impl<M: Medium, L: AppendLog<M, ONE>> Recovery<M, L> {
    /// Fills a log in `region`, which is all zero.
    fn new(mapping: &Mapping<M>, region: Region) -> Result<Self, Error> {
        let mut session = mapping.session().expect("fewer contestants than sessions");
        let mut entries = 0;
        {
            let op = session.enter().expect("the mapping is open");
            let mut log = L::format(&op, region)?;
            while log.append(&op, &[entries as u64; ONE]).is_ok() {
                entries += 1;
            }
        }
        Ok(Recovery { name: L::NAME, session, region, entries, _log: PhantomData })
    }
}

impl<M: Medium, L: AppendLog<M, ONE>> Contestant<1> for Recovery<M, L> {
    fn name(&self) -> &str {
        self.name
    }

    fn round(&mut self) -> [f64; 1] {
        let op = self.session.enter().expect("the mapping is open");
        let start = Stopwatch::start();
        let (_log, found) = L::recover(&op, self.region).expect("it was formatted");
        let time = start.elapsed();
        assert_eq!(found.len(), self.entries, "{} lost entries", self.name);
        [time.as_nanos() as f64 / self.entries as f64]
    }
}

/// Makes contestants of the recoveries of all logs.
struct EnterRecoveries<'m, M: Medium> {
    mapping: &'m Mapping<M>,
    regions: Box<dyn Iterator<Item = Region>>,
    contestants: Vec<Box<dyn Contestant<1>>>,
}

impl<M: Medium> Visitor<M, ONE> for EnterRecoveries<'_, M> {
    fn visit<L: AppendLog<M, ONE> + 'static>(&mut self) {
        let region = self.regions.next().expect("as many regions as contestants");
        if let Ok(recovery) = Recovery::<M, L>::new(self.mapping, region) {
            self.contestants.push(Box::new(recovery));
        }
    }
}

/// Measures what recovering full logs takes, of entries of one line, in nanoseconds an entry.
///
/// # Errors
/// [`Refused`] where the memory cannot be had.
pub fn measure_recovery(
    place: &Place,
    region: u64,
    rounds: usize,
    after_round: &mut dyn FnMut() -> bool,
) -> Result<Vec<Outcome<1>>, Refused> {
    let mapping = place.map(4096 + REGIONS * region, medium())?;
    let mut enter = EnterRecoveries { mapping: &mapping, regions: Box::new(regions(region)), contestants: Vec::new() };
    visit_logs::<Hardware, ONE>(&mut enter);
    Ok(interleave_telling(&mut enter.contestants, warm_up(rounds), rounds, after_round))
}

/// Rounds that are not counted, before so many that are.
pub fn warm_up(rounds: usize) -> usize {
    rounds / 20 + 1
}

/// Bytes for each region in a place: 64 MiB, or less where there is less room.
pub fn region_in(place: &Place, quick: bool) -> u64 {
    let wanted = if quick { 4 << 20 } else { REGION };
    let room = free_bytes(&place.dir).unwrap_or(u64::MAX) / 10 * 9 / REGIONS;
    wanted.min(room).max(1 << 20) & !0xffff
}

/// Measures and prints everything: for each page size that can be had, the append table, the stress table and the goals.
///
/// # Errors
/// [`Refused`] where `DURIX_DIR` has no room.
pub fn report(quick: bool) -> Result<(), Refused> {
    let place = Place::from_env();
    let rounds = if quick { 3 } else { 600 };
    println!("\ncso_append: {}", Machine::this());
    let other = place.other_page_size();
    if other.is_none() {
        println!(
            "only {} can be had here (for huge pages mount a tmpfs with huge=always, or set DURIX_HUGE_DIR)",
            place.pages
        );
    }
    for place in [Some(place), other].into_iter().flatten() {
        let region = region_in(&place, quick);
        println!("{}", setting(&place, region, rounds));
        let reports = SIZES
            .iter()
            .map(|size| measure(&place, *size, region, rounds, &mut || true))
            .collect::<Result<Vec<_>, _>>()?;
        reports.iter().flat_map(|r| &r.missing).for_each(|m| println!("{m}"));
        println!("{}\n{}\n{}", append_table(&reports), stress_table(&reports), goals(&reports));
    }
    Ok(())
}

fn setting(place: &Place, region: u64, rounds: usize) -> String {
    let cache = Machine::this().last_level_cache();
    let fits = match cache {
        Some(cache) if region <= cache => "fits into the last-level cache",
        Some(_) => "larger than the last-level cache",
        None => "size of the last-level cache unknown",
    };
    format!(
        "{}: {}, {}; {} for each log ({fits}); medians of {rounds} interleaved rounds of {BATCH} appends",
        place.dir.display(),
        medium().describe(),
        place.pages,
        Bytes(region),
    )
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN).set_header(header);
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn append_table(reports: &[SizeReport]) -> Table {
    let header =
        ["entry", "log", "ns/append", "spread", "to floor", "to CSO-VB", "write-backs", "fences", "the paper's claim"];
    let mut table = table(&header);
    for report in reports {
        let floor = &report.outcomes[0].phases[0];
        for outcome in &report.outcomes {
            let appends = &outcome.phases[0];
            let counts = report.counts.iter().find(|(name, _)| *name == outcome.name).map(|(_, c)| *c);
            let count = |field: fn(&PerAppend) -> f64| counts.map_or("".into(), |c| format!("{:.2}", field(&c)));
            table.add_row([
                report.size.name.to_owned(),
                outcome.name.clone(),
                format!("{:.1}", appends.median()),
                format!("±{:.0}%", appends.spread() * 100.0),
                format!("{:.3}", appends.ratio_to(floor).median()),
                ratio_text(report.appends("CSO-VB"), appends),
                count(|c| c.write_backs),
                count(|c| c.fences),
                claim(&outcome.name, report.size).to_owned(),
            ]);
        }
    }
    table
}

fn ratio_text(base: Option<&Series>, series: &Series) -> String {
    base.map_or("".into(), |base| format!("{:.3}", series.ratio_to(base).median()))
}

/// What the paper says of a log's appends (section 5.1.1 and Table 1).
fn claim(name: &str, size: EntrySize) -> &'static str {
    match (name, size.lines) {
        ("TwoRounds", _) => "two round trips",
        ("AtlasLog", _) => "1.5 flushes; between TwoRounds and the others",
        ("CRC32", 1) => "1 flush; close to CSO-FVB",
        ("CRC32", _) => "1 flush; slightly slower than CSO-FVB",
        ("CRC64", 8) => "1 flush; slower than TwoRounds",
        ("CRC64", _) => "1 flush; slow",
        ("MD5" | "SHA1", _) => "1 flush; very slow",
        ("tornbit", 1) => "1 flush; very efficient at half a line",
        ("tornbit", _) => "1 flush; deteriorates with size",
        ("CSO-VB", 1 | 2) => "1 flush; the fastest",
        ("CSO-VB", _) => "not measured (payload would be split)",
        ("CSO-FVB", _) => "1 flush; 2 to 7% behind CSO-VB",
        ("CSO-Random", _) => "1 flush, 1 more off the path; 2 to 7% behind CSO-VB",
        _ => "",
    }
}

fn stress_table(reports: &[SizeReport]) -> Table {
    let header = ["entry", "log", "append + read ns", "of it reading", "M entries/s", "to CSO-VB"];
    let mut table = table(&header);
    for report in reports {
        let both = |outcome: &Outcome<2>| outcome.phases[0].plus(&outcome.phases[1]);
        let base = report.outcomes.iter().find(|o| o.name == "CSO-VB").map(both);
        for outcome in &report.outcomes {
            let stress = both(outcome);
            table.add_row([
                report.size.name.to_owned(),
                outcome.name.clone(),
                format!("{:.1}", stress.median()),
                format!("{:.1}", outcome.phases[1].median()),
                format!("{:.2}", 1000.0 / stress.median()),
                ratio_text(base.as_ref(), &stress),
            ]);
        }
    }
    table
}

/// One goal: what is divided by what, at which size, and the bound.
struct Goal {
    size: &'static str,
    name: &'static str,
    to: &'static str,
    bound: f64,
    at_most: bool,
}

const GOALS: [Goal; 9] = [
    Goal { size: "1 line", name: "CSO-VB", to: "floor", bound: 1.05, at_most: true },
    Goal { size: "1/2 line", name: "CSO-VB", to: "floor", bound: 1.15, at_most: true },
    Goal { size: "1/2 line", name: "TwoRounds", to: "CSO-VB", bound: 1.8, at_most: false },
    Goal { size: "1 line", name: "TwoRounds", to: "CSO-VB", bound: 1.8, at_most: false },
    Goal { size: "2 lines", name: "TwoRounds", to: "CSO-VB", bound: 1.8, at_most: false },
    Goal { size: "4 lines", name: "TwoRounds", to: "CSO-VB", bound: 1.8, at_most: false },
    Goal { size: "8 lines", name: "TwoRounds", to: "CSO-VB", bound: 1.8, at_most: false },
    Goal { size: "1 line", name: "CSO-FVB", to: "CSO-VB", bound: 1.10, at_most: true },
    Goal { size: "8 lines", name: "CSO-FVB", to: "CSO-VB", bound: 1.10, at_most: true },
];

fn goals(reports: &[SizeReport]) -> String {
    let mut text = String::new();
    for Goal { size, name, to, bound, at_most } in GOALS {
        let ratio = reports.iter().find(|r| r.size.name == size).and_then(|r| r.ratio(name, to));
        let relation = if at_most { "at most" } else { "at least" };
        let verdict = match ratio {
            Some(ratio) if (ratio <= bound) == at_most || ratio == bound => format!("{ratio:.3}  holds"),
            Some(ratio) => format!("{ratio:.3}  DOES NOT HOLD"),
            None => "not measured".into(),
        };
        let _ = writeln!(text, "goal, {size}: {name} / {to} {relation} {bound:.2}: {verdict}");
    }
    text
}
