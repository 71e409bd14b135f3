//! Memory of a tree: extents of the pool, and the durable allocator that cuts them into blocks.

pub(crate) mod arena;
pub(crate) mod slab;
