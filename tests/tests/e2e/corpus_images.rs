//! End-to-end pulls of realistic images, built from Debian and Python packages in two versions
//! each: every client pulls and runs them.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use pierhead_tests::{
    clients::{Client, Containerd, Docker, Podman, PullResult},
    image::corpus,
    layout::Image,
    pierhead::{Options, Pierhead},
    registry::{self, Registry},
    tool::{Missing, or_skip},
};

/// A command to run in an image, and its expected output.
fn command(image: &Image) -> (&'static [&'static str], &'static str) {
    match image.repository.as_str() {
        "library/redis" => (&["redis-server", "--version"], "Redis server v="),
        "library/flask" => (&["python3", "-m", "flask", "--version"], "Flask 3."),
        _ => (&["sh", "-c", "echo it $((40 + 2))"], "it 42"),
    }
}

/// Pulls and runs all images that the client supports, then again while the upstream is stopped.
fn pull_and_run_all<C: Client>(
    found: Result<impl Sized, Missing>,
    understands: fn(&Image) -> bool,
    client: impl FnOnce(SocketAddr) -> Result<C>,
) -> Result<()> {
    let Some(images) = or_skip(corpus()) else {
        return Ok(());
    };
    if or_skip(found).is_none() || or_skip(registry::find()).is_none() {
        return Ok(());
    }
    let images: Vec<&Image> = images.iter().filter(|it| understands(it)).collect();
    let mut registry = Registry::start(&images)?;
    let pierhead = Pierhead::start(Options::new().upstream("docker.io", &registry.url()))?;
    let client = client(pierhead.address())?;
    check(&client, &images)?;
    // A client may skip a layer whose contents it already has, but never a config.
    let configs = images
        .iter()
        .map(|image| Ok(image.for_this_platform()?.config.clone()));
    for (blob, count) in registry.blob_gets_of(&configs.collect::<Result<Vec<_>>>()?)? {
        assert_eq!(count, 1, "{}: {blob}", client.name());
    }
    client.empty()?;
    registry.stop()?;
    check(&client, &images)
}

fn check(client: &dyn Client, images: &[&Image]) -> Result<()> {
    for image in images {
        let expected = PullResult {
            root: image.root.clone(),
            config: image.for_this_platform()?.config.clone(),
        };
        assert_eq!(
            client.pull(&image.name())?,
            expected,
            "{} of {}",
            image.name(),
            client.name()
        );
        let (words, response) = command(image);
        let output = client.run(&image.name(), words)?.unwrap_or_default();
        ensure!(
            output.contains(response),
            "{} in {} printed {output:?}",
            image.name(),
            client.name()
        );
    }
    Ok(())
}

#[test]
fn docker_pulls_and_runs_the_corpus() -> Result<()> {
    // Docker before 23 does not support zstd.
    pull_and_run_all(
        Docker::find(),
        |image| !image.repository.ends_with("/zstd"),
        Docker::with_mirror,
    )
}

#[test]
fn containerd_pulls_and_runs_the_corpus() -> Result<()> {
    pull_and_run_all(
        Containerd::find(),
        |_| true,
        |pierhead| Containerd::with_mirror("docker.io", pierhead),
    )
}

#[test]
fn podman_pulls_and_runs_the_corpus() -> Result<()> {
    pull_and_run_all(
        Podman::find(),
        |_| true,
        |pierhead| Podman::with_mirror("docker.io", pierhead),
    )
}
