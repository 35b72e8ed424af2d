//! Admission control: a filter, and a daily write budget.

use pierhead_eviction::{Access, Admission};
use pierhead_oci::Digest;

const DAY_SECONDS: u64 = 24 * 3600;

/// Of the bytes of a day, what small blobs and documents may take beyond them: without its manifest a tag costs
/// its upstream a request each time.
const SMALL_BLOB_SHARE: u64 = 16;

/// Requests for one blob at once that count, at most.
const MAX_COUNTED_REQUESTS: u32 = 64;

pub(crate) struct AdmissionControl {
    pub(crate) name: String,
    /// The last day whose exhausted budget was logged.
    reported_day: u64,
    pub(crate) filter: Option<Box<dyn Admission<Digest>>>,
    /// Bytes a day; 0: no bound.
    cap: u64,
    /// Of the clock that ranks go by. One that is put back lends nothing: what was written counts for the
    /// lower day too, and one that ran years ahead for a moment stops nothing until then.
    day: u64,
    /// Bytes written that day.
    written: u64,
    /// Bytes that fills under way have announced and not written yet.
    promised: u64,
}

/// Why a fill that would fit is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The admission does not expect it again.
    Admission,
    /// The policy prefers the blobs that are stored.
    Policy,
    /// The budget of this day is used up.
    WriteBudget,
}

impl AdmissionControl {
    pub(crate) fn new(name: String, filter: Option<Box<dyn Admission<Digest>>>, cap: u64) -> Self {
        Self {
            name,
            reported_day: 0,
            filter,
            cap,
            day: 0,
            written: 0,
            promised: 0,
        }
    }

    pub(crate) fn hit(&mut self, access: &Access<Digest>) {
        if let Some(filter) = &mut self.filter {
            filter.hit(access);
        }
    }

    /// Counts so many requests at once for what is not held, and says whether one of them admits it.
    pub(crate) fn admits(&mut self, access: &Access<Digest>, requests: u32) -> bool {
        let Some(filter) = &mut self.filter else {
            return true;
        };
        (0..requests.clamp(1, MAX_COUNTED_REQUESTS))
            .fold(false, |admitted, _| filter.admit(access) || admitted)
    }

    /// Whether `bytes` more may be written today.
    pub(crate) fn allows(&mut self, bytes: u64, is_small: bool, tick: u64) -> bool {
        self.enter_day(tick);
        let spare = if is_small {
            self.cap / SMALL_BLOB_SHARE
        } else {
            0
        };
        let taken = self.written.saturating_add(self.promised);
        self.cap == 0 || taken.saturating_add(bytes) <= self.cap.saturating_add(spare)
    }

    /// Keeps bytes of a day for a fill that was allowed them, until they are spent or [`AdmissionControl::release`]d.
    pub(crate) fn promise(&mut self, bytes: u64) {
        self.promised = self.promised.saturating_add(bytes);
    }

    /// Takes back what was promised.
    pub(crate) fn release(&mut self, bytes: u64) {
        self.promised = self.promised.saturating_sub(bytes);
    }

    /// Counts bytes as written.
    pub(crate) fn spend(&mut self, bytes: u64, tick: u64) {
        self.enter_day(tick);
        self.written = self.written.saturating_add(bytes);
    }

    /// Bytes written on the day of `tick`.
    pub(crate) fn written(&mut self, tick: u64) -> u64 {
        self.enter_day(tick);
        self.written
    }

    /// Takes over what an earlier process wrote.
    pub(crate) fn restore(&mut self, written: u64, at: u64) {
        (self.day, self.written) = (at / DAY_SECONDS, written);
    }

    /// Something was refused for the bytes of the day: whether that is the first of its day. The figures for it are
    /// what was written, and the bytes of a day.
    pub(crate) fn first_refusal_of_day(&mut self, tick: u64) -> Option<(u64, u64)> {
        self.enter_day(tick);
        let day = tick / DAY_SECONDS + 1;
        (std::mem::replace(&mut self.reported_day, day) != day).then_some((self.written, self.cap))
    }

    pub(crate) fn set_cap(&mut self, cap: u64) {
        self.cap = cap;
    }

    pub(crate) fn cap(&self) -> u64 {
        self.cap
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
    fn a_day_takes_its_bytes_and_small_ones_a_little_more() {
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
        admission.set_cap(0);
        admission.spend(u64::MAX, 2 * DAY_SECONDS);
        assert!(admission.allows(u64::MAX, false, 2 * DAY_SECONDS));
    }
}
