//! The bytes that the fake registry serves, from memory or a file, unchanged or damaged.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

/// The bytes of a blob or document. All clones share these bytes.
#[derive(Clone)]
pub(super) struct Content {
    source: Source,
    /// Length in bytes. If the length is smaller than the source, the bytes are truncated. If the
    /// length is larger, zeros follow the source.
    len: u64,
    /// Offset of the byte in which one bit is flipped; `None` for unchanged bytes.
    flipped: Option<u64>,
}

#[derive(Clone)]
enum Source {
    Memory(Bytes),
    File(Arc<File>, u64),
}

impl Content {
    pub(super) fn memory(bytes: Bytes) -> Self {
        Self {
            len: bytes.len() as u64,
            source: Source::Memory(bytes),
            flipped: None,
        }
    }

    pub(super) fn file(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        Ok(Self {
            source: Source::File(Arc::new(file), len),
            len,
            flipped: None,
        })
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn truncated(mut self, len: u64) -> Self {
        self.len = self.len.min(len);
        self
    }

    pub(super) fn padded(mut self, by: u64) -> Self {
        self.len += by;
        self
    }

    pub(super) fn with_flipped_byte(mut self, at: u64) -> Self {
        self.flipped = Some(at);
        self
    }

    /// Reads up to `most` bytes from `offset` on. The result is empty only at the end of the
    /// content. Reads of files block, which is short because test files are in the page cache.
    pub(super) fn read(&self, offset: u64, most: usize) -> Bytes {
        let most = usize::try_from(self.len.saturating_sub(offset))
            .unwrap_or(usize::MAX)
            .min(most);
        let mut bytes = match &self.source {
            Source::Memory(bytes) => {
                let start = usize::try_from(offset)
                    .unwrap_or(usize::MAX)
                    .min(bytes.len());
                bytes.slice(start..bytes.len().min(start + most))
            }
            Source::File(file, len) => {
                let there = usize::try_from(len.saturating_sub(offset))
                    .unwrap_or(usize::MAX)
                    .min(most);
                let mut buffer = vec![0; there];
                file.read_exact_at(&mut buffer, offset)
                    .expect("an unchanged blob file");
                buffer.into()
            }
        };
        let damage = self
            .flipped
            .filter(|at| (offset..offset + most as u64).contains(at));
        if bytes.len() < most || damage.is_some() {
            let mut changed = bytes.to_vec();
            changed.resize(most, 0);
            if let Some(byte) =
                damage.and_then(|at| changed.get_mut(usize::try_from(at - offset).ok()?))
            {
                *byte ^= 1;
            }
            bytes = changed.into();
        }
        bytes
    }
}
