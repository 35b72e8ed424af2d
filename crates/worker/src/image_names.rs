//! Reads and writes the names of the images of a store, in the file `DIR/pulled.json`. The image of
//! the latest pull is last.
//!
//! If the file is lost, a pull cannot rank base images, and pierhead finds an image by its name
//! only after the next pull of the image.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use crate::store::Store;
use pierhead_oci::{Digest, Platform, Reference};
use serde::{Deserialize, Serialize};

use crate::Error;

const FILE_NAME: &str = "pulled.json";
/// Maximum number of bytes that pierhead reads of `pulled.json`.
const MAX_SIZE: u64 = 4 << 20;
/// Maximum number of names. When a store has more names, pierhead removes the oldest names.
const MAX_NAMES: usize = 4096;
/// Maximum number of base images in a request. For each request, the server merges the tables of
/// contents of all base images.
const MAX_BASE_IMAGES: usize = 16;

/// One name of one image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct NamedImage {
    registry: String,
    repository: String,
    target: String,
    platform: String,
    digest: Digest,
}

impl NamedImage {
    fn new(image: &Reference, platform: &Platform, digest: Digest) -> Self {
        Self {
            registry: image.registry.to_string(),
            repository: image.repository.to_string(),
            target: image.target.to_string(),
            platform: platform.to_string(),
            digest,
        }
    }
}

/// The names of images, in the order of their pulls, the latest last.
#[derive(Debug, Default)]
pub(crate) struct ImageNames(Vec<NamedImage>);

impl ImageNames {
    /// Reads the names of several stores. The names of the first store count as the latest pulls.
    pub(crate) fn read<'a>(folders: impl DoubleEndedIterator<Item = &'a Path>) -> Self {
        let mut all = Vec::new();
        for folder in folders.rev() {
            let mut text = Vec::new();
            let read = File::open(folder.join(FILE_NAME))
                .and_then(|file| file.take(MAX_SIZE).read_to_end(&mut text));
            if read.is_ok() {
                all.extend(serde_json::from_slice::<Vec<NamedImage>>(&text).unwrap_or_default());
            }
        }
        Self(all)
    }

    /// Returns the digest of the manifest to which the latest pull of a reference resolved.
    pub(crate) fn find(&self, image: &Reference, platform: &Platform) -> Option<Digest> {
        let mut names = self.0.iter().rev();
        let found = names.find(|name| NamedImage::new(image, platform, name.digest) == **name);
        found.map(|name| name.digest)
    }

    /// Returns the latest name of an image, for messages to the user.
    pub(crate) fn of(&self, digest: &Digest) -> Option<String> {
        let name = self.0.iter().rev().find(|name| name.digest == *digest)?;
        let separator = if name.target.contains(':') { '@' } else { ':' };
        Some(format!(
            "{}/{}{separator}{}",
            name.registry, name.repository, name.target
        ))
    }

    /// Returns the sort key of a base image: its likely similarity to the wanted image `image`.
    ///
    /// Images of the same repository come first, then images of repositories whose name has the
    /// same last part, then all other images. Within each of these three groups, the latest pull
    /// comes first.
    pub(crate) fn rank(&self, image: &Reference, digest: &Digest) -> (u8, usize) {
        let names = self
            .0
            .iter()
            .enumerate()
            .filter(|(_, name)| name.digest == *digest);
        let last_part = |text: &str| text.rsplit('/').next().unwrap_or_default().to_owned();
        let wanted = image.repository.to_string();
        names
            .map(|(index, name)| {
                let is_same_repository =
                    name.registry == image.registry.to_string() && name.repository == wanted;
                let class = match is_same_repository {
                    true => 0,
                    false if last_part(&name.repository) == last_part(&wanted) => 1,
                    false => 2,
                };
                (class, self.0.len() - index)
            })
            .min()
            .unwrap_or((3, usize::MAX))
    }

    /// Records the name of a pulled image. Concurrent pulls into the same store lose no name.
    ///
    /// # Errors
    /// Errors of the file system.
    pub(crate) fn add(
        store: &Store,
        image: &Reference,
        platform: &Platform,
        digest: &Digest,
    ) -> Result<(), Error> {
        let new = NamedImage::new(image, platform, *digest);
        let max = usize::try_from(MAX_SIZE).unwrap_or(usize::MAX);
        store.update_document(FILE_NAME, max, |old| {
            // If the file is damaged, it is replaced.
            let mut names: Vec<NamedImage> = serde_json::from_slice(&old).unwrap_or_default();
            names.retain(|name| *name != new);
            names.push(new);
            let surplus = names.len().saturating_sub(MAX_NAMES);
            names.drain(..surplus);
            serde_json::to_vec(&names)
                .map_err(|error| Error::file("cannot encode the names of images")(error.into()))
        })
    }
}

/// Returns the base images for a request, the most similar first. The first list has all base
/// images, the second only the base images whose layers can be rebuilt.
///
/// # Errors
/// Errors of the file system.
pub(crate) fn base_images(
    store: &Store,
    names: &ImageNames,
    image: &Reference,
) -> Result<(Vec<Digest>, Vec<Digest>), Error> {
    let mut images = store.images()?;
    images.sort_by_cached_key(|base| names.rank(image, &base.manifest));
    images.truncate(MAX_BASE_IMAGES);
    let with_layers = images.iter().filter(|base| base.layers);
    let with_layers = with_layers.map(|base| base.manifest).collect();
    Ok((
        images.iter().map(|base| base.manifest).collect(),
        with_layers,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_base_image_is_the_latest_of_the_same_repository() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path(), &[]).expect("a store");
        let platform: Platform = "linux/amd64".parse().expect("a platform");
        let digest = |text: &str| Digest::of(pierhead_oci::Algorithm::Sha256, text.as_bytes());
        let add = |image: &str, text: &str| {
            let image: Reference = image.parse().expect("a name");
            ImageNames::add(&store, &image, &platform, &digest(text)).expect("written");
        };
        add("redis:7.0", "a");
        add("redis:7.2", "b");
        add("ghcr.io/x/redis:8", "c");
        add("nginx:1", "d");
        let names = ImageNames::read(std::iter::once(folder.path()));
        let wanted: Reference = "redis:8".parse().expect("a name");
        let mut all = ["e", "d", "c", "b", "a"].map(digest);
        all.sort_by_key(|digest| names.rank(&wanted, digest));
        assert_eq!(all, ["b", "a", "c", "d", "e"].map(digest));
        let old: Reference = "redis:7.0".parse().expect("a name");
        assert_eq!(names.find(&old, &platform), Some(digest("a")));
        assert_eq!(names.find(&wanted, &platform), None);
        assert_eq!(names.of(&digest("c")), Some("ghcr.io/x/redis:8".to_owned()));
        add("redis:7.0", "f");
        let names = ImageNames::read(std::iter::once(folder.path()));
        assert_eq!(names.find(&old, &platform), Some(digest("f")));
    }

    #[test]
    fn concurrent_pulls_lose_no_image_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let platform: Platform = "linux/amd64".parse().expect("a platform");
        let images: Vec<Reference> = (0..8)
            .map(|nth| format!("app:{nth}").parse().expect("a name"))
            .collect();
        let digest = Digest::of(pierhead_oci::Algorithm::Sha256, b"image");
        // Each store has its own file descriptors, as stores of separate processes have.
        let stores: Vec<_> = images
            .iter()
            .map(|_| Store::open(folder.path(), &[]).expect("a store"))
            .collect();
        let start = std::sync::Barrier::new(images.len());
        std::thread::scope(|scope| {
            for (image, store) in images.iter().zip(&stores) {
                let (start, platform) = (&start, &platform);
                scope.spawn(move || {
                    start.wait();
                    ImageNames::add(store, image, platform, &digest).expect("written");
                });
            }
        });
        let names = ImageNames::read(std::iter::once(folder.path()));
        for image in &images {
            assert_eq!(names.find(image, &platform), Some(digest), "{image}");
        }
    }

    #[test]
    fn a_damaged_file_of_names_is_replaced_by_the_next_pull() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path(), &[]).expect("a store");
        let platform: Platform = "linux/amd64".parse().expect("a platform");
        let image: Reference = "app:1".parse().expect("a name");
        let digest = Digest::of(pierhead_oci::Algorithm::Sha256, b"image");
        let read = || ImageNames::read(std::iter::once(folder.path()));
        for damaged in [&b""[..], b"[{\"registry\"", b"{}", b"\xff\xfe"] {
            std::fs::write(folder.path().join(FILE_NAME), damaged).expect("written");
            assert_eq!(read().find(&image, &platform), None);
            ImageNames::add(&store, &image, &platform, &digest).expect("written");
            assert_eq!(read().find(&image, &platform), Some(digest));
        }
        // A second pull of the same image adds no second entry.
        ImageNames::add(&store, &image, &platform, &digest).expect("written");
        assert_eq!(read().0.len(), 1);
    }

    #[test]
    fn beyond_the_maximum_the_oldest_names_are_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path(), &[]).expect("a store");
        let platform: Platform = "linux/amd64".parse().expect("a platform");
        let digest = Digest::of(pierhead_oci::Algorithm::Sha256, b"image");
        let image = |nth: usize| -> Reference { format!("app:{nth}").parse().expect("a name") };
        let names = (0..MAX_NAMES).map(|nth| NamedImage::new(&image(nth), &platform, digest));
        let names = serde_json::to_vec(&names.collect::<Vec<_>>()).expect("JSON");
        std::fs::write(folder.path().join(FILE_NAME), names).expect("written");
        ImageNames::add(&store, &image(MAX_NAMES), &platform, &digest).expect("written");
        let names = ImageNames::read(std::iter::once(folder.path()));
        assert_eq!(names.0.len(), MAX_NAMES);
        assert_eq!(names.find(&image(0), &platform), None, "the oldest");
        for kept in [1, MAX_NAMES] {
            assert_eq!(names.find(&image(kept), &platform), Some(digest));
        }
    }

    #[test]
    fn names_of_the_first_store_count_as_the_latest() {
        let platform: Platform = "linux/amd64".parse().expect("a platform");
        let image: Reference = "app:1".parse().expect("a name");
        let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        let digests = [&b"first"[..], b"second"]
            .map(|bytes| Digest::of(pierhead_oci::Algorithm::Sha256, bytes));
        for (folder, digest) in folders.iter().zip(&digests) {
            let store = Store::open(folder.path(), &[]).expect("a store");
            ImageNames::add(&store, &image, &platform, digest).expect("written");
        }
        let names = ImageNames::read(folders.iter().map(tempfile::TempDir::path));
        assert_eq!(names.find(&image, &platform), Some(digests[0]));
        let arm: Platform = "linux/arm64".parse().expect("a platform");
        assert_eq!(names.find(&image, &arm), None, "another platform");
        let unknown = Digest::of(pierhead_oci::Algorithm::Sha256, b"unknown");
        assert_eq!(names.of(&unknown), None);
        assert_eq!(names.rank(&image, &unknown), (3, usize::MAX));
    }
}
