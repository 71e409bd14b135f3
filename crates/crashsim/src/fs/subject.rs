//! What is tested: something that keeps its data in files, and a reference model.

use std::fmt::Debug;

use super::SimulatedFs;

/// Something that keeps its data in files, with its reference model: what [`Subject`](crate::Subject) is to memory.
///
/// The value of the implementing type is a description (options, which variant); [`Live`](FileSubject::Live) is the thing at work. All
/// it knows of files it gets from the [`SimulatedFs`] that it is given. Everything must be deterministic: no time, no randomness of
/// its own.
///
/// See the [module's documentation](super) for a complete example.
pub trait FileSubject {
    /// An operation.
    type Op: Clone + Debug;
    /// What an operation answers.
    type Ret: PartialEq + Debug;
    /// All that a user can observe.
    type State: PartialEq + Debug;
    /// The reference model.
    type Model: Clone;
    /// The thing, open.
    type Live;

    /// Creates it in an empty file system. By the time this returns it must be durable.
    fn create(&self, fs: &SimulatedFs) -> Self::Live;

    /// Opens it after a crash. With [`Explorer::crash_in_create`](crate::Explorer::crash_in_create) it may be that nothing of it is
    /// there, or half.
    ///
    /// # Errors
    /// A line that says why it could not be opened: a failure of the test.
    fn recover(&self, fs: &SimulatedFs) -> Result<Self::Live, String>;

    /// Runs an operation.
    fn apply(&self, live: &mut Self::Live, op: &Self::Op) -> Self::Ret;

    /// Reads all of it.
    fn observe(&self, live: &mut Self::Live) -> Self::State;

    /// Looks for inconsistencies; a line each.
    fn check(&self, live: &mut Self::Live) -> Vec<String> {
        let _ = live;
        Vec::new()
    }

    /// The model of the thing just created.
    fn model(&self) -> Self::Model;

    /// Runs an operation on the model.
    fn step(&self, model: &mut Self::Model, op: &Self::Op) -> Self::Ret;

    /// What the thing must look like.
    fn expect(&self, model: &Self::Model) -> Self::State;

    /// Whether an operation makes everything before it durable, itself included, by the time it returns. Matters for
    /// [`Contract::Buffered`](crate::Contract::Buffered) only.
    fn is_sync(&self, op: &Self::Op) -> bool {
        let _ = op;
        false
    }

    /// Whether an answer says that the operation has failed. Where a [fault](super::Files::each_fault) was planted that is allowed, and the
    /// operation may have happened or not.
    fn has_failed(&self, answer: &Self::Ret) -> bool {
        let _ = answer;
        false
    }
}
