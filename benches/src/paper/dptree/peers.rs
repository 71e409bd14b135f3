//! The trees of figures 8, 12 and table 2 behind one trait: ours and the comparators, each with the same keys in the same order.

use std::ops::Range;

use durix_dptree::Direction;
use durix_pmem::{Hardware, Mapping, Medium, Session};

use super::trees::{Tree, key, pool_on};
use crate::cso_append::medium;
use crate::interleave::{Series, Stopwatch};
use crate::machine::Bytes;
use crate::paper::figure::Error;
use crate::place::{Place, free_bytes};
use crate::trees::Ordered;
use crate::trees::fast_fair::FastFair;
use crate::trees::fptree::FpTree;
use crate::trees::lb_tree::LbTree;
use crate::trees::wort::Wort;

/// A tree that takes part, operation by operation. Key number `i` is [`key`]`(i)`, and has the value `i + 1` until it is updated. Each
/// operation is one of its own, as a user calls it.
trait Operations {
    const NAME: &'static str;

    /// Whether the key is new.
    fn insert(&mut self, key: u64, value: u64) -> Result<bool, Error>;

    /// Whether the key is there.
    fn update(&mut self, key: u64, value: u64) -> Result<bool, Error>;

    fn get(&mut self, key: u64) -> Result<Option<u64>, Error>;

    /// Pairs from `start` on, until `visit` says `false`.
    fn scan(&mut self, start: u64, visit: impl FnMut(u64, u64) -> bool) -> Result<(), Error>;

    /// The work that a tree wants done now and then, by the thread that uses it.
    fn tick(&mut self) -> Result<(), Error>;
}

/// A step of a mix of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Key number `.0`, which is new.
    Insert(u64),
    /// A key that is there, and its new value.
    Update(u64, u64),
    /// A key that is there.
    Get(u64),
    /// From a key on, so many pairs, which are there.
    Scan(u64, u64),
}

/// A tree that takes part. What an operation should find and does not is a panic.
pub(super) trait Peer {
    fn name(&self) -> &'static str;

    /// Does one step after the other. Returns the sum of all values that were found, and of the keys of scans.
    fn work(&mut self, steps: &[Step]) -> Result<u64, Error>;

    /// Inserts the new keys of these numbers.
    fn fill(&mut self, numbers: Range<u64>) -> Result<(), Error>;

    /// Looks keys up; the sum of their values.
    fn get_all(&mut self, keys: &[u64]) -> Result<u64, Error>;

    /// Scans `length` pairs from each start on; the sum of keys and values.
    fn scan_all(&mut self, starts: &[u64], length: u64) -> Result<u64, Error>;
}

/// Operations between two calls of `tick`.
const TICK: usize = super::trees::TICK as usize;

impl<T: Operations> Peer for T {
    fn name(&self) -> &'static str {
        T::NAME
    }

    fn work(&mut self, steps: &[Step]) -> Result<u64, Error> {
        let mut sum = 0u64;
        for steps in steps.chunks(TICK) {
            for step in steps {
                match *step {
                    Step::Insert(number) => insert_new(self, number)?,
                    Step::Update(key, value) => assert!(self.update(key, value)?, "{}: key {key} is there", T::NAME),
                    Step::Get(key) => sum = sum.wrapping_add(get_one(self, key)?),
                    Step::Scan(start, length) => sum = sum.wrapping_add(scan_one(self, start, length)?),
                }
            }
            self.tick()?;
        }
        Ok(sum)
    }

    fn fill(&mut self, numbers: Range<u64>) -> Result<(), Error> {
        for number in numbers {
            insert_new(self, number)?;
            if number.is_multiple_of(TICK as u64) {
                self.tick()?;
            }
        }
        Ok(())
    }

    fn get_all(&mut self, keys: &[u64]) -> Result<u64, Error> {
        keys.iter().try_fold(0u64, |sum, key| Ok(sum.wrapping_add(get_one(self, *key)?)))
    }

    fn scan_all(&mut self, starts: &[u64], length: u64) -> Result<u64, Error> {
        starts.iter().try_fold(0u64, |sum, start| Ok(sum.wrapping_add(scan_one(self, *start, length)?)))
    }
}

#[inline(always)]
fn insert_new<T: Operations>(tree: &mut T, number: u64) -> Result<(), Error> {
    let is_new = tree.insert(key(number), number + 1)?;
    assert!(is_new, "{}: key number {number} is new", T::NAME);
    Ok(())
}

#[inline(always)]
fn get_one<T: Operations>(tree: &mut T, key: u64) -> Result<u64, Error> {
    Ok(tree.get(key)?.unwrap_or_else(|| panic!("{}: key {key} is there", T::NAME)))
}

#[inline(always)]
fn scan_one<T: Operations>(tree: &mut T, start: u64, length: u64) -> Result<u64, Error> {
    let (mut sum, mut left) = (0u64, length);
    tree.scan(start, |key, value| {
        sum = sum.wrapping_add(key ^ value);
        left -= 1;
        left > 0
    })?;
    assert_eq!(left, 0, "{}: pairs that a scan of {length} has left out", T::NAME);
    Ok(sum)
}

/// What a tree of a figure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    Ours,
    FastFair,
    /// As its paper persists.
    FpTree,
    /// As good as we can make it.
    FpTreeBest,
    LbTree,
    Wort,
}

pub(super) const OURS: &str = "DPTree";
pub(super) const FAST_FAIR: &str = <FastFair as Ordered<Hardware>>::NAME;
pub(super) const FPTREE: &str = <FpTree<true> as Ordered<Hardware>>::NAME;
pub(super) const FPTREE_BEST: &str = <FpTree<false> as Ordered<Hardware>>::NAME;
pub(super) const LB_TREE: &str = <LbTree as Ordered<Hardware>>::NAME;
pub(super) const WORT: &str = <Wort as Ordered<Hardware>>::NAME;

type Make<M> = fn(&Mapping<M>) -> Result<Box<dyn Peer>, Error>;

impl Which {
    /// Its name in tables.
    pub(super) fn name(self) -> &'static str {
        match self {
            Which::Ours => OURS,
            Which::FastFair => FAST_FAIR,
            Which::FpTree => FPTREE,
            Which::FpTreeBest => FPTREE_BEST,
            Which::LbTree => LB_TREE,
            Which::Wort => WORT,
        }
    }

    /// What a comparator needs, and how it is made.
    fn comparator<M: Medium>(self, keys: u64) -> Option<(u64, Make<M>)> {
        fn of<T: Ordered<M> + 'static, M: Medium>(keys: u64) -> Option<(u64, Make<M>)> {
            Some((T::bytes(keys), Comparator::<T, M>::make))
        }
        match self {
            Which::Ours => None,
            Which::FastFair => of::<FastFair, M>(keys),
            Which::FpTree => of::<FpTree<true>, M>(keys),
            Which::FpTreeBest => of::<FpTree<false>, M>(keys),
            Which::LbTree => of::<LbTree, M>(keys),
            Which::Wort => of::<Wort, M>(keys),
        }
    }
}

/// Empty trees with room for so many keys. The comparators' memory is allocated in turn; that of ours, a pool, in one piece.
pub(super) fn peers(place: &Place, keys: u64, which: &[Which]) -> Result<Vec<Box<dyn Peer>>, Error> {
    let on: Vec<(Which, Hardware)> = which.iter().map(|which| (*which, medium())).collect();
    peers_on(place, keys, &on)
}

/// The same, each on its medium.
pub(super) fn peers_on<M: Medium>(place: &Place, keys: u64, which: &[(Which, M)]) -> Result<Vec<Box<dyn Peer>>, Error> {
    let wanted: Vec<(u64, M)> =
        which.iter().filter_map(|(which, m)| which.comparator::<M>(keys).map(|(bytes, _)| (bytes, *m))).collect();
    let needed = wanted.iter().map(|(bytes, _)| bytes).sum();
    if let Some(free) = free_bytes(&place.dir).filter(|free| *free < needed) {
        let (what, dir) = (format!("comparators of {keys} keys"), place.dir.display().to_string());
        return Err(Error::Room { what, needed: Bytes(needed), free: Bytes(free), dir });
    }
    let mut mappings = place.map_each_in_turn(&wanted)?.into_iter();
    which
        .iter()
        .map(|(which, m)| match which.comparator(keys) {
            Some((_, make)) => make(&mappings.next().expect("a mapping for each comparator")),
            None => Ok(Box::new(Tree::new(&pool_on(place, keys, *m)?)?) as Box<dyn Peer>),
        })
        .collect()
}

impl<M: Medium> Operations for Tree<M> {
    const NAME: &'static str = OURS;

    #[inline(always)]
    fn insert(&mut self, key: u64, value: u64) -> Result<bool, Error> {
        Ok(self.tree.insert(&self.session.enter()?, key, value)?)
    }

    #[inline(always)]
    fn update(&mut self, key: u64, value: u64) -> Result<bool, Error> {
        Ok(self.tree.update(&self.session.enter()?, key, value)?)
    }

    #[inline(always)]
    fn get(&mut self, key: u64) -> Result<Option<u64>, Error> {
        Ok(self.tree.get(&self.session.enter()?, key)?)
    }

    #[inline(always)]
    fn scan(&mut self, start: u64, visit: impl FnMut(u64, u64) -> bool) -> Result<(), Error> {
        Ok(self.tree.scan(&self.session.enter()?, start.., Direction::Forward, visit)?)
    }

    #[inline(always)]
    fn tick(&mut self) -> Result<(), Error> {
        self.tree.tick(&mut self.session)?;
        Ok(())
    }
}

/// A comparator, and the session that works on it.
struct Comparator<T, M: Medium> {
    tree: T,
    session: Session<M>,
}

impl<T: Ordered<M> + 'static, M: Medium> Comparator<T, M> {
    fn make(mapping: &Mapping<M>) -> Result<Box<dyn Peer>, Error> {
        Ok(Box::new(Comparator { tree: T::create(mapping)?, session: mapping.session()? }))
    }
}

impl<T: Ordered<M>, M: Medium> Operations for Comparator<T, M> {
    const NAME: &'static str = T::NAME;

    #[inline(always)]
    fn insert(&mut self, key: u64, value: u64) -> Result<bool, Error> {
        Ok(self.tree.insert(&self.session.enter()?, key, value))
    }

    #[inline(always)]
    fn update(&mut self, key: u64, value: u64) -> Result<bool, Error> {
        Ok(self.tree.update(&self.session.enter()?, key, value))
    }

    #[inline(always)]
    fn get(&mut self, key: u64) -> Result<Option<u64>, Error> {
        Ok(self.tree.get(&self.session.enter()?, key))
    }

    #[inline(always)]
    fn scan(&mut self, start: u64, visit: impl FnMut(u64, u64) -> bool) -> Result<(), Error> {
        self.tree.scan(&self.session.enter()?, start, visit);
        Ok(())
    }

    #[inline(always)]
    fn tick(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

/// Has all trees do the same in turn, the first of them another one each round. Returns nanoseconds for each of `operations`, in the
/// order of the trees.
///
/// # Panics
/// If not all of them return the same.
pub(super) fn in_turn(
    peers: &mut [Box<dyn Peer>],
    round: usize,
    operations: u64,
    mut work: impl FnMut(&mut dyn Peer) -> Result<u64, Error>,
) -> Result<Vec<f64>, Error> {
    let (count, mut times, mut expected) = (peers.len(), vec![0.0; peers.len()], None);
    for who in (0..count).map(|who| (round + who) % count) {
        let start = Stopwatch::start();
        let result = work(&mut *peers[who])?;
        times[who] = start.elapsed().as_nanos() as f64 / operations as f64;
        assert_eq!(*expected.get_or_insert(result), result, "{} returns the same as others", peers[who].name());
    }
    Ok(times)
}

/// The series of the tree of a name.
pub(super) fn named<'s>(which: &[Which], series: &'s [Series], name: &str) -> &'s Series {
    let at = which.iter().position(|which| which.name() == name).expect("a tree that takes part");
    &series[at]
}

/// What a reader of these figures has to know.
pub(super) fn notes() -> Vec<String> {
    vec![
        "the comparators are written for these figures: durable on return, for one thread; without removal, recovery and the bookkeeping of \
         a persistent allocator"
            .into(),
        format!("{FPTREE} persists as in its paper; {FPTREE_BEST}: fingerprint and bitmap at once, updates in place, splits without a log"),
        "the comparators' memory is allocated in turn, that of DPTree in one piece: how pages happen to lie is worth up to a fifth".into(),
    ]
}

/// Calls `test` with a context and a directory.
#[cfg(test)]
pub(super) fn with_context(test: impl FnOnce(&crate::paper::figure::Context<'_>, &Place)) {
    use std::cell::Cell;
    use std::time::{Duration, Instant};
    let (bar, place) = (indicatif::ProgressBar::hidden(), Place::at(std::env::temp_dir()));
    let context = crate::paper::figure::Context {
        quick: true,
        keys: None,
        rounds: Duration::from_secs(1),
        places: vec![place.clone()],
        bar: &bar,
        points: Cell::new(1),
        began: Cell::new(Instant::now()),
        told: Cell::new(None),
    };
    test(&context, &place);
}
