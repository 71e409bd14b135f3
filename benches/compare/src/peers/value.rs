//! Values of `N` bytes: they begin and end with their key, so that whoever looks at both ends has had all of it.

/// Bytes of the values of the second table.
pub const LONG: usize = 100;

/// The value of a key.
pub fn value_of<const N: usize>(key: u64) -> [u8; N] {
    const { assert!(N >= 8) };
    let mut value = [0x5a; N];
    value[..8].copy_from_slice(&key.to_le_bytes());
    value[N - 8..].copy_from_slice(&key.to_le_bytes());
    value
}

/// Whether this is the value of a key.
pub fn is_value_of<const N: usize>(value: &[u8], key: u64) -> bool {
    let key = key.to_le_bytes();
    value.len() == N && value[..8] == key && value[N - 8..] == key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_that_of_its_key_only() {
        assert!(is_value_of::<8>(&value_of::<8>(7), 7) && is_value_of::<LONG>(&value_of::<LONG>(7), 7));
        assert!(!is_value_of::<LONG>(&value_of::<LONG>(7), 8) && !is_value_of::<LONG>(&value_of::<8>(7), 7));
        let mut torn = value_of::<LONG>(7);
        torn[LONG - 1] ^= 1;
        assert!(!is_value_of::<LONG>(&torn, 7));
    }
}
