//! Records which registry sent staged bytes, so that no fill resumes the bytes of another registry.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use pierhead_oci::{Algorithm, Digest, Registry};

/// The registry that sends the bytes of a fill, as a hash of its name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Origin([u8; 16]);

impl Origin {
    /// The origin of bytes that come from no registry, because pierhead made or verified them
    /// itself, such as a document. These bytes stay staged only until the process ends.
    pub const LOCAL: Self = Self([0; 16]);

    /// Identifies a registry by its name, independent of its addresses.
    pub fn of(registry: &Registry) -> Self {
        let hash = Digest::of(Algorithm::Sha256, registry.as_str().as_bytes());
        // A SHA-256 hash has 32 bytes. The first 16 bytes are enough to identify a registry.
        let first = hash.as_bytes().first_chunk();
        Self(first.copied().unwrap_or_default())
    }

    fn hex(self) -> String {
        use std::fmt::Write as _;
        let mut hex = String::new();
        for byte in self.0 {
            // The result is ignored, because writing to a `String` never fails.
            let _ = write!(hex, "{byte:02x}");
        }
        hex
    }

    fn parse(hex: &str) -> Option<Self> {
        let mut bytes = [0; 16];
        if hex.len() != 2 * bytes.len() || !hex.is_ascii() {
            return None;
        }
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(hex.get(2 * index..2 * index + 2)?, 16).ok()?;
        }
        Some(Self(bytes))
    }
}

/// The folder `origins/`. The folder has one empty file per fill, whose name contains digest and
/// registry. Invariants:
///
/// 1. The file of a fill is created before the second chunk is staged. A single staged chunk is
///    never resumed.
/// 2. The file of a fill is deleted after the last staged byte is deleted or committed.
/// 3. Thus, after a crash, the staged bytes of a digest have a record of one registry, of two
///    registries, or of none. Recovery deletes the staged bytes unless there is exactly one
///    registry.
pub(crate) struct Origins {
    folder: PathBuf,
}

impl Origins {
    /// Opens the folder `origins/`, or creates it.
    pub(crate) fn open(data: &Path) -> io::Result<Self> {
        let folder = data.join("origins");
        fs::create_dir_all(&folder)?;
        Ok(Self { folder })
    }

    /// Records the registry of staged bytes that a later fill may resume.
    pub(crate) fn set(&self, digest: &Digest, origin: Origin) -> io::Result<()> {
        match self.path(digest, origin) {
            Some(path) => File::create(path).map(drop),
            None => Ok(()),
        }
    }

    /// Deletes the record of a digest that has no staged bytes any more. If the file cannot be
    /// deleted, the next start of pierhead deletes it.
    pub(crate) fn clear(&self, digest: &Digest, origin: Origin) {
        if let Some(path) = self.path(digest, origin)
            && let Err(error) = fs::remove_file(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(file = %path.display(), %error, "cannot delete");
        }
    }

    /// Returns the registry of each staged digest, for recovery. Deletes the files of digests that
    /// are not staged or that have several registries.
    pub(crate) fn load(
        &self,
        is_staged: impl Fn(&Digest) -> bool,
    ) -> io::Result<HashMap<Digest, Origin>> {
        let mut found: HashMap<Digest, Vec<Origin>> = HashMap::new();
        for entry in fs::read_dir(&self.folder)? {
            let name = entry?.file_name();
            if let Some((digest, origin)) = name.to_str().and_then(parse) {
                found.entry(digest).or_default().push(origin);
            }
        }
        let mut origins = HashMap::new();
        for (digest, of) in found {
            match of[..] {
                [origin] if is_staged(&digest) => drop(origins.insert(digest, origin)),
                _ => of
                    .into_iter()
                    .for_each(|origin| self.clear(&digest, origin)),
            }
        }
        Ok(origins)
    }

    fn path(&self, digest: &Digest, origin: Origin) -> Option<PathBuf> {
        let (algorithm, hex) = (digest.algorithm(), digest.hex());
        let name = format!("{}-{hex}.{}", algorithm.as_str(), origin.hex());
        (origin != Origin::LOCAL).then(|| self.folder.join(name))
    }
}

fn parse(name: &str) -> Option<(Digest, Origin)> {
    let (digest, origin) = name.split_once('.')?;
    let digest = digest.replacen('-', ":", 1).parse().ok()?;
    Some((digest, Origin::parse(origin)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_with_one_registry_is_resumable_and_one_with_two_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let origins = Origins::open(folder.path()).unwrap();
        let digest = |n: u8| Digest::of(Algorithm::Sha512, &[n]);
        let [one, two] =
            ["one.example", "two.example:5000"].map(|it| Origin::of(&it.parse().unwrap()));
        assert_ne!(one, two);
        for (of, origin) in [(1, one), (2, one), (2, two), (3, two), (4, Origin::LOCAL)] {
            origins.set(&digest(of), origin).unwrap();
        }
        origins.set(&digest(1), one).unwrap();
        let known = origins.load(|it| *it != digest(3)).unwrap();
        assert_eq!(known, HashMap::from([(digest(1), one)]));
        let left = fs::read_dir(folder.path().join("origins")).unwrap();
        assert_eq!(left.count(), 1);
        origins.clear(&digest(1), one);
        origins.clear(&digest(1), one);
        assert!(origins.load(|_| true).unwrap().is_empty());
    }
}
