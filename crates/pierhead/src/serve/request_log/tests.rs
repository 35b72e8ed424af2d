//! Unit tests of the request log: restarts, rotation, damaged files, and the secret that hashes
//! digests.
#![expect(clippy::disallowed_methods, reason = "moves a file of the test")]

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::*;

fn access(number: u64) -> Access<Digest> {
    Access::new(
        Digest::of(Algorithm::Sha256, &number.to_le_bytes()),
        4096,
        number,
    )
}

fn lines(path: &Path) -> Vec<Record> {
    let text = fs::read_to_string(path).unwrap();
    let lines = text
        .strip_prefix(pierhead_eviction::request_log::HEADER)
        .unwrap()
        .lines();
    lines
        .map(|line| pierhead_replay::trace::request_log::parse(line).unwrap())
        .collect()
}

fn write_requests(file: &Path, data: &Path, max: u64, numbers: std::ops::Range<u64>) -> (u64, u64) {
    let queue = Arc::<RequestQueue>::default();
    let recorder = queue.recorder();
    let writer =
        RequestLogWriter::start(queue.clone(), file, max, data, &Panics::default()).unwrap();
    for number in numbers {
        recorder(&access(number), Outcome::Hit);
    }
    writer.stop();
    (queue.recorded.get(), queue.dropped.get())
}

const SECRET: [u8; hash_secret::LEN] = [7; hash_secret::LEN];
const FIX: &str = "move it away, or set request_log.file to another file";

fn start_error(file: &Path, data: &Path) -> String {
    let result = RequestLogWriter::start(Arc::default(), file, 1 << 20, data, &Panics::default());
    format!("{:#}", result.err().expect("an error"))
}

fn create_pipe(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::from(0o600), 0).unwrap();
}

fn batch(numbers: std::ops::Range<u64>) -> Vec<QueuedRequest> {
    numbers
        .map(|number| (access(number), Outcome::Hit))
        .collect()
}

fn flush(log: &mut LogFile, numbers: std::ops::Range<u64>) -> (u64, u64) {
    let queue = RequestQueue::default();
    queue.flush(&batch(numbers), &SECRET.into(), log, &mut false);
    (queue.recorded.get(), queue.dropped.get())
}

#[test]
fn a_restart_continues_the_log_and_the_keys_depend_on_the_secret() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("requests.log");
    assert_eq!(write_requests(&file, folder.path(), 1 << 20, 0..3), (3, 0));
    // A crash has left an incomplete line at the end of the file.
    let mut text = fs::read(&file).unwrap();
    text.extend(b"12 00ab");
    fs::write(&file, text).unwrap();
    assert_eq!(write_requests(&file, folder.path(), 1 << 20, 2..5), (3, 0));
    let keys: Vec<_> = lines(&file).iter().map(|line| line.key).collect();
    assert_eq!(
        (keys.len(), keys[2]),
        (6, keys[3]),
        "the same digest has the same key"
    );
    let path = folder.path().join(hash_secret::FILE);
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    fs::remove_file(path).unwrap();
    write_requests(&file, folder.path(), 1 << 20, 4..5);
    let again = lines(&file);
    assert_ne!(
        again[5].key, again[6].key,
        "another secret gives another key"
    );
}

#[test]
fn both_files_together_stay_below_the_maximum_size() {
    let folder = tempfile::tempdir().unwrap();
    let (file, max) = (folder.path().join("requests.log"), 4096);
    for round in 0..20 {
        write_requests(&file, folder.path(), max, round * 10..round * 10 + 10);
    }
    let older = folder.path().join("requests.log.1");
    let size = |path: &Path| fs::metadata(path).unwrap().len();
    assert!(size(&file) + size(&older) <= max);
    let (older, newer) = (lines(&older), lines(&file));
    assert_eq!(newer.last().unwrap().second, 199);
    assert_eq!(older.last().unwrap().second + 1, newer[0].second);
}

#[test]
fn a_file_that_is_no_request_log_stays_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("notes");
    fs::write(&file, "dear diary\n").unwrap();
    let message = start_error(&file, folder.path());
    assert!(message.contains(FIX), "{message}");
    assert_eq!(fs::read(&file).unwrap(), b"dear diary\n");
}

#[test]
fn requests_beyond_the_queue_are_counted_as_dropped() {
    let queue = RequestQueue::default();
    for number in 0..u64::try_from(MAX_QUEUED).unwrap() + 5 {
        queue.push(access(number), Outcome::Hit);
    }
    assert_eq!(queue.dropped.get(), 5);
}

#[test]
fn everything_after_the_last_whole_line_is_truncated() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("requests.log");
    for zeros in [4095, 4096, 4097, 10_000] {
        fs::remove_file(&file).ok();
        write_requests(&file, folder.path(), 1 << 20, 0..3);
        let mut text = fs::read(&file).unwrap();
        // A power cut has left zero bytes at the end of the file.
        text.resize(text.len() + zeros, 0);
        fs::write(&file, text).unwrap();
        write_requests(&file, folder.path(), 1 << 20, 3..5);
        assert_eq!(lines(&file).len(), 5, "{zeros} zeros");
    }
}

#[test]
fn a_truncated_header_is_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("requests.log");
    fs::write(&file, &pierhead_eviction::request_log::HEADER[..9]).unwrap();
    write_requests(&file, folder.path(), 1 << 20, 0..3);
    assert_eq!(lines(&file).len(), 3);
}

#[test]
fn a_secret_that_is_no_regular_file_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let (file, secret) = (
        folder.path().join("requests.log"),
        folder.path().join(hash_secret::FILE),
    );
    let elsewhere = folder.path().join("elsewhere");
    fs::write(&elsewhere, SECRET).unwrap();
    symlink(&elsewhere, &secret).unwrap();
    let message = start_error(&file, folder.path());
    assert!(message.contains(hash_secret::FILE), "{message}");
    assert!(message.contains("remove it"), "{message}");
    fs::remove_file(&secret).unwrap();
    create_pipe(&secret);
    let message = start_error(&file, folder.path());
    assert!(message.contains("a pipe, not a regular file"), "{message}");
    assert!(message.contains("remove it"), "{message}");
}

#[test]
fn a_truncated_secret_is_replaced_and_only_its_owner_can_read_it() {
    let folder = tempfile::tempdir().unwrap();
    let (file, path) = (
        folder.path().join("requests.log"),
        folder.path().join(hash_secret::FILE),
    );
    let elsewhere = folder.path().join("elsewhere");
    fs::write(&elsewhere, "mine").unwrap();
    symlink(&elsewhere, folder.path().join("trace-secret.partial")).unwrap();
    // A secret that is truncated, and that all users can read.
    fs::write(&path, "short").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    write_requests(&file, folder.path(), 1 << 20, 0..1);
    let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    assert_eq!(
        (fs::read(&path).unwrap().len(), mode()),
        (hash_secret::LEN, 0o600)
    );
    assert_eq!(fs::read(&elsewhere).unwrap(), b"mine");
    assert!(!folder.path().join("trace-secret.partial").exists());
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    write_requests(&file, folder.path(), 1 << 20, 0..1);
    assert_eq!(mode(), 0o600, "the mode of an existing secret is corrected");
}

#[test]
fn a_renamed_or_emptied_log_continues_in_a_valid_file() {
    let folder = tempfile::tempdir().unwrap();
    let (file, away) = (
        folder.path().join("requests.log"),
        folder.path().join("away"),
    );
    let mut log = LogFile::new(&file, 2048);
    assert_eq!(flush(&mut log, 0..20), (20, 0));
    fs::rename(&file, &away).unwrap();
    assert_eq!(flush(&mut log, 20..50), (30, 0));
    assert_eq!(flush(&mut log, 50..60), (10, 0));
    assert_eq!((lines(&away).len(), lines(&file)[0].second), (20, 20));
    // Another program has renamed the log, and has created a file with only the header at the same
    // path. The log continues in the new file, and is not rotated.
    fs::rename(&file, &away).unwrap();
    fs::write(&file, pierhead_eviction::request_log::HEADER).unwrap();
    assert_eq!(flush(&mut log, 60..80), (20, 0));
    assert_eq!(lines(&file).len(), 20);
    // Truncates the log file, as the shell command `: > requests.log` does.
    fs::write(&file, "").unwrap();
    assert_eq!(flush(&mut log, 80..83), (3, 0));
    assert_eq!(lines(&file).len(), 3);
}

#[test]
fn a_folder_at_the_path_of_the_rotated_file_is_an_error_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("requests.log.1")).unwrap();
    let message = start_error(&folder.path().join("requests.log"), folder.path());
    assert!(message.contains("requests.log.1 is a folder"), "{message}");
    assert!(message.contains(FIX), "{message}");
}

#[test]
fn consecutive_write_failures_are_logged_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("missing/requests.log");
    let (queue, secret) = (RequestQueue::default(), SECRET.into());
    let (mut log, mut failed) = (LogFile::new(&file, 2048), false);
    queue.flush(&batch(0..1), &secret, &mut log, &mut failed);
    assert!(failed);
    queue.flush(&[], &secret, &mut log, &mut failed);
    assert!(failed, "an empty batch does not reset the flag");
    fs::create_dir(file.parent().unwrap()).unwrap();
    queue.flush(&batch(1..2), &secret, &mut log, &mut failed);
    assert!(!failed);
    assert_eq!((queue.recorded.get(), queue.dropped.get()), (1, 1));
}

#[test]
fn a_second_process_cannot_write_to_the_same_log() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("requests.log");
    let first = RequestLogWriter::start(
        Arc::default(),
        &file,
        1 << 20,
        folder.path(),
        &Panics::default(),
    )
    .unwrap();
    let message = start_error(&file, folder.path());
    assert!(message.contains(file.to_str().unwrap()), "{message}");
    assert!(message.contains("another process"), "{message}");
    first.stop();
    write_requests(&file, folder.path(), 1 << 20, 0..1);
}

#[test]
fn lines_of_another_process_are_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("requests.log");
    let mut log = LogFile::new(&file, 2048);
    flush(&mut log, 0..2);
    let mut other = OpenOptions::new().append(true).open(&file).unwrap();
    other.write_all(b"# a note\n").unwrap();
    flush(&mut log, 2..4);
    let text = fs::read_to_string(&file).unwrap();
    assert_eq!(text.lines().nth(3), Some("# a note"));
    assert_eq!(text.lines().count(), 6);
}

#[test]
fn a_log_that_is_no_regular_file_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    create_pipe(&path);
    for path in [&path, Path::new("/dev/null")] {
        let message = start_error(path, folder.path());
        assert!(message.contains("not a regular file"), "{message}");
        assert!(message.contains(FIX), "{message}");
    }
    let message = start_error(folder.path(), folder.path());
    assert!(message.contains(FIX), "{message}");
}
