//! The lines that were written back since the last commit: what `write_back` does on a journaled medium.
//!
//! One word for each page of 4096 bytes, a bit for each of its 64 lines, and a list of the pages whose word is not zero. Notes are never
//! freed, only used again: a copy of a medium may outlive its pool, and whatever it notes then must hit nothing.

use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};
use crate::line::{LINE, Lines};

/// Lines of a page.
pub(crate) const PAGE_LINES: u64 = 64;
/// Bytes of a page.
pub(crate) const PAGE: u64 = PAGE_LINES * LINE as u64;
/// Pages of a leaf.
const LEAF: usize = 4096;
/// Leaves at most: 16 TiB.
const LEAVES: usize = 1 << 20;
/// Journaled pools that can be open at a time.
const MOST: usize = 1024;

type Leaf = [AtomicU64; LEAF];

/// Bytes of a journaled pool, at most.
pub(crate) const MAX_JOURNALED: u64 = (LEAVES * LEAF) as u64 * PAGE;

/// The notes of one open pool.
#[derive(Debug)]
pub(crate) struct Notes {
    base: AtomicUsize,
    len: AtomicUsize,
    leaves: Box<[AtomicPtr<Leaf>]>,
    /// Pages whose word has become other than zero, each once.
    pages: Mutex<Vec<u64>>,
}

/// All that were ever made.
static TABLE: [AtomicPtr<Notes>; MOST] = [const { AtomicPtr::new(std::ptr::null_mut()) }; MOST];
/// The numbers of those that are free, and how many there are.
static FREE: Mutex<(Vec<u16>, u16)> = Mutex::new((Vec::new(), 0));

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As many null pointers as there can be leaves: zeroed pages from the allocator, which take no memory before they are used.
fn no_leaves() -> Box<[AtomicPtr<Leaf>]> {
    const { assert!(align_of::<AtomicPtr<Leaf>>() == align_of::<*mut Leaf>()) }
    let nulls = vec![std::ptr::null_mut::<Leaf>(); LEAVES].into_boxed_slice();
    // SAFETY: an `AtomicPtr` has the representation of a pointer, and here its alignment; nobody else has the box.
    unsafe { Box::from_raw(Box::into_raw(nulls) as *mut [AtomicPtr<Leaf>]) }
}

/// The notes of a medium, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct NotesTicket(pub(crate) u16);

impl NotesTicket {
    /// Notes that nobody else has.
    pub(crate) fn take() -> Result<Self> {
        let mut free = lock(&FREE);
        if let Some(number) = free.0.pop() {
            return Ok(NotesTicket(number));
        }
        let number = free.1;
        if usize::from(number) == MOST {
            let rule = "at most 1024 in a process";
            return Err(Error::BadOption { option: "number of journaled pools", value: MOST as u64 + 1, rule });
        }
        let notes =
            Notes { base: AtomicUsize::new(0), len: AtomicUsize::new(0), leaves: no_leaves(), pages: Mutex::default() };
        TABLE[usize::from(number)].store(Box::leak(Box::new(notes)), Ordering::Release);
        free.1 += 1;
        Ok(NotesTicket(number))
    }

    pub(crate) fn notes(&self) -> &'static Notes {
        Notes::of(self.0).expect("it was made before its number was handed out")
    }
}

impl Drop for NotesTicket {
    fn drop(&mut self) {
        let notes = self.notes();
        notes.len.store(0, Ordering::Release);
        notes.take(|_, _| {});
        lock(&FREE).0.push(self.0);
    }
}

impl Notes {
    /// The notes with a number.
    #[inline]
    pub(crate) fn of(number: u16) -> Option<&'static Notes> {
        let notes = TABLE.get(usize::from(number))?.load(Ordering::Acquire);
        // SAFETY: null, or leaked by `NotesTicket::take` and never freed. A caller may keep a medium with this number for as long as the
        // process lives: what it notes then is a bit of whoever has the number, never a pointer.
        unsafe { notes.as_ref() }
    }

    /// Says where the mapping lies: that of the pool, which is the first. Its medium is at hand for everybody, who may map something
    /// else with it; that must not take the notes away from the pool, whose commits would then miss what they promise.
    pub(crate) fn attach(&self, base: *const u8, len: usize) {
        if self.len.load(Ordering::Acquire) != 0 {
            return;
        }
        self.base.store(base.addr(), Ordering::Release);
        self.len.store(len, Ordering::Release);
    }

    /// The mapping at `base` goes away.
    pub(crate) fn detach(&self, base: *const u8) {
        if self.base.load(Ordering::Acquire) == base.addr() {
            self.len.store(0, Ordering::Release);
        }
    }

    fn leaf(&self, number: usize) -> Option<&Leaf> {
        let place = self.leaves.get(number)?;
        let leaf = place.load(Ordering::Acquire);
        // SAFETY: null, or published below and never freed; the places are private.
        if let Some(leaf) = unsafe { leaf.as_ref() } {
            return Some(leaf);
        }
        let made: Box<[AtomicU64]> = (0..LEAF).map(|_| AtomicU64::new(0)).collect();
        let made: Box<Leaf> = made.try_into().expect("as many as a leaf has");
        let made = Box::into_raw(made);
        match place.compare_exchange(std::ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: just published, and never freed.
            Ok(_) => Some(unsafe { &*made }),
            Err(other) => {
                // SAFETY: `made` was not published; the other was, by the same code.
                unsafe {
                    drop(Box::from_raw(made));
                    Some(&*other)
                }
            }
        }
    }

    /// Notes lines. Those that do not lie in the mapping are ignored.
    #[cold]
    #[inline(never)]
    pub(crate) fn note(&self, lines: Lines<'_>) {
        let start = lines.first().addr().wrapping_sub(self.base.load(Ordering::Relaxed));
        if start >= self.len.load(Ordering::Relaxed) {
            return;
        }
        let (mut line, mut left) = ((start / LINE) as u64, lines.count() as u64);
        while left > 0 {
            let within = line % PAGE_LINES;
            let count = left.min(PAGE_LINES - within);
            let mask = (u64::MAX >> (PAGE_LINES - count)) << within;
            self.note_in_page(line / PAGE_LINES, mask);
            (line, left) = (line + count, left - count);
        }
    }

    fn note_in_page(&self, page: u64, mask: u64) {
        let Some(leaf) = self.leaf(page as usize / LEAF) else { return };
        // Either the commit's swap comes first, and the page is listed again; or it comes later, and its copy of the line is made
        // after our stores. Both are read-modify-writes of one word. Mirror: `take`.
        if leaf[page as usize % LEAF].fetch_or(mask, Ordering::AcqRel) == 0 {
            lock(&self.pages).push(page);
        }
    }

    /// Whether nothing is noted.
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.pages).is_empty()
    }

    /// Whether at least so many lines are noted. `O(pages)`.
    pub(crate) fn has(&self, lines: u64) -> bool {
        let pages = lock(&self.pages);
        let (fewest, most) = (pages.len() as u64, pages.len() as u64 * PAGE_LINES);
        let of_page = |page: &u64| {
            let leaf = self.leaf(*page as usize / LEAF);
            leaf.map_or(0, |leaf| u64::from(leaf[*page as usize % LEAF].load(Ordering::Relaxed).count_ones()))
        };
        fewest >= lines || (most >= lines && pages.iter().map(of_page).sum::<u64>() >= lines)
    }

    /// Takes what was noted: pages, and a bit for each of their lines.
    pub(crate) fn take(&self, mut f: impl FnMut(u64, u64)) {
        let pages = std::mem::take(&mut *lock(&self.pages));
        for page in pages {
            let Some(leaf) = self.leaf(page as usize / LEAF) else { continue };
            // Mirror: `note_in_page`.
            let mask = leaf[page as usize % LEAF].swap(0, Ordering::AcqRel);
            if mask != 0 {
                f(page, mask);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::medium::Medium;
    use crate::{Hardware, Mapping, Off, Word};

    #[test]
    fn lines_are_noted_once_until_they_are_taken_and_strangers_never() {
        let ticket = NotesTicket::take().unwrap();
        let m = Hardware::journaled(&ticket);
        let mapping = Mapping::heap(1 << 16, m);
        let mut session = mapping.session().unwrap();
        let op = session.enter().unwrap();
        assert!(ticket.notes().is_empty());
        let words = op.slice::<Word>("words", Off::new(0), 1 << 13).unwrap();
        op.write_back(&words[8]);
        op.write_back_slice(&words[9..12]);
        op.write_back_slice(&words[511 * 8..512 * 8 + 1]);
        op.store_nt(&words[16], 1);
        assert!(ticket.notes().has(4) && !ticket.notes().has(5));
        let elsewhere = [const { std::sync::atomic::AtomicU64::new(0) }; 8];
        m.write_back(Lines::of_words(&elsewhere));
        let mut found = Vec::new();
        ticket.notes().take(|page, mask| found.push((page, mask)));
        found.sort_unstable();
        assert_eq!(found, [(0, 0b110), (7, 1 << 63), (8, 1)]);
        assert!(ticket.notes().is_empty());
        drop(op);
        drop(session);
        // Another mapping of the same medium is a stranger.
        let other = Mapping::heap(1 << 16, m);
        let mut session = other.session().unwrap();
        let op = session.enter().unwrap();
        op.write_back(op.at(Off::<Word>::new(64)));
        assert!(ticket.notes().is_empty());
        drop(op);
        let mut session = mapping.session().unwrap();
        let op = session.enter().unwrap();
        op.write_back(op.at(Off::<Word>::new(64)));
        assert!(!ticket.notes().is_empty(), "the first mapping has been forgotten");
        drop(op);
        drop(session);
        drop((mapping, other));
        let number = ticket.0;
        drop(ticket);
        m.write_back(Lines::of_words(&elsewhere));
        assert_eq!(NotesTicket::take().unwrap().0, number, "used again");
    }
}
