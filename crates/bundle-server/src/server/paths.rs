//! Paths of the bundle server's files, and deletion of files that are no longer used.

use std::cmp::Reverse;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use pierhead_oci::{Algorithm, Digest};

use crate::Error;
use crate::clock;
use pierhead_toc::FileDigest;

/// Suffix of the second name of a plan file, which the server adds when a client receives the plan.
const SENT: &str = ".sent";

/// The folders of the bundle server, below the data folder.
#[derive(Clone)]
pub(super) struct Paths {
    layers: PathBuf,
    tocs: PathBuf,
    traces: PathBuf,
    plans: PathBuf,
}

impl Paths {
    /// Creates the folders of the bundle server, and deletes partial files that a killed process
    /// left.
    pub(super) fn open(data: &Path) -> Result<Self, Error> {
        let paths = Self {
            layers: data.join("index/layers"),
            tocs: data.join("index/tables"),
            traces: data.join("index/traces"),
            plans: data.join("plans"),
        };
        for folder in [&paths.layers, &paths.tocs, &paths.plans] {
            prepare(folder)?;
        }
        if let Err(error) = prepare(&paths.traces) {
            tracing::warn!(
                %error,
                "cannot use the recorded traces; make this folder readable and writable for pierhead, or delete it"
            );
        }
        Ok(paths)
    }

    pub(super) fn packs(data: &Path) -> PathBuf {
        data.join("packs")
    }

    pub(super) fn image_database(data: &Path) -> PathBuf {
        data.join("directory")
    }

    /// Returns the path of the index of a layer, by the digest of its blob.
    pub(super) fn layer(&self, blob: &Digest) -> PathBuf {
        self.layers.join(blob.file_name())
    }

    /// Returns the path of the TOC of an image, by the digest of the manifest.
    pub(super) fn toc(&self, manifest: &Digest) -> PathBuf {
        self.tocs.join(manifest.file_name())
    }

    /// Returns the path of the recorded traces of an image, by the digest of the manifest.
    pub(super) fn trace(&self, manifest: &Digest) -> PathBuf {
        self.traces.join(manifest.file_name())
    }

    pub(super) fn plan(&self, key: &FileDigest) -> PathBuf {
        self.plans.join(key.hex())
    }

    /// Returns the path that is the second name of a plan which a client received.
    pub(super) fn sent(&self, key: &FileDigest) -> PathBuf {
        self.plans.join(format!("{}{SENT}", key.hex()))
    }

    /// Gives a plan its second name (a hard link). If this fails, a client that resumes its
    /// download gets the bundle of a new plan.
    pub(super) fn link_plan(&self, key: &FileDigest, sent: &FileDigest) {
        match fs::hard_link(self.plan(key), self.sent(sent)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                tracing::debug!(%error, "a plan has no second name");
            }
            _ => {}
        }
    }

    pub(super) fn has_plan(&self, key: &FileDigest) -> bool {
        self.plan(key).exists() || self.sent(key).exists()
    }

    /// Returns the plans that have only their second name, in two lists. The first list has the
    /// plans that were used within `age`, the last used first. The second list has all older plans.
    fn sent_plans(&self, age: Duration) -> Result<(Vec<PathBuf>, Vec<PathBuf>), Error> {
        let (mut young, mut old) = (Vec::new(), Vec::new());
        each(&self.plans, &mut |path, meta| {
            if !path.to_string_lossy().ends_with(SENT) || meta.nlink() > 1 {
                return;
            }
            let used = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            // After the clock was set back, the time of use may be in the future, which counts as
            // now.
            match clock::now().duration_since(used) {
                Ok(since) if since >= age => old.push(path.to_owned()),
                _ => young.push((Reverse(used), path.to_owned())),
            }
        })?;
        young.sort();
        Ok((young.into_iter().map(|(_, path)| path).collect(), old))
    }

    pub(super) fn only_sent(&self, age: Duration) -> Result<Vec<PathBuf>, Error> {
        self.sent_plans(age).map(|(young, _)| young)
    }

    /// Deletes plans that have only their second name: those that were not used for `age`, and more
    /// until at most `most` are left.
    pub(super) fn retain_sent(&self, most: usize, age: Duration) -> Result<(), Error> {
        let (young, old) = self.sent_plans(age)?;
        young
            .iter()
            .skip(most)
            .chain(&old)
            .for_each(|path| remove(path));
        Ok(())
    }

    /// Returns the bytes of layer indexes and TOCs, and the bytes of plans.
    pub(super) fn bytes(&self) -> (u64, u64) {
        let sum = |folder: &Path| {
            let mut sum = 0;
            let _ = each(folder, &mut |_, meta| {
                sum += meta.len() / meta.nlink().max(1)
            });
            sum
        };
        (sum(&self.layers) + sum(&self.tocs), sum(&self.plans))
    }

    /// Deletes the layer indexes whose digest `keep` rejects.
    pub(super) fn retain_layers(&self, keep: impl Fn(&Digest) -> bool) -> Result<(), Error> {
        retain(&self.layers, keep)
    }

    /// Deletes the TOCs whose digest `keep` rejects.
    pub(super) fn retain_tocs(&self, keep: impl Fn(&Digest) -> bool) -> Result<(), Error> {
        retain(&self.tocs, keep)
    }

    /// Deletes the traces whose digest `keep` rejects. Ignores an error, since the server works
    /// without traces, and since it has reported the cause when it opened the folder.
    pub(super) fn retain_traces(&self, keep: impl Fn(&Digest) -> bool) {
        let _ = retain(&self.traces, keep);
    }

    /// Calls `delete` with the key and the path of plans, least recently used first, until the
    /// remaining plans take at most `most` bytes. Returns the bytes of the remaining plans. Other
    /// files, which have no key, are deleted as plans are.
    pub(super) fn shrink_plans(
        &self,
        most: u64,
        delete: &dyn Fn(&FileDigest, &Path),
    ) -> Result<u64, Error> {
        let mut plans = Vec::new();
        each(&self.plans, &mut |path, meta| {
            // Skips a partial file, which another thread is still writing.
            if is_partial(path) {
                return;
            }
            let used = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            // The loop visits a file with two names twice, so each visit counts half of the bytes
            // of the file.
            plans.push((used, meta.len() / meta.nlink().max(1), path.to_owned()));
        })?;
        plans.sort();
        let mut all: u64 = plans.iter().map(|(_, len, _)| len).sum();
        for (_, len, path) in plans {
            if all <= most {
                break;
            }
            match plan_key(&path) {
                Some(key) => delete(&key, &path),
                None => remove(&path),
            }
            all -= len;
        }
        Ok(all)
    }

    /// Calls `visit` with the path of each plan.
    pub(super) fn each_plan(&self, visit: &mut dyn FnMut(&Path)) -> Result<(), Error> {
        each(&self.plans, &mut |path, _| {
            // Skips a partial file, which another thread is still writing.
            if !is_partial(path) {
                visit(path);
            }
        })
    }
}

/// Returns the key in the file name of a plan, or in the second name of a plan.
fn plan_key(path: &Path) -> Option<FileDigest> {
    let name = path.file_name()?.to_str()?;
    let hex = name.strip_suffix(SENT).unwrap_or(name);
    let digest = Digest::from_hex(Algorithm::Sha256, hex).ok()?;
    FileDigest::try_from(&digest).ok()
}

/// Creates a folder, and deletes partial files that a killed process left in the folder.
fn prepare(folder: &Path) -> Result<(), Error> {
    let made = fs::create_dir_all(folder);
    made.map_err(|error| Error::io(format!("create {}", folder.display()), error))?;
    each(folder, &mut |path, _| {
        if is_partial(path) {
            remove(path);
        }
    })
}

/// Deletes the files of a folder whose digest `keep` rejects.
fn retain(folder: &Path, keep: impl Fn(&Digest) -> bool) -> Result<(), Error> {
    each(folder, &mut |path, _| {
        let of = path
            .file_name()
            .and_then(|name| Digest::from_file_name(name.to_str()?).ok());
        if !is_partial(path) && !of.is_some_and(|digest| keep(&digest)) {
            remove(path);
        }
    })
}

fn is_partial(path: &Path) -> bool {
    path.to_string_lossy()
        .ends_with(pierhead_atomic_file::SUFFIX)
}

fn each(folder: &Path, visit: &mut dyn FnMut(&Path, &fs::Metadata)) -> Result<(), Error> {
    let failed = |error| Error::io(format!("read {}", folder.display()), error);
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        // A file that another thread has deleted meanwhile is not an error.
        if let Ok(meta) = entry.metadata() {
            visit(&entry.path(), &meta);
        }
    }
    Ok(())
}

/// Deletes a file. If there is a folder in place of the file, deletes the folder with its contents.
/// When the deletion fails, the next run of maintenance tries again.
pub(super) fn remove(path: &Path) {
    let removed = match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => fs::remove_dir_all(path),
        removed => removed,
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "cannot delete");
        }
        _ => {}
    }
}
