//! Decides over how many upstream connections a large blob is downloaded: adds a connection while
//! this raises the throughput.

use std::time::Duration;

/// Maximum number of upstream connections of one fill, without the connections of readers that
/// wait for a range.
pub(crate) const MAX_CONNECTIONS: u32 = 4;

/// Time over which the throughput is measured.
pub(crate) const MEASUREMENT_TIME: Duration = Duration::from_millis(150);

/// Gain of throughput for which an additional connection is kept, as a part of the gain if each
/// connection had the same throughput.
const MIN_GAIN: f64 = 0.4;

/// Minimum time until the end of the download for which an additional connection is worth its
/// request.
const MIN_TIME_LEFT: Duration = Duration::from_secs(1);

/// Minimum bytes of the blob that have not arrived for which a connection is added.
const MIN_BYTES_LEFT: u64 = 16 << 20;

/// Number of measurements between the end of a trial that failed and the next trial.
const MEASUREMENTS_UNTIL_RETRIAL: u32 = 40;

/// Decides after each measurement whether a connection is added or ended.
#[derive(Debug, Default)]
pub(crate) struct ConnectionController {
    /// The throughput before the connection that is on trial was added, in bytes per second.
    trial: Option<f64>,
    /// Number of measurements until the next trial.
    pause: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionChange {
    Keep,
    /// Add a connection, on trial.
    Add,
    /// End the connection that was added last.
    End,
}

impl ConnectionController {
    /// Returns the change after a measurement: `connections` connections had the throughput `rate`
    /// in bytes per second. `left` is the number of bytes that have not arrived.
    pub(crate) fn measured(&mut self, connections: u32, rate: f64, left: u64) -> ConnectionChange {
        if let Some(before) = self.trial.take() {
            let others = f64::from(connections.saturating_sub(1).max(1));
            if rate < before * (1.0 + MIN_GAIN / others) {
                self.pause = MEASUREMENTS_UNTIL_RETRIAL;
                return ConnectionChange::End;
            }
        }
        self.pause = self.pause.saturating_sub(1);
        let is_long = left >= MIN_BYTES_LEFT && left as f64 > rate * MIN_TIME_LEFT.as_secs_f64();
        if self.pause > 0 || connections >= MAX_CONNECTIONS || !is_long {
            return ConnectionChange::Keep;
        }
        self.trial = Some(rate);
        ConnectionChange::Add
    }

    /// Records that the connection on trial got no download slot, or ended because no bytes were
    /// left for it. Nothing was measured, so the next measurement may start another trial.
    pub(crate) fn trial_cancelled(&mut self) {
        self.trial = None;
    }

    /// Records that the upstream refused or broke a connection. The next trial is later.
    pub(crate) fn connection_failed(&mut self) {
        self.trial = None;
        self.pause = MEASUREMENTS_UNTIL_RETRIAL;
    }
}

#[cfg(test)]
mod tests {
    use super::ConnectionChange::{Add, End, Keep};
    use super::*;

    const MANY: u64 = 1 << 30;

    #[test]
    fn connections_are_added_while_each_raises_the_throughput() {
        let mut controller = ConnectionController::default();
        let changes = [(1, 8e6), (2, 16e6), (3, 23e6), (4, 30e6), (4, 30e6)]
            .map(|(connections, rate)| controller.measured(connections, rate, MANY));
        assert_eq!(changes, [Add, Add, Add, Keep, Keep]);
    }

    #[test]
    fn a_connection_that_does_not_help_ends_and_is_tried_again_later() {
        let mut controller = ConnectionController::default();
        assert_eq!(controller.measured(1, 100e6, MANY), Add);
        assert_eq!(controller.measured(2, 110e6, MANY), End);
        for _ in 1..MEASUREMENTS_UNTIL_RETRIAL {
            assert_eq!(controller.measured(1, 100e6, MANY), Keep);
        }
        assert_eq!(controller.measured(1, 100e6, MANY), Add);
        assert_eq!(controller.measured(2, 200e6, MANY), Add);
    }

    /// A refused download slot says nothing about the throughput.
    #[test]
    fn a_trial_without_a_measurement_teaches_nothing() {
        let mut controller = ConnectionController::default();
        assert_eq!(controller.measured(1, 8e6, MANY), Add);
        controller.trial_cancelled();
        assert_eq!(controller.measured(1, 8e6, MANY), Add);
        assert_eq!(controller.measured(2, 16e6, MANY), Add);
        controller.trial_cancelled();
        assert_eq!(controller.measured(2, 16e6, MANY), Add);
    }

    #[test]
    fn after_a_failed_connection_the_next_trial_is_later() {
        let mut controller = ConnectionController::default();
        assert_eq!(controller.measured(1, 8e6, MANY), Add);
        controller.connection_failed();
        assert_eq!(controller.measured(1, 8e6, MANY), Keep);
    }

    #[test]
    fn no_connection_is_added_shortly_before_the_end() {
        let mut controller = ConnectionController::default();
        assert_eq!(controller.measured(1, 80e6, 70_000_000), Keep);
        assert_eq!(controller.measured(1, 1e6, MIN_BYTES_LEFT - 1), Keep);
        assert_eq!(controller.measured(1, 80e6, 90_000_000), Add);
    }
}
