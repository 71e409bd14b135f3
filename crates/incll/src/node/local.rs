//! What a session keeps for a tree: blocks, and its part of the external log.

use durix_pmem::{Lock, LockGuard, Medium, Off};

use crate::Policy;
use crate::alloc::slab::{Cache, Durably};
use crate::error::{Error, Result};
use crate::layout::Node;
use crate::log::undo::Undo;
use crate::node::context::Context;

/// What a session keeps for a tree.
#[derive(Debug)]
pub(crate) struct Local {
    epoch: u64,
    pub(crate) cache: Cache,
    pub(crate) undo: Undo,
    /// Nodes that were written to the external log.
    pub(crate) logged: u64,
}

/// A session's part of a tree, made when it is first needed.
pub(crate) type Slot = Lock<Option<Box<Local>>>;

impl<'a, M: Medium, P: Policy> Context<'a, M, P> {
    /// The session's part of the tree, turned to the current epoch.
    pub(crate) fn local(&self) -> Result<LockGuard<'a, Option<Box<Local>>, M>> {
        let slot = self.op.slot() as usize;
        let mut guard = self.tree.locals[slot].lock(self.op.medium());
        let local = guard.get_or_insert_with(|| {
            Box::new(Local { epoch: self.epoch, cache: self.tree.slabs.cache(), undo: Undo::default(), logged: 0 })
        });
        self.turn(local)?;
        Ok(guard)
    }

    fn turn(&self, local: &mut Local) -> Result<()> {
        if local.epoch != self.epoch {
            local.epoch = self.epoch;
            self.tree.slabs.turn(self.op, &self.tree.arena, &mut local.cache);
            local.undo.turn(self.op, &self.tree.segments)?;
        }
        Ok(())
    }

    /// Does what needs space. Where there is none, once more, when all sessions have shared what they keep: blocks, and segments
    /// of the log.
    pub(super) fn with_space<T>(&self, mut f: impl FnMut() -> Result<T>) -> Result<T> {
        match f() {
            Err(Error::Pool(error)) if error.is_no_room() => {
                self.gather()?;
                f()
            }
            done => done,
        }
    }

    #[cold]
    fn gather(&self) -> Result<()> {
        for slot in &self.tree.locals {
            // Whoever is at work with what it keeps may have all of it.
            if let Some(mut guard) = slot.try_lock(self.op.medium())
                && let Some(local) = guard.as_deref_mut()
            {
                self.turn(local)?;
                self.tree.slabs.share(self.op, &mut local.cache);
                local.undo.share(self.op, &self.tree.segments);
            }
        }
        self.tree.slabs.give_back_large(self.op, &self.tree.arena, self.durably());
        Ok(())
    }

    pub(crate) fn durably(&self) -> Durably<'a, M> {
        Durably { epochs: &self.tree.epochs, epoch: self.epoch, round: self.round, durable: P::DURABLE }
    }

    pub(crate) fn free(&self, off: u64, bytes: u64) -> Result<()> {
        let mut local = self.local()?;
        let cache = &mut local.as_mut().expect("made by `local`").cache;
        self.tree.slabs.free(self.op, self.durably(), cache, off, bytes)
    }

    pub(crate) fn free_node(&self, off: Off<Node>) -> Result<()> {
        let mut local = self.local()?;
        let cache = &mut local.as_mut().expect("made by `local`").cache;
        self.tree.slabs.free_node(self.op, self.durably(), cache, off.get())
    }
}
