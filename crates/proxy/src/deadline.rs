//! The deadline of one HTTP response, and how much of the time before the deadline a request may
//! wait for an upstream.

use std::time::Duration;

use pierhead_oci::Registry;
use tokio::time::Instant;

use crate::error::Error;

/// The deadline of one response: a time limit from the start of the request.
#[derive(Clone, Copy)]
pub(crate) struct Deadline {
    started: Instant,
    limit: Duration,
}

impl Deadline {
    pub(crate) fn new(limit: Duration) -> Self {
        Self {
            started: Instant::now(),
            limit,
        }
    }

    /// The time until which to wait for an upstream if there is no stale response: nine tenths of
    /// the limit. The rest of the time is for the error.
    pub(crate) fn wait_without_stale(&self) -> Instant {
        self.started + self.limit * 9 / 10
    }

    /// The time until which to wait for an upstream if there is a stale response: three fifths of
    /// the limit. Serving the stale response may need an upstream request, too.
    pub(crate) fn wait_with_stale(&self) -> Instant {
        self.started + self.limit * 3 / 5
    }

    /// The time at which the response must begin.
    pub(crate) fn end(&self) -> Instant {
        self.started + self.limit
    }

    /// The error of an upstream that did not respond in time.
    pub(crate) fn upstream_timeout(&self, registry: &Registry) -> Error {
        Error::UpstreamTimeout {
            upstream: registry.to_string(),
            limit: self.limit,
        }
    }
}
