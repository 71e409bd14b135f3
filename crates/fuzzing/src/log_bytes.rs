//! Logs whose bytes were changed: they are recovered or refused, and what is recovered can be checked, read, trimmed and
//! appended to, without a panic and without hanging.

use durix_cso::log::{
    ChainLog, FvbEntryLog, FvbLog, HalfLine, LinesLog, Log, OneLine, RandomLog, RandomOptions, Region, TwoLines, VbLog,
};
use durix_pmem::{Hardware, Mapping, Off, Op, Word};
use std::sync::atomic::Ordering;

const REGION: Region = Region { off: 4096, len: 8192 };
const WORDS: u64 = REGION.len / 8;
/// Kinds of logs that the first byte chooses from.
const KINDS: u8 = 8;

/// Fills a log of the kind that the first byte chooses, applies the mutations that follow (six bytes each: where, what,
/// operand), and uses what comes out.
pub fn mutate_and_use(input: &[u8]) {
    let Some((kind, steps)) = input.split_first() else { return };
    match kind % KINDS {
        0 => work::<VbLog<HalfLine>>(steps, ()),
        1 => work::<VbLog<OneLine>>(steps, ()),
        2 => work::<VbLog<TwoLines>>(steps, ()),
        3 => work::<LinesLog>(steps, ()),
        4 => work::<FvbLog>(steps, Default::default()),
        5 => work::<FvbEntryLog>(steps, Default::default()),
        // A pattern of its own, so that what happens follows from the input.
        6 => work::<RandomLog>(steps, RandomOptions { pattern: Some(0x5bd1_e995_9d2c_5680) }),
        _ => work::<ChainLog>(steps, Default::default()),
    }
}

fn work<L: Log>(steps: &[u8], options: L::Options) {
    let mapping = Mapping::heap(1 << 14, Hardware::PAGE_CACHE);
    let mut session = mapping.session().expect("a session");
    let op = session.enter().expect("an operation");
    if L::format(&op, REGION, &options).map(|mut log| fill(&op, &mut log)).is_err() {
        return;
    }
    for step in steps.chunks_exact(6).take(64) {
        mutate(&op, step);
    }
    if let Ok(mut log) = L::recover(&op, REGION) {
        use_log(&op, &mut log);
        // What it has written itself it must be able to read again.
        if let Ok(again) = L::recover(&op, REGION) {
            read(&op, &again);
        }
    }
}

/// More than a lap of records of several lengths, trimmed behind.
fn fill<L: Log>(op: &Op<'_>, log: &mut L) {
    for i in 0..260u64 {
        let len = ((i % 5) * 11).min(log.max_payload() as u64) as usize;
        while log.append(op, (i % 4) as u8, &vec![i as u8; len]).is_err() {
            let Some(to) = log.iter(op).nth(3).map(|record| record.position()) else { return };
            log.trim(op, to).expect("the start of a record");
            log.commit(op);
        }
    }
}

fn word<'s>(op: &Op<'s>, at: u64) -> &'s Word {
    op.at(Off::<Word>::new(REGION.off + at % WORDS * 8))
}

fn mutate(op: &Op<'_>, step: &[u8]) {
    let at = u64::from(u16::from_le_bytes([step[0], step[1]]));
    let operand = u16::from_le_bytes([step[4], step[5]]);
    let put = |at, value: u64| op.store(word(op, at), value, Ordering::Relaxed);
    let old: u64 = op.load(word(op, at), Ordering::Relaxed);
    match step[2] % 6 {
        0 | 1 => put(at, old ^ 1 << (operand % 64)),
        2 => put(at, u64::from(operand)),
        3 => put(at, u64::MAX << (operand % 64)),
        4 => {
            for i in 0..8 {
                put(at / 8 * 8 + i, op.load(word(op, u64::from(operand) / 8 * 8 + i), Ordering::Relaxed));
            }
        }
        // The first lines are the log's own words.
        _ => put(at % 32, u64::from(operand)),
    }
}

/// Reads all records; there cannot be more than there are words.
fn read<L: Log>(op: &Op<'_>, log: &L) {
    let mut bytes = 0;
    for record in log.iter(op).take(WORDS as usize + 1) {
        bytes += record.to_vec().len() as u64 + u64::from(record.tag());
        assert!(record.next() > record.position(), "{record:?} does not go on");
    }
    assert!(bytes < REGION.len * 300, "{bytes} bytes of records in a log of {}", REGION.len);
}

fn use_log<L: Log>(op: &Op<'_>, log: &mut L) {
    let _ = log.check(op).iter().map(|finding| format!("{finding:?}")).collect::<Vec<_>>();
    read(op, log);
    let _ = (log.floor(op), log.capacity(), log.is_empty());
    if let Some(to) = log.iter(op).take(WORDS as usize).nth(2).map(|record| record.position()) {
        let _ = log.trim_with(op, to, Some(7));
        log.commit(op);
    }
    for len in [0, 1, 8, 20, 100, log.max_payload().min(4000)] {
        let payload = vec![0xa5; len];
        if let Ok(position) = log.append(op, 1, &payload) {
            let back = log.record_at(op, position).map(|record| record.to_vec());
            assert_eq!(back, Some(payload), "what was appended is read");
        }
    }
    let tail = log.tail();
    let _ = log.trim(op, tail);
    log.commit(op);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn logs_that_nobody_changed_are_used() {
        (0..KINDS).for_each(|kind| mutate_and_use(&[kind]));
    }

    #[test]
    fn payloads_of_entries_out_of_turn_are_refused() {
        // A changed head leads to entries of an earlier lap, whose payloads lie behind those of later ones.
        mutate_and_use(&[5, 24, 0, 3, 0, 0, 0, 16, 0, 0, 0, 8, 0]);
    }

    proptest! {
        #![proptest_config(crate::cases(1500, 30000))]

        #[test]
        fn changed_bytes_never_panic(kind in 0..KINDS, steps in prop::collection::vec(any::<u8>(), 0..72)) {
            mutate_and_use(&[&[kind][..], &steps].concat());
        }

        #[test]
        fn changed_heads_never_panic(kind in 0..KINDS, steps in prop::collection::vec((0..32u8, 0..6u8, any::<[u8; 2]>()), 1..6)) {
            let step = |(at, what, operand): &(u8, u8, [u8; 2])| [*at, 0, *what, 0, operand[0], operand[1]];
            mutate_and_use(&[&[kind][..], &steps.iter().flat_map(step).collect::<Vec<_>>()].concat());
        }
    }
}
