//! Files are replaced whole or not at all, and all of a set or none.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use super::place::{Place, denied};

/// One file, and what it holds before and after; `None` is no file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) path: PathBuf,
    pub(crate) from: Option<String>,
    pub(crate) to: Option<String>,
}

/// Makes all changes. Where one fails, those before it are taken back.
///
/// # Errors
/// The first failure, with the file; what could not be taken back is said too.
pub(crate) fn all(place: &Place, changes: &[Change]) -> anyhow::Result<()> {
    for (index, change) in changes.iter().enumerate() {
        let Err(mut error) = put(place, &change.path, change.to.as_deref()) else {
            continue;
        };
        // The one that failed too: its file may be in place, and only its folder not be synced.
        let in_place = place.read(&change.path).is_ok_and(|now| now == change.to);
        let done = if in_place { index + 1 } else { index };
        for done in changes[..done].iter().rev() {
            if let Err(worse) = put(place, &done.path, done.from.as_deref()) {
                error = error.context(format!("and {worse:#} while taking it back"));
            }
        }
        return Err(error);
    }
    Ok(())
}

/// A file with that content, or none. Its mode and owner stay as they were; a link stays a link.
fn put(place: &Place, path: &Path, text: Option<&str>) -> anyhow::Result<()> {
    let real = place.real(path);
    match text {
        Some(text) => write(place, &real, text, 0o644)
            .with_context(|| format!("cannot write {}", real.display())),
        None => remove(&real).with_context(|| format!("cannot remove {}", real.display())),
    }
}

/// Writes beside the file and renames over it, so that a reader sees the old or the new one.
///
/// # Errors
/// Any of the file system; the old file is then untouched.
pub(crate) fn write(place: &Place, real: &Path, text: &str, mode: u32) -> anyhow::Result<()> {
    let target = match fs::canonicalize(real) {
        Ok(target) => target,
        Err(error) if error.kind() == ErrorKind::NotFound => real.to_owned(),
        Err(error) => return Err(denied(error)),
    };
    if !place.is_live() && !inside(&target, &place.real(Path::new("/"))) {
        bail!("it is a link that leads out of the folder that stands for /");
    }
    let folder = target.parent().context("a file without a folder")?;
    fs::create_dir_all(folder).map_err(denied)?;
    let name = target.file_name().context("a file without a name")?;
    let beside = folder.join(format!(".{}.pierhead-new", name.to_string_lossy()));
    let replace = || -> std::io::Result<()> {
        // Of a run that was killed.
        match fs::remove_file(&beside) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&beside)?;
        file.write_all(text.as_bytes())?;
        let mut mode = mode;
        if let Ok(old) = fs::metadata(&target) {
            let new = file.metadata()?;
            if (old.uid(), old.gid()) != (new.uid(), new.gid()) {
                fchown(&file, Some(old.uid()), Some(old.gid()))?;
            }
            mode = old.permissions().mode() & 0o7777;
        }
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.sync_all()?;
        fs::rename(&beside, &target)?;
        File::open(folder)?.sync_all()
    };
    replace().map_err(|error| {
        let _ = fs::remove_file(&beside);
        denied(error)
    })
}

fn inside(path: &Path, root: &Path) -> bool {
    // The parents may not be there yet.
    let existing = path.ancestors().find(|it| it.exists());
    match (existing.map(fs::canonicalize), fs::canonicalize(root)) {
        (Some(Ok(path)), Ok(root)) => path.starts_with(root),
        _ => false,
    }
}

fn remove(real: &Path) -> anyhow::Result<()> {
    match fs::remove_file(real) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(denied(error)),
    }
}

/// The folders above a file that do not exist yet, the innermost first.
pub(crate) fn missing_folders(place: &Place, path: &Path) -> Vec<PathBuf> {
    path.ancestors()
        .skip(1)
        .take_while(|folder| !place.real(folder).exists())
        .map(Path::to_owned)
        .collect()
}

/// Removes folders that are empty; those with something in them stay.
pub(crate) fn remove_empty(place: &Place, folders: &[PathBuf]) {
    for folder in folders {
        let _ = fs::remove_dir(place.real(folder));
    }
}
