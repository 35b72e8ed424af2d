//! Plans the changes to a client's configuration files that make the client pull through pierhead,
//! and applies these changes.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::apply::{self, Change};
use crate::client::Client;
use crate::config_root::ConfigRoot;
use crate::error::{Error, Outcome};
use crate::original_files::OriginalFiles;
use crate::plan::{self, Options, Plan};
use crate::record::{FileRecord, Record, SetupLock};
use crate::undo;

/// A planned setup: the changes to make to the present files.
#[derive(Debug)]
pub struct Setup<'a> {
    root: &'a ConfigRoot,
    client: Client,
    changes: Vec<Change>,
    notes: Vec<String>,
    /// The record of an earlier run of setup, if there is one.
    previous: Option<Record>,
    /// The files that the record will have after this run of setup.
    files: BTreeMap<PathBuf, FileRecord>,
}

impl<'a> Setup<'a> {
    /// Computes the new files, and writes nothing. A caller that will apply the plan must take the
    /// [`SetupLock`] before this call. The call blocks.
    ///
    /// # Errors
    /// The error names a file that cannot be read or changed safely, or an option that the client
    /// does not support.
    pub fn plan(root: &'a ConfigRoot, options: &Options<'_>) -> Result<Self, Error> {
        let client = options.client;
        let previous = Record::load(root, client)?;
        let restored = match &previous {
            None => BTreeMap::new(),
            Some(record) => {
                let (files, edited) = undo::original_texts(root, record)?;
                if let Err(error) = edited.check(root, client, Outcome::Untouched) {
                    return Self::without_changes(root, options, record).ok_or(error);
                }
                files
            }
        };
        let originals = OriginalFiles { root, restored };
        let Plan { files: new, notes } = plan::plan(&originals, options)?;
        // Restores a file that an earlier run of setup wrote and that this run does not need.
        let mut wanted = originals.restored.clone();
        wanted.extend(new.into_iter().map(|(path, text)| (path, Some(text))));
        let mut files = BTreeMap::new();
        for (path, after) in &wanted {
            let found = root.read(path)?;
            let original = match originals.restored.get(path) {
                Some(text) => text.clone(),
                None => found.clone(),
            };
            if original == *after && found == original {
                continue;
            }
            let file = FileRecord {
                found: found.filter(|text| original.as_ref() != Some(text)),
                original,
                after: after.clone(),
            };
            files.insert(path.clone(), file);
        }
        Ok(Self {
            root,
            client,
            changes: apply::changes(root, wanted)?,
            notes,
            previous,
            files,
        })
    }

    /// Returns a setup without changes, if the present files already contain what the options
    /// require. Such a setup needs no original files, so an edit does not prevent it.
    fn without_changes(
        root: &'a ConfigRoot,
        options: &Options<'_>,
        record: &Record,
    ) -> Option<Self> {
        let present = OriginalFiles {
            root,
            restored: BTreeMap::new(),
        };
        let Plan { files, notes } = plan::plan(&present, options).ok()?;
        let wanted = files.into_iter().map(|(path, text)| (path, Some(text)));
        let changes = apply::changes(root, wanted.collect::<BTreeMap<_, _>>()).ok()?;
        changes.is_empty().then(|| Self {
            root,
            client: options.client,
            changes,
            notes,
            previous: None,
            files: record.files.clone(),
        })
    }

    /// Returns the changes to write. The list is empty if the client already pulls through
    /// pierhead.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Returns notes about this client for the user, one sentence each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Writes the record, and then either all files or none. The call blocks.
    ///
    /// # Errors
    /// [`Error::NotApplied`], [`Error::NotRestored`], or an error while the record is written.
    pub fn apply(&self, lock: &SetupLock<'_>) -> Result<(), Error> {
        let (root, client) = (self.root, self.client);
        let record = Record::new(self.files.clone(), self.created_folders(lock));
        record.save(root, client)?;
        let Err(error) = apply::apply_all(root, &self.changes) else {
            return Ok(());
        };
        match &self.previous {
            Some(previous) => previous.save(root, client)?,
            None => {
                Record::remove(root, client)?;
                apply::remove_empty(root, &record.folders);
            }
        }
        Err(error)
    }

    /// Returns the folders that pierhead creates in this run or created in an earlier run, where a
    /// folder comes before the folders that contain it.
    fn created_folders(&self, lock: &SetupLock<'_>) -> Vec<PathBuf> {
        let previous = self.previous.as_ref();
        let mut folders = previous.map_or_else(Vec::new, |record| record.folders.clone());
        let missing = self.files.keys();
        let missing = missing.flat_map(|path| apply::missing_folders(self.root, path));
        for folder in lock.created_folders().iter().cloned().chain(missing) {
            if !folders.contains(&folder) {
                folders.push(folder);
            }
        }
        folders.sort_by_key(|folder| Reverse(folder.components().count()));
        folders
    }
}
