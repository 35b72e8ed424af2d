//! End to end: pierhead as a process between real registries and real clients.
//!
//! Each test has daemons, ports and folders of its own, so that all may run at once. A test whose
//! tools are missing says so and is skipped; with `CI=true` that is a failure. Where an upstream must
//! misbehave, the testkit's takes the place of the real one.

#![forbid(unsafe_code)]

mod ask;
mod auth;
mod bundles;
mod certified;
mod client_errors;
mod configuration;
mod conformance;
mod corpus;
mod crash;
mod damage;
mod direct;
mod doctor;
mod eviction;
mod hub;
mod interface;
mod killed;
mod lies;
mod matrix;
mod medium;
mod memory;
mod name_server;
mod names;
mod operations;
mod outage;
mod pod;
mod polite;
mod pull;
mod random;
mod refusals;
mod secrets;
mod setup;
mod smoke;
mod tier;
mod tls;
mod together;
mod trees;
mod trouble;
