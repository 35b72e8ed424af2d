//! The configuration files of docker, containerd, podman and CRI-O: makes a client pull through
//! pierhead, and takes that back.
//!
//! 1. [`Setup::plan`] computes the new text of each file from its old text. It changes nothing.
//! 2. [`Setup::apply`] records what each file held, then replaces all files or none.
//! 3. [`Undo`] restores each file from the record and keeps what others changed since.
//!
//! A plan starts from the files as they were before pierhead. Therefore a second run changes
//! nothing, and an undo restores every byte.
//!
//! This crate reads no environment and no command line, and prints nothing. The caller shows the
//! changes and asks for consent between plan and apply.

#![forbid(unsafe_code)]

mod address;
mod apply;
mod ca;
mod client;
mod config_root;
mod daemon;
mod error;
mod format;
mod hold;
mod mirrors;
mod original_files;
mod plan;
mod probe;
mod record;
mod reload;
mod setup;
mod undo;

pub use address::{Address, InvalidAddress};
pub use apply::Change;
pub use ca::read_ca;
pub use client::Client;
pub use config_root::ConfigRoot;
pub use error::{Error, Fault, Outcome, TextProblem};
pub use hold::{Hold, is_held};
pub use mirrors::ConfiguredMirrors;
pub use plan::Options;
pub use probe::{Unreachable, probe};
pub use record::Lock;
pub use reload::Reload;
pub use setup::Setup;
pub use undo::Undo;
