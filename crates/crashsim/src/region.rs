//! Regions that a checksum covers: recovery reads all of them, and every word would split the execution. Instead the
//! region is taken as one: everything has reached memory; nothing has; what was visible in between whenever something else
//! happened than stores to the region (an older object that was whole, and overwritten); a handful of torn images, which
//! drive the checksum itself; and all the rest, which the checksum rejects.

use std::sync::atomic::Ordering;

use crate::recorder::{DECIDE, Decision, Recorder, State, TOUCHED};
use crate::window::{Choice, Positions, WORDS};

/// Regions with no more states are read word by word.
const FEW: u128 = 64;

/// Most moments at which a region is taken as it was visible; with more, the exploration is not complete.
const MOMENTS: usize = 32;

/// Marks a decision on a region in the place of the word.
pub(crate) const REGION: u8 = 0xff;

/// A decided word: layer, line, word, choice.
pub(crate) type Decided = (u32, u32, u8, Choice);

/// A range of words of the arena: the first, and how many.
pub(crate) type Range = (u32, u32);

/// An open window of a region, and which of its words lie in it.
#[derive(Clone, Copy, Debug)]
struct Open {
    layer: u32,
    line: u32,
    words: u8,
}

/// How a torn image takes the windows, by their number.
#[derive(Clone, Copy, Debug)]
enum Image {
    Complete,
    Nothing,
    FirstMissing,
    LastMissing,
    MiddleMissing,
    OnlyFirst,
    FirstHalf,
    EveryOther,
}

const IMAGES: [Image; 8] = [
    Image::Complete,
    Image::Nothing,
    Image::FirstMissing,
    Image::LastMissing,
    Image::MiddleMissing,
    Image::OnlyFirst,
    Image::FirstHalf,
    Image::EveryOther,
];

impl Image {
    fn has(self, number: usize, count: usize) -> bool {
        match self {
            Image::Complete => true,
            Image::Nothing => false,
            Image::FirstMissing => number != 0,
            Image::LastMissing => number + 1 != count,
            Image::MiddleMissing => number != count / 2,
            Image::OnlyFirst => number == 0,
            Image::FirstHalf => number < count / 2,
            Image::EveryOther => number.is_multiple_of(2),
        }
    }
}

impl Recorder {
    /// Before a region is verified: decides what it holds. `Some(false)` stands for all the states that the checksum
    /// rejects; otherwise it is to be verified as it now is.
    pub(crate) fn decide_region(&self, (first, count): Range) -> Option<bool> {
        if self.mode.load(Ordering::Relaxed) & DECIDE == 0 || count == 0 {
            return None;
        }
        if !self.met_expected() {
            // Its words may be flagged because they were read before; this region was decided after that, or not at all.
            return None;
        }
        let mut guard = self.lock();
        let state = &mut *guard;
        let lines = first / WORDS as u32..=(first + count - 1) / WORDS as u32;
        let flags = lines.clone().fold(0, |all, line| all | self.flag(line).load(Ordering::Relaxed));
        if flags & 0xff == 0 || !state.forced.is_empty() {
            return None;
        }
        if state.rejected.iter().any(|(range, _)| *range == (first, count)) && flags & TOUCHED == 0 {
            return Some(false);
        }
        let open = state.open_in((first, count));
        let group = match state.branch_region((first, count), &open) {
            Ok(Some(group)) => group,
            Ok(None) => return None,
            Err(()) => {
                drop(guard);
                self.went_elsewhere();
            }
        };
        let Some(group) = group else {
            state.rejected.push(((first, count), false));
            return Some(false);
        };
        for (layer, line, word, choice) in group {
            state.decide_word((layer, line, word), choice);
        }
        for open in open {
            for word in (0..WORDS).filter(|w| open.words >> w & 1 == 1) {
                self.reveal(state, open.line, word);
            }
        }
        None
    }
}

impl State {
    /// The open windows of a region with words that are undecided, in order.
    fn open_in(&self, (first, count): Range) -> Vec<Open> {
        let mut open = Vec::new();
        for number in first / WORDS as u32..=(first + count - 1) / WORDS as u32 {
            let Some(line) = self.index_of(number) else { continue };
            let within = |w: u32| (first..first + count).contains(&(number * WORDS as u32 + w));
            let mask = (0..WORDS as u32).filter(|w| within(*w)).fold(0u8, |mask, w| mask | 1 << w);
            for layer in 0..self.depth as u32 {
                let words = self.layers[layer as usize].window(line).map_or(0, |window| window.undecided() & mask);
                if words != 0 {
                    open.push(Open { layer, line, words });
                }
            }
        }
        open
    }

    /// What the region is to hold: words to decide, or inner `None` for "rejected". Outer `None`: it is read word by word.
    fn branch_region(&mut self, (first, count): Range, open: &[Open]) -> Result<Option<Option<Vec<Decided>>>, ()> {
        for open in open {
            let model = self.machine.model;
            self.layers[open.layer as usize].windows[open.line as usize].refresh(model);
        }
        let all = open.iter().fold(1u128, |all, o| all.saturating_mul(self.window((o.layer, o.line)).count()));
        if all <= FEW {
            return Ok(None);
        }
        let mut images = self.images(open, all);
        let taken = match self.path.get(self.cursor) {
            Some(known) if (known.layer, known.line, known.word) == (u32::MAX, first, REGION) => known.taken as usize,
            Some(_) => return Err(()),
            None => {
                let sum = all;
                let unit = self.leaf_weight().filter(|_| sum < u128::MAX).and_then(|weight| weight.checked_div(sum));
                let candidates = images.iter().enumerate().map(|(i, (_, n))| (Some(i as u64), *n)).collect();
                self.push_region(first, candidates, unit);
                0
            }
        };
        let (group, _) = images.swap_remove(taken);
        let decision = &mut self.path[self.cursor];
        decision.group = group.clone().unwrap_or_default();
        decision.rejected = group.is_none().then_some((first, count));
        self.cursor += 1;
        Ok(Some(group))
    }

    fn push_region(&mut self, first: u32, candidates: Vec<(Choice, u128)>, unit: Option<u128>) {
        let trace_len = self.trace.len() as u32;
        self.path.push(Decision {
            layer: u32::MAX,
            line: first,
            word: REGION,
            taken: 0,
            candidates,
            unit,
            trace_len,
            crashed_here: false,
            group: Vec::new(),
            rejected: None,
        });
    }

    /// The images, each once, and what is left for "rejected"; with the number of states of each.
    fn images(&mut self, open: &[Open], all: u128) -> Vec<(Option<Vec<Decided>>, u128)> {
        let mut groups: Vec<Vec<Decided>> = Vec::new();
        for image in IMAGES {
            let at = |number: usize, o: &Open| {
                let window = self.window((o.layer, o.line));
                Some(if image.has(number, open.len()) { window.highest_fitting() } else { window.lowest_fitting() })
            };
            groups.extend(self.group(open, at));
        }
        for (layer, seq) in self.moments(open) {
            let at = |_: usize, o: &Open| {
                let window = self.window((o.layer, o.line));
                match o.layer.cmp(&layer) {
                    std::cmp::Ordering::Less => Some(window.highest_fitting()),
                    std::cmp::Ordering::Greater => Some(window.lowest_fitting()),
                    std::cmp::Ordering::Equal => Some(window.visible_at(seq)).filter(|at| window.agrees(at)),
                }
            };
            groups.extend(self.group(open, at));
        }
        let mut images: Vec<(Option<Vec<Decided>>, u128)> = Vec::new();
        for group in groups {
            if images.iter().any(|(known, _)| known.as_ref() == Some(&group)) {
                continue;
            }
            let states = self.states_with(open, &group);
            images.push((Some(group), states));
        }
        let named = images.iter().fold(0u128, |sum, (_, n)| sum.saturating_add(*n));
        if named < all {
            images.insert(1, (None, if all == u128::MAX { all } else { all - named }));
        }
        images
    }

    /// The words of a region, decided by the state of each of its windows.
    fn group(&self, open: &[Open], at: impl Fn(usize, &Open) -> Option<Positions>) -> Option<Vec<Decided>> {
        let mut group = Vec::new();
        for (number, o) in open.iter().enumerate() {
            let (window, at) = (self.window((o.layer, o.line)), at(number, o)?);
            let words = (0..WORDS).filter(|w| o.words >> w & 1 == 1);
            group.extend(words.map(|w| (o.layer, o.line, w as u8, window.value_at(w, at[w]))));
        }
        Some(group)
    }

    /// Where stores to a region ended, for the time being: the layer, and the position of the last of them in its trace.
    fn moments(&mut self, open: &[Open]) -> Vec<(u32, u32)> {
        let mut stores = Vec::new();
        for o in open {
            let within = |word: u8| o.words >> word & 1 == 1;
            let window = self.window((o.layer, o.line));
            stores.extend(window.stores.iter().filter(|s| within(s.word)).map(|s| (o.layer, s.seq)));
        }
        stores.sort_unstable();
        let goes_on = |at: usize| stores.get(at + 1).is_some_and(|next| *next == (stores[at].0, stores[at].1 + 1));
        let mut ends: Vec<_> = (0..stores.len()).filter(|at| !goes_on(*at)).map(|at| stores[at]).collect();
        if ends.len() > MOMENTS {
            ends.drain(..ends.len() - MOMENTS);
            self.exact = false;
        }
        ends
    }

    fn states_with(&mut self, open: &[Open], group: &[Decided]) -> u128 {
        for (layer, line, word, choice) in group {
            self.layers[*layer as usize].windows[*line as usize].decide(*word as usize, *choice);
        }
        let states = open.iter().fold(1u128, |all, o| all.saturating_mul(self.window((o.layer, o.line)).count()));
        for (layer, line, word, _) in group {
            self.layers[*layer as usize].windows[*line as usize].undecide(*word as usize);
        }
        states
    }
}
