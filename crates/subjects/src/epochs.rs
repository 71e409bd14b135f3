//! The checkpoint epochs: two toy structures in one mapping, each a few cells with an undo copy on their own line, must come
//! back as one consistent cut that is no older than the last boundary.

use std::sync::atomic::Ordering::{Relaxed, Release};

use durix_crashsim::{Simulated, Subject};
use durix_pmem::epoch::layout::{EpochRecord, Seat};
use durix_pmem::{Epochs, Mapping, Mutating, Off, Op, Plan, Session, Sweeping, Word, persistent};

/// The medium.
pub type M = Mutating<Simulated>;

persistent! {
    /// A cell: its value, the value at the start of the epoch `stamp`, and the round for which it is on a dirty list.
    struct Cell: align(64) { value: Word, saved: Word, stamp: Word, noted: Word, rest: [Word; 4] }
}

/// Where the service has its record.
pub const RECORD: Off<EpochRecord> = Off::new(1024);
const CELLS: usize = 3;

/// Cells from some offset on: one structure.
struct Cells {
    first: u64,
}

impl Cells {
    fn at<'s, M: durix_pmem::Medium>(&self, op: &Op<'s, M>, index: usize) -> &'s Cell {
        op.at(Off::new(self.first + index as u64 * 64))
    }

    fn touch<M: durix_pmem::Medium>(op: &Op<'_, M>, epochs: &Epochs<M>, cell: &Cell) {
        let ((now, round), noted) = (epochs.now(op), op.load(&cell.noted, Relaxed));
        let stamp = op.load(&cell.stamp, Relaxed);
        if stamp < epochs.trusted() && epochs.is_failed(stamp) {
            op.store(&cell.value, op.load(&cell.saved, Relaxed), Relaxed);
        }
        if stamp != now {
            op.store(&cell.saved, op.load(&cell.value, Relaxed), Relaxed);
            op.store(&cell.stamp, now, Release);
            op.order();
        }
        if stamp != now || noted != round {
            op.store(&cell.noted, round, Relaxed);
            epochs.dirty(op, cell);
        }
    }

    /// What a cell holds, without undoing anything: a structure that is closed stays as it is.
    fn peek<M: durix_pmem::Medium>(&self, op: &Op<'_, M>, epochs: &Epochs<M>, index: usize) -> u64 {
        let cell = self.at(op, index);
        let failed = epochs.is_failed(op.load(&cell.stamp, Relaxed));
        op.load(if failed { &cell.saved } else { &cell.value }, Relaxed)
    }

    fn get<M: durix_pmem::Medium>(&self, op: &Op<'_, M>, epochs: &Epochs<M>, index: usize) -> u64 {
        let cell = self.at(op, index);
        if op.load(&cell.stamp, Relaxed) < epochs.trusted() {
            Self::touch(op, epochs, cell);
        }
        op.load(&cell.value, Relaxed)
    }

    fn set<M: durix_pmem::Medium>(&self, op: &Op<'_, M>, epochs: &Epochs<M>, index: usize, value: u64) {
        let cell = self.at(op, index);
        Self::touch(op, epochs, cell);
        op.store(&cell.value, value, Release);
    }
}

const LEFT: Cells = Cells { first: 4096 };
const RIGHT: Cells = Cells { first: 8192 };

/// An operation.
#[derive(Clone, Debug)]
pub enum Act {
    /// Changes a cell of the first structure.
    Left(usize, u64),
    /// Changes a cell of the second.
    Right(usize, u64),
    /// One operation that changes both structures, by another session.
    Both(u64),
    /// A boundary, and a step of the sweep.
    Sync,
    /// Writes back ahead of the boundary.
    Ahead,
    /// The process dies and another opens the epochs, with all stores still in the caches.
    Restart,
}
use Act::{Ahead, Both, Left, Restart, Right, Sync};

/// One structure stays closed while the other sweeps, and what failed is forgotten: the operations before the crash, and
/// those after it.
pub fn closed_for_a_while() -> [Vec<Act>; 2] {
    let acts = vec![Both(1), Sync, Restart, Both(2), Sync, Right(1, 3), Right(2, 4)];
    [acts, [Left(0, 9)].into_iter().chain(vec![Sync; 10]).chain([Restart]).collect()]
}

/// Where the seats lie.
const SEATS: [Off<Seat>; 2] = [Off::new(2048), Off::new(2112)];

/// What is tested.
pub struct Tested {
    /// What is changed in it.
    pub plan: &'static Plan,
}

/// The structures, open.
pub struct Live {
    session: Session<M>,
    other: Session<M>,
    epochs: Epochs<M>,
    /// Of the structures that are open: they are opened when they are first used.
    sweeping: [Option<Sweeping>; 2],
}

impl Live {
    /// A boundary, and a step of the sweep in the structures that are open: one cell.
    fn sync(&mut self) {
        self.epochs.sync(&mut self.session).unwrap();
        let op = self.session.enter().unwrap();
        for (side, sweeping) in self.sweeping.iter().enumerate() {
            let Some(sweeping) = sweeping else { continue };
            sweeping.step(&self.epochs, &op, op.at(SEATS[side]), |cursor| {
                [LEFT, RIGHT][side].get(&op, &self.epochs, cursor as usize);
                (cursor + 1 < CELLS as u64).then_some(cursor + 1)
            });
        }
    }

    fn open(&mut self, side: usize) {
        if self.sweeping[side].is_none() {
            let op = self.session.enter().unwrap();
            self.epochs.join(&op, op.at(SEATS[side]));
            self.sweeping[side] = Some(Sweeping::default());
        }
    }
}

/// The cells of both.
pub type State = [[u64; CELLS]; 2];

/// As it is, and as it was at the last boundary.
#[derive(Clone, Default)]
pub struct Model {
    now: State,
    durable: State,
}

fn open(mapping: &Mapping<M>) -> Result<Live, String> {
    // By another session than the one that joins: a fence covers its own session only.
    let mut other = mapping.session().unwrap();
    let epochs = Epochs::open_for(&other.enter().unwrap(), mapping, RECORD, &SEATS).map_err(|e| e.to_string())?;
    Ok(Live { other, session: mapping.session().unwrap(), epochs, sweeping: [None, None] })
}

impl Subject for Tested {
    type Op = Act;
    type Ret = ();
    type State = State;
    type Model = Model;
    type Store = Mapping<M>;
    type Live = Live;

    fn store(&self, medium: Simulated) -> Mapping<M> {
        Mapping::heap(1 << 14, Mutating::new(medium, self.plan))
    }
    fn create(&self, mapping: &Mapping<M>) -> Live {
        open(mapping).unwrap()
    }
    fn recover(&self, mapping: &Mapping<M>) -> Result<Live, String> {
        open(mapping)
    }
    fn apply(&self, live: &mut Live, act: &Act) {
        let sides: &[usize] = match act {
            Left(..) => &[0],
            Right(..) => &[1],
            Both(_) => &[0, 1],
            Sync | Ahead | Restart => &[],
        };
        sides.iter().for_each(|side| live.open(*side));
        match act {
            Left(index, value) => LEFT.set(&live.session.enter().unwrap(), &live.epochs, *index, *value),
            Right(index, value) => RIGHT.set(&live.session.enter().unwrap(), &live.epochs, *index, *value),
            Both(value) => {
                let op = live.other.enter().unwrap();
                LEFT.set(&op, &live.epochs, 0, *value);
                RIGHT.set(&op, &live.epochs, 0, *value);
            }
            Sync => live.sync(),
            Ahead => assert!(live.epochs.write_ahead(&mut live.other).unwrap()),
            Restart => *live = open(&live.session.mapping().clone()).unwrap(),
        }
    }
    fn observe(&self, live: &mut Live) -> State {
        let op = live.session.enter().unwrap();
        [LEFT, RIGHT].map(|cells| std::array::from_fn(|index| cells.peek(&op, &live.epochs, index)))
    }
    fn model(&self) -> Model {
        Model::default()
    }
    fn step(&self, model: &mut Model, act: &Act) {
        match act {
            Left(index, value) => model.now[0][*index] = *value,
            Right(index, value) => model.now[1][*index] = *value,
            Both(value) => (model.now[0][0], model.now[1][0]) = (*value, *value),
            Sync => model.durable = model.now,
            Ahead => {}
            Restart => model.now = model.durable,
        }
    }
    fn expect(&self, model: &Model) -> State {
        model.now
    }
    fn is_sync(&self, act: &Act) -> bool {
        matches!(act, Sync | Restart)
    }
}
