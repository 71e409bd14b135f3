//! Keys in pieces of eight bytes.

/// A part of a key: eight bytes, and how many of them there are, or 9 if more follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Part {
    pub(crate) slice: u64,
    pub(crate) rank: u64,
}

impl Part {
    /// The first part of a key.
    #[inline(always)]
    pub(crate) fn of(key: &[u8]) -> Part {
        match key.first_chunk::<8>() {
            Some(chunk) => Part { slice: u64::from_be_bytes(*chunk), rank: key.len().min(9) as u64 },
            None => {
                let mut chunk = [0; 8];
                chunk[..key.len()].copy_from_slice(key);
                Part { slice: u64::from_be_bytes(chunk), rank: key.len() as u64 }
            }
        }
    }
}
