//! The order in which files were opened, as text: one path a line, relative to the image's root.

use std::io::{Read as _, Write as _};
use std::path::Path;

use pierhead_bundle::api::MAX_TRACE;
use pierhead_toc::{Error, Table};
use pierhead_toc::{Image, Tree};

use super::watch::MAX_FILES;

/// A file of them is read up to here.
const MAX_TEXT: u64 = 16 << 20;
/// As long as an entry's path may be.
const MAX_PATH: usize = 4096;

/// As text. A path with a line break in it is left out: no image starts by one.
pub(super) fn to_text(paths: &[Vec<u8>]) -> Vec<u8> {
    let mut text = Vec::new();
    for path in paths.iter().filter(|path| !path.contains(&b'\n')) {
        text.extend_from_slice(path);
        text.push(b'\n');
    }
    text
}

/// Writes it to a file, or to standard output for `-`.
pub(super) fn write(paths: &[Vec<u8>], to: &Path) -> Result<(), String> {
    let text = to_text(paths);
    let written = match to == Path::new("-") {
        true => std::io::stdout().lock().write_all(&text),
        false => std::fs::write(to, text),
    };
    written.map_err(|error| format!("cannot write {}: {error}", to.display()))
}

/// Reads one; a slash at the head of a path, or `./`, does not matter.
pub(super) fn read(from: &Path) -> Result<Vec<Vec<u8>>, String> {
    let shown = from.display();
    let mut text = Vec::new();
    let file = pierhead_remote::open_file(from)
        .and_then(|file| file.take(MAX_TEXT + 1).read_to_end(&mut text));
    file.map_err(|error| format!("cannot read {shown}: {error}"))?;
    if u64::try_from(text.len()).unwrap_or(u64::MAX) > MAX_TEXT {
        return Err(format!("{shown} is more than an order of files"));
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
            return Err(format!(
                "{shown}, line {}: no path of a file below the root",
                number + 1
            ));
        }
        paths.push(path.to_vec());
        if paths.len() > MAX_FILES {
            return Err(format!("{shown} names more than {MAX_FILES} files"));
        }
    }
    Ok(paths)
}

/// The paths to send: regular files of the image. No other path leaves this machine, since it may reveal local files.
/// Paths that are not UTF-8 stay too, since JSON cannot hold them.
pub(super) fn within(table: &Table, paths: &[Vec<u8>]) -> Result<Vec<String>, Error> {
    let tree = Tree::of(Image::mounted(table))?;
    let own = paths.iter().filter(|path| tree.file(path).is_some());
    let text = own.filter_map(|path| String::from_utf8(path.clone()).ok());
    Ok(text.take(MAX_TRACE).collect())
}

#[cfg(test)]
mod tests {
    use pierhead_toc::table::LayerEntries;
    use pierhead_toc::{Entry, FileDigest, Kind, Time};

    use super::*;

    #[test]
    fn files_of_the_image_alone_are_told() {
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
        let table = Table::merge([layer]).expect("sound");
        let opened = ["home/me/secret", "etc", "app", "app/sub", ""].map(|path| path.into());
        assert_eq!(within(&table, &opened).expect("sound"), ["etc", "app"]);
    }

    #[test]
    fn an_order_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("order");
        let paths = [b"bin/sh".to_vec(), b"lib/\xff".to_vec(), b"a\nb".to_vec()];
        write(&paths, &file).expect("written");
        assert_eq!(read(&file).expect("read"), paths[..2]);
        std::fs::write(&file, "/bin/sh\r\n\n./etc/passwd").expect("written");
        assert_eq!(
            read(&file).expect("read"),
            [b"bin/sh".to_vec(), b"etc/passwd".to_vec()]
        );
        for wrong in ["a/../b", "a//b", "a\0b"] {
            std::fs::write(&file, format!("x\n{wrong}\n")).expect("written");
            let told = read(&file).expect_err(wrong);
            assert!(told.contains("line 2"), "{told}");
        }
    }
}
