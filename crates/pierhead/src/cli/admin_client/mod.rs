//! Runs the commands `pierhead cache …`, as a client of the admin API of the running daemon.

mod connection;
mod images;
mod output;
mod progress;

use std::collections::HashMap;

use anyhow::Context as _;
use http::Method;
use pierhead_oci::{Digest, Reference};

use crate::admin::api::{
    Blob, Blobs, Event, Images, Pin, Pins, Prune, Pruned, Removed, Stat, TierLimitChange, TierStat,
    Warm,
};
use crate::cli::cache::{CacheArgs, CacheCommand, TierCommand};
use crate::cli::exit_code::{CommandError, describe, is_broken_pipe, reason_of};
use crate::cli::terminal::escaped_lines;
pub(crate) use connection::{AdminClient, UnreachableListener};
use output::Output;

/// Runs a `cache` command.
pub(crate) fn run(args: &CacheArgs) -> Result<(), CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    let client = AdminClient::new(args.admin.clone());
    let output = Output { json: args.json };
    runtime.block_on(async {
        match &args.command {
            CacheCommand::Ls { pins: true, .. } => {
                output.pins(&client.get::<Pins>("/v1/pins").await?.pins)?
            }
            CacheCommand::Ls { blobs: true, .. } => list_blobs(&client, output).await?,
            CacheCommand::Ls { .. } => {
                let images: Images = client.get("/v1/images").await?;
                output.images(&images.images)?;
                warn_if_incomplete(&images);
            }
            CacheCommand::Stat => output.stat(&client.get::<Stat>("/v1/stat").await?)?,
            CacheCommand::Pin { images } => {
                for_each_image(images, async |image| {
                    let path = pin_path(image);
                    let pin = client.call::<Pin>(Method::PUT, &path, None::<&()>);
                    Ok(output.pinned(&pin.await?)?)
                })
                .await?;
            }
            CacheCommand::Unpin { images } => {
                for_each_image(images, async |image| {
                    let path = pin_path(image);
                    let pin = client.call::<Pin>(Method::DELETE, &path, None::<&()>);
                    Ok(output.unpinned(&pin.await?)?)
                })
                .await?;
            }
            CacheCommand::Rm { images } => {
                for_each_image(images, async |image| {
                    let path = format!("/v1/images?image={image}");
                    let removed = client.call::<Removed>(Method::DELETE, &path, None::<&()>);
                    Ok(output.removed(&removed.await?)?)
                })
                .await?;
            }
            CacheCommand::Prune { to, all: _ } => {
                let prune = Prune {
                    target: to.unwrap_or(0),
                };
                let pruned = client.call::<Pruned>(Method::POST, "/v1/prune", Some(&prune));
                output.pruned(&pruned.await?, prune.target)?;
            }
            CacheCommand::Tier { command } => {
                let (tier, wanted): (TierStat, u64) = match command {
                    TierCommand::Stat => (client.get("/v1/tier").await?, 0),
                    TierCommand::SetLimit { limit } => {
                        let body = TierLimitChange { limit: *limit };
                        let tier = client.call(Method::PUT, "/v1/tier", Some(&body));
                        (tier.await?, *limit)
                    }
                };
                output.tier(&tier, wanted)?;
            }
            CacheCommand::Verify => {
                show_events(&client, "/v1/verify", None::<&()>, output, "verified").await?
            }
            CacheCommand::Warm {
                images,
                platforms,
                pin,
            } => {
                let images = images.iter().map(Reference::to_string).collect();
                let warm = Warm {
                    images,
                    platforms: platforms.clone(),
                    pin: *pin,
                };
                show_events(&client, "/v1/warm", Some(&warm), output, "warmed").await?;
            }
        }
        Ok(())
    })
}

/// Runs a command for each image. An error of one image does not stop the work on the other images:
/// each error is one line on standard error, and the first error determines the exit code. A
/// timeout of the connection ends the command, because each further image would wait for the same
/// timeout.
async fn for_each_image(
    images: &[Reference],
    run: impl AsyncFn(&Reference) -> anyhow::Result<()>,
) -> Result<(), CommandError> {
    let mut first = None;
    for image in images {
        let Err(error) = run(image).await else {
            continue;
        };
        // No process reads standard output any more.
        if is_broken_pipe(&error) {
            return Err(error.into());
        }
        eprintln!("{}", failure_line(image, &describe(&error)));
        first.get_or_insert(reason_of(&error));
        let unreachable = error.downcast_ref::<UnreachableListener>();
        if unreachable.is_some_and(UnreachableListener::is_timeout) {
            break;
        }
    }
    first.map_or(Ok(()), |reason| Err(CommandError::Reported(reason)))
}

/// The line that reports the error of one image. Most errors of the daemon name the image already.
fn failure_line(image: &Reference, error: &str) -> String {
    let error = escaped_lines(error);
    match error.contains(&image.to_string()) {
        true => format!("pierhead: {error}"),
        false => format!("pierhead: {image}: {error}"),
    }
}

fn warn_if_incomplete(images: &Images) {
    if images.more {
        eprintln!("warning: the cache has more images than the 1000 listed");
    }
}

async fn list_blobs(client: &AdminClient, output: Output) -> anyhow::Result<()> {
    let images: Images = client.get("/v1/images").await?;
    warn_if_incomplete(&images);
    let mut images_of_blob = HashMap::<Digest, Vec<String>>::new();
    for image in images.images {
        for digest in image.digests {
            images_of_blob
                .entry(digest)
                .or_default()
                .push(image.image.clone());
        }
    }
    let mut is_first = true;
    for_each_page(client, |mut blobs| {
        if is_first && !blobs.is_empty() {
            output.blobs_heading()?;
            is_first = false;
        }
        for blob in &mut blobs {
            blob.images = images_of_blob.remove(&blob.digest).unwrap_or_default();
        }
        output.blobs(&blobs)
    })
    .await
}

/// Calls `visit` with each page of the list of cached blobs.
async fn for_each_page(
    client: &AdminClient,
    mut visit: impl FnMut(Vec<Blob>) -> std::io::Result<()>,
) -> anyhow::Result<()> {
    let mut after = None::<Digest>;
    loop {
        let query = after
            .map(|digest| format!("?after={digest}"))
            .unwrap_or_default();
        let page: Blobs = client.get(&format!("/v1/blobs{query}")).await?;
        visit(page.blobs)?;
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(()),
        }
    }
}

fn pin_path(image: &Reference) -> String {
    // The complete reference of an image needs no percent-encoding in a query.
    format!("/v1/pins?image={image}")
}

/// Shows the events of a long-running request as they arrive.
async fn show_events(
    client: &AdminClient,
    path: &str,
    body: Option<&impl serde::Serialize>,
    output: Output,
    verb: &str,
) -> anyhow::Result<()> {
    let mut events = client.events(path, body).await?;
    let mut view = progress::EventView::new(output, verb);
    while let Some(event) = events.next().await? {
        view.show(&event)?;
        if let Event::Done { bad, .. } = event {
            view.finish();
            anyhow::ensure!(bad == 0, "{bad} failed");
            return Ok(());
        }
    }
    view.finish();
    anyhow::bail!("the connection to pierhead ended before the request was complete")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::exit_code::{ExitError, ExitReason};

    #[tokio::test]
    async fn every_image_is_tried_and_the_first_error_has_the_exit_code() {
        let images = ["a.io/b:1", "a.io/b:2", "a.io/b:3", "a.io/b:4"]
            .map(|text| text.parse::<Reference>().expect(text));
        let tried = std::cell::RefCell::new(Vec::new());
        let result = for_each_image(&images, async |image| {
            tried.borrow_mut().push(image.to_string());
            match image.to_string().as_str() {
                "a.io/b:2" => Err(ExitError::new(ExitReason::MissingFile, "not here").into()),
                "a.io/b:3" => Err(ExitError::new(ExitReason::DiskFull, "no space").into()),
                _ => Ok(()),
            }
        })
        .await;
        assert_eq!(tried.into_inner().len(), images.len());
        let Err(CommandError::Reported(reason)) = result else {
            panic!("{result:?}");
        };
        assert_eq!(reason, ExitReason::MissingFile);
        for_each_image(&images, async |_| Ok(()))
            .await
            .expect("no error");
    }

    #[tokio::test]
    async fn a_timeout_of_the_connection_ends_the_command() {
        use std::io::ErrorKind;
        let images = ["a.io/b:1", "a.io/b:2", "a.io/b:3", "a.io/b:4"]
            .map(|text| text.parse::<Reference>().expect(text));
        let tried = std::cell::Cell::new(0);
        let unreachable = |kind: ErrorKind| UnreachableListener {
            authority: "127.0.0.1:5001".parse().expect("an authority"),
            error: kind.into(),
        };
        let result = for_each_image(&images, async |_| {
            tried.set(tried.get() + 1);
            Err(match tried.get() {
                1 => ExitError::new(ExitReason::MissingFile, "not here").into(),
                2 => unreachable(ErrorKind::ConnectionRefused).into(),
                _ => unreachable(ErrorKind::TimedOut).into(),
            })
        })
        .await;
        assert_eq!(tried.get(), 3);
        let Err(CommandError::Reported(reason)) = result else {
            panic!("{result:?}");
        };
        assert_eq!(reason, ExitReason::MissingFile, "the first error");
    }

    #[tokio::test]
    async fn a_closed_pipe_ends_the_command() {
        let images = ["a.io/b:1", "a.io/b:2"].map(|text| text.parse::<Reference>().expect(text));
        let tried = std::cell::Cell::new(0);
        let result = for_each_image(&images, async |_| {
            tried.set(tried.get() + 1);
            Err(std::io::Error::from(std::io::ErrorKind::BrokenPipe).into())
        })
        .await;
        assert_eq!(tried.get(), 1);
        assert!(matches!(result, Err(CommandError::Failed(_))), "{result:?}");
    }

    #[test]
    fn a_failure_names_its_image_once() {
        let image: Reference = "docker.io/library/redis:7".parse().expect("a reference");
        for (error, line) in [
            (
                "docker.io/library/redis:7 is pinned",
                "pierhead: docker.io/library/redis:7 is pinned",
            ),
            (
                "nothing responds",
                "pierhead: docker.io/library/redis:7: nothing responds",
            ),
            (
                "\u{1b}[2J",
                "pierhead: docker.io/library/redis:7: \\u{1b}[2J",
            ),
        ] {
            assert_eq!(failure_line(&image, error), line);
        }
    }
}
