//! Tests of the timing models of slow devices: the time of modelled accesses, and the bytes and
//! durability of the modelled persistent-memory medium.

use std::sync::Arc;

use pierhead_pmem::Medium as _;
use proptest::prelude::*;

use super::*;

/// A fake clock that advances only by sleeps, and wakes late.
#[derive(Debug, Default)]
struct FakeClock {
    now: Mutex<Duration>,
    late: Duration,
    sleeps: Mutex<u32>,
}

impl Clock for Arc<FakeClock> {
    fn now(&self) -> Duration {
        *self.now.lock()
    }

    fn sleep(&self, time: Duration) {
        *self.now.lock() += time + self.late;
        *self.sleeps.lock() += 1;
    }
}

const SLOW_DEVICE: DeviceModel = DeviceModel {
    read: 1_000_000_000,
    write: 100_000_000,
    access: Duration::from_millis(10),
    fence: Duration::from_millis(5),
};

fn pacer(model: DeviceModel, late: Duration) -> (Arc<FakeClock>, DevicePacer<Arc<FakeClock>>) {
    let clock = Arc::new(FakeClock {
        // The clock does not start at 0, so that accesses can get credit for earlier time.
        now: Mutex::new(Duration::from_secs(9)),
        late,
        ..FakeClock::default()
    });
    (Arc::clone(&clock), DevicePacer::new(model, clock))
}

fn passed(clock: &Arc<FakeClock>) -> Duration {
    clock.now() - Duration::from_secs(9)
}

#[test]
fn reads_and_writes_take_the_time_of_their_rates() {
    let (clock, pacer) = pacer(SLOW_DEVICE, Duration::ZERO);
    pacer.read(0, 500_000_000);
    assert_eq!(passed(&clock), Duration::from_millis(510));
    pacer.write(500_000_000, 50_000_000);
    assert_eq!(passed(&clock), Duration::from_millis(1010));
}

#[test]
fn small_accesses_share_a_sleep() {
    let (clock, pacer) = pacer(DeviceModel::NVDIMM, Duration::ZERO);
    for n in 0..100_000 {
        pacer.write(n * 8, 8);
        pacer.flush();
        pacer.fence();
    }
    // Each access costs 960 ns and 6 ns.
    let wanted = Duration::from_nanos(966 * 100_000);
    assert!(passed(&clock) <= wanted && passed(&clock) + MIN_SLEEP > wanted);
    assert!(*clock.sleeps.lock() < 100);
}

#[test]
fn a_sleep_that_ends_late_is_credited() {
    let (clock, pacer) = pacer(SLOW_DEVICE, Duration::from_micros(300));
    for n in 0..1000 {
        pacer.write(n * 200_000, 200_000);
    }
    let wanted = Duration::from_millis(2010);
    assert!(passed(&clock) <= wanted + MIN_SLEEP, "{:?}", passed(&clock));
}

#[test]
fn idle_time_is_not_credited() {
    let (clock, pacer) = pacer(SLOW_DEVICE, Duration::ZERO);
    clock.sleep(Duration::from_secs(100));
    let before = passed(&clock);
    pacer.write(0, 100_000_000);
    assert!(passed(&clock) - before >= Duration::from_millis(1009));
}

#[test]
fn only_a_non_sequential_access_is_a_seek() {
    let seeks = |offsets: &[u64]| {
        let model = DeviceModel {
            read: u64::MAX,
            write: u64::MAX,
            ..SLOW_DEVICE
        };
        let (clock, pacer) = pacer(model, Duration::ZERO);
        for offset in offsets {
            pacer.read(*offset, 10);
        }
        passed(&clock).as_millis() / 10
    };
    assert_eq!(seeks(&[0, 10, 20, 30]), 1);
    assert_eq!(seeks(&[0, 100, 0]), 3);
    // Two alternating streams.
    assert_eq!(seeks(&[0, 1000, 10, 1010, 20, 1020]), 2);
    // There are more streams than the model tracks, so that the model forgets the first stream.
    let many: Vec<u64> = (0..9).map(|n| n * 1000).chain([10]).collect();
    assert_eq!(seeks(&many), 10);
}

#[test]
fn a_fence_costs_time_only_after_a_flush() {
    let (clock, pacer) = pacer(SLOW_DEVICE, Duration::ZERO);
    pacer.fence();
    assert_eq!(passed(&clock), Duration::ZERO);
    pacer.flush();
    pacer.fence();
    pacer.fence();
    assert_eq!(passed(&clock), Duration::from_millis(5));
}

#[test]
fn the_bytes_equal_those_of_the_medium_below() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = pierhead_pmem::Config {
        path: folder.path().join("r"),
        size: 4096,
    };
    let (clock, _) = pacer(SLOW_DEVICE, Duration::ZERO);
    let region = pierhead_pmem::Region::open(&config).expect("a region");
    let slow = ModelledMedium::with_clock(region, SLOW_DEVICE, Arc::clone(&clock));
    slow.write(1, b"abc").expect("in range");
    slow.store(8, 7).expect("aligned");
    slow.flush(0, 16).expect("in range");
    slow.fence().expect("sound");
    let mut buf = [0; 16];
    slow.medium.read(0, &mut buf).expect("in range");
    assert_eq!(&buf, b"\0abc\0\0\0\0\x07\0\0\0\0\0\0\0");
    // The accesses cost two seeks, because offset 8 does not follow 4, and a fence.
    assert_eq!(passed(&clock).as_millis(), 25);
    assert_eq!((slow.len(), slow.class()), (4096, slow.medium.class()));
    // A failed access takes no time.
    assert!(slow.read(4096, &mut [0]).is_err());
    assert_eq!(passed(&clock).as_millis(), 25);
}

proptest! {
    /// In any order of accesses, the device is never faster than its model, and slower by at most
    /// [`MIN_SLEEP`].
    #[test]
    fn the_time_is_the_sum_of_the_costs(accesses in proptest::collection::vec((any::<bool>(), 0_u64..1_000_000), 1..200)) {
        let model = DeviceModel { access: Duration::ZERO, ..SLOW_DEVICE };
        let (clock, pacer) = pacer(model, Duration::ZERO);
        let mut wanted = Duration::ZERO;
        for (read, len) in accesses {
            if read {
                pacer.read(0, len);
                wanted += time(len, model.read);
            } else {
                pacer.write(0, len);
                wanted += time(len, model.write);
            }
        }
        prop_assert!(passed(&clock) <= wanted);
        prop_assert!(passed(&clock) + MIN_SLEEP * 2 >= wanted);
    }
}

#[test]
fn the_model_is_as_durable_as_the_medium_below() {
    use pierhead_pmem::shadow::ShadowMedium;
    for (flushes, fences) in [(true, true), (true, false), (false, true)] {
        let (clock, _) = pacer(SLOW_DEVICE, Duration::ZERO);
        let medium = ModelledMedium::with_clock(ShadowMedium::new(4096), SLOW_DEVICE, clock);
        medium.write(100, b"here").expect("in range");
        if flushes {
            medium.flush(100, 4).expect("in range");
        }
        if fences {
            medium.fence().expect("sound");
        }
        // Simulates the loss of all unsynced bytes.
        let left = medium.medium.cut(0).bytes();
        assert_eq!(&left[100..104] == b"here", flushes && fences);
    }
}
