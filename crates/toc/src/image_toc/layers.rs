//! The layers section of a TOC: the contents from which each layer can be rebuilt.

use crate::varint::Reader;
use crate::{Error, FileDigest};

use super::contents;
use super::format::reader;

/// An iterator over the layers of a TOC, the lowest first.
#[derive(Clone, Debug)]
pub struct Layers<'a> {
    reader: Reader<'a>,
    left: u32,
    contents: u32,
}

/// One layer of a TOC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TocLayer {
    /// SHA-256 hash of the uncompressed tar of the layer.
    pub diff_id: FileDigest,
    /// Content number of the layer's skeleton (its tar without file contents).
    pub skeleton: u32,
    /// Content numbers of the layer's regular files in the order of the tar, including files that
    /// upper layers hide.
    pub files: Vec<u32>,
}

impl<'a> Layers<'a> {
    pub(super) fn new(section: &'a [u8], left: u32, contents: u32) -> Self {
        Self {
            reader: reader(section),
            left,
            contents,
        }
    }

    fn read(&mut self) -> Result<TocLayer, Error> {
        let diff_id = self.reader.content()?;
        let skeleton = self.reader.u32()?;
        let count = self.reader.count()?;
        let mut files = Vec::with_capacity(count);
        let mut expected = 0;
        for _ in 0..count {
            let number = contents::number(&mut self.reader, expected)?;
            if number >= self.contents {
                return Err(self.reader.wrong("a content number out of range"));
            }
            files.push(number);
            expected = number + 1;
        }
        if skeleton >= self.contents {
            return Err(self
                .reader
                .wrong("the content number of a skeleton is out of range"));
        }
        if self.left == 0 {
            self.reader.end()?;
        }
        Ok(TocLayer {
            diff_id,
            skeleton,
            files,
        })
    }
}

impl Iterator for Layers<'_> {
    type Item = Result<TocLayer, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let layer = self.read();
        if layer.is_err() {
            self.left = 0;
        }
        Some(layer)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = super::layout::widen(self.left);
        (left, Some(left))
    }
}
