//! Reads the configuration files of a machine as they would be without the changes of pierhead. A
//! plan starts from these files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::config_root::ConfigRoot;
use crate::error::Error;

/// Reads configuration files without the changes of pierhead.
pub(crate) struct OriginalFiles<'a> {
    pub(crate) root: &'a ConfigRoot,
    /// The original text of each file that pierhead wrote. `None` means that the file did not
    /// exist.
    pub(crate) restored: BTreeMap<PathBuf, Option<String>>,
}

impl<'a> OriginalFiles<'a> {
    /// Creates a reader for a machine that pierhead has never changed.
    pub(crate) fn unchanged(root: &'a ConfigRoot) -> Self {
        let restored = BTreeMap::new();
        Self { root, restored }
    }

    /// Returns the original text of a file, or `None` if the file does not exist.
    pub(crate) fn read(&self, path: &Path) -> Result<Option<String>, Error> {
        match self.restored.get(path) {
            Some(text) => Ok(text.clone()),
            None => self.root.read(path),
        }
    }

    /// Returns the files of a folder whose names end in `suffix`, sorted by name.
    pub(crate) fn list(&self, folder: &Path, suffix: &str) -> Result<Vec<PathBuf>, Error> {
        let mut paths = self.root.list(folder, suffix)?;
        paths.retain(|path| !matches!(self.restored.get(path), Some(None)));
        Ok(paths)
    }
}
