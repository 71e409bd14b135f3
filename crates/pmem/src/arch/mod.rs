//! The instructions that write cache lines back, per architecture.
//!
//! Nothing outside this folder issues one. Each architecture offers the same few functions; one without any of them
//! gets `portable`, where only ordinary files can be used.

#[cfg(target_arch = "x86_64")]
#[path = "x86_64.rs"]
mod imp;

#[cfg(target_arch = "aarch64")]
#[path = "aarch64.rs"]
mod imp;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[path = "portable.rs"]
mod imp;

pub(crate) use imp::*;
