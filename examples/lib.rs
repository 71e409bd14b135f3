//! The examples are `quickstart.rs` and its neighbours in this folder; this library is empty.
