//! Histories of a process that is killed: when each call began, when it returned, and what it answered, in a file that outlives it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use super::History;

/// Bytes of a record. They divide a page, so none is written in part.
const RECORD: u64 = 32;

/// The calls of some threads, by thread and number, in a sparse file.
#[derive(Debug)]
pub struct Moments {
    file: File,
    clock: AtomicU64,
    calls: u64,
}

/// When a call began, and when it returned with what: a word, or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// A moment before it had any effect.
    pub begin: u64,
    /// A moment after, and the answer. `None` for a call that was interrupted.
    pub end: Option<(u64, Option<u64>)>,
}

impl Moments {
    /// Opens the file, which is made if it is not there. It has room for `calls` calls of each thread.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(path: &Path, calls: u64) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        Ok(Moments { file, clock: AtomicU64::new(1), calls })
    }

    /// Forgets all calls.
    ///
    /// # Errors
    /// What the system says.
    pub fn clear(&self) -> io::Result<()> {
        self.file.set_len(0)
    }

    /// Notes a call and makes it: its number, and its answer as a word or nothing.
    ///
    /// # Errors
    /// What the system says.
    ///
    /// # Panics
    /// If there is no room for a call with that number.
    pub fn call(&self, thread: u64, number: u64, call: impl FnOnce() -> Option<u64>) -> io::Result<()> {
        let begin = self.now();
        self.write(thread, number, [begin, 0, 0, 0])?;
        let answer = call();
        let end = self.now();
        self.write(thread, number, [begin, end, u64::from(answer.is_some()), answer.unwrap_or(0)])
    }

    /// What is known of a call; `None` if it was not begun.
    ///
    /// # Errors
    /// What the system says.
    pub fn get(&self, thread: u64, number: u64) -> io::Result<Option<Moment>> {
        let mut bytes = [0; RECORD as usize];
        // Behind the end of the file nothing was begun.
        let _read = self.file.read_at(&mut bytes, self.at(thread, number))?;
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let end = (word(8) != 0).then(|| (word(8), (word(16) == 1).then(|| word(24))));
        Ok((word(0) != 0).then(|| Moment { begin: word(0), end }))
    }

    fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    fn at(&self, thread: u64, number: u64) -> u64 {
        assert!(number < self.calls, "room for {} calls of a thread, and this is number {number}", self.calls);
        (thread * self.calls + number) * RECORD
    }

    fn write(&self, thread: u64, number: u64, words: [u64; 4]) -> io::Result<()> {
        let mut bytes = [0; RECORD as usize];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        self.file.write_all_at(&bytes, self.at(thread, number))
    }
}

impl<O: Clone> History<O, Option<u64>> {
    /// Adds calls of threads, in the order of their moments.
    pub fn add_moments(&mut self, calls: &[(usize, O, Moment)]) {
        let of = |(at, (_, _, moment)): (usize, &(usize, O, Moment))| {
            [Some((moment.begin, at)), moment.end.map(|(end, _)| (end, at))]
        };
        let mut moments: Vec<_> = calls.iter().enumerate().flat_map(of).flatten().collect();
        moments.sort_unstable();
        let mut ids = vec![None; calls.len()];
        for (moment, at) in moments {
            let (thread, op, Moment { begin, end }) = &calls[at];
            match (ids[at], end) {
                (Some(id), Some((_, answer))) => self.returns(id, *answer),
                _ if moment == *begin => ids[at] = Some(self.invoke(*thread, op.clone())),
                _ => unreachable!("a call begins before it ends"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Spec, Verdict, check};
    use super::*;
    use crate::Contract;

    /// A register: `Some(v)` writes, `None` reads.
    struct Register;

    impl Spec for Register {
        type Op = Option<u64>;
        type Ret = Option<u64>;
        type State = Option<u64>;

        fn initial(&self) -> Option<u64> {
            None
        }
        fn step(&self, state: &mut Option<u64>, op: &Option<u64>) -> Option<u64> {
            *state = op.or(*state);
            *state
        }
    }

    /// What is found after the crash.
    fn is_legal(calls: &[(usize, Option<u64>, Moment)], found: Option<u64>) -> bool {
        let mut history = History::new();
        history.add_moments(calls);
        history.crash();
        history.runs(9, None, found);
        check(&Register, &history, Contract::Strict) == Verdict::Legal
    }

    #[test]
    fn what_was_written_down_is_judged_with_what_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("moments");
        let moments = Moments::open(&path, 8).unwrap();
        moments.call(0, 0, || Some(1)).unwrap();
        // A call within another one, of another thread; and one that never returns.
        let within = || {
            moments.call(1, 0, || Some(2)).unwrap();
            Some(2)
        };
        moments.call(0, 1, within).unwrap();
        let dies = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            moments.call(1, 1, || panic!("killed")).unwrap();
        }));
        assert!(dies.is_err());
        drop(moments);

        let read = Moments::open(&path, 8).unwrap();
        let get = |thread, number| read.get(thread, number).unwrap();
        let all = [get(0, 0), get(0, 1), get(1, 0), get(1, 1)].map(Option::unwrap);
        assert_eq!(all[0], Moment { begin: 1, end: Some((2, Some(1))) });
        assert_eq!(all[1], Moment { begin: 3, end: Some((6, Some(2))) });
        assert_eq!(all[2], Moment { begin: 4, end: Some((5, Some(2))) });
        assert_eq!(all[3], Moment { begin: 7, end: None });
        assert!(get(0, 2).is_none() && get(1, 7).is_none());

        let calls = [(0, Some(1), all[0]), (0, Some(2), all[1]), (1, None, all[2]), (1, Some(3), all[3])];
        for (found, legal) in [(Some(2), true), (Some(3), true), (Some(1), false), (None, false)] {
            assert_eq!(is_legal(&calls, found), legal, "{found:?}");
        }
        // Read before it had returned, so it is there.
        let seen = [(0, Some(2), Moment { end: None, ..all[1] }), calls[2]];
        assert!(is_legal(&seen, Some(2)) && !is_legal(&seen, None));
        read.clear().unwrap();
        assert!(read.get(0, 0).unwrap().is_none());
    }
}
