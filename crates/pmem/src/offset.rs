//! Offsets: what is stored instead of pointers.

use std::fmt;
use std::marker::PhantomData;

use crate::word::Bits;

/// The offset of a `T` from the start of the pool, in bytes. Zero is null (the pool's header lies there).
///
/// Any bit pattern may be resolved: [`Op::at`](crate::Op::at) masks it into the mapping, so that a corrupt file can
/// lead to a wrong object, never to a stray access.
pub struct Off<T>(u64, PhantomData<fn() -> T>);

impl<T> Off<T> {
    /// The null offset.
    pub const NULL: Self = Off(0, PhantomData);

    /// The offset `bytes` from the start of the pool.
    #[inline(always)]
    pub const fn new(bytes: u64) -> Self {
        Off(bytes, PhantomData)
    }

    /// Bytes from the start of the pool.
    #[inline(always)]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Whether this is [`Off::NULL`].
    #[inline(always)]
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// The same place, seen as another type.
    #[inline(always)]
    pub const fn cast<U>(self) -> Off<U> {
        Off::new(self.0)
    }

    /// The offset `bytes` further on (wrapping; resolving masks it).
    #[inline(always)]
    #[must_use]
    pub const fn byte_add(self, bytes: u64) -> Self {
        Off::new(self.0.wrapping_add(bytes))
    }
}

impl<T> Clone for Off<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Off<T> {}
impl<T> PartialEq for Off<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}
impl<T> Eq for Off<T> {}
impl<T> PartialOrd for Off<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for Off<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.cmp(&other.0)
    }
}
impl<T> std::hash::Hash for Off<T> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}
impl<T> fmt::Debug for Off<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
impl<T> Bits for Off<T> {
    #[inline(always)]
    fn to_bits(self) -> u64 {
        self.0
    }
    #[inline(always)]
    fn from_bits(bits: u64) -> Self {
        Off::new(bits)
    }
}
