//! Pools: a header, lanes, named roots and space in one mapped file.

pub mod geometry;

pub use geometry::{Geometry, Owner};
