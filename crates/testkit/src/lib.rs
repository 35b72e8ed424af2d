//! Test fixtures of all crates: a fake registry with faults, generated images, an HTTP client,
//! storage tiers, conformance suites, and processes in namespaces. The crate is only for tests: other crates may depend on
//! it only in dev-dependencies. All generators are deterministic for a given seed. All servers
//! listen on loopback. Most functions panic with a message in place of an error, which tests would
//! only unwrap.

#![forbid(unsafe_code)]

pub mod admission;
pub mod corpus;
pub mod file_descriptors;
pub mod http;
pub mod images;
pub mod layout;
pub mod log;
pub mod metrics;
pub mod namespace;
pub mod policy;
pub mod process;
pub mod registry;
pub mod skip;
pub mod source;
pub mod tier;
pub mod tool;
pub mod wait;
