//! Every client: the first pull, then the second with an empty store and the upstream gone.

use std::net::SocketAddr;

use anyhow::Result;
use pierhead_tests::{
    clients::{Client, Containerd, Crane, Docker, Podman, Pulled, Skopeo},
    image::{GREETING, images},
    layout::Image,
    pierhead::{Options, Pierhead},
    registry::{self, Registry},
    tool::{Missing, or_skip},
};

/// The whole story of one client, with an index of two platforms and with an image of more than
/// 300 MB; the client is made once it is known where pierhead listens.
fn story<C: Client>(
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
    // What a client asks for: its platform's blobs; skopeo and crane with an index: all.
    for image in both {
        let gets = registry.blob_gets_of(&image.here()?.blobs())?;
        for (blob, count) in gets {
            assert_eq!(
                count,
                1,
                "{}: the upstream was asked {count} times for {blob}",
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

/// Pulls and runs, compared with the origin.
fn check(client: &dyn Client, image: &Image) -> Result<()> {
    let expected = Pulled {
        root: image.root.clone(),
        config: image.here()?.config.clone(),
    };
    assert_eq!(
        client.pull(&image.name())?,
        expected,
        "{} has another image",
        client.name()
    );
    if let Some(said) = client.run(&image.name(), &[])? {
        assert_eq!(said, GREETING);
    }
    Ok(())
}

#[test]
fn docker_with_a_registry_mirror() -> Result<()> {
    story(Docker::find(), Docker::with_mirror)
}

#[test]
fn docker_by_path() -> Result<()> {
    story(Docker::find(), |pierhead| {
        Docker::with_path(pierhead, "docker.io")
    })
}

#[test]
fn containerd_with_hosts_toml() -> Result<()> {
    story(Containerd::find(), |pierhead| {
        Containerd::with_mirror("docker.io", pierhead)
    })
}

#[test]
fn podman_with_a_mirror() -> Result<()> {
    story(Podman::find(), |pierhead| {
        Podman::with_mirror("docker.io", pierhead)
    })
}

#[test]
fn skopeo_by_path() -> Result<()> {
    story(Skopeo::find(), |pierhead| {
        Skopeo::with_path(pierhead, "docker.io")
    })
}

#[test]
fn crane_by_path() -> Result<()> {
    story(Crane::find(), |pierhead| {
        Crane::with_path(pierhead, "docker.io")
    })
}

/// An index and all that it names, exactly: for clients that copy every platform.
#[test]
fn all_platforms_of_an_index() -> Result<()> {
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

/// Two versions of an image through one pierhead: what they share crosses the uplink once.
#[test]
fn an_update_fetches_only_what_is_new() -> Result<()> {
    if or_skip(Podman::find()).is_none() || or_skip(registry::find()).is_none() {
        return Ok(());
    }
    let images = images()?;
    let mut registry = Registry::start(&[&images.small, &images.update])?;
    let pierhead = Pierhead::start(Options::new().upstream("docker.io", &registry.url()))?;
    let podman = Podman::with_mirror("docker.io", pierhead.address())?;
    check(&podman, &images.small)?;
    // Without what it has, podman would not ask for the shared layers at all.
    podman.empty()?;
    check(&podman, &images.update)?;
    let mut blobs = images.small.here()?.blobs();
    blobs.extend(images.update.here()?.blobs());
    for (blob, count) in registry.blob_gets_of(&blobs)? {
        assert_eq!(count, 1, "{blob}");
    }
    Ok(())
}

/// Two clients of different kinds, one cache: what one pulled by a mirror, the other has by path.
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
