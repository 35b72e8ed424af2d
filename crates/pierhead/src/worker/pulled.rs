//! What the images of a store are called: `DIR/pulled.json`, the latest pull last.
//!
//! It may be lost: then nothing is found by its name until it is pulled again, and no image is known to be a better
//! base than another.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use pierhead_oci::{Digest, Platform, Reference};
use pierhead_worker::store::Store;
use serde::{Deserialize, Serialize};

use super::Error;

const NAME: &str = "pulled.json";
const MAX_SIZE: u64 = 4 << 20;
/// More names than that are forgotten, the oldest first.
const MAX_NAMES: usize = 4096;

/// One image by one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Name {
    registry: String,
    repository: String,
    target: String,
    platform: String,
    digest: Digest,
}

/// See the head of this module.
#[derive(Debug, Default)]
pub(super) struct Pulled(Vec<Name>);

impl Pulled {
    /// Of these stores, the first one's last.
    pub(super) fn read<'a>(folders: impl DoubleEndedIterator<Item = &'a Path>) -> Self {
        let mut all = Vec::new();
        for folder in folders.rev() {
            let mut text = Vec::new();
            let read = File::open(folder.join(NAME))
                .and_then(|file| file.take(MAX_SIZE).read_to_end(&mut text));
            if read.is_ok() {
                all.extend(serde_json::from_slice::<Vec<Name>>(&text).unwrap_or_default());
            }
        }
        Self(all)
    }

    /// The manifest that a name stood for when it was pulled last.
    pub(super) fn find(&self, image: &Reference, platform: &Platform) -> Option<Digest> {
        let wanted = name(image, platform, None);
        let mut latest = self.0.iter().rev();
        let found = latest.find(|name| {
            Name {
                digest: name.digest,
                ..wanted.clone()
            } == **name
        });
        found.map(|name| name.digest)
    }

    /// A name of an image.
    pub(super) fn of(&self, digest: &Digest) -> Option<String> {
        let name = self.0.iter().rev().find(|name| name.digest == *digest)?;
        let mark = if name.target.contains(':') { '@' } else { ':' };
        Some(format!(
            "{}/{}{mark}{}",
            name.registry, name.repository, name.target
        ))
    }

    /// Puts images in the order in which they are likely to resemble one that is wanted: of the same repository, of
    /// one with the same last part, others; the latest pull first.
    pub(super) fn rank(&self, image: &Reference, digest: &Digest) -> (u8, usize) {
        let names = self
            .0
            .iter()
            .enumerate()
            .filter(|(_, name)| name.digest == *digest);
        let last = |text: &str| text.rsplit('/').next().unwrap_or_default().to_owned();
        let wanted = image.repository.to_string();
        names
            .map(|(at, name)| {
                let same = name.registry == image.registry.to_string() && name.repository == wanted;
                let class = match same {
                    true => 0,
                    false if last(&name.repository) == last(&wanted) => 1,
                    false => 2,
                };
                (class, self.0.len() - at)
            })
            .min()
            .unwrap_or((3, usize::MAX))
    }

    /// Records a pull. Concurrent pulls into the same store do not overwrite each other's records.
    ///
    /// # Errors
    /// The file system's.
    pub(super) fn note(
        store: &Store,
        image: &Reference,
        platform: &Platform,
        digest: &Digest,
    ) -> Result<(), Error> {
        let new = name(image, platform, Some(*digest));
        let max = usize::try_from(MAX_SIZE).unwrap_or(usize::MAX);
        store.update_document(NAME, max, |old| {
            // Replaces a damaged record.
            let mut names: Vec<Name> = serde_json::from_slice(&old).unwrap_or_default();
            names.retain(|name| *name != new);
            names.push(new);
            let surplus = names.len().saturating_sub(MAX_NAMES);
            names.drain(..surplus);
            serde_json::to_vec(&names).map_err(|error| Error::Said(error.to_string()))
        })
    }
}

fn name(image: &Reference, platform: &Platform, digest: Option<Digest>) -> Name {
    Name {
        registry: image.registry.to_string(),
        repository: image.repository.to_string(),
        target: image.target.to_string(),
        platform: platform.to_string(),
        digest: digest.unwrap_or_else(|| Digest::of(pierhead_oci::Algorithm::Sha256, b"")),
    }
}

/// Images that a server is told of: each is a table that it merges.
const MAX_HAVES: usize = 16;

/// What a store has, the likeliest bases first: manifests, and of which the layers can be rebuilt.
///
/// # Errors
/// The file system's.
pub(super) fn haves(
    store: &Store,
    pulled: &Pulled,
    image: &Reference,
) -> Result<(Vec<Digest>, Vec<Digest>), Error> {
    let mut held = store.images()?;
    held.sort_by_cached_key(|held| pulled.rank(image, &held.manifest));
    held.truncate(MAX_HAVES);
    let layers = held.iter().filter(|held| held.layers);
    let layers = layers.map(|held| held.manifest).collect();
    Ok((held.iter().map(|held| held.manifest).collect(), layers))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likeliest_base_is_of_the_same_repository_and_recent() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path(), &[]).expect("a store");
        let platform: Platform = "linux/amd64".parse().expect("a platform");
        let digest = |text: &str| Digest::of(pierhead_oci::Algorithm::Sha256, text.as_bytes());
        let note = |image: &str, text: &str| {
            let image: Reference = image.parse().expect("a name");
            Pulled::note(&store, &image, &platform, &digest(text)).expect("written");
        };
        note("redis:7.0", "a");
        note("redis:7.2", "b");
        note("ghcr.io/x/redis:8", "c");
        note("nginx:1", "d");
        let pulled = Pulled::read(std::iter::once(folder.path()));
        let wanted: Reference = "redis:8".parse().expect("a name");
        let mut all = ["e", "d", "c", "b", "a"].map(digest);
        all.sort_by_key(|digest| pulled.rank(&wanted, digest));
        assert_eq!(all, ["b", "a", "c", "d", "e"].map(digest));
        let old: Reference = "redis:7.0".parse().expect("a name");
        assert_eq!(pulled.find(&old, &platform), Some(digest("a")));
        assert_eq!(pulled.find(&wanted, &platform), None);
        assert_eq!(
            pulled.of(&digest("c")),
            Some("ghcr.io/x/redis:8".to_owned())
        );
        note("redis:7.0", "f");
        let pulled = Pulled::read(std::iter::once(folder.path()));
        assert_eq!(pulled.find(&old, &platform), Some(digest("f")));
    }
    #[test]
    fn pulls_at_the_same_time_are_all_recorded() {
        let folder = tempfile::tempdir().expect("a folder");
        let platform: Platform = "linux/amd64".parse().expect("a platform");
        let images: Vec<Reference> = (0..8)
            .map(|nth| format!("app:{nth}").parse().expect("a name"))
            .collect();
        let digest = Digest::of(pierhead_oci::Algorithm::Sha256, b"image");
        // Each uses its own descriptors, like separate processes.
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
                    Pulled::note(store, image, platform, &digest).expect("written");
                });
            }
        });
        let pulled = Pulled::read(std::iter::once(folder.path()));
        for image in &images {
            assert_eq!(pulled.find(image, &platform), Some(digest), "{image}");
        }
    }
}
