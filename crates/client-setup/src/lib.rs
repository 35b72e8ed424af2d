//! Changes the configuration files of docker, containerd, podman and CRI-O so that they pull
//! through pierhead, and undoes the change (`pierhead setup`).
//!
//! 1. [`Setup::plan`] computes the new text of each file from its old text. The call of `plan`
//!    changes no file.
//! 2. [`Setup::apply`] records the old text of each file, and then replaces either all files or
//!    none.
//! 3. [`Undo`] restores each file from the record, and keeps the later changes of other programs
//!    and users.
//!
//! A plan starts from the original files, without the changes of pierhead. Therefore a second run
//! changes nothing, and an undo restores every byte.
//!
//! This crate reads no environment and no command line, and prints nothing. Between [`Setup::plan`]
//! and [`Setup::apply`], the caller shows the changes and asks the user for consent.

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
