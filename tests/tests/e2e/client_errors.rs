//! Error output of clients when an upstream fails: each client prints pierhead's cause.
//!
//! docker, podman and skopeo read no body of a 5xx and print its status line; containerd and crane print its body, or the status line of a
//! HEAD.

use anyhow::Result;
use pierhead_testkit::registry::{FakeRegistry, Fault};
use pierhead_tests::{
    clients::{Client, Containerd, Crane, Docker, Podman, Skopeo},
    pierhead::Options,
    tool::or_skip,
};

use crate::ask::behind;

/// Pulls an image from an upstream that responds 500, and returns the output of the client.
fn printed<C: Client>(start: impl FnOnce(std::net::SocketAddr) -> Result<C>) -> Result<()> {
    let (hub, pierhead) = behind(FakeRegistry::builder(), Options::new())?;
    hub.inject(Fault::Status(500).on("*").before_auth());
    let client = start(pierhead.address())?;
    let error = client.pull("library/app:1").err();
    let text = error.map_or_else(String::new, |error| format!("{error:#}"));
    eprintln!("{}: {text}", client.name());
    assert!(
        text.contains("docker.io answered 500"),
        "{} prints {text:?}",
        client.name()
    );
    Ok(())
}

#[test]
fn docker_prints_the_cause() -> Result<()> {
    match or_skip(Docker::find()) {
        Some(_) => printed(|address| Docker::with_path(address, "docker.io")),
        None => Ok(()),
    }
}

#[test]
fn podman_prints_the_cause() -> Result<()> {
    match or_skip(Podman::find()) {
        Some(_) => printed(|address| Podman::with_mirror("docker.io", address)),
        None => Ok(()),
    }
}

#[test]
fn skopeo_prints_the_cause() -> Result<()> {
    match or_skip(Skopeo::find()) {
        Some(_) => printed(|address| Skopeo::with_path(address, "docker.io")),
        None => Ok(()),
    }
}

#[test]
fn crane_prints_the_cause() -> Result<()> {
    match or_skip(Crane::find()) {
        Some(_) => printed(|address| Crane::with_path(address, "docker.io")),
        None => Ok(()),
    }
}

#[test]
fn containerd_prints_the_cause() -> Result<()> {
    match or_skip(Containerd::find()) {
        Some(_) => printed(|address| Containerd::with_mirror("docker.io", address)),
        None => Ok(()),
    }
}
