//! What a working thread does: operations that follow from the seed alone, so that the parent can do them again on a model.
//!
//! Every thread has keys of its own, which lie between those of the others, and all threads share a few keys. A value
//! follows from the number of the operation that wrote it, so the model needs to remember that number only.

use std::collections::HashMap;

use durix::{Batch, Index, Lengths, Limits, Medium, Op};
use durix_pmem::testing::mix;

/// What keys and values are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Bytes: most are short, some need several lines.
    Bytes,
    /// Words of 8 bytes, for the kinds that take nothing else.
    Words,
    /// Keys that are words, and values as for [`Bytes`](Form::Bytes).
    Values,
}

impl Form {
    /// What an index with these limits takes.
    pub fn of(limits: Limits) -> Form {
        match (limits.key, limits.value) {
            (Lengths::UpTo(_), _) => Form::Bytes,
            (Lengths::Exactly(_), Lengths::Exactly(_)) => Form::Words,
            (Lengths::Exactly(_), Lengths::UpTo(_)) => Form::Values,
        }
    }

    /// The key with this number of a thread.
    pub fn key(self, thread: u64, number: u64) -> Vec<u8> {
        if self != Form::Bytes {
            return (number << 8 | thread).to_be_bytes().to_vec();
        }
        let mut key = format!("{number}:{thread}").into_bytes();
        if number % 7 == 3 {
            key.resize(key.len() + (number % 4) as usize * 50, b'k');
        }
        key
    }

    /// Thread and number of a key, if one of so many threads has it.
    pub fn parse(self, key: &[u8], threads: usize) -> Option<(usize, u64)> {
        let (thread, number) = match self {
            Form::Words | Form::Values => {
                let word = u64::from_be_bytes(key.try_into().ok()?);
                ((word & 0xff) as usize, word >> 8)
            }
            Form::Bytes => {
                let text = std::str::from_utf8(key).ok()?;
                let (number, thread) = text.trim_end_matches('k').split_once(':')?;
                (thread.parse().ok()?, number.parse().ok()?)
            }
        };
        (thread < threads && self.key(thread as u64, number) == key).then_some((thread, number))
    }

    /// The value that an operation writes, by its identity.
    pub fn value(self, id: u64) -> Vec<u8> {
        let random = mix(id);
        if self == Form::Words {
            return random.to_be_bytes().to_vec();
        }
        let len = if random.is_multiple_of(16) { random >> 8 & 0x1ff } else { random >> 8 & 0x1f };
        (0..len).map(|i| (random >> (i % 7 * 8)) as u8 ^ i as u8).collect()
    }

    /// The value that an operation writes to a key that all threads share: no two operations write the same.
    pub fn shared_value(self, id: u64) -> Vec<u8> {
        let mut value = mix(id).to_be_bytes().to_vec();
        if self != Form::Words {
            value.extend(self.value(id));
        }
        value
    }

    /// A key that is no thread's: the parent does not look at it.
    pub fn probe(self) -> Vec<u8> {
        match self {
            Form::Bytes => b"probe".to_vec(),
            Form::Words | Form::Values => vec![0xff; 8],
        }
    }
}

/// What a child works on.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Differs in every child.
    pub seed: u64,
    pub threads: u64,
    /// Keys of all threads together.
    pub keys: u64,
    pub form: Form,
}

/// Keys that all threads share. In the place of the number of their thread they have that of all threads.
pub const SHARED: u64 = 8;
/// How many operations of 16 go to them. Not more: another thread that meets what an operation has left undone does it,
/// and nobody would find out.
const SHARE: u64 = 3;
/// Most changes of a batch.
const BATCH: u64 = 4;
/// A change of one key: the identity of its new value, or none for its removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    pub key: u64,
    pub id: Option<u64>,
}

/// An operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Insert(Change),
    InsertIfAbsent(Change),
    Update(Change),
    Remove(Change),
    Batch(Vec<Change>),
    /// On a key that all threads share.
    Shared(Shared, Change),
}

/// An operation on a key that all threads share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shared {
    Insert,
    InsertIfAbsent,
    Update,
    Remove,
}

impl Shared {
    /// Whether the key is as the operation says when it has ended, whatever it was before.
    pub fn decides(self) -> bool {
        matches!(self, Shared::Insert | Shared::Remove)
    }
}

impl Plan {
    pub fn keys_of_a_thread(&self) -> u64 {
        self.keys.div_ceil(self.threads)
    }

    /// The operation of a thread with that number.
    pub fn step(&self, thread: u64, number: u64) -> Step {
        let id = mix(self.seed ^ mix(thread << 48 | number));
        let random = mix(id ^ 1);
        if random >> 60 < SHARE {
            return self.shared_step(id, random);
        }
        let any_key = |salt: u64| mix(random ^ salt) % self.keys_of_a_thread();
        let put = Change { key: any_key(0), id: Some(id) };
        match random % 20 {
            0..8 => Step::Insert(put),
            8..10 => Step::InsertIfAbsent(put),
            10..12 => Step::Update(put),
            12..18 => Step::Remove(Change { id: None, ..put }),
            _ => {
                let count = 1 + (random >> 32) % BATCH;
                let change = |at| Change { key: any_key(at), id: (at % 3 != 2).then_some(mix(id + at)) };
                Step::Batch((0..count).map(change).collect())
            }
        }
    }
}

impl Plan {
    fn shared_step(&self, id: u64, random: u64) -> Step {
        let put = Change { key: (random >> 8) % SHARED, id: Some(id) };
        match random % 16 {
            0..5 => Step::Shared(Shared::Insert, put),
            5..8 => Step::Shared(Shared::InsertIfAbsent, put),
            8..11 => Step::Shared(Shared::Update, put),
            _ => Step::Shared(Shared::Remove, Change { id: None, ..put }),
        }
    }
}

/// Does a step on an index.
pub fn run<M: Medium>(index: &dyn Index<M>, op: &Op<'_, M>, plan: Plan, thread: u64, step: &Step) -> durix::Result<()> {
    let form = plan.form;
    let bytes = |change: &Change| (form.key(thread, change.key), form.value(change.id.unwrap_or_default()));
    match step {
        Step::Insert(change) => {
            let (key, value) = bytes(change);
            index.insert(op, &key, &value)?;
        }
        Step::InsertIfAbsent(change) => {
            let (key, value) = bytes(change);
            index.insert_if_absent(op, &key, &value)?;
        }
        Step::Update(change) => {
            let (key, value) = bytes(change);
            index.update(op, &key, &value)?;
        }
        Step::Remove(change) => {
            index.remove(op, &form.key(thread, change.key))?;
        }
        Step::Batch(changes) => {
            let mut batch = Batch::new();
            for change in changes {
                let key = form.key(thread, change.key);
                match change.id {
                    Some(id) => batch.insert(&key, &form.value(id)),
                    None => batch.remove(&key),
                };
            }
            index.apply(op, &batch)?;
        }
        Step::Shared(what, change) => {
            let (key, value) = (form.key(plan.threads, change.key), form.shared_value(change.id.unwrap_or_default()));
            match what {
                Shared::Insert => _ = index.insert(op, &key, &value)?,
                Shared::InsertIfAbsent => _ = index.insert_if_absent(op, &key, &value)?,
                Shared::Update => _ = index.update(op, &key, &value)?,
                Shared::Remove => _ = index.remove(op, &key)?,
            }
        }
    }
    Ok(())
}

/// What the keys of one thread hold: number of a key, identity of its value.
pub type Contents = HashMap<u64, u64>;

/// The changes that a step makes to these contents, in order; none to a key that all threads share.
pub fn changes(step: &Step, contents: &Contents) -> Vec<Change> {
    match step {
        Step::Insert(change) | Step::Remove(change) => vec![*change],
        Step::InsertIfAbsent(change) if !contents.contains_key(&change.key) => vec![*change],
        Step::Update(change) if contents.contains_key(&change.key) => vec![*change],
        Step::InsertIfAbsent(_) | Step::Update(_) | Step::Shared(..) => Vec::new(),
        Step::Batch(changes) => changes.clone(),
    }
}

/// Makes changes to contents.
pub fn make(contents: &mut Contents, changes: &[Change]) {
    for change in changes {
        match change.id {
            Some(id) => _ = contents.insert(change.key, id),
            None => _ = contents.remove(&change.key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_follow_from_the_seed_and_reach_every_kind() {
        let plan = Plan { seed: 7, threads: 3, keys: 100, form: Form::Bytes };
        let steps: Vec<Step> = (0..200).map(|number| plan.step(1, number)).collect();
        assert_eq!(steps, (0..200).map(|number| plan.step(1, number)).collect::<Vec<_>>());
        for is_there in [
            steps.iter().any(|s| matches!(s, Step::Insert(_))),
            steps.iter().any(|s| matches!(s, Step::InsertIfAbsent(_))),
            steps.iter().any(|s| matches!(s, Step::Update(_))),
            steps.iter().any(|s| matches!(s, Step::Remove(_))),
            steps.iter().any(|s| matches!(s, Step::Batch(changes) if changes.len() > 2)),
            steps.iter().any(|s| matches!(s, Step::Shared(Shared::Insert, _))),
            steps.iter().any(|s| matches!(s, Step::Shared(Shared::InsertIfAbsent, _))),
            steps.iter().any(|s| matches!(s, Step::Shared(Shared::Update, _))),
            steps.iter().any(|s| matches!(s, Step::Shared(Shared::Remove, _))),
        ] {
            assert!(is_there);
        }
        let value = |id| Form::Bytes.value(id);
        assert!((0..200).any(|id| value(id).len() > 100) && (0..200).any(|id| value(id).is_empty()));
    }

    #[test]
    fn keys_that_nobody_wrote_are_not_parsed() {
        for form in [Form::Bytes, Form::Words, Form::Values] {
            assert_eq!(form.parse(&form.key(1, 3), 2), Some((1, 3)));
            assert!(form.parse(&form.key(2, 0), 2).is_none() && form.parse(b"x", 2).is_none());
            assert!(form.parse(&form.probe(), 64).is_none());
        }
        assert!(Form::Bytes.parse(b"3:1", 2).is_none());
    }

    #[test]
    fn the_model_does_what_every_kind_of_index_does() {
        let options = durix::PoolOptions::new();
        let pool = options.create_on(durix_pmem::backing::HeapBacking::new(64 << 20), durix::Hardware::PAGE_CACHE);
        let db = durix::Db::over(pool.unwrap());
        let mut session = db.pool().session().unwrap();
        for kind in durix::kind::kinds::<durix::Hardware>() {
            let index = db.open_index(kind.name, Some(kind.name)).unwrap();
            let plan = Plan { seed: 3, threads: 1, keys: 20, form: Form::of(kind.limits) };
            let mut contents = Contents::new();
            for number in 0..1000 {
                let step = plan.step(0, number);
                let op = session.enter().unwrap();
                run(&*index, &op, plan, 0, &step).unwrap();
                let made = changes(&step, &contents);
                make(&mut contents, &made);
                for k in 0..20 {
                    let expected = contents.get(&k).map(|id| plan.form.value(*id));
                    let found = index.get_vec(&op, &plan.form.key(0, k)).unwrap();
                    assert_eq!(found, expected, "{} after {step:?}", kind.name);
                }
            }
        }
    }
}
