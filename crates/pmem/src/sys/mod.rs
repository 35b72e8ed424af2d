//! All `unsafe` code of the crate: the mapped file, cache-line flushes, and the handler of SIGBUS.
//!
//! The functions that other modules use are safe with any argument.
#![allow(unsafe_code)]

mod copy;
mod flush;
mod map;
mod sigbus;

pub(crate) use flush::CacheLines;
#[cfg(test)]
pub(crate) use flush::executed;
pub(crate) use map::{Failed, Map};
