//! What each layer of the image was made of.

use crate::varint::Reader;
use crate::{Error, FileDigest};

use super::contents;
use super::format::reader;

/// A walk over the layers of a table, the lowest first.
#[derive(Clone, Debug)]
pub struct Layers<'a> {
    reader: Reader<'a>,
    left: u32,
    contents: u32,
}

/// One layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TocLayer {
    /// SHA-256 of the uncompressed tar.
    pub diff_id: FileDigest,
    /// Number of its skeleton among the contents.
    pub skeleton: u32,
    /// Numbers of the contents of its regular files in the order of the tar, whether hidden or not.
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
                return Err(self.reader.wrong("a content over the end"));
            }
            files.push(number);
            expected = number + 1;
        }
        if skeleton >= self.contents {
            return Err(self.reader.wrong("a skeleton over the end"));
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
