//! Keys and values that differ where a careless comparison does not look: behind their first bytes, or in their lengths only.

use durix::{Hardware, Index, Lengths, Op};

use super::{At, Pairs, kinds};

/// Byte strings of the lengths that are allowed. Many have their first 8 bytes in common, and many have the same length.
fn alike(lengths: Lengths) -> Vec<Vec<u8>> {
    let ascending = |len: usize| (0..len).map(|n| (n % 251) as u8 + 1).collect::<Vec<_>>();
    let changed = |len: usize, at: usize| {
        let mut bytes = ascending(len);
        bytes[at] ^= 0x80;
        bytes
    };
    match lengths {
        Lengths::Exactly(len) => (0..len).map(|at| changed(len, at)).chain([ascending(len)]).collect(),
        Lengths::UpTo(_) => {
            let whole = [0, 1, 7, 8, 9, 15, 16, 17, 40, 41, 300].map(ascending);
            let within = [8, 9, 15, 16, 31, 38, 39].map(|at| changed(40, at));
            let of_others = [changed(9, 8), changed(16, 15), changed(300, 8), changed(300, 64), changed(300, 299)];
            let of_zeros = [vec![0; 8], vec![0; 9], [&ascending(40)[..], &[0]].concat()];
            whole.into_iter().chain(within).chain(of_others).chain(of_zeros).collect()
        }
    }
}

/// What changes by value does where the key has one of two values, and the call names the other.
fn tells_apart(index: &dyn Index, op: &Op<'_>, key: &[u8], [there, other]: [&[u8]; 2]) {
    let set = |expected, new| index.compare_and_set(op, key, expected, new).unwrap();
    let holds = |value: Option<&[u8]>| {
        let found = index.get_vec(op, key).unwrap();
        assert_eq!(found.as_deref(), value, "there was {there:?}, the other is {other:?}");
    };
    index.insert(op, key, there).unwrap();
    let differs = "the key has another value";
    for new in [Some(there), Some(other), None] {
        assert!(!set(Some(other), new), "{differs}: {there:?}, and not {other:?}");
        holds(Some(there));
    }
    assert!(set(Some(there), Some(there)) && set(Some(there), Some(other)));
    holds(Some(other));
    // An insert or update is not left out because the value looks the same.
    assert!(!index.insert(op, key, there).unwrap());
    holds(Some(there));
    assert!(index.update(op, key, other).unwrap());
    holds(Some(other));
    assert!(!set(Some(there), None) && set(Some(other), None));
    holds(None);
}

#[test]
fn values_that_begin_alike_are_told_apart_by_every_kind() {
    for entry in kinds::<Hardware>() {
        println!("{}", entry.name);
        let at = &mut At::new(entry);
        let values = alike(entry.limits.value);
        for there in &values {
            let op = at.session.enter().unwrap();
            for other in values.iter().filter(|other| *other != there) {
                tells_apart(&*at.index, &op, &7u64.to_be_bytes(), [there, other]);
            }
        }
        at.holds(&Pairs::new());
    }
}

#[test]
fn keys_that_begin_alike_are_told_apart_by_every_kind() {
    for entry in kinds::<Hardware>() {
        let (mut at, mut model) = (At::new(entry), Pairs::new());
        let keys = alike(entry.limits.key);
        for (number, key) in keys.iter().enumerate() {
            let op = at.session.enter().unwrap();
            assert!(!at.index.contains(&op, key).unwrap() && !at.index.remove(&op, key).unwrap(), "{}", entry.name);
            let value = (number as u64).to_be_bytes();
            assert!(at.index.insert(&op, key, &value).unwrap(), "{}: {key:?} is new", entry.name);
            model.insert(key.clone(), value.to_vec());
        }
        at.holds(&model);
        for key in keys {
            assert!(at.index.remove(&at.session.enter().unwrap(), &key).unwrap(), "{}: {key:?}", entry.name);
            model.remove(&key);
            at.holds(&model);
        }
    }
}
