//! Writes one log line for each download of a blob.

use std::time::Instant;

use tracing::field::display;

use crate::context::RequestContext;
use crate::error::{Cause, Error, with_sources};
use crate::limits::downloads::DownloadSlot;
use crate::pull::blob_request::BlobRequest;
use crate::refusal_log::{Refusal, RefusalLog};

/// One blob download from an upstream. Dropping this value writes the log line.
pub(crate) struct DownloadLog<'a> {
    refusals: RefusalLog,
    request: BlobRequest,
    /// The slot of the download, if the download can yield its slot to other clients.
    slot: Option<&'a DownloadSlot>,
    started: Instant,
    address: Option<String>,
    bytes: u64,
    end: DownloadOutcome,
}

enum DownloadOutcome {
    /// The client disconnected, or pierhead is shutting down.
    Cancelled,
    Stored,
    Streamed,
    Failed(Cause, String),
    /// The cache has no room for the blob. Another download gets the blob for the client.
    NoRoom {
        cause: Cause,
        error: String,
        /// Whether a client waits for the blob.
        has_clients: bool,
    },
    /// The stream was handed over: another [`DownloadLog`] logs the rest of the download.
    HandedOver,
}

impl<'a> DownloadLog<'a> {
    pub(crate) fn start(
        context: &RequestContext,
        request: &BlobRequest,
        slot: Option<&'a DownloadSlot>,
    ) -> Self {
        Self {
            refusals: context.refusals.clone(),
            request: request.clone(),
            slot,
            started: Instant::now(),
            address: None,
            bytes: 0,
            end: DownloadOutcome::Cancelled,
        }
    }

    /// Sets the address of the upstream that sends the bytes.
    pub(crate) fn from(&mut self, address: &str) {
        self.address = Some(address.to_owned());
    }

    pub(crate) fn received(&mut self, bytes: usize) {
        self.bytes += u64::try_from(bytes).unwrap_or(0);
    }

    pub(crate) fn stored(&mut self) {
        self.end = DownloadOutcome::Stored;
    }

    /// Records that the blob went to a client without being stored.
    pub(crate) fn streamed(&mut self) {
        self.end = DownloadOutcome::Streamed;
    }

    pub(crate) fn failed(&mut self, error: &Error) {
        // A blob that the cache refuses to store is no failed download: the client gets the blob by
        // a download with a log line of its own.
        let is_refused = matches!(error, Error::Cache(error) if matches!(**error, pierhead_cache::Error::TooLarge { .. }));
        let has_no_room = matches!(error, Error::Cache(error) if matches!(**error, pierhead_cache::Error::NoRoom { .. }));
        self.end = match error.is_not_admitted() || is_refused {
            true => DownloadOutcome::HandedOver,
            false if has_no_room => DownloadOutcome::NoRoom {
                cause: error.cause(),
                error: with_sources(error),
                has_clients: self.slot.is_some_and(DownloadSlot::has_readers),
            },
            false => DownloadOutcome::Failed(error.cause(), with_sources(error)),
        };
    }
}

impl Drop for DownloadLog<'_> {
    fn drop(&mut self) {
        let BlobRequest {
            registry: upstream,
            repository,
            digest,
            ..
        } = &self.request;
        let (address, bytes) = (self.address.as_deref().map(display), self.bytes);
        let seconds = seconds(self.started);
        let outcome = match &self.end {
            DownloadOutcome::HandedOver => return,
            // No byte arrived before the cancellation, so there is nothing to log.
            DownloadOutcome::Cancelled if bytes == 0 => return,
            DownloadOutcome::Cancelled if self.slot.is_some_and(DownloadSlot::is_yielding) => {
                "paused"
            }
            DownloadOutcome::Cancelled => "cancelled",
            DownloadOutcome::Stored => "stored",
            DownloadOutcome::Streamed => "streamed",
            DownloadOutcome::Failed(cause, error) => {
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
            DownloadOutcome::NoRoom {
                cause,
                error,
                has_clients,
            } => {
                let refusal = Refusal {
                    event: "blob not stored",
                    cause: *cause,
                    client: None,
                    registry: Some(upstream),
                };
                if self.refusals.is_new(&refusal, digest, error) {
                    match has_clients {
                        true => {
                            tracing::warn!(%upstream, address, %repository, %digest, bytes, seconds, %error, "blob not stored; clients get it from the upstream");
                        }
                        false => {
                            tracing::warn!(%upstream, address, %repository, %digest, bytes, seconds, %error, "blob not stored; no client waits for it");
                        }
                    }
                }
                return;
            }
        };
        tracing::info!(%upstream, address, %repository, %digest, bytes, seconds, outcome, "blob download");
    }
}

/// The value of the field `seconds` of a log line, rounded to milliseconds.
pub(crate) fn seconds(since: Instant) -> f64 {
    (since.elapsed().as_secs_f64() * 1000.0).round() / 1000.0
}
