//! The state behind a [`Simulated`](crate::Simulated) medium: the arena, the trace, the layers, and the decisions of the
//! recovery under way.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use durix_pmem::{LINE, Reserve};

use crate::count::Count;
use crate::model::layer::{Layer, Machine};
use crate::model::persistency::Persistency;
use crate::model::trace::{At, Event};
use crate::model::window::{Choice, Positions, WORDS};
use crate::record::region::{OfRegion, REGION, Rejected};

/// Largest arena, in bytes: line numbers and the tables by line stay small.
const MAX_ARENA: usize = 4 << 30;

/// Bits of a line in the table of flags: the low eight tell which words are undecided.
pub(crate) const TOUCHED: u16 = 1 << 8;

/// Bits of the mode.
pub(crate) const RECORD: u32 = 1;
pub(crate) const DECIDE: u32 = 2;
/// What was recovered is being dropped.
pub(crate) const CLOSE: u32 = 4;
/// Simulated threads are interleaved: every access is a point at which another may come first.
pub(crate) const SCHEDULE: u32 = 8;
/// With `SCHEDULE`: simulated threads run to their end unobserved; only a spin lets another run.
pub(crate) const FINISH: u32 = 16;

const MANY: u32 = u32::MAX;

/// Most decisions that are kept from one execution to the next.
const EXPECTED: usize = 128;

/// Accesses after which a recovery is taken for endless.
const MAX_STEPS: u64 = 50_000_000;

/// What the medium's calls look at without taking the lock.
#[derive(Debug)]
pub(crate) struct Recorder {
    pub(crate) mode: AtomicU32,
    base: AtomicPtr<u8>,
    len: AtomicUsize,
    /// Whether a mapping uses the arena. One that is kept has its contents in between, too.
    attached: AtomicBool,
    /// One entry a line, or null before the first arena.
    flags: AtomicPtr<AtomicU16>,
    pub(crate) steps: AtomicU64,
    /// The only session that has stored since the recording began, plus one; `MANY` if there are several.
    storer: AtomicU32,
    expected: Expected,
    busy: AtomicBool,
    state: UnsafeCell<State>,
}

// SAFETY: the state is reached only through `lock`, one thread at a time; everything else is atomic. The raw pointers
// name the arena, which its owner keeps alive until `detach`, and the table of flags, which is never freed.
unsafe impl Sync for Recorder {}
// SAFETY: as above; nothing here is bound to a thread.
unsafe impl Send for Recorder {}

/// The lock on the state: accesses are short, and mostly by one thread.
pub(crate) struct Guard<'a>(&'a Recorder);

impl Deref for Guard<'_> {
    type Target = State;
    fn deref(&self) -> &State {
        // SAFETY: the guard holds the lock.
        unsafe { &*self.0.state.get() }
    }
}

impl DerefMut for Guard<'_> {
    fn deref_mut(&mut self) -> &mut State {
        // SAFETY: the guard holds the lock, and is borrowed mutably.
        unsafe { &mut *self.0.state.get() }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Release);
    }
}

/// Words that the recovery under way will read again, and in which order, because its decisions on them are those of the
/// execution before: they hold their values already, and are flagged as undecided only so that the order is checked.
#[derive(Debug)]
struct Expected {
    words: [AtomicU32; EXPECTED],
    /// How many of them are in force, and how many have been read.
    len: AtomicU32,
    met: AtomicU32,
}

impl Default for Expected {
    fn default() -> Self {
        Expected { words: std::array::from_fn(|_| AtomicU32::new(0)), len: AtomicU32::new(0), met: AtomicU32::new(0) }
    }
}

impl Expected {
    /// Takes note that a word is read: `Some(true)` if it is the one expected, `None` if none is.
    #[inline(always)]
    fn meet(&self, word: u32) -> Option<bool> {
        let met = self.met.load(Ordering::Relaxed);
        if met == self.len.load(Ordering::Relaxed) {
            return None;
        }
        let is_next = self.words[met as usize].load(Ordering::Relaxed) == word;
        self.met.store(met + u32::from(is_next), Ordering::Relaxed);
        Some(is_next)
    }

    /// Whether all of them have been read.
    fn are_met(&self) -> bool {
        self.met.load(Ordering::Relaxed) == self.len.load(Ordering::Relaxed)
    }

    fn clear(&self) {
        self.len.store(0, Ordering::Relaxed);
        self.met.store(0, Ordering::Relaxed);
    }

    /// False if there is no room.
    fn push(&self, word: u32) -> bool {
        let len = self.len.load(Ordering::Relaxed);
        let Some(place) = self.words.get(len as usize) else { return false };
        place.store(word, Ordering::Relaxed);
        self.len.store(len + 1, Ordering::Relaxed);
        true
    }
}

/// A line that has been stored at least once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LineState {
    /// Number of the line in the arena.
    pub(crate) number: u32,
    /// Contents before the first store ever.
    initial: [u64; WORDS],
    queued: bool,
}

/// A read of an undecided word, and what was made of it; also where there was one choice only.
#[derive(Clone, Debug)]
pub(crate) struct Decision {
    pub(crate) layer: u32,
    /// Index of the line.
    pub(crate) line: u32,
    pub(crate) word: u8,
    /// Which of the candidates is explored.
    pub(crate) taken: u32,
    pub(crate) candidates: Vec<(Choice, u128)>,
    /// Number of states of all other windows, given the decisions before: a choice with a count of `n` stands for
    /// `n` times as many. `None` where it is too large.
    pub(crate) unit: Option<u128>,
    /// Length of the recovery's own trace at that moment.
    pub(crate) trace_len: u32,
    /// The recovery has been crashed just there, before this decision.
    pub(crate) crashed_here: bool,
    /// Of a decision on a region.
    pub(crate) region: Option<Box<OfRegion>>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) trace: Vec<Event>,
    /// For each line of the arena the index of its state plus one.
    index: Vec<u32>,
    pub(crate) lines: Vec<LineState>,
    /// Layers in force, the execution under test first; those behind `depth` are spare.
    pub(crate) layers: Vec<Layer>,
    pub(crate) depth: usize,
    /// Indices of lines whose arena contents differ from the crash state.
    queue: Vec<u32>,
    /// Branches of the recovery under way; the first `cursor` have been met again.
    pub(crate) path: Vec<Decision>,
    pub(crate) cursor: usize,
    /// Number of states at the crash point, unless too large.
    pub(crate) total: Option<u128>,
    /// Words decided in the recovery under way, branch or not: (layer, line, word).
    decided: Vec<(u32, u32, u8)>,
    /// Words (line, word) whose decision was taken back, while the arena still holds it.
    undone: Vec<(u32, u8)>,
    spare: Vec<Vec<(Choice, u128)>>,
    /// Spare paths, empty.
    pub(crate) paths: Vec<Vec<Decision>>,
    /// States of windows that are decided only when they are read, so that the reads are known.
    pub(crate) forced: Vec<((u32, u32), Positions)>,
    /// Reads of forced windows: (layer, line, word, what was read).
    pub(crate) reads: Vec<(u32, u32, u8, Choice, At)>,
    pub(crate) machine: Machine,
    /// The recovery did not do the same again.
    pub(crate) nondeterministic: bool,
    /// Nothing has been mapped since the crash.
    fresh: bool,
    /// Memory that one mapping after the other gets, with the crash state in it.
    kept: Option<Reserve>,
    /// The memory that is kept does not hold what it should: another arena was in use meanwhile.
    stale: bool,
    /// Reads do not branch: the recovery is over.
    silent: bool,
    /// Regions that their checksums have rejected.
    pub(crate) rejected: Vec<Rejected>,
    /// Numbers of the candidates always added up.
    pub(crate) exact: bool,
}

impl Default for Machine {
    fn default() -> Self {
        Machine { model: Persistency::Pcso, locked_drains: false, flushes_at_once: false }
    }
}

impl Recorder {
    pub(crate) fn new() -> Self {
        Recorder {
            mode: AtomicU32::new(0),
            base: AtomicPtr::new(std::ptr::null_mut()),
            len: AtomicUsize::new(0),
            attached: AtomicBool::new(false),
            flags: AtomicPtr::new(std::ptr::null_mut()),
            steps: AtomicU64::new(0),
            storer: AtomicU32::new(0),
            expected: Expected::default(),
            busy: AtomicBool::new(false),
            state: UnsafeCell::new(State::default()),
        }
    }

    #[inline(always)]
    pub(crate) fn lock(&self) -> Guard<'_> {
        if self.busy.swap(true, Ordering::Acquire) {
            self.wait();
        }
        Guard(self)
    }

    #[cold]
    fn wait(&self) {
        let mut turn = 0u32;
        while self.busy.swap(true, Ordering::Acquire) {
            turn += 1;
            if turn > 64 { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
    }

    pub(crate) fn attach(&self, base: *const u8, len: usize) {
        assert!(
            len <= MAX_ARENA,
            "a simulated arena of {len} bytes; at most {MAX_ARENA} (limit the pool's maximal size)"
        );
        let mut state = self.lock();
        assert!(self.is_detached(), "a second mapping on one simulated medium; drop the first before opening another");
        let lines = len.div_ceil(LINE);
        if state.index.len() < lines {
            // Fresh zeroed tables, never written as a whole: most of them is never touched.
            let mut index = vec![0; lines];
            for (at, line) in state.lines.iter().enumerate() {
                index[line.number as usize] = at as u32 + 1;
            }
            state.index = index;
            let flags: Box<[u16]> = vec![0; lines].into_boxed_slice();
            let old = self.flags.load(Ordering::Relaxed);
            let new = Box::leak(flags).as_mut_ptr().cast::<AtomicU16>();
            for number in state.lines.iter().map(|line| line.number as usize) {
                // SAFETY: both tables have an entry for every line that has an index; the old one is never freed.
                unsafe { (*new.add(number)).store((*old.add(number)).load(Ordering::Relaxed), Ordering::Relaxed) };
            }
            self.flags.store(new, Ordering::Release);
        }
        self.len.store(len, Ordering::Relaxed);
        self.base.store(base.cast_mut(), Ordering::Release);
        self.attached.store(true, Ordering::Release);
        let has_state = state.is_kept(base) && !std::mem::take(&mut state.stale);
        state.stale |= !state.is_kept(base);
        // A mapping made by a recovery starts with the crash state; one that is made again later keeps its contents.
        if std::mem::take(&mut state.fresh) && !has_state {
            for index in 0..state.lines.len() as u32 {
                self.queue(&mut state, index);
            }
            self.restore(&mut state);
            self.hide_witnesses(&mut state);
            self.flag_expected();
        }
    }

    pub(crate) fn detach(&self, base: *const u8) {
        let state = self.lock();
        if std::ptr::eq(self.base.load(Ordering::Relaxed), base) {
            self.attached.store(false, Ordering::Release);
            if !state.is_kept(base) {
                self.base.store(std::ptr::null_mut(), Ordering::Release);
                self.len.store(0, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn is_detached(&self) -> bool {
        !self.attached.load(Ordering::Acquire)
    }

    /// Memory for the next mapping, the same as that of the last one if it has this size: of `len` bytes, rounded up. `None`
    /// where something has been mapped since the crash: then the crash state is not what the mapping is to begin with.
    pub(crate) fn memory(&self, len: usize) -> Option<Reserve> {
        let mut state = self.lock();
        if !state.fresh {
            return None;
        }
        let fits = |kept: &Reserve| kept.len() == len.max(LINE).next_power_of_two() && kept.is_sole();
        if !state.kept.as_ref().is_some_and(fits) {
            self.forget_kept(&mut state);
            (state.kept, state.stale) = (Some(Reserve::heap(len)), true);
        }
        // SAFETY: `SimulatedBacking`, the only one to ask, copies and maps nothing into it; all stores go through the medium.
        state.kept.as_ref().and_then(|kept| unsafe { kept.again() })
    }

    fn forget_kept(&self, state: &mut State) {
        let base = self.base.load(Ordering::Relaxed);
        if state.is_kept(base) && self.is_detached() {
            self.base.store(std::ptr::null_mut(), Ordering::Release);
            self.len.store(0, Ordering::Relaxed);
        }
        state.kept = None;
    }

    /// Forgets everything that was stored: for the next execution, on a new arena or the same.
    pub(crate) fn reset(&self, machine: Machine) {
        self.mode.store(0, Ordering::Relaxed);
        let mut state = self.lock();
        state.depth = 0;
        for layer in &mut state.layers {
            layer.clear();
        }
        for index in 0..state.lines.len() as u32 {
            self.queue(&mut state, index);
        }
        self.restore(&mut state);
        self.expected.clear();
        let state = &mut *state;
        for line in state.lines.drain(..) {
            state.index[line.number as usize] = 0;
            self.flag(line.number).store(0, Ordering::Relaxed);
        }
        if state.stale {
            // It may hold what the lines that are forgotten now had.
            self.forget_kept(state);
        }
        state.trace.clear();
        state.path.clear();
        state.decided.clear();
        state.undone.clear();
        state.machine = machine;
        state.nondeterministic = false;
        state.rejected.clear();
        state.silent = false;
        state.exact = true;
    }

    /// Offset of a word in the arena, in words.
    #[inline(always)]
    pub(crate) fn word_of(&self, word: &AtomicU64) -> Option<u32> {
        let distance = std::ptr::from_ref(word).addr().wrapping_sub(self.base.load(Ordering::Acquire).addr());
        (distance < self.len.load(Ordering::Relaxed)).then_some((distance / 8) as u32)
    }

    /// Number of the line at an address.
    pub(crate) fn line_of(&self, address: *const u8) -> Option<u32> {
        let distance = address.addr().wrapping_sub(self.base.load(Ordering::Acquire).addr());
        (distance < self.len.load(Ordering::Relaxed)).then_some((distance / LINE) as u32)
    }

    #[inline(always)]
    pub(crate) fn flag(&self, line: u32) -> &AtomicU16 {
        // SAFETY: the table has an entry for each line of every arena so far, and is never freed.
        unsafe { &*self.flags.load(Ordering::Acquire).add(line as usize) }
    }

    /// Changes the flag of a line. Not one step: recoveries, in which words are undecided, run in one thread.
    #[inline(always)]
    pub(crate) fn change_flag(&self, line: u32, new: impl FnOnce(u16) -> u16) {
        let flag = self.flag(line);
        flag.store(new(flag.load(Ordering::Relaxed)), Ordering::Relaxed);
    }

    /// Whether the next read of a word has to decide it.
    pub(crate) fn is_undecided(&self, word: u32) -> bool {
        let known = self.lock().index_of(word / WORDS as u32).is_some();
        known && self.flag(word / WORDS as u32).load(Ordering::Relaxed) >> (word % WORDS as u32) & 1 == 1
    }

    fn arena_word(&self, word: u32) -> Option<&AtomicU64> {
        let base = self.base.load(Ordering::Relaxed);
        let offset = word as usize * 8;
        // SAFETY: the arena spans `len` bytes and lives until `detach`; its words are atomics.
        (!base.is_null() && offset < self.len.load(Ordering::Relaxed)).then(|| unsafe { &*base.add(offset).cast() })
    }

    /// What a word of the arena holds now.
    pub(crate) fn now(&self, word: u32) -> u64 {
        self.arena_word(word).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// The index of a line, which it gets when it is about to be stored for the first time.
    fn index(&self, state: &mut State, number: u32) -> u32 {
        let index = state.index[number as usize];
        if index != 0 {
            return index - 1;
        }
        let initial = std::array::from_fn(|w| {
            self.arena_word(number * WORDS as u32 + w as u32).map_or(0, |word| word.load(Ordering::Relaxed))
        });
        state.lines.push(LineState { number, initial, queued: false });
        state.index[number as usize] = state.lines.len() as u32;
        state.lines.len() as u32 - 1
    }

    /// Has a line's contents restored before the next recovery.
    pub(crate) fn queue(&self, state: &mut State, index: u32) {
        let line = &mut state.lines[index as usize];
        if !std::mem::replace(&mut line.queued, true) {
            state.queue.push(index);
            self.change_flag(line.number, |flag| flag | TOUCHED);
        }
    }

    /// Before a word is stored: its line is known and will be restored, and the word is decided by the store.
    pub(crate) fn touch(&self, state: &mut State, word: u32) {
        let index = self.index(state, word / WORDS as u32);
        self.queue(state, index);
        self.change_flag(word / WORDS as u32, |flag| flag & !(1 << (word % WORDS as u32)));
    }

    /// Brings the arena to the crash state: undecided words are poisoned.
    pub(crate) fn restore(&self, state: &mut State) {
        for at in 0..state.undone.len() {
            let (index, word) = state.undone[at];
            let line = &state.lines[index as usize];
            if !line.queued {
                let number = line.number;
                let (value, bit) = match state.says(index, word as usize) {
                    Ok(value) => (value, 0),
                    Err(()) => (poison(number, word as usize), 1 << word),
                };
                if let Some(cell) = self.arena_word(number * WORDS as u32 + u32::from(word)) {
                    cell.store(value, Ordering::Relaxed);
                }
                self.change_flag(number, |flag| flag & !(1 << word) | bit);
            }
        }
        state.undone.clear();
        for at in 0..state.queue.len() {
            let index = state.queue[at];
            state.lines[index as usize].queued = false;
            let number = state.lines[index as usize].number;
            let (values, undecided) = state.contents(index);
            self.put_line(number, &values);
            self.flag(number).store(u16::from(undecided), Ordering::Relaxed);
        }
        state.queue.clear();
    }

    /// Sets the words of a line, as far as the arena has them.
    fn put_line(&self, number: u32, values: &[u64; WORDS]) {
        let (base, len) = (self.base.load(Ordering::Relaxed), self.len.load(Ordering::Relaxed));
        let start = number as usize * LINE;
        for (word, value) in values.iter().enumerate() {
            if !base.is_null() && start + word * 8 < len {
                // SAFETY: as in `arena_word`.
                unsafe { &*base.add(start + word * 8).cast::<AtomicU64>() }.store(*value, Ordering::Relaxed);
            }
        }
    }

    /// A read of a word that the crash state leaves open: decides it, and puts the value into the arena.
    #[inline]
    pub(crate) fn resolve(&self, word: u32, at: At) {
        match self.expected.meet(word) {
            None => self.resolve_now(word, at),
            Some(true) => {
                self.change_flag(word / WORDS as u32, |flag| flag & !(1 << (word % WORDS as u32)));
            }
            // Words of a witness are flagged whenever they are read: they are decided, and no decision is made about them.
            Some(false) if self.lock().is_of_witness(word) => self.resolve_now(word, at),
            Some(false) => self.went_elsewhere(),
        }
    }

    /// The recovery has not read what it read before.
    #[cold]
    pub(crate) fn went_elsewhere(&self) -> ! {
        self.lock().nondeterministic = true;
        panic!("nondeterministic recovery: run again on the same crash state, it read something else");
    }

    /// Whether all that was read before, with the same decisions, has been read again.
    pub(crate) fn met_expected(&self) -> bool {
        self.expected.are_met()
    }

    /// Keeps the decisions that the next execution shares with the last one, and undoes all others.
    fn rewind(&self, state: &mut State) {
        self.expected.clear();
        let mut kept = 0;
        while let Some((word, decisions)) = state.shared(kept) {
            if !self.expected.push(word) {
                break;
            }
            kept += decisions;
        }
        state.undo_decisions_from(kept);
        state.cursor = kept;
    }

    /// Has the words that are expected met once more.
    fn flag_expected(&self) {
        for word in &self.expected.words[..self.expected.len.load(Ordering::Relaxed) as usize] {
            let word = word.load(Ordering::Relaxed);
            self.change_flag(word / WORDS as u32, |flag| flag | 1 << (word % WORDS as u32));
        }
        self.expected.met.store(0, Ordering::Relaxed);
    }

    #[cold]
    fn resolve_now(&self, word: u32, at: At) {
        let mut guard = self.lock();
        let state = &mut *guard;
        let (number, bit) = (word / WORDS as u32, word % WORDS as u32);
        if state.index.get(number as usize).is_none_or(|index| *index == 0) {
            return;
        }
        if self.flag(number).load(Ordering::Relaxed) >> bit & 1 == 0 {
            return;
        }
        let index = state.index[number as usize] - 1;
        state.silent = self.mode.load(Ordering::Relaxed) & DECIDE == 0;
        let value = state.decide(index, bit as usize, at);
        let Some(value) = value else {
            drop(guard);
            self.went_elsewhere();
        };
        self.change_flag(number, |flag| flag & !(1 << bit));
        if let Some(cell) = self.arena_word(word) {
            cell.store(value, Ordering::Relaxed);
        }
    }

    /// Puts a word that has been decided into the arena.
    pub(crate) fn reveal(&self, state: &mut State, index: u32, word: usize) {
        let number = state.lines[index as usize].number;
        if let Ok(value) = state.says(index, word) {
            self.change_flag(number, |flag| flag & !(1 << word));
            if let Some(cell) = self.arena_word(number * WORDS as u32 + word as u32) {
                cell.store(value, Ordering::Relaxed);
            }
        }
    }

    /// Puts everything as it was right after the crash, for another run of the recovery.
    pub(crate) fn restart(&self, mode: u32) {
        let mut state = self.lock();
        self.rewind(&mut state);
        state.fresh = true;
        self.restore(&mut state);
        self.hide_witnesses(&mut state);
        self.flag_expected();
        self.steps.store(0, Ordering::Relaxed);
        self.storer.store(0, Ordering::Relaxed);
        self.mode.store(mode, Ordering::Relaxed);
    }

    /// Notes that a session has stored something persistent.
    pub(crate) fn note_store(&self, slot: u16) {
        let own = u32::from(slot) + 1;
        match self.storer.load(Ordering::Relaxed) {
            0 => self.storer.store(own, Ordering::Relaxed),
            sole if sole != own => self.storer.store(MANY, Ordering::Relaxed),
            _ => {}
        }
    }

    /// Whether another session may have stored something persistent.
    #[inline(always)]
    pub(crate) fn others_stored(&self, slot: u16) -> bool {
        let storer = self.storer.load(Ordering::Relaxed);
        storer != 0 && storer != u32::from(slot) + 1
    }

    /// Counts an access, and stops what does not end.
    #[inline(always)]
    pub(crate) fn count_step(&self) {
        let steps = self.steps.load(Ordering::Relaxed) + 1;
        self.steps.store(steps, Ordering::Relaxed);
        if steps > MAX_STEPS {
            endless();
        }
    }

    /// The crash state as bytes; undecided words are poisoned.
    pub(crate) fn image(&self, len: usize) -> Vec<u8> {
        let state = self.lock();
        let mut image = vec![0; len];
        for index in 0..state.lines.len() as u32 {
            state.copy_line(index, 0, &mut image);
        }
        image
    }

    /// The bytes of the crash state from `offset` on.
    pub(crate) fn read(&self, offset: usize, bytes: &mut [u8]) {
        bytes.fill(0);
        let state = self.lock();
        for line in offset / LINE..(offset + bytes.len()).div_ceil(LINE) {
            if let Some(index) = u32::try_from(line).ok().and_then(|line| state.index_of(line)) {
                state.copy_line(index, offset, bytes);
            }
        }
    }

    /// Whether the execution under way leaves a trace.
    pub(crate) fn records(&self) -> bool {
        self.mode.load(Ordering::Relaxed) & RECORD != 0
    }

    /// Applies the events of a finished trace, from a position on, to the layer at `depth`, up to the first that makes
    /// something durable that might not have been, or that `stops`. Gives its position, or the trace's length.
    pub(crate) fn walk(
        &self,
        depth: usize,
        trace: &[Event],
        from: usize,
        stops: impl Fn(usize, &Event) -> bool,
    ) -> usize {
        let mut guard = self.lock();
        for (seq, event) in trace.iter().enumerate().skip(from) {
            let raises = || guard.layers[depth].raises(guard.machine, event, |line| guard.index_of(line));
            if stops(seq, event) || raises() {
                return seq;
            }
            self.step_in(&mut guard, depth, seq as u32, event);
        }
        trace.len()
    }

    /// Applies an event of a finished trace to the layer at `depth`.
    pub(crate) fn step(&self, depth: usize, seq: u32, event: &Event) {
        self.step_in(&mut self.lock(), depth, seq, event);
    }

    fn step_in(&self, state: &mut State, depth: usize, seq: u32, event: &Event) {
        let (index, lines, queue) = (&state.index, &mut state.lines, &mut state.queue);
        state.layers[depth].step(
            state.machine,
            seq,
            event,
            |line| index[line as usize].checked_sub(1),
            |line| {
                let line_state = &mut lines[line as usize];
                if !std::mem::replace(&mut line_state.queued, true) {
                    queue.push(line);
                    self.change_flag(line_state.number, |flag| flag | TOUCHED);
                }
            },
        );
    }
}

impl State {
    /// Whether an arena is the one that is kept.
    fn is_kept(&self, base: *const u8) -> bool {
        self.kept.as_ref().is_some_and(|kept| std::ptr::eq(kept.base().as_ptr(), base))
    }

    /// The index of a line of the arena, if it was ever stored.
    pub(crate) fn index_of(&self, line: u32) -> Option<u32> {
        self.index.get(line as usize)?.checked_sub(1)
    }

    /// A line in the crash state, with poison in the words that are undecided; and their bits.
    fn contents(&self, index: u32) -> ([u64; WORDS], u8) {
        let line = &self.lines[index as usize];
        let (mut values, mut undecided) = (line.initial, 0);
        for window in self.layers[..self.depth].iter().filter_map(|layer| layer.window(index)) {
            window.lay_over(&mut values, &mut undecided);
        }
        let mut left = undecided;
        while left != 0 {
            let word = left.trailing_zeros() as usize;
            left &= left - 1;
            values[word] = poison(line.number, word);
        }
        (values, undecided)
    }

    /// Copies what a line has in common with `bytes`, which begin at `offset`.
    fn copy_line(&self, index: u32, offset: usize, bytes: &mut [u8]) {
        let (values, _) = self.contents(index);
        let start = self.lines[index as usize].number as usize * LINE;
        let line: [u8; LINE] = std::array::from_fn(|at| values[at / 8].to_le_bytes()[at % 8]);
        let (from, to) = (start.max(offset), (start + LINE).min(offset + bytes.len()));
        if from < to {
            bytes[from - offset..to - offset].copy_from_slice(&line[from - start..to - start]);
        }
    }

    /// The value of a word in the crash state.
    fn says(&self, index: u32, word: usize) -> Result<u64, ()> {
        for layer in self.layers[..self.depth].iter().rev() {
            if let Some(window) = layer.window(index)
                && let Some(value) = window.says(word)?
            {
                return Ok(value);
            }
        }
        Ok(self.lines[index as usize].initial[word])
    }

    pub(crate) fn decide_word(&mut self, (layer, line, word): (u32, u32, u8), choice: Choice) {
        self.layers[layer as usize].windows[line as usize].decide(word as usize, choice);
        self.decided.push((layer, line, word));
    }

    /// Decides an undecided word, from the uppermost layer down. `None` if the recovery is not deterministic.
    fn decide(&mut self, line: u32, word: usize, at: At) -> Option<u64> {
        for layer in (0..self.depth).rev() {
            let Some(window) = self.layers[layer].windows.get_mut(line as usize) else { continue };
            let said = match window.says(word) {
                Ok(said) => {
                    self.note_read_of_witness(layer, line, word);
                    said
                }
                Err(()) => self.branch(layer, line, word, at)?,
            };
            if let Some(value) = said {
                return Some(value);
            }
        }
        Some(self.lines[line as usize].initial[word])
    }

    /// What one layer is to say about an undecided word: as it was forced, as before, or something new. Outer `None`:
    /// the recovery is not deterministic.
    fn branch(&mut self, layer: usize, line: u32, word: usize, at: At) -> Option<Choice> {
        let forced = self.forced.iter().find(|(window, _)| *window == (layer as u32, line)).map(|(_, at)| at[word]);
        let (choice, states) = match (forced, self.path.get(self.cursor)) {
            (Some(position), _) => {
                let choice = self.layers[layer].windows[line as usize].value_at(word, position);
                self.reads.push((layer as u32, line, word as u8, choice, at));
                (choice, None)
            }
            (None, Some(known)) if !self.silent => {
                if (known.layer, known.line, known.word) != (layer as u32, line, word as u8) {
                    self.nondeterministic = true;
                    return None;
                }
                self.cursor += 1;
                let (choice, states) = known.candidates[known.taken as usize];
                (choice, Some(states))
            }
            _ => self.first_choice(layer, line, word)?,
        };
        let window = &mut self.layers[layer].windows[line as usize];
        match states {
            Some(states) => window.decide_counted(word, (choice, states)),
            None => window.decide(word, choice),
        }
        self.decided.push((layer as u32, line, word as u8));
        Some(choice)
    }

    /// The first of the choices for a word that is read for the first time with these decisions; the others will
    /// follow.
    fn first_choice(&mut self, layer: usize, line: u32, word: usize) -> Option<(Choice, Option<u128>)> {
        let window = &mut self.layers[layer].windows[line as usize];
        window.refresh(self.machine.model);
        let mut candidates = self.spare.pop().unwrap_or_default();
        window.candidates(word, &mut candidates);
        let sum = candidates.iter().map(|c| c.1).fold(0, u128::saturating_add);
        self.exact &= sum == window.count_left() && sum > 0;
        let (first, states) = *candidates.first()?;
        if self.silent {
            self.spare.push(candidates);
            return Some((first, Some(states)));
        }
        let unit = self.leaf_weight().and_then(|weight| divided(weight, sum));
        let (layer, word, trace_len) = (layer as u32, word as u8, self.trace.len() as u32);
        self.path.push(Decision {
            layer,
            line,
            word,
            taken: 0,
            candidates,
            unit,
            trace_len,
            crashed_here: false,
            region: None,
        });
        self.cursor += 1;
        Some((first, Some(states)))
    }

    /// The word of the decision at a position of the path and the number of decisions on it, if they are in force and hold
    /// in the next execution, too. Not for regions; nor for the last word, about which something new is to be decided.
    fn shared(&self, at: usize) -> Option<(u32, usize)> {
        let first = self.path.get(at).filter(|d| d.word != REGION)?;
        let on_it = |d: &&Decision| (d.line, d.word) == (first.line, first.word);
        let decisions = self.path[at..].iter().take_while(on_it).count();
        let in_force = self.decided.get(at..at + decisions)?.iter().zip(&self.path[at..]);
        let same = in_force.clone().all(|(word, d)| *word == (d.layer, d.line, d.word));
        (same && at + decisions < self.path.len())
            .then(|| (self.lines[first.line as usize].number * WORDS as u32 + u32::from(first.word), decisions))
    }

    /// For how many states an execution with the decisions so far stands; `None` where the number is too large, and
    /// only the sums at each branch are checked.
    pub(crate) fn leaf_weight(&self) -> Option<u128> {
        match self.path.last() {
            Some(last) => last.unit?.checked_mul(last.candidates[last.taken as usize].1),
            None => self.total,
        }
    }

    pub(crate) fn undo_decisions(&mut self) {
        self.undo_decisions_from(0);
    }

    /// Undoes all decisions but the first ones.
    fn undo_decisions_from(&mut self, keep: usize) {
        for (layer, line, word) in self.decided.drain(keep..) {
            self.layers[layer as usize].windows[line as usize].undecide(word as usize);
            self.undone.push((line, word));
        }
    }

    /// Moves the path to the next combination of choices; false if there is none.
    pub(crate) fn next_path(&mut self, keep: usize) -> bool {
        while self.path.len() > keep {
            let last = self.path.last_mut().expect("longer than what is kept");
            last.taken += 1;
            if (last.taken as usize) < last.candidates.len() {
                return true;
            }
            self.drop_last();
        }
        false
    }

    pub(crate) fn drop_last(&mut self) {
        if let Some(last) = self.path.pop() {
            self.spare.push(last.candidates);
        }
    }

    pub(crate) fn forget_path(&mut self) {
        while !self.path.is_empty() {
            self.drop_last();
        }
        while let Some((_, line, word)) = self.decided.pop() {
            self.undone.push((line, word));
        }
        self.cursor = 0;
        self.nondeterministic = false;
    }

    /// The open windows: (layer, index of the line).
    pub(crate) fn open_windows(&mut self) -> Vec<(u32, u32)> {
        let mut open = Vec::new();
        let model = self.machine.model;
        for (depth, layer) in self.layers[..self.depth].iter_mut().enumerate() {
            layer.for_each_open(model, |line| open.push((depth as u32, line)));
        }
        open
    }

    /// The number of states of some windows.
    pub(crate) fn states_of(&self, windows: &[(u32, u32)]) -> Count {
        windows.iter().fold(Count::one(), |product, window| product.times(self.window(*window).count()))
    }

    pub(crate) fn window(&self, (layer, line): (u32, u32)) -> &crate::model::window::Window {
        &self.layers[layer as usize].windows[line as usize]
    }

    pub(crate) fn fix(&mut self, (layer, line): (u32, u32), positions: &Positions) {
        self.layers[layer as usize].windows[line as usize].decide_positions(positions);
    }

    pub(crate) fn unfix(&mut self, (layer, line): (u32, u32)) {
        self.layers[layer as usize].windows[line as usize].undecide_all();
    }
}

/// The quotient; most numbers are small.
fn divided(number: u128, by: u128) -> Option<u128> {
    match (u64::try_from(number), u64::try_from(by)) {
        (Ok(number), Ok(by)) => number.checked_div(by).map(u128::from),
        _ => number.checked_div(by),
    }
}

/// What an undecided word holds: a load that does not go through the medium gives nonsense, recognisable in a debugger.
fn poison(line: u32, word: usize) -> u64 {
    0xDEAD_0000_0000_0000 | u64::from(line) << 8 | word as u64
}

#[cold]
fn endless() -> ! {
    panic!("no end after {MAX_STEPS} accesses");
}
