//! Explains errors of the data folder to the operator: gives each error an exit code and a message
//! with the fix.

use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use pierhead_cache::Error;
use rustix::process::{getegid, geteuid};

use crate::cli::exit_code::{ExitError, ExitReason};

/// Returns the error of a cache that cannot be opened, with exit code and fix.
pub(super) fn cannot_open(data: &Path, error: Error) -> anyhow::Error {
    let (exit, fix) = match &error {
        Error::InUse { .. } => (ExitReason::InUse, None),
        Error::Version { .. } | Error::Foreign { .. } => (ExitReason::ForeignData, None),
        Error::Io { source, path, .. } => fix(data, path, source),
        Error::UnreadablePin { source, path } => fix(data, path, source),
        _ => (ExitReason::Failed, None),
    };
    let (exit, fix) = match &error {
        Error::Io { path, .. } if exit == ExitReason::Failed && path == data && !data.is_dir() => {
            (ExitReason::CannotWrite, Some(creation_fix(data)))
        }
        _ => (exit, fix),
    };
    with_exit_code(exit, fix, error.into())
}

/// Returns the error of a data folder whose file system cannot be read, with exit code and fix.
pub(super) fn unreadable_file_system(data: &Path, error: io::Error) -> anyhow::Error {
    let (exit, fix) = fix(data, data, &error);
    let what = format!("cannot read the file system of {}", data.display());
    with_exit_code(exit, fix, anyhow::Error::new(error).context(what))
}

fn with_exit_code(exit: ExitReason, fix: Option<String>, error: anyhow::Error) -> anyhow::Error {
    if exit == ExitReason::Failed {
        return error;
    }
    let message = crate::cli::exit_code::describe(&error);
    let fix = fix.map(|fix| format!(": {fix}")).unwrap_or_default();
    ExitError::new(exit, format!("data: {message}{fix}")).into()
}

/// Returns the exit code and the fix for an error of the data folder. `failed` is the file or the
/// folder that the error names.
fn fix(data: &Path, failed: &Path, error: &io::Error) -> (ExitReason, Option<String>) {
    let shown = data.display();
    let (exit, fix) = match error.kind() {
        ErrorKind::ReadOnlyFilesystem => (
            ExitReason::CannotWrite,
            format!(
                "mount it writable (`findmnt -T {shown}` shows the mount options; in a pod, use a volume without readOnly), or set \
                 data to another folder"
            ),
        ),
        ErrorKind::NotADirectory | ErrorKind::AlreadyExists => (
            ExitReason::CannotWrite,
            "set data to a folder; if a file has the name of a folder of pierhead, delete the file"
                .to_owned(),
        ),
        ErrorKind::PermissionDenied => (ExitReason::PermissionDenied, ownership_fix(data, failed)),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => (
            ExitReason::DiskFull,
            format!(
                "the disk is full (`df -h {shown}`, `df -i {shown}`): free space, or set data to a folder on another disk; cached \
                 blobs are intact"
            ),
        ),
        _ => return (ExitReason::Failed, None),
    };
    (exit, Some(fix))
}

/// Returns the fix for a data folder that does not exist and cannot be created.
fn creation_fix(data: &Path) -> String {
    let shown = data.display();
    match std::fs::read_link(data) {
        Ok(target) => format!(
            "{shown} is a link to {}, which does not exist: create that folder, or set data to another folder",
            target.display()
        ),
        Err(_) => {
            format!("set data to a path where `mkdir -p {shown}` succeeds for the user of pierhead")
        }
    }
}

/// Describes who owns the folder, and the command that gives the folder the right owner or mode.
fn ownership_fix(data: &Path, failed: &Path) -> String {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    let nearest = failed
        .ancestors()
        .find_map(|folder| Some((folder, folder.metadata().ok()?)));
    // If the file is missing, this user has no permission in the closest folder above it that
    // exists.
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
    // Below an unreadable folder, `try_exists` fails although the data folder may exist.
    let is_missing = matches!(data.try_exists(), Ok(false));
    let fix = match lacks_mode {
        _ if is_missing => format!("mkdir -p {shown} && chown {user}:{group} {shown}"),
        // The owner of the folder is right, and only its mode is wrong.
        Some((path, _)) => format!("chmod u+rwX {}", path.display()),
        // A file inside the folder belongs to another user, such as a file that a run as root
        // created.
        None => format!("chown -R {user}:{group} {shown}"),
    };
    format!(
        "{}pierhead runs as user {user}, group {group}: run `{fix}` as root (in a pod, set fsGroup, or change the owner of the node's \
         folder; SELinux or AppArmor can also refuse access: see `dmesg`)",
        owner.unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn each_io_error_has_its_exit_code_and_its_fix() {
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
    fn a_data_folder_that_cannot_be_created_has_exit_code_and_fix() {
        let folder = tempfile::tempdir().expect("a folder");
        let dangling = folder.path().join("link");
        std::os::unix::fs::symlink("missing", &dangling).expect("a link");
        for (data, word) in [
            (dangling, "is a link to missing, which does not exist"),
            (folder.path().join("x".repeat(300)), "`mkdir -p "),
            (Path::new("/proc/pierhead/data").to_owned(), "`mkdir -p "),
        ] {
            let settings = pierhead_cache::Config::new(&data, 1 << 30);
            let policy =
                crate::config::crate_configs::eviction(&Config::with_data(data.clone()), 1 << 30);
            let error = pierhead_cache::Cache::open(settings, policy);
            let error = cannot_open(&data, error.err().expect("no folder"));
            let reason = crate::cli::exit_code::reason_of(&error);
            assert_eq!(reason, ExitReason::CannotWrite, "{error}");
            let text = error.to_string();
            assert!(text.contains(word), "{text}");
            assert!(text.contains("set data to"), "{text}");
        }
    }

    #[test]
    fn the_fix_creates_a_missing_folder_before_it_changes_the_owner() {
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
        // The folder itself has the right owner and mode, so a file inside belongs to another user.
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
