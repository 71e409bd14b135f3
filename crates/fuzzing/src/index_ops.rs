//! Operations on an index of any kind against a model, with restarts and deaths of the process in between; then on one whose
//! words were changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use durix::{Batch, Cursor, Direction, Hardware, Index, KeyRange, Lengths, Limits, Op, Pool, PoolOptions, Session};
use durix_pmem::backing::HeapBacking;

const CHUNK: u64 = 4096;
const LIMIT: u64 = 512 * CHUNK;
const NAME: &str = "fuzzed";

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn options() -> PoolOptions {
    let options = PoolOptions::new().chunk_size(CHUNK).lanes(2).max_indices(2).initial_size(16 * CHUNK);
    options.pool_id([1; 16]).boot_id([2; 16])
}

/// An index at work.
struct At {
    pool: Pool,
    index: Arc<dyn Index>,
    session: Session,
    limits: Limits,
}

impl At {
    fn open(pool: Pool, kind: &str) -> At {
        let kind = durix::kind::named(kind).expect("a kind");
        let index = kind.open_or_create(&pool, NAME).expect("an index");
        let session = pool.session().expect("a session");
        At { pool, index, session, limits: kind.limits }
    }

    /// Closes the pool, or leaves it as a process that dies does, and opens what is left.
    fn restart(mut self, kind: &str, close: bool) -> At {
        if !close {
            // What is buffered may be lost with the process; what is strict may not.
            self.index.sync(&mut self.session).expect("a sync");
        }
        let At { pool, index, session, .. } = self;
        let died = HeapBacking::image_of(pool.mapping());
        drop((index, session));
        pool.close().expect("nothing is open");
        let image = if close { HeapBacking::image_of(pool.mapping()) } else { died };
        let backing = HeapBacking::from_image(image).with_limit(LIMIT);
        let pool = options().open_on(backing, Hardware::PAGE_CACHE).expect("a pool").recover().expect("recovered");
        At::open(pool, kind)
    }
}

/// One of a few keys that the kind takes: of every size, or words close together and far apart.
fn key(limits: &Limits, byte: u8) -> Vec<u8> {
    if let Lengths::Exactly(_) = limits.key {
        let number = u64::from(byte % 54);
        return [number, number << 56, u64::MAX - number][usize::from(byte % 3)].to_be_bytes().to_vec();
    }
    let len = [0, 1, 2, 8, 9, 47, 48, 49, 150][usize::from(byte % 9)];
    vec![b'a' + byte / 9 % 6; len]
}

fn value(limits: &Limits, seed: u8, len: u8) -> Vec<u8> {
    if let Lengths::Exactly(_) = limits.value {
        return vec![seed; 8];
    }
    let len = usize::from(len) * if len.is_multiple_of(8) { 5 } else { 1 };
    (0..len).map(|i| seed.wrapping_add(i as u8)).collect()
}

/// Does what the input says, on the kind that its first byte chooses: steps of four bytes.
pub fn run(input: &[u8]) {
    let Some((first, steps)) = input.split_first() else { return };
    let kinds = durix::kind::kinds::<Hardware>();
    let kind = kinds[usize::from(*first) % kinds.len()].name;
    let pool = options().create_on(HeapBacking::new(LIMIT), Hardware::PAGE_CACHE).expect("a pool");
    let (mut at, mut model) = (At::open(pool, kind), Model::new());
    for step in steps.chunks_exact(4).take(400) {
        let [what, k, v, len] = *step else { continue };
        match what % 16 {
            14 => at = at.restart(kind, v % 2 == 0),
            15 => compare(&mut at, &model),
            what => {
                let (key, value) = (key(&at.limits, k), value(&at.limits, v, len));
                apply(&mut at, &mut model, what, &key, value);
            }
        }
    }
    compare(&mut at, &model);
    let mut at = at.restart(kind, false);
    compare(&mut at, &model);
}

/// An operation and what it must return.
fn apply(at: &mut At, model: &mut Model, what: u8, key: &[u8], value: Vec<u8>) {
    let op = at.session.enter().expect("the pool is open");
    let index = &*at.index;
    let there = model.get(key).cloned();
    match what {
        0..4 => done(index.insert(&op, key, &value), there.is_none(), || _ = model.insert(key.into(), value.clone())),
        4 => {
            let absent = there.is_none();
            done(index.insert_if_absent(&op, key, &value), absent, || {
                _ = absent.then(|| model.insert(key.into(), value.clone()))
            });
        }
        5 => {
            let present = there.is_some();
            done(index.update(&op, key, &value), present, || {
                _ = present.then(|| model.insert(key.into(), value.clone()))
            });
        }
        6 | 7 => done(index.remove(&op, key), there.is_some(), || _ = model.remove(key)),
        8 => done(index.compare_and_set(&op, key, there.as_deref(), Some(&value)), true, || {
            _ = model.insert(key.into(), value.clone());
        }),
        9 => done(index.compare_and_set(&op, key, there.as_deref(), None), true, || _ = model.remove(key)),
        10 => {
            let other = vec![7; value.len().max(8)];
            let expected = there.as_ref() == Some(&other);
            done(index.compare_and_set(&op, key, Some(&other), Some(&value)), expected, || {
                _ = expected.then(|| model.insert(key.into(), value.clone()));
            });
        }
        11 | 12 => batch(index, &at.limits, &op, model, key, &value),
        _ => {
            assert_eq!(index.get_vec(&op, key).expect("readable"), there);
            assert_eq!(index.contains(&op, key).expect("readable"), there.is_some());
        }
    }
}

/// Checks what an operation has returned, and does the same to the model; a full pool changes nothing.
fn done(returned: durix::Result<bool>, expected: bool, change: impl FnOnce()) {
    match returned {
        Ok(found) => {
            assert_eq!(found, expected);
            change();
        }
        Err(error) => assert!(error.to_string().contains("full"), "{error}"),
    }
}

fn batch(index: &dyn Index, limits: &Limits, op: &Op<'_>, model: &mut Model, key: &[u8], value: &[u8]) {
    let mut batch = Batch::new();
    let mut after = model.clone();
    let mut put = |batch: &mut Batch, key: &[u8], value: Option<&[u8]>| {
        match value {
            Some(value) => _ = (batch.insert(key, value), after.insert(key.into(), value.into())),
            None => _ = (batch.remove(key), after.remove(key)),
        };
    };
    for (at, byte) in value.iter().take(5).enumerate() {
        put(&mut batch, &self::key(limits, *byte), (at % 3 != 2).then_some(value));
    }
    let last = self::value(limits, 99, 4);
    put(&mut batch, key, Some(value));
    put(&mut batch, &self::key(limits, 0), None);
    put(&mut batch, key, Some(&last));
    let Err(error) = index.apply(op, &batch) else {
        *model = after;
        return;
    };
    assert!(error.to_string().contains("full"), "{error}");
    // What was changed before the failing change stays, but for kinds that undo it.
    for (key, _) in batch.iter() {
        match index.get_vec(op, key).expect("readable") {
            Some(found) => _ = model.insert(key.into(), found),
            None => _ = model.remove(key),
        }
    }
}

fn pairs(cursor: &mut dyn Cursor, op: &Op<'_>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let (mut pairs, mut key, mut value) = (Vec::new(), Vec::new(), Vec::new());
    while cursor.next_into(op, &mut key, &mut value).expect("readable") {
        pairs.push((key.clone(), value.clone()));
    }
    pairs
}

/// Everything there is, in every way in which it can be read.
fn compare(at: &mut At, model: &Model) {
    let index = &*at.index;
    assert_eq!(index.count(&mut at.session).expect("readable"), model.len() as u64);
    assert_eq!(index.check(&mut at.session).expect("readable"), []);
    let op = at.session.enter().expect("the pool is open");
    let expected: Vec<_> = model.clone().into_iter().collect();
    let mut found = pairs(&mut *index.cursor(), &op);
    found.sort();
    assert_eq!(found, expected);
    let keys: Vec<Vec<u8>> = (0..54).map(|byte| key(&at.limits, byte)).collect();
    let borrowed: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let mut seen = 0;
    let mut each = |number: usize, value: Option<&[u8]>| {
        seen += 1;
        assert_eq!(value, model.get(&keys[number]).map(Vec::as_slice));
    };
    index.get_many(&op, &borrowed, &mut each).expect("readable");
    assert_eq!(seen, keys.len());
    if let Some(ordered) = index.as_ordered() {
        for prefix in keys.iter().step_by(7) {
            let range = KeyRange::prefix(prefix);
            let mut within: Vec<_> = expected.iter().filter(|(key, _)| range.contains(key)).cloned().collect();
            assert_eq!(pairs(&mut *ordered.prefix(prefix, Direction::Forward), &op), within);
            within.reverse();
            assert_eq!(pairs(&mut *ordered.range(&range, Direction::Backward), &op), within);
        }
    }
    let owner = index.root().owner();
    assert_eq!(at.pool.space().check(&op, |found| found == owner), []);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kinds() -> u8 {
        durix::kind::kinds::<Hardware>().len() as u8
    }

    #[test]
    fn batches_and_restarts() {
        for kind in 0..kinds() {
            run(&[kind, 0, 1, 2, 3, 11, 4, 5, 6, 12, 0, 9, 16, 14, 0, 1, 0, 11, 9, 9, 40, 14, 0, 0, 0, 7, 1, 0, 0]);
        }
    }

    proptest! {
        #![proptest_config(crate::cases(24, 600))]

        #[test]
        fn any_operations_on_every_kind_do_what_the_model_does(input in prop::collection::vec(any::<u8>(), 0..800)) {
            (0..kinds()).for_each(|kind| run(&[&[kind], &input[..]].concat()));
        }

        #[test]
        fn a_small_pool_that_fills_up_does_too(
            kind in any::<u8>(),
            steps in prop::collection::vec((0..13u8, any::<u8>(), any::<u8>(), 200u8..), 50..200),
        ) {
            let mut input = vec![kind];
            steps.iter().for_each(|(what, key, seed, len)| input.extend([*what, *key, *seed, *len & 0xf8]));
            run(&input);
        }
    }
}
