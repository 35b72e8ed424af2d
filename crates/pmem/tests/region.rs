//! Tests of regions through the public API: creation, locking, refused files, and truncation of a
//! mapped file.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;

use pierhead_pmem::{Class, Config, Error, Fault, Medium, Region};

const SIZE: u64 = 1 << 20;

fn open(path: &Path, size: u64) -> Result<Region, Error> {
    Region::open(&Config {
        path: path.to_owned(),
        size,
    })
}

fn foreign(result: Result<Region, Error>) -> String {
    match result {
        Err(error @ Error::Foreign { .. }) => {
            assert_eq!(error.fault(), Fault::Setup);
            error.to_string()
        }
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_region_is_created_with_its_full_size_and_can_be_reopened() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tier");
    let region = open(&path, SIZE).expect("made");
    region.write(3, b"stays").expect("in range");
    region.store(64, 0x0102_0304_0506_0708).expect("aligned");
    region.flush(0, 128).expect("in range");
    region.fence().expect("sound");
    drop(region);
    assert_eq!(fs::metadata(&path).expect("there").len(), SIZE);
    assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 1);
    let region = open(&path, SIZE).expect("found");
    let mut buf = [0; 5];
    region.read(3, &mut buf).expect("in range");
    assert_eq!(&buf, b"stays");
    let mut word = [0; 8];
    region
        .file()
        .read_exact_at(&mut word, 64)
        .expect("readable");
    assert_eq!(word, [8, 7, 6, 5, 4, 3, 2, 1]);
}

#[test]
fn memory_is_never_reported_as_persistent() {
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
    let region = open(&folder.path().join("tier"), SIZE).expect("made");
    let report = region.report();
    assert_eq!((report.class, report.flush), (Class::Volatile, "none"));
    assert!(!report.class.is_persistent());
    assert!(report.to_string().contains("volatile"), "{report}");
    region.flush(0, SIZE).expect("in range");
    region.fence().expect("sound");
}

#[test]
fn calls_outside_of_the_region_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let region = open(&folder.path().join("tier"), SIZE).expect("made");
    let mut buf = [0; 2];
    for (offset, len) in [(SIZE - 1, 2), (SIZE, 1), (u64::MAX, 2), (u64::MAX - 1, 2)] {
        let bytes = &mut buf[..len];
        assert!(matches!(
            region.read(offset, bytes),
            Err(Error::Range { .. })
        ));
        assert!(matches!(
            region.write(offset, bytes),
            Err(Error::Range { .. })
        ));
        assert!(matches!(
            region.flush(offset, len as u64),
            Err(Error::Range { .. })
        ));
    }
    assert!(matches!(
        region.flush(1, u64::MAX),
        Err(Error::Range { .. })
    ));
    assert!(matches!(region.store(SIZE, 1), Err(Error::Range { .. })));
    assert!(matches!(
        region.store(SIZE - 4, 1),
        Err(Error::Unaligned { .. })
    ));
    region.read(SIZE, &mut []).expect("nothing, at the end");
    region.store(SIZE - 8, 1).expect("the last word");
}

#[test]
fn a_second_opening_fails_with_busy() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tier");
    let first = open(&path, SIZE).expect("made");
    first.write(0, b"mine").expect("in range");
    let second = open(&path, SIZE);
    assert!(
        matches!(&second, Err(Error::Busy(busy)) if *busy == path),
        "{second:?}"
    );
    drop(first);
    open(&path, SIZE).expect("free again");
}

#[test]
fn another_process_cannot_open_the_region() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tier");
    drop(open(&path, SIZE).expect("made"));
    // The program flock(1) holds the lock until its standard input ends.
    let mut other = Command::new("flock")
        .arg("--exclusive")
        .arg(&path)
        .args(["sh", "-c", "echo held; cat"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("flock(1) of util-linux");
    let mut said = [0; 5];
    let mut output = other.stdout.take().expect("piped");
    std::io::Read::read_exact(&mut output, &mut said).expect("held");
    assert!(matches!(open(&path, SIZE), Err(Error::Busy(_))));
    drop(other.stdin.take());
    other.wait().expect("ended");
    open(&path, SIZE).expect("free again");
}

#[test]
fn a_file_that_cannot_be_the_region_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("short");
    fs::write(&path, b"somebody's").expect("written");
    let said = foreign(open(&path, SIZE));
    assert!(
        said.contains("10 bytes") && said.contains("1048576"),
        "{said}"
    );
    assert_eq!(fs::read(&path).expect("there"), b"somebody's");
    assert!(foreign(open(&path, 0)).contains("0 bytes"));
    assert!(foreign(open(&path, u64::MAX)).contains("region"));
    assert!(foreign(open(Path::new("/dev/null"), SIZE)).contains("-o dax"));
    assert!(matches!(open(folder.path(), SIZE), Err(Error::Io { .. })));
    let link = folder.path().join("link");
    std::os::unix::fs::symlink("nowhere", &link).expect("a link");
    assert!(foreign(open(&link, SIZE)).contains("link to a missing file"));
    let nowhere = open(&folder.path().join("no/tier"), SIZE);
    assert!(
        matches!(&nowhere, Err(Error::Io { doing, .. }) if doing.contains("no/tier")),
        "{nowhere:?}"
    );
}

#[test]
fn a_full_disk_leaves_no_incomplete_region() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tier");
    // This size is larger than any disk.
    let refused = open(&path, 1 << 62);
    assert!(
        matches!(&refused, Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::StorageFull),
        "{refused:?}"
    );
    assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 0);
}

#[test]
fn a_temporary_file_of_a_killed_process_is_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("tier.partial"), vec![9; 100]).expect("written");
    let region = open(&folder.path().join("tier"), SIZE).expect("made");
    let mut buf = [1; 100];
    region.read(0, &mut buf).expect("in range");
    assert_eq!(buf, [0; 100]);
    assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 1);
}

#[test]
fn a_region_that_another_process_creates_is_busy() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tier");
    // A process that creates the region holds a lock on the temporary file.
    let other = File::create(folder.path().join("tier.partial")).expect("created");
    other.try_lock().expect("free");
    let refused = open(&path, SIZE);
    assert!(
        matches!(&refused, Err(Error::Busy(busy)) if *busy == path),
        "{refused:?}"
    );
    assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 1);
    // The other process was killed.
    drop(other);
    open(&path, SIZE).expect("made");
    assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 1);
}

#[test]
fn of_many_simultaneous_openers_one_succeeds() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tier");
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| open(&path, SIZE))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect()
    });
    assert_eq!(
        results.iter().filter(|result| result.is_ok()).count(),
        1,
        "{results:?}"
    );
    for result in results {
        assert!(matches!(result, Ok(_) | Err(Error::Busy(_))), "{result:?}");
    }
    assert_eq!(fs::metadata(&path).expect("there").len(), SIZE);
    assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 1);
}

/// After a truncation of the file, the first call and all later calls fail, even if the file gets
/// its full length again.
#[test]
fn a_file_truncated_under_the_map_fails_the_region_permanently() {
    type Act = fn(&Region) -> Result<(), Error>;
    let first: [(&str, Act); 5] = [
        ("read", |region| region.read(SIZE / 2, &mut [0; 9000])),
        ("read of a word", |region| {
            region.read(SIZE - 8, &mut [0; 8])
        }),
        ("write", |region| region.write(SIZE / 2 - 100, &[1; 9000])),
        ("store", |region| region.store(SIZE - 8, 1)),
        ("flush", |region| region.flush(0, SIZE)),
    ];
    for place in [Path::new("/dev/shm"), &std::env::temp_dir()] {
        for (name, act) in first {
            let folder = tempfile::tempdir_in(place).expect("a folder");
            let path = folder.path().join("tier");
            let region = open(&path, SIZE).expect("made");
            region.write(0, &vec![7; 1 << 20]).expect("in range");
            File::options()
                .write(true)
                .open(&path)
                .and_then(|file| file.set_len(SIZE / 2))
                .expect("cut");
            region
                .read(0, &mut [0; 4096])
                .expect("what is left can be read");
            let error = act(&region).expect_err(name);
            assert!(
                matches!(error, Error::Medium { offset, .. } if offset >= SIZE / 2),
                "{name}: {error}"
            );
            assert_eq!(error.fault(), Fault::Machine);
            region.file().set_len(SIZE).expect("whole again");
            for (then, act) in first {
                assert!(
                    matches!(act(&region), Err(Error::Medium { .. })),
                    "{then} after {name}"
                );
            }
            assert!(region.fence().is_err() && region.check().is_err());
            // After the region is opened again, it has the contents of the file.
            drop(region);
            let region = open(&path, SIZE).expect("found");
            let mut buf = [1; 2];
            region.read(0, &mut buf).expect("in range");
            assert_eq!(buf, [7, 7]);
        }
    }
}

#[test]
fn free_memory_is_returned_and_stored_values_stay() {
    use pierhead_pmem::{Log, Options};
    use std::os::unix::fs::MetadataExt as _;
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
    let path = folder.path().join("tier");
    let options = Options { segment: 64 << 10 };
    let size = 4 << 20;
    let taken = || fs::metadata(&path).expect("there").blocks() * 512;
    let (log, _) = Log::open(open(&path, size).expect("made"), options).expect("a log");
    let put = |log: &Log<Region>, key: u8| {
        let mut writer = log.begin(&[key]).expect("room");
        writer.write(&vec![key; 300_000]).expect("room");
        writer.commit(&[]).expect("room");
    };
    let holds = |log: &Log<Region>, key: u8| {
        let entry = log.get(&[key]).expect("sound").expect("there");
        let mut bytes = vec![0; 300_000];
        log.read_at(&entry, 0, &mut bytes).expect("sound");
        bytes.iter().all(|byte| *byte == key)
    };
    for key in 0..8 {
        put(&log, key);
    }
    // The kernel reports the memory of a file only roughly, because of huge pages and of pages that
    // are being freed.
    let whole = taken();
    assert!(whole >= size, "{whole}");
    for key in 2..8 {
        log.remove(&[key]).expect("there");
    }
    let released = log.release().expect("sound");
    assert!(released > size / 2, "{released}");
    let kept = taken();
    assert!(kept <= whole - released / 2, "{kept} of {whole}");
    assert!(holds(&log, 0) && holds(&log, 1));
    assert_eq!(log.release().expect("sound"), 0, "there is no more");
    // The region can be written again, and the value is found.
    put(&log, 9);
    assert!(taken() >= kept && holds(&log, 9));
    drop(log);
    let (log, found) = Log::open(open(&path, size).expect("found"), options).expect("a log");
    assert_eq!((found.entries, found.dropped), (3, 0));
    assert!([0, 1, 9].into_iter().all(|key| holds(&log, key)));
    for key in 10..14 {
        put(&log, key);
    }
    assert!([0, 1, 9, 10, 13].into_iter().all(|key| holds(&log, key)));
}

#[test]
fn release_does_nothing_on_a_disk() {
    let folder = tempfile::tempdir().expect("a folder");
    let region = open(&folder.path().join("tier"), SIZE).expect("made");
    region.write(3, b"stays").expect("in range");
    if region.class() != Class::Volatile {
        region.release(0, SIZE).expect("nothing is done");
        let mut bytes = [0; 5];
        region.read(3, &mut bytes).expect("in range");
        assert_eq!(&bytes, b"stays");
    }
    assert!(region.release(1, SIZE).is_err());
}
