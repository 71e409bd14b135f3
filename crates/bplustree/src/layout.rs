//! What lies in the pool: nodes and records. Words are in the byte order of the machine (little-endian).
//!
//! A node is five lines; leaves and interior nodes are alike.
//!
//! | line | word | what |
//! |---|---|---|
//! | 0 | 0 `tag` | bits 8–63 magic, bits 0–7 level (0: leaf) |
//! | 0 | 1 `order` | `Order`: how many slots are in use, and their order |
//! | 0 | 2 `key_forms` | four bits a slot: `Form` of the key |
//! | 0 | 3 `value_forms` | the same of the value |
//! | 0 | 4 `link` | leaf: the next leaf, or 0. Interior: the child below all separators |
//! | 0 | 5–7 | nothing |
//! | 1–2 | 0–14 `keys` | the first 8 bytes of each slot's key, big-endian, then zeroes; word 15: nothing |
//! | 3–4 | 0–14 `values` | a value, a child, or the offset of a record; word 15: nothing |
//!
//! A record holds what does not fit into a slot: a chain of blocks, all but the last as long as the pool's largest block.
//!
//! | word of a block | what |
//! |---|---|
//! | 0 | first block: bits 0–15 bytes of the key, or 0 if it is in the slot; bits 16–40 bytes of the value; bits 41–63 a checksum of where the block lies, these lengths, key and value. Others: 0 |
//! | 1 | the next block, or 0 |
//! | 2… | the key, then the value, each rounded up to whole words; the value of a separator is its child |
//!
//! All words change by the engine's commits only. So no word needs to share a line with another one.

use durix_pmem::{Version, Word, layout, persistent};

/// Version of the layout, that of the engine's log included.
pub const LAYOUT_VERSION: Version = Version::of(1, LAYOUT);
const LAYOUT: u32 = layout!([Node], MAGIC, SLOTS, MAX_LEVEL, durix_rewind::engine::LAYOUT);
/// Entries of a node at most.
pub const SLOTS: usize = 15;
/// Most levels of a tree: enough for 2^60 entries at two a node.
pub const MAX_LEVEL: u64 = 40;

persistent! {
    /// A node.
    pub struct Node: align(64) {
        /// Magic and level.
        pub tag: Word,
        /// Which slots are in use, and their order.
        pub order: Word,
        /// Forms of keys.
        pub key_forms: Word,
        /// Forms of values.
        pub value_forms: Word,
        /// Next leaf, or first child.
        pub link: Word,
        /// Nothing.
        pub spare: [Word; 3],
        /// First bytes of keys.
        pub keys: [Word; 16],
        /// Values.
        pub values: [Word; 16],
    }
}

/// Offsets in a node.
pub(crate) mod at {
    use super::Node;
    use std::mem::offset_of;

    pub(crate) const TAG: u64 = offset_of!(Node, tag) as u64;
    pub(crate) const ORDER: u64 = offset_of!(Node, order) as u64;
    pub(crate) const KEY_FORMS: u64 = offset_of!(Node, key_forms) as u64;
    pub(crate) const VALUE_FORMS: u64 = offset_of!(Node, value_forms) as u64;
    pub(crate) const LINK: u64 = offset_of!(Node, link) as u64;
    pub(crate) const KEYS: u64 = offset_of!(Node, keys) as u64;
    pub(crate) const VALUES: u64 = offset_of!(Node, values) as u64;
}

/// Bytes of a node.
pub const NODE: u64 = size_of::<Node>() as u64;

const _: () = assert!(NODE == 5 * 64 && at::KEYS == 64 && at::VALUES == 192);

const MAGIC: u64 = u64::from_be_bytes(*b"\0BTree01");

/// The tag of a node at a level.
pub(crate) const fn tag(level: u64) -> u64 {
    MAGIC << 8 | level
}

/// The level that a tag says; `None` if it is no node's.
pub(crate) const fn level_of(tag: u64) -> Option<u64> {
    if tag >> 8 == MAGIC && tag & 0xFF <= MAX_LEVEL { Some(tag & 0xFF) } else { None }
}

/// How many slots are in use, in the low four bits; above them, four bits each, the slots: first those in use, in the order of
/// their keys, then the free ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order(pub(crate) u64);

impl Order {
    /// No slot in use.
    pub(crate) const EMPTY: Order = Order(0xEDCB_A987_6543_2100);

    /// Slots in use.
    #[inline]
    pub(crate) fn len(self) -> usize {
        (self.0 & 15) as usize
    }

    /// The slot at a place, below 16 whatever the word is.
    #[inline]
    pub(crate) fn slot(self, place: usize) -> usize {
        debug_assert!(place < SLOTS);
        (self.0 >> (4 + 4 * place) & 15) as usize
    }

    /// Puts the first free slot at a place, not above the number in use, which is below [`SLOTS`].
    #[must_use]
    pub(crate) fn insert(self, place: usize) -> Order {
        let mut slots = self.slots();
        slots[place..=self.len()].rotate_right(1);
        Order::of(self.len() + 1, slots)
    }

    /// Frees the slot at a place in use.
    #[must_use]
    pub(crate) fn remove(self, place: usize) -> Order {
        let mut slots = self.slots();
        slots[place..self.len()].rotate_left(1);
        Order::of(self.len() - 1, slots)
    }

    /// Frees all slots from a place on.
    #[must_use]
    pub(crate) fn truncate(self, len: usize) -> Order {
        Order(self.0 & !15 | len as u64)
    }

    /// Whether every slot is there once.
    pub(crate) fn is_sound(self) -> bool {
        let mut slots = self.slots();
        slots.sort_unstable();
        slots.iter().enumerate().all(|(i, slot)| i == *slot as usize)
    }

    fn slots(self) -> [u8; SLOTS] {
        std::array::from_fn(|place| self.slot(place) as u8)
    }

    fn of(len: usize, slots: [u8; SLOTS]) -> Order {
        let word = |word, (place, slot): (usize, &u8)| word | u64::from(*slot) << (4 + 4 * place);
        Order(slots.iter().enumerate().fold(len as u64, word))
    }
}

/// Where the bytes of a key or value are, and how many. Zero, which a new node's slots have, stands for the usual 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form(pub(crate) u8);

impl Form {
    pub(crate) const WORD: Form = Form(0);
    /// In the record that the slot's value leads to.
    pub(crate) const RECORD: Form = Form(9);

    /// The form of bytes that are kept in a slot if they fit.
    #[inline]
    pub(crate) fn of(len: usize) -> Form {
        match len {
            8 => Form::WORD,
            0..8 => Form(len as u8 + 1),
            _ => Form::RECORD,
        }
    }

    /// How many bytes are in the slot; `None` if they are in a record.
    #[inline]
    pub(crate) fn len(self) -> Option<usize> {
        match self.0 {
            0 => Some(8),
            1..=8 => Some(self.0 as usize - 1),
            _ => None,
        }
    }

    /// Of a slot, out of the word of all.
    #[inline]
    pub(crate) fn in_word(word: u64, slot: usize) -> Form {
        Form((word >> (4 * slot) & 15) as u8)
    }

    /// The word of all with this one for a slot.
    #[inline]
    pub(crate) fn into_word(self, word: u64, slot: usize) -> u64 {
        word & !(15 << (4 * slot)) | u64::from(self.0) << (4 * slot)
    }
}

/// The first 8 bytes of a key, big-endian, with zeroes behind a shorter one.
#[inline]
pub(crate) fn first_word(key: &[u8]) -> u64 {
    match key.first_chunk::<8>() {
        Some(first) => u64::from_be_bytes(*first),
        None => {
            let mut word = [0; 8];
            word[..key.len()].copy_from_slice(key);
            u64::from_be_bytes(word)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::mem::offset_of;

    #[test]
    fn the_layout_is_frozen() {
        assert_eq!((SLOTS, NODE, size_of::<Node>(), align_of::<Node>()), (15, 320, 320, 64));
        let offsets = [
            offset_of!(Node, tag),
            offset_of!(Node, order),
            offset_of!(Node, key_forms),
            offset_of!(Node, value_forms),
            offset_of!(Node, link),
            offset_of!(Node, spare),
            offset_of!(Node, keys),
            offset_of!(Node, values),
        ];
        assert_eq!(offsets, [0, 8, 16, 24, 32, 40, 64, 192]);
        assert_eq!(tag(3), 0x4254_7265_6530_3103);
        assert_eq!((level_of(tag(3)), level_of(tag(41)), level_of(0)), (Some(3), None, None));
        assert_eq!(Order::EMPTY.0, 0xEDCB_A987_6543_2100);
        assert_eq!([0, 7, 8, 9, 100].map(|len| Form::of(len).0), [1, 8, 0, 9, 9]);
    }

    #[test]
    fn a_form_says_its_length() {
        for len in 0..=8 {
            assert_eq!(Form::of(len).len(), Some(len));
        }
        for form in 9..16 {
            assert_eq!(Form(form).len(), None);
        }
        assert_eq!(Form::in_word(Form::RECORD.into_word(u64::MAX, 3), 3), Form::RECORD);
        assert_eq!(Form::WORD.into_word(u64::MAX, 14), !(15 << 56));
    }

    proptest! {
        #[test]
        fn an_order_is_a_list(steps in prop::collection::vec((any::<bool>(), 0..SLOTS), 0..60)) {
            let (mut order, mut model) = (Order::EMPTY, Vec::new());
            for (insert, place) in steps {
                if insert && model.len() < SLOTS {
                    let place = place.min(model.len());
                    let free = order.slot(model.len());
                    prop_assert!(!model.contains(&free));
                    model.insert(place, free);
                    order = order.insert(place);
                } else if !insert && !model.is_empty() {
                    let place = place % model.len();
                    model.remove(place);
                    order = order.remove(place);
                }
                prop_assert!(order.is_sound());
                prop_assert_eq!((0..order.len()).map(|place| order.slot(place)).collect::<Vec<_>>(), model.clone());
            }
        }

        #[test]
        fn first_words_are_in_the_order_of_keys(a in prop::collection::vec(any::<u8>(), 0..12), b in prop::collection::vec(any::<u8>(), 0..12)) {
            if first_word(&a) < first_word(&b) {
                prop_assert!(a < b);
            }
        }
    }
}
