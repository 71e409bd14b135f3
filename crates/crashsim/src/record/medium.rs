//! The medium that records, and that decides undecided words when a recovery reads them.

use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use durix_pmem::{Lines, Medium, Reserve, Rmw, Survives};

use crate::model::persistency::Persistency;
use crate::model::trace::{At, Event, StoreKind};
use crate::record::backing::SimulatedBacking;
use crate::record::recorder::{RECORD, Recorder, SCHEDULE, TOUCHED};
use crate::record::region::Region;
use crate::threads::{self, Step};

/// Turns after which a spin in a simulation is taken for a wait without end.
const MAX_TURNS: u32 = 1 << 20;

/// The simulated medium: a handle that an [`Explorer`](crate::Explorer) hands to
/// [`Subject::store`](crate::Subject::store), to be put under a mapping or a pool.
///
/// Outside an exploration it behaves as ordinary memory.
#[derive(Clone, Copy, Debug)]
pub struct Simulated {
    pub(crate) recorder: &'static Recorder,
    slot: u16,
}

static SPARE: Mutex<Vec<&'static Recorder>> = Mutex::new(Vec::new());

impl Simulated {
    /// A medium of its own. The memory behind it is kept until the process ends, and used again after
    /// [`give_back`](Simulated::give_back).
    pub(crate) fn new() -> Self {
        let spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Simulated { recorder: spare.unwrap_or_else(|| Box::leak(Box::new(Recorder::new()))), slot: 0 }
    }

    /// Lets the memory behind the medium be used again, unless an arena is still attached.
    pub(crate) fn give_back(self) {
        if self.recorder.is_detached() {
            self.recorder.reset(Default::default());
            SPARE.lock().unwrap_or_else(PoisonError::into_inner).push(self.recorder);
        }
    }

    /// The first `len` bytes of the arena as the crash has left them, for [`Subject::recover`](crate::Subject::recover)
    /// of stores that need the bytes themselves, such as a backing made from an image. What is undecided when the call
    /// is made holds nonsense, and is decided when it is read through the medium.
    pub fn image(self, len: usize) -> Vec<u8> {
        self.recorder.image(len)
    }

    /// The bytes of that image from `offset` on.
    pub(crate) fn read(self, offset: usize, bytes: &mut [u8]) {
        self.recorder.read(offset, bytes);
    }

    /// A pool's file of `len` bytes as the crash has left it, for [`Subject::recover`](crate::Subject::recover); and an empty
    /// one, with room to grow, to create the pool on. Each recovery maps the same memory again, in which only the lines that
    /// differ were put back: for a small pool that takes a fraction of the time that an [`image`](Self::image) takes.
    ///
    /// ```text
    /// fn recover(&self, medium: &Simulated) -> Result<Self::Live, String> {
    ///     let pool = options().open_on(medium.backing(LEN), *medium).map_err(|e| e.to_string())?;
    /// ```
    pub fn backing(self, len: u64) -> SimulatedBacking {
        SimulatedBacking::new(self, len)
    }

    /// Memory that holds the crash state, or that will when it is mapped; see [`backing`](Self::backing).
    pub(crate) fn memory(self, len: usize) -> Option<Reserve> {
        self.recorder.memory(len)
    }

    /// Decides the words of a range of bytes now, for code that is going to read them from an [`image`](Self::image),
    /// past the medium.
    #[track_caller]
    pub fn decide(self, bytes: std::ops::Range<usize>) {
        let at = Location::caller();
        for word in bytes.start / 8..bytes.end.div_ceil(8) {
            if self.recorder.is_undecided(word as u32) {
                self.recorder.resolve(word as u32, at);
            }
        }
    }

    #[inline(always)]
    fn mode(self) -> u32 {
        self.recorder.mode.load(Ordering::Relaxed)
    }

    /// A point at which another simulated thread may come first.
    #[inline(always)]
    #[track_caller]
    fn meet(self, word: Option<&AtomicU64>, step: Step) {
        if self.mode() & SCHEDULE != 0 {
            threads::meet(word, step, Location::caller());
        }
    }

    /// Before a read: decides the word if the crash state leaves it open.
    #[inline(always)]
    fn settle_word(self, word: &AtomicU64, at: At) -> Option<u32> {
        let number = self.recorder.word_of(word)?;
        if self.recorder.flag(number / 8).load(Ordering::Relaxed) >> (number % 8) & 1 == 1 {
            self.recorder.resolve(number, at);
        }
        self.recorder.count_step();
        Some(number)
    }

    fn write(self, word: &AtomicU64, value: u64, kind: StoreKind, at: At) {
        let Some(number) = self.recorder.word_of(word) else {
            if kind == StoreKind::Locked {
                self.order_point(|slot| Event::Locked { slot });
            }
            word.store(value, Ordering::Release);
            return;
        };
        let recording = self.mode() & RECORD != 0;
        let known = self.recorder.flag(number / 8).load(Ordering::Relaxed) & (TOUCHED | 1 << (number % 8));
        if !recording && known == TOUCHED {
            word.store(value, Ordering::Relaxed);
            return;
        }
        let mut state = self.recorder.lock();
        self.recorder.touch(&mut state, number);
        word.store(value, Ordering::Release);
        if recording {
            self.recorder.note_store(self.slot);
            state.trace.push(Event::Store { slot: self.slot, kind, word: number, value, at });
        }
    }

    /// Reads, then perhaps writes, as one step.
    fn locked(self, word: &AtomicU64, at: At, new: impl FnOnce(u64) -> Option<u64>) -> u64 {
        self.settle_word(word, at);
        let old = word.load(Ordering::Acquire);
        match new(old) {
            Some(new) => self.write(word, new, StoreKind::Locked, at),
            None => self.acquire(Ordering::Acquire),
        }
        old
    }

    /// After an acquiring read: what others stored before comes before what this session stores from here on.
    #[inline(always)]
    fn acquire(self, order: Ordering) {
        if order != Ordering::Relaxed && self.recorder.others_stored(self.slot) {
            self.order_point(|slot| Event::Acquire { slot });
        }
    }

    /// Records an event that orders the session's stores.
    fn order_point(self, event: impl FnOnce(u16) -> Event) {
        if self.mode() & RECORD != 0 {
            let mut state = self.recorder.lock();
            let event = event(self.slot);
            let repeated = match (state.trace.last(), &event) {
                (Some(Event::Order { slot: a }), Event::Order { slot: b })
                | (Some(Event::Acquire { slot: a }), Event::Acquire { slot: b }) => a == b,
                _ => false,
            };
            if !repeated {
                state.trace.push(event);
            }
        }
    }
}

// SAFETY: one thread runs at a time. A load answers what the recorder holds for the word, which is what was stored there last, or in
// recovery what a crash may have left; accesses to volatile words are those of the atomic itself, between two turns of the scheduler.
unsafe impl Medium for Simulated {
    fn describe(self) -> String {
        "simulated".into()
    }

    fn survives(self) -> Survives {
        match self.recorder.lock().machine.model {
            Persistency::PageCache => Survives::ProcessDeath,
            _ => Survives::PowerFailure,
        }
    }

    fn for_session(self, slot: u32) -> Self {
        Simulated { slot: slot as u16, ..self }
    }

    unsafe fn attach(self, base: *const u8, len: usize) {
        self.recorder.attach(base, len);
    }

    unsafe fn detach(self, base: *const u8) {
        self.recorder.detach(base);
    }

    #[inline(always)]
    #[track_caller]
    fn load(self, word: &AtomicU64, order: Ordering) -> u64 {
        self.meet(Some(word), Step::Load);
        self.settle_word(word, Location::caller());
        self.acquire(order);
        word.load(order)
    }

    #[inline]
    #[track_caller]
    fn store(self, word: &AtomicU64, value: u64, order: Ordering) {
        let kind = match order {
            Ordering::Relaxed => StoreKind::Relaxed,
            Ordering::SeqCst => StoreKind::Locked,
            _ => StoreKind::Release,
        };
        self.meet(Some(word), Step::Store(value));
        self.write(word, value, kind, Location::caller());
    }

    #[track_caller]
    fn store_nt(self, word: &AtomicU64, value: u64) {
        self.meet(Some(word), Step::Store(value));
        self.write(word, value, StoreKind::NonTemporal, Location::caller());
    }

    #[track_caller]
    fn store_nt_line(self, line: &[AtomicU64; 8], values: &[u64; 8]) {
        let at = Location::caller();
        for (word, value) in line.iter().zip(values) {
            self.meet(Some(word), Step::Store(*value));
            self.write(word, *value, StoreKind::NonTemporal, at);
        }
    }

    #[track_caller]
    fn compare_exchange(self, word: &AtomicU64, current: u64, new: u64) -> Result<u64, u64> {
        self.meet(Some(word), Step::Exchange(current, new));
        let old = self.locked(word, Location::caller(), |old| (old == current).then_some(new));
        if old == current { Ok(old) } else { Err(old) }
    }

    #[track_caller]
    fn rmw(self, word: &AtomicU64, op: Rmw, operand: u64) -> u64 {
        self.meet(Some(word), Step::Modify(op, operand));
        self.locked(word, Location::caller(), |old| Some(op.apply(old, operand)))
    }

    #[inline]
    fn checked(self, words: &[AtomicU64], verify: impl FnOnce() -> bool) -> bool {
        let Some(first) = words.first().and_then(|word| self.recorder.word_of(word)) else { return verify() };
        let range = (first, words.len() as u32);
        match self.recorder.decide_region(range) {
            Region::AsItIs => verify(),
            Region::Rejected => false,
            Region::Witness => {
                let is_sound = verify();
                self.recorder.verified_witness(range, is_sound);
                is_sound
            }
        }
    }

    fn order(self) {
        self.order_point(|slot| Event::Order { slot });
    }

    #[track_caller]
    fn write_back(self, lines: Lines<'_>) {
        if self.mode() & RECORD == 0 {
            return;
        }
        let at = Location::caller();
        let mut state = self.recorder.lock();
        for line in lines.iter().filter_map(|address| self.recorder.line_of(address)) {
            state.trace.push(Event::WriteBack { slot: self.slot, line, at });
        }
    }

    #[track_caller]
    fn fence(self) {
        self.meet(None, Step::Fence);
        if self.mode() & RECORD != 0 {
            let at = Location::caller();
            self.recorder.lock().trace.push(Event::Fence { slot: self.slot, at });
        }
    }

    #[track_caller]
    fn synced(self) {
        self.meet(None, Step::Fence);
        if self.mode() & RECORD != 0 {
            let at = Location::caller();
            self.recorder.lock().trace.push(Event::Sync { at });
        }
    }

    #[track_caller]
    fn shared_compare_exchange(self, word: &AtomicU64, current: u64, new: u64) -> Result<u64, u64> {
        self.meet(Some(word), Step::Exchange(current, new));
        let result = word.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire);
        match result {
            Ok(_) => self.order_point(|slot| Event::Locked { slot }),
            Err(_) => self.acquire(Ordering::Acquire),
        }
        result
    }

    #[inline]
    #[track_caller]
    fn shared_load(self, word: &AtomicU64, order: Ordering) -> u64 {
        self.meet(Some(word), Step::Load);
        self.acquire(order);
        word.load(order)
    }

    #[track_caller]
    fn shared_store(self, word: &AtomicU64, value: u64, order: Ordering) {
        self.meet(Some(word), Step::Store(value));
        word.store(value, order);
        if order == Ordering::SeqCst {
            self.order_point(|slot| Event::Locked { slot });
        }
    }

    #[track_caller]
    fn shared_rmw(self, word: &AtomicU64, op: Rmw, operand: u64) -> u64 {
        self.meet(Some(word), Step::Modify(op, operand));
        self.order_point(|slot| Event::Locked { slot });
        let mut old = word.load(Ordering::Acquire);
        while let Err(now) = word.compare_exchange(old, op.apply(old, operand), Ordering::AcqRel, Ordering::Acquire) {
            old = now;
        }
        old
    }

    #[track_caller]
    fn spin(self, turn: u32) {
        if self.mode() & SCHEDULE != 0 {
            return threads::meet(None, Step::Spin, Location::caller());
        }
        if turn > MAX_TURNS && self.mode() != 0 {
            panic!("waits for ever: {turn} turns of a spin while nobody else runs");
        }
        std::hint::spin_loop();
    }
}
