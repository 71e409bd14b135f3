//! What a pool does, on memory and on files.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::*;
use crate::backing::HeapBacking;
use crate::{Op, Owner};

/// A number in a block of its own, as a structure.
#[derive(Debug)]
struct Cell<M: Medium> {
    root: Root<M>,
    extent: u64,
}

impl<M: Medium> Structure<M> for Cell<M> {
    const KIND: Kind = Kind { tag: *b"cell\0\0\0\0", version: 1 };
    type Options = u64;
    type Error = Error;

    fn create(session: &mut Session<M>, root: &Root<M>, options: &u64) -> Result<()> {
        let op = session.enter()?;
        let space = root.pool().space();
        let extent = space.activate(&op, space.reserve_extent(&op, root.owner(), 1)?)?;
        let words = root.words(&op);
        op.store(&words[0], extent.off, Ordering::Relaxed);
        op.store(&words[1], *options, Ordering::Relaxed);
        op.write_back(words);
        Ok(())
    }

    fn open(session: &mut Session<M>, root: Root<M>, _options: &u64) -> Result<Self> {
        let op = session.enter()?;
        let extent = op.load(&root.words(&op)[0], Ordering::Relaxed);
        Ok(Cell { root, extent })
    }
}

impl<M: Medium> Cell<M> {
    fn value(&self, op: &Op<'_, M>) -> u64 {
        op.load(&self.root.words(op)[1], Ordering::Relaxed)
    }
}

fn options() -> PoolOptions {
    PoolOptions::new().chunk_size(4096).max_indices(4).lanes(2).pool_id([7; 16]).boot_id([9; 16])
}

fn heap_pool() -> Pool {
    options().create_on(HeapBacking::new(1 << 20), Hardware::PAGE_CACHE).unwrap()
}

fn reopen(pool: &Pool) -> Pool {
    let image = HeapBacking::image_of(pool.mapping());
    options().open_on(HeapBacking::from_image(image), Hardware::PAGE_CACHE).unwrap().recover().unwrap()
}

#[test]
fn a_structure_is_found_again_by_its_name() {
    let pool = heap_pool();
    let cell = pool.open_structure::<Cell<_>>("a", &5).unwrap();
    assert_eq!(cell.root.owner(), Owner(0));
    let again = pool.open_structure::<Cell<_>>("a", &6).unwrap();
    assert!(Arc::ptr_eq(&cell, &again), "the same name twice is the same structure");
    let pool = reopen(&pool);
    let cell = pool.open_existing::<Cell<_>>("a", &0).unwrap();
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    assert_eq!(cell.value(&op), 5);
    assert_eq!(pool.space().extents(&op, Owner(0)).len(), 1);
    assert_eq!(pool.space().extents(&op, Owner(0))[0].off, cell.extent);
}
