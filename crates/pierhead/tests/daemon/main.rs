//! The real binary with a daemon running: start, admin API, cache commands, signals.

mod admin;
mod commands;
mod harness;
mod metrics;
mod routes;
mod signals;
mod start;
mod upstreams;
