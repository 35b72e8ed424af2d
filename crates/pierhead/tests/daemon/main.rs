//! Tests with a running daemon: start, admin API, cache commands, upstreams, signals.

mod admin;
mod commands;
mod harness;
mod metrics;
mod routes;
mod signals;
mod start;
mod upstreams;
