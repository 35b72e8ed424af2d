//! Unit tests of a region: durability class, flushes by CPU instructions, and fences.

use super::*;

fn open(path: &Path, size: u64) -> Result<Region, Error> {
    Region::open(&Config {
        path: path.to_owned(),
        size,
    })
}

const LINES: Result<(), Errno> = Ok(());

#[test]
fn the_class_follows_from_tests_of_the_machine() {
    let lines = || CacheLines::detect().map_err(|_| "none");
    let gone = || Some("tmpfs is memory".to_owned());
    for refused in [Errno::OPNOTSUPP, Errno::INVAL] {
        let (class, flush, why) = classify(Err(refused), None, lines());
        assert!(matches!((class, flush), (Class::EmulatedFile, Flush::Sync)));
        assert!(why.contains("refuses MAP_SYNC"), "{why}");
    }
    // If the CPU lacks the flush instruction, such as a Cortex-A72, the file system does not
    // matter.
    for synchronous in [LINES, Err(Errno::OPNOTSUPP)] {
        let (class, flush, why) = classify(synchronous, None, Err("this CPU has no dc cvap"));
        assert!(matches!((class, flush), (Class::EmulatedFile, Flush::Sync)));
        assert!(why.contains("no dc cvap"), "{why}");
    }
    // Ordinary memory is volatile, even where MAP_SYNC works.
    for synchronous in [LINES, Err(Errno::OPNOTSUPP)] {
        let (class, flush, why) = classify(synchronous, gone(), lines());
        assert!(matches!((class, flush), (Class::Volatile, Flush::Nothing)));
        assert!(why.contains("tmpfs"), "{why}");
    }
    if let Ok(lines) = CacheLines::detect() {
        let (class, flush, _) = classify(LINES, None, Ok(lines));
        assert!(matches!((class, flush), (Class::Pmem, Flush::Lines(_))));
    }
}

#[test]
fn a_fence_syncs_one_range_that_covers_all_flushes() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut region = open(&folder.path().join("r"), 1 << 20).expect("a region");
    region.flush = Flush::Sync;
    let pending = |region: &Region| region.pending.lock().clone();
    region.flush(70_000, 10).expect("in range");
    region.flush(8, 8).expect("in range");
    region.flush(500, 0).expect("in range");
    assert_eq!(pending(&region), Some(8..70_010));
    region.fence().expect("sound");
    assert_eq!(pending(&region), None);
    region.flush(9, 0).expect("in range");
    assert_eq!(pending(&region), None);
}

#[test]
fn each_flushed_line_is_written_back_and_then_fenced() {
    use crate::sys::executed::{Executed, take};
    let Ok(lines) = CacheLines::detect() else {
        return;
    };
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
    let mut region = open(&folder.path().join("r"), 1 << 20).expect("a region");
    region.flush = Flush::Lines(lines);
    region.write(4990, &[1; 300]).expect("in range");
    assert_eq!(take(), []);
    region.flush(4990, 300).expect("in range");
    let executed = take();
    let lines: Vec<_> = executed
        .iter()
        .map(|executed| match executed {
            Executed::Line(at) => *at % 4096,
            Executed::Fence => panic!("not yet"),
        })
        .collect();
    let [first, second, ..] = lines[..] else {
        panic!("{executed:?}");
    };
    let line = second - first;
    assert!(line.is_power_of_two() && first % line == 0);
    // The region begins at a page boundary.
    assert!(first <= 4990 - 4096 && 4990 - 4096 < second, "{lines:?}");
    let end = first + line * lines.len();
    assert!(
        (5290 - 4096..5290 - 4096 + line).contains(&end),
        "{lines:?}"
    );
    assert!(lines.windows(2).all(|pair| pair[1] - pair[0] == line));
    region.fence().expect("sound");
    assert_eq!(take(), [Executed::Fence]);
}

/// Returns the dirty bytes of a mapped file, from `/proc/self/smaps`. Returns 0 if the kernel does
/// not report them.
fn dirty(path: &Path) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let mut lines = maps.lines();
    lines.find(|line| line.ends_with(&path.display().to_string()));
    let figures = lines.take_while(|line| !line.starts_with("VmFlags"));
    let dirty = figures.filter(|line| line.contains("_Dirty:"));
    let kilobytes = dirty.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kilobytes.sum::<u64>() * 1024
}

#[test]
fn a_fence_writes_flushed_bytes_to_the_disk() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("r");
    let region = open(&path, 1 << 20).expect("a region");
    if !matches!(region.flush, Flush::Sync) {
        return;
    }
    region.store(4096, 1).expect("aligned");
    region.write(300_000, b"here").expect("in range");
    region.flush(4096, 8).expect("in range");
    region.flush(300_000, 4).expect("in range");
    region.fence().expect("sound");
    assert_eq!(dirty(&path), 0);
}

#[test]
fn a_flush_by_instructions_detects_a_truncated_file() {
    let Ok(lines) = CacheLines::detect() else {
        return;
    };
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
    let mut region = open(&folder.path().join("r"), 1 << 20).expect("a region");
    region.flush = Flush::Lines(lines);
    region.write(5000, b"here").expect("in range");
    region.flush(5000, 4).expect("in range");
    region.fence().expect("sound");
    region.file().set_len(4096).expect("cut");
    assert!(matches!(
        region.flush(5000, 4),
        Err(Error::Medium {
            offset: 4096..8192,
            ..
        })
    ));
    assert!(matches!(region.fence(), Err(Error::Medium { .. })));
}
