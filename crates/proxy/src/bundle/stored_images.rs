//! Images that the cache had before the library knew of any: offered to it after the start, one at a time.

use std::time::Duration;

use pierhead_bundle_server::{BundleServer, Image, State};
use pierhead_cache::{Cache, Error, TagKey, TagRecord};
use pierhead_oci::{Body, Descriptor, Digest, Manifest, MediaType, Reference};

use crate::blocking::blocking;
use crate::pull::document::MAX_EAGER;
use crate::pull::manifest::runs;

/// Images that are offered, at most: those that were asked for last.
const MAX_IMAGES: usize = 256;
/// Tags that they are chosen from; the file of each is read.
const MAX_TAGS: usize = 10_000;
/// Images of an index that are looked for, at most.
const MAX_PLATFORMS: usize = 64;
/// How often it is looked whether the one that was offered last is done.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// Offers every image that a tag names, that is all here and that the library does not know. Returns when they are
/// done: whatever is pulled meanwhile waits for one of them at most.
pub(crate) async fn offer(library: &BundleServer, cache: &Cache) -> Result<(), Error> {
    let mut tags = Vec::new();
    for reference in cache.tags().images(MAX_TAGS).await? {
        if let Some(record) = cache.tags().get(&TagKey::Manifest(reference.clone())) {
            tags.push((reference, record));
        }
    }
    // Older ones first: what comes later in a repository is an update of what came before.
    tags.sort_unstable_by_key(|(_, record)| record.validated);
    let old = tags.len().saturating_sub(MAX_IMAGES);
    let mut left = MAX_IMAGES;
    for (reference, record) in tags.drain(old..) {
        let looking = (library.clone(), cache.clone());
        let whole = blocking(move || whole(&looking.0, &looking.1, &reference, &record)).await;
        for image in whole.unwrap_or_default().into_iter().take(left) {
            left -= 1;
            let manifest = image.manifest;
            library.offer(image);
            while let State::Working(_) = library.state(&manifest) {
                tokio::time::sleep(LOOK_INTERVAL).await;
            }
        }
    }
    Ok(())
}

/// The images behind a tag that are all here and not known yet.
fn whole(
    library: &BundleServer,
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
                    .filter(|child| runs(child))
                    .take(MAX_PLATFORMS)
                    .filter_map(image),
            );
        }
        _ => images.push((record.digest, root)),
    }
    images.retain(|(digest, manifest)| {
        !matches!(manifest.body, Body::Index { .. })
            && library.state(digest) == State::Unknown
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

/// A manifest of the cache, as nobody's access; `None` for one that is large, as nobody bundles it unasked.
fn read(cache: &Cache, digest: &Digest, media_type: &MediaType) -> Option<Manifest> {
    let held = cache.open_for_background(digest).ok()??;
    let size = usize::try_from(held.size()).ok();
    let mut bytes = vec![0; size.filter(|_| held.size() <= MAX_EAGER)?];
    held.read_at(0, &mut bytes).ok()?;
    Manifest::parse(bytes.into(), Some(media_type.as_str())).ok()
}
