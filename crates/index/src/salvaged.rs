//! An index that is opened for what can still be read of it, whether its structure opens or not.

use std::collections::HashSet;
use std::fmt;

use durix_pmem::pool::Durability;
use durix_pmem::{Kind, Medium, Op, Root, Session, Structure, Version};

use crate::error::{Error, Result};
use crate::index::{Cursor, Finding, Index, IndexStats, Limits, OrderedIndex};
use crate::kind::{Leftover, Openable};

/// The structure, if it opens, and what lay in its blocks before that: recovery frees blocks that nothing leads to.
pub(crate) struct Salvaged<S, M: Medium> {
    root: Root<M>,
    /// What keeps it from opening.
    opened: Result<S, String>,
    leftovers: Vec<Leftover>,
}

impl<S: Openable<M>, M: Medium> Structure<M> for Salvaged<S, M>
where
    Error: From<S::Error>,
{
    const KIND: Kind = S::KIND;
    const OLDER: &'static [Version] = S::OLDER;
    const TALLIES: bool = S::TALLIES;
    type Options = S::Options;
    type Error = Error;

    fn create(session: &mut Session<M>, root: &Root<M>, options: &S::Options) -> Result<()> {
        Ok(S::create(session, root, options)?)
    }

    fn open(session: &mut Session<M>, root: Root<M>, options: &S::Options) -> Result<Self> {
        let leftovers = S::leftovers(&session.enter()?, &root);
        let opened = match S::open(session, root.clone(), options).map_err(Error::from) {
            Ok(opened) => Ok(opened),
            Err(Error::Corrupt { what, .. }) => Err(what),
            Err(other) => return Err(other),
        };
        Ok(Salvaged { root, opened, leftovers })
    }
}

impl<S, M: Medium> Salvaged<S, M> {
    fn sound(&self) -> Result<&S> {
        self.opened.as_ref().map_err(|what| Error::Corrupt { index: self.root.name(), what: what.clone() })
    }
}

/// A walk over an index that does not open.
struct Refused(Option<Error>);

impl<M: Medium> Cursor<M> for Refused {
    fn next(&mut self, _op: &Op<'_, M>) -> Result<Option<(&[u8], &[u8])>> {
        self.0.take().map_or(Ok(None), Err)
    }
}

impl<S: Openable<M>, M: Medium> Index<M> for Salvaged<S, M> {
    fn root(&self) -> &Root<M> {
        &self.root
    }

    fn durability(&self) -> Durability {
        self.opened.as_ref().map_or(Durability::Strict, Index::durability)
    }

    fn limits(&self) -> Limits {
        self.opened.as_ref().map_or(S::LIMITS, Index::limits)
    }

    fn as_ordered(&self) -> Option<&dyn OrderedIndex<M>> {
        self.opened.as_ref().ok()?.as_ordered()
    }

    fn get(&self, op: &Op<'_, M>, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.sound()?.get(op, key, value)
    }

    fn contains(&self, op: &Op<'_, M>, key: &[u8]) -> Result<bool> {
        self.sound()?.contains(op, key)
    }

    fn cursor(&self) -> Box<dyn Cursor<M> + '_> {
        match self.sound() {
            Ok(sound) => sound.cursor(),
            Err(error) => Box::new(Refused(Some(error))),
        }
    }

    fn insert(&self, op: &Op<'_, M>, key: &[u8], value: &[u8]) -> Result<bool> {
        self.sound()?.insert(op, key, value)
    }

    fn update(&self, op: &Op<'_, M>, key: &[u8], value: &[u8]) -> Result<bool> {
        self.sound()?.update(op, key, value)
    }

    fn compare_and_set(&self, op: &Op<'_, M>, key: &[u8], expected: Option<&[u8]>, new: Option<&[u8]>) -> Result<bool> {
        self.sound()?.compare_and_set(op, key, expected, new)
    }

    fn remove(&self, op: &Op<'_, M>, key: &[u8]) -> Result<bool> {
        self.sound()?.remove(op, key)
    }

    fn check(&self, session: &mut Session<M>) -> Result<Vec<Finding>> {
        self.sound()?.check(session)
    }

    /// What the structure gives; then, where anything is wrong with it, what lay in its blocks under keys that it has not given.
    fn salvage(&self, session: &mut Session<M>, found: &mut dyn FnMut(&[u8], &[u8])) -> Result<Vec<Finding>> {
        let (mut given, mut findings) = (HashSet::<Vec<u8>>::new(), Vec::new());
        match &self.opened {
            Ok(sound) => {
                findings.extend(sound.salvage(session, &mut |key, value| {
                    // Of a sound index nothing is left over.
                    if !self.leftovers.is_empty() {
                        given.insert(key.to_vec());
                    }
                    found(key, value);
                })?);
                if findings.is_empty() {
                    match sound.check(session) {
                        Ok(more) => findings.extend(more),
                        Err(error @ Error::Pool(_)) => return Err(error),
                        Err(error) => findings.push(Finding { offset: 0, what: error.to_string() }),
                    }
                }
            }
            Err(what) => findings.push(Finding { offset: 0, what: what.clone() }),
        }
        if findings.is_empty() && !self.root.has_doubtful_space(&session.enter()?) {
            return Ok(findings);
        }
        let mut more = 0;
        for part in self.leftovers.chunks(crate::index::STEP) {
            let op = session.enter()?;
            S::read_leftovers(&op, &self.root, part, &mut |key, value| {
                if given.insert(key.to_vec()) {
                    more += 1;
                    found(key, value);
                }
            });
        }
        if more > 0 {
            let what = format!(
                "{more} entries come from blocks that nothing sound leads to; entries that had been removed may be among them"
            );
            findings.push(Finding { offset: 0, what });
        }
        Ok(findings)
    }

    fn stats(&self, session: &mut Session<M>) -> Result<IndexStats> {
        self.sound()?.stats(session)
    }

    fn dump(&self, op: &Op<'_, M>, out: &mut dyn fmt::Write) -> fmt::Result {
        match &self.opened {
            Ok(sound) => sound.dump(op, out),
            Err(what) => writeln!(out, "{what}"),
        }
    }
}
