//! The bytes of one blob straight from the upstream, past a cache that does not take them.

use bytes::Bytes;
use pierhead_cache::Error as CacheError;
use pierhead_oci::Hasher;
use pierhead_remote::BlobStream;

use crate::Error;
use crate::limits::Turn;
use crate::service::Inner;
use crate::source::Wanted;

/// Straight from the upstream, past a disk that would not take it.
pub(crate) struct Direct {
    stream: BlobStream,
    /// Bytes before the reader's offset, to be thrown away.
    skip: u64,
    /// The next bytes, held back until more come or the digest is known good.
    held: Bytes,
    /// Taken at the end.
    hasher: Option<Hasher>,
    ended: bool,
    _turn: Turn,
}

impl Direct {
    /// Opens it for a reader that is at `offset`. The bytes before it are taken once more: nothing is ended
    /// cleanly that was not held against the digest from its first byte.
    pub(crate) async fn open(
        inner: &Inner,
        wanted: &Wanted,
        offset: u64,
    ) -> Result<Box<Self>, Error> {
        let Wanted {
            registry,
            repository,
            digest,
            client,
        } = wanted;
        let ticket = inner.limits.queue(client)?;
        let turn = inner.limits.turn(ticket, registry).await;
        let stream = match inner.client.blob(registry, repository, digest, 0).await {
            Ok(stream) => stream,
            Err(error) => {
                inner.recent.failed(registry, wanted.subject(), &error);
                return Err(error.into());
            }
        };
        inner.recent.answered(registry);
        if stream.offset() != 0 {
            return Err(Error::Truncated { at: 0 });
        }
        Ok(Box::new(Self {
            stream,
            skip: offset,
            held: Bytes::new(),
            hasher: Some(Hasher::new(digest.algorithm())),
            ended: false,
            _turn: turn,
        }))
    }

    /// Total bytes of the blob; `None` when the upstream does not say.
    pub(crate) fn size(&self) -> Option<u64> {
        self.stream.size()
    }

    /// Up to `max` bytes. What is held back leaves when more has come, and last when the hash matched.
    pub(crate) async fn next(
        &mut self,
        inner: &Inner,
        wanted: &Wanted,
        max: usize,
    ) -> Result<Bytes, Error> {
        loop {
            if self.held.len() > max || (self.ended && !self.held.is_empty()) {
                let max = max.min(self.held.len());
                return Ok(self.held.split_to(max));
            }
            if self.ended {
                return Ok(Bytes::new());
            }
            let mut bytes = match self.stream.next().await {
                Some(Ok(bytes)) => bytes,
                Some(Err(error)) => {
                    inner
                        .recent
                        .failed(&wanted.registry, wanted.subject(), &error);
                    return Err(error.into());
                }
                None => {
                    self.check(inner, wanted)?;
                    self.ended = true;
                    continue;
                }
            };
            if let Some(hasher) = &mut self.hasher {
                hasher.update(&bytes);
            }
            let skipped = usize::try_from(self.skip)
                .unwrap_or(usize::MAX)
                .min(bytes.len());
            self.skip -= u64::try_from(skipped).unwrap_or(0);
            let _ = bytes.split_to(skipped);
            // At most `max`, by the first test of the loop.
            let ready = std::mem::replace(&mut self.held, bytes);
            if !ready.is_empty() {
                return Ok(ready);
            }
        }
    }

    fn check(&mut self, inner: &Inner, wanted: &Wanted) -> Result<(), Error> {
        let expected = &wanted.digest;
        match self.hasher.take().map(Hasher::finish) {
            Some(actual) if actual != *expected => {
                self.stream.senders().sent_wrong();
                let error = CacheError::WrongDigest {
                    expected: *expected,
                    actual: actual.into(),
                    resumed: false,
                };
                Err(error.into())
            }
            Some(_) => {
                inner.proved(&wanted.registry, &wanted.repository, expected);
                Ok(())
            }
            None => Ok(()),
        }
    }
}
