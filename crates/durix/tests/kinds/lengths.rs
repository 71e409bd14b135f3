//! The longest keys and values that every kind takes, and those that are longer by one byte.

use durix::{Batch, Durability, Error, Hardware, Lengths, PoolOptions, Result};
use durix_pmem::backing::HeapBacking;

use super::{At, Pairs, kinds};

/// Bytes that show it if some of them are left out or swapped; `last` is the last one.
fn bytes(len: usize, last: u8) -> Vec<u8> {
    let mut bytes = (0..251).collect::<Vec<u8>>().repeat(len / 251 + 1);
    bytes.truncate(len);
    if let Some(end) = bytes.last_mut() {
        *end = last;
    }
    bytes
}

/// The longest that is taken. Of what would be longer than the pool has room for, 1 MiB stands for the longest.
fn longest(lengths: Lengths) -> usize {
    match lengths {
        Lengths::Exactly(len) => len,
        Lengths::UpTo(len) if len > 16 << 20 => 1 << 20,
        Lengths::UpTo(len) => len,
    }
}

/// What is longer than what is taken, by one byte.
fn too_long(lengths: Lengths) -> Vec<u8> {
    let (Lengths::Exactly(len) | Lengths::UpTo(len)) = lengths;
    vec![0; len + 1]
}

/// A pool with room for some values of that length.
fn pool(len: usize) -> durix::Pool {
    let len = if len <= 8 {
        4 << 20
    } else if len <= 4 << 20 {
        16 << 20
    } else {
        64 << 20
    };
    PoolOptions::new().create_on(HeapBacking::new(len), Hardware::PAGE_CACHE).unwrap()
}

fn is_told<T: std::fmt::Debug>(kind: &str, answer: Result<T>) {
    let told = matches!(answer, Err(Error::KeyTooLong { .. } | Error::ValueTooLong { .. } | Error::WrongLength { .. }));
    assert!(told, "{kind}: {answer:?}");
}

#[test]
fn the_longest_keys_and_values_come_back_whole_and_longer_ones_change_nothing() {
    for entry in kinds::<Hardware>() {
        let name = entry.name;
        let (mut at, mut model) = (At::over(entry, pool(longest(entry.limits.value))), Pairs::new());
        // What a pool of this size takes may be less than what the kind takes at all.
        let limits = at.index.limits();
        let [key_len, value_len] = [limits.key, limits.value].map(longest);
        model.insert(1u64.to_be_bytes().to_vec(), bytes(value_len, 7));
        for last in [7, 8] {
            model.insert(bytes(key_len, last), bytes(8, last));
        }
        if let Lengths::UpTo(_) = limits.value {
            model.insert(2u64.to_be_bytes().to_vec(), Vec::new());
        }
        for (key, value) in &model {
            assert!(at.index.insert(&at.session.enter().unwrap(), key, value).unwrap(), "{name}");
        }
        println!("{name}: keys of {key_len} bytes, values of {value_len}");
        let (there, absent, fits) = (bytes(key_len, 7), bytes(key_len, 99), bytes(8, 3));
        let (long_key, long) = (too_long(limits.key), too_long(limits.value));
        {
            let (op, index) = (at.session.enter().unwrap(), &at.index);
            is_told(name, index.get_vec(&op, &long_key));
            is_told(name, index.contains(&op, &long_key));
            is_told(name, index.insert(&op, &long_key, &fits));
            is_told(name, index.insert_if_absent(&op, &long_key, &fits));
            is_told(name, index.update(&op, &long_key, &fits));
            is_told(name, index.remove(&op, &long_key));
            is_told(name, index.compare_and_set(&op, &long_key, Some(&fits), None));
            is_told(name, index.get_many(&op, &[&there, &long_key], &mut |_, _| ()));
            is_told(name, index.insert(&op, &there, &long));
            is_told(name, index.insert(&op, &absent, &long));
            is_told(name, index.insert_if_absent(&op, &absent, &long));
            is_told(name, index.update(&op, &there, &long));
            is_told(name, index.compare_and_set(&op, &there, Some(&model[&there]), Some(&long)));
            is_told(name, index.compare_and_set(&op, &absent, None, Some(&long)));
            // What cannot be there is not there.
            assert!(!index.compare_and_set(&op, &there, Some(&long), Some(&fits)).unwrap(), "{name}");
            assert!(!index.compare_and_set(&op, &there, Some(&long), None).unwrap(), "{name}");
            for (key, value) in [(&long_key, &fits), (&absent, &long)] {
                let mut batch = Batch::new();
                batch.insert(&there, &fits).insert(key, value).remove(&there);
                is_told(name, index.apply(&op, &batch));
            }
            assert_eq!(index.get_vec(&op, &there).unwrap().as_ref(), model.get(&there), "{name}");
            assert!(!index.contains(&op, &absent).unwrap(), "{name}");
        }
        if entry.durability == Durability::Buffered {
            at.index.sync(&mut at.session).unwrap();
        }
        let mut at = at.after_a_death();
        // Values of this length are read once only.
        let found = at.pairs();
        assert_eq!(found.len(), model.len(), "{name}");
        for (key, value) in &found {
            assert!(model.get(key) == Some(value), "{name}: {} bytes of a key of {}", value.len(), key.len());
        }
        assert_eq!(at.index.check(&mut at.session).unwrap(), [], "{name}");
        assert!(!at.index.insert(&at.session.enter().unwrap(), &there, &fits).unwrap(), "{name}");
        assert_eq!(at.index.get_vec(&at.session.enter().unwrap(), &there).unwrap(), Some(fits), "{name}");
    }
}
