//! Reads and writes the records of complete images: manifest, config and TOC. The store writes the
//! record of an image after all contents of the image are synced.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use pierhead_oci::{Algorithm, Digest};
use serde::{Deserialize, Serialize};

use crate::Error;
use pierhead_bundle::format::MAX_DOCUMENTS;
use pierhead_toc::{FileDigest, ImageToc};

/// An image whose contents are all in the store.
#[derive(Debug)]
pub struct Image {
    /// The media type of the manifest.
    pub media_type: String,
    /// The exact bytes of the manifest.
    pub manifest: Vec<u8>,
    /// The exact bytes of the config.
    pub config: Vec<u8>,
    /// Whether the store also has the file contents that the merged tree lacks and the layers need,
    /// so that the layers can be rebuilt.
    pub layers: bool,
    /// The TOC (table of contents): the merged tree, its file contents and the layers.
    pub toc: ImageToc,
}

#[derive(Serialize, Deserialize)]
struct Record {
    media_type: String,
    layers: bool,
    config: Digest,
}

impl Image {
    /// Returns the digest of the manifest.
    pub fn digest(&self) -> Digest {
        Digest::of(Algorithm::Sha256, &self.manifest)
    }

    /// Returns the file contents that the store must have for this image, with their sizes.
    pub(super) fn needed(&self) -> impl Iterator<Item = (FileDigest, u64)> + '_ {
        needed(&self.toc, self.layers)
    }

    /// Reads the record of an image. The error is `Missing` if there is no record, and also if the
    /// record is damaged, since the user can pull the image again.
    pub(super) fn load(folder: &Path) -> Result<Self, Error> {
        let missing = |_| Error::Missing(folder.display().to_string());
        let record: Record = serde_json::from_slice(&read(&folder.join("image.json"), 4096)?)
            .map_err(|_| Error::Missing(folder.display().to_string()))?;
        let image = Self {
            media_type: record.media_type,
            manifest: read(&folder.join("manifest"), MAX_DOCUMENTS)?,
            config: read(&folder.join("config"), MAX_DOCUMENTS)?,
            layers: record.layers,
            toc: ImageToc::open(&folder.join("table")).map_err(missing)?,
        };
        let named = folder.file_name().and_then(|name| name.to_str());
        let whole = named == Some(&*image.digest().hex())
            && Digest::of(record.config.algorithm(), &image.config) == record.config;
        whole
            .then_some(image)
            .ok_or_else(|| Error::Missing(folder.display().to_string()))
    }

    /// Writes the record into a temporary folder, syncs this folder, and gives it its final name.
    #[expect(
        clippy::disallowed_methods,
        reason = "renames a folder, which atomic-file cannot"
    )]
    pub(super) fn save(&self, images: &Path) -> Result<(), Error> {
        let target = images.join(self.digest().hex());
        let failed = |error| Error::io(format!("record {}", target.display()), error);
        let mut partial = target.clone().into_os_string();
        partial.push(pierhead_atomic_file::SUFFIX);
        let partial = PathBuf::from(partial);
        let _ = fs::remove_dir_all(&partial);
        fs::create_dir(&partial).map_err(failed)?;
        let record = Record {
            media_type: self.media_type.clone(),
            layers: self.layers,
            config: Digest::of(Algorithm::Sha256, &self.config),
        };
        let record = serde_json::to_vec(&record).map_err(|error| failed(error.into()))?;
        let toc = |file: &mut File| self.toc.write(file);
        write_synced(&partial, "table", toc).map_err(failed)?;
        for (name, bytes) in [
            ("image.json", &record),
            ("manifest", &self.manifest),
            ("config", &self.config),
        ] {
            write_synced(&partial, name, |file| file.write_all(bytes)).map_err(failed)?;
        }
        // Syncs the file names in the folder before the folder gets its final name.
        pierhead_atomic_file::sync_folder(&partial).map_err(failed)?;
        match fs::rename(&partial, &target) {
            Ok(()) => {}
            Err(error) if is_occupied(&error) => {
                let flags = rustix::fs::RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(
                    rustix::fs::CWD,
                    &partial,
                    rustix::fs::CWD,
                    &target,
                    flags,
                )
                .map_err(|error| failed(error.into()))?;
                let _ = fs::remove_dir_all(&partial);
            }
            Err(error) => return Err(failed(error)),
        }
        pierhead_atomic_file::sync_folder(images).map_err(failed)
    }
}

/// Writes a new file and syncs its data. The caller has to sync the folder.
fn write_synced(
    folder: &Path,
    name: &str,
    fill: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    let mut file = File::create_new(folder.join(name))?;
    fill(&mut file)?;
    file.sync_data()
}

/// Returns the file contents of the merged tree of an image. With `layers`, also returns the
/// contents that only the layers of the image contain.
pub(super) fn needed(toc: &ImageToc, layers: bool) -> impl Iterator<Item = (FileDigest, u64)> + '_ {
    let count = if layers {
        toc.contents().len()
    } else {
        toc.visible()
    };
    toc.contents()
        .iter()
        .take(usize::try_from(count).unwrap_or(usize::MAX))
}

/// Reads a file of at most `limit` bytes. `Missing` if the file does not exist or is larger.
pub(super) fn read(path: &Path, max: usize) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| {
        let limit = u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1);
        file.take(limit).read_to_end(&mut bytes)
    });
    match read {
        Ok(len) if len <= max => Ok(bytes),
        Ok(_) => Err(Error::Missing(path.display().to_string())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(Error::Missing(path.display().to_string()))
        }
        Err(error) => Err(Error::io(format!("read {}", path.display()), error)),
    }
}

fn is_occupied(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::AlreadyExists | io::ErrorKind::DirectoryNotEmpty
    )
}

/// Returns the digest by which the store names an image: always SHA-256, whatever algorithm the
/// reference uses.
pub(super) fn manifest_digest(manifest: &[u8]) -> Digest {
    Digest::of(Algorithm::Sha256, manifest)
}
