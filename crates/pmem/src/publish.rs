//! Publication typestate: an object becomes reachable only after it is durable.
//!
//! [`Fresh`] (may be written) → [`InFlight`] (its write-back is issued) → [`Durable`] (a fence has settled it). A link
//! takes only a [`Durable`]; one [`Op::settle`] with one fence settles any number of objects at a time.
//!
//! ```
//! use durix_pmem::{persistent, Hardware, Mapping, Off, Word};
//! use std::sync::atomic::Ordering::Relaxed;
//! persistent! { struct Node: align(64) { key: Word, next: Word<Off<Node>>, rest: [Word; 6] } }
//!
//! let mapping = Mapping::heap(4096, Hardware::PAGE_CACHE);
//! let mut session = mapping.session()?;
//! let op = session.enter()?;
//! let head: &Word<Off<Node>> = op.at(Off::new(64));
//!
//! let node = op.fresh(Off::<Node>::new(128));
//! op.store(&node.key, 42, Relaxed);
//! let node = op.settle(node.write_back(&op));
//! op.publish(head, node);
//! # Ok::<(), durix_pmem::Error>(())
//! ```
//!
//! The types guard objects that one operation owns. Words that are shared in place are the business of one small type
//! per protocol, and of the crash simulator.

use std::ops::Deref;
use std::sync::atomic::Ordering;

use crate::medium::Medium;
use crate::offset::Off;
use crate::session::Op;
use crate::word::{Bits, Persistent, Word};

/// An object that nothing durable leads to yet: its owner may write it.
#[derive(Debug)]
#[must_use = "an object that is not published is lost to its owner"]
pub struct Fresh<'op, T: Persistent> {
    object: &'op T,
    off: Off<T>,
}

/// A fresh object whose write-back has been issued by the operation that made it. It can neither be written nor linked.
#[derive(Debug)]
#[must_use = "a write-back without a fence promises nothing: settle it"]
pub struct InFlight<'op, T: Persistent> {
    object: &'op T,
    off: Off<T>,
    slot: u32,
}

/// An object that is durable as it stands. It may be linked; to change it, make it fresh again.
#[derive(Debug)]
#[must_use = "a durable object that is not published is lost to its owner"]
pub struct Durable<'op, T: Persistent> {
    object: &'op T,
    off: Off<T>,
}

impl<T: Persistent> Deref for Fresh<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        self.object
    }
}

impl<'op, T: Persistent> Fresh<'op, T> {
    /// Where the object lies.
    #[inline(always)]
    pub fn off(&self) -> Off<T> {
        self.off
    }

    /// Issues the write-back of the whole object.
    #[inline(always)]
    #[track_caller]
    pub fn write_back<M: Medium>(self, op: &Op<'op, M>) -> InFlight<'op, T> {
        op.write_back(self.object);
        InFlight { object: self.object, off: self.off, slot: op.slot() }
    }
}

impl<T: Persistent> InFlight<'_, T> {
    /// Where the object lies.
    #[inline(always)]
    pub fn off(&self) -> Off<T> {
        self.off
    }
}

impl<'op, T: Persistent> Durable<'op, T> {
    /// Where the object lies.
    #[inline(always)]
    pub fn off(&self) -> Off<T> {
        self.off
    }

    /// Loads a word of the object.
    #[inline(always)]
    #[track_caller]
    pub fn load<M: Medium, V: Bits>(&self, op: &Op<'op, M>, word: impl FnOnce(&T) -> &Word<V>) -> V {
        op.load(word(self.object), Ordering::Relaxed)
    }

    /// Gives write access back; what is written needs a new write-back and fence.
    #[inline(always)]
    pub fn into_fresh(self) -> Fresh<'op, T> {
        Fresh { object: self.object, off: self.off }
    }
}

/// What [`Op::settle`] can make durable: an [`InFlight`], and tuples, arrays and vectors of them.
pub trait Settle<M: Medium> {
    /// The same, durable.
    type Durable;

    /// Makes sure that `op`'s next fence covers this: nothing to do for what `op` itself has written back; what
    /// another session has written back is written back again, because a fence covers only its own session.
    #[track_caller]
    fn adopt(&self, op: &Op<'_, M>);

    /// The durable form, after the fence.
    fn settled(self) -> Self::Durable;
}

impl<'op, T: Persistent, M: Medium> Settle<M> for InFlight<'op, T> {
    type Durable = Durable<'op, T>;

    #[inline(always)]
    #[track_caller]
    fn adopt(&self, op: &Op<'_, M>) {
        if self.slot != op.slot() {
            op.write_back(self.object);
        }
    }

    #[inline(always)]
    fn settled(self) -> Self::Durable {
        Durable { object: self.object, off: self.off }
    }
}

impl<M: Medium, S: Settle<M>> Settle<M> for Vec<S> {
    type Durable = Vec<S::Durable>;

    #[track_caller]
    fn adopt(&self, op: &Op<'_, M>) {
        for item in self {
            item.adopt(op);
        }
    }

    fn settled(self) -> Self::Durable {
        self.into_iter().map(S::settled).collect()
    }
}

impl<M: Medium, S: Settle<M>, const N: usize> Settle<M> for [S; N] {
    type Durable = [S::Durable; N];

    #[inline(always)]
    #[track_caller]
    fn adopt(&self, op: &Op<'_, M>) {
        for item in self {
            item.adopt(op);
        }
    }

    #[inline(always)]
    fn settled(self) -> Self::Durable {
        self.map(S::settled)
    }
}

macro_rules! settle_tuple {
    ($($name:ident),+) => {
        impl<M: Medium, $($name: Settle<M>),+> Settle<M> for ($($name,)+) {
            type Durable = ($($name::Durable,)+);

            #[inline(always)]
            #[track_caller]
            #[expect(non_snake_case, reason = "the type's name names its field")]
            fn adopt(&self, op: &Op<'_, M>) {
                let ($($name,)+) = self;
                $($name.adopt(op);)+
            }

            #[inline(always)]
            #[expect(non_snake_case, reason = "the type's name names its field")]
            fn settled(self) -> Self::Durable {
                let ($($name,)+) = self;
                ($($name.settled(),)+)
            }
        }
    };
}
settle_tuple!(A, B);
settle_tuple!(A, B, C);
settle_tuple!(A, B, C, D);

impl<'op, M: Medium> Op<'op, M> {
    /// Takes the object at `off` as one that nothing durable leads to: fresh from the allocator, or not yet linked.
    #[inline(always)]
    pub fn fresh<T: Persistent>(&self, off: Off<T>) -> Fresh<'op, T> {
        Fresh { object: self.at(off), off }
    }

    /// Waits for write-backs in flight, with one fence for all of them, and gives the objects back as durable.
    #[inline(always)]
    #[track_caller]
    pub fn settle<S: Settle<M>>(&self, in_flight: S) -> S::Durable {
        in_flight.adopt(self);
        self.fence();
        in_flight.settled()
    }

    /// Stores a link to a durable object, after everything stored before. The link itself still has to be written back.
    #[inline(always)]
    #[track_caller]
    pub fn publish<T: Persistent>(&self, link: &Word<Off<T>>, object: Durable<'_, T>) {
        self.store(link, object.off, Ordering::Release);
    }

    /// Swings a link from `current` to a durable object. The link itself still has to be written back.
    ///
    /// # Errors
    /// What the link held instead, and the object back.
    #[inline(always)]
    #[track_caller]
    pub fn publish_if<'d, T: Persistent>(
        &self,
        link: &Word<Off<T>>,
        current: Off<T>,
        object: Durable<'d, T>,
    ) -> Result<(), (Off<T>, Durable<'d, T>)> {
        self.compare_exchange(link, current, object.off).map(|_| ()).map_err(|found| (found, object))
    }
}
