//! The checkpoint epochs: two toy structures in one mapping, each a few cells with an undo copy on their own line, must come
//! back as one consistent cut that is no older than the last boundary.

use std::sync::atomic::Ordering::{Relaxed, Release};

use durix_crashsim::{Simulated, Subject};
use durix_pmem::epoch::layout::EpochRecord;
use durix_pmem::{Epochs, Mapping, Mutating, Off, Op, Plan, Session, Sweeping, Word, persistent};

/// The medium.
pub type M = Mutating<Simulated>;

persistent! {
    /// A cell: its value, the value at the start of the epoch `stamp`.
    struct Cell: align(64) { value: Word, saved: Word, stamp: Word, rest: [Word; 5] }
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
        let (stamp, now) = (op.load(&cell.stamp, Relaxed), epochs.current(op));
        if stamp < epochs.trusted() && epochs.is_failed(stamp) {
            op.store(&cell.value, op.load(&cell.saved, Relaxed), Relaxed);
        }
        if stamp != now {
            op.store(&cell.saved, op.load(&cell.value, Relaxed), Relaxed);
            op.store(&cell.stamp, now, Release);
            op.order();
            epochs.dirty(op, cell);
        }
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
    /// Sets a cell of the first structure.
    Left(usize, u64),
    /// Sets a cell of the second structure.
    Right(usize, u64),
    /// One operation that changes both structures, by another session.
    Both(u64),
    /// A boundary.
    Sync,
}
use Act::{Both, Left, Right, Sync};

/// What is tested.
pub struct Tested {
    /// The mutations.
    pub plan: &'static Plan,
}

/// The structures at work.
pub struct Live {
    session: Session<M>,
    other: Session<M>,
    epochs: Epochs<M>,
    sweeping: Sweeping,
}

impl Live {
    /// A boundary, and a step of the sweep: one cell of each structure.
    fn sync(&mut self) {
        self.epochs.sync(&mut self.session).unwrap();
        let op = self.session.enter().unwrap();
        self.sweeping.step(&self.epochs, &op, self.epochs.seat(&op), |cursor| {
            [LEFT, RIGHT].iter().for_each(|cells| _ = cells.get(&op, &self.epochs, cursor as usize));
            (cursor + 1 < CELLS as u64).then_some(cursor + 1)
        });
    }
}

/// The cells of both.
pub type State = [[u64; CELLS]; 2];

fn open(mapping: &Mapping<M>) -> Result<Live, String> {
    let mut session = mapping.session().unwrap();
    // By another session than the one that joins: a fence covers its own session only.
    let mut other = mapping.session().unwrap();
    let epochs = Epochs::open(&other.enter().unwrap(), mapping, RECORD).map_err(|e| e.to_string())?;
    {
        let op = session.enter().unwrap();
        epochs.join(&op, epochs.seat(&op));
    }
    Ok(Live { other, session, epochs, sweeping: Sweeping::default() })
}

impl Subject for Tested {
    type Op = Act;
    type Ret = ();
    type State = State;
    type Model = State;
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
        match act {
            Left(index, value) => LEFT.set(&live.session.enter().unwrap(), &live.epochs, *index, *value),
            Right(index, value) => RIGHT.set(&live.session.enter().unwrap(), &live.epochs, *index, *value),
            Both(value) => {
                let op = live.other.enter().unwrap();
                LEFT.set(&op, &live.epochs, 0, *value);
                RIGHT.set(&op, &live.epochs, 0, *value);
            }
            Sync => live.sync(),
        }
    }
    fn observe(&self, live: &mut Live) -> State {
        let op = live.session.enter().unwrap();
        [LEFT, RIGHT].map(|cells| std::array::from_fn(|index| cells.get(&op, &live.epochs, index)))
    }
    fn model(&self) -> State {
        State::default()
    }
    fn step(&self, model: &mut State, act: &Act) {
        match act {
            Left(index, value) => model[0][*index] = *value,
            Right(index, value) => model[1][*index] = *value,
            Both(value) => (model[0][0], model[1][0]) = (*value, *value),
            Sync => {}
        }
    }
    fn expect(&self, model: &State) -> State {
        *model
    }
    fn is_sync(&self, act: &Act) -> bool {
        matches!(act, Sync)
    }
}
