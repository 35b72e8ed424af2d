//! A client of OCI registries: the pull side of Distribution v1.1.
//!
//! It resolves, fetches and resumes; it stores nothing. Layers, from the socket up: address guard and
//! connect, TLS, one HTTP exchange with its time limits, authorization, retry, and the operations.

#![forbid(unsafe_code)]

mod client;
mod config;
mod error;

pub use client::{BlobStream, Client, Fetched, Known};
pub use config::{Config, Credentials, Upstream};
pub use error::{Error, Fault};
