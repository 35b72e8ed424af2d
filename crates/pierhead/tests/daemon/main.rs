//! Tests with a running daemon: start, admin API, `pierhead cache` and `pierhead doctor`, HTTP
//! routes, metrics, upstreams, signals and `--quiet`.

mod admin;
mod commands;
mod harness;
mod metrics;
mod quiet;
mod routes;
mod signals;
mod start;
mod upstreams;
