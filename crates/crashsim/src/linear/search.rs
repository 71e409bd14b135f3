//! The search for an order, as a graph: a node is a set of calls that have taken effect, and the state they lead to.

use std::collections::HashMap;
use std::rc::Rc;

use super::Spec;
use crate::subject::Contract;

/// A call: when it was invoked, and when it returned what.
#[derive(Debug)]
pub(crate) struct Span<'h, O, R> {
    pub(crate) op: &'h O,
    pub(crate) invoked: u64,
    pub(crate) returned: Option<(u64, &'h R)>,
}

/// A call of a specification's operations.
pub(crate) type SpanOf<'h, S> = Span<'h, <S as Spec>::Op, <S as Spec>::Ret>;

/// Which calls have taken effect: all completed ones before `base`, and the `others` (by index). Few overlap, so the
/// list is short however long the history is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Done {
    base: u32,
    others: Vec<u32>,
}

impl Done {
    fn has(&self, call: u32, completed: u32) -> bool {
        (call < self.base && call < completed) || self.others.binary_search(&call).is_ok()
    }

    /// With one more; `completed` calls come first in the numbering, those pending at the crash behind them.
    fn with(&self, call: u32, completed: u32) -> Done {
        let mut done = self.clone();
        if let Err(at) = done.others.binary_search(&call) {
            done.others.insert(at, call);
        }
        while done.base < completed && done.others.first() == Some(&done.base) {
            done.others.remove(0);
            done.base += 1;
        }
        done
    }
}

#[derive(Debug)]
struct Node<T> {
    what: Rc<(Done, T)>,
    /// Nodes that lead here, the one that did so first in front, and the call that took effect then.
    parents: Vec<u32>,
    via: u32,
    len: u32,
    /// Whether all completed calls can still take effect.
    completable: bool,
}

/// One era of a history: what its calls can have left when it ended.
pub(crate) struct Search<'h, S: Spec> {
    spec: &'h S,
    /// The completed ones in the order of their invocation, then the pending ones in that order.
    calls: Vec<SpanOf<'h, S>>,
    /// Where each of them was in the list given.
    given: Vec<usize>,
    completed: u32,
    contract: Contract,
    max_states: u64,
    nodes: Vec<Node<S::State>>,
    known: HashMap<Rc<(Done, S::State)>, u32>,
}

impl<'h, S: Spec> Search<'h, S> {
    pub(crate) fn new(spec: &'h S, calls: Vec<SpanOf<'h, S>>, contract: Contract, max_states: u64) -> Self {
        let mut numbered: Vec<(usize, SpanOf<'h, S>)> = calls.into_iter().enumerate().collect();
        numbered.sort_by_key(|(_, call)| (call.returned.is_none(), call.invoked));
        let (given, calls): (Vec<_>, Vec<_>) = numbered.into_iter().unzip();
        let completed = calls.iter().filter(|call| call.returned.is_some()).count() as u32;
        Search { spec, calls, given, completed, contract, max_states, nodes: Vec::new(), known: HashMap::new() }
    }

    /// Explores everything that can follow from one of `states`.
    pub(crate) fn run(&mut self, states: Vec<S::State>) {
        let mut open = Vec::new();
        for state in states {
            open.extend(self.reach(Done::default(), state, None));
        }
        while let Some(at) = open.pop() {
            if self.gave_up() {
                return;
            }
            let what = Rc::clone(&self.nodes[at as usize].what);
            let (done, state) = &*what;
            for call in self.next_calls(done) {
                let span = &self.calls[call as usize];
                let mut after = state.clone();
                let answer = self.spec.step(&mut after, span.op);
                if span.returned.is_none_or(|(_, returned)| *returned == answer) {
                    open.extend(self.reach(done.with(call, self.completed), after, Some((at, call))));
                }
            }
        }
        self.mark_completable();
    }

    /// The node for a set of calls and a state; `Some` if it is new.
    fn reach(&mut self, done: Done, state: S::State, from: Option<(u32, u32)>) -> Option<u32> {
        let what = Rc::new((done, state));
        if let Some(known) = self.known.get(&what) {
            self.nodes[*known as usize].parents.extend(from.map(|(parent, _)| parent));
            return None;
        }
        let number = self.nodes.len() as u32;
        let len = from.map_or(0, |(parent, _)| self.nodes[parent as usize].len + 1);
        let completable = what.0.base == self.completed;
        let parents = from.iter().map(|(parent, _)| *parent).collect();
        let via = from.map_or(0, |(_, call)| call);
        self.nodes.push(Node { what: Rc::clone(&what), parents, via, len, completable });
        self.known.insert(what, number);
        Some(number)
    }

    /// Calls that can take effect next: those invoked before any other that has not taken effect returned.
    fn next_calls(&self, done: &Done) -> Vec<u32> {
        let mut first_return = u64::MAX;
        let mut next = Vec::new();
        for call in (done.base..self.completed).filter(|call| !done.has(*call, self.completed)) {
            let span = &self.calls[call as usize];
            if span.invoked > first_return {
                break;
            }
            first_return = first_return.min(span.returned.map_or(u64::MAX, |(at, _)| at));
            next.push(call);
        }
        let pending = (self.completed..self.calls.len() as u32).filter(|call| !done.has(*call, self.completed));
        next.extend(pending);
        next.retain(|call| self.calls[*call as usize].invoked < first_return);
        next
    }

    fn mark_completable(&mut self) {
        let mut open: Vec<u32> = (0..self.nodes.len() as u32).filter(|n| self.nodes[*n as usize].completable).collect();
        while let Some(at) = open.pop() {
            for parent in self.nodes[at as usize].parents.clone() {
                if !std::mem::replace(&mut self.nodes[parent as usize].completable, true) {
                    open.push(parent);
                }
            }
        }
    }

    pub(crate) fn gave_up(&self) -> bool {
        self.nodes.len() as u64 > self.max_states
    }

    /// The states that may be found when the era has ended, each once, in the order in which they were met. None: no
    /// order explains the answers.
    pub(crate) fn finals(&self) -> Vec<S::State> {
        let mut finals: Vec<S::State> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        for node in self.nodes.iter().filter(|node| node.completable && self.survives(&node.what.0)) {
            if seen.insert(&node.what.1) {
                finals.push(node.what.1.clone());
            }
        }
        finals
    }

    /// Whether nothing is missing that the contract keeps.
    fn survives(&self, done: &Done) -> bool {
        match self.contract {
            Contract::Strict => done.base == self.completed,
            Contract::Buffered => (0..self.completed)
                .all(|call| done.has(call, self.completed) || !self.spec.is_sync(self.calls[call as usize].op)),
        }
    }

    /// The longest order found, and the completed calls that could come next; by their places in the list given.
    pub(crate) fn furthest(&self) -> (Vec<usize>, Vec<usize>) {
        let Some(mut at) = (0..self.nodes.len()).max_by_key(|n| self.nodes[*n].len) else { return Default::default() };
        let next = self.next_calls(&self.nodes[at].what.0);
        let stuck = next.into_iter().filter(|call| *call < self.completed).map(|c| self.given[c as usize]).collect();
        let mut order = Vec::new();
        while let Some(parent) = self.nodes[at].parents.first() {
            order.push(self.given[self.nodes[at].via as usize]);
            at = *parent as usize;
        }
        order.reverse();
        (order, stuck)
    }
}
