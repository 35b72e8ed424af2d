//! Pulls by every client directly from a registry, without pierhead: the baseline, and a check of
//! the test library.

use anyhow::Result;
use pierhead_tests::{
    clients::{Client, Containerd, Crane, Docker, Podman, PullResult, Skopeo},
    image::{GREETING, images},
    layout::Image,
    registry::{self, Registry},
    tool::or_skip,
};

/// Pulls and runs an image, and empties the client. The registry's log must show at least one GET
/// per blob.
fn pull(mut registry: Registry, client: &dyn Client, image: &Image) -> Result<()> {
    let here = image.for_this_platform()?;
    let expected = PullResult {
        root: image.root.clone(),
        config: here.config.clone(),
    };
    assert_eq!(client.pull(&image.name())?, expected);
    if let Some(output) = client.run(&image.name(), &[])? {
        assert_eq!(output, GREETING);
    }
    let gets = registry.blob_gets_of(&here.blobs())?;
    for blob in here.blobs() {
        assert!(gets[&blob] >= 1);
    }
    client.empty()?;
    registry.stop()?;
    assert!(
        client.pull(&image.name()).is_err(),
        "a pull without a registry"
    );
    Ok(())
}

/// The image in a repository whose path begins with the registry's name.
fn by_path(image: &Image) -> Image {
    let mut image = image.clone();
    image.repository = format!("docker.io/{}", image.repository);
    image
}

#[test]
fn docker_pulls_directly() -> Result<()> {
    if or_skip(Docker::find()).is_none() || or_skip(registry::find()).is_none() {
        return Ok(());
    }
    let image = images()?.small;
    let registry = Registry::start(&[&image])?;
    let docker = Docker::with_mirror(registry.address())?;
    pull(registry, &docker, &image)
}

#[test]
fn containerd_pulls_directly() -> Result<()> {
    if or_skip(Containerd::find()).is_none() || or_skip(registry::find()).is_none() {
        return Ok(());
    }
    let image = images()?.small;
    let registry = Registry::start(&[&image])?;
    let containerd = Containerd::with_mirror("docker.io", registry.address())?;
    pull(registry, &containerd, &image)
}

#[test]
fn podman_pulls_directly() -> Result<()> {
    if or_skip(Podman::find()).is_none() || or_skip(registry::find()).is_none() {
        return Ok(());
    }
    let image = images()?.small;
    let registry = Registry::start(&[&by_path(&image)])?;
    let podman = Podman::with_mirror("docker.io", registry.address())?;
    pull(registry, &podman, &image)
}

#[test]
fn skopeo_pulls_directly() -> Result<()> {
    if or_skip(Skopeo::find()).is_none() || or_skip(registry::find()).is_none() {
        return Ok(());
    }
    let image = images()?.small;
    let registry = Registry::start(&[&by_path(&image)])?;
    let skopeo = Skopeo::with_path(registry.address(), "docker.io")?;
    pull(registry, &skopeo, &image)
}

#[test]
fn crane_pulls_directly() -> Result<()> {
    if or_skip(Crane::find()).is_none() || or_skip(registry::find()).is_none() {
        return Ok(());
    }
    let image = images()?.small;
    let registry = Registry::start(&[&by_path(&image)])?;
    let crane = Crane::with_path(registry.address(), "docker.io")?;
    pull(registry, &crane, &image)
}
