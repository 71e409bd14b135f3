//! The crash state and what has been decided of it: layers, lines, and the decisions of the recovery under way.

use durix_pmem::{LINE, Reserve};

use crate::count::Count;
use crate::model::layer::{Layer, Machine};
use crate::model::trace::{At, Event};
use crate::model::window::{Choice, Positions, WORDS, Window};
use crate::record::region::{OfRegion, REGION, Rejected};

/// A line that has been stored at least once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LineState {
    /// Number of the line in the arena.
    pub(crate) number: u32,
    /// Contents before the first store ever.
    pub(super) initial: [u64; WORDS],
    pub(super) queued: bool,
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
    pub(super) index: Vec<u32>,
    pub(crate) lines: Vec<LineState>,
    /// Layers in force, the execution under test first; those behind `depth` are spare.
    pub(crate) layers: Vec<Layer>,
    pub(crate) depth: usize,
    /// Indices of lines whose arena contents differ from the crash state.
    pub(super) queue: Vec<u32>,
    /// Branches of the recovery under way; the first `cursor` have been met again.
    pub(crate) path: Vec<Decision>,
    pub(crate) cursor: usize,
    /// Number of states at the crash point, unless too large.
    pub(crate) total: Option<u128>,
    /// Words decided in the recovery under way, branch or not: (layer, line, word).
    pub(super) decided: Vec<(u32, u32, u8)>,
    /// Words (line, word) whose decision was taken back, while the arena still holds it.
    pub(super) undone: Vec<(u32, u8)>,
    pub(super) spare: Vec<Vec<(Choice, u128)>>,
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
    pub(super) fresh: bool,
    /// Memory that one mapping after the other gets, with the crash state in it.
    pub(super) kept: Option<Reserve>,
    /// The memory that is kept does not hold what it should: another arena was in use meanwhile.
    pub(super) stale: bool,
    /// Reads do not branch: the recovery is over.
    pub(super) silent: bool,
    /// Regions that their checksums have rejected.
    pub(crate) rejected: Vec<Rejected>,
    /// Numbers of the candidates always added up.
    pub(crate) exact: bool,
}

impl State {
    /// Whether an arena is the one that is kept.
    pub(super) fn is_kept(&self, base: *const u8) -> bool {
        self.kept.as_ref().is_some_and(|kept| std::ptr::eq(kept.base().as_ptr(), base))
    }

    /// The index of a line of the arena, if it was ever stored.
    pub(crate) fn index_of(&self, line: u32) -> Option<u32> {
        self.index.get(line as usize)?.checked_sub(1)
    }

    /// A line in the crash state, with poison in the words that are undecided; and their bits.
    pub(super) fn contents(&self, index: u32) -> ([u64; WORDS], u8) {
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
    pub(super) fn copy_line(&self, index: u32, offset: usize, bytes: &mut [u8]) {
        let (values, _) = self.contents(index);
        let start = self.lines[index as usize].number as usize * LINE;
        let line: [u8; LINE] = std::array::from_fn(|at| values[at / 8].to_le_bytes()[at % 8]);
        let (from, to) = (start.max(offset), (start + LINE).min(offset + bytes.len()));
        if from < to {
            bytes[from - offset..to - offset].copy_from_slice(&line[from - start..to - start]);
        }
    }

    /// The value of a word in the crash state.
    pub(super) fn says(&self, index: u32, word: usize) -> Result<u64, ()> {
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
    pub(super) fn decide(&mut self, line: u32, word: usize, at: At) -> Option<u64> {
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
    pub(super) fn shared(&self, at: usize) -> Option<(u32, usize)> {
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
    pub(super) fn undo_decisions_from(&mut self, keep: usize) {
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

    pub(crate) fn window(&self, (layer, line): (u32, u32)) -> &Window {
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
pub(super) fn poison(line: u32, word: usize) -> u64 {
    0xDEAD_0000_0000_0000 | u64::from(line) << 8 | word as u64
}
