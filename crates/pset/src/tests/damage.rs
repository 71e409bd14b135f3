//! Damaged contents, and what the check says of them.

use super::*;
use durix_pmem::Bits;

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
    let is_entry = |s: &u64| layout::Meta::from_bits(op.load(word(s * 8), Ordering::Relaxed)).is_valid();
    let slot = (1..63).find(is_entry).unwrap() * 8;
    let fresh = (1..63).find(|s| !is_entry(s)).unwrap() * 8;
    for (index, value, what) in [
        (0, 1, "the first word of an extent"),
        (1, 2, "the checksum of an extent's header"),
        (slot, 0, "the validity of a slot"),
        (slot, (3 << 62) | (layout::MAX_VERSION + 1), "the validity of a slot"),
        (slot + 1, 1 << 7, "the lengths of an entry"),
        (slot + 1, layout::Info::of(9, 99).to_bits(), "the lengths of an entry"),
        (fresh, 0, "the validity of a slot"),
        (fresh + 1, 0, "a slot that was never written"),
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

/// The same pool, read from an image.
fn read(image: Vec<u8>) -> Option<(Pool<Hardware>, Arc<PersistentSet<Hardware>>)> {
    let backing = HeapBacking::from_image(image).with_limit(1 << 20);
    let pool = PoolOptions::new().read_only(true).open_on(backing, Hardware::PAGE_CACHE).ok()?.recover().ok()?;
    assert!(pool.is_as_closed());
    let set = PersistentSet::open_with(&pool, "set", &options()).ok()?;
    Some((pool, set))
}

/// In a pool that was closed no byte of an extent can change so that the check finds nothing and a pair is missing or wrong; and
/// repair loses the key on the damaged line, and no other, and makes no pair up.
#[test]
fn no_changed_byte_of_a_closed_set_is_missed() {
    let pool = pool(1 << 20, Hardware::PAGE_CACHE);
    let set = open(&pool, &options());
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    for i in 0..20u8 {
        set.insert(&op, &[i; 8], &vec![i; usize::from(i % 4) * 35]).unwrap();
    }
    (0..20u8).step_by(5).for_each(|i| assert!(set.remove(&op, &[i; 8]).unwrap()));
    set.insert(&op, &[7; 60], b"a long key").unwrap();
    set.remove(&op, &[7; 60]).unwrap();
    set.insert(&op, &[8; 60], b"another").unwrap();
    (11..14u8).for_each(|i| assert!(!set.insert(&op, &[i; 8], b"newer").unwrap()));
    let mut batch = Batch::new();
    batch.insert(&[1; 8], b"one").remove(&[2; 8]).insert(&[3; 8], &[3; 100]);
    set.commit(&op, &batch).unwrap();
    let (whole, extents) = (content(&set, &op), set.extents(&op));
    drop(op);
    drop((session, set));
    pool.close().unwrap();
    let image = HeapBacking::image_of(pool.mapping());
    let sound = |image: Vec<u8>| {
        let (pool, set) = read(image)?;
        let mut session = pool.session().unwrap();
        let op = session.enter().unwrap();
        set.check(&op).unwrap().is_empty().then(|| content(&set, &op))
    };
    let is_used = |line: &u64| image[*line as usize..][..64] != [0; 64];
    let lines = extents.iter().flat_map(|e| (e.off..e.off + e.len).step_by(64)).filter(is_used);
    // What was never written looks the same everywhere: some of it.
    let fresh = |line: u64| image[line as usize + 16..][..48] == [0; 48];
    let (mut found, mut harmless) = (0, 0);
    for (number, line) in lines.enumerate().filter(|(number, line)| number % 16 == 0 || !fresh(*line)) {
        let others = (0..64).map(|byte| (byte..byte + 1, 1 << ((number + byte) % 8)));
        let words = (0..8).map(|word| (word * 8..word * 8 + 8, 0));
        for (bytes, flip) in others.chain(words).chain([(0..64, 0)]) {
            let mut changed = image.clone();
            for byte in &mut changed[line as usize..][bytes.clone()] {
                *byte = if flip == 0 { 0 } else { *byte ^ flip };
            }
            if changed == image {
                continue;
            }
            match sound(changed.clone()) {
                Some(content) => {
                    assert_eq!(content, whole, "{line:#x} {bytes:?} {flip}");
                    harmless += 1;
                    continue;
                }
                None => found += 1,
            }
            let backing = HeapBacking::from_image(changed).with_limit(1 << 20);
            let options = PoolOptions::new().read_only(true);
            let pool = options.open_on(backing, Hardware::PAGE_CACHE).unwrap().recover().unwrap();
            let set = PersistentSet::open_with(&pool, "set", &self::options().salvage(true)).unwrap();
            let mut session = pool.session().unwrap();
            let saved = content(&set, &session.enter().unwrap());
            assert!(saved.len() + 1 >= whole.len(), "{line:#x} {bytes:?}: {} of {} saved", saved.len(), whole.len());
        }
    }
    println!("{found} found, {harmless} harmless");
    assert!(found > 500 && harmless > 0);
}

/// The same pool, opened for writing.
fn write(image: Vec<u8>, options: &SetOptions) -> crate::Result<Arc<PersistentSet<Hardware>>> {
    let backing = HeapBacking::from_image(image).with_limit(1 << 20);
    let pool = PoolOptions::new().open_on(backing, Hardware::PAGE_CACHE).unwrap().recover().unwrap();
    PersistentSet::open_with(&pool, "set", options)
}

type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

/// A closed pool with a set of 20 keys, where its extents lie, and what it holds.
fn closed() -> (Vec<u8>, Vec<durix_pmem::Extent>, Contents) {
    let pool = pool(1 << 20, Hardware::PAGE_CACHE);
    let set = open(&pool, &options());
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    (0..20u8).for_each(|i| assert!(set.insert(&op, &[i; 8], &vec![i; usize::from(i % 4) * 35]).unwrap()));
    let mut batch = Batch::new();
    batch.insert(&[1; 8], b"one").insert(&[3; 8], &[3; 100]);
    set.commit(&op, &batch).unwrap();
    let (whole, extents) = (content(&set, &op), set.extents(&op));
    drop(op);
    drop((session, set));
    pool.close().unwrap();
    (HeapBacking::image_of(pool.mapping()), extents, whole)
}

/// The slots with entries of an image, each with the lines of its class.
fn entries(image: &[u8], extents: &[durix_pmem::Extent]) -> Vec<(usize, usize)> {
    let word = |at: usize| u64::from_le_bytes(image[at..at + 8].try_into().unwrap());
    let of_extent = |extent: &durix_pmem::Extent| {
        let (lines, slots) = (word(extent.off as usize + 8) as usize, word(extent.off as usize + 16) as usize);
        let first = extent.off as usize + 64;
        (0..slots).map(|slot| (first + slot * lines * 64, lines)).collect::<Vec<_>>()
    };
    let all = extents.iter().flat_map(of_extent);
    all.filter(|(at, _)| layout::Meta::from_bits(word(*at)).is_valid()).collect()
}

#[test]
fn a_torn_entry_of_a_closed_pool_is_reported_and_kept_when_it_is_opened_for_writing() {
    let (image, extents, whole) = closed();
    let long = entries(&image, &extents).into_iter().find(|(_, lines)| *lines > 1).expect("of several lines").0;
    let mut torn = image.clone();
    torn[long + 64] ^= 1;
    let mut writing = image.clone();
    let meta = u64::from_le_bytes(image[long..long + 8].try_into().unwrap());
    writing[long..long + 8].copy_from_slice(&layout::Meta::from_bits(meta).invalidated().to_bits().to_le_bytes());
    let mut in_part = image.clone();
    // The watermark, so that the transaction is looked at, and one of its two entries.
    let of_transaction = entries(&image, &extents).into_iter().filter(|(at, _)| {
        let info = u64::from_le_bytes(image[at + 8..at + 16].try_into().unwrap());
        layout::Info::from_bits(info).transaction() > 0
    });
    let lost = of_transaction.map(|(at, _)| at).next().expect("a transaction");
    let meta = u64::from_le_bytes(image[lost..lost + 8].try_into().unwrap());
    in_part[lost..lost + 8].copy_from_slice(&layout::Meta::from_bits(meta).erased().to_bits().to_le_bytes());
    for (image, what) in [
        (torn, "a line of an entry"),
        (writing, "a line of an entry"),
        (in_part, "the number of entries of a transaction"),
    ] {
        let error = write(image, &options()).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
    let set = write(image, &options()).unwrap();
    let mut session = set.root.pool().session().unwrap();
    assert_eq!(content(&set, &session.enter().unwrap()), whole);
}

#[test]
fn a_damaged_entry_is_one_finding_and_no_removal_when_what_can_be_read_is_read() {
    let (image, extents, whole) = closed();
    for (at, _) in entries(&image, &extents) {
        let mut changed = image.clone();
        // The last byte of the first line: of the value, or nothing that counts.
        changed[at + 63] ^= 4;
        let backing = HeapBacking::from_image(changed).with_limit(1 << 20);
        let pool =
            PoolOptions::new().read_only(true).open_on(backing, Hardware::PAGE_CACHE).unwrap().recover().unwrap();
        let set = PersistentSet::open_with(&pool, "set", &options().salvage(true)).unwrap();
        let mut session = pool.session().unwrap();
        let op = session.enter().unwrap();
        let (findings, lost) = (set.check(&op).unwrap(), whole.len() - content(&set, &op).len());
        assert!(lost <= findings.len() && findings.len() <= 1, "{at:#x}: {lost} lost, {findings:?}");
        assert_eq!(set.stats(&op).tombstones, 0, "{at:#x}");
    }
}

/// The tables of space say where a set's entries lie: without them it looked empty, and sound.
#[test]
fn a_lost_table_of_space_is_found_and_costs_no_key() {
    let (image, extents, whole) = closed();
    let first = extents.iter().map(|extent| extent.off).min().unwrap() as usize;
    // The chunk before the first extent is the table of its zone.
    let table = first - 4096;
    let of_this = |image: Vec<u8>| {
        let backing = HeapBacking::from_image(image).with_limit(1 << 20);
        PoolOptions::new().read_only(true).open_on(backing, Hardware::PAGE_CACHE).unwrap().recover().unwrap()
    };
    let mut zeroed = image.clone();
    zeroed[table..first].fill(0);
    assert_ne!(zeroed, image);
    let mut copied = image.clone();
    copied.copy_within(first..first + 4096, table);
    for image in [zeroed, copied] {
        let pool = of_this(image.clone());
        let error = PersistentSet::open_with(&pool, "set", &options()).unwrap_err().to_string();
        assert!(error.contains("the number of extents"), "{error}");
        drop(pool);
        let pool = of_this(image);
        let set = PersistentSet::open_with(&pool, "set", &options().salvage(true)).unwrap();
        let mut session = pool.session().unwrap();
        let op = session.enter().unwrap();
        assert_eq!(content(&set, &op), whole);
        let findings = set.check(&op).unwrap();
        assert!(findings.iter().any(|f| f.to_string().contains("the number of extents")), "{findings:?}");
    }
}

/// A process dies in an update; the next one opens the pool and closes it, and never opens the set.
#[test]
fn what_an_interrupted_update_has_left_is_no_damage_though_the_pool_was_closed_since() {
    let pool = pool(1 << 20, Hardware::PAGE_CACHE);
    let set = open(&pool, &options());
    let mut session = pool.session().unwrap();
    let op = session.enter().unwrap();
    (0..4u8).for_each(|i| assert!(set.insert(&op, &[i; 8], &[i; 100]).unwrap()));
    let (whole, extents) = (content(&set, &op), set.extents(&op));
    let before = entries(&HeapBacking::image_of(pool.mapping()), &extents);
    set.insert(&op, &[9; 8], &[9; 100]).unwrap();
    drop(op);
    let mut image = HeapBacking::image_of(pool.mapping());
    let (last, _) =
        entries(&image, &extents).into_iter().find(|entry| !before.contains(entry)).expect("in the same extent");
    let meta = u64::from_le_bytes(image[last..last + 8].try_into().unwrap());
    image[last..last + 8].copy_from_slice(&layout::Meta::from_bits(meta).invalidated().to_bits().to_le_bytes());
    let backing = HeapBacking::from_image(image).with_limit(1 << 20);
    let next = PoolOptions::new().open_on(backing, Hardware::PAGE_CACHE).unwrap().recover().unwrap();
    next.close().unwrap();
    let set = write(HeapBacking::image_of(next.mapping()), &options()).unwrap();
    let mut session = set.root.pool().session().unwrap();
    assert_eq!(content(&set, &session.enter().unwrap()), whole);
}

/// The line of an entry over another one: of the two entries of its key, which have one version, the one in its own place counts. It was
/// lost where the copy was read first.
#[test]
fn a_copied_entry_costs_only_the_one_that_it_was_copied_over() {
    let (image, extents, whole) = closed();
    let of_one_line: Vec<usize> = entries(&image, &extents).into_iter().filter(|e| e.1 == 1).map(|e| e.0).collect();
    for (from, to) in of_one_line.iter().flat_map(|from| of_one_line.iter().map(move |to| (*from, *to))) {
        if from == to {
            continue;
        }
        let mut changed = image.clone();
        changed.copy_within(from..from + 64, to);
        let backing = HeapBacking::from_image(changed).with_limit(1 << 20);
        let pool =
            PoolOptions::new().read_only(true).open_on(backing, Hardware::PAGE_CACHE).unwrap().recover().unwrap();
        let set = PersistentSet::open_with(&pool, "set", &options().salvage(true)).unwrap();
        let mut session = pool.session().unwrap();
        let saved = content(&set, &session.enter().unwrap());
        assert!(saved.len() + 1 >= whole.len(), "{from:#x} over {to:#x}: {} of {}", saved.len(), whole.len());
        // An older value of the one that was overwritten.
        let others = saved.iter().filter(|(key, value)| whole.get(*key) != Some(*value)).count();
        assert!(others <= 1, "{from:#x} over {to:#x}: {others} values are others");
    }
}
