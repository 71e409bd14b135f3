//! Calls that fail on demand.

use std::collections::BTreeMap;
use std::io;

/// A kind of call to the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Call {
    /// Opening or creating a file.
    Open,
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Changing the length, allocating, punching a hole.
    Resize,
    /// Syncing a file.
    Sync,
    /// Syncing a directory.
    SyncDirectory,
    /// Renaming, linking, removing, making a directory.
    Name,
}

impl Call {
    /// All kinds.
    pub const ALL: [Call; 7] =
        [Call::Open, Call::Read, Call::Write, Call::Resize, Call::Sync, Call::SyncDirectory, Call::Name];

    /// The faults that [`Files::each_fault`](crate::fs::Files::each_fault) plants in calls of this kind.
    pub fn faults(self) -> &'static [Fault] {
        match self {
            Call::Open => &[Fault::Io, Fault::NoSpace],
            Call::Read => &[Fault::Io],
            Call::Write => &[Fault::Io, Fault::NoSpace, Fault::Short(1)],
            Call::Resize | Call::Name => &[Fault::Io, Fault::NoSpace],
            Call::Sync | Call::SyncDirectory => &[Fault::Io],
        }
    }
}

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// EIO. The call has no effect, except a sync: of what it should have written, any part is lost for good, and marked as written.
    Io,
    /// ENOSPC, with no effect. Not for reads and syncs.
    NoSpace,
    /// No error, but so many bytes only are read or written.
    Short(usize),
}

impl Fault {
    pub(super) fn error(self) -> io::Error {
        match self {
            Fault::NoSpace => io::ErrorKind::StorageFull.into(),
            // EIO has no kind of its own.
            _ => io::Error::from_raw_os_error(5),
        }
    }
}

/// Which calls are to fail, and how many there have been.
#[derive(Clone, Debug, Default)]
pub(super) struct Faults {
    calls: BTreeMap<Call, u64>,
    failing: BTreeMap<(Call, u64), Fault>,
    /// All calls in order, by kind, and the fault of one of them.
    pub(super) all: u64,
    pub(super) one: Option<(u64, Fault)>,
    /// The kinds of all calls, if somebody asks.
    pub(super) log: Option<Vec<Call>>,
}

impl Faults {
    pub(super) fn fail(&mut self, call: Call, n: u64, fault: Fault) {
        let so_far = self.calls(call);
        self.failing.insert((call, so_far + n), fault);
    }

    pub(super) fn calls(&self, call: Call) -> u64 {
        self.calls.get(&call).copied().unwrap_or_default()
    }

    /// Counts a call. Returns its fault, if it has one.
    pub(super) fn hit(&mut self, call: Call) -> Option<Fault> {
        let count = self.calls.entry(call).or_default();
        *count += 1;
        let at = (call, *count);
        self.all += 1;
        self.log.iter_mut().for_each(|log| log.push(call));
        let planted = self.one.filter(|(n, _)| *n == self.all).map(|(_, fault)| fault);
        planted.or_else(|| self.failing.remove(&at))
    }
}
