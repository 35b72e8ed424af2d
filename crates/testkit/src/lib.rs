//! A registry that misbehaves on request, images made from a seed, and an HTTP client that sees how
//! a body ended. For tests only: no crate may depend on this one outside of its dev-dependencies.
//!
//! What is made here is deterministic for a given seed. What is heard here is loopback only. Code of
//! this crate panics with a message where a test would have to unwrap.

#![forbid(unsafe_code)]

pub mod admission;
pub mod corpus;
pub mod http;
pub mod images;
pub mod log;
pub mod policy;
pub mod registry;
pub mod skip;
pub mod source;
pub mod tier;
pub mod wait;
