//! Reads and writes a start order (the files that a container opened while it started, in order) as
//! text: one path per line, relative to the root of the image.

use std::io::{self, Read as _, Write};
use std::path::Path;

use pierhead_bundle::api::MAX_TRACE;
use pierhead_toc::{ImageToc, TocView, Tree};

use crate::Error;

/// Maximum number of bytes of a text file with a start order.
const MAX_TEXT: u64 = 16 << 20;
/// Maximum number of bytes of the path of a file in an image.
const MAX_PATH: usize = 4096;

/// Writes a start order as text. Omits paths with a line break, which no container start needs.
///
/// # Errors
/// Errors of the writer.
pub fn write_paths(paths: &[Vec<u8>], out: &mut dyn Write) -> io::Result<()> {
    for path in paths.iter().filter(|path| !path.contains(&b'\n')) {
        out.write_all(path)?;
        out.write_all(b"\n")?;
    }
    out.flush()
}

/// Reads a start order from a text file. A leading `/` or `./` of a path is ignored.
///
/// # Errors
/// [`Error::Trace`] with the file and the line.
pub fn read_paths(from: &Path) -> Result<Vec<Vec<u8>>, Error> {
    let shown = from.display();
    let failed = |reason: String| Err(Error::Trace(reason));
    let mut text = Vec::new();
    let file = pierhead_atomic_file::open_regular(from)
        .and_then(|file| file.take(MAX_TEXT + 1).read_to_end(&mut text));
    file.map_err(Error::file(format!("cannot read {shown}")))?;
    if u64::try_from(text.len()).unwrap_or(u64::MAX) > MAX_TEXT {
        return failed(format!("{shown} is too large for a start order"));
    }
    let mut paths = Vec::new();
    for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let line = line
            .strip_prefix(b".")
            .filter(|rest| rest.starts_with(b"/"))
            .unwrap_or(line);
        let start = line.iter().take_while(|byte| **byte == b'/').count();
        let path = &line[start..];
        if path.is_empty() {
            continue;
        }
        let clean = path
            .split(|byte| *byte == b'/')
            .all(|part| !matches!(part, b"" | b"." | b".."));
        if !clean || path.len() > MAX_PATH || path.contains(&0) {
            return failed(format!(
                "{shown}, line {}: write the path of a file below the root",
                number + 1
            ));
        }
        paths.push(path.to_vec());
        if paths.len() > MAX_TRACE {
            return failed(format!("{shown} names more than {MAX_TRACE} files"));
        }
    }
    Ok(paths)
}

/// Selects the paths that are regular files of the image. Other paths are omitted, since they could
/// reveal local files. Paths that are not UTF-8 are omitted, too, because JSON cannot contain them.
pub(super) fn image_files(toc: &ImageToc, paths: &[Vec<u8>]) -> Result<Vec<String>, Error> {
    let tree = Tree::of(TocView::mounted(toc))?;
    let own = paths.iter().filter(|path| tree.file(path).is_some());
    let text = own.filter_map(|path| String::from_utf8(path.clone()).ok());
    Ok(text.take(MAX_TRACE).collect())
}

#[cfg(test)]
mod tests {
    use pierhead_toc::image_toc::LayerEntries;
    use pierhead_toc::{Entry, FileDigest, Kind, Time};

    use super::*;

    #[test]
    fn only_files_of_the_image_are_sent() {
        let file = |path: &str| {
            Ok(Entry {
                path: path.into(),
                kind: Kind::File {
                    content: FileDigest::of(path.as_bytes()),
                    size: path.len() as u64,
                },
                mode: 0o644,
                uid: 0,
                gid: 0,
                modified: Time::default(),
                xattrs: Vec::new(),
            })
        };
        let names = ["app", "etc"];
        let layer = LayerEntries {
            diff_id: FileDigest::of(b"diff").into(),
            files: names
                .iter()
                .map(|name| Ok((FileDigest::of(name.as_bytes()), name.len() as u64))),
            skeleton: (FileDigest::of(b"skeleton"), 8),
            entries: names.map(file).into_iter(),
        };
        let toc = ImageToc::merge([layer]).expect("sound");
        let opened = ["home/me/secret", "etc", "app", "app/sub", ""].map(|path| path.into());
        assert_eq!(image_files(&toc, &opened).expect("sound"), ["etc", "app"]);
    }

    #[test]
    fn a_written_order_is_read_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("order");
        let paths = [b"bin/sh".to_vec(), b"lib/\xff".to_vec(), b"a\nb".to_vec()];
        let mut out = std::fs::File::create(&file).expect("created");
        write_paths(&paths, &mut out).expect("written");
        assert_eq!(read_paths(&file).expect("read"), paths[..2]);
        std::fs::write(&file, "/bin/sh\r\n\n./etc/passwd").expect("written");
        assert_eq!(
            read_paths(&file).expect("read"),
            [b"bin/sh".to_vec(), b"etc/passwd".to_vec()]
        );
        for wrong in ["a/../b", "a//b", "a\0b"] {
            std::fs::write(&file, format!("x\n{wrong}\n")).expect("written");
            let error = read_paths(&file).expect_err(wrong).to_string();
            assert!(error.contains("line 2"), "{error}");
        }
    }

    #[test]
    fn orders_beyond_the_limits_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("order");
        let read = |text: Vec<u8>| {
            std::fs::write(&file, text).expect("written");
            read_paths(&file).map(|paths| paths.len())
        };
        let lines = |count: usize| b"a\n".repeat(count);
        assert_eq!(read(lines(MAX_TRACE)).expect("read"), MAX_TRACE);
        let error = read(lines(MAX_TRACE + 1))
            .expect_err("too many")
            .to_string();
        assert!(error.contains("more than"), "{error}");
        assert_eq!(read(vec![b'a'; MAX_PATH]).expect("read"), 1);
        let error = read(vec![b'a'; MAX_PATH + 1])
            .expect_err("too long")
            .to_string();
        assert!(error.contains("line 1"), "{error}");
        let large = usize::try_from(MAX_TEXT).expect("small") + 1;
        let error = read(vec![b'\n'; large]).expect_err("too large").to_string();
        assert!(error.contains("too large"), "{error}");
        let missing = read_paths(&folder.path().join("missing"));
        assert!(matches!(missing, Err(Error::File { .. })));
    }

    proptest::proptest! {
        /// Property test: for any text, no path that the parser accepts leads out of the root.
        #[test]
        fn accepted_paths_stay_below_the_root(text in "([a./\\\\\r\n]|\\PC){0,60}") {
            let folder = tempfile::tempdir().expect("a folder");
            let file = folder.path().join("order");
            std::fs::write(&file, &text).expect("written");
            for path in read_paths(&file).unwrap_or_default() {
                let parts: Vec<_> = path.split(|byte| *byte == b'/').collect();
                let is_clean = |part: &&[u8]| !matches!(*part, b"" | b"." | b"..");
                proptest::prop_assert!(parts.iter().all(is_clean), "{:?}", path.escape_ascii());
                proptest::prop_assert!(!path.contains(&0) && !path.contains(&b'\n'));
            }
        }
    }
}
