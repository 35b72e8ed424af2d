//! The clients that the end-to-end tests run: containerd, crane, Docker, podman, skopeo. Each
//! client has its own image store.

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

/// An address on which no server listens. As the address of the registry itself, it ensures that a
/// client cannot bypass its mirror.
const UNREACHABLE: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1));

/// The result of a pull, as the client reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullResult {
    /// Digest of the index or manifest that the reference resolved to.
    pub root: String,
    /// Digest of the config, which is the image ID.
    pub config: String,
}

/// A client program that pulls images.
pub trait Client {
    /// The name of the client in messages.
    fn name(&self) -> &'static str;
    /// Pulls `name` (`library/app:1`) for this machine's platform. Verifies the stored files if the
    /// client can.
    fn pull(&self, name: &str) -> Result<PullResult>;
    /// Removes all images and their contents.
    fn empty(&self) -> Result<()>;
    /// Runs a command in the image, or the image's own command if `command` is empty. Returns the
    /// output, or `None` when the client cannot run containers.
    fn run(&self, name: &str, command: &[&str]) -> Result<Option<String>>;
}

/// Adds the image to the arguments of `docker run`. A non-empty `command` replaces the image's own
/// command.
fn with_entrypoint<'a>(run: &'a mut Command, name: &str, command: &[&str]) -> &'a mut Command {
    match command {
        [] => run.arg(name),
        [program, arguments @ ..] => run.args(["--entrypoint", program, name]).args(arguments),
    }
}
