//! The checksums of a journaled pool's pages, judged: see [`sums`](crate::journal::sums).

use std::fmt;
use std::ops::Range;

use super::geometry::{Geometry, HEADER_SIZE};
use super::header::is_name_damaged;
use super::layout::Header;
use super::{IndexInfo, Pool};
use crate::backing::Backing;
use crate::error::Result;
use crate::journal::{PAGE, Replay, Sums, Verdict, read_page};
use crate::medium::Medium;
use crate::session::Op;
use crate::space::{Holder, Space};

/// Pages that are judged at a time: no checkpoint can begin meanwhile.
pub(super) const BATCH: u64 = 64;

/// What judges the pages of a pool that is only read.
#[derive(Debug)]
pub(super) struct Audit {
    sums: Result<Sums, String>,
    /// What a journal says that the file does not.
    replay: Option<Replay>,
    header_is_damaged: bool,
}

impl Audit {
    pub(super) fn new(sums: Result<Sums, String>, replay: Option<Replay>, head: &[u8; size_of::<Header>()]) -> Self {
        Audit { sums, replay, header_is_damaged: is_name_damaged(head) }
    }

    /// As [`Journal::judge`](crate::journal::Journal::judge).
    fn judge(
        &self,
        backing: &dyn Backing,
        pages: Range<u64>,
        f: &mut dyn FnMut(u64, Verdict),
    ) -> Result<Result<(), String>> {
        let sums = match &self.sums {
            Ok(sums) => sums,
            Err(why) => return Ok(Err(why.clone())),
        };
        let entries = sums.entries(pages.start, (pages.end - pages.start) as usize)?;
        for (page, entry) in pages.zip(entries) {
            let mut bytes = read_page(backing, page)?;
            let verdict = match &self.replay {
                Some(replay) => replay.judge(sums, page, &mut bytes)?.0,
                None => sums.judge(page, &bytes, entry),
            };
            if verdict != Verdict::Sound {
                f(page, verdict);
            }
        }
        Ok(Ok(()))
    }
}

/// What lies in a page.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PageOwner {
    /// The header of the pool.
    Header,
    /// The directory: the names of the indices, and what is under way in the allocator.
    Directory,
    /// The tables of the allocator.
    Tables,
    /// An index, by name.
    Index(String),
    /// No index: free space.
    Free,
    /// The tables do not tell.
    Unclear,
}

impl fmt::Display for PageOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PageOwner::Header => f.write_str("the pool's header"),
            PageOwner::Directory => f.write_str("the directory of the indices"),
            PageOwner::Tables => f.write_str("the tables of space"),
            PageOwner::Index(name) => write!(f, "index {name:?}"),
            PageOwner::Free => f.write_str("free space"),
            PageOwner::Unclear => f.write_str("an owner that the tables of space do not tell"),
        }
    }
}

/// A part of a pool's file that does not have its checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DamagedPage {
    /// Where it lies in the file, in bytes.
    pub range: Range<u64>,
    /// What it belongs to.
    pub owner: PageOwner,
}

impl fmt::Display for DamagedPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { start, end } = self.range;
        write!(
            f,
            "bytes {start:#x} to {:#x} of the file do not have their checksum; they belong to {}",
            end - 1,
            self.owner
        )
    }
}

/// What the checksums of a pool's pages say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PageReport {
    /// Pages that were read, of 4096 bytes.
    pub pages: u64,
    /// Pages of them that have no checksum yet.
    pub unknown: u64,
    /// What is damaged, ascending.
    pub damaged: Vec<DamagedPage>,
    /// Why no page has a checksum; then nothing was read.
    pub missing: Option<String>,
}

impl<M: Medium> Pool<M> {
    /// Reads the whole file, and compares each page with its checksum, as far as pages have checksums: in a pool that is or was open
    /// with a journal. Others may work meanwhile; a checkpoint waits for 64 pages at most. `O(bytes of the file)`.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if the file cannot be read; [`Error::TooManySessions`](crate::Error::TooManySessions), [`Error::Forked`](crate::Error::Forked), [`Error::Shut`](crate::Error::Shut).
    pub fn check_pages(&self) -> Result<PageReport> {
        self.judge_pages(false)
    }

    /// The same, and gives pages that have no checksum yet one, as they are. Check the indices first: what is damaged by then is not
    /// found later. Durable on return. A pool without a journal stays as it is.
    ///
    /// # Errors
    /// As [`check_pages`](Self::check_pages); [`Error::DiskFull`](crate::Error::DiskFull).
    pub fn scrub(&self) -> Result<PageReport> {
        self.judge_pages(true)
    }

    fn judge_pages(&self, adopt: bool) -> Result<PageReport> {
        let file = &self.inner.file;
        let (mut report, mut damaged) = (PageReport::default(), Vec::new());
        let pages = file.backing.len()?.div_ceil(PAGE);
        for first in (0..pages).step_by(BATCH as usize) {
            let batch = first..(first + BATCH).min(pages);
            let count = batch.end - batch.start;
            let mut f = |page, verdict| match verdict {
                Verdict::Damaged => damaged.push(page),
                _ => report.unknown += 1,
            };
            let judged = match (file.journal.get(), file.audit.get()) {
                (Some(journal), _) => journal.judge(batch, adopt, &mut f)?,
                (None, Some(audit)) => audit.judge(&*file.backing, batch, &mut f)?,
                (None, None) => Err("it is open without a journal".into()),
            };
            if let Err(why) = judged {
                report.missing = Some(why);
                break;
            }
            report.pages += count;
        }
        if file.audit.get().is_some_and(|audit| audit.header_is_damaged) {
            // Its words say which journal and which checksums are the right ones.
            damaged.insert(0, 0);
            damaged.dedup();
        }
        if !damaged.is_empty() {
            let (indices, _) = self.readable_indices()?;
            let mut session = self.session()?;
            let op = session.enter()?;
            let owned = |page| damaged_page(&op, self.geometry(), self.space(), &indices, page);
            report.damaged = damaged.into_iter().map(owned).collect();
        }
        Ok(report)
    }
}

/// A damaged page, and what it belongs to.
pub(super) fn damaged_page<M: Medium>(
    op: &Op<'_, M>,
    geometry: &Geometry,
    space: &Space<M>,
    indices: &[IndexInfo],
    page: u64,
) -> DamagedPage {
    let off = page * PAGE;
    let owner = if off < HEADER_SIZE {
        PageOwner::Header
    } else if off < geometry.heap_off() {
        PageOwner::Directory
    } else {
        match space.holder_of(op, off) {
            Holder::Tables => PageOwner::Tables,
            Holder::Free => PageOwner::Free,
            Holder::Unclear => PageOwner::Unclear,
            Holder::Owned(owner) => {
                let named = indices.iter().find(|info| info.owner == owner);
                named.map_or(PageOwner::Unclear, |info| PageOwner::Index(info.name.clone()))
            }
        }
    };
    DamagedPage { range: off..off + PAGE, owner }
}

const _: () = assert!(HEADER_SIZE == PAGE, "the header is a page");
