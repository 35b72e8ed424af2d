//! Tests of all parsers of the crate: accepted inputs, refused inputs, and round trips.

#![allow(
    clippy::unwrap_used,
    reason = "the helpers of tests fail as the tests do"
)]

mod corpus;
mod digest;
mod endpoint;
mod error;
mod manifest;
mod names;
mod platform;
mod reference;
mod round_trips;

#[allow(unreachable_pub, reason = "a library of its own in the fuzz package")]
#[path = "../../../../fuzz/src/lib.rs"]
mod properties;
