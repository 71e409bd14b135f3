//! Pools with an index of every kind whose bytes were changed: they open or are refused, and whatever opens can be checked,
//! read, walked and written through the facade, without a panic and without hanging.

use std::ops::Bound;
use std::sync::{Arc, OnceLock};

use durix::kind::{self, Entry};
use durix::{Cursor, Direction, Error, Hardware, Index, KeyRange, Lengths, Pool, PoolOptions, Session};
use durix_pmem::backing::HeapBacking;

use crate::pool_bytes::mutate;

const CHUNK: u64 = 4096;
const LIMIT: u64 = 64 * CHUNK;
const NAME: &str = "damaged";
/// Steps of a walk at most: links may lead in circles for as long as keys ascend.
const WALK: usize = 2000;

fn options() -> PoolOptions {
    let options = PoolOptions::new().chunk_size(CHUNK).lanes(1).max_indices(2).initial_size(24 * CHUNK);
    options.pool_id([1; 16]).boot_id([2; 16])
}

/// A key that the kind takes.
fn key(entry: &Entry, number: u8) -> Vec<u8> {
    let word = u64::from(number).wrapping_mul(0x0101_0000_0000_0001).to_be_bytes();
    match entry.limits.key {
        Lengths::Exactly(_) => word.to_vec(),
        // Some share their first bytes, some are long.
        Lengths::UpTo(_) if number.is_multiple_of(3) => [b"the same beginning of", &word[..], &[number; 40]].concat(),
        Lengths::UpTo(_) => word[..usize::from(number % 9)].to_vec(),
    }
}

fn value(entry: &Entry, number: u8) -> Vec<u8> {
    match entry.limits.value {
        Lengths::Exactly(len) => vec![number; len],
        Lengths::UpTo(_) => vec![number; usize::from(number % 5) * 30],
    }
}

/// For each kind, a pool with an index of it that was filled and partly emptied; one that was closed, and one that was not.
fn pristine() -> &'static [[Vec<u8>; 2]] {
    static IMAGES: OnceLock<Vec<[Vec<u8>; 2]>> = OnceLock::new();
    let made = |entry: Entry| {
        let pool = options().create_on(HeapBacking::new(LIMIT), Hardware::PAGE_CACHE).expect("a pool");
        let index = entry.open_or_create(&pool, NAME).expect("an index");
        let mut session = pool.session().expect("a session");
        for number in 0..60 {
            index.insert(&session.enter().expect("open"), &key(&entry, number), &value(&entry, number)).expect("room");
        }
        index.sync(&mut session).expect("a sync");
        for number in (0..60).step_by(4) {
            index.remove(&session.enter().expect("open"), &key(&entry, number)).expect("removed");
        }
        let dead = HeapBacking::image_of(pool.mapping());
        drop((index, session));
        pool.close().expect("nothing is open");
        [dead, HeapBacking::image_of(pool.mapping())]
    };
    IMAGES.get_or_init(|| kind::kinds::<Hardware>().into_iter().map(made).collect())
}

/// Applies a mutation to a pool with an index of the kind that the first byte chooses, and uses what comes out. Steps are as
/// in [`pool_bytes`](crate::pool_bytes).
pub fn mutate_and_use(input: &[u8]) {
    let Some((first, steps)) = input.split_first() else { return };
    let kinds = kind::kinds::<Hardware>();
    let at = usize::from(first >> 1) % kinds.len();
    let mut image = pristine()[at][usize::from(first & 1)].clone();
    mutate(&mut image, steps);
    let backing = HeapBacking::from_image(image).with_limit(LIMIT);
    let Ok(unrecovered) = options().accept_unclean(true).open_on(backing, Hardware::PAGE_CACHE) else { return };
    let Ok(pool) = unrecovered.recover() else { return };
    if let (Ok(index), Ok(session)) = (kind::open_as_is(&pool, NAME), pool.session()) {
        let _ = use_index(&kinds[at], &index, session);
    }
    let _ = pool.drop_index(NAME);
    let _: Result<(), _> = Pool::close(&pool);
}

/// An error is an answer; only one that has taken seconds ends the use.
fn go_on<T>(answer: Result<T, Error>) -> Result<(), Error> {
    match answer {
        Err(error) if error.to_string().contains("could not be had within") => Err(error),
        _ => Ok(()),
    }
}

fn walk(cursor: &mut dyn Cursor, session: &mut Session) -> Result<(), Error> {
    let (mut key, mut value) = (Vec::new(), Vec::new());
    for _ in 0..WALK {
        match cursor.next_into(&session.enter()?, &mut key, &mut value) {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            error => return go_on(error),
        }
    }
    Ok(())
}

fn use_index(entry: &Entry, index: &Arc<dyn Index>, mut session: Session) -> Result<(), Error> {
    let found = index.check(&mut session);
    let _ = found.iter().flatten().map(ToString::to_string).collect::<Vec<_>>();
    go_on(found)?;
    walk(&mut *index.cursor(), &mut session)?;
    if let Some(ordered) = index.as_ordered() {
        let from = key(entry, 21);
        for direction in [Direction::Forward, Direction::Backward] {
            walk(&mut *ordered.range(&KeyRange::all(), direction), &mut session)?;
            let range = KeyRange::new(Bound::Excluded(&from), Bound::Unbounded);
            walk(&mut *ordered.range(&range, direction), &mut session)?;
        }
    }
    for number in 0..64 {
        let (key, value) = (key(entry, number), value(entry, number));
        let op = session.enter()?;
        go_on(index.get_vec(&op, &key))?;
        go_on(match number % 4 {
            0 => index.insert(&op, &key, &value),
            1 => index.update(&op, &key, &value),
            2 => index.compare_and_set(&op, &key, Some(&value), None),
            _ => index.remove(&op, &key),
        })?;
    }
    go_on(index.sync(&mut session))?;
    let _ = index.dump(&session.enter()?, &mut String::new());
    go_on(index.stats(&mut session))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kinds() -> u8 {
        kind::kinds::<Hardware>().len() as u8
    }

    #[test]
    fn unchanged_pools_are_whole() {
        for (at, entry) in kind::kinds::<Hardware>().into_iter().enumerate() {
            for image in &pristine()[at] {
                let backing = HeapBacking::from_image(image.clone()).with_limit(LIMIT);
                let opened = options().accept_unclean(true).open_on(backing, Hardware::PAGE_CACHE).unwrap();
                let pool = opened.recover().unwrap();
                let index = kind::open_as_is(&pool, NAME).unwrap();
                let mut session = pool.session().unwrap();
                assert_eq!(index.check(&mut session).unwrap(), [], "{}", entry.name);
                assert!(index.count(&mut session).unwrap() >= 25, "{}", entry.name);
            }
        }
    }

    /// How many of the words of an empty index make inserts say that a first link is wrong, where it is marked deleted; counted
    /// up to `most`.
    fn refused_first_links(kind: &str, stride: usize, most: usize) -> usize {
        let entry = kind::kinds::<Hardware>().into_iter().find(|entry| entry.name == kind).expect("a kind");
        let pool = options().create_on(HeapBacking::new(LIMIT), Hardware::PAGE_CACHE).expect("a pool");
        drop(entry.open_or_create(&pool, NAME).expect("an index"));
        pool.close().expect("nothing is open");
        let image = HeapBacking::image_of(pool.mapping());
        let refused = |word: &usize| {
            let mut image = image.clone();
            image[word * 8] |= 2;
            let backing = HeapBacking::from_image(image).with_limit(LIMIT);
            let opened = options().accept_unclean(true).open_on(backing, Hardware::PAGE_CACHE).ok()?;
            let pool = opened.recover().ok()?;
            let (index, mut session) = (kind::open_as_is(&pool, NAME).ok()?, pool.session().ok()?);
            let op = session.enter().ok()?;
            let error = (0..=255).find_map(|number| index.insert(&op, &[number; 8], &[number; 8]).err())?;
            error.to_string().contains("the first link of a list").then_some(())
        };
        (0..image.len() / 8).step_by(stride).filter_map(|word| refused(&word)).take(most).count()
    }

    #[test]
    fn a_bucket_whose_first_link_is_marked_deleted_is_corrupt() {
        mutate_and_use(&[0xf0, 0x34, 0x34, 0, 0x7e, 0, 0, 0, 0, 0, 0]);
        assert!(refused_first_links("hash-fast-open", 7, 11) > 10);
    }

    /// Its searches began anew for ever.
    #[test]
    fn a_skip_list_whose_first_link_is_marked_deleted_is_corrupt() {
        assert!(refused_first_links("skiplist", 1, 1) > 0);
    }

    /// Marks of links are in the low bits, locks and lengths are there or in the high ones. Of the lines that are all zero, which
    /// hardly anybody looks at, every eighth place is tried in the quick form.
    #[test]
    fn any_word_with_a_bit_changed_is_used_or_refused() {
        let deep = std::env::var_os("DURIX_DEEP").is_some();
        let stride = if deep { 1 } else { 97 };
        let bits = [0, 1, 2, 3, 31, 48, 63];
        for (at, image) in pristine().iter().flatten().enumerate() {
            let is_used = |word: usize| image[word / 8 * 64..][..64].iter().any(|byte| *byte != 0);
            let words = (at % stride..image.len() / 8).step_by(stride).enumerate();
            let tried = words.filter(|(number, word)| deep || number % 8 == 0 || is_used(*word));
            for (word, bit) in tried.flat_map(|(_, word)| bits.map(|bit| (word, bit))) {
                let [low, mid, high, ..] = ((word * 8 + bit / 8) as u32).to_le_bytes();
                mutate_and_use(&[at as u8, low, mid, high, 0, (bit % 8) as u8, 0]);
            }
        }
    }

    proptest! {
        #![proptest_config(crate::cases(300, 6000))]

        #[test]
        fn changed_bytes_never_panic(input in prop::collection::vec(any::<u8>(), 0..72)) {
            (0..2 * kinds()).for_each(|first| mutate_and_use(&[&[first], &input[..]].concat()));
        }

        #[test]
        fn changed_words_never_panic(
            first in any::<u8>(),
            steps in prop::collection::vec((20_000..98_000u32, 0..6u8, any::<[u8; 2]>()), 1..8),
        ) {
            let step = |(at, what, operand): &(u32, u8, [u8; 2])| {
                let at = at.to_le_bytes();
                [at[0], at[1], at[2], *what, operand[0], operand[1]]
            };
            let steps: Vec<u8> = steps.iter().flat_map(step).collect();
            mutate_and_use(&[&[first], &steps[..]].concat());
        }
    }
}
