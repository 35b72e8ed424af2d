//! Paths of the bundle server's files, and deletion of unused ones.

use std::cmp::Reverse;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use pierhead_oci::Digest;

use pierhead_toc::{Error, FileDigest};

/// The end of the second name of a plan that was handed out.
const SENT: &str = ".sent";

/// The folders below the data folder.
#[derive(Clone)]
pub(super) struct Paths {
    layers: PathBuf,
    tocs: PathBuf,
    traces: PathBuf,
    plans: PathBuf,
}

impl Paths {
    /// Makes the folders, and deletes what a kill left half written.
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
                "traces of starts cannot be used; make this folder readable and writable for pierhead, or delete it"
            );
        }
        Ok(paths)
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
    pub(super) fn toc(&self, manifest: &Digest) -> PathBuf {
        self.tocs.join(name(manifest))
    }

    /// The order in which a start of an image opens its files, by its manifest.
    pub(super) fn trace(&self, manifest: &Digest) -> PathBuf {
        self.traces.join(name(manifest))
    }

    pub(super) fn plan(&self, key: &FileDigest) -> PathBuf {
        self.plans.join(key.hex())
    }

    /// A plan that was handed out, by its second name.
    pub(super) fn sent(&self, key: &FileDigest) -> PathBuf {
        self.plans.join(format!("{}{SENT}", key.hex()))
    }

    /// Gives a plan its second name. One that cannot have it is made anew when somebody goes on with it.
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

    /// Plans that have nothing but their second name and were used within `age`, the last used first; the others are in `old`.
    fn sent_plans(&self, age: Duration) -> Result<(Vec<PathBuf>, Vec<PathBuf>), Error> {
        let (mut young, mut old) = (Vec::new(), Vec::new());
        each(&self.plans, &mut |path, meta| {
            if !path.to_string_lossy().ends_with(SENT) || meta.nlink() > 1 {
                return;
            }
            let used = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            // Used in the future: just now, by another clock.
            match used.elapsed() {
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

    /// Keeps `most` of the plans that have nothing but their second name, and none that nobody used for `age`.
    pub(super) fn retain_sent(&self, most: usize, age: Duration) -> Result<(), Error> {
        let (young, old) = self.sent_plans(age)?;
        young
            .iter()
            .skip(most)
            .chain(&old)
            .for_each(|path| remove(path));
        Ok(())
    }

    /// Bytes of indexes and tables; bytes of plans.
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

    /// Deletes the indexes, tables and traces that `keep` does not want, by the digest that each is of.
    pub(super) fn retain(&self, keep: impl Fn(&Digest) -> bool) -> Result<(), Error> {
        let maintain = |folder: &Path| {
            each(folder, &mut |path, _| {
                let of = path.file_name().and_then(|name| digest(name.to_str()?));
                if !is_partial(path) && !of.is_some_and(|digest| keep(&digest)) {
                    remove(path);
                }
            })
        };
        // The server works without traces; the start has reported why they cannot be used.
        let _ = maintain(&self.traces);
        maintain(&self.layers)?;
        maintain(&self.tocs)
    }

    /// Deletes plans, those that were used the longest ago first, until they take `most` bytes; returns what they take.
    pub(super) fn shrink_plans(&self, most: u64) -> Result<u64, Error> {
        let mut plans = Vec::new();
        each(&self.plans, &mut |path, meta| {
            // Another thread writes this file.
            if is_partial(path) {
                return;
            }
            let used = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            // Of two names each has one half.
            plans.push((used, meta.len() / meta.nlink().max(1), path.to_owned()));
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

    /// Visits the paths of all plans.
    pub(super) fn each_plan(&self, visit: &mut dyn FnMut(&Path)) -> Result<(), Error> {
        each(&self.plans, &mut |path, _| {
            // Another thread writes this file.
            if !is_partial(path) {
                visit(path);
            }
        })
    }

    /// Deletes the hard link of a plan that was sent.
    pub(super) fn remove_sent(&self, key: &FileDigest) {
        remove(&self.sent(key));
    }

    /// Deletes a plan: what it was made of is gone.
    pub(super) fn remove_plan(&self, key: &FileDigest) {
        remove(&self.plan(key));
    }
}

/// Makes a folder, and deletes what a kill left half written.
fn prepare(folder: &Path) -> Result<(), Error> {
    let made = fs::create_dir_all(folder);
    made.map_err(|error| Error::io(format!("make {}", folder.display()), error))?;
    each(folder, &mut |path, _| {
        if is_partial(path) {
            remove(path);
        }
    })
}

fn is_partial(path: &Path) -> bool {
    path.to_string_lossy()
        .ends_with(pierhead_atomic_file::SUFFIX)
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

/// What cannot be deleted now is met again. A folder where a file of ours should be goes with all that is in it.
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
