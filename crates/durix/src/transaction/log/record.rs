//! The payload of a record: changes as bytes.

use durix_pmem::Owner;

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

fn whole(bytes: usize) -> usize {
    bytes.next_multiple_of(WORD)
}

/// Appends a change.
pub(crate) fn push(payload: &mut Vec<u8>, owner: Owner, key: &[u8], value: Option<&[u8]>) {
    payload.extend_from_slice(&owner.0.to_le_bytes());
    payload.extend_from_slice(&if value.is_some() { PUT } else { REMOVAL }.to_le_bytes());
    payload.extend_from_slice(&u32::try_from(key.len()).expect("a key of the limits' length").to_le_bytes());
    payload.extend_from_slice(&(value.map_or(0, <[u8]>::len) as u64).to_le_bytes());
    for bytes in [key, value.unwrap_or_default()] {
        payload.extend_from_slice(bytes);
        payload.resize(whole(payload.len()), 0);
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
