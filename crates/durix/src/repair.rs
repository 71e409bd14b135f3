//! Repair: copies what can be read out of a pool that may be damaged into a new one. The command `durix repair` does this with files.

use durix_pmem::pool::tally::Marked;
use durix_pmem::pool::{IndexInfo, PageReport};
use durix_pmem::{Medium, Pool};

use crate::kind;
use crate::names::TypeNames;
use crate::transaction::recover::recover;
use crate::types::Types;
use crate::{Error, Index, Result};

/// What was saved of a pool, and what was not.
///
/// ```
/// # let heap = || durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let create = || durix::PoolOptions::new().create_on(heap(), durix::Hardware::PAGE_CACHE);
/// # let db = durix::Db::over(create()?);
/// # let target = create()?;
/// db.map::<String, u64>("ages")?.insert("ada", &36)?;
/// let repaired = durix::repair::salvage_into(db.pool(), &target)?;
/// assert!(repaired.is_whole());
/// assert_eq!((repaired.indices[0].name.as_str(), repaired.indices[0].entries), ("ages", 1));
/// # Ok::<(), durix::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Repaired {
    /// The indices whose root entries can be read, without those of the facade itself.
    pub indices: Vec<RepairedIndex>,
    /// What is wrong with root entries that cannot be read: each may have been an index.
    pub unreadable: Vec<String>,
    /// What is wrong with the pool as a whole: its header and its root entries, which were made good by their spares; records of what a crash
    /// has interrupted, which could not be recovered.
    pub pool: Vec<String>,
    /// What the checksums of the pages say, or why they cannot be read.
    pub pages: Result<PageReport, String>,
    /// What is wrong with the pool's table of space.
    pub space: Vec<String>,
}

/// What was saved of an index.
///
/// ```
/// # let heap = || durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let create = || durix::PoolOptions::new().create_on(heap(), durix::Hardware::PAGE_CACHE);
/// # let db = durix::Db::over(create()?);
/// # let target = create()?;
/// db.ordered_map_of_kind::<u64, u64>("squares", "bst")?.insert(&3, &9)?;
/// let repaired = durix::repair::salvage_into(db.pool(), &target)?;
/// let squares = &repaired.indices[0];
/// assert_eq!((squares.entries, squares.held, squares.missing()), (1, Some(1), Some(0)));
/// # Ok::<(), durix::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepairedIndex {
    /// Its name.
    pub name: String,
    /// Entries that the new pool has.
    pub entries: u64,
    /// Entries that it had when its pool was closed, if its closing mark says so.
    pub held: Option<u64>,
    /// What is wrong with it.
    pub findings: Vec<String>,
}

impl RepairedIndex {
    /// How many entries fewer the new pool has than the index had, if that is known. More are lost where entries came back that had been
    /// removed before.
    ///
    /// ```
    /// assert_eq!(durix::repair::RepairedIndex::default().missing(), None);
    /// ```
    pub fn missing(&self) -> Option<u64> {
        self.held.map(|held| held.saturating_sub(self.entries))
    }
}

impl Repaired {
    /// Whether nothing is wrong with the pool.
    ///
    /// ```
    /// # let heap = || durix_pmem::backing::HeapBacking::new(64 << 20);
    /// # let create = || durix::PoolOptions::new().create_on(heap(), durix::Hardware::PAGE_CACHE);
    /// # let (source, target) = (create()?, create()?);
    /// assert!(durix::repair::salvage_into(&source, &target)?.is_whole());
    /// # Ok::<(), durix::Error>(())
    /// ```
    pub fn is_whole(&self) -> bool {
        self.unreadable.is_empty()
            && self.pool.is_empty()
            && self.space.is_empty()
            && self.pages.as_ref().is_ok_and(|pages| pages.damaged.is_empty())
            && self.indices.iter().all(|index| index.findings.is_empty())
    }
}

/// Copies every entry that can be read of every index of `source` into `target`, which is new, with the types. Damage is no error: it is
/// reported. `source` was best opened by [`PoolOptions::for_repair`](crate::PoolOptions::for_repair), nobody may write to it meanwhile, and no index of it may be open. Transactions that a crash has interrupted are
/// finished first; where that is impossible, what they changed is taken as it is.
///
/// ```
/// # let heap = || durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let create = || durix::PoolOptions::new().create_on(heap(), durix::Hardware::PAGE_CACHE);
/// # let db = durix::Db::over(create()?);
/// # let target = create()?;
/// db.map::<String, u64>("ages")?.insert("ada", &36)?;
/// durix::repair::salvage_into(db.pool(), &target)?;
/// assert_eq!(durix::Db::over(target).map::<String, u64>("ages")?.get("ada")?, Some(36));
/// # Ok::<(), durix::Error>(())
/// ```
///
/// # Errors
/// [`Error::Pool`]: `target` is full, an index is open, one of the pools cannot be used at all, or transactions that a crash has interrupted are in a
/// log of another version. What was copied stays there.
pub fn salvage_into<M: Medium, N: Medium>(source: &Pool<M>, target: &Pool<N>) -> Result<Repaired> {
    let mut pool = source.mended().to_vec();
    if let Err(error) = recover(source) {
        if let Error::Pool(durix_pmem::Error::PendingRecords { kind: found, .. }) = &error
            && kind::is_internal(*found)
        {
            // A log of another version. That is no damage: the build that wrote it can finish what is in it.
            return Err(error);
        }
        source.accept_pending_records();
        pool.push(format!("what a crash has interrupted may be found half done, in any index: {error}"));
    }
    let (indices, damaged) = source.readable_indices()?;
    let pages = source.check_pages().map_err(|error| error.to_string());
    // An entry that cannot be read may own space.
    let space = if damaged.is_empty() { space_findings(source, &indices)? } else { Vec::new() };
    let listed = indices.iter().filter(|info| !kind::is_internal(info.kind));
    let indices = listed.map(|info| save(source, info, target)).collect::<Result<_>>()?;
    let unreadable = damaged.iter().map(ToString::to_string).collect();
    Ok(Repaired { indices, unreadable, pool, pages, space })
}

/// What is wrong with the table of space.
fn space_findings<M: Medium>(source: &Pool<M>, indices: &[IndexInfo]) -> Result<Vec<String>> {
    let live = |owner| indices.iter().any(|info| info.owner == owner);
    let findings = source.check_space(&source.session()?.enter()?, live);
    Ok(findings.iter().map(ToString::to_string).collect())
}

fn save<M: Medium, N: Medium>(source: &Pool<M>, info: &IndexInfo, target: &Pool<N>) -> Result<RepairedIndex> {
    let mut saved = RepairedIndex { name: info.name.clone(), ..RepairedIndex::default() };
    let (Some(from_kind), Some(to_kind)) = (kind::of::<M>(info.kind), kind::of::<N>(info.kind)) else {
        saved.findings.push(Error::ForeignKind { index: info.name.clone(), found: info.kind }.to_string());
        return Ok(saved);
    };
    let from = match from_kind.salvage(source, &info.name) {
        Ok(from) => from,
        // Whatever keeps this index from being read, others may be sound.
        Err(error) => {
            saved.findings.push(error.to_string());
            return Ok(saved);
        }
    };
    let to = to_kind.open_or_create(target, &info.name)?;
    saved.findings = save_entries(source, &*from, target, &*to)?;
    let mut reading = source.session()?;
    if saved.findings.is_empty() {
        // What does not keep from reading may be wrong all the same.
        saved.findings = match from.check(&mut reading) {
            Ok(findings) => findings.iter().map(ToString::to_string).collect(),
            Err(error) => vec![error.to_string()],
        };
    }
    if let Marked::Held(totals) = from.root().marked(&reading.enter()?) {
        saved.held = Some(totals.count);
    }
    let mut writing = target.session()?;
    to.sync(&mut writing)?;
    saved.entries = to.count(&mut writing)?;
    Ok(saved)
}

/// Copies every entry that can be read, and the types. Returns what could not be read.
fn save_entries<M: Medium, N: Medium>(
    source: &Pool<M>,
    from: &dyn Index<M>,
    target: &Pool<N>,
    to: &dyn Index<N>,
) -> Result<Vec<String>> {
    let (mut reading, mut writing) = (source.session()?, target.session()?);
    let types = Types::kept(from, &reading.enter()?);
    TypeNames::of(source).keep(target, types)?;
    types.declare(to, &writing.enter()?);
    let (mut failed, mut unfit) = (None, Vec::new());
    let findings = from.salvage(&mut reading, &mut |key, value| {
        if failed.is_some() {
            return;
        }
        match writing.enter().map_err(Error::from).and_then(|op| to.insert_if_absent(&op, key, value)) {
            Ok(_) => {}
            Err(error @ Error::Pool(_)) => failed = Some(error),
            // What was read there is no entry that this kind could have written.
            Err(error) => unfit.push(format!("an entry makes no sense: {error}")),
        }
    });
    match failed {
        Some(error) => Err(error),
        None => {
            // An error ends the reading: what came before is saved.
            let findings = findings.map_or_else(
                |error| vec![error.to_string()],
                |findings| findings.iter().map(ToString::to_string).collect(),
            );
            Ok(findings.into_iter().chain(unfit).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use durix_pmem::backing::HeapBacking;
    use durix_pmem::{Hardware, PoolOptions};

    use super::*;

    fn pool() -> Pool {
        PoolOptions::new().create_on(HeapBacking::new(16 << 20), Hardware::PAGE_CACHE).unwrap()
    }

    #[test]
    fn a_sound_pool_is_copied_with_its_types_and_counts() {
        let (source, target) = (crate::Db::over(pool()), pool());
        source.map::<u64, String>("first").unwrap().insert(&1, "one").unwrap();
        let second = source.ordered_map_of_kind::<u64, u64>("second", "bst").unwrap();
        (0..10).for_each(|key| _ = second.insert(&key, &(key * key)).unwrap());
        drop(second);
        let repaired = salvage_into(source.pool(), &target).unwrap();
        assert!(repaired.is_whole(), "{repaired:?}");
        let told: Vec<_> = repaired.indices.iter().map(|i| (i.name.as_str(), i.entries, i.held, i.missing())).collect();
        assert_eq!(told, [("first", 1, None, None), ("second", 10, Some(10), Some(0))]);
        let target = crate::Db::over(target);
        assert_eq!(target.map::<u64, String>("first").unwrap().get(&1).unwrap().as_deref(), Some("one"));
        assert_eq!(target.ordered_map::<u64, u64>("second").unwrap().get(&9).unwrap(), Some(81));
    }

    /// Damaged epochs of a pool ended the whole repair, other indices included.
    #[test]
    fn what_keeps_one_index_from_being_read_costs_no_other() {
        let source = crate::Db::over(pool());
        let first = source.ordered_map_of_kind::<u64, u64>("first", "masstree").unwrap();
        (0..100).for_each(|key| _ = first.insert(&key, &key).unwrap());
        drop(first);
        source.map::<u64, u64>("second").unwrap().insert(&1, &1).unwrap();
        source.close().unwrap();
        let mut image = HeapBacking::image_of(source.pool().mapping());
        // A word of the epochs, in the header.
        image[1312..1320].fill(0x77);
        let options = PoolOptions::new().read_only(true).accept_unclean(true);
        let damaged = options.open_on(HeapBacking::from_image(image), Hardware::PAGE_CACHE).unwrap().recover().unwrap();
        let target = pool();
        let repaired = salvage_into(&damaged, &target).unwrap();
        let told: Vec<_> = repaired.indices.iter().map(|i| (i.name.as_str(), i.findings.is_empty())).collect();
        assert_eq!(told, [("first", false), ("second", true)], "{repaired:?}");
        assert_eq!(repaired.indices[1].entries, 1);
    }

    #[test]
    fn types_come_back_although_the_root_entry_is_lost() {
        let source = crate::Db::over(pool());
        let squares = source.ordered_map_of_kind::<u64, u64>("squares", "bst").unwrap();
        (0..100).for_each(|key| _ = squares.insert(&key, &(key * key)).unwrap());
        let (roots, words) = (source.pool().geometry().roots_off() as usize, 64 * 3 + 48);
        drop(squares);
        source.close().unwrap();
        let sound = HeapBacking::image_of(source.pool().mapping());
        // A word of the types, and the whole entry.
        for (from, to) in [(roots + words, roots + words + 1), (roots, roots + 256)] {
            let mut image = sound.clone();
            image[from..to].iter_mut().for_each(|byte| *byte ^= 0x55);
            let backing = HeapBacking::from_image(image);
            let damaged = PoolOptions::new().for_repair().open_on(backing, Hardware::PAGE_CACHE).unwrap();
            let target = pool();
            salvage_into(&damaged.recover().unwrap(), &target).unwrap();
            let target = crate::Db::over(target);
            assert_eq!(target.ordered_map::<u64, u64>("squares").unwrap().get(&9).unwrap(), Some(81));
        }
    }

    #[test]
    fn a_full_target_is_an_error() {
        let source = crate::Db::over(pool());
        let map = source.map::<u64, Vec<u8>>("large").unwrap();
        (0..200).for_each(|key| _ = map.insert(&key, &vec![7; 4000]).unwrap());
        let options = PoolOptions::new().chunk_size(4096).initial_size(24 * 4096);
        let target = options.create_on(HeapBacking::new(64 * 4096), Hardware::PAGE_CACHE).unwrap();
        assert!(matches!(salvage_into(source.pool(), &target), Err(Error::Pool(_))));
    }
}
