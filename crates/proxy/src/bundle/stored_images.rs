//! After pierhead starts, passes the images that are already cached to the bundle server, one at a
//! time, because the bundle server may not have indexed them yet.

use std::time::Duration;

use pierhead_bundle_server::{BundleServer, Image, State};
use pierhead_cache::{Cache, Error, TagKey, TagRecord};
use pierhead_host::BackgroundTask;
use pierhead_oci::{Body, Descriptor, Digest, Manifest, MediaType, Reference};

use crate::blocking::blocking;
use crate::pull::document::MAX_EAGER;
use crate::pull::manifest::is_image;

/// Maximum number of cached images that are passed to the bundle server: the images whose tags were
/// validated last.
const MAX_IMAGES: usize = 256;
/// Maximum number of tags that are considered after the start. For each such tag, pierhead reads
/// one file.
const MAX_TAGS: usize = 10_000;
/// Maximum number of platform images that are considered of one image index.
const MAX_PLATFORMS: usize = 64;
/// Interval at which pierhead checks whether the bundle server has indexed the image.
const STATE_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Passes each tagged image to the bundle server if the image is completely cached and not indexed.
/// Returns when all of these images are indexed. Waits for the indexing of each image. Thus an
/// image that a client pulls at the same time waits for the indexing of at most one cached image.
pub(crate) async fn offer(bundle_server: &BundleServer, cache: &Cache) -> Result<(), Error> {
    let mut tags = Vec::new();
    for reference in cache.tags().images(MAX_TAGS).await? {
        if let Some(record) = cache.tags().get(&TagKey::Manifest(reference.clone())) {
            tags.push((reference, record));
        }
    }
    // Images of older tags are indexed first, because a later image of a repository is an update of
    // an earlier image.
    tags.sort_unstable_by_key(|(_, record)| record.validated);
    let old = tags.len().saturating_sub(MAX_IMAGES);
    let mut left = MAX_IMAGES;
    for (reference, record) in tags.drain(old..) {
        let (server, source) = (bundle_server.clone(), cache.clone());
        let find = move || new_images(&server, &source, &reference, &record);
        let images = blocking(cache.panics(), BackgroundTask::StoredImages, find).await;
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

/// Returns the images of a tag that are completely cached and that the bundle server has not
/// indexed.
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

/// Reads a cached manifest. The read does not count as an access for eviction. Returns `None` also
/// for a large manifest, because a large image is indexed only on request.
fn read(cache: &Cache, digest: &Digest, media_type: &MediaType) -> Option<Manifest> {
    let blob = cache.open_for_background(digest).ok()??;
    let size = usize::try_from(blob.size()).ok();
    let mut bytes = vec![0; size.filter(|_| blob.size() <= MAX_EAGER)?];
    blob.read_at(0, &mut bytes).ok()?;
    Manifest::parse(bytes.into(), Some(media_type.as_str())).ok()
}
