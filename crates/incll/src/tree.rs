//! The tree: its parts, creation and opening.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crossbeam_utils::CachePadded;
use durix_pmem::epoch::layout::Seat;
use durix_pmem::pool::{Poison, PoisonGuard};
use durix_pmem::{
    Epochs, Extent, Hardware, Kind, Lock, MAX_SESSIONS, Mapping, Medium, Off, Op, Pool, Root, Session, Structure,
    Sweep, Sweeping, Ticket, Wide,
};

use crate::alloc::arena::{Arena, Head};
use crate::alloc::slab::Slabs;
use crate::error::{Error, Result};
use crate::layout::{Before, LAYOUT_VERSION, Node, SLOTTED, TreeRoot, slab_kind};
use crate::log::undo::Segments;
use crate::node::context::Context;
use crate::node::local::Slot;
use crate::{Durable, MAX_KEY, Policy, Transient};

/// Locks for nodes that are being recovered.
const RECOVERING: usize = 64;
/// Lines that a sweep looks at behind a boundary: some hundred microseconds, while operations go on.
const SWEEP_STEP: u64 = 2048;
/// Where the root line of a tree in a bare mapping lies.
const BARE_ROOT: u64 = 2048;

/// An ordered concurrent map from byte strings to byte strings; see the [crate](crate).
///
/// Keys are up to [`MAX_KEY`] bytes long, values up to [`MAX_VALUE`](crate::MAX_VALUE); both may be empty. All operations
/// take the calling thread's [`Op`]; an update is durable when the pool's epochs next cross a boundary: see
/// [`sync`](Self::sync), [`tick`](Self::tick) and [`ticket`](Self::ticket).
pub struct Masstree<M: Medium = Hardware, P: Policy = Durable> {
    /// First address of the mapping that it lies in.
    base: usize,
    pub(crate) root: Off<Node>,
    /// Nodes with the stamp of an epoch before this one's have to be recovered first.
    pub(crate) trusted: Before,
    pub(crate) epochs: Arc<Epochs<M>>,
    pub(crate) arena: Arena<M>,
    pub(crate) slabs: Slabs,
    pub(crate) segments: Segments,
    pub(crate) locals: Box<[CachePadded<Slot>]>,
    pub(crate) recovering: Box<[Lock<()>]>,
    /// How to search, where words need not be loaded one by one.
    wide: Option<Wide>,
    sweeping: Sweeping,
    sweep_step: u64,
    poison: Option<Poison<M>>,
    _policy: std::marker::PhantomData<fn() -> P>,
}

/// A tree that does not survive: the same code without any logging, the paper's MT+.
pub type TransientMasstree<M = Hardware> = Masstree<M, Transient>;

impl<M: Medium, P: Policy> fmt::Debug for Masstree<M, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Masstree").field("root", &self.root).field("trusted", &self.trusted).finish_non_exhaustive()
    }
}

/// How a tree lies in a bare mapping: the record of the epochs in bytes 1024 to 2047, the root's line at 2048, extents from
/// the first chunk behind it to the end.
#[derive(Clone, Copy, Debug)]
pub struct BareOptions {
    chunk: u64,
    first_epoch: u64,
    sweep_step: u64,
}

impl Default for BareOptions {
    fn default() -> Self {
        BareOptions { chunk: 64 << 10, first_epoch: 1, sweep_step: SWEEP_STEP }
    }
}

impl BareOptions {
    /// Unit of extents in bytes, a power of two from 4 KiB on; 64 KiB unless set.
    #[must_use]
    pub fn chunk(self, chunk: u64) -> Self {
        BareOptions { chunk: chunk.next_power_of_two().max(4096), ..self }
    }

    /// The number of the first epoch; 1 unless set.
    #[must_use]
    pub fn first_epoch(self, first_epoch: u64) -> Self {
        BareOptions { first_epoch, ..self }
    }

    /// Lines that a sweep of failed epochs looks at behind a boundary, about; 2048 unless set.
    #[must_use]
    pub fn sweep_step(self, sweep_step: u64) -> Self {
        BareOptions { sweep_step, ..self }
    }
}

/// How a tree in a pool is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeOptions {
    salvage: bool,
}

impl TreeOptions {
    /// Opens a tree whatever is damaged, for [`Masstree::salvage`] alone: extents whose heads make no sense are left out. Only for
    /// pools that were opened for reading.
    #[must_use]
    pub fn salvage(self, salvage: bool) -> Self {
        TreeOptions { salvage }
    }
}

impl<M: Medium> Structure<M> for Masstree<M, Durable> {
    const KIND: Kind = Kind { tag: *b"MASSTREE", version: LAYOUT_VERSION };
    const TALLIES: bool = true;
    type Options = TreeOptions;
    type Error = Error;

    fn create(session: &mut Session<M>, root: &Root<M>, _: &TreeOptions) -> Result<()> {
        let arena = Arena::Pool(root.clone());
        let op = session.enter()?;
        let line = op.at(op.off_of(root.words(&op)).cast::<TreeRoot>());
        format(&op, &arena, line, 0)
    }

    fn open(session: &mut Session<M>, root: Root<M>, options: &TreeOptions) -> Result<Self> {
        let epochs = root.pool().epochs()?;
        let was_open = {
            let op = session.enter()?;
            epochs.has_joined(&op, root.seat(&op))
        };
        if was_open {
            // Which blocks the epoch in progress has freed, and which images undo it, only the handle that is gone has known.
            epochs.sync(session)?;
        }
        let op = session.enter()?;
        let line = op.at(op.off_of(root.words(&op)).cast::<TreeRoot>());
        let poison = Some(Poison::stopping_epochs(root.clone()));
        if options.salvage {
            return Ok(Masstree::open_damaged(&op, epochs, Arena::Pool(root), line));
        }
        Masstree::open_in(&op, epochs, Arena::Pool(root), line, poison)
    }

    fn opened(self: &Arc<Self>) {
        let weak: std::sync::Weak<Self> = Arc::downgrade(self);
        self.epochs.drive(weak);
    }
}

impl<M: Medium> Sweep<M> for Masstree<M, Durable> {
    fn sweep(&self, op: &Op<'_, M>) -> bool {
        self.sweep_step(op)
    }
}

/// Writes an empty tree of a layout (0, or [`SLOTTED`]): durable with the next fence. Until the root's line is, nothing of it can be found.
fn format<M: Medium>(op: &Op<'_, M>, arena: &Arena<M>, line: &TreeRoot, layout: u64) -> Result<()> {
    let node = Slabs::new(arena.chunk()).first_node(op, arena)?;
    op.store(&line.root, Off::new(node | layout), Relaxed);
    op.write_back(line);
    Ok(())
}

impl<M: Medium> Masstree<M, Durable> {
    /// Opens the tree named `name`, creating it if it is not there. Recovers it: takes time in the external log and the
    /// chunks of the pool, not in the number of keys. A tree that was open before, since the pool was opened, and is no
    /// more, is opened behind a boundary: see [`sync`](Self::sync). The calling thread must hold no operation then.
    ///
    /// # Errors
    /// [`Error::Pool`]: what the pool says, also where `name` is something else; what [`sync`](Self::sync) says.
    /// [`Error::Corrupt`], [`Error::Log`].
    pub fn open(pool: &Pool<M>, name: &str) -> Result<Arc<Self>> {
        pool.open_structure(name, &TreeOptions::default())
    }

    /// Opens the tree in a bare mapping, creating it if all is zero: for tests, benches and simulation. One tree a
    /// mapping.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_bare(session: &mut Session<M>, mapping: &Mapping<M>, options: BareOptions) -> Result<Self> {
        Masstree::open_bare_as(session, mapping, options)
    }
}

impl<M: Medium, P: Policy> Masstree<M, P> {
    /// What the link to the root says of interior nodes.
    const LAYOUT: u64 = if P::INTERIOR_IN_LINE { SLOTTED } else { 0 };

    fn open_in(
        op: &Op<'_, M>,
        epochs: Arc<Epochs<M>>,
        arena: Arena<M>,
        line: &TreeRoot,
        poison: Option<Poison<M>>,
    ) -> Result<Self> {
        // In another layout it is no multiple.
        let root = Off::new(op.load(&line.root, Relaxed).get() ^ Self::LAYOUT);
        if root.is_null() || !root.get().is_multiple_of(64) {
            let offset = op.off_of(line).get();
            return Err(Error::Corrupt { what: "the link to the root node", offset, found: root.get() });
        }
        op.slice("the root node", root, 1)?;
        let tree = Masstree::new(op, root, epochs, arena, poison);
        let mut logs = Vec::new();
        for extent in tree.arena.extents(op) {
            logs.extend(tree.take_over(op, extent)?);
        }
        tree.segments.replay(op, &tree.epochs, tree.seat(op), &logs)?;
        Ok(tree)
    }

    /// Takes over an extent that was found; returns it if it is a segment of the log.
    fn take_over(&self, op: &Op<'_, M>, extent: Extent) -> Result<Option<Extent>> {
        let head = Head::read(op, extent.off)?;
        if head.kind == slab_kind::LOG {
            return Ok(Some(extent));
        }
        self.slabs.adopt(op.medium(), extent, head)?;
        Ok(None)
    }

    /// As [`open_in`](Self::open_in), without what cannot be read.
    fn open_damaged(op: &Op<'_, M>, epochs: Arc<Epochs<M>>, arena: Arena<M>, line: &TreeRoot) -> Self {
        let root = Off::new(op.load(&line.root, Relaxed).get() ^ Self::LAYOUT);
        let tree = Masstree::new(op, root, epochs, arena, None);
        let extents = tree.arena.extents(op);
        let logs: Vec<_> = extents.into_iter().filter_map(|extent| tree.take_over(op, extent).ok().flatten()).collect();
        // A log that cannot be read leaves nodes as they are, perhaps with what the last epoch has changed.
        let _ = tree.segments.replay(op, &tree.epochs, tree.seat(op), &logs);
        tree
    }

    /// As [`Masstree::open_bare`], with another durable policy than [`Durable`]: for benches. With one policy nothing can be done
    /// that another would have to know: all have the same layout, but for [`InteriorInLine`](crate::InteriorInLine).
    ///
    /// # Errors
    /// As [`Masstree::open`]; [`Error::Corrupt`] also where the tree has interior nodes of the other layout.
    ///
    /// # Panics
    /// If the policy is not durable: such a tree is made by [`volatile`](Self::volatile).
    pub fn open_bare_as(session: &mut Session<M>, mapping: &Mapping<M>, options: BareOptions) -> Result<Self> {
        assert!(P::DURABLE, "a volatile tree is not opened");
        let op = session.enter()?;
        let epochs = Arc::new(Epochs::open_at(&op, mapping, Off::new(1024), options.first_epoch)?);
        let arena = Arena::bare(mapping, options.chunk, (BARE_ROOT + 64).next_multiple_of(options.chunk));
        let line = op.at(Off::<TreeRoot>::new(BARE_ROOT));
        if op.load(&line.root, Relaxed).is_null() {
            format(&op, &arena, line, Self::LAYOUT)?;
        }
        let tree = Masstree::open_in(&op, epochs, arena, line, None)?;
        Ok(Masstree { sweep_step: options.sweep_step, ..tree })
    }

    /// An empty tree that does not survive, in a mapping of zeroed memory.
    ///
    /// # Errors
    /// [`Error::Pool`] where the mapping is too small.
    ///
    /// # Panics
    /// If the policy is a durable one: such a tree is [opened](Masstree::open).
    pub fn volatile(session: &mut Session<M>, mapping: &Mapping<M>, options: BareOptions) -> Result<Self> {
        assert!(!P::DURABLE, "a durable tree is opened");
        let op = session.enter()?;
        let epochs = Arc::new(Epochs::open_at(&op, mapping, Off::new(1024), options.first_epoch)?);
        let arena = Arena::bare(mapping, options.chunk, (BARE_ROOT + 64).next_multiple_of(options.chunk));
        let mut tree = Masstree::new(&op, Off::NULL, epochs, arena, None);
        tree.root = {
            let mut fresh = crate::node::new_blocks::NewBlocks::new(tree.cx(&op, &[])?);
            let root = fresh.border(&[], crate::layout::LayerName::FIRST)?;
            fresh.keep();
            root
        };
        Ok(tree)
    }

    fn new(
        op: &Op<'_, M>,
        root: Off<Node>,
        epochs: Arc<Epochs<M>>,
        arena: Arena<M>,
        poison: Option<Poison<M>>,
    ) -> Self {
        Masstree {
            base: op.base_addr(),
            root,
            trusted: Before::epoch(epochs.trusted()),
            epochs,
            slabs: Slabs::new(arena.chunk()),
            arena,
            segments: Segments::new(),
            locals: (0..MAX_SESSIONS).map(|_| CachePadded::new(Lock::new(None))).collect(),
            wide: op.medium().wide(),
            recovering: (0..RECOVERING).map(|_| Lock::new(())).collect(),
            sweeping: Sweeping::default(),
            sweep_step: SWEEP_STEP,
            poison,
            _policy: std::marker::PhantomData,
        }
    }

    /// The operation on this tree that `op` is used for.
    #[inline(always)]
    pub(crate) fn cx<'a>(&'a self, op: &'a Op<'_, M>, key: &[u8]) -> Result<Context<'a, M, P>> {
        if op.base_addr() != self.base {
            return Err(durix_pmem::Error::ForeignSession.into());
        }
        if let Some(poison) = &self.poison {
            poison.check(op)?;
        }
        self.check_key(key)?;
        let (epoch, round) = self.epochs.now(op);
        Ok(Context { tree: self, op, epoch, round, wide: self.wide })
    }

    #[inline(always)]
    pub(crate) fn check_key(&self, key: &[u8]) -> Result<()> {
        if key.len() > MAX_KEY { Err(Error::KeyTooLong { len: key.len() }) } else { Ok(()) }
    }

    /// Makes the tree unusable if a panic comes before it is dropped.
    pub(crate) fn guard(&self, op: &Op<'_, M>) -> Result<Option<PoisonGuard<'_, M>>> {
        Ok(self.poison.as_ref().map(|poison| poison.guard(op)).transpose()?)
    }

    /// Its place in its pool; `None` for a tree in a bare mapping.
    pub fn root(&self) -> Option<&Root<M>> {
        self.arena.root()
    }

    /// The checkpoint epochs that the tree takes part in.
    pub fn epochs(&self) -> &Arc<Epochs<M>> {
        &self.epochs
    }

    /// Makes everything durable that was done before, to all structures that take part in the epochs: see
    /// [`Epochs::sync`].
    ///
    /// # Errors
    /// As there.
    pub fn sync(&self, session: &mut Session<M>) -> Result<()> {
        self.epochs.sync(session)?;
        self.sweep_bare(session)
    }

    /// Crosses a boundary if the interval has passed: see [`Epochs::tick`].
    ///
    /// # Errors
    /// As there.
    pub fn tick(&self, session: &mut Session<M>) -> Result<bool> {
        let crossed = self.epochs.tick(session)?;
        if crossed {
            self.sweep_bare(session)?;
        }
        Ok(crossed)
    }

    /// A step of sweeping where the epochs do not drive it: a tree in a bare mapping is not behind an `Arc`.
    fn sweep_bare(&self, session: &mut Session<M>) -> Result<()> {
        if P::DURABLE && !self.trusted.is_never() && matches!(self.arena, Arena::Bare { .. }) {
            self.sweep_step(&session.enter()?);
        }
        Ok(())
    }

    /// Undoes a little of what failed epochs have left. Returns whether there may be more.
    fn sweep_step(&self, op: &Op<'_, M>) -> bool {
        // After a panic the tree is left alone: the next opening undoes all of the epoch.
        let Ok(cx) = self.cx(op, &[]) else { return false };
        let pressed = if self.epochs.is_pressed() { self.slabs.lines_to_sweep(op.medium()) / 20 } else { 0 };
        self.sweeping.step(&self.epochs, op, self.seat(op), |cursor| {
            self.slabs.sweep(op, cx.durably(), cursor, self.sweep_step.max(pressed), |off| {
                let node = op.at(off);
                if cx.is_old(node, self.trusted) {
                    cx.recover(off, node);
                }
            })
        })
    }

    /// The tree's part in the epochs.
    fn seat<'s>(&self, op: &Op<'s, M>) -> &'s Seat {
        match &self.arena {
            Arena::Pool(root) => root.seat(op),
            Arena::Bare { .. } => self.epochs.seat(op),
        }
    }

    /// A ticket for everything that this thread has done: see [`Epochs::ticket`].
    pub fn ticket(&self, op: &Op<'_, M>) -> Ticket {
        self.epochs.ticket(op)
    }

    /// How many nodes the sessions of this run have written to the external log.
    pub fn logged_nodes(&self, op: &Op<'_, M>) -> u64 {
        let logged = |slot: &CachePadded<Slot>| slot.lock(op.medium()).as_ref().map_or(0, |local| local.logged);
        self.locals.iter().map(logged).sum()
    }

    /// Bytes of all extents that the tree has taken.
    pub fn bytes_in_extents(&self, op: &Op<'_, M>) -> u64 {
        self.arena.bytes(op)
    }

    /// All extents of the tree, with what their heads say.
    pub(crate) fn extents(&self, op: &Op<'_, M>) -> Result<Vec<(Extent, Head)>> {
        self.arena.extents(op).into_iter().map(|extent| Ok((extent, Head::read(op, extent.off)?))).collect()
    }
}
