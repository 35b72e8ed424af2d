//! Reads the uncompressed bytes of a layer for the walk over its tar. Hashes the bytes, checks the
//! limits, and passes checkpoints (positions at which decoding can start) to the builder of the
//! index.

use pierhead_oci::{Algorithm, Digest, Hasher};

use crate::layer::builder::Builder;
use crate::layer::decoder::Coding;
use crate::layer::header::BLOCK;
use crate::layer::pace::Pace;
use crate::layer::request::{Limits, RATIO_FREE};
use crate::layer::skeleton;
use crate::layer::stream::PositionedDecoder;
use crate::{Blob, Error};

pub(super) struct Bytes<'a> {
    blob: &'a dyn Blob,
    stream: PositionedDecoder,
    coding: Coding,
    hash: Hasher,
    size: u64,
    limits: Limits,
    pace: &'a mut dyn Pace,
}

impl<'a> Bytes<'a> {
    pub(super) fn new(
        blob: &'a dyn Blob,
        limits: &Limits,
        pace: &'a mut dyn Pace,
    ) -> Result<Self, Error> {
        let coding = Coding::detect(blob)?;
        Ok(Self {
            blob,
            stream: PositionedDecoder::begin(coding, limits.max_window)?,
            coding,
            hash: Hasher::new(Algorithm::Sha256),
            size: 0,
            limits: *limits,
            pace,
        })
    }

    /// Returns the compression, the number of uncompressed bytes, and the digest of these bytes,
    /// which is the diff ID.
    pub(super) fn finish(self) -> (Coding, u64, Digest) {
        (self.coding, self.size, self.hash.finish())
    }

    pub(super) fn position(&self) -> u64 {
        self.stream.position()
    }

    pub(super) fn pause(&mut self, bytes: u64) -> Result<(), Error> {
        self.pace.pause(bytes)
    }

    pub(super) fn ready(&self) -> &[u8] {
        self.stream.ready()
    }

    pub(super) fn take(&mut self, count: usize) {
        self.stream.take(count);
    }

    /// Checks the limits of file sizes before a file is hashed. `files` is the total size of all
    /// files so far, including holes.
    pub(super) fn allow(&self, files: u64) -> Result<(), Error> {
        let Limits {
            max_size,
            max_ratio,
            ..
        } = self.limits;
        if files > max_size {
            return Err(Error::Image(format!(
                "the layer has files of more bytes than the limit of {max_size}"
            )));
        }
        let most = max_ratio.saturating_mul(self.blob.size());
        if files.saturating_sub(RATIO_FREE) > most {
            return Err(Error::Image(format!(
                "the layer has files of more than the limit of {max_ratio} times its bytes"
            )));
        }
        Ok(())
    }

    /// Decodes bytes if none are ready. Returns `false` at the end of the layer.
    pub(super) fn fill(&mut self, builder: &mut Builder) -> Result<bool, Error> {
        if !self.stream.ready().is_empty() {
            return Ok(true);
        }
        let some = self.stream.fill(self.blob, self.pace)?;
        let fresh = self.stream.ready();
        let count = fresh.len() as u64;
        self.hash.update(fresh);
        self.size += count;
        let Limits {
            max_size,
            max_ratio,
            ..
        } = self.limits;
        if self.size > max_size {
            return Err(Error::Image(format!(
                "the layer unpacks to more bytes than the limit of {max_size}"
            )));
        }
        let free = max_ratio.saturating_mul(self.stream.blob_position());
        if self.size > RATIO_FREE && self.size - RATIO_FREE > free {
            return Err(Error::Image(format!(
                "the layer unpacks to more than the limit of {max_ratio} times its bytes"
            )));
        }
        for found in self.stream.found() {
            builder.checkpoint(found)?;
        }
        self.pace.pause(count)?;
        Ok(some)
    }

    /// Returns the next block of 512 bytes, or `None` at the end of the layer. An incomplete block
    /// is an error.
    pub(super) fn block(&mut self, builder: &mut Builder) -> Result<Option<[u8; BLOCK]>, Error> {
        if !self.fill(builder)? {
            return Ok(None);
        }
        let mut block = [0; BLOCK];
        let mut at = 0;
        self.data(builder, BLOCK as u64, |_, part| {
            block[at..at + part.len()].copy_from_slice(part);
            at += part.len();
            Ok(())
        })?;
        Ok(Some(block))
    }

    /// Passes the next `len` bytes to `each`, in pieces.
    pub(super) fn data(
        &mut self,
        builder: &mut Builder,
        mut len: u64,
        mut each: impl FnMut(&mut Builder, &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        while len > 0 {
            if !self.fill(builder)? {
                return Err(Error::Image("the layer is cut short".to_owned()));
            }
            let ready = self.stream.ready();
            let part = usize::try_from(len).unwrap_or(usize::MAX).min(ready.len());
            each(builder, &ready[..part])?;
            self.stream.take(part);
            len -= part as u64;
        }
        Ok(())
    }

    /// Returns the padding after `len` bytes. The result is shorter when the layer ends within the
    /// padding, which runtimes accept.
    pub(super) fn padding(&mut self, builder: &mut Builder, len: u64) -> Result<Vec<u8>, Error> {
        let mut pad = Vec::new();
        let mut left = usize::try_from(skeleton::padding(len)).unwrap_or(0);
        while left > 0 && self.fill(builder)? {
            let ready = self.stream.ready();
            let part = left.min(ready.len());
            pad.extend_from_slice(&ready[..part]);
            self.stream.take(part);
            left -= part;
        }
        Ok(pad)
    }
}
