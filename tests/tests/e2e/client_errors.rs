//! Checks that each client prints pierhead's error when an upstream fails. For a 5xx response,
//! docker, podman and skopeo print the status line and ignore the body. containerd and crane print
//! the body, or the status line of a HEAD.

use anyhow::Result;
use pierhead_testkit::registry::{FakeRegistry, Fault};
use pierhead_tests::{
    clients::{Client, Containerd, Crane, Docker, Podman, Skopeo},
    pierhead::Options,
    tool::or_skip,
};

use crate::requests::start_in_front;

/// Pulls an image from an upstream that responds 500, and returns the output of the client.
fn assert_error_is_printed<C: Client>(
    start: impl FnOnce(std::net::SocketAddr) -> Result<C>,
) -> Result<()> {
    let (hub, pierhead) = start_in_front(FakeRegistry::builder(), Options::new())?;
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
        Some(_) => assert_error_is_printed(|address| Docker::with_path(address, "docker.io")),
        None => Ok(()),
    }
}

#[test]
fn podman_prints_the_cause() -> Result<()> {
    match or_skip(Podman::find()) {
        Some(_) => assert_error_is_printed(|address| Podman::with_mirror("docker.io", address)),
        None => Ok(()),
    }
}

#[test]
fn skopeo_prints_the_cause() -> Result<()> {
    match or_skip(Skopeo::find()) {
        Some(_) => assert_error_is_printed(|address| Skopeo::with_path(address, "docker.io")),
        None => Ok(()),
    }
}

#[test]
fn crane_prints_the_cause() -> Result<()> {
    match or_skip(Crane::find()) {
        Some(_) => assert_error_is_printed(|address| Crane::with_path(address, "docker.io")),
        None => Ok(()),
    }
}

#[test]
fn containerd_prints_the_cause() -> Result<()> {
    match or_skip(Containerd::find()) {
        Some(_) => assert_error_is_printed(|address| Containerd::with_mirror("docker.io", address)),
        None => Ok(()),
    }
}
