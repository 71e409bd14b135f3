//! Group commit: many threads share a flush.
//!
//! An update draws the number of the commit that will hold it, leaves its operation, and then waits for that commit. Whoever comes while
//! nobody leads becomes the leader: it captures and flushes, for everybody who has drawn this number or an earlier one. Those who come
//! meanwhile are the next group; when the flush has ended, the first of them is called to lead. A new leader first waits for as many as
//! there were when the last flush ended, up to [`GATHERING`] and [`EACH`] for each of them: those whom it released are likely to be back
//! soon with their next update, and one flush serves all. A thread that is alone never waits.
//!
//! Whoever waits sleeps for itself, and is woken up once: when its commit is durable, or to lead. A leader that waits for others is woken up by
//! the last of them.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Thread;
use std::time::{Duration, Instant};

use super::lock;
use crate::error::Result;

/// How long a leader waits for others, at most: this, …
const GATHERING: Duration = Duration::from_micros(60);
/// … and this for each of them: about what it takes to wake a thread up, on a machine with few processors.
const EACH: Duration = Duration::from_micros(4);
/// Others that count for that, at most.
const MOST: usize = 128;

/// Those who wait for commits of one journal.
#[derive(Debug, Default)]
pub(crate) struct Group {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Whether somebody leads, or is called to.
    leading: bool,
    /// The others, in the order in which they came.
    waiting: Vec<Waiting>,
    /// How many were there when the last flush ended, its leader among them.
    around: usize,
    /// The leader, while it waits for others, and for how many.
    gathering: Option<(Thread, usize)>,
}

/// One who waits for a commit.
#[derive(Debug)]
struct Waiting {
    number: u64,
    call: Arc<Call>,
}

/// How it is called.
#[derive(Debug)]
struct Call {
    thread: Thread,
    what: AtomicU8,
}

/// Nobody has called.
const NOT_YET: u8 = 0;
/// Its commit is durable, or the journal has failed.
const LOOK: u8 = 1;
/// It leads.
const LEAD: u8 = 2;

impl Call {
    /// Sleeps until called.
    fn wait(&self) -> u8 {
        loop {
            match self.what.load(Ordering::Acquire) {
                NOT_YET => std::thread::park(),
                what => return what,
            }
        }
    }
}

impl Waiting {
    fn call(&self, what: u8) {
        // Either the thread sees the word before it sleeps, or it sleeps and is woken up: `park` returns at once after `unpark`.
        self.call.what.store(what, Ordering::Release);
        self.call.thread.unpark();
    }
}

/// What a thread has to do.
pub(crate) enum Turn<'a> {
    /// Its commit is durable.
    Durable,
    /// It leads.
    Lead(Leader<'a>),
}

/// Whoever leads, until dropped.
pub(crate) struct Leader<'a> {
    group: &'a Group,
    durable: &'a dyn Fn() -> u64,
    alive: &'a dyn Fn() -> Result<()>,
}

impl Group {
    /// Waits until commit `number` is durable, or it is this thread's turn to lead.
    ///
    /// # Errors
    /// What `alive` says.
    pub(crate) fn turn<'a>(
        &'a self,
        number: u64,
        durable: &'a dyn Fn() -> u64,
        alive: &'a dyn Fn() -> Result<()>,
    ) -> Result<Turn<'a>> {
        loop {
            let mut state = lock(&self.state);
            if durable() >= number {
                return Ok(Turn::Durable);
            }
            alive()?;
            if state.leading {
                let call = Arc::new(Call { thread: std::thread::current(), what: AtomicU8::new(NOT_YET) });
                state.waiting.push(Waiting { number, call: Arc::clone(&call) });
                let here = state.waiting.len();
                let leader = state.gathering.take_if(|(_, wanted)| here >= *wanted);
                drop(state);
                leader.inspect(|(leader, _)| leader.unpark());
                if call.wait() == LOOK {
                    continue;
                }
            } else {
                state.leading = true;
                drop(state);
            }
            let leader = Leader { group: self, durable, alive };
            self.gather();
            return Ok(Turn::Lead(leader));
        }
    }

    /// The leader's wait.
    fn gather(&self) {
        let mut state = lock(&self.state);
        let wanted = state.around.saturating_sub(1);
        if state.waiting.len() >= wanted {
            return;
        }
        let end = Instant::now() + GATHERING + EACH * wanted.min(MOST) as u32;
        state.gathering = Some((std::thread::current(), wanted));
        while state.waiting.len() < wanted {
            let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else { break };
            drop(state);
            std::thread::park_timeout(left);
            state = lock(&self.state);
        }
        state.gathering = None;
    }
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.group.state);
        state.around = 1 + state.waiting.len();
        let (durable, failed) = ((self.durable)(), (self.alive)().is_err());
        let released: Vec<Waiting> =
            state.waiting.extract_if(.., |waiting| failed || waiting.number <= durable).collect();
        let next = (!state.waiting.is_empty()).then(|| state.waiting.remove(0));
        state.leading = next.is_some();
        drop(state);
        // First, so that it gathers while the others wake up.
        next.inspect(|next| next.call(LEAD));
        released.iter().for_each(|waiting| waiting.call(LOOK));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64};

    use super::*;
    use crate::error::Error;

    /// Returns once so many wait.
    fn until_waiting(group: &Group, count: usize) {
        while lock(&group.state).waiting.len() < count {
            std::thread::yield_now();
        }
    }

    #[test]
    fn those_whose_commit_is_durable_are_released_and_the_first_of_the_others_leads() {
        let (group, commit) = (Group::default(), AtomicU64::new(0));
        let durable = || commit.load(Ordering::SeqCst);
        let alive = || Ok(());
        let Ok(Turn::Lead(leader)) = group.turn(1, &durable, &alive) else { panic!("nobody else leads") };
        std::thread::scope(|scope| {
            let wait = |number| {
                let here = lock(&group.state).waiting.len();
                let (group, commit, durable, alive) = (&group, &commit, &durable, &alive);
                let thread = scope.spawn(move || {
                    let turn = group.turn(number, durable, alive).unwrap();
                    if matches!(turn, Turn::Lead(_)) {
                        assert!(lock(&group.state).leading, "whoever comes now would lead, too");
                    }
                    matches!(turn, Turn::Lead(_)).then(|| commit.fetch_max(number, Ordering::SeqCst))
                });
                until_waiting(group, here + 1);
                thread
            };
            let threads = [wait(1), wait(2), wait(1), wait(2), wait(3)];
            commit.store(1, Ordering::SeqCst);
            drop(leader);
            let led = threads.map(|thread| thread.join().unwrap());
            assert_eq!(led, [None, Some(1), None, None, Some(2)]);
        });
        let state = lock(&group.state);
        assert!(!state.leading && state.waiting.is_empty() && state.gathering.is_none());
    }

    #[test]
    fn when_the_journal_has_failed_everybody_is_told() {
        let (group, failed) = (Group::default(), AtomicBool::new(false));
        let alive = || if failed.load(Ordering::SeqCst) { Err(Error::ForeignSession) } else { Ok(()) };
        let Ok(Turn::Lead(leader)) = group.turn(1, &|| 0, &alive) else { panic!("nobody else leads") };
        std::thread::scope(|scope| {
            let threads = [1, 2].map(|number| {
                scope.spawn({
                    let (group, alive) = (&group, &alive);
                    move || group.turn(number, &|| 0, alive).is_err()
                })
            });
            until_waiting(&group, 2);
            failed.store(true, Ordering::SeqCst);
            drop(leader);
            assert_eq!(threads.map(|thread| thread.join().unwrap()), [true, true]);
        });
    }

    #[test]
    fn nobody_returns_before_its_commit_is_durable_and_nobody_is_forgotten() {
        let (group, gathering, commit) = (Group::default(), AtomicU64::new(1), AtomicU64::new(0));
        let durable = || commit.load(Ordering::SeqCst);
        let flushes = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let number = gathering.load(Ordering::SeqCst);
                        if let Turn::Lead(_leader) = group.turn(number, &durable, &|| Ok(())).unwrap() {
                            let captured = gathering.fetch_add(1, Ordering::SeqCst);
                            flushes.fetch_add(1, Ordering::SeqCst);
                            std::thread::yield_now();
                            commit.fetch_max(captured, Ordering::SeqCst);
                        }
                        assert!(durable() >= number);
                    }
                });
            }
        });
        assert_eq!(flushes.load(Ordering::SeqCst), commit.load(Ordering::SeqCst), "one leader at a time");
    }
}
