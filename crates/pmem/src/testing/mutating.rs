//! Automatic mutation of persistence code: one write-back or fence site at a time is made faulty, and a crash test has
//! to notice.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::BuildHasherDefault;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::line::{LINE, Lines};
use crate::medium::{Medium, Rmw, forward};
use crate::offset::OffsetHasher;

/// What a site does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum SiteKind {
    /// Writes lines back.
    WriteBack,
    /// Waits for write-backs.
    Fence,
    /// Orders stores ([`Medium::order`]).
    Order,
    /// Stores with `Release`.
    Release,
}

/// A place in the source that acts on persistence: a location and what is done there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Site {
    /// Source file.
    pub file: &'static str,
    /// Line in the file, from 1.
    pub line: u32,
    /// Column in the line, from 1.
    pub column: u32,
    /// What is done there.
    pub kind: SiteKind,
}

impl Site {
    fn new(location: &'static Location<'static>, kind: SiteKind) -> Self {
        Site { file: location.file(), line: location.line(), column: location.column(), kind }
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{} {:?}", self.file, self.line, self.column, self.kind)
    }
}

/// What is made wrong at a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mutation {
    /// The call does nothing; a `Release` store becomes `Relaxed`.
    Drop,
    /// Comes too late: a write-back after the session's next fence, a fence before the session's next write-back, an
    /// ordering point after the session's next store. For a `Release` store as `Drop`.
    Delay,
    /// One wrong line is written back instead. For other kinds as `Drop`.
    Redirect,
    /// Only the first line of the range is written back. Differs from `Drop` only where ranges have several lines.
    FirstLineOnly,
    /// All lines but the last are written back.
    WithoutLastLine,
}

/// The sites seen so far, and the one that is to be faulty. Shared by all handles of a [`Mutating`] medium; lives until
/// the process ends.
#[derive(Debug, Default)]
pub struct Plan {
    state: Mutex<PlanState>,
    /// Whether anything is late, or was: until then nobody needs the lock to see that nothing is.
    late: AtomicBool,
}

#[derive(Debug, Default)]
struct PlanState {
    /// By the address of the location: one place may have several.
    hits: HashMap<(usize, SiteKind), Hits, BuildHasherDefault<OffsetHasher>>,
    target: Option<(Site, Mutation)>,
    /// Address and length of the mappings there are.
    attached: Vec<(usize, usize)>,
    /// Lines of these, per session, as (slot, address of the first line, number of lines).
    delayed: Vec<(u32, usize, usize)>,
    /// Sessions whose fence is to come before their next write-back, or whose ordering point after their next store.
    late: Vec<(u32, SiteKind)>,
}

/// How often a site was reached, and for how many lines at most.
#[derive(Debug)]
struct Hits {
    site: Site,
    times: u64,
    lines: usize,
}

impl Plan {
    /// A plan without a faulty site.
    pub fn new() -> &'static Plan {
        Box::leak(Box::default())
    }

    fn state(&self) -> std::sync::MutexGuard<'_, PlanState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes `site` faulty from now on, instead of any other.
    pub fn mutate(&self, site: Site, mutation: Mutation) {
        self.state().target = Some((site, mutation));
    }

    /// Makes no site faulty from now on.
    pub fn restore(&self) {
        self.state().target = None;
    }

    /// All sites reached so far, with the number of times.
    pub fn sites(&self) -> Vec<(Site, u64)> {
        let mut sites = BTreeMap::new();
        for hits in self.state().hits.values() {
            *sites.entry(hits.site).or_default() += hits.times;
        }
        sites.into_iter().collect()
    }

    /// For how many lines at most a site has been reached at a time; 0 for sites that write nothing back.
    pub fn lines(&self, site: Site) -> usize {
        self.state().hits.values().filter(|hits| hits.site == site).map(|hits| hits.lines).max().unwrap_or(0)
    }

    /// Forgets which sites were reached.
    pub fn forget(&self) {
        self.state().hits.clear();
    }

    fn hit(&self, location: &'static Location<'static>, kind: SiteKind, lines: usize) -> Option<Mutation> {
        let mut state = self.state();
        let new = || Hits { site: Site::new(location, kind), times: 0, lines: 0 };
        let hits = state.hits.entry((std::ptr::from_ref(location).addr(), kind)).or_insert_with(new);
        hits.times += 1;
        hits.lines = lines.max(hits.lines);
        let site = hits.site;
        state.target.filter(|(target, _)| target.line == site.line && *target == site).map(|(_, mutation)| mutation)
    }
}

/// A medium that makes one site of the code above it faulty, as its [`Plan`] says.
///
/// A site is where the persistence primitive was called, found by `#[track_caller]`; helpers that issue at most one
/// write-back and one fence pass their caller's location on.
#[derive(Clone, Copy, Debug)]
pub struct Mutating<M> {
    inner: M,
    plan: &'static Plan,
    slot: u32,
}

impl<M: Medium> Mutating<M> {
    /// Lets `plan` act on what goes to `inner`.
    pub fn new(inner: M, plan: &'static Plan) -> Self {
        Mutating { inner, plan, slot: 0 }
    }

    /// The medium inside.
    pub fn inner(self) -> M {
        self.inner
    }

    #[track_caller]
    fn hit(self, kind: SiteKind, lines: usize) -> Option<Mutation> {
        self.plan.hit(Location::caller(), kind, lines)
    }

    /// Issues what was delayed until now.
    #[track_caller]
    #[inline(always)]
    fn catch_up(self, kind: SiteKind) {
        if self.plan.late.load(Ordering::Relaxed) {
            self.catch_up_now(kind);
        }
    }

    #[track_caller]
    fn catch_up_now(self, kind: SiteKind) {
        let late = {
            let mut state = self.plan.state();
            if state.late.is_empty() {
                return;
            }
            state.late.extract_if(.., |late| *late == (self.slot, kind)).count()
        };
        match kind {
            _ if late == 0 => {}
            SiteKind::Fence => self.inner.fence(),
            _ => self.inner.order(),
        }
    }

    /// Keeps lines until the session's next fence. What lies in no mapping may be gone by then.
    #[track_caller]
    fn delay(self, lines: Lines<'_>) {
        let (first, count) = (lines.first().expose_provenance(), lines.count());
        let mut state = self.plan.state();
        let is_within = |(base, len): &(usize, usize)| first >= *base && first + count * LINE <= base + len;
        if state.attached.iter().any(is_within) {
            state.delayed.push((self.slot, first, count));
            self.plan.late.store(true, Ordering::Relaxed);
        } else {
            drop(state);
            self.inner.write_back(lines);
        }
    }

    /// Whether the call at this site is to be left out, now or altogether.
    #[track_caller]
    fn is_left_out(self, kind: SiteKind) -> bool {
        let mutation = self.hit(kind, 0);
        if mutation == Some(Mutation::Delay) {
            self.plan.state().late.push((self.slot, kind));
            self.plan.late.store(true, Ordering::Relaxed);
        }
        mutation.is_some()
    }
}

// SAFETY: every access is handed on unchanged; what is dropped, delayed or redirected are write-backs and fences.
unsafe impl<M: Medium> Medium for Mutating<M> {
    forward! {
        survives, load, checked, shared_load, shared_store, shared_compare_exchange, shared_rmw, synced,
        spin
    }

    fn describe(self) -> String {
        format!("mutating over {}", self.inner.describe())
    }

    fn for_session(self, slot: u32) -> Self {
        // What a session left undone when it ended, or when a crash was simulated, is not its successor's.
        if self.plan.late.load(Ordering::Relaxed) {
            let mut state = self.plan.state();
            state.delayed.retain(|(of, ..)| *of != slot);
            state.late.retain(|(of, _)| *of != slot);
        }
        Mutating { inner: self.inner.for_session(slot), slot, ..self }
    }

    unsafe fn attach(self, base: *const u8, len: usize) {
        self.plan.state().attached.push((base.addr(), len));
        // SAFETY: the caller's contract is the same.
        unsafe { self.inner.attach(base, len) }
    }

    unsafe fn detach(self, base: *const u8) {
        let mut state = self.plan.state();
        state.attached.retain(|(at, _)| *at != base.addr());
        state.delayed.clear();
        state.late.clear();
        drop(state);
        // SAFETY: the caller's contract is the same.
        unsafe { self.inner.detach(base) }
    }

    #[track_caller]
    fn store(self, word: &AtomicU64, value: u64, order: Ordering) {
        let faulty = order == Ordering::Release && self.hit(SiteKind::Release, 0).is_some();
        self.inner.store(word, value, if faulty { Ordering::Relaxed } else { order });
        self.catch_up(SiteKind::Order);
    }

    #[track_caller]
    fn store_nt(self, word: &AtomicU64, value: u64) {
        self.inner.store_nt(word, value);
        self.catch_up(SiteKind::Order);
    }

    #[track_caller]
    fn store_nt_line(self, line: &[AtomicU64; 8], values: &[u64; 8]) {
        self.inner.store_nt_line(line, values);
        self.catch_up(SiteKind::Order);
    }

    #[track_caller]
    fn compare_exchange(self, word: &AtomicU64, current: u64, new: u64) -> Result<u64, u64> {
        let result = self.inner.compare_exchange(word, current, new);
        self.catch_up(SiteKind::Order);
        result
    }

    #[track_caller]
    fn rmw(self, word: &AtomicU64, op: Rmw, operand: u64) -> u64 {
        let old = self.inner.rmw(word, op, operand);
        self.catch_up(SiteKind::Order);
        old
    }

    #[track_caller]
    fn order(self) {
        if !self.is_left_out(SiteKind::Order) {
            self.inner.order();
        }
    }

    #[track_caller]
    fn write_back(self, lines: Lines<'_>) {
        self.catch_up(SiteKind::Fence);
        match self.hit(SiteKind::WriteBack, lines.count()) {
            None => self.inner.write_back(lines),
            Some(Mutation::Drop) => {}
            Some(Mutation::FirstLineOnly) => self.inner.write_back(lines.first_only()),
            Some(Mutation::Redirect) => self.inner.write_back(lines.astray()),
            Some(Mutation::WithoutLastLine) => self.inner.write_back(lines.without_last()),
            Some(Mutation::Delay) => self.delay(lines),
        }
    }

    #[track_caller]
    fn fence(self) {
        if !self.is_left_out(SiteKind::Fence) {
            self.inner.fence();
        }
        if !self.plan.late.load(Ordering::Relaxed) {
            return;
        }
        let mut state = self.plan.state();
        for (_, first, count) in state.delayed.extract_if(.., |(slot, ..)| *slot == self.slot) {
            // SAFETY: `delay` keeps lines of an attached mapping only, which is mapped until it is detached; detaching takes this lock,
            // and empties the list. So a caller may hand in lines of any object, and may let it go.
            self.inner.write_back(unsafe { Lines::from_raw(std::ptr::with_exposed_provenance(first), count) });
        }
    }
}
