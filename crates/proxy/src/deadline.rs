//! How long an answer may take, and how long to wait for what.

use std::time::Duration;

use pierhead_oci::Registry;
use tokio::time::Instant;

use crate::error::Error;

/// By when an answer must leave, and when patience ends before that.
#[derive(Clone, Copy)]
pub(crate) struct Deadline {
    started: Instant,
    within: Duration,
}

impl Deadline {
    pub(crate) fn new(within: Duration) -> Self {
        Self {
            started: Instant::now(),
            within,
        }
    }

    /// The last moment to wait for an upstream when there is nothing else to answer with. A tenth of
    /// the time is left to say so.
    pub(crate) fn last(&self) -> Instant {
        self.started + self.within * 9 / 10
    }

    /// The last moment to wait for it when there is a stale answer, which may need a look upstream too.
    pub(crate) fn patience(&self) -> Instant {
        self.started + self.within * 3 / 5
    }

    /// The end of it.
    pub(crate) fn end(&self) -> Instant {
        self.started + self.within
    }

    pub(crate) fn slow(&self, registry: &Registry) -> Error {
        Error::UpstreamTimeout {
            upstream: registry.to_string(),
            limit: self.within,
        }
    }
}
