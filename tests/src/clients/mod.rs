//! The programs that pull images, each with a store of its own.

mod containerd;
mod crane;
mod docker;
mod podman;
mod skopeo;

use std::{
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    process::Command,
};

use anyhow::Result;

pub use containerd::Containerd;
pub use crane::Crane;
pub use docker::Docker;
pub use podman::Podman;
pub use skopeo::Skopeo;

/// Where nobody listens: the registry itself, for a client that shall not go around its mirror.
const NOBODY: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1));

/// What a client says it has after a pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulled {
    /// Digest of the index or manifest that the reference meant.
    pub root: String,
    /// Digest of the config: the image's ID.
    pub config: String,
}

/// Somebody who pulls.
pub trait Client {
    /// For messages.
    fn name(&self) -> &'static str;
    /// Pulls `name` (`library/app:1`) for this machine's platform and verifies what the client
    /// stored, as far as the client does.
    fn pull(&self, name: &str) -> Result<Pulled>;
    /// Forgets all images and their contents.
    fn empty(&self) -> Result<()>;
    /// Runs a command of the image, its own if none is given, and returns what it printed; `None`
    /// where the client cannot run anything.
    fn run(&self, name: &str, command: &[&str]) -> Result<Option<String>>;
}

/// The words after the options of `docker run`: the image, and a command in place of its own.
fn with_entrypoint<'a>(run: &'a mut Command, name: &str, command: &[&str]) -> &'a mut Command {
    match command {
        [] => run.arg(name),
        [program, arguments @ ..] => run.args(["--entrypoint", program, name]).args(arguments),
    }
}
