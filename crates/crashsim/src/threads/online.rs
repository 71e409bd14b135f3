//! Persistent memory while an execution is under way: the windows of its lines as they are now, and digests of them that
//! cost time only where something has changed.

use super::digest::Digest;
use crate::model::layer::{Layer, Machine, SessionMarks};
use crate::model::trace::{At, Event};
use crate::model::window::WORDS;
use crate::record::state::State;

/// What happens to an execution's events, in order, as they are taken over.
pub(crate) trait Watch {
    /// Just before an event, which makes something durable (`raises`), or is a mark of the harness.
    fn before(&mut self, seq: usize, event: &Event, raises: bool, memory: &mut Online, state: &State);
}

/// The windows of an execution, as far as its trace has been taken over.
#[derive(Debug, Default)]
pub(crate) struct Online {
    layer: Layer,
    taken: usize,
    /// Indices of lines whose digest is out of date.
    changed: Vec<u32>,
    /// By index of the line.
    digests: Vec<Digest>,
    sum: Digest,
    /// Indices of lines with stores that are not guaranteed, without order.
    open: Vec<u32>,
    /// Indices of lines that have changed since the sessions were looked at.
    touched: Vec<u32>,
    sessions: Vec<Session>,
}

/// What one session adds to the digest of all, and what that was made from: so it takes time only where something has changed. Structures
/// that write many lines back with one fence have many lines open, and a state for each step.
#[derive(Debug, Default)]
struct Session {
    /// What the session was like when its members were made.
    seen: Seen,
    /// By index of the line: the position of the last request to write it back, or zero.
    requested: Vec<u32>,
    /// By index of the line: its member, or zero.
    members: Vec<Digest>,
    sum: Digest,
}

/// What of a session changes with every event that concerns more than one line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    ordered: u32,
    acquired: u32,
    write_backs: usize,
    around: usize,
}

/// An entry of a vector that grows by zeroes.
fn entry<T: Copy + Default>(all: &mut Vec<T>, line: u32) -> &mut T {
    if all.len() <= line as usize {
        all.resize(line as usize + 1, T::default());
    }
    &mut all[line as usize]
}

impl Session {
    /// A session of which nothing is known yet: all that is open is looked at once.
    fn unseen() -> Self {
        Session { seen: Seen { ordered: u32::MAX, ..Seen::default() }, ..Session::default() }
    }

    fn clear(&mut self) {
        self.seen = Seen::default();
        self.requested.clear();
        self.members.clear();
        self.sum = Digest::default();
    }

    /// Takes over what has changed: the session itself, and `touched` lines.
    fn catch_up(
        &mut self,
        slot: usize,
        marks: &SessionMarks<'_>,
        layer: &Layer,
        open: &[u32],
        touched: &[u32],
        state: &State,
    ) {
        let (write_backs, around) = (marks.write_backs.len(), marks.around.len());
        let seen = Seen { ordered: marks.ordered, acquired: marks.acquired, write_backs, around };
        let before = std::mem::replace(&mut self.seen, seen);
        let goes_on = seen.ordered == before.ordered && write_backs >= before.write_backs && around >= before.around;
        if !goes_on {
            self.requested.clear();
        }
        let new = &marks.write_backs[if goes_on { before.write_backs } else { 0 }..];
        for (line, position) in new {
            let last = entry(&mut self.requested, *line);
            *last = (*last).max(*position);
        }
        if goes_on && seen.acquired == before.acquired {
            let new =
                new.iter().map(|(line, _)| *line).chain(marks.around[before.around..].iter().map(|(line, ..)| *line));
            for line in touched.iter().copied().chain(new) {
                let of_line = marks.around.iter().filter(|(of, ..)| *of == line);
                self.put(line, self.member(slot, marks, layer, line, of_line, state));
            }
            return;
        }
        self.members.clear();
        self.sum = Digest::default();
        // By line, and of one line in their order.
        let mut around = marks.around.to_vec();
        around.sort_by_key(|(line, ..)| *line);
        for line in open {
            let of_line = &around[around.partition_point(|(of, ..)| of < line)..];
            let of_line = of_line.iter().take_while(|(of, ..)| of == line);
            self.put(*line, self.member(slot, marks, layer, *line, of_line, state));
        }
    }

    fn put(&mut self, line: u32, member: Digest) {
        let old = std::mem::replace(entry(&mut self.members, line), member);
        self.sum.take(old);
        self.sum.put(member);
    }

    /// How the session's next stores to a line are ordered after what is there, and what of it is on its way.
    fn member<'a>(
        &self,
        slot: usize,
        marks: &SessionMarks<'_>,
        layer: &Layer,
        line: u32,
        around: impl Iterator<Item = &'a (u32, u8, u32)>,
        state: &State,
    ) -> Digest {
        let Some(window) = layer.window(line).filter(|window| !window.stores.is_empty()) else {
            return Digest::default();
        };
        let before = |position: u32| window.stores.iter().filter(|s| s.seq < position).count() as u64;
        let published = before(window.published(slot as u16, marks.acquired));
        let requested = self.requested.get(line as usize).copied().unwrap_or(0);
        let orders = before(marks.ordered) | published << 20 | before(requested) << 40;
        let mut under_way = Digest::default();
        for (_, word, seq) in around.filter(|(.., seq)| window.would_settle_nt(*seq)) {
            under_way = under_way.with(u64::from(*word) | before(*seq) << 8);
        }
        // A session that holds nothing says nothing, also one that has not been met yet.
        if orders == 0 && under_way == Digest::default() {
            return Digest::default();
        }
        let member = Digest::default().with(slot as u64).with(orders).and(under_way);
        member.with(u64::from(state.lines[line as usize].number))
    }
}

impl Online {
    pub(crate) fn clear(&mut self) {
        self.layer.clear();
        self.taken = 0;
        self.changed.clear();
        self.digests.clear();
        self.sum = Digest::default();
        self.open.clear();
        self.touched.clear();
        self.sessions.iter_mut().for_each(Session::clear);
    }

    /// Forgets what was done so far, and goes on at `position` of the trace. That changes nothing of what follows if all of
    /// it is [settled](Online::is_settled): it is then the same in every execution.
    pub(crate) fn start_at(&mut self, position: usize) {
        self.clear();
        self.taken = position;
    }

    /// Whether nothing is on its way to memory any more.
    pub(crate) fn is_settled(&mut self, state: &State) -> bool {
        self.digest(state);
        self.open.is_empty()
    }

    /// Takes over what the trace has more than before.
    pub(crate) fn catch_up(&mut self, machine: Machine, state: &State, watch: &mut impl Watch) {
        while let Some(event) = state.trace.get(self.taken) {
            let raises = self.layer.raises(machine, event, |line| state.index_of(line));
            if raises || event.is_mark() {
                watch.before(self.taken, event, raises, self, state);
            }
            let changed = &mut self.changed;
            self.layer.step(
                machine,
                self.taken as u32,
                event,
                |line| state.index_of(line),
                |line| {
                    if changed.last() != Some(&line) {
                        changed.push(line);
                    }
                },
            );
            self.taken += 1;
        }
    }

    /// What a crash now would find: of every line what is guaranteed, and the stores on top of it.
    pub(crate) fn digest(&mut self, state: &State) -> Digest {
        for line in std::mem::take(&mut self.changed) {
            self.touched.push(line);
            if self.digests.len() <= line as usize {
                self.digests.resize(line as usize + 1, Digest::default());
            }
            let new = self.line(line, state);
            let old = std::mem::replace(&mut self.digests[line as usize], new);
            self.sum.take(old);
            self.sum.put(new);
            let open = self.layer.window(line).is_some_and(|window| !window.stores.is_empty());
            match self.open.iter().position(|at| *at == line) {
                Some(at) if !open => drop(self.open.swap_remove(at)),
                None if open => self.open.push(line),
                _ => {}
            }
        }
        self.sum
    }

    /// What [`digest`](Online::digest) and [`sessions`](Online::sessions) have to return, made from the windows alone: nothing that
    /// was kept from an earlier state goes into it. It takes time for every line, so only tests of the digests ask for it.
    pub(crate) fn digests_afresh(&self, state: &State) -> (Digest, Digest) {
        let mut memory = Digest::default();
        self.layer.lines.iter().for_each(|line| memory.put(self.line(*line, state)));
        let is_open = |line: &u32| self.layer.window(*line).is_some_and(|window| !window.stores.is_empty());
        let open: Vec<u32> = self.layer.lines.iter().copied().filter(is_open).collect();
        let mut sessions = Digest::default();
        for (slot, marks) in self.layer.sessions().enumerate() {
            if marks.unfenced.is_some() {
                sessions.put(Digest::default().with(slot as u64).with(u64::MAX));
            }
            let mut session = Session::unseen();
            session.catch_up(slot, &marks, &self.layer, &open, &[], state);
            sessions.put(session.sum);
        }
        (memory, sessions)
    }

    /// A line; positions in the trace are replaced by counts of the line's stores, which do not depend on what happened
    /// elsewhere.
    fn line(&self, line: u32, state: &State) -> Digest {
        let Some(window) = self.layer.window(line) else { return Digest::default() };
        let mut digest = Digest::default().with(u64::from(state.lines[line as usize].number));
        for word in 0..WORDS {
            if let Some(value) = window.value_at(word, 0) {
                digest = digest.with(word as u64).with(value);
            }
        }
        for store in &window.stores {
            let after = window.stores.iter().filter(|other| other.seq < store.req).count() as u64;
            let kind = u64::from(store.nt) | u64::from(store.buffered) << 1;
            let what = u64::from(store.word) | kind << 8 | u64::from(store.slot) << 16 | after << 32;
            digest = digest.with(what).with(store.value);
        }
        digest
    }

    /// The first place of a store that may still be lost, of those made at positions for which `is_own` holds.
    pub(crate) fn unsettled(&self, is_own: impl Fn(u32) -> bool) -> Option<At> {
        let windows = self.layer.lines.iter().filter_map(|line| self.layer.window(*line));
        let own = windows.flat_map(|window| &window.stores).filter(|store| is_own(store.seq));
        own.min_by_key(|store| store.seq).map(|store| store.at)
    }

    /// Where something was flushed at such a position, without a fence behind it.
    pub(crate) fn unfenced(&self, is_own: impl Fn(u32) -> bool) -> Option<At> {
        self.layer.sessions().filter_map(|marks| marks.unfenced).find(|(seq, _)| is_own(*seq)).map(|(_, at)| at)
    }

    /// What else decides how the open lines will go on: how each session's next stores are ordered after what is there,
    /// and what it has already asked to be written back.
    pub(crate) fn sessions(&mut self, state: &State) -> Digest {
        let Online { layer, open, touched, sessions, .. } = self;
        let mut digest = Digest::default();
        for (slot, marks) in layer.sessions().enumerate() {
            if marks.unfenced.is_some() {
                digest.put(Digest::default().with(slot as u64).with(u64::MAX));
            }
            if sessions.len() <= slot {
                sessions.push(Session::unseen());
            }
            sessions[slot].catch_up(slot, &marks, layer, open, touched, state);
            digest.put(sessions[slot].sum);
        }
        touched.clear();
        digest
    }
}
