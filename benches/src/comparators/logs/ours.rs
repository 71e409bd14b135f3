//! The logs of `durix-cso`, through their public interface.

use std::any::type_name;

use durix_cso::log::{self, FvbLog, FvbOptions, Geometry, LinesLog, Log, RandomLog, RandomOptions, VbLog};
use durix_pmem::{Medium, Op};

use super::append::{AppendLog, Claim, Error, Region};

/// What the benches have to know of a log of ours.
pub trait Known: Log {
    /// As the paper calls it.
    const NAME: &'static str;

    /// Its options for payloads of so many words.
    fn options(words: usize) -> Self::Options;
}

impl<G: Geometry> Known for VbLog<G> {
    const NAME: &'static str = "CSO-VB";
    fn options(_: usize) {}
}

impl Known for LinesLog {
    const NAME: &'static str = "CSO-VB";
    fn options(_: usize) {}
}

impl Known for FvbLog {
    const NAME: &'static str = "CSO-FVB";
    fn options(words: usize) -> FvbOptions {
        FvbOptions { lines: (words as u64).div_ceil(7) }
    }
}

impl Known for RandomLog {
    const NAME: &'static str = "CSO-Random";
    fn options(_: usize) -> RandomOptions {
        // Always the same, so that runs can be compared: no payload of the benches has it.
        RandomOptions { pattern: Some(0x7d1e_94a6_03b8_5cf2) }
    }
}

/// A log of ours as one of the bench's.
#[derive(Debug)]
pub struct Ours<L>(L);

fn region(region: Region) -> log::Region {
    log::Region { off: region.off, len: region.len }
}

fn error(error: log::Error) -> Error {
    match error {
        log::Error::Full { .. } => Error::Full,
        other => Error::Failed(other.to_string()),
    }
}

fn payload<M: Medium, const W: usize>(record: &log::Record<'_, M>) -> [u64; W] {
    let mut words = [0; W];
    record.copy_words(&mut words);
    words
}

impl<M: Medium, L: Known, const W: usize> AppendLog<M, W> for Ours<L> {
    const NAME: &'static str = L::NAME;
    const CLAIM: Claim = Claim::Lines;

    fn format(op: &Op<'_, M>, at: Region) -> Result<Self, Error> {
        L::format(op, region(at), &L::options(W)).map(Ours).map_err(error)
    }

    fn recover(op: &Op<'_, M>, at: Region) -> Result<(Self, Vec<[u64; W]>), Error> {
        let log = L::recover(op, region(at)).map_err(error)?;
        if cfg!(test) {
            let findings = log.check(op);
            assert!(findings.is_empty(), "{}: {findings:?}", type_name::<L>());
        }
        let entries = log.iter(op).map(|record| payload(&record)).collect();
        Ok((Ours(log), entries))
    }

    #[inline(always)]
    fn append(&mut self, op: &Op<'_, M>, payload: &[u64; W]) -> Result<(), Error> {
        match self.0.append_words(op, 0, payload) {
            Ok(_) => Ok(()),
            Err(refused) => Err(error(refused)),
        }
    }

    #[inline(always)]
    fn consume(&mut self, op: &Op<'_, M>, mut sink: impl FnMut(&[u64; W])) {
        self.0.iter(op).for_each(|record| sink(&payload(&record)));
        let tail = self.0.tail();
        self.0.trim(op, tail).expect("the tail is where a log may be trimmed to");
        self.0.commit(op);
    }
}
