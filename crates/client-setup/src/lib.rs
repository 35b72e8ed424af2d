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
//! Two types prevent conflicts between processes. [`SetupLock`] allows one plan-and-apply or undo
//! at a time. [`HoldMark`] shows that a `pierhead setup --hold` process is running: such a process
//! sets up a client, waits for a signal, and undoes the setup. Container probes see the mark with
//! [`is_held`].
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
mod hold_mark;
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
pub use hold_mark::{HoldMark, is_held};
pub use mirrors::ConfiguredMirrors;
pub use plan::Options;
pub use probe::{Unreachable, probe};
pub use record::SetupLock;
pub use reload::Reload;
pub use setup::Setup;
pub use undo::Undo;
