//! Client side of delta bundles: pulls an image as a bundle, applies the bundle to a store, and
//! exports, traces and inspects images.
//!
//! A worker is a machine that runs images. A worker requests the file contents that it lacks from
//! one pierhead server, and keeps all file contents in a content-addressed store. From this store,
//! a worker exports images in a form that a container runtime accepts. The crate reads no
//! environment, no command line and no configuration file: callers pass all settings as values.

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
