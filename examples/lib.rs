//! The examples are `quickstart.rs` and its neighbours in this folder. This library only compiles and runs the code of
//! the README.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
