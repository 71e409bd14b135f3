//! A hash table: buckets, each a run of one list, and an array of their heads.
//!
//! | module | what it holds |
//! |---|---|
//! | `spread` | the order of the list |
//! | `runs` | which bucket a key belongs to, and the races with growth |
//! | `grow` | growth, and its persist order |
//!
//! | edge | kept by | a crash before it leaves | recovery |
//! |---|---|---|---|
//! | LF-H1 all buckets empty, root words < the index goes live | flush+fence, of the pool's | an index that was never created | the pool's |

mod grow;
mod runs;
mod spread;

use std::cell::Cell;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use durix_pmem::pool::Durability;
use durix_pmem::{Hardware, Kind, Medium, Off, OffsetSet, Op, Root, Session, Structure, Word};

use crate::error::{Error, Result};
use crate::finding::Finding;
use crate::layout::{DIRECTORY, HASH_LAYOUT_VERSION, Link, Node, ROOT_BUCKETS, ROOT_HEAD};
use crate::linked::chain::{self, Chain, Nothing};
use crate::linked::link_cache::{Cached, LinkCache, on_chain};
use crate::map::{Found, WordMap};
use crate::options::Options;
use crate::pages::{PageStats, Pages, Reachable};
use crate::words::Words;
use grow::Growth;
use runs::{Bucket, Directory, MAX_LEVEL, Runs};
pub(crate) use spread::gather;
use spread::spread;

/// A durable lock-free hash table of 8-byte keys and values, with links in persistent memory: it recovers in the time that
/// its active pages take, whatever its size. It doubles its buckets as keys come in, without a node being moved or a reader
/// or writer waiting. Recovery takes the time of a search for each node in a page that was active.
pub type HashTable<M = Hardware> = Words<HashCore<M>, M>;

/// What a [`HashTable`] is made of.
pub struct HashCore<M: Medium> {
    pages: Pages<M>,
    directory: Directory,
    growth: Growth,
    /// Nodes a bucket at which it grows, 0 for never.
    grow_at: u32,
}

/// A node, and its spread key.
type Entry = (Off<Node>, u64);

/// The pool's directory of arrays, behind the first one at `heads`.
fn directory<'s, M: Medium>(op: &Op<'s, M>, heads: u64, first: u32) -> Result<&'s [Word]> {
    let off = heads.saturating_add(first_array(first));
    Ok(op.slice("the directory of buckets", Off::<Word>::new(off), DIRECTORY as u64)?)
}

/// Bytes of the first array, whole lines.
fn first_array(first: u32) -> u64 {
    (size_of::<Word<Link>>() as u64 * (1 << first)).next_multiple_of(64)
}

impl<M: Medium> Structure<M> for HashCore<M> {
    const KIND: Kind = Kind { tag: *b"LF-HASH ", version: HASH_LAYOUT_VERSION };
    const TALLIES: bool = true;
    type Options = Options;
    type Error = Error;

    fn create(session: &mut Session<M>, root: &Root<M>, options: &Options) -> Result<()> {
        let op = session.enter()?;
        Pages::create(&op, root, options)?;
        let (space, words) = (root.pool().space(), root.words(&op));
        let first = options.buckets.trailing_zeros();
        let bytes = first_array(first) + (size_of::<Word>() * DIRECTORY) as u64;
        let reserved = space.reserve_extent(&op, root.owner(), bytes)?;
        let heads = op.slice("the buckets", Off::<Word<Link>>::new(reserved.off()), bytes / 8)?;
        for (number, head) in heads.iter().enumerate() {
            let is_head = (number as u64) < options.buckets;
            op.store(head, if is_head { Link::end(first) } else { Link::NULL }, Relaxed);
        }
        let array = space.activate(&op, reserved)?;
        op.store(&words[ROOT_HEAD], array.off, Relaxed);
        op.store(&words[ROOT_BUCKETS], options.buckets, Relaxed);
        // PERSIST LF-H1: flush, with the fence before the index goes live.
        op.write_back_slice(heads);
        op.write_back(words);
        Ok(())
    }

    fn open(session: &mut Session<M>, root: Root<M>, options: &Options) -> Result<Self> {
        let op = session.enter()?;
        let directory = read_directory(&op, &root)?;
        let level = directory.level(op.medium());
        let growth = Growth::of(directory.first, level);
        let (pages, found) = Pages::open(&op, root, &directory.arrays(op.medium()), options)?;
        drop(op);
        let table = HashCore { pages: pages.with_link_cache(), directory, growth, grow_at: options.grow_at };
        table.pages.recover(session, &found, &Reachable::Search(&|op, node| table.reaches(op, node)))?;
        Ok(table)
    }
}

/// The heads of all buckets of a table that may be damaged, as far as they can be found.
pub(crate) fn heads_of<M: Medium>(op: &Op<'_, M>, root: &Root<M>) -> Vec<Link> {
    let words = root.words(op);
    let (array, buckets) = (op.load(&words[ROOT_HEAD], Relaxed), op.load(&words[ROOT_BUCKETS], Relaxed));
    if !buckets.is_power_of_two() || buckets > 1 << MAX_LEVEL {
        return Vec::new();
    }
    let first = buckets.trailing_zeros();
    let more = self::directory(op, array, first).unwrap_or_default().iter().map(|entry| op.load(entry, Relaxed));
    let more = (0u32..).zip(more).filter(|(level, array)| *array != 0 && (first + 1..=MAX_LEVEL).contains(level));
    let arrays = more.map(|(level, array)| (array, 1 << (level - 1)));
    let heads = [(array, buckets)]
        .into_iter()
        .chain(arrays)
        .filter_map(|(array, len)| op.slice("the buckets", Off::<Word<Link>>::new(array), len).ok());
    heads.flatten().map(|head| op.load(head, Relaxed)).collect()
}

/// Reads where the arrays are, and makes durable what it has read.
fn read_directory<M: Medium>(op: &Op<'_, M>, root: &Root<M>) -> Result<Directory> {
    let words = root.words(op);
    let (array, buckets) = (op.load(&words[ROOT_HEAD], Relaxed), op.load(&words[ROOT_BUCKETS], Relaxed));
    if !buckets.is_power_of_two() || buckets > 1 << MAX_LEVEL {
        let offset = op.off_of(&words[ROOT_BUCKETS]).get();
        return Err(Error::Corrupt { what: "the number of buckets", offset, found: buckets });
    }
    let first = buckets.trailing_zeros();
    op.slice("the buckets", Off::<Word<Link>>::new(array), buckets)?;
    let entries = self::directory(op, array, first)?;
    let directory = Directory::new(array, first);
    let arrays = entries.iter().map(|entry| op.load(entry, Acquire));
    let arrays: Vec<_> = (0u32..).zip(arrays).filter(|(_, array)| *array != 0).collect();
    for (expected, (level, array)) in (first + 1..).zip(arrays) {
        if level != expected || level > MAX_LEVEL {
            let offset = op.off_of(&entries[level as usize]).get();
            return Err(Error::Corrupt { what: "the directory of buckets", offset, found: array });
        }
        op.slice("more buckets", Off::<Word<Link>>::new(array), 1 << (level - 1))?;
        directory.add(op.medium(), level, array);
        // PERSIST LF-H7: flush, with the fence of LF-N9: before that nothing of a level is begun.
        root.write_back_found(op, &entries[level as usize]);
    }
    Ok(directory)
}

impl<'a, 's, M: Medium> Chain<'a, 's, M, Runs<'a, 's, M, Nothing>> {
    /// The same, with a link cache.
    #[inline(always)]
    fn cached(self, cache: &'a LinkCache) -> Chain<'a, 's, M, Runs<'a, 's, M, Cached<'a>>> {
        let Runs { directory, announced, op, key, level, .. } = self.above;
        let above = Runs { directory, announced, op, key, level, inner: Cached(cache) };
        Chain { op: self.op, pages: self.pages, head: self.head, above }
    }
}

impl<M: Medium> HashCore<M> {
    #[inline(always)]
    fn runs<'a, 's>(&'a self, op: &'a Op<'s, M>, key: u64) -> Runs<'a, 's, M, Nothing> {
        Runs {
            directory: &self.directory,
            announced: self.pages.announced(),
            op,
            key,
            level: Cell::new(0),
            inner: Nothing,
        }
    }

    /// The list, to look for a spread key.
    #[inline(always)]
    fn chain<'a, 's>(&'a self, op: &'a Op<'s, M>, key: u64) -> Result<Chain<'a, 's, M, Runs<'a, 's, M, Nothing>>> {
        self.pages.expect_own(op)?;
        let head = op.at(Off::NULL);
        Ok(Chain { op, pages: &self.pages, head, above: self.runs(op, key) })
    }

    fn reaches(&self, op: &Op<'_, M>, node: Off<Node>) -> Result<bool> {
        self.chain(op, op.load(&op.at(node).key, Relaxed))?.reaches(node)
    }

    /// The nodes of the run that begins with a bucket, with their keys, and the least key that does not belong to it. What
    /// a cut leads to counts as long as nothing else does.
    fn nodes(&self, op: &Op<'_, M>, bucket: Bucket, head: Off<Word<Link>>) -> Result<(Vec<Entry>, Option<u64>)> {
        let (mut nodes, mut head) = (Vec::new(), op.at(head));
        for _ in 0..=MAX_LEVEL {
            let chain = Chain { op, pages: &self.pages, head, above: Nothing };
            let (word, end) = chain.walk(|_, node, key| nodes.push((node, key)))?;
            if !end.is_cut() {
                return Ok((nodes, Bucket::of(bucket.least(), end.level()).past()));
            }
            let half = self.second_half(op, bucket, word, end)?;
            if op.load(op.at(self.directory.head(op.medium(), half).1), Acquire) != Link::NULL {
                return Ok((nodes, Some(half.least())));
            }
            if end.rest().is_null() {
                return Ok((nodes, half.past()));
            }
            let node = op.at(end.rest().node());
            nodes.push((end.rest().node(), op.load(&node.key, Relaxed)));
            head = &node.next;
        }
        Err(runs::corrupt("the end of a bucket", op.off_of(head), op.load(head, Acquire)))
    }

    /// The bucket that a run is being cut for.
    fn second_half(&self, op: &Op<'_, M>, bucket: Bucket, word: &Word<Link>, cut: Link) -> Result<Bucket> {
        let level = cut.level();
        if level <= self.directory.first || level > self.directory.level(op.medium()) {
            return Err(runs::corrupt("the end of a bucket", op.off_of(word), cut));
        }
        Ok(Bucket { level, index: Bucket::of(bucket.least(), level - 1).index << 1 | 1 })
    }
}

impl<M: Medium> WordMap<M> for HashCore<M> {
    const NAME: &'static str = "HashTable";
    const ORDERED: bool = false;

    fn root(&self) -> &Root<M> {
        self.pages.root()
    }

    fn get(&self, op: &Op<'_, M>, key: u64) -> Result<Option<u64>> {
        let key = spread(key);
        on_chain!(self, self.chain(op, key)?, get(key))
    }

    #[inline(always)]
    fn insert_with(&self, op: &Op<'_, M>, key: u64, value: impl Fn() -> Option<u64>) -> Result<bool> {
        let key = spread(key);
        let inserted = on_chain!(self, self.chain(op, key)?, insert(key, value))?;
        if inserted {
            self.help_grow(op, key);
        }
        Ok(inserted)
    }

    fn update_with(&self, op: &Op<'_, M>, key: u64, new: impl Fn(u64) -> Option<u64>) -> Result<Found> {
        let key = spread(key);
        on_chain!(self, self.chain(op, key)?, update(key, new))
    }

    fn remove_with(&self, op: &Op<'_, M>, key: u64, wanted: impl Fn(u64) -> bool) -> Result<Found> {
        let key = spread(key);
        on_chain!(self, self.chain(op, key)?, remove_if(key, wanted))
    }

    #[inline]
    fn remove(&self, op: &Op<'_, M>, key: u64) -> Result<Option<u64>> {
        let key = spread(key);
        on_chain!(self, self.chain(op, key)?, remove(key))
    }

    /// A place is the first key of a bucket, in the order of the table.
    fn walk(&self, op: &Op<'_, M>, from: u64, into: &mut Vec<(u64, u64)>) -> Result<Option<u64>> {
        let had = into.len();
        loop {
            let walked = on_chain!(self, self.chain(op, from)?, collect_run(from, usize::MAX, into));
            if let Ok(None) = walked {
                into.truncate(had);
                continue;
            }
            // Also what was found before an error.
            into[had..].iter_mut().for_each(|(key, _)| *key = gather(*key));
            return Ok(walked?.and_then(|end| Bucket::of(from, end.level()).past()));
        }
    }

    fn check(&self, op: &Op<'_, M>) -> Result<Vec<Finding>> {
        self.pages.expect_own(op)?;
        let (m, mut reachable, mut findings) = (op.medium(), OffsetSet::default(), Vec::new());
        let level = self.directory.level(m);
        for index in 0..1 << level {
            let bucket = Bucket { level, index };
            let (_, head) = self.directory.head(m, bucket);
            if op.load(op.at(head), Acquire) == Link::NULL {
                // Part of the run before.
                continue;
            }
            let (nodes, past) = self.nodes(op, bucket, head)?;
            for (node, key) in nodes {
                let belongs = key >= bucket.least() && past.is_none_or(|past| key < past);
                // A node of two buckets does not belong to one of them.
                reachable.insert(node.get());
                if !belongs {
                    findings.push(Finding::Misplaced { off: node.get(), key: gather(key) });
                }
                findings.extend(chain::damaged(op, node));
            }
        }
        findings.extend(self.pages.check(op, &reachable, &self.directory.arrays(m)));
        let tallied = |add: &mut dyn FnMut(u64, u64)| self.for_each(op, |key, value| add(spread(key), value));
        findings.extend(self.pages.check_tally(op, tallied)?);
        Ok(findings)
    }

    fn durability(&self) -> Durability {
        self.pages.durability()
    }

    fn sync(&self, op: &Op<'_, M>) -> Result<()> {
        self.pages.expect_own(op)?;
        self.pages.flush_links(op);
        Ok(())
    }

    fn page_stats(&self, op: &Op<'_, M>) -> PageStats {
        self.pages.stats(op)
    }

    fn next_address(&self, op: &Op<'_, M>) -> Option<u64> {
        self.pages.next_address(op)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use durix_pmem::backing::HeapBacking;
    use durix_pmem::{Bits, PoolOptions};

    /// The buckets lie over nodes, and the one of a key where the next node has its value. An insert wrote the node, and with it a link that is not
    /// settled, then settled the link, and began again, without an end.
    #[test]
    fn a_bucket_in_a_free_node_is_corrupt() {
        let options = Options::default().buckets(16);
        let mut is_met = false;
        for bucket in 0..16 {
            let pool = PoolOptions::new().initial_size(4 << 20);
            let pool = pool.create_on(HeapBacking::new(4 << 20), Hardware::PAGE_CACHE).unwrap();
            let open = || HashTable::<Hardware>::open_with(&pool, "map", &options);
            let (table, mut session) = (open().unwrap(), pool.session().unwrap());
            let op = session.enter().unwrap();
            assert!(table.insert(&op, 1, 1).unwrap() && table.remove(&op, 1).unwrap().is_some());
            let free = table.map.pages.allocate(&op).unwrap();
            table.map.pages.give_back(&op, free);
            // Whichever node comes next: for some bucket it is the third word.
            let words = table.map.pages.root().words(&op);
            op.store(&words[ROOT_HEAD], free.get() + 64 + 16 - 8 * bucket, Relaxed);
            // The value is a link that is not settled, to a node behind all others.
            let last = Off::<Node>::new((4 << 20) - 64);
            op.store(&op.at(last).key, u64::MAX, Relaxed);
            let value = Link::to(last.get()).dirty().to_bits();
            drop((op, table));
            let Ok(table) = open() else { continue };
            for key in 0..64 {
                match table.insert(&session.enter().unwrap(), key, value) {
                    Err(Error::Corrupt { what: "a link in a free node", .. }) => is_met = true,
                    other => drop(other),
                }
            }
        }
        assert!(is_met);
    }

    /// Half of the room is free, so each page that leaves the table of active pages is worth noting, and nobody needs it.
    #[test]
    fn pages_that_come_and_go_are_noted_once() {
        let options = PoolOptions::new().initial_size(4 << 20).max_size(4 << 20);
        let pool = options.create_on(HeapBacking::new(4 << 20), Hardware::PAGE_CACHE).unwrap();
        let options = Options::default().page_size(256).active_pages(4).generation(2);
        let table: std::sync::Arc<HashTable> = HashTable::open_with(&pool, "map", &options).unwrap();
        let mut session = pool.session().unwrap();
        let insert = |op: &Op<'_>, key| assert!(table.insert(op, key, 1).unwrap());
        (0..2000).for_each(|key| insert(&session.enter().unwrap(), key));
        // Half of the keys go, from all over the table; then one goes for each that comes.
        for key in 0..100_000 {
            let op = session.enter().unwrap();
            let key = if key < 1000 { key * 2 } else { (key * 7919) % 1000 * 2 + 1 };
            assert!(table.remove(&op, key).unwrap().is_some());
            if key % 2 == 1 {
                insert(&op, key);
            }
        }
        let noted = table.map.pages.noted(&session.enter().unwrap());
        // There are a thousand pages, and a few are noted between two looks.
        assert!(noted < 4000, "{noted}");
    }
}
