//! The tests of the simulator, in one binary: what they share is compiled once.

mod checked;
mod death;
mod differential;
mod fs_explorer;
mod fs_rules;
mod held;
mod journal;
mod linear;
mod list;
mod litmus;
mod page_cache;
mod pool;
mod second;
#[cfg(feature = "shuttle")]
mod shuttle;
mod threads;
mod threads_sound;
