//! A layer: the windows that one execution leaves, event by event.
//!
//! The first layer is the execution under test; a recovery that is crashed itself puts a second one on top. A word that
//! a layer has not stored, or whose store did not reach memory, falls through to the layer below.

use crate::model::persistency::Persistency;
use crate::model::trace::{At, Event, StoreKind};
use crate::model::window::{Pending, WORDS, Window};

/// Rules of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Machine {
    pub(crate) model: Persistency,
    /// Whether a locked instruction waits for pending write-backs.
    pub(crate) locked_drains: bool,
    /// Whether a write-back waits for itself, as `clflush` does.
    pub(crate) flushes_at_once: bool,
}

impl Default for Machine {
    fn default() -> Self {
        Machine { model: Persistency::Pcso, locked_drains: false, flushes_at_once: false }
    }
}

#[derive(Debug, Default)]
struct Thread {
    /// Position in the trace after the thread's last order point.
    ordered: u32,
    /// Position of the thread's last acquiring read.
    acquired: u32,
    /// Lines being written back: (index of the line, position in the trace of the request).
    write_backs: Vec<(u32, u32)>,
    /// Stores around the cache under way: (index of the line, word, position in the trace).
    around: Vec<(u32, u8, u32)>,
    /// Of a write-back that has waited for itself, and that no fence has followed yet.
    unfenced: Option<(u32, At)>,
}

/// A session as a layer sees it: positions in the trace, and what is on its way to memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionMarks<'l> {
    /// After the last order point.
    pub(crate) ordered: u32,
    /// Of the last acquiring read.
    pub(crate) acquired: u32,
    /// Write-backs requested: (index of the line, position of the request).
    pub(crate) write_backs: &'l [(u32, u32)],
    /// Stores around the cache: (index of the line, word, position).
    pub(crate) around: &'l [(u32, u8, u32)],
    /// Position and place of a write-back that has waited for itself, and that no fence has followed.
    pub(crate) unfenced: Option<(u32, At)>,
}

#[derive(Debug, Default)]
pub(crate) struct Layer {
    /// By index of the line; lines beyond the end have none.
    pub(crate) windows: Vec<Window>,
    threads: Vec<Thread>,
    /// Indices of lines with a window that is not void, without order.
    pub(crate) lines: Vec<u32>,
    /// Indices of lines that may have stores which are not durable, without order, some of them twice.
    pub(crate) open: Vec<u32>,
    /// Position after the last death of a process: what came before is ordered before all that its successor stores.
    born: u32,
}

impl Layer {
    pub(crate) fn clear(&mut self) {
        for line in self.lines.drain(..) {
            self.windows[line as usize].clear();
        }
        self.open.clear();
        self.born = 0;
        for thread in &mut self.threads {
            thread.ordered = 0;
            thread.acquired = 0;
            thread.write_backs.clear();
            thread.around.clear();
            thread.unfenced = None;
        }
    }

    pub(crate) fn window(&self, line: u32) -> Option<&Window> {
        self.windows.get(line as usize)
    }

    fn thread(&mut self, slot: u16) -> &mut Thread {
        if self.threads.len() <= slot as usize {
            self.threads.resize_with(slot as usize + 1, Thread::default);
        }
        &mut self.threads[slot as usize]
    }

    fn window_mut(&mut self, line: u32) -> &mut Window {
        if self.windows.len() <= line as usize {
            self.windows.resize_with(line as usize + 1, Window::default);
        }
        let window = &mut self.windows[line as usize];
        if window.is_void() {
            self.lines.push(line);
        }
        window
    }

    /// Whether `event` makes something durable that might not have been: a crash just before it can leave what no
    /// later crash can. `index_of` gives the index of a line of the arena.
    pub(crate) fn raises(&self, machine: Machine, event: &Event, index_of: impl Fn(u32) -> Option<u32>) -> bool {
        match *event {
            Event::Store { .. } if machine.model == Persistency::Eadr => true,
            Event::Store { slot, kind: StoreKind::Locked, .. } | Event::Locked { slot } if machine.locked_drains => {
                self.would_drain(slot)
            }
            Event::Fence { slot, .. } => self.would_drain(slot),
            Event::WriteBack { line, .. } if machine.flushes_at_once && machine.model.writes_back() => {
                index_of(line).and_then(|index| self.window(index)).is_some_and(|w| w.would_settle(u32::MAX))
            }
            Event::Sync { .. } => !machine.model.writes_back() && self.is_open(),
            _ => false,
        }
    }

    fn is_open(&self) -> bool {
        self.open.iter().any(|line| self.window(*line).is_some_and(|window| !window.stores.is_empty()))
    }

    /// Refreshes the windows with stores that are not durable; calls `f` with their lines, in order.
    pub(crate) fn for_each_open(&mut self, model: Persistency, mut f: impl FnMut(u32)) {
        let windows = &mut self.windows;
        self.open.retain(|line| !windows[*line as usize].stores.is_empty());
        self.open.sort_unstable();
        self.open.dedup();
        for line in &self.open {
            windows[*line as usize].refresh(model);
            f(*line);
        }
    }

    /// Where something was flushed that no fence of its session has followed yet. On a machine whose write-backs do not wait
    /// for themselves it would not be durable.
    pub(crate) fn unfenced(&self) -> Option<At> {
        self.threads.iter().find_map(|thread| thread.unfenced).map(|(_, at)| at)
    }

    /// What the layer keeps for each session, by slot, for those who compare layers.
    pub(crate) fn sessions(&self) -> impl Iterator<Item = SessionMarks<'_>> {
        self.threads.iter().map(|thread| SessionMarks {
            ordered: thread.ordered,
            acquired: thread.acquired,
            write_backs: &thread.write_backs,
            around: &thread.around,
            unfenced: thread.unfenced,
        })
    }

    fn would_drain(&self, slot: u16) -> bool {
        self.threads.get(slot as usize).is_some_and(|thread| {
            thread.write_backs.iter().any(|(line, mark)| self.window(*line).is_some_and(|w| w.would_settle(*mark)))
                || thread
                    .around
                    .iter()
                    .any(|(line, _, seq)| self.window(*line).is_some_and(|w| w.would_settle_nt(*seq)))
        })
    }

    /// Applies the event at position `seq` of the trace. `index_of` gives the index of a line of the arena; `changed`
    /// is told the index of each line whose window changes.
    pub(crate) fn step(
        &mut self,
        machine: Machine,
        seq: u32,
        event: &Event,
        index_of: impl Fn(u32) -> Option<u32>,
        mut changed: impl FnMut(u32),
    ) {
        match *event {
            Event::Store { slot, kind, word, value, at } => {
                let line = index_of(word / WORDS as u32).expect("a stored line has an index");
                let word = (word % WORDS as u32) as u8;
                if kind == StoreKind::Locked {
                    self.locked(machine, slot, seq, &mut changed);
                }
                changed(line);
                if machine.model == Persistency::Eadr {
                    self.window_mut(line).push_durable(word, value);
                    return;
                }
                let nt = kind == StoreKind::NonTemporal && machine.model.writes_back();
                let req = if kind == StoreKind::Release || kind == StoreKind::Locked {
                    seq
                } else {
                    let thread = self.thread(slot);
                    let (ordered, acquired) = (thread.ordered, thread.acquired);
                    ordered.max(self.born).max(self.window(line).map_or(0, |w| w.published(slot, acquired)))
                };
                let window = self.window_mut(line);
                let opens = window.stores.is_empty();
                window.push(Pending { seq, req, word, slot, nt, buffered: nt, value, at });
                if opens {
                    self.open.push(line);
                }
                if nt {
                    self.thread(slot).around.push((line, word, seq));
                }
                if kind == StoreKind::Locked {
                    self.thread(slot).ordered = seq + 1;
                }
            }
            Event::Order { slot } => self.thread(slot).ordered = seq,
            Event::Acquire { slot } => self.thread(slot).acquired = seq,
            Event::Locked { slot } => {
                self.locked(machine, slot, seq, &mut changed);
                self.thread(slot).ordered = seq;
            }
            Event::WriteBack { .. } | Event::Fence { .. } if !machine.model.writes_back() => {
                if let Event::Fence { slot, .. } = *event {
                    self.thread(slot).ordered = seq;
                }
            }
            Event::WriteBack { slot, line, at } if machine.flushes_at_once => {
                let Some(index) = index_of(line) else { return };
                if let Some(window) = self.windows.get_mut(index as usize).filter(|w| w.would_settle(seq)) {
                    window.settle(seq);
                    changed(index);
                    self.thread(slot).unfenced = Some((seq, at));
                }
            }
            Event::WriteBack { slot, line, .. } => {
                if let Some(index) = index_of(line) {
                    self.thread(slot).write_backs.push((index, seq));
                }
            }
            Event::Fence { slot, .. } => {
                self.drain(slot, &mut changed);
                self.thread(slot).ordered = seq;
            }
            Event::Sync { .. } => self.sync(machine, &mut changed),
            Event::Death => self.die(seq, &mut changed),
            Event::Created | Event::Invoke | Event::Return(_) | Event::Recovered => {}
        }
    }

    /// A locked instruction: an order point, and a fence where it drains.
    fn locked(&mut self, machine: Machine, slot: u16, seq: u32, changed: &mut impl FnMut(u32)) {
        if machine.locked_drains {
            self.drain(slot, changed);
        }
        self.thread(slot).ordered = seq;
    }

    /// Nobody will fence what the dead process was writing back, or storing around the cache. The kernel that ended it has emptied the
    /// buffers of its processors, but what was in them need not be in memory: a processor may store it into a line that its cache has,
    /// and on one without such stores they are a store and a write-back. So the next process sees it, and has to write it back.
    fn die(&mut self, seq: u32, changed: &mut impl FnMut(u32)) {
        for thread in &mut self.threads {
            thread.write_backs.clear();
            thread.unfenced = None;
            for (line, ..) in thread.around.drain(..) {
                self.windows[line as usize].leave_buffers();
                changed(line);
            }
        }
        self.born = seq;
    }

    /// The disk has everything that the page cache has. Persistent memory has no page cache.
    fn sync(&mut self, machine: Machine, changed: &mut impl FnMut(u32)) {
        if machine.model.writes_back() {
            return;
        }
        for at in 0..self.lines.len() {
            let line = self.lines[at];
            let window = &mut self.windows[line as usize];
            if !window.stores.is_empty() {
                window.settle_all();
                changed(line);
            }
        }
    }

    fn drain(&mut self, slot: u16, changed: &mut impl FnMut(u32)) {
        let thread = self.thread(slot);
        thread.unfenced = None;
        let mut write_backs = std::mem::take(&mut thread.write_backs);
        let mut around = std::mem::take(&mut thread.around);
        for (line, mark) in write_backs.drain(..) {
            if let Some(window) = self.windows.get_mut(line as usize).filter(|w| w.would_settle(mark)) {
                window.settle(mark);
                changed(line);
            }
        }
        for (line, word, seq) in around.drain(..) {
            if let Some(window) = self.windows.get_mut(line as usize).filter(|w| w.would_settle_nt(seq)) {
                window.settle_nt(word, seq);
                changed(line);
            }
        }
        let thread = self.thread(slot);
        thread.write_backs = write_backs;
        thread.around = around;
    }
}
