//! Runs the commands `pierhead cache …`, as a client of the admin API of the running daemon.

mod connection;
mod images;
mod output;
mod progress;

use std::collections::HashMap;

use anyhow::Context as _;
use http::Method;
use pierhead_oci::{Digest, Reference};

use crate::api::{
    Blob, Blobs, Event, Images, Pin, Pins, Prune, Pruned, Removed, Stat, Tier, TierLimit, Warm,
};
use crate::cli::cache::{CacheArgs, CacheCommand, TierCommand};
use crate::exit_code::CommandError;
pub(crate) use connection::AdminClient;
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
                for image in images {
                    let pin: Pin = client
                        .call(Method::PUT, &pin_path(image), None::<&()>)
                        .await?;
                    output.pinned(&pin)?;
                }
            }
            CacheCommand::Unpin { images } => {
                for image in images {
                    let pin: Pin = client
                        .call(Method::DELETE, &pin_path(image), None::<&()>)
                        .await?;
                    output.unpinned(&pin)?;
                }
            }
            CacheCommand::Rm { images } => {
                let mut first_error = None;
                for image in images {
                    let path = format!("/v1/images?image={image}");
                    let removed = client.call::<Removed>(Method::DELETE, &path, None::<&()>);
                    match removed.await {
                        Ok(removed) => output.removed(&removed)?,
                        // Keeps the first error: `main` prints it and derives the exit code from
                        // it. The errors of further images are printed here.
                        Err(error) if first_error.is_none() => first_error = Some(error),
                        Err(error) => eprintln!("error: {error:#}"),
                    }
                }
                if let Some(error) = first_error {
                    return Err(error.into());
                }
            }
            CacheCommand::Prune { to, all: _ } => {
                let prune = Prune {
                    target: to.unwrap_or(0),
                };
                output.pruned(
                    &client
                        .call::<Pruned>(Method::POST, "/v1/prune", Some(&prune))
                        .await?,
                )?;
            }
            CacheCommand::Tier { command } => {
                let (tier, wanted): (Tier, u64) = match command {
                    TierCommand::Stat => (client.get("/v1/tier").await?, 0),
                    TierCommand::SetLimit { limit } => {
                        let body = TierLimit { limit: *limit };
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
