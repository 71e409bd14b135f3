//! Damaged contents, and what the check says of them.

use super::*;

/// A small generator of numbers, for damage.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

fn damage(op: &Op<'_, Hardware>, set: &PersistentSet<Hardware>, numbers: &mut Numbers) {
    let extents = set.extents(op);
    let extent = extents[numbers.below(extents.len() as u64) as usize];
    // Mostly in what is used: the first lines of the extent.
    let limit = [256, extent.len / 8][numbers.below(2) as usize];
    let word: &durix_pmem::Word = op.at(durix_pmem::Off::new(extent.off + numbers.below(limit) * 8));
    let old = op.load(word, Ordering::Relaxed);
    let new = match numbers.below(4) {
        0 => numbers.below(u64::MAX),
        1 => u64::MAX,
        _ => old ^ (1 << numbers.below(64)),
    };
    op.store(word, new, Ordering::Relaxed);
}

#[test]
fn damaged_contents_give_errors_or_findings_never_a_panic() {
    let (mut refused, mut opened) = (0, 0);
    for round in 1..250u64 {
        let pool = pool(1 << 19, Hardware::PAGE_CACHE);
        let set = open(&pool, &options());
        let mut session = pool.session().unwrap();
        let op = session.enter().unwrap();
        let mut model = BTreeMap::new();
        for i in 0..40u8 {
            let step = if i % 9 == 8 { Step::Remove(i % 5) } else { Step::Insert(i % 11, i % 6) };
            run_step(&set, &op, &mut model, step);
        }
        run_step(&set, &op, &mut model, Step::Commit(vec![(1, Some(1)), (2, Some(2)), (3, None)]));
        let mut numbers = Numbers(round);
        (0..1 + round % 3).for_each(|_| damage(&op, &set, &mut numbers));
        assert!(set.check(&op).is_ok());
        set.dump(&op, &mut String::new()).unwrap();
        match PersistentSet::recover(&mut pool.session().unwrap(), set.root.clone(), &options()) {
            Err(error) => {
                assert!(matches!(error, Error::Corrupt { .. }), "{error}");
                assert!(error.to_string().contains("is corrupt"), "{error}");
                refused += 1;
            }
            Ok(again) => {
                again.check(&op).unwrap();
                content(&again, &op);
                (0..11).for_each(|k| drop(again.get_vec(&op, &key_of(k)).unwrap()));
                (0..11).for_each(|k| assert!(again.insert(&op, &key_of(k), &value_of(k % 6)).is_ok()));
                (0..11).for_each(|k| assert!(again.remove(&op, &key_of(k)).unwrap()));
                opened += 1;
            }
        }
    }
    assert!(refused > 10 && opened > 60, "{refused} refused, {opened} opened");
}

#[test]
fn what_makes_no_sense_is_an_error_that_says_where() {
    let pool = pool(1 << 19, Hardware::PAGE_CACHE);
    let set = open(&pool, &options());
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    set.insert(&op, b"a", b"1").unwrap();
    let extent = set.extents(&op)[0].off;
    let watermark = &set.root.words(&op)[layout::WATERMARK];
    let word = |index: u64| match index {
        u64::MAX => watermark,
        index => op.at::<durix_pmem::Word>(durix_pmem::Off::new(extent + index * 8)),
    };
    let slot = (1..63).find(|s| op.load(word(s * 8), Ordering::Relaxed) != 0).unwrap() * 8;
    for (index, value, what) in [
        (0, 1, "the first word of an extent"),
        (1, 2, "the checksum of an extent's header"),
        (slot, (3 << 62) | (layout::MAX_VERSION + 1), "the version of an entry"),
        (slot + 1, 1 << 60, "the lengths of an entry"),
        (slot + 1, 9 | (99 << 16), "the lengths of an entry"),
        (u64::MAX, u64::MAX, "the watermark of transactions"),
    ] {
        let old = op.load(word(index), Ordering::Relaxed);
        op.store(word(index), value, Ordering::Relaxed);
        let error = PersistentSet::recover(&mut pool.session().unwrap(), set.root.clone(), &options()).unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
        assert!(error.to_string().contains("run a check, or restore a copy"), "{error}");
        if index != u64::MAX {
            let findings = set.check(&op).unwrap();
            assert!(findings.iter().any(|f| f.to_string().contains(what)), "{findings:?}");
        }
        op.store(word(index), old, Ordering::Relaxed);
    }
    assert_eq!(again(&set, &options()).len(&op), 1);
}

#[test]
fn check_reports_what_the_index_does_not_know() {
    let pool = pool(1 << 19, Hardware::PAGE_CACHE);
    let set = open(&pool, &SetOptions::default().shards(1));
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    set.insert(&op, b"a", b"1").unwrap();
    set.insert(&op, b"b", b"2").unwrap();
    assert_eq!(set.check(&op).unwrap(), []);
    let key = set.key(b"a").unwrap();
    let found = set.shard(key.hash).find(&op, key.tag(), b"a").unwrap();
    // An entry behind the set's back in a slot that it takes for free, and a live entry gone.
    let extent = set.extents(&op)[0].off;
    entry::write(&op, layout::slot_off(extent, layout::Class::FIRST, 60), 99, layout::Info::of(1, 1), b"b", b"3");
    entry::erase(&op, found.off);
    let findings: Vec<String> = set.check(&op).unwrap().iter().map(ToString::to_string).collect();
    for what in ["is free, and holds an entry", "Live, and holds no entry", "the newest entry of its key (version 99)"]
    {
        assert!(findings.iter().any(|f| f.contains(what)), "{what}: {findings:?}");
    }
    let mut dump = String::new();
    set.dump(&op, &mut dump).unwrap();
    assert!(dump.contains("key \"b\" value of 1 bytes"), "{dump}");
}

#[test]
fn an_extent_whose_header_is_damaged_is_read_all_the_same() {
    let pool = pool(4 << 20, Hardware::PAGE_CACHE);
    let set = open(&pool, &options());
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    for number in 0..900_u64 {
        let value = vec![number as u8; number as usize % 6 * 90];
        set.insert(&op, &(number % 700).to_le_bytes(), &value).unwrap();
    }
    for number in (0..700_u64).step_by(3) {
        assert!(set.remove(&op, &number.to_le_bytes()).unwrap());
    }
    let whole = content(&set, &op);
    let extents = set.extents(&op);
    assert!(extents.len() > 4, "several classes");
    for extent in extents {
        let head = op.at(durix_pmem::Off::<[durix_pmem::Word; 8]>::new(extent.off));
        let before = head.each_ref().map(|word| op.load(word, Ordering::Relaxed));
        for (at, new) in [(0, 0), (1, 77), (2, before[2] + 1), (3, 5), (1, 2)] {
            if before[at] == new {
                continue;
            }
            op.store(&head[at], new, Ordering::Relaxed);
            let mut other = pool.session().unwrap();
            assert!(PersistentSet::recover(&mut other, set.root.clone(), &options()).is_err());
            assert!(content(&again(&set, &options().salvage(true)), &op) == whole, "word {at} is {new}");
            op.store(&head[at], before[at], Ordering::Relaxed);
        }
    }
}
