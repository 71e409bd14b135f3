//! A stack of nodes with an allocator of its own: a bump pointer and a free list.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::{Relaxed, Release};

use durix_pmem::{Medium, Op};

use super::pattern::{Bound, Host, Map, Pattern, word};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Bug {
    BumpPointer,
    FirstOfChain,
    FreeListHead,
    NotBeforePublication,
    FieldAfterLink,
    Leak,
    RedundantWriteBack,
    DoubleFence,
    CleanLine,
}

#[derive(Clone, Copy, Debug)]
enum Do {
    Push(u64),
    /// Two at once, under one link.
    PushTwo(u64, u64),
    Pop,
}

struct Heap;

const HEAD: u64 = 64;
const FREE: u64 = 128;
const BUMP: u64 = 192;
const FIRST: u64 = 256;

fn get<M: Medium>(op: &Op<'_, M>, off: u64) -> u64 {
    op.load(word(op, off), Relaxed)
}

fn put<M: Medium>(op: &Op<'_, M>, off: u64, value: u64) {
    op.store(word(op, off), value, Release);
    op.persist(word(op, off));
}

/// The nodes of a list.
fn list<M: Medium>(op: &Op<'_, M>, head: u64) -> Vec<u64> {
    let mut nodes = Vec::new();
    let mut at = get(op, head);
    while at != 0 && nodes.len() < 50 {
        nodes.push(at);
        at = get(op, at);
    }
    nodes
}

fn allocate<M: Medium>(op: &Op<'_, M>, bug: Option<Bug>) -> u64 {
    let free = get(op, FREE);
    let (place, value, skipped) = if free != 0 {
        (FREE, get(op, free), bug == Some(Bug::FreeListHead))
    } else {
        (BUMP, get(op, BUMP) + 64, bug == Some(Bug::BumpPointer))
    };
    let node = if free != 0 { free } else { get(op, BUMP) };
    op.store(word(op, place), value, Release);
    if !skipped {
        op.write_back(word(op, place));
    }
    op.fence();
    node
}

fn push<M: Medium>(op: &Op<'_, M>, bug: Option<Bug>, values: &[u64]) {
    let mut next = get(op, HEAD);
    for (i, value) in values.iter().enumerate() {
        let node = allocate(op, bug);
        op.store(word(op, node), next, Relaxed);
        if bug != Some(Bug::FieldAfterLink) {
            op.store(word(op, node + 8), *value, Relaxed);
        }
        if i + 1 == values.len() || bug != Some(Bug::FirstOfChain) {
            op.write_back(word(op, node));
        }
        next = node;
    }
    match bug {
        Some(Bug::RedundantWriteBack) => op.write_back(word(op, next)),
        Some(Bug::CleanLine) => op.write_back(word(op, FREE)),
        Some(Bug::DoubleFence) => op.fence(),
        _ => {}
    }
    if bug != Some(Bug::NotBeforePublication) {
        op.fence();
    }
    put(op, HEAD, next);
    if bug == Some(Bug::FieldAfterLink) {
        put(op, next + 8, values[values.len() - 1]);
    }
}

impl Host for Heap {
    type Bug = Bug;
    type Do = Do;
    type Volatile = ();

    fn create<M: Medium>(op: &Op<'_, M>, _: Option<Bug>) {
        put(op, BUMP, FIRST);
    }

    fn recover<M: Medium>(op: &Op<'_, M>, bug: Option<Bug>) -> Result<(), String> {
        if get(op, BUMP) == 0 {
            Self::create(op, bug);
        }
        if bug == Some(Bug::Leak) {
            return Ok(());
        }
        // What a crash left between allocating and linking goes back to the free list.
        let known: BTreeSet<u64> = list(op, HEAD).into_iter().chain(list(op, FREE)).collect();
        for node in (FIRST..get(op, BUMP)).step_by(64).filter(|node| !known.contains(node)) {
            put(op, node, get(op, FREE));
            put(op, FREE, node);
        }
        Ok(())
    }

    fn apply<M: Medium>((op, _): (&Op<'_, M>, &Op<'_, M>), (): &mut (), bug: Option<Bug>, what: Do) -> Option<u64> {
        match what {
            Do::Push(value) => push(op, bug, &[value]),
            Do::PushTwo(a, b) => push(op, bug, &[a, b]),
            Do::Pop => {
                let node = get(op, HEAD);
                if node == 0 {
                    return None;
                }
                let value = get(op, node + 8);
                put(op, HEAD, get(op, node));
                put(op, node, get(op, FREE));
                put(op, FREE, node);
                return Some(value);
            }
        }
        None
    }

    /// By the depth of the value in the stack, from below.
    fn contents<M: Medium>(op: &Op<'_, M>) -> Map {
        let nodes = list(op, HEAD);
        nodes.iter().rev().enumerate().map(|(depth, node)| (depth as u64, get(op, node + 8))).collect()
    }

    fn check<M: Medium>(op: &Op<'_, M>) -> Vec<String> {
        let (used, free) = (list(op, HEAD), list(op, FREE));
        let both = used.iter().filter(|node| free.contains(node)).map(|node| format!("{node:#x} is used and free"));
        let all = (FIRST..get(op, BUMP)).step_by(64);
        let leaked = all.filter(|node| !used.contains(node) && !free.contains(node));
        both.chain(leaked.map(|node| format!("{node:#x} is leaked"))).collect()
    }

    fn step(model: &mut Map, what: Do) -> Option<u64> {
        let depth = model.len() as u64;
        match what {
            Do::Push(value) => drop(model.insert(depth, value)),
            Do::PushTwo(a, b) => model.extend([(depth, a), (depth + 1, b)]),
            Do::Pop => return model.pop_last().map(|(_, value)| value),
        }
        None
    }
}

pub(super) fn patterns() -> Vec<Pattern> {
    use Bound::{Recovery, Sequential};
    use Do::{Pop, Push, PushTwo};
    const PUSHES: (&[Do], &[Do]) = (&[Push(1), Push(2)], &[Push(8), Push(9)]);
    const REUSE: (&[Do], &[Do]) = (&[Push(1), Pop, Push(2)], &[Push(8), Pop]);
    let planted = Pattern::new::<Heap>;
    vec![
        planted("write-back", "bump pointer", Recovery, Bug::BumpPointer, PUSHES),
        planted(
            "write-back",
            "only the first of a chain",
            Sequential,
            Bug::FirstOfChain,
            (&[PushTwo(1, 2)], &[Pop, Pop]),
        ),
        planted("write-back", "free-list head", Recovery, Bug::FreeListHead, REUSE),
        planted("fence", "node before publication", Sequential, Bug::NotBeforePublication, PUSHES),
        planted("fence", "field written after the link", Sequential, Bug::FieldAfterLink, PUSHES),
        planted("recovery", "a leak between allocate and link", Recovery, Bug::Leak, PUSHES),
        Pattern::cost::<Heap>("cost", "redundant write-back", Bug::RedundantWriteBack, Push(1), (3, 3)),
        Pattern::cost::<Heap>("cost", "double fence", Bug::DoubleFence, Push(1), (3, 3)),
        Pattern::cost::<Heap>("cost", "write-back of a clean line", Bug::CleanLine, Push(1), (3, 3)),
    ]
}
