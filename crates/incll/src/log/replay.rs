//! Putting back what the external log holds, after a crash (section 4.3): by several threads where there is much of it.
//!
//! Threads take segment after segment; each fences what it has put back itself, because a fence covers the write-backs of its
//! own thread alone. They have all ended before the caller goes on. A node has at most one image that counts, but for
//! one case: an operation that found no room for the image of another node has left one that nobody built on, and a second one was
//! made later. Either may be put back last (InCLLp undoes what lies between the two), but not half of each: so an image is put
//! back under a lock of its node.
//!
//! A crash leaves some nodes put back, and all images: the next opening puts all of them back again.

use std::panic::resume_unwind;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use durix_cso::log::{LinesLog, Log, Region};
use durix_pmem::{Epochs, Extent, LINE, Lock, Mapping, Medium, Off, Op, Rmw};

use crate::error::Result;
use crate::layout::Node;
use crate::log::undo::{RECORD, WORDS};

/// Segments that are worth a thread: with segments of 64 KiB about 2300 images, a millisecond.
const SEGMENTS_A_THREAD: usize = 16;
/// Most threads beside the caller's.
const MOST_HELPERS: usize = 7;
/// Locks of nodes.
const LOCKS: usize = 64;

/// The part of a segment that its log has: all behind the head of the extent.
pub(crate) fn region(extent: Extent) -> Region {
    Region { off: extent.off + LINE as u64, len: extent.len - LINE as u64 }
}

/// Threads beside the caller's for a log of so many segments.
pub(crate) fn helpers(segments: usize) -> usize {
    if segments < 2 * SEGMENTS_A_THREAD {
        return 0;
    }
    let processors = durix_pmem::processors();
    processors.min(segments / SEGMENTS_A_THREAD).saturating_sub(1).min(MOST_HELPERS)
}

/// What the threads share.
pub(crate) struct Replay<'t, M: Medium> {
    epochs: &'t Epochs<M>,
    /// Images of failed epochs from here on count.
    since: u64,
    segments: &'t [Extent],
    /// The next one that nobody has taken.
    next: AtomicU64,
    locks: Box<[Lock<()>]>,
}

impl<'t, M: Medium> Replay<'t, M> {
    pub(crate) fn new(epochs: &'t Epochs<M>, since: u64, segments: &'t [Extent]) -> Self {
        let locks = (0..LOCKS).map(|_| Lock::new(())).collect();
        Replay { epochs, since, segments, next: AtomicU64::new(0), locks }
    }

    /// Puts everything back, durably, and returns the logs. Where a thread cannot be had, or would
    /// have to wait for an operation, the others do its part.
    ///
    /// # Errors
    /// [`Error::Log`](crate::Error::Log), [`Error::Pool`](crate::Error::Pool): of a damaged segment.
    pub(crate) fn run(&self, op: &Op<'_, M>, helpers: usize) -> Result<Vec<LinesLog>> {
        std::thread::scope(|scope| {
            let mapping = op.mapping();
            let spawn = |_| std::thread::Builder::new().spawn_scoped(scope, || self.help(mapping)).ok();
            let helpers: Vec<_> = (0..helpers).filter_map(spawn).collect();
            let own = self.share(op);
            let theirs = helpers.into_iter().map(|helper| helper.join().unwrap_or_else(|panic| resume_unwind(panic)));
            let all: Vec<_> = std::iter::once(own).chain(theirs).collect::<Result<_>>()?;
            Ok(all.into_iter().flatten().collect())
        })
    }

    fn help(&self, mapping: &Mapping<M>) -> Result<Vec<LinesLog>> {
        let Ok(mut session) = mapping.session() else { return Ok(Vec::new()) };
        // Not waiting: whoever keeps operations out waits for that of the thread that is helped.
        session.enter_at_once().map_or(Ok(Vec::new()), |op| self.share(&op))
    }

    /// One thread's part.
    fn share(&self, op: &Op<'_, M>) -> Result<Vec<LinesLog>> {
        let (mut logs, mut changed) = (Vec::new(), false);
        while let Some(segment) = self.segments.get(op.medium().shared_rmw(&self.next, Rmw::Add, 1) as usize) {
            let (log, images) = self.put_back_all(op, *segment)?;
            changed |= images > 0;
            logs.push(log);
        }
        if changed {
            // PERSIST IN-U1: flush+fence
            op.fence();
        }
        Ok(logs)
    }

    /// Puts back the images of one segment, without a fence. Returns how many.
    fn put_back_all(&self, op: &Op<'_, M>, segment: Extent) -> Result<(LinesLog, usize)> {
        let (log, mut images) = (LinesLog::recover(op, region(segment))?, 0);
        for record in log.iter(op).filter(|record| record.len() == RECORD * 8) {
            let mut words = [0; RECORD];
            record.copy_words(&mut words);
            let [epoch, off, image @ ..] = &words;
            if *epoch >= self.since && self.epochs.is_failed(*epoch) {
                let off = Off::<Node>::new(*off);
                let node = &op.slice("a node in the external log", off, 1)?[0];
                let _lock = self.locks[(off.get() / size_of::<Node>() as u64) as usize % LOCKS].lock(op.medium());
                put_back(op, node, image);
                images += 1;
            }
        }
        Ok((log, images))
    }
}

fn put_back<M: Medium>(op: &Op<'_, M>, node: &Node, words: &[u64; WORDS]) {
    op.store(&node.version, words[0], Relaxed);
    op.store(&node.middle[0], words[1], Relaxed);
    op.store(&node.middle[1], words[2], Relaxed);
    op.store(&node.stamp, durix_pmem::Bits::from_bits(words[3]), Relaxed);
    for (to, from) in node.rest.iter().zip(&words[4..]) {
        op.store(to, *from, Relaxed);
    }
    op.write_back(node);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alloc::arena::Head;
    use crate::layout::slab_kind;
    use crate::{BareOptions, LoggingOnly, Masstree};
    use durix_pmem::{Hardware, Killable, Session};

    const KEYS: u64 = 6000;
    const CHUNK: u64 = 4096;

    /// A tree whose process has died in an epoch that had changed every node.
    fn crashed<M: Medium>(medium: M) -> (Mapping<M>, Vec<Extent>) {
        let mapping = Mapping::heap(4 << 20, medium);
        let mut session = mapping.session().unwrap();
        let tree = open(&mut session, &mapping);
        for i in 0..KEYS {
            tree.insert(&session.enter().unwrap(), &i.to_be_bytes(), &i.to_le_bytes()).unwrap();
        }
        tree.sync(&mut session).unwrap();
        for i in 0..KEYS {
            tree.insert(&session.enter().unwrap(), &i.to_be_bytes(), &[7; 8]).unwrap();
        }
        let op = session.enter().unwrap();
        let logs = tree.extents(&op).unwrap().into_iter().filter(|(_, Head { kind, .. })| *kind == slab_kind::LOG);
        let logs: Vec<_> = logs.map(|(extent, _)| extent).collect();
        drop(op);
        assert!(logs.len() > 2 * SEGMENTS_A_THREAD + 4, "{} segments", logs.len());
        (mapping.clone(), logs)
    }

    fn open<M: Medium>(session: &mut Session<M>, mapping: &Mapping<M>) -> Masstree<M, LoggingOnly> {
        Masstree::open_bare_as(session, mapping, BareOptions::default().chunk(CHUNK)).unwrap()
    }

    fn whole<M: Medium>(mapping: &Mapping<M>) {
        let mut session = mapping.session().unwrap();
        let tree = open(&mut session, mapping);
        let op = session.enter().unwrap();
        assert_eq!(tree.check(&op).unwrap(), []);
        for i in 0..KEYS {
            assert_eq!(tree.get(&op, &i.to_be_bytes()).unwrap().map(|value| value.as_u64()), Some(i));
        }
    }

    #[test]
    fn any_number_of_threads_puts_every_image_back() {
        for helpers in [0, 1, 5] {
            let (mapping, segments) = crashed(Hardware::PAGE_CACHE);
            let mut session = mapping.session().unwrap();
            {
                let op = session.enter().unwrap();
                let epochs = Epochs::open(&op, &mapping, Off::new(1024)).unwrap();
                let replay = Replay::new(&epochs, 0, &segments);
                let logs = replay.run(&op, helpers).unwrap();
                assert_eq!(logs.len(), segments.len(), "{helpers} helpers");
                let mut images = 0;
                for record in logs.iter().flat_map(|log| log.iter(&op)).filter(|r| epochs.is_failed(r.word(0))) {
                    let node = op.at(Off::<Node>::new(record.word(1)));
                    let image: [u64; WORDS] = std::array::from_fn(|i| record.word(i + 2));
                    assert_eq!(crate::log::undo::image(&op, node), image, "{helpers} helpers");
                    images += 1;
                }
                assert!(images >= KEYS / 14, "{images} images");
            }
            whole(&mapping);
        }
    }

    /// A commit of the journal, for example, begins while a tree is opened.
    #[test]
    fn helpers_do_not_wait_for_those_who_wait_for_the_caller() {
        let (mapping, segments) = crashed(Hardware::PAGE_CACHE);
        let mut session = mapping.session().unwrap();
        let op = session.enter().unwrap();
        let epochs = Epochs::open(&op, &mapping, Off::new(1024)).unwrap();
        std::thread::scope(|scope| {
            let checkpoint = scope.spawn(|| {
                let mut session = mapping.session().unwrap();
                mapping.quiesce(&mut session, std::time::Duration::from_secs(5), |_| ())
            });
            let mut other = mapping.session().unwrap();
            while other.enter_at_once().is_some() {
                std::thread::yield_now();
            }
            let logs = Replay::new(&epochs, 0, &segments).run(&op, 3).unwrap();
            assert_eq!(logs.len(), segments.len());
            drop(op);
            checkpoint.join().unwrap().expect("the helpers have waited for it");
        });
        drop(session);
        whole(&mapping);
    }

    #[test]
    fn a_process_that_dies_while_its_threads_put_images_back_loses_nothing() {
        // Each log that is recovered has a fence, and each thread that has put something back.
        for fence in (1..SEGMENTS_A_THREAD as u64 * 2 + 4).step_by(5) {
            let medium = Killable::new(Hardware::PAGE_CACHE);
            let (mapping, segments) = crashed(medium);
            let died = {
                let mut session = mapping.session().unwrap();
                let op = session.enter().unwrap();
                let epochs = Epochs::open(&op, &mapping, Off::new(1024)).unwrap();
                medium.dying_at(fence, || {
                    Replay::new(&epochs, 0, &segments).run(&op, 3).unwrap();
                })
            };
            assert!(died, "{} segments, and no fence number {fence}", segments.len());
            whole(&mapping);
        }
    }

    #[test]
    fn a_short_log_starts_no_thread() {
        assert_eq!((helpers(0), helpers(2 * SEGMENTS_A_THREAD - 1)), (0, 0));
        let processors = durix_pmem::processors();
        assert_eq!(helpers(1 << 20), (processors - 1).min(MOST_HELPERS));
    }
}
