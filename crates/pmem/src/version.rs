//! Versions of what lies in files: which a build writes, and which it opens.
//!
//! Every layout has a [`Version`] of its own: the pool, the journal, the checksums of the pages, and each kind of structure. It is a number, and a
//! digest of the layout ([`layout!`](crate::layout)) as long as the layout is not released.
//!
//! | | number | digest | who opens it |
//! |---|---|---|---|
//! | released | 1 and up | 0 | every later build |
//! | not released | [`UNRELEASED`] | of the layout | builds with the same layout |
//!
//! [`RELEASED`] is the only switch: a layout that says "I am version `n`" ([`Version::of`]) is released if `n` is at most that number. So all
//! layouts of a release are released together, by one line.

use std::fmt;

/// The number of every version that is not released.
pub const UNRELEASED: u32 = 999;

/// The newest version that is released; 0: none is. To freeze version 1, see "Compatibility" in `docs/design/durix.md`.
pub const RELEASED: u32 = 0;

/// Version of a layout.
///
/// ```
/// use durix_pmem::{UNRELEASED, Version};
///
/// let mine = Version::new(3);
/// assert_eq!((mine.number(), mine.layout(), mine.is_released()), (3, 0, true));
/// let (one, other) = (Version::unreleased(0x1234), Version::unreleased(0x5678));
/// assert_eq!((one.number(), one.is_released()), (UNRELEASED, false));
/// assert_ne!(one, other);
/// assert_eq!((mine.to_string(), one.to_string()), ("3".into(), "999-00001234".into()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Version {
    number: u32,
    layout: u32,
}

impl Version {
    /// A version that a structure outside of this project counts by itself.
    ///
    /// # Panics
    /// If the number is 0 or [`UNRELEASED`].
    pub const fn new(number: u32) -> Version {
        assert!(number != 0 && number != UNRELEASED, "this number is no version");
        Version { number, layout: 0 }
    }

    /// The version of a layout that only builds with the same layout open.
    pub const fn unreleased(layout: u32) -> Version {
        Version { number: UNRELEASED, layout }
    }

    /// Version `number` of a layout, which counts as unreleased until [`RELEASED`] has that number.
    pub const fn of(number: u32, layout: u32) -> Version {
        Version::in_release(RELEASED, number, layout)
    }

    /// The same in a build whose newest released version is `released`.
    pub const fn in_release(released: u32, number: u32, layout: u32) -> Version {
        if number <= released { Version::new(number) } else { Version::unreleased(layout) }
    }

    /// The number.
    pub const fn number(self) -> u32 {
        self.number
    }

    /// The digest of a layout that is not released; 0 of one that is.
    pub const fn layout(self) -> u32 {
        self.layout
    }

    /// Whether later builds open it.
    pub const fn is_released(self) -> bool {
        self.number != UNRELEASED
    }

    /// The word that stands for it in files: the number, and above it the digest.
    pub const fn to_word(self) -> u64 {
        (self.layout as u64) << 32 | self.number as u64
    }

    /// The version that a word stands for, which may be none that there is.
    pub const fn from_word(word: u64) -> Version {
        Version { number: word as u32, layout: (word >> 32) as u32 }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layout {
            0 => write!(f, "{}", self.number),
            layout => write!(f, "{}-{layout:08x}", self.number),
        }
    }
}

/// The versions of a layout that a build opens. A later version is the new `writes`, and the one before goes to `older`.
///
/// ```
/// use durix_pmem::{Version, Versions};
///
/// const MINE: Versions = Versions { writes: Version::new(2), older: &[Version::new(1)] };
/// assert!(MINE.opens(Version::new(1)) && MINE.opens(Version::new(2)));
/// assert!(!MINE.opens(Version::new(3)) && !MINE.opens(Version::unreleased(7)));
/// assert_eq!(MINE.to_string(), "2 and 1");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// What it writes.
    pub writes: Version,
    /// What else it opens.
    pub older: &'static [Version],
}

impl Versions {
    /// Only what it writes.
    pub const fn only(writes: Version) -> Versions {
        Versions { writes, older: &[] }
    }

    /// Whether it opens a version.
    pub fn opens(&self, found: Version) -> bool {
        found == self.writes || self.older.contains(&found)
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.writes)?;
        for (number, older) in self.older.iter().enumerate() {
            let joined = if number + 1 == self.older.len() { " and" } else { "," };
            write!(f, "{joined} {older}")?;
        }
        Ok(())
    }
}

/// A digest of a layout while it is put together: FNV-1a with 64 bits. Use [`layout!`](crate::layout).
#[derive(Clone, Copy, Debug)]
pub struct Layout(u64);

impl Layout {
    /// Of nothing.
    #[expect(clippy::new_without_default, reason = "only constants are made of it")]
    pub const fn new() -> Layout {
        Layout(0xcbf2_9ce4_8422_2325)
    }

    const fn byte(self, byte: u8) -> Layout {
        Layout((self.0 ^ byte as u64).wrapping_mul(0x0000_0100_0000_01b3))
    }

    /// With a number.
    #[must_use]
    pub const fn number(self, number: u64) -> Layout {
        let (bytes, mut layout, mut at) = (number.to_le_bytes(), self, 0);
        while at < bytes.len() {
            layout = layout.byte(bytes[at]);
            at += 1;
        }
        layout
    }

    /// With a name.
    #[must_use]
    pub const fn name(self, name: &str) -> Layout {
        let (bytes, mut layout, mut at) = (name.as_bytes(), self.number(name.len() as u64), 0);
        while at < bytes.len() {
            layout = layout.byte(bytes[at]);
            at += 1;
        }
        layout
    }

    /// With everything that a struct has.
    #[must_use]
    pub const fn with<T: Laid>(self) -> Layout {
        self.number(T::LAYOUT)
    }

    /// The digest as a struct keeps it.
    pub const fn whole(self) -> u64 {
        self.0
    }

    /// The digest as a [`Version`] has it; never zero.
    pub const fn finish(self) -> u32 {
        let folded = (self.0 >> 32) as u32 ^ self.0 as u32;
        if folded == 0 { 1 } else { folded }
    }
}

/// A struct of [`persistent!`](crate::persistent), which knows how it is laid out.
pub trait Laid {
    /// A digest of its name, size and alignment, and of the name, offset and size of each field.
    const LAYOUT: u64;
}

/// The digest of a layout: of its [persistent](crate::persistent) structs, and of numbers that say what their words mean (magic numbers, bits,
/// a count that is raised when the meaning of a word changes). Two builds with different digests do not open each other's unreleased files.
///
/// ```
/// durix_pmem::persistent! { pub struct Pair: align(16) { key: durix_pmem::Word, value: durix_pmem::Word } }
/// const MAGIC: u64 = 7;
/// const LAYOUT: u32 = durix_pmem::layout!([Pair], MAGIC);
/// assert_ne!(LAYOUT, durix_pmem::layout!([Pair], 8));
/// ```
#[macro_export]
macro_rules! layout {
    ([$($laid:ty),* $(,)?] $(, $number:expr)* $(,)?) => {
        $crate::Layout::new() $( .with::<$laid>() )* $( .number($number as u64) )* .finish()
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    mod first {
        crate::persistent! { pub(super) struct Node: align(16) { key: crate::Word, next: crate::Word } }
    }
    mod swapped {
        crate::persistent! { pub(super) struct Node: align(16) { next: crate::Word, key: crate::Word } }
    }
    mod joined {
        crate::persistent! { pub(super) struct Node: align(16) { key: [crate::Word; 2] } }
    }
    mod aligned {
        crate::persistent! { pub(super) struct Node: align(8) { key: crate::Word, next: crate::Word } }
    }
    mod again {
        crate::persistent! { pub(super) struct Node: align(16) { key: crate::Word, next: crate::Word } }
    }

    #[test]
    fn a_changed_field_order_size_or_number_changes_the_digest() {
        let first = crate::layout!([first::Node], 1);
        assert_eq!(crate::layout!([again::Node], 1), first);
        let others = [
            crate::layout!([swapped::Node], 1),
            crate::layout!([joined::Node], 1),
            crate::layout!([aligned::Node], 1),
            crate::layout!([first::Node], 2),
            crate::layout!([first::Node]),
            crate::layout!([first::Node, first::Node], 1),
        ];
        assert!(others.iter().all(|other| *other != first), "{others:x?}");
        assert_eq!(Layout::new().number(7).finish(), Layout::new().number(7).finish());
    }

    #[test]
    fn a_layout_is_released_with_its_number() {
        assert_eq!(Version::in_release(0, 1, 7), Version::unreleased(7));
        assert_eq!(Version::in_release(1, 1, 7), Version::new(1));
        assert_eq!(Version::in_release(1, 2, 7), Version::unreleased(7), "one that has changed since");
        assert_eq!(Version::in_release(2, 1, 7), Version::new(1), "one that has not");
        assert_eq!(Version::of(RELEASED + 1, 7), Version::unreleased(7));
    }

    #[test]
    fn words_of_versions() {
        for version in [Version::new(1), Version::unreleased(u32::MAX), Version::unreleased(1)] {
            assert_eq!(Version::from_word(version.to_word()), version);
        }
        assert_eq!(Version::new(3).to_word(), 3, "as before there were digests");
        assert_eq!(Version::unreleased(7).to_word(), 7 << 32 | 999);
    }
}
