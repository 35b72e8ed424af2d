//! File and line of each configured key, for messages that pierhead prints after it has read the
//! file.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

/// Line of each key that the file sets. The map's key is a path such as `cache.size`.
pub(crate) type Lines = HashMap<String, usize>;

/// Lines of the keys whose value comes from the file. Keys that the command line overrides are not
/// in the map.
#[derive(Clone, Default)]
pub(crate) struct KeyLocations {
    file: Option<PathBuf>,
    lines: Lines,
    /// Keys that the command line sets.
    overridden: HashSet<&'static str>,
}

impl KeyLocations {
    pub(super) fn new(
        file: Option<PathBuf>,
        lines: Lines,
        overridden: impl Iterator<Item = &'static str>,
    ) -> Self {
        Self {
            file,
            lines,
            overridden: overridden.collect(),
        }
    }

    /// Whether the file or the command line sets the key.
    pub(crate) fn is_set(&self, key: &str) -> bool {
        self.lines.contains_key(key) || self.overridden.contains(key)
    }

    /// Returns the key with its file and line, such as `cache.size (pierhead.toml:7)`, or the key
    /// alone if the file does not set the key.
    pub(crate) fn describe(&self, key: &str) -> String {
        match (&self.file, self.lines.get(key)) {
            (Some(file), Some(line)) => format!("{key} ({}:{line})", file.display()),
            _ => key.to_owned(),
        }
    }
}
