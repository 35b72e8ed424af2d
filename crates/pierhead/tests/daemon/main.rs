//! Tests with a running daemon: start, admin API, `pierhead cache` and `pierhead doctor`, HTTP
//! routes, metrics, upstreams and signals.

mod admin;
mod commands;
mod harness;
mod metrics;
mod routes;
mod signals;
mod start;
mod upstreams;
