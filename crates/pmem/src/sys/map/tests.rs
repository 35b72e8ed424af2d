//! Tests of the mapped file: faults, threads, and copies of all lengths and offsets.

use std::sync::Barrier;

use proptest::prelude::*;

use super::super::sigbus::is_monitored;
use super::*;

fn file(len: u64) -> File {
    let file = tempfile::tempfile().expect("a file");
    file.set_len(len).expect("a length");
    file
}

fn map(file: &File, len: usize) -> Map {
    Map::of(file, len).expect("a map").0
}

fn start(map: &Map) -> usize {
    map.base.addr().get()
}

#[test]
fn slots_are_reusable_after_unmapping() {
    let file = file(4096);
    // The loop makes four times as many maps as there are slots for regions.
    for _ in 0..4 * super::super::sigbus::MAX_REGIONS {
        let map = map(&file, 4096);
        let at = start(&map);
        assert!(is_monitored(at) && is_monitored(at + 4095));
    }
}

#[test]
fn a_failed_slot_is_intact_for_its_next_owner() {
    let file = file(8192);
    let mut first = Vec::new();
    for _ in 0..8 {
        first.push(map(&file, 8192));
    }
    file.set_len(0).expect("cut");
    for map in &first {
        assert_eq!(map.load(5000, &mut [0]), Err(Failed(5000)));
    }
    drop(first);
    file.set_len(8192).expect("a length");
    for _ in 0..8 {
        assert_eq!(map(&file, 8192).load(5000, &mut [0]), Ok(()));
    }
}

#[test]
fn a_fault_marks_its_own_map_only() {
    let (cut, whole) = (file(8192), file(8192));
    let (a, b) = (map(&cut, 8192), map(&whole, 8192));
    cut.set_len(4096).expect("cut");
    assert!(a.save(4000, &[1; 200]).is_err());
    // The reported offset is the offset of the faulting word.
    assert_eq!(a.failed(), Some(Failed(4096)));
    assert_eq!(b.save(4000, &[1; 200]), Ok(()));
    assert_eq!(b.failed(), None);
}

#[test]
fn all_threads_that_fault_at_once_get_an_error() {
    let file = file(1 << 20);
    let map = map(&file, 1 << 20);
    map.save(0, &vec![7; 1 << 20]).expect("sound");
    let barrier = Barrier::new(5);
    std::thread::scope(|scope| {
        for n in 0..4_usize {
            let (map, barrier) = (&map, &barrier);
            scope.spawn(move || {
                barrier.wait();
                let mut buf = vec![0; 1 << 18];
                // Until the map notices the truncation, each read returns the written bytes.
                loop {
                    let done = if n % 2 == 0 {
                        map.load(n << 18, &mut buf)
                    } else {
                        map.save(n << 18, &[7; 1 << 18])
                    };
                    match done {
                        Ok(()) => assert!(n % 2 == 1 || buf.iter().all(|byte| *byte == 7)),
                        Err(Failed(_)) => break,
                    }
                }
            });
        }
        barrier.wait();
        file.set_len(0).expect("cut");
    });
    assert!(map.failed().is_some());
}

#[test]
#[should_panic(expected = "of a map of")]
fn accesses_outside_of_the_map_panic() {
    let file = file(4096);
    let _ = map(&file, 4096).load(4090, &mut [0; 7]);
}

#[test]
fn touch_checks_every_page_of_a_range() {
    let file = file(3 << 12);
    let map = map(&file, 3 << 12);
    file.set_len(2 << 12).expect("cut");
    assert_eq!(map.touch(0, 2 << 12), Ok(()));
    assert_eq!(map.touch(4095, 4097), Ok(()));
    assert_eq!(map.touch(0, 0), Ok(()));
    assert!(map.touch(4095, 4098).is_err());
}

#[test]
fn bytes_of_one_word_can_be_written_by_several_threads() {
    let file = file(4096);
    let map = map(&file, 4096);
    std::thread::scope(|scope| {
        for n in 0..8_u8 {
            let map = &map;
            scope.spawn(move || {
                for round in 0..2000_usize {
                    map.save(round % 8 * 8 + usize::from(n), &[n + 1])
                        .expect("sound");
                }
            });
        }
    });
    let mut buf = [0; 64];
    map.load(0, &mut buf).expect("sound");
    assert_eq!(buf, [1, 2, 3, 4, 5, 6, 7, 8].repeat(8).as_slice());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// A map behaves like a plain array for all lengths and offsets, and for all three ways to
    /// copy: words, string instructions, stores that bypass the cache.
    #[test]
    fn written_bytes_are_read_back_at_their_offsets(writes in proptest::collection::vec(
        (0_usize..30_000, prop_oneof![0_usize..20, 200_usize..300, 4000_usize..9000], any::<u8>()), 1..20,
    )) {
        const LEN: usize = 40_000;
        let file = file(LEN as u64);
        let map = map(&file, LEN);
        let mut wanted = vec![0_u8; LEN];
        for (at, len, seed) in writes {
            let bytes: Vec<u8> = (0..len).map(|n| seed.wrapping_add(n.to_le_bytes()[0])).collect();
            map.save(at, &bytes).expect("sound");
            wanted[at..at + len].copy_from_slice(&bytes);
            let mut buf = vec![0xee; len + 9];
            map.load(at, &mut buf).expect("sound");
            prop_assert_eq!(&buf, &wanted[at..at + len + 9]);
        }
        // The file must have the same bytes as the map, because `sendfile` reads the file.
        let mut buf = vec![0; LEN];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut buf, 0).expect("readable");
        prop_assert_eq!(buf, wanted);
    }
}
