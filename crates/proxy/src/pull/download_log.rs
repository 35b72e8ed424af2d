//! Logs each blob download as one line.

use std::time::Instant;

use tracing::field::display;

use crate::context::Inner;
use crate::error::{Cause, Error, with_sources};
use crate::limits::downloads::Turn;
use crate::pull::blob_request::Wanted;
use crate::refusal_log::{Refusal, RefusalLog};

/// One blob download from an upstream. Dropping it writes its log line.
pub(crate) struct DownloadLog<'a> {
    refusals: RefusalLog,
    wanted: Wanted,
    /// The slot of a download that yields to other clients.
    turn: Option<&'a Turn>,
    started: Instant,
    address: Option<String>,
    bytes: u64,
    end: End,
}

enum End {
    /// The client left or pierhead is shutting down.
    Cancelled,
    Stored,
    Streamed,
    Failed(Cause, String),
    /// Another [`DownloadLog`] goes on with the stream.
    HandedOver,
}

impl<'a> DownloadLog<'a> {
    pub(crate) fn start(inner: &Inner, wanted: &Wanted, turn: Option<&'a Turn>) -> Self {
        Self {
            refusals: inner.refusals.clone(),
            wanted: wanted.clone(),
            turn,
            started: Instant::now(),
            address: None,
            bytes: 0,
            end: End::Cancelled,
        }
    }

    /// Which address of the upstream sends.
    pub(crate) fn from(&mut self, address: &str) {
        self.address = Some(address.to_owned());
    }

    pub(crate) fn received(&mut self, bytes: usize) {
        self.bytes += u64::try_from(bytes).unwrap_or(0);
    }

    pub(crate) fn stored(&mut self) {
        self.end = End::Stored;
    }

    /// To a client, past the cache.
    pub(crate) fn streamed(&mut self) {
        self.end = End::Streamed;
    }

    pub(crate) fn failed(&mut self, error: &Error) {
        // A refusal to store is no failure: the client gets the blob by a download with its own line.
        let is_refused = matches!(error, Error::Cache(error) if matches!(**error, pierhead_cache::Error::TooLarge { .. }));
        self.end = match error.is_passed_on() || is_refused {
            true => End::HandedOver,
            false => End::Failed(error.cause(), with_sources(error)),
        };
    }
}

impl Drop for DownloadLog<'_> {
    fn drop(&mut self) {
        let Wanted {
            registry: upstream,
            repository,
            digest,
            ..
        } = &self.wanted;
        let (address, bytes) = (self.address.as_deref().map(display), self.bytes);
        let seconds = seconds(self.started);
        let outcome = match &self.end {
            End::HandedOver => return,
            // Nothing was downloaded.
            End::Cancelled if bytes == 0 => return,
            End::Cancelled if self.turn.is_some_and(Turn::is_yielding) => "paused",
            End::Cancelled => "cancelled",
            End::Stored => "stored",
            End::Streamed => "streamed",
            End::Failed(cause, error) => {
                let refusal = Refusal {
                    event: "blob download failed",
                    cause: *cause,
                    client: None,
                    registry: Some(upstream),
                };
                if self.refusals.is_new(&refusal, digest, error) {
                    tracing::warn!(%upstream, address, %repository, %digest, bytes, seconds, outcome = "failed", %error, "blob download failed");
                }
                return;
            }
        };
        tracing::info!(%upstream, address, %repository, %digest, bytes, seconds, outcome, "blob download");
    }
}

/// For the field `seconds` of a line: to the millisecond.
pub(crate) fn seconds(since: Instant) -> f64 {
    (since.elapsed().as_secs_f64() * 1000.0).round() / 1000.0
}
