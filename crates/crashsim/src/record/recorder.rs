//! What is behind a [`Simulated`](crate::Simulated) medium: the arena with its flags, and the [state](State) that a lock protects.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use durix_pmem::{LINE, Reserve};

use crate::model::layer::Machine;
use crate::model::trace::{At, Event};
use crate::model::window::WORDS;
use crate::record::expected::Expected;
use crate::record::state::{LineState, State, poison};

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

#[cold]
fn endless() -> ! {
    panic!("no end after {MAX_STEPS} accesses");
}
