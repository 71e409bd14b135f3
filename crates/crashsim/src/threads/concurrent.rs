//! What is tested with several threads.

use std::hash::Hash;

use crate::subject::Subject;

/// A [`Subject`] whose operations may run in several threads at a time.
///
/// [`create`](Subject::create) makes the structure, [`thread`](Concurrent::thread) what each thread has of it, usually a
/// session and a shared reference. [`apply`](Subject::apply), [`observe`](Subject::observe) and
/// [`check`](Subject::check) run alone, on what was recovered.
///
/// All that threads share has to go through the medium: persistent words, volatile ones by the `shared_` accesses, locks
/// by [`Lock`](durix_pmem::Lock), waiting by [`Medium::spin`](durix_pmem::Medium::spin). Plain volatile data may lie behind
/// such words, as the content of a lock does. What passes the medium by is to be named by [`hidden`](Concurrent::hidden).
pub trait Concurrent: Subject<Model: Eq + Hash> {
    /// What one thread works with.
    type Thread;

    /// The handle of thread `number`, counted from 0. They are made in order, before any of them runs.
    fn thread(&self, live: &Self::Live, number: usize) -> Self::Thread;

    /// Runs an operation in a thread.
    fn run(&self, thread: &mut Self::Thread, op: &Self::Op) -> Self::Ret;

    /// Names shared state that passes the medium by, if there is any. Interleavings of accesses to it are not explored,
    /// and states that differ in nothing else are taken for equal: reports then say "not complete".
    fn hidden(&self) -> Option<String> {
        None
    }
}
