//! Where a key was set, for messages that come long after the file was read.

use std::collections::HashMap;
use std::path::PathBuf;

/// The line of each key that a file sets, by its path such as `cache.size`.
pub(crate) type Lines = HashMap<String, usize>;

/// Of the keys of a file that nothing else overruled.
#[derive(Clone, Default)]
pub(crate) struct Places {
    file: Option<PathBuf>,
    lines: Lines,
}

impl Places {
    pub(super) fn new(file: Option<PathBuf>, lines: Lines) -> Self {
        Self { file, lines }
    }

    /// The key as people name it, with file and line where it has these.
    pub(crate) fn of(&self, key: &str) -> String {
        match (&self.file, self.lines.get(key)) {
            (Some(file), Some(line)) => format!("{key} ({}:{line})", file.display()),
            _ => key.to_owned(),
        }
    }
}
