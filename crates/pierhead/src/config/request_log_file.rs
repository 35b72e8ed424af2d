//! Checks the path of `request_log.file`: an existing file must be a request log, so that pierhead
//! overwrites no other file.

use std::fs::{self, File};
use std::io::{ErrorKind, Read as _};
use std::path::Path;

use pierhead_eviction::request_log;

/// Checks the file of the request log and its rotated copy `file.1`, without creating them. Accepts
/// an unreadable file, since the daemon may run as another user.
pub(crate) fn check_request_log_file(file: &Path) -> Result<(), String> {
    let parent = file
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent {
        match fs::metadata(parent) {
            Ok(found) if !found.is_dir() => {
                return Err(format!(
                    "{} is no folder: name a file in a folder",
                    parent.display()
                ));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(format!(
                    "there is no folder {}: create it, or name a file in another folder",
                    parent.display()
                ));
            }
            _ => {}
        }
    }
    let mut older = file.as_os_str().to_owned();
    older.push(".1");
    check_header(file).and_then(|()| check_header(Path::new(&older)))
}

/// Accepts a request log, an empty file and a missing file.
fn check_header(file: &Path) -> Result<(), String> {
    let refuse = |what: &str| Err(format!("{} {what}: name another file", file.display()));
    let found = match fs::metadata(file) {
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::NotFound | ErrorKind::PermissionDenied
            ) =>
        {
            return Ok(());
        }
        Err(error) => return refuse(&format!("cannot be read ({error})")),
        Ok(found) => found,
    };
    if found.is_dir() {
        return refuse("is a folder");
    }
    // Skips what is not a regular file: opening a pipe would block until another process opens the
    // other end.
    if !found.is_file() {
        return refuse("is a pipe or a device");
    }
    if found.len() == 0 {
        return Ok(());
    }
    let mut head = [0; request_log::HEADER.len()];
    match File::open(file).and_then(|mut file| file.read_exact(&mut head)) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(()),
        Ok(()) if head == request_log::HEADER.as_bytes() => Ok(()),
        _ => refuse("is not a request log of this version"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_request_log_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("requests.log");
        check_request_log_file(&file).unwrap();
        fs::write(&file, "").unwrap();
        check_request_log_file(&file).unwrap();
        fs::write(&file, request_log::HEADER).unwrap();
        check_request_log_file(&file).unwrap();
        let assert_refused = |file: &Path, expected: &str| {
            let message = check_request_log_file(file).unwrap_err();
            assert!(message.contains(expected), "{message}");
            assert!(message.contains("name a"), "no fix: {message}");
        };
        assert_refused(&folder.path().join("none/requests.log"), "no folder");
        assert_refused(&file.join("requests.log"), "is no folder");
        assert_refused(folder.path(), "is a folder");
        let older = folder.path().join("requests.log.1");
        fs::write(&older, "text of another program, longer than the header").unwrap();
        assert_refused(&file, "requests.log.1 is not a request log");
        fs::remove_file(&older).unwrap();
        fs::write(&file, "listen = 1").unwrap();
        assert_refused(&file, "not a request log of this version");
    }
}
