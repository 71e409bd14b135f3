//! Adding a layer: two keys share a slice and go on differently.

use durix_pmem::{Medium, Off};

use crate::Policy;
use crate::error::Result;
use crate::layout::{LayerName, Node, kind};
use crate::node::context::Context;
use crate::node::entry::Entry;
use crate::node::lock::Locked;
use crate::node::new_blocks::NewBlocks;
use crate::node::part::Part;
use crate::value::Record;

impl<'a, M: Medium, P: Policy> Context<'a, M, P> {
    /// Puts the key of a record and a new one into a layer of their own, which takes the place of the slot. `rest` begins
    /// with the slice that they share.
    pub(crate) fn add_layer(
        &self,
        locked: Locked<'a, M, P>,
        rank: usize,
        slot: usize,
        record: Record<'a, M>,
        rest: &[u8],
        value: &[u8],
    ) -> Result<()> {
        let mut old = Vec::new();
        record.suffix_into(&mut old);
        let old_value = record.value().to_vec();
        let mut fresh = NewBlocks::new(*self);
        let slice = Part::of(rest).slice;
        let name = self.layer_name(locked.off).below(slice);
        let layer = self.build_layer(&mut fresh, name, (&old, &old_value), (&rest[8..], value))?;
        let entry = Entry { slice, kind: kind::LAYER, inline: false, word: layer.get() };
        self.replace(locked, rank, slot, entry)?;
        fresh.keep();
        Ok(())
    }

    /// The layers for two different keys: one for each slice that they share, one for what differs. `name` is that of the first of them.
    fn build_layer(
        &self,
        fresh: &mut NewBlocks<'a, M, P>,
        mut name: LayerName,
        mut a: (&[u8], &[u8]),
        mut b: (&[u8], &[u8]),
    ) -> Result<Off<Node>> {
        // Each slice that they share, and the layer that it lies in.
        let mut shared = Vec::new();
        while a.0.len() > 8 && b.0.len() > 8 && a.0[..8] == b.0[..8] {
            let slice = Part::of(a.0).slice;
            shared.push((slice, name));
            name = name.below(slice);
            (a.0, b.0) = (&a.0[8..], &b.0[8..]);
        }
        let (first, second) = if Part::of(a.0) < Part::of(b.0) { (a, b) } else { (b, a) };
        let entries = [self.entry(fresh, first.0, first.1)?, self.entry(fresh, second.0, second.1)?];
        let mut layer = fresh.border(&entries, name)?;
        for (slice, name) in shared.into_iter().rev() {
            let entry = Entry { slice, kind: kind::LAYER, inline: false, word: layer.get() };
            layer = fresh.border(&[entry], name)?;
        }
        Ok(layer)
    }
}
