//! A subject without its types. The explorer is generic over its subject and large: with one type for all subjects it is
//! compiled once, and not once for every structure and planted pattern, which took minutes.

use std::any::Any;
use std::fmt::{self, Debug};
use std::rc::Rc;

use durix_crashsim::{AnySubject, Simulated, Subject};

/// A subject of whatever type.
pub type Erased = AnySubject<Operation, Value, Value, Model>;

/// Forgets the types of `subject`.
pub fn erase<S: Subject<Store: 'static, Live: 'static> + 'static>(subject: S) -> Erased {
    Box::new(Plain(subject))
}

/// An operation of whatever type.
#[derive(Clone)]
pub struct Operation(Rc<dyn Shown>);

impl Operation {
    /// Forgets the type of each of `ops`.
    pub fn all<T: Clone + Debug + 'static>(ops: &[T]) -> Vec<Self> {
        ops.iter().map(|op| Operation(Rc::new(op.clone()))).collect()
    }
}

impl Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Debug::fmt(&*self.0, f)
    }
}

trait Shown: Any + Debug {}

impl<T: Any + Debug> Shown for T {}

/// An answer, or all that a user can observe.
pub struct Value(Box<dyn Compared>);

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        self.0.equals(&*other.0)
    }
}

impl Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Debug::fmt(&*self.0, f)
    }
}

trait Compared: Any + Debug {
    fn equals(&self, other: &dyn Compared) -> bool;
}

impl<T: Any + Debug + PartialEq> Compared for T {
    fn equals(&self, other: &dyn Compared) -> bool {
        (other as &dyn Any).downcast_ref::<T>().is_some_and(|other| self == other)
    }
}

/// A reference model.
pub struct Model(Box<dyn Copied>);

impl Clone for Model {
    fn clone(&self) -> Self {
        Model(self.0.copied())
    }
}

trait Copied: Any {
    fn copied(&self) -> Box<dyn Copied>;
}

impl<T: Any + Clone> Copied for T {
    fn copied(&self) -> Box<dyn Copied> {
        Box::new(self.clone())
    }
}

/// What comes back is of the type that went in: one subject never meets the values of another.
const SAME: &str = "a value of this very subject";

fn of<T: 'static>(value: &dyn Any) -> &T {
    value.downcast_ref().expect(SAME)
}

fn of_mut<T: 'static>(value: &mut dyn Any) -> &mut T {
    value.downcast_mut().expect(SAME)
}

fn value<T: Any + Debug + PartialEq>(value: T) -> Value {
    Value(Box::new(value))
}

/// A subject that takes and gives values of whatever type.
struct Plain<S>(S);

impl<S: Subject + 'static> Subject for Plain<S> {
    type Op = Operation;
    type Ret = Value;
    type State = Value;
    type Model = Model;
    type Store = S::Store;
    type Live = S::Live;

    fn store(&self, medium: Simulated) -> S::Store {
        self.0.store(medium)
    }
    fn create(&self, store: &S::Store) -> S::Live {
        self.0.create(store)
    }
    fn recover(&self, store: &S::Store) -> Result<S::Live, String> {
        self.0.recover(store)
    }
    fn apply(&self, live: &mut S::Live, op: &Operation) -> Value {
        value(self.0.apply(live, of(&*op.0)))
    }
    fn observe(&self, live: &mut S::Live) -> Value {
        value(self.0.observe(live))
    }
    fn check(&self, live: &mut S::Live) -> Vec<String> {
        self.0.check(live)
    }
    fn model(&self) -> Model {
        Model(Box::new(self.0.model()))
    }
    fn step(&self, model: &mut Model, op: &Operation) -> Value {
        value(self.0.step(of_mut(&mut *model.0), of(&*op.0)))
    }
    fn expect(&self, model: &Model) -> Value {
        value(self.0.expect(of(&*model.0)))
    }
    fn is_sync(&self, op: &Operation) -> bool {
        self.0.is_sync(of(&*op.0))
    }
}
