//! Where the files of the library lie, and what of them nobody needs any more.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use pierhead_oci::Digest;

use crate::{Content, Error, durable};

/// The folders below the data folder.
pub(super) struct Shelf {
    layers: PathBuf,
    tables: PathBuf,
    traces: PathBuf,
    plans: PathBuf,
}

impl Shelf {
    /// Makes the folders, and deletes what a kill left half written.
    pub(super) fn open(data: &Path) -> Result<Self, Error> {
        let shelf = Self {
            layers: data.join("index/layers"),
            tables: data.join("index/tables"),
            traces: data.join("index/traces"),
            plans: data.join("plans"),
        };
        for folder in [&shelf.layers, &shelf.tables, &shelf.traces, &shelf.plans] {
            let made = fs::create_dir_all(folder);
            made.map_err(|error| Error::io(format!("make {}", folder.display()), error))?;
            each(folder, &mut |path, _| {
                if is_partial(path) {
                    remove(path);
                }
            })?;
        }
        Ok(shelf)
    }

    pub(super) fn packs(data: &Path) -> PathBuf {
        data.join("packs")
    }

    pub(super) fn directory(data: &Path) -> PathBuf {
        data.join("directory")
    }

    /// Of a layer, by the digest of its blob.
    pub(super) fn layer(&self, blob: &Digest) -> PathBuf {
        self.layers.join(name(blob))
    }

    /// Of an image, by its manifest.
    pub(super) fn table(&self, manifest: &Digest) -> PathBuf {
        self.tables.join(name(manifest))
    }

    /// The order in which a start of an image opens its files, by its manifest.
    pub(super) fn trace(&self, manifest: &Digest) -> PathBuf {
        self.traces.join(name(manifest))
    }

    pub(super) fn plan(&self, key: &Content) -> PathBuf {
        self.plans.join(key.hex())
    }

    /// Bytes of indexes and tables; bytes of plans.
    pub(super) fn bytes(&self) -> (u64, u64) {
        let sum = |folder: &Path| {
            let mut sum = 0;
            let _ = each(folder, &mut |_, meta| sum += meta.len());
            sum
        };
        (sum(&self.layers) + sum(&self.tables), sum(&self.plans))
    }

    /// Deletes the indexes, tables and traces that `keep` does not want, by the digest that each is of.
    pub(super) fn retain(&self, keep: impl Fn(&Digest) -> bool) -> Result<(), Error> {
        for folder in [&self.layers, &self.tables, &self.traces] {
            each(folder, &mut |path, _| {
                let of = path.file_name().and_then(|name| digest(name.to_str()?));
                if !is_partial(path) && !of.is_some_and(|digest| keep(&digest)) {
                    remove(path);
                }
            })?;
        }
        Ok(())
    }

    /// Deletes plans, those that were used the longest ago first, until they take `most` bytes; returns what they take.
    pub(super) fn shrink_plans(&self, most: u64) -> Result<u64, Error> {
        let mut plans = Vec::new();
        each(&self.plans, &mut |path, meta| {
            // Somebody writes it.
            if is_partial(path) {
                return;
            }
            let used = meta.modified().unwrap_or(std::time::UNIX_EPOCH);
            plans.push((used, meta.len(), path.to_owned()));
        })?;
        plans.sort();
        let mut all: u64 = plans.iter().map(|(_, len, _)| len).sum();
        for (_, len, path) in plans {
            if all <= most {
                break;
            }
            remove(&path);
            all -= len;
        }
        Ok(all)
    }

    /// Deletes a plan: what it was made of is gone.
    pub(super) fn remove_plan(&self, key: &Content) {
        remove(&self.plan(key));
    }
}

fn is_partial(path: &Path) -> bool {
    path.to_string_lossy().ends_with(durable::PARTIAL)
}

fn name(digest: &Digest) -> String {
    digest.to_string().replace(':', "-")
}

fn digest(name: &str) -> Option<Digest> {
    name.replacen('-', ":", 1).parse().ok()
}

fn each(folder: &Path, visit: &mut dyn FnMut(&Path, &fs::Metadata)) -> Result<(), Error> {
    let failed = |error| Error::io(format!("read {}", folder.display()), error);
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        // It may be gone by now.
        if let Ok(meta) = entry.metadata() {
            visit(&entry.path(), &meta);
        }
    }
    Ok(())
}

/// What cannot be deleted now is met again.
pub(super) fn remove(path: &Path) {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "cannot delete");
        }
        _ => {}
    }
}
