//! A blob on the disk whose hot ranges (the byte ranges that container starts read) are read from
//! the fast tier.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pierhead_oci::Digest;

use super::hot_copy::HotCopies;
use super::open::FastBlob;
use super::spans::{Location, Spans};
use super::stat::count;
use crate::tier::copy_key::CopyKey;
use crate::tier::{Blob, Extent, ReadAt, Trailer};

impl HotCopies {
    /// Opens a blob on the disk. If the fast tier has a copy of the blob's hot ranges, these ranges
    /// are read from the copy.
    pub(super) fn open(&self, digest: &Digest, slow: Arc<dyn Blob>) -> io::Result<Arc<dyn Blob>> {
        let counters = &self.fast.counters;
        let Some(mut copy) = self.fast.open(&CopyKey::hot(digest))? else {
            count(&counters.disk_hits, 1);
            return Ok(slow);
        };
        let size = slow.trailer().size();
        match copy.hot.take() {
            Some(spans) if copy.blob.trailer().size() == spans.header_len() + spans.bytes(size) => {
                count(&counters.hot_hits, 1);
                Ok(Arc::new(HotBlob {
                    slow,
                    copy: FastBlob::of(&self.fast, copy),
                    spans,
                    failed: AtomicBool::new(false),
                }))
            }
            _ => {
                count(&counters.disk_hits, 1);
                Ok(slow)
            }
        }
    }

    /// Whether byte `at` of a blob is outside of the hot ranges that are copied to the fast tier.
    pub(super) fn is_cold(&self, digest: &Digest, at: Option<u64>) -> bool {
        let state = self.fast.state.lock();
        let hot = state.entries.get(&CopyKey::hot(digest));
        let (Some(at), Some(spans)) = (at, hot.and_then(|it| it.hot.as_ref())) else {
            return false;
        };
        !state.has_whole(digest) && matches!(spans.locate(at, u64::MAX), Location::Cold(_))
    }
}

/// An open blob on the disk whose hot ranges are read from the fast tier.
struct HotBlob {
    slow: Arc<dyn Blob>,
    copy: Arc<dyn Blob>,
    spans: Arc<Spans>,
    /// Set when the copy of the hot ranges could not be read. After that, all reads use the disk,
    /// because a later read of the copy could return bytes that were not verified.
    failed: AtomicBool,
}

impl HotBlob {
    fn locate(&self, offset: u64) -> Location {
        let size = self.slow.trailer().size();
        match self.failed.load(Ordering::Relaxed) {
            true => Location::Cold(size.saturating_sub(offset)),
            false => self.spans.locate(offset, size),
        }
    }

    /// Splits `offset..offset + len` into parts and calls `read` for each part in order, until a
    /// call reads fewer bytes than requested. `read` gets the source of the part and the range of
    /// the buffer. Returns the number of bytes that were read.
    fn parts(
        &self,
        offset: u64,
        len: usize,
        mut read: impl FnMut(Part<'_>, Range<usize>) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let (from, left) = match self.locate(at) {
                Location::Hot(inside, left) => {
                    let inside = self.spans.header_len() + inside;
                    (
                        Part {
                            copy: Some((&*self.copy, inside)),
                            at,
                        },
                        left,
                    )
                }
                // Beyond the end of the blob, the read from the disk returns the error.
                Location::Cold(0) => (Part { copy: None, at }, u64::MAX),
                Location::Cold(left) => (Part { copy: None, at }, left),
            };
            let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(len - done);
            let part = done..done + wanted;
            let came = read(from, part)?;
            done += came;
            if came < wanted {
                break;
            }
        }
        Ok(done)
    }
}

/// The source of a part of a blob: the offset `at` on the disk, and, for a hot part, a copy on the
/// fast tier with the offset in the copy.
struct Part<'a> {
    copy: Option<(&'a dyn Blob, u64)>,
    at: u64,
}

impl ReadAt for HotBlob {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let all = buf.len();
        let read = |from: Part<'_>, part: Range<usize>| {
            let (len, buf) = (part.len(), &mut buf[part]);
            if let Some((copy, at)) = from.copy {
                match copy.read_at(at, buf) {
                    Ok(()) => return Ok(len),
                    // The disk has these bytes, too, so the read continues on the disk.
                    Err(_) => self.failed.store(true, Ordering::Relaxed),
                }
            }
            self.slow.read_at(from.at, buf).map(|()| len)
        };
        self.parts(offset, all, read).map(|_| ())
    }

    fn try_read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.parts(offset, buf.len(), |from, part| match from.copy {
            Some((copy, at)) => copy.try_read_at(at, &mut buf[part]),
            None => self.slow.try_read_at(from.at, &mut buf[part]),
        })
    }
}

impl Blob for HotBlob {
    fn trailer(&self) -> &Trailer {
        self.slow.trailer()
    }

    fn extent(&self, offset: u64) -> Option<Extent<'_>> {
        let (extent, left) = match self.locate(offset) {
            Location::Hot(at, left) => (self.copy.extent(self.spans.header_len() + at)?, left),
            Location::Cold(left) => (self.slow.extent(offset)?, left),
        };
        Some(Extent {
            len: extent.len.min(left),
            ..extent
        })
    }
}
