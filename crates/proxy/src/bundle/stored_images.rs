//! After the start, offers images that are already cached to the bundle server, one at a time,
//! because the bundle server may not know them yet.

use std::time::Duration;

use pierhead_bundle_server::{BundleServer, Image, State};
use pierhead_cache::{Cache, Error, TagKey, TagRecord};
use pierhead_oci::{Body, Descriptor, Digest, Manifest, MediaType, Reference};

use crate::blocking::blocking;
use crate::pull::document::MAX_EAGER;
use crate::pull::manifest::is_image;

/// Maximum number of cached images that are offered to the bundle server: the images whose tags
/// were confirmed last.
const MAX_IMAGES: usize = 256;
/// Maximum number of tags that are considered after the start. The file of each of these tags is
/// read.
const MAX_TAGS: usize = 10_000;
/// Maximum number of images of one index that are considered.
const MAX_PLATFORMS: usize = 64;
/// Interval at which the state of the last offered image is checked.
const STATE_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Offers each tagged image that is completely cached and that the bundle server does not know.
/// Returns when all of them are indexed. Offers one image at a time, so that an image that a client
/// pulls meanwhile waits for at most one of them.
pub(crate) async fn offer(bundle_server: &BundleServer, cache: &Cache) -> Result<(), Error> {
    let mut tags = Vec::new();
    for reference in cache.tags().images(MAX_TAGS).await? {
        if let Some(record) = cache.tags().get(&TagKey::Manifest(reference.clone())) {
            tags.push((reference, record));
        }
    }
    // Images of older tags are offered first, because a later image of a repository is an update of
    // an earlier image.
    tags.sort_unstable_by_key(|(_, record)| record.validated);
    let old = tags.len().saturating_sub(MAX_IMAGES);
    let mut left = MAX_IMAGES;
    for (reference, record) in tags.drain(old..) {
        let (server, source) = (bundle_server.clone(), cache.clone());
        let images = blocking(move || new_images(&server, &source, &reference, &record)).await;
        for image in images.unwrap_or_default().into_iter().take(left) {
            left -= 1;
            let manifest = image.manifest;
            bundle_server.offer(image);
            while let State::Working(_) = bundle_server.state(&manifest) {
                tokio::time::sleep(STATE_CHECK_INTERVAL).await;
            }
        }
    }
    Ok(())
}

/// Returns the images of a tag that are completely cached and that the bundle server does not know.
fn new_images(
    bundle_server: &BundleServer,
    cache: &Cache,
    reference: &Reference,
    record: &TagRecord,
) -> Vec<Image> {
    let Some(root) = read(cache, &record.digest, &record.media_type) else {
        return Vec::new();
    };
    let mut images = Vec::new();
    match &root.body {
        Body::Index { manifests, .. } => {
            let image = |child: &Descriptor| {
                Some((child.digest, read(cache, &child.digest, &child.media_type)?))
            };
            images.extend(
                manifests
                    .iter()
                    .filter(|child| is_image(child))
                    .take(MAX_PLATFORMS)
                    .filter_map(image),
            );
        }
        _ => images.push((record.digest, root)),
    }
    images.retain(|(digest, manifest)| {
        !matches!(manifest.body, Body::Index { .. })
            && bundle_server.state(digest) == State::Unknown
            && manifest
                .children()
                .all(|child| cache.is_stored(&child.digest))
    });
    let repository = format!("{}/{}", reference.registry, reference.repository);
    let image = |(manifest, _)| Image {
        manifest,
        repository: repository.clone(),
    };
    images.into_iter().map(image).collect()
}

/// Reads a cached manifest, without counting the read as an access. `None` also for a large
/// manifest, whose image is indexed only on request.
fn read(cache: &Cache, digest: &Digest, media_type: &MediaType) -> Option<Manifest> {
    let blob = cache.open_for_background(digest).ok()??;
    let size = usize::try_from(blob.size()).ok();
    let mut bytes = vec![0; size.filter(|_| blob.size() <= MAX_EAGER)?];
    blob.read_at(0, &mut bytes).ok()?;
    Manifest::parse(bytes.into(), Some(media_type.as_str())).ok()
}
