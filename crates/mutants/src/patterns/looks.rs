//! What a scan repairs before anybody else looks: an update writes the new version beside the old one, and then erases that.
//! A crash in between leaves both. Who reads everything erases the older; a lookup that trusts that this was done finds it.

use std::sync::atomic::Ordering::{Relaxed, Release};

use durix_pmem::{Medium, Op};

use super::pattern::{Host, Map, Pattern, word};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Bug {
    /// Recovery leaves both versions to whoever scans.
    ScanRepairs,
}

#[derive(Clone, Copy, Debug)]
enum Do {
    Put(u64),
    Get,
}

struct Versions;

const KEY: u64 = 1;
/// On lines of their own: a version in the upper half, a value in the lower.
const SLOTS: [u64; 2] = [64, 128];

fn versions<M: Medium>(op: &Op<'_, M>) -> [u64; 2] {
    SLOTS.map(|slot| op.load(word(op, slot), Relaxed))
}

fn set<M: Medium>(op: &Op<'_, M>, slot: usize, content: u64) {
    op.store(word(op, SLOTS[slot]), content, Release);
    op.persist(word(op, SLOTS[slot]));
}

/// Erases the older of two versions. Gives the newer.
fn settle<M: Medium>(op: &Op<'_, M>) -> u64 {
    let [a, b] = versions(op);
    if a != 0 && b != 0 {
        set(op, usize::from(a > b), 0);
    }
    a.max(b)
}

impl Host for Versions {
    type Bug = Bug;
    type Do = Do;
    type Volatile = ();

    fn create<M: Medium>(_: &Op<'_, M>, _: Option<Bug>) {}

    fn recover<M: Medium>(op: &Op<'_, M>, bug: Option<Bug>) -> Result<(), String> {
        if bug.is_none() {
            settle(op);
        }
        Ok(())
    }

    fn apply<M: Medium>((op, _): (&Op<'_, M>, &Op<'_, M>), (): &mut (), _: Option<Bug>, what: Do) -> Option<u64> {
        // There is one version: recovery has seen to that.
        let here = || versions(op).into_iter().position(|content| content != 0);
        match what {
            Do::Get => here().map(|slot| u64::from(versions(op)[slot] as u32)),
            Do::Put(value) => {
                let old = here();
                let next = old.map_or(0, |slot| versions(op)[slot] >> 32) + 1;
                set(op, old.map_or(0, |slot| 1 - slot), next << 32 | value);
                if let Some(old) = old {
                    set(op, old, 0);
                }
                None
            }
        }
    }

    fn contents<M: Medium>(op: &Op<'_, M>) -> Map {
        let newest = settle(op);
        (newest != 0).then(|| (KEY, u64::from(newest as u32))).into_iter().collect()
    }

    fn step(model: &mut Map, what: Do) -> Option<u64> {
        match what {
            Do::Put(value) => {
                model.insert(KEY, value);
                None
            }
            Do::Get => model.get(&KEY).copied(),
        }
    }
}

/// Found only by who lets an operation look first.
pub fn patterns() -> Vec<Pattern> {
    use Do::{Get, Put};
    let histories: (&[Do], &[Do]) = (&[Put(1), Put(2)], &[Get]);
    vec![Pattern::first_look::<Versions>("a lookup trusts a repair that the scan does", Bug::ScanRepairs, histories)]
}
