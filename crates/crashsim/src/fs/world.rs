//! The state of a simulated file system: what is visible, and what may be on the disk.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::cell::{Cell, Decisions, Target, Unknowns};
use crate::count::Count;

/// The step that made what was there at the beginning.
pub(super) const NO_STEP: u32 = u32::MAX;

pub(super) const ROOT: u32 = 0;

/// The contents of a sector.
pub(super) type Bytes = Arc<[u8]>;

/// What a file system promises of names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Promises {
    /// A sync makes durable what it is asked for and nothing else: each name of a directory holds any of its entries since the
    /// last sync of that directory, whatever the other names hold. The two names of a rename are two names.
    #[default]
    Least,
    /// Operations on names survive in their order, in all directories together, and any sync makes those before it durable: what a
    /// journal of metadata gives (ext4, XFS). Contents and sizes are as in [`Least`](Promises::Least).
    OrderedNames,
}

/// One thing, as it is seen, and what the disk may hold of it.
#[derive(Clone, Debug)]
pub(super) struct Versions<T> {
    pub(super) now: Cell<T>,
    /// What the disk may hold, in order, with the step that made it.
    on_disk: Vec<(Cell<T>, u32)>,
    /// A sync would write it.
    dirty: bool,
    /// A failed sync has marked it clean.
    lost: bool,
}

impl<T: Clone + PartialEq> Versions<T> {
    fn new(value: T) -> Self {
        Versions {
            now: Cell::Known(value.clone()),
            on_disk: vec![(Cell::Known(value), NO_STEP)],
            dirty: false,
            lost: false,
        }
    }

    /// Whether it may hold the value, now or after a crash.
    pub(super) fn may_be(&self, value: &T) -> bool {
        fn may_be<T: PartialEq>(cell: &Cell<T>, value: &T) -> bool {
            match cell {
                Cell::Known(known) => known == value,
                Cell::Open(_, options) => options.iter().any(|option| may_be(option, value)),
            }
        }
        may_be(&self.now, value) || self.on_disk.iter().any(|(cell, _)| may_be(cell, value))
    }

    fn set(&mut self, value: T, step: u32) {
        self.now = Cell::Known(value.clone());
        self.on_disk.push((Cell::Known(value), step));
        (self.dirty, self.lost) = (true, false);
    }

    fn sync(&mut self) {
        if self.dirty {
            self.on_disk = vec![(self.now.clone(), NO_STEP)];
            self.dirty = false;
        }
    }

    /// The disk holds any of the versions from here on, whatever is synced later.
    fn fail_sync(&mut self, target: Target, layer: u32, unknowns: &mut Unknowns) {
        if self.dirty {
            let open = open(&self.on_disk, target, layer, unknowns);
            self.lost = true;
            self.on_disk = vec![(open, NO_STEP)];
            self.dirty = false;
        }
    }

    fn crash(&mut self, target: Target, layer: u32, unknowns: &mut Unknowns) {
        if self.is_settled() {
            return;
        }
        self.now = open(&self.on_disk, target, layer, unknowns);
        self.on_disk = vec![(self.now.clone(), NO_STEP)];
        (self.dirty, self.lost) = (false, false);
    }

    /// What a failed sync has marked clean may have been dropped from the cache, too.
    fn die(&mut self, target: Target, layer: u32, unknowns: &mut Unknowns) {
        if self.lost {
            let both = [self.on_disk[0].clone(), (self.now.clone(), NO_STEP)];
            self.now = open(&both, target, layer, unknowns);
        }
    }

    fn left(&mut self, power_fails: bool, target: Target, layer: u32, unknowns: &mut Unknowns) {
        match power_fails {
            true => self.crash(target, layer, unknowns),
            false => self.die(target, layer, unknowns),
        }
    }

    /// A power failure where the unknown `joint` says how many of the `steps` have survived.
    fn crash_in_order(&mut self, joint: u32, steps: &[u32]) {
        if self.is_settled() {
            return;
        }
        let mut held = 0;
        let table = steps.iter().map(|step| {
            let at = self.on_disk.iter().rposition(|(_, made)| made == step && *step != NO_STEP);
            held = at.unwrap_or(held);
            self.on_disk[held].0.clone()
        });
        self.now = Cell::Open(joint, table.collect());
        self.on_disk = vec![(self.now.clone(), NO_STEP)];
        (self.dirty, self.lost) = (false, false);
    }

    fn is_settled(&self) -> bool {
        !self.dirty && !self.lost
    }
}

/// One of the versions, each content once.
fn open<T: Clone + PartialEq>(
    versions: &[(Cell<T>, u32)],
    target: Target,
    layer: u32,
    unknowns: &mut Unknowns,
) -> Cell<T> {
    let mut different: Vec<&(Cell<T>, u32)> = Vec::new();
    // A value that comes again counts where it comes last.
    for version in versions.iter().rev() {
        if !different.iter().any(|other| other.0.is_same(&version.0)) {
            different.push(version);
        }
    }
    different.reverse();
    if let [only] = different[..] {
        return only.0.clone();
    }
    let steps = different.iter().map(|version| version.1).collect();
    Cell::Open(unknowns.add(target, layer, steps), different.into_iter().map(|version| version.0.clone()).collect())
}

/// A file or a directory.
#[derive(Clone, Debug)]
pub(super) struct Inode {
    pub(super) is_directory: bool,
    pub(super) size: Versions<u64>,
    pub(super) sectors: BTreeMap<u64, Versions<Bytes>>,
    /// Entries of a directory, by number of the name.
    pub(super) names: BTreeMap<u32, Versions<Option<u32>>>,
}

#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) inodes: Vec<Arc<Inode>>,
    pub(super) unknowns: Unknowns,
    pub(super) atom: usize,
    pub(super) promises: Promises,
    /// Names by number.
    pub(super) names: Arc<Vec<Arc<str>>>,
    /// Crashes so far.
    pub(super) layer: u32,
    /// Steps that changed names since these were last durable, under [`Promises::OrderedNames`].
    named: Vec<u32>,
}

impl World {
    pub(super) fn new(atom: usize, promises: Promises) -> Self {
        let mut world = World {
            inodes: Vec::new(),
            unknowns: Unknowns::default(),
            atom,
            promises,
            names: Arc::default(),
            layer: 0,
            named: Vec::new(),
        };
        world.new_inode(true);
        world
    }

    pub(super) fn new_inode(&mut self, is_directory: bool) -> u32 {
        let size = Versions::new(0);
        self.inodes.push(Arc::new(Inode { is_directory, size, sectors: BTreeMap::new(), names: BTreeMap::new() }));
        self.inodes.len() as u32 - 1
    }

    pub(super) fn inode(&mut self, inode: u32) -> &mut Inode {
        Arc::make_mut(&mut self.inodes[inode as usize])
    }

    // ---- names ----

    pub(super) fn number_of(&mut self, name: &str) -> u32 {
        let known = self.names.iter().position(|known| **known == *name);
        known.unwrap_or_else(|| {
            Arc::make_mut(&mut self.names).push(name.into());
            self.names.len() - 1
        }) as u32
    }

    pub(super) fn entry(&mut self, decisions: &mut Decisions, directory: u32, name: u32) -> Option<u32> {
        let inode = Arc::clone(&self.inodes[directory as usize]);
        let entry = inode.names.get(&name)?;
        *self.unknowns.resolve(decisions, &entry.now, |a, b| a == b)
    }

    pub(super) fn set_entry(&mut self, directory: u32, name: u32, entry: Option<u32>, step: u32) {
        let names = &mut self.inode(directory).names;
        names.entry(name).or_insert_with(|| Versions::new(None)).set(entry, step);
        if self.named.last() != Some(&step) {
            self.named.push(step);
        }
    }

    // ---- sizes ----

    /// The size, as far as it is at most `most`.
    pub(super) fn size_up_to(&mut self, decisions: &mut Decisions, inode: u32, most: u64) -> u64 {
        let inode = Arc::clone(&self.inodes[inode as usize]);
        let same = |a: &u64, b: &u64| a.min(&most) == b.min(&most);
        (*self.unknowns.resolve(decisions, &inode.size.now, same)).min(most)
    }

    pub(super) fn size(&mut self, decisions: &mut Decisions, inode: u32) -> u64 {
        self.size_up_to(decisions, inode, u64::MAX)
    }

    /// Makes a file at least `len` bytes long, zeroed from its present end to `zeroed`, where something else may lie.
    pub(super) fn extend(&mut self, decisions: &mut Decisions, inode: u32, len: u64, zeroed: u64, step: u32) {
        if self.size_up_to(decisions, inode, len) < len {
            let size = self.size(decisions, inode);
            self.zero(decisions, inode, size, zeroed, false, step);
            self.inode(inode).size.set(len, step);
        }
    }

    pub(super) fn set_len(&mut self, decisions: &mut Decisions, inode: u32, len: u64, step: u32) {
        let size = self.size(decisions, inode);
        if len > size {
            self.extend(decisions, inode, len, len, step);
            return;
        }
        // What lies beyond goes, also what an extension has left there whose length did not survive.
        let end =
            self.inodes[inode as usize].sectors.keys().next_back().map_or(0, |last| (last + 1) * self.atom as u64);
        self.zero(decisions, inode, len, end, false, step);
        if len < size {
            self.inode(inode).size.set(len, step);
        }
    }

    /// Zeroes bytes; also those of sectors that were never written, if asked to.
    pub(super) fn zero(&mut self, decisions: &mut Decisions, inode: u32, from: u64, to: u64, all: bool, step: u32) {
        let atom = self.atom as u64;
        for number in from / atom..to.div_ceil(atom).max(from / atom) {
            let there = self.inodes[inode as usize].sectors.contains_key(&number);
            if there || all {
                let start = number * atom;
                let (a, b) = (from.max(start) - start, to.min(start + atom) - start);
                if a < b {
                    self.patch(decisions, inode, number, a as usize, &vec![0; (b - a) as usize], step);
                }
            }
        }
    }

    // ---- contents ----

    pub(super) fn read(&mut self, decisions: &mut Decisions, inode: u32, offset: u64, bytes: &mut [u8]) -> usize {
        let end = self.size_up_to(decisions, inode, offset.saturating_add(bytes.len() as u64));
        let len = end.saturating_sub(offset) as usize;
        let file = Arc::clone(&self.inodes[inode as usize]);
        for (number, within, part) in pieces(self.atom, offset, len) {
            let out = &mut bytes[part.clone()];
            let within = within..within + out.len();
            match file.sectors.get(&number) {
                None => out.fill(0),
                Some(sector) => {
                    let same = |a: &Bytes, b: &Bytes| a[within.clone()] == b[within.clone()];
                    out.copy_from_slice(&self.unknowns.resolve(decisions, &sector.now, same)[within.clone()]);
                }
            }
        }
        len
    }

    pub(super) fn write(&mut self, decisions: &mut Decisions, inode: u32, offset: u64, bytes: &[u8], step: u32) {
        let end = offset + bytes.len() as u64;
        self.extend(decisions, inode, end, offset, step);
        for (number, within, part) in pieces(self.atom, offset, bytes.len()) {
            self.patch(decisions, inode, number, within, &bytes[part], step);
        }
    }

    /// Writes a part of a sector.
    fn patch(&mut self, decisions: &mut Decisions, inode: u32, number: u64, within: usize, part: &[u8], step: u32) {
        let bytes: Bytes = if part.len() == self.atom {
            part.into()
        } else {
            let file = Arc::clone(&self.inodes[inode as usize]);
            let mut bytes = match file.sectors.get(&number) {
                None => vec![0; self.atom],
                Some(sector) => self.unknowns.resolve(decisions, &sector.now, |a, b| a == b).to_vec(),
            };
            bytes[within..within + part.len()].copy_from_slice(part);
            bytes.into()
        };
        let atom = self.atom;
        let sectors = &mut self.inode(inode).sectors;
        sectors.entry(number).or_insert_with(|| Versions::new(vec![0; atom].into())).set(bytes, step);
    }

    // ---- durability ----

    /// Makes the contents and the size of a file durable; of a size that became less, only if `all`.
    pub(super) fn sync_file(&mut self, inode: u32, all: bool) {
        let unknowns = std::mem::take(&mut self.unknowns);
        let file = self.inode(inode);
        file.sectors.values_mut().for_each(Versions::sync);
        let size = &mut file.size;
        match (&size.now, size.dirty && !all) {
            (Cell::Known(now), true) => {
                let now = *now;
                // What can be read must be there, so the file is not shorter.
                size.on_disk.retain(|(old, _)| unknowns.any(old, &|old| *old > now));
                size.on_disk.push((Cell::Known(now), NO_STEP));
                size.dirty = size.on_disk.len() > 1;
            }
            _ => size.sync(),
        }
        self.unknowns = unknowns;
        self.sync_all_names();
    }

    pub(super) fn sync_directory(&mut self, inode: u32) {
        self.inode(inode).names.values_mut().for_each(Versions::sync);
        self.sync_all_names();
    }

    /// Names are durable in their order, so any sync makes all of them durable.
    fn sync_all_names(&mut self) {
        if self.promises == Promises::OrderedNames && !self.named.is_empty() {
            for inode in &mut self.inodes {
                if inode.is_directory {
                    Arc::make_mut(inode).names.values_mut().for_each(Versions::sync);
                }
            }
        }
        if self.promises == Promises::OrderedNames {
            self.named.clear();
        }
    }

    /// A sync that fails: what it was asked for may be lost, and is marked clean.
    pub(super) fn fail_sync(&mut self, inode: u32) {
        let mut unknowns = std::mem::take(&mut self.unknowns);
        let layer = self.layer;
        let it = self.inode(inode);
        for (number, sector) in &mut it.sectors {
            sector.fail_sync(Target::Sector { inode, number: *number }, layer, &mut unknowns);
        }
        it.size.fail_sync(Target::Size { inode }, layer, &mut unknowns);
        for (name, entry) in &mut it.names {
            entry.fail_sync(Target::Name { directory: inode, name: *name }, layer, &mut unknowns);
        }
        self.unknowns = unknowns;
    }

    // ---- crashes ----

    /// What a power failure leaves.
    pub(super) fn power_failure(&self) -> World {
        self.after(true)
    }

    /// What the death of the process leaves: all that is visible, as durable as before.
    pub(super) fn process_death(&self) -> World {
        self.after(false)
    }

    fn after(&self, power_fails: bool) -> World {
        let mut world = self.clone();
        let mut unknowns = std::mem::take(&mut world.unknowns);
        let layer = world.layer;
        let ordered = if power_fails { self.ordered_names(layer, &mut unknowns) } else { None };
        for (number, inode) in world.inodes.iter_mut().enumerate() {
            let number = number as u32;
            if inode.is_settled() {
                continue;
            }
            let inode = Arc::make_mut(inode);
            for (sector, versions) in &mut inode.sectors {
                let target = Target::Sector { inode: number, number: *sector };
                versions.left(power_fails, target, layer, &mut unknowns);
            }
            inode.size.left(power_fails, Target::Size { inode: number }, layer, &mut unknowns);
            for (name, versions) in &mut inode.names {
                let target = Target::Name { directory: number, name: *name };
                match &ordered {
                    Some((joint, steps)) => versions.crash_in_order(*joint, steps),
                    None => versions.left(power_fails, target, layer, &mut unknowns),
                }
            }
        }
        if power_fails {
            world.named.clear();
        }
        world.unknowns = unknowns;
        world.layer += 1;
        world
    }

    /// Under [`Promises::OrderedNames`], the unknown that says how many changes of names have survived, and their steps.
    fn ordered_names(&self, layer: u32, unknowns: &mut Unknowns) -> Option<(u32, Vec<u32>)> {
        if self.promises != Promises::OrderedNames || self.named.is_empty() {
            return None;
        }
        let steps: Vec<u32> = [NO_STEP].into_iter().chain(self.named.iter().copied()).collect();
        Some((unknowns.add(Target::Names, layer, steps.clone()), steps))
    }

    /// States that the crashes so far have left.
    pub(super) fn states(&self) -> Count {
        self.unknowns.states()
    }
}

impl Inode {
    fn is_settled(&self) -> bool {
        self.size.is_settled()
            && self.sectors.values().all(Versions::is_settled)
            && self.names.values().all(Versions::is_settled)
    }
}

/// The parts of `len` bytes from `offset` on: the number of the sector, where in it the part begins, and which bytes it is.
fn pieces(atom: usize, offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let position = offset + at as u64;
        let (number, within) = (position / atom as u64, (position % atom as u64) as usize);
        let count = (atom - within).min(len - at);
        let part = at..at + count;
        at += count;
        (count > 0).then_some((number, within, part))
    })
}
