//! The `cache` commands: the client side of the admin API.

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

/// Runs one of them.
pub(crate) fn run(args: &CacheArgs) -> Result<(), CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    let daemon = AdminClient::new(args.admin.clone());
    let output = Output { json: args.json };
    runtime.block_on(async {
        match &args.command {
            CacheCommand::Ls { pins: true, .. } => {
                output.pins(&daemon.get::<Pins>("/v1/pins").await?.pins)?
            }
            CacheCommand::Ls { blobs: true, .. } => list(&daemon, output).await?,
            CacheCommand::Ls { .. } => {
                let known: Images = daemon.get("/v1/images").await?;
                output.images(&known.images)?;
                warn_of_more(&known);
            }
            CacheCommand::Stat => output.stat(&daemon.get::<Stat>("/v1/stat").await?)?,
            CacheCommand::Pin { images } => {
                for image in images {
                    let pin: Pin = daemon
                        .call(Method::PUT, &pin_path(image), None::<&()>)
                        .await?;
                    output.pinned(&pin)?;
                }
            }
            CacheCommand::Unpin { images } => {
                for image in images {
                    let pin: Pin = daemon
                        .call(Method::DELETE, &pin_path(image), None::<&()>)
                        .await?;
                    output.unpinned(&pin)?;
                }
            }
            CacheCommand::Rm { images } => {
                for image in images {
                    let path = format!("/v1/images?image={image}");
                    let removed: Removed = daemon.call(Method::DELETE, &path, None::<&()>).await?;
                    output.removed(&removed)?;
                }
            }
            CacheCommand::Prune { to, all: _ } => {
                let prune = Prune {
                    target: to.unwrap_or(0),
                };
                output.pruned(
                    &daemon
                        .call::<Pruned>(Method::POST, "/v1/prune", Some(&prune))
                        .await?,
                )?;
            }
            CacheCommand::Tier { command } => {
                let (tier, wanted): (Tier, u64) = match command {
                    TierCommand::Stat => (daemon.get("/v1/tier").await?, 0),
                    TierCommand::SetLimit { limit } => {
                        let body = TierLimit { limit: *limit };
                        let tier = daemon.call(Method::PUT, "/v1/tier", Some(&body));
                        (tier.await?, *limit)
                    }
                };
                output.tier(&tier, wanted)?;
            }
            CacheCommand::Verify => {
                follow(&daemon, "/v1/verify", None::<&()>, output, "verified").await?
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
                follow(&daemon, "/v1/warm", Some(&warm), output, "warmed").await?;
            }
        }
        Ok(())
    })
}

fn warn_of_more(known: &Images) {
    if known.more {
        eprintln!("warning: the cache has more images than the 1000 listed");
    }
}

async fn list(daemon: &AdminClient, output: Output) -> anyhow::Result<()> {
    let known: Images = daemon.get("/v1/images").await?;
    warn_of_more(&known);
    let mut parts = HashMap::<Digest, Vec<String>>::new();
    for image in known.images {
        for digest in image.digests {
            parts.entry(digest).or_default().push(image.image.clone());
        }
    }
    let mut is_first = true;
    each_page(daemon, |mut blobs| {
        if is_first && !blobs.is_empty() {
            output.blobs_heading()?;
            is_first = false;
        }
        for blob in &mut blobs {
            blob.images = parts.remove(&blob.digest).unwrap_or_default();
        }
        output.blobs(&blobs)
    })
    .await
}

/// All blobs, page by page.
async fn each_page(
    daemon: &AdminClient,
    mut visit: impl FnMut(Vec<Blob>) -> std::io::Result<()>,
) -> anyhow::Result<()> {
    let mut after = None::<Digest>;
    loop {
        let query = after
            .map(|digest| format!("?after={digest}"))
            .unwrap_or_default();
        let page: Blobs = daemon.get(&format!("/v1/blobs{query}")).await?;
        visit(page.blobs)?;
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(()),
        }
    }
}

fn pin_path(image: &Reference) -> String {
    // A complete reference has no character that a query could misread.
    format!("/v1/pins?image={image}")
}

/// Shows the events of a long answer as they come.
async fn follow(
    daemon: &AdminClient,
    path: &str,
    body: Option<&impl serde::Serialize>,
    output: Output,
    verb: &str,
) -> anyhow::Result<()> {
    let mut events = daemon.events(path, body).await?;
    let mut view = progress::View::new(output, verb);
    while let Some(event) = events.next().await? {
        view.show(&event)?;
        if let Event::Done { bad, .. } = event {
            view.finish();
            anyhow::ensure!(bad == 0, "{bad} failed");
            return Ok(());
        }
    }
    view.finish();
    anyhow::bail!("pierhead ended before it was done")
}
