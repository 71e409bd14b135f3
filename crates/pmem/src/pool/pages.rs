//! The checksums of a journaled pool's pages, judged: see [`sums`](crate::journal::sums).

use std::fmt;
use std::ops::Range;

use super::geometry::{Geometry, HEADER_SIZE};
use super::header::is_name_damaged;
use super::indices::IndexInfo;
use super::layout::Header;
use crate::backing::Backing;
use crate::error::Result;
use crate::journal::{Leftovers, PAGE, Replay, Sums, Verdict, read_page};
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
    /// The same of a journal that is damaged.
    leftovers: Option<Leftovers>,
    pub(super) header_is_damaged: bool,
}

impl Audit {
    pub(super) fn new(
        sums: Result<Sums, String>,
        replay: Option<Replay>,
        leftovers: Option<Leftovers>,
        head: &[u8; size_of::<Header>()],
    ) -> Self {
        Audit { sums, replay, leftovers, header_is_damaged: is_name_damaged(head) }
    }

    /// As [`Journal::judge`](crate::journal::Journal::judge).
    pub(super) fn judge(
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
            let verdict = match (&self.replay, &self.leftovers) {
                (Some(replay), _) => replay.judge(sums, page, &mut bytes, entry).0,
                (None, Some(leftovers)) => leftovers.judge(sums, page, &mut bytes, entry),
                (None, None) => sums.judge(page, &bytes, entry),
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
