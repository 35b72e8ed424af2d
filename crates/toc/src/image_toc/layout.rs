//! Encodes and parses the head of a TOC (table of contents): counts, and the lengths of its
//! sections.

use crate::Error;

use super::format::{FORMAT_NAME, MAX_ENTRIES, MAX_TOC};

/// First bytes of every TOC. The last of these bytes is the version of the format.
pub(super) const MAGIC: [u8; 8] = *b"phtable\x01";

/// Number of bytes before the first section.
pub(super) const HEAD: usize = 48;

/// Number of bytes of a digest.
pub(super) const DIGEST: usize = 32;

/// The head of a TOC: the counts, and the lengths of the sections in the order of the sections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) entries: u32,
    pub(super) attribute_count: u32,
    pub(super) visible: u32,
    pub(super) contents: u32,
    pub(super) layer_count: u32,
    /// Lengths in bytes of the sections attributes, names, nodes, sizes and layers. The last
    /// section, digests, has [`DIGEST`] bytes per content.
    pub(super) lengths: [u32; 5],
}

impl Layout {
    /// Encodes the head of a TOC.
    pub(super) fn write(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        for number in self.numbers() {
            out.extend(number.to_le_bytes());
        }
        out
    }

    const fn numbers(&self) -> [u32; 10] {
        let [a, b, c, d, e] = self.lengths;
        [
            self.entries,
            self.attribute_count,
            self.visible,
            self.contents,
            self.layer_count,
            a,
            b,
            c,
            d,
            e,
        ]
    }

    /// Parses the head of a TOC of `len` bytes. Checks that each section fits into the TOC, and
    /// that each count fits into its section.
    pub(super) fn read(bytes: &[u8], len: usize) -> Result<Self, Error> {
        let wrong = |why: &str| Error::malformed(FORMAT_NAME, why);
        let (magic, rest) = bytes
            .split_first_chunk::<8>()
            .ok_or_else(|| wrong("it ends too early"))?;
        if *magic != MAGIC {
            return Err(wrong("it is no TOC, or of another version"));
        }
        let mut numbers = [0; 10];
        for (nth, number) in numbers.iter_mut().enumerate() {
            let bytes = rest
                .get(4 * nth..)
                .and_then(<[u8]>::first_chunk)
                .ok_or_else(|| wrong("it ends too early"))?;
            *number = u32::from_le_bytes(*bytes);
        }
        let [
            entries,
            attribute_count,
            visible,
            contents,
            layer_count,
            a,
            b,
            c,
            d,
            e,
        ] = numbers;
        let layout = Self {
            entries,
            attribute_count,
            visible,
            contents,
            layer_count,
            lengths: [a, b, c, d, e],
        };
        let end = layout
            .sections()
            .iter()
            .try_fold(HEAD, |at, len| at.checked_add(*len));
        if end.is_none_or(|end| end > len || end > MAX_TOC) {
            return Err(wrong("sections that do not fit"));
        }
        // Each item takes at least one byte, so these checks of the counts limit later allocations.
        let sound = (1..=MAX_ENTRIES).contains(&entries)
            && entries <= c
            && attribute_count <= a
            && attribute_count <= entries
            && contents <= d
            && layer_count <= e
            && visible <= contents;
        if sound {
            Ok(layout)
        } else {
            Err(wrong("counts that do not fit"))
        }
    }

    fn sections(&self) -> [usize; 6] {
        let [a, b, c, d, e] = self.lengths.map(widen);
        [a, b, c, d, e, widen(self.contents).saturating_mul(DIGEST)]
    }

    fn section<'a>(&self, nth: usize, bytes: &'a [u8]) -> &'a [u8] {
        let sections = self.sections();
        let start = HEAD + sections[..nth].iter().sum::<usize>();
        bytes.get(start..start + sections[nth]).unwrap_or_default()
    }

    /// Returns the length of the whole TOC in bytes.
    pub(super) fn end(&self) -> usize {
        HEAD + self.sections().iter().sum::<usize>()
    }

    pub(super) fn attributes<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        self.section(0, bytes)
    }

    pub(super) fn names<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        self.section(1, bytes)
    }

    pub(super) fn nodes<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        self.section(2, bytes)
    }

    pub(super) fn sizes<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        self.section(3, bytes)
    }

    pub(super) fn layers<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        self.section(4, bytes)
    }

    pub(super) fn digests<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        self.section(5, bytes)
    }
}

/// Converts a number to `usize`, which has at least 32 bits on all supported hosts.
pub(super) fn widen(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
