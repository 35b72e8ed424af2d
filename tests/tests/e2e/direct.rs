//! The clients without pierhead: what they are compared with, and the proof that the harness works.

use anyhow::Result;
use pierhead_tests::{
    clients::{Client, Containerd, Crane, Docker, Podman, Pulled, Skopeo},
    image::{GREETING, images},
    layout::Image,
    registry::{self, Registry},
    tool::or_skip,
};

/// Pulls, runs, empties; the registry's log must show each blob once.
fn pull(mut registry: Registry, client: &dyn Client, image: &Image) -> Result<()> {
    let here = image.here()?;
    let expected = Pulled {
        root: image.root.clone(),
        config: here.config.clone(),
    };
    assert_eq!(client.pull(&image.name())?, expected);
    if let Some(said) = client.run(&image.name(), &[])? {
        assert_eq!(said, GREETING);
    }
    let gets = registry.blob_gets_of(&here.blobs())?;
    for blob in here.blobs() {
        assert!(gets[&blob] >= 1);
    }
    client.empty()?;
    registry.stop()?;
    assert!(client.pull(&image.name()).is_err(), "a pull from nowhere");
    Ok(())
}

/// The image as a registry has it that is asked by a path with the registry's name.
fn by_path(image: &Image) -> Image {
    let mut image = image.clone();
    image.repository = format!("docker.io/{}", image.repository);
    image
}

#[test]
fn docker() -> Result<()> {
    if or_skip(Docker::find()).is_none() || or_skip(registry::find()).is_none() {
        return Ok(());
    }
    let image = images()?.small;
    let registry = Registry::start(&[&image])?;
    let docker = Docker::with_mirror(registry.address())?;
    pull(registry, &docker, &image)
}

#[test]
fn containerd() -> Result<()> {
    if or_skip(Containerd::find()).is_none() || or_skip(registry::find()).is_none() {
        return Ok(());
    }
    let image = images()?.small;
    let registry = Registry::start(&[&image])?;
    let containerd = Containerd::with_mirror("docker.io", registry.address())?;
    pull(registry, &containerd, &image)
}

#[test]
fn podman() -> Result<()> {
    if or_skip(Podman::find()).is_none() || or_skip(registry::find()).is_none() {
        return Ok(());
    }
    let image = images()?.small;
    let registry = Registry::start(&[&by_path(&image)])?;
    let podman = Podman::with_mirror("docker.io", registry.address())?;
    pull(registry, &podman, &image)
}

#[test]
fn skopeo() -> Result<()> {
    if or_skip(Skopeo::find()).is_none() || or_skip(registry::find()).is_none() {
        return Ok(());
    }
    let image = images()?.small;
    let registry = Registry::start(&[&by_path(&image)])?;
    let skopeo = Skopeo::with_path(registry.address(), "docker.io")?;
    pull(registry, &skopeo, &image)
}

#[test]
fn crane() -> Result<()> {
    if or_skip(Crane::find()).is_none() || or_skip(registry::find()).is_none() {
        return Ok(());
    }
    let image = images()?.small;
    let registry = Registry::start(&[&by_path(&image)])?;
    let crane = Crane::with_path(registry.address(), "docker.io")?;
    pull(registry, &crane, &image)
}
