//! Why the data folder cannot be used: whose fault it is, and the mend.

use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use pierhead_cache::Error;
use rustix::process::{getegid, geteuid};

use crate::failure::{Exit, Told};

/// With the code that tells it apart.
pub(super) fn refused(data: &Path, error: Error) -> anyhow::Error {
    let (exit, mend) = match &error {
        Error::InUse { .. } => (Exit::Taken, None),
        Error::Version { .. } | Error::Foreign { .. } => (Exit::Foreign, None),
        Error::Io { source, path, .. } => mend(data, path, source),
        Error::UnreadablePin { source, path } => mend(data, path, source),
        _ => (Exit::Failed, None),
    };
    told(exit, mend, error.into())
}

/// The same where it could not even be looked at.
pub(super) fn unseen(data: &Path, error: io::Error) -> anyhow::Error {
    let (exit, mend) = mend(data, data, &error);
    let what = format!("cannot see the file system of {}", data.display());
    told(exit, mend, anyhow::Error::new(error).context(what))
}

fn told(exit: Exit, mend: Option<String>, error: anyhow::Error) -> anyhow::Error {
    if exit == Exit::Failed {
        return error;
    }
    let message = crate::failure::told(&error);
    let mend = mend.map(|mend| format!(": {mend}")).unwrap_or_default();
    Told::new(exit, format!("data: {message}{mend}")).into()
}

/// `failed` is the file or the folder that the error names.
fn mend(data: &Path, failed: &Path, error: &io::Error) -> (Exit, Option<String>) {
    let shown = data.display();
    let (exit, mend) = match error.kind() {
        ErrorKind::ReadOnlyFilesystem => (
            Exit::ReadOnly,
            format!(
                "mount it writable (`findmnt -T {shown}` shows how it is; in a pod: a volume, and no readOnly), or name \
                 another folder as data"
            ),
        ),
        ErrorKind::NotADirectory | ErrorKind::AlreadyExists => (
            Exit::ReadOnly,
            "name a folder as data, and not what lies in a file; delete a file in place of a folder of pierhead".to_owned(),
        ),
        ErrorKind::PermissionDenied => (Exit::Denied, ours(data, failed)),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => (
            Exit::Full,
            format!(
                "the disk is full (`df -h {shown}`, `df -i {shown}`): free some, or name a folder elsewhere as data; what \
                 is in the cache is safe"
            ),
        ),
        _ => return (Exit::Failed, None),
    };
    (exit, Some(mend))
}

/// Whose it is, and whose it should be.
fn ours(data: &Path, failed: &Path) -> String {
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
    let mend = match lacks_mode {
        _ if is_missing => format!("mkdir -p {shown} && chown {user}:{group} {shown}"),
        // Another owner is not what it lacks.
        Some((path, _)) => format!("chmod u+rwX {}", path.display()),
        // Something below belongs to another user, such as what a run as root left.
        None => format!("chown -R {user}:{group} {shown}"),
    };
    format!(
        "{}this is user {user}, group {group}: `{mend}` as root (in a pod: fsGroup, or the owner of the node's \
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
            (ErrorKind::ReadOnlyFilesystem, Exit::ReadOnly, "findmnt"),
            (ErrorKind::PermissionDenied, Exit::Denied, "as root"),
            (ErrorKind::StorageFull, Exit::Full, "df -h"),
            (ErrorKind::QuotaExceeded, Exit::Full, "df -h"),
            (ErrorKind::NotADirectory, Exit::ReadOnly, "folder"),
        ] {
            let (code, said) = mend(data, data, &kind.into());
            assert_eq!(code, exit, "{kind}");
            assert!(said.is_some_and(|said| said.contains(word)), "{kind}");
        }
        assert_eq!(
            mend(data, data, &ErrorKind::Other.into()),
            (Exit::Failed, None)
        );
    }

    #[test]
    fn a_folder_that_is_not_there_is_to_be_made_first() {
        let folder = tempfile::tempdir().expect("a folder");
        let told = |data: &Path| ours(data, data);
        let closed = folder.path().join("closed");
        std::fs::write(&closed, "").expect("a file");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o200);
        std::fs::set_permissions(&closed, mode).expect("a mode");
        let own = ours(folder.path(), &closed);
        let shown = closed.display();
        assert!(own.contains(&format!("`chmod u+rwX {shown}`")), "{own}");
        let narrow = folder.path().join("narrow");
        std::fs::create_dir(&narrow).expect("a folder");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o500);
        std::fs::set_permissions(&narrow, mode).expect("a mode");
        let own = ours(&narrow, &narrow.join("lock"));
        let shown = narrow.display();
        assert!(own.contains(&format!("`chmod u+rwX {shown}`")), "{own}");
        // Its own mode is right: something in it belongs to another user.
        let below = told(folder.path());
        assert!(below.contains("`chown -R "), "{below}");
        let missing = folder.path().join("a/b");
        let said = told(&missing);
        let shown = missing.display();
        assert!(
            said.contains(&format!("`mkdir -p {shown} && chown ")),
            "{said}"
        );
        assert!(
            said.starts_with(&format!("{} belongs to", folder.path().display())),
            "{said}"
        );
    }
}
