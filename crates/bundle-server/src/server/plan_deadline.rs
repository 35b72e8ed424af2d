//! The time budget of one plan. A plan holds a planning slot, which other clients wait for, so the
//! time of one plan is bounded, whatever the images contain.
//!
//! Loops that grow with the input check the deadline. There are two steps, since a longer bundle is
//! better than none, and since planning without shortcuts is bounded by the limits of the formats:
//!
//! 1. After `delta_timeout`, the plan saves no more bytes: the rest of the plan has whole packed
//!    frames.
//! 2. After `plan_timeout`, the request fails. This happens only on a host whose disk or cores are
//!    overloaded.

use std::time::Instant;

use super::config::Config;
use crate::Error;

/// The deadline of one plan.
#[derive(Clone, Copy)]
pub(super) struct PlanDeadline<'a> {
    started: Instant,
    config: &'a Config,
}

impl<'a> PlanDeadline<'a> {
    /// Starts the time of a plan.
    pub(super) fn start(config: &'a Config) -> Self {
        Self {
            started: Instant::now(),
            config,
        }
    }

    /// Whether there is time left to make the bundle shorter.
    pub(super) fn allows_delta(&self) -> bool {
        self.started.elapsed() < self.config.delta_timeout
    }

    /// Checks that the time of the plan is not over.
    ///
    /// # Errors
    /// [`Error::PlanTimeout`] after [`Config::plan_timeout`].
    pub(super) fn check(&self) -> Result<(), Error> {
        let limit = self.config.plan_timeout;
        match self.started.elapsed() < limit {
            true => Ok(()),
            false => Err(Error::PlanTimeout(limit)),
        }
    }
}
