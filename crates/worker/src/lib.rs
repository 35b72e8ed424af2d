//! Client side of delta bundles: pull, store, apply, export, trace and inspect images on a worker.
//!
//! A worker is a machine that runs images. It asks one pierhead for the file contents that it lacks, keeps them in
//! a content-addressed store, and writes images out of that store in the form that a container runtime takes.
//! The crate reads no environment, no command line and no configuration file: callers pass values.

#![forbid(unsafe_code)]

mod error;
pub mod export;
mod http;
mod image_names;
pub mod inspect;
mod progress;
pub mod pull;
mod registry;
mod request_path;
pub mod store;
pub mod trace;

pub use error::{Error, Fault};
pub use http::{Authorization, Server, TlsConfigs, Url};
pub use progress::{NoProgress, Progress, Unit};
pub use registry::require_image;
