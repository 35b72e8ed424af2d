//! Tests of the normal use of a log: against a model, from many threads, with readers, with a
//! limit, and with compaction.

use parking_lot::Mutex;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use proptest::prelude::*;

use super::{Driver, Model, OPTIONS, content, medium, meta, open, put, read};
use crate::shadow::ShadowMedium;
use crate::{Class, Error, Log, MAX_KEY_LEN, MAX_META_LEN, Medium};

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_log_behaves_like_a_map(seed: u64) {
        let medium = medium();
        let model = Arc::new(Mutex::new(Model::default()));
        let mut driver = Driver::new(&medium, Arc::clone(&model), seed).unwrap();
        for _ in 0..300 {
            driver.step().unwrap();
            prop_assert!(driver.log.used() <= driver.log.capacity() + 3 * 4096);
        }
        prop_assert_eq!(model.lock().check(&driver.log), Ok(()));
        let (again, found) = Log::open(medium.clone(), OPTIONS).unwrap();
        prop_assert_eq!(model.lock().check(&again), Ok(()));
        prop_assert_eq!(found.dropped, 0);
        drop(again);
        driver.let_go().unwrap();
        driver.writers.clear();
        let keys: Vec<_> = model.lock().values.keys().cloned().collect();
        for key in keys {
            prop_assert!(driver.log.remove(&key).unwrap());
        }
        prop_assert_eq!(driver.log.used(), 0);
    }
}

#[test]
fn segments_with_dead_bytes_are_compacted_for_new_values() {
    let medium = medium();
    let log = open(&medium);
    let mut random = fastrand::Rng::with_seed(3);
    let mut model = Model::default();
    // A third of each segment stays live. The other bytes of the segment are rewritten many times.
    for round in 0..30u8 {
        let bytes = content(&mut random, 900);
        put(&log, b"passing", &bytes).unwrap();
        model.values.insert(b"passing".to_vec(), bytes);
        if round < 24 {
            let bytes = content(&mut random, 700);
            put(&log, &[round], &bytes).unwrap();
            model.values.insert(vec![round], bytes);
        }
    }
    // The value is larger than the free space, so the log must use the dead space between live
    // values.
    let bytes = content(&mut random, 12_000);
    put(&log, b"large", &bytes).unwrap();
    model.values.insert(b"large".to_vec(), bytes);
    assert_eq!(model.check(&log), Ok(()));
    let moved = open(&medium.cut(0));
    assert_eq!(model.check(&moved), Ok(()));
}

#[test]
fn a_value_is_counted_once_during_compaction() {
    let medium = medium();
    let log = open(&medium);
    for round in 0..24u8 {
        put(&log, b"passing", &[round; 900]).unwrap();
        put(&log, &[round], &[round; 700]).unwrap();
    }
    log.remove(b"passing").unwrap();
    let mut round = 24u8;
    while !log.inner.space.is_short() {
        put(&log, &[round], &[round; 3900]).unwrap();
        round += 1;
    }
    let before = log.used();
    let most = Arc::new(Mutex::new(0));
    let (seen, probed) = (Arc::clone(&most), log.clone());
    medium.probe(Some(Arc::new(move |_| {
        let most = &mut *seen.lock();
        *most = probed.used().max(*most);
    })));
    assert!(log.compact().unwrap());
    medium.probe(None);
    let most = *most.lock();
    assert!(most > 0, "nothing was moved");
    assert!(most <= before + 64, "{most} instead of {before}");
    for key in 0..round {
        assert!(log.remove(&[key]).unwrap());
    }
    assert_eq!(log.used(), 0);
}

#[test]
fn bytes_that_a_reader_holds_are_not_overwritten() {
    let log = open(&medium());
    let mut random = fastrand::Rng::with_seed(4);
    let bytes = content(&mut random, 5000);
    let state = put(&log, b"state", &bytes).unwrap();
    assert!(log.remove(b"state").unwrap());
    let used = log.used();
    for _ in 0..100 {
        put(&log, b"passing", &content(&mut random, 3000)).unwrap();
        assert_eq!(read(&log, &state), *bytes);
    }
    log.remove(b"passing").unwrap();
    assert_eq!(log.used(), used);
    drop(state);
    assert_eq!(log.used(), 0);
}

#[test]
fn a_reader_of_an_uncommitted_value_outlives_its_writer() {
    let log = open(&medium());
    let mut writer = log.begin(b"key").unwrap();
    let partial = writer.reader();
    assert!(partial.is_empty());
    writer.write(&[7; 6000]).unwrap();
    assert_eq!(partial.len(), 6000);
    assert!(matches!(
        partial.read_at(5000, &mut [0; 1001]),
        Err(Error::Range { .. })
    ));
    drop(writer);
    for _ in 0..60 {
        put(&log, b"passing", &[9; 3000]).unwrap();
    }
    let mut bytes = [0; 6000];
    partial.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 6000]);
    log.remove(b"passing").unwrap();
    drop(partial);
    assert_eq!(log.used(), 0);
}

/// A simulated medium in which each read of a value waits until another thread has written bytes.
struct Slow {
    medium: ShadowMedium,
    reads: mpsc::Sender<()>,
    written: Mutex<mpsc::Receiver<()>>,
}

impl Medium for Slow {
    fn len(&self) -> u64 {
        self.medium.len()
    }

    fn class(&self) -> Class {
        self.medium.class()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        if buf.len() == 77 {
            self.reads.send(()).unwrap();
            let written = self.written.lock();
            let patience = Duration::from_secs(20);
            written.recv_timeout(patience).expect("the writer waits");
        }
        self.medium.read(offset, buf)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.medium.write(offset, bytes)
    }

    fn store(&self, offset: u64, word: u64) -> Result<(), Error> {
        self.medium.store(offset, word)
    }

    fn flush(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.medium.flush(offset, len)
    }

    fn fence(&self) -> Result<(), Error> {
        self.medium.fence()
    }
}

#[test]
fn a_writer_continues_while_a_reader_waits_for_the_medium() {
    let ((reads, is_reading), (done, written)) = (mpsc::channel(), mpsc::channel());
    let medium = Slow {
        medium: medium(),
        reads,
        written: Mutex::new(written),
    };
    let (log, _) = Log::open(medium, OPTIONS).unwrap();
    let mut writer = log.begin(b"key").unwrap();
    writer.write(&[7; 5000]).unwrap();
    let partial = writer.reader();
    std::thread::scope(|scope| {
        let read = scope.spawn(move || {
            let mut bytes = [0; 77];
            partial.read_at(100, &mut bytes).unwrap();
            bytes
        });
        is_reading.recv().unwrap();
        writer.write(&[8; 5000]).unwrap();
        done.send(()).unwrap();
        assert_eq!(read.join().unwrap(), [7; 77]);
    });
}

#[test]
fn a_dropped_writer_releases_its_space_at_once() {
    let log = open(&medium());
    for _ in 0..200 {
        let mut writer = log.begin(b"key").unwrap();
        writer.write(&[1; 10_000]).unwrap();
        assert!(log.used() >= 10_000);
        drop(writer);
        assert_eq!(log.used(), 0);
    }
    assert!(log.get(b"key").unwrap().is_none());
}

#[test]
fn the_limit_holds_until_a_value_is_removed() {
    let log = open(&medium());
    put(&log, b"first", &[1; 3000]).unwrap();
    put(&log, b"second", &[2; 3000]).unwrap();
    log.set_limit(5000);
    assert_eq!(log.limit(), 5000);
    assert!(matches!(log.begin(b"third"), Err(Error::NoRoom)));
    assert!(log.remove(b"first").unwrap());
    assert!(!log.remove(b"first").unwrap());
    let mut writer = log.begin(b"third").unwrap();
    assert!(matches!(writer.write(&[3; 3000]), Err(Error::NoRoom)));
    assert!(matches!(writer.write(&[3; 3]), Err(Error::WriterFailed)));
    drop(writer);
    put(&log, b"third", &[3; 1000]).unwrap();
    log.set_limit(u64::MAX);
    assert_eq!(log.limit(), log.capacity());
}

#[test]
fn lengths_of_keys_metas_and_values_are_bounded() {
    let log = open(&medium());
    assert!(matches!(
        log.begin(&[0; MAX_KEY_LEN + 1]),
        Err(Error::TooLarge { len: 73, .. })
    ));
    let too_much = vec![0; MAX_META_LEN + 1];
    let refused = log.begin(b"key").unwrap().commit(&too_much);
    assert!(matches!(refused, Err(Error::TooLarge { most: 65536, .. })));
    // The tail of a record (key, meta, list of parts) must fit into one segment.
    let refused = log.begin(b"key").unwrap().commit(&[0; 4096]);
    assert!(matches!(refused, Err(Error::TooLarge { .. })));
    assert_eq!(log.used(), 0);
    let empty = log.begin(&[5; MAX_KEY_LEN]).unwrap().commit(b"").unwrap();
    assert!(empty.is_empty() && empty.meta().is_empty() && empty.extents().is_empty());
    assert_eq!(
        (empty.key(), empty.bytes()),
        ([5; MAX_KEY_LEN].as_slice(), 192)
    );
}

#[test]
fn threads_can_share_a_log() {
    let medium = medium();
    let log = open(&medium);
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let log = log.clone();
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(thread.into());
                for round in 0..100 {
                    let bytes = content(&mut random, 1500);
                    // Each thread writes one key of its own, and one key that all threads write.
                    for key in [[thread], [99]] {
                        match put(&log, &key, &bytes) {
                            Ok(entry) => assert_eq!(read(&log, &entry), *bytes),
                            Err(error) => assert!(matches!(error, Error::NoRoom), "{error}"),
                        }
                    }
                    if round % 10 == 9 {
                        log.remove(&[99]).unwrap();
                    }
                }
            });
        }
    });
    let (again, found) = Log::open(medium.cut(0), OPTIONS).unwrap();
    log.entries(&mut |was| {
        let entry = again.get(was.key).unwrap().unwrap();
        assert_eq!(entry.meta(), meta(&read(&again, &entry)));
    });
    assert_eq!(
        (found.entries, found.bytes),
        (again.inner.index.read().len() as u64, log.used())
    );
}
