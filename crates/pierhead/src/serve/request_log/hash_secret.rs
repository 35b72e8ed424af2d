//! The secret with which the request log hashes digests, so that log lines do not reveal digests.
//! Each data folder has its own secret, in the file [`FILE`].

use std::fs::{File, Permissions};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use pierhead_atomic_file::open_regular_with;
use rustix::fs::OFlags;
use zeroize::Zeroizing;

/// Name of the file in the data folder. Here, "trace" means the request log, not a trace of a
/// container start. With another name, pierhead would create a new secret, and a log would continue
/// with other hashes.
pub(super) const FILE: &str = "trace-secret";

/// Length in bytes of the hash secret.
pub(super) const LEN: usize = 32;

pub(super) type HashSecret = Zeroizing<[u8; LEN]>;

/// Reads the secret of the data folder, which this process has locked. If the secret is missing or
/// truncated, creates a new one. Blocks the thread.
///
/// # Errors
/// The file cannot be read or written, or is not a regular file.
pub(super) fn load(data: &Path) -> io::Result<HashSecret> {
    let path = data.join(FILE);
    let failed = |error| {
        let path = path.display();
        io::Error::other(format!(
            "{path}: {error}; remove it: pierhead then creates a new one"
        ))
    };
    match read(&path) {
        Ok(Some(secret)) => return Ok(secret),
        Ok(None) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    create(&path)
}

/// Reads the secret in the file. Returns `None` if the file is too short.
fn read(path: &Path) -> io::Result<Option<HashSecret>> {
    let mut file = open_regular_with(File::options().read(true), OFlags::NOFOLLOW, path)?;
    let mut secret = HashSecret::default();
    match file.read_exact(secret.as_mut_slice()) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    if file.metadata()?.permissions().mode() & 0o077 != 0 {
        tracing::warn!(
            file = %path.display(),
            "other users could read the secret of the request log; pierhead set its mode to 0600"
        );
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    Ok(Some(secret))
}

fn create(path: &Path) -> io::Result<HashSecret> {
    let mut secret = HashSecret::default();
    File::open("/dev/urandom")?.read_exact(secret.as_mut_slice())?;
    let options = pierhead_atomic_file::Options::new().mode(0o600);
    options.write(path, secret.as_slice())?;
    Ok(secret)
}
