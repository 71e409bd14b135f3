//! Persistent words: the 64-bit atomics that all persistent data is made of.

use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::AtomicU64;

/// Size in bytes of the largest type that may be laid over persistent memory, and of the guard behind a reserve.
pub const MAX_OBJECT: usize = 64 << 10;

/// A value that is stored in one 64-bit persistent word.
///
/// `from_bits` must accept every bit pattern (a corrupt file can hold any) without a panic; `from_bits(v.to_bits())`
/// must give `v` back.
pub trait Bits: Copy {
    /// The stored form.
    fn to_bits(self) -> u64;
    /// The value of a stored form; total.
    fn from_bits(bits: u64) -> Self;
}

impl Bits for u64 {
    #[inline(always)]
    fn to_bits(self) -> u64 {
        self
    }
    #[inline(always)]
    fn from_bits(bits: u64) -> Self {
        bits
    }
}

/// A 64-bit word of persistent memory holding a `T`.
///
/// It is read and written only through an [`Op`](crate::Op), which takes every access to the
/// [`Medium`](crate::Medium). Narrower fields are packed into a word by a newtype that implements [`Bits`]; there is no
/// mixed-size access.
#[repr(transparent)]
pub struct Word<T: Bits = u64>(AtomicU64, PhantomData<fn(T) -> T>);

impl<T: Bits> Word<T> {
    /// The atomic underneath, for media and for code below the `Op`.
    #[inline(always)]
    pub(crate) fn raw(&self) -> &AtomicU64 {
        &self.0
    }
}

impl<T: Bits> fmt::Debug for Word<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Deliberately without the value: a read outside an `Op` would bypass the medium.
        f.write_str("Word")
    }
}

/// A type that may be laid over persistent memory.
///
/// Implement it with [`persistent!`](crate::persistent), which proves the conditions.
///
/// # Safety
/// The type must consist of nothing but [`Word`]s, without padding: then every bit pattern is a valid value, every
/// byte may change under a shared reference, and its size is a multiple of 8. Its alignment must be at least 8 and its
/// size at most [`MAX_OBJECT`](crate::MAX_OBJECT).
pub unsafe trait Persistent {
    /// The object as its words.
    #[inline(always)]
    fn words(&self) -> &[AtomicU64] {
        let len = size_of_val(self) / size_of::<u64>();
        // SAFETY: by the trait's contract the object is a sequence of 8-byte words, each an atomic, aligned to 8. Whoever gets the
        // atomics can store anything into them, past the medium: that breaks what a structure promises, not memory.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast::<AtomicU64>(), len) }
    }

    /// The same words as an object of another type, of the same size: for words that say themselves what they are.
    #[inline(always)]
    fn view<T: Persistent>(&self) -> &T
    where
        Self: Sized,
    {
        const { assert!(size_of::<T>() == size_of::<Self>() && align_of::<T>() <= align_of::<Self>()) };
        // SAFETY: both types are nothing but words, of which every bit pattern is valid; size and alignment were checked.
        unsafe { &*std::ptr::from_ref(self).cast::<T>() }
    }
}

// SAFETY: a `Word` is a transparent `AtomicU64`.
unsafe impl<T: Bits> Persistent for Word<T> {}
// SAFETY: arrays have no padding between or behind their elements.
unsafe impl<T: Persistent, const N: usize> Persistent for [T; N] {}
// SAFETY: slices are laid out as arrays.
unsafe impl<T: Persistent> Persistent for [T] {}

/// The size of a field of a persistent struct, which has to be persistent itself: part of the proof in [`persistent!`](crate::persistent).
#[doc(hidden)]
pub const fn size_of_persistent<T: Persistent>() -> usize {
    size_of::<T>()
}

/// The rest of that proof: the struct consists of its fields, and may be laid over persistent memory.
#[doc(hidden)]
pub const fn prove_layout<T>(fields: usize) {
    assert!(
        size_of::<T>() == fields,
        "a persistent struct must have no padding: add words until the sizes of the fields add up"
    );
    assert!(align_of::<T>() >= 8);
    assert!(size_of::<T>() <= MAX_OBJECT);
}

/// Declares structs that live in persistent memory, and proves that they may.
///
/// Each struct gets `#[repr(C)]` with the given alignment, and an implementation of [`Persistent`]. It does not compile
/// unless all fields are persistent and their sizes add up to the size of the struct (no padding).
///
/// ```
/// use durix_pmem::{persistent, Off, Word};
/// persistent! {
///     /// One line: a list node.
///     pub struct Node: align(64) {
///         /// Line 0, word 0.
///         pub key: Word,
///         /// Line 0, word 1.
///         pub next: Word<Off<Node>>,
///         /// Line 0, words 2 to 7.
///         pub value: [Word; 6],
///     }
/// }
/// assert_eq!(size_of::<Node>(), 64);
/// ```
///
/// Anything that is not made of words is refused, and so is padding. Documentation is the only attribute that is taken: a
/// `cfg` that removes a field, or the struct, would make the proof one of something else.
///
/// ```compile_fail
/// durix_pmem::persistent! { pub struct Bad: align(8) { x: u64 } }
/// ```
/// ```compile_fail
/// durix_pmem::persistent! { pub struct Padded: align(64) { x: durix_pmem::Word } }
/// ```
/// ```compile_fail
/// use durix_pmem::Word;
/// durix_pmem::persistent! { pub struct Padded: align(16) { x: Word, #[cfg(any())] y: Word } }
/// ```
#[macro_export]
macro_rules! persistent {
    ($( $(#[doc = $doc:expr])* $vis:vis struct $name:ident : align($align:literal) {
        $( $(#[doc = $fdoc:expr])* $fvis:vis $field:ident : $ty:ty ),* $(,)?
    } )*) => { $(
        $(#[doc = $doc])*
        #[repr(C, align($align))]
        #[derive(Debug)]
        $vis struct $name { $( $(#[doc = $fdoc])* $fvis $field : $ty ),* }

        const _: () = $crate::prove_layout::<$name>(0 $( + $crate::size_of_persistent::<$ty>() )*);
        // SAFETY: the constant above does not compile unless all fields are `Persistent` and there is no padding. The struct is
        // the one declared here, with exactly these fields: no attribute but documentation is taken. The proof is made by functions
        // of this crate, reached by `$crate`: a caller can give `assert!`, `core` or any other name a meaning of their own.
        unsafe impl $crate::Persistent for $name {}
        impl $crate::Laid for $name {
            const LAYOUT: u64 = $crate::Layout::new()
                .name(stringify!($name))
                .number(size_of::<$name>() as u64)
                .number(align_of::<$name>() as u64)
                $( .name(stringify!($field)).number(::std::mem::offset_of!($name, $field) as u64).number(size_of::<$ty>() as u64) )*
                .whole();
        }
    )* };
}
