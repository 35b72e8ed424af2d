//! The record of the files that `pierhead setup` changed. From this record, an undo restores the
//! files. Each kind of client has one record, a JSON file.
//!
//! 1. The record is written before the first change.
//! 2. The record is removed after the last change is undone.
//! 3. The record keeps the texts from before the first run, even after further runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::apply;
use crate::client::Client;
use crate::config_root::ConfigRoot;
use crate::error::{Error, IoContext as _};

/// The version of the record's format.
const VERSION: u32 = 1;

/// The record of the changes that pierhead made for one client.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    version: u32,
    pub(crate) files: BTreeMap<PathBuf, FileRecord>,
    /// The folders that pierhead created. A folder comes before the folders that contain it.
    pub(crate) folders: Vec<PathBuf>,
}

/// The texts of one changed file. If a text is `None`, the file did not exist.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileRecord {
    /// The text of the file before the first run of setup.
    pub(crate) original: Option<String>,
    /// The text that the last run of setup wrote.
    pub(crate) after: Option<String>,
    /// The text that the last run of setup found, if it is neither `original` nor `after`. An
    /// earlier run wrote this text, and the last run may have been killed before it replaced the
    /// text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) found: Option<String>,
}

/// The error for a file in which a user has edited the lines of pierhead.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EditConflict;

impl FileRecord {
    /// Returns the text that the file would have without pierhead: the text from before the first
    /// run, with the later changes of other programs and users. `now` is the present text.
    ///
    /// # Errors
    /// [`EditConflict`] if a user has edited the lines of pierhead.
    pub(crate) fn without_pierhead(
        &self,
        now: Option<&str>,
    ) -> Result<Option<String>, EditConflict> {
        if now == self.after.as_deref() || now == self.original.as_deref() {
            return Ok(self.original.clone());
        }
        if now.is_some() && now == self.found.as_deref() {
            return Ok(self.original.clone());
        }
        match (&self.after, now, &self.original) {
            // Another program or a user has removed a file that pierhead created, so there is
            // nothing to undo.
            (_, None, None) => Ok(None),
            (Some(after), Some(now), original) => {
                let original = original.as_deref();
                match diffy::merge(after, now, original.unwrap_or("")) {
                    Ok(merged) => {
                        Ok(Some(merged).filter(|it| original.is_some() || !it.trim().is_empty()))
                    }
                    // Another program or a user has rewritten the file without the values of
                    // pierhead, so the file needs no undo.
                    Err(_) if has_no_value_of_pierhead(after, now, original) => {
                        Ok(Some(now.to_owned()))
                    }
                    Err(_) => Err(EditConflict),
                }
            }
            _ => Err(EditConflict),
        }
    }
}

/// Whether the present text has none of the values (such as addresses and folders) that pierhead
/// wrote.
fn has_no_value_of_pierhead(after: &str, now: &str, original: Option<&str>) -> bool {
    let old = quoted(original.unwrap_or(""));
    let new = quoted(after).into_iter().filter(|it| !old.contains(it));
    // Only values count, because a key such as `registry-mirrors` is not specific to pierhead.
    let mut values = new.filter(|it| it.contains(['/', ':'])).peekable();
    values.peek().is_some() && values.all(|value| !now.contains(value))
}

/// Returns the quoted strings of a JSON or TOML text.
fn quoted(text: &str) -> BTreeSet<&str> {
    let between = |quote| text.split(quote).skip(1).step_by(2);
    between('"').chain(between('\'')).collect()
}

impl Record {
    pub(crate) fn new(files: BTreeMap<PathBuf, FileRecord>, folders: Vec<PathBuf>) -> Self {
        Self {
            version: VERSION,
            files,
            folders,
        }
    }

    /// Returns the path of the record. Clients that read the same files share one record.
    pub(crate) fn path(root: &ConfigRoot, client: Client) -> PathBuf {
        let name = match client {
            Client::Docker => "docker.json",
            Client::Containerd => "containerd.json",
            Client::Podman | Client::Crio => "containers.json",
        };
        root.real(root.state()).join(name)
    }

    /// Reads the record of a client. Returns `None` if there is no record.
    pub(crate) fn load(root: &ConfigRoot, client: Client) -> Result<Option<Self>, Error> {
        let path = Self::path(root, client);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).context("read", &path),
        };
        match serde_json::from_str::<Self>(&text) {
            Ok(record) if record.version == VERSION => Ok(Some(record)),
            Ok(_) => Err(Error::RecordVersion { path }),
            Err(source) => Err(Error::InvalidRecord { path, source }),
        }
    }

    /// Writes the record of a client. Only the owner of the file can read it, because configuration
    /// files may contain secrets.
    pub(crate) fn save(&self, root: &ConfigRoot, client: Client) -> Result<(), Error> {
        let path = Self::path(root, client);
        match serde_json::to_string_pretty(self) {
            Ok(text) => apply::write(root, &path, &text, 0o600),
            Err(source) => Err(Error::InvalidRecord { path, source }),
        }
    }

    /// Deletes the record, and also the folder of records if that is empty.
    pub(crate) fn remove(root: &ConfigRoot, client: Client) -> Result<(), Error> {
        let path = Self::path(root, client);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).context("remove", &path)
            }
            _ => {
                let _ = fs::remove_dir(root.real(root.state()));
                Ok(())
            }
        }
    }
}

/// The lock that allows one setup or undo at a time. The caller holds the lock from before the plan
/// until the plan is applied. Dropping the lock removes those folders that were created for the
/// lock and are empty.
#[derive(Debug)]
pub struct SetupLock<'a> {
    root: &'a ConfigRoot,
    created: Vec<PathBuf>,
    _folder: File,
}

impl<'a> SetupLock<'a> {
    /// Takes the lock. The call blocks while another process holds the lock.
    ///
    /// # Errors
    /// An error while the folder of records is created or locked.
    pub fn take(root: &'a ConfigRoot) -> Result<Self, Error> {
        let real = root.real(root.state());
        let created = apply::missing_folders(root, &root.state().join("record"));
        // The folder itself is locked, so that no lock file remains.
        let open = || {
            fs::create_dir_all(&real)?;
            File::open(&real)
        };
        let folder = open().context("write below", &real)?;
        folder.lock().context("lock", &real)?;
        Ok(Self {
            root,
            created,
            _folder: folder,
        })
    }

    /// Returns the folders that were created for the lock.
    pub(crate) fn created_folders(&self) -> &[PathBuf] {
        &self.created
    }
}

impl Drop for SetupLock<'_> {
    fn drop(&mut self) {
        apply::remove_empty(self.root, &self.created);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use proptest::prelude::*;

    use super::*;

    fn file(original: Option<&str>, after: Option<&str>) -> FileRecord {
        FileRecord {
            original: original.map(str::to_owned),
            after: after.map(str::to_owned),
            found: None,
        }
    }

    proptest! {
        /// Tests that an undo is exact even after a run of setup that was killed before it wrote
        /// the file.
        #[test]
        fn an_undo_restores_the_exact_text_from_before(
            original in proptest::option::of("\\PC{0,40}"),
            after in "\\PC{0,40}",
        ) {
            let record = file(original.as_deref(), Some(&after));
            prop_assert_eq!(record.without_pierhead(Some(&after)), Ok(original.clone()));
            prop_assert_eq!(record.without_pierhead(original.as_deref()), Ok(original));
        }
    }

    #[test]
    fn an_undo_keeps_changes_by_others_and_reports_edits_of_pierheads_lines() {
        let original = "a = 1\nb = 2\nc = 3\n";
        let record = file(Some(original), Some("a = 1\nb = 2\nc = 3\nours = 1\n"));
        assert_eq!(
            record.without_pierhead(Some("a = 9\nb = 2\nc = 3\nours = 1\n")),
            Ok(Some("a = 9\nb = 2\nc = 3\n".to_owned()))
        );
        let edited = record.without_pierhead(Some("a = 1\nb = 2\nc = 3\nours = 2\n"));
        assert_eq!(edited, Err(EditConflict));
        assert_eq!(record.without_pierhead(None), Err(EditConflict));
        assert_eq!(file(None, Some("ours\n")).without_pierhead(None), Ok(None));
    }

    #[test]
    fn a_rewritten_file_without_values_of_pierhead_is_kept() {
        let record = file(Some("old"), Some("mirror = \"http://a:5000\"\n"));
        let rewritten = "mirror = \"http://b\"\n";
        assert_eq!(
            record.without_pierhead(Some(rewritten)),
            Ok(Some(rewritten.to_owned()))
        );
        let named = "other = 1\nmirror = [\"http://a:5000\"]\n";
        assert_eq!(record.without_pierhead(Some(named)), Err(EditConflict));
    }

    #[test]
    fn the_text_that_a_killed_run_found_is_no_edit() {
        let mut record = file(Some("1"), Some("3"));
        record.found = Some("2".to_owned());
        assert_eq!(record.without_pierhead(Some("2")), Ok(Some("1".to_owned())));
    }

    #[test]
    fn a_saved_record_is_loaded_unchanged() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = ConfigRoot::system(folder.path());
        assert_eq!(Record::load(&root, Client::Docker).expect("read"), None);
        let files = BTreeMap::from([("/etc/a".into(), file(None, Some("1")))]);
        let record = Record::new(files, vec!["/etc/b".into()]);
        record.save(&root, Client::Podman).expect("written");
        let path = Record::path(&root, Client::Podman);
        let mode = fs::metadata(&path).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // podman and CRI-O share one record, because they read the same files.
        assert_eq!(
            Record::load(&root, Client::Crio).expect("read"),
            Some(record)
        );
        assert_eq!(Record::load(&root, Client::Docker).expect("read"), None);
        Record::remove(&root, Client::Crio).expect("removed");
        Record::remove(&root, Client::Crio).expect("removed already");
        assert!(
            !root.real(root.state()).exists(),
            "the folder is removed, too"
        );
    }

    #[test]
    fn records_of_another_version_and_other_files_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = ConfigRoot::system(folder.path());
        let path = Record::path(&root, Client::Docker);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        let load = |text: &str| {
            fs::write(&path, text).expect("written");
            Record::load(&root, Client::Docker).expect_err("refused")
        };
        let newer = r#"{"version": 2, "files": {}, "folders": []}"#;
        assert!(matches!(load(newer), Error::RecordVersion { .. }));
        assert!(matches!(load("{}"), Error::InvalidRecord { .. }));
    }

    #[test]
    fn a_dropped_lock_removes_its_empty_folders() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = ConfigRoot::system(folder.path());
        let state = root.real(root.state());
        let lock = SetupLock::take(&root).expect("a lock");
        assert!(File::open(&state).expect("a folder").try_lock().is_err());
        drop(lock);
        assert!(!folder.path().join("var").exists());
        let lock = SetupLock::take(&root).expect("a lock");
        fs::write(state.join("used"), "").expect("written");
        drop(lock);
        assert!(state.join("used").exists());
    }
}
