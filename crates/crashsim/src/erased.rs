//! Subjects whose storage and structure are behind pointers.
//!
//! The explorer is generic over its subject, and large: a test of ten structures compiles it ten times. Of the subjects that share
//! their operations and their model, boxed as [`AnySubject`] or [`AnyConcurrent`], it is compiled once.

use std::any::Any;
use std::fmt::Debug;
use std::hash::Hash;

use crate::record::medium::Simulated;
use crate::subject::Subject;
use crate::threads::Concurrent;

/// A [`Subject`] of any structure, with these operations, answers, states and models.
///
/// ```
/// # use durix_crashsim::{AnySubject, Explorer, Simulated, Subject};
/// # struct Empty;
/// # impl Subject for Empty {
/// #     type Op = ();
/// #     type Ret = ();
/// #     type State = ();
/// #     type Model = ();
/// #     type Store = ();
/// #     type Live = ();
/// #     fn store(&self, _: Simulated) {}
/// #     fn create(&self, _: &()) {}
/// #     fn recover(&self, _: &()) -> Result<(), String> { Ok(()) }
/// #     fn apply(&self, _: &mut (), _: &()) {}
/// #     fn observe(&self, _: &mut ()) {}
/// #     fn model(&self) {}
/// #     fn step(&self, _: &mut (), _: &()) {}
/// #     fn expect(&self, _: &()) {}
/// # }
/// # let (list, table) = (Empty, Empty);
/// let maps: [AnySubject<(), (), (), ()>; 2] = [Box::new(list), Box::new(table)];
/// for map in &maps {
///     Explorer::new().run(map, &[]).assert_ok();
/// }
/// ```
pub type AnySubject<Op, Ret, State, Model> = Box<dyn DynSubject<Op = Op, Ret = Ret, State = State, Model = Model>>;

/// A [`Concurrent`] subject of any structure, with these operations, answers, states and models.
pub type AnyConcurrent<Op, Ret, State, Model> =
    Box<dyn DynConcurrent<Op = Op, Ret = Ret, State = State, Model = Model>>;

/// [`Subject`], with what depends on the structure behind pointers. For every subject, of itself.
#[expect(missing_docs, reason = "as in `Subject`")]
pub trait DynSubject {
    type Op: Clone + Debug;
    type Ret: PartialEq + Debug;
    type State: PartialEq + Debug;
    type Model: Clone;
    fn dyn_store(&self, medium: Simulated) -> Box<dyn Any>;
    fn dyn_create(&self, store: &dyn Any) -> Box<dyn Any>;
    /// # Errors
    /// As [`Subject::recover`].
    fn dyn_recover(&self, store: &dyn Any) -> Result<Box<dyn Any>, String>;
    fn dyn_apply(&self, live: &mut dyn Any, op: &Self::Op) -> Self::Ret;
    fn dyn_observe(&self, live: &mut dyn Any) -> Self::State;
    fn dyn_check(&self, live: &mut dyn Any) -> Vec<String>;
    fn dyn_model(&self) -> Self::Model;
    fn dyn_step(&self, model: &mut Self::Model, op: &Self::Op) -> Self::Ret;
    fn dyn_expect(&self, model: &Self::Model) -> Self::State;
    fn dyn_assemble(&self, models: &[Self::Model], state: &Self::State) -> Option<Self::Model>;
    fn dyn_is_sync(&self, op: &Self::Op) -> bool;
}

/// [`Concurrent`], with what depends on the structure behind pointers. For every such subject, of itself.
#[expect(missing_docs, reason = "as in `Concurrent`")]
pub trait DynConcurrent: DynSubject<Model: Eq + Hash> {
    fn dyn_thread(&self, live: &dyn Any, number: usize) -> Box<dyn Any>;
    fn dyn_run(&self, thread: &mut dyn Any, op: &Self::Op) -> Self::Ret;
    fn dyn_hidden(&self) -> Option<String>;
}

/// What comes back is of the type that went in: one subject never meets the values of another.
const SAME: &str = "a value of this very subject";

fn of<T: 'static>(value: &dyn Any) -> &T {
    value.downcast_ref().expect(SAME)
}

fn of_mut<T: 'static>(value: &mut dyn Any) -> &mut T {
    value.downcast_mut().expect(SAME)
}

impl<S: Subject<Store: 'static, Live: 'static>> DynSubject for S {
    type Op = S::Op;
    type Ret = S::Ret;
    type State = S::State;
    type Model = S::Model;

    fn dyn_store(&self, medium: Simulated) -> Box<dyn Any> {
        Box::new(self.store(medium))
    }
    fn dyn_create(&self, store: &dyn Any) -> Box<dyn Any> {
        Box::new(self.create(of(store)))
    }
    fn dyn_recover(&self, store: &dyn Any) -> Result<Box<dyn Any>, String> {
        Ok(Box::new(self.recover(of(store))?))
    }
    fn dyn_apply(&self, live: &mut dyn Any, op: &S::Op) -> S::Ret {
        self.apply(of_mut(live), op)
    }
    fn dyn_observe(&self, live: &mut dyn Any) -> S::State {
        self.observe(of_mut(live))
    }
    fn dyn_check(&self, live: &mut dyn Any) -> Vec<String> {
        self.check(of_mut(live))
    }
    fn dyn_model(&self) -> S::Model {
        self.model()
    }
    fn dyn_step(&self, model: &mut S::Model, op: &S::Op) -> S::Ret {
        self.step(model, op)
    }
    fn dyn_expect(&self, model: &S::Model) -> S::State {
        self.expect(model)
    }
    fn dyn_assemble(&self, models: &[S::Model], state: &S::State) -> Option<S::Model> {
        self.assemble(models, state)
    }
    fn dyn_is_sync(&self, op: &S::Op) -> bool {
        self.is_sync(op)
    }
}

impl<S: Concurrent<Store: 'static, Live: 'static, Thread: 'static>> DynConcurrent for S {
    fn dyn_thread(&self, live: &dyn Any, number: usize) -> Box<dyn Any> {
        Box::new(self.thread(of(live), number))
    }
    fn dyn_run(&self, thread: &mut dyn Any, op: &S::Op) -> S::Ret {
        self.run(of_mut(thread), op)
    }
    fn dyn_hidden(&self) -> Option<String> {
        self.hidden()
    }
}

macro_rules! subject {
    ($dynamic:ident) => {
        impl<Op, Ret, State, Model> Subject for Box<dyn $dynamic<Op = Op, Ret = Ret, State = State, Model = Model>>
        where
            dyn $dynamic<Op = Op, Ret = Ret, State = State, Model = Model>:
                DynSubject<Op = Op, Ret = Ret, State = State, Model = Model>,
            Op: Clone + Debug,
            Ret: PartialEq + Debug,
            State: PartialEq + Debug,
            Model: Clone,
        {
            type Op = Op;
            type Ret = Ret;
            type State = State;
            type Model = Model;
            type Store = Box<dyn Any>;
            type Live = Box<dyn Any>;

            fn store(&self, medium: Simulated) -> Box<dyn Any> {
                (**self).dyn_store(medium)
            }
            fn create(&self, store: &Box<dyn Any>) -> Box<dyn Any> {
                (**self).dyn_create(&**store)
            }
            fn recover(&self, store: &Box<dyn Any>) -> Result<Box<dyn Any>, String> {
                (**self).dyn_recover(&**store)
            }
            fn apply(&self, live: &mut Box<dyn Any>, op: &Op) -> Ret {
                (**self).dyn_apply(&mut **live, op)
            }
            fn observe(&self, live: &mut Box<dyn Any>) -> State {
                (**self).dyn_observe(&mut **live)
            }
            fn check(&self, live: &mut Box<dyn Any>) -> Vec<String> {
                (**self).dyn_check(&mut **live)
            }
            fn model(&self) -> Model {
                (**self).dyn_model()
            }
            fn step(&self, model: &mut Model, op: &Op) -> Ret {
                (**self).dyn_step(model, op)
            }
            fn expect(&self, model: &Model) -> State {
                (**self).dyn_expect(model)
            }
            fn assemble(&self, models: &[Model], state: &State) -> Option<Model> {
                (**self).dyn_assemble(models, state)
            }
            fn is_sync(&self, op: &Op) -> bool {
                (**self).dyn_is_sync(op)
            }
        }
    };
}

subject!(DynSubject);
subject!(DynConcurrent);

impl<Op, Ret, State, Model> Concurrent for AnyConcurrent<Op, Ret, State, Model>
where
    Op: Clone + Debug,
    Ret: PartialEq + Debug,
    State: PartialEq + Debug,
    Model: Clone + Eq + Hash,
{
    type Thread = Box<dyn Any>;

    fn thread(&self, live: &Box<dyn Any>, number: usize) -> Box<dyn Any> {
        (**self).dyn_thread(&**live, number)
    }
    fn run(&self, thread: &mut Box<dyn Any>, op: &Op) -> Ret {
        (**self).dyn_run(&mut **thread, op)
    }
    fn hidden(&self) -> Option<String> {
        (**self).dyn_hidden()
    }
}
