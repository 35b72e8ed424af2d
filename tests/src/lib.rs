//! The library of the end-to-end tests: pierhead, registries and container clients as processes,
//! and images to pull. No module of this library uses the code of pierhead. All processes listen on
//! loopback, write to their own folders, and end with the test that started them. Failures are
//! `anyhow` errors with the command and its output.

#![forbid(unsafe_code)]

pub mod cgroup;
pub mod chart;
pub mod clients;
pub mod image;
pub mod layout;
pub mod paths;
pub mod pierhead;
pub mod pod;
pub mod registry;
pub mod relay;
pub mod tree;
pub mod unpack;

pub use pierhead_testkit::{http, namespace, process, tool, wait};
