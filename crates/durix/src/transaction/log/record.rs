//! The payload of a record: changes as bytes.

use durix_pmem::Owner;
use xxhash_rust::xxh3::xxh3_64;

use super::layout::RecordHeader;

/// One change of one index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Intent {
    pub(crate) owner: Owner,
    pub(crate) key: Vec<u8>,
    /// `None` removes the key.
    pub(crate) value: Option<Vec<u8>>,
}

const PUT: u16 = 1;
const REMOVAL: u16 = 2;
const WORD: usize = size_of::<u64>();
const ENTRY: usize = 2 * WORD;

/// Bytes of the header.
const HEADER: usize = size_of::<RecordHeader>();

/// Begins a record: room for its header, to be followed by changes.
pub(crate) fn begin(draft: &mut Vec<u8>) {
    draft.clear();
    draft.resize(HEADER, 0);
}

/// Bytes of the changes of a record.
pub(crate) fn payload(draft: &[u8]) -> u64 {
    (draft.len() - HEADER) as u64
}

/// Fills the header.
pub(crate) fn finish(draft: &mut [u8], number: u64, epoch: u64) {
    let words = [number, payload(draft), epoch];
    draft.chunks_exact_mut(WORD).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
    let hash = hash(draft);
    draft[HEADER - WORD..HEADER].copy_from_slice(&hash.to_le_bytes());
}

/// The hash of a record, of which it is the fourth word.
pub(crate) fn hash(record: &[u8]) -> u64 {
    let (header, payload) = record.split_at(HEADER);
    let mut seed = [0; HEADER];
    seed[..HEADER - WORD].copy_from_slice(&header[..HEADER - WORD]);
    seed[HEADER - WORD..].copy_from_slice(&xxh3_64(payload).to_le_bytes());
    xxh3_64(&seed)
}

fn whole(bytes: usize) -> usize {
    bytes.next_multiple_of(WORD)
}

/// Appends a change.
pub(crate) fn push(payload: &mut Vec<u8>, owner: Owner, key: &[u8], value: Option<&[u8]>) {
    let what = if value.is_some() { PUT } else { REMOVAL };
    let key_len = u32::try_from(key.len()).expect("a key of the limits' length");
    let first = u64::from(owner.0) | u64::from(what) << 16 | u64::from(key_len) << 32;
    let value_len = value.map_or(0, <[u8]>::len) as u64;
    payload.extend_from_slice(&(u128::from(first) | u128::from(value_len) << 64).to_le_bytes());
    for bytes in [key, value.unwrap_or_default()] {
        if let Ok(word) = <&[u8; WORD]>::try_from(bytes) {
            payload.extend_from_slice(word);
        } else {
            payload.extend_from_slice(bytes);
            payload.resize(whole(payload.len()), 0);
        }
    }
}

/// The changes of a payload; `None` where it makes no sense.
pub(crate) fn parse(payload: &[u8]) -> Option<Vec<Intent>> {
    let (mut rest, mut intents) = (payload, Vec::new());
    while !rest.is_empty() {
        let (intent, after) = first(rest)?;
        intents.push(intent);
        rest = after;
    }
    Some(intents)
}

fn first(bytes: &[u8]) -> Option<(Intent, &[u8])> {
    let (head, rest) = bytes.split_at_checked(ENTRY)?;
    let owner = Owner(u16::from_le_bytes(head[..2].try_into().ok()?));
    let what = u16::from_le_bytes(head[2..4].try_into().ok()?);
    let key_len = u32::from_le_bytes(head[4..8].try_into().ok()?) as usize;
    let value_len = usize::try_from(u64::from_le_bytes(head[8..].try_into().ok()?)).ok()?;
    let (key, rest) = rest.split_at_checked(key_len.checked_next_multiple_of(WORD)?)?;
    let (value, rest) = rest.split_at_checked(value_len.checked_next_multiple_of(WORD)?)?;
    let value = match what {
        PUT => Some(value[..value_len].to_vec()),
        REMOVAL if value_len == 0 => None,
        _ => return None,
    };
    Some((Intent { owner, key: key[..key_len].to_vec(), value }, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn intents() -> impl Strategy<Value = Vec<Intent>> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..20);
        let intent = (any::<u16>(), bytes(), proptest::option::of(bytes()));
        proptest::collection::vec(
            intent.prop_map(|(owner, key, value)| Intent { owner: Owner(owner), key, value }),
            0..6,
        )
    }

    fn payload(intents: &[Intent]) -> Vec<u8> {
        let mut payload = Vec::new();
        intents.iter().for_each(|i| push(&mut payload, i.owner, &i.key, i.value.as_deref()));
        payload
    }

    proptest! {
        #[test]
        fn changes_come_back(intents in intents()) {
            let payload = payload(&intents);
            prop_assert!(payload.len().is_multiple_of(WORD));
            prop_assert_eq!(parse(&payload), Some(intents));
        }

        #[test]
        fn any_bytes_are_changes_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..80), intents in intents(), at in any::<usize>(), with: u8) {
            let _ = parse(&bytes);
            let mut damaged = payload(&intents);
            if !damaged.is_empty() {
                let at = at % damaged.len();
                damaged[at] ^= with;
                let _ = parse(&damaged);
            }
        }
    }
}
