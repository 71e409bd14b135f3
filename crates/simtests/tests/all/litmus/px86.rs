//! Programs of the literature on x86 persistency, and the cases of one line, of stores around the cache and of fences
//! beside them, as data: each is run in all interleavings with all crashes, and what is found has to be exactly what its
//! rule says. The table in `docs/crashsim.md` is printed from here; `DURIX_BLESS=1` writes it anew.
//!
//! Sources: [R] Raad, Wickerson, Neiger, Vafeiadis, "Persistency semantics of the Intel-x86 architecture", POPL 2020;
//! [K] Khyzha, Lahav, "Taming x86-TSO persistency", POPL 2021; [−] our own. Transcribed from what the papers say of these
//! shapes; plain stores of x86 are `Release` stores here, and interleavings are sequentially consistent.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::{Acquire, Release};

use durix_crashsim::{Concurrent, Explorer, Simulated, Strategy, Subject, Threads};
use durix_pmem::{Mapping, Off, Op, Rmw, Session, Word};

/// `x` and `x'` share a line; `y` and `z` have lines of their own.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Var {
    X,
    X2,
    Y,
    Z,
}
use Var::{X, X2, Y, Z};

const VARS: [Var; 4] = [X, X2, Y, Z];

impl Var {
    fn name(self) -> &'static str {
        ["x", "x'", "y", "z"][self as usize]
    }

    fn of<'s>(self, op: &Op<'s, Simulated>) -> &'s Word {
        op.at(Off::new([64, 72, 128, 192][self as usize]))
    }
}

/// An instruction.
#[derive(Clone, Debug)]
enum Do {
    /// A plain store.
    St(Var, u64),
    /// A store around the cache.
    Nt(Var, u64),
    /// `clflush`, on the machine that has it; otherwise `clflushopt` or `clwb`.
    Fl(Var),
    /// `sfence` or `mfence`.
    Sf,
    /// A locked addition.
    Add(Var, u64),
    /// Reads the variable; goes on only if it finds the value.
    Found(Var, u64),
}
use Do::{Add, Fl, Found, Nt, Sf, St};

/// What the machine does beyond what code may rely on.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Machine {
    Least,
    /// Write-backs are `clflush`.
    Flush,
    /// Locked instructions drain.
    Drains,
}

struct Row {
    source: &'static str,
    machine: Machine,
    threads: Vec<Vec<Do>>,
    rule: &'static str,
    holds: fn([u64; 4]) -> bool,
}

impl Row {
    fn explorer(&self) -> Explorer {
        match self.machine {
            Machine::Least => Explorer::new(),
            Machine::Flush => Explorer::new().flushes_at_once(true),
            Machine::Drains => Explorer::new().locked_drains(true),
        }
    }

    fn told(&self) -> String {
        let one = |what: &Do| match what {
            St(var, value) => format!("{} := {value}", var.name()),
            Nt(var, value) => format!("nt {} := {value}", var.name()),
            Fl(var) if self.machine == Machine::Flush => format!("flush {}", var.name()),
            Fl(var) => format!("flushopt {}", var.name()),
            Sf => "sfence".into(),
            Add(var, by) => format!("lock {} += {by}", var.name()),
            Found(var, value) => format!("if {} = {value}:", var.name()),
        };
        let thread = |thread: &Vec<Do>| thread.iter().map(one).collect::<Vec<_>>().join("; ").replace(":;", ":");
        self.threads.iter().map(thread).collect::<Vec<_>>().join(" ‖ ")
    }

    /// The variables that are stored, and all combinations of values that they can have.
    fn combinations(&self) -> (Vec<Var>, Vec<[u64; 4]>) {
        let mut all = vec![[0; 4]];
        let mut stored = Vec::new();
        for var in VARS {
            let mut values = BTreeSet::from([0]);
            for what in self.threads.iter().flatten() {
                match what {
                    St(of, value) | Nt(of, value) | Add(of, value) if *of == var => drop(values.insert(*value)),
                    _ => {}
                }
            }
            if values.len() > 1 {
                stored.push(var);
            }
            let with = |state: [u64; 4], value: u64| {
                let mut state = state;
                state[var as usize] = value;
                state
            };
            all = all.into_iter().flat_map(|s| values.iter().map(move |v| with(s, *v)).collect::<Vec<_>>()).collect();
        }
        (stored, all)
    }

    fn line_of_the_table(&self) -> String {
        let (stored, all) = self.combinations();
        let digits = |state: &[u64; 4]| stored.iter().map(|var| state[*var as usize].to_string()).collect::<String>();
        let list = |wanted: bool| {
            let states = all.iter().filter(|state| (self.holds)(**state) == wanted).map(digits);
            let states = states.collect::<Vec<_>>().join(" ");
            if states.is_empty() { "none".into() } else { states }
        };
        let names: Vec<_> = stored.iter().map(|var| var.name()).collect();
        let extra = match self.machine {
            Machine::Least => "",
            Machine::Flush => " (clflush)",
            Machine::Drains => " (locked drains)",
        };
        format!(
            "| {} | `{}`{extra} | {} | {} | {} | {} |",
            self.source,
            self.told(),
            self.rule,
            names.join(" "),
            list(true),
            list(false)
        )
    }
}

impl Subject for Row {
    type Op = usize;
    type Ret = ();
    type State = [u64; 4];
    type Model = ();
    type Store = Mapping<Simulated>;
    type Live = (Mapping<Simulated>, Session<Simulated>);

    fn store(&self, medium: Simulated) -> Self::Store {
        Mapping::heap(512, medium)
    }
    fn create(&self, store: &Self::Store) -> Self::Live {
        (store.clone(), store.session().unwrap())
    }
    fn recover(&self, store: &Self::Store) -> Result<Self::Live, String> {
        Ok(self.create(store))
    }
    fn apply(&self, (_, session): &mut Self::Live, thread: &usize) {
        self.run(session, thread);
    }
    fn observe(&self, (_, session): &mut Self::Live) -> [u64; 4] {
        let op = session.enter().unwrap();
        VARS.map(|var| op.load(var.of(&op), Acquire))
    }
    fn model(&self) {}
    fn step(&self, (): &mut (), _: &usize) {}
    fn expect(&self, (): &()) -> [u64; 4] {
        [0; 4]
    }
}

impl Concurrent for Row {
    type Thread = Session<Simulated>;

    fn thread(&self, (mapping, _): &Self::Live, _number: usize) -> Self::Thread {
        mapping.session().unwrap()
    }

    fn run(&self, session: &mut Self::Thread, thread: &usize) {
        let op = session.enter().unwrap();
        for what in &self.threads[*thread] {
            match *what {
                St(var, value) => op.store(var.of(&op), value, Release),
                Nt(var, value) => op.store_nt(var.of(&op), value),
                Fl(var) => op.write_back(var.of(&op)),
                Sf => op.fence(),
                Add(var, by) => drop(op.rmw(var.of(&op), Rmw::Add, by)),
                Found(var, value) => {
                    if op.load(var.of(&op), Acquire) != value {
                        return;
                    }
                }
            }
        }
    }
}

fn anything(_: [u64; 4]) -> bool {
    true
}

fn y_needs_x([x, _, y, _]: [u64; 4]) -> bool {
    y == 0 || x == 1
}

fn row(
    source: &'static str,
    machine: Machine,
    threads: &[&[Do]],
    rule: &'static str,
    holds: fn([u64; 4]) -> bool,
) -> Row {
    Row { source, machine, threads: threads.iter().map(|t| t.to_vec()).collect(), rule, holds }
}

const ANY: &str = "anything";
const Y_X: &str = "y=1 ⇒ x=1";

fn of_one_thread() -> Vec<Row> {
    use Machine::{Drains, Flush, Least};
    let st_x = || St(X, 1);
    let st_y = || St(Y, 1);
    vec![
        row("R", Least, &[&[st_x(), st_y()]], ANY, anything),
        row("R", Least, &[&[st_x(), St(X2, 1)]], "x'=1 ⇒ x=1", |[x, x2, ..]| x2 == 0 || x == 1),
        row("R", Flush, &[&[st_x(), Fl(X2), st_y()]], Y_X, y_needs_x),
        row("R", Least, &[&[st_x(), Fl(X2), st_y()]], ANY, anything),
        row("R", Least, &[&[st_x(), Fl(X2), Sf, st_y()]], Y_X, y_needs_x),
        row("R", Drains, &[&[st_x(), Fl(X2), Add(Z, 1), st_y()]], "y=1 or z=1 ⇒ x=1", |[x, _, y, z]| {
            (y == 0 && z == 0) || x == 1
        }),
        row("−", Least, &[&[st_x(), Fl(X2), Add(Z, 1), st_y()]], ANY, anything),
        row("R", Least, &[&[st_x(), Sf, st_y()]], ANY, anything),
        row("K", Least, &[&[Fl(X), st_x(), Sf, st_y()]], ANY, anything),
        row("K", Flush, &[&[Fl(X), st_x(), st_y()]], ANY, anything),
        row("K", Least, &[&[st_x(), Fl(X), St(X, 2), Sf, st_y()]], "y=1 ⇒ x≠0", |[x, _, y, _]| y == 0 || x != 0),
        row("K", Flush, &[&[st_x(), Fl(X), St(X, 2), st_y()]], "y=1 ⇒ x≠0", |[x, _, y, _]| y == 0 || x != 0),
        row("K", Least, &[&[st_x(), st_y(), Fl(X), Sf, St(Z, 1)]], "z=1 ⇒ x=1", |[x, _, _, z]| z == 0 || x == 1),
        row("−", Least, &[&[st_x(), Fl(X), Sf, St(X2, 1), st_y()]], "x'=1 or y=1 ⇒ x=1", |[x, x2, y, _]| {
            (x2 == 0 && y == 0) || x == 1
        }),
        row("−", Least, &[&[st_x(), St(X2, 1), St(X, 2)]], "x=2 ⇒ x'=1; x'=1 ⇒ x≠0", |[x, x2, ..]| {
            (x != 2 || x2 == 1) && (x2 == 0 || x != 0)
        }),
        row("−", Least, &[&[Nt(X, 1), st_y()]], ANY, anything),
        row("−", Least, &[&[Nt(X, 1), Sf, st_y()]], Y_X, y_needs_x),
        row("−", Least, &[&[Nt(X, 1), Nt(X2, 1)]], ANY, anything),
        row("−", Least, &[&[Nt(X, 1), St(X2, 1)]], ANY, anything),
        row("−", Least, &[&[Nt(X, 1), Fl(X), st_y()]], ANY, anything),
        row("−", Least, &[&[Nt(X, 1), Sf, St(X2, 1)]], "x'=1 ⇒ x=1", |[x, x2, ..]| x2 == 0 || x == 1),
        row("−", Drains, &[&[Nt(X, 1), Add(Z, 1), st_y()]], "y=1 or z=1 ⇒ x=1", |[x, _, y, z]| {
            (y == 0 && z == 0) || x == 1
        }),
    ]
}

fn of_several_threads() -> Vec<Row> {
    use Machine::{Drains, Flush, Least};
    let st_x = || St(X, 1);
    let st_y = || St(Y, 1);
    let x_1 = || Found(X, 1);
    vec![
        row("R", Least, &[&[st_x()], &[x_1(), st_y()]], ANY, anything),
        row("R", Flush, &[&[st_x()], &[x_1(), Fl(X), st_y()]], Y_X, y_needs_x),
        row("R", Least, &[&[st_x()], &[x_1(), Fl(X), st_y()]], ANY, anything),
        row("R", Least, &[&[st_x()], &[x_1(), Fl(X), Sf, st_y()]], Y_X, y_needs_x),
        row("R", Least, &[&[st_x(), Fl(X)], &[x_1(), Sf, st_y()]], ANY, anything),
        row("R", Flush, &[&[st_x(), Fl(X), St(Z, 1)], &[Found(Z, 1), st_y()]], "y=1 or z=1 ⇒ x=1", |[x, _, y, z]| {
            (y == 0 && z == 0) || x == 1
        }),
        row(
            "R",
            Least,
            &[&[st_x(), Fl(X), Sf, St(Z, 1)], &[Found(Z, 1), st_y()]],
            "y=1 or z=1 ⇒ x=1",
            |[x, _, y, z]| (y == 0 && z == 0) || x == 1,
        ),
        row("R", Least, &[&[st_x(), Fl(X), St(Z, 1), Sf], &[Found(Z, 1), st_y()]], ANY, anything),
        row(
            "R",
            Drains,
            &[&[st_x(), Fl(X), Add(Z, 1)], &[Found(Z, 1), st_y()]],
            "y=1 or z=1 ⇒ x=1",
            |[x, _, y, z]| (y == 0 && z == 0) || x == 1,
        ),
        row("K", Least, &[&[st_x()], &[x_1(), St(X2, 1)]], "x'=1 ⇒ x=1", |[x, x2, ..]| x2 == 0 || x == 1),
        row("K", Least, &[&[st_x()], &[St(X2, 1)]], ANY, anything),
        row("K", Least, &[&[st_x()], &[Fl(X), Sf, st_y()]], ANY, anything),
        row("K", Flush, &[&[st_x()], &[Fl(X), st_y()]], ANY, anything),
        row("K", Least, &[&[st_x(), Fl(X), Sf, st_y()], &[St(X, 2)]], "y=1 ⇒ x≠0", |[x, _, y, _]| y == 0 || x != 0),
        row(
            "K",
            Least,
            &[&[st_x()], &[x_1(), Fl(X), Sf, St(Z, 1)], &[Found(Z, 1), st_y()]],
            "y=1 or z=1 ⇒ x=1",
            |[x, _, y, z]| (y == 0 && z == 0) || x == 1,
        ),
        row("K", Least, &[&[st_x()], &[x_1(), St(X2, 1), Fl(X), Sf, st_y()]], "x'=1 ⇒ x=1; y=1 ⇒ x'=1", {
            |[x, x2, y, _]| (x2 == 0 || x == 1) && (y == 0 || x2 == 1)
        }),
        row("−", Least, &[&[Nt(X, 1), St(Z, 1)], &[Found(Z, 1), Fl(X), Sf, st_y()]], ANY, anything),
        row(
            "−",
            Least,
            &[&[Nt(X, 1), Sf, St(Z, 1)], &[Found(Z, 1), st_y()]],
            "y=1 or z=1 ⇒ x=1",
            |[x, _, y, z]| (y == 0 && z == 0) || x == 1,
        ),
    ]
}

fn rows() -> Vec<Row> {
    of_one_thread().into_iter().chain(of_several_threads()).collect()
}

/// Every outcome that the rule allows is found, and no other: by all strategies, pruned and not.
#[test]
fn what_is_found_is_exactly_what_the_model_allows() {
    for row in rows() {
        let program: Vec<Vec<usize>> = (0..row.threads.len()).map(|thread| vec![thread]).collect();
        let (_, all) = row.combinations();
        let allowed: BTreeSet<String> = all.iter().filter(|s| (row.holds)(**s)).map(|s| format!("{s:?}")).collect();
        for (strategy, prunes, everywhere) in
            [(Strategy::Lazy, true, false), (Strategy::Eager, true, false), (Strategy::Lazy, false, true)]
        {
            let explorer = row.explorer().strategy(strategy).every_event(everywhere);
            let outcomes = Threads::new(explorer).prunes(prunes).outcomes(&row, &program);
            let found: BTreeSet<String> =
                outcomes.iter().filter_map(|o| Some(o.rsplit_once(" | ")?.1.to_owned())).collect();
            let missing: Vec<_> = allowed.difference(&found).collect();
            let forbidden: Vec<_> = found.difference(&allowed).collect();
            assert!(
                missing.is_empty() && forbidden.is_empty(),
                "{}: [x, x', y, z] {missing:?} not found, {forbidden:?} found but forbidden ({strategy:?})",
                row.told()
            );
        }
    }
}

const GUIDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/crashsim.md");
const BEGIN: &str = "<!-- litmus: begin -->\n";
const END: &str = "<!-- litmus: end -->";

#[test]
fn the_table_in_the_guide_is_this_one() {
    let mut table =
        "| | program | rule | variables | may be found | never found |\n|---|---|---|---|---|---|\n".to_owned();
    for row in rows() {
        table += &row.line_of_the_table();
        table.push('\n');
    }
    let guide = std::fs::read_to_string(GUIDE).expect("the guide");
    let (before, rest) = guide.split_once(BEGIN).expect("where the table begins");
    let (now, after) = rest.split_once(END).expect("where the table ends");
    if std::env::var_os("DURIX_BLESS").is_some_and(|v| v == "1") {
        std::fs::write(GUIDE, format!("{before}{BEGIN}{table}{END}{after}")).expect("the guide is written");
    } else {
        assert!(now == table, "docs/crashsim.md has another table; DURIX_BLESS=1 writes it anew");
    }
}
