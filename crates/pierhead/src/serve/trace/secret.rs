//! The secret that keys of traces are hashed with: one a data folder, and nowhere else.

use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use pierhead_remote::open_file_with;
use rustix::fs::OFlags;
use zeroize::Zeroizing;

/// Its bytes.
pub(super) const LEN: usize = 32;

pub(super) type Secret = Zeroizing<[u8; LEN]>;

/// The secret of the data folder, which is ours by now; made when it is missing or was cut short. Blocks.
///
/// # Errors
/// The system's, or that something else has its name.
pub(super) fn load(data: &Path) -> io::Result<Secret> {
    let path = data.join("trace-secret");
    let failed = |error| {
        let path = path.display();
        io::Error::other(format!("{path}: {error}; remove it, and a new one is made"))
    };
    match read(&path) {
        Ok(Some(secret)) => return Ok(secret),
        Ok(None) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    make(data, &path)
}

/// `None` when it is too short.
fn read(path: &Path) -> io::Result<Option<Secret>> {
    let mut file = open_file_with(File::options().read(true), OFlags::NOFOLLOW, path)?;
    let mut secret = Secret::default();
    match file.read_exact(secret.as_mut_slice()) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    if file.metadata()?.permissions().mode() & 0o077 != 0 {
        tracing::warn!(
            file = %path.display(),
            "others could read the secret of traces; now its owner alone can"
        );
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    Ok(Some(secret))
}

fn make(data: &Path, path: &Path) -> io::Result<Secret> {
    let mut secret = Secret::default();
    File::open("/dev/urandom")?.read_exact(secret.as_mut_slice())?;
    let partial = data.join("trace-secret.partial");
    // Of a run that was killed.
    match fs::remove_file(&partial) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&partial)?;
    file.write_all(secret.as_slice())?;
    file.sync_all()?;
    fs::rename(&partial, path)?;
    File::open(data)?.sync_all()?;
    Ok(secret)
}
