//! End-to-end pulls by every client: first through pierhead from the upstream, then from the cache,
//! with the client's store emptied and the upstream stopped.

use std::net::SocketAddr;

use anyhow::Result;
use pierhead_tests::{
    clients::{Client, Containerd, Crane, Docker, Podman, PullResult, Skopeo},
    image::{GREETING, images},
    layout::Image,
    pierhead::{Options, Pierhead},
    registry::{self, Registry},
    tool::{Missing, or_skip},
};

/// Runs both pulls with one client, for an index of two platforms and for an image of more than 300
/// MB. `start` creates a client that uses pierhead's address.
fn pull_from_upstream_then_cache<C: Client>(
    found: Result<impl Sized, Missing>,
    client: impl FnOnce(SocketAddr) -> Result<C>,
) -> Result<()> {
    if or_skip(found).is_none() || or_skip(registry::find()).is_none() {
        return Ok(());
    }
    let images = images()?;
    assert!(images.large.size > 300_000_000);
    let both = [&images.small, &images.large];
    let mut registry = Registry::start(&both)?;
    let pierhead = Pierhead::start(Options::new().upstream("docker.io", &registry.url()))?;
    let client = client(pierhead.address())?;

    for image in both {
        check(&client, image)?;
    }
    // Most clients request only the blobs of their platform; skopeo and crane request all blobs of
    // an index.
    for image in both {
        let gets = registry.blob_gets_of(&image.for_this_platform()?.blobs())?;
        for (blob, count) in gets {
            assert_eq!(
                count,
                1,
                "{}: the upstream got {count} requests for {blob}",
                client.name()
            );
        }
    }

    client.empty()?;
    registry.stop()?;
    for image in both {
        check(&client, image)?;
    }
    Ok(())
}

/// Pulls and runs an image, and compares its digests with those of the origin.
fn check(client: &dyn Client, image: &Image) -> Result<()> {
    let expected = PullResult {
        root: image.root.clone(),
        config: image.for_this_platform()?.config.clone(),
    };
    assert_eq!(
        client.pull(&image.name())?,
        expected,
        "{} has another image",
        client.name()
    );
    if let Some(output) = client.run(&image.name(), &[])? {
        assert_eq!(output, GREETING);
    }
    Ok(())
}

#[test]
fn docker_pulls_by_a_registry_mirror() -> Result<()> {
    pull_from_upstream_then_cache(Docker::find(), Docker::with_mirror)
}

#[test]
fn docker_pulls_by_path() -> Result<()> {
    pull_from_upstream_then_cache(Docker::find(), |pierhead| {
        Docker::with_path(pierhead, "docker.io")
    })
}

#[test]
fn containerd_pulls_by_hosts_toml() -> Result<()> {
    pull_from_upstream_then_cache(Containerd::find(), |pierhead| {
        Containerd::with_mirror("docker.io", pierhead)
    })
}

#[test]
fn podman_pulls_by_a_mirror() -> Result<()> {
    pull_from_upstream_then_cache(Podman::find(), |pierhead| {
        Podman::with_mirror("docker.io", pierhead)
    })
}

#[test]
fn skopeo_pulls_by_path() -> Result<()> {
    pull_from_upstream_then_cache(Skopeo::find(), |pierhead| {
        Skopeo::with_path(pierhead, "docker.io")
    })
}

#[test]
fn crane_pulls_by_path() -> Result<()> {
    pull_from_upstream_then_cache(Crane::find(), |pierhead| {
        Crane::with_path(pierhead, "docker.io")
    })
}

/// Clients that copy an index with all platforms get the index unchanged.
#[test]
fn all_platforms_of_an_index_are_copied() -> Result<()> {
    if or_skip(Containerd::find()).is_none() || or_skip(registry::find()).is_none() {
        return Ok(());
    }
    let image = images()?.small;
    let mut registry = Registry::start(&[&image])?;
    let pierhead = Pierhead::start(Options::new().upstream("docker.io", &registry.url()))?;
    let containerd = Containerd::with_mirror("docker.io", pierhead.address())?;
    containerd.pull_all(&image.name())?;
    let mut contents = containerd.contents()?;
    contents.sort_unstable();
    let mut expected = [image.documents(), image.blobs()].concat();
    expected.sort_unstable();
    assert_eq!(contents, expected);
    for (blob, count) in registry.blob_gets_of(&image.blobs())? {
        assert_eq!(count, 1, "{blob}");
    }
    Ok(())
}

/// pierhead downloads the layers that two versions share only once.
#[test]
fn an_update_downloads_only_new_layers() -> Result<()> {
    if or_skip(Podman::find()).is_none() || or_skip(registry::find()).is_none() {
        return Ok(());
    }
    let images = images()?;
    let mut registry = Registry::start(&[&images.small, &images.update])?;
    let pierhead = Pierhead::start(Options::new().upstream("docker.io", &registry.url()))?;
    let podman = Podman::with_mirror("docker.io", pierhead.address())?;
    check(&podman, &images.small)?;
    // Empties podman's store, because podman does not request layers that it has.
    podman.empty()?;
    check(&podman, &images.update)?;
    let mut blobs = images.small.for_this_platform()?.blobs();
    blobs.extend(images.update.for_this_platform()?.blobs());
    for (blob, count) in registry.blob_gets_of(&blobs)? {
        assert_eq!(count, 1, "{blob}");
    }
    Ok(())
}

/// One client pulls through pierhead as a mirror. Another client gets the same image from the cache
/// by its path.
#[test]
fn clients_share_what_they_pull() -> Result<()> {
    if or_skip(Containerd::find()).is_none()
        || or_skip(Skopeo::find()).is_none()
        || or_skip(registry::find()).is_none()
    {
        return Ok(());
    }
    let image = images()?.small;
    let mut registry = Registry::start(&[&image])?;
    let pierhead = Pierhead::start(Options::new().upstream("docker.io", &registry.url()))?;
    Containerd::with_mirror("docker.io", pierhead.address())?.pull_all(&image.name())?;
    registry.stop()?;
    check(&Skopeo::with_path(pierhead.address(), "docker.io")?, &image)
}
