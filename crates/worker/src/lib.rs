//! Worker side of delta bundles: pull, store, apply, export, trace and inspect.

#![forbid(unsafe_code)]

pub mod export;
pub mod store;
