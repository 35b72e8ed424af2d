//! Whether a trace can be recorded where the configuration says: nothing but a trace is ever written over.

use std::fs::{self, File};
use std::io::{ErrorKind, Read as _};
use std::path::Path;

use pierhead_eviction::request_log;

/// Looks at the file, and at the older one beside it, `file.1`. Creates nothing. What we may not look at is good: the
/// daemon may run as somebody else.
pub(crate) fn trace_file(file: &Path) -> Result<(), String> {
    let parent = file
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent {
        match fs::metadata(parent) {
            Ok(found) if !found.is_dir() => {
                return Err(format!(
                    "{} is no folder: name a file in one",
                    parent.display()
                ));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(format!(
                    "there is no folder {}: make it, or name a file in another",
                    parent.display()
                ));
            }
            _ => {}
        }
    }
    let mut older = file.as_os_str().to_owned();
    older.push(".1");
    is_trace(file).and_then(|()| is_trace(Path::new(&older)))
}

/// Or empty, or not there.
fn is_trace(file: &Path) -> Result<(), String> {
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
        Err(error) => return refuse(&format!("cannot be looked at ({error})")),
        Ok(found) => found,
    };
    if found.is_dir() {
        return refuse("is a folder");
    }
    // Opening a pipe waits for its other end.
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
        _ => refuse("holds something that is no trace of this version"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_a_trace_is_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pulls.trace");
        trace_file(&file).unwrap();
        fs::write(&file, "").unwrap();
        trace_file(&file).unwrap();
        fs::write(&file, request_log::HEADER).unwrap();
        trace_file(&file).unwrap();
        let says = |file: &Path, words: &str| {
            let said = trace_file(file).unwrap_err();
            assert!(said.contains(words), "{said}");
            assert!(said.contains("name a"), "no fix: {said}");
        };
        says(&folder.path().join("none/pulls.trace"), "no folder");
        says(&file.join("pulls.trace"), "is no folder");
        says(folder.path(), "is a folder");
        let older = folder.path().join("pulls.trace.1");
        fs::write(&older, "of somebody else, and long enough").unwrap();
        says(&file, "pulls.trace.1 holds something");
        fs::remove_file(&older).unwrap();
        fs::write(&file, "listen = 1").unwrap();
        says(&file, "no trace of this version");
    }
}
