//! A source of file contents in memory, for tests.

use std::collections::HashMap;
use std::io;

use pierhead_toc::{FileDigest, Source};

/// A source of file contents in memory, by digest.
#[derive(Clone, Debug, Default)]
pub struct MemorySource(HashMap<FileDigest, Vec<u8>>);

impl MemorySource {
    /// Adds the contents of a file. Returns the digest of these contents.
    pub fn add(&mut self, bytes: impl Into<Vec<u8>>) -> FileDigest {
        let bytes = bytes.into();
        let content = FileDigest::of(&bytes);
        self.0.insert(content, bytes);
        content
    }

    /// Returns the whole contents of a file.
    pub fn get(&self, content: &FileDigest) -> Option<&[u8]> {
        self.0.get(content).map(Vec::as_slice)
    }
}

impl<B: Into<Vec<u8>>> FromIterator<B> for MemorySource {
    fn from_iter<I: IntoIterator<Item = B>>(contents: I) -> Self {
        let mut source = Self::default();
        for bytes in contents {
            source.add(bytes);
        }
        source
    }
}

impl Source for MemorySource {
    fn size(&self, content: &FileDigest) -> io::Result<Option<u64>> {
        Ok(self.get(content).map(|bytes| bytes.len() as u64))
    }

    fn read_at(&self, content: &FileDigest, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let bytes = self.get(content).ok_or(io::ErrorKind::NotFound)?;
        let found = usize::try_from(offset)
            .ok()
            .and_then(|start| bytes.get(start..)?.get(..buf.len()));
        buf.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::conforms;

    #[test]
    fn the_memory_source_conforms() {
        conforms(|contents| contents.iter().cloned().collect::<MemorySource>());
    }

    /// A source that makes one kind of error.
    struct Wrong<F>(MemorySource, F);

    impl<F: Fn(&MemorySource, &FileDigest, u64, &mut [u8]) -> io::Result<()>> Source for Wrong<F> {
        fn size(&self, content: &FileDigest) -> io::Result<Option<u64>> {
            self.0.size(content)
        }

        fn read_at(&self, content: &FileDigest, offset: u64, buf: &mut [u8]) -> io::Result<()> {
            (self.1)(&self.0, content, offset, buf)
        }
    }

    fn refused(
        wrong: impl Fn(&MemorySource, &FileDigest, u64, &mut [u8]) -> io::Result<()> + Copy,
    ) -> bool {
        let new = |contents: &[Vec<u8>]| Wrong(contents.iter().cloned().collect(), wrong);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| conforms(new))).is_err()
    }

    #[test]
    fn the_suite_detects_a_wrong_source() {
        assert!(
            !refused(|source, content, offset, buf| source.read_at(content, offset, buf)),
            "a correct source passes"
        );
        assert!(
            refused(|source, content, offset, buf| {
                let short = (source.size(content)?.unwrap_or(0).saturating_sub(offset))
                    .min(buf.len() as u64);
                let short = usize::try_from(short).unwrap_or(0);
                source.read_at(content, offset, &mut buf[..short])
            }),
            "no error at the end"
        );
        assert!(
            refused(|source, content, offset, buf| {
                source.read_at(content, offset, buf)?;
                if offset + buf.len() as u64 > 4 << 20 {
                    buf.fill(0);
                }
                Ok(())
            }),
            "zeros beyond the first frame"
        );
        assert!(
            refused(|source, content, offset, buf| {
                source
                    .read_at(content, offset, buf)
                    .map_err(|_| io::ErrorKind::InvalidData.into())
            }),
            "the same error for all failures"
        );
    }
}
