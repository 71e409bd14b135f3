//! What survives what, in plain words.

use std::fmt;
use std::time::Duration;

use crate::backing::BackingKind;
use crate::journal::Level;
use crate::medium::Survives;

/// The contract of a structure: when an operation that has returned is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Durability {
    /// At the next completed sync, each key by itself: after a crash each is found as it was at a moment no earlier than that
    /// sync, but different keys may be of different moments.
    BufferedByKey,
    /// At the next completed sync; after a crash a consistent state no older than the last one is found.
    Buffered,
    /// Before it returns.
    Strict,
}

/// What the contents of a pool survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Reach {
    /// Nothing: they live in the memory of this process.
    Nothing,
    /// The death of the process, not a power failure.
    ProcessDeath,
    /// Power failure.
    PowerFailure,
}

/// The effective durability: the weaker of a structure's contract and of what its pool survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Guarantee {
    /// The structure's part.
    pub durability: Durability,
    /// The pool's part.
    pub reach: Reach,
    /// Whether the pool's part rests on [`assume_pmem`](super::PoolOptions::assume_pmem).
    pub assumed: bool,
    /// Whether updates through the facade return only after a flush of the journal has made them durable, whatever the structure.
    pub flushed: bool,
    /// Of a pool that is committed at intervals: how old a state a crash may leave.
    pub interval: Option<Duration>,
}

impl Guarantee {
    pub(crate) fn of(survives: Survives, kind: BackingKind, private: bool) -> Self {
        let reach = match (kind, survives) {
            _ if private => Reach::Nothing,
            (BackingKind::Anonymous, _) => Reach::Nothing,
            (_, Survives::ProcessDeath) => Reach::ProcessDeath,
            (_, Survives::PowerFailure) => Reach::PowerFailure,
        };
        let assumed = kind == BackingKind::File && reach == Reach::PowerFailure;
        // The medium takes nothing from a structure's contract, which `with` adds.
        Guarantee { durability: Durability::Strict, reach, assumed, flushed: false, interval: None }
    }

    /// The guarantee of a pool in an ordinary file that is opened at a level of durability.
    pub fn at(level: Level) -> Self {
        let process = Guarantee::of(Survives::ProcessDeath, BackingKind::File, false);
        let journaled = Guarantee { reach: Reach::PowerFailure, ..process };
        match level {
            Level::Process => process,
            Level::Immediate => Guarantee { flushed: true, ..journaled },
            Level::Interval(time) => Guarantee { durability: Durability::Buffered, interval: Some(time), ..journaled },
        }
    }

    /// The same for a file that a file system keeps [in memory](crate::backing::Backing::is_in_memory): a journal does not help there.
    #[must_use]
    pub fn in_memory(self) -> Guarantee {
        Guarantee { reach: self.reach.min(Reach::ProcessDeath), ..self }
    }

    /// The guarantee of a structure with this contract: the minimum of both.
    #[must_use]
    pub fn with(self, durability: Durability) -> Guarantee {
        // One commit holds everything that was done, whatever the structure says.
        if self.flushed || self.interval.is_some() {
            return self;
        }
        Guarantee { durability: self.durability.min(durability), ..self }
    }

    /// The guarantee of two structures that are used together: the minimum of both.
    #[must_use]
    pub fn min(self, other: Guarantee) -> Guarantee {
        let reach = self.reach.min(other.reach);
        let assumes = |g: Guarantee| g.assumed && g.reach == reach;
        Guarantee {
            durability: self.durability.min(other.durability),
            reach,
            assumed: assumes(self) || assumes(other),
            flushed: self.flushed && other.flushed,
            interval: self.interval.max(other.interval),
        }
    }
}

impl fmt::Display for Guarantee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (Some(time), Reach::PowerFailure) = (self.interval, self.reach) {
            return write!(
                f,
                "one consistent state survives power failure and the death of the process, at most {time:?} and a flush of the \
                 journal old, and everything that a completed sync covers"
            );
        }
        let what = match self.durability {
            Durability::Strict => "an operation that has returned survives",
            Durability::BufferedByKey => "what the last completed sync covers, and of each key perhaps more, survives",
            Durability::Buffered => "what the last completed sync covers survives",
        };
        match self.reach {
            Reach::Nothing => f.write_str("nothing survives the end of the process: changes stay in its memory")?,
            Reach::ProcessDeath => {
                write!(f, "{what} the death of the process, not a power failure or a crash of the operating system")?;
            }
            Reach::PowerFailure => write!(f, "{what} power failure")?,
        }
        if self.flushed && self.reach == Reach::PowerFailure {
            f.write_str(", by a flush of the journal")?;
        }
        if self.assumed {
            f.write_str(", if the mapping is persistent memory as `assume_pmem` says")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [BackingKind; 3] = [BackingKind::Dax, BackingKind::File, BackingKind::Anonymous];

    #[test]
    fn says_what_survives_in_plain_words() {
        let text = |survives, kind, private| Guarantee::of(survives, kind, private).to_string();
        let nothing = "nothing survives the end of the process: changes stay in its memory";
        let [dax, file, heap] = KINDS;
        let power = "an operation that has returned survives power failure";
        assert_eq!(text(Survives::PowerFailure, dax, false), power);
        assert_eq!(
            text(Survives::PowerFailure, file, false),
            format!("{power}, if the mapping is persistent memory as `assume_pmem` says")
        );
        assert_eq!(
            text(Survives::ProcessDeath, file, false),
            "an operation that has returned survives the death of the process, not a power failure or a crash of the \
             operating system"
        );
        assert_eq!(text(Survives::PowerFailure, heap, false), nothing);
        assert_eq!(text(Survives::ProcessDeath, file, true), nothing);
        assert_eq!(
            Guarantee::of(Survives::PowerFailure, dax, false).with(Durability::Buffered).to_string(),
            "what the last completed sync covers survives power failure"
        );
    }

    #[test]
    fn composes_as_a_minimum() {
        for survives in [Survives::ProcessDeath, Survives::PowerFailure] {
            for kind in KINDS {
                let strict = Guarantee::of(survives, kind, false);
                let buffered = strict.with(Durability::Buffered);
                assert_eq!(buffered.durability, Durability::Buffered);
                assert_eq!(buffered.with(Durability::Strict), buffered, "never becomes stronger");
                let by_key = buffered.with(Durability::BufferedByKey);
                assert_eq!(by_key.durability, Durability::BufferedByKey, "weaker than a consistent cut");
                for other in KINDS {
                    let both = strict.min(Guarantee::of(Survives::PowerFailure, other, false));
                    assert!(both.reach <= strict.reach);
                    assert_eq!(both.assumed, both.reach == Reach::PowerFailure && [kind, other].contains(&KINDS[1]));
                }
            }
        }
    }
}
