//! How a transaction log works: chosen when it is created, and kept in the pool.

use std::fmt;

use durix_pmem::Bits;

use crate::adll::StorePolicy;
use crate::error::{Error, Result};
use crate::log::Shape;

/// Slots of a bucket unless told otherwise, as in the paper's evaluation.
pub const DEFAULT_SLOTS: u64 = 1000;
/// Most slots of a bucket.
pub const MAX_SLOTS: u64 = 4096;
/// Most logs of a distributed log.
pub const MAX_LANES: u64 = 64;
/// Most records of a group.
pub const MAX_GROUP: u64 = 64;

/// How the log keeps its records (section 3 of the paper).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogKind {
    /// A list of records. Each costs three fences.
    Simple,
    /// Buckets of pointers to records. Each record costs two fences.
    Optimized,
    /// Buckets of pointers to records, of which so many become durable together: 8, 16 or 32 in the paper, 2 to [`MAX_GROUP`]
    /// here. A group costs two fences; the writes of a transaction happen when their group is durable.
    Batch(u64),
}

/// How a transaction finds its records in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layers {
    /// By a scan of the log: logging is as cheap as it can be.
    One,
    /// By a tree that leads from each transaction to its records: rolling back and clearing touch only these.
    Two,
}

/// When the words that a transaction has written become durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Before the transaction has committed. Its records go with it; recovery has two phases.
    Force,
    /// Some time later: a checkpoint writes them back and removes the records. Recovery has three phases.
    NoForce,
}

/// How a log is created. An existing one must be opened with the same options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    pub(crate) log: LogKind,
    pub(crate) layers: Layers,
    pub(crate) policy: Policy,
    pub(crate) slots: u64,
    pub(crate) lanes: u64,
    pub(crate) stores: StorePolicy,
}

impl Default for Options {
    /// Groups of 8 records, one layer, no force.
    fn default() -> Self {
        let (log, layers, policy) = (LogKind::Batch(8), Layers::One, Policy::NoForce);
        Options { log, layers, policy, slots: DEFAULT_SLOTS, lanes: 1, stores: StorePolicy::WriteBack }
    }
}

impl Options {
    /// The kind of log.
    #[must_use]
    pub fn log(self, log: LogKind) -> Self {
        Options { log, ..self }
    }

    /// One or two layers.
    #[must_use]
    pub fn layers(self, layers: Layers) -> Self {
        Options { layers, ..self }
    }

    /// Force or no force.
    #[must_use]
    pub fn policy(self, policy: Policy) -> Self {
        Options { policy, ..self }
    }

    /// Slots of a bucket, 8 to [`MAX_SLOTS`]; 1000 unless set.
    #[must_use]
    pub fn bucket(self, slots: u64) -> Self {
        Options { slots, ..self }
    }

    /// A distributed log: so many logs, 1 to [`MAX_LANES`], 1 unless set. A session uses the one of its slot, so sessions with logs
    /// of their own never wait for each other's fences. Numbers of records come from one counter, and recovery redoes all in
    /// that order. One watermark says for all logs what is durable in place.
    #[must_use]
    pub fn lanes(self, lanes: u64) -> Self {
        Options { lanes, ..self }
    }

    /// How the header of the log's list is made durable. It is no part of the format.
    #[must_use]
    pub fn stores(self, stores: StorePolicy) -> Self {
        Options { stores, ..self }
    }

    /// Whether the numbers are in range.
    pub(crate) fn validated(self) -> Result<Self> {
        if !(8..=MAX_SLOTS).contains(&self.slots) {
            return Err(Error::Option { what: "the bucket size", value: self.slots, least: 8, most: MAX_SLOTS });
        }
        if !(1..=MAX_LANES).contains(&self.lanes) {
            return Err(Error::Option { what: "the number of logs", value: self.lanes, least: 1, most: MAX_LANES });
        }
        match self.log {
            LogKind::Batch(group) if !(2..=MAX_GROUP).contains(&group) => {
                Err(Error::Option { what: "the group size", value: group, least: 2, most: MAX_GROUP })
            }
            _ => Ok(self),
        }
    }

    pub(crate) fn shape(self) -> Shape {
        let (slots, group) = match self.log {
            LogKind::Simple => (0, 1),
            LogKind::Optimized => (self.slots, 1),
            LogKind::Batch(group) => (self.slots, group),
        };
        Shape { slots, group, policy: self.stores }
    }

    pub(crate) fn forces(self) -> bool {
        self.policy == Policy::Force
    }
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.log {
            LogKind::Simple => f.write_str("Simple")?,
            LogKind::Optimized => write!(f, "Optimized (buckets of {})", self.slots)?,
            LogKind::Batch(group) => write!(f, "Batch {group} (buckets of {})", self.slots)?,
        }
        let layers = if self.layers == Layers::One { "one layer" } else { "two layers" };
        write!(f, ", {layers}, {}", if self.forces() { "force" } else { "no force" })?;
        if self.lanes > 1 { write!(f, ", {} logs", self.lanes) } else { Ok(()) }
    }
}

/// The stored form: bits 0–7 kind (1 Simple, 2 Optimized, 3 Batch), 8–15 group, 16–31 slots, 32 two layers, 33 force, 34–39 logs less one.
impl Bits for Options {
    fn to_bits(self) -> u64 {
        let (kind, group, slots) = match self.log {
            LogKind::Simple => (1, 1, 0),
            LogKind::Optimized => (2, 1, self.slots),
            LogKind::Batch(group) => (3, group, self.slots),
        };
        let (two, force) = (u64::from(self.layers == Layers::Two), u64::from(self.forces()));
        kind | group << 8 | slots << 16 | two << 32 | force << 33 | (self.lanes - 1) << 34
    }

    /// What no log was created with gives options that `validated` refuses.
    fn from_bits(bits: u64) -> Self {
        let (group, slots) = (bits >> 8 & 0xff, bits >> 16 & 0xffff);
        let log = match bits & 0xff {
            1 => LogKind::Simple,
            2 => LogKind::Optimized,
            3 => LogKind::Batch(group),
            _ => LogKind::Batch(0),
        };
        let layers = if bits >> 32 & 1 == 1 { Layers::Two } else { Layers::One };
        let policy = if bits >> 33 & 1 == 1 { Policy::Force } else { Policy::NoForce };
        let slots = if log == LogKind::Simple { DEFAULT_SLOTS } else { slots };
        Options { log, layers, policy, slots, lanes: (bits >> 34 & 0x3f) + 1, stores: StorePolicy::WriteBack }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_come_back_from_the_pool() {
        for log in [LogKind::Simple, LogKind::Optimized, LogKind::Batch(8), LogKind::Batch(32)] {
            for (layers, policy) in [(Layers::One, Policy::Force), (Layers::Two, Policy::NoForce)] {
                let options = Options::default()
                    .log(log)
                    .layers(layers)
                    .policy(policy)
                    .lanes(if layers == Layers::Two { MAX_LANES } else { 1 });
                assert_eq!(Options::from_bits(options.to_bits()), options);
                assert!(options.validated().is_ok());
            }
        }
        assert!(Options::from_bits(0).validated().is_err());
        assert!(Options::default().lanes(0).validated().is_err());
        assert!(Options::default().lanes(65).validated().is_err());
        assert!(Options::default().bucket(7).validated().is_err());
        assert!(Options::default().log(LogKind::Batch(1)).validated().is_err());
    }
}
