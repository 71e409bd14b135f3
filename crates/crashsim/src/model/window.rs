//! What a cache line may hold after a crash: its *window*.
//!
//! A window is the durable floor of a line and the stores on top of it that are not yet guaranteed. A state of the line
//! says, for each of its eight words, how many of the word's stores have reached memory (stores to one word never
//! overtake each other). Which combinations are possible is the persistency model's say:
//!
//! - under PCSO a store drags along what it is ordered after: everything up to its `req` mark;
//! - with torn words any combination is possible.
//!
//! Every down-closed combination has exactly one *first missing* cached store (or none is missing), and once that is
//! fixed the words are independent of each other. So the states of a line are a disjoint union of boxes, one for each
//! possible first missing store: that is what makes counting, and branching on one word at a time, cheap and exact.

use std::panic::Location;

use crate::model::persistency::Persistency;

/// Words in a line.
pub(crate) const WORDS: usize = 8;

/// What one layer says about a word: a value, or `None` where it says nothing and the layer below decides.
pub(crate) type Choice = Option<u64>;

/// How many stores of each word have reached memory.
pub(crate) type Positions = [u16; WORDS];

/// A store that may or may not have reached memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    /// Position of the store in the trace.
    pub(crate) seq: u32,
    /// Every cached store of the line before this position of the trace comes first.
    pub(crate) req: u32,
    /// Word in the line.
    pub(crate) word: u8,
    /// Session that stored.
    pub(crate) slot: u16,
    /// Around the cache: ordered with nothing but its own word.
    pub(crate) nt: bool,
    /// Around the cache by a process that lives: it may still be in its processor, where no write-back takes it along.
    pub(crate) buffered: bool,
    pub(crate) value: u64,
    pub(crate) at: &'static Location<'static>,
}

/// For each word the least and the greatest number of its stores.
#[derive(Clone, Copy, Debug)]
struct Span([(u16, u16); WORDS]);

impl Span {
    /// The union of two disjoint boxes, if that is a box: they differ in one word, where one goes on from the other.
    fn joined(&self, other: &Span) -> Option<Span> {
        let mut differing = (0..WORDS).filter(|w| self.0[*w] != other.0[*w]);
        let (word, None) = (differing.next()?, differing.next()) else { return None };
        let (one, two) = (self.0[word], other.0[word]);
        let (low, high) = if one.0 <= two.0 { (one, two) } else { (two, one) };
        let mut joined = *self;
        joined.0[word] = (low.0, high.1);
        (low.1 + 1 == high.0).then_some(joined)
    }
}

/// The window of one line in one layer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Window {
    pub(crate) stores: Vec<Pending>,
    floor: [u64; WORDS],
    /// Which words have a floor of their own in this layer.
    floor_mask: u8,
    /// Words with stores in the window.
    open: u8,
    /// Words whose choice is made.
    decided: u8,
    choice: [Choice; WORDS],
    /// For each decided word the positions at which it has its choice, if all its positions are below 64.
    chosen: [u64; WORDS],
    /// The rest is derived from `stores`, and rebuilt when asked for after a change.
    stale: bool,
    starts: [u16; WORDS + 1],
    values: Vec<u64>,
    spans: Vec<Span>,
    /// Number of states that agree with what is decided, while that is known.
    left: Option<u128>,
}

impl Window {
    /// Whether nothing was stored in this layer.
    pub(crate) fn is_void(&self) -> bool {
        self.open == 0 && self.floor_mask == 0
    }

    /// Back to nothing stored; keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.stores.clear();
        self.floor_mask = 0;
        self.open = 0;
        self.decided = 0;
        self.left = None;
        self.stale = true;
    }

    pub(crate) fn push(&mut self, store: Pending) {
        self.open |= 1 << store.word;
        self.stores.push(store);
        self.stale = true;
    }

    /// Position after the last store that another session made before the position `acquired`.
    pub(crate) fn published(&self, slot: u16, acquired: u32) -> u32 {
        let theirs = self.stores.iter().rev().find(|s| s.slot != slot && s.seq < acquired);
        theirs.map_or(0, |s| s.seq + 1)
    }

    /// A store that is durable at once.
    pub(crate) fn push_durable(&mut self, word: u8, value: u64) {
        self.floor[word as usize] = value;
        self.floor_mask |= 1 << word;
    }

    /// Makes the stores before `mark` durable that are not buffered, and the buffered ones that one of them overwrites.
    pub(crate) fn settle(&mut self, mark: u32) {
        let mut upto = [0; WORDS];
        for store in self.stores.iter().filter(|s| !s.buffered && s.seq < mark) {
            upto[store.word as usize] = store.seq + 1;
        }
        self.settle_words(&upto);
    }

    /// The process has died: a write-back covers what it has stored around the cache.
    pub(crate) fn leave_buffers(&mut self) {
        self.stores.iter_mut().for_each(|store| store.buffered = false);
    }

    /// Makes everything durable.
    pub(crate) fn settle_all(&mut self) {
        self.settle_words(&[u32::MAX; WORDS]);
    }

    /// Makes the around-the-cache store at `seq`, and what it overwrote, durable.
    pub(crate) fn settle_nt(&mut self, word: u8, seq: u32) {
        let mut upto = [0; WORDS];
        upto[word as usize] = seq + 1;
        self.settle_words(&upto);
    }

    fn settle_words(&mut self, upto: &[u32; WORDS]) {
        let (floor, mask) = (&mut self.floor, &mut self.floor_mask);
        let mut open = 0;
        self.stores.retain(|s| {
            let stays = s.seq >= upto[s.word as usize];
            if stays {
                open |= 1 << s.word;
            } else {
                floor[s.word as usize] = s.value;
                *mask |= 1 << s.word;
            }
            stays
        });
        self.open = open;
        self.stale = true;
    }

    /// Whether [`settle`](Window::settle) would change anything.
    pub(crate) fn would_settle(&self, mark: u32) -> bool {
        self.stores.iter().any(|s| !s.buffered && s.seq < mark)
    }

    /// Whether [`settle_nt`](Window::settle_nt) would change anything.
    pub(crate) fn would_settle_nt(&self, seq: u32) -> bool {
        self.stores.iter().any(|s| s.seq == seq)
    }

    /// Derives chains and spans after a change.
    pub(crate) fn refresh(&mut self, model: Persistency) {
        if !std::mem::take(&mut self.stale) {
            return;
        }
        self.values.clear();
        self.spans.clear();
        self.left = None;
        self.chosen = [0; WORDS];
        self.sort_values();
        if model.orders_lines() && !self.is_unordered() {
            for cut in 0..=self.stores.len() {
                if self.stores.get(cut).is_none_or(|s| !s.nt) {
                    let span = self.span_at(cut);
                    self.push_span(span);
                }
            }
        } else {
            self.spans.push(Span(std::array::from_fn(|w| (0, self.starts[w + 1] - self.starts[w]))));
        }
    }

    /// Puts the values of each word together, in order.
    fn sort_values(&mut self) {
        assert!(self.stores.len() < u16::MAX as usize, "a line with 65535 stores that were never made durable");
        let mut counts = [0u16; WORDS];
        for store in &self.stores {
            counts[store.word as usize] += 1;
        }
        let mut next = [0u16; WORDS];
        for word in 0..WORDS {
            next[word] = self.starts[word];
            self.starts[word + 1] = self.starts[word] + counts[word];
        }
        self.values.resize(self.stores.len(), 0);
        for store in &self.stores {
            let place = &mut next[store.word as usize];
            self.values[*place as usize] = store.value;
            *place += 1;
        }
    }

    /// Whether no store is ordered after one of another word.
    fn is_unordered(&self) -> bool {
        let first = self.stores.first().map_or(0, |s| s.seq);
        self.stores.iter().all(|s| s.nt || s.req <= first)
    }

    /// Adds a box; where it and the last one make up one larger box, that one takes their place. Stores without any
    /// order among themselves then need a single one.
    fn push_span(&mut self, span: Span) {
        let mut span = span;
        while let Some(joined) = self.spans.last().and_then(|last| last.joined(&span)) {
            self.spans.pop();
            span = joined;
        }
        self.spans.push(span);
    }

    /// The states in which the store at index `cut` is the first missing one (or none is missing, beyond the end).
    fn span_at(&self, cut: usize) -> Span {
        let cut_seq = self.stores.get(cut).map_or(u32::MAX, |s| s.seq);
        let mut span = [(0u16, 0u16); WORDS];
        let mut seen = [0u16; WORDS];
        let mut closed = 0u8;
        for (index, store) in self.stores.iter().enumerate() {
            let (word, bit) = (store.word as usize, 1u8 << store.word);
            seen[word] += 1;
            if index < cut && !store.nt {
                span[word] = (seen[word], seen[word]);
            } else if closed & bit == 0 && (store.nt || (index != cut && store.req <= cut_seq)) {
                span[word].1 = seen[word];
            } else {
                closed |= bit;
            }
        }
        Span(span)
    }

    pub(crate) fn value_at(&self, word: usize, position: u16) -> Choice {
        if position > 0 {
            return Some(self.values[(self.starts[word] + position - 1) as usize]);
        }
        (self.floor_mask >> word & 1 == 1).then(|| self.floor[word])
    }

    /// What this layer says about a word: `Err` while it is undecided.
    pub(crate) fn says(&self, word: usize) -> Result<Choice, ()> {
        if self.open >> word & 1 == 0 {
            return Ok((self.floor_mask >> word & 1 == 1).then(|| self.floor[word]));
        }
        if self.decided >> word & 1 == 1 { Ok(self.choice[word]) } else { Err(()) }
    }

    /// Lays what this layer says over what those below have said: values, and the bits of words that are undecided.
    pub(crate) fn lay_over(&self, values: &mut [u64; WORDS], undecided: &mut u8) {
        let mut left = self.open | self.floor_mask;
        while left != 0 {
            let word = left.trailing_zeros() as usize;
            left &= left - 1;
            match self.says(word) {
                Ok(Some(value)) => {
                    values[word] = value;
                    *undecided &= !(1 << word);
                }
                Ok(None) => {}
                Err(()) => *undecided |= 1 << word,
            }
        }
    }

    /// Words with stores in the window whose choice is not made.
    pub(crate) fn undecided(&self) -> u8 {
        self.open & !self.decided
    }

    pub(crate) fn decide(&mut self, word: usize, choice: Choice) {
        self.decided |= 1 << word;
        self.choice[word] = choice;
        self.chosen[word] = 0;
        self.left = None;
    }

    /// Decides a word by a choice with which so many states agree.
    pub(crate) fn decide_counted(&mut self, word: usize, (choice, states): (Choice, u128)) {
        self.decide(word, choice);
        self.left = Some(states);
    }

    pub(crate) fn undecide(&mut self, word: usize) {
        self.decided &= !(1 << word);
        self.left = None;
    }

    pub(crate) fn undecide_all(&mut self) {
        self.decided = 0;
        self.left = None;
    }

    /// [`count`](Window::count), told at once where the last decision has told it.
    pub(crate) fn count_left(&mut self) -> u128 {
        let left = self.left.unwrap_or_else(|| self.count());
        self.left = Some(left);
        left
    }

    #[inline]
    fn fits(&self, word: usize, (low, high): (u16, u16)) -> u64 {
        if (self.decided & self.open) >> word & 1 == 0 {
            return u64::from(high - low + 1);
        }
        if high < 64 {
            let range = (u64::MAX >> (63 - high)) & (u64::MAX << low);
            return u64::from((self.chosen_at(word) & range).count_ones());
        }
        (low..=high).filter(|p| self.value_at(word, *p) == self.choice[word]).count() as u64
    }

    /// The positions below 64 at which a decided word has its choice. There is at least one, or none beyond is asked for.
    #[inline]
    fn chosen_at(&self, word: usize) -> u64 {
        if self.chosen[word] != 0 {
            return self.chosen[word];
        }
        let len = (self.starts[word + 1] - self.starts[word]).min(63);
        (0..=len).filter(|p| self.value_at(word, *p) == self.choice[word]).fold(0, |mask, p| mask | 1 << p)
    }

    /// Notes where the decided words have their choices, before they are asked for again and again.
    fn note_chosen(&mut self) {
        let mut left = self.decided & self.open;
        while left != 0 {
            let word = left.trailing_zeros() as usize;
            left &= left - 1;
            self.chosen[word] = self.chosen_at(word);
        }
    }

    /// States of a span, without regard to one word. Decided words come first: mostly they rule a span out.
    #[inline]
    fn fits_span(&self, span: &Span, except: usize) -> u128 {
        let except = 1u8.checked_shl(except as u32).unwrap_or(0);
        // Mostly small: then one multiplication of machine words each.
        let (mut product, mut large) = (1u64, 1u128);
        for words in [self.open & self.decided & !except, self.open & !self.decided & !except] {
            let mut left = words;
            while left != 0 {
                let word = left.trailing_zeros() as usize;
                left &= left - 1;
                match self.fits(word, span.0[word]) {
                    0 => return 0,
                    1 => {}
                    n => {
                        if product >= 1 << 47 {
                            large = large.saturating_mul(u128::from(std::mem::replace(&mut product, 1)));
                        }
                        product *= n;
                    }
                }
            }
        }
        if large == 1 { u128::from(product) } else { large.saturating_mul(u128::from(product)) }
    }

    /// Number of states that agree with what is decided. Needs [`refresh`](Window::refresh).
    pub(crate) fn count(&self) -> u128 {
        self.spans.iter().map(|span| self.fits_span(span, WORDS)).fold(0, u128::saturating_add)
    }

    /// The choices for an undecided word that some state agrees with, and with how many each: oldest first.
    pub(crate) fn candidates(&mut self, word: usize, out: &mut Vec<(Choice, u128)>) {
        out.clear();
        self.note_chosen();
        for span in &self.spans {
            let others = self.fits_span(span, word);
            let (low, high) = span.0[word];
            for position in low..=high {
                let choice = self.value_at(word, position);
                if others == 0 {
                    continue;
                }
                match out.iter_mut().find(|(c, _)| *c == choice) {
                    Some((_, count)) => *count = count.saturating_add(others),
                    None => out.push((choice, others)),
                }
            }
        }
    }

    /// Decides all words by the numbers of stores that have reached memory.
    pub(crate) fn decide_positions(&mut self, positions: &Positions) {
        for (word, position) in positions.iter().enumerate() {
            if self.open >> word & 1 == 1 {
                self.decide(word, self.value_at(word, *position));
            }
        }
    }

    /// Calls `f` with every state, whatever is decided.
    pub(crate) fn for_each_state(&self, mut f: impl FnMut(&Positions)) {
        for span in &self.spans {
            let mut at: Positions = span.0.map(|(low, _)| low);
            loop {
                f(&at);
                let Some(word) = (0..WORDS).find(|w| at[*w] < span.0[*w].1) else { break };
                at[word] += 1;
                for (lower, (low, _)) in at.iter_mut().zip(&span.0).take(word) {
                    *lower = *low;
                }
            }
        }
    }

    /// Whether the model allows this state, whatever is decided.
    pub(crate) fn is_state(&self, positions: &Positions) -> bool {
        let within = |span: &Span| span.0.iter().zip(positions).all(|((low, high), at)| (low..=high).contains(&at));
        self.spans.iter().any(within)
    }

    /// Whether a state agrees with what is decided.
    pub(crate) fn agrees(&self, positions: &Positions) -> bool {
        (0..WORDS).all(|w| (self.decided & self.open) >> w & 1 == 0 || self.value_at(w, positions[w]) == self.choice[w])
    }

    /// The state in which everything has.
    pub(crate) fn highest(&self) -> Positions {
        std::array::from_fn(|w| self.starts[w + 1] - self.starts[w])
    }

    /// The state with the first `n` cached stores and nothing after them; under torn words only a rough middle.
    pub(crate) fn prefix(&self, n: usize) -> Positions {
        let mut at = [0; WORDS];
        let mut seen = [0; WORDS];
        for (index, store) in self.stores.iter().enumerate() {
            seen[store.word as usize] += 1;
            if index < n && !store.nt {
                at[store.word as usize] = seen[store.word as usize];
            }
        }
        at
    }

    /// The state with every store up to a position of the trace.
    pub(crate) fn visible_at(&self, seq: u32) -> Positions {
        let mut at = [0; WORDS];
        for store in self.stores.iter().filter(|s| s.seq <= seq) {
            at[store.word as usize] += 1;
        }
        at
    }

    /// A state picked by random numbers, every box being equally likely.
    pub(crate) fn random(&self, mut next: impl FnMut(u64) -> u64) -> Positions {
        let span = &self.spans[next(self.spans.len() as u64) as usize];
        span.0.map(|(low, high)| low + next(u64::from(high - low + 1)) as u16)
    }

    /// The greatest state that agrees with what is decided; decisions are only ever made so that there is one.
    pub(crate) fn highest_fitting(&self) -> Positions {
        self.spans.iter().rev().find_map(|span| self.fitting(span, Iterator::rev)).expect("decisions leave a state")
    }

    /// The least state that agrees with what is decided.
    pub(crate) fn lowest_fitting(&self) -> Positions {
        self.spans.iter().find_map(|span| self.fitting(span, |range| range)).expect("decisions leave a state")
    }

    fn fitting<I: Iterator<Item = u16>>(
        &self,
        span: &Span,
        order: impl Fn(std::ops::RangeInclusive<u16>) -> I,
    ) -> Option<Positions> {
        let mut at = [0; WORDS];
        for (word, (low, high)) in span.0.iter().copied().enumerate() {
            let decided = (self.decided & self.open) >> word & 1 == 1;
            at[word] = order(low..=high).find(|p| !decided || self.value_at(word, *p) == self.choice[word])?;
        }
        Some(at)
    }

    /// The stores that have not reached memory in a state.
    pub(crate) fn missing<'a>(&'a self, at: &'a Positions) -> impl Iterator<Item = &'a Pending> {
        let mut seen = [0; WORDS];
        self.stores.iter().filter(move |s| {
            seen[s.word as usize] += 1;
            seen[s.word as usize] > at[s.word as usize]
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Deterministic little random numbers.
    fn next(seed: &mut u64, below: u64) -> u64 {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*seed >> 33) % below
    }

    fn random_window(seed: &mut u64) -> Window {
        let mut window = Window::default();
        let len = 1 + next(seed, 7);
        for seq in 0..len as u32 {
            let word = next(seed, 4) as u8;
            let req = match next(seed, 3) {
                0 => seq,
                1 => 0,
                _ => next(seed, u64::from(seq) + 1) as u32,
            };
            let nt = next(seed, 6) == 0;
            window.push(Pending {
                seq,
                req,
                word,
                slot: 0,
                nt,
                buffered: nt && next(seed, 2) == 0,
                value: next(seed, 3),
                at: Location::caller(),
            });
        }
        if next(seed, 2) == 0 {
            window.settle(next(seed, len) as u32);
        }
        window
    }

    /// By the definition: what a store is ordered after has reached memory if the store has.
    fn by_definition(window: &Window, model: Persistency) -> BTreeSet<Positions> {
        let mut index = Vec::new();
        let mut lens = [0u16; WORDS];
        for store in &window.stores {
            lens[store.word as usize] += 1;
            index.push(lens[store.word as usize]);
        }
        let mut all = BTreeSet::from([[0; WORDS]]);
        for word in 0..WORDS {
            let mut longer = BTreeSet::new();
            for mut at in all {
                for n in 0..=lens[word] {
                    at[word] = n;
                    longer.insert(at);
                }
            }
            all = longer;
        }
        let reached = |at: &Positions, i: usize| at[window.stores[i].word as usize] >= index[i];
        all.retain(|at| {
            model == Persistency::TornWords
                || (0..index.len()).filter(|i| reached(at, *i) && !window.stores[*i].nt).all(|i| {
                    let req = window.stores[i].req;
                    (0..index.len()).all(|j| window.stores[j].nt || window.stores[j].seq >= req || reached(at, j))
                })
        });
        all
    }

    #[test]
    fn states_are_those_of_the_definition_each_once() {
        let mut seed = 1;
        for _ in 0..3000 {
            let mut window = random_window(&mut seed);
            for model in [Persistency::Pcso, Persistency::TornWords] {
                window.stale = true;
                window.refresh(model);
                let mut states = Vec::new();
                window.for_each_state(|at| states.push(*at));
                let expected = by_definition(&window, model);
                assert_eq!(states.len(), expected.len(), "{window:?}");
                assert_eq!(states.iter().copied().collect::<BTreeSet<_>>(), expected);
                assert_eq!(window.count(), expected.len() as u128);
                assert!(expected.contains(&window.highest()) && expected.contains(&window.prefix(2)));
            }
        }
    }

    #[test]
    fn decisions_split_the_states_exactly() {
        let mut seed = 2;
        let mut candidates = Vec::new();
        for _ in 0..3000 {
            let mut window = random_window(&mut seed);
            window.refresh(Persistency::Pcso);
            let mut states = by_definition(&window, Persistency::Pcso);
            for word in (0..4).filter(|w| window.open >> w & 1 == 1).collect::<Vec<_>>() {
                window.candidates(word, &mut candidates);
                assert_eq!(candidates.iter().map(|c| c.1).sum::<u128>(), window.count());
                for (choice, count) in &candidates {
                    let with = states.iter().filter(|at| window.value_at(word, at[word]) == *choice).count();
                    assert_eq!(with as u128, *count);
                }
                let choice = candidates[next(&mut seed, candidates.len() as u64) as usize].0;
                window.decide(word, choice);
                states.retain(|at| window.value_at(word, at[word]) == choice);
                assert_eq!(window.count(), states.len() as u128);
                assert!(states.contains(&window.highest_fitting()) && states.contains(&window.lowest_fitting()));
            }
        }
    }
}
