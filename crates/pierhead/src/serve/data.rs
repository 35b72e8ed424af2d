//! Errors of the data folder: the exit code and the fix.

use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use pierhead_cache::Error;
use rustix::process::{getegid, geteuid};

use crate::exit_code::{ExitError, ExitReason};

/// An error of the cache, with its exit code.
pub(super) fn refused(data: &Path, error: Error) -> anyhow::Error {
    let (exit, fix) = match &error {
        Error::InUse { .. } => (ExitReason::InUse, None),
        Error::Version { .. } | Error::Foreign { .. } => (ExitReason::ForeignData, None),
        Error::Io { source, path, .. } => fix(data, path, source),
        Error::UnreadablePin { source, path } => fix(data, path, source),
        _ => (ExitReason::Failed, None),
    };
    with_exit_code(exit, fix, error.into())
}

/// The same when the file system cannot be read.
pub(super) fn unseen(data: &Path, error: io::Error) -> anyhow::Error {
    let (exit, fix) = fix(data, data, &error);
    let what = format!("cannot see the file system of {}", data.display());
    with_exit_code(exit, fix, anyhow::Error::new(error).context(what))
}

fn with_exit_code(exit: ExitReason, fix: Option<String>, error: anyhow::Error) -> anyhow::Error {
    if exit == ExitReason::Failed {
        return error;
    }
    let message = crate::exit_code::describe(&error);
    let fix = fix.map(|fix| format!(": {fix}")).unwrap_or_default();
    ExitError::new(exit, format!("data: {message}{fix}")).into()
}

/// The exit code and the fix. `failed` is the file or the folder that the error names.
fn fix(data: &Path, failed: &Path, error: &io::Error) -> (ExitReason, Option<String>) {
    let shown = data.display();
    let (exit, fix) = match error.kind() {
        ErrorKind::ReadOnlyFilesystem => (
            ExitReason::CannotWrite,
            format!(
                "mount it writable (`findmnt -T {shown}` shows how it is; in a pod: a volume, and no readOnly), or name \
                 another folder as data"
            ),
        ),
        ErrorKind::NotADirectory | ErrorKind::AlreadyExists => (
            ExitReason::CannotWrite,
            "name a folder as data, and not what lies in a file; delete a file in place of a folder of pierhead".to_owned(),
        ),
        ErrorKind::PermissionDenied => (ExitReason::PermissionDenied, ownership_fix(data, failed)),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => (
            ExitReason::DiskFull,
            format!(
                "the disk is full (`df -h {shown}`, `df -i {shown}`): free some, or name a folder elsewhere as data; what \
                 is in the cache is safe"
            ),
        ),
        _ => return (ExitReason::Failed, None),
    };
    (exit, Some(fix))
}

/// The owner that the folder has, and the one that it needs.
fn ownership_fix(data: &Path, failed: &Path) -> String {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    let nearest = failed
        .ancestors()
        .find_map(|folder| Some((folder, folder.metadata().ok()?)));
    // A missing file could not be made in the folder that is there.
    let lacks_mode = nearest.as_ref().filter(|(_, it)| {
        let needed = if it.is_dir() { 0o700 } else { 0o600 };
        it.uid() == user && it.mode() & needed != needed
    });
    let owner = nearest.as_ref().map(|(folder, it)| {
        format!(
            "{} belongs to user {}, group {} (mode {:04o}), and ",
            folder.display(),
            it.uid(),
            it.gid(),
            it.mode() & 0o7777
        )
    });
    let shown = data.display();
    // What is behind a folder that may not be looked into is not known to be missing.
    let is_missing = matches!(data.try_exists(), Ok(false));
    let fix = match lacks_mode {
        _ if is_missing => format!("mkdir -p {shown} && chown {user}:{group} {shown}"),
        // Another owner is not what it lacks.
        Some((path, _)) => format!("chmod u+rwX {}", path.display()),
        // Something below belongs to another user, such as what a run as root left.
        None => format!("chown -R {user}:{group} {shown}"),
    };
    format!(
        "{}this is user {user}, group {group}: `{fix}` as root (in a pod: fsGroup, or the owner of the node's \
         folder; a security module can refuse, too: see `dmesg`)",
        owner.unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_code_and_its_mend() {
        let data = Path::new("/");
        for (kind, exit, word) in [
            (
                ErrorKind::ReadOnlyFilesystem,
                ExitReason::CannotWrite,
                "findmnt",
            ),
            (
                ErrorKind::PermissionDenied,
                ExitReason::PermissionDenied,
                "as root",
            ),
            (ErrorKind::StorageFull, ExitReason::DiskFull, "df -h"),
            (ErrorKind::QuotaExceeded, ExitReason::DiskFull, "df -h"),
            (ErrorKind::NotADirectory, ExitReason::CannotWrite, "folder"),
        ] {
            let (code, output) = fix(data, data, &kind.into());
            assert_eq!(code, exit, "{kind}");
            assert!(output.is_some_and(|output| output.contains(word)), "{kind}");
        }
        assert_eq!(
            fix(data, data, &ErrorKind::Other.into()),
            (ExitReason::Failed, None)
        );
    }

    #[test]
    fn a_folder_that_is_not_there_is_to_be_made_first() {
        let folder = tempfile::tempdir().expect("a folder");
        let fix_for = |data: &Path| ownership_fix(data, data);
        let closed = folder.path().join("closed");
        std::fs::write(&closed, "").expect("a file");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o200);
        std::fs::set_permissions(&closed, mode).expect("a mode");
        let own = ownership_fix(folder.path(), &closed);
        let shown = closed.display();
        assert!(own.contains(&format!("`chmod u+rwX {shown}`")), "{own}");
        let narrow = folder.path().join("narrow");
        std::fs::create_dir(&narrow).expect("a folder");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o500);
        std::fs::set_permissions(&narrow, mode).expect("a mode");
        let own = ownership_fix(&narrow, &narrow.join("lock"));
        let shown = narrow.display();
        assert!(own.contains(&format!("`chmod u+rwX {shown}`")), "{own}");
        // Its own mode is right: something in it belongs to another user.
        let below = fix_for(folder.path());
        assert!(below.contains("`chown -R "), "{below}");
        let missing = folder.path().join("a/b");
        let output = fix_for(&missing);
        let shown = missing.display();
        assert!(
            output.contains(&format!("`mkdir -p {shown} && chown ")),
            "{output}"
        );
        assert!(
            output.starts_with(&format!("{} belongs to", folder.path().display())),
            "{output}"
        );
    }
}
