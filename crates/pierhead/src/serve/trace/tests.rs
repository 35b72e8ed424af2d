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

fn record(file: &Path, data: &Path, max: u64, numbers: std::ops::Range<u64>) -> (u64, u64) {
    let notes = Arc::<Notes>::default();
    let recorder = notes.recorder();
    let trace = Trace::start(notes.clone(), file, max, data, &Panics::default()).unwrap();
    for number in numbers {
        recorder(&access(number), Outcome::Hit);
    }
    trace.stop();
    (notes.recorded.get(), notes.dropped.get())
}

const SECRET: [u8; secret::LEN] = [7; secret::LEN];
const FIX: &str = "move it away or name another request_log.file";

fn refusal(file: &Path, data: &Path) -> String {
    let refused = Trace::start(Arc::default(), file, 1 << 20, data, &Panics::default()).err();
    format!("{:#}", refused.expect("a refusal"))
}

fn pipe(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::from(0o600), 0).unwrap();
}

fn batch(numbers: std::ops::Range<u64>) -> Vec<Note> {
    numbers
        .map(|number| (access(number), Outcome::Hit))
        .collect()
}

fn flush(output: &mut Output, numbers: std::ops::Range<u64>) -> (u64, u64) {
    let notes = Notes::default();
    notes.flush(&batch(numbers), &SECRET.into(), output, &mut false);
    (notes.recorded.get(), notes.dropped.get())
}

#[test]
fn a_trace_goes_on_after_a_restart_and_its_keys_need_the_secret() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace");
    assert_eq!(record(&file, folder.path(), 1 << 20, 0..3), (3, 0));
    // What a crash leaves.
    let mut text = fs::read(&file).unwrap();
    text.extend(b"12 00ab");
    fs::write(&file, text).unwrap();
    assert_eq!(record(&file, folder.path(), 1 << 20, 2..5), (3, 0));
    let keys: Vec<_> = lines(&file).iter().map(|line| line.key).collect();
    assert_eq!((keys.len(), keys[2]), (6, keys[3]), "one key, one hash");
    let path = folder.path().join("trace-secret");
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    fs::remove_file(path).unwrap();
    record(&file, folder.path(), 1 << 20, 4..5);
    let again = lines(&file);
    assert_ne!(again[5].key, again[6].key, "another secret");
}

#[test]
fn files_together_stay_below_their_bound() {
    let folder = tempfile::tempdir().unwrap();
    let (file, max) = (folder.path().join("trace"), 4096);
    for round in 0..20 {
        record(&file, folder.path(), max, round * 10..round * 10 + 10);
    }
    let older = folder.path().join("trace.1");
    let size = |path: &Path| fs::metadata(path).unwrap().len();
    assert!(size(&file) + size(&older) <= max);
    let (older, newer) = (lines(&older), lines(&file));
    assert_eq!(newer.last().unwrap().second, 199);
    assert_eq!(older.last().unwrap().second + 1, newer[0].second);
}

#[test]
fn what_is_no_trace_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("notes");
    fs::write(&file, "dear diary\n").unwrap();
    let message = refusal(&file, folder.path());
    assert!(message.contains(FIX), "{message}");
    assert_eq!(fs::read(&file).unwrap(), b"dear diary\n");
}

#[test]
fn more_than_can_wait_is_counted() {
    let notes = Notes::default();
    for number in 0..u64::try_from(WAITING).unwrap() + 5 {
        notes.note(access(number), Outcome::Hit);
    }
    assert_eq!(notes.dropped.get(), 5);
}

#[test]
fn only_what_follows_the_last_whole_line_is_cut_however_long_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace");
    for zeros in [4095, 4096, 4097, 10_000] {
        fs::remove_file(&file).ok();
        record(&file, folder.path(), 1 << 20, 0..3);
        let mut text = fs::read(&file).unwrap();
        // What a power cut leaves.
        text.resize(text.len() + zeros, 0);
        fs::write(&file, text).unwrap();
        record(&file, folder.path(), 1 << 20, 3..5);
        assert_eq!(lines(&file).len(), 5, "{zeros} zeros");
    }
}

#[test]
fn half_a_header_is_made_whole() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace");
    fs::write(&file, &pierhead_eviction::request_log::HEADER[..9]).unwrap();
    record(&file, folder.path(), 1 << 20, 0..3);
    assert_eq!(lines(&file).len(), 3);
}

#[test]
fn a_secret_that_is_no_regular_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (file, secret) = (
        folder.path().join("trace"),
        folder.path().join("trace-secret"),
    );
    let elsewhere = folder.path().join("elsewhere");
    fs::write(&elsewhere, SECRET).unwrap();
    symlink(&elsewhere, &secret).unwrap();
    let message = refusal(&file, folder.path());
    assert!(message.contains("trace-secret"), "{message}");
    assert!(message.contains("remove it"), "{message}");
    fs::remove_file(&secret).unwrap();
    pipe(&secret);
    let message = refusal(&file, folder.path());
    assert!(message.contains("a pipe, not a regular file"), "{message}");
    assert!(message.contains("remove it"), "{message}");
}

#[test]
fn a_secret_is_its_owners_and_comes_whole() {
    let folder = tempfile::tempdir().unwrap();
    let (file, path) = (
        folder.path().join("trace"),
        folder.path().join("trace-secret"),
    );
    let elsewhere = folder.path().join("elsewhere");
    fs::write(&elsewhere, "mine").unwrap();
    symlink(&elsewhere, folder.path().join("trace-secret.partial")).unwrap();
    // Cut short, and open to all.
    fs::write(&path, "short").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    record(&file, folder.path(), 1 << 20, 0..1);
    let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    assert_eq!(
        (fs::read(&path).unwrap().len(), mode()),
        (secret::LEN, 0o600)
    );
    assert_eq!(fs::read(&elsewhere).unwrap(), b"mine");
    assert!(!folder.path().join("trace-secret.partial").exists());
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    record(&file, folder.path(), 1 << 20, 0..1);
    assert_eq!(mode(), 0o600, "an old one that was open to all");
}

#[test]
fn a_trace_that_is_moved_away_or_emptied_goes_on_in_a_valid_file() {
    let folder = tempfile::tempdir().unwrap();
    let (file, away) = (folder.path().join("trace"), folder.path().join("away"));
    let mut output = Output::new(&file, 2048);
    assert_eq!(flush(&mut output, 0..20), (20, 0));
    fs::rename(&file, &away).unwrap();
    assert_eq!(flush(&mut output, 20..50), (30, 0));
    assert_eq!(flush(&mut output, 50..60), (10, 0));
    assert_eq!((lines(&away).len(), lines(&file)[0].second), (20, 20));
    // Another file in its place is not taken for the older half.
    fs::rename(&file, &away).unwrap();
    fs::write(&file, pierhead_eviction::request_log::HEADER).unwrap();
    assert_eq!(flush(&mut output, 60..80), (20, 0));
    assert_eq!(lines(&file).len(), 20);
    // As `: > trace` does.
    fs::write(&file, "").unwrap();
    assert_eq!(flush(&mut output, 80..83), (3, 0));
    assert_eq!(lines(&file).len(), 3);
}

#[test]
fn a_folder_where_the_older_half_goes_is_refused_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("trace.1")).unwrap();
    let message = refusal(&folder.path().join("trace"), folder.path());
    assert!(message.contains("trace.1 is a folder"), "{message}");
    assert!(message.contains(FIX), "{message}");
}

#[test]
fn a_failure_is_told_once_however_often_nothing_is_written_after_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("missing/trace");
    let (notes, secret) = (Notes::default(), SECRET.into());
    let (mut output, mut failed) = (Output::new(&file, 2048), false);
    notes.flush(&batch(0..1), &secret, &mut output, &mut failed);
    assert!(failed);
    notes.flush(&[], &secret, &mut output, &mut failed);
    assert!(failed, "nothing was written");
    fs::create_dir(file.parent().unwrap()).unwrap();
    notes.flush(&batch(1..2), &secret, &mut output, &mut failed);
    assert!(!failed);
    assert_eq!((notes.recorded.get(), notes.dropped.get()), (1, 1));
}

#[test]
fn two_do_not_record_in_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace");
    let first = Trace::start(
        Arc::default(),
        &file,
        1 << 20,
        folder.path(),
        &Panics::default(),
    )
    .unwrap();
    let message = refusal(&file, folder.path());
    assert!(message.contains(file.to_str().unwrap()), "{message}");
    assert!(message.contains("another process"), "{message}");
    first.stop();
    record(&file, folder.path(), 1 << 20, 0..1);
}

#[test]
fn what_others_append_is_not_written_over() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace");
    let mut output = Output::new(&file, 2048);
    flush(&mut output, 0..2);
    let mut other = OpenOptions::new().append(true).open(&file).unwrap();
    other.write_all(b"# a note\n").unwrap();
    flush(&mut output, 2..4);
    let text = fs::read_to_string(&file).unwrap();
    assert_eq!(text.lines().nth(3), Some("# a note"));
    assert_eq!(text.lines().count(), 6);
}

#[test]
fn what_is_no_regular_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    pipe(&path);
    for path in [&path, Path::new("/dev/null")] {
        let message = refusal(path, folder.path());
        assert!(message.contains("not a regular file"), "{message}");
        assert!(message.contains(FIX), "{message}");
    }
    let message = refusal(folder.path(), folder.path());
    assert!(message.contains(FIX), "{message}");
}
