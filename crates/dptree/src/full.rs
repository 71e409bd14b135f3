//! Removal in a full pool: it takes no space, neither in the log nor for a merge.
//!
//! The key's slot is taken out of its leaf by a flip that leaves the floor as it is; then the records that count for the key get the
//! version 0, the newest one last: they stay, as a batch counts only if all of its records are there (DP-E1). Up to that moment the newest record says what the key is mapped to.
//!
//! | edge | kept by | a crash between leaves | recovery |
//! |---|---|---|---|
//! | DP-D1 descriptors < the flip that takes the slot out < the newest record is taken out | flush+fence, twice | the old side, or the new one, and the record | the key is there, by its record; without a record the flip removes it |
//! | DP-D2 an older record of the key is taken out < a newer one is | flush+fence | the newer one | the key is there |
//! | DP-D3 the newest record is taken out < the removal returns | flush+fence | the record, or not | the removal in flight has happened or not |

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use durix_pmem::{Medium, Op};

use crate::DpTree;
use crate::bloom::hash;
use crate::error::{Error, Result};
use crate::front::{Front, Frozen};
use crate::leaf::{Leaf, Taken, clear};
use crate::merge::InBlock;
use crate::prints::Table;
use crate::range::{Inner, NO_RECORD, Part, Range, Snapshot};
use crate::steps;

impl<M: Medium> DpTree<M> {
    /// Merges every front that can be merged without more space, so that log pages and leaves get free. Looks at every range.
    #[cold]
    pub(crate) fn merge_what_fits(&self, op: &Op<'_, M>) -> Result<()> {
        // A range whose fronts both hold entries is merged one front at a time. One old entry that is left keeps all log pages.
        for _ in 0..2 {
            self.freeze_up_to(op, NO_RECORD);
            for range in self.directory.get(op).ranges() {
                match self.help(op, range) {
                    Err(error) if !error.is_full() => return Err(error),
                    _ => {}
                }
            }
        }
        self.log.seal_full(op);
        self.free_pages(op);
        Ok(())
    }

    /// Changes a key as `decide` says, if that removes it; otherwise the error that the pool is full stands.
    #[cold]
    pub(crate) fn remove_without_space(
        &self,
        op: &Op<'_, M>,
        key: u64,
        decide: &mut impl FnMut(Option<u64>) -> Option<Option<u64>>,
        full: Error,
    ) -> Result<Option<Option<u64>>> {
        let mut turn = 0;
        loop {
            let range = self.directory.get(op).find(key);
            let mut inner = range.lock(op);
            let snapshot = range.snapshot.get(op);
            if !snapshot.covers(key) {
                continue;
            }
            if inner.claim.is_taken() {
                drop(inner);
                op.medium().spin(turn);
                turn += 1;
                continue;
            }
            let old = self.find_locked(op, &inner, snapshot, (key, hash(key)), snapshot.leaf(key)).value();
            return match decide(old) {
                None => Ok(None),
                Some(Some(_)) => Err(full),
                Some(None) => {
                    self.take_slot_out(op, range, &mut inner, key);
                    self.take_records_out(op, range, &mut inner, key);
                    self.tally(op, key, old, None);
                    Ok(Some(old))
                }
            };
        }
    }

    /// Takes a key out of its leaf, durably.
    fn take_slot_out(&self, op: &Op<'_, M>, range: &Range, inner: &mut Inner, key: u64) {
        let (old, hash) = (range.snapshot.get(op), hash(key));
        let Some((slot, _)) = old.leaf(key).and_then(|leaf| leaf.find(op, key, hash)) else { return };
        let (mut leaves, number, mut freed) = (old.leaves.to_vec(), old.leaf_of(key), Vec::new());
        let leaf = &old.leaves[number].leaf;
        let mut taken = leaf.taken;
        clear(&mut taken, slot);
        if taken == Taken::default() {
            freed.push(leaf.off);
            leaves.remove(number);
        } else {
            let fill = |table: &mut Table| {
                table.remove(hash, slot);
                taken
            };
            leaves[number] = Part::new(leaves[number].low, Leaf::known(leaf.off, leaf.table(op), fill));
        }
        let side = 1 - old.side;
        self.write_side(op, (range.block, side), &leaves, old.next, inner.trusted);
        op.fence(); // PERSIST DP-D1: flush+fence
        steps::flip_only(&InBlock(op, range.block), side);
        op.write_back(op.at(range.block));
        op.fence(); // PERSIST DP-D1: flush+fence
        inner.trusted = true;
        let new = Snapshot { side, leaves: leaves.into(), ..old.clone() };
        self.show(op, range, inner, new);
        self.units.give_back(op.medium(), &freed);
    }

    /// Takes a key out of the fronts, and its records out of the log.
    fn take_records_out(&self, op: &Op<'_, M>, range: &Range, inner: &mut Inner, key: u64) {
        let (old, hash) = (range.snapshot.get(op), hash(key));
        let in_active = inner.active.get(key, hash).is_some();
        let in_frozen = old.frozen.as_ref().filter(|frozen| frozen.front.get(key, hash).is_some());
        if !in_active && in_frozen.is_none() {
            return;
        }
        let floor = op.load(&op.at(range.block).state, Relaxed).floor();
        self.log.take_out(op, |record| record.key == key && record.version >= floor);
        if in_active {
            inner.active.put(key, hash, None);
        }
        if let Some(frozen) = in_frozen {
            let mut front = Front::of(frozen.front.iter().collect::<Vec<_>>().into_iter(), 1);
            front.put(key, hash, None);
            let frozen = Frozen::new(front, frozen.bloom.clone(), frozen.floor);
            let new = Snapshot { frozen: Some(Arc::new(frozen)), ..old.clone() };
            self.show(op, range, inner, new);
        }
    }
}
