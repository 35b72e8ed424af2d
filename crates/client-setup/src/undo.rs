//! Restores the original files of a client, and keeps the later changes of other programs and
//! users.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::apply::{self, Change, diff};
use crate::client::Client;
use crate::config_root::ConfigRoot;
use crate::error::{Error, Outcome};
use crate::record::{EditConflict, Record, SetupLock};

/// A planned undo of a setup.
#[derive(Debug)]
pub struct Undo<'a> {
    root: &'a ConfigRoot,
    client: Client,
    record: Record,
    /// The original text of each file that can be restored.
    originals: BTreeMap<PathBuf, Option<String>>,
    edited: EditedFiles,
    changes: Vec<Change>,
}

impl<'a> Undo<'a> {
    /// Computes the original files, and writes nothing. Returns `None` if pierhead has changed no
    /// file. A caller that will apply the plan must take the [`SetupLock`] before this call. The
    /// call blocks.
    ///
    /// # Errors
    /// The error names the record or a file that cannot be read.
    pub fn plan(root: &'a ConfigRoot, client: Client) -> Result<Option<Self>, Error> {
        let Some(record) = Record::load(root, client)? else {
            return Ok(None);
        };
        let (mut originals, edited) = original_texts(root, &record)?;
        edited.keep_named_files(root, &mut originals)?;
        let changes = apply::changes(root, originals.clone())?;
        Ok(Some(Self {
            root,
            client,
            record,
            originals,
            edited,
            changes,
        }))
    }

    /// Returns the changes that the undo will write.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Whether every file can be restored.
    pub fn is_complete(&self) -> bool {
        self.edited.0.is_empty()
    }

    /// Restores the files, and removes the restored files from the record. The call blocks.
    ///
    /// # Errors
    /// [`Error::NotApplied`], [`Error::NotRestored`], or an error while the record is written.
    pub fn apply(&self, _lock: &SetupLock<'_>) -> Result<(), Error> {
        let (root, client) = (self.root, self.client);
        apply::apply_all(root, &self.changes)?;
        let folders = &self.record.folders;
        if self.is_complete() {
            Record::remove(root, client)?;
            apply::remove_empty(root, folders);
            return Ok(());
        }
        let mut files = self.record.files.clone();
        files.retain(|path, _| !self.originals.contains_key(path));
        if files.len() < self.record.files.len() {
            apply::remove_empty(root, folders);
            Record::new(files, folders.clone()).save(root, client)?;
        }
        Ok(())
    }

    /// Reports the files that cannot be restored.
    ///
    /// # Errors
    /// [`Error::Edited`], unless [`Undo::is_complete`] is true.
    pub fn check_edited(&self, outcome: Outcome) -> Result<(), Error> {
        self.edited.check(self.root, self.client, outcome)
    }
}

/// The files in which a user has edited the lines of pierhead, each with its diff.
#[derive(Debug, Default)]
pub(crate) struct EditedFiles(BTreeMap<PathBuf, String>);

impl EditedFiles {
    /// Returns [`Error::Edited`] if there are files with edited lines.
    pub(crate) fn check(
        &self,
        root: &ConfigRoot,
        client: Client,
        outcome: Outcome,
    ) -> Result<(), Error> {
        if self.0.is_empty() {
            return Ok(());
        }
        let files = self.0.iter();
        Err(Error::Edited {
            files: files
                .map(|(path, diff)| (root.real(path), diff.clone()))
                .collect(),
            outcome,
            record: Record::path(root, client),
        })
    }

    /// Removes from `originals` each file that an edited file names, so that the undo keeps the
    /// named file. A client does not start if its configuration names a missing certificate.
    fn keep_named_files(
        &self,
        root: &ConfigRoot,
        originals: &mut BTreeMap<PathBuf, Option<String>>,
    ) -> Result<(), Error> {
        let mut texts = String::new();
        for path in self.0.keys() {
            texts.extend(root.read(path)?);
        }
        originals.retain(|path, _| {
            let name = path.file_name().and_then(|name| name.to_str());
            !name.is_some_and(|name| texts.contains(name))
        });
        Ok(())
    }
}

/// Returns the original text of each file of a record, and the files whose original text cannot be
/// computed.
pub(crate) fn original_texts(
    root: &ConfigRoot,
    record: &Record,
) -> Result<(BTreeMap<PathBuf, Option<String>>, EditedFiles), Error> {
    let (mut originals, mut edited) = (BTreeMap::new(), EditedFiles::default());
    for (path, file) in &record.files {
        let now = root.read(path)?;
        match file.without_pierhead(now.as_deref()) {
            Ok(text) => {
                originals.insert(path.clone(), text);
            }
            Err(EditConflict) => {
                let from = file.after.as_deref().unwrap_or_default();
                let diff = diff(path, from, now.as_deref().unwrap_or_default());
                edited.0.insert(path.clone(), diff);
            }
        }
    }
    Ok((originals, edited))
}
