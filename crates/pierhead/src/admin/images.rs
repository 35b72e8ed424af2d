//! Handlers of the admin API that list or remove cached images, or prune the cache to a size.

use std::sync::Arc;

use http::StatusCode;
use pierhead_cache::TagKey;
use pierhead_oci::units::human_bytes;
use pierhead_oci::{Reference, Target};

use super::api::{Disk, Image, ImagePlatform, Images, Prune, Pruned, Removed};
use super::body::{error_response, json};
use super::routes::Outcome;
use super::{Admin, disk_usage};

/// Maximum number of images in a list. For each image, pierhead reads one tag file and one or two
/// manifests.
const MAX_IMAGES: usize = 1000;

fn fail(status: StatusCode, error: impl ToString) -> Box<super::body::AdminResponse> {
    Box::new(error_response(status, error.to_string()))
}

impl Admin {
    /// Lists images. Reads one tag file and one or two manifests of each image, without counting
    /// these reads as hits or accesses.
    pub(super) async fn images(&self) -> Outcome {
        let known = self.cache.tags().images(MAX_IMAGES + 1).await;
        let mut known = known.map_err(|error| fail(StatusCode::INTERNAL_SERVER_ERROR, error))?;
        let more = known.len() > MAX_IMAGES;
        known.truncate(MAX_IMAGES);
        let pins = self.cache.pins();
        let mut images = Vec::new();
        for reference in known {
            // The cache keeps the tag of an image after the image was evicted.
            let Ok(cached) = self.proxy.cached(&reference).await else {
                continue;
            };
            let image = reference.to_string();
            let entries: Vec<_> = cached
                .digests
                .iter()
                .filter_map(|digest| self.cache.blob_stat(digest))
                .collect();
            let platforms = cached.platforms.into_iter();
            images.push(Image {
                pinned: pins.iter().any(|(label, _)| *label == image),
                image,
                digest: Some(cached.root),
                size: entries.iter().map(|entry| entry.size).sum(),
                digests: entries.into_iter().map(|entry| entry.digest).collect(),
                platforms: platforms
                    // Omits BuildKit's attestation manifests, whose platform is `unknown/unknown`.
                    .filter(|it| !it.platform.as_ref().is_some_and(|of| of.is_unknown()))
                    .map(|it| ImagePlatform {
                        platform: it.platform.map(|of| of.to_string()),
                        digest: it.manifest,
                        size: it.size,
                        complete: it.is_complete,
                        accessed: it.accessed,
                    })
                    .collect(),
            });
        }
        images.sort_by(|a, b| a.image.cmp(&b.image));
        Ok(json(&Images { images, more }))
    }

    /// Deletes an image: its tags, the blobs that no other image uses, and its bundles.
    pub(super) async fn remove_image(self: Arc<Self>, reference: &Reference) -> Outcome {
        let image = reference.to_string();
        let pinned = self.cache.pins().into_iter().find(|(label, digests)| {
            let is_root = match &reference.target {
                Target::Digest(digest) => digests.contains(digest),
                Target::Tag(_) => false,
            };
            *label == image || is_root
        });
        if let Some((label, _)) = pinned {
            return Err(fail(
                StatusCode::CONFLICT,
                format!("{image} is pinned: `pierhead cache unpin {label}` first"),
            ));
        }
        let known = self.cache.tags().images(usize::MAX).await;
        let known = known.map_err(|error| fail(StatusCode::INTERNAL_SERVER_ERROR, error))?;
        let removal = self.proxy.removal(reference, known).await;
        let removal = removal.map_err(|_| {
            fail(
                StatusCode::NOT_FOUND,
                format!("{image} is not in the cache: `pierhead cache ls` lists the images"),
            )
        })?;
        for name in &removal.tags {
            let removed = self
                .cache
                .tags()
                .remove(&TagKey::Manifest(name.clone()))
                .await;
            removed.map_err(|error| fail(StatusCode::INTERNAL_SERVER_ERROR, error))?;
        }
        let freed = self.cache.remove(removal.digests).await;
        let freed = freed.map_err(|error| fail(StatusCode::INTERNAL_SERVER_ERROR, error))?;
        let freed = freed + self.prune_bundles(u64::MAX).await?;
        tracing::info!(%image, freed_bytes = freed, "image removed");
        Ok(json(&Removed {
            image,
            names: removal.tags.iter().map(ToString::to_string).collect(),
            freed,
        }))
    }

    /// Frees disk space. Deletes bundles before blobs: pierhead can build a deleted bundle again
    /// from blobs, but must download a deleted blob again.
    pub(super) async fn prune(self: Arc<Self>, prune: &Prune) -> Outcome {
        let Disk {
            tags,
            pins,
            bundles,
            catalog,
            ..
        } = self.disk().await?;
        // Files of other programs do not count: a prune cannot delete them.
        let fixed = tags + pins + catalog;
        if prune.target > 0 && fixed > prune.target {
            let fixed = human_bytes(fixed);
            return Err(fail(
                StatusCode::CONFLICT,
                format!(
                    "nothing was deleted: tags, pins and the catalog take {fixed}, and a prune does not delete them; use a larger size, or \
                     --all to delete every bundle and unpinned blob"
                ),
            ));
        }
        let room = prune.target.saturating_sub(fixed);
        let stat = self.cache.stat();
        // The files of the bundle database do not shrink when bundles are deleted.
        let kept = bundles.saturating_sub(self.bundle_bytes().await?);
        let for_bundles = room.saturating_sub(stat.used + stat.reserved + kept);
        let mut freed = self.prune_bundles(for_bundles).await?;
        let bundles = self.disk().await?.bundles;
        let blobs = self.cache.prune(room.saturating_sub(bundles)).await;
        let blobs = blobs.map_err(|error| fail(StatusCode::INTERNAL_SERVER_ERROR, error))?;
        freed += blobs;
        if blobs > 0 {
            // Deletes the bundles of the images that the prune just removed.
            freed += self.prune_bundles(u64::MAX).await?;
        }
        let disk = self.disk().await?;
        let used = disk.total;
        tracing::info!(freed_bytes = freed, used_bytes = used, "cache pruned");
        Ok(json(&Pruned {
            freed,
            used,
            pinned: self.cache.stat().pinned,
            disk,
        }))
    }

    /// Deletes bundles by [`pierhead_bundle_server::BundleServer::prune`], and returns the freed
    /// bytes.
    async fn prune_bundles(&self, target: u64) -> Result<u64, Box<super::body::AdminResponse>> {
        let before = self.bundle_bytes().await?;
        let Some(bundle_server) = self.bundle_server.clone() else {
            return Ok(0);
        };
        let left = blocking(move || bundle_server.prune(target)).await?;
        let left = left.map_err(|error| fail(StatusCode::INTERNAL_SERVER_ERROR, error))?;
        Ok(before.saturating_sub(left))
    }

    /// Returns the bytes on disk of the bundle server's packs, plans and indexes.
    async fn bundle_bytes(&self) -> Result<u64, Box<super::body::AdminResponse>> {
        let Some(bundle_server) = self.bundle_server.clone() else {
            return Ok(0);
        };
        let stat = blocking(move || bundle_server.stat()).await?;
        Ok(stat.packs + stat.plans + stat.index)
    }

    async fn disk(&self) -> Result<Disk, Box<super::body::AdminResponse>> {
        let (data, stat) = (self.data.clone(), self.cache.stat());
        blocking(move || disk_usage::usage(data.as_ref(), &stat)).await
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Box<super::body::AdminResponse>> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| fail(StatusCode::INTERNAL_SERVER_ERROR, error))
}
