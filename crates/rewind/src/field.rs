//! Words within objects.

use durix_pmem::Off;

/// The place of a field of the object at `at`, as a transaction takes it.
///
/// ```
/// use durix_pmem::{Off, Word, persistent};
/// persistent! { struct Pair: align(8) { left: Word, right: Word<Off<Pair>> } }
/// let pair = Off::<Pair>::new(64);
/// let right: Off<Word<Off<Pair>>> = durix_rewind::field!(pair, Pair, right);
/// assert_eq!(right.get(), 72);
/// ```
#[macro_export]
macro_rules! field {
    ($at:expr, $object:ty, $field:ident) => {
        $crate::project($at, ::core::mem::offset_of!($object, $field), |object: &$object| &object.$field)
    };
}

/// What [`field!`](crate::field) expands to: the third argument only says what lies there.
#[doc(hidden)]
pub fn project<T, F>(at: Off<T>, offset: usize, _field: fn(&T) -> &F) -> Off<F> {
    at.byte_add(offset as u64).cast()
}
