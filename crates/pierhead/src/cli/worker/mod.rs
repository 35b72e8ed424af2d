//! `pierhead pull`, `trace`, `inspect` and `diff`: the commands that run on a worker, a host that
//! runs containers.
//!
//! The crate `pierhead-worker` does the work. These modules turn flags into options of that crate,
//! and print its reports.

mod args;
mod inspect;
mod interrupt;
mod login;
mod progress;
mod pull;
mod server;
mod trace;

pub(crate) use args::{DiffArgs, InspectArgs, PullArgs, TraceArgs};
pub(crate) use inspect::{diff, inspect};
pub(crate) use pull::run as pull;
pub(crate) use trace::run as trace;
