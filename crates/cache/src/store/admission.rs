//! Admission control: asks the admission filter and the daily write budget whether a blob may be
//! stored. Counts written bytes against the budget.

use pierhead_eviction::{Access, Admission};
use pierhead_oci::Digest;

const DAY_SECONDS: u64 = 24 * 3600;

/// Small blobs and documents may exceed the daily write budget by this fraction (1/n). The reason:
/// if a manifest is not stored, each request for its tag causes an upstream request.
const SMALL_BLOB_SHARE: u64 = 16;

/// Maximum number of simultaneous requests for one blob that the admission filter counts.
const MAX_COUNTED_REQUESTS: u32 = 64;

pub(crate) struct AdmissionControl {
    pub(crate) name: String,
    /// 1 + the last day on which the log reported an exhausted budget.
    reported_day: u64,
    pub(crate) filter: Option<Box<dyn Admission<Digest>>>,
    /// Daily write budget in bytes. The value 0 means no limit.
    budget: u64,
    /// Current day of the policy clock, in days since 1970. `written` returns to 0 only when a
    /// later day begins. When the clock goes back, the bytes written so far count for the earlier
    /// day. Thus a clock that was wrongly far in the future for a moment does not block the budget
    /// for years.
    day: u64,
    /// Bytes written on the current day.
    written: u64,
    /// Number of bytes of the budget that running fills have reserved and not written yet.
    reserved: u64,
}

/// The reason why a fill that would fit into the cache is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The admission filter expects no further request for the blob.
    Admission,
    /// The eviction policy prefers the stored blobs to this blob.
    Policy,
    /// The daily write budget is used up.
    WriteBudget,
}

impl AdmissionControl {
    pub(crate) fn new(
        name: String,
        filter: Option<Box<dyn Admission<Digest>>>,
        budget: u64,
    ) -> Self {
        Self {
            name,
            reported_day: 0,
            filter,
            budget,
            day: 0,
            written: 0,
            reserved: 0,
        }
    }

    pub(crate) fn hit(&mut self, access: &Access<Digest>) {
        if let Some(filter) = &mut self.filter {
            filter.hit(access);
        }
    }

    /// Counts `requests` simultaneous requests for a blob that is not stored. Returns whether the
    /// admission filter admits the blob at one of these requests.
    pub(crate) fn admits(&mut self, access: &Access<Digest>, requests: u32) -> bool {
        let Some(filter) = &mut self.filter else {
            return true;
        };
        (0..requests.clamp(1, MAX_COUNTED_REQUESTS))
            .fold(false, |admitted, _| filter.admit(access) || admitted)
    }

    /// Whether the daily write budget has `bytes` bytes left.
    pub(crate) fn allows(&mut self, bytes: u64, is_small: bool, tick: u64) -> bool {
        self.enter_day(tick);
        let spare = if is_small {
            self.budget / SMALL_BLOB_SHARE
        } else {
            0
        };
        let taken = self.written.saturating_add(self.reserved);
        self.budget == 0 || taken.saturating_add(bytes) <= self.budget.saturating_add(spare)
    }

    /// Reserves budget for a fill. The reservation ends when the bytes are spent or released by
    /// [`AdmissionControl::release`].
    pub(crate) fn reserve(&mut self, bytes: u64) {
        self.reserved = self.reserved.saturating_add(bytes);
    }

    /// Releases budget that was reserved for a fill.
    pub(crate) fn release(&mut self, bytes: u64) {
        self.reserved = self.reserved.saturating_sub(bytes);
    }

    /// Subtracts written bytes from the budget of the day of `tick`.
    pub(crate) fn spend(&mut self, bytes: u64, tick: u64) {
        self.enter_day(tick);
        self.written = self.written.saturating_add(bytes);
    }

    /// Returns the number of bytes that were written on the day of `tick`.
    pub(crate) fn written(&mut self, tick: u64) -> u64 {
        self.enter_day(tick);
        self.written
    }

    /// Restores the number of bytes that an earlier process wrote on the day of `at`. `at` is the
    /// tick at which that process saved its state.
    pub(crate) fn restore(&mut self, written: u64, at: u64) {
        (self.day, self.written) = (at / DAY_SECONDS, written);
    }

    /// Returns the written bytes and the budget at the first call of a day, for a log line. Returns
    /// `None` at all later calls of that day.
    pub(crate) fn first_refusal_of_day(&mut self, tick: u64) -> Option<(u64, u64)> {
        self.enter_day(tick);
        let day = tick / DAY_SECONDS + 1;
        (std::mem::replace(&mut self.reported_day, day) != day)
            .then_some((self.written, self.budget))
    }

    pub(crate) fn set_budget(&mut self, budget: u64) {
        self.budget = budget;
    }

    pub(crate) fn budget(&self) -> u64 {
        self.budget
    }

    fn enter_day(&mut self, tick: u64) {
        let day = tick / DAY_SECONDS;
        if day > self.day {
            self.written = 0;
        }
        self.day = day;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_has_its_write_budget_and_small_blobs_may_exceed_it() {
        let mut admission = AdmissionControl::new(String::new(), None, 1600);
        assert!(admission.allows(1600, false, 5) && !admission.allows(1601, false, 5));
        admission.spend(1600, 5);
        assert!(!admission.allows(1, false, DAY_SECONDS - 1));
        assert!(
            admission.allows(100, true, DAY_SECONDS - 1)
                && !admission.allows(101, true, DAY_SECONDS - 1)
        );
        assert_eq!(admission.written(DAY_SECONDS - 1), 1600);
        assert!(admission.allows(1600, false, DAY_SECONDS), "another day");
        assert_eq!(admission.written(DAY_SECONDS), 0);
        assert_eq!(admission.first_refusal_of_day(DAY_SECONDS), Some((0, 1600)));
        assert_eq!(
            admission.first_refusal_of_day(2 * DAY_SECONDS - 1),
            None,
            "once a day"
        );
        assert!(
            admission.first_refusal_of_day(2 * DAY_SECONDS).is_some()
                && admission.first_refusal_of_day(2 * DAY_SECONDS).is_none()
        );
        let mut admission = AdmissionControl::new(String::new(), None, 1600);
        admission.spend(1600, 9000 * DAY_SECONDS);
        assert!(
            !admission.allows(1, false, DAY_SECONDS),
            "the clock ran back: no new day"
        );
        assert!(
            admission.allows(1600, false, 2 * DAY_SECONDS),
            "the next day is one"
        );
        admission.restore(1000, DAY_SECONDS);
        assert!(
            !admission.allows(601, false, DAY_SECONDS)
                && admission.allows(601, false, 2 * DAY_SECONDS)
        );
        admission.set_budget(0);
        admission.spend(u64::MAX, 2 * DAY_SECONDS);
        assert!(admission.allows(u64::MAX, false, 2 * DAY_SECONDS));
    }
}
