//! Which thread takes the next step: every one that can, one after the other, unless the state was met before; or as a
//! schedule says; or at random.

use super::super::digest::Digest;
use super::{MAX_STEPS, Read, Scheduler, Segment, Thread, Wrong};

/// Turns of a spin, without anything written by others meanwhile, that are run to see whether the loop makes a
/// difference by itself.
const IDLE_TURNS: u8 = 2;

/// A point at which several threads could go on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    enabled: u16,
    /// Those still to be tried.
    pub(super) left: u16,
    pub(super) taken: u8,
}

/// What a thread does that others have picked.
#[cfg(feature = "shuttle")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Goes,
    /// What it waits for has not happened.
    Waits,
    /// There is nothing left for it to do.
    Over,
}

/// What is known of a state that was reached before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    /// Preemptions that were left.
    left: u32,
    about: u64,
}

impl Scheduler {
    fn is_enabled(&self, thread: &Thread) -> bool {
        if thread.done {
            return false;
        }
        // A loop that waits would find what it found before, unless something it read has changed.
        !thread.spins || thread.idle < IDLE_TURNS && thread.reads.iter().any(|read| self.has_changed(*read))
    }

    fn has_changed(&self, read: Read) -> bool {
        match read {
            Read::Volatile { word, found } => self.words.value(word) != found,
            Read::Persistent { word, found } => self.recorder.now(word) != found,
        }
    }

    /// Decides which thread takes the next step: into `next`, or cuts the execution.
    pub(super) fn choose(&mut self) {
        self.steps += 1;
        self.totals.steps += 1;
        if self.steps > MAX_STEPS {
            return self.fail(Wrong::Endless);
        }
        let mut enabled = 0u16;
        for (number, thread) in self.threads.iter().enumerate() {
            enabled |= u16::from(self.is_enabled(thread)) << number;
        }
        if enabled == 0 {
            return self.fail(Wrong::Deadlock);
        }
        if self.driven {
            return;
        }
        let chosen = if self.forced.is_some() { self.follow(enabled) } else { self.explore(enabled) };
        if let Some(chosen) = chosen.filter(|_| self.wrong.is_none()) {
            self.go(chosen);
        }
    }

    /// Whether a thread that others have picked may take its turn, which it then has to.
    #[cfg(feature = "shuttle")]
    pub(crate) fn take_turn(&mut self, thread: usize) -> Turn {
        if !self.observes() || self.threads[thread].done {
            return Turn::Over;
        }
        if !self.is_enabled(&self.threads[thread]) {
            return Turn::Waits;
        }
        self.go(thread);
        self.current = self.next.take();
        Turn::Goes
    }

    fn go(&mut self, chosen: usize) {
        let preempted = self.current.is_some_and(|me| me != chosen && self.is_preempted(me));
        self.preemptions += u32::from(preempted);
        self.totals.preemptions = self.totals.preemptions.max(self.preemptions);
        if self.threads[chosen].spins {
            self.threads[chosen].idle += 1;
        }
        match self.segments.last_mut() {
            Some(last) if last.thread == chosen => last.turns += 1,
            last => {
                if let Some(last) = last {
                    last.stopped = self.current.and_then(|me| self.threads[me].at);
                    last.preempted = preempted;
                }
                let from = self.recorder.lock().trace.len();
                self.segments.push(Segment { thread: chosen, turns: 1, from, stopped: None, preempted: false });
            }
        }
        self.next = Some(chosen);
    }

    /// Whether a thread that could go on within an operation is kept from it if another runs.
    fn is_preempted(&self, me: usize) -> bool {
        let thread = &self.threads[me];
        thread.inside && !thread.spins && !thread.done
    }

    fn follow(&mut self, enabled: u16) -> Option<usize> {
        let mut turns = self.segments.iter().map(|s| u64::from(s.turns)).sum::<u64>();
        let forced = self.forced.as_deref().unwrap_or_default();
        let named = forced.iter().find(|(_, n)| {
            let within = turns < u64::from(*n);
            turns = turns.saturating_sub(u64::from(*n));
            within
        });
        match named {
            Some((thread, _)) if enabled >> thread & 1 == 1 => Some(*thread),
            Some(_) => {
                self.fail(Wrong::Nondeterministic);
                None
            }
            // The schedule named goes as far as the crash.
            None => {
                self.catch_up(true);
                self.cut();
                None
            }
        }
    }

    fn explore(&mut self, enabled: u16) -> Option<usize> {
        let stay = self.current.filter(|me| enabled >> me & 1 == 1);
        if enabled.count_ones() == 1 && self.current.is_some() {
            return Some(enabled.trailing_zeros() as usize);
        }
        if self.bound.is_some_and(|bound| self.preemptions >= bound)
            && let Some(me) = stay
            && self.is_preempted(me)
        {
            self.totals.ruled_out += 1;
            return Some(me);
        }
        if let Some(seed) = self.sampled {
            return Some(self.throw(enabled, stay, seed));
        }
        if let Some(node) = self.path.get(self.cursor).filter(|_| enabled.count_ones() > 1) {
            let (node, last) = (*node, self.cursor + 1 == self.path.len());
            if last {
                // What comes after this choice is new; what came before was seen by an earlier execution.
                self.catch_up(false);
            }
            self.cursor += 1;
            if node.enabled != enabled {
                self.fail(Wrong::Nondeterministic);
                return None;
            }
            return Some(usize::from(node.taken));
        }
        if self.cursor == self.path.len() {
            self.catch_up(false);
            if self.prunes && self.was_here() {
                self.cut();
                return None;
            }
        }
        if enabled.count_ones() == 1 {
            return Some(enabled.trailing_zeros() as usize);
        }
        let taken = match self.order {
            0 => stay.unwrap_or(enabled.trailing_zeros() as usize),
            order => pick(enabled, Digest::default().with(order).with(self.steps)),
        };
        self.path.push(Node { enabled, left: enabled & !(1 << taken), taken: taken as u8 });
        self.cursor += 1;
        Some(taken)
    }

    /// A thread picked at random; mostly the one that runs, in some schedules more than in others.
    fn throw(&self, enabled: u16, stay: Option<usize>, seed: u64) -> usize {
        let dice = Digest::default().with(seed).with(self.steps);
        let rarely = 1 << (1 + 2 * (seed % 4));
        match stay {
            Some(me) if dice.with(1).low() % rarely != 0 => me,
            _ => pick(enabled, dice),
        }
    }

    /// Whether this state was reached before, with at least as many preemptions left.
    fn was_here(&mut self) -> bool {
        let (state, about) = self.state();
        let left = self.bound.map_or(0, |bound| bound - self.preemptions.min(bound));
        let mut state = state;
        if self.bound.is_some() {
            // Whom it costs a preemption to leave decides what can follow.
            state = state.with(self.current.filter(|me| self.is_preempted(*me)).map_or(u64::MAX, |me| me as u64));
        }
        match self.visited.get_mut(&state) {
            Some(known) if known.about != about => {
                // Equal in everything that goes through the medium, and yet about to do something else.
                self.totals.hidden += 1;
                false
            }
            Some(known) if known.left >= left => true,
            Some(known) => {
                known.left = left;
                false
            }
            None => {
                self.visited.insert(state, Known { left, about });
                self.totals.states += 1;
                false
            }
        }
    }

    /// The state: equal ones have equal futures. Beside it, what the threads are about to do, which follows from it.
    fn state(&mut self) -> (Digest, u64) {
        let (memory, sessions) = {
            let guard = self.recorder.lock();
            (self.memory.digest(&guard), self.memory.sessions(&guard))
        };
        if self.verifies {
            let afresh = self.memory.digests_afresh(&self.recorder.lock());
            self.totals.stale += u64::from(afresh != (memory, sessions));
        }
        let mut state = Digest::default().and(memory).and(sessions).and(self.words.digest()).and(self.past.digest());
        let mut about = Digest::default();
        for thread in &self.threads {
            let flags = u64::from(thread.done)
                | u64::from(thread.spins) << 1
                | u64::from(thread.inside) << 2
                | u64::from(thread.idle) << 8;
            state = state.and(thread.seen).with(thread.steps).with(flags);
            if !thread.done {
                about = about.and(thread.about);
            }
        }
        (state, about.low())
    }
}

/// One of the threads, at random.
fn pick(enabled: u16, dice: Digest) -> usize {
    let nth = dice.low() % u64::from(enabled.count_ones());
    (0..16).filter(|thread| enabled >> thread & 1 == 1).nth(nth as usize).expect("fewer than there are")
}
