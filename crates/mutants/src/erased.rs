//! A subject without its types. The explorer is generic over its subject and large: with one type for all subjects it is
//! compiled once, and not once for every structure and planted pattern, which took minutes.

use std::any::Any;
use std::fmt::{self, Debug};
use std::rc::Rc;

use durix_crashsim::{Simulated, Subject};

/// A subject of whatever type.
pub struct Erased(Box<dyn Typeless>);

impl Erased {
    /// Forgets the types of `subject`.
    pub fn new<S: Subject + 'static>(subject: S) -> Self {
        Erased(Box::new(subject))
    }
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

/// [`Subject`] with everything behind pointers.
trait Typeless {
    fn store(&self, medium: Simulated) -> Box<dyn Any>;
    fn create(&self, store: &dyn Any) -> Box<dyn Any>;
    fn recover(&self, store: &dyn Any) -> Result<Box<dyn Any>, String>;
    fn apply(&self, live: &mut dyn Any, op: &Operation) -> Value;
    fn observe(&self, live: &mut dyn Any) -> Value;
    fn check(&self, live: &mut dyn Any) -> Vec<String>;
    fn model(&self) -> Model;
    fn step(&self, model: &mut Model, op: &Operation) -> Value;
    fn expect(&self, model: &Model) -> Value;
    fn is_sync(&self, op: &Operation) -> bool;
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

impl<S: Subject + 'static> Typeless for S {
    fn store(&self, medium: Simulated) -> Box<dyn Any> {
        Box::new(Subject::store(self, medium))
    }
    fn create(&self, store: &dyn Any) -> Box<dyn Any> {
        Box::new(Subject::create(self, of(store)))
    }
    fn recover(&self, store: &dyn Any) -> Result<Box<dyn Any>, String> {
        Ok(Box::new(Subject::recover(self, of(store))?))
    }
    fn apply(&self, live: &mut dyn Any, op: &Operation) -> Value {
        value(Subject::apply(self, of_mut(live), of(&*op.0)))
    }
    fn observe(&self, live: &mut dyn Any) -> Value {
        value(Subject::observe(self, of_mut(live)))
    }
    fn check(&self, live: &mut dyn Any) -> Vec<String> {
        Subject::check(self, of_mut(live))
    }
    fn model(&self) -> Model {
        Model(Box::new(Subject::model(self)))
    }
    fn step(&self, model: &mut Model, op: &Operation) -> Value {
        value(Subject::step(self, of_mut(&mut *model.0), of(&*op.0)))
    }
    fn expect(&self, model: &Model) -> Value {
        value(Subject::expect(self, of(&*model.0)))
    }
    fn is_sync(&self, op: &Operation) -> bool {
        Subject::is_sync(self, of(&*op.0))
    }
}

impl Subject for Erased {
    type Op = Operation;
    type Ret = Value;
    type State = Value;
    type Model = Model;
    type Store = Box<dyn Any>;
    type Live = Box<dyn Any>;

    fn store(&self, medium: Simulated) -> Box<dyn Any> {
        self.0.store(medium)
    }
    fn create(&self, store: &Box<dyn Any>) -> Box<dyn Any> {
        self.0.create(&**store)
    }
    fn recover(&self, store: &Box<dyn Any>) -> Result<Box<dyn Any>, String> {
        self.0.recover(&**store)
    }
    fn apply(&self, live: &mut Box<dyn Any>, op: &Operation) -> Value {
        self.0.apply(&mut **live, op)
    }
    fn observe(&self, live: &mut Box<dyn Any>) -> Value {
        self.0.observe(&mut **live)
    }
    fn check(&self, live: &mut Box<dyn Any>) -> Vec<String> {
        self.0.check(&mut **live)
    }
    fn model(&self) -> Model {
        self.0.model()
    }
    fn step(&self, model: &mut Model, op: &Operation) -> Value {
        self.0.step(model, op)
    }
    fn expect(&self, model: &Model) -> Value {
        self.0.expect(model)
    }
    fn is_sync(&self, op: &Operation) -> bool {
        self.0.is_sync(op)
    }
}
