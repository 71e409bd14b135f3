//! Updates that return before they are durable, and the ticket that says when they are.
//!
//! An operation of [`Session::enter_later`](crate::Session::enter_later) may leave out write-backs and fences. A structure that does so puts the lines off
//! ([`Op::put_off`]), and keeps in volatile memory what it needs so that no reader returns them before they are durable, and that
//! what they replace is not used again. The lines belong to the ticket, [`Unsettled`], which collects those of any number of operations.
//! To *settle* it is to write all lines back, each once, to wait by one fence, and to tell the structures ([`Settles`]).
//!
//! | who settles | when |
//! |---|---|
//! | [`Pool::wait`](crate::Pool::wait) | when it is called |
//! | the ticket | when it is dropped |
//! | an operation of `enter_later` | when it ends without [`Op::finish`] |
//!
//! On a pool with a journal nothing is put off: lines are noted, as ever, and the ticket has the number of the commit.
//!
//! | edge | kept by | a crash between leaves |
//! |---|---|---|
//! | PL-L1 what was put off < `wait` returns, the structures are told | write-back + fence | any of the lines, as the cache wrote them back |

use std::sync::Arc;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};
use crate::line::LINE;
use crate::mapping::Mapping;
use crate::medium::Medium;
use crate::offset::Off;
use crate::persistent;
use crate::session::Op;
use crate::word::Word;

persistent! {
    /// A line of anything.
    struct AnyLine: align(64) { words: [Word; 8] }
}

/// Lines that an operation has changed and not written back, and two words by which their structure knows them again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PutOff {
    off: u64,
    lines: u64,
    /// The structure's own.
    pub words: [u64; 2],
}

impl PutOff {
    /// The offset of the first line.
    pub fn off(&self) -> u64 {
        self.off
    }
}

/// A structure whose updates can be settled later.
///
/// # Safety
/// Both calls can come while operations are kept out ([`Mapping::quiesce`]): a ticket that is dropped settles what it has in an operation
/// that does not wait for the gate, since its thread may have another one open. So neither call may wait for an operation of another
/// thread, store to persistent memory, or hand its operation to what counts on the gate: above all it notes nothing for a
/// [checkpoint](crate::Epochs::dirty), which empties the lists of all sessions meanwhile.
///
/// ```compile_fail,E0200
/// use durix_pmem::{Epochs, Medium, Off, Op, PutOff, Result, Settles, Word};
/// struct Notes<M: Medium>(std::sync::Arc<Epochs<M>>);
/// impl<M: Medium> Settles<M> for Notes<M> {
///     fn settled(&self, op: &Op<'_, M>, _: &[PutOff]) -> Result<()> {
///         self.0.dirty(op, op.at(Off::<Word>::new(64)));
///         Ok(())
///     }
/// }
/// ```
pub unsafe trait Settles<M: Medium>: Send + Sync {
    /// Called before the lines are written back: the structure may look at them, and note what it has seen.
    fn before_write_back(&self, op: &Op<'_, M>, changes: &mut [PutOff]) {
        let _ = (op, changes);
    }

    /// Called after the fence: all that was stored to the lines before [`before_write_back`](Settles::before_write_back) is durable. In the
    /// order in which the lines were put off.
    ///
    /// # Errors
    /// What the structure says of itself, as after a panic.
    fn settled(&self, op: &Op<'_, M>, changes: &[PutOff]) -> Result<()>;
}

/// The changes of one structure.
struct Part<M: Medium> {
    structure: Arc<dyn Settles<M>>,
    /// In the order in which they were put off.
    changes: Vec<PutOff>,
}

/// A ticket for updates that have returned and are not durable yet: see the [module](self).
///
/// It keeps the indices open whose changes it has. Wait for it with [`Pool::wait`](crate::Pool::wait); after that it is empty, and can be
/// used again. Dropping it makes everything durable, too, without saying so.
#[must_use = "nothing may be acknowledged before the ticket is waited for"]
pub struct Unsettled<M: Medium> {
    /// One pointer: an operation gets it, and gives it back.
    content: Option<Box<Content<M>>>,
}

struct Content<M: Medium> {
    /// Unique in the process while something is put off.
    id: u64,
    parts: Vec<Part<M>>,
    /// Which part gets what is put off next.
    current: usize,
    /// Memory for the changes of the next part.
    spare: Vec<PutOff>,
    /// What is written back; empty in between.
    lines: Vec<(u64, u64)>,
    mapping: Mapping<M>,
    /// The commit that has to be waited for.
    commit: u64,
}

/// A number that no other content has.
fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl<M: Medium> std::fmt::Debug for Unsettled<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unsettled").field("len", &self.len()).field("commit", &self.commit()).finish_non_exhaustive()
    }
}

impl<M: Medium> Default for Unsettled<M> {
    #[inline(always)]
    fn default() -> Self {
        Unsettled::new()
    }
}

impl<M: Medium> Unsettled<M> {
    /// A ticket for nothing yet.
    #[inline(always)]
    pub const fn new() -> Self {
        Unsettled { content: None }
    }

    /// Whether there is nothing to wait for.
    pub fn is_empty(&self) -> bool {
        self.content.as_ref().is_none_or(|content| content.parts.is_empty() && content.commit == 0)
    }

    /// How often lines were put off. (On a pool with a journal never.)
    pub fn len(&self) -> usize {
        self.content.iter().flat_map(|content| &content.parts).map(|part| part.changes.len()).sum()
    }

    /// Adds what another ticket stands for.
    ///
    /// # Errors
    /// [`Error::ForeignTicket`] if it is one of another pool: it is then dropped, and so settled.
    pub fn join(&mut self, mut other: Unsettled<M>) -> Result<()> {
        if other.is_empty() {
            return Ok(());
        }
        let mapping = other.content.as_ref().map(|content| content.mapping.clone());
        let Some(mapping) = mapping else { return Ok(()) };
        let content = self.content_of(&mapping)?;
        let Some(mut other) = other.content.take() else { return Ok(()) };
        for mut part in other.parts.drain(..) {
            match content.parts.iter_mut().find(|own| Arc::ptr_eq(&own.structure, &part.structure)) {
                Some(own) => own.changes.append(&mut part.changes),
                None => content.parts.push(part),
            }
        }
        content.commit = content.commit.max(other.commit);
        Ok(())
    }

    /// Makes it one of a mapping.
    ///
    /// # Errors
    /// [`Error::ForeignTicket`] if it is one of another.
    #[inline]
    pub(crate) fn belong_to(&mut self, mapping: &Mapping<M>) -> Result<()> {
        match &self.content {
            Some(content) if content.mapping.is_same(mapping) => Ok(()),
            _ => self.content_of(mapping).map(drop),
        }
    }

    /// What it has of a mapping.
    ///
    /// # Errors
    /// As [`belong_to`](Self::belong_to).
    #[cold]
    fn content_of(&mut self, mapping: &Mapping<M>) -> Result<&mut Content<M>> {
        let is_own = self.content.as_ref().is_some_and(|content| content.mapping.is_same(mapping));
        if !is_own && !self.is_empty() {
            return Err(Error::ForeignTicket);
        }
        if !is_own {
            let (parts, lines, spare) = (Vec::new(), Vec::new(), Vec::new());
            let mapping = mapping.clone();
            self.content = None;
            self.content =
                Some(Box::new(Content { id: next_id(), parts, current: 0, spare, lines, mapping, commit: 0 }));
        }
        Ok(self.content.as_mut().expect("was made just now"))
    }

    /// Unique among tickets that have something to settle.
    #[inline]
    pub(crate) fn id(&self) -> u64 {
        self.content.as_ref().map_or(0, |content| content.id)
    }

    /// The number of the commit to wait for.
    pub(crate) fn commit(&self) -> u64 {
        self.content.as_ref().map_or(0, |content| content.commit)
    }

    pub(crate) fn forget_commit(&mut self) {
        self.content.iter_mut().for_each(|content| content.commit = 0);
    }

    pub(crate) fn raise_commit(&mut self, number: u64) {
        self.content.iter_mut().for_each(|content| content.commit = content.commit.max(number));
    }

    /// Whether something is put off.
    #[inline]
    pub(crate) fn has_changes(&self) -> bool {
        self.content.as_ref().is_some_and(|content| !content.parts.is_empty())
    }

    /// Says whose the next changes are. Returns whether the structure can be told.
    #[inline]
    pub(crate) fn begin<S: Settles<M> + 'static>(&mut self, structure: &Weak<S>) -> bool {
        let Some(content) = &mut self.content else { return false };
        let is_it = |part: &Part<M>| std::ptr::addr_eq(Arc::as_ptr(&part.structure), Weak::as_ptr(structure));
        if content.parts.get(content.current).is_some_and(is_it) {
            return true;
        }
        let found = content.parts.iter().position(is_it);
        found.inspect(|at| content.current = *at).is_some() || content.add(structure.upgrade())
    }

    /// Puts lines off, for the structure that was named last.
    #[inline]
    pub(crate) fn put_off(&mut self, off: u64, lines: u64, words: [u64; 2]) {
        let part = self.content.as_mut().and_then(|content| content.parts.get_mut(content.current));
        part.expect("a structure was named").changes.push(PutOff { off, lines, words });
    }

    /// Makes everything durable that was put off, and tells the structures. The ticket is empty then, but for a commit.
    ///
    /// # Errors
    /// What the structures say.
    pub(crate) fn settle(&mut self, op: &Op<'_, M>) -> Result<()> {
        self.content.as_mut().map_or(Ok(()), |content| content.settle(op))
    }
}

impl<M: Medium> Content<M> {
    #[cold]
    fn add<S: Settles<M> + 'static>(&mut self, structure: Option<Arc<S>>) -> bool {
        let Some(structure) = structure else { return false };
        self.current = self.parts.len();
        self.parts.push(Part { structure, changes: std::mem::take(&mut self.spare) });
        true
    }

    fn settle(&mut self, op: &Op<'_, M>) -> Result<()> {
        for part in &mut self.parts {
            part.structure.before_write_back(op, &mut part.changes);
        }
        let changes = self.parts.iter().flat_map(|part| &part.changes);
        self.lines.extend(changes.map(|change| (change.off, change.lines)));
        self.lines.sort_unstable();
        self.lines.dedup();
        self.lines.drain(..).try_for_each(|(off, lines)| write_back(op, off, lines))?;
        // PERSIST PL-L1: flush+fence.
        op.fence();
        let mut result = Ok(());
        for mut part in self.parts.drain(..) {
            result = result.and(part.structure.settled(op, &part.changes));
            part.changes.clear();
            self.spare = part.changes;
        }
        // The next content has another number.
        self.id = next_id();
        result
    }
}

#[inline(always)]
fn write_back<M: Medium>(op: &Op<'_, M>, off: u64, lines: u64) -> Result<()> {
    debug_assert!(off.is_multiple_of(LINE as u64));
    let first = Off::<AnyLine>::new(off);
    if lines == 1 {
        // PERSIST PL-L1: write-back.
        op.write_back(op.at(first));
    } else {
        // PERSIST PL-L1: write-back.
        op.write_back_slice(op.slice("lines that were put off", first, lines)?);
    }
    Ok(())
}

impl<M: Medium> Drop for Unsettled<M> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(content) = self.content.take() {
            settle_what_is_dropped(content);
        }
    }
}

#[cold]
#[inline(never)]
#[expect(clippy::boxed_local, reason = "the box is freed here, out of the way of those who have none")]
fn settle_what_is_dropped<M: Medium>(mut content: Box<Content<M>>) {
    if content.parts.is_empty() {
        return;
    }
    // Where no session is to be had, and in a forked child, the structures keep what they have noted.
    if let Ok(mut session) = content.mapping.session() {
        // No store to persistent memory happens, so nobody has to be waited for; the caller may have an operation open.
        _ = content.settle(&session.enter_past_gate());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Counting, Hardware, Lock};

    #[derive(Default)]
    struct Told {
        changes: Lock<Vec<PutOff>>,
        fails: bool,
    }

    // SAFETY: it notes numbers only.
    unsafe impl<M: Medium> Settles<M> for Told {
        fn before_write_back(&self, _op: &Op<'_, M>, changes: &mut [PutOff]) {
            changes.iter_mut().for_each(|change| change.words[1] += 1);
        }

        fn settled(&self, op: &Op<'_, M>, changes: &[PutOff]) -> Result<()> {
            self.changes.lock(op.medium()).extend(changes);
            if self.fails { Err(Error::Forked) } else { Ok(()) }
        }
    }

    type M = Counting<Hardware>;

    fn mapping() -> (Mapping<M>, M) {
        let counting = Counting::new(Hardware::PAGE_CACHE);
        (Mapping::heap(1 << 16, counting), counting)
    }

    fn put(op: &Op<'_, M>, told: &Arc<Told>, off: u64, lines: u64) {
        assert!(op.begin_put_off(&Arc::downgrade(told)));
        op.put_off(off, lines, [off, 0]);
    }

    #[test]
    fn lines_of_several_operations_are_written_back_once_under_one_fence() {
        let (mapping, counting) = mapping();
        let (one, two) = (Arc::new(Told::default()), Arc::new(Told::default()));
        let mut session = mapping.session().unwrap();
        let mut ticket = Unsettled::new();
        for (told, off, lines) in [(&one, 64, 1), (&two, 128, 3), (&one, 64, 1), (&one, 640, 1)] {
            let op = session.enter_later(&mut ticket).unwrap();
            put(&op, told, off, lines);
            ticket = op.finish();
        }
        assert_eq!(ticket.len(), 4);
        assert_eq!((counting.counts().write_backs, counting.counts().fences), (0, 0));
        // By another session.
        drop(session);
        let mut other = mapping.session().unwrap();
        ticket.settle(&other.enter().unwrap()).unwrap();
        assert_eq!((counting.counts().write_backs, counting.counts().fences), (5, 1));
        let offs = |told: &Told| told.changes.lock(counting).iter().map(|c| (c.off(), c.words)).collect::<Vec<_>>();
        assert_eq!(offs(&one), [(64, [64, 1]), (64, [64, 1]), (640, [640, 1])]);
        assert_eq!(offs(&two), [(128, [128, 1])]);
        assert!(ticket.is_empty() && Arc::strong_count(&one) == 1);
        drop(ticket);
        assert_eq!(counting.counts().fences, 1, "nothing is left");
    }

    #[test]
    fn joined_tickets_wait_for_the_later_commit() {
        let (mapping, _) = mapping();
        let ticket = |number| {
            let mut ticket = Unsettled::new();
            ticket.belong_to(&mapping).unwrap();
            ticket.raise_commit(number);
            ticket
        };
        for [own, other] in [[3, 7], [7, 3]] {
            let mut joined = ticket(own);
            joined.join(ticket(other)).unwrap();
            assert_eq!((joined.commit(), joined.is_empty()), (7, false));
        }
        let mut joined = Unsettled::new();
        joined.join(ticket(7)).unwrap();
        assert_eq!(joined.commit(), 7);
    }

    #[test]
    fn who_does_not_wait_settles_all_the_same() {
        let (mapping, counting) = mapping();
        let told = Arc::new(Told::default());
        let mut session = mapping.session().unwrap();
        let fences = || counting.counts().fences;
        // A ticket that is dropped, while an operation is open.
        let op = session.enter_later(&mut Unsettled::new()).unwrap();
        put(&op, &told, 64, 1);
        let ticket = op.finish();
        let op = session.enter().unwrap();
        drop(ticket);
        assert_eq!(fences(), 1);
        drop(op);
        assert_eq!(fences(), 1, "an ordinary operation does nothing at its end");
        // An operation that is dropped.
        let op = session.enter_later(&mut Unsettled::new()).unwrap();
        put(&op, &told, 128, 1);
        drop(op);
        assert_eq!(fences(), 2);
        // One that is forgotten: the next one, or the session, does it.
        for next in [true, false] {
            let op = session.enter_later(&mut Unsettled::new()).unwrap();
            put(&op, &told, 192, 1);
            std::mem::forget(op);
            match next {
                true => drop(session.enter().unwrap()),
                false => session = mapping.session().unwrap(),
            }
        }
        assert_eq!((fences(), told.changes.lock(counting).len()), (4, 4));
        // And one that had a ticket to go on with.
        let op = session.enter_later(&mut Unsettled::new()).unwrap();
        put(&op, &told, 64, 1);
        let mut ticket = op.finish();
        std::mem::forget(session.enter_later(&mut ticket).unwrap());
        assert!(ticket.is_empty() && !session.enter().unwrap().settles_later(), "an ordinary one is ordinary");
        assert_eq!(fences(), 5, "and settles what is left");
        let op = session.enter_later(&mut ticket).unwrap();
        put(&op, &told, 64, 1);
        std::mem::forget(op);
        let op = session.enter_later(&mut Unsettled::new()).unwrap();
        put(&op, &told, 128, 1);
        assert_eq!(op.finish().len(), 2);
    }

    #[test]
    fn tickets_are_joined_and_belong_to_one_mapping() {
        let ((mapping, counting), (other, other_counting)) = (mapping(), self::mapping());
        let told = Arc::new(Told::default());
        let ticket = |mapping: &Mapping<M>, off| {
            let mut session = mapping.session().unwrap();
            let op = session.enter_later(&mut Unsettled::new()).unwrap();
            put(&op, &told, off, 1);
            op.finish()
        };
        let mut sum = Unsettled::new();
        sum.join(Unsettled::new()).unwrap();
        assert!(sum.is_empty());
        sum.join(ticket(&mapping, 64)).unwrap();
        sum.join(ticket(&mapping, 128)).unwrap();
        assert!(matches!(sum.join(ticket(&other, 64)), Err(Error::ForeignTicket)));
        assert_eq!((counting.counts().fences, other_counting.counts().fences), (0, 1), "the other one is settled");
        let mut session = other.session().unwrap();
        let mut foreign = ticket(&mapping, 192);
        assert!(matches!(session.enter_later(&mut foreign), Err(Error::ForeignTicket)));
        assert_eq!((foreign.len(), counting.counts().fences), (1, 0), "it keeps what it has");
        drop(foreign);
        assert_eq!(counting.counts().fences, 1);
        let mut own = mapping.session().unwrap();
        sum.settle(&own.enter().unwrap()).unwrap();
        assert_eq!((counting.counts().write_backs, counting.counts().fences), (3, 2));
        // Empty, it goes on anywhere.
        assert!(session.enter_later(&mut sum).unwrap().finish().is_empty());
    }

    #[test]
    fn what_a_structure_says_comes_out_and_all_are_told() {
        let (mapping, counting) = mapping();
        let (bad, good) = (Arc::new(Told { fails: true, ..Told::default() }), Arc::new(Told::default()));
        let mut session = mapping.session().unwrap();
        let op = session.enter_later(&mut Unsettled::new()).unwrap();
        put(&op, &bad, 64, 1);
        put(&op, &good, 128, 1);
        let mut ticket = op.finish();
        assert!(ticket.settle(&session.enter().unwrap()).is_err());
        assert!(ticket.is_empty());
        assert_eq!(good.changes.lock(counting).len(), 1);
    }

    #[test]
    fn without_a_session_nothing_is_waited_for() {
        let (mapping, counting) = mapping();
        let told = Arc::new(Told::default());
        let mut session = mapping.session().unwrap();
        let op = session.enter_later(&mut Unsettled::new()).unwrap();
        put(&op, &told, 64, 1);
        let ticket = op.finish();
        let _all: Vec<_> = (1..crate::MAX_SESSIONS).map(|_| mapping.session().unwrap()).collect();
        drop(ticket);
        assert_eq!((counting.counts().fences, told.changes.lock(counting).len()), (0, 0));
    }
}
