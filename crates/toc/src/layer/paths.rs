//! Names in a layer: hostile ones made harmless as the runtimes do it, and what whiteouts mean.

use crate::Error;

/// Most bytes of a path, as Linux has it.
pub(super) const MAX_PATH: usize = 4096;

/// Most bytes of a component.
const MAX_COMPONENT: usize = 255;

const WHITEOUT: &[u8] = b".wh.";

const OPAQUE: &[u8] = b".wh..wh..opq";

/// What a name stands for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Name {
    /// An entry of that path.
    Plain(Vec<u8>),
    /// Deletes that path.
    Whiteout(Vec<u8>),
    /// Hides what the directory of that path had.
    Opaque(Vec<u8>),
}

/// A name as a path below the root: absolute ones are relative to it, and `..` does not lead out of it, as if the
/// layer were unpacked in a chroot.
///
/// # Errors
/// What Linux could not create: too long, or with a NUL.
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

/// What a clean path stands for in a layer.
///
/// # Errors
/// A whiteout of nothing, or of what is outside of its directory, as containerd refuses it.
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
    use super::*;

    #[test]
    fn no_name_leads_out_of_the_root() {
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
    fn whiteouts_name_what_they_hide() {
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
}
