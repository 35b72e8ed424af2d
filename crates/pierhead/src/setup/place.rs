//! Where things are on the machine that is set up, which may be the root of an image.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

/// Nothing that is configured by hand is larger.
const MAX_FILE: u64 = 4 << 20;

/// The folders of one machine or of one user. Paths are as the clients see them.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// Before every path; `/` on the machine itself.
    root: PathBuf,
    /// `/etc`, or `~/.config` for a user's own clients.
    etc: PathBuf,
    /// Where the record of what was changed is.
    state: PathBuf,
    user: bool,
}

impl Place {
    /// A machine, or an image below `root`.
    pub(crate) fn machine(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            etc: PathBuf::from("/etc"),
            state: PathBuf::from("/var/lib/pierhead-setup"),
            user: false,
        }
    }

    /// One user's own clients.
    pub(crate) fn user(config: &Path, state: &Path) -> Self {
        Self {
            root: PathBuf::from("/"),
            etc: config.to_owned(),
            state: state.join("pierhead-setup"),
            user: true,
        }
    }

    /// What stands before every path.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// A path below the folder of configurations.
    pub(crate) fn etc(&self, path: &str) -> PathBuf {
        self.etc.join(path)
    }

    /// Where the record is.
    pub(crate) fn state(&self) -> &Path {
        &self.state
    }

    /// Whether this is the running machine, so that its daemons can be asked.
    pub(crate) fn is_live(&self) -> bool {
        self.root == Path::new("/")
    }

    /// Whether it is about a user's own clients.
    pub(crate) fn is_user(&self) -> bool {
        self.user
    }

    /// Where a path really is.
    pub(crate) fn real(&self, path: &Path) -> PathBuf {
        if self.is_live() {
            return path.to_owned();
        }
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// A file's text; `None` when there is none.
    pub(crate) fn read(&self, path: &Path) -> anyhow::Result<Option<String>> {
        let real = self.real(path);
        let cannot = || format!("cannot read {}", real.display());
        let metadata = match fs::metadata(&real) {
            Ok(metadata) => metadata,
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                if fs::symlink_metadata(&real).is_ok() {
                    bail!(
                        "{} is a link to nothing: remove it or make its target",
                        real.display()
                    );
                }
                return Ok(None);
            }
            Err(error) => return Err(denied(error).context(cannot())),
        };
        if !metadata.is_file() || metadata.len() > MAX_FILE {
            bail!("{} is no configuration file", real.display());
        }
        let bytes = fs::read(&real).map_err(denied).with_context(cannot)?;
        let text = String::from_utf8(bytes);
        Ok(Some(text.map_err(|_| {
            anyhow::anyhow!("{} is not UTF-8 text", real.display())
        })?))
    }

    /// The files in a folder whose names end so, sorted as their readers sort them.
    pub(crate) fn list(&self, folder: &Path, suffix: &str) -> anyhow::Result<Vec<PathBuf>> {
        let names = self.names(folder)?;
        let fits = names.into_iter().filter(|name| name.ends_with(suffix));
        Ok(fits.map(|name| folder.join(name)).collect())
    }

    /// The names in a folder, sorted.
    pub(crate) fn names(&self, folder: &Path) -> anyhow::Result<Vec<String>> {
        let real = self.real(folder);
        let entries = match fs::read_dir(&real) {
            Ok(entries) => entries,
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                return Ok(Vec::new());
            }
            Err(error) => {
                return Err(denied(error).context(format!("cannot read {}", real.display())));
            }
        };
        let mut names = Vec::new();
        for entry in entries {
            names.extend(entry?.file_name().into_string());
        }
        names.sort();
        Ok(names)
    }
}

/// An error with its mend, where the mend is to be root.
pub(crate) fn denied(error: std::io::Error) -> anyhow::Error {
    let hint = error.kind() == ErrorKind::PermissionDenied;
    let error = anyhow::Error::new(error);
    if hint {
        error.context("run this as root (or with --user for your own rootless client)")
    } else {
        error
    }
}
