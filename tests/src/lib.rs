//! What the end-to-end tests stand on: real daemons as processes, real clients, images to pull.
//!
//! Nothing here knows pierhead from inside. All of it listens on loopback, keeps its files in
//! folders of its own and ends with the test that started it. Built for tests: what goes wrong is
//! an `anyhow` error that says what was run and what it said.

#![forbid(unsafe_code)]

pub mod chart;
pub mod clients;
pub mod group;
pub mod image;
pub mod layout;
pub mod namespace;
pub mod pierhead;
pub mod place;
pub mod pod;
pub mod process;
pub mod registry;
pub mod relay;
pub mod tool;
pub mod tree;
pub mod unpack;
pub mod wait;
