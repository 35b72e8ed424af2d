//! Cleans the names of entries in a layer as container runtimes do, and recognizes whiteouts
//! (entries that delete files of lower layers).

use crate::Error;

/// Maximum length of a path in bytes, which is the limit of Linux.
pub(super) const MAX_PATH: usize = 4096;

/// Maximum length of a component in bytes, which is the limit of Linux.
const MAX_COMPONENT: usize = 255;

/// Prefix of the name of a whiteout.
const WHITEOUT: &[u8] = b".wh.";

/// Name of the marker of an opaque directory.
const OPAQUE: &[u8] = b".wh..wh..opq";

/// The meaning of an entry's name in a layer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Name {
    /// The name is an entry with this path.
    Plain(Vec<u8>),
    /// The name deletes the entry with this path in lower layers.
    Whiteout(Vec<u8>),
    /// The name hides the entries of lower layers in the directory with this path.
    Opaque(Vec<u8>),
}

/// Turns a name into a clean path below the root. Absolute names are relative to the root, and `..`
/// does not leave the root, as in a chroot.
///
/// # Errors
/// [`Error::Image`] for a name that Linux could not create, since the name is too long or contains
/// a NUL.
pub(super) fn clean(name: &[u8]) -> Result<Vec<u8>, Error> {
    if name.len() > 2 * MAX_PATH || name.contains(&0) {
        return Err(bad("too long or with a zero byte", name));
    }
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in name.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                parts.pop();
            }
            part if part.len() > MAX_COMPONENT => return Err(bad("too long", name)),
            part => parts.push(part),
        }
    }
    let path = parts.join(&b'/');
    if path.len() > MAX_PATH {
        return Err(bad("too long", name));
    }
    Ok(path)
}

/// Returns the meaning of a clean path in a layer.
///
/// # Errors
/// [`Error::Image`] for a whiteout without a name, or for a whiteout of a name outside of its
/// directory. containerd refuses both, too.
pub(super) fn name(path: Vec<u8>) -> Result<Name, Error> {
    let at = path.iter().rposition(|byte| *byte == b'/');
    let (folder, base) = match at {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&path[..0], &path[..]),
    };
    if base == OPAQUE {
        return Ok(Name::Opaque(folder.to_vec()));
    }
    let Some(hidden) = base.strip_prefix(WHITEOUT) else {
        return Ok(Name::Plain(path));
    };
    if matches!(hidden, b"" | b"." | b"..") {
        return Err(bad("a whiteout of no file", &path));
    }
    let mut target = folder.to_vec();
    if !folder.is_empty() {
        target.push(b'/');
    }
    target.extend_from_slice(hidden);
    Ok(Name::Whiteout(target))
}

fn bad(why: &str, name: &[u8]) -> Error {
    let shown: String = String::from_utf8_lossy(name).chars().take(80).collect();
    Error::Image(format!("the layer has a name that is {why}: {shown:?}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn no_name_leaves_the_root() {
        for (name, path) in [
            ("./a/b/", "a/b"),
            ("/etc//passwd", "etc/passwd"),
            ("../../etc/passwd", "etc/passwd"),
            ("a/../../b", "b"),
            ("a/./b/../c", "a/c"),
            ("..", ""),
            ("/", ""),
            ("./", ""),
        ] {
            assert_eq!(clean(name.as_bytes()).unwrap(), path.as_bytes(), "{name}");
        }
        assert!(clean(b"a\0b").is_err());
        assert!(clean(&[b'a'; 256]).is_err());
        assert!(clean(&b"ab/".repeat(1500)).is_err());
        assert!(clean(&[b'a'; 255]).is_ok());
    }

    #[test]
    fn a_whiteout_has_the_path_that_it_hides() {
        let path = |text: &str| text.as_bytes().to_vec();
        assert_eq!(name(path("a/b")).unwrap(), Name::Plain(path("a/b")));
        assert_eq!(name(path("a/.wh.b")).unwrap(), Name::Whiteout(path("a/b")));
        assert_eq!(name(path(".wh.b")).unwrap(), Name::Whiteout(path("b")));
        assert_eq!(
            name(path("a/.wh..wh..opq")).unwrap(),
            Name::Opaque(path("a"))
        );
        assert_eq!(name(path(".wh..wh..opq")).unwrap(), Name::Opaque(path("")));
        for hostile in [".wh.", "a/.wh..", "a/.wh...", ".wh..."] {
            assert!(name(path(hostile)).is_err(), "{hostile}");
        }
    }

    proptest! {
        /// A clean path is relative, has no empty or dot component, and stays the same when it is
        /// cleaned again.
        #[test]
        fn any_name_becomes_a_path_below_the_root(
            parts in proptest::collection::vec("[ab.]{0,3}|\\.\\.|\\.wh\\.[a.]{0,2}", 0..8),
            absolute in any::<bool>(),
        ) {
            let text = format!("{}{}", if absolute { "/" } else { "" }, parts.join("/"));
            let path = clean(text.as_bytes()).unwrap();
            let shown = String::from_utf8(path.clone()).unwrap();
            if !shown.is_empty() {
                prop_assert!(shown.split('/').all(|it| !matches!(it, "" | "." | "..")), "{}", shown);
            }
            prop_assert_eq!(clean(&path).unwrap(), path.clone());
            // A whiteout hides a path that is clean as well, in the same folder.
            match name(path.clone()) {
                Ok(Name::Plain(same)) => prop_assert_eq!(same, path),
                Ok(Name::Whiteout(hidden) | Name::Opaque(hidden)) => {
                    prop_assert_eq!(clean(&hidden).unwrap(), hidden);
                }
                Err(error) => prop_assert!(matches!(error, Error::Image(_))),
            }
        }
    }

    #[test]
    fn lengths_are_bounded_as_in_linux() {
        let deep = |len: usize| b"abcdefg/".repeat(len / 8);
        assert_eq!(clean(&deep(MAX_PATH)).unwrap().len(), MAX_PATH - 1);
        assert!(clean(&deep(MAX_PATH + 8)).is_err());
        // Components that are removed do not count, but the length of the whole name does.
        assert_eq!(clean(&b"./".repeat(MAX_PATH)).unwrap(), b"");
        assert!(clean(&b"./".repeat(MAX_PATH + 1)).is_err());
        // An error shows only the start of a long name.
        let error = clean(&[b'x'; 3 * MAX_PATH]).unwrap_err();
        assert!(error.to_string().len() < 200, "{error}");
    }
}
