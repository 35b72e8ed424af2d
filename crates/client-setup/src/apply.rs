//! Writes the changed configuration files of a client. Each file is replaced atomically, and either
//! all files of a change are written or none.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::config_root::ConfigRoot;
use crate::error::{Error, IoContext as _};

/// The change of one file. If a text is `None`, the file does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The path of the file as the client sees it, that is, without the root folder.
    pub path: PathBuf,
    /// The text of the file before the change.
    pub from: Option<String>,
    /// The text of the file after the change.
    pub to: Option<String>,
}

impl Change {
    /// Returns the change as a unified diff.
    pub fn diff(&self) -> String {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        diff(&self.path, &text(&self.from), &text(&self.to))
    }
}

/// Returns the unified diff of two texts of one file.
pub(crate) fn diff(path: &Path, from: &str, to: &str) -> String {
    let name = path.display().to_string();
    let mut options = diffy::DiffOptions::new();
    options
        .set_original_filename(name.clone())
        .set_modified_filename(name);
    options.create_patch(from, to).to_string()
}

/// Returns the changes that turn the present files into the files in `wanted`.
pub(crate) fn changes(
    root: &ConfigRoot,
    wanted: BTreeMap<PathBuf, Option<String>>,
) -> Result<Vec<Change>, Error> {
    let mut changes = Vec::new();
    for (path, to) in wanted {
        let from = root.read(&path)?;
        if from != to {
            changes.push(Change { path, from, to });
        }
    }
    Ok(changes)
}

/// Makes all changes. If a change fails, restores the files that were already changed.
///
/// # Errors
/// [`Error::NotApplied`], or [`Error::NotRestored`].
pub(crate) fn apply_all(root: &ConfigRoot, changes: &[Change]) -> Result<(), Error> {
    for (index, change) in changes.iter().enumerate() {
        let Err(error) = put(root, &change.path, change.to.as_deref()) else {
            continue;
        };
        // If only the sync of the folder failed, the file may already have its new text.
        let in_place = root.read(&change.path).is_ok_and(|now| now == change.to);
        let written = if in_place { index + 1 } else { index };
        let mut failures = Vec::new();
        for done in changes[..written].iter().rev() {
            if let Err(error) = put(root, &done.path, done.from.as_deref()) {
                failures.push(error.to_string());
            }
        }
        let source = Box::new(error);
        return Err(match failures.is_empty() {
            true => Error::NotApplied { source },
            false => Error::NotRestored { failures, source },
        });
    }
    Ok(())
}

/// Writes a file, or removes it if `text` is `None`. Keeps the mode and the owner of the file. A
/// symbolic link is kept, and the file to which it points is written.
fn put(root: &ConfigRoot, path: &Path, text: Option<&str>) -> Result<(), Error> {
    let real = root.real(path);
    match text {
        Some(text) => write(root, &real, text, 0o644),
        None => remove(&real).context("remove", &real),
    }
}

/// Replaces a file atomically. `mode` is the mode of a new file.
///
/// # Errors
/// Errors of the file system. After an error, the old file is unchanged.
pub(crate) fn write(root: &ConfigRoot, real: &Path, text: &str, mode: u32) -> Result<(), Error> {
    let target = match fs::canonicalize(real) {
        Ok(target) => target,
        Err(error) if error.kind() == ErrorKind::NotFound => real.to_owned(),
        Err(error) => return Err(error).context("write", real),
    };
    if !root.is_live() && !is_inside(&target, &root.real(Path::new("/"))) {
        return Err(Error::LinkOutsideRoot {
            path: real.to_owned(),
        });
    }
    let replace = || -> io::Result<()> {
        if let Some(folder) = target.parent() {
            fs::create_dir_all(folder)?;
        }
        pierhead_atomic_file::Options::new()
            .mode(mode)
            .keep_owner()
            .write(&target, text.as_bytes())
    };
    replace().context("write", real)
}

fn is_inside(path: &Path, root: &Path) -> bool {
    // Finds the closest folder above that exists, since the parent folders may not exist yet.
    let existing = path.ancestors().find(|it| it.exists());
    match (existing.map(fs::canonicalize), fs::canonicalize(root)) {
        (Some(Ok(path)), Ok(root)) => path.starts_with(root),
        _ => false,
    }
}

fn remove(real: &Path) -> io::Result<()> {
    match fs::remove_file(real) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Returns the folders above a file that do not exist, the innermost first.
pub(crate) fn missing_folders(root: &ConfigRoot, path: &Path) -> Vec<PathBuf> {
    path.ancestors()
        .skip(1)
        .take_while(|folder| !root.real(folder).exists())
        .map(Path::to_owned)
        .collect()
}

/// Removes each folder in `folders` that is empty.
pub(crate) fn remove_empty(root: &ConfigRoot, folders: &[PathBuf]) {
    for folder in folders {
        let _ = fs::remove_dir(root.real(folder));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn change(path: &str, from: Option<&str>, to: Option<&str>) -> Change {
        Change {
            path: path.into(),
            from: from.map(str::to_owned),
            to: to.map(str::to_owned),
        }
    }

    fn mode_of(path: &Path) -> u32 {
        let metadata = fs::metadata(path).expect("a file");
        metadata.permissions().mode() & 0o7777
    }

    #[test]
    fn either_all_files_are_written_or_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = ConfigRoot::system(folder.path());
        fs::create_dir_all(folder.path().join("etc/b")).expect("made");
        fs::write(folder.path().join("etc/a"), "old").expect("written");
        // `/etc/b` is a folder, so no file can take its place.
        let changes = [
            change("/etc/a", Some("old"), Some("new")),
            change("/etc/new/c", None, Some("new")),
            change("/etc/b", None, Some("new")),
        ];
        let error = apply_all(&root, &changes).expect_err("refused");
        assert!(matches!(error, Error::NotApplied { .. }), "{error:?}");
        let text = |path: &str| root.read(Path::new(path)).expect("read");
        assert_eq!(text("/etc/a").as_deref(), Some("old"));
        assert_eq!(text("/etc/new/c"), None);
        apply_all(&root, &changes[..2]).expect("written");
        assert_eq!(text("/etc/a").as_deref(), Some("new"));
        assert_eq!(text("/etc/new/c").as_deref(), Some("new"));
        assert_eq!(changes_left(&root, &changes[..2]), 0);
    }

    fn changes_left(root: &ConfigRoot, made: &[Change]) -> usize {
        let wanted = made.iter().map(|it| (it.path.clone(), it.to.clone()));
        changes(root, wanted.collect()).expect("read").len()
    }

    #[test]
    fn a_new_file_gets_the_given_mode_and_an_existing_file_keeps_its_mode() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = ConfigRoot::system(folder.path());
        let path = folder.path().join("etc/a");
        write(&root, &path, "1", 0o600).expect("written");
        assert_eq!(mode_of(&path), 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("set");
        write(&root, &path, "2", 0o600).expect("written");
        assert_eq!(mode_of(&path), 0o640);
        assert_eq!(fs::read_to_string(&path).expect("text"), "2");
    }

    #[test]
    fn a_link_out_of_the_root_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = ConfigRoot::system(&folder.path().join("root"));
        fs::create_dir_all(folder.path().join("root/etc")).expect("made");
        fs::write(folder.path().join("outside"), "theirs").expect("written");
        fs::write(folder.path().join("root/etc/real"), "ours").expect("written");
        let link = folder.path().join("root/etc/a");
        symlink("../../outside", &link).expect("a link");
        let error = write(&root, &link, "new", 0o644).expect_err("refused");
        assert!(matches!(error, Error::LinkOutsideRoot { .. }), "{error:?}");
        fs::remove_file(&link).expect("removed");
        symlink("real", &link).expect("a link");
        write(&root, &link, "new", 0o644).expect("written");
        assert!(link.is_symlink());
        let real = fs::read_to_string(folder.path().join("root/etc/real"));
        assert_eq!(real.expect("text"), "new");
    }

    #[test]
    fn only_empty_folders_are_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = ConfigRoot::system(folder.path());
        let path = Path::new("/etc/a/b/file");
        let missing = missing_folders(&root, path);
        assert_eq!(missing, ["/etc/a/b", "/etc/a", "/etc"].map(PathBuf::from));
        fs::create_dir_all(root.real(&missing[0])).expect("made");
        fs::write(folder.path().join("etc/theirs"), "").expect("written");
        remove_empty(&root, &missing);
        assert!(!folder.path().join("etc/a").exists());
        assert!(folder.path().join("etc/theirs").exists());
    }

    #[test]
    fn a_diff_names_the_path_without_the_root() {
        let diff = change("/etc/a", Some("1\n"), Some("2\n")).diff();
        assert!(diff.contains("--- /etc/a\n+++ /etc/a\n"), "{diff}");
        assert!(diff.ends_with("-1\n+2\n"), "{diff}");
        assert!(change("/etc/a", None, Some("2\n")).diff().ends_with("+2\n"));
    }
}
