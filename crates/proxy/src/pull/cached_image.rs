//! Describes an image from the cache alone, and finds what can be deleted with it. Reading the
//! image counts neither as a hit nor as an access for eviction.

use std::collections::{HashMap, HashSet, VecDeque};

use pierhead_cache::{BlobStat, Cache, TagKey};
use pierhead_oci::{Body, Digest, Manifest, MediaType, Platform, Reference, Target};

use crate::pull::manifest::is_distributable;

/// Maximum number of manifests and blobs of one image. An index of 20 platforms has a few hundred
/// of them.
const MAX_PARTS: usize = 10_000;
/// Maximum bytes of an image's config that is read to find the image's platform.
const MAX_CONFIG: usize = 1 << 20;

/// The cached parts of one image.
#[derive(Clone, Debug)]
pub struct CachedImage {
    /// The digest of the index or manifest to which the reference resolves.
    pub root: Digest,
    /// The digest of the root, and all digests that the root references directly or indirectly,
    /// whether cached or not.
    pub digests: Vec<Digest>,
    /// The platforms of the image whose manifest is cached. An image without an index has one
    /// platform.
    pub platforms: Vec<CachedPlatform>,
}

/// The cached parts of an image for one platform.
#[derive(Clone, Debug)]
pub struct CachedPlatform {
    /// The platform of the image. `None`: neither the index nor the config names a platform.
    pub platform: Option<Platform>,
    /// Digest of the image's manifest for this platform.
    pub manifest: Digest,
    /// Number of cached bytes of the manifest, config and layers.
    pub size: u64,
    /// Whether the manifest, the config and all layers are cached.
    pub is_complete: bool,
    /// Time of the last access to any part of the image, in seconds since 1970.
    pub accessed: u64,
}

impl CachedImage {
    /// Reads the manifests of a cached image from the cache. Blocks.
    ///
    /// # Errors
    /// A message that says that the image is not in the cache, or that its root is unreadable.
    pub(crate) fn read(cache: &Cache, reference: &Reference) -> Result<Self, String> {
        let root = match &reference.target {
            Target::Digest(digest) => Some(*digest),
            Target::Tag(_) => cache
                .tags()
                .get(&TagKey::Manifest(reference.clone()))
                .map(|record| record.digest),
        };
        let absent = || format!("{reference} is not in the cache: warm it, or pull it once");
        let root = root.ok_or_else(absent)?;
        let mut image = Self {
            root,
            digests: vec![root],
            platforms: Vec::new(),
        };
        let mut seen = HashSet::from([root]);
        let mut next = VecDeque::from([(root, None, 0)]);
        while let Some((digest, platform, depth)) = next.pop_front() {
            let manifest = match manifest(cache, &digest) {
                Ok(Some(manifest)) => manifest,
                // An index also lists platforms whose manifest no client has pulled, so only a
                // missing root is an error.
                Ok(None) if digest == root => return Err(absent()),
                Err(error) if digest == root => return Err(format!("{reference}: {error}")),
                Ok(None) | Err(_) => continue,
            };
            let new: Vec<_> = manifest
                .children()
                .filter(|child| seen.insert(child.digest))
                .collect();
            if seen.len() > MAX_PARTS {
                return Err(format!("{reference}: more than {MAX_PARTS} parts"));
            }
            image.digests.extend(new.iter().map(|child| child.digest));
            if matches!(manifest.body, Body::Index { .. }) {
                if depth >= Manifest::MAX_DEPTH {
                    return Err(format!("{reference}: indexes nested too deep"));
                }
                let child =
                    |it: &&pierhead_oci::Descriptor| (it.digest, it.platform.clone(), depth + 1);
                next.extend(new.iter().map(child));
            } else {
                image
                    .platforms
                    .push(CachedPlatform::of(cache, digest, &manifest, platform));
            }
        }
        Ok(image)
    }
}

impl CachedPlatform {
    fn of(cache: &Cache, digest: Digest, manifest: &Manifest, platform: Option<Platform>) -> Self {
        let parts: HashSet<Digest> = manifest
            .children()
            .filter(|child| is_distributable(child))
            .map(|child| child.digest)
            .chain([digest])
            .collect();
        let present: Vec<BlobStat> = parts
            .iter()
            .filter_map(|part| cache.blob_stat(part))
            .collect();
        Self {
            platform: platform.or_else(|| platform_of_config(cache, manifest)),
            manifest: digest,
            size: present.iter().map(|entry| entry.size).sum(),
            is_complete: present.len() == parts.len(),
            accessed: present
                .iter()
                .map(|entry| entry.accessed)
                .max()
                .unwrap_or(0),
        }
    }
}

/// The tags and digests that are deleted when an image is removed.
#[derive(Clone, Debug)]
pub struct Removal {
    /// The tags to delete: the requested tag. If the request names the image by a digest: all tags
    /// of this digest in the repository.
    pub tags: Vec<Reference>,
    /// The digests that no other cached image uses.
    pub digests: Vec<Digest>,
}

impl Removal {
    /// Finds the digests that only this image uses. Reads every manifest in the cache. Blocks.
    ///
    /// # Errors
    /// The same errors as [`CachedImage::read`].
    pub(crate) fn of(
        cache: &Cache,
        reference: &Reference,
        all_tags: &[Reference],
    ) -> Result<Self, String> {
        let image = CachedImage::read(cache, reference)?;
        let is_by_digest = matches!(reference.target, Target::Digest(_));
        let mut removed_tags = Vec::new();
        let mut still_tagged = HashSet::new();
        for tag in all_tags {
            let Some(record) = cache.tags().get(&TagKey::Manifest(tag.clone())) else {
                continue;
            };
            let is_same_repository =
                (&tag.registry, &tag.repository) == (&reference.registry, &reference.repository);
            let is_removed = tag == reference
                || is_by_digest && is_same_repository && record.digest == image.root;
            match is_removed {
                true => removed_tags.push(tag.clone()),
                false => drop(still_tagged.insert(record.digest)),
            }
        }
        // Contains all manifests in the cache, with the digests that they reference.
        let mut manifests = HashMap::new();
        let mut after = None;
        loop {
            let page = cache.list(after, 1000);
            let Some(last) = page.last() else { break };
            after = Some(last.digest);
            for entry in page {
                let is_manifest = |it: &MediaType| it.is_manifest() || it.is_index();
                if entry.media_type.as_ref().is_some_and(is_manifest)
                    && let Ok(Some(manifest)) = manifest(cache, &entry.digest)
                {
                    let children: Vec<_> = manifest.children().map(|it| it.digest).collect();
                    manifests.insert(entry.digest, children);
                }
            }
        }
        // A digest that any remaining manifest references belongs to another image, so it is not
        // deleted.
        let own: HashSet<_> = image.digests.iter().copied().collect();
        let stays = |digest: &&Digest| !own.contains(digest) || still_tagged.contains(digest);
        let mut next: Vec<Digest> = manifests.keys().filter(stays).copied().collect();
        let mut used: HashSet<Digest> = next.iter().copied().collect();
        while let Some(digest) = next.pop() {
            for child in manifests.get(&digest).into_iter().flatten() {
                if used.insert(*child) {
                    next.push(*child);
                }
            }
        }
        let digests = image.digests.into_iter();
        Ok(Self {
            tags: removed_tags,
            digests: digests.filter(|digest| !used.contains(digest)).collect(),
        })
    }
}

/// Reads a cached manifest. `None`: the manifest is not cached.
fn manifest(cache: &Cache, digest: &Digest) -> Result<Option<Manifest>, String> {
    let Some(bytes) = bytes(cache, digest, Manifest::MAX_SIZE)? else {
        return Ok(None);
    };
    let media_type = cache.blob_stat(digest).and_then(|entry| entry.media_type);
    let media_type = media_type.as_ref().map(MediaType::as_str);
    let parsed = Manifest::parse(bytes.into(), media_type).map_err(|error| error.to_string())?;
    Ok(Some(parsed))
}

/// Reads a cached blob of at most `max` bytes. `None`: the blob is not cached.
fn bytes(cache: &Cache, digest: &Digest, max: usize) -> Result<Option<Vec<u8>>, String> {
    let blob = cache
        .open_for_background(digest)
        .map_err(|error| error.to_string())?;
    let Some(blob) = blob else { return Ok(None) };
    let size = usize::try_from(blob.size())
        .ok()
        .filter(|size| *size <= max);
    let size = size.ok_or_else(|| format!("more than {max} bytes"))?;
    let mut bytes = vec![0; size];
    blob.read_at(0, &mut bytes)
        .map_err(|error| error.to_string())?;
    Ok(Some(bytes))
}

fn platform_of_config(cache: &Cache, manifest: &Manifest) -> Option<Platform> {
    let Body::Image { config, .. } = &manifest.body else {
        return None;
    };
    let bytes = bytes(cache, &config.digest, MAX_CONFIG).ok()??;
    Platform::of_config(&bytes)
}
