//! Classifies small files, so that similar files are compressed together.

/// The kind of a file. Packing fills one group of files for each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// Machine code: ELF programs and libraries.
    Elf,
    /// Python bytecode (`.pyc` files).
    Pyc,
    /// Python source code (`.py` files).
    Python,
    /// JavaScript, TypeScript and their source maps.
    Script,
    /// Files that are already compressed, such as archives and pictures.
    Packed,
    /// All other files, such as documents and settings.
    Other,
}

impl Kind {
    /// Number of kinds of files.
    pub(super) const COUNT: usize = 6;

    /// Determines the kind by the extension of the file name.
    pub(super) fn of_path(path: &[u8]) -> Self {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let Some(dot) = name.iter().rposition(|byte| *byte == b'.') else {
            return Self::Other;
        };
        match &name[dot + 1..] {
            b"so" | b"o" | b"a" | b"node" => Self::Elf,
            b"pyc" => Self::Pyc,
            b"py" | b"pyi" | b"pyx" | b"pxd" => Self::Python,
            b"js" | b"mjs" | b"cjs" | b"jsx" | b"ts" | b"mts" | b"cts" | b"tsx" | b"map" => {
                Self::Script
            }
            b"gz" | b"xz" | b"bz2" | b"zst" | b"zip" | b"jar" | b"whl" | b"png" | b"jpg"
            | b"jpeg" | b"gif" | b"webp" | b"woff" | b"woff2" | b"npz" | b"mp3" | b"mp4" => {
                Self::Packed
            }
            _ => Self::Other,
        }
    }

    /// Determines the kind by the first bytes of the file, or else by its name.
    pub(super) fn of_bytes(self, bytes: &[u8]) -> Self {
        match bytes {
            [0x7f, b'E', b'L', b'F', ..] => Self::Elf,
            [0x1f, 0x8b, ..] | [b'P', b'K', 3, 4, ..] | [0x89, b'P', b'N', b'G', ..] => {
                Self::Packed
            }
            _ => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_and_first_bytes_determine_the_kind() {
        for (path, bytes, kind) in [
            (&b"usr/bin/ls"[..], &b"\x7fELF\x02"[..], Kind::Elf),
            (b"a.b/c", b"text", Kind::Other),
            (b"lib/x.cpython-311.pyc", b"\xa7\r\r\n", Kind::Pyc),
            (b"doc/changelog.gz", b"\x1f\x8b\x08", Kind::Packed),
            (b"x.py", b"", Kind::Python),
            (b"x.min.js", b"PK\x03\x04", Kind::Packed),
            (b"", b"", Kind::Other),
        ] {
            assert_eq!(Kind::of_path(path).of_bytes(bytes), kind, "{path:?}");
        }
    }
}
