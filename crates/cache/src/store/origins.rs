//! Records which registry sent staged bytes, so that no fill (the download of a blob into the
//! cache) resumes the bytes of another registry.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use pierhead_atomic_file::open_regular_with;
use pierhead_host::read_kernel_file;
use pierhead_oci::Digest;
use rustix::fs::OFlags;

use crate::error::Error;
use crate::origin::Origin;
use crate::regular_file;

/// The folder `origins/`. The folder has one empty file per fill, whose name contains digest and
/// registry. Invariants:
///
/// 1. The file of a fill is created before the second chunk is staged. A single staged chunk is
///    never resumed.
/// 2. The file of a fill is deleted after the last staged byte is deleted or committed.
/// 3. Thus, after a crash, the staged bytes of a digest have a record of one registry, of two
///    registries, or of none. Recovery deletes the staged bytes unless there is exactly one
///    registry.
/// 4. With a fast tier, staged bytes and this folder may be on two media, and a power cut can undo
///    the last changes on one medium only. Therefore recovery also deletes staged bytes from before
///    the last boot of the host.
pub(crate) struct Origins {
    folder: PathBuf,
    /// The file that contains the boot of the last recovery. `None` without a fast tier.
    boot_file: Option<PathBuf>,
}

impl Origins {
    /// Opens the folder `origins/`, or creates it.
    pub(crate) fn open(data: &Path, has_fast_tier: bool) -> io::Result<Self> {
        let folder = data.join("origins");
        fs::create_dir_all(&folder)?;
        let boot_file = has_fast_tier.then(|| data.join("boot"));
        Ok(Self { folder, boot_file })
    }

    /// Whether the records prove the registry of bytes that an earlier process staged. `false` if
    /// the host may have booted since that process, and staged bytes may be on two media.
    pub(crate) fn are_proven(&self) -> bool {
        self.boot_file.as_ref().is_none_or(|file| {
            boot_id().is_some_and(|boot| {
                let read = regular_file::read(file, boot.len() + 1);
                read.is_ok_and(|it| it == boot.as_bytes())
            })
        })
    }

    /// Records the boot of the host. Recovery calls this after it has deleted all staged bytes
    /// whose registry is unproven.
    pub(crate) fn set_proven(&self) -> io::Result<()> {
        match (&self.boot_file, boot_id()) {
            (Some(file), Some(boot)) if !self.are_proven() => {
                pierhead_atomic_file::write(file, boot.as_bytes())
            }
            _ => Ok(()),
        }
    }

    /// Records the registry of staged bytes that a later fill may resume.
    pub(crate) fn set(&self, digest: &Digest, origin: Origin) -> Result<(), Error> {
        let Some(path) = self.path(digest, origin) else {
            return Ok(());
        };
        let mut options = File::options();
        options.write(true).create(true).truncate(true);
        let created = open_regular_with(&mut options, OFlags::empty(), &path).map(drop);
        created.map_err(|error| Error::io("create", path, error))
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
        let name = format!("{}.{}", digest.file_name(), origin.registry_hex());
        (!origin.is_same_registry(&Origin::LOCAL)).then(|| self.folder.join(name))
    }
}

/// Returns the identifier that the kernel chose at the boot of the host.
fn boot_id() -> Option<String> {
    read_kernel_file(Path::new("/proc/sys/kernel/random/boot_id"))
}

fn parse(name: &str) -> Option<(Digest, Origin)> {
    let (digest, origin) = name.split_once('.')?;
    let digest = Digest::from_file_name(digest).ok()?;
    Some((digest, Origin::from_registry_hex(origin)?))
}

#[cfg(test)]
mod tests {
    use pierhead_oci::Algorithm;

    use super::*;

    #[test]
    fn a_digest_with_one_registry_is_resumable_and_one_with_two_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let origins = Origins::open(folder.path(), false).unwrap();
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

    #[test]
    fn with_a_fast_tier_records_are_proven_until_the_next_boot() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Origins::open(folder.path(), false).unwrap().are_proven());
        let open = || Origins::open(folder.path(), true).unwrap();
        assert!(!open().are_proven(), "the last recovery is unknown");
        open().set_proven().unwrap();
        assert!(open().are_proven());
        fs::write(folder.path().join("boot"), "another boot\n").unwrap();
        assert!(!open().are_proven());
        open().set_proven().unwrap();
        assert!(open().are_proven());
    }
}
