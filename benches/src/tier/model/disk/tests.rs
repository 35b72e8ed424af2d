//! Tests of the modelled disk: conformance as a tier, and the time of its operations.

use std::time::Duration;

use pierhead_oci::Algorithm;
use pierhead_testkit::tier::{MemoryTier, conforms};

use super::*;

/// A fake clock that advances only by sleeps.
#[derive(Clone, Default)]
struct FakeClock(Arc<Mutex<Duration>>);

impl Clock for FakeClock {
    fn now(&self) -> Duration {
        *self.0.lock()
    }

    fn sleep(&self, time: Duration) {
        *self.0.lock() += time;
    }
}

const MODEL: DeviceModel = DeviceModel {
    read: 10_000_000,
    write: 1_000_000,
    access: Duration::from_secs(7),
    fence: Duration::from_secs(30),
};
const BYTES: usize = 1_000_000;

fn disk(memory: u64) -> (ModelledDisk<FakeClock>, FakeClock) {
    let clock = FakeClock::default();
    let below = Arc::new(MemoryTier::default());
    let tier = ModelledDisk::with_clock(below, MODEL, memory, clock.clone());
    (tier, clock)
}

/// The result of `work`, and its time in whole seconds.
fn seconds<T>(clock: &FakeClock, work: impl FnOnce() -> T) -> (u64, T) {
    let before = clock.now();
    let done = work();
    ((clock.now() - before).as_secs(), done)
}

fn content() -> (Digest, Vec<u8>, Trailer) {
    let content = vec![7; BYTES];
    let digest = Digest::of(Algorithm::Sha256, &content);
    let trailer = Trailer::of(&content, None);
    (digest, content, trailer)
}

#[test]
fn the_modelled_disk_conforms() {
    for memory in [0, 1 << 20] {
        conforms(|| disk(memory).0);
    }
}

#[test]
fn writes_take_time_when_they_are_synced() {
    let (tier, clock) = disk(16 << 20);
    let (digest, content, trailer) = content();
    let mut staged = tier.stage(&digest).unwrap();
    assert_eq!(seconds(&clock, || staged.write(&[&content]).unwrap()).0, 0);
    // The time of a seek, of one second of bytes, and of a sync.
    let early = staged.early_sync().unwrap();
    assert_eq!(seconds(&clock, early).0, 7 + 1 + 30);
    // The time of a sync without bytes, and of the rename.
    assert_eq!(seconds(&clock, || staged.commit(trailer).map(drop)).0, 60);
}

#[test]
fn cached_blocks_are_read_at_once_and_others_from_disk() {
    let (digest, content, trailer) = content();
    for (memory, expected) in [(16 << 20, 0), (0, 7)] {
        let (tier, clock) = disk(memory);
        let mut staged = tier.stage(&digest).unwrap();
        staged.write(&[&content]).unwrap();
        let mut read = vec![0; BYTES];
        // Unsynced bytes are in memory.
        let reader = staged.reader();
        assert_eq!(reader.try_read_at(0, &mut read).unwrap(), BYTES);
        let blob = staged.commit(trailer.clone()).unwrap();
        let (took, done) = seconds(&clock, || blob.read_at(0, &mut read));
        done.unwrap();
        assert_eq!((took, &read), (expected, &content), "{memory}");
        let at_once = blob.try_read_at(0, &mut read).unwrap();
        assert_eq!(at_once > 0, memory > 0);
        // An extent would bypass the model.
        assert!(blob.extent(0).is_none());
        tier.forget();
        assert_eq!(blob.try_read_at(0, &mut read).unwrap(), 0);
        let (took, done) = seconds(&clock, || blob.read_at(0, &mut read));
        done.unwrap();
        assert_eq!(took, 7);
    }
}
