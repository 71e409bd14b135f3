//! What a crash leaves open, and the decisions that settle it.
//!
//! Each thing that a crash leaves open (a sector, a size, a name) becomes a [`Cell`] with several options. A read of the cell
//! decides no more than it has to: options that give the same answer stay together.

use std::sync::Arc;

use crate::count::Count;

/// A value, or one that a crash has left open.
#[derive(Clone, Debug)]
pub(super) enum Cell<T> {
    Known(T),
    /// One of the options. The unknown says which of them are left.
    Open(u32, Arc<[Cell<T>]>),
}

impl<T: PartialEq> Cell<T> {
    pub(super) fn is_same(&self, other: &Cell<T>) -> bool {
        match (self, other) {
            (Cell::Known(a), Cell::Known(b)) => a == b,
            (Cell::Open(a, table), Cell::Open(b, other)) => a == b && Arc::ptr_eq(table, other),
            _ => false,
        }
    }
}

/// What an unknown is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Sector {
        inode: u32,
        number: u64,
    },
    Size {
        inode: u32,
    },
    Name {
        directory: u32,
        name: u32,
    },
    /// How many operations on names have survived, where they survive in order.
    Names,
}

/// Something that a crash has left open.
#[derive(Clone, Debug)]
pub(super) struct Unknown {
    pub(super) target: Target,
    /// Which crash left it open, counted from 0.
    pub(super) layer: u32,
    /// Which step of that execution made each option.
    pub(super) steps: Arc<[u32]>,
    /// The options left, in order.
    pub(super) alive: Vec<u16>,
}

impl Unknown {
    pub(super) fn newest(&self) -> u16 {
        *self.alive.last().expect("an unknown keeps one option")
    }
}

/// All that crashes have left open so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Unknowns {
    pub(super) all: Vec<Unknown>,
}

impl Unknowns {
    pub(super) fn add(&mut self, target: Target, layer: u32, steps: Vec<u32>) -> u32 {
        let alive = (0..steps.len() as u16).collect();
        self.all.push(Unknown { target, layer, steps: steps.into(), alive });
        self.all.len() as u32 - 1
    }

    /// Number of states.
    pub(super) fn states(&self) -> Count {
        let mut states = Count::one();
        for unknown in self.all.iter().filter(|unknown| unknown.alive.len() > 1) {
            states = states.times(unknown.alive.len() as u128);
        }
        states
    }

    /// Whether the condition holds for any value that the cell may have.
    pub(super) fn any<T>(&self, cell: &Cell<T>, condition: &impl Fn(&T) -> bool) -> bool {
        match cell {
            Cell::Known(value) => condition(value),
            Cell::Open(id, options) => {
                let alive = &self.all[*id as usize].alive;
                alive.iter().any(|option| self.any(&options[usize::from(*option)], condition))
            }
        }
    }

    /// The value of a cell, as far as `same` can tell its values apart.
    pub(super) fn resolve<'a, T>(
        &mut self,
        decisions: &mut Decisions,
        mut cell: &'a Cell<T>,
        same: impl Fn(&T, &T) -> bool,
    ) -> &'a T {
        loop {
            let (id, options) = match cell {
                Cell::Known(value) => return value,
                Cell::Open(id, options) => (*id, options),
            };
            let alive = &self.all[id as usize].alive;
            let alike = |a: u16, b: u16| match (&options[a as usize], &options[b as usize]) {
                (Cell::Known(a), Cell::Known(b)) => same(a, b),
                (Cell::Open(a, table), Cell::Open(b, other)) => a == b && Arc::ptr_eq(table, other),
                _ => false,
            };
            let first = alive[0];
            if alive.iter().all(|other| alike(first, *other)) {
                cell = &options[first as usize];
                continue;
            }
            // The newest first: the ordinary case is that everything has reached the disk.
            let mut groups: Vec<Vec<u16>> = Vec::new();
            for option in alive.iter().rev() {
                match groups.iter_mut().find(|group| alike(group[0], *option)) {
                    Some(group) => group.push(*option),
                    None => groups.push(vec![*option]),
                }
            }
            let taken = decisions.decide(id, groups.len() as u16);
            let mut group = groups.swap_remove(usize::from(taken).min(groups.len() - 1));
            group.reverse();
            cell = &options[group[0] as usize];
            self.all[id as usize].alive = group;
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Decision {
    unknown: u32,
    taken: u16,
    arity: u16,
}

/// The decisions of one execution, in order. The next execution repeats all but the last that has an alternative left.
#[derive(Clone, Debug, Default)]
pub(super) struct Decisions {
    path: Vec<Decision>,
    /// How many of them this execution has made.
    made: usize,
    /// The execution did not repeat what the one before it did.
    pub(super) astray: bool,
}

impl Decisions {
    pub(super) fn made(&self) -> usize {
        self.made
    }

    fn decide(&mut self, unknown: u32, arity: u16) -> u16 {
        if self.made == self.path.len() {
            self.path.push(Decision { unknown, taken: 0, arity });
        }
        let decision = self.path[self.made];
        self.astray |= (decision.unknown, decision.arity) != (unknown, arity);
        self.made += 1;
        decision.taken
    }

    /// Goes on to the next execution. Returns the position of the decision that changes, if there is one.
    pub(super) fn advance(&mut self) -> Option<usize> {
        self.astray |= self.made < self.path.len();
        self.made = 0;
        while let Some(last) = self.path.last_mut() {
            if last.taken + 1 < last.arity {
                last.taken += 1;
                return Some(self.path.len() - 1);
            }
            self.path.pop();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_splits_options_only_as_far_as_it_can_tell_them_apart() {
        let mut unknowns = Unknowns::default();
        let id = unknowns.add(Target::Names, 0, vec![0; 4]);
        let cell = Cell::Open(id, [10, 11, 20, 21].map(Cell::Known).into());
        let (mut decisions, mut seen, mut states) = (Decisions::default(), Vec::new(), 0);
        loop {
            let mut of_this = unknowns.clone();
            let tens = *of_this.resolve(&mut decisions, &cell, |a, b| a / 10 == b / 10) / 10;
            seen.push((tens, of_this.all[0].alive.len()));
            states += of_this.states().small().unwrap();
            if decisions.advance().is_none() {
                break;
            }
        }
        assert_eq!(seen, [(2, 2), (1, 2)]);
        assert_eq!(Some(states), unknowns.states().small());
    }
}
