//! A cap on the bytes that enter within a day, since flash wears out by what is written to it.
//!
//! Flashield (Eisenman et al., NSDI '19, section 2.2) says how: a device's warranty is so many of its own sizes a
//! day.

use crate::parameter::{ParameterError, check};
use crate::{Access, Admission, StateError, saved};

const NAME: &str = "write-cap";
/// Seconds.
const DAY: u64 = 86_400;

/// Lets in what another keeper admits until so many bytes entered on one day of the caller's clock (its
/// ticks / 86400, so a day of UTC where ticks are Unix time).
///
/// What would exceed the rest of the day's bytes is not admitted, what is smaller still is. Bytes count when
/// they are admitted, also if the owner has no room for them in the end. A day that ended does not come again,
/// so a clock that runs back lends nothing.
#[derive(Clone, Debug)]
pub struct WriteCap<A> {
    inner: A,
    bytes_per_day: u64,
    day: u64,
    written: u64,
}

impl<A> WriteCap<A> {
    /// At most `bytes_per_day` of what `inner` admits, from 1.
    ///
    /// # Errors
    /// When there are none.
    pub fn new(inner: A, bytes_per_day: u64) -> Result<Self, ParameterError> {
        check(NAME, "bytes_per_day", bytes_per_day, &(1..), "from 1")?;
        Ok(Self {
            inner,
            bytes_per_day,
            day: 0,
            written: 0,
        })
    }

    /// Bytes that entered on the last day on which any was asked for.
    pub fn written(&self) -> u64 {
        self.written
    }
}

impl<K, A: Admission<K>> Admission<K> for WriteCap<A> {
    fn hit(&mut self, access: &Access<K>) {
        self.inner.hit(access);
    }

    fn admit(&mut self, access: &Access<K>) -> bool {
        let day = access.tick / DAY;
        if day > self.day {
            (self.day, self.written) = (day, 0);
        }
        // The other one counts the request in any case.
        let admitted = self.inner.admit(access);
        let written = self.written.saturating_add(access.size);
        if !admitted || written > self.bytes_per_day {
            return false;
        }
        self.written = written;
        true
    }

    fn save(&self) -> Vec<u8> {
        saved::seal(NAME, &(self.day, self.written, self.inner.save()))
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), StateError> {
        let (day, written, inner): (u64, u64, Vec<u8>) = saved::open(NAME, saved)?;
        self.inner.restore(&inner)?;
        (self.day, self.written) = (day, written);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::{Always, SecondHit, second_hit};

    #[test]
    fn a_day_takes_so_many_bytes_and_the_next_as_many_again() {
        let mut cap = WriteCap::new(Always, 100).expect("some bytes");
        let mut admit = |size, tick| cap.admit(&Access::new('a', size, tick));
        assert!(admit(60, 10));
        assert!(!admit(41, 20), "60 + 41 > 100");
        assert!(admit(40, DAY - 1));
        assert!(!admit(1, DAY - 1));
        assert!(admit(100, DAY));
        assert!(!admit(1, DAY - 1), "the clock ran back");
        assert!(!admit(101, 9 * DAY), "more than a day's");
        assert!(!admit(u64::MAX, 9 * DAY));
        assert!(admit(100, 9 * DAY));
    }

    #[test]
    fn what_the_other_refuses_costs_nothing_and_is_counted_there() {
        let history = second_hit::Parameters::default();
        let inner = SecondHit::new(history).expect("the defaults are");
        let mut cap = WriteCap::new(inner, 100).expect("some bytes");
        let mut admit = |key, size| cap.admit(&Access::new(key, size, 0));
        assert!(!admit('a', 90));
        assert!(!admit('b', 90));
        assert!(admit('a', 90));
        assert!(!admit('b', 90), "no bytes are left");
        assert_eq!(cap.written(), 90);
    }

    #[test]
    fn a_restart_gives_no_new_day() {
        let mut cap = WriteCap::new(Always, 100).expect("some bytes");
        assert!(cap.admit(&Access::new('a', 70, DAY)));
        let mut restored = WriteCap::new(Always, 100).expect("some bytes");
        assert_eq!(
            Admission::<char>::restore(&mut restored, &Admission::<char>::save(&cap)),
            Ok(())
        );
        assert!(!restored.admit(&Access::new('a', 31, DAY)));
        assert!(restored.admit(&Access::new('a', 30, DAY)));
    }

    #[test]
    fn a_state_of_another_keeper_inside_changes_nothing() {
        let mut cap = WriteCap::new(Always, 100).expect("some bytes");
        let saved = saved::seal(NAME, &(7_u64, 99_u64, saved::seal("tinylfu", &())));
        assert!(Admission::<char>::restore(&mut cap, &saved).is_err());
        assert_eq!(cap.written(), 0);
    }

    #[test]
    fn no_bytes_at_all_are_refused() {
        assert!(WriteCap::new(Always, 0).is_err());
    }
}
