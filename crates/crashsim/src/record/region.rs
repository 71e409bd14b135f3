//! Regions that a checksum covers: recovery reads all of them, and every word would split the execution. Instead the
//! region is taken as one: everything has reached memory; nothing has; what was visible in between whenever something else
//! happened than stores to the region (an older object that was whole, and overwritten); a handful of torn images, which
//! drive the checksum itself; and all the rest, which the checksum rejects.
//!
//! For the rest a *witness* stands: one of its states, picked at random, that the checksum really has rejected. What
//! follows is then an execution on a state that a crash can leave, so that whatever is wrong there is wrong. The witness
//! speaks for the others as long as nothing looks at it but checks of the same region; its words therefore stay flagged, and
//! the exploration is not called complete where one of them is read by itself.

use std::sync::atomic::Ordering;

use crate::model::layer::Layer;
use crate::model::window::{Choice, Positions, WORDS, Window};
use crate::random::next;
use crate::record::recorder::{DECIDE, Recorder, TOUCHED};
use crate::record::state::{Decision, State};

/// Regions with no more states are read word by word.
const FEW: u128 = 64;

/// Most moments at which a region is taken as it was visible; with more, the exploration is not complete.
const MOMENTS: usize = 32;

/// Marks a decision on a region in the place of the word.
pub(crate) const REGION: u8 = 0xff;

/// States picked at random in search of a witness.
const WITNESSES: usize = 256;

/// What is known of a region before its checksum is verified.
pub(crate) enum Region {
    /// It holds what it holds.
    AsItIs,
    /// It has been rejected, and nothing has changed since.
    Rejected,
    /// It holds the witness of all the states that the checksum rejects.
    Witness,
}

/// A region that the checksum has rejected.
#[derive(Clone, Debug)]
pub(crate) struct Rejected {
    range: Range,
    /// Layers below this number are what was rejected.
    depth: usize,
    /// Whether that was before the crash in force.
    before: bool,
    /// Words that the witness decides: indices of lines, and words in them.
    words: Vec<(u32, u8)>,
}

impl Rejected {
    fn decides(&self, line: u32, word: u8) -> bool {
        self.words.contains(&(line, word))
    }
}

/// What a decision on a region holds beyond that on a word.
#[derive(Clone, Debug, Default)]
pub(crate) struct OfRegion {
    /// The words that it decides.
    pub(crate) group: Vec<Decided>,
    /// Set if the checksum has rejected them.
    rejected: Option<Rejected>,
}

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
    /// Before a region is verified: decides what it holds.
    pub(crate) fn decide_region(&self, (first, count): Range) -> Region {
        if self.mode.load(Ordering::Relaxed) & DECIDE == 0 || count == 0 {
            return Region::AsItIs;
        }
        let mut guard = self.lock();
        let state = &mut *guard;
        let lines = first / WORDS as u32..=(first + count - 1) / WORDS as u32;
        let flags = lines.clone().fold(0, |all, line| all | self.flag(line).load(Ordering::Relaxed));
        if flags & 0xff == 0 || !state.forced.is_empty() {
            return Region::AsItIs;
        }
        if flags & TOUCHED == 0 && state.is_rejected((first, count)) {
            return Region::Rejected;
        }
        // With some expected words not met, its words may be flagged because they were read before; this region was decided
        // after that, or not at all.
        if !self.met_expected() {
            return Region::AsItIs;
        }
        self.show_witnesses(state, (first, count));
        let open = state.open_in((first, count), |line| self.undecided_in(line));
        let (group, is_witness) = match state.branch_region((first, count), &open) {
            Ok(Some(group)) => group,
            Ok(None) => return Region::AsItIs,
            Err(()) => {
                drop(guard);
                self.went_elsewhere();
            }
        };
        for (layer, line, word, choice) in group {
            state.decide_word((layer, line, word), choice);
        }
        for open in open {
            for word in (0..WORDS).filter(|w| open.words >> w & 1 == 1) {
                self.reveal(state, open.line, word);
            }
        }
        if is_witness { Region::Witness } else { Region::AsItIs }
    }

    /// The bits of the words of a line that the next read has to decide.
    fn undecided_in(&self, line: u32) -> u8 {
        self.flag(line).load(Ordering::Relaxed) as u8
    }

    /// Takes note of what the checksum says of the witness that [`decide_region`](Recorder::decide_region) has picked.
    pub(crate) fn verified_witness(&self, range: Range, is_sound: bool) {
        let mut state = self.lock();
        let state = &mut *state;
        if is_sound {
            // A torn image that the checksum takes for whole: no longer does it speak for the others.
            state.exact = false;
            return;
        }
        let depth = state.depth;
        let decision = state.cursor.checked_sub(1).and_then(|at| state.path.get_mut(at));
        let Some(of) = decision.filter(|d| d.line == range.0).and_then(|d| d.region.as_mut()) else {
            // The checksum has read something else that was open.
            state.exact = false;
            return;
        };
        let words = of.group.iter().map(|(_, line, word, _)| (*line, *word)).collect();
        let rejected = Rejected { range, depth, before: false, words };
        of.rejected = Some(rejected.clone());
        self.hide_witness(state, &rejected);
        state.rejected.push(rejected);
    }

    /// Hides the witnesses of what was rejected before the crash in force, when a recovery starts.
    pub(crate) fn hide_witnesses(&self, state: &mut State) {
        state.forget_rejections();
        for at in 0..state.rejected.len() {
            let rejected = state.rejected[at].clone();
            self.hide_witness(state, &rejected);
        }
    }

    /// Has reads of the words noticed.
    fn hide_witness(&self, state: &State, rejected: &Rejected) {
        for (line, word) in &rejected.words {
            self.change_flag(state.lines[*line as usize].number, |flag| flag | 1 << word);
        }
    }

    /// Lets the checksum see the witnesses within a region that is verified again.
    fn show_witnesses(&self, state: &mut State, (first, count): Range) {
        for at in 0..state.rejected.len() {
            if state.rejected[at].range == (first, count) {
                for (line, word) in state.rejected[at].words.clone() {
                    if self.undecided_in(state.lines[line as usize].number) >> word & 1 == 1 {
                        self.reveal(state, line, word as usize);
                    }
                }
            }
        }
    }
}

impl State {
    /// Whether a region was rejected, and no layer since has stored to it.
    fn is_rejected(&self, (first, count): Range) -> bool {
        let lines = first / WORDS as u32..=(first + count - 1) / WORDS as u32;
        let is_void = |layer: &Layer| {
            let void = |number: u32| {
                let window = self.index_of(number).and_then(|line| layer.window(line));
                window.is_none_or(Window::is_void)
            };
            lines.clone().all(void)
        };
        self.rejected.iter().any(|rejected| {
            rejected.range == (first, count) && self.layers[rejected.depth..self.depth].iter().all(is_void)
        })
    }

    /// Whether a region that was rejected before the crash in force has this word.
    pub(crate) fn is_of_witness(&self, word: u32) -> bool {
        let Some(line) = self.index_of(word / WORDS as u32) else { return false };
        self.rejected.iter().any(|rejected| rejected.before && rejected.decides(line, (word % WORDS as u32) as u8))
    }

    /// A word that has been decided is read by itself: if it belongs to a witness, that no longer speaks for the others.
    pub(crate) fn note_read_of_witness(&mut self, layer: usize, line: u32, word: usize) {
        if self.rejected.iter().any(|rejected| layer < rejected.depth && rejected.decides(line, word as u8)) {
            self.exact = false;
        }
    }

    /// Forgets what the last execution has rejected, up to the crash in force.
    pub(crate) fn forget_rejections(&mut self) {
        self.rejected.retain(|rejected| rejected.before);
    }

    /// What the decisions on regions before a position of the trace have rejected, as it holds below a crash there.
    pub(crate) fn rejected_before(&self, trace_len: usize) -> Vec<Rejected> {
        let before = self.path.iter().filter(|d| (d.trace_len as usize) < trace_len);
        before
            .filter_map(|d| d.region.as_ref()?.rejected.clone())
            .map(|rejected| Rejected { before: true, ..rejected })
            .collect()
    }

    /// The open windows of a region with words that are undecided, in order. What this execution has stored itself is not, as
    /// `flagged` tells.
    fn open_in(&self, (first, count): Range, flagged: impl Fn(u32) -> u8) -> Vec<Open> {
        let mut open = Vec::new();
        for number in first / WORDS as u32..=(first + count - 1) / WORDS as u32 {
            let Some(line) = self.index_of(number) else { continue };
            let within = |w: u32| (first..first + count).contains(&(number * WORDS as u32 + w));
            let mask = (0..WORDS as u32).filter(|w| within(*w)).fold(0u8, |mask, w| mask | 1 << w);
            let mask = mask & flagged(number);
            for layer in 0..self.depth as u32 {
                let words = self.layers[layer as usize].window(line).map_or(0, |window| window.undecided() & mask);
                if words != 0 {
                    open.push(Open { layer, line, words });
                }
            }
        }
        open
    }

    /// The words of the region to decide, and whether they are a witness. `None`: it is read word by word.
    fn branch_region(&mut self, (first, count): Range, open: &[Open]) -> Result<Option<(Vec<Decided>, bool)>, ()> {
        for open in open {
            let model = self.machine.model;
            self.layers[open.layer as usize].windows[open.line as usize].refresh(model);
        }
        let all = open.iter().fold(1u128, |all, o| all.saturating_mul(self.window((o.layer, o.line)).count()));
        if all <= FEW {
            return Ok(None);
        }
        let known = self.path.get(self.cursor).map(|known| (known.layer, known.line, known.word));
        if known.is_some_and(|known| known != (u32::MAX, first, REGION)) {
            return Err(());
        }
        let (images, witness) = self.images(open, all, u64::from(first) << 32 | u64::from(count));
        if known.is_none() {
            let unit = self.leaf_weight().filter(|_| all < u128::MAX).and_then(|weight| weight.checked_div(all));
            let candidates = images.iter().enumerate().map(|(i, (_, n))| (Some(i as u64), *n)).collect();
            self.push_region(first, candidates, unit);
        }
        let decision = &mut self.path[self.cursor];
        let taken = decision.taken as usize;
        let Some((group, _)) = images.get(taken) else { return Err(()) };
        decision.region = Some(Box::new(OfRegion { group: group.clone(), rejected: None }));
        self.cursor += 1;
        Ok(Some((group.clone(), witness == Some(taken))))
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
            region: Some(Box::default()),
        });
    }

    /// The images, each once, with the number of states of each; and which of them is the witness of all the rest.
    fn images(&mut self, open: &[Open], all: u128, seed: u64) -> (Vec<(Vec<Decided>, u128)>, Option<usize>) {
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
        let mut images: Vec<(Vec<Decided>, u128)> = Vec::new();
        for group in groups {
            if images.iter().any(|(known, _)| *known == group) {
                continue;
            }
            let states = self.states_with(open, &group);
            images.push((group, states));
        }
        let named = images.iter().fold(0u128, |sum, (_, n)| sum.saturating_add(*n));
        if named >= all {
            return (images, None);
        }
        let Some(witness) = self.witness(open, &images, seed) else {
            self.exact = false;
            return (images, None);
        };
        images.insert(1, (witness, if all == u128::MAX { all } else { all - named }));
        (images, Some(1))
    }

    /// A state of the region that is none of its images.
    fn witness(&self, open: &[Open], images: &[(Vec<Decided>, u128)], mut seed: u64) -> Option<Vec<Decided>> {
        seed |= 1;
        (0..WITNESSES).find_map(|_| {
            let states: Vec<Option<Positions>> = open
                .iter()
                .map(|o| {
                    let window = self.window((o.layer, o.line));
                    (0..8).map(|_| window.random(|below| next(&mut seed) % below)).find(|at| window.agrees(at))
                })
                .collect();
            let group = self.group(open, |number, o| {
                states[number].or_else(|| Some(self.window((o.layer, o.line)).lowest_fitting()))
            })?;
            images.iter().all(|(known, _)| *known != group).then_some(group)
        })
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
