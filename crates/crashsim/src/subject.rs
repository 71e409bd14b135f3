//! What is tested: a structure, its storage, and a reference model.

use std::fmt::Debug;

use crate::record::medium::Simulated;

/// A structure under test, with its reference model.
///
/// The value of the implementing type is a description (options, sizes, which variant); [`Live`](Subject::Live) is the
/// structure at work. Everything must be deterministic: no time, no addresses, no randomness of its own.
///
/// See the [crate's documentation](crate) for a complete example.
pub trait Subject {
    /// An operation.
    type Op: Clone + Debug;
    /// What an operation answers.
    type Ret: PartialEq + Debug;
    /// All that a user can observe.
    type State: PartialEq + Debug;
    /// The reference model.
    type Model: Clone;
    /// What stays in this process over a simulated crash: a [`Mapping`](durix_pmem::Mapping) for a bare structure
    /// (its contents are put back in place before each recovery), or what is needed to open a pool again.
    type Store;
    /// The structure, open.
    type Live;

    /// Makes the storage, zeroed, on the simulated medium (or on a medium around it).
    fn store(&self, medium: Simulated) -> Self::Store;

    /// Creates the structure. By the time this returns it must be durable.
    fn create(&self, store: &Self::Store) -> Self::Live;

    /// Opens the structure after a crash.
    ///
    /// # Errors
    /// A line that says why it could not be opened: a failure of the test.
    fn recover(&self, store: &Self::Store) -> Result<Self::Live, String>;

    /// Runs an operation.
    fn apply(&self, live: &mut Self::Live, op: &Self::Op) -> Self::Ret;

    /// Reads all of the structure.
    fn observe(&self, live: &mut Self::Live) -> Self::State;

    /// Looks for inconsistencies, space leaked or owned twice included; a line each.
    fn check(&self, live: &mut Self::Live) -> Vec<String> {
        let _ = live;
        Vec::new()
    }

    /// The model of the structure just created.
    fn model(&self) -> Self::Model;

    /// Runs an operation on the model.
    fn step(&self, model: &mut Self::Model, op: &Self::Op) -> Self::Ret;

    /// What the structure must look like.
    fn expect(&self, model: &Self::Model) -> Self::State;

    /// Under [`Contract::Buffered`], where that holds for each part of the structure by itself: a model that looks like `state`,
    /// each part of which is as in one of `models`, if there is one. `None`, as unless overridden: it holds for the whole, and
    /// the state has to be that of one of them.
    fn assemble(&self, models: &[Self::Model], state: &Self::State) -> Option<Self::Model> {
        let _ = (models, state);
        None
    }

    /// Whether an operation makes everything before it durable, itself included, by the time it returns. Matters for
    /// [`Contract::Buffered`] only.
    fn is_sync(&self, op: &Self::Op) -> bool {
        let _ = op;
        false
    }
}

/// What a structure promises of completed operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Contract {
    /// Each is durable when it returns; the one in flight has happened or it has not.
    #[default]
    Strict,
    /// A prefix of them survives that is no older than the last completed sync.
    Buffered,
}
