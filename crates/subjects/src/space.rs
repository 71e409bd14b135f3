//! Short sequences of allocations: what is linked is allocated, what is allocated is linked, and
//! an object is durable when its link is.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use durix_crashsim::{Concurrent, Simulated, Subject};
use durix_pmem::space::Heap;
use durix_pmem::{Mapping, Mutating, Off, Op, Owner, Plan, Session, Space, Word};

/// The medium.
pub type M = Mutating<Simulated>;

const CHUNK: u64 = 4096;
const HEAP: Heap = Heap { chunk: CHUNK, lanes: 2, lanes_off: 512, heap_off: CHUNK };
const CHUNKS: u64 = 6;
const BLOCKS: Owner = Owner(3);
const EXTENTS: Owner = Owner(4);
/// Places for a link.
pub const LINKS: usize = 2;

/// The allocator, with links at fixed places for a structure, and each object holding one value.
pub struct Allocator {
    /// The mutations.
    pub plan: &'static Plan,
}

/// What is done with the allocator.
#[derive(Clone, Copy, Debug)]
pub enum Action {
    /// Allocates a block that holds the value, linked; nothing if the link is taken.
    Block(usize, u64),
    /// The same with an extent of its own.
    LinkedExtent(usize, u64),
    /// Frees what is linked.
    Free(usize),
    /// Adds an extent that holds the value, found by owner.
    Extent(u64),
    /// The same by a process that dies before the last fence; the machine runs on, and the next process sees the extent.
    ExtentAndDie(u64),
    /// Frees the first extent found by owner.
    FreeExtent,
    /// Another session marks a link, or takes the mark away, as lock-free structures do: a link changes without the
    /// allocator. Marks are not observed.
    Mark(usize),
    /// Another session allocates a block, of a class of its own.
    OtherBlock(usize, u64),
    /// Sets a block of that class aside and gives it back.
    Reserve,
}
use Action::*;

/// What is linked, and what is owned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Model {
    links: [Option<u64>; LINKS],
    extents: Vec<u64>,
}

/// The allocator at work.
pub struct Live {
    space: Arc<Space<M>>,
    session: Session<M>,
    other: Session<M>,
    /// Never fences what it leaves behind.
    dying: Session<M>,
}

const MARK: u64 = 1;

fn link<'s>(op: &Op<'s, M>, index: usize) -> &'s Word<Off<Word>> {
    op.at(Off::new(1024 + 64 * index as u64))
}

/// Flips the mark of a link, if it is not null; durable on return.
fn mark(op: &Op<'_, M>, index: usize) -> bool {
    let link = link(op, index);
    let off = op.load(link, Relaxed);
    if off.is_null() {
        return false;
    }
    op.store(link, Off::new(off.get() ^ MARK), Relaxed);
    op.write_back(link);
    op.fence();
    true
}

fn write_object(op: &Op<'_, M>, off: u64, value: u64) {
    let word = op.at(Off::<Word>::new(off));
    op.store(word, value, Relaxed);
    op.write_back(word);
}

fn value_at(op: &Op<'_, M>, off: u64) -> u64 {
    op.load(op.at(Off::<Word>::new(off)), Relaxed)
}

/// Does it in an operation.
fn act(op: &Op<'_, M>, space: &Space<M>, action: &Action) -> bool {
    match *action {
        Block(index, value) | OtherBlock(index, value) | LinkedExtent(index, value) => {
            let link = link(op, index);
            if !op.load(link, Relaxed).is_null() {
                return false;
            }
            let reserved = match action {
                LinkedExtent(..) => space.reserve_extent(op, BLOCKS, CHUNK),
                OtherBlock(..) => space.reserve_block(op, BLOCKS, 128),
                _ => space.reserve_block(op, BLOCKS, 64),
            };
            let reserved = reserved.unwrap();
            write_object(op, reserved.off(), value);
            let prepared = space.prepare(op, reserved, link).unwrap();
            op.fence();
            prepared.complete(op);
        }
        Free(index) => {
            let link = link(op, index);
            let off = op.load(link, Relaxed);
            if off.is_null() {
                return false;
            }
            let prepared = space.prepare_free(op, off.get() & !MARK, link, Off::NULL).unwrap();
            op.fence();
            prepared.complete(op);
        }
        Mark(index) => return mark(op, index),
        Reserve => drop(space.reserve_block(op, BLOCKS, 128).unwrap()),
        Extent(value) => {
            let reserved = space.reserve_extent(op, EXTENTS, CHUNK).unwrap();
            write_object(op, reserved.off(), value);
            op.fence();
            space.activate(op, reserved).unwrap();
            op.fence();
        }
        ExtentAndDie(_) => unreachable!("its session dies in `apply`"),
        FreeExtent => {
            let Some(first) = space.extents(op, EXTENTS).first().copied() else { return false };
            space.free_extent(op, first).unwrap();
            // What the next owner would do to it.
            write_object(op, first.off, 999);
        }
    }
    true
}

impl Live {
    fn open(mapping: &Mapping<M>) -> Live {
        let mut session = mapping.session().unwrap();
        let op = session.enter().unwrap();
        let space = Arc::new(Space::recover(&op, mapping.clone(), HEAP, Box::new(())).unwrap());
        drop(op);
        Live { space, session, other: mapping.session().unwrap(), dying: mapping.session().unwrap() }
    }
}

impl Subject for Allocator {
    type Op = Action;
    type Ret = bool;
    type State = Model;
    type Model = Model;
    type Store = Mapping<M>;
    type Live = Live;

    fn store(&self, medium: Simulated) -> Mapping<M> {
        Mapping::heap((CHUNK * (1 + CHUNKS)) as usize, Mutating::new(medium, self.plan))
    }

    fn create(&self, store: &Mapping<M>) -> Live {
        Live::open(store)
    }

    fn recover(&self, store: &Mapping<M>) -> Result<Live, String> {
        let mut live = Live::open(store);
        // A structure that repairs its links, by a session that the allocator's recovery did not use.
        for index in 0..LINKS {
            mark(&live.other.enter().unwrap(), index);
        }
        Ok(live)
    }

    fn apply(&self, live: &mut Live, action: &Action) -> bool {
        let session = match action {
            Mark(..) | OtherBlock(..) => &mut live.other,
            ExtentAndDie(..) => &mut live.dying,
            _ => &mut live.session,
        };
        let op = session.enter().unwrap();
        let ExtentAndDie(value) = *action else { return act(&op, &live.space, action) };
        let reserved = live.space.reserve_extent(&op, EXTENTS, CHUNK).unwrap();
        write_object(&op, reserved.off(), value);
        op.fence();
        live.space.activate(&op, reserved).unwrap();
        drop(op);
        let mapping = live.session.mapping().clone();
        let op = live.session.enter().unwrap();
        live.space = Arc::new(Space::recover(&op, mapping, HEAP, Box::new(())).unwrap());
        true
    }

    fn observe(&self, live: &mut Live) -> Model {
        let op = live.session.enter().unwrap();
        let links = std::array::from_fn(|i| {
            let off = op.load(link(&op, i), Relaxed);
            (!off.is_null()).then(|| value_at(&op, off.get() & !MARK))
        });
        let mut extents: Vec<_> = live.space.extents(&op, EXTENTS).iter().map(|e| value_at(&op, e.off)).collect();
        extents.sort_unstable();
        Model { links, extents }
    }

    fn check(&self, live: &mut Live) -> Vec<String> {
        let op = live.session.enter().unwrap();
        let mut faults: Vec<String> =
            live.space.check(&op, |owner| [BLOCKS, EXTENTS].contains(&owner)).iter().map(ToString::to_string).collect();
        let linked: BTreeSet<u64> =
            (0..LINKS).map(|i| op.load(link(&op, i), Relaxed).get() & !MARK).filter(|off| *off != 0).collect();
        let mut allocated: BTreeSet<u64> = live.space.blocks(&op, BLOCKS).into_iter().map(|(off, _)| off).collect();
        allocated.extend(live.space.extents(&op, BLOCKS).into_iter().map(|e| e.off));
        faults.extend(allocated.difference(&linked).map(|off| format!("leaked: {off:#x} is allocated and not linked")));
        faults.extend(linked.difference(&allocated).map(|off| format!("dangling: {off:#x} is linked and free")));
        faults
    }

    fn model(&self) -> Model {
        Model::default()
    }

    fn step(&self, model: &mut Model, action: &Action) -> bool {
        match *action {
            Block(index, value) | OtherBlock(index, value) | LinkedExtent(index, value) => {
                let free = model.links[index].is_none();
                model.links[index].get_or_insert(value);
                free
            }
            Mark(index) => model.links[index].is_some(),
            Reserve => true,
            Free(index) => model.links[index].take().is_some(),
            Extent(value) | ExtentAndDie(value) => {
                model.extents.push(value);
                model.extents.sort_unstable();
                true
            }
            FreeExtent if model.extents.is_empty() => false,
            FreeExtent => {
                model.extents.remove(0);
                true
            }
        }
    }

    fn expect(&self, model: &Model) -> Model {
        model.clone()
    }
}

/// Threads that allocate and free, each for links of its own.
impl Concurrent for Allocator {
    type Thread = (Session<M>, Arc<Space<M>>);

    fn thread(&self, live: &Live, _number: usize) -> Self::Thread {
        (live.session.mapping().session().unwrap(), Arc::clone(&live.space))
    }

    fn run(&self, (session, space): &mut Self::Thread, action: &Action) -> bool {
        act(&session.enter().unwrap(), space, action)
    }
}

/// Values ascend, so that the first extent found by owner is the model's first: chunks are handed out from below.
pub const ALPHABET: [Action; 6] = [Block(0, 7), OtherBlock(1, 8), LinkedExtent(1, 9), Free(0), Free(1), Mark(0)];
/// Follows every recovery.
pub const AFTER: [Action; 5] = [Mark(0), Block(0, 70), LinkedExtent(1, 71), Free(0), Block(0, 72)];

/// Histories that reach every persistence site of the allocator.
pub const HISTORIES: [&[Action]; 7] = [
    &[],
    &[Block(0, 7), LinkedExtent(1, 8), Free(0), Block(0, 9), Free(1), Free(0)],
    &[Extent(1), FreeExtent, Extent(2), FreeExtent, Block(0, 5)],
    &[LinkedExtent(0, 1), Free(0), Block(0, 2), Free(0), LinkedExtent(0, 3)],
    &[Block(1, 1), Free(1), Extent(4), FreeExtent, Block(1, 2)],
    &[ExtentAndDie(3), Block(0, 1), ExtentAndDie(4)],
    &[Block(0, 1), Mark(0), Free(0), Reserve, OtherBlock(0, 2), Mark(0)],
];
