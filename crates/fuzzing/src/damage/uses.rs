//! What is called of a damaged index: all that a user would call.

use std::ops::Bound;
use std::sync::Arc;

use durix::kind::{self, Entry};
use durix::{Cursor, Direction, Index, KeyRange, Pool, Session};

use super::{KEYS, MOST_PAIRS, NAME, Plan, Watch, key, near_key, value};

/// Keys that are inserted in one place.
const NEAR: u16 = 400;

/// An index at work.
pub(super) struct Use<'a> {
    pub entry: &'a Entry,
    pub pool: &'a Pool,
    pub index: Arc<dyn Index>,
    pub session: Session,
    pub watch: Watch<'a>,
}

impl Use<'_> {
    pub fn everything(mut self, plan: Plan) {
        if plan.has(Plan::LOOK_FIRST) {
            self.look();
        }
        if plan.has(Plan::UPDATE) {
            self.update(0, 64);
            self.update(KEYS, KEYS + 200);
        }
        if plan.has(Plan::SPLIT) {
            self.split();
        }
        if plan.has(Plan::MERGE) {
            self.merge();
        }
        if plan.has(Plan::REOPEN_INDEX) {
            match self.reopen() {
                Some(reopened) => self = reopened,
                None => return,
            }
        }
        if plan.has(Plan::CLEAR) {
            self.clear();
        }
        self.update(0, 16);
        self.look();
        let _ = self.watch.call("sync", || self.index.sync(&mut self.session));
    }

    fn look(&mut self) {
        let found = self.watch.call("check", || self.index.check(&mut self.session));
        let _ = found.iter().flatten().map(ToString::to_string).collect::<Vec<_>>();
        self.walks();
        let index = Arc::clone(&self.index);
        if let Some(ordered) = index.as_ordered() {
            let (mut key, mut value) = (Vec::new(), Vec::new());
            let op = self.session.enter().expect("open");
            let _ = self.watch.call("first", || ordered.first(&op, &mut key, &mut value));
            let _ = self.watch.call("last", || ordered.last(&op, &mut key, &mut value));
        }
        let all: Vec<Vec<u8>> = (0..64).map(|number| key(self.entry, number)).collect();
        let all: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
        let op = self.session.enter().expect("open");
        let _ = self.watch.call("get_many", || index.get_many(&op, &all, &mut |_, _| ()));
        let _ = self.watch.call("dump", || index.dump(&op, &mut String::new()));
        drop(op);
        let _ = self.watch.call("stats", || index.stats(&mut self.session));
        let _ = self.watch.call("count", || index.count(&mut self.session));
    }

    pub fn walks(&mut self) {
        let index = Arc::clone(&self.index);
        let ordered = index.as_ordered();
        self.walk("walk", &mut *index.cursor(), ordered.map(|_| Direction::Forward));
        if let Some(ordered) = ordered {
            let from = key(self.entry, 21);
            let part = KeyRange::new(Bound::Excluded(&from), Bound::Unbounded);
            for (range, direction) in [KeyRange::all(), part]
                .iter()
                .flat_map(|range| [Direction::Forward, Direction::Backward].map(|direction| (range, direction)))
            {
                self.walk("range", &mut *ordered.range(range, direction), Some(direction));
            }
        }
    }

    fn walk(&mut self, name: &str, cursor: &mut dyn Cursor, direction: Option<Direction>) {
        let (mut key, mut value, mut last) = (Vec::new(), Vec::new(), None::<Vec<u8>>);
        for _ in 0..MOST_PAIRS {
            let op = self.session.enter().expect("open");
            match self.watch.call(name, || cursor.next_into(&op, &mut key, &mut value)) {
                Ok(true) => {}
                Ok(false) | Err(_) => return,
            }
            let ascends = match (direction, &last) {
                (Some(Direction::Forward), Some(last)) => *last < key,
                (Some(Direction::Backward), Some(last)) => *last > key,
                _ => true,
            };
            assert!(
                ascends,
                "{}: a {name} goes back, {direction:?} from {last:x?} to {key:x?}, after {:?}",
                self.watch.what, self.watch.damages
            );
            last = Some(key.clone());
        }
        panic!("{}: a {name} does not end after {:?}", self.watch.what, self.watch.damages);
    }

    fn update(&mut self, from: u16, to: u16) {
        for number in from..to {
            let (key, value) = (key(self.entry, number), value(self.entry, number));
            let (index, op) = (&self.index, self.session.enter().expect("open"));
            let _ = self.watch.call("get", || index.get_vec(&op, &key));
            let _ = self.watch.call("an update", || match number % 4 {
                0 => index.insert(&op, &key, &value),
                1 => index.update(&op, &key, &value),
                2 => index.compare_and_set(&op, &key, Some(&value), None),
                _ => index.remove(&op, &key),
            });
            let _ = self.watch.call("insert", || index.insert(&op, &key, &value));
        }
    }

    fn insert(&mut self, key: &[u8], value: &[u8]) {
        let (index, op) = (&self.index, self.session.enter().expect("open"));
        let _ = self.watch.call("insert", || index.insert(&op, key, value));
    }

    fn remove(&mut self, key: &[u8]) {
        let (index, op) = (&self.index, self.session.enter().expect("open"));
        let _ = self.watch.call("remove", || index.remove(&op, key));
    }

    /// Inserts in one place, in order, as many as make nodes and ranges split.
    fn split(&mut self) {
        for number in 0..NEAR {
            self.insert(&near_key(self.entry, number), &value(self.entry, number));
        }
        let _ = self.watch.call("sync", || self.index.sync(&mut self.session));
    }

    /// Removes most keys, so that nodes merge and logs are consolidated; and puts them back.
    fn merge(&mut self) {
        for number in (0..KEYS).filter(|number| number % 16 != 1) {
            self.remove(&key(self.entry, number));
        }
        let _ = self.watch.call("sync", || self.index.sync(&mut self.session));
        for number in (0..KEYS).rev() {
            self.insert(&key(self.entry, number), &value(self.entry, number));
        }
    }

    /// Removes everything that a walk shows.
    fn clear(&mut self) {
        let index = Arc::clone(&self.index);
        let (mut cursor, mut key, mut value) = (index.cursor(), Vec::new(), Vec::new());
        for _ in 0..MOST_PAIRS {
            let op = self.session.enter().expect("open");
            match self.watch.call("walk", || cursor.next_into(&op, &mut key, &mut value)) {
                Ok(true) => {}
                Ok(false) | Err(_) => return,
            }
            drop(op);
            self.remove(&key);
        }
        panic!("{}: a walk that removes does not end after {:?}", self.watch.what, self.watch.damages);
    }

    /// Closes the index and opens it again, if that is possible.
    fn reopen(self) -> Option<Self> {
        let Use { entry, pool, index, session, watch } = self;
        drop(index);
        let index = watch.call("open the index again", || kind::open_as_is(pool, NAME)).ok()?;
        Some(Use { entry, pool, index, session, watch })
    }
}
