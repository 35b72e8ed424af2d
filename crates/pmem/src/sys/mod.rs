//! What the language cannot check: a file mapped for stores, cache lines, SIGBUS.
//!
//! Outside of this folder the crate has no `unsafe`; what leaves it is safe to call with any
//! argument.
#![allow(unsafe_code)]

mod copy;
mod flush;
mod map;
mod sigbus;

pub(crate) use flush::CacheLines;
#[cfg(test)]
pub(crate) use flush::told;
pub(crate) use map::{Failed, Map};
