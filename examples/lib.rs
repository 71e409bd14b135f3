//! The examples are `quickstart.rs` and its neighbours in this folder. This library only compiles and runs the code of
//! the README and of the guide.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(doctest)]
#[doc = include_str!("../docs/guide/transactions.md")]
struct Transactions;

#[cfg(doctest)]
#[doc = include_str!("../docs/guide/what-survives-what.md")]
struct WhatSurvivesWhat;

#[cfg(doctest)]
#[doc = include_str!("../docs/guide/getting-started.md")]
struct GettingStarted;

#[cfg(doctest)]
#[doc = include_str!("../docs/guide/operations.md")]
struct Operations;

#[cfg(doctest)]
#[doc = include_str!("../docs/guide/errors.md")]
struct Errors;

#[cfg(doctest)]
#[doc = include_str!("../docs/guide/async.md")]
struct Async;

#[cfg(doctest)]
#[doc = include_str!("../docs/guide/moving.md")]
struct Moving;
